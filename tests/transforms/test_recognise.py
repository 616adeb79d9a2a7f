"""Recognition: results equal torchvision's on PIL images, bit for bit; others are declined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import models
from torchvision import transforms as v1
from torchvision.transforms import functional as F1
from torchvision.transforms import v2

import torchvision_oracle
from fastload._engine import pillow
from fastload._transforms.recognise import Plan, Unrecognised, recognise
from in_core import made

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZE = v1.Normalize(MEAN, STD)


PICTURES = [torchvision_oracle.picture(*size) for size in [(60, 45), (45, 61), (97, 33), (40, 40)]]


def plan_of(transform: Any) -> Plan:
    plan = recognise(transform)
    assert isinstance(plan, Plan), plan
    return plan


def reason_of(transform: Any) -> str:
    found = recognise(transform)
    assert isinstance(found, Unrecognised)
    return found.reason


def check_equal(transform: Any, images: list[Image.Image] = PICTURES, samples: int = 4) -> None:
    plan = plan_of(transform)
    for number, image in enumerate(images):
        for index in range(100 * number, 100 * number + samples):
            theirs = torchvision_oracle.sample(transform, image, index)
            assert type(theirs) in (torch.Tensor, v2.functional.to_image(image).__class__)
            ours = made(plan, image, index)
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            assert torch.equal(ours, theirs.as_subclass(torch.Tensor))
            assert plan.size in (None, tuple(ours.shape[1:]))


def to_float(version: Any) -> list[Any]:
    if version is v1:
        return [v1.ToTensor()]
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


GEOMETRY = {
    "nothing": lambda v: [],
    "random resized crop": lambda v: [v.RandomResizedCrop(24), v.RandomHorizontalFlip()],
    "random resized crop of a pair": lambda v: [v.RandomResizedCrop((20, 31), (0.5, 0.9), (1, 2))],
    "small boxes, enlarged": lambda v: [v.RandomResizedCrop(64, scale=(0.001, 0.05))],
    "resize and center crop": lambda v: [v.Resize(32), v.CenterCrop(28)],
    "resize and larger center crop": lambda v: [v.Resize(20), v.CenterCrop((30, 19))],
    "resize and random crop": lambda v: [v.Resize(40), v.RandomCrop(32), v.RandomHorizontalFlip()],
    "resize and padded random crop": lambda v: [v.Resize((32, 32)), v.RandomCrop(32, padding=4)],
    "resize to a pair": lambda v: [v.Resize((21, 34))],
    "resize of one in a list": lambda v: [v.Resize([33]), v.CenterCrop([31])],
    "resize with max_size": lambda v: [v.Resize(30, max_size=40), v.CenterCrop(36)],
    "resize enlarging": lambda v: [v.Resize(120), v.CenterCrop(100)],
    "resize to the same": lambda v: [v.Resize((45, 60)), v.CenterCrop(40)],
    "center crop and resize": lambda v: [v.RandomCrop(33), v.Resize(20)],
    "center crop of anything": lambda v: [v.CenterCrop((50, 41)), v.RandomHorizontalFlip(1.0)],
    "random crop with padding": lambda v: [v.RandomCrop(32, padding=4), v.RandomHorizontalFlip()],
    "random crop with two paddings": lambda v: [v.RandomCrop((30, 33), padding=(3, 9))],
    "random crop with four paddings": lambda v: [v.RandomCrop(33, padding=(1, 2, 3, 14))],
    "random crop with a colour": lambda v: [v.RandomCrop(33, padding=8, fill=(255, 7, 0))],
    "random crop with a gray": lambda v: [v.RandomCrop(33, padding=8, fill=77)],
    "random crop padding if needed": lambda v: [v.RandomCrop(50, pad_if_needed=True, fill=5)],
    "random crop padding both ways": lambda v: [
        v.RandomCrop((70, 40), padding=(2, 1), pad_if_needed=True)
    ],
    "several crops": lambda v: [v.RandomCrop(33), v.CenterCrop(30), v.RandomCrop((20, 22))],
    "crop, then pad": lambda v: [v.RandomCrop(32), v.RandomCrop(32, padding=4, fill=9)],
    "flip before a crop": lambda v: [v.RandomHorizontalFlip(), v.RandomCrop((22, 30))],
    "flip between crops": lambda v: [
        v.RandomCrop(33),
        v.RandomHorizontalFlip(),
        v.RandomCrop(33, padding=(5, 0, 1, 2)),
        v.RandomHorizontalFlip(),
        v.RandomCrop(17),
    ],
    "flip after a resize": lambda v: [v.Resize(33), v.RandomHorizontalFlip(), v.CenterCrop(30)],
    "flip before padding": lambda v: [v.RandomHorizontalFlip(), v.CenterCrop((70, 50))],
    "certain flip": lambda v: [v.RandomHorizontalFlip(1.0)],
}


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_is_torchvisions_bit_for_bit(name: str, version: Any) -> None:
    ops = GEOMETRY[name](version)
    check_equal(version.Compose([*ops, version.PILToTensor()]))
    check_equal(version.Compose([*ops, *to_float(version), version.Normalize(MEAN, STD)]))


VALUES = {
    "levels": [v1.PILToTensor()],
    "levels as an image": [v2.ToImage()],
    "levels as a pure tensor": [v2.ToImage(), v2.ToPureTensor()],
    "ToTensor": [v1.ToTensor()],
    "ConvertImageDtype": [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)],
    "ConvertImageDtype of v2": [v2.PILToTensor(), v2.ConvertImageDtype(torch.float32)],
    "ToDtype": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "ToDtype without scale": [v2.ToImage(), v2.ToDtype(torch.float32)],
    "ToDtype by type": [v2.ToImage(), v2.ToDtype({"others": torch.float32}, scale=True)],
    "ToDtype float16": [v2.ToImage(), v2.ToDtype(torch.float16, scale=True)],
    "ToDtype bfloat16": [v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True)],
    "ToDtype uint8": [v2.ToImage(), v2.ToDtype(torch.uint8, scale=True)],
    "there and back": [v1.ToTensor(), v2.ToDtype(torch.uint8, scale=True)],
    "through sixteen bits": [
        v2.ToImage(),
        v2.ToDtype(torch.int16, scale=True),
        v2.ToDtype(torch.uint8, scale=True),
    ],
    "inverted": [
        v1.ToTensor(),
        v1.Normalize([1.0] * 3, [-1.0] * 3),
        v2.ToDtype(torch.uint8, scale=True),
    ],
    "darkened": [
        v1.ToTensor(),
        v1.Normalize([0.0] * 3, [2.0, 3.0, 4.0]),
        v1.ConvertImageDtype(torch.uint8),
    ],
    "levels as floats and back": [v2.ToImage(), v2.ToDtype(torch.float32), v2.ToDtype(torch.uint8)],
    "Normalize": [v1.ToTensor(), NORMALIZE],
    "Normalize in place": [v1.ToTensor(), v1.Normalize(MEAN, STD, inplace=True)],
    "Normalize of v2": [*to_float(v2), v2.Normalize(MEAN, STD)],
    "Normalize levels": [
        v2.ToImage(),
        v2.ToDtype(torch.float32),
        v2.Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4]),
    ],
    "Normalize with one mean": [v1.ToTensor(), v1.Normalize([0.5], [0.5])],
    "Normalize twice": [v1.ToTensor(), NORMALIZE, v1.Normalize([0.1] * 3, [3.0] * 3)],
    "Normalize in float16": [
        v2.ToImage(),
        v2.ToDtype(torch.float16, scale=True),
        v2.Normalize(MEAN, STD),
    ],
    "Normalize, then cast": [v1.ToTensor(), NORMALIZE, v2.ToDtype(torch.bfloat16)],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_are_torchs_bit_for_bit(name: str) -> None:
    check_equal(v1.Compose(VALUES[name]), PICTURES[:2], samples=1)
    check_equal(v1.Compose([v1.RandomCrop(40, padding=3), *VALUES[name]]), PICTURES[:2], samples=2)


@pytest.mark.parametrize("name", ["box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_each_filter_is_pillows(name: str) -> None:
    mode = v1.InterpolationMode(name)
    check_equal(v1.Compose([v1.RandomResizedCrop(24, interpolation=mode), v1.PILToTensor()]))
    check_equal(v1.Compose([v1.Resize(50, mode), v1.CenterCrop(40), v1.ToTensor()]))
    check_equal(v2.Compose([v2.Resize(20, interpolation=mode), v2.CenterCrop(20), v2.ToImage()]))
    number = {"lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}[name]
    assert plan_of(v2.Compose([v2.Resize((8, 8), number), v2.ToImage()])).filter == (
        plan_of(v2.Compose([v2.Resize((8, 8), mode), v2.ToImage()])).filter
    )


AFTER_TENSOR = {
    "flip": [v1.ToTensor(), v1.RandomHorizontalFlip()],
    "flip between": [v1.ToTensor(), v1.RandomHorizontalFlip(), NORMALIZE],
    "crop after Normalize": [v1.ToTensor(), NORMALIZE, v1.RandomCrop(30)],
    "center crop, padding black": [v1.ToTensor(), v1.CenterCrop(50), NORMALIZE],
    "padded crop": [v1.ToTensor(), v1.RandomCrop(32, padding=4), NORMALIZE],
    "padded crop of v2": [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.RandomCrop(32, padding=4, fill=1.0),
        v2.Normalize(MEAN, STD),
    ],
    "padded crop of levels": [v2.ToImage(), v2.RandomCrop(32, padding=(4, 5), fill=[3, 4, 5])],
    "padding with a value some level has": [
        v1.ToTensor(),
        v1.Normalize([0.0] * 3, [0.5] * 3),
        v1.RandomCrop(32, padding=4),
    ],
    "resized before": [v1.Resize(33), v1.ToTensor(), v1.RandomCrop(32, padding=2)],
}


@pytest.mark.parametrize("name", AFTER_TENSOR)
def test_crops_and_flips_of_a_tensor_are_fused_where_exact(name: str) -> None:
    check_equal(v1.Compose(AFTER_TENSOR[name]))


@pytest.mark.parametrize(
    "crop",
    [
        v1.RandomCrop(32, padding=4),
        v2.RandomCrop(32, padding=4),
        v1.CenterCrop(50),
        v1.RandomCrop(70, pad_if_needed=True),
        v1.RandomCrop(32, padding=4, fill=0.3),
    ],
)
def test_padding_a_normalised_tensor_with_what_is_no_level_is_declined(crop: Any) -> None:
    reason = reason_of(v1.Compose([v1.ToTensor(), NORMALIZE, crop]))
    assert "pads with a value that no pixel can have" in reason
    assert "before ToTensor and Normalize" in reason


def test_a_crop_that_cannot_reach_outside_needs_no_fill() -> None:
    check_equal(v1.Compose([v1.Resize(33), v1.ToTensor(), NORMALIZE, v1.CenterCrop(33)]))


def test_nests_presets_and_identities_are_seen_through() -> None:
    nest = v1.Compose(
        [
            torch.nn.Sequential(v1.Resize(36), torch.nn.Identity(), v1.CenterCrop(32)),
            v2.Compose([v2.RandomHorizontalFlip(), v2.Identity()]),
            v1.Compose([v1.ToTensor(), torch.nn.Sequential(NORMALIZE)]),
        ]
    )
    check_equal(nest)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0", "vit_b_16", "swin_t"])
def test_presets_of_weights_are_fused(name: str) -> None:
    preset = models.get_model_weights(name).DEFAULT.transforms()
    plan = plan_of(preset)
    for size in ((300, 260), (120, 400)):
        image = torchvision_oracle.picture(*size)
        assert torch.equal(made(plan, image, 0), preset(image))


def test_no_transform_gives_the_levels() -> None:
    plan = plan_of(None)
    assert (plan.dtype, plan.lut, plan.ops, plan.fixed_size) == (torch.uint8, None, (), False)
    assert torch.equal(made(plan, PICTURES[0], 0), F1.pil_to_tensor(PICTURES[0]))


def check_photos(paths: list[Path]) -> None:
    images = [pillow.decode(path.read_bytes(), path=str(path)) for path in paths]
    train = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor(), NORMALIZE]
    check_equal(v1.Compose(train), images, 2)
    check_equal(v1.Compose([v1.Resize(256), v1.CenterCrop(224), v1.PILToTensor()]), images, 1)


def test_generated_photos_come_out_as_torchvision_makes_them(photos: Path) -> None:
    check_photos(sorted(photos.rglob("*.jpg"))[:4])


def test_real_photos_come_out_as_torchvision_makes_them(
    test_data: Path, count: Callable[[int, int], int]
) -> None:
    paths = sorted(
        path for path in test_data.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")
    )
    check_photos(paths[:: max(1, len(paths) // count(12, len(paths)))])


# Any chain: recognised and equal, or declined with a reason.

sizes = st.integers(8, 50)
pads = st.none() | st.integers(0, 6) | st.tuples(*[st.integers(0, 6)] * 4)
some_op = st.one_of(
    st.builds(lambda v, s: v.Resize(s), st.sampled_from([v1, v2]), sizes),
    st.builds(lambda v, h, w: v.Resize((h, w)), st.sampled_from([v1, v2]), sizes, sizes),
    st.builds(lambda v, s: v.CenterCrop(s), st.sampled_from([v1, v2]), sizes),
    st.builds(lambda v, s: v.RandomResizedCrop(s), st.sampled_from([v1, v2]), sizes),
    st.builds(lambda v, p: v.RandomHorizontalFlip(p), st.sampled_from([v1, v2]), st.floats(0, 1)),
    st.builds(
        lambda v, h, w, padding, fill: v.RandomCrop((h, w), padding, True, fill),
        st.sampled_from([v1, v2]), sizes, sizes, pads, st.integers(0, 255),
    ),
)  # fmt: skip


@settings(max_examples=max(150, settings.default.max_examples))
@given(
    before=st.lists(some_op, max_size=4),
    after=st.lists(some_op, max_size=2),
    normalise=st.booleans(),
    image=st.sampled_from(PICTURES),
    seed=st.integers(0, 2**32),
)
def test_any_chain_is_equal_or_declined(
    before: list[Any], after: list[Any], normalise: bool, image: Image.Image, seed: int
) -> None:
    chain = v1.Compose([*before, v1.ToTensor(), *([NORMALIZE] if normalise else []), *after])
    found = recognise(chain)
    if isinstance(found, Unrecognised):
        assert len(found.reason) > 20
        return
    for index in range(3):
        theirs = torchvision_oracle.sample(chain, image, index, seed)
        assert torch.equal(made(found, image, index, seed), theirs)


def test_a_padding_mode_without_padding_does_not_matter() -> None:
    check_equal(v1.Compose([v1.RandomCrop(30, padding_mode="reflect"), v1.ToTensor()]))


def test_another_default_device_changes_no_plan() -> None:
    chain = v1.Compose([v1.Pad(2, 7), v1.ToTensor(), NORMALIZE, v1.RandomErasing(value=0.5)])
    plan = plan_of(chain)
    with torch.device("meta"):
        assert plan_of(chain).same_as(plan)
        assert (
            plan_of(None)
            .with_output(torch.float32)
            .same_as(plan_of(None).with_output(torch.float32))
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("read_in", [torch.float32, torch.float64])
def test_a_ratio_is_what_it_was_made_of_whatever_the_default_dtype(
    dtype: torch.dtype, read_in: torch.dtype
) -> None:
    usual = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        crop = v2.RandomResizedCrop(8, ratio=(0.7, 1.9))
        torch.set_default_dtype(read_in)
        assert isinstance(recognise(v1.Compose([crop, v1.PILToTensor()])), Plan)
    finally:
        torch.set_default_dtype(usual)
