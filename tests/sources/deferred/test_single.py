"""What asks for pixels gets them from the core, there and then, as Pillow would have given them."""

from __future__ import annotations

import io
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms import functional as F

import deferred_datasets as shapes
import releases
from fastload._sources.deferred import image, single, stamps, switch, tensor, thread_state
from fastload._sources.deferred.image import DeferredImage
from fastload._sources.deferred.recording import Opened
from fastload._sources.deferred.replay import FileChanged
from fastload._sources.deferred.thread_state import THREAD


def picture(size: tuple[int, int] = (150, 110)) -> Image.Image:
    coarse = np.random.default_rng(2).integers(0, 256, (11, 15, 3), np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def picture_of(path: Path) -> Image.Image:
    return Image.open(io.BytesIO(path.read_bytes()))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    picture().save(path)
    return path


@pytest.fixture
def no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is replayed in this test fails."""

    def replay(recording: object) -> None:
        raise AssertionError(f"replayed: {recording}")

    monkeypatch.setattr(image, "replay", replay)
    monkeypatch.setattr(tensor, "replay", replay)


@pytest.fixture
def decoded(photo: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call of the core: whether it decoded, or took pixels that were kept."""
    calls: list[bool] = []
    with switch.deferring():  # what proves itself where it is first used calls the core, too
        crop = Image.open(photo).convert("RGB").crop((0, 0, 80, 90)).resize((40, 40))
        np.asarray(ImageEnhance.Brightness(crop.transpose(FLIP)).enhance(1.2))
        F.to_tensor(crop).numpy()
    begun = single.Begun
    monkeypatch.setattr(THREAD, "times_asked", 0)  # of an image of another test
    monkeypatch.setattr(THREAD, "shared_before", ())

    def counted(memory: Any, kernel: Any, group: Any, opened: Any, kept: Any, threads: int) -> Any:
        calls.append(kept is None)
        return begun(memory, kernel, group, opened, kept, threads)

    whole = single._of_file

    def counted_whole(opened: Any) -> Any:
        made = whole(opened)
        if made is not None:
            calls.append(True)
        return made

    monkeypatch.setattr(single, "Begun", counted)
    monkeypatch.setattr(single, "_of_file", counted_whole)
    return calls


FLIP = Image.Transpose.FLIP_LEFT_RIGHT

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "array": lambda image: np.asarray(image),
    "copy": lambda image: np.array(image.convert("RGB")),
    "gray": lambda image: np.asarray(image.convert("L")),
    "crop": lambda image: np.asarray(image.crop((3, 5, 70, 61))),
    "beyond": lambda image: np.asarray(image.crop((-3, 5, 90, 130))),
    "band": lambda image: np.asarray(image.split()[-1]),
    "resize": lambda image: np.asarray(image.resize((64, 48), Image.Resampling.LANCZOS)),
    "rotate": lambda image: np.asarray(image.rotate(90, expand=True)),
    "colour": lambda image: np.asarray(F.adjust_brightness(image, 1.3).crop((0, 0, 50, 40))),
    "bytes": lambda image: image.transpose(Image.Transpose.ROTATE_180).tobytes(),
    "pixel": lambda image: image.resize((40, 30)).getpixel((7, 8)),
    "quantize": lambda image: image.convert("RGB").crop((1, 2, 90, 80)).quantize(8).tobytes(),
    "statistics": lambda image: image.convert("RGB").histogram(),
    "tensor": lambda image: (F.to_tensor(image.crop((0, 0, 80, 60))) > 0.5).sum(),
    "mean": lambda image: F.normalize(F.to_tensor(image.convert("RGB")), [0.5], [0.2]).mean(),
    "levels": lambda image: F.pil_to_tensor(image.convert("RGB")).numpy(),
}


def may_be_made_writeable(array: np.ndarray) -> bool:
    try:
        array.setflags(write=True)
    except ValueError:
        return False
    return True


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
        assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    elif isinstance(expected, np.ndarray):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(found, expected)
        assert found.flags.writeable == expected.flags.writeable
        assert may_be_made_writeable(found) == may_be_made_writeable(expected)
    else:
        assert found == expected


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
def test_what_asks_for_pixels_is_made_by_the_core(
    photo: Path, program: Callable[[Any], Any], mode: str, progressive: bool, no_replay: None
) -> None:
    picture().convert(mode).save(photo, progressive=progressive)
    with switch.deferring():
        found = program(Image.open(photo))
    same(found, program(Image.open(photo)))


@pytest.mark.parametrize("suffix", ["png", "webp", "bmp"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L"])
def test_arrays_of_other_formats_are_pillows(tmp_path: Path, suffix: str, mode: str) -> None:
    path = tmp_path / f"a.{suffix}"
    picture().convert(mode).save(path, lossless=True)
    for program in PROGRAMS.values():
        with switch.deferring():
            found = program(Image.open(path).convert("RGB"))
        same(found, program(Image.open(path).convert("RGB")))


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        ("L", "jpg"),
        ("L", "png"),
        ("P", "png"),
        pytest.param("I;16", "png", marks=releases.opened_with_16_bits),
        ("RGB", "png"),
    ],
)
def test_arrays_of_whole_files_are_made_by_one_call_of_the_core(
    tmp_path: Path, mode: str, suffix: str, no_replay: None, decoded: list[bool]
) -> None:
    path = tmp_path / f"a.{suffix}"
    deep = Image.fromarray(np.asarray(picture().convert("L")).astype(np.uint16) * 250 + 7)
    (deep if mode == "I;16" else picture().convert(mode)).save(path)
    with switch.deferring():
        np.asarray(Image.open(path))  # at first what is exchanged proves itself
    for ask in (np.asarray, lambda image: np.asarray(image.copy()), lambda image: image.tobytes()):
        decoded.clear()
        with switch.deferring():
            image = Image.open(path)
            assert image.mode == mode
            found = ask(image)
        assert decoded == [True]
        same(found, ask(Image.open(path)))


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_an_image_wider_than_the_core_takes_is_pillows(tmp_path: Path, mode: str) -> None:
    picture((70_000, 3)).convert(mode).save(tmp_path / "a.png")
    with switch.deferring():
        found = np.asarray(Image.open(tmp_path / "a.png"))
    same(found, np.asarray(Image.open(tmp_path / "a.png")))


def test_an_image_from_memory_is_made_by_the_core(photo: Path, no_replay: None) -> None:
    expected = np.asarray(Image.open(photo))
    with switch.deferring(), open(photo, "rb") as file:
        same(np.asarray(Image.open(file)), expected)


def test_a_materialised_image_has_the_info_and_the_exif_that_pillow_gives(
    photo: Path, no_replay: None
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture().save(photo, exif=exif, dpi=(72, 72))
    programs: list[Callable[[Any], Any]] = [
        lambda image: image.resize((90, 90)),
        lambda image: ImageOps.exif_transpose(image),
        lambda image: ImageOps.expand(image, 3),
    ]
    for program in programs:
        with switch.deferring():
            made = program(Image.open(photo))
            assert isinstance(made, DeferredImage)
        found, expected = made.materialise(), program(Image.open(photo))
        assert type(found) is Image.Image
        assert (found.mode, found.size, found.readonly) == (
            expected.mode, expected.size, expected.readonly
        )  # fmt: skip
        assert found.info == expected.info
        assert dict(found.getexif()) == dict(expected.getexif())
        assert found.tobytes() == expected.tobytes()


def test_images_that_are_asked_for_twice_are_decoded_once_but_the_first(
    photo: Path, decoded: list[bool], no_replay: None
) -> None:
    with switch.deferring():
        for number in range(3):
            image = Image.open(photo)
            array = np.asarray(image)
            same(np.asarray(image), array)
            assert image.getpixel((5, 6)) == tuple(array[6, 5])
            assert image.copy().tobytes() == array.tobytes()
            assert len(decoded) == number + 2


def test_a_whole_photo_takes_one_call_of_the_core(
    photo: Path, no_replay: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = np.asarray(Image.open(photo))
    monkeypatch.setattr(single, "_begun", None)  # which prepares a batch of one
    with switch.deferring():
        same(np.asarray(Image.open(photo)), expected)
        same(np.asarray(Image.open(io.BytesIO(photo.read_bytes()))), expected)


def test_a_photo_that_changed_after_it_was_opened_is_not_decoded_by_its_path(photo: Path) -> None:
    opened = Opened(str(photo), None, (1, 2, 3), picture().size, "RGB", "JPEG")
    assert single._of_file(opened) is None
    stamp = stamps.of_path(str(photo))
    assert single._of_file(opened._replace(stamp=stamp)) is not None
    assert single._of_file(opened._replace(stamp=stamp, size=(7, 7))) is None


def test_views_of_an_image_are_cut_out_of_the_pixels_that_are_known(
    photo: Path, decoded: list[bool]
) -> None:
    boxes = [(k, 0, 80 + k, 90) for k in range(4)]
    with switch.deferring():
        image = Image.open(photo).convert("RGB")
        views = [np.asarray(image.crop(box).resize((40, 40))) for box in boxes]
    assert decoded == [True, True, False, False, False]  # the first view, the whole, three views
    real = Image.open(photo).convert("RGB")
    for view, box in zip(views, boxes, strict=True):
        same(view, np.asarray(real.crop(box).resize((40, 40))))
    THREAD.times_asked = 0
    with switch.deferring():
        np.asarray(image.crop(boxes[0]))
    assert decoded[5:] == [True]  # nothing is kept after the block


def test_an_image_is_decoded_as_a_whole_where_the_one_before_was_asked_for_again(
    photo: Path, decoded: list[bool]
) -> None:
    def views(count: int) -> list[np.ndarray]:
        image = Image.open(photo).convert("RGB")
        return [np.asarray(image.crop((k, 0, 80 + k, 90)).resize((40, 40))) for k in range(count)]

    expected = views(3)
    made = []
    for count in (2, 2, 1, 1, 1):
        decoded.clear()
        with switch.deferring():
            found = views(count)
        made.append(decoded.copy())
        for view, real in zip(found, expected, strict=False):
            same(view, real)
    assert made == [
        [True, True, False],  # the first view; the whole, and the second view of it
        [True, False, False],  # the whole, and both views of it
        [True, False],  # a view less than the image before has
        [True],
        [True],
    ]


@pytest.mark.parametrize("kind", ["tensors", "arrays", "of different beginnings"])
def test_parts_of_a_changed_image_are_cut_out_of_what_it_became(
    photo: Path, decoded: list[bool], no_replay: None, kind: str
) -> None:
    boxes = [(k, 3, k + 60, 63) for k in range(4)]

    def parts() -> list[Any]:
        whole = Image.open(photo).convert("RGB")
        image = whole.resize((96, 80)).transpose(FLIP)
        made: list[Any] = []
        for number, box in enumerate(boxes):
            beginning = whole if kind == "of different beginnings" and number == 2 else image
            part = beginning.crop(box)
            made.append(np.asarray(part) if kind == "arrays" else F.to_tensor(part).numpy())
        return made

    expected, calls = parts(), []
    for _ in range(2):
        decoded.clear()
        with switch.deferring():
            found = parts()
        calls.append(decoded.copy())
        for part, real in zip(found, expected, strict=True):
            same(part, real)
    if kind != "of different beginnings":
        # The first part, then what all have in common. Pillow cuts the parts out of that.
        assert calls == [[True, True], [True]]


def test_what_parts_have_in_common_is_found_again_after_an_image_that_has_less_of_it(
    photo: Path, decoded: list[bool], no_replay: None
) -> None:
    def parts(size: tuple[int, int]) -> list[np.ndarray]:
        image = Image.open(photo).convert("RGB")
        image = image if image.size == size else image.resize(size)
        return [F.to_tensor(image.crop((k, 3, k + 60, 63))).numpy() for k in range(3)]

    whole, less = picture().size, (96, 80)
    calls = []
    for size in (less, less, whole, less, less):
        expected = parts(size)
        decoded.clear()
        with switch.deferring():
            for part, real in zip(parts(size), expected, strict=True):
                same(part, real)
        calls.append(len(decoded))
    # The fourth one is made of the whole image, which is all that its parts may have in common.
    assert calls == [2, 1, 1, 4, 1]


def test_a_small_image_is_made_once_for_its_tensors(
    photo: Path, decoded: list[bool], no_replay: None
) -> None:
    def tensors() -> list[np.ndarray]:
        image = Image.open(photo).convert("RGB").resize((40, 40))
        return [F.to_tensor(one).numpy() for one in (image, image.transpose(FLIP), image)]

    expected = tensors()
    with switch.deferring():
        for made, real in zip(tensors(), expected, strict=True):
            same(made, real)
    assert decoded == [True, True]


def test_colours_of_one_crop_are_no_second_view_of_the_image(
    photo: Path, decoded: list[bool], no_replay: None
) -> None:
    with switch.deferring():
        crop = Image.open(photo).convert("RGB").crop((0, 0, 80, 90))
        bright = ImageEnhance.Brightness(crop).enhance(1.2)
        np.asarray(ImageEnhance.Color(bright).enhance(0.7).resize((70, 70)))
    assert decoded == [True]  # the crop, not the whole


def test_what_is_written_to_a_copy_does_not_show_in_another_view(photo: Path) -> None:
    with switch.deferring():
        image = Image.open(photo).convert("RGB")
        own = np.array(image)
        own[:] = 0
        pasted = image.copy()
        pasted.paste((1, 2, 3), (0, 0, 50, 50))
        again = np.asarray(image.crop((0, 0, 60, 60)))
    same(again, np.asarray(Image.open(photo).crop((0, 0, 60, 60))))


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_what_torch_writes_to_an_array_does_not_show_in_another(photo: Path) -> None:
    for box in ((0, 0, 150, 110), (3, 4, 90, 80)):
        expected = np.asarray(Image.open(photo).convert("RGB").crop(box))
        with switch.deferring():
            image = Image.open(photo).convert("RGB")
            view = image.crop(box)
            torch.from_numpy(np.asarray(view)).zero_()
            torch.from_numpy(np.asarray(image)).zero_()
            same(np.asarray(view), expected)
            same(np.asarray(image.crop(box)), expected)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_an_array_that_is_asked_for_is_not_copied_and_belongs_to_nobody_else(photo: Path) -> None:
    expected = np.asarray(Image.open(photo).convert("RGB"))
    THREAD.times_asked, THREAD.several = 0, False  # by other tests
    with switch.deferring():
        image = Image.open(photo).convert("RGB")
        first = np.asarray(image)
        assert THREAD.kept is None
        torch.from_numpy(first).zero_()
        again, copied = np.asarray(image), np.asarray(image.copy())
    same(again, expected)
    same(copied, expected)
    assert not np.shares_memory(again, copied)


def test_to_count_the_bands_of_an_image_takes_no_pixels(photo: Path, no_replay: None) -> None:
    thread_state.materialised()  # by other tests
    with switch.deferring():
        opened = Image.open(photo)
        bands = opened.split()
        assert [band.mode for band in bands] == ["L"] * len(opened.getbands())
        assert opened.convert("L").split()[0].size == opened.size
        assert thread_state.materialised() == []


def test_bands_are_cut_out_of_one_decoded_image(
    photo: Path, no_replay: None, decoded: list[bool]
) -> None:
    real = picture_of(photo).crop((3, 4, 120, 100))
    with switch.deferring():
        image = Image.open(photo).crop((3, 4, 120, 100))
        merged = Image.merge("RGB", image.split()[::-1])
        green = np.asarray(image.getchannel("G"))
    assert decoded.count(True) <= 2
    assert merged.tobytes() == Image.merge("RGB", real.split()[::-1]).tobytes()
    np.testing.assert_array_equal(green, np.asarray(real)[..., 1])


@pytest.mark.parametrize("size", [(30, 20), (63, 64)])
def test_small_images_are_decoded_by_the_core_and_changed_by_pillow(
    photo: Path, decoded: list[bool], monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    def array() -> np.ndarray:
        image = Image.open(photo).convert("RGB").resize((40, 50)).crop((3, 4, 45, 40))
        return np.asarray(ImageEnhance.Contrast(image).enhance(1.3))

    picture(size).save(photo)
    expected = array()
    with switch.deferring():
        array()  # what is exchanged has proved itself
    decoded.clear()
    monkeypatch.setattr(single, "_begun", lambda *args, **given: pytest.fail("the core changes it"))
    with switch.deferring():
        same(array(), expected)
    assert decoded == [True]


@releases.array_errors
def test_a_damaged_image_raises_where_its_pixels_are_asked_for(photo: Path) -> None:
    shapes.truncate(photo)
    whole = io.BytesIO(photo.read_bytes())  # of a path, Pillow would leave the file open
    with pytest.raises(OSError, match="truncated") as expected:
        np.asarray(Image.open(whole))
    with switch.deferring(), pytest.raises(OSError, match="truncated") as found:
        np.asarray(Image.open(photo))
    assert str(found.value) == str(expected.value)


@releases.array_errors
def test_an_image_whose_file_was_closed_raises_as_ever(photo: Path) -> None:
    with switch.deferring():
        with open(photo, "rb") as file:
            image = Image.open(file)
        with pytest.raises(ValueError, match="closed file"):
            np.asarray(image)


@releases.array_errors
def test_a_file_that_changed_since_it_was_opened_is_not_read(photo: Path) -> None:
    with switch.deferring():
        image = Image.open(photo)
        picture((150, 111)).save(photo)
        with pytest.raises(FileChanged):
            np.asarray(image)


def test_the_interpreter_runs_on_while_an_image_is_decoded(photo: Path, no_replay: None) -> None:
    picture((6000, 4000)).save(photo)
    ticks, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            ticks[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        with switch.deferring():
            image = Image.open(photo).resize((4000, 3000))
            before = ticks[0]
            np.asarray(image)
            after = ticks[0]
    finally:
        done.set()
        thread.join()
    assert after - before > 50


def test_what_materialised_is_reported_once_for_an_image(photo: Path) -> None:
    thread_state.materialised()
    with switch.deferring():
        image = Image.open(photo)
        image.tobytes()
        np.asarray(image)
        np.asarray(image)
    (cause,) = thread_state.materialised()
    assert (cause.function, cause.file, cause.count) == ("Image.tobytes", __file__, 1)


def test_nothing_warns(photo: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for program in PROGRAMS.values():
            with switch.deferring():
                program(Image.open(photo))
