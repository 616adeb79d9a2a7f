"""Parquet files as stores: what datasets, pyarrow and Pillow make of the same rows as reference."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import FastLoader, PackedDataset, UsageError, info, open_store, pack, verify
from fastload.cli import main
from fastload.errors import DataError, MissingDependencyError, StoreError, StoreNotFoundError
from fastload.storage import Store, _row_groups
from fastload.storage._row_groups import DecodedColumn, RowGroups

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

EVAL = v1.Compose([v1.Resize(32), v1.CenterCrop(24), v1.ToTensor()])
TRAIN = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToImage()])
ROWS, GROUP = 47, 5


def encoded(i: int, format_: str = "JPEG", **options: Any) -> bytes:
    small = np.random.default_rng(i).integers(0, 256, (6, 7, 3), np.uint8)
    buffer = io.BytesIO()
    image = Image.fromarray(small).resize((40 + i % 9, 36), Image.Resampling.BICUBIC)
    image.save(buffer, format_, **options)
    return buffer.getvalue()


def turned(i: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(i, exif=exif)


def files(count: int = ROWS) -> list[bytes]:
    """Images of several kinds; the eighth of every ten is turned by its EXIF tag."""
    kinds = {3: "PNG", 5: "BMP"}
    return [
        turned(i) if i % 10 == 7 else encoded(i, kinds.get(i % 10, "JPEG")) for i in range(count)
    ]


def table(count: int = ROWS, first: int = 0, **columns: Any) -> Any:
    """Every kind of column, as plain Parquet has them."""
    rows = range(first, first + count)
    data = {
        "image": pa.array(files(first + count)[first:], pa.binary()),
        "label": pa.array([i % 3 for i in rows], pa.int32()),
        "weight": pa.array([i / 4 for i in rows], pa.float32()),
        "flag": pa.array([i % 2 == 0 for i in rows]),
        "name": pa.array([f"number {i}" for i in rows]),
        "box": pa.array([[1.0, 2.0, 3.0, i] for i in rows], pa.list_(pa.float32(), 4)),
        "tags": pa.array([list(range(i % 4)) for i in rows]),
        "maybe": pa.array([None if i == 2 else i for i in rows]),
        "meta": pa.array([{"a": i, "b": [str(i)]} for i in rows]),
        **columns,
    }
    return pa.table({name: column for name, column in data.items() if column is not None})


def written(path: Path, some: Any = None, group: int = GROUP, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table() if some is None else some, path, row_group_size=group, **options)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of ten row groups. Read only."""
    return written(tmp_path_factory.mktemp("parquet") / "data.parquet")


@pytest.fixture
def groups() -> Iterator[RowGroups]:
    """The row groups of this test alone, without a limit that it would notice."""
    made = RowGroups(1 << 30)
    before = _row_groups.use(made)
    yield made
    _row_groups.use(before)


def image_of(data: bytes, transform: Any = EVAL) -> torch.Tensor:
    from PIL import ImageOps

    with Image.open(io.BytesIO(data)) as image:
        made: torch.Tensor = transform(ImageOps.exif_transpose(image).convert("RGB"))
    return made


def check(batches: Any, rows: Sequence[dict[str, Any]], transform: Any = EVAL) -> None:
    """Batches have what the rows, one by one, have."""
    left = iter(rows)
    for batch in batches:
        for i in range(len(batch["image"])):
            row = next(left)
            assert list(batch) == list(row)
            assert torch.equal(batch["image"][i], image_of(row["image"], transform))
            for name in set(row) - {"image"}:
                value = batch[name][i]
                assert (value.tolist() if isinstance(value, torch.Tensor) else value) == row[name]
    assert next(left, None) is None


# --- what is in a batch ---------------------------------------------------------------------------


@pytest.mark.native
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_column_and_image_is_what_pyarrow_and_pillow_give(
    path: Path, num_workers: int, groups: RowGroups
) -> None:
    loader = FastLoader(path, batch_size=8, transform=EVAL, num_workers=num_workers)
    assert "engine: native" in loader.explain()
    assert f"store: parquet, {ROWS} records" in loader.explain()
    check(loader, pq.read_table(path).to_pylist())


@pytest.mark.native
def test_each_row_group_is_decoded_once_for_an_epoch(path: Path, groups: RowGroups) -> None:
    count = -(-ROWS // GROUP)
    store = open_store(path)
    for batch in FastLoader(PackedDataset(path, fields=()), batch_size=8, transform=EVAL):
        assert len(batch["image"])
    assert groups.decoded == count
    spans = store.spans(np.arange(ROWS))
    assert spans.memory is not None and len(spans.memory) == count  # in place, not copied


@pytest.mark.native
def test_images_are_read_where_arrow_has_them(path: Path, groups: RowGroups) -> None:
    store = open_store(path)
    spans = store.spans(np.array([12]))
    part = next(iter(groups._chunks.values()))
    assert part.decoded is not None and spans.memory is not None
    assert np.shares_memory(spans.memory[0], part.decoded.column.buffers[0])  # type: ignore[union-attr]


def test_the_dtypes_are_those_of_default_collate(path: Path) -> None:
    names = ["label", "weight", "flag"]
    rows = pq.read_table(path, columns=names).to_pylist()
    theirs = next(iter(DataLoader(rows, batch_size=6)))  # type: ignore[arg-type]
    ours = next(iter(FastLoader(path, batch_size=6, transform=EVAL)))
    for name in names:
        assert ours[name].dtype == theirs[name].dtype
        assert torch.equal(ours[name], theirs[name])
    assert ours["box"].shape == (6, 4) and ours["maybe"] == [0, 1, None, 3, 4, 5]


@pytest.mark.parametrize("embedded", [True, False])
def test_files_of_the_hub_have_class_names_and_structs(tmp_path: Path, embedded: bool) -> None:
    hf = pytest.importorskip("datasets")
    features = {"image": hf.Image(), "label": hf.ClassLabel(names=["a", "b", "c"])}
    data: dict[str, list[Any]] = {
        "image": [{"bytes": one, "path": f"{i}.jpg"} for i, one in enumerate(files(20))],
        "label": [i % 3 for i in range(20)],
    }
    dataset = hf.Dataset.from_dict(data, features=hf.Features(features))
    path = tmp_path / "train-00000-of-00001.parquet"
    dataset.to_parquet(path, batch_size=6)
    if not embedded:  # as other programs write the struct
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path, row_group_size=6)
    ours = PackedDataset(path, transform=EVAL)
    assert ours.classes == (["a", "b", "c"] if embedded else [])
    assert ours.targets == data["label"]
    theirs = hf.load_dataset("parquet", data_files=str(path), split="train", cache_dir=tmp_path)
    batches = FastLoader(path, batch_size=5, transform=EVAL)
    for number, batch in enumerate(batches):
        rows = [theirs[i] for i in range(5 * number, 5 * number + 5)]
        images = [row["image"] if embedded else image_open(row["image"]) for row in rows]
        assert torch.equal(
            batch["image"], torch.stack([EVAL(one.convert("RGB")) for one in images])
        )
        assert batch["label"].tolist() == [row["label"] for row in rows]
    same = FastLoader(theirs, batch_size=5, transform=EVAL) if embedded else []
    for batch, other in zip(FastLoader(path, batch_size=5, transform=EVAL), same):
        assert torch.equal(batch["image"], other["image"])


def image_open(value: dict[str, Any]) -> Image.Image:
    from PIL import ImageOps

    return ImageOps.exif_transpose(Image.open(io.BytesIO(value["bytes"])))


def test_fields_choose_columns_and_the_key(path: Path) -> None:
    batch = next(
        iter(FastLoader(PackedDataset(path, fields=("name", "key")), batch_size=3, transform=EVAL))
    )
    assert list(batch) == ["image", "label", "name", "key"]
    assert batch["name"] == ["number 0", "number 1", "number 2"]
    assert batch["key"] == ["00000000", "00000001", "00000002"]
    with pytest.raises(UsageError, match="got 'colour'"):
        FastLoader(PackedDataset(path, fields=("colour",)), transform=EVAL)


def test_dictionaries_large_strings_and_compression_are_read(tmp_path: Path) -> None:
    some = table(name=None, image=pa.array(files(), pa.large_binary()))
    for number, options in enumerate(
        [{"compression": "zstd"}, {"use_dictionary": ["image"]}, {"write_statistics": False}]
    ):
        path = written(tmp_path / f"{number}.parquet", some, **options)
        check(FastLoader(path, batch_size=9, transform=EVAL), some.to_pylist())


def test_further_images_are_fields_on_demand(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    masks = [{"bytes": encoded(i, "PNG"), "path": None} for i in range(9)]
    masks[4] = None  # type: ignore[call-overload]
    images = [{"bytes": encoded(i), "path": None} for i in range(9)]
    some = pa.table({"mask": pa.array(masks, kind), "image": pa.array(images, kind)})
    path = written(tmp_path / "x.parquet", some, 4)
    batch = next(iter(FastLoader(path, batch_size=9, transform=EVAL)))
    assert list(batch) == ["image"]
    batch = next(iter(FastLoader(PackedDataset(path, fields="all"), batch_size=9, transform=EVAL)))
    assert batch["mask"] == [mask and mask["bytes"] for mask in masks]


def test_column_says_which_of_several_holds_the_images(tmp_path: Path) -> None:
    others = pa.array([encoded(i + 100) for i in range(ROWS)], pa.binary())
    path = written(tmp_path / "x.parquet", table(image=None, front=pa.array(files()), back=others))
    with pytest.raises(UsageError, match=r"several of bytes \(front, back\): .*column='front'"):
        PackedDataset(path)
    (batch,) = FastLoader(PackedDataset(path, column="back"), batch_size=ROWS, transform=EVAL)
    assert torch.equal(batch["back"][3], image_of(encoded(103)))
    assert batch["front"] == files()
    loader = FastLoader(PackedDataset(path, column="back"), batch_size=9, transform=EVAL)
    again = FastLoader(loader.dataset, batch_size=9, transform=EVAL)
    assert torch.equal(next(iter(again))["back"], next(iter(loader))["back"])


def test_a_column_that_holds_no_images_is_refused_with_those_that_are_there(path: Path) -> None:
    with pytest.raises(UsageError, match=r"has .*weight \(float\).*, got 'colour'"):
        PackedDataset(path, column="colour")
    with pytest.raises(UsageError, match=r"expected bytes.*'weight', found float"):
        PackedDataset(path, column="weight")
    with pytest.raises(UsageError, match="expected the name of a column, got int"):
        PackedDataset(path, column=1)  # type: ignore[arg-type]


def test_a_list_of_files_takes_the_column_too(tmp_path: Path) -> None:
    one = table(image=None, front=pa.array(files()), back=pa.array(files()))
    paths = [written(tmp_path / f"{number}.parquet", one) for number in range(2)]
    assert len(PackedDataset(paths, column="back")) == 2 * ROWS


def test_memory_limit_bounds_the_row_groups_of_one_loader(path: Path, groups: RowGroups) -> None:
    limit = 60_000
    loader = FastLoader(
        PackedDataset(path, memory_limit=limit), 6, transform=EVAL, shuffle=True, seed=2
    )
    plain = FastLoader(path, 6, transform=EVAL, shuffle=True, seed=2)
    assert "shuffle_window=16" in loader.explain() and "shuffle_window" not in plain.explain()
    for one, other in zip(loader, plain, strict=True):
        assert torch.equal(one["image"], other["image"])
    own = loader.dataset.store._groups  # type: ignore[attr-defined]
    assert own is not groups and own.nbytes <= limit < groups.nbytes
    assert own.decoded > groups.decoded
    with pytest.raises(StoreError, match="at most 500 can be read at once"):
        PackedDataset(path, memory_limit="1KB")
    with pytest.raises(UsageError, match="memory_limit: expected bytes"):
        PackedDataset(path, memory_limit="much")


def test_options_of_tables_are_refused_for_other_stores(
    path: Path, tmp_path: Path, store: Path
) -> None:
    with pytest.raises(UsageError, match=r"column: expected Parquet files.*\(LMDB\)"):
        FastLoader(PackedDataset(store, column="image"))
    with pytest.raises(UsageError, match=r"memory_limit: expected .* got a ParquetStore"):
        PackedDataset(open_store(path), memory_limit="1GB")


def test_opening_reads_no_column_of_lists_of_fixed_length(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload.storage.formats.parquet import ParquetFiles

    read: list[str] = []
    original = ParquetFiles.read

    def counted(self: Any, name: str, groups: Sequence[int]) -> Any:
        read.append(name)
        return original(self, name, groups)

    monkeypatch.setattr(ParquetFiles, "read", counted)
    loader = FastLoader(PackedDataset(path, fields=("box",)), batch_size=9, transform=EVAL)
    assert "box" not in read and "tags" not in read
    assert all(batch["box"].shape[1:] == (4,) for batch in loader)
    assert set(read) == {"box", "image", "label"}


def test_lists_of_fixed_length_with_nulls_are_lists(tmp_path: Path) -> None:
    kind = pa.list_(pa.float32(), 2)
    inside = pa.array([[1.0, None] if i == 7 else [i, i] for i in range(ROWS)], kind)
    whole = pa.array([None if i == 7 else [i, i] for i in range(ROWS)], kind)
    path = written(tmp_path / "x.parquet", table(inside=inside, whole=whole))
    (batch,) = FastLoader(path, batch_size=ROWS, transform=EVAL)
    assert (batch["inside"], batch["whole"]) == (inside.to_pylist(), whole.to_pylist())


# --- order, state, processes ----------------------------------------------------------------------


@pytest.mark.parametrize(("window", "limit"), [(None, 1 << 30), (None, 60_000), (1, 400_000)])
def test_a_shuffle_is_that_of_a_packed_store(
    tmp_path: Path, path: Path, window: int | None, limit: int
) -> None:
    before = _row_groups.use(RowGroups(limit))
    try:
        pack(path, tmp_path / "x.lmdb")
        options: dict[str, Any] = {"batch_size": 6, "shuffle": True, "seed": 4}
        ours, theirs = (PackedDataset(p, TRAIN, fields="key") for p in (path, tmp_path / "x.lmdb"))
        loader = FastLoader(ours, shuffle_window=window, **options)
        packed = FastLoader(theirs, **options)
        for _ in range(2):
            batches, expected = list(loader), list(packed)
            if window is None:
                for one, other in zip(batches, expected, strict=True):
                    assert torch.equal(one["label"], other["label"])
                    assert torch.equal(one["image"], other["image"])
        assert _row_groups.of_process().nbytes <= limit
    finally:
        _row_groups.use(before)


def keys(loader: FastLoader[Any]) -> list[str]:
    return [key for batch in loader for key in batch["key"]]


def test_windows_keep_row_groups_together_and_are_a_function_of_seed_and_epoch(
    tmp_path: Path, groups: RowGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Row groups of less than 8 MB that begin within the same 8 MB of a file are one block.
    for number in range(8):
        written(tmp_path / f"part-{number}.parquet", table(10, 10 * number), 100)
    dataset = PackedDataset(tmp_path, EVAL, fields="key")

    def order(seed: int, window: int | None, epochs: int = 1) -> list[str]:
        loader = FastLoader(dataset, 4, shuffle=True, seed=seed, shuffle_window=window)
        return [keys(loader) for _ in range(epochs)][-1]

    one = order(1, 1)
    assert one == order(1, 1) != order(2, 1) and one != order(1, 1, epochs=2)
    assert sorted(one) == sorted(order(1, None)) == [f"{i:08d}" for i in range(80)]
    blocks = [int(key) // 10 for key in one]
    assert [len(set(blocks[i : i + 10])) for i in range(0, 80, 10)] == [1] * 8
    two = [int(key) // 10 for key in order(1, 2)]
    assert [len(set(two[i : i + 20])) for i in range(0, 80, 20)] == [2] * 4


def test_ranks_share_an_epoch(path: Path) -> None:
    dataset = PackedDataset(path, EVAL, fields="key")
    for window in (None, 1):
        parts = [
            keys(
                FastLoader(
                    dataset, 4, shuffle=True, seed=2, drop_last=False, shuffle_window=window,
                    shard=(rank, 3))
            )
            for rank in range(3)
        ]  # fmt: skip
        assert {key for part in parts for key in part} == {f"{i:08d}" for i in range(ROWS)}
        assert sum(map(len, parts)) == 3 * -(-ROWS // 3)


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_resumes_at_the_very_next_sample(
    path: Path, window: int | None, num_workers: int
) -> None:
    def loader() -> FastLoader[Any]:
        return FastLoader(
            PackedDataset(path, fields=("key",)), batch_size=5, transform=TRAIN, shuffle=True,
            seed=3, num_workers=num_workers,
            shuffle_window=window)  # fmt: skip

    whole = list(loader())
    first = loader()
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    second = loader()
    second.load_state_dict(state)
    rest = list(second)
    assert len(rest) == len(whole) - 4
    for ours, theirs in zip(rest, whole[4:], strict=True):
        assert ours["key"] == theirs["key"] and torch.equal(ours["image"], theirs["image"])


def test_a_transform_of_ones_own_and_workers_read_it_too(path: Path) -> None:
    def own(image: Image.Image) -> torch.Tensor:
        return torch.tensor(np.asarray(image.resize((8, 8))).copy())

    rows = pq.read_table(path).to_pylist()
    for engine in ("auto", "torch"):
        loader = FastLoader(
            PackedDataset(path, fields=("name",)),
            batch_size=8,
            transform=own,
            engine=engine,
            num_workers=2,
        )
        check(loader, [{k: row[k] for k in ("image", "label", "name")} for row in rows], own)
    check(DataLoader(PackedDataset(path, transform=EVAL, fields=("name",)), 8, num_workers=2),
          [{k: row[k] for k in ("image", "label", "name")} for row in rows])  # fmt: skip


def digest(store: Store, queue: Any = None) -> list[bytes]:
    found = store.read(np.arange(len(store))[::-3])
    if queue is not None:
        queue.put(found)
    return found


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_a_store_goes_to_other_processes(path: Path, method: str) -> None:
    store = open_store(path)
    expected = digest(store)
    assert expected == files()[::-1][::3]
    assert digest(pickle.loads(pickle.dumps(store))) == expected
    assert len(pickle.dumps(store)) < 1000
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=digest, args=(store, queue))
    process.start()
    assert queue.get(timeout=60) == expected
    process.join(timeout=60)
    assert process.exitcode == 0 and digest(store) == expected


@pytest.mark.parametrize("cache", ["ram", "decoded"])
def test_a_cache_in_front_keeps_the_records(path: Path, cache: Any, groups: RowGroups) -> None:
    loader = FastLoader(path, batch_size=8, transform=EVAL, cache=cache, num_workers=2)
    rows = pq.read_table(path).to_pylist()
    for _ in range(2):
        check(loader, rows)
    assert loader.stats()["cache_hits"] == ROWS


def test_a_batch_may_be_partly_in_a_cache(path: Path) -> None:
    options: dict[str, Any] = {"transform": EVAL, "cache": "ram", "shuffle": True, "seed": 1}
    loader = FastLoader(path, batch_size=12, num_workers=1, **options)
    next(iter(loader))
    rows = pq.read_table(path).to_pylist()
    for batch in loader:
        for image, name in zip(batch["image"], batch["name"], strict=True):
            assert torch.equal(image, image_of(rows[int(name.removeprefix("number "))]["image"]))
    assert 0 < loader.stats()["cache_hits"] < ROWS


def test_mixed_with_other_stores(tmp_path: Path, path: Path) -> None:
    other = written(tmp_path / "other.parquet", table(7, 100))
    rows = [*pq.read_table(path).to_pylist(), *pq.read_table(other).to_pylist()]
    check(FastLoader([path, other], batch_size=10, transform=EVAL), rows)
    pack(path, tmp_path / "x.lmdb")
    parts = [
        PackedDataset(one, transform=EVAL, fields=("key",))
        for one in (other, tmp_path / "x.lmdb", path)
    ]
    both = FastLoader(ConcatDataset(parts), batch_size=len(rows) + ROWS)
    assert "store: concat" in both.explain()
    images = torch.cat([batch["image"] for batch in both])
    expected = [row for one in (other, path, path) for row in pq.read_table(one).to_pylist()]
    assert torch.equal(images, torch.stack([image_of(row["image"]) for row in expected]))


# --- which files ----------------------------------------------------------------------------------


def test_a_folder_a_pattern_and_numbered_files_are_one_store(tmp_path: Path) -> None:
    for number in range(3):
        written(tmp_path / f"data/train-{number:05d}-of-00003.parquet", table(6, 6 * number), 4)
    rows = [row for i in range(3) for row in table(6, 6 * i).to_pylist()]
    found = [
        tmp_path,
        tmp_path / "data",
        tmp_path / "data/*.parquet",
        tmp_path / "data/train.parquet",
    ]
    for path in found:
        store = open_store(path)
        assert (store.format, len(store), len(store.files)) == ("parquet", 18, 3)
        check(FastLoader(path, batch_size=7, transform=EVAL), rows)
    written(tmp_path / "data/validation-00000-of-00001.parquet", table(3), 4)
    with pytest.raises(UsageError, match=r"one split, found train, val.*train-\*"):
        open_store(tmp_path)


def test_a_folder_of_images_with_metadata_stays_one(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/1.jpg").write_bytes(encoded(1))
    written(tmp_path / "metadata.parquet", pa.table({"file_name": ["cat/1.jpg"]}))
    assert open_store(tmp_path).format == "folder"


def test_empty_files_and_row_groups_are_read(tmp_path: Path) -> None:
    empty = written(tmp_path / "a.parquet", table(5).slice(0, 0))
    assert len(open_store(empty)) == 0 and open_store(empty).labels.tolist() == []  # type: ignore[union-attr]
    written(tmp_path / "b.parquet", table(5))
    check(FastLoader(tmp_path, batch_size=3, transform=EVAL), table(5).to_pylist())


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "a.parquet", table(5))
    written(tmp_path / "b.parquet", table(5, label=pa.array(list("abcde"))))
    with pytest.raises(UsageError, match=r"'label' as int32 in .* and as string"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"image": None}, r"a column with the bytes of images.*label \(int32\)"),
        (
            {"image": None, "x": pa.array([b""] * 5), "y": pa.array([b""] * 5)},
            r"several .*\(x, y\)",
        ),
    ],
)
def test_a_file_without_images_lists_its_columns(
    tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        open_store(written(tmp_path / "x.parquet", table(5, **columns)))


# --- errors ---------------------------------------------------------------------------------------


def test_what_is_no_parquet_file_or_truncated_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = written(tmp_path / "x.parquet")
    whole = path.read_bytes()
    for data in (b"", b"hello", whole[: len(whole) // 2], whole[:-1], whole[:-8] + b"\xff" * 8):
        path.write_bytes(data)
        with pytest.raises(StoreError, match="expected a Parquet file") as caught:
            open_store(path)
        assert caught.value.path == str(path)
    with pytest.raises(StoreNotFoundError, match="found nothing"):
        open_store(tmp_path / "y.parquet")


@pytest.mark.native
def test_a_null_is_an_error_of_its_row(tmp_path: Path) -> None:
    images: list[bytes | None] = files(9)
    images[4], images[6] = None, b"no image"
    path = written(tmp_path / "x.parquet", table(9, image=pa.array(images)), 4)
    options: dict[str, Any] = {
        "batch_size": 9,
        "transform": EVAL,
    }
    with pytest.raises(DataError, match="cannot decode this image of 0 bytes") as caught:
        next(iter(FastLoader(path, **options)))
    assert (caught.value.record, caught.value.path) == (4, str(path))
    loader = FastLoader(path, on_error="skip", max_errors=5, **options)
    (batch,) = loader
    assert batch["name"] == [f"number {i}" for i in range(9) if i not in (4, 6)]
    assert [entry["index"] for entry in loader.stats()["errors"]] == [4, 6]


def test_a_damaged_row_group_is_an_error_of_its_rows(tmp_path: Path, groups: RowGroups) -> None:
    path = written(tmp_path / "x.parquet", compression="zstd", group=10)
    store = open_store(path)
    at = int(store.places(np.array([25])).offset[0])
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 200)
    with pytest.raises(StoreError, match="row group 2") as caught:
        list(FastLoader(path, batch_size=8, transform=EVAL))
    assert caught.value.path == str(path)
    loader = FastLoader(path, batch_size=8, transform=EVAL, on_error="skip", max_errors=20)
    names = [name for batch in loader for name in batch["name"]]
    assert names == [f"number {i}" for i in range(ROWS) if i // 10 != 2]


def test_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "x.parquet")
    store = open_store(path)
    written(path, table(30))
    os.utime(path, ns=(1, 1))
    with pytest.raises(StoreError, match="changed after it was opened"):
        store.read(np.array([3]))


def test_an_image_that_is_only_a_path_is_an_error_of_its_row(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = [{"bytes": data, "path": None} for data in files(9)]
    images[4], images[6] = ({"bytes": None, "path": p} for p in ("b.jpg", "s3://c/d.jpg"))
    path = written(tmp_path / "x.parquet", table(9, image=pa.array(images, kind)))
    message = r"only the path 's3://c/d\.jpg': .*pack the folder of the images"
    with pytest.raises(StoreError, match=message) as caught:
        open_store(path).read(np.array([5, 6]))
    assert (caught.value.record, caught.value.path) == (6, str(path))
    loader = FastLoader(path, 9, transform=EVAL, on_error="skip", max_errors=2)
    (batch,) = loader
    assert batch["name"] == [f"number {i}" for i in range(9) if i not in (4, 6)]
    assert [entry["index"] for entry in loader.stats()["errors"]] == [4, 6]
    assert [damage.record for damage in verify(path).damaged] == [4, 6]
    report = pack(path, tmp_path / "x.lmdb", on_error="skip")
    assert [one.record for one in report.skipped] == [4, 6]


def test_a_column_of_paths_is_refused(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = [{"bytes": None, "path": f"{name}.jpg"} for name in "ab"]
    path = written(tmp_path / "x.parquet", pa.table({"image": pa.array(images, kind)}))
    with pytest.raises(StoreError, match=r"only the path 'a\.jpg'"):
        next(iter(FastLoader(path, 2, transform=EVAL)))
    with pytest.raises(DataError, match=r"only the path 'a\.jpg'"):
        pack(path, tmp_path / "x.lmdb", on_error="skip")


def test_a_row_group_larger_than_the_memory_says_how_to_write_it_again(path: Path) -> None:
    before = _row_groups.use(RowGroups(1000))
    try:
        with pytest.raises(StoreError, match=r"smaller ones .*row_group_size=\d"):
            open_store(path)
    finally:
        _row_groups.use(before)


def test_a_window_larger_than_the_memory_is_refused(path: Path) -> None:
    size = int(open_store(path)._decoded.sum())  # type: ignore[attr-defined]
    before = _row_groups.use(RowGroups(size))
    try:
        loader = {"batch_size": 4, "transform": EVAL, "shuffle": True, "seed": 1}
        with pytest.raises(UsageError, match=r"which are at most [01] here, got 2"):
            FastLoader(path, shuffle_window=2, **loader)  # type: ignore[arg-type]
        plain = FastLoader(path, **loader)  # type: ignore[arg-type]
        assert "slower: with shuffle=True a row group is decoded for" in plain.explain()
        assert "slower:" not in FastLoader(path, transform=EVAL).explain()
    finally:
        _row_groups.use(before)


def test_without_pyarrow_the_message_names_the_extra(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependencyError, match=r"torch-fastload\[parquet\]"):
        open_store(path)


# --- commands -------------------------------------------------------------------------------------


def test_info_show_and_verify(path: Path, tmp_path: Path) -> None:
    found = info(path)
    assert (found.format, found.records, found.files) == ("parquet", ROWS, 1)
    assert found.encodings["jpeg"] > found.encodings["png"] > 0
    assert verify(path).damaged == ()
    runner = CliRunner()
    said = runner.invoke(main, ["info", str(path)])
    assert said.exit_code == 0 and "parquet" in said.output.lower()
    grid = tmp_path / "sheet.png"
    said = runner.invoke(main, ["info", str(path), "--grid", str(grid)])
    assert said.exit_code == 0 and grid.exists(), said.output
    said = runner.invoke(main, ["show", str(path), "--out", str(tmp_path / "show.png")])
    assert said.exit_code == 0, said.output


def test_pack_keeps_bytes_columns_and_class_names(path: Path, tmp_path: Path) -> None:
    said = CliRunner().invoke(main, ["pack", str(path), str(tmp_path / "x.lmdb")])
    assert said.exit_code == 0, said.output
    store = open_store(tmp_path / "x.lmdb")
    expected = files()
    upright = [i for i in range(ROWS) if i % 10 != 7]
    assert store.read(np.array(upright)) == [expected[i] for i in upright]
    rows = pq.read_table(path).to_pylist()
    fields = ("weight", "flag", "name", "box", "tags", "maybe", "meta")
    batch = next(
        iter(FastLoader(PackedDataset(tmp_path / "x.lmdb", fields=fields), ROWS, transform=EVAL))
    )
    check([batch], [{k: row[k] for k in ("image", "label", *fields)} for row in rows])


# --- row groups in memory -------------------------------------------------------------------------


class Counted:
    """A reader whose columns take 100 bytes each."""

    def __init__(self, due: dict[int, float] | None = None) -> None:
        self.due, self.asked = due or {}, list[int]()

    def decode(self, key: tuple[str, int]) -> DecodedColumn:
        self.asked.append(key[1])
        if key[1] == 13:
            raise StoreError("damaged")
        return DecodedColumn(pa.chunked_array([[key[1]]]), 100)

    def next_use(self, group: int) -> float:
        return self.due.get(group, float("inf"))


def take(groups: RowGroups, reader: Counted, group: int) -> None:
    part = groups.pin(reader, ("image", group), 100)
    assert part is not None and groups.wait(part).to_pylist() == [group]
    groups.unpin(part)


def test_the_row_group_whose_next_use_is_farthest_is_evicted() -> None:
    groups, reader = RowGroups(300), Counted({0: 50.0, 1: 10.0, 2: 30.0})
    for group in (0, 1, 2):
        take(groups, reader, group)
    take(groups, reader, 3)  # in the place of 0
    for group in (1, 2):
        take(groups, reader, group)
    assert reader.asked == [0, 1, 2, 3]
    take(groups, reader, 0)  # in the place of 3, which is not used again
    assert reader.asked == [0, 1, 2, 3, 0] and groups.nbytes == 300


def test_what_is_pinned_is_not_evicted_and_nothing_is_fetched_ahead_without_room() -> None:
    groups, reader = RowGroups(200), Counted()
    first = groups.pin(reader, ("image", 0), 100)
    assert first is not None
    groups.wait(first)
    assert groups.pin(reader, ("image", 1), 100, ahead=True) is None
    for group in (1, 2, 3):
        take(groups, reader, group)
    assert groups.wait(first).to_pylist() == [0] and reader.asked == [0, 1, 2, 3]
    groups.unpin(first)
    assert groups.pin(reader, ("image", 4), 100, ahead=True) is not None


def test_an_error_is_raised_to_everyone_and_tried_again() -> None:
    groups, reader = RowGroups(200), Counted()
    for _ in range(2):
        part = groups.pin(reader, ("image", 13), 100)
        assert part is not None
        for _ in range(2):
            with pytest.raises(StoreError, match="damaged"):
                groups.wait(part)
        groups.unpin(part)
    assert reader.asked == [13, 13] and groups.nbytes == 0


def test_a_closed_store_leaves_nothing_in_memory(path: Path, groups: RowGroups) -> None:
    store = open_store(path)
    spans = store.spans(np.arange(ROWS))
    assert groups.nbytes > 0
    store.close()
    assert groups.nbytes > 0  # the spans need it
    del spans
    store.spans(np.array([0]))
    store.close()
    del store
    take(groups, Counted(), 0)
    assert groups.nbytes == 100


def test_where_the_system_grants_no_thread_who_waits_decodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Reader:
        def decode(self, key: Any) -> DecodedColumn:
            return DecodedColumn(key, 1)

        def next_use(self, rows: Any) -> float:
            return float("inf")

    def refuse(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    groups, reader = RowGroups(1 << 20), Reader()
    with monkeypatch.context() as patch:
        patch.setattr(_row_groups.threading.Thread, "start", refuse)
        for number in range(2 * _row_groups.THREADS):
            part = groups.pin(reader, ("image", number), 1)
            assert part is not None and groups.wait(part) == ("image", number)
            groups.unpin(part)
    part = groups.pin(reader, ("image", -1), 1)
    assert part is not None and part.done.wait(60)  # by a thread again
