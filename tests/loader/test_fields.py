"""Labels of every shape and fields in batches, against torch's own collating of the samples."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate
from torchvision import transforms as T

from fastload import (
    FastLoader,
    PackedDataset,
    StoreError,
    UsageError,
    concat,
    open_store,
    open_writer,
    pack,
)
from storage.formats import records

COUNT = 12
TRANSFORM = T.Compose([T.Resize((8, 8)), T.ToTensor()])


def fields_of(i: int) -> dict[str, Any]:
    return {
        "box": np.arange(4, dtype=np.int16) + i,
        "weight": np.float32(i / 3),
        "mask": bytes([i]) * i,
        "caption": f"Bild {i} 写真",
        "boxes": [[i, j] for j in range(i % 3)],
    }


def write(path: Path, changes: list[dict[str, Any]]) -> Path:
    given = [
        dataclasses.replace(r, **c) for r, c in zip(records(len(changes)), changes, strict=True)
    ]
    with open_writer(path, classes=["a", "b"]) as writer:
        writer.append(given)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "a.lmdb", [{"fields": fields_of(i)} for i in range(COUNT)])


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for name in a:
            assert_equal(a[name], b[name])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b):
            assert_equal(one, other)
    else:
        assert a == b


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        (list(range(COUNT)), torch.int64, (4,)),
        ([i / 3 for i in range(COUNT)], torch.float64, (4,)),
        ([np.float32(i / 3) for i in range(COUNT)], torch.float32, (4,)),
        ([[i, 5] for i in range(COUNT)], torch.int64, (4, 2)),
        (list(np.random.default_rng(0).random((COUNT, 5), np.float32)), torch.float32, (4, 5)),
    ],
    ids=["int", "float", "float32", "several", "vector"],
)
def test_labels_arrive_as_default_collate_would_give_them(
    tmp_path: Path, labels: list[Any], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    path = write(tmp_path / "a.lmdb", [{"label": label} for label in labels])
    dataset = PackedDataset(path, TRANSFORM)
    ours = list(FastLoader(dataset, batch_size=4))
    assert_equal(ours, list(DataLoader(dataset, batch_size=4)))
    assert_equal(ours, [default_collate([dataset[i] for i in range(a, a + 4)]) for a in (0, 4, 8)])
    assert ours[0][1].dtype == dtype and ours[0][1].shape == shape
    doubled = FastLoader(path, batch_size=4, transform=TRANSFORM, target_transform=lambda y: y * 2)
    torch.testing.assert_close(next(iter(doubled))[1], ours[0][1] * 2)


def test_store_with_fields_gives_images_and_labels_where_no_fields_are_asked_for(
    path: Path,
) -> None:
    images, labels = next(iter(FastLoader(path, batch_size=4, transform=TRANSFORM)))
    assert images.shape == (4, 3, 8, 8) and labels.tolist() == [0, 0, 0, 0]


def expected(indices: list[int]) -> dict[str, Any]:
    rows = [fields_of(i) for i in indices]
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    columns["box"] = torch.from_numpy(np.stack(columns["box"]))
    columns["weight"] = torch.tensor(columns["weight"])
    return columns


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_fields_come_with_every_batch(path: Path, engine: str, num_workers: int) -> None:
    loader = FastLoader(
        PackedDataset(path, fields="all"),
        batch_size=5, shuffle=True, seed=3, transform=TRANSFORM, engine=engine,
        num_workers=num_workers)  # fmt: skip
    order = list(loader.sampler)
    dataset = PackedDataset(path, TRANSFORM)
    loader.set_epoch(0)
    for number, batch in enumerate(loader):
        indices = order[5 * number : 5 * number + 5]
        assert list(batch) == ["image", "label", "box", "weight", "mask", "caption", "boxes"]
        images, labels = default_collate([dataset[i] for i in indices])
        assert_equal(batch, {"image": images, "label": labels, **expected(indices)})


def test_samples_are_dicts_that_torchs_own_loader_collates_alike(path: Path) -> None:
    names = ("key", "caption", "box", "mask", "weight")
    dataset = PackedDataset(path, TRANSFORM, fields=names)
    sample = dataset[3]
    assert list(sample) == ["image", "label", *names]
    assert sample["key"] == records(COUNT)[3].key and sample["caption"] == "Bild 3 写真"
    assert sample["box"].dtype == torch.int16 and sample["mask"] == b"\3\3\3"
    assert_equal(list(FastLoader(dataset, batch_size=4)), list(DataLoader(dataset, batch_size=4)))
    for i, one in enumerate(dataset.__getitems__([3, 5])):
        assert_equal(one, dataset[(3, 5)[i]])


def test_fields_with_a_transform_that_only_python_runs(path: Path) -> None:
    dataset = PackedDataset(path, lambda image: torch.tensor(image.size), fields="caption")
    batch = next(iter(FastLoader(dataset, batch_size=3)))
    assert batch["image"].tolist() == [[5, 4], [6, 5], [7, 6]]
    assert batch["caption"] == ["Bild 0 写真", "Bild 1 写真", "Bild 2 写真"]


def test_store_without_labels_gives_dicts_without_a_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", [{"label": None, "fields": {"n": i}} for i in range(3)])
    loader = FastLoader(PackedDataset(path, fields=["n"]), batch_size=3, transform=TRANSFORM)
    (batch,) = loader
    assert list(batch) == ["image", "n"] and batch["n"].tolist() == [0, 1, 2]
    assert_equal(batch, next(iter(DataLoader(loader.dataset, batch_size=3))))


def test_subsets_and_concatenations_keep_fields(path: Path) -> None:
    dataset = PackedDataset(path, TRANSFORM, fields=("boxes",))
    both = ConcatDataset([Subset(dataset, [4, 2]), dataset])
    loader = FastLoader(both, batch_size=4)
    assert "engine: torch" not in loader.explain()
    assert next(iter(loader))["boxes"] == [fields_of(i)["boxes"] for i in (4, 2, 0, 1)]
    mixed = ConcatDataset([dataset, PackedDataset(path, TRANSFORM)])
    assert "different fields" in FastLoader(mixed, batch_size=4).explain()


def test_collate_fn_of_the_user_gets_the_samples(path: Path) -> None:
    loader = FastLoader(
        PackedDataset(path, fields="mask"),
        batch_size=4,
        transform=TRANSFORM,
        collate_fn=lambda samples: samples,
    )
    samples = next(iter(loader))
    assert [len(sample["mask"]) for sample in samples] == [0, 1, 2, 3]


def test_loader_that_is_rebuilt_keeps_the_fields(path: Path) -> None:
    loader = FastLoader(PackedDataset(path, fields=["mask"]), batch_size=4, transform=TRANSFORM)
    again = FastLoader(loader.dataset, batch_size=4, transform=TRANSFORM)
    assert_equal(next(iter(again)), next(iter(loader)))
    assert pickle.loads(pickle.dumps(loader.dataset)).fields == ("mask",)


def test_field_that_the_store_lacks_is_named(path: Path) -> None:
    with pytest.raises(UsageError, match=r"has 'key', 'box', .* got 'masks'"):
        FastLoader(PackedDataset(path, fields=("mask", "masks")))
    with pytest.raises(UsageError, match="can be given for a path, a PackedDataset,"):
        FastLoader([1, 2, 3], transform=TRANSFORM)


# --- several stores as one ------------------------------------------------------------------------


def test_list_of_stores_is_read_as_one(path: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "b.lmdb", [{"fields": fields_of(50 + i)} for i in range(3)])
    loader = FastLoader(
        PackedDataset([path, str(other)], fields="all"), batch_size=15, transform=TRANSFORM
    )
    (batch,) = loader
    parts = [
        PackedDataset(p, TRANSFORM)[i][0] for p, n in ((path, COUNT), (other, 3)) for i in range(n)
    ]
    torch.testing.assert_close(batch["image"], torch.stack(parts), rtol=0, atol=0)
    rows = expected([*range(COUNT), 50, 51, 52])
    for name, column in rows.items():
        assert_equal(batch[name], column)
    dataset = PackedDataset([path, open_store(other)])
    assert len(dataset) == 15 and dataset.classes == ["a", "b"]
    assert len(pickle.loads(pickle.dumps(dataset))[14]) == 2


def test_list_of_other_things_is_a_dataset_as_for_torch() -> None:
    assert list(FastLoader(["a", "b"], batch_size=2)) == [["a", "b"]]
    assert list(FastLoader(["a", "not there.lmdb"], batch_size=2)) == [["a", "not there.lmdb"]]


def test_list_of_stores_and_other_things_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "imgs").mkdir()
    pack(path, tmp_path / "set.h5", shards=2)
    images = str(tmp_path / "imgs")
    for store in (path, str(path), open_store(path), tmp_path / "set.h5", "s3://bucket/a.lmdb"):
        for other in ("text", 3, tmp_path / "typo.lmbd"):
            for mixed in ([other, store], [store, images, other], (store, other)):
                at = mixed.index(other)
                with pytest.raises(UsageError, match=f"is a store, but item {at} .*is none: pass"):
                    FastLoader(mixed)
    with pytest.raises(StoreError, match="expected class folders"):  # imgs is a store, too
        FastLoader([path, images])


def test_stores_that_do_not_fit_together_are_refused(path: Path, tmp_path: Path) -> None:
    plain = write(tmp_path / "b.lmdb", [{}])
    with pytest.raises(
        UsageError, match=r"same fields, found .*'box' \(.*\).* and none in .*: pack"
    ):
        PackedDataset([path, plain])
    unlabelled = write(tmp_path / "c.lmdb", [{"label": None}])
    with pytest.raises(UsageError, match=r"labels, found int64 in .* and none in"):
        PackedDataset([plain, unlabelled])
    with open_writer(tmp_path / "d.lmdb", classes=["x"]) as writer:
        writer.append(records(1))
    with pytest.raises(UsageError, match=r"same classes, found \['a', 'b'\]"):
        PackedDataset([plain, tmp_path / "d.lmdb"])
    with pytest.raises(UsageError, match="at least one store"):
        PackedDataset([])


@pytest.mark.parametrize("first", [0, 1])
def test_an_empty_store_fits_every_other(path: Path, tmp_path: Path, first: int) -> None:
    open_writer(tmp_path / "empty.lmdb").commit()
    both: list[Path] = [path]
    both.insert(first, tmp_path / "empty.lmdb")
    alone, joined = PackedDataset(path), PackedDataset(both)
    assert (len(joined), joined.classes) == (len(alone), alone.classes)
    for one, other in zip(FastLoader(joined, 1), FastLoader(alone, 1), strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    concat(both, tmp_path / "both.lmdb")
    assert PackedDataset(tmp_path / "both.lmdb").store.fields == alone.store.fields
    assert len(PackedDataset([tmp_path / "empty.lmdb"] * 2)) == 0
