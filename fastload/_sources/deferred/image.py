"""DeferredImage: a PIL image without pixels, which knows what was opened and what was asked of it.

It passes for what ``PIL.Image.open`` gives and for what comes of it. An operation of
``operations.py`` gives a new deferred image. Whatever else is asked of it materialises it, and from
then on everything is asked of the real image.

Note [Errors of the body]
    Pillow decodes at the first operation, and raises there if the body is damaged. A deferred image
    cannot know. Who makes the pixels later (a batch) has to run the user's code again without
    deferring, so that the user's own ``except`` sees what it would have seen.

Note [What outlives its batch]
    A dataset may keep images, and ask for something of each in every epoch. Pillow decodes them
    once. So a deferred one is made real when a second batch after its own uses it, or code that
    defers nothing. Not in the first one: a stream may shuffle what it has opened, and use it once.
"""

from __future__ import annotations

import contextlib
import functools
import io
import operator
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard, cast

import numpy as np
import PIL.Image
import PIL.ImageFilter
from PIL.Image import Image
from PIL.ImageFile import ImageFile

from ..._base.pixel_limit import is_within
from . import headers, single
from .composed import Unsupported, levels
from .headers import SETTLED
from .operations import IMAGE_OPERATIONS
from .recording import Argument, Opened, Operation, Recording
from .replay import encoded, load_rows, record_info, reopen, replay
from .stand_in import Seen, StandIn
from .thread_state import THREAD, BatchContext, cause, note_made

if TYPE_CHECKING:
    from .image_draw import DeferredDraw

Info: TypeAlias = "dict[str | tuple[int, int], Any]"

# What is recorded, by mode. The others materialise.
CONVERTED_FROM = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"})
CONVERTED_TO = frozenset({"L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"})
_EFFECTS = {
    name: (operation.effect, operation.keeps_info) for name, operation in IMAGE_OPERATIONS.items()
}
_CONVERSIONS: dict[str, Operation] = {mode: ("convert", mode) for mode in CONVERTED_TO}
RESIZED = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"})
PLAIN = frozenset({"L", "RGB"})

# Of a PNG that is no animation: as others are not deferred, its header need not be asked.
_OF_ONE_FRAME: Final = {"custom_mimetype": None, "n_frames": 1, "is_animated": False}

_LOADED = frozenset(("fp", "map", "png", "tile"))  # attributes that loading and leaving change

# Functions that load the image, and give another one.
_LOADING = frozenset(
    ("convert", "crop", "filter", "getchannel", "point", "resize", "rotate", "split", "transform",
     "transpose")
)  # fmt: skip

_RESAMPLING = frozenset(int(filter) for filter in PIL.Image.Resampling)
# Each rectangle is drawn in three channels, and its recording is as long as all before it.
_MOST_BEFORE_DRAWING = 20
_WARPING = frozenset({0, 2, 3})  # nearest, bilinear, bicubic
_WARPS: dict[int, tuple[str, int]] = {  # operations, and how many numbers they take
    PIL.Image.Transform.AFFINE: ("affine", 6),
    PIL.Image.Transform.PERSPECTIVE: ("perspective", 8),
}
_TRANSPOSED: dict[int, tuple[Operation, ...]] = {
    PIL.Image.Transpose.FLIP_LEFT_RIGHT: (("flip", False),),
    PIL.Image.Transpose.FLIP_TOP_BOTTOM: (("flip", True),),
    PIL.Image.Transpose.ROTATE_90: (("rot90", 1),),
    PIL.Image.Transpose.ROTATE_180: (("rot90", 2),),
    PIL.Image.Transpose.ROTATE_270: (("rot90", 3),),
    # At the main diagonal, and at the other one.
    PIL.Image.Transpose.TRANSPOSE: (("rot90", 1), ("flip", True)),
    PIL.Image.Transpose.TRANSVERSE: (("rot90", 1), ("flip", False)),
}
_KERNELS: dict[object, str] = {
    getattr(PIL.ImageFilter, name): name
    for name in ("BLUR", "CONTOUR", "DETAIL", "EDGE_ENHANCE", "EDGE_ENHANCE_MORE", "EMBOSS",
                 "FIND_EDGES", "SHARPEN", "SMOOTH", "SMOOTH_MORE")
}  # fmt: skip
COPY: tuple[Operation, ...] = (("copy",),)


class DeferredImage(Image, metaclass=StandIn):
    """An image that is not decoded yet.

    ``stands_for`` is the class of the image that Pillow would have given: ``seen_as`` makes the
    class of its objects.
    """

    stands_for: type[Image] = Image

    __hash__ = None  # type: ignore[assignment] # as PIL.Image.Image

    _batch = BatchContext()  # in which it was opened; of what is kept, in which it is used
    _outlived = False  # whether it was used after the batch in which it was opened
    _operations: tuple[Operation, ...] = ()
    # Set by openers.py for what the user's code opened, not for what comes of it.
    filename: Any
    _file: io.IOBase | None = None  # the user's own, where one was given
    _plain_header = False  # there is no EXIF in the file
    _transparent = False  # a colour or palette entry is

    _real: Image | None = None
    _draw: weakref.ref[DeferredDraw] | None = None  # what draws on it, as long as that records
    _array: np.ndarray | None = None  # its pixels, where the core has made them
    _head: ImageFile | None = None
    _info: Info | None = None
    _exif: Any = None
    _loaded = False
    _exited = False

    def __init__(self, recording: Recording) -> None:
        # Not Image.__init__: what that sets are properties here.
        self._opened: Opened = recording.opened
        self._operations = recording.operations
        self._size = recording.size
        self._mode = recording.mode

    @classmethod
    def of_pixels(cls, recording: Recording) -> DeferredImage:
        """An image of the same pixels that came of no file: loaded, and without ``info``."""
        operations = recording.operations or COPY
        new = _SEEN(recording._replace(operations=operations))
        new._batch = THREAD.batch
        new._loaded = True
        new._info = {}
        return new

    # What it is.

    @property
    def recording(self) -> Recording | None:
        """None: it is materialised."""
        if self._real is not None:
            return None
        return Recording(self._opened, self._operations, self._size, self._mode)

    @property
    def _waits(self) -> bool:
        """Whether it is not materialised; asked when it is used."""
        if self._real is None and self._batch.over:
            self._outlive()
        return self._real is None

    def _outlive(self) -> None:
        """See Note [What outlives its batch]."""
        if self._outlived or not THREAD.deferring:
            with cause("Image.load"):
                self.materialise()
        else:
            self._outlived, self._batch = True, THREAD.batch

    def materialise(self) -> Image:
        """Make the real PIL image, once, and return it: same mode, size, info and pixels.

        Raises:
            FileChanged: its file changed since it was opened.
            Whatever Pillow raises for a damaged body.
        """
        if self._real is None:
            if self._operations:
                recording = Recording(self._opened, self._operations, self._size, self._mode)
                real = self._of_pixels() or cast(Image, replay(recording))
                if self._info is not None:
                    real.info = self._info
            else:
                real = self._header()
                if self._array is not None and self._opened.format in SETTLED:
                    real.im = PIL.Image.frombytes(self._mode, self._size, self._array).im
                    real.tile = []  # Pillow has nothing to load any more
                    real.readonly = 0
                elif self._exited:
                    real.__exit__(None, None, None)
                elif self._loaded:
                    if not load_rows(real):
                        real.load()  # the user's code would have seen that it is damaged
                    note_made(self._opened)
                elif getattr(self._file, "closed", False):
                    real.fp = cast(Any, self._file)  # Pillow could not read on, either
            if self._exif is not None:
                real._exif = self._exif
            self._real = real
            self._head = None
            self._end_drawing()
        for name in self.__dict__.keys() - _OWN:  # what the user's code has set
            setattr(self._real, name, self.__dict__[name])
        return self._real

    def _of_pixels(self) -> Image | None:
        """The real image of what came of the one that was opened; None: the core cannot make it."""
        keeps_info = self._keeps_info()
        if keeps_info and self._opened.format not in SETTLED:
            return None  # Pillow finds the info of such formats when it decodes
        pixels = self._pixels()
        if pixels is None:
            return None
        real = PIL.Image.frombytes(self._mode, self._size, pixels)
        if self._info is not None or keeps_info:
            real.info = self.info
        return real

    def _pixels(self) -> np.ndarray | None:
        """Its pixels as the core makes them, read-only; None: it cannot."""
        if self._real is not None:
            return None
        if self._array is None:
            self._first_load()
            recording = self.recording
            if recording is not None:
                self._array = single.pixels(recording)
        return self._array

    def _keeps_info(self) -> bool:
        return all(IMAGE_OPERATIONS[name].keeps_info for name, *_ in self._operations)

    def _real_for(self, function: str) -> Image:
        """The real image, for ``function``, which is not recorded.

        What was opened stays to be loaded by Pillow, which checks arguments first, and may copy the
        ``info`` first; unless it is a sound PNG, and loading adds nothing to that.
        """
        if self._real is not None:
            return self._real
        with cause(f"Image.{function}"):
            real = self.materialise()
            if function in _LOADING:
                load_rows(real, adds_info=False)
            return real

    def _header(self) -> ImageFile:
        """What ``PIL.Image.open`` gives: the header read, the body not."""
        assert not self._operations
        if self._head is None:
            head = reopen(self._opened)
            head.filename = self.filename
            if self._info is not None:
                head.info = self._info
            self._info = head.info
            self._head = head
        return self._head

    def _as_read(self, function: str) -> Image:
        """What was opened, as far as Pillow would have read it, which may add to its ``info``."""
        if self._loaded and self._opened.format not in SETTLED:
            return self._real_for(function)
        return self._header()

    def _first_load(self) -> None:
        """What loading does to the user's file, and fails at when that is closed."""
        if self._loaded:
            return
        if not self._operations:
            file = self._file
            if self._exited or (file is not None and getattr(file, "closed", False)):
                self.materialise().load()  # which raises
            elif file is not None:
                # Pillow reads blocks, to the end of all but odd files; of a PNG all but a checksum.
                file.seek(-4 if self._opened.format == "PNG" else 0, io.SEEK_END)
            if self._info is not None and self._opened.format not in SETTLED:
                self.materialise().load()  # somebody has the info, and loading adds to that
        if self._batch.checks:
            self._opened = single.checked(self._opened)
        self._loaded = True
        unmade = self._batch.unmade
        if unmade is not None:
            unmade[id(self._opened)] = self._opened

    def _then(self, *operations: Operation, mine: bool = False) -> DeferredImage:
        """A new image: this one after these operations; ``mine``: this one itself is changed."""
        if not self._loaded:
            self._first_load()
        if not operations and not self._operations:
            operations = COPY  # what comes of an image is no file any more
        size, mode, keeps_info = self._size, self._mode, True
        for operation in operations:
            effect, keeps = _EFFECTS[operation[0]]
            if effect is not None:
                size, mode = effect(size, mode, *operation[1:])
            keeps_info = keeps_info and keeps
        new = self
        if not mine:
            new = object.__new__(_SEEN)
            new._batch = self._batch
            new._opened = self._opened
            new._loaded = True
            if self._transparent:
                new._transparent = True
        new._operations = self._operations + operations
        new._size = size
        new._mode = mode
        if self._info is not None:
            new._info = self._copy_info() if keeps_info else {}
        elif self._plain_header:
            new._plain_header = True
        return new

    # What Pillow keeps in attributes.

    @property
    def __class__(self) -> type:
        # isinstance(image, JpegImageFile) holds for what was opened, and not for what came of it.
        return type(self).stands_for

    @__class__.setter
    def __class__(self, kind: type) -> None:
        """It becomes an image of the user's class, and is deferred no more. fastai does so."""
        real = self._real_for("__class__")
        real.__class__ = kind  # raises what Pillow's image would
        vars(self).clear()
        vars(self).update(vars(real))
        vars(object)["__class__"].__set__(self, kind)

    @property
    def mode(self) -> str:
        return self._mode

    @property
    def format(self) -> str | None:
        """The file's format for what was opened; None for what came of it."""
        if self._real is not None:
            return self._real.format
        return None if self._operations else self._opened.format

    @format.setter
    def format(self, format: str | None) -> None:
        self._real_for("format").format = format

    @property
    def format_description(self) -> str | None:  # type: ignore[override]
        if self._real is not None:
            return self._real.format_description
        kind = type(self).stands_for
        return kind.format_description if issubclass(kind, ImageFile) else None

    @property
    def info(self) -> Info:
        """What the header says, as Pillow gives it."""
        if self._real is not None:
            return self._real.info
        if self._info is None:
            self._info = self._find_info()
        return self._info if self._real is None else self._real.info

    @info.setter
    def info(self, info: Info) -> None:
        if self._real is not None or info is None:  # which says here that it is not known yet
            self._real_for("info").info = info
        self._info = info

    def _find_info(self) -> Info:
        if self._opened.stored is not None:
            info = record_info(self._opened, self._opened.stored)
            if info is not None:
                return info if self._keeps_info() else {}
        if self._opened.format not in SETTLED:
            with cause("Image.info"):
                real = self.materialise()
                if self._operations or self._loaded:
                    real.load()
                return real.info
        if not self._operations:
            return self._header().info
        return dict(reopen(self._opened).info) if self._keeps_info() else {}

    @property
    def palette(self) -> Any:
        if self._real is not None:
            return self._real.palette
        if self._mode not in ("P", "PA"):
            return None
        return (self._real_for if self._operations else self._as_read)("palette").palette

    @palette.setter
    def palette(self, palette: Any) -> None:
        self._real_for("palette").palette = palette

    @property
    def readonly(self) -> int:
        """Whether Pillow would copy the pixels before it writes to them."""
        if self._real is not None or self._operations:
            return self._real_for("readonly").readonly
        return int(not self._loaded)

    @readonly.setter
    def readonly(self, readonly: int) -> None:
        self._real_for("readonly").readonly = readonly

    @property
    def im(self) -> Any:
        return self._real_for("im").im

    @im.setter
    def im(self, im: Any) -> None:
        real = self._real_for("im")
        real.im = im
        if im is not None:
            # Next comes ``image._size = im.size``, as in ImageOps.exif_transpose, and ``real``
            # cannot see that. Alone, Pillow keeps the old size, which then fits nothing.
            real._size, real._mode = im.size, im.mode
        self._adopt()

    @property
    def _im(self) -> Any:
        return self._real_for("im")._im

    @_im.setter
    def _im(self, im: Any) -> None:
        self._real_for("im")._im = im

    def __getattr__(self, name: str) -> Any:
        # What only some images have, such as a JPEG's quantization tables.
        if not name.startswith("__"):
            if self._real is not None:
                return getattr(self._real, name)
            if not self._operations:
                if name in _OF_ONE_FRAME and self._opened.format == "PNG":
                    return _OF_ONE_FRAME[name]
                changed = (self._loaded or self._exited) and name in _LOADED
                read = self._real_for if changed else self._as_read
                return getattr(read(name), name)
        kind = self.__class__.__name__
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")

    def _adopt(self) -> None:
        """Take over what an operation in place may have changed."""
        real = self._real
        if real is not None:
            self._size = real.size
            self._mode = real.mode

    # What is recorded.

    def copy(self) -> Image:
        return self._then() if self._waits else self._real_for("copy").copy()

    __copy__ = copy

    def convert(
        self,
        mode: str | None = None,
        matrix: Any = None,
        dither: Any = None,
        palette: Any = PIL.Image.Palette.WEB,
        colors: int = 256,
    ) -> Image:
        if self._waits and not matrix:
            if mode == self._mode:
                return self._then(_CONVERSIONS.get(mode) or ("convert", mode))
            if (
                mode in CONVERTED_TO
                and self._mode in CONVERTED_FROM
                and (dither is None or dither == PIL.Image.Dither.FLOYDSTEINBERG)
                and keeps_no_color(self)
                and _converts(self._mode, mode)
            ):
                return self._then(_CONVERSIONS[mode])
        return self._real_for("convert").convert(mode, matrix, dither, palette, colors)

    def crop(self, box: Any = None) -> Image:
        if self._waits:
            if box is None:
                return self._then()
            numbers = _integers(box)
            if numbers is not None:
                left, top, right, bottom = numbers
                w, h = right - left, bottom - top
                if (left, top, w, h) == (0, 0, *self._size):
                    return self._then()
                within = w > 0 and h > 0 and is_within(w, h) and max(map(abs, numbers)) < _FARTHEST
                if within:
                    return self._then(("crop", left, top, w, h))
        return self._real_for("crop").crop(box)

    def resize(
        self,
        size: Any,
        resample: Any = None,
        box: Any = None,
        reducing_gap: float | None = None,
    ) -> Image:
        if self._waits and self._mode in RESIZED:
            if resample is None:
                resample = PIL.Image.Resampling.BICUBIC
            new_size = _size(size)
            if new_size is not None and isinstance(resample, int) and resample in _RESAMPLING:
                whole = 0, 0, *self._size
                inner = whole if box is None else _box_within(box, self._size)
                if inner is not None and _in_one_step(inner, new_size, reducing_gap):
                    if inner == whole and new_size == self._size:
                        return self._then()
                    if box is None:
                        return self._then(("resize", *new_size, int(resample)))
                    return self._then(("resize_box", *new_size, int(resample), inner))
        return self._real_for("resize").resize(size, resample, box, reducing_gap)

    def transpose(self, method: Any) -> Image:
        if self._waits and isinstance(method, int) and method in _TRANSPOSED:
            return self._then(*_TRANSPOSED[method])
        return self._real_for("transpose").transpose(method)

    def rotate(self, angle: float, *args: Any, **kwargs: Any) -> Image:
        """Pillow makes it of the other operations."""
        if self._waits and self._mode in PLAIN:
            return Image.rotate(self, angle, *args, **kwargs)
        return self._real_for("rotate").rotate(angle, *args, **kwargs)

    def transform(
        self,
        size: Any,
        method: Any,
        data: Any = None,
        resample: int = PIL.Image.Resampling.NEAREST,
        fill: int = 1,
        fillcolor: Any = None,
    ) -> Image:
        if (
            self._waits
            and self._mode in PLAIN
            and isinstance(method, int)
            and method in _WARPS
            # Pillow copies the info before it loads, which adds to that of some formats.
            and (self._loaded or self._opened.format in SETTLED)
        ):
            name, count = _WARPS[method]
            numbers = _floats(data, count)
            new_size = _size(size)
            if (
                numbers is not None
                and new_size is not None
                and isinstance(resample, int)
                and resample in _WARPING
                and fits(self._mode, fillcolor)
            ):
                return self._then((name, *new_size, numbers, int(resample), fillcolor))
        return self._real_for("transform").transform(size, method, data, resample, fill, fillcolor)

    def filter(self, filter: Any) -> Image:
        if self._waits and self._mode in PLAIN:
            kind = filter if isinstance(filter, type) else type(filter)
            if kind in _KERNELS:
                return self._then(("filter", _KERNELS[kind]))
            if (
                kind in (PIL.ImageFilter.GaussianBlur, PIL.ImageFilter.BoxBlur)
                and kind is not filter
            ):
                radius = filter.radius
                radii = (radius, radius) if isinstance(radius, (int, float)) else radius
                x_y = _floats(radii, 2)
                if x_y is not None and len(radii) == 2 and min(x_y) >= 0:
                    gaussian = kind is PIL.ImageFilter.GaussianBlur
                    return self._then(("gaussian_blur" if gaussian else "box_blur", *x_y))
            if kind is PIL.ImageFilter.Kernel and kind is not filter:
                kernel = _kernel(filter.filterargs)
                if kernel is not None:
                    return self._then(kernel)
        return self._real_for("filter").filter(filter)

    def split(self) -> tuple[Image, ...]:
        if self._waits and self._mode in PLAIN:
            self._first_load()
            if self._real is None:
                if self._mode == "L":
                    return (self.copy(),)
                return tuple(self._then(("band", band)) for band in range(3))
        return self._real_for("split").split()

    def getchannel(self, channel: int | str) -> Image:
        bands = self.getbands()
        band = bands.index(channel) if channel in bands else channel
        if self._waits and self._mode == "RGB" and type(band) is int and 0 <= band < 3:
            self._first_load()
            if self._real is None:
                return self._then(("band", band))
        return self._real_for("getchannel").getchannel(channel)

    def point(self, lut: Any, mode: str | None = None) -> Image:
        if self._waits and self._mode in PLAIN and mode is None:
            self._first_load()
            bands = len(self._mode)
            if callable(lut) and not isinstance(lut, PIL.Image.ImagePointHandler):
                lut = [lut(level) for level in range(256)] * bands
            table = _table(lut, bands)
            if table is not None and self._real is None:
                return self._then(("point", table))
        return self._real_for("point").point(lut, mode)

    # What needs pixels, but no image of Pillow's.

    @property
    def __array_interface__(self) -> dict[str, Any]:
        with self._caused_by("__array_interface__"):
            made_now = self._array is None
            pixels = self._pixels() if self._waits else None
            if pixels is None:
                return self.materialise().__array_interface__
        # Nobody else's: ``torch.from_numpy`` writes to what is read-only for NumPy.
        data: np.ndarray | bytes = pixels
        if single.let_go(self._opened, made_now):
            self._array = None
        else:
            data = pixels.tobytes()
        return {"version": 3, "shape": pixels.shape, "typestr": pixels.dtype.str, "data": data}

    def tobytes(self, encoder_name: str = "raw", *args: Any) -> bytes:
        with self._caused_by("tobytes"):
            raw = encoder_name == "raw" and not args
            pixels = self._pixels() if raw and self._waits else None
            if pixels is None:
                return self.materialise().tobytes(encoder_name, *args)
        return pixels.tobytes()

    def _caused_by(self, function: str) -> contextlib.AbstractContextManager[None]:
        """A context: ``function`` asked for what is made within it."""
        ready = self._real is not None or self._array is not None
        return contextlib.nullcontext() if ready else cause(f"Image.{function}")

    # What neither records nor decodes.

    def load(self) -> Any:
        """Pillow's pixel access. It decodes when a pixel is asked for."""
        if self._waits:
            self._first_load()
        return _Pixels(self) if self._real is None else self._real.load()

    getbands = Image.getbands

    def getdraw(self, mode: str | None = None) -> DeferredDraw:
        """What ``ImageDraw.Draw`` asks images for first, whatever they are."""
        self._end_drawing()  # of another one
        if not (self._operations and self._records_in_place and mode in (None, self._mode)):
            raise AttributeError("getdraw")  # as images of Pillow's, which have none
        self._first_load()
        from .image_draw import DeferredDraw  # PIL.ImageDraw is imported by now

        draw = DeferredDraw(self)
        self._draw = weakref.ref(draw)
        return draw

    def draw_rectangle(self, corners: tuple[int, int, int, int], fill: Argument) -> bool:
        """Record it, and return True; False: it has to be drawn."""
        recorded = self._records_in_place and _is_drawn(self._mode, fill)
        recorded = recorded and len(self._operations) < _MOST_BEFORE_DRAWING
        if recorded:
            info = self._info
            self._then(("rectangle", *corners, fill), mine=True)
            self._info = info  # the same object
        return recorded

    def _end_drawing(self) -> None:
        """Have what draws on it draw on its pixels, which other changes may replace."""
        draw = None if self._draw is None else self._draw()
        if draw is not None:
            draw.begin()

    @property
    def _records_in_place(self) -> bool:
        """Whether nobody has its pixels, which are to change."""
        return self._real is None and self._array is None and self._mode in PLAIN

    def getexif(self) -> Any:
        if not self._waits:
            return self._real_for("getexif").getexif()
        if self._exif is None and self._info is None and self._without_exif():
            if self._opened.format == "PNG":
                self._first_load()  # Pillow looks for EXIF after the pixels, too
            self._exif = PIL.Image.Exif()
            self._exif._loaded = True
            return self._exif
        if not self._operations:
            if self._exif is None:
                self._exif = self._as_read("getexif").getexif()
            return self._exif
        return Image.getexif(self)

    def _without_exif(self) -> bool:
        if not self._plain_header and self._opened.format == "PNG":
            # Pillow would decode it, since EXIF may follow the pixels.
            self._plain_header = headers.png_without_exif(encoded(self._opened))
        return self._plain_header

    _reload_exif = Image._reload_exif

    @property
    def has_transparency_data(self) -> bool:
        return bool(Image.has_transparency_data.fget(self))  # type: ignore[attr-defined]

    def _copy_info(self) -> Info:
        return {k: v.copy() if isinstance(v, list) else v for k, v in self.info.items()}

    def tell(self) -> int:
        return 0 if self._real is None else self._real.tell()

    def __enter__(self) -> DeferredImage:
        return self

    def __exit__(self, *args: object) -> None:
        if self._real is not None:
            self._real.__exit__(*args)
        elif not self._operations and not self._loaded:
            self._exited = True

    def close(self) -> None:
        """Close it, as Pillow does: nothing can be asked of it afterwards."""
        self._end_drawing()
        if self._real is None and self._operations:
            # Of which only the error is wanted, or another one that the size leads to.
            self._real = PIL.Image.new(self._mode, self._size)
            self._real.info = self._info or {}
        else:
            self._real = real = cast(Any, self._real or self._head or _unread(self))
            waits = not (self._loaded or self._exited) and getattr(real, "fp", None) is not None
            if self._file is not None and (waits or self._opened.format == "PNG"):
                real.fp = self._file  # which Pillow closes, too
        self._real.close()

    # Operations in place that depend on whether the body was read.

    def verify(self) -> None:
        self._real_for("verify").verify()

    def seek(self, frame: int) -> None:
        """Go to another frame, as Pillow does. It is at the first one."""
        if frame != 0 or self._real is not None:
            self._real_for("seek").seek(frame)
            self._adopt()

    def thumbnail(
        self,
        size: Any,
        resample: Any = PIL.Image.Resampling.BICUBIC,
        reducing_gap: Any = 2.0,
    ) -> None:
        self._end_drawing()
        if self._waits and self._operations:  # else it may be decoded in another size
            arguments = _resize_in_thumbnail(self, size, resample, reducing_gap)
            if arguments is None:
                return
            resized = self.resize(*arguments)
            if waiting(resized):
                self._operations, self._size = resized._operations, resized._size
                self._array = None
                return
        _delegate("thumbnail")(self, size, resample, reducing_gap)

    # Copies of the object.

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._real_for("__reduce__").__reduce_ex__(protocol)

    __repr__ = Image.__repr__


@functools.cache
def seen_as(kind: type[Image]) -> type[DeferredImage]:
    """The class of deferred images that Pillow would have given as ``kind``."""
    deferred = Seen(kind.__name__, (DeferredImage,), {"stands_for": kind})
    return cast("type[DeferredImage]", deferred)


_SEEN: Final = seen_as(Image)  # of what came of an image that was opened


# Its own attributes. Others are the user's.
_OWN = frozenset(
    ("_batch", "_outlived", "_opened", "_operations", "_size", "_mode", "_file", "_plain_header",
     "_transparent", "_real", "_array", "_head", "_info", "_exif", "_loaded", "_exited", "_draw")
)  # fmt: skip


def _resize_in_thumbnail(image: DeferredImage, *arguments: Any) -> tuple[Any, ...] | None:
    """What Pillow's ``thumbnail`` gives ``resize``; None: it does not resize."""
    w, h = image._size
    stand_in = SimpleNamespace(size=(w, h), width=w, height=h, im=SimpleNamespace(mode=image._mode))
    stand_in.draft = lambda mode, size: None  # as of an image that is no file
    stand_in.load = lambda: None  # in older versions of Pillow
    calls: list[tuple[Any, ...]] = []

    def resize(size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
        calls.append((size, resample, box, reducing_gap))
        return stand_in

    stand_in.resize = resize
    Image.thumbnail(cast(Any, stand_in), *arguments)
    return calls[0] if calls else None


class _Pixels:
    """Pillow's PixelAccess of an image that is decoded when a pixel is asked for."""

    def __init__(self, image: DeferredImage) -> None:
        self._image = image

    def _access(self) -> Any:
        return self._image._real_for("load").load()

    def __getitem__(self, xy: Any) -> Any:
        return self._access()[xy]

    def __setitem__(self, xy: Any, value: Any) -> None:
        self._access()[xy] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._access(), name)


def _delegate(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(Image, name))
    def method(self: DeferredImage, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._real is not None:
                return getattr(self._real, name)(*args, **kwargs)
            with cause(f"Image.{name}"):
                return getattr(self.materialise(), name)(*args, **kwargs)
        finally:  # what fails may have changed the image before that
            self._adopt()

    return method


def _delegated(name: str) -> property:
    def get(self: DeferredImage) -> Any:
        if self._real is not None:
            return getattr(self._real, name)
        with cause(f"Image.{name}"):
            return getattr(self.materialise(), name)

    return property(get)


def _complete(kind: type[DeferredImage]) -> None:
    """Whatever else Pillow's class has, in this version of Pillow, is asked of the real image."""
    sized = {"width", "height", "size", "__init__", "__module__", "__dict__", "__weakref__"}
    for name, value in vars(Image).items():
        own = vars(kind).get(name)
        if isinstance(own, type(_complete)) and isinstance(value, type(_complete)):
            own.__qualname__ = value.__qualname__  # which is in Python's errors
        if name in vars(kind) or name in sized or name.startswith("_Image__"):
            continue
        if isinstance(value, property):
            setattr(kind, name, _delegated(name))
        elif isinstance(value, type(_complete)):
            setattr(kind, name, _delegate(name))


_complete(DeferredImage)


def merged(bands: Any) -> DeferredImage | None:
    """The image that three bands of one image are, in any order; None: they are not."""
    if type(bands) not in (tuple, list) or len(bands) != len("RGB"):
        return None
    if not all(map(waiting, bands)):
        return None
    (first, before), *others = ((band._opened, band._operations[:-1]) for band in bands)
    if not all(opened is first and operations == before for opened, operations in others):
        return None
    ends = [band._operations[-1:] for band in bands]
    if not all(end and end[0][0] == "band" for end in ends):
        return None
    image = bands[0]._then()
    image._operations = before or COPY
    image._mode = "RGB"
    reordered: DeferredImage = image._then(("order", *(number for ((_, number),) in ends)))
    return reordered


def _unread(image: DeferredImage) -> Image:
    """An image of the same class, to be closed."""
    try:
        return reopen(image._opened)
    except OSError:
        return PIL.Image.new(image._mode, (1, 1))


@functools.cache
def _converts(old: str, new: str) -> bool:
    """Whether Pillow converts between these modes."""
    try:
        PIL.Image.new(old, (1, 1)).convert(new)
    except ValueError:
        return False
    return True


def _integers(box: Any) -> tuple[int, int, int, int] | None:
    """Four integers, rounded as ``Image.crop`` does; None if these are no plain numbers."""
    if type(box) is not tuple and type(box) is not list:
        return None
    if len(box) != 4:
        return None
    a, b, c, d = box
    if type(a) is int and type(b) is int and type(c) is int and type(d) is int:
        return a, b, c, d
    try:
        if c < a or d < b:  # Pillow compares before it rounds
            return None
        left, top, right, bottom = (int(v) for v in map(round, box))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return left, top, right, bottom


def _floats(values: Any, count: int) -> tuple[float, ...] | None:
    """The first ``count`` values, if they are plain numbers."""
    if not isinstance(values, (tuple, list)) or len(values) < count:
        return None
    numbers = tuple(values[:count])
    plain = all(type(v) is float or type(v) is int for v in numbers)
    return numbers if plain and all(-_LARGEST < v < _LARGEST for v in numbers) else None


def _kernel(arguments: Any) -> Operation | None:
    """The operation of an ``ImageFilter.Kernel``, of numbers that Pillow takes."""
    (w, h), scale, offset, weights = arguments
    numbers = _floats(weights, w * h)
    scale_and_offset = _floats((scale, offset), 2)
    if (w, h) not in ((3, 3), (5, 5)) or numbers is None or scale_and_offset is None or scale == 0:
        return None
    return "kernel", w, *scale_and_offset, numbers


def _table(lut: Any, bands: int) -> tuple[int, ...] | None:
    """The levels that ``Image.point`` makes of each level: 256 for all bands, or for each."""
    if type(lut) not in (list, tuple) or len(lut) != 256 * bands:
        return None
    if not _NUMBERS.issuperset(map(type, lut)):
        return None
    try:
        table = bytes(lut)
    except (TypeError, ValueError):  # a float, or beyond a byte: Pillow rounds and clips
        if not -_MOST < min(lut) <= max(lut) < _MOST:
            return None
        table = bytes([0 if v < 0 else 255 if v > 255 else round(v) for v in lut])
    first = table[:256]
    return tuple(first if table == first * bands else table)


_NUMBERS = frozenset({int, float, bool})  # ``level > 9 and 255`` is a bool or an int
_MOST = 1 << 31  # of a level before it is clipped, and of what Pillow takes for a C int
_FARTHEST = 1 << 24  # of a corner: the core's
_LARGEST = 1e30  # number that is recorded, which leaves out inf and nan


def _size(size: Any) -> tuple[int, int] | None:
    """Width and height, if Pillow takes them: NumPy's integers, too."""
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        return None
    w, h = size
    if type(w) is not int or type(h) is not int:
        try:
            w, h = operator.index(w), operator.index(h)
        except TypeError:
            return None
    return (w, h) if 0 < w < _MOST and 0 < h < _MOST else None


def _box_within(box: Any, size: tuple[int, int]) -> tuple[float, ...] | None:
    """The box, if Pillow's resize takes it: not empty, inside the image."""
    corners = _floats(box, 4)
    if corners is None or len(box) != 4:
        return None
    left, top, right, bottom = corners
    inside = 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
    return corners if inside else None


def _in_one_step(box: tuple[float, ...], size: tuple[int, int], reducing_gap: Any) -> bool:
    """Whether Pillow resizes the box without reducing it by a whole number first."""
    if reducing_gap is None:
        return True
    if type(reducing_gap) not in (int, float) or not reducing_gap >= 1:
        return False
    (left, top, right, bottom), (w, h) = box, size
    across, down = (right - left) / w / reducing_gap, (bottom - top) / h / reducing_gap
    return bool(max(across, down) < 2)


def fits(mode: str, color: Any) -> bool:
    """Whether Pillow takes a colour for images of this mode."""
    values = color if type(color) is tuple else (color,)
    kinds = tuple(type(v) for v in values)
    return _KINDS.issuperset(kinds) and _fits(mode, color, kinds)


_KINDS = frozenset({int, float, str, type(None)})


@functools.lru_cache(1024)
def _fits(mode: str, color: Argument, kinds: tuple[type, ...]) -> bool:
    try:
        PIL.Image.new(mode, (1, 1), cast(Any, color))
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_drawn(mode: str, color: Any) -> bool:
    """Whether the core fills with the levels that Pillow draws in this colour."""
    values = color if type(color) is tuple else (color,)
    in_range = all(type(value) is int and value <= 0xFFFFFF for value in values)
    if not in_range or (mode == "L" and len(values) > 1):
        return False
    try:
        levels(mode, color)
        return True
    except Unsupported:
        return False


def waiting(image: object) -> TypeGuard[DeferredImage]:
    """Whether this is a deferred image that is not materialised."""
    return isinstance(image, DeferredImage) and image._waits


def keeps_no_color(image: DeferredImage) -> bool:
    """Whether there is no transparent colour, which some functions take over."""
    return not image._transparent and (image._info is None or "transparency" not in image._info)


def sides_of(border: Any) -> tuple[int, int, int, int] | None:
    """Left, top, right and bottom of a border as ``ImageOps.expand`` takes it; None: negative."""
    values = (border,) if type(border) is int else border
    if (
        type(values) is not tuple
        or len(values) not in (1, 2, 4)
        or (border is values and len(values) == 1)
    ):
        return None
    if not all(type(v) is int and v >= 0 for v in values):
        return None
    if len(values) == 4:
        return values[0], values[1], values[2], values[3]
    return values[0], values[-1], values[0], values[-1]
