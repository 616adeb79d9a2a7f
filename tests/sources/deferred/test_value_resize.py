"""Resizes behind ToTensor: torch's floating-point values, recorded and made by the core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2

import deferred_datasets as shapes
import releases
from deferred_datasets import opened
from fastload import FastLoader, _native
from fastload._base.slabs import SlabRing
from fastload._sources.deferred import batch, switch, thread_state, torch_resize
from fastload._sources.deferred.batch import BatchDecoder
from fastload._sources.deferred.completion import fill
from fastload._sources.deferred.lowering import lower
from fastload._sources.deferred.tensor import DeferredTensor
from sides import side_by_side

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        _native.load() is not None and torch_resize.sums() is None,
        reason="this torch rounds the sums of a resize in a way that the core does not know",
    ),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return shapes.write_colour_jpegs(tmp_path_factory.mktemp("photos"))


NORMALIZE = v1.Normalize(shapes.MEAN, shapes.STD)
FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
CHAINS: dict[str, list[Any]] = {
    "eval": [v1.ToTensor(), v1.Resize(40), v1.CenterCrop(32), NORMALIZE],
    "train": [v1.ToTensor(), v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), NORMALIZE,
              v1.RandomErasing(p=1.0)],
    "v2": [*FLOAT, v2.Resize((24, 33)), v2.RandomCrop(20), v2.RandomHorizontalFlip(),
           v2.Normalize(shapes.MEAN, shapes.STD)],
    "v2, cut first": [*FLOAT, v2.RandomResizedCrop((30, 20)), v2.Normalize([0.5], [0.5])],
    "upside down at times": [v1.ToTensor(), v1.RandomVerticalFlip(), v1.Resize((30, 31))],
    "normalised first": [v1.ToTensor(), NORMALIZE, v1.RandomHorizontalFlip(1.0),
                         v1.Resize((70, 9))],
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_gives_data_loaders_batches(photos: list[Path], name: str) -> None:
    chain = v1.Compose(CHAINS[name])
    for workers in (0, 1) if name == "train" else (0,):
        side_by_side(
            shapes.Photos(photos, chain), batch_size=4, shuffle=True, num_workers=workers, epochs=2
        )
    loader = FastLoader(shapes.Photos(photos, chain), 4)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["images_materialised"] == 0
    assert stats["images_deferred"] == len(photos)
    assert not releases.slower(loader.explain())  # nothing was left to torch


def _in_place(x: Any) -> Any:
    x = F.resize(x, [20, 33])
    x[:, 2:5, 3:9] = 0.25
    return x.mul_(2)


# What the core makes of a tensor x of a photo, float32 (3, h, w).
CALLS: dict[str, Callable[[Any], Any]] = {
    "v1": lambda x: F.resize(x, [20, 33]),
    "v2": lambda x: F2.resize(x, [20, 33]),
    "larger": lambda x: F.resize(x, [99, 120]),
    "much smaller": lambda x: F.resize(x, [2, 3]),
    "one side": lambda x: F.resize(x, [x.shape[1], 20]),
    "same": lambda x: F2.resize(x, list(x.shape[1:])),
    "shorter side": lambda x: F.resize(x, 20, max_size=30),
    "crop": lambda x: F.resized_crop(x, 2, 3, 40, 30, [24, 25]),
    "crop of rows": lambda x: F2.resized_crop(x, 2, 0, 40, x.shape[2], [24, 25]),
    "crop after": lambda x: F.resize(x, [30, 31])[:, 3:20, 4:30],
    "flips": lambda x: F.resize(x.flip(-2).flip(-1), [30, 31]).flip(-1),
    "changed before": lambda x: F.resize((x - 0.5) * 3, [30, 31]),
    "changed after": lambda x: (F.resize(x, [30, 31]) - 0.25) / 0.7 * 3 + 1,
    "normalised": lambda x: F.normalize(F2.resize(x, [30, 31]), shapes.MEAN, shapes.STD).flip(-1),
    "contiguous": lambda x: F2.resize(x, [20, 33]).contiguous(),
    "erased": lambda x: F.normalize(
        F.erase(F.resize(x, [20, 33]), 2, 3, 4, 5, torch.tensor([[[0.5]]])), [0.5], [0.25]
    ),
    "padded": lambda x: torch.nn.functional.pad(F.resize(x, [20, 33]), [1, 2, 3, 4], value=0.5),
    "in place": _in_place,
}

# What is left to torch: it is recorded, or not, but its values are torch's.
OTHERS: dict[str, Callable[[Any], Any]] = {
    "bicubic": lambda x: F.resize(x, [20, 33], interpolation=F.InterpolationMode.BICUBIC),
    "not antialiased": lambda x: F.resize(x, [20, 33], antialias=False),
    "one column": lambda x: F.resize(x, [20, 1]),
    "twice": lambda x: F.resize(F.resize(x, [30, 31]), [20, 21]),
    "upside down after": lambda x: F.resize(x, [30, 31]).flip(-2),
    "half": lambda x: F.resize(x, [30, 31]).half(),
    "double": lambda x: F.resize(x.double(), [30, 31]),
    "multiplied by zero": lambda x: F.resize(x - 0.5, [30, 31]) * 0,
    "padded and cut": lambda x: torch.nn.functional.pad(F.resize(x, [20, 33]), [1, 1])[:, :9],
    "padded, cut and changed": lambda x: (
        torch.nn.functional.pad(F.resize(x, [20, 33]), [1, 1])[:, :9] - 0.5
    ),
    "padded before": lambda x: F.resize(torch.nn.functional.pad(x, [1, 2]), [20, 33]),
    "erased before": lambda x: F.resize(F.erase(x, 2, 3, 4, 5, torch.zeros(1, 1, 1)), [20, 33]),
    "levels": lambda x: F.resize((x * 255).to(torch.uint8), [20, 33]),
}


def _values(image: Image.Image, v: int) -> Any:
    return F.to_tensor(image) if v == 1 else v2.Compose(FLOAT)(image)


def _result(found: Any) -> torch.Tensor:
    if not isinstance(found, DeferredTensor):
        return found
    return fill(BatchDecoder(0, SlabRing(1)), found).result()


@pytest.mark.parametrize("v", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_made_by_the_core_with_torchs_values_and_strides(
    photos: list[Path], name: str, v: int
) -> None:
    call = CALLS[name]
    for path in photos[:4]:
        expected = call(_values(opened(path), v))
        thread_state.materialised()
        with switch.deferring():
            found = call(_values(opened(path), v))
        assert thread_state.materialised() == []
        assert found.recording is not None
        assert lower([found.recording], found.recording.size)
        assert found.stride() == expected.stride()
        decoder = BatchDecoder(0, SlabRing(1))
        result = fill(decoder, found).result()
        assert decoder.counts.replayed == 0
        assert type(result) is type(expected)
        assert result.stride() == expected.stride()
        assert torch.equal(result, expected)
        assert torch.equal(found.materialise(), expected)


@pytest.mark.parametrize("v", [1, 2])
@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_have_torchs_values(photos: list[Path], name: str, v: int) -> None:
    call = OTHERS[name]
    for path in photos[:2]:
        expected = call(_values(opened(path), v))
        with switch.deferring():
            found = call(_values(opened(path), v))
        result = _result(found)
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()


def test_gray_images_are_torchs(photos: list[Path]) -> None:
    expected = F.resize(F.to_tensor(opened(photos[0], "L")), [20, 33])
    with switch.deferring():
        found = F.resize(F.to_tensor(opened(photos[0], "L")), [20, 33])
    assert torch.equal(_result(found), expected)


def test_where_torch_rounds_otherwise_it_resizes(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_resize, "sums", lambda: None)
    batch.kernel_of.cache_clear()
    expected = F.resize(F.to_tensor(opened(photos[0])), [20, 33])
    with switch.deferring():
        found = F.resize(F.to_tensor(opened(photos[0])), [20, 33])
    assert type(found) is torch.Tensor
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("simd")
def test_the_core_has_torchs_values_for_every_size() -> None:
    core, sums = _native.load(), torch_resize.sums()
    assert core is not None
    assert sums is not None
    rng = np.random.default_rng(3)
    for _ in range(60):
        h, w = rng.integers(1, 300, 2).tolist()
        to_h, to_w = rng.integers(2, 120, 2).tolist()
        image = rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
        table = rng.normal(size=(3, 256)).astype(np.float32)
        made = np.empty((3, to_h, to_w), np.float32)
        core.resize_values(image, table, made, sums)
        values = torch.from_numpy(np.stack([table[c][image[..., c]] for c in range(3)]))
        expected = F.resize(values, [to_h, to_w], antialias=True)
        assert torch.equal(torch.from_numpy(made), expected), (h, w, to_h, to_w)


def test_the_core_refuses_what_it_cannot_resize() -> None:
    core = _native.load()
    assert core is not None
    image = np.zeros((4, 5, 3), np.uint8)
    table, out = np.zeros((3, 256), np.float32), np.zeros((3, 2, 2), np.float32)
    for arguments in (
        (image[:, :0], table, out, 0),
        (image, table[:2], out, 0),
        (image, table, out[:2], 0),
        (image, table, out[:, :0], 0),
        (image, table, out, core.value_sums),
        (image, table, out, -1),
    ):
        with pytest.raises(ValueError, match="expected"):
            core.resize_values(*arguments)
