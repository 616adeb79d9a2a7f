"""PNGs of every kind, opened while deferring, are what Pillow makes of them; the core inflates."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import pytest
from PIL.PngImagePlugin import PngImageFile
from torchvision.transforms import functional

import png_files
from fastload import _native
from fastload._sources.deferred import switch
from fastload._sources.deferred.replay import load_rows
from fastload._sources.deferred.thread_state import THREAD
from png_files import GRAY, KINDS, PALETTE, RGB, chunk

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning"),
]

ASKED: dict[str, Callable[[Any], Any]] = {
    "array": np.asarray,
    "rotate": lambda image: image.rotate(30, fillcolor=3 if len(image.getbands()) == 1 else None),
    "crop, then turn": lambda image: image.crop((1, 2, 9, 8)).rotate(90, expand=True),
    "resize": lambda image: image.resize((9, 7), PIL.Image.Resampling.NEAREST),
    "point": lambda image: image.point(lambda level: level * 2 + 1),
    "load": lambda image: (image.load()[3, 2], image),
    "text": lambda image: (image.load()[0, 0], image.text, image.info),
    "frames": lambda image: (
        image.n_frames,
        image.is_animated,
        image.custom_mimetype,
        np.asarray(image),
        image.n_frames,
    ),
    "no such argument": lambda image: image.transpose(99),
    "copies": lambda image: (copy.copy(image), pickle.loads(pickle.dumps(image))),
}

LOADED = ("array", "frames", "crop, then turn", "load", "text", "copies")
"""Those that Pillow has loaded by then."""


@pytest.fixture(autouse=True, scope="module")
def libdeflate() -> None:
    core = _native.load()
    if core is None or core.png_version() is None:
        pytest.skip("the core was built without libdeflate")


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The decoders that Pillow makes."""
    made: list[str] = []
    original = PIL.Image._getdecoder

    def getdecoder(mode: str, decoder_name: str, args: Any, extra: Any = ()) -> Any:
        made.append(decoder_name)
        return original(mode, decoder_name, args, extra)

    monkeypatch.setattr(PIL.Image, "_getdecoder", getdecoder)
    return made


def seen(value: Any) -> Any:
    """What a user can see of what was asked for."""
    if isinstance(value, tuple):
        return tuple(map(seen, value))
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, PIL.Image.Image):
        palette = None if value.palette is None else (value.palette.mode, value.palette.palette)
        return value.__class__, value.mode, value.size, value.tobytes(), value.info, palette
    return value


def outcome(data: bytes, ask: Callable[[Any], Any]) -> Any:
    try:
        return seen(ask(PIL.Image.open(io.BytesIO(data))))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_pngs_of_every_kind_are_pillows(
    colour: int, depth: int, asked: str, decoders: list[str]
) -> None:
    rng = np.random.default_rng(depth)
    for interlaced, more in itertools.product((False, True), repeat=2):
        data = png_files.image(rng, 21, 18, colour, depth, interlaced=interlaced)
        end = data.index(b"IEND") - 4
        if more:
            data = data[:end] + chunk(b"tEXt", b"Comment\0after the pixels") + data[end:]
        expected = outcome(data, ASKED[asked])
        decoders.clear()
        with switch.deferring():
            assert outcome(data, ASKED[asked]) == expected
        if not interlaced and (not more or asked in LOADED):
            assert "zip" not in decoders


@pytest.mark.parametrize(("colour", "depth"), [(GRAY, 16), (GRAY, 8), (PALETTE, 4), (RGB, 8)])
def test_damaged_pngs_are_left_to_pillow(colour: int, depth: int) -> None:
    data = png_files.image(np.random.default_rng(0), 40, 30, colour, depth)
    at = data.index(b"IDAT") + 4
    longer = len(data) // 2
    changed = data[: at + 40] + bytes([data[at + 40] ^ 255]) + data[at + 41 :]
    for damaged in (data[:longer], changed, data[:-14] + b"0000" + data[-10:]):
        for ask in ASKED.values():
            expected = outcome(damaged, ask)
            with switch.deferring():
                assert outcome(damaged, ask) == expected


class _Own(PngImageFile):
    """As a program may register it."""


@pytest.mark.parametrize("without", ["tiles", "its class", "a file"])
def test_what_is_no_plain_png_of_pillows_is_left_to_it(without: str) -> None:
    image = PIL.Image.open(io.BytesIO(png_files.image(np.random.default_rng(0), 9, 8, GRAY, 16)))
    assert isinstance(image, PngImageFile)
    if without == "tiles":
        vars(image)["tile"] = None  # as old releases have it where there are no pixels
    elif without == "its class":
        image.__class__ = _Own
    else:
        image.fp = None
    assert not load_rows(image)


MOVES: dict[str, Callable[[Any], Any]] = {
    "crop, resize, flip": lambda image: (
        image.crop((5, 6, 90, 70))
        .resize((64, 48), PIL.Image.Resampling.NEAREST)
        .transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
    ),
    "beyond": lambda image: image.crop((-9, 20, 130, 95)),
    "quarters": lambda image: image.transpose(PIL.Image.Transpose.ROTATE_90).transpose(
        PIL.Image.Transpose.FLIP_TOP_BOTTOM
    ),
    "enlarged": lambda image: image.resize((211, 150), PIL.Image.Resampling.NEAREST).copy(),
    "padded": lambda image: functional.pad(image, [3, 0, 7, 9], fill=200),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("kind", ["gray", "palette", "transparent"])
def test_masks_that_are_only_moved_are_moved_by_pillow(
    decoders: list[str], move: str, kind: str
) -> None:
    levels = np.random.default_rng(4).integers(0, 256, (80, 100), np.uint8)
    picture = PIL.Image.fromarray(levels)
    if kind != "gray":
        picture = picture.convert("RGB").quantize(30)
    file = io.BytesIO()
    picture.save(file, "PNG", **({"transparency": 3} if kind == "transparent" else {}))

    def array() -> Any:
        return np.asarray(MOVES[move](PIL.Image.open(io.BytesIO(file.getvalue()))))

    expected = array()
    decoders.clear()
    with switch.deferring():
        found = array()
    assert seen(found) == seen(expected)
    assert found.flags.writeable == expected.flags.writeable
    assert decoders == [] or move == "padded"


def test_a_body_that_getexif_would_have_refused_fails_the_batch_later() -> None:
    file = io.BytesIO()
    PIL.Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(file, "PNG")
    damaged = bytearray(file.getvalue())
    damaged[damaged.index(b"IDAT") + 4] = 0  # what says how the pixels are compressed
    with pytest.raises(OSError):
        PIL.Image.open(io.BytesIO(damaged)).getexif()
    with switch.deferring():
        image = PIL.Image.open(io.BytesIO(damaged))
        with pytest.raises(OSError):
            assert not image.getexif()
            assert image.info == {}
            image.convert("RGB")
        assert THREAD.batch.has_failed()
