"""What is recorded, what comes of it, and what a deferred object passes for."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import functional as F
from torchvision.transforms import v2

import releases
from fastload._sources.deferred import guarded, switch, tensor, thread_state
from fastload._sources.deferred.image import DeferredImage
from fastload._sources.deferred.replay import replay
from fastload._sources.deferred.tensor import DeferredBatch, DeferredTensor, DeferredTVImage
from fastload._sources.deferred.thread_state import BatchContext

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    rng = np.random.default_rng(3)
    small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8))
    small.resize((80, 60), Image.Resampling.BICUBIC).save(path)
    return path


@pytest.fixture(scope="module", autouse=True)
def proven() -> None:
    """What is exchanged proves itself only on a thread that defers, and here none does."""
    switch.install()
    guarded.left_out()


def opened(path: Path) -> DeferredImage:
    with switch.deferring():
        image = Image.open(path)
    assert isinstance(image, DeferredImage)
    return image


V1 = v1.Compose(
    [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
)
V2 = v2.Compose(
    [
        v2.RandomResizedCrop(24),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
)


@pytest.mark.parametrize("transform", [V1, V2])
def test_training_transforms_stay_recorded_and_draw_the_same_numbers(
    photo: Path, transform: Callable[[Any], torch.Tensor]
) -> None:
    thread_state.materialised()
    for seed in range(20):
        torch.manual_seed(seed)
        expected = transform(Image.open(photo).convert("RGB"))
        after = torch.rand(3)
        torch.manual_seed(seed)
        with switch.deferring():
            found = transform(Image.open(photo).convert("RGB"))
        assert torch.equal(torch.rand(3), after)
        assert isinstance(found, DeferredTensor)
        assert isinstance(found, tv_tensors.Image) == isinstance(expected, tv_tensors.Image)
        assert (found.shape, found.dtype, found.stride()) == (
            expected.shape, expected.dtype, expected.stride()
        )  # fmt: skip
        assert found.recording is not None
        assert thread_state.materialised() == []
        assert torch.equal(found.materialise(), expected)
        assert found.recording is None


def test_the_operations_of_a_training_transform_are_those_of_the_contract(photo: Path) -> None:
    image = opened(photo).convert("RGB")
    cropped = F.hflip(F.resized_crop(image, 3, 4, 30, 40, [24, 20]))
    found = F.normalize(F.to_tensor(cropped), MEAN, STD)
    assert found.recording.operations == (
        ("convert", "RGB"),
        ("crop", 4, 3, 40, 30),
        ("resize", 20, 24, 2),
        ("flip", False),
        ("to_tensor",),
        ("normalize", MEAN, STD),
    )
    assert (found.recording.size, found.recording.mode) == ((20, 24), "RGB")
    again = DeferredTensor(found.recording)
    assert (again.shape, again.dtype, again.stride()) == (found.shape, found.dtype, found.stride())
    assert torch.equal(replay(found.recording), found.materialise())


def thumbnail(image: Any, *arguments: Any) -> Any:
    image.thumbnail(*arguments)
    return image


RECORDED: list[Callable[[Any], Any]] = [
    lambda x: x.convert("L"),
    lambda x: x.copy(),
    lambda x: x.crop((1, 2, 9, 30)),
    lambda x: x.crop((-3, -2, 90, 30)),
    lambda x: x.crop((1.4, 2.5, 9.5, 30.1)),
    lambda x: x.resize((9, 8)),
    lambda x: x.resize((9, 8), 1, box=(1.5, 2, 30, 40)),
    lambda x: x.resize((30, 20), 2, reducing_gap=2.0),
    lambda x: ImageOps.fit(x, (20, 20)),
    lambda x: thumbnail(x, (40, 40)),
    lambda x: thumbnail(x.crop((0, 0, 20, 60)), (40.5, 30.9), Image.Resampling.LANCZOS, None),
    lambda x: thumbnail(x, (400, 300)),
    *[lambda x, m=m: x.transpose(m) for m in Image.Transpose],
    lambda x: x.rotate(90, expand=True),
    lambda x: x.rotate(33, Image.Resampling.BILINEAR, expand=True, fillcolor=(1, 2, 3)),
    lambda x: F.affine(x, 10.0, [1, 2], 1.1, [3.0, 4.0], v1.InterpolationMode.BILINEAR),
    lambda x: v1.RandomPerspective(p=1)(x),
    lambda x: F.pad(x, [1, 2, 3, 4], 7),
    lambda x: F.pad(x, 3, padding_mode="reflect"),
    lambda x: ImageOps.expand(x, (1, 2), "red"),
    lambda x: x.filter(ImageFilter.GaussianBlur(1.5)),
    lambda x: x.filter(ImageFilter.EDGE_ENHANCE),
    lambda x: x.filter(ImageFilter.Kernel((3, 3), [1, 2.5, 3] * 3, 11, 4)),
    lambda x: x.point(lambda level: 2 * level - 60.5),
    lambda x: x.point([min(255, level + 40) for level in range(256)] * len(x.getbands())),
    lambda x: x.point(lambda level: level > 99 and 255),
    lambda x: F.gaussian_blur(x, [3, 5], 0.7),
    lambda x: v2.GaussianBlur(5)(x),
    lambda x: v1.ColorJitter(0.5, 0.5, 0.5, 0.2)(x),
    lambda x: v2.ColorJitter(0.5, 0.5, 0.5, 0.2)(x),
    lambda x: F.adjust_sharpness(x, 1.8),
    lambda x: F.adjust_gamma(x, 0.7),
    lambda x: F.to_grayscale(x, 3),
    lambda x: v2.RandomGrayscale(1)(x),
    lambda x: F.invert(x),
    lambda x: F.solarize(x, 99),
    lambda x: F.posterize(x, 3),
    lambda x: F.equalize(x),
    lambda x: F.autocontrast(x),
    lambda x: v1.RandAugment(4)(x),
    lambda x: v1.TrivialAugmentWide()(x),
    lambda x: v2.AutoAugment()(x),
    lambda x: v1.TenCrop(20)(x)[7],
    lambda x: v2.FiveCrop(20)(x)[2],
    lambda x: ImageOps.exif_transpose(x),
]


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_an_operation_is_recorded_and_gives_pillows_pixels(photo: Path, number: int) -> None:
    operation = RECORDED[number]
    torch.manual_seed(number)
    expected = operation(Image.open(photo).convert("RGB"))
    torch.manual_seed(number)
    thread_state.materialised()
    image = opened(photo).convert("RGB")
    assert isinstance(image, DeferredImage)
    found = operation(image)
    assert thread_state.materialised() == []
    assert isinstance(found, DeferredImage)
    assert found.recording is not None
    assert (found.size, found.mode) == (expected.size, expected.mode)
    assert found.tobytes() == expected.tobytes()


TENSORS: list[Callable[[Any], Any]] = [
    lambda x: F.to_tensor(x),
    lambda x: F.pil_to_tensor(x).float().div(255),
    lambda x: F.pil_to_tensor(x) / 255.0,
    lambda x: F.pil_to_tensor(x).contiguous(),
    lambda x: F.convert_image_dtype(F.pil_to_tensor(x)),
    lambda x: tv_tensors.Image(x),
    lambda x: v2.functional.to_dtype(v2.functional.to_image(x), torch.float16, scale=True),
    lambda x: F.to_tensor(x).half(),
    lambda x: F.to_tensor(x) * 2 - 1,
    lambda x: F.to_tensor(x).mul_(255).sub_(127.5),
    lambda x: (F.to_tensor(x) * np.float64(1.7) - 0.2).clamp(0, 1),
    lambda x: 1 - F.to_tensor(x).mul(1.5).clamp_(max=0.9),
    lambda x: torch.clip(F.normalize(F.to_tensor(x), MEAN, STD), -1.0),
    lambda x: F.normalize(F.to_tensor(x), MEAN, STD, inplace=True),
    lambda x: v1.RandomErasing(p=1)(F.to_tensor(x)),
    lambda x: v2.RandomErasing(p=1, value=[0.1, 0.2, 0.3])(v2.functional.to_image(x)),
    lambda x: v2.ToPureTensor()(tv_tensors.Image(x)),
    lambda x: F.to_tensor(x.convert("L")),
    lambda x: tv_tensors.Image(F.pil_to_tensor(x)),
]


@pytest.mark.parametrize("number", range(len(TENSORS)))
def test_a_tensor_is_recorded_and_gives_torchs_values(photo: Path, number: int) -> None:
    operation = TENSORS[number]
    torch.manual_seed(number)
    expected = operation(Image.open(photo).convert("RGB"))
    torch.manual_seed(number)
    thread_state.materialised()
    found = operation(opened(photo).convert("RGB"))
    assert thread_state.materialised() == []
    assert isinstance(found, DeferredTensor)
    assert found.recording is not None
    assert isinstance(found, tv_tensors.Image) == isinstance(expected, tv_tensors.Image)
    assert (found.dtype, found.shape, found.stride(), found.is_contiguous()) == (
        expected.dtype, expected.shape, expected.stride(), expected.is_contiguous()
    )  # fmt: skip
    real = found.materialise()
    assert type(real) is type(expected)
    assert real.stride() == expected.stride()
    assert torch.equal(real, expected)


def test_a_thumbnail_is_pillows_however_it_is_made(photo: Path) -> None:
    for size in ((3, 9), (20, 20), (39, 80), (80, 60), (33, 1), (0, 5), (-1, 5)):
        for gap in (2.0, 1.0, None, 0.5):
            outcomes: list[Any] = []
            for context in (contextlib.nullcontext(), switch.deferring()):
                for convert in (False, True):
                    with context, open(photo, "rb") as file:
                        image = Image.open(file)
                        image.info["mark"] = 1
                        image = image.convert("RGB") if convert else image
                        try:
                            thumbnail(image, size, Image.Resampling.BICUBIC, gap)
                            outcomes.append((image.size, image.info, image.format, image.tobytes()))
                        except (ValueError, ZeroDivisionError) as error:
                            outcomes.append((type(error), str(error)))
            assert outcomes[:2] == outcomes[2:]


def test_two_views_share_one_image_and_nothing_else(photo: Path) -> None:
    image = opened(photo).convert("RGB")
    one, two = image.crop((0, 0, 9, 9)), image.transpose(Image.Transpose.ROTATE_90)
    one.paste((1, 2, 3), (0, 0, 5, 5))
    assert isinstance(two, DeferredImage)
    assert two.recording is not None
    assert image.recording is not None
    real = Image.open(photo).convert("RGB")
    assert two.tobytes() == real.transpose(Image.Transpose.ROTATE_90).tobytes()
    assert image.tobytes() == real.tobytes()
    assert one.getpixel((2, 2)) == (1, 2, 3)


def test_views_that_are_replayed_decode_their_image_once(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.open(photo).convert("CMYK").save(photo)  # which the core leaves to Pillow
    decoded: list[int] = []
    load = JpegImageFile.load_prepare
    monkeypatch.setattr(
        JpegImageFile, "load_prepare", lambda self: (decoded.append(1), load(self))[1]
    )
    with switch.deferring():
        image = Image.open(photo).convert("RGB")
        views = [np.asarray(image.crop((k, 0, 20, 20))) for k in range(4)]
    assert len(decoded) == 1
    assert views[3].shape == (20, 17, 3)
    np.asarray(image)
    assert len(decoded) == 2  # nothing is kept after the block


def test_an_image_passes_for_what_was_opened(photo: Path) -> None:
    image = opened(photo)
    assert isinstance(image, Image.Image)
    assert isinstance(image, JpegImageFile)
    assert (image.format, image.mode, image.size, image.filename) == (
        "JPEG",
        "RGB",
        (80, 60),
        str(photo),
    )
    converted = image.convert("RGB")
    assert isinstance(converted, Image.Image)
    assert not isinstance(converted, JpegImageFile)
    assert converted.format is None
    assert converted == Image.open(photo).convert("RGB")
    assert Image.open(photo).convert("RGB") == converted


def test_info_that_comes_with_the_pixels_is_there_after_them(tmp_path: Path) -> None:
    path = tmp_path / "one.webp"
    Image.new("RGB", (5, 4)).save(path)
    found = []
    for context in (contextlib.nullcontext(), switch.deferring()):
        with context:
            image = Image.open(path)
            F.to_tensor(image)
            frames = getattr(image, "n_frames", 1)
            found.append((frames, sorted(map(str, image.info))))
    assert found[0] == found[1]


def test_what_is_written_to_exif_stays_when_the_image_is_decoded(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "a.webp"):
        Image.new("RGB", (20, 10), "red").save(tmp_path / name)
        found = []
        for context in (contextlib.nullcontext(), switch.deferring()):
            with context:
                image = Image.open(tmp_path / name)
                image.getexif()[0x0112] = 6
                image.getpixel((3, 3))
                found.append((dict(image.getexif()), ImageOps.exif_transpose(image).size))
        assert found[0] == found[1] == ({0x0112: 6}, (10, 20))


def test_an_image_can_be_given_another_format(photo: Path) -> None:
    image = opened(photo).convert("RGB")
    image.format = "PNG"
    assert image.format == "PNG"
    assert image == Image.open(photo).convert("RGB")


class Views(NamedTuple):
    """Two tensors, by name."""

    one: Any
    other: Any


def test_tensors_in_a_named_tuple_are_taken_as_torch_takes_them(photo: Path) -> None:
    def program(path: Path) -> list[torch.Tensor]:
        with Image.open(path) as image:
            value = F.to_tensor(image)
        views = Views(value, value * 2)
        several = type("List", (list,), {})(views)
        return [torch.cat(views), torch.stack(views, 1), torch.cat(several), torch.vstack(views)]

    expected = program(photo)
    with switch.deferring():
        found = program(photo)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_exif_is_turned_without_decoding(tmp_path: Path, photo: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(photo).save(tmp_path / "turned.jpg", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(tmp_path / "turned.jpg"))
    thread_state.materialised()
    found = ImageOps.exif_transpose(opened(tmp_path / "turned.jpg"))
    assert thread_state.materialised() == []
    assert isinstance(found, DeferredImage)
    assert found.recording is not None
    assert found.recording.operations == (("rot90", 3),)
    assert found == expected
    assert found.materialise().info == expected.info


@releases.turned_in_place
@pytest.mark.parametrize("come_of", [lambda image: image, lambda image: image.resize((31, 17))])
def test_an_image_that_gets_other_pixels_in_place_has_their_size(
    come_of: Callable[[Image.Image], Image.Image], photo: Path, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(photo).save(tmp_path / "turned.jpg", exif=exif)
    made = []
    for context in (contextlib.nullcontext(), switch.deferring()):
        with context:
            image = come_of(Image.open(tmp_path / "turned.jpg"))
            ImageOps.exif_transpose(image, in_place=True)
            smaller = image.resize((9, 12))
            made.append(
                (image.size, np.array(image), F.to_tensor(image).numpy(), smaller.tobytes())
            )
    for found, expected in zip(*made, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_class_that_is_derived_from_that_of_an_image_keeps_its_name(photo: Path) -> None:
    with switch.deferring():
        kind = type(Image.open(photo))

        class Mine(kind):  # type: ignore[misc, valid-type]
            pass

    assert (kind.__name__, Mine.__name__, Mine.__module__) == ("JpegImageFile", "Mine", __name__)


class _Own(Image.Image):
    """A program's own images; fastai makes its own of Pillow's in this way."""

    def sides(self) -> int:
        return sum(self.size)


def _loaded(path: Path) -> Image.Image:
    image = Image.open(path)
    image.load()
    return image


@pytest.mark.parametrize(
    "make",
    [
        _loaded,
        lambda path: _loaded(path).convert("RGB").crop((5, 6, 40, 50)),
        lambda path: Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3)),
    ],
)
def test_an_image_can_be_given_a_class_of_the_users(
    photo: Path, make: Callable[[Path], Image.Image]
) -> None:
    expected = make(photo)
    expected.__class__ = _Own
    with switch.deferring():
        image = make(photo)
        assert isinstance(image, DeferredImage)
        with pytest.raises(TypeError):
            image.__class__ = int
        image.__class__ = _Own
    assert type(image) is _Own
    assert image.sides() == cast(_Own, expected).sides()
    assert (image.mode, image.tobytes(), image.info) == (
        expected.mode,
        expected.tobytes(),
        expected.info,
    )


def test_a_real_image_is_of_the_type_of_a_deferred_one(photo: Path) -> None:
    real = Image.open(photo)
    file = opened(photo)
    with switch.deferring():
        came_of_one = file.convert("RGB")
    for image in (real, real.convert("RGB"), file, came_of_one):
        assert isinstance(image, type(came_of_one))
        assert isinstance(image, type(file)) == isinstance(image, JpegImageFile)
    assert not isinstance(3, type(came_of_one))
    assert not isinstance(real, type("Derived", (type(came_of_one),), {}))
    assert not isinstance(real, DeferredImage)


def test_what_no_batch_can_take_rows_of_is_concatenated_as_ever(photo: Path) -> None:
    for other in (torch.tensor(1.0), torch.zeros(1, 3, 2, 2).to_sparse()):
        raised = []
        for context in (contextlib.nullcontext(), switch.deferring()):
            with context, pytest.raises((RuntimeError, NotImplementedError)) as error:
                torch.cat([F.to_tensor(Image.open(photo))[None], other])
            raised.append((type(error.value), str(error.value)))
        assert raised[0] == raised[1]


def test_a_type_that_is_compared_is_that_of_a_tensor(photo: Path) -> None:
    with switch.deferring():
        value = F.to_tensor(Image.open(photo))
        marked = v2.functional.to_image(Image.open(photo))
        batch = torch.stack([value, value])
        row = value.new_zeros((2, *value.shape))[0]
    for one in (value, batch, row):
        assert type(one) == torch.Tensor  # noqa: E721 - as programs write it
        assert torch.Tensor == type(one)  # noqa: E721
        assert type(one) in (list, torch.Tensor)
        assert type(one) != tv_tensors.Image  # noqa: E721
    assert type(marked) == tv_tensors.Image  # noqa: E721
    assert type(marked) != torch.Tensor  # noqa: E721
    assert {type(value), torch.Tensor} - {torch.Tensor}
    assert not isinstance(torch.zeros(1), DeferredTensor)


def test_a_closed_image_has_pillows_errors(photo: Path) -> None:
    errors = []
    for context in (contextlib.nullcontext(), switch.deferring()):
        with context:
            image = Image.open(photo).convert("RGB")
            image.close()
            for arguments in ({"fillcolor": [4, 5, 6]}, {"expand": True}):
                with pytest.raises((TypeError, ValueError)) as caught:
                    image.rotate(90, **arguments)
                errors.append((caught.type, str(caught.value)))
    assert errors[:2] == errors[2:]


def test_copies_of_the_object_are_real(photo: Path) -> None:
    image = opened(photo).convert("RGB")
    assert type(copy.deepcopy(image)) is Image.Image
    value = F.to_tensor(opened(photo))
    assert type(copy.deepcopy(value)) is torch.Tensor


def test_memory_is_shared_where_torch_shares_it(photo: Path) -> None:
    marked = tv_tensors.Image(opened(photo))
    pure = marked.as_subclass(torch.Tensor)
    assert isinstance(pure, DeferredTensor)
    assert not isinstance(pure, DeferredTVImage)
    pure[0, 0, 0] = 7
    assert marked[0, 0, 0] == 7
    value = F.to_tensor(opened(photo))
    before = value.clone()
    assert value.mul_(3.0) is value
    assert torch.equal(value.materialise(), before.materialise() * 3.0)


def test_a_stack_is_one_batch_and_keeps_what_its_rows_were(photo: Path) -> None:
    rows = [F.to_tensor(opened(photo)) for _ in range(3)]
    batch = torch.stack([*rows[:2], rows[2].materialise()])
    assert isinstance(batch, DeferredBatch)
    rows[0].mul_(2.0)
    rows[2].materialise().mul_(2.0)
    expected = F.to_tensor(Image.open(photo))
    assert batch.shape == (3, 3, 60, 80)
    assert torch.equal(batch.materialise(), torch.stack([expected] * 3))


@pytest.mark.parametrize("kind", ["to_tensor", "pil_to_tensor"])
def test_a_batch_has_the_strides_of_torchs(photo: Path, kind: str) -> None:
    for mode in ("RGB", "L"):
        make = getattr(F, kind)
        expected = torch.stack([make(Image.open(photo).convert(mode))] * 2)
        batch = torch.stack([make(opened(photo).convert(mode))] * 2)
        assert batch.stride() == expected.stride()
        assert batch.is_contiguous() == expected.is_contiguous()
        assert batch.materialise().stride() == expected.stride()


_GRAY_REPEATED: dict[str, Callable[[Image.Image], torch.Tensor]] = {
    "as it is": lambda x: F.to_tensor(x).repeat(3, 1, 1),
    "as a tuple": lambda x: F.to_tensor(x).repeat((3, 1, 1)),
    "turned": lambda x: F.to_tensor(F.rotate(F.resize(x, [30, 41]), 20, fill=9)).repeat(3, 1, 1),
    "normalised before": lambda x: F.normalize(F.to_tensor(x), [0.4], [0.3]).repeat(3, 1, 1),
    "normalised after": lambda x: F.normalize(
        F.to_tensor(x).mul(2).repeat(3, 1, 1), [0.4, 0.5, 0.6], [0.1, 0.2, 0.3]
    ),
    "of one row": lambda x: F.to_tensor(x.resize((5, 1))).repeat(3, 1, 1),
    "put together": lambda x: torch.cat([F.to_tensor(x)] * 3),
}

_REPEATED_OTHERWISE: dict[str, Callable[[Image.Image], torch.Tensor]] = {
    "twice": lambda x: F.to_tensor(x).repeat(2, 1, 1),
    "put together of two": lambda x: torch.cat([F.to_tensor(x), F.to_tensor(x), F.to_tensor(x)]),
    "put together side by side": lambda x: torch.cat([F.to_tensor(x)] * 3, dim=2),
    "in a batch": lambda x: F.to_tensor(x).repeat(2, 3, 1, 1),
    "in colour": lambda x: F.to_tensor(x.convert("RGB")).repeat(3, 1, 1),
    "levels": lambda x: F.pil_to_tensor(x).repeat(3, 1, 1),
    "one pixel": lambda x: F.to_tensor(x.resize((1, 1))).repeat(3, 1, 1),
    "erased": lambda x: F.erase(F.to_tensor(x), 1, 2, 3, 4, torch.tensor(0.5)).repeat(3, 1, 1),
}


@pytest.mark.parametrize("name", [*_GRAY_REPEATED, *_REPEATED_OTHERWISE])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_gray_tensor_in_three_channels_is_that_of_a_colour_image(
    photo: Path, tmp_path: Path, mode: str, name: str
) -> None:
    path = tmp_path / "x.jpg"
    Image.open(photo).convert(mode).save(path)
    repeat = (_GRAY_REPEATED | _REPEATED_OTHERWISE)[name]
    expected = repeat(Image.open(path).convert("L"))
    with switch.deferring():
        made = repeat(opened(path).convert("L"))
    assert isinstance(made, DeferredTensor) == (name in _GRAY_REPEATED)
    assert made.stride() == expected.stride()
    batch = torch.stack([made, made])
    real = batch.materialise() if isinstance(batch, DeferredBatch) else batch
    assert torch.equal(real, torch.stack([expected, expected]))
    if isinstance(made, DeferredTensor):
        assert torch.equal(made.materialise(), expected)  # by the core


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (5, 1), (4, 3)])
@pytest.mark.parametrize("layouts", [(0, 0), (1, 1), (0, 1), (1, 0)])
def test_tensors_put_together_by_cat_have_the_strides_of_torchs(
    photo: Path, size: tuple[int, int], layouts: tuple[int, int]
) -> None:
    def joined(image: Image.Image) -> list[torch.Tensor]:
        def kind(layout: int) -> torch.Tensor:
            made = F.to_tensor(image)
            return made.contiguous() if layout else made

        first, second, third = (kind(layout) for layout in (*layouts, layouts[1]))
        batch = torch.cat([first.unsqueeze(0), second[None]])
        mixed = torch.cat([first[None], tensor.plain(third)[None]])
        more = torch.cat([tensor.plain(torch.stack([third, third])), batch])
        others = torch.cat([batch, first[None]]), torch.cat([torch.stack([second]), batch])
        return [batch, *others, mixed, more]

    expected = joined(Image.open(photo).resize(size))
    with switch.deferring():
        batches = joined(opened(photo).resize(size))
    for batch, right in zip(batches, expected, strict=True):
        assert isinstance(batch, DeferredBatch)
        assert batch.stride() == right.stride()
        assert batch.materialise().stride() == right.stride()
        assert torch.equal(batch.materialise(), right)


def test_a_tensor_put_to_deferred_ones_is_kept_as_it_was(photo: Path) -> None:
    made = tensor.plain(F.to_tensor(opened(photo)))[None]
    with switch.deferring():
        batch = torch.cat([F.to_tensor(opened(photo))[None], made])
    assert isinstance(batch, DeferredBatch)
    expected = made.repeat(2, 1, 1, 1)
    made.zero_()
    assert torch.equal(batch.materialise(), expected)


def test_default_collate_defers(photo: Path) -> None:
    samples = [(F.to_tensor(opened(photo)), {"label": k}) for k in range(2)]
    with switch.deferring():
        images, labels = torch.utils.data.default_collate(samples)
    assert isinstance(images, DeferredBatch)
    elsewhere, _ = torch.utils.data.default_collate(samples)
    assert type(elsewhere) is torch.Tensor
    assert torch.equal(labels["label"], torch.tensor([0, 1]))
    views = torch.cat([images, images])
    assert isinstance(views, DeferredBatch)
    assert torch.equal(views.materialise(), torch.cat([images.materialise()] * 2))


def test_a_batch_is_made_by_whom_the_context_names(photo: Path) -> None:
    asked: list[DeferredBatch] = []

    def make(batch: DeferredBatch) -> torch.Tensor:
        asked.append(batch)
        return batch.replay()

    batch = torch.stack([F.to_tensor(opened(photo))] * 2)
    with thread_state.batch(BatchContext(fill=make)), switch.deferring():
        total = batch.sum()
    assert asked == [batch] or asked[0] is batch
    assert torch.equal(total, batch.materialise().sum())


def test_an_image_that_is_kept_keeps_nothing_that_fills_batches(photo: Path) -> None:
    class Filler:
        def fill(self, batch: DeferredBatch) -> torch.Tensor:
            return batch.replay()

    filler = Filler()
    there = weakref.ref(filler)
    with thread_state.batch(BatchContext(fill=filler.fill)):
        image = opened(photo)
    del filler
    assert there() is None
    assert image.size == (80, 60)


def test_what_materialises_is_told_with_its_line(photo: Path) -> None:
    thread_state.materialised()
    for _ in range(3):
        np.asarray(opened(photo).convert("RGB"))  # this line
    F.to_tensor(opened(photo)).numpy()
    causes = {cause.function: cause for cause in thread_state.materialised()}
    lines = Path(__file__).read_text().splitlines()
    array = causes["Image.__array_interface__"]
    assert (array.count, array.file) == (3, __file__)
    assert lines[array.line - 1].endswith("# this" + " line")
    assert causes["Tensor.numpy"].count == 1
    assert thread_state.materialised() == []


def test_a_stack_says_whether_one_of_its_tensors_is_deferred(photo: Path) -> None:
    plain = torch.zeros(3, 8, 8)
    with switch.deferring():
        deferred = F.to_tensor(Image.open(photo).resize((8, 8)))
    assert not tensor.some_deferred([plain, plain])
    assert not tensor.some_deferred([])
    assert tensor.some_deferred([plain, deferred])
    assert tensor.some_deferred([torch.stack([deferred, deferred])])


FILLS: dict[Any, Any] = {Image.Image: (1, 2, 3), tv_tensors.Image: 7, torch.Tensor: 9, "others": 5}


def test_a_type_equals_the_class_that_pillow_would_have_given(photo: Path) -> None:
    seen = []
    for context in (contextlib.nullcontext(), switch.deferring()):
        with context:
            file = Image.open(photo)
            rgb = file.convert("RGB")
            turned = file.transpose(Image.Transpose.ROTATE_90)
        kinds = [JpegImageFile, Image.Image, PngImageFile]
        types = [type(image) for image in (file, rgb, turned, rgb.resize((9, 8)))]
        seen.append(
            [
                [kind == known for kind in types for known in kinds],
                [kind != known for kind in types for known in kinds],
                [known == kind for kind in types for known in kinds],
                [kind in (Image.Image, PngImageFile) for kind in types],
            ]
        )
    assert seen[1] == seen[0]


def test_a_type_is_called_as_the_one_that_it_stands_for(photo: Path) -> None:
    seen = []
    for context in (contextlib.nullcontext(), switch.deferring()):
        with context:
            file = Image.open(photo)
            rgb = file.convert("RGB")
            value = F.to_tensor(rgb)
            marked = v2.functional.to_image(rgb)
            things = (file, rgb, value, marked, torch.stack([value, value]), value[None])
            names = [
                (repr(kind), kind.__name__, kind.__qualname__, kind.__module__)
                for kind in map(type, things)
            ]
            errors = []
            mistakes: list[Callable[[Any], Any]] = [
                lambda image: image / 255,
                lambda image: 1 + image,
                lambda image: image[0],
                lambda image: len(image),
                lambda image: list(image),
                lambda image: hash(image),
                lambda image: float(image),
                lambda image: torch.tensor(image),
                lambda image: F.normalize(image, [0.5], [0.5]),
                lambda image: v2.functional.to_image(image).no_such_name,
            ]
            for mistake in mistakes:
                with pytest.raises((AttributeError, RuntimeError, TypeError)) as caught:
                    mistake(rgb)
                errors.append(str(caught.value))
            errors.append(str(type(file)))
        seen.append((names, errors))
    assert seen[1] == seen[0]


FILLED: list[Callable[[], Any]] = [
    lambda: v2.Pad(3, fill=dict(FILLS)),
    lambda: v2.RandomCrop(90, pad_if_needed=True, fill=dict(FILLS)),
    lambda: v2.RandomZoomOut(dict(FILLS), p=1.0),
    lambda: v2.RandomRotation((30, 30), expand=True, fill=dict(FILLS)),
    lambda: v2.RandomAffine((20, 20), fill=dict(FILLS)),
    lambda: v2.RandomPerspective(p=1.0, fill=dict(FILLS)),
    lambda: v2.RandAugment(fill=dict(FILLS)),
    lambda: v2.ElasticTransform(fill=dict(FILLS)),
]


@pytest.mark.parametrize("number", range(len(FILLED)))
def test_a_fill_by_type_is_that_of_what_a_deferred_object_stands_for(
    photo: Path, number: int
) -> None:
    for file in (False, True):
        if file:
            FILLS[JpegImageFile] = (4, 5, 6)
        made: list[list[Any]] = []
        for context in (contextlib.nullcontext(), switch.deferring()):
            torch.manual_seed(number)
            transform = FILLED[number]()
            with context, open(photo, "rb") as opened:
                image = Image.open(opened)
                values = [
                    image,
                    image.convert("RGB"),
                    v2.functional.to_image(image),
                    F.pil_to_tensor(image),
                ]
                made.append([np.asarray(transform(value)) for value in values])
        FILLS.pop(JpegImageFile, None)
        for ours, theirs in zip(*made, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_dtype_by_type_is_that_of_what_a_deferred_object_stands_for(photo: Path) -> None:
    transforms = [
        v2.ToDtype({tv_tensors.Image: torch.float32, "others": torch.uint8}, scale=True),
        v2.ToDtype({torch.Tensor: torch.float16, "others": None}),
        v2.ToDtype({tv_tensors.Mask: torch.int64, "others": None}),
    ]
    thread_state.materialised()
    for transform in transforms:
        for make in (v2.functional.to_image, F.pil_to_tensor):
            expected = transform(make(Image.open(photo).convert("RGB")))
            with switch.deferring():
                found = transform(make(Image.open(photo).convert("RGB")))
            assert found.dtype == expected.dtype
            assert thread_state.materialised() == []
            assert torch.equal(found.materialise(), expected)
    with switch.deferring(), pytest.raises(ValueError, match="No dtype was specified for type"):
        v2.ToDtype({tv_tensors.Mask: torch.int64})(
            v2.functional.to_image(Image.open(photo).convert("RGB"))
        )


@pytest.mark.parametrize("kind", [DeferredTensor, DeferredTVImage])
def test_gradients_that_a_tensor_requires_stay_required(photo: Path, kind: type) -> None:
    made = F.to_tensor if kind is DeferredTensor else v2.functional.to_image
    with switch.deferring():
        values = v2.functional.to_dtype(made(opened(photo)), torch.float32, scale=True)
        assert type(values) is kind
        assert values.requires_grad_() is values
        assert values.requires_grad and values.is_leaf
        values.mul(3).sum().backward()
        assert torch.equal(values.grad, torch.full((3, 60, 80), 3.0))
