"""Datasets that keep, share or hide deferred images, or fail where nobody looks: plain batches."""

from __future__ import annotations

import dataclasses
import multiprocessing
import shutil
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.dlpack import from_dlpack, to_dlpack

import deferred_datasets as shapes
from fastload import FastLoader
from fastload._sources.deferred import stamps, thread_state
from fastload._sources.deferred.image import waiting
from sides import side_by_side

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return shapes.write_photos(tmp_path_factory.mktemp("photos"), 6)


@pytest.fixture
def damaged(tmp_path: Path) -> list[Path]:
    paths = shapes.write_photos(tmp_path, 5)
    shapes.truncate(paths[2])
    return paths


def opened(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB").resize((20, 24))


# Files that are written while they are read.


class Unpacking(shapes.Photos):
    """Copies each image to the same place, with its time, and opens it there."""

    def __init__(self, folder: Path) -> None:
        super().__init__([folder / f"{i}.bmp" for i in range(6)])
        self.place = folder / "sample.bmp"
        for i, path in enumerate(self.paths):
            Image.new("RGB", (64, 64), (40 * i, 0, 0)).save(path)

    def __getitem__(self, i: int) -> Any:
        shutil.copystat(self.paths[0], self.paths[i])
        shutil.copy2(self.paths[i], self.place)
        return F.to_tensor(Image.open(self.place)), i


@pytest.mark.parametrize("recent_ns", [0, stamps.RECENT_NS])
def test_samples_unpacked_to_one_place_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recent_ns: int
) -> None:
    monkeypatch.setattr(stamps, "RECENT_NS", recent_ns)
    side_by_side(Unpacking(tmp_path), batch_size=6)


def test_a_file_that_was_written_just_now_may_go_at_once(
    tmp_path: Path, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "RECENT_NS", 60 * 10**9)
    made = []

    class Temporary(shapes.Photos):
        def __getitem__(self, i: int) -> Any:
            made.append(i)
            path = tmp_path / self.paths[i].name
            path.write_bytes(self.paths[i].read_bytes())
            image = opened(path)
            path.unlink()
            return F.to_tensor(image), i

    loader = FastLoader(Temporary(photos), 3)
    images = torch.cat([batch[0] for batch in loader])
    assert made == list(range(6))  # none of them twice
    assert torch.equal(images, torch.stack([F.to_tensor(opened(path)) for path in photos]))


# What a dataset keeps.


class Caching(shapes.Photos):
    """Opens each image once."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths)
        self.kept: dict[int, Image.Image] = {}

    def __getitem__(self, i: int) -> Any:
        if i not in self.kept:
            self.kept[i] = opened(self.paths[i])
        return F.to_tensor(self.kept[i]), i


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_another_loader_over_the_same_dataset_gives_plain_batches(
    photos: list[Path], engine: Any
) -> None:
    dataset = Caching(photos)
    expected = [batch[0] for batch in FastLoader(dataset, 1)]
    for images, (other, _) in zip(expected, FastLoader(dataset, 1, engine=engine), strict=True):
        assert type(other) is torch.Tensor
        assert torch.equal(other, images)


def test_torchs_loader_over_the_same_dataset_gives_plain_batches(photos: list[Path]) -> None:
    dataset = Caching(photos)
    expected = [batch[0] for batch in FastLoader(dataset, 2)]
    for images, (other, _) in zip(expected, DataLoader(dataset, 2), strict=True):
        assert type(other) is torch.Tensor
        assert torch.equal(other, images)


class Loaded(Caching):
    """Crops what it keeps."""

    def __getitem__(self, i: int) -> Any:
        if i not in self.kept:
            self.kept[i] = opened(self.paths[i])
        return F.to_tensor(F.crop(self.kept[i], 2, 3, 9, 10)), np.array(self.kept[i].resize((4, 5)))


@pytest.mark.parametrize("kind", [Caching, Loaded])
def test_images_that_are_kept_are_decoded_once_more_and_not_in_every_epoch(
    tmp_path: Path, kind: type[Caching]
) -> None:
    paths = shapes.write_photos(tmp_path, 6)
    dataset = kind(paths)
    expected = list(DataLoader(kind(paths), 2))
    loader = FastLoader(dataset, 2)
    assert [list(loader) for _ in range(3)]
    for path in paths:
        path.unlink()  # nobody reads them any more
    for ours, theirs in zip(loader, expected, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
    assert not any(map(waiting, dataset.kept.values()))


class Probed(Caching):
    """Opens all images at first, and later sees of each whether it is sound."""

    def __init__(self, paths: list[Path], probe: str) -> None:
        super().__init__(paths)
        self.probe = probe

    def __getitem__(self, i: int) -> Any:
        if not self.kept:
            self.kept = {k: Image.open(path) for k, path in enumerate(self.paths)}
        try:
            getattr(self.kept[i], self.probe)()
        except OSError as error:
            return str(error)
        return "sound"


@pytest.mark.parametrize("probe", ["load", "getexif"])
def test_damage_to_what_is_kept_is_seen_where_pillow_sees_it(tmp_path: Path, probe: str) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for path in paths:
        Image.new("RGB", (64, 64)).save(path)
    damaged = bytearray(paths[3].read_bytes())
    damaged[damaged.index(b"IDAT") + 4] = 0  # what says how the pixels are compressed
    paths[3].write_bytes(damaged)
    theirs, ours = (list(kind(Probed(paths, probe), 1)) for kind in (DataLoader, FastLoader))
    assert ours == theirs
    assert theirs[2] == ["sound"] != theirs[3]


class Shuffled(torch.utils.data.IterableDataset[Any]):
    """A stream that gives what it has opened in another order."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Any:
        kept = []
        for path in self.paths:
            kept.append(opened(path))
            if len(kept) == 4:
                yield F.to_tensor(kept.pop(0))
        yield from map(F.to_tensor, kept)


def test_images_that_a_stream_uses_once_stay_deferred(photos: list[Path]) -> None:
    loader = FastLoader(Shuffled(photos), 1)
    batches = list(loader)
    assert loader.stats()["images_deferred"] == len(batches) == len(photos)
    side_by_side(Shuffled(photos), batch_size=1)


class Numbers(Dataset[int]):
    """Opens nothing."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> int:
        return i


class Around(shapes.Photos):
    """Iterates over another loader while it makes a sample."""

    def __getitem__(self, i: int) -> Any:
        image = F.to_tensor(opened(self.paths[i]))
        return image, next(iter(FastLoader(Numbers(), 2)))


def test_a_loader_within_a_sample_leaves_the_batch_around_it_plain(photos: list[Path]) -> None:
    loader = FastLoader(Around(photos), 3)
    assert {type(batch[0]) for batch in loader} == {torch.Tensor}
    assert loader.stats()["images_opened"] == len(photos)
    side_by_side(Around(photos), batch_size=3)


# Where batches have them.


@dataclasses.dataclass(slots=True)
class Slots:
    images: Any
    labels: list[int]


def in_slots(samples: list[Any]) -> Slots:
    return Slots(default_collate([image for image, _ in samples]), [i for _, i in samples])


def in_a_set(samples: list[Any]) -> set[torch.Tensor]:
    return {image for image, _ in samples}


def in_an_array(samples: list[Any]) -> np.ndarray:
    made = np.empty(len(samples), object)
    for i, (image, _) in enumerate(samples):
        made[i] = image
    return made


def in_a_proxy(samples: list[Any]) -> Any:
    return types.MappingProxyType({"images": [image for image, _ in samples]})


def parts(batch: Any) -> list[Any]:
    if isinstance(batch, Slots):
        return list(batch.images)
    return list(batch["images"] if isinstance(batch, types.MappingProxyType) else batch)


@pytest.mark.parametrize("collate_fn", [in_slots, in_a_set, in_an_array, in_a_proxy])
def test_a_batch_is_plain_whatever_it_is_in(photos: list[Path], collate_fn: Any) -> None:
    sums = []
    for kind in (DataLoader, FastLoader):
        (batch,) = kind(Caching(photos), 6, collate_fn=collate_fn)
        if isinstance(batch, Slots):
            assert type(batch.images) is torch.Tensor
        assert {type(part) for part in parts(batch)} == {torch.Tensor}
        sums.append(sorted(float(part.sum()) for part in parts(batch)))
    assert sums[0] == sums[1]


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def test_an_image_keeps_what_the_users_code_has_set(photos: list[Path]) -> None:
    class Labelled(shapes.Photos):
        def __getitem__(self, i: int) -> Any:
            image: Any = opened(self.paths[i])
            image.label = i
            image.info["label"] = i
            return image

    (batch,) = FastLoader(Labelled(photos), 6, collate_fn=as_they_are)
    assert [(type(image), image.label, image.info["label"]) for image in batch] == [
        (Image.Image, i, i) for i in range(6)
    ]


def by_type(samples: list[Any]) -> Any:
    """A collate_fn that compares types."""
    images, labels = zip(*samples, strict=True)
    if type(images[0]) == torch.Tensor:  # noqa: E721 - as programs write it
        return torch.stack(images), list(labels)
    return samples


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_fn_that_compares_types_finds_tensors(photos: list[Path], workers: int) -> None:
    side_by_side(
        shapes.Photos(photos), epochs=1, batch_size=3, collate_fn=by_type, num_workers=workers
    )


# Elsewhere.


class Exported(shapes.Photos):
    """Hands a tensor to another library, below torch's Python functions."""

    def __getitem__(self, i: int) -> Any:
        return from_dlpack(to_dlpack(F.to_tensor(opened(self.paths[i])))), i


@pytest.mark.parametrize("workers", [0, 1])
def test_a_tensor_that_is_exported_is_made_first(photos: list[Path], workers: int) -> None:
    side_by_side(Exported(photos), epochs=1, batch_size=3, num_workers=workers)


def _kind_and_mean(path: Path) -> tuple[str, float]:
    image = opened(path)
    return type(image).__name__, float(np.asarray(image).mean())


class Pooled(shapes.Photos):
    """Opens images in processes that it forks."""

    def __getitem__(self, i: int) -> Any:
        F.to_tensor(opened(self.paths[i]))
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.map(_kind_and_mean, [self.paths[i]])


def test_a_process_that_the_users_code_forks_sees_nothing_of_it(photos: list[Path]) -> None:
    side_by_side(Pooled(photos[:2]), epochs=1, batch_size=None)


class Threaded(shapes.Photos):
    """Looks at pixels in another thread, and takes zeros where that fails there."""

    def __getitem__(self, i: int) -> Any:
        try:
            image = opened(self.paths[i])
        except OSError:
            return torch.full((3, 24, 20), -1.0), -1
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(np.array, image)
        return (torch.zeros(3, 24, 20) if made.exception() else F.to_tensor(made.result())), i


class Suspicious(shapes.Photos):
    """Has a look at an image in steps, and says at which one it failed."""

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i])
        made: Any = None
        for step in (
            lambda: image.load(),
            lambda: image.load()[0, 0],
            lambda: dict(image.info),
            lambda: image.convert("P"),
        ):
            try:
                made = step()
            except OSError:
                return [i, made is None]
        return [i, True]


def or_none(samples: list[Any]) -> Any:
    """A collate_fn that hides what goes wrong."""
    try:
        return default_collate(samples)
    except Exception:
        return "none"


class OfItsSize(shapes.Photos):
    """Tensors that cannot be stacked."""

    def __getitem__(self, i: int) -> Any:
        return F.to_tensor(Image.open(self.paths[i]).convert("RGB"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_noticed_where_dataloader_notices_it(
    damaged: list[Path], workers: int
) -> None:
    side_by_side(Threaded(damaged), epochs=1, batch_size=5, num_workers=workers)
    side_by_side(Suspicious(damaged), epochs=1, batch_size=5, num_workers=workers)
    side_by_side(
        OfItsSize(damaged), epochs=1, batch_size=5, num_workers=workers, collate_fn=or_none
    )


class Previous(shapes.Photos):
    """Opens its first images, and returns the one that it opened for the index before."""

    kept: Any = torch.zeros(3, 24, 20)

    def __getitem__(self, i: int) -> Any:
        before = self.kept
        if i < 2:
            self.kept = F.to_tensor(opened(self.paths[i]))
        return before


def test_what_is_kept_is_made_after_an_epoch_in_workers_too(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_state, "_OPENED", [])  # as in a process that has made no sample
    loader = FastLoader(Previous(photos), num_workers=1, collate_fn=list)
    list(loader)
    loader.num_workers = 0
    assert [type(batch[0]) is torch.Tensor for batch in loader] == [True] * len(photos)


@pytest.mark.native
def test_a_batch_of_damaged_images_only_is_counted_wherever_it_is_made(tmp_path: Path) -> None:
    paths = shapes.write_photos(tmp_path, 4)
    for path in paths[2:]:
        shapes.truncate(path)
    for workers in (0, 1):
        photos = shapes.Photos(paths)
        loader = FastLoader(photos, 2, num_workers=workers, on_error="skip", max_errors=9)
        assert len(list(loader)) == 1
        assert "images: 1 batches were made again" in loader.explain(), workers
