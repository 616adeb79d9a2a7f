"""Hugging Face datasets: read natively, with what the dataset and torchvision give as reference."""

from __future__ import annotations

import datetime
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

from batches import MEAN, STD
from fastload import FastLoader, PackedDataset, UsageError, info, pack
from fastload.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
hf = pytest.importorskip("datasets")

EVAL = v1.Compose([v1.Resize(32), v1.CenterCrop(24), v1.ToTensor(), v1.Normalize(MEAN, STD)])
TRAIN = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToImage()])
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'


def photo(i: int) -> Image.Image:
    rng = np.random.default_rng(i)
    small = rng.integers(0, 256, (8, 9, 3), np.uint8)
    return Image.fromarray(small).resize((61 + i, 50), Image.Resampling.BICUBIC)


def file_of(image: Image.Image, format_: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format_, **options)
    return buffer.getvalue()


def turned(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def images() -> list[bytes]:
    """Every kind that Pillow tells apart."""
    alpha = photo(20).convert("RGBA")
    alpha.putalpha(90)
    return [
        file_of(photo(0)),
        file_of(photo(1), progressive=True),
        file_of(photo(2).convert("L")),
        file_of(photo(3).convert("CMYK")),
        file_of(photo(4), "PNG"),
        file_of(photo(5).convert("P"), "PNG"),
        file_of(photo(6).convert("1"), "PNG"),
        file_of(alpha, "PNG"),
        file_of(photo(7), "BMP"),
        file_of(photo(8), "WEBP", lossless=True),
        *(file_of(photo(9), exif=turned(value)) for value in range(1, 10)),
        *(file_of(photo(10), "PNG", exif=turned(value)) for value in (1, 3, 6)),
        file_of(photo(11), "WEBP", exif=turned(5)),
        file_of(photo(12), "TIFF", exif=turned(7)),
        file_of(photo(13), xmp=XMP),
        file_of(photo(14), xmp=XMP, exif=turned(1)),
        file_of(photo(15), "MPO", save_all=True, append_images=[photo(15)], exif=turned(6)),
    ]


def table(files: list[bytes] | None = None, **features: Any) -> Any:
    """A dataset with every kind of column."""
    files = images() if files is None else files
    rows = [
        {
            "image": {"bytes": data, "path": None},
            "label": i % 3,
            "weight": i / 4,
            "flag": i % 2 == 0,
            "name": f"number {i}",
            "box": [1.0, 2.0, 3.0, float(i)],
            "tags": list(range(i % 4)),
            "maybe": None if i == 2 else i,
        }
        for i, data in enumerate(files)
    ]
    kinds = {
        "image": hf.Image(),
        "label": hf.ClassLabel(names=["a", "b", "c"]),
        "weight": hf.Value("float32"),
        "flag": hf.Value("bool"),
        "name": hf.Value("string"),
        "box": hf.Sequence(hf.Value("float32"), length=4),
        "tags": hf.Sequence(hf.Value("int32")),
        "maybe": hf.Value("int64"),
        **features,
    }
    return hf.Dataset.from_list(rows, features=hf.Features(kinds))


@pytest.fixture(scope="module")
def dataset() -> Any:
    return table()


def check(loader: FastLoader[Any], rows: Any, transform: Any = EVAL) -> None:
    """Batches have what the rows, one by one, have; images as the transform makes them of RGB."""
    assert loader.explain().startswith("engine: native")
    assert "store: arrow" in loader.explain() or "store: concat" in loader.explain()
    rows = iter(rows)
    for batch in loader:
        count = len(batch["image"])
        for i in range(count):
            row = next(rows)
            assert batch.keys() == row.keys()
            image = transform(row["image"].convert("RGB"))
            assert torch.equal(batch["image"][i], image)
            assert torch.equal(batch["box"][i], torch.tensor(row["box"]).to(batch["box"].dtype))
            for name in ("label", "weight", "flag", "name", "tags", "maybe"):
                assert batch[name][i] == row[name], name
    assert next(rows, None) is None


@pytest.mark.native
@pytest.mark.parametrize("transform", [EVAL, v1.Compose([v1.Resize((20, 30)), v1.PILToTensor()])])
def test_every_kind_of_image_is_what_the_dataset_gives(dataset: Any, transform: Any) -> None:
    loader = FastLoader(dataset, batch_size=4, transform=transform, num_workers=2)
    check(loader, dataset, transform)


@pytest.mark.native
def test_only_images_that_may_be_turned_are_looked_at_by_pillow(dataset: Any) -> None:
    from fastload import _native
    from fastload.storage._probe import by_core
    from fastload.storage.arrow import ArrowStore

    assert _native.load() is not None
    store = ArrowStore(dataset)
    every = np.arange(len(store))
    good = by_core(
        store._core_files(), store.spans(every), np.zeros((len(store), 2), np.int32), upright=True
    )
    expected = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]  # no EXIF, or the orientation 1; not WebP
    assert np.flatnonzero(good).tolist() == [*expected, 26 - 1]  # XMP, but EXIF says 1
    assert store.kinds(every).tolist() == [
        3 if row["bytes"] in turned_files(dataset) else 0
        for row in dataset.cast_column("image", hf.Image(decode=False))["image"]
    ]


def turned_files(dataset: Any) -> set[bytes]:
    """Those that Pillow's getexif calls turned."""
    found = set()
    for row in dataset.cast_column("image", hf.Image(decode=False))["image"]:
        with Image.open(io.BytesIO(row["bytes"])) as image:
            image.load()
            if image.getexif().get(0x0112) in range(2, 9):
                found.add(row["bytes"])
    return found


def arranged(dataset: Any, folder: Path) -> Iterator[Any]:
    yield dataset.shuffle(seed=5)
    yield dataset.select([5, 2, 9, 2])
    yield dataset.select(range(3, 9))
    yield dataset.train_test_split(0.3, seed=1)["test"]
    yield hf.concatenate_datasets([dataset, dataset.select([1, 0])])
    yield dataset.cast_column("image", hf.Image(mode="RGB"))
    dataset.shuffle(seed=2).save_to_disk(folder)
    yield hf.load_from_disk(folder)
    yield hf.load_from_disk(folder).shuffle(seed=3)


def test_however_it_was_arranged(dataset: Any, tmp_path: Path) -> None:
    for some in arranged(dataset, tmp_path / "saved"):
        check(FastLoader(some, batch_size=5, transform=EVAL), some)
    check(FastLoader(tmp_path / "saved", batch_size=5, transform=EVAL), dataset.shuffle(seed=2))


def test_subsets_and_concatenations_of_torch(dataset: Any) -> None:
    subset = Subset(dataset, [4, 1, 7])
    check(FastLoader(subset, batch_size=2, transform=EVAL), [dataset[i] for i in (4, 1, 7)])
    both = ConcatDataset([subset, dataset])
    rows = [*(dataset[i] for i in (4, 1, 7)), *dataset]
    check(FastLoader(both, batch_size=4, transform=EVAL), rows)
    loader = FastLoader(both, batch_size=4, transform=EVAL)
    again = FastLoader(loader.dataset, batch_size=4, transform=EVAL)  # as trainers do
    check(again, rows)


def test_paths_are_read_as_files_and_a_none_is_an_error(tmp_path: Path) -> None:
    files: list[Any] = []
    for i, data in enumerate(images()[:-1]):  # of an MPO the package leaves the file open
        path = tmp_path / f"{i}.img"
        path.write_bytes(data)
        files.append(str(path) if i % 3 else {"bytes": data, "path": "elsewhere.jpg"})
    some = hf.Dataset.from_dict({"image": files}, features=hf.Features({"image": hf.Image()}))
    loader = FastLoader(some, batch_size=6, transform=EVAL)
    made = torch.cat([batch["image"] for batch in loader])
    assert torch.equal(made, torch.stack([EVAL(row["image"].convert("RGB")) for row in some]))
    absent = hf.Dataset.from_dict(
        {"image": [*files[:3], None, "/nowhere/x.jpg"]},
        features=hf.Features({"image": hf.Image()}),
    )
    for index, words in ((3, "column 'image', where it is None"), (4, "/nowhere/x.jpg")):
        with pytest.raises(DataError, match=words) as caught:
            next(iter(FastLoader(absent.select([0, index]), batch_size=2, transform=EVAL)))
        assert caught.value.record == 1
    skipping = FastLoader(absent, batch_size=5, transform=EVAL, on_error="skip", max_errors=3)
    (batch,) = skipping
    assert len(batch["image"]) == 3
    assert [entry["index"] for entry in skipping.stats()["errors"]] == [3, 4]


def test_images_that_are_not_local_are_refused() -> None:
    some = hf.Dataset.from_dict({"image": ["hf://datasets/x/y.jpg"]})
    with pytest.raises(UsageError, match="not local files"):
        FastLoader(some.cast_column("image", hf.Image()), transform=EVAL)


def test_numbers_are_what_default_collate_makes_of_them(dataset: Any) -> None:
    columns = ["label", "weight", "flag", "name"]
    theirs = next(iter(DataLoader(dataset.select_columns(columns), batch_size=6)))
    ours = next(iter(FastLoader(dataset, batch_size=6, transform=EVAL)))
    for name in columns[:3]:
        assert ours[name].dtype == theirs[name].dtype
        assert torch.equal(ours[name], theirs[name])
    assert ours["name"] == theirs["name"]
    typed = dataset.with_format("torch")
    ours = next(iter(FastLoader(typed, batch_size=6, transform=EVAL)))
    for name in ("label", "weight", "flag", "box"):
        assert ours[name].dtype == typed[:6][name].dtype
        assert torch.equal(ours[name], typed[:6][name])


def test_names_are_the_datasets(dataset: Any) -> None:
    some = dataset.rename_columns({"image": "img", "label": "fine_label"})
    batch = next(
        iter(FastLoader(PackedDataset(some, fields=["name"]), batch_size=3, transform=EVAL))
    )
    assert list(batch) == ["img", "fine_label", "name"]
    loader = FastLoader(
        PackedDataset(some, fields=()),
        batch_size=3,
        transform=EVAL,
        target_transform=lambda label: -label,
    )
    assert list(next(iter(loader))) == ["img", "fine_label"]
    assert next(iter(loader))["fine_label"].tolist() == [0, -1, -2]
    only = dataset.select_columns(["image"])
    assert list(next(iter(FastLoader(only, batch_size=3, transform=EVAL)))) == ["image"]
    assert PackedDataset(some).class_to_idx == {"a": 0, "b": 1, "c": 2}
    with pytest.raises(UsageError, match=r"has 'key', .*, got 'nothing'"):
        FastLoader(PackedDataset(some, fields=["nothing"]), transform=EVAL)


def test_columns_called_key_and_label_are_the_datasets(dataset: Any) -> None:
    some = dataset.rename_columns({"name": "key", "label": "number"})
    some = some.cast_column("number", hf.Value("int64")).add_column("label", dataset["name"])
    for fields in (None, ("key", "label")):
        batch = next(
            iter(FastLoader(PackedDataset(some, fields=fields), batch_size=3, transform=EVAL))
        )
        assert batch["key"] == batch["label"] == ["number 0", "number 1", "number 2"]


def test_integers_beyond_int64_are_a_list(dataset: Any) -> None:
    large = np.array([2**64 - 1 - i for i in range(len(dataset))], np.uint64)
    for values in (large, large // 4):
        some = dataset.select_columns(["image"]).add_column("hash", values)
        batch = next(iter(FastLoader(some, batch_size=3, transform=EVAL)))
        assert list(batch["hash"]) == values[:3].tolist()
        assert isinstance(batch["hash"], list) == (values is large)


def test_a_format_that_is_set_later_changes_nothing(dataset: Any) -> None:
    some = dataset.select(range(4))
    ours = PackedDataset(some, transform=EVAL)
    loader = FastLoader(some, batch_size=4, transform=EVAL)
    some.set_transform(lambda batch: {"other": batch["name"]})
    check(loader, dataset.select(range(4)))
    assert pickle.loads(pickle.dumps(ours))[1]["name"] == "number 1"


def test_parts_with_other_values_in_a_column_are_collated_as_in_torch(dataset: Any) -> None:
    whole = dataset.select_columns(["image", "weight"])
    parts = [whole.with_format("torch"), whole]
    loader = FastLoader(ConcatDataset(parts), batch_size=len(whole), transform=EVAL)
    assert "field 'weight' differs between" in loader.explain()
    for batch, dtype in zip(loader, (torch.float32, torch.float64), strict=True):
        assert batch["weight"].dtype == dtype
        assert batch["weight"].tolist() == whole["weight"][:]


def test_a_buffer_that_is_part_of_another_is_one_of_its_own() -> None:
    pa = pytest.importorskip("pyarrow")
    from fastload.storage._arrow_columns import images_of

    def chunk(memory: Any, ends: list[int], kind: Any) -> Any:
        width = np.int64 if pa.types.is_large_binary(kind) else np.int32
        positions = pa.py_buffer(np.array([0, *ends], width))
        data = pa.Array.from_buffers(kind, len(ends), [None, positions, memory])
        path = pa.nulls(len(ends), pa.string())
        return pa.StructArray.from_arrays([path, data], ["path", "bytes"])

    whole = pa.py_buffer(b"abcdef")
    kinds = (pa.binary(), pa.large_binary())
    for first, second in (kinds, kinds[::-1]):
        parts = [chunk(whole.slice(0, 3), [2, 3], first), chunk(whole, [1, 2, 6], second)]
        fields = pa.struct([("path", pa.string()), ("bytes", pa.large_binary())])
        column = pa.chunked_array([parts[0].cast(fields), parts[1].cast(fields)[1:]])
        found = images_of(column, "image")
        read = [
            found.buffers[file][offset : offset + nbytes].tobytes()
            for file, offset, nbytes in zip(found.file, found.offset, found.nbytes, strict=True)
        ]
        assert read == [b"ab", b"c", b"b", b"cdef"]


def test_a_second_image_is_bytes_or_a_mask_that_moves_along() -> None:
    masks = [Image.fromarray(np.full((50, 61 + i), i, np.uint8)) for i in range(4)]
    some = hf.Dataset.from_dict(
        {"annotation": masks, "image": [photo(i) for i in range(4)]},
        features=hf.Features({"annotation": hf.Image(), "image": hf.Image()}),
    )
    batch = next(iter(FastLoader(some, batch_size=4, transform=EVAL)))
    assert list(batch) == ["image"]
    batch = next(iter(FastLoader(PackedDataset(some, fields="all"), batch_size=4, transform=EVAL)))
    assert Image.open(io.BytesIO(batch["annotation"][3])).getpixel((0, 0)) == 3
    transform = v2.Compose([v2.Resize((20, 20)), v2.ToImage()])
    loader = FastLoader(
        PackedDataset(some, joint={"annotation": "mask"}), batch_size=4, transform=transform
    )
    batch = next(iter(loader))
    assert batch["annotation"].shape == (4, 20, 20)
    assert batch["annotation"][:, 5, 5].tolist() == [0, 1, 2, 3]


def test_a_mask_that_is_missing_is_an_error_of_its_row() -> None:
    masks = [file_of(Image.new("L", (61, 50), i), "PNG") for i in range(2)]
    some = hf.Dataset.from_dict(
        {
            "image": [photo(0)] * 4,
            "annotation": [
                *({"bytes": mask, "path": None} for mask in masks),
                None,
                "/nowhere.png",
            ],
        },
        features=hf.Features({"annotation": hf.Image(), "image": hf.Image()}),
    )
    options: dict[str, Any] = {
        "batch_size": 4,
        "transform": v2.Compose([v2.Resize((20, 20)), v2.ToImage()]),
    }
    first = some.select(range(3))
    assert next(iter(FastLoader(PackedDataset(first, fields="all"), **options)))["annotation"] == [
        *masks,
        None,
    ]
    joint: Any = {"annotation": "mask"}
    with pytest.raises(DataError, match="the field 'annotation'") as caught:
        next(iter(FastLoader(PackedDataset(first, joint=joint), **options)))
    assert caught.value.record == 2
    skipping = PackedDataset(first, joint=joint)
    (batch,) = FastLoader(skipping, on_error="skip", max_errors=1, **options)
    assert batch["annotation"][:, 5, 5].tolist() == [0, 1]
    with pytest.raises(DataError, match=r"/nowhere\.png") as caught:
        next(iter(FastLoader(PackedDataset(some, fields="all"), **options)))
    assert caught.value.record == 3
    lost = some.select([0, 3, 1])
    with pytest.raises(DataError, match=r"/nowhere\.png") as caught:
        next(iter(FastLoader(PackedDataset(lost, joint=joint), **options)))
    assert caught.value.record == 1
    for workers in (0, 2):
        loader = FastLoader(
            PackedDataset(lost, joint=joint),
            on_error="skip",
            max_errors=1,
            num_workers=workers,
            **options,
        )
        (batch,) = loader
        assert batch["annotation"][:, 5, 5].tolist() == [0, 1]
        assert [error["index"] for error in loader.stats()["errors"]] == [1]


def test_files_that_are_not_decoded_do_as_well(dataset: Any) -> None:
    raw = dataset.cast_column("image", hf.Image(decode=False))
    check(FastLoader(raw, batch_size=5, transform=EVAL), dataset)


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    gray = table(images()[:3], image=hf.Image(mode="L"))
    with pytest.raises(UsageError, match="the mode 'L'"):
        FastLoader(gray, transform=EVAL)
    with pytest.raises(UsageError, match="with an Image column"):
        FastLoader(gray.remove_columns("image"), transform=EVAL)
    with pytest.raises(UsageError, match="DatasetDict holds several: pass one"):
        FastLoader(hf.DatasetDict(train=gray), transform=EVAL)
    own = table(images()[:3]).with_transform(lambda batch: batch)
    with pytest.raises(UsageError, match="with_format"):
        FastLoader(own, transform=EVAL)
    with pytest.raises(UsageError, match=r"expected one dataset, found several \(train, test\)"):
        pack(hf.DatasetDict(train=gray, test=gray), tmp_path / "s.lmdb")
    hf.DatasetDict(train=gray, test=gray).save_to_disk(tmp_path / "saved")
    with pytest.raises(UsageError, match=r"give the folder of one of them \(test, train\)"):
        FastLoader(tmp_path / "saved", transform=EVAL)
    typed = table(images()[:3]).with_format("torch", dtype=torch.float16)
    with pytest.raises(UsageError, match="without options"):
        FastLoader(typed, transform=EVAL)


def test_a_function_of_the_users_runs_through_torch(dataset: Any) -> None:
    def function(batch: dict[str, Any]) -> dict[str, Any]:
        made = [EVAL(image.convert("RGB")) for image in batch["image"]]
        return {"pixel_values": made, "labels": batch["label"]}

    some = dataset.with_transform(function)
    loader = FastLoader(some, batch_size=5)
    assert "engine: torch" in loader.explain()
    assert "transform=" in loader.explain()
    for mine, theirs in zip(loader, DataLoader(some, batch_size=5), strict=True):
        assert torch.equal(mine["pixel_values"], theirs["pixel_values"])
        assert torch.equal(mine["labels"], theirs["labels"])
    assert "transform=" in FastLoader(dataset).explain()


@pytest.mark.native
def test_a_seed_gives_what_a_packed_store_of_it_gives(dataset: Any, tmp_path: Path) -> None:
    some = dataset.select([0, 1, 2, 3, 4, 5, 9, 11, 12, 13])
    # A turned image comes into a store upright, in other bytes but of the same pixels.
    pack(some, tmp_path / "s.lmdb")
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "transform": TRAIN}
    ours = FastLoader(some, **options)
    packed = FastLoader(PackedDataset(tmp_path / "s.lmdb", fields="all"), **options)
    for _ in range(2):
        for mine, theirs in zip(ours, packed, strict=True):
            assert torch.equal(mine["image"], theirs["image"])
            assert torch.equal(mine["label"], theirs["label"])
            assert mine["name"] == theirs["name"]
            assert mine["tags"] == theirs["tags"]
            assert mine["maybe"] == theirs["maybe"]


def test_packing_keeps_the_bytes(dataset: Any, tmp_path: Path) -> None:
    dataset.save_to_disk(tmp_path / "saved")
    assert info(tmp_path / "saved").encodings["jpeg"] > 10
    pack(tmp_path / "saved", tmp_path / "s.lmdb")
    store = PackedDataset(tmp_path / "s.lmdb").store
    assert list(store.classes) == ["a", "b", "c"]
    raw = dataset.cast_column("image", hf.Image(decode=False))
    kept = store.read(np.arange(len(store)))
    upright = [row["image"]["bytes"] for row in raw]
    turns = turned_files(dataset)
    for mine, theirs in zip(kept, upright, strict=True):
        assert (mine == theirs) == (theirs not in turns)


def test_a_column_that_json_has_not_is_not_packed(dataset: Any, tmp_path: Path) -> None:
    single = dataset.select([0]).select_columns(["image"])
    listed = single.add_column("more", [[{"bytes": images()[4], "path": None}]])
    listed = listed.cast_column("more", hf.List(hf.Image()))
    for some in (listed, single.add_column("raw", [{"a": b"\xff"}])):
        with pytest.raises(UsageError, match="which JSON cannot hold"):
            pack(some, tmp_path / "s.lmdb")
    dated = single.add_column("day", [datetime.date(2020, 1, 2)])
    pack(dated, tmp_path / "s.lmdb")
    assert PackedDataset(tmp_path / "s.lmdb", fields="all")[0]["day"] == "2020-01-02"


def test_it_goes_on_in_mid_epoch_and_in_shards(dataset: Any) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 1, "transform": TRAIN}
    whole = list(FastLoader(dataset, **options))
    first = FastLoader(dataset, **options)
    iterator = iter(first)
    next(iterator), next(iterator)
    second = FastLoader(dataset, **options)
    second.load_state_dict(first.state_dict())
    for mine, theirs in zip(second, whole[2:], strict=True):
        assert torch.equal(mine["image"], theirs["image"])
    seen = [
        name
        for rank in (0, 1)
        for batch in FastLoader(dataset, shard=(rank, 2), **options)
        for name in batch["name"]
    ]
    assert set(seen) == set(dataset["name"])
    del iterator


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_in_workers_of_torch_a_dataset_decodes_whole_batches(dataset: Any, start: str) -> None:
    ours = PackedDataset(dataset, transform=EVAL, fields=("name",))
    again = pickle.loads(pickle.dumps(ours))
    loader = DataLoader(again, batch_size=4, num_workers=1, multiprocessing_context=start)
    rows = iter(dataset)
    for batch in loader:
        for image, name in zip(batch["image"], batch["name"], strict=True):
            row = next(rows)
            assert torch.equal(image, EVAL(row["image"].convert("RGB")))
            assert name == row["name"]


def test_what_only_python_can_finish_gets_the_image_as_the_dataset_has_it(dataset: Any) -> None:
    def ending(image: Any) -> torch.Tensor:
        return torch.tensor(np.asarray(image)[::2, ::2].copy())

    chain = v1.Compose([v1.Resize((20, 24)), ending])
    # default_collate, which runs behind such a chain, takes no lists of several lengths
    loader = FastLoader(PackedDataset(dataset, fields=("name",)), batch_size=5, transform=chain)
    made = torch.cat([batch["image"] for batch in loader])
    expected = [chain(row["image"].convert("RGB")) for row in dataset]
    assert torch.equal(made, torch.stack(expected))


@pytest.mark.parametrize("cache", ["ram", "decoded", "dct", "shm"])
def test_a_cache_gives_the_same(dataset: Any, cache: str) -> None:
    loader = FastLoader(dataset, batch_size=5, transform=EVAL, cache=cache, cache_limit="50MB")
    for _ in range(2):
        check(loader, dataset)


def test_a_shared_cache_tells_datasets_apart(dataset: Any) -> None:
    other = dataset.select(list(reversed(range(len(dataset)))))
    arguments: dict[str, Any] = {"batch_size": 30, "transform": EVAL, "cache": "shm"}
    loaders = [FastLoader(some, cache_limit="50MB", **arguments) for some in (dataset, other)]
    for _ in range(2):
        for loader, some in zip(loaders, (dataset, other), strict=True):
            check(loader, some)


def test_a_streamed_dataset_goes_on_by_its_own_state(dataset: Any) -> None:
    stream = dataset.select_columns(["label", "name"]).to_iterable_dataset(num_shards=2)
    whole = [batch["name"] for batch in FastLoader(stream, batch_size=4)]
    assert whole == [batch["name"] for batch in DataLoader(stream, batch_size=4)]
    for workers in (0, 1):
        first = FastLoader(stream, batch_size=4, num_workers=workers)
        iterator = iter(first)
        for _ in range(3):
            next(iterator)
        state = first.state_dict()
        del iterator
        second = FastLoader(
            dataset.select_columns(["label", "name"]).to_iterable_dataset(num_shards=2),
            batch_size=4,
            num_workers=workers,
        )
        second.load_state_dict(state)
        assert [batch["name"] for batch in second] == whole[3:]


@pytest.mark.native
def test_what_the_core_calls_upright_pillow_never_turns() -> None:
    """Files with bytes changed before the pixels, and cut ones; read without reading past them."""
    from fastload import _native
    from fastload.storage._probe import by_pillow
    from fastload.storage.base import ENCODED

    core = _native.load()
    assert core is not None
    rng = np.random.default_rng(0)
    files: list[bytes] = []
    for data in images():
        files += [data[: int(rng.integers(len(data)))] for _ in range(8)]
        for _ in range(40):
            changed = bytearray(data)
            for at in rng.integers(0, min(len(data), 240), 2).tolist():
                changed[at] = int(rng.choice([0, 1, 3, 6, 8, 0x12, 0xFF, int(rng.integers(256))]))
            files.append(bytes(changed))
    memory = {i: np.frombuffer(data or b"\0", np.uint8) for i, data in enumerate(files)}
    count = len(files)
    opened = core.Files(b"", np.zeros(count, np.int64), np.ones(count, np.uint8), memory=memory)
    turned = np.full(count, 7, np.uint8)
    nbytes = np.array([len(data) for data in files], np.int64)
    opened.may_be_turned(np.arange(count, dtype=np.int32), np.zeros_like(nbytes), nbytes, turned)
    assert set(turned.tolist()) == {0, 1}
    for data in (files[i] for i in np.flatnonzero(turned == 0)):
        assert by_pillow(data, upright=True)[2] == ENCODED
