"""A batch of several packed stores with a transform of the user's: what torch's loader gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms as v1

from fastload import ChecksumError, FastLoader, Mix, PackedDataset, pack
from fastload._sources import packed
from fastload._sources.joined import Joined
from fastload.storage import open_store
from sides import assert_same, outcome

RANDOM = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])


class Mine:
    """No transform that fastload knows."""

    def __call__(self, image: Image.Image) -> Any:
        return RANDOM(ImageOps.invert(image))


@pytest.fixture(scope="module")
def tar(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos in another format, decoded."""
    path = tmp_path_factory.mktemp("tar") / "photos.tar"
    pack(photos, path, encode="raw", resize=40)
    return path


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each call made."""
    seen: list[int] = []
    original = packed.fetch_samples

    def counted(dataset: PackedDataset, indices: Any, **given: Any) -> Any:
        seen.append(len(indices))
        return original(dataset, indices, **given)

    monkeypatch.setattr(packed, "fetch_samples", counted)
    return seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("arrange", ["concatenated", "a subset"])
def test_batches_are_torchs_with_the_same_random_numbers(
    store: Path, tar: Path, arrange: str, workers: int
) -> None:
    mine = Mine()
    data: Any = ConcatDataset([PackedDataset(path, mine) for path in (store, tar, store)])
    if arrange == "a subset":
        data = Subset(data, [*range(40, 10, -3), -1, 60])
    given: Any = {"batch_size": 5, "shuffle": True, "num_workers": workers}
    assert_same(outcome(FastLoader, data, 2, **given), outcome(DataLoader, data, 2, **given))


def test_a_batch_is_looked_up_at_once(
    store: Path, tar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, seen = Mine(), calls(monkeypatch)
    data = ConcatDataset([PackedDataset(path, mine) for path in (store, tar)])
    loader = FastLoader(data, 16, shuffle=True, num_workers=0)
    list(loader)
    assert seen == [16, 16, 16]
    assert loader.stats()["images_deferred"] == 48


def test_with_a_seed_samples_do_not_depend_on_the_batch(
    store: Path, tar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, seen = Mine(), calls(monkeypatch)
    data = ConcatDataset([PackedDataset(path, mine) for path in (store, tar)])
    one, seven = (
        torch.cat([images for images, _ in FastLoader(data, size, shuffle=True, seed=3)])
        for size in (1, 7)
    )
    assert torch.equal(one, seven)
    assert set(seen) == {1, 7, 6}


def test_a_mix_gives_what_it_gives_one_by_one(
    store: Path, tar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, seen = Mine(), calls(monkeypatch)
    mix = Mix([(PackedDataset(store, mine), 0.5), (PackedDataset(tar, mine), 0.5)])
    together = outcome(FastLoader, mix, 2, batch_size=8, shuffle=True, seed=3)
    assert set(seen) == {8}
    monkeypatch.setattr(Joined, "of", lambda *given, **named: None)
    assert_same(outcome(FastLoader, mix, 2, batch_size=8, shuffle=True, seed=3), together)
    assert 1 in seen


def test_a_damaged_record_is_named_with_its_own_file_and_may_be_skipped(
    store: Path, photos: Path, tmp_path: Path
) -> None:
    path = tmp_path / "damaged.tar"
    pack(photos, path)
    with open_store(path) as opened:
        span = opened.spans(np.array([7]))
    with open(path, "r+b") as file:
        file.seek(int(span.offset[0] + span.nbytes[0] // 2))
        file.write(b"\xff\xd9" * 40)
    mine = Mine()
    data = ConcatDataset([PackedDataset(store, mine), PackedDataset(path, mine)])
    with pytest.raises(ChecksumError, match=r"damaged\.tar.*record 31\b"):
        list(FastLoader(data, 6))
    loader = FastLoader(data, 6, on_error="skip", max_errors=2)
    assert sum(len(labels) for _, labels in loader) == 47
    assert [entry["index"] for entry in loader.stats()["errors"]] == [31]


def test_an_index_that_is_not_there_is_torchs_error(store: Path) -> None:
    data = ConcatDataset([PackedDataset(store, Mine())] * 2)
    for index in (48, -49):
        errors = []
        for kind in (FastLoader, DataLoader):
            with pytest.raises((IndexError, ValueError)) as raised:
                list(kind(data, 2, sampler=[0, index]))
            errors.append((type(raised.value), str(raised.value)))
        assert errors[0] == errors[1]


def test_what_one_store_cannot_stand_for_is_left_alone(store: Path, tar: Path) -> None:
    mine, joined = Mine(), Joined()

    def of(*parts: Any, kind: Any = ConcatDataset, seeded: bool = False) -> Any:
        return joined.of(kind(parts), [0], seeded=seeded)

    def one(path: Path = store, transform: Any = mine, **given: Any) -> PackedDataset:
        return PackedDataset(path, transform, **given)

    class Other(ConcatDataset[Any]):
        pass

    assert len(of(one(), one(tar))) == 48
    assert of(one(), one(), kind=Other) is None
    assert of(one(), one(transform=Mine())) is None
    assert of(one(transform=RANDOM), one(transform=RANDOM)) is None
    assert of(one(), one(target_transform=float)) is None
    assert of(one(), Subset(one(), [0])) is None
    epoch = one(seed=1)
    epoch.set_epoch(0)
    assert of(one(), epoch) is None
    assert of(one(), epoch, seeded=True) is not None


def test_a_transform_that_is_set_anew_is_the_one_that_runs(store: Path) -> None:
    parts = [PackedDataset(store, Mine()) for _ in range(2)]
    data, new = ConcatDataset(parts), lambda image: torch.zeros(1)
    loader = FastLoader(data, 48)
    for part in parts:
        part.transform = Mine()
    next(iter(loader))
    for part in parts:
        part.transform = new
    ((images, _),) = loader
    assert images.tolist() == [[0.0]] * 48
