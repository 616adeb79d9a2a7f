"""A collate_fn that allocates its batch and copies each image to a row of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms

import deferred_datasets as shapes
from fastload import FastLoader
from fastload._sources.deferred.switch import deferring
from fastload._sources.deferred.tensor import DeferredRow, pending
from fastload._sources.deferred.tensor_functions import filling_rows
from sides import side_by_side

Samples = list[tuple[torch.Tensor, int]]

BYTES = transforms.Compose([transforms.RandomResizedCrop(48), transforms.PILToTensor()])
FLOATS = transforms.Compose(
    [
        transforms.RandomResizedCrop(48),
        transforms.ToTensor(),
        transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.3)),
    ]
)
SIZES = transforms.Compose([transforms.Resize(40), transforms.ToTensor()])  # a size for each


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Opens a photo and transforms it."""

    def __init__(self, paths: list[Path], transform: Callable[[Image.Image], torch.Tensor]) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.open(self.paths[i]).convert("RGB")), i


def copied(samples: Samples) -> Any:
    """uint8 zeros, and a copy for each row."""
    batch = torch.zeros((len(samples), *samples[0][0].shape), dtype=torch.uint8)
    for place, (image, _) in enumerate(samples):
        batch[place].copy_(image)
    return batch, torch.tensor([label for _, label in samples])


def padded(samples: Samples) -> Any:
    """As large as the largest; what is left of a row has a value."""
    images = [image for image, _ in samples]
    c, h, w = (max(sizes) for sizes in zip(*(image.shape for image in images), strict=True))
    batch = images[0].new(len(images), c, h, w).fill_(0.25)
    for image, row in zip(images, batch, strict=True):
        row[..., : image.shape[-2], : image.shape[-1]].copy_(image)
    return batch


def assigned(samples: Samples) -> Any:
    """Assignments to float zeros."""
    batch = torch.zeros(len(samples), *samples[0][0].shape)
    for place, (image, _) in enumerate(samples):
        if place % 2:
            batch[place, :, : image.shape[1]] = image
        else:
            batch[place - len(samples)] = image
    return {"images": batch}


def with_rows_to_spare(samples: Samples) -> Any:
    """The first and the last row stay as they were; a view of a row is part of the batch."""
    batch = samples[0][0].new_full((len(samples) + 2, *samples[0][0].shape), 7)
    for place, (image, _) in enumerate(samples, start=1):
        batch[place] = image
    return batch, batch[1], batch[0]


def by_keyword(samples: Samples) -> Any:
    """Keywords, where others have none, and an index that takes all."""
    batch = torch.zeros(size=(len(samples), *samples[0][0].shape))
    for row, (image, _) in zip(batch[()], samples, strict=True):
        row.copy_(image)
    return batch


def changed_meanwhile(samples: Samples) -> Any:
    """Values are asked for before the last row is there; an image changes after its copy."""
    batch = samples[0][0].new_zeros((len(samples), *samples[0][0].shape))
    row = batch[0]
    row.copy_(samples[0][0])
    samples[0][0].mul_(2)
    row[0, 0, 0] = 9
    sums = [batch.float().sum()]
    for place, (image, _) in enumerate(samples[1:], start=1):
        batch[place].copy_(image)
    sums.append(row.float().mean())
    batch[-1].zero_()
    return batch, torch.stack(sums), samples[0][0]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return shapes.write_photos(tmp_path_factory.mktemp("photos"))


@pytest.mark.parametrize(
    ("collate_fn", "transform", "workers"),
    [
        (copied, BYTES, 2),
        (copied, FLOATS, 0),
        (padded, FLOATS, 0),
        (padded, SIZES, 2),
        (assigned, BYTES, 0),
        (assigned, FLOATS, 2),
        (with_rows_to_spare, FLOATS, 0),
        (by_keyword, FLOATS, 0),
        (changed_meanwhile, FLOATS, 0),
        (changed_meanwhile, FLOATS, 2),
    ],
)
def test_the_batch_is_data_loaders(
    photos: list[Path], collate_fn: Any, transform: Any, workers: int
) -> None:
    side_by_side(
        Photos(photos, transform), batch_size=4, collate_fn=collate_fn, num_workers=workers
    )


@pytest.mark.parametrize("collate_fn", [copied, padded, assigned, with_rows_to_spare])
def test_nothing_is_decoded_before_the_batch(photos: list[Path], collate_fn: Any) -> None:
    loader = FastLoader(Photos(photos, FLOATS), 4, collate_fn=collate_fn)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["images_deferred"] >= len(photos)
    assert stats["images_materialised"] == 0


def test_zeros_of_other_sizes_are_torchs(photos: list[Path]) -> None:
    with deferring():
        image, label = Photos(photos, FLOATS)[0]
        with filling_rows([(image, label)]):
            for made in (
                torch.zeros(4, 3, 48, 47),
                torch.zeros(3, 48, 48),
                torch.zeros(0, 3, 48, 48),
                torch.zeros((4, 3, 48, 48), requires_grad=True),
                torch.zeros((4, 3, 48, 48), device="meta"),
                torch.full((4, 3, 48, 48), 1),
            ):
                assert type(made) is torch.Tensor
            for made in (
                torch.zeros(4, 3, 48, 48),
                torch.zeros(size=(4, 3, 48, 48)),
                torch.full((4, 3, 48, 48), fill_value=0.5),
                torch.full(size=(4, 3, 48, 48), fill_value=0.5),
            ):
                assert isinstance(made[1], DeferredRow)
            for wrong in (
                lambda: torch.zeros((4, 3, 48, 48), size=(4, 3, 48, 48)),
                lambda: torch.zeros((4, 3, 48, 48), value=0.5),
                lambda: torch.full((4, 3, 48, 48)),
                lambda: torch.full((4, 3, 48, 48), 0.5, 0.5),
            ):
                with pytest.raises(TypeError, match=r"^(zeros|full)\("):
                    wrong()
            assert torch.equal(torch.zeros(4, 3, 48, 48)[()], torch.zeros((4, 3, 48, 48), out=None))
        with torch.device("meta"), filling_rows([(image, label)]):
            assert torch.zeros(4, 3, 48, 48).device.type == "meta"
        assert type(torch.zeros(4, 3, 48, 48)) is torch.Tensor
        assert pending(image)


def test_a_row_is_a_view_of_its_batch(photos: list[Path]) -> None:
    with deferring():
        image, _ = Photos(photos, FLOATS)[0]
        batch = image.new_zeros((2, *image.shape))
        first, second = batch
        first.copy_(image)
        assert (first.shape, first.dtype, first.stride()) == (
            image.shape,
            image.dtype,
            (2304, 48, 1),
        )
        assert second.sum() == 0
        second += 1
        assert batch[1].min() == 1
        assert torch.equal(batch[0], image)


def with_sum(samples: Samples) -> Any:
    batch = padded(samples)
    return batch, batch.sum()  # makes it real, in the worker


def test_a_batch_that_a_worker_has_made_needs_no_shared_file_of_its_own(photos: list[Path]) -> None:
    loader = FastLoader(Photos(photos, FLOATS), 4, collate_fn=with_sum, num_workers=1)
    for _ in range(2):  # in the first epoch the slabs grow
        shared = [batch.is_shared() for batch, _ in loader]
    assert not any(shared)
