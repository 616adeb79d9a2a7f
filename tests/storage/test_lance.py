"""Lance datasets as stores: what pylance and Pillow make of the same rows as reference."""

from __future__ import annotations

import io
import json
import multiprocessing
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

import clouds
from fastload import FastLoader, PackedDataset, UsageError, info, open_store, pack, verify
from fastload.errors import DataError, MissingDependencyError, StoreError, StoreNotFoundError
from fastload.storage import Store, _row_groups
from fastload.storage._row_groups import RowGroups
from fastload.storage.remote.options import RemoteOptions

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
pa = pytest.importorskip("pyarrow")
lance = pytest.importorskip("lance", reason="pylance is not installed")

EVAL = v1.Compose([v1.Resize(32), v1.CenterCrop(24), v1.ToTensor()])
TRAIN = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToImage()])
ROWS = 47


def encoded(i: int) -> bytes:
    small = np.random.default_rng(i).integers(0, 256, (6, 7, 3), np.uint8)
    buffer = io.BytesIO()
    image = Image.fromarray(small).resize((40 + i % 9, 36), Image.Resampling.BICUBIC)
    image.save(buffer, "PNG" if i % 5 == 3 else "JPEG")
    return buffer.getvalue()


def table(count: int = ROWS, **columns: Any) -> Any:
    rows = range(count)
    data = {
        "image": pa.array([encoded(i) for i in rows], pa.binary()),
        "label": pa.array([i % 3 for i in rows], pa.int32()),
        "weight": pa.array([i / 4 for i in rows], pa.float32()),
        "name": pa.array([f"number {i}" for i in rows]),
        "box": pa.array([[1.0, 2.0, 3.0, i] for i in rows], pa.list_(pa.float32(), 4)),
        "maybe": pa.array([None if i == 2 else i for i in rows]),
        "tags": pa.array([list(range(i % 4)) for i in rows]),
        **columns,
    }
    return pa.table({name: column for name, column in data.items() if column is not None})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several fragments. Read only."""
    made = tmp_path_factory.mktemp("lance") / "data.lance"
    lance.write_dataset(table(), str(made), max_rows_per_file=20)
    return made


@pytest.fixture
def groups() -> Iterator[RowGroups]:
    """The rows in memory of this test alone."""
    made = RowGroups(1 << 30)
    before = _row_groups.use(made)
    yield made
    _row_groups.use(before)


def image_of(data: bytes, transform: Any = EVAL) -> torch.Tensor:
    with Image.open(io.BytesIO(data)) as image:
        made: torch.Tensor = transform(image.convert("RGB"))
    return made


@pytest.mark.native
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_column_and_image_is_what_pylance_and_pillow_give(
    path: Path, num_workers: int
) -> None:
    loader = FastLoader(path, batch_size=8, transform=EVAL, num_workers=num_workers)
    assert "engine: native" in loader.explain()
    assert f"store: lance, {ROWS} records" in loader.explain()
    left = iter(lance.dataset(str(path)).to_table().to_pylist())
    for batch in loader:
        for i in range(len(batch["image"])):
            row = next(left)
            assert list(batch) == list(row)
            assert torch.equal(batch["image"][i], image_of(row["image"]))
            for name in set(row) - {"image"}:
                value = batch[name][i]
                assert (value.tolist() if isinstance(value, torch.Tensor) else value) == row[name]
    assert next(left, None) is None


@pytest.mark.parametrize("window", [None, 1])
def test_a_shuffle_is_that_of_a_packed_store(
    path: Path, tmp_path: Path, window: int | None
) -> None:
    pack(path, tmp_path / "x.lmdb")
    options: dict[str, Any] = {"batch_size": 6, "shuffle": True, "seed": 4}
    rows, records = (PackedDataset(p, TRAIN, fields="key") for p in (path, tmp_path / "x.lmdb"))
    loader = FastLoader(rows, shuffle_window=window, **options)
    packed = FastLoader(records, **options)
    for _ in range(2):
        ours, theirs = list(loader), list(packed)
        keys = sorted(key for batch in ours for key in batch["key"])
        assert keys == [f"{i:08d}" for i in range(ROWS)]
        if window is None:
            for one, other in zip(ours, theirs, strict=True):
                assert torch.equal(one["label"], other["label"])
                assert torch.equal(one["image"], other["image"])


def test_only_the_rows_of_a_batch_are_taken_ahead_of_it_and_nothing_is_kept(
    path: Path, groups: RowGroups
) -> None:
    loader = FastLoader(PackedDataset(path, fields=()), 8, transform=EVAL, shuffle=True, seed=1)
    for _ in range(2):
        assert sum(len(batch["image"]) for batch in loader) == ROWS
    assert groups.decoded == 2 * -(-ROWS // 8)
    del loader
    groups.drop([])
    assert groups.nbytes == 0


def test_memory_limit_bounds_what_is_taken_ahead(path: Path, groups: RowGroups) -> None:
    nbytes = sum(map(len, (encoded(i) for i in range(ROWS))))
    limited = FastLoader(PackedDataset(path, memory_limit=nbytes // 2), 4, transform=EVAL)
    plain = FastLoader(path, 4, transform=EVAL)
    for one, other in zip(limited, plain, strict=True):
        assert torch.equal(one["image"], other["image"])
    own = limited.dataset.store._groups  # type: ignore[attr-defined]
    assert own is not groups and own.limit == nbytes // 2 and own.decoded == len(plain)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_resumes_at_the_very_next_sample(path: Path, num_workers: int) -> None:
    def loader() -> FastLoader[Any]:
        return FastLoader(
            PackedDataset(path, fields=("key",)),
            5,
            transform=TRAIN,
            shuffle=True,
            seed=3,
            num_workers=num_workers,
        )

    whole = list(loader())
    first = loader()
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    second = loader()
    second.load_state_dict(state)
    for ours, theirs in zip(list(second), whole[4:], strict=True):
        assert ours["key"] == theirs["key"] and torch.equal(ours["image"], theirs["image"])


def test_rows_that_were_deleted_are_not_there(tmp_path: Path) -> None:
    made = lance.write_dataset(table(), str(tmp_path / "x.lance"), max_rows_per_file=20)
    made.delete("label = 1")
    rows = lance.dataset(str(tmp_path / "x.lance")).to_table().to_pylist()
    with open_store(tmp_path / "x.lance") as store:
        assert len(store) == len(rows) < ROWS
        order = np.random.default_rng(0).permutation(len(rows))
        assert store.read(order) == [rows[i]["image"] for i in order.tolist()]
        assert store.labels is not None
        assert store.labels.tolist() == [row["label"] for row in rows]


def test_the_version_that_was_opened_is_read_on_also_elsewhere(tmp_path: Path) -> None:
    lance.write_dataset(table(), str(tmp_path / "x.lance"))
    store = open_store(tmp_path / "x.lance")
    lance.write_dataset(table(5), str(tmp_path / "x.lance"), mode="overwrite")
    everything = np.arange(ROWS)
    for one in (store, pickle.loads(pickle.dumps(store))):
        assert one.read(everything) == [encoded(i) for i in range(ROWS)]
    assert len(open_store(tmp_path / "x.lance")) == 5


def test_lances_type_of_encoded_images_is_found_without_a_name(tmp_path: Path) -> None:
    from lance.arrow import EncodedImageType

    images = pa.array([encoded(i) for i in range(9)], pa.binary())
    kind = EncodedImageType(pa.binary())
    some = pa.table({"other": images, "photo": pa.ExtensionArray.from_storage(kind, images)})
    lance.write_dataset(some, str(tmp_path / "x.lance"))
    (batch,) = FastLoader(PackedDataset(tmp_path / "x.lance", fields=()), 9, transform=EVAL)
    assert torch.equal(batch["photo"], torch.stack([image_of(encoded(i)) for i in range(9)]))


def test_column_says_which_of_several_holds_the_images(tmp_path: Path) -> None:
    images = pa.array([encoded(i + 1) for i in range(ROWS)], pa.binary())
    lance.write_dataset(table(image=None, a=images, b=images), str(tmp_path / "x.lance"))
    with pytest.raises(UsageError, match=r"several of bytes \(a, b\).*column='a'"):
        open_store(tmp_path / "x.lance")
    batch = next(
        iter(FastLoader(PackedDataset(tmp_path / "x.lance", column="b"), 2, transform=EVAL))
    )
    assert torch.equal(batch["b"][1], image_of(encoded(2)))
    with pytest.raises(UsageError, match=r"column: .* has .*label \(int32\).*, got 'c'"):
        PackedDataset(tmp_path / "x.lance", column="c")


def test_a_row_without_an_image_is_an_error_of_that_row(tmp_path: Path) -> None:
    files: list[bytes | None] = [encoded(i) for i in range(9)]
    files[4] = None
    lance.write_dataset(
        pa.table({"image": pa.array(files, pa.binary()), "label": list(range(9))}),
        str(tmp_path / "x.lance"),
    )
    with pytest.raises(DataError) as caught:
        list(FastLoader(tmp_path / "x.lance", 3, transform=EVAL))
    assert caught.value.record == 4
    loader = FastLoader(tmp_path / "x.lance", 9, transform=EVAL, on_error="skip", max_errors=1)
    (batch,) = loader
    assert batch["label"].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]


def test_an_image_that_is_only_a_path_is_an_error_of_its_row(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = [{"bytes": encoded(i), "path": None} for i in range(9)]
    images[4] = {"bytes": None, "path": "b.jpg"}
    path = tmp_path / "x.lance"
    lance.write_dataset(table(9, image=pa.array(images, kind)), str(path))
    with pytest.raises(StoreError, match=r"only the path 'b\.jpg'") as caught:
        open_store(path).read(np.array([3, 4]))
    assert caught.value.record == 4
    (batch,) = FastLoader(path, 9, transform=EVAL, on_error="skip", max_errors=1)
    assert batch["name"] == [f"number {i}" for i in range(9) if i != 4]
    assert [damage.record for damage in verify(path).damaged] == [4]


def test_what_is_no_dataset_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "absent.lance")
    (tmp_path / "empty.lance").mkdir()
    with pytest.raises(StoreError, match="expected a Lance dataset"):
        open_store(tmp_path / "empty.lance")
    lance.write_dataset(table(), str(tmp_path / "broken.lance"))
    store = open_store(tmp_path / "broken.lance")
    for file in (tmp_path / "broken.lance" / "data").iterdir():
        file.unlink()
    with pytest.raises(StoreError, match="cannot read rows of the column 'image'") as caught:
        store.read(np.arange(3))
    assert caught.value.path == str(tmp_path / "broken.lance")


def test_info_and_verify_take_it(path: Path) -> None:
    found = info(path)
    assert (found.format, found.records, found.checksums) == ("lance", ROWS, False)
    assert found.width is not None and found.width.max == 48
    assert verify(path, decode=True).damaged == ()


def test_without_pylance_the_extra_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingDependencyError, match=r"torch-fastload\[lance\]"):
        open_store(path)


def read_in_child(store: Store, answers: Any) -> None:
    try:
        answers.put(len(store.read(np.arange(3))))
    except UsageError as error:
        answers.put(str(error))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_a_spawned_process_reads_it_and_a_forked_one_says_why_not(path: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    child = context.Process(target=read_in_child, args=(open_store(path), answers))
    child.start()
    answer = answers.get(timeout=100)
    child.join()
    if method == "fork":
        assert "multiprocessing_context='forkserver'" in answer
    else:
        assert answer == 3


@pytest.mark.long
def test_a_dataset_in_a_bucket_is_read_by_pylance_itself(path: Path, tmp_path: Path) -> None:
    with clouds.started("s3", tmp_path) as cloud:
        for file in path.rglob("*"):
            if file.is_file():
                cloud.put(f"data.lance/{file.relative_to(path)}", file.read_bytes())
        options = {
            "aws_endpoint": cloud.options["endpoint"],
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test-secret",
            "aws_region": "us-east-1",
            "allow_http": "true",
        }
        given: dict[str, Any] = {"shuffle": True, "seed": 1, "transform": TRAIN}
        url = f"{cloud.url}/data.lance"
        ours = FastLoader(PackedDataset(url, storage_options=options), 6, **given)
        for one, other in zip(ours, FastLoader(path, 6, **given), strict=True):
            assert torch.equal(one["image"], other["image"]) and one["name"] == other["name"]
        remote = ours.stats()["remote"]
        assert remote is not None and remote["nbytes"] > 0
        with cloud.strict(), pytest.raises(StoreError) as caught:
            wrong = {**options, "aws_secret_access_key": cloud.secret}
            open_store(url, remote=RemoteOptions(storage_options=wrong))
        assert cloud.secret not in str(caught.value)
    with pytest.raises(UsageError, match="without a cache"):
        open_store(url, remote=RemoteOptions(cache_dir=tmp_path))
