"""Crops, flips and v2's resizes of deferred tensors: torch's values, strides and shared memory."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import io, tv_tensors
from torchvision import transforms as v1
from torchvision.transforms import functional as F
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2

import deferred_datasets as shapes
from deferred_datasets import opened
from fastload import FastLoader
from fastload._base.slabs import SlabRing
from fastload._sources.deferred import switch, thread_state, torch_resize
from fastload._sources.deferred.batch import BatchDecoder
from fastload._sources.deferred.completion import fill
from fastload._sources.deferred.image import waiting
from fastload._sources.deferred.lowering import lower
from fastload._sources.deferred.tensor import DeferredBatch, DeferredTensor, DeferredTVImage
from fastload._transforms.in_integers import resizes_in_integers
from sides import side_by_side

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:.*TorchCodec:DeprecationWarning"),
]

Mode = v2.InterpolationMode

IN_INTEGERS = resizes_in_integers("bilinear") and resizes_in_integers("bicubic")
needs_integers = pytest.mark.skipif(
    not IN_INTEGERS, reason="torchvision resizes tensors in floating point here"
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return shapes.write_colour_jpegs(tmp_path_factory.mktemp("photos"))


def made(tensor: DeferredTensor) -> torch.Tensor:
    """What the core fills it with."""
    return fill(BatchDecoder(0, SlabRing(1)), tensor).result()


FINISH = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(shapes.MEAN, shapes.STD)]
CHAINS: dict[str, list[Any]] = {
    "train": [v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), *FINISH],
    "bicubic": [v2.PILToTensor(), v2.RandomResizedCrop(24, interpolation=Mode.BICUBIC),
                v2.RandomVerticalFlip(), *FINISH],
    "eval": [v2.ToImage(), v2.Resize(40), v2.CenterCrop(32), *FINISH, v2.ToPureTensor()],
    "floats": [v2.PILToTensor(), *FINISH, v2.RandomCrop(30), v2.RandomHorizontalFlip()],
    "levels": [v2.ToImage(), v2.Resize((36, 40)), v2.RandomCrop(32)],
    "flipped first": [v2.ToImage(), v2.RandomHorizontalFlip(1.0), v2.Resize((33, 31)),
                      v2.RandomVerticalFlip(1.0), v2.CenterCrop((20, 22)),
                      v2.Resize(17, max_size=60)],
    "jittered": [v2.ToImage(), v2.RandomResizedCrop(32), v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
                 v2.RandomHorizontalFlip(), *FINISH],
    "in some order": [v2.PILToTensor(), v2.RandomAdjustSharpness(1.7), v2.RandomPosterize(3),
                      v2.RandomEqualize(), v2.RandomSolarize(99.5), v2.RandomAutocontrast(),
                      v2.RandomApply([v2.ColorJitter(hue=0.5), v2.CenterCrop(40)]),
                      v2.RandomInvert(),
                      v2.Resize((33, 30)), v2.CenterCrop(28), v2.ColorJitter(contrast=(0.0, 2.0))],
    "blurred": [v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomGrayscale(0.5),
                v2.GaussianBlur((5, 3)), v2.RandomChannelPermutation(), *FINISH],
    "distorted": [v2.ToImage(), v2.RandomPhotometricDistort(p=0.8),
                  v2.RandomZoomOut((123, 0, 255), p=0.8), v2.RandomResizedCrop(32), *FINISH],
    "distorted images": [v2.RandomPhotometricDistort(p=0.8), v2.Resize((33, 30)), v2.ToImage()],
    "mapped": [v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomRotation(20),
               v2.RandomAffine(9, (0.1, 0.2), (0.8, 1.2), 5), v2.RandAugment(), *FINISH],
    "small": [v2.ToImage(), v2.CenterCrop(40), v2.RandomCrop(40, padding=4, fill=9),
              v2.RandomCrop((40, 30)), v2.RandomVerticalFlip(), *FINISH],
    "images": [v2.RandomCrop(52, padding=(1, 2, 3, 9)), v2.RandomVerticalFlip(), v2.Resize(50),
               v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8), v2.CenterCrop((38, 30)),
               v1.Resize((36, 33)), v1.CenterCrop(29), v2.ToImage(), *FINISH],
    "v1": [v1.ToTensor(), v1.RandomCrop(32), v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(),
           v1.Normalize(shapes.MEAN, shapes.STD), v1.RandomErasing(p=1.0)],
    "padded": [v2.ToImage(), v2.RandomCrop(60, padding=4, pad_if_needed=True), v2.Pad(2, fill=7),
               v2.Resize((33, 30)), *FINISH],
    "padded, v1": [v1.ToTensor(), v1.RandomCrop(60, padding=4, pad_if_needed=True), *FINISH[1:]],
}  # fmt: skip


@pytest.mark.parametrize("compose", [v1.Compose, v2.Compose])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_on_tensors_gives_data_loaders_batches(
    photos: list[Path], name: str, compose: type
) -> None:
    chain = compose(CHAINS[name])
    for workers in (0, 1) if name == "v1" else (0,):
        side_by_side(
            shapes.Photos(photos, chain), batch_size=4, shuffle=True, num_workers=workers, epochs=3
        )
    if not IN_INTEGERS:
        return  # nor are v2's chains recorded there
    loader = FastLoader(shapes.Photos(photos, chain), 4)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["images_materialised"] == 0
    assert stats["images_deferred"] == len(photos)
    assert "slower" not in loader.explain()  # nothing was left to Pillow


def _kept(value: Any, kept: list[Any]) -> Any:
    kept.append(value)
    return value


def _zeroed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value[..., 1:3, 2:4] = 0
    return value


STEPS: list[Any] = [
    v2.ToImage(), v2.ToImage(), v2.PILToTensor(), v1.ToTensor(), v2.ToPureTensor(),
    v2.RandomResizedCrop((20, 24), antialias=True),
    v2.RandomResizedCrop(21, ratio=(0.2, 4.0), interpolation=Mode.BICUBIC),
    v2.RandomResizedCrop((1, 7), (0.0001, 0.001)), v2.RandomResizedCrop(9, antialias=False),
    v2.RandomResizedCrop(30, (1.0, 1.0), (1.0, 1.0)),
    v2.RandomHorizontalFlip(), v2.RandomHorizontalFlip(1), v2.RandomVerticalFlip(),
    v2.Resize(40), v2.Resize((30, 30)), v2.Resize(17, max_size=60), v2.Resize((33, 1)),
    v2.Resize(30, Mode.NEAREST), v2.CenterCrop(30), v2.CenterCrop((16, 14)), v2.CenterCrop(70),
    v2.RandomCrop(14), v2.RandomCrop((44, 20), 3, fill=300), v2.RandomCrop(30, (2, 40)),
    v2.RandomCrop((30, 64), 2, True), v2.RandomCrop(20, 4, padding_mode="reflect"),
    v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.ColorJitter(hue=0.5), v2.ColorJitter(2.0, 2.0),
    v2.RandomEqualize(), v2.RandomAdjustSharpness(0.3), v2.RandomSolarize(77), v2.RandAugment(),
    v2.RandomInvert(), v2.TrivialAugmentWide(), v2.AutoAugment(),
    v2.ToDtype(torch.float32, scale=True), v2.ToDtype(torch.float32),
    v2.ToDtype(torch.float16, scale=True), v2.ToDtype(torch.uint8, scale=True),
    v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
    v2.Normalize(shapes.MEAN, shapes.STD), v2.Normalize([0.5], [0.2], inplace=True),
    v1.Normalize(shapes.MEAN, shapes.STD), v2.RandomErasing(0.5),
    v2.RandomGrayscale(0.7), v2.Grayscale(3), v2.GaussianBlur(5), v2.RandomChannelPermutation(),
    v2.RandomPhotometricDistort(), v2.Pad((1, 0, 2, 3), fill=[9, 0.0, 255]),
    v1.RandomHorizontalFlip(), v1.RandomApply([v2.CenterCrop(25), _zeroed], 0.5), _zeroed,
    v2.RandomApply([v2.RandomHorizontalFlip(), v2.Resize(30)]),
    lambda value: value.clone() if isinstance(value, torch.Tensor) else value.copy(),
]  # fmt: skip
USUAL_STEPS = [*CHAINS["train"], *CHAINS["eval"]]


def _outcome(chain: Any, image: Any, seed: int, kept: list[Any]) -> tuple[Any, ...]:
    """What a chain gives, or its error, and what was kept; and the generator's state after it."""
    torch.manual_seed(seed)
    try:
        kept.append(chain(image))
    except (RuntimeError, TypeError, ValueError) as error:
        kept.append(f"{type(error).__name__}: {error}")
    state = torch.get_rng_state().tolist()
    same = [[one is other for other in kept] for one in kept]
    return same, state, *map(_values, kept)


def _values(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, torch.Tensor):
        return "image", value.mode, value.size, value.tobytes()
    kind = tv_tensors.Image if isinstance(value, tv_tensors.Image) else torch.Tensor
    real = torch.Tensor.as_subclass(
        value.materialise() if isinstance(value, DeferredTensor) else value, torch.Tensor
    )
    return kind, real.dtype, real.shape, real.stride(), real.contiguous().numpy().tobytes()


@pytest.mark.filterwarnings("ignore:Anti-alias option is always applied:UserWarning")
def test_random_chains_of_v2_give_what_they_give_on_real_images(photos: list[Path]) -> None:
    chosen = random.Random(3)
    for seed in range(150):
        steps = chosen.choices(STEPS, k=chosen.randint(1, 5))
        steps += chosen.choices(USUAL_STEPS, k=chosen.randint(0, 5))
        if chosen.random() < 0.5:
            steps.insert(0, v2.ToImage())
        elif chosen.random() < 0.5:
            chosen.shuffle(steps)
        watched = chosen.random() < 0.3
        path, mode = chosen.choice(photos), chosen.choice(("RGB", "RGB", "RGB", "L"))
        outcomes = []
        for deferring in (False, True):
            kept: list[Any] = []
            watch = functools.partial(_kept, kept=kept)
            taken = [one for step in steps for one in (step, watch)] if watched else steps
            chain = v2.Compose(taken)
            with switch.deferring() if deferring else contextlib.nullcontext():
                image = opened(path).convert(mode)
                outcomes.append(_outcome(chain, image, seed, kept))
        assert outcomes[0] == outcomes[1], (seed, steps)


CHANGES = [v2.Normalize(shapes.MEAN, shapes.STD, inplace=True)]


def _set(transform: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(transform, name, value)
    return transform


SETTINGS: dict[str, list[Any]] = {
    "negative padding": [v2.RandomCrop(20, padding=-3)],
    "no padding": [v2.RandomCrop(20, padding=(0, 0)), _zeroed],
    "no padding, and of the same size": [v2.CenterCrop(30), v2.RandomCrop(30, (0, 0)), _zeroed],
    "fill changed": [_set(v2.RandomCrop(30, padding=20, fill=3), fill=200)],
    "fill's values changed": [_set(v2.RandomCrop(30, padding=20), _fill={"others": 9})],
    "fill by type": [v2.RandomCrop(60, padding=20, fill={tv_tensors.Image: 3, "others": 4})],
    "as it is": [v2.ToPureTensor(), lambda x: _zeroed(F2.posterize(x, 8))],
    "too thin": [v2.ToPureTensor(), v2.CenterCrop((2, 9)), v2.RandomAdjustSharpness(0.3, p=1.0)],
    "a filter's name": [lambda x: F2.rotate(x, 30, "nearest")],
    "a filter's number": [lambda x: F2.affine(x, 30, [0, 0], 1.0, [0, 0], 2)],
    "a large number": [lambda x: F2.rotate(x, 10**400) if isinstance(x, torch.Tensor) else x],
    "a negative zero": [FINISH[0], lambda x: F.pad(F.pad(x, 1), 1, -0.0)],
}  # fmt: skip


@pytest.mark.parametrize("begin", [[v2.ToImage()], []], ids=["tensor", "image"])
@pytest.mark.parametrize("name", SETTINGS)
def test_unusual_settings_do_what_they_do_to_real_images(
    photos: list[Path], name: str, begin: list[Any]
) -> None:
    outcomes = []
    for deferring in (False, True):
        kept: list[Any] = []
        watch = functools.partial(_kept, kept=kept)
        chain = v2.Compose([one for step in (*begin, *SETTINGS[name]) for one in (step, watch)])
        with switch.deferring() if deferring else contextlib.nullcontext():
            outcomes.append(_outcome(chain, opened(photos[0]), 1, kept))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F2.rotate(x, 33),
        lambda x: F2.adjust_sharpness(x, 0.3),
        lambda x: F2.gaussian_blur(x, 5),
    ],
)
def test_autocast_is_torchs(photos: list[Path], call: Callable[[Any], Any]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        expected = call(F2.to_image(opened(photos[0])))
        with switch.deferring():
            found = call(F2.to_image(opened(photos[0])))
    assert torch.equal(made(found) if isinstance(found, DeferredTensor) else found, expected)


@pytest.fixture
def in_bfloat16() -> Iterator[None]:
    """A program that lets torch multiply in bfloat16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("in_bfloat16")
def test_a_map_is_torchs_at_any_precision_of_its_products(photos: list[Path]) -> None:
    expected = F2.rotate(F2.to_image(opened(photos[0])), 33)
    with switch.deferring():
        found = F2.rotate(F2.to_image(opened(photos[0])), 33)
    assert torch.equal(made(found) if isinstance(found, DeferredTensor) else found, expected)


@pytest.mark.parametrize(
    "before",
    [
        [v2.CenterCrop(20)],
        [v2.CenterCrop(20), v2.ToPureTensor()],
        [v2.CenterCrop(20), v2.RandomHorizontalFlip(0.0)],
        [v2.CenterCrop(20), v2.ToDtype(torch.float32)],
        [v2.RandomHorizontalFlip(1.0), v2.CenterCrop(20)],
    ],
    ids=str,
)
def test_a_chain_that_changes_a_part_in_place_changes_the_whole(
    photos: list[Path], before: list[Any]
) -> None:
    outcomes = []
    for deferring in (False, True):
        kept: list[Any] = []
        first = [v2.ToImage(), FINISH[0], functools.partial(_kept, kept=kept)]
        with switch.deferring() if deferring else contextlib.nullcontext():
            outcomes.append(
                _outcome(v2.Compose(first + before + CHANGES), opened(photos[0]), 1, kept)
            )
    assert outcomes[0] == outcomes[1]


def test_v2_makes_images_on_torchs_default_device(photos: list[Path]) -> None:
    calls = [F.pil_to_tensor, F2.to_image, v2.Compose([v2.ToImage(), v2.CenterCrop(20)])]
    and_back = [
        lambda image: F.gaussian_blur(image, 3),
        lambda image: F2.gaussian_blur(image, 3),
        lambda image: F2.permute_channels(image, [2, 0, 1]),
    ]
    with switch.deferring():
        image = opened(photos[0])
        for call in calls:
            assert type(call(image).as_subclass(torch.Tensor)) is DeferredTensor
        for call in and_back:
            assert waiting(call(image))
        with torch.device("meta"):
            assert [call(image).device.type for call in calls] == ["meta"] * 3
            for call in and_back:
                with pytest.raises(NotImplementedError, match="meta"):
                    call(image)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_torchs_default_dtype_decides_a_gray(photos: list[Path], dtype: torch.dtype) -> None:
    outcomes = []
    with switch.deferring():  # which proves itself in the usual state
        F2.rgb_to_grayscale(F2.to_image(opened(photos[0])), 3)
    for deferring in (False, True):
        torch.set_default_dtype(dtype)
        try:
            with switch.deferring() if deferring else contextlib.nullcontext():
                gray = F2.rgb_to_grayscale(F2.to_image(opened(photos[0])), 3)
        finally:
            torch.set_default_dtype(torch.float32)
        outcomes.append(made(gray) if isinstance(gray, DeferredTensor) else gray)
    assert torch.equal(*outcomes)


@pytest.mark.parametrize("mode", ["pil_to_tensor", "to_image"])
@pytest.mark.parametrize(
    "state",
    [lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.device("meta")],
    ids=["autocast", "device"],
)
def test_what_was_recorded_is_replayed_in_the_state_before(
    photos: list[Path], state: Callable[[], Any], mode: str
) -> None:
    def call() -> Any:  # so small that it is replayed
        return F2.gaussian_blur(getattr(F2, mode)(opened(photos[0]).crop((3, 4, 20, 23))), 5)

    with switch.deferring():
        found = call()
        with state():
            found = found.materialise()
    assert torch.equal(found, call())


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8], ids=str)
def test_an_order_of_channels_is_what_torch_takes_for_one(
    photos: list[Path], dtype: torch.dtype
) -> None:
    outcomes = []
    for deferring in (False, True):
        with switch.deferring() if deferring else contextlib.nullcontext():
            image = F2.to_image(opened(photos[0]))
            try:  # bytes say which channels are left
                ordered = F2.permute_channels(image, torch.tensor([2, 0, 1], dtype=dtype))
                outcomes.append(np.asarray(ordered).tolist())
            except (IndexError, RuntimeError) as error:
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_where_torchs_rounding_decides_a_level_torch_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "gray.png"
    # Half of the mean, 127, and half of each odd level are a whole number.
    Image.new("RGB", (400, 400), (128, 128, 128)).save(path)
    contrast = v2.Compose([v2.ToImage(), v2.ColorJitter(contrast=(0.5, 0.5)), v2.CenterCrop(20)])
    side_by_side(shapes.Photos([path] * 4, contrast), batch_size=2)
    loader = FastLoader(shapes.Photos([path] * 4, contrast), 2)
    for _ in loader:
        pass
    assert loader.stats()["images_deferred"] == 4
    assert "contrasts of large images" in loader.explain()


def test_torchs_rounding_of_an_image_that_repeats_itself_is_torchs(tmp_path: Path) -> None:
    levels = np.full((96, 32 * 4096), 201, np.uint8)  # each sum of 4096 is rounded as the others
    levels[:, :64] = 202
    levels[-1, -1] = 0
    path = tmp_path / "gray.png"
    Image.fromarray(levels.reshape(-1, 4096)).save(path, compress_level=1)
    mean = float(np.mean(levels - (levels > 0)))  # of torch's gray, which is 0.9999 of a level
    off = 20 * 2.0**-24  # torch's mean is further off, by 26 roundings where it has AVX-512
    factor = 1 - 37 / (mean * (1 - off))  # 0 becomes 36 or 37
    made = []
    for deferring in (False, True):
        with switch.deferring() if deferring else contextlib.nullcontext():
            image = F2.to_image(opened(path).convert("RGB"))
            made.append(np.asarray(F2.adjust_contrast(image, factor)))
    assert np.array_equal(*made)


@pytest.mark.parametrize("name", ["item", "in place"])
def test_three_channels_that_are_one_in_memory_are_torchs(photos: list[Path], name: str) -> None:
    def change(gray: torch.Tensor) -> Any:
        if name == "item":
            return gray[1, 2, 3].item(), gray[:, 2:9].clone(), gray.untyped_storage().nbytes()
        gray[:, 2:9] = 0
        return gray

    outcomes = []
    for deferring in (False, True):
        with switch.deferring() if deferring else contextlib.nullcontext():
            gray = F2.rgb_to_grayscale(F2.to_image(opened(photos[0])), 3)
            try:
                outcomes.append(str(change(gray)))
            except RuntimeError as error:  # it would be written to three times
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


class Read(shapes.Photos):
    """Reads with torchvision.io."""

    def __getitem__(self, i: int) -> Any:
        return self.transform(io.decode_image(str(self.paths[i]), io.ImageReadMode.RGB)), i


@needs_integers
def test_a_chain_on_what_torchvision_reads_gives_data_loaders_batches(photos: list[Path]) -> None:
    chain = v2.Compose(
        [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
    )
    side_by_side(Read(photos, chain), batch_size=4, shuffle=True)
    loader = FastLoader(Read(photos, chain), 4)
    for _ in loader:
        pass
    assert loader.stats()["images_materialised"] == 0


CALLS: dict[str, Callable[[Any], Any]] = {
    "crop": lambda x: F2.crop(x, 3, 4, 30, 20),
    "crop of rows": lambda x: F2.crop(x, 3, 0, 30, x.shape[2]),
    "crop of all": lambda x: F2.crop(x, 0, 0, x.shape[1], x.shape[2]),
    "v1": lambda x: F.crop(x, 3, 4, 30, 20),
    "indices": lambda x: x[:, 2:-3, :9],
    "ellipsis": lambda x: x[..., 5:30],
    "centre": lambda x: F2.center_crop(x, [31, 22]),
    "flip": lambda x: F2.horizontal_flip(x),
    "upside down": lambda x: F2.vertical_flip(x.contiguous()),
    "torch.flip": lambda x: torch.flip(x, dims=(1,)).flip([2]),
    "beyond": lambda x: F2.crop(x, -3, -4, 30, 20),
    "pad": lambda x: F2.pad(x, [1, 2, 3, 4], fill=5),
    "pad and flip": lambda x: F2.resize(F.hflip(F.pad(x, [1, 2], 300 - 255)), [20, 21]),
    "pad of a part": lambda x: F2.pad(x[:, 3:20, 4:30], 2)[:, 1:],
    "large centre": lambda x: F2.center_crop(x, [120, 40]).float(),
    "resize": lambda x: F2.resize(x, [20, 33]),
    "brightness": lambda x: F2.adjust_brightness(x, 1.3)[:, :20],
    "contrast": lambda x: F2.adjust_contrast(x.contiguous(), contrast_factor=0.6).flip(-1),
    "saturation": lambda x: F2.resize(F2.adjust_saturation(x[:, 3:20, 4:30], 1.9), [20, 33]),
    "hue": lambda x: F2.adjust_hue(F2.adjust_hue(x, -0.31), 0.07),
    "sharpness": lambda x: F2.adjust_sharpness(F2.pad(x, 2, fill=7), 1.9),
    "posterize": lambda x: F2.posterize(x[:, 3:20, 4:30], 2).float().div(255),
    "solarize": lambda x: F2.solarize(x[:, 3:20, 4:30].contiguous(), 0.75),
    "autocontrast": lambda x: F2.autocontrast(x[:, 3:9, 4:9]),
    "equalize": lambda x: F2.pad(F2.equalize(x), 3, fill=9),
    "invert": lambda x: F2.invert(F2.invert(x).flip(-2)),
    "affine": lambda x: F2.affine(x, 10, [3, -4.5], 1.2, [5, 0], Mode.BILINEAR, 9)[:, 2:30],
    "shear": lambda x: F2.affine(x.contiguous(), 0.0, [0, 0], 1.0, [9.0, 0.0], center=[0, 0]),
    "move": lambda x: F2.affine(x[:, :40, 5:], 0, [0, 7], 1.0, [0, 0], fill=[3, 250, 7][: len(x)]),
    "rotate": lambda x: F2.rotate(F2.rotate(x, 33.3, fill=(8,)), -200.0, Mode.BILINEAR),
    "gray": lambda x: F2.rgb_to_grayscale(x, len(x)),
    "gray, and on": lambda x: F2.rgb_to_grayscale(x[:, 3:20, 4:30], num_output_channels=3).float(),
    "order": lambda x: F2.permute_channels(x, torch.tensor([2, 0, 1][: len(x)]) % len(x)),
    "blur": lambda x: F2.gaussian_blur(x, [5, 3], [0.7, 1.1]),
    "blur of a part": lambda x: F2.gaussian_blur(x.contiguous()[:, 3:40, 4:40], 3),
    "border of a colour": lambda x: F2.pad(x, [1, 0, 2, 3], fill=[1, 2.0, 255][: len(x)])[:, :9],
    "large contrast": lambda x: F2.adjust_contrast(F2.pad(x, [200, 250], fill=99), 0.63),
    "larger": lambda x: F2.resize(x, [99, 120], interpolation=Mode.BICUBIC),
    "one side": lambda x: F2.resize(x, [x.shape[1], 20]),
    "same": lambda x: F2.resize(x, list(x.shape[1:])),
    "contiguous": lambda x: F2.resize(x.contiguous(), [20, 33]),
    "cropped": lambda x: F2.resized_crop(x, 2, 3, 40, 30, [24, 25]),
    "cropped rows": lambda x: F2.resized_crop(x, 2, 0, 40, x.shape[2], [24, 25]),
    "contiguous crop": lambda x: F2.resized_crop(x.contiguous(), 2, 3, 40, 30, [24, 25]),
    "twice": lambda x: F2.resize(F2.center_crop(F2.resize(x, [40, 44]), [30, 30]), [20, 20]),
    "a part of a part": lambda x: x[:, 1:40, 1:40][:, 5:30, 9:20],
    "float": lambda x: F2.center_crop(x, [20, 20]).float() / 255,
    "contiguous part": lambda x: x[:, 3:20, 4:30].contiguous(),
    "clone of a part": lambda x: x[:, 3:20, 4:30].clone(),
    "flip of a part": lambda x: x[:, 3:20, 4:30].flip(-1),
    "normalised": lambda x: F2.normalize(x[:, 3:20, 4:30].float(), [0.5], [0.2]).flip(-2)[:, :9],
    "stack": lambda x: torch.stack([x[:, 3:20, 4:30]] * 2),
    "stack of contiguous": lambda x: torch.stack([x.contiguous()[:, 3:20, 4:30]] * 2),
}


RESIZES = (
    "pad and flip", "resize", "saturation", "larger", "one side", "contiguous", "cropped",
    "cropped rows", "contiguous crop", "twice",
)  # fmt: skip


@pytest.mark.parametrize("mode", ["pil_to_tensor", "to_image"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs_integers if name in RESIZES else ()) for name in CALLS],
)
def test_a_call_is_recorded_and_has_torchs_values_and_strides(
    photos: list[Path], name: str, mode: str
) -> None:
    call, make = CALLS[name], getattr(F2, mode)
    for path in photos[:4]:
        expected = call(make(opened(path)))
        thread_state.materialised()
        with switch.deferring():
            found = call(make(opened(path)))
        assert thread_state.materialised() == []
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert isinstance(found, tv_tensors.Image) == isinstance(expected, tv_tensors.Image)
        if isinstance(found, DeferredTensor):
            assert found.recording is not None
            assert lower([found.recording], found.recording.size)
            assert found.stride() == expected.stride()
            assert found.is_contiguous() == expected.is_contiguous()
        result = made(found)
        assert type(result) is type(expected)
        assert result.stride() == expected.stride()
        assert torch.equal(result, expected)


@pytest.mark.parametrize("name", ["crop", "centre", "indices", "a part of a part"])
def test_a_part_that_is_asked_for_values_is_torchs(photos: list[Path], name: str) -> None:
    expected = CALLS[name](F.pil_to_tensor(opened(photos[0])))
    with switch.deferring():
        found = CALLS[name](F.pil_to_tensor(opened(photos[0])))
    real = found.materialise()
    assert real.stride() == expected.stride()
    assert real.storage_offset() == expected.storage_offset()
    assert torch.equal(real, expected)


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])  # the libraries make what is CMYK
def test_a_copy_of_a_part_has_memory_of_its_own(tmp_path: Path, mode: str) -> None:
    Image.linear_gradient("L").resize((60, 50)).convert(mode).save(tmp_path / "a.jpg")

    def copied() -> torch.Tensor:
        return F.to_tensor(Image.open(tmp_path / "a.jpg"))[:, 3:20, 4:30].clone()

    expected = copied()
    with switch.deferring():
        found = copied()
    assert isinstance(found, DeferredTensor)
    real = found.materialise()
    assert real.stride() == expected.stride()
    assert real.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    assert torch.equal(real, expected)


IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "the whole, recorded": lambda whole, part: whole.mul_(2),
    "the part, recorded": lambda whole, part: part.mul_(2),
    "the whole, its values": lambda whole, part: whole.clamp_(0.2, 0.4),
    "the part, its values": lambda whole, part: part.clamp_(0.2, 0.4),
    "normalised": lambda whole, part: F.normalize(part, [0.5], [0.2], inplace=True),
    "the whole erased": lambda whole, part: F.erase(
        whole, 3, 3, 20, 20, torch.tensor([[[0.5]]]), inplace=True
    ),
    "the part erased": lambda whole, part: F.erase(
        part, 3, 3, 2, 2, torch.tensor([[[0.5]]]), inplace=True
    ),
    "assigned": lambda whole, part: whole.__setitem__((0, 5, 6), 7),
    "assigned to the part": lambda whole, part: part.__setitem__(0, 7),
    "with an operator": lambda whole, part: part.__iadd__(1),
    "another part": lambda whole, part: whole[:, 3:8, 4:9].fill_(3),
    "nothing": lambda whole, part: None,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_part_and_the_whole_share_their_memory(photos: list[Path], name: str) -> None:
    def program() -> list[torch.Tensor]:
        whole = F.to_tensor(opened(photos[0]))
        part = whole[:, 2:20, 3:30]
        inner = part[:, 1:9, 1:9]
        doubled = part * 2
        IN_PLACE[name](whole, part)
        return [whole, part, inner, doubled, part * 3, torch.stack([inner, inner])]

    expected = program()
    with switch.deferring():
        found = program()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(made(one) if type(one) is not torch.Tensor else one, other)


def test_a_second_part_makes_the_whole(photos: list[Path]) -> None:
    with switch.deferring():
        whole = F.to_tensor(opened(photos[0]))
        first = whole[:, :9, :9]
        assert isinstance(first, DeferredTensor)
        assert first.recording is not None
        second = whole[:, 9:18, :9]
        assert type(second) is torch.Tensor
    assert first.recording is None
    assert first.data_ptr() == whole.data_ptr()
    assert second.data_ptr() > first.data_ptr()


class Parts(shapes.Photos):
    """Crops that nothing makes anew."""

    def __getitem__(self, i: int) -> Any:
        return v2.CenterCrop(20)(F.pil_to_tensor(opened(self.paths[i])))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_part_that_is_a_batch_has_its_strides(photos: list[Path], workers: int) -> None:
    side_by_side(Parts(photos), batch_size=None, num_workers=workers)
    side_by_side(Parts(photos), batch_size=3, collate_fn=shapes.as_they_are, num_workers=workers)


def _rows(path: Path) -> list[torch.Tensor]:
    """The same part of a photo, which lies in memory in four ways."""
    image = opened(path)
    closed, wide = image.crop((2, 3, 32, 33)), F.pil_to_tensor(image)
    rows = F.pil_to_tensor(closed)
    parts = [x[:, 3:33, 2:32] for x in (wide, F.pil_to_tensor(image).contiguous())]
    return [rows, rows.contiguous(), *parts]


def test_rows_that_lie_in_several_ways_are_stacked_as_torch_stacks_them(photos: list[Path]) -> None:
    chosen = random.Random(2)
    for _ in range(60):
        ways = [chosen.choice(chosen.sample(range(4), 2)) for _ in range(chosen.randint(2, 9))]
        expected = torch.stack([_rows(photos[0])[way] for way in ways])
        with switch.deferring():
            found = torch.stack([_rows(photos[0])[way] for way in ways])
            assert type(found) is DeferredBatch
            assert found.stride() == expected.stride(), ways
        assert found.materialise().stride() == expected.stride()
        assert torch.equal(found.materialise(), expected)


def test_what_only_torch_computes_stays_torchs(photos: list[Path]) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda x: F2.resize(x, [20, 20], antialias=False),
        lambda x: F2.resize(x, [20, 20], interpolation=Mode.NEAREST),
        lambda x: F2.resize(x.float(), [20, 20]),
        lambda x: F2.resize(x / 255, [20, 20]),
        lambda x: F.resize(x, [20, 20]),
        lambda x: F2.resize(x, [1, 20]),
        lambda x: F2.resize(x[:1], [20, 20]),
        lambda x: F2.pad(x, [0, 0, 0, 0]),
        lambda x: F2.pad(x, [-1, 2, 3, 4]),
        lambda x: F2.pad(x, 3, padding_mode="reflect"),
        lambda x: F2.pad(x, 3, fill=[1, 2, 3]),
        lambda x: F2.pad(x, 3, fill=[1, 2, 3])[[2, 1, 0]],
        lambda x: F.pad(x, 3, padding_mode="edge"),
        lambda x: F2.normalize(F2.pad(x / 255, 3), [0.5], [0.2])[:, 5:],
        lambda x: F2.adjust_brightness(x, 2),
        lambda x: F2.adjust_contrast(F2.resize(x, [300, 300]), 0.4),
        lambda x: F2.adjust_saturation(x / 255, 0.4),
        lambda x: F2.adjust_sharpness(x[:, :2], 0.4),
        lambda x: F2.posterize(x, 8),
        lambda x: F2.rotate(x, 180),
        lambda x: F2.rotate(x, 30, expand=True),
        lambda x: F2.rotate(x, 30, fill=7.5),
        lambda x: F2.affine(x, 10, [3, -4.5], 1.2, [5, 0], Mode.BILINEAR, [0.5, 300, -2]),
        lambda x: F2.solarize(x, 100.0000001),
        lambda x: F2.adjust_hue(F2.erase(x, 1, 2, 3, 4, torch.zeros(1, 1, 1)), 0.3),
        lambda x: F2.adjust_hue(x, 0.3).contiguous()[[2, 1, 0]],
        lambda x: x[:, ::2],
        lambda x: x[:, 3],
        lambda x: x[:, 3:3],
        lambda x: x[np.array([2, 0])],
        lambda x: x[[2, 1, 0], 3:9],
        lambda x: x[x > 100],
        lambda x: x[None, :, 3:9],
        lambda x: x[(x > 9).numpy()],
        lambda x: x.flip(0),
        lambda x: x.flip(-1, -2),
        lambda x: F2.erase(x, 1, 2, 3, 4, torch.zeros(1, 1, 1))[:, :5],
    ]
    for call in calls:
        expected = call(F.pil_to_tensor(opened(photos[0])))
        with switch.deferring():
            found = call(F.pil_to_tensor(opened(photos[0])))
        found = found if type(found) is torch.Tensor else found.materialise()
        assert found.stride() == expected.stride()
        assert torch.equal(found, expected)


def test_a_gray_image_is_torchs(photos: list[Path]) -> None:
    for call in CALLS.values():
        expected = call(F.to_tensor(opened(photos[0]).convert("L")))
        with switch.deferring():
            found = call(F.to_tensor(opened(photos[0]).convert("L")))
        result = found if type(found) is torch.Tensor else found.materialise()
        assert result.stride() == expected.stride()
        assert torch.equal(result, expected)


@needs_integers
def test_a_marked_image_stays_marked(photos: list[Path]) -> None:
    with switch.deferring():
        image = F2.to_image(opened(photos[0]))
        for transform in (v2.Resize(20), v2.RandomCrop(10), v2.RandomHorizontalFlip(1.0)):
            image = transform(image)
            assert isinstance(image, DeferredTVImage)
    assert [name for name, *_ in image.recording.operations][-3:] == [
        "resize_levels", "part", "mirror"
    ]  # fmt: skip


def test_wrong_sizes_are_torchvisions_errors(photos: list[Path]) -> None:
    for size, most in (([20, 20], 30), (20, 10)):
        outcomes = []
        for deferring in (False, True):
            image = switch.deferring() if deferring else None
            with pytest.raises(ValueError) as caught:
                if image is None:
                    F2.resize(F.pil_to_tensor(opened(photos[0])), size, max_size=most)
                else:
                    with image:
                        F2.resize(F.pil_to_tensor(opened(photos[0])), size, max_size=most)
            outcomes.append(str(caught.value))
        assert outcomes[0] == outcomes[1]


def test_how_a_result_lies_is_found_by_looking() -> None:
    for contiguous in (False, True):
        for gaps in (False, True):
            assert torch_resize.contiguous_after(torch.uint8, contiguous, gaps) is not None
    assert torch_resize.filter_of("nearest") is None
    assert torch_resize.filter_of(3) is None
    assert torch_resize.filter_of(["bilinear"]) is None
