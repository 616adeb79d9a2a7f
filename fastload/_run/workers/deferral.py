"""Deferral: a user's Dataset run over deferred images, batch by batch, in one process.

How it runs
    A batch is made inside ``hooks.deferring()``: images that the dataset opens are deferred, and
    what is asked of them is recorded. Then ``complete`` has the core fill all tensors of the batch
    that were recorded, and makes the PIL images. In a worker process only the images are made:
    tensors travel as recordings (``transport.py``), and the training process fills them.
How it ends
    success   the batch holds plain tensors and plain PIL images.
    failure   an image is damaged, which the user's code would have seen where Pillow decodes; or
              anything was raised while images were deferred. The batch is made again without
              deferring, from the states that Python's, NumPy's and torch's generators had before
              it. So the user's own ``except`` sees what it would have seen, and what is raised is
              what torch's DataLoader raises.
    quiet     a dataset that opens no images is soon left alone: only batches ``_FIRST_LOOK``, twice
              that, four times that ... of an epoch are run this way.
"""

from __future__ import annotations

import collections
import contextlib
import math
import operator
import sys
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from ..._base.slabs import SlabRing
from ..image_counts import Report
from . import randomness

if TYPE_CHECKING:
    from ..._sources.deferred.batch import BatchDecoder, Filling
    from ..._sources.deferred.image import DeferredImage
    from ..._sources.deferred.recording import Recording
    from ..._sources.deferred.tensor import DeferredBatch, DeferredTensor

Shape: TypeAlias = "tuple[int, ...]"

Row: TypeAlias = "Recording | torch.Tensor"
"""One image of a batch: what was recorded, or a tensor that is made already."""

# Batches without an image before deferring pauses, and how many later it looks again.
_PATIENCE = 3
_FIRST_LOOK = 64

_NEEDED = ("PIL.Image", "torchvision.transforms")

# An object of the user's class may refer to a whole dataset, which is not searched.
_MOST_OWNED = 4096

# How deep objects of the user's classes are searched for deferred ones.
_DEEPEST = 8


def loaded() -> bool:
    """Whether this process can open images and make tensors of them: the program imported that.

    fastload does not, since it takes a second; and without torchvision there is nothing to record.
    """
    return all(name in sys.modules for name in _NEEDED)


def install() -> None:
    """Redirect what opens images. Forked workers have it from this process."""
    from ..._sources.deferred import hooks

    hooks.install()


class Filler(Protocol):
    """Something that is being filled.

    Attributes:
        tensor: complete after ``result``.
    """

    tensor: torch.Tensor

    def result(self) -> torch.Tensor:
        """The tensor, when it is complete. Raises ``Damaged`` where an image cannot be made."""


class Deferral:
    """Runs batches over deferred images. Each process that makes batches has its own.

    Args:
        decoder: completes batches in this process; None: another process completes them.
        keep: of how many of the last batches to keep the states of the generators.
        restores: whether the generators get their states back before a batch is made again. Not in
            a thread beside the training loop, which uses them too.
    """

    def __init__(
        self, decoder: BatchDecoder | None, keep: int = 0, *, restores: bool = True
    ) -> None:
        self._keep = keep
        self._restores = restores
        self._made = decoder
        self._quiet = 0 if decoder is None else decoder.quiet
        self._passed = 0
        self._installed = False
        # Whether this dataset has opened an image, which it may have kept for a later batch.
        self._opened = decoder is not None and decoder.opened
        self._states: collections.OrderedDict[int, randomness.State] = collections.OrderedDict()
        self.report = Report()
        """Of the last batch."""

    def __getstate__(self) -> dict[str, Any]:
        # another process makes its own
        return {**self.__dict__, "_made": None, "_installed": False}

    @property
    def decoder(self) -> BatchDecoder:
        """Makes tensors in this process."""
        if self._made is None:
            from ..._sources.deferred.batch import BatchDecoder

            self._made = BatchDecoder(0, SlabRing(2))
        return self._made

    def due(self) -> bool:
        """Whether to defer the images of the next batch."""
        if not self._installed:
            if not loaded():
                return False
            install()
            self._installed = True
        if self._quiet < _PATIENCE or self._opened:
            return True
        self._passed += 1
        passed = self._passed
        return passed >= _FIRST_LOOK and passed & (passed - 1) == 0

    def run(
        self, number: int | None, make: Callable[[], Any], complete: Callable[[Any], Any]
    ) -> tuple[Any, Any] | None:
        """``made = make()`` over deferred images, and ``complete(made)``.

        Args:
            number: of the task, to find the states of the generators before it again.
            make: runs the user's code.
            complete: finishes the batch, still deferring nothing.

        Returns:
            Both results; None: the generators have their states from before, and the caller makes
            the batch without deferring.
        """
        from ..._sources.deferred import hooks, thread_state

        state = randomness.get()
        if number is not None and self._keep:
            self._states[number] = state
            while len(self._states) > self._keep:
                self._states.popitem(last=False)
        thread = thread_state.THREAD
        thread.opened, thread.failed = 0, False
        try:
            with hooks.deferring(), self._filling():
                made = make()
            if not thread.failed:
                completed = complete(made)
                self._note(thread.opened)
                return made, completed
        except Exception:
            if not (thread.opened or self._opened):
                raise
        self._note(thread.opened)
        if self._restores:
            randomness.put(state)
        return None

    def state_before(self, number: int) -> randomness.State | None:
        """The states of the generators before a task of this process; None: no longer known."""
        return self._states.get(number)

    def complete(self, batch: Any) -> Any:
        """``batch`` with plain tensors and plain PIL images.

        Raises:
            Damaged, or what Pillow raises: an image cannot be made.
        """
        found = self._find(batch)
        if not found:
            return batch
        with self.decoder.together():
            filled = {key: fill(self.decoder, tensor) for key, tensor in found.tensors.items()}
        results: dict[int, object] = {key: one.result() for key, one in filled.items()}
        results |= {key: image.materialise() for key, image in found.images.items()}
        self._count(found)
        return replaced(batch, lambda part: results.get(id(part), part))

    def complete_or_raise(self, batch: Any) -> Any:
        """The same; where an image cannot be made, it raises what Pillow raises."""
        from ..._sources.deferred.batch import Damaged

        try:
            return self.complete(batch)
        except Damaged as damaged:
            raise damaged.__cause__ or damaged from None

    def complete_images(self, batch: Any) -> Any:
        """``batch`` with plain PIL images; its tensors may stay deferred."""
        found = self._find(batch)
        self._count(found)
        if not found.images:
            return batch
        results = {key: image.materialise() for key, image in found.images.items()}
        return replaced(batch, lambda part: results.get(id(part), part))

    def _find(self, batch: Any) -> Found:
        from ..._sources.deferred.thread_state import THREAD

        found = Found()
        if THREAD.opened or self._opened:
            replaced(batch, found.add)
        return found

    def _count(self, found: Found) -> None:
        self.report = Report(deferred=sum(map(rows_of, found.tensors.values())))

    def _note(self, opened: int) -> None:
        """Note what became of a batch."""
        from ..._sources.deferred import hooks

        causes = tuple(hooks.materialised())
        self.report = Report(opened, self.report.deferred, causes)
        if opened and not self._opened:
            self._opened = True
            if self._made is not None:
                self._made.opened = True
        self._quiet += 1
        if self._made is not None:
            self._made.quiet = self._quiet

    @contextlib.contextmanager
    def _filling(self) -> Iterator[None]:
        """Within it, deferred batches that the user's code looks into are filled by the core."""
        from ..._sources.deferred import tensor

        token = tensor.BATCHES.set(lambda batch: fill(self.decoder, batch).result())
        try:
            yield
        finally:
            tensor.BATCHES.reset(token)


class Found:
    """The deferred objects of a batch, each once, by ``id``."""

    def __init__(self) -> None:
        from ..._sources.deferred.image import DeferredImage
        from ..._sources.deferred.tensor import DeferredBatch, DeferredTensor, DeferredTVImage

        self._image = DeferredImage
        self._kinds = {DeferredImage, DeferredTensor, DeferredTVImage, DeferredBatch}
        self.images: dict[int, DeferredImage] = {}
        self.tensors: dict[int, DeferredTensor | DeferredBatch] = {}

    def __bool__(self) -> bool:
        return bool(self.images or self.tensors)

    def add(self, part: Any) -> Any:
        """Note ``part`` if it is deferred; returns it."""
        kind = type(part)
        if kind in self._kinds:
            (self.images if kind is self._image else self.tensors)[id(part)] = part
        return part


class Ready:
    """A tensor that is complete already."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def result(self) -> torch.Tensor:
        """The tensor."""
        return self.tensor


class FillingTensor:
    """A single tensor that is being filled, as the only row of a batch.

    Attributes:
        tensor: complete after ``result``.
    """

    def __init__(self, filling: Filling, kind: type[torch.Tensor] = torch.Tensor) -> None:
        self._filling = filling
        # A tensor of its own, not a view of the batch.
        row = filling.tensor
        self.tensor = torch.empty(0, dtype=row.dtype, device="cpu").set_(
            row.untyped_storage(), 0, row.shape[1:], row.stride()[1:]
        )
        if kind is not torch.Tensor:
            self.tensor = self.tensor.as_subclass(kind)

    def result(self) -> torch.Tensor:
        """Wait, and return it. Raises as ``Filling.result``."""
        self._filling.result()
        return self.tensor


def fill(decoder: BatchDecoder, tensor: DeferredTensor | DeferredBatch) -> Filler:
    """Start to fill a deferred tensor or batch."""
    kind, shape, strides, dtype, rows = parts_of(tensor)
    if rows is None:
        return Ready(tensor.materialise())
    return start(decoder, kind, shape, strides, dtype, rows)


def parts_of(
    tensor: DeferredTensor | DeferredBatch,
) -> tuple[type[torch.Tensor], Shape, Shape, torch.dtype, list[Row] | None]:
    """Type, shape, strides and dtype of what a deferred tensor stands for, and its rows.

    The rows are None where it is materialised already.
    """
    from ..._sources.deferred.tensor import DeferredBatch, DeferredTVImage

    with torch._C.DisableTorchFunctionSubclass():  # these are the wrapper's own
        strides = tuple(tensor.stride())
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if isinstance(tensor, DeferredBatch):
        return torch.Tensor, shape, strides, dtype, list(tensor.rows) or None
    kind: type[torch.Tensor] = torch.Tensor
    if isinstance(tensor, DeferredTVImage):
        from torchvision import tv_tensors

        kind = tv_tensors.Image
    recording = tensor.recording
    return kind, shape, strides, dtype, None if recording is None else [recording]


def start(
    decoder: BatchDecoder,
    kind: type[torch.Tensor],
    shape: Shape,
    strides: Shape,
    dtype: torch.dtype,
    rows: list[Row],
) -> Filling | FillingTensor:
    """Start to fill a tensor of this kind, shape and strides (in elements) with ``rows``."""
    single = len(shape) == 3
    if single:
        shape, strides = (1, *shape), (math.prod(shape), *strides)
    filling = decoder.begin(shape, strides, dtype)
    recordings = [row for row in rows if not isinstance(row, torch.Tensor)]
    if len(recordings) == len(rows):
        filling.add(0, recordings)
    else:
        for place, row in enumerate(rows):
            if isinstance(row, torch.Tensor):
                filling.put(place, row)
            else:
                filling.add(place, [row])
    return FillingTensor(filling, kind) if single else filling


def rows_of(tensor: Any) -> int:
    """How many images a deferred tensor or batch is of."""
    return len(getattr(tensor, "rows", (tensor,)))


def replaced(batch: Any, one: Callable[[Any], Any]) -> Any:
    """``batch`` with ``one(part)`` in the place of each of its parts.

    Lists, dicts and objects are changed in place, so that whoever else refers to them sees the
    same; tuples and other containers that cannot be changed are made again where a part differs.
    """
    seen: set[int] = set()

    def walk(part: Any, depth: int, most: float) -> Any:
        kind = type(part)
        if kind in _ATOMS:
            return part
        new = one(part)
        if new is not part or isinstance(part, torch.Tensor) or id(part) in seen:
            return new
        seen.add(id(part))
        if depth == _DEEPEST:
            return part
        depth += 1
        if isinstance(part, tuple):
            parts = [walk(each, depth, most) for each in part]
            if all(map(operator.is_, parts, part)):
                return part
            return kind(*parts) if hasattr(part, "_fields") else kind(parts)
        if isinstance(part, MutableMapping):
            if len(part) <= most:
                for key, value in list(part.items()):
                    new = walk(value, depth, most)
                    if new is not value:
                        part[key] = new
        elif isinstance(part, MutableSequence):
            if len(part) <= most and not isinstance(part, bytearray):
                for i, value in enumerate(part):
                    new = walk(value, depth, most)
                    if new is not value:
                        part[i] = new
        elif not isinstance(part, type) and not callable(part):
            for name, value in list(getattr(part, "__dict__", {}).items()):
                new = walk(value, depth, _MOST_OWNED)
                if new is not value:
                    object.__setattr__(part, name, new)
        return part

    return walk(batch, 0, math.inf)


_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, torch.Tensor))
