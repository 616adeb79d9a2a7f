"""A collate_fn that pads images of several sizes: copied to parts of rows, or with torch's pad."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import functional as F

import deferred_programs
from fastload import FastLoader
from fastload._base.slabs import SlabRing
from fastload._sources.deferred import lowering, thread_state
from fastload._sources.deferred.batch import BatchDecoder
from fastload._sources.deferred.completion import DeferredObjects, fill, replaced
from fastload._sources.deferred.recording import Opened, Recording
from fastload._sources.deferred.switch import deferring
from fastload._sources.deferred.tensor import DeferredRow, pending
from fastload._sources.deferred.tensor_functions import filling_rows
from fastload._sources.deferred.thread_state import BatchContext
from sides import side_by_side

Samples = list[tuple[torch.Tensor, int]]

# --- what public scripts do -----------------------------------------------------------------------


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Photos, each in a size of its own."""

    def __init__(self, paths: list[Path], floats: bool = True) -> None:
        self.paths, self.floats = paths, floats

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        image = Image.open(self.paths[i]).convert("RGB")
        image = F.resize(image, [20 + i * 5 % 17, 24 + i * 7 % 19])
        if i % 3 == 1:
            image = F.hflip(F.center_crop(image, [18, 19]))
        if not self.floats:
            return F.pil_to_tensor(image), i
        return F.normalize(F.to_tensor(image), [0.5, 0.4, 0.3], [0.2, 0.2, 0.3]), i


class Nested:
    """A batch and where it is padded."""

    def __init__(self, tensors: torch.Tensor, mask: torch.Tensor) -> None:
        self.tensors, self.mask = tensors, mask


def largest(images: list[torch.Tensor]) -> tuple[int, int, int]:
    c, h, w = (max(sizes) for sizes in zip(*(image.shape for image in images), strict=True))
    return c, h, w


def with_a_mask(samples: Samples) -> Any:
    """Zeros, a copy to the corner of each row, and a mask of what is padded."""
    images = [image for image, _ in samples]
    c, h, w = largest(images)
    batch = torch.zeros([len(images), c, h, w], dtype=images[0].dtype, device=images[0].device)
    mask = torch.ones((len(images), h, w), dtype=torch.bool)
    for image, row, padded in zip(images, batch, mask, strict=True):
        row[: image.shape[0], : image.shape[1], : image.shape[2]].copy_(image)
        padded[: image.shape[1], : image.shape[2]] = False
    return Nested(batch, mask), [label for _, label in samples]


def divisible(samples: Samples) -> Any:
    """Sides that are multiples of 32, a value in between, assignments with an index of the row."""
    images = [image for image, _ in samples]
    c, h, w = largest(images)
    batch = images[0].new_full([len(images), c, -(-h // 32) * 32, -(-w // 32) * 32], 3)
    for place, image in enumerate(images):
        batch[place, :, : image.shape[1], : image.shape[2]] = image
    return batch


def in_the_middle(samples: Samples) -> Any:
    """Each image in the middle of its row."""
    batch = torch.full((len(samples), 3, 50, 60), 0.25, dtype=samples[0][0].dtype)
    for row, (image, _) in zip(batch, samples, strict=True):
        _, h, w = image.shape
        top, left = (50 - h) // 2, (60 - w) // 2
        row[..., top : top + h, left : left + w].copy_(image)
    return batch


def by_pad(samples: Samples) -> Any:
    """torch's pad to the largest, then a stack."""
    images = [image for image, _ in samples]
    _, h, w = largest(images)
    return torch.stack(
        [
            torch.nn.functional.pad(
                image, (0, w - image.shape[2], 0, h - image.shape[1]), value=2.0
            )
            for image in images
        ]
    )


USUAL = [with_a_mask, divisible, in_the_middle, by_pad]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    rng = np.random.default_rng(3)
    folder = tmp_path_factory.mktemp("photos")
    made = []
    for i in range(6):
        coarse = rng.integers(0, 256, (7, 9, 3), np.uint8)
        image = Image.fromarray(coarse).resize((70 + i, 66 - i), Image.Resampling.BICUBIC)
        made.append(folder / f"{i}.jpg")
        image.save(made[-1], progressive=i == 1)
    return made


@pytest.mark.parametrize("floats", [True, False])
@pytest.mark.parametrize("collate_fn", USUAL)
def test_the_padded_batch_is_data_loaders(paths: list[Path], collate_fn: Any, floats: bool) -> None:
    side_by_side(Photos(paths, floats), epochs=1, batch_size=3, collate_fn=collate_fn)


@pytest.mark.parametrize("collate_fn", [with_a_mask, by_pad])
def test_padded_batches_of_workers_are_data_loaders(paths: list[Path], collate_fn: Any) -> None:
    side_by_side(Photos(paths), epochs=1, batch_size=3, collate_fn=collate_fn, num_workers=1)


@pytest.mark.parametrize("floats", [True, False])
@pytest.mark.parametrize("collate_fn", USUAL)
def test_no_image_is_decoded_before_the_padded_batch(
    paths: list[Path], collate_fn: Any, floats: bool
) -> None:
    loader = FastLoader(Photos(paths, floats), 3, collate_fn=collate_fn)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["images_deferred"] == len(paths)
    assert stats["images_materialised"] == 0
    assert "operations: " not in loader.explain()  # what the core leaves to the libraries


def test_images_of_several_sizes_are_filled_in_one_call(paths: list[Path]) -> None:
    with deferring():
        samples = [Photos(paths)[i] for i in range(len(paths))]
        with filling_rows(samples):
            nested, _ = with_a_mask(samples)
    rows = nested.tensors.rows
    (call,) = lowering.lower(rows, rows[0].size)
    assert len(call.positions) == len(rows)


# --- random ones ----------------------------------------------------------------------------------


@dataclasses.dataclass
class Copy:
    """An image that is copied to a row of the batch.

    Attributes:
        row: its number, from either end.
        image: its number.
        left, top: where; taken modulo the space that there is.
        how: of ``COPIES``.
    """

    row: int
    image: int
    left: int
    top: int
    how: str


@dataclasses.dataclass
class Collating:
    """A random program.

    Attributes:
        seed: of what is done to the images.
        gray: their mode is "L".
        sizes: width and height of the images.
        kind: of tensor, of ``KINDS``.
        allocation: of ``ALLOCATIONS``.
        value: in the batch before images are copied to it.
        rows, larger: the number of its rows; how much wider and higher it is than an image.
        steps: copies, and what is done between them, of ``BETWEEN``.
    """

    seed: int
    gray: bool
    sizes: list[tuple[int, int]]
    kind: str
    allocation: str
    value: float
    rows: int
    larger: tuple[int, int]
    steps: list[Copy | str]


def _whole(batch: torch.Tensor, row: int, left: int, top: int, image: torch.Tensor) -> None:
    batch[row][:, top : top + image.shape[1], left : left + image.shape[2]].copy_(image)


def _assigned(batch: torch.Tensor, row: int, left: int, top: int, image: torch.Tensor) -> None:
    batch[row, ..., top : top + image.shape[1], left : left + image.shape[2]] = image


def _nested(batch: torch.Tensor, row: int, left: int, top: int, image: torch.Tensor) -> None:
    below = list(batch)[row][: len(image), top:]
    below[:, : image.shape[1], left:][..., : image.shape[2]].copy_(image)


def _from_the_end(batch: torch.Tensor, row: int, left: int, top: int, image: torch.Tensor) -> None:
    _, _, height, width = batch.shape
    part = batch[row, :, top - height :, left - width :]
    part[:, slice(None, image.shape[1]), slice(0, image.shape[2], 1)] = image


COPIES: dict[str, Callable[..., None]] = {
    "copy_": _whole,
    "assigned": _assigned,
    "nested": _nested,
    "from the end": _from_the_end,
}


def _sums(batch: torch.Tensor, images: list[torch.Tensor]) -> Any:
    return batch.double().sum()


def _changed(batch: torch.Tensor, images: list[torch.Tensor]) -> Any:
    return images[0].add_(1)


def _filled(batch: torch.Tensor, images: list[torch.Tensor]) -> Any:
    return batch.fill_(5)


def _pixel(batch: torch.Tensor, images: list[torch.Tensor]) -> Any:
    batch[0, 0, 1:3] = 7
    return batch[-1][:, 1:, ::2], batch[0, :, 2:1]


def _halves(batch: torch.Tensor, images: list[torch.Tensor]) -> Any:
    return batch[0][:, :2].shape, batch[-1, :, 1:].stride(), batch[0][:1].numel()


def _broadcast(batch: torch.Tensor, images: list[torch.Tensor]) -> Any:
    batch[:, :, : images[0].shape[1], : images[0].shape[2]] = images[0]


def _padded(batch: torch.Tensor, images: list[torch.Tensor]) -> Any:
    pad = torch.nn.functional.pad
    return (
        pad(images[-1], (1, 2, 3, 4), value=1.5),
        pad(images[-1], [0, 2]),
        pad(images[-1], (0, 0, 0, 0)),
        pad(pad(images[0], (0, 1, 2, 0, 0, 0), "constant", 9), (2, 0), value=-0.0),
        pad(images[0], (0, -1, 2, 0), value=3),
        pad(images[0], (0, 0, 1, 0, 0, 1)),
    )


BETWEEN: dict[str, Callable[[torch.Tensor, list[torch.Tensor]], Any]] = {
    "sums": _sums,
    "changed": _changed,
    "filled": _filled,
    "pixel": _pixel,
    "halves": _halves,
    "broadcast": _broadcast,
    "padded": _padded,
}


def _erased(image: Image.Image) -> torch.Tensor:
    tensor = F.to_tensor(image)
    return F.erase(tensor, 1, 2, 2, 3, torch.full((1, 1, 1), 0.5))


KINDS: dict[str, Callable[[Image.Image], torch.Tensor]] = {
    "floats": lambda image: F.normalize(F.to_tensor(image), [0.5], [0.25]),
    "bytes": F.pil_to_tensor,
    "halves": lambda image: F.to_tensor(image).half(),
    "integers": lambda image: F.pil_to_tensor(image).long(),
    "erased": _erased,
}

ALLOCATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "zeros": lambda image, shape, value: torch.zeros(shape, dtype=image.dtype),
    "zeros of floats": lambda image, shape, value: torch.zeros(*shape),
    "full": lambda image, shape, value: torch.full(shape, value, dtype=image.dtype),
    "full of a number": lambda image, shape, value: torch.full(shape, fill_value=value),
    "new": lambda image, shape, value: image.new(*shape).fill_(value),
    "new_full": lambda image, shape, value: image.new_full(shape, value),
    "new_zeros": lambda image, shape, value: image.new_zeros(shape),
}

numbers = st.integers(0, 40)
copies = st.builds(Copy, st.integers(-3, 3), numbers, numbers, numbers, st.sampled_from([*COPIES]))
collatings = st.builds(
    Collating,
    seed=numbers,
    gray=st.booleans(),
    sizes=st.lists(
        st.one_of(st.just((12, 9)), st.tuples(st.integers(5, 30), st.integers(4, 30))),
        min_size=1,
        max_size=4,
    ),
    kind=st.sampled_from([*KINDS]),
    allocation=st.sampled_from([*ALLOCATIONS]),
    value=st.sampled_from([0, 0, 0.0, -0.0, 1, 255, 0.25, -2.5, float("inf"), float("nan")]),
    rows=st.integers(1, 4),
    larger=st.tuples(st.sampled_from([0, 0, 1, 9]), st.sampled_from([0, 0, 2, 7])),
    steps=st.lists(
        st.one_of(copies, copies, copies, copies, st.sampled_from([*BETWEEN])), max_size=6
    ),
)


def _images(program: Collating, paths: list[Path]) -> list[torch.Tensor]:
    images = []
    for i, (width, height) in enumerate(program.sizes, start=program.seed):
        image = Image.open(paths[i % len(paths)]).convert("L" if program.gray else "RGB")
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        if i % 2:
            image = F.hflip(image)
        if i % 3 == 1:
            image = F.crop(F.resize(image, [height + 3, width + 4]), 1, 2, height, width)
        if i % 5 == 2:
            image = F.crop(F.pad(image, 2, fill=90), 0, 1, height, width)
        images.append(KINDS[program.kind](image))
    return images


def collated(program: Collating, paths: list[Path], *, deferred: bool) -> Any:
    """What a program gives, or the error that it raises."""
    contexts = contextlib.ExitStack()
    with contexts:
        if deferred:
            contexts.enter_context(deferring())
        try:
            images = _images(program, paths)
            if deferred:
                contexts.enter_context(filling_rows([(images, 1)]))
            with _decoded_at_once():
                made = _steps(program, images)
            return deferred_programs.described(_completed(made))
        except (RuntimeError, ValueError, IndexError) as error:
            return type(error), str(error)


def _steps(program: Collating, images: list[torch.Tensor]) -> Any:
    c, height, width = largest(images)
    shape = program.rows, c, height + program.larger[1], width + program.larger[0]
    batch = ALLOCATIONS[program.allocation](images[0], shape, program.value)
    first = batch[0]
    made: list[Any] = [batch, first, first[:, :2, 1:]]
    for one in program.steps:
        if isinstance(one, str):
            made.append(BETWEEN[one](batch, images))
        else:
            image = images[one.image % len(images)]
            left = one.left % (shape[3] - image.shape[2] + 1)
            top = one.top % (shape[2] - image.shape[1] + 1)
            COPIES[one.how](batch, one.row, left, top, image)
    return made


@contextlib.contextmanager
def _decoded_at_once() -> Iterator[None]:
    decoder = BatchDecoder(0, SlabRing(2))
    context = BatchContext(fill=lambda batch: fill(decoder, batch).result())
    with thread_state.batch(context), deferring():
        yield


def _completed(made: Any) -> Any:
    found = DeferredObjects()
    return found.completed(replaced(made, found.add), BatchDecoder(0, SlabRing(2)))


def test_a_program_that_fills_a_batch_gives_the_same(
    paths: list[Path], count: Callable[[int, int], int]
) -> None:
    @hypothesis.settings(max_examples=count(300, 5_000))
    @hypothesis.given(collatings)
    def same(program: Collating) -> None:
        eager = collated(program, paths, deferred=False)
        assert collated(program, paths, deferred=True) == eager

    same()


# --- single claims --------------------------------------------------------------------------------


def test_a_part_of_a_row_is_a_view_of_the_batch(paths: list[Path]) -> None:
    with deferring():
        image, _ = Photos(paths)[0]
        c, h, w = image.shape
        batch = image.new_zeros((2, c, h + 4, w + 6))
        part = batch[1, :, 2 : h + 2, 3 : w + 3]
        assert isinstance(part, DeferredRow)
        assert part.shape == image.shape
        part.copy_(image)
        assert pending(image)
        assert part.stride() == ((h + 4) * (w + 6), w + 6, 1)
        part += 1
        assert torch.equal(batch[1, :, 2 : h + 2, 3 : w + 3], image + 1)
        assert batch[1, :, :2].abs().sum() == batch[0].abs().sum() == 0


def test_a_second_image_in_a_row_leaves_the_first_where_it_is(paths: list[Path]) -> None:
    with deferring():
        one, other = Photos(paths)[0][0], Photos(paths)[2][0]
        batch = one.new_full((1, 3, 60, 90), 2)
        batch[0, :, : one.shape[1], : one.shape[2]] = one
        batch[0, :, -other.shape[1] :, -other.shape[2] :] = other
        assert torch.equal(batch[0, :, : one.shape[1], : one.shape[2]], one)
        assert torch.equal(batch[0, :, -other.shape[1] :, -other.shape[2] :], other)
        assert batch[0, :, 0, -1].tolist() == [2, 2, 2]


def test_a_border_is_erased_after_what_was_erased_before_it(paths: list[Path]) -> None:
    path = paths[0]
    opened = Opened(None, path.read_bytes(), None, (70, 66), "RGB", "JPEG")
    recording = Recording(
        opened,
        (
            ("crop", 3, 4, 60, 50),
            ("flip", False),
            ("to_tensor",),
            ("erase", 5, 6, 7, 8, (0.5,)),
            ("border", 1, 2, 3, 4, 0.25),
            ("erase", 0, 0, 20, 3, (0.125,)),
            ("border", 0, 0, 0, 2, -1.0),
        ),
        (64, 58),
        "RGB",
    )
    decoder = BatchDecoder(0, SlabRing(1))
    filling = decoder.begin((1, 3, 58, 64), (3 * 58 * 64, 58 * 64, 64, 1), torch.float32)
    filling.add(0, [recording])
    made = filling.result()[0]
    with Image.open(path) as image:
        expected = F.to_tensor(F.hflip(image.crop((3, 4, 63, 54))))
    expected[:, 5:12, 6:14] = 0.5
    expected = torch.nn.functional.pad(expected, (1, 3, 2, 4), value=0.25)
    expected[:, :20, :3] = 0.125
    expected = torch.nn.functional.pad(expected, (0, 0, 0, 2), value=-1.0)
    assert torch.equal(made, expected)
    assert decoder.counts.native == 1
