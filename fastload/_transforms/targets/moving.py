"""What moves joint fields (masks, boxes, points, labels) along with their images."""

from __future__ import annotations

import concurrent.futures
import io
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from ... import _native
from ..._base.value_class import value_class
from ...errors import DataError, DecodeError, MissingDependencyError
from ...storage.base import Store
from ..geometry.crop_geometry import Array, Frame
from ..geometry.geometry_log import GeometryLog, mask_lines, move_mask
from ..transform_class import Transform
from . import boxes
from .joint import FORMATS, Joint

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

# Masks per task: the overhead of a task is about a tenth of the work on one mask.
_CHUNK = 4

# Pillow's mode of a mask -> dtype, as in torchvision's pil_to_tensor.
_DTYPES = {"1": np.bool_, "L": np.uint8, "P": np.uint8, "I": np.int32, "F": np.float32}


@value_class()
class Sanitize:
    """torchvision's SanitizeBoundingBoxes, as a geometry operation that does not change images."""

    min_size: float
    min_area: float
    blocks: ClassVar[int] = 0

    def apply(self, frame: Frame, u: Array) -> None:
        """Log it, if targets are transformed too."""
        if frame.log is not None:
            frame.log.clean(self.min_size, self.min_area, frame.w, frame.h)


class JointProbe:
    """One small value for each joint field, passed through the transforms while a chain is read.

    The user's own transforms of values are called on them too, as torchvision does: ``ToDtype``
    with a dict of dtypes casts masks, and ``ToPureTensor`` makes plain tensors of them, which later
    transforms do not change.
    """

    def __init__(self, joint: Joint) -> None:
        from torchvision import tv_tensors

        self._joint = joint
        self._plain = False
        probes: dict[str, torch.Tensor] = {
            "mask": tv_tensors.Mask(torch.zeros((1, 1), dtype=torch.uint8, device="cpu")),
            "labels": torch.zeros(1, dtype=torch.int64, device="cpu"),
        }
        for form in FORMATS:
            empty = torch.zeros((1, 4), device="cpu")
            probes[form] = tv_tensors.BoundingBoxes(empty, format=form.upper(), canvas_size=(1, 1))
        if "points" in dict(joint.kinds).values():
            probes["points"] = points(torch.zeros((1, 2), device="cpu"), (1, 1))
        self._values = [probes[kind] for _, kind in joint.kinds]
        self._before = [value.dtype for value in self._values]

    def through(self, transform: Transform, image: Image.Image | torch.Tensor) -> Any:
        """Call ``transform`` on ``image`` together with the probe values; returns the image."""
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
        """The fields, with the casts that the transforms so far do."""
        casts = tuple(
            (name, value.dtype)
            for (name, _), value, before in zip(
                self._joint.kinds, self._values, self._before, strict=True
            )
            if value.dtype != before
        )
        return self._joint._replace(casts=casts)

    @property
    def fixed(self) -> str:
        """Why later geometry cannot be applied to the fields; "": it can."""
        if self._plain:
            return "comes after ToPureTensor, after which torchvision transforms only the image"
        names = ", ".join(name for name, _ in self.joint.casts)
        return f"comes after a cast of {names}; put ToDtype last" if names else ""


class Moving:
    """Transforms the joint fields of a batch.

    Args:
        sizes: int32 (n, 2): width and height of the source images.
        log: geometry log of the images.
        height, width: size of the results.
        pool: executor for the masks; None: the thread that calls ``result``.
    """

    def __init__(
        self,
        joint: Joint,
        store: Store,
        records: np.ndarray,
        sizes: np.ndarray,
        log: GeometryLog,
        height: int,
        width: int,
        pool: concurrent.futures.Executor | None,
    ) -> None:
        self._joint, self._store, self._records = joint, store, records
        self._sizes, self._log = sizes, log
        self._shape = height, width
        self.nanoseconds = 0
        self._errors: dict[int, DataError] = {}
        self._masks: dict[str, torch.Tensor] = {}
        self._tasks: list[concurrent.futures.Future[int]] = []
        self._later: list[tuple[str, Sequence[Any], range]] = []
        masks = joint.named("mask")
        if masks:
            n = len(records)
            steps = log.steps
            self._rows = mask_lines(steps, n, height, rows=True)
            self._columns = mask_lines(steps, n, width, rows=False)
        for name, _ in masks:
            values = self._values(name)
            for begin in range(0, len(records), _CHUNK):
                positions = range(begin, min(begin + _CHUNK, len(records)))
                if pool is None:
                    self._later.append((name, values, positions))
                else:
                    self._tasks.append(pool.submit(self._make_masks, name, values, positions))

    def settle(self) -> tuple[dict[str, Any], dict[int, DataError]]:
        """The fields by name, and the errors by position of samples whose values are empty."""
        self.nanoseconds += sum(task.result() for task in self._tasks)
        self.nanoseconds += sum(self._make_masks(*work) for work in self._later)
        moved: dict[str, Any] = dict(self._masks)
        begin = time.perf_counter_ns()
        steps = self._log.steps
        kept_boxes: list[npt.NDArray[np.int64]] | None = None
        for name, form in self._joint.named(*FORMATS):
            placed, kept_boxes = boxes.move_boxes(self._numbers(name, 4), steps, form)
            moved[name] = list(map(torch.from_numpy, placed))
        for name, _ in self._joint.named("points"):
            points = boxes.move_points(self._numbers(name, 2), steps)
            moved[name] = list(map(torch.from_numpy, points))
        for name, _ in self._joint.named("labels"):
            moved[name] = self._labels(name, kept_boxes)
        for name, dtype in self._joint.casts:
            values = moved[name]
            is_stacked = isinstance(values, torch.Tensor)
            moved[name] = values.to(dtype) if is_stacked else [value.to(dtype) for value in values]
        self.nanoseconds += time.perf_counter_ns() - begin
        return moved, self._errors

    def result(self) -> dict[str, Any]:
        """The fields by name. Raises the first sample's DataError if any failed."""
        moved, errors = self.settle()
        if errors:
            raise errors[min(errors)]
        return moved

    def _values(self, name: str) -> Sequence[Any]:
        """The stored values of the records; None for one that cannot be read (see ``_errors``)."""
        if self._store.fields[name].kind == "array":
            column: Sequence[Any] = self._store.column(name)[self._records]
            return column
        try:
            return self._store.values(name, self._records)
        except DataError:  # read one by one to find the bad ones
            return [self._value(name, i) for i in range(len(self._records))]

    def _value(self, name: str, i: int) -> bytes | None:
        try:
            return self._store.values(name, self._records[i : i + 1])[0]
        except DataError as error:
            self._errors.setdefault(i, error)
            return None

    def _decoded(self, name: str) -> list[Any]:
        """The values of a field that is not a mask."""
        field, values = self._store.fields[name], self._values(name)
        if field.kind == "array":
            return list(values)
        decoded: list[Any] = []
        for i, value in enumerate(values):
            try:
                decoded.append([] if value is None else field.decode(value))
            except (ValueError, RecursionError) as error:
                self._fail(i, name, f"expected JSON: {error}", error)
                decoded.append([])
        return decoded

    def _numbers(self, name: str, width: int) -> list[Array]:
        """float32 for each sample: boxes (k, 4) or points (..., 2); k is 0 if there are none."""
        arrays: list[Array] = []
        for i, value in enumerate(self._decoded(name)):
            try:
                array = np.asarray(value, np.float32)
                if not array.size:
                    array = np.zeros((0, width), np.float32)
                if array.shape[-1:] != (width,):
                    raise ValueError(f"an array of shape {array.shape}")
                # a single box becomes an array of one, as in BoundingBoxes
                arrays.append(array.reshape(-1, 4) if width == 4 else array)
            except (TypeError, ValueError) as error:
                self._fail(i, name, f"expected {width} numbers each, got {error}", error)
                arrays.append(np.zeros((0, width), np.float32))
        return arrays

    def _labels(self, name: str, kept: list[npt.NDArray[np.int64]] | None) -> list[torch.Tensor]:
        """The labels of the boxes that were kept."""
        labels_of_all = []
        for i, value in enumerate(self._decoded(name)):
            try:
                array = np.atleast_1d(np.asarray(value))
                labels = torch.from_numpy(array if len(array) else np.zeros(0, np.int64))
            except (TypeError, ValueError) as error:
                self._fail(i, name, f"expected a number for each box, got {error}", error)
                labels = torch.from_numpy(np.zeros(0, np.int64))
            if kept is not None and len(labels):
                if int(kept[i].max(initial=-1)) >= len(labels):
                    self._fail(i, name, f"expected a label for each box, got {len(labels)} labels")
                else:
                    labels = labels[torch.from_numpy(kept[i])]
            labels_of_all.append(labels)
        return labels_of_all

    def _make_masks(self, name: str, values: Sequence[Any], positions: range) -> int:
        begin = time.perf_counter_ns()
        for i in positions:
            if values[i] is None:
                continue
            try:
                source = values[i] if isinstance(values[i], np.ndarray) else _read_mask(values[i])
                width, height = self._sizes[i].tolist()
                if source.shape != (height, width):
                    raise ValueError(
                        f"expected a mask of {width}x{height} pixels, as the image has, got shape "
                        f"{source.shape}"
                    )
                out = self._mask(name, source.dtype)[i]
                if out.dtype != source.dtype:
                    raise ValueError(
                        f"expected {out.dtype} as in the batch's other masks, got {source.dtype}"
                    )
                move_mask(source, i, self._rows, self._columns, self._log.steps, out)
            except Exception as error:  # noqa: BLE001 - Pillow may raise any error
                self._fail(i, name, str(error) or type(error).__name__, error)
        return time.perf_counter_ns() - begin

    def _mask(self, name: str, dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
        """Memory for the masks, allocated on first use."""
        if name not in self._masks:
            masks = np.zeros((len(self._records), *self._shape), dtype)
            self._masks.setdefault(name, torch.from_numpy(masks))
        return self._masks[name].numpy()

    def _fail(self, i: int, name: str, message: str, error: Exception | None = None) -> None:
        failure = DecodeError(
            f"the field {name!r}: {message}", path=self._store.path, record=int(self._records[i])
        )
        failure.__cause__ = error
        self._errors.setdefault(i, failure)


def _read_mask(data: bytes) -> npt.NDArray[np.generic]:
    """A mask (h, w) from an image file with one channel. Raises OSError and ValueError."""
    core = _native.load()
    decoded = None if core is None else core.png_levels(data)
    if decoded is not None:
        levels, width, height = decoded
        return np.frombuffer(levels, np.uint8).reshape(height, width)
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        mode = image.mode
        if mode.startswith("I;16"):
            return np.asarray(image).astype(np.int32)
        if mode not in _DTYPES:
            raise ValueError(f"expected a mask with one channel, got an image of mode {mode}")
        return np.asarray(image)


def stored(
    joint: Joint, store: Store, record: int, size: tuple[int, int]
) -> dict[str, torch.Tensor]:
    """The fields of one record, as they are stored; ``size`` is the image's width and height."""
    records, sizes, (width, height) = np.array([record]), np.array([size], np.int32), size
    moving = Moving(joint, store, records, sizes, GeometryLog(1), height, width, None)
    return {name: values[0] for name, values in moving.result().items()}


def points(value: torch.Tensor, canvas_size: tuple[int, int]) -> torch.Tensor:
    """torchvision's ``KeyPoints``, on an image of this height and width.

    Raises:
        MissingDependencyError: this torchvision has none.
    """
    from torchvision import tv_tensors

    if not hasattr(tv_tensors, "KeyPoints"):
        raise MissingDependencyError("joint={...: 'points'} needs torchvision 0.23 or newer")
    key_points: torch.Tensor = tv_tensors.KeyPoints(value, canvas_size=canvas_size)
    return key_points


def in_python(
    joint: Joint,
    store: Store,
    records: np.ndarray,
    transform: Transform,
    decode: Callable[[Store, int], Image.Image],
) -> tuple[list[Any], dict[str, Any]]:
    """Images and fields of ``records``, transformed by the user's own transform in Python.

    It is called with a dict, as torchvision's v2 transforms expect: "image" is a PIL image, the
    fields are ``Mask``, ``BoundingBoxes``, ``KeyPoints`` and tensors of labels.
    """
    from torchvision import tv_tensors

    images: list[Any] = []
    moved: dict[str, list[Any]] = {name: [] for name in joint.names}
    for record in records.tolist():
        image = decode(store, record)
        sample: dict[str, Any] = {"image": image}
        for name, value in stored(joint, store, record, image.size).items():
            kind, canvas = dict(joint.kinds)[name], (image.height, image.width)
            if kind == "mask":
                sample[name] = tv_tensors.Mask(value)
            elif kind == "points":
                sample[name] = points(value, canvas)
            elif kind == "labels":
                sample[name] = value
            else:
                sample[name] = tv_tensors.BoundingBoxes(
                    value, format=kind.upper(), canvas_size=canvas
                )
        result = transform(sample)
        image = result["image"]
        images.append(image.as_subclass(torch.Tensor) if isinstance(image, torch.Tensor) else image)
        for name, values in moved.items():
            values.append(result[name].as_subclass(torch.Tensor))
    return images, {name: batched(values, joint, name) for name, values in moved.items()}


def batched(values: list[torch.Tensor], joint: Joint, name: str) -> torch.Tensor | list[Any]:
    """A field of a batch: masks of one size are stacked, everything else is a list."""
    alike = len({(value.shape, value.dtype) for value in values}) == 1
    return torch.stack(values) if alike and (name, "mask") in joint.kinds else values
