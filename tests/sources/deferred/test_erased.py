"""Rectangles of deferred tensors, erased, assigned or masked: torch's values, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import functional as F
from torchvision.transforms.v2 import functional as F2

import deferred_datasets as shapes
import releases
from deferred_datasets import opened
from fastload import FastLoader
from fastload._base.slabs import SlabRing
from fastload._sources.deferred import switch, thread_state
from fastload._sources.deferred.batch import BatchDecoder
from fastload._sources.deferred.completion import fill
from fastload._sources.deferred.lowering import lower
from fastload._sources.deferred.tensor import DeferredTensor
from sides import side_by_side

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return shapes.write_colour_jpegs(tmp_path_factory.mktemp("photos"))


def bits(tensor: torch.Tensor) -> bytes:
    """Zeros differ by their sign."""
    plain = tensor.detach().as_subclass(torch.Tensor).contiguous()
    return plain.view(torch.uint8).numpy().tobytes()


def assert_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.stride() == expected.stride()
    assert bits(found) == bits(expected)


def mask(shape: tuple[int, ...], *boxes: tuple[int, int, int, int]) -> torch.Tensor:
    made = np.ones(shape, np.float32)
    for top, bottom, left, right in boxes:
        made[..., top:bottom, left:right] = 0.0
    return torch.from_numpy(made)


class Cutout:
    """Squares of zeros at random places, multiplied in as a mask."""

    def __init__(self, holes: int, side: int) -> None:
        self.holes, self.side = holes, side

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        h, w = image.size(1), image.size(2)
        mask = np.ones((h, w), np.float32)
        for _ in range(self.holes):
            y, x = np.random.randint(h), np.random.randint(w)
            top, bottom = np.clip(y - self.side // 2, 0, h), np.clip(y + self.side // 2, 0, h)
            left, right = np.clip(x - self.side // 2, 0, w), np.clip(x + self.side // 2, 0, w)
            mask[top:bottom, left:right] = 0.0
        return image * torch.from_numpy(mask).expand_as(image)


class Assigned:
    """A square at a random place, assigned a value at once, or channel by channel."""

    def __init__(self, by_channel: bool) -> None:
        self.by_channel = by_channel

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        if random.random() < 0.3:
            return image
        y, x = random.randint(0, image.shape[1] - 9), random.randint(0, image.shape[2] - 9)
        if self.by_channel:
            for channel, mean in enumerate((0.4914, 0.4822, 0.4465)):
                image[channel, y : y + 9, x : x + 7] = mean
        else:
            image[:, y : y + 9, x : x + 7] = 0
        return image


SIZED = [v1.Resize((40, 36)), v1.ToTensor()]
NORMALIZE = v1.Normalize(shapes.MEAN, shapes.STD)
CHAINS: dict[str, list[Any]] = {
    "cutout": [*SIZED, NORMALIZE, Cutout(1, 16)],
    "cutout, many": [*SIZED, NORMALIZE, Cutout(3, 16)],
    "cutout before": [*SIZED, Cutout(2, 12), NORMALIZE],
    "assigned": [*SIZED, NORMALIZE, Assigned(by_channel=False)],
    "by channel": [*SIZED, Assigned(by_channel=True), NORMALIZE],
    "erased before": [*SIZED, v1.RandomErasing(0.7), NORMALIZE, v1.RandomErasing(0.7, value=0.5)],
    "levels": [v1.Resize((40, 36)), v1.PILToTensor(), Assigned(by_channel=False),
               v1.ConvertImageDtype(torch.float32), NORMALIZE],
    "half": [*SIZED, NORMALIZE, lambda x: x.half(), Assigned(by_channel=True)],
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_that_erases_gives_data_loaders_batches(photos: list[Path], name: str) -> None:
    dataset = shapes.Photos(photos, v1.Compose(CHAINS[name]))
    for workers in (0, 1) if name in ("erased before", "by channel") else (0,):
        side_by_side(dataset, batch_size=4, shuffle=True, num_workers=workers, epochs=3)
    loader = FastLoader(dataset, 4)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["images_materialised"] == 0
    assert stats["images_deferred"] == len(photos)
    assert not releases.slower(loader.explain())  # nothing was left to Pillow


def assigned(index: Any, value: Any) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        x[index] = value
        return x

    return call


def by_channel(*values: float) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        for channel, value in enumerate(values):
            x[channel, 3:9, np.int64(2) : 7] = value
        return x

    return call


def normalized(x: Any) -> Any:
    return F.normalize(x, [0.5, 0.0, 0.4], [0.2, 0.3, 0.2])


HOLE = (3, 30, 5, 20)
RECORDED: dict[str, Callable[[Any], Any]] = {
    "numbers": assigned((slice(None), slice(2, 9), slice(3, 7)), 0),
    "to the end": assigned((slice(None), slice(2, -9), slice(3, None)), 0.3),
    "everything": assigned(slice(None), 2),
    "ellipsis": assigned((..., slice(2, 9), slice(3, 7)), -1.5),
    "numpy's integers": assigned((slice(None), slice(np.int64(2), np.int32(9)), slice(3, 7)), 1),
    "numpy's float": assigned((slice(None), slice(2, 9)), np.float64(0.1)),
    "nothing": assigned((slice(None), slice(9, 9), slice(3, 7)), 0.5),
    "a value for each": assigned((slice(None), slice(2, 9)), torch.rand(3, 1, 1)),
    "one in a tensor": assigned((slice(None), slice(2, 9)), torch.tensor(0.7)),
    "channels": by_channel(0.1, 0.2, 0.3),
    "channels twice": lambda x: by_channel(0.3, 0.2, 0.1)(normalized(by_channel(1, 0, 2)(x))),
    "mask": lambda x: normalized(x) * mask(x.shape[1:], HOLE),
    "mask first": lambda x: mask(x.shape[1:], HOLE) * normalized(x),
    "expanded": lambda x: normalized(x).mul(mask(x.shape[1:], HOLE).expand_as(x)),
    "with a channel": lambda x: torch.mul(normalized(x), mask((1, *x.shape[1:]), HOLE)),
    "for each channel": lambda x: normalized(x) * mask(tuple(x.shape), HOLE),
    "in place": lambda x: normalized(x).mul_(mask(x.shape[1:], HOLE)),
    "with an operator": lambda x: _times(normalized(x), mask(x.shape[1:], HOLE)),
    "no hole": lambda x: normalized(x) * mask(x.shape[1:]),
    "all of it": lambda x: normalized(x) * mask(x.shape[1:], (0, 999, 0, 999)),
    "overlapping": lambda x: normalized(x)
    * mask(x.shape[1:], HOLE, (9, 12, 0, 40), (25, 40, 9, 12)),
    "two masks": lambda x: normalized(x)
    * mask(x.shape[1:], HOLE)
    * mask(x.shape[1:], (0, 5, 0, 50)),
    "mask before": lambda x: F.normalize(x * mask(x.shape[1:], HOLE), [0.5], [0.2]),
    "mask before a sign": lambda x: (normalized(x) * mask(x.shape[1:], HOLE)) * 2,
    "signs": lambda x: (normalized(x) * mask(x.shape[1:], HOLE)) * -1 + 0.5,
    "mask and erased": lambda x: assigned((..., slice(0, 6)), 0.5)(
        normalized(x) * mask(x.shape[1:], HOLE)
    ),
    "erased and a border": lambda x: torch.nn.functional.pad(
        assigned((..., slice(0, 6)), 0.5)(normalized(x)), [1, 2, 3, 4], value=0.25
    ),
    "erased and half": lambda x: assigned((..., slice(0, 6)), 0.1)(x).half().div(3),
    "mask of half": lambda x: normalized(x).half() * mask(x.shape[1:], HOLE).half(),
    "marked": lambda x: F2.normalize(assigned((..., slice(0, 6)), 0.5)(x), [0.5], [0.2]),
    "erase twice": lambda x: F.erase(
        normalized(F.erase(x, 1, 2, 30, 20, torch.rand(3, 1, 1))), 4, 5, 9, 9, torch.rand(1, 1, 1)
    ),
}  # fmt: skip


def _times(x: Any, by: Any) -> Any:
    x *= by
    return x


@pytest.mark.parametrize("make", [F.to_tensor, lambda image: F2.to_dtype(
    F2.to_image(image), torch.float32, scale=True).contiguous()], ids=["v1", "v2"])  # fmt: skip
@pytest.mark.parametrize("name", RECORDED)
def test_a_call_is_recorded_and_has_torchs_bits(
    photos: list[Path], name: str, make: Callable[[Any], Any]
) -> None:
    call = RECORDED[name]
    for path in photos[:3]:
        torch.manual_seed(1)
        expected = call(make(opened(path)))
        thread_state.materialised()
        torch.manual_seed(1)
        with switch.deferring():
            found = call(make(opened(path)))
        assert thread_state.materialised() == []
        assert isinstance(found, DeferredTensor)
        assert isinstance(found, tv_tensors.Image) == isinstance(expected, tv_tensors.Image)
        assert found.recording is not None
        assert lower([found.recording], found.recording.size)
        decoder = BatchDecoder(0, SlabRing(1))
        assert_bits(fill(decoder, found).result(), expected)
        assert decoder.counts.native == 1
        assert_bits(found.materialise(), expected)


BYTES: dict[str, Callable[[Any], Any]] = {
    "level": assigned((slice(None), slice(2, 9), slice(3, 7)), 200),
    "tensor": assigned((slice(None), slice(2, 9)), torch.tensor([[[9]], [[8]], [[7]]]).byte()),
    "then floats": lambda x: F.convert_image_dtype(assigned((..., slice(2, 9)), 77)(x)),
}


@pytest.mark.parametrize("name", BYTES)
def test_levels_are_assigned_to(photos: list[Path], name: str) -> None:
    expected = BYTES[name](F.pil_to_tensor(opened(photos[0])))
    with switch.deferring():
        found = BYTES[name](F.pil_to_tensor(opened(photos[0])))
    assert isinstance(found, DeferredTensor)
    decoder = BatchDecoder(0, SlabRing(1))
    assert_bits(fill(decoder, found).result(), expected)
    assert decoder.counts.native == 1


TORCHS: dict[str, Callable[[Any], Any]] = {
    "too many rectangles": lambda x: x
    * (torch.arange(x.shape[2]) % 2).float().expand(x.shape[1:]).contiguous(),
    "another value": lambda x: x * mask(x.shape[1:], HOLE).mul(0.5),
    "minus zero": lambda x: x * torch.full(tuple(x.shape[1:]), -0.0),
    "doubles": lambda x: x * mask(x.shape[1:], HOLE).double(),
    "transposed": lambda x: x * mask((x.shape[2], x.shape[1]), HOLE).T,
    "each channel its own": lambda x: x
    * torch.cat([mask((2, *x.shape[1:]), HOLE), mask((1, *x.shape[1:]))]),
    "a row": lambda x: x * mask((1, x.shape[2]), (0, 1, 3, 9)),
    "bfloat16": lambda x: x.bfloat16() * mask(x.shape[1:], HOLE).bfloat16(),
    "one channel": assigned((1, slice(2, 9)), 0.5),
    "channels in another order": lambda x: assigned((0, slice(2, 9)), 1)(
        assigned((1, slice(2, 9)), 0.5)(assigned((2, slice(2, 9)), 0.25)(x))
    ),
    "channels of two boxes": lambda x: assigned((2, slice(2, 9)), 1)(
        assigned((1, slice(2, 9)), 0.5)(assigned((0, slice(2, 8)), 0.25)(x))
    ),
    "minus zero assigned": assigned((slice(None), slice(2, 9)), -0.0),
    "nan": assigned((slice(None), slice(2, 9)), float("nan")),
    "noise": assigned((slice(None), slice(0, 9), slice(0, 9)), torch.ones(3, 9, 9)),
    "steps": assigned((slice(None), slice(0, 9, 2)), 0.5),
    "a row of values": assigned((slice(None), 3), 0.5),
    "of a part": lambda x: assigned((slice(None), slice(2, 9)), 0.5)(x[:, 1:20, 1:20]),
    "beside a part": lambda x: (x[:, 1:20, 1:20], assigned((..., slice(2, 9)), 0.5)(x))[0],
    "signs that another operation needs": lambda x: (
        normalized(x) * mask(x.shape[1:], HOLE)
    ).mul(-2),
    "cropped after": lambda x: assigned((..., slice(2, 9)), 0.5)(x)[:, 3:20],
    "double": lambda x: assigned((..., slice(2, 9)), 0.1)(x.double()),
    "infinite": lambda x: F.normalize(x, [0.5], [1e-45]) * mask(x.shape[1:], HOLE),
}  # fmt: skip


def outcome(call: Callable[[Any], Any], path: Path, mode: str) -> Any:
    """The tensor, as the core fills it; or what torch says where it is not one for this mode."""
    torch.manual_seed(1)
    try:
        found = call(F.to_tensor(opened(path, mode)))
    except (IndexError, RuntimeError) as error:
        return str(error)
    if isinstance(found, DeferredTensor):
        return fill(BatchDecoder(0, SlabRing(1)), found).result()
    return found


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", [*TORCHS, *RECORDED])
def test_whatever_makes_it_has_torchs_bits(photos: list[Path], name: str, mode: str) -> None:
    call = {**TORCHS, **RECORDED}[name]
    expected = outcome(call, photos[0], mode)
    with switch.deferring():
        found = outcome(call, photos[0], mode)
    if isinstance(expected, str):
        assert found == expected
    else:
        assert_bits(found, expected)


class Divided(torch.utils.data.Dataset[torch.Tensor]):
    """By zeros, of which every other one is negative."""

    def __init__(self, photos: list[Path]) -> None:
        self.photos = photos

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, i: int) -> torch.Tensor:
        return F.to_tensor(opened(self.photos[0]))[:, :9, :9] / (0.0 if i % 2 else -0.0)


def test_zeros_of_two_signs_are_two_numbers(photos: list[Path]) -> None:
    side_by_side(Divided(photos), batch_size=4)


@pytest.mark.parametrize("value", [1e39, 10**400, "x", None, 1 + 2j, torch.ones(4)])
def test_what_torch_refuses_it_refuses_here(photos: list[Path], value: Any) -> None:
    outcomes = []
    for context in (switch.deferring(), None):
        image = None
        with pytest.raises((RuntimeError, TypeError, OverflowError, ValueError)) as caught:
            if context is None:
                image = F.to_tensor(opened(photos[0]))
                image[:, 2:5, 3:5] = value
            else:
                with context:
                    image = F.to_tensor(opened(photos[0]))
                    image[:, 2:5, 3:5] = value
        outcomes.append((type(caught.value), str(caught.value)))
    assert outcomes[0] == outcomes[1]
