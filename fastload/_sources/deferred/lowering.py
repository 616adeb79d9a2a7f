"""Lowering: recordings in, calls of the core out: arrays of parameters, as for drawn numbers.

Recordings with the same names of operations, and the same settings, are composed together
(``composed.py``): Python runs once for all of them. ``sample_params.built`` makes the parameters.

Note [Calls]
    One call of the core fills samples that agree in output size, table, fills, and the filters of
    later frames. What may differ from sample to sample does not split a call: boxes, the first
    filter, mirrors, which operations on pixels there are and in which order, and whether a
    rectangle is erased. A sample with fewer frames than others gets frames that do nothing. A
    filter that resizes nothing, and a fill where nothing is padded, agree with any other.
"""

from __future__ import annotations

import collections
import functools
import io
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from PIL import Image

from ..._transforms.geometry.crop_geometry import Geometry
from ..._transforms.pixels import operations as pixels
from ..._transforms.pixels.erasing import ErasedBoxes
from ..._transforms.sample_params import SampleGroup, SampleParams, built
from .composed import Composed, Erased, Fill, Unsupported, every
from .operations import IMAGE_OPERATIONS, TENSOR_OPERATIONS, ImageOperation, TensorOperation
from .recording import Argument, Opened, Operation, Recording
from .replay import NO_IMAGE, changed, replay
from .slots import Slot

# Modes that the core decodes with Pillow's bits, by format; it leaves single files to Pillow.
_DECODED: Final = {
    "JPEG": frozenset(("RGB", "L")),
    "PNG": frozenset(("RGB", "L")),
    "WEBP": frozenset(("RGB",)),
    "BMP": frozenset(("RGB",)),
}

# Modes that it decodes as what ``convert("RGB")`` makes of them.
_CONVERTED: Final = {"PNG": frozenset(("P", "LA", "RGBA")), "WEBP": frozenset(("RGBA",))}
_ODD: Final = frozenset.union(*_CONVERTED.values())
_TO_RGB: Final = ("convert", "RGB")

TABLED: Final = frozenset(
    name
    for name, row in TENSOR_OPERATIONS.items()
    if row.compose is None and row.slot is None and not row.erases
)
"""Operations that give or change a tensor level by level, so that a table says what they do."""

_ROWS: Final[dict[str, ImageOperation | TensorOperation]] = {
    **IMAGE_OPERATIONS,
    **TENSOR_OPERATIONS,
}
_COMPOSED: Final = {
    name: (row.compose, row.numbers) for name, row in _ROWS.items() if row.compose is not None
}
_SLOTS: Final = {name: row.slot for name, row in _ROWS.items() if row.slot is not None}
_EFFECTS: Final = {name: row.effect for name, row in IMAGE_OPERATIONS.items()}
_KNOWN: Final = TABLED | _COMPOSED.keys() | _SLOTS.keys()
_ERASING: Final = frozenset(name for name, row in TENSOR_OPERATIONS.items() if row.erases)

_LEVELS: Final = "operations on the levels of a tensor"

# What may follow a border only if that is a border of the image.
_FOLLOWING: Final = TENSOR_OPERATIONS.keys() - _ERASING - {"border", "contiguous"} | {_LEVELS}

_NAME: Final = operator.itemgetter(0)


def may_lower(recording: Recording) -> bool:
    """Whether ``lower`` is worth a try: format, mode and operations are of those that it knows."""
    return decodes(recording) and _KNOWN.issuperset(map(_NAME, recording.operations))


def decodes(recording: Recording) -> bool:
    """Whether the core decodes images of this format and mode."""
    opened = recording.opened
    if opened.stored is not None:
        return True
    return opened.mode in _DECODED.get(opened.format, ()) or _converts(recording)


def _converts(recording: Recording) -> bool:
    """Whether decoding includes the first operation."""
    opened = recording.opened
    convertible = opened.mode in _CONVERTED.get(opened.format, ())
    return convertible and recording.operations[:1] == (_TO_RGB,)


# --- composed together ----------------------------------------------------------------------------

_RUN: Final = "operations on single pixels"
_LAST: Final = "operations on pixels, without geometry after them"
_MOVING: Final = _COMPOSED.keys() & _FOLLOWING
_BY_PIXEL: Final = frozenset(name for name, row in IMAGE_OPERATIONS.items() if row.by_pixel)

_Steps: TypeAlias = "tuple[str, ...]"
_Cuts: TypeAlias = "tuple[int | slice, ...]"


@functools.lru_cache(4096)
def _shape(names: tuple[str, ...]) -> tuple[_Steps, _Cuts]:
    """The steps that are composed one after the other, and which of the operations each is.

    A step is the name of an operation. Or it is a run of operations on pixels, where geometry does
    not depend on which they are: recordings that differ in these are composed together, too. There
    is one behind what makes the tensor in any case, since some have none there.
    """
    end = next((k for k, name in enumerate(names) if name in TENSOR_OPERATIONS), len(names))
    last = end
    if _MOVING.isdisjoint(names[end:]):
        while last and names[last - 1] in _SLOTS:
            last -= 1
    steps: list[str] = []
    cuts: list[int | slice] = []
    for k, name in enumerate(names[:last]):
        if name in _BY_PIXEL and k and names[k - 1] in _BY_PIXEL:
            cuts[-1] = slice(cuts[-1].start, k + 1)  # type: ignore[union-attr]
            continue
        steps.append(_RUN if name in _BY_PIXEL else name)
        cuts.append(slice(k, k + 1) if name in _SLOTS else k)
    steps.append(_LAST)
    cuts.append(slice(last, end))
    for k, name in enumerate(names[end:], end):
        if name in _SLOTS and steps[-1] == _LEVELS:
            cuts[-1] = slice(cuts[-1].start, k + 1)  # type: ignore[union-attr]
            continue
        steps.append(_LEVELS if name in _SLOTS else name)
        cuts.append(slice(k, k + 1) if name in _SLOTS else k)
        if k == end:
            steps.append(_LEVELS)
            cuts.append(slice(end + 1, end + 1))
    return tuple(steps), tuple(cuts)


_Key: TypeAlias = "tuple[str, str, bool, _Steps]"
"""Format and mode of images, whether decoding converts them, and what is composed."""

Column: TypeAlias = "list[Any]"
"""An operation, or a run of them, of each image."""


def _by_settings(
    recordings: Sequence[Recording],
    named: list[tuple[list[int], _Cuts]],
    shape: _Steps,
    size: tuple[int, int],
) -> Iterator[Composed]:
    """Samples of one shape, without those that the core cannot make.

    ``named``: the positions of those with the same names of operations, and how these are cut.
    """
    positions: list[int] = []
    columns: list[Column] = [[] for _ in shape]
    for some_positions, cuts in named:
        positions += some_positions
        each = list(
            zip(*(recordings[position].operations for position in some_positions), strict=True)
        )
        for column, cut in zip(columns, cuts, strict=True):
            if isinstance(cut, int):
                column += each[cut]
            else:
                column += zip(*each[cut], strict=True) if each[cut] else [()] * len(some_positions)
    some = [recordings[position] for position in positions]
    differing: list[list[tuple[Argument, ...]]] = []
    for name, column in zip(shape, columns, strict=True):
        if name in _ROWS and name not in _SLOTS and column.count(column[0]) < len(some):
            begin = 1 + _ROWS[name].numbers
            settings = [operation[begin:] for operation in column]
            if settings.count(settings[0]) < len(some):
                differing.append(settings)
    if not differing:
        yield from _compose(some, positions, shape, columns, size)
        return
    alike: dict[tuple[object, ...], list[int]] = {}
    for k, key in enumerate(zip(*differing, strict=True)):
        alike.setdefault(key, []).append(k)
    for group in alike.values():
        subset = [[column[k] for k in group] for column in columns]
        yield from _compose(
            [some[k] for k in group], [positions[k] for k in group], shape, subset, size
        )


def _compose(
    some: Sequence[Recording],
    positions: list[int],
    shape: _Steps,
    columns: list[Column],
    size: tuple[int, int],
) -> Iterator[Composed]:
    """These samples, whose settings are the same; one by one, if only some can be composed."""
    try:
        yield _composed(some, positions, shape, columns, size)
    except (Unsupported, KeyError, OverflowError, TypeError, ValueError):
        # An operation or an argument that is not known here.
        if len(positions) > 1:
            for k, position in enumerate(positions):
                yield from _compose(
                    [some[k]], [position], shape, [[column[k]] for column in columns], size
                )


def _composed(
    some: Sequence[Recording],
    positions: list[int],
    shape: _Steps,
    columns: list[Column],
    size: tuple[int, int],
) -> Composed:
    first = some[0]
    mode = "RGB" if _converts(first) else first.opened.mode
    w, h = _numbers([recording.opened.size for recording in some])
    images = Composed(positions, w, h, mode)
    last = max((k for k, name in enumerate(shape) if name in _FOLLOWING), default=0)
    erased = False
    for k, (name, column) in enumerate(zip(shape, columns, strict=True)):
        if name in TABLED:
            (images.table if images.after is None else images.after).append(column[0])
            continue
        if name == _LEVELS and any(column) and (erased or not images.holds_levels):
            raise Unsupported
        if name not in _COMPOSED:
            _change(images, column, by_pixel=name in (_RUN, _LEVELS))
            continue
        if bool(images.table) != (name in TENSOR_OPERATIONS):
            raise Unsupported
        compose, numbers = _COMPOSED[name]
        erases = name in _ERASING
        if name == "border" and (erased or k > last):
            compose, erases = Composed.frame_in, True
        if erased and not erases:
            raise Unsupported
        erased = erases
        if images.after is not None and not erases and not _ends(column[0]):
            raise Unsupported  # the core only cuts and mirrors values
        compose(images, *_arguments(column, numbers))
    if not images.table or (images.after is not None and images.mode != "RGB"):
        raise Unsupported
    images.end()
    w, h = size
    if not every((images.frame.w == w) & (images.frame.h == h)):
        raise Unsupported
    return images


def _change(images: Composed, runs: list[tuple[Operation, ...]], *, by_pixel: bool) -> None:
    """Operations on the pixels of each image; ``by_pixel``: whatever size and mode it has."""
    if not any(runs):
        return
    w, h = images.frame.w, images.frame.h
    if by_pixel or (isinstance(w, int) and isinstance(h, int)):
        if runs.count(runs[0]) == len(runs):
            runs = runs[:1]  # for all of them
    if isinstance(w, int) and isinstance(h, int):
        sizes = [(w, h)] * len(runs)
    else:
        sizes = list(zip(*(side.tolist() for side in images.frame.sides()), strict=True))
    slots_of_runs: list[list[Slot]] = []
    sizes_after, modes = [], set()
    for run, before in zip(runs, sizes):
        slots, size, mode = [], before, images.mode
        for name, *arguments in run:
            slot, effect = _SLOTS[name](size, mode, *arguments), _EFFECTS.get(name)
            if slot is not None:
                slots.append(slot)
            if effect is not None:
                size, mode = effect(size, mode, *arguments)
        slots_of_runs.append(slots)
        sizes_after.append(size)
        modes.add(mode)
    if len(modes) > 1:
        raise Unsupported
    if any(slots_of_runs):
        images.change(_slots(slots_of_runs))
    (images.mode,) = modes
    if not by_pixel and sizes_after != sizes:
        images.resized_to(*_numbers(sizes_after))


def _slots(runs: list[list[Slot]]) -> pixels.Slots:
    most = max(map(len, runs))
    width = max(len(values) for slots in runs for _, values in slots)
    codes, values = pixels.empty(len(runs), most, width)
    for i, slots in enumerate(runs):
        for k, (code, numbers) in enumerate(slots):
            codes[i, k] = code
            values[i, k, : len(numbers)] = numbers
    if not bool((abs(values) <= _MOST).all()):  # nan is not, either
        raise Unsupported
    return codes, values


_MOST: Final = 1e30  # of a value, as ``pixel_op_values`` in pixels.cpp


def _ends(operation: Operation) -> bool:
    """Whether it cuts, or mirrors left to right: what a frame ends with."""
    return operation[0] == "part" or operation == ("mirror", False)


def _arguments(column: Sequence[Operation], count: int) -> Sequence[Any]:
    """The arguments of one operation on all images, the first ``count`` of them being numbers."""
    first = column[0][1:]
    if not count:
        return first
    return *_numbers([operation[1 : 1 + count] for operation in column]), *first[count:]


def _numbers(rows: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Numbers of each image, one after the other: as one where they are equal, else as an array."""
    first = rows[0]
    if rows.count(first) == len(rows):
        return first
    return [
        column[0] if column.count(column[0]) == len(column) else np.array(column)
        for column in zip(*rows, strict=True)
    ]


# --- calls ----------------------------------------------------------------------------------------


class Call:
    """Samples that one call of the core fills, ``images`` first. See Note [Calls].

    Attributes:
        mode, table, after: of all of them, as in ``Composed``.
        filters: by frame, from the second on; None: any.
        fills: by frame; None: any.
        values: of the erased rectangles.
    """

    def __init__(self, images: Composed, size: tuple[int, int]) -> None:
        self._groups = [images]
        self._size = size
        self.mode = images.mode
        self.table = tuple(images.table)
        self.after = None if images.after is None else tuple(images.after)
        self.filters: list[int | None] = images.filters[1:]
        self.fills: list[Fill | None] = images.fills
        self.values: list[Erased] = images.values

    @property
    def channels(self) -> int:
        return 1 if self.mode == "L" else 3

    @property
    def fill(self) -> Fill:
        return self.fills[0] or (0, 0, 0)

    @functools.cached_property
    def positions(self) -> list[int]:
        """The positions of the samples among those that were given, in order."""
        return sorted(position for images in self._groups for position in images.positions)

    def join(self, other: Call) -> bool:
        """Add the samples of ``other``, if one call can fill them too."""
        if (self.mode, self.table, self.after) != (other.mode, other.table, other.after):
            return False
        # A frame that resizes values is the last one: no other follows that does nothing.
        if self.after is not None and len(self.fills) != len(other.fills):
            return False
        filters = _agreed(self.filters, other.filters)
        fills = _agreed(self.fills, other.fills)
        values = _agreed(self.values, other.values)
        if filters is None or fills is None or values is None:
            return False
        self.filters, self.fills, self.values = filters, fills, values
        self._groups += other._groups
        return True

    def parameters(self) -> tuple[Geometry, SampleParams | None, np.ndarray]:
        """As ``sample_params.built`` makes them; and uint8 (n,), the filter of the first frame of
        each sample, as numbered in resample.h."""
        n = len(self.positions)
        positions = self.positions
        ranks = {position: rank for rank, position in enumerate(positions)}
        firsts = np.zeros(n, np.uint8)
        boxes = np.zeros((n, len(self.values), 4), np.int32)
        groups = []
        for images in self._groups:
            which: int | slice | np.ndarray = slice(None)
            if len(images.positions) == 1:
                which = ranks[images.positions[0]]
            elif images.positions != positions:
                which = np.array([ranks[position] for position in images.positions])
            groups.append(SampleGroup(which, images.frames, images.slots))
            firsts[which] = images.filters[0] or 0
            for e, box in enumerate(images.boxes):
                for side, value in enumerate(box):
                    boxes[which, e, side] = value
        looks = [
            (filter or 0, fill or (0, 0, 0))
            for filter, fill in zip(self.filters, self.fills[1:], strict=True)
        ]
        erased = ErasedBoxes(boxes, np.zeros(boxes.shape[:2], np.uint64))
        return *built(n, self._size, groups, looks, erased), firsts


def _agreed(first: Sequence[Any], second: Sequence[Any]) -> list[Any] | None:
    """What both can have, position by position, None being any; None: they differ."""
    if len(first) < len(second):
        first, second = second, first
    agreed = list(first)
    for k, value in enumerate(second):
        if agreed[k] is None:
            agreed[k] = value
        elif value is not None and value != agreed[k]:
            return None
    return agreed


def lower(recordings: Sequence[Recording], size: tuple[int, int]) -> list[Call]:
    """The calls that make the tensors of recordings, of this width and height.

    What is not in one of them can only be replayed. That is so of a recording that ends in an
    image, not in a tensor.
    """
    if len(recordings) == 1:
        return _alone(recordings[0], size)
    named: dict[tuple[object, ...], list[int]] = collections.defaultdict(list)
    for position, (opened, operations, _, _) in enumerate(recordings):
        # Whether decoding includes the first operation depends on that.
        odd = operations[:1] if opened.mode in _ODD else None
        named[opened.format, opened.mode, odd, tuple(map(_NAME, operations))].append(position)
    alike: dict[_Key, list[tuple[list[int], _Cuts]]] = collections.defaultdict(list)
    for positions in named.values():
        first = recordings[positions[0]]
        if may_lower(first):
            shape, cuts = _shape(tuple(map(_NAME, first.operations)))
            key = first.opened.format, first.opened.mode, _converts(first), shape
            alike[key].append((positions, cuts))
    calls: list[Call] = []
    for (*_, shape), some in alike.items():
        for images in _by_settings(recordings, some, shape, size):
            call = Call(images, size)
            if not any(other.join(call) for other in calls):
                calls.append(call)
    return calls


def _alone(recording: Recording, size: tuple[int, int]) -> list[Call]:
    """``lower`` for one, whose pixels the user's code waits for: in three quarters of the time."""
    if not may_lower(recording):
        return []
    shape, cuts = _shape(tuple(map(_NAME, recording.operations)))
    columns: list[Column] = [[recording.operations[cut]] for cut in cuts]
    return [Call(images, size) for images in _compose([recording], [0], shape, columns, size)]


# --- the table ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def ramp(mode: str) -> Opened:
    """An image of 256 x 1 pixels that has each level once, in every channel."""
    levels = Image.frombytes("L", (256, 1), bytes(range(256)))
    stream = io.BytesIO()
    (levels if mode == "L" else Image.merge("RGB", [levels] * 3)).save(stream, "PNG")
    return Opened(None, stream.getvalue(), None, (256, 1), mode, "PNG")


def table_of(mode: str, operations: tuple[Operation, ...]) -> torch.Tensor:
    """What the operations make of each level: (channels, 256), made as ``replay`` does."""
    if operations == (("to_image",),):  # which makes no use of torchvision
        return torch.arange(256, dtype=torch.uint8, device="cpu").expand(
            1 if mode == "L" else 3, 256
        )
    if operations[-1][0] in TENSOR_OPERATIONS and len(operations) > 1:
        # Often the last number alone is drawn at random.
        before = table_before(mode, operations[:-1])
        values = changed(NO_IMAGE, operations[-1:], before.clone()[:, None])
    else:
        values = replay(Recording(ramp(mode), operations, (256, 1), mode))
    assert isinstance(values, torch.Tensor), "the operations end in a tensor"
    return values.reshape(values.shape[0], 256)


table_before = functools.lru_cache(maxsize=64)(table_of)
