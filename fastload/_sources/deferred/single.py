"""A single image or tensor that the user's code asks for, made there and then by the core.

The values are those of ``replay.py``, bit for bit, but the core decodes, on the caller's thread and
without the interpreter's lock. The result is None where the core cannot make them, or declines the
file; then the caller replays, and Pillow decides what is an error.

Note [Decoded once]
    The first request decodes what it needs of an image, a crop for example. If the same image is
    asked for again, what both requests begin with is made and kept, at least the whole image:
    further requests begin with these pixels. So it is at the first request, if the image before was
    asked for again, as with several views. One image is kept per thread, until another one is asked
    for or the batch ends. But an array that is asked for is the user's to keep, and what is asked
    for next is decoded again.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import PIL.Image
import torch

from ... import _native
from ..._engine.kernel import pixels_as_files
from . import lowering
from .batch import Submission, kernel_of, key_of
from .headers import MOST_SIDE
from .operations import IMAGE_OPERATIONS, Layout, channels, shape_and_strides
from .reading import Reader, Reading
from .recording import Opened, Operation, Recording
from .replay import FileChanged, changed, encoded, replay
from .thread_state import THREAD, KeptPixels, forget, note_failure, note_made

if TYPE_CHECKING:
    from ..._engine.kernel import Kernel
    from .lowering import Call

_PIXELS: Final[Operation] = ("to_image",)
_TO_RGB: Final[Operation] = ("convert", "RGB")
_CHECKED: Final[dict[str, tuple[Operation, ...]]] = {
    "pillow": (("copy",),),
    "torchvision": (_PIXELS,),
}
"""By library: a recording that has it decode the whole image."""
_QUICKLY_CHECKED: Final = frozenset(("JPEG", "PNG"))
"""Of other formats the core has to make the pixels to say whether a file is sound."""
_DECODED: Final = _QUICKLY_CHECKED | {"WEBP"}
_MODES: Final = frozenset(("RGB", "L"))
_MODES_OF_FILES: Final = _MODES | {"P", "I;16"}
"""Of whole files; the core makes no more of those that are not in ``_MODES``."""

# Images that have fewer pixels before and after their operations are replayed: measured, Pillow
# makes a tensor of 64 x 64 as fast as the core is called.
LEAST_PIXELS = 64 * 64

# Where arrays are asked for, Pillow changes what the core has decoded, if it has fewer pixels.
# Measured, 64 x 64 are halved in 0.08 ms, where ``_begun`` takes 0.15, and 128 x 128 in 0.23 and
# 0.18.
LEAST_CHANGED = 96 * 96

# Images with fewer are not decoded ahead: to begin that takes 0.1 to 0.3 ms, as long as decoding
# them. Measured, JPEGs of 64 x 64 take 0.10 ms without it and 0.19 with it, 500 x 375 that NumPy
# works on 1.46 and 0.91. Gray files as they are, and masks, take less.
LEAST_AHEAD: Final = 256 * 256
LEAST_GRAY_AHEAD: Final = 512 * 512

_READ: Final = Reader()

_MOVES: Final = frozenset(("copy", "crop", "expand", "flip", "rot90"))
_NEAREST: Final = int(PIL.Image.Resampling.NEAREST)

ROWS_OF_PIXELS: Final = Layout(torch.uint8, contiguous=False)


def pixels(recording: Recording) -> np.ndarray | None:
    """The pixels of a recording that ends in an image: as ``np.asarray`` has them in its mode.

    uint8 (h, w, 3) for mode "RGB"; uint8 (h, w) for "L" and "P", uint16 for "I;16". The array is
    read-only, since others may get the same one.
    """
    if recording.mode not in _MODES_OF_FILES:
        return None
    opened, operations, size, _ = recording
    if operations and operations[-1][0] == "band":
        colors = pixels(Recording(opened, operations[:-1], size, "RGB"))
        _, *arguments = operations[-1]
        if colors is None:
            return None
        gray: np.ndarray = colors[..., cast(int, arguments[0])].copy()
        gray.flags.writeable = False
        return gray
    whole = _is_rgb(recording) and not _after_rgb(recording)
    kept = _kept_for(recording, whole)
    if kept is None:
        return _decoded(recording, None, keep=whole)
    tail = _tail_of(recording, kept)
    return _decoded(tail, kept.pixels, keep=False) if tail.operations else kept.pixels


def let_go(opened: Opened, made_now: bool) -> bool:
    """Keep the pixels of an image no longer, since the user's code gets them; whether it does.

    Not where the same image, or the one before, was asked for again: see Note [Decoded once].

    ``made_now``: they were made for this; else the image had them.
    """
    if not made_now:
        THREAD.times_asked += THREAD.last is opened
        return False
    if THREAD.times_asked > 1 or THREAD.several:
        return False
    if THREAD.kept is not None and THREAD.kept.opened is opened:
        THREAD.kept = None
    return True


def checked(opened: Opened) -> Opened:
    """The same image with the bytes of its file, which may be gone when its pixels are made.

    Raises:
        FileChanged: its file changed since it was opened.
        What the library that opened it raises for a damaged body.
    """
    data = _data(opened)
    if data is not None:
        opened = opened._replace(path=None, stamp=None, data=data)
    if data is None or not _is_sound(opened, data):
        if pixels(Recording(opened, (), opened.size, opened.mode)) is None:
            replay(Recording(opened, _CHECKED[opened.library], opened.size, opened.mode))
        forget()
    return opened


def _data(opened: Opened) -> bytes | None:
    """The bytes of the file; None: it is a store's record, or has changed."""
    if opened.stored is not None:
        return None
    try:
        return encoded(opened)
    except FileChanged:
        return None


def _is_sound(opened: Opened, data: bytes) -> bool:
    """Whether a file can be decoded, as far as the core says without making its pixels."""
    core = _native.load()
    if core is None or opened.format not in _QUICKLY_CHECKED:
        return False
    sound: bool = core.sound(data, *opened.size)
    return sound


def _decoded(recording: Recording, source: np.ndarray | None, keep: bool) -> np.ndarray | None:
    """``source``: the pixels that it begins with; ``keep``: keep those that it makes."""
    opened, operations, size, mode = recording
    ended = Recording(opened, (*operations, _PIXELS), size, mode)
    is_file = source is None and _is_file(recording)
    is_moved = source is None and _is_moved(recording)
    is_replayed = not is_file and (is_moved or _is_small(recording))
    gray = (is_file or is_replayed) and mode != "RGB"
    quick = math.prod(opened.size) < (LEAST_GRAY_AHEAD if gray else LEAST_AHEAD)
    ahead = THREAD.ahead if source is None and mode in _MODES and not quick else None
    array = None
    if ahead is not None and (memory := ahead.take(ended)) is not None:
        array = _shaped(memory, size, mode)
    if array is None and is_file:
        array = _of_file(opened)
    if array is None and is_replayed:
        array = _replayed(recording, source)
    if array is None and mode in _MODES:
        begun = _begun(ended, ROWS_OF_PIXELS, source)
        memory = None if begun is None else begun.result()
        array = None if memory is None else _shaped(memory, size, mode)
    if array is None:
        return None
    if ahead is not None:
        ahead.note_asked(ended)
    note_made(opened)
    if keep:
        THREAD.kept = KeptPixels(opened, operations, array)
    return array


def _is_file(recording: Recording) -> bool:
    """Whether it has the pixels of the file as they are."""
    mode = recording.opened.mode
    same = (("copy",), ("convert", mode))
    return recording.mode == mode and all(operation in same for operation in recording.operations)


def _of_file(opened: Opened) -> np.ndarray | None:
    """All pixels of a file, by one call of the core; None: ``_begun`` decides.

    Measured on 500 x 375 pixels, that takes a third to two thirds of what ``_begun`` takes.
    """
    core, mode, size = _native.load(), opened.mode, opened.size
    if core is None or THREAD.batch.cache is not None:
        return None
    if opened.format not in _DECODED or max(size) > MOST_SIDE:
        return None
    data = _data(opened)
    if data is None:
        return None
    if mode == "RGB" or opened.format != "PNG":
        memory = np.empty(size[0] * size[1] * channels(mode), np.uint8)
        return _shaped(memory, size, mode) if core.decode(data, _view(memory, size, mode)) else None
    if mode == "I;16":
        rows = core.png_rows(data)
        deep = None if rows is None else np.frombuffer(rows, ">u2").astype("<u2")
        return None if deep is None else _shaped(deep, size, mode)
    levels = core.png_levels(data)
    return None if levels is None else _shaped(np.frombuffer(levels[0], np.uint8), size, mode)


def _is_small(recording: Recording) -> bool:
    opened, _, size, _ = recording
    if opened.library != "pillow" or opened.mode not in _MODES:
        return False
    return max(math.prod(opened.size), math.prod(size)) < LEAST_CHANGED


def _is_moved(recording: Recording) -> bool:
    """Whether it has pixels of a mask's file in other places, and a constant beside them."""
    opened, operations, _, mode = recording
    if opened.format != "PNG" or mode not in ("L", "P") or mode != opened.mode:
        return False
    if opened.library != "pillow":
        return False
    for name, *arguments in operations:
        if name not in _MOVES and (name != "resize" or arguments[2] != _NEAREST):
            return False
        if name == "expand" and mode == "P":
            return False  # which may add to the palette
    return True


def _replayed(recording: Recording, source: np.ndarray | None) -> np.ndarray | None:
    """Pixels that the core decodes and Pillow changes; None: ``_begun`` decides.

    Measured on masks of 500 x 375 pixels that 224 x 224 are left of, that takes half of what
    ``_begun`` takes.
    """
    opened = recording.opened
    pixels = _of_file(opened) if source is None else source
    if pixels is None:
        return None
    try:
        return np.asarray(changed(_image(opened, pixels), recording.operations))
    except Exception:
        note_failure()
        raise


def _image(opened: Opened, pixels: np.ndarray) -> PIL.Image.Image:
    mode = opened.mode
    return PIL.Image.frombuffer(mode, opened.size, pixels, "raw", mode, 0, 1)


def _is_tile(recording: Recording) -> bool:
    """Whether it is made of few pixels: Pillow has it before the core is called."""
    opened, ((name, *box), *_), size, _ = recording
    box_size = cast("list[int]", box[2:]) if name == "crop" else opened.size
    return max(math.prod(box_size), math.prod(size)) < LEAST_PIXELS


def _shaped(memory: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    """The pixels in flat memory, read-only: so is the memory, or a view could be changed again."""
    memory.flags.writeable = False
    return _view(memory, size, mode)


def _view(memory: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    w, h = size
    return memory.reshape((h, w, 3) if mode == "RGB" else (h, w))


def tensor(
    recording: Recording, layout: Layout, least_pixels: int | None = None
) -> torch.Tensor | None:
    """The tensor of a recording that ends in one, laid out as ``layout``.

    ``least_pixels``: of the images that the core makes; None: where it gains.
    """
    shape, strides = shape_and_strides(recording.size, recording.mode, layout.contiguous)
    images = _of_file_in_rows(recording) if layout == ROWS_OF_PIXELS else None
    if images is None:
        kept = _kept_for(recording, whole=False)
        tail = recording if kept is None else _tail_of(recording, kept)
        pixels = None if kept is None else kept.pixels
        if pixels is not None and _is_tile(tail):
            tile = cast(torch.Tensor, changed(_image(tail.opened, pixels), tail.operations))
            if tile.stride() == strides:
                return tile
        begun = _begun(tail, layout, pixels, least_pixels=least_pixels)
        if begun is None or begun.result() is None:
            return None
        images = begun.images
    note_made(recording.opened)
    # A tensor of its own, not a view of the bytes.
    result = torch.empty(0, dtype=layout.dtype, device="cpu")
    return result.set_(images.untyped_storage(), 0, shape, strides)


def _of_file_in_rows(recording: Recording) -> torch.Tensor | None:
    """The bytes of a file's pixels, by one call of the core; None: ``_begun`` decides."""
    opened, operations, size, mode = recording
    if opened.library != "torchvision" or operations != (_PIXELS,) or mode not in _MODES:
        return None
    core, data = _native.load(), _data(opened)
    if core is None or data is None or THREAD.batch.cache is not None:
        return None
    images = torch.empty(size[0] * size[1] * channels(mode), dtype=torch.uint8, device="cpu")
    return images if core.decode(data, _view(np.asarray(_Bytes(images)), size, mode)) else None


def _is_rgb(recording: Recording) -> bool:
    """Whether its operations are applied to the whole image in mode "RGB"."""
    return recording.opened.mode == "RGB" or recording.operations[:1] == (_TO_RGB,)


def _after_rgb(recording: Recording) -> bool:
    """Whether there are operations after those that give the whole image in mode "RGB"."""
    return any(step != _TO_RGB and step[0] != "copy" for step in recording.operations)


def _kept_for(recording: Recording, whole: bool) -> KeptPixels | None:
    """What is kept of the image, if ``recording`` begins with that. See Note [Decoded once].

    ``whole``: the whole image is asked for, and made by the caller if it is not kept.
    """
    if not _is_rgb(recording):
        return None
    opened, operations, *_ = recording
    kept, again = THREAD.kept, THREAD.last is opened
    several = THREAD.times_asked > 1
    if again:
        THREAD.times_asked += 1
        THREAD.shared = THREAD.shared[: _alike(operations, THREAD.shared)]
    else:
        if several:
            THREAD.shared_before = THREAD.shared
        THREAD.last, THREAD.times_asked, THREAD.shared = opened, 1, operations
    if kept is not None and kept.opened is opened:
        if operations[: len(kept.operations)] == kept.operations:
            return kept
        worthwhile = True  # with less of it
    elif again:
        worthwhile = THREAD.times_asked == 2  # once is enough
    else:
        worthwhile = THREAD.several = several
    if whole or not worthwhile or not THREAD.deferring:
        return None
    if again:
        return _keep(recording, len(THREAD.shared))
    return _keep(recording, _alike(_names(operations), _names(THREAD.shared_before)))


def _alike(first: Sequence[object], second: Sequence[object]) -> int:
    """How many of the first ones are equal."""
    return sum(itertools.takewhile(bool, map(operator.eq, first, second)))


def _keep(recording: Recording, most: int) -> KeptPixels | None:
    """Make and keep what up to ``most`` of the operations make, or the whole image."""
    opened, operations, *_ = recording
    size, mode, reached = opened.size, opened.mode, (0, opened.size)
    for count, (name, *arguments) in enumerate(operations[: max(most, mode != "RGB")], 1):
        if name not in IMAGE_OPERATIONS:
            break
        effect = IMAGE_OPERATIONS[name].effect
        size, mode = (size, mode) if effect is None else effect(size, mode, *arguments)
        if mode == "RGB":
            reached = count, size
    count, size = reached
    array = _decoded(Recording(opened, operations[:count], size, "RGB"), None, keep=True)
    return None if array is None else THREAD.kept


def _names(operations: Sequence[Operation]) -> list[str]:
    return [name for name, *_ in operations]


def _tail_of(recording: Recording, kept: KeptPixels) -> Recording:
    """The recording of what is left to do to the pixels that are kept."""
    h, w, _ = kept.pixels.shape
    begun = recording.opened._replace(size=(w, h), mode="RGB")
    return recording._replace(opened=begun, operations=recording.operations[len(kept.operations) :])


def begin(recording: Recording) -> Begun | None:
    """Have the core's threads begin with the pixels of a recording that ``pixels`` has ended."""
    return _begun(recording, ROWS_OF_PIXELS, None, threads=1)


def _begun(
    recording: Recording,
    layout: Layout,
    source: np.ndarray | None,
    threads: int = 0,
    least_pixels: int | None = None,
) -> Begun | None:
    """``source``: the pixels of the whole image in mode "RGB", if they are known."""
    most = max(math.prod(recording.opened.size), math.prod(recording.size))
    if most < (LEAST_PIXELS if least_pixels is None else least_pixels):
        return None
    calls = lowering.lower([recording], recording.size)
    if not calls:
        return None
    (call,) = calls
    kernel = kernel_of(key_of(call), layout.dtype, not layout.contiguous)
    if kernel is None or call.channels != channels(recording.mode):
        return None
    w, h = recording.size
    nbytes = w * h * channels(recording.mode) * layout.dtype.itemsize
    images = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    return Begun(images, kernel, call, recording.opened, source, threads)


class _Bytes:
    """A tensor of bytes for NumPy. ``Tensor.numpy`` would keep torch from resizing it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
        }


class Begun:
    """A tensor that the core is filling. Dropping it cancels that.

    Args:
        images: its bytes.
        threads: that fill it; 0: the caller's, in ``result``.
    """

    def __init__(
        self,
        images: torch.Tensor,
        kernel: Kernel,
        call: Call,
        opened: Opened,
        source: np.ndarray | None,
        threads: int,
    ) -> None:
        self.images = images
        self._memory: np.ndarray = np.asarray(_Bytes(images))
        if source is None:
            self._reading = _READ([opened], THREAD.batch.cache)
        else:
            self._reading = Reading(*pixels_as_files([source]))
        read = [opened if source is None else None]
        self._call = Submission(kernel, call, self._reading, read, images, self._memory)
        self._job = self._call.start(threads)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self._memory.nbytes

    def result(self) -> np.ndarray | None:
        """The memory, when it is filled; None: the core cannot make it."""
        if self._reading.cache is not None:
            THREAD.batch.hits += self._reading.hits
            THREAD.batch.misses += 1 - self._reading.hits
        try:
            self._job.wait()
        finally:
            self.cancel()
        return None if self._call.outcome()[0] else self._memory

    def cancel(self) -> None:
        """Stop filling: no thread writes to the memory after this."""
        self._job.cancel()
        self._reading.close()
