"""Fields that move along with their images: masks, boxes and points, labels of boxes."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np
import torch

from ...errors import DataError, DecodeError, UsageError
from ...hints import JointKind
from ...storage.base import Store
from ..geometry.crop_geometry import Array, Frame
from ..geometry.geometry_log import Moves, lines, mask
from . import boxes

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

KINDS = get_args(JointKind)

# Masks that a thread makes at a time: a task costs as much as a tenth of one.
_CHUNK = 4

# How masks of Pillow's modes come, as torchvision's pil_to_tensor has them.
_DTYPES = {"1": np.bool_, "L": np.uint8, "P": np.uint8, "I": np.int32}


@dataclasses.dataclass(frozen=True)
class Joint:
    """Which fields of a store move, and what they are.

    Attributes:
        kinds: (name of the field, what it is), in the order given.
        casts: (name of the field, dtype) of those that a transform casts, once they were moved.
    """

    kinds: tuple[tuple[str, JointKind], ...]
    casts: tuple[tuple[str, torch.dtype], ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, JointKind] | Joint | None) -> Joint | None:
        """What the argument ``joint`` means. Raises UsageError for kinds that there are not."""
        if given is None or isinstance(given, Joint):
            return given
        if not isinstance(given, Mapping) or not given:
            raise UsageError(
                "expected joint as a dict of fields and what they are, such as "
                f"{{'mask': 'mask', 'boxes': 'xyxy'}}, got {given!r}"
            )
        for name, kind in given.items():
            if kind not in KINDS:
                raise UsageError(
                    f"joint[{name!r}]: expected one of {', '.join(KINDS)}, got {kind!r}"
                )
        return cls(tuple(given.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """The fields."""
        return tuple(name for name, _ in self.kinds)

    def named(self, *kinds: str) -> list[tuple[str, str]]:
        """The fields of these kinds."""
        return [(name, kind) for name, kind in self.kinds if kind in kinds]

    def check(self, store: Store) -> None:
        """Raise UsageError where a field of ``store`` cannot be what is said of it."""
        for name, kind in self.kinds:
            field = store.fields.get(name)
            if field is None:
                known = ", ".join(store.fields) or "none"
                raise UsageError(f"joint: expected a field of the store ({known}), got {name!r}")
            shape = field.shape
            fits = {
                "mask": field.kind == "bytes" or (field.kind == "array" and len(shape) == 2),
                "points": field.kind == "json" or (field.kind == "array" and shape[-1:] == (2,)),
                "labels": field.kind in ("json", "array"),
            }.get(kind, field.kind == "json" or (field.kind == "array" and shape[-1:] == (4,)))
            if not fits:
                what = "an image file (bytes) or an array (h, w)" if kind == "mask" else (
                    "numbers (JSON, or an array)"
                )  # fmt: skip
                raise UsageError(
                    f"joint[{name!r}] = {kind!r}: expected {what} in that field, found "
                    f"{field.kind} {shape or ''}"
                )


@dataclasses.dataclass(frozen=True)
class Sanitize:
    """torchvision's SanitizeBoundingBoxes, as an operation that leaves images alone."""

    min_size: float
    min_area: float
    blocks: ClassVar[int] = 0

    def apply(self, frame: Frame, u: Array) -> None:
        """Note it, where anything moves along."""
        if frame.moves is not None:
            frame.moves.clean(self.min_size, self.min_area, frame.w, frame.h)


class Fellows:
    """What stands for the fields of a joint chain while it is read: one small value of each.

    The user's own transforms of values are called on them too, as torchvision calls them: a dict of
    dtypes casts masks, ``ToPureTensor`` makes tensors of them that nothing moves any more.
    """

    def __init__(self, joint: Joint) -> None:
        from torchvision import tv_tensors

        self._joint = joint
        self._plain = False
        made: dict[str, Any] = {
            "mask": tv_tensors.Mask(torch.zeros((1, 1), dtype=torch.uint8, device="cpu")),
            "points": tv_tensors.KeyPoints(torch.zeros((1, 2), device="cpu"), canvas_size=(1, 1)),
            "labels": torch.zeros(1, dtype=torch.int64, device="cpu"),
        }
        for form in boxes.FORMATS:
            empty = torch.zeros((1, 4), device="cpu")
            made[form] = tv_tensors.BoundingBoxes(empty, format=form.upper(), canvas_size=(1, 1))
        self._values = [made[kind] for _, kind in joint.kinds]
        self._before = [value.dtype for value in self._values]

    def through(self, transform: Any, image: Any) -> Any:
        """What a transform makes of ``image``, beside these."""
        image, *self._values = transform([image, *self._values])
        moving = [kind for _, kind in self._joint.kinds]
        self._plain = any(
            type(value) is torch.Tensor
            for value, kind in zip(self._values, moving, strict=True)
            if kind != "labels"
        )
        return image

    @property
    def joint(self) -> Joint:
        """With the casts."""
        casts = tuple(
            (name, value.dtype)
            for (name, _), value, before in zip(
                self._joint.kinds, self._values, self._before, strict=True
            )
            if value.dtype != before
        )
        return dataclasses.replace(self._joint, casts=casts)

    @property
    def stay(self) -> str:
        """Why nothing may move any more, in words, or ""."""
        if self._plain:
            return "comes after ToPureTensor, behind which torchvision moves the image alone"
        names = ", ".join(name for name, _ in self.joint.casts)
        return f"comes after {names} became of another dtype; put ToDtype last" if names else ""


class Moving:
    """The fields of a batch while they are moved.

    Args:
        joint: what they are.
        store: where they lie.
        records: int64 (n,).
        sizes: int32 (n, 2): width and height of the source images.
        moves: what happens to the images.
        height, width: of the results.
        pool: what works on masks; None: the caller of ``result``.
    """

    def __init__(
        self,
        joint: Joint,
        store: Store,
        records: np.ndarray,
        sizes: np.ndarray,
        moves: Moves,
        height: int,
        width: int,
        pool: concurrent.futures.Executor | None,
    ) -> None:
        self._joint, self._store, self._records = joint, store, records
        self._sizes, self._moves = sizes, moves
        self._shape = height, width
        self.nanoseconds = 0
        self._errors: dict[int, DataError] = {}
        self._masks: dict[str, torch.Tensor] = {}
        self._tasks: list[concurrent.futures.Future[int]] = []
        self._later: list[Any] = []
        masks = joint.named("mask")
        if masks:
            n = len(records)
            steps = moves.steps
            self._rows = lines(steps, n, height, rows=True)
            self._columns = lines(steps, n, width, rows=False)
        for name, _ in masks:
            values = self._values(name)
            for begin in range(0, len(records), _CHUNK):
                places = range(begin, min(begin + _CHUNK, len(records)))
                if pool is None:
                    self._later.append((name, values, places))
                else:
                    self._tasks.append(pool.submit(self._make_masks, name, values, places))

    def settle(self) -> tuple[dict[str, Any], dict[int, DataError]]:
        """The fields, and what failed by position, whose values there are nothing."""
        self.nanoseconds += sum(task.result() for task in self._tasks)
        self.nanoseconds += sum(self._make_masks(*work) for work in self._later)
        moved: dict[str, Any] = dict(self._masks)
        begin = time.perf_counter_ns()
        steps = self._moves.steps
        kept: list[npt.NDArray[np.int64]] | None = None
        for name, form in self._joint.named(*boxes.FORMATS):
            placed, kept = boxes.move_boxes(self._numbers(name, 4), steps, form)
            moved[name] = list(map(torch.from_numpy, placed))
        for name, _ in self._joint.named("points"):
            points = boxes.move_points(self._numbers(name, 2), steps)
            moved[name] = list(map(torch.from_numpy, points))
        for name, _ in self._joint.named("labels"):
            moved[name] = self._labels(name, kept)
        for name, dtype in self._joint.casts:
            values = moved[name]
            one = isinstance(values, torch.Tensor)
            moved[name] = values.to(dtype) if one else [value.to(dtype) for value in values]
        self.nanoseconds += time.perf_counter_ns() - begin
        return moved, self._errors

    def result(self) -> dict[str, Any]:
        """The fields by name. Raises the DataError of the first sample that failed."""
        moved, errors = self.settle()
        if errors:
            raise errors[min(errors)]
        return moved

    def _values(self, name: str) -> Sequence[Any]:
        """Of the records; None where one cannot be read, which is noted."""
        if self._store.fields[name].kind == "array":
            column: Sequence[Any] = self._store.column(name)[self._records]
            return column
        try:
            return self._store.values(name, self._records)
        except DataError:  # one by one, to find those at fault
            return [self._value(name, i) for i in range(len(self._records))]

    def _value(self, name: str, i: int) -> bytes | None:
        try:
            return self._store.values(name, self._records[i : i + 1])[0]
        except DataError as error:
            self._errors.setdefault(i, error)
            return None

    def _decoded(self, name: str) -> list[Any]:
        """The values of a field that is no mask."""
        field, values = self._store.fields[name], self._values(name)
        if field.kind == "array":
            return list(values)
        found: list[Any] = []
        for i, value in enumerate(values):
            try:
                found.append([] if value is None else field.decode(value))
            except (ValueError, RecursionError) as error:
                self._fail(i, name, f"expected JSON, found something else: {error}", error)
                found.append([])
        return found

    def _numbers(self, name: str, width: int) -> list[Array]:
        """float32 for each sample: boxes (k, 4), points (..., 2); k is 0 where there is nothing."""
        found: list[Array] = []
        for i, value in enumerate(self._decoded(name)):
            try:
                array = np.asarray(value, np.float32)
                if not array.size:
                    array = np.zeros((0, width), np.float32)
                if array.shape[-1:] != (width,):
                    raise ValueError(f"an array of shape {array.shape}")
                # one box by itself is an array of one, as it is for BoundingBoxes
                found.append(array.reshape(-1, 4) if width == 4 else array)
            except (TypeError, ValueError) as error:
                self._fail(i, name, f"expected {width} numbers each, found {error}", error)
                found.append(np.zeros((0, width), np.float32))
        return found

    def _labels(self, name: str, kept: list[npt.NDArray[np.int64]] | None) -> list[torch.Tensor]:
        """One value for each box, of the boxes that are left."""
        found = []
        for i, value in enumerate(self._decoded(name)):
            try:
                array = np.atleast_1d(np.asarray(value))
                labels = torch.from_numpy(array if len(array) else np.zeros(0, np.int64))
            except (TypeError, ValueError) as error:
                self._fail(i, name, f"expected a number for each box, found {error}", error)
                labels = torch.from_numpy(np.zeros(0, np.int64))
            if kept is not None and len(labels):
                if int(kept[i].max(initial=-1)) >= len(labels):
                    self._fail(i, name, f"expected a label for each box, found {len(labels)}")
                else:
                    labels = labels[torch.from_numpy(kept[i])]
            found.append(labels)
        return found

    def _make_masks(self, name: str, values: Sequence[Any], places: range) -> int:
        begin = time.perf_counter_ns()
        for i in places:
            if values[i] is None:
                continue
            try:
                source = values[i] if isinstance(values[i], np.ndarray) else _read_mask(values[i])
                width, height = self._sizes[i].tolist()
                if source.shape != (height, width):
                    raise ValueError(
                        f"expected a mask of its image's {width}x{height} pixels, found shape "
                        f"{source.shape}"
                    )
                out = self._mask(name, source.dtype)[i]
                if out.dtype != source.dtype:
                    raise ValueError(f"expected {out.dtype} as before, found {source.dtype}")
                mask(source, i, self._rows, self._columns, self._moves.steps, out)
            except Exception as error:  # noqa: BLE001 - Pillow raises anything
                self._fail(i, name, str(error) or type(error).__name__, error)
        return time.perf_counter_ns() - begin

    def _mask(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Memory for the masks; made by whoever needs it first."""
        if name not in self._masks:
            made = np.zeros((len(self._records), *self._shape), dtype)
            self._masks.setdefault(name, torch.from_numpy(made))
        return self._masks[name].numpy()

    def _fail(self, i: int, name: str, message: str, error: Exception | None = None) -> None:
        found = DecodeError(
            f"the field {name!r}: {message}", path=self._store.path, record=int(self._records[i])
        )
        found.__cause__ = error
        self._errors.setdefault(i, found)


def _read_mask(data: bytes) -> npt.NDArray[Any]:
    """(h, w) out of an image file with one channel. Raises OSError and ValueError."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        mode = image.mode
        if mode.startswith("I;16"):
            return np.asarray(image).astype(np.int32)
        if mode not in _DTYPES:
            raise ValueError(f"expected a mask with one channel, found an image of mode {mode}")
        return np.asarray(image)


def in_python(
    joint: Joint,
    store: Store,
    records: np.ndarray,
    transform: Any,
    decode: Callable[[Store, int], Image.Image],
) -> tuple[list[Any], dict[str, Any]]:
    """Images and moved fields of ``records`` where only the user's transform itself can make them.

    It is called, as torchvision has it, with a dict of the image and what moves along: "image" is a
    PIL image, fields are ``Mask``, ``BoundingBoxes``, ``KeyPoints`` and tensors of labels.
    """
    from torchvision import tv_tensors

    images: list[Any] = []
    moved: dict[str, list[Any]] = {name: [] for name in joint.names}
    for record in records.tolist():
        image = decode(store, record)
        size = np.array([image.size], np.int32)
        one = np.array([record], np.int64)
        moving = Moving(joint, store, one, size, Moves(1), image.height, image.width, None)
        given: dict[str, Any] = {"image": image}
        for name, values in moving.result().items():
            kind, canvas = dict(joint.kinds)[name], (image.height, image.width)
            if kind == "mask":
                given[name] = tv_tensors.Mask(values[0])
            elif kind == "points":
                given[name] = tv_tensors.KeyPoints(values[0], canvas_size=canvas)
            elif kind == "labels":
                given[name] = values[0]
            else:
                given[name] = tv_tensors.BoundingBoxes(
                    values[0],
                    format=kind.upper(),
                    canvas_size=canvas,
                )
        made = transform(given)
        image = made["image"]
        images.append(image.as_subclass(torch.Tensor) if isinstance(image, torch.Tensor) else image)
        for name, values in moved.items():
            values.append(made[name].as_subclass(torch.Tensor))
    return images, {name: batched(values, joint, name) for name, values in moved.items()}


def batched(values: list[torch.Tensor], joint: Joint, name: str) -> torch.Tensor | list[Any]:
    """A field as a batch has it: masks are one tensor where they are of one size."""
    alike = len({(value.shape, value.dtype) for value in values}) == 1
    return torch.stack(values) if alike and (name, "mask") in joint.kinds else values
