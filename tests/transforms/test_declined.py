"""Chains that recognition declines, with the reason; and recognition has no side effects."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

import releases
from array_datasets import cifar
from fastload import FastLoader
from fastload._transforms.recognise import Unrecognised, recognise

NORMALIZE = v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def reason_of(transform: Any) -> str:
    found = recognise(transform)
    assert isinstance(found, Unrecognised)
    return found.reason


class MyResize(v1.Resize):
    """A transform of unknown effect."""


def altered(transform: Any, /, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(transform, name, value)
    return transform


def hooked() -> Any:
    resize = v1.Resize((8, 8))
    resize.register_forward_hook(lambda module, args, output: output)
    return resize


def patched() -> Any:
    resize = v1.Resize((8, 8))
    resize.forward = lambda image: image
    return resize


def hooked_preset() -> Any:
    preset = ImageClassification(crop_size=8)
    preset.register_forward_pre_hook(lambda module, args: args)
    return preset


def patched_preset() -> Any:
    preset = ImageClassification(crop_size=8)
    preset.forward = lambda image: image
    return preset


DECLINED = {
    "a subclass": ([MyResize(8), v1.ToTensor()], "MyResize is not a transform fastload knows"),
    "a function": ([lambda image: image, v1.ToTensor()], "<lambda> is not a transform"),
    "a hook": ([hooked(), v1.ToTensor()], "this Resize has a hook"),
    "another forward": ([patched(), v1.ToTensor()], "its own forward"),
    "a hook of a preset": ([hooked_preset()], "this ImageClassification has a hook"),
    "another forward of a preset": (
        [patched_preset()],
        "this ImageClassification has its own forward",
    ),
    "another get_params": (
        [altered(v1.RandomRotation(9), get_params=lambda degrees: 9.0), v1.ToTensor()],
        "this RandomRotation has its own get_params",
    ),
    "another make_params": (
        [
            altered(v2.RandomRotation(9), **{releases.MAKE_PARAMS: lambda inputs: {"angle": 9.0}}),
            v1.ToTensor(),
        ],
        f"this RandomRotation has its own {releases.MAKE_PARAMS}",
    ),
    "another transform": (
        [altered(v2.AugMix(), **{releases.TRANSFORM: lambda image, params: image}), v1.ToTensor()],
        f"this AugMix has its own {releases.TRANSFORM}",
    ),
    "a severity set later": (
        [altered(v1.AugMix(), severity=11), v1.ToTensor()],
        "AugMix with severity=11; torchvision takes 1 to 10",
    ),
    "AugMix, bicubic": (
        [v1.AugMix(interpolation=Mode.BICUBIC), v1.ToTensor()],
        "'bicubic', which torchvision refuses on tensors",
    ),
    "AugMix, another nearest": (
        [v2.AugMix(interpolation=Mode.NEAREST_EXACT), v1.ToTensor()],
        "'nearest-exact', which torchvision refuses on tensors",
    ),
    "a size set later, of the shorter side": (
        [altered(v1.RandomResizedCrop(8), size=[16]), v1.ToTensor()],
        "RandomResizedCrop with size=[16]; a pair is recognised",
    ),
    "a size set later, for which torchvision fails": (
        [altered(v2.RandomCrop(8), size=16), v2.ToImage()],
        "RandomCrop with size=16; a pair is recognised",
    ),
    "a ratio set later": (
        [altered(v2.RandomResizedCrop(8), ratio=(2.0, 3.0)), v2.ToImage()],
        "the ratio of this RandomResizedCrop was changed after construction",
    ),
    "a ratio of what is erased set later": (
        [v1.ToTensor(), altered(v2.RandomErasing(), ratio=(2.0, 3.0))],
        "the ratio of this RandomErasing was changed after construction",
    ),
    **{
        f"a fill of {transform} set later": (
            [altered(transform, fill=9), v2.ToImage()],
            f"the fill of this {type(transform).__name__} was changed after construction",
        )
        for transform in (
            v2.Pad(2, fill=3),
            v2.RandomCrop(8, fill=(1, 2, 3)),
            v2.RandomRotation(9),
            v2.RandomAffine(9),
            v2.RandAugment(),
            v2.AutoAugment(),
        )
    },
    "types that it works on set later": (
        [altered(v2.RandomInvert(), _transformed_types=()), v2.ToImage()],
        "this RandomInvert has its own _transformed_types",
    ),
    "a number where a pair is expected": (
        [altered(v1.ColorJitter(0.5), brightness=0.5), v1.ToTensor()],
        "ColorJitter: a setting cannot be read ('float' object is not iterable)",
    ),
    "three where a pair is expected": (
        [altered(v1.RandomRotation(9), degrees=(1, 2, 3)), v1.ToTensor()],
        "RandomRotation: a setting cannot be read (too many values",
    ),
    "a filter's name, which v1 does not know": (
        [altered(v1.Resize(8), interpolation="bicubic"), v1.ToTensor()],
        "Resize: a setting cannot be read",
    ),
    "no transforms": ([altered(v1.Compose([]), transforms=None)], "Compose: a setting cannot be"),
    "half a pixel": ([v1.Resize(8, max_size=9.5), v1.ToTensor()], "max_size=9.5; an integer"),
    "a p above one": (
        [altered(v1.RandomHorizontalFlip(), p=2), v1.ToTensor()],
        "RandomHorizontalFlip with p=2, which is not a probability",
    ),
    "half an operation": ([v1.RandAugment(1.5), v1.ToTensor()], "RandAugment with num_ops=1.5"),
    "half a bin": ([v1.RandAugment(2, 5.5), v1.ToTensor()], "RandAugment with magnitude=5.5"),
    "half a chain": (
        [v1.AugMix(mixture_width=1.5), v1.ToTensor()],
        "AugMix with mixture_width=1.5, chain_depth=-1",
    ),
    "ten crops": ([v1.TenCrop(8), v1.ToTensor()], "TenCrop is not a transform"),
    "boxes clamped by themselves": (
        [v2.ClampBoundingBoxes(), v2.ToImage()],
        "ClampBoundingBoxes is not a transform fastload knows",
    ),
    "boxes of another format": (
        [v2.ConvertBoundingBoxFormat("CXCYWH"), v2.ToImage()],
        "ConvertBoundingBoxFormat is not a transform fastload knows",
    ),
    "not yet known": ([v1.FiveCrop(8), v1.ToTensor()], "FiveCrop is not a transform"),
    "a colour after the tensor": (
        [v1.ToTensor(), v1.ColorJitter(0.1)],
        "ColorJitter comes after the image is a tensor",
    ),
    "one channel": ([v1.Grayscale(), v1.ToTensor()], "Grayscale gives one channel"),
    "mixtures": ([v1.AugMix(interpolation=3), v1.ToTensor()], "bicubic"),
    "fractions of a level": ([v1.AugMix(fill=0.5), v1.ToTensor()], "whole levels are recognised"),
    "growing beside others": (
        [v1.RandomChoice([v1.RandomRotation(9, expand=True), v1.RandomInvert()]), v1.ToTensor()],
        "expand=True together with others in RandomChoice",
    ),
    "rotating by lanczos": (
        [v2.RandomRotation(9, interpolation=1), v2.ToImage()],
        "RandomRotation with interpolation 'lanczos'",
    ),
    "a crop by chance": (
        [v1.RandomApply([v1.RandomCrop(8)]), v1.ToTensor()],
        "RandomCrop inside RandomApply",
    ),
    "a function by chance": ([v1.RandomApply([abs]), v1.ToTensor()], "abs is not a transform"),
    "too few bits": ([v1.RandomPosterize(0), v1.ToTensor()], "RandomPosterize with bits=0"),
    "erasing early": ([v2.RandomErasing(), v2.ToImage()], "RandomErasing comes before"),
    "noise on integers": (
        [v2.ToImage(), v2.RandomErasing(value="random")],
        "value='random' on integers",
    ),
    "cropping what was erased": (
        [v1.ToTensor(), v1.RandomErasing(), v1.CenterCrop(8)],
        "CenterCrop comes after RandomErasing",
    ),
    "a layer": ([torch.nn.ReLU(), v1.ToTensor()], "ReLU is not a transform"),
    "a PIL image": ([v1.Resize(8)], "the samples are PIL images; end the transforms with ToTensor"),
    "nothing but identity": ([torch.nn.Identity()], "the samples are PIL images"),
    "resizing a tensor": ([v1.ToTensor(), v1.Resize(8)], "put it before ToTensor, or use v2"),
    "cropping and resizing a tensor": (
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.RandomResizedCrop(8)],
        "RandomResizedCrop comes after the image is a tensor",
    ),
    "reflection": (
        [v1.RandomCrop(32, 4, padding_mode="reflect"), v1.ToTensor()],
        "padding_mode='reflect'; constant is recognised",
    ),
    "cropping by a negative padding": ([v1.RandomCrop(8, -4), v1.ToTensor()], "padding=-4"),
    "casting too early": (
        [v2.ToDtype(torch.float32), v2.ToImage()],
        "ToDtype comes before the image is a tensor",
    ),
    "torchvision fails": ([v1.PILToTensor(), NORMALIZE], "Normalize itself fails"),
    "torchvision fails twice": ([v1.ToTensor(), v1.ToTensor()], "ToTensor itself fails"),
    "too many channels": (
        [v1.ToTensor(), v1.Normalize([0.5] * 4, [0.5] * 4)],
        "Normalize itself fails",
    ),
    "float64": ([v1.PILToTensor(), v1.ConvertImageDtype(torch.float64)], "torch.float64, which"),
    "int64": ([v2.ToImage(), v2.ToDtype(torch.int64)], "torch.int64, which no engine writes"),
    "any function": ([v1.ToTensor(), NORMALIZE, v1.Lambda(abs)], "Lambda is not a transform"),
    "below zero as uint8": (
        [v1.ToTensor(), NORMALIZE, v1.ConvertImageDtype(torch.uint8)],
        "ConvertImageDtype casts values outside 0 to 1 to torch.uint8",
    ),
    "above 255 as uint8": (
        [
            v2.ToImage(),
            v2.ToDtype(torch.float32),
            v2.Normalize([0.0], [0.5]),
            v2.ToDtype(torch.uint8),
        ],
        "ToDtype casts values outside 0 to 255 to torch.uint8",
    ),
    "max_size below size": ([v1.Resize(9, max_size=9), v1.ToTensor()], "max_size=9 not above"),
    "max_size of a pair": ([v1.Resize((9, 9), max_size=10), v1.ToTensor()], "two sizes"),
    "crop larger than the resize": (
        [v1.Resize((8, 8)), v1.RandomCrop(9), v1.ToTensor()],
        "larger than this image of 8x8",
    ),
}
if hasattr(v2, "ClampKeyPoints"):  # since torchvision 0.23
    DECLINED["points clamped by themselves"] = (
        [v2.ClampKeyPoints(), v2.ToImage()],
        "ClampKeyPoints is not a transform fastload knows",
    )


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_not_known_to_be_exact_is_declined_with_a_reason(name: str) -> None:
    chain, reason = DECLINED[name]
    assert reason in reason_of(v1.Compose(chain))


@pytest.mark.parametrize("method", ["get_params", "forward"])
def test_a_method_of_the_class_that_was_replaced_is_seen(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(v1.RandomRotation, method, staticmethod(lambda *given: 9.0))
    reason = reason_of(v1.Compose([v1.RandomRotation(9), v1.ToTensor()]))
    assert f"the {method} of RandomRotation was replaced by one from {__name__}" in reason


def test_what_cannot_even_print_itself_is_explained(photos: Path) -> None:
    from torchvision.datasets import ImageFolder

    from fastload import FastLoader

    odd = altered(v1.RandomResizedCrop(8), interpolation="bicubic")
    with pytest.raises(AttributeError):
        str(odd)
    chain = v1.Compose([v1.Resize(9), odd, v1.ToTensor()])
    words = FastLoader(ImageFolder(photos, chain)).explain()
    assert "RandomResizedCrop: a setting cannot be read" in words


def test_reversed_ranges_are_declined() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        crop = v1.RandomResizedCrop(8, scale=(1.0, 0.5))
    assert "scale=(1.0, 0.5)" in reason_of(v1.Compose([crop, v1.ToTensor()]))


@pytest.mark.parametrize("thing", [42, "ToTensor", len, object()])
def test_anything_at_all_can_be_asked_about(thing: Any) -> None:
    assert "not a" in reason_of(thing)


# Recognition has no side effects.


def test_recognising_draws_no_random_number() -> None:
    before = torch.get_rng_state()
    recognise(v1.Compose([v1.RandomCrop(8, 4, fill=3), v1.RandomHorizontalFlip(), v1.ToTensor()]))
    assert torch.equal(torch.get_rng_state(), before)


def test_recognising_never_imports_torchvision() -> None:
    code = (
        "import sys, torch; from fastload._transforms.recognise import recognise, Unrecognised; "
        "recognise(None); assert isinstance(recognise(torch.nn.Identity()), Unrecognised); "
        "assert isinstance(recognise(print), Unrecognised); "
        "assert 'torchvision' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def compiled() -> Any:
    chain = torch.nn.Sequential(v1.CenterCrop(8), v2.ToImage(), v2.ToDtype(torch.float32, True))
    chain.compile(backend="eager")
    return chain


def on_meta(make: Any) -> Any:
    with torch.device("meta"):
        return make()


NO_VALUES = {
    "compiled": (compiled, "this Sequential was compiled"),
    "crop": (
        lambda: v2.Compose([v2.RandomResizedCrop(8), v2.ToImage()]),
        "this RandomResizedCrop was made on the meta device",
    ),
    "erasing": (
        lambda: v2.Compose([v2.CenterCrop(8), v2.ToImage(), v2.RandomErasing(0.0)]),
        "this RandomErasing was made on the meta device",
    ),
    "mean": (
        lambda: v1.Compose([v1.ToTensor(), v1.Normalize(torch.zeros(3), torch.ones(3))]),
        "Normalize itself fails: ",
    ),
}


@pytest.mark.parametrize("name", NO_VALUES)
def test_what_was_compiled_or_has_no_values_is_left_to_torch(name: str) -> None:
    make, reason = NO_VALUES[name]
    transform = make() if name == "compiled" else on_meta(make)
    assert reason_of(transform).startswith(reason)


def test_a_loader_runs_what_was_made_on_the_meta_device_as_torch_does() -> None:
    chain = on_meta(lambda: [v2.CenterCrop(8), v2.ToImage(), v2.RandomErasing(0.0)])
    dataset = cifar(v2.Compose(chain))
    mine, reference = FastLoader(dataset, batch_size=4), DataLoader(dataset, batch_size=4)
    for (images, _), (expected, _) in zip(mine, reference, strict=True):
        assert torch.equal(images, expected)
    assert "was made on the meta device" in mine.explain()
    dataset = cifar(on_meta(lambda: v2.Compose([v2.RandomResizedCrop(8), v2.ToImage()])))
    for loader in (FastLoader(dataset, batch_size=4), DataLoader(dataset, batch_size=4)):
        with pytest.raises(RuntimeError, match="meta"):
            next(iter(loader))
