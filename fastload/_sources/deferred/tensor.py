"""DeferredTensor: the tensor of an image that is not decoded yet; DeferredBatch: several, stacked.

Both pass for a tensor: they have its shape, dtype and strides. Operations of ``operations.py`` are
recorded; every other function of torch gets the real tensor. An operation in place changes what was
recorded, for everything that shares the memory.

Note [Filled by rows]
    Many a ``collate_fn`` allocates a batch of zeros and copies each image to its row (timm's
    ``fast_collate``, torchvision's ``cat_list``), or to a part of it, which pads images of several
    sizes (DETR's ``nested_tensor_from_tensor_list``, torchvision's ``batch_images``). Such a batch
    is deferred, too: ``blank`` makes it where ``filling_rows`` sees a ``torch.zeros`` in whose rows
    a deferred image fits, or where one of them is asked for ``new``. Its rows, and boxes in them,
    are views. A deferred image that is copied to one is noted there, with a border of the batch's
    value if there is nothing else in that row. Anything else makes the whole batch real, and the
    views are then views of that.

Note [Rows of a batch]
    Ten crops of an image are stacked, taken apart to be normalised, and stacked again. What is
    taken out of a batch that is not made yet is a view of it, as a part is of a tensor: new values
    of a row are recorded, and what changes it in place makes the batch. Batches of one shape are
    stacked, too: (samples, crops, channels, height, width), with a row for every crop.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torchvision import tv_tensors

from ..._base.named import named
from .memory import CPU, Box, Memory, known_by_equality
from .recording import Opened, Operation, Recording
from .replay import replay
from .stand_in import StandIn
from .thread_state import THREAD, cause, note_made

Handler: TypeAlias = "Callable[..., Any]"

HANDLERS: dict[Callable[..., Any], Handler] = {}
"""By function of torch, what handles it for deferred tensors: ``tensor_functions.py`` has them."""


class _Kind(StandIn, torch._C._TensorMeta):
    """The metaclass of deferred tensors: a StandIn, and torch's."""


class Deferred(torch.Tensor, metaclass=_Kind):
    """What tensors that have no values yet have in common."""

    stands_for: type[torch.Tensor] = torch.Tensor

    _view: torch.Tensor | None = None  # the real one, where that is a view of a memory's
    _OWN = frozenset(("_view",))  # attributes; others are the user's

    @staticmethod
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a real one, which programs mean that call ``type(x)(...)``."""
        return cls.stands_for(*args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass  # __new__ did it, or that of ``stands_for``

    def materialise(self) -> torch.Tensor:
        """Make the real tensor, once, and return it.

        Raises:
            FileChanged: a file changed since it was opened.
            Whatever Pillow raises for a damaged body.
        """
        raise NotImplementedError

    def _real_or_none(self) -> torch.Tensor | None:
        raise NotImplementedError

    # Properties, since torch asks __torch_function__ for these on every access.

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        real = self._real_or_none()
        if real is not None:
            return real.shape
        with torch._C.DisableTorchFunction():
            return super().shape

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        real = self._real_or_none()
        if real is not None:
            return real.dtype
        with torch._C.DisableTorchFunction():
            return super().dtype

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self.shape)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        real = self._real_or_none()
        return CPU if real is None else real.device

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        return torch.strided

    @property
    def requires_grad(self) -> bool:
        real = self._real_or_none()
        return False if real is None else real.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.materialise().requires_grad = value

    @property
    def is_nested(self) -> bool:  # type: ignore[override]
        return False

    @property
    def row_of(self) -> DeferredBatch | None:
        """The batch of which this is a view; None: it is none."""
        return None

    def with_attributes(self, real: torch.Tensor) -> torch.Tensor:
        """``real``, with the attributes that the user's code has given this."""
        for name in vars(self).keys() - self._OWN:
            setattr(real, name, vars(self)[name])
        return real

    def _viewed(self, view: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The real view, made once: its shape and gradient are its own."""
        if self._view is None:
            self._view = view()
        return self._view

    def opened(self) -> list[Opened]:
        """The images that are not made yet."""
        raise NotImplementedError

    def materialise_row(self, index: int) -> None:
        """Make one row: of anything but a batch, all of it."""
        self.materialise()

    def as_subclass(self, kind: Any) -> Any:
        """Make it first: torch does not ask __torch_function__ for this."""
        return _eagerly(torch.Tensor.as_subclass, (self, kind), {})

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.materialise())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.with_attributes(self.materialise()).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        real = self.with_attributes(self.materialise())
        return cast(torch.Tensor, real.__deepcopy__(memo))  # type: ignore[no-untyped-call]

    def __dir__(self) -> list[str]:
        return dir(torch.Tensor)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None:
            try:
                result = handler(*args, **(kwargs or {}))
            except TypeError:  # other arguments than it knows: torch takes them, or says why not
                result = NotImplemented
            if result is not NotImplemented:
                return result
        return _eagerly(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # What reaches torch's C++ without Python's overrides, such as torch.tensor(image).
        return _eagerly(func, args, kwargs or {})


class DeferredTensor(Deferred):
    """The tensor of an image that is not decoded yet: (channels, height, width), on the CPU."""

    __slots__ = ("_memory",)  # most have no dict
    _memory: Memory

    @staticmethod
    def __new__(cls, *args: Any, **kwargs: Any) -> DeferredTensor:
        if len(args) == 1 and isinstance(args[0], Recording):
            return cls._of(Memory.of(args[0]))
        return cast(DeferredTensor, cls.stands_for(*args, **kwargs))

    @classmethod
    def _of(cls, memory: Memory) -> DeferredTensor:
        shape, strides, dtype = memory.shape, memory.strides, memory.layout.dtype
        if strides[0] > 1 and memory.gaps is None:  # the usual ones: torch is faster without them
            tensor = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        else:
            tensor = torch.Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=dtype)
        _without_data(tensor)
        tensor._memory = memory
        return tensor

    @property
    def recording(self) -> Recording | None:
        """None: it is materialised."""
        memory = self._memory
        return None if memory.real is not None else memory.recording()

    def materialise(self) -> torch.Tensor:
        return self._memory.materialise()

    @property
    def has_gaps(self) -> bool:
        """Whether there are gaps between its rows, which belong to another tensor."""
        return self._memory.gaps is not None

    @property
    def row_of(self) -> DeferredBatch | None:
        view = self._memory.whole
        return view.whole if view and isinstance(view.whole, DeferredBatch) else None

    def opened(self) -> list[Opened]:
        return [self._memory.opened]

    def as_subclass(self, kind: Any) -> Any:
        """Another deferred tensor of the same memory, if ``kind`` has one."""
        for deferred in (DeferredTensor, DeferredTVImage):
            if deferred == kind:  # which it is to what it stands for, too
                if self._memory.real is None:
                    return deferred._of(self._memory)
                kind = deferred.stands_for
        return super().as_subclass(kind)

    def _real_or_none(self) -> torch.Tensor | None:
        return self._memory.real


# Where a release has no such function, nobody knows, and torch gets the real image.
_returns_subclass: Callable[[], bool] = named(
    "torchvision.tv_tensors._torch_function_helpers._must_return_subclass"
) or (lambda: True)


class DeferredTVImage(DeferredTensor, tv_tensors.Image):  # type: ignore[misc]
    """A deferred tensor that is marked as an image for torchvision's v2 transforms."""

    stands_for = tv_tensors.Image

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if _returns_subclass():  # tv_tensors.set_return_type("TVTensor")
            return _eagerly(func, args, kwargs or {})
        return super().__torch_function__(func, types, args, kwargs)

    def materialise(self) -> torch.Tensor:
        """Make the real tensor, marked; it shares the memory of those that are not."""
        real = super().materialise()
        return self._viewed(lambda: cast(torch.Tensor, real.as_subclass(tv_tensors.Image)))

    def _real_or_none(self) -> torch.Tensor | None:
        return self._memory.real if self._view is None else self._view


class DeferredUnsqueezed(DeferredTensor):
    """A view of a deferred tensor with a dimension of one in front: (1, channels, height, width).

    Most functions get the real one.
    """

    @classmethod
    def _of(cls, memory: Memory) -> DeferredUnsqueezed:
        shape, strides, dtype = memory.shape, memory.strides, memory.layout.dtype
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, (1, *shape), strides=(shape[0] * strides[0], *strides), dtype=dtype
        )
        _without_data(tensor)
        tensor._memory = memory
        return tensor

    def materialise(self) -> torch.Tensor:
        real = super().materialise()
        return self._viewed(lambda: real.unsqueeze(0))

    as_subclass = Deferred.as_subclass

    def _real_or_none(self) -> torch.Tensor | None:
        return None if self._memory.real is None else self.materialise()


class DeferredBatch(Deferred):
    """Deferred tensors of one shape and dtype, or such batches, stacked along a new dimension.

    Attributes:
        rows: what was recorded, or a copy of a tensor that is made already. What is done in place
            to a row later does not show here. Of stacked batches, those of all of them.
    """

    rows: tuple[Recording | torch.Tensor, ...]
    _real: torch.Tensor | None
    _blank_row: torch.Tensor | None = None  # those of ``blank`` that nothing was copied to
    _OWN = Deferred._OWN | {"_blank_row", "_real", "rows"}

    @classmethod
    def _of(
        cls,
        rows: tuple[Recording | torch.Tensor, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        strides: tuple[int, ...],
    ) -> DeferredBatch:
        batch = torch.Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=dtype)
        _without_data(batch)
        batch.rows = rows
        batch._real = None
        return batch

    def materialise(
        self, make: Callable[[DeferredBatch], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Have ``make`` make the real tensor, once, and return it.

        Without it, while the thread defers, the ``fill`` of its batch.
        """
        if self._real is None:
            if make is None and THREAD.deferring:
                make = THREAD.batch.fill
            with torch.inference_mode(False):  # as of a single tensor
                self._real = self.replay() if make is None else make(self)
            for row in self.rows:
                if isinstance(row, Recording):
                    note_made(row.opened)
            self.rows = ()
        return self._real

    @classmethod
    def blank(cls, shape: tuple[int, ...], dtype: torch.dtype, value: float = 0) -> DeferredBatch:
        """A batch (rows, channels, height, width) of ``value``. See Note [Filled by rows]."""
        batch = cls._of((), shape, dtype, contiguous_strides(shape))
        batch.fill_rows(value)
        return batch

    def fill_rows(self, value: float) -> None:
        """Set every row to ``value``, of a batch that ``blank`` made."""
        count, *shape = self.shape
        self._blank_row = torch.full((), value, dtype=self.dtype, device="cpu").expand(shape)
        self.rows = (self._blank_row,) * count

    def opened(self) -> list[Opened]:
        return [row.opened for row in self.rows if isinstance(row, Recording)]

    def set_row(self, index: int, row: Recording | torch.Tensor) -> None:
        self.rows = (*self.rows[:index], row, *self.rows[index + 1 :])

    def materialise_row(self, index: int) -> None:
        """Make one row, with Pillow and torch."""
        row = self.rows[index]
        if not isinstance(row, torch.Tensor):
            self.set_row(index, cast(torch.Tensor, replay(row)))

    def replay(self) -> torch.Tensor:
        batch = torch.empty_strided(self.shape, strides_of(self), dtype=self.dtype, device="cpu")
        rows = [
            row if isinstance(row, torch.Tensor) else cast(torch.Tensor, replay(row))
            for row in self.rows
        ]
        torch.stack(rows, out=batch.view(-1, *self.shape[-3:]))
        return batch

    def _real_or_none(self) -> torch.Tensor | None:
        return self._real


class DeferredRow(Deferred):
    """A view of a row of a batch that is filled by rows, or of a box in that row."""

    batch: DeferredBatch
    row_index: int
    box: Box

    _OWN = Deferred._OWN | {"batch", "row_index", "box"}

    @staticmethod
    def __new__(cls, batch: DeferredBatch, index: int, box: Box | None = None) -> DeferredRow:
        _, c, height, width = batch.shape
        box = box or (0, 0, width, height)
        view = torch.Tensor._make_wrapper_subclass(
            cls,
            (c, box[3], box[2]),
            strides=contiguous_strides((c, height, width)),
            dtype=batch.dtype,
        )
        _without_data(view)
        view.batch = batch
        view.row_index = index
        view.box = box
        return view

    @property
    def row_of(self) -> DeferredBatch:
        return self.batch

    def opened(self) -> list[Opened]:
        return self.batch.opened()

    def materialise(self) -> torch.Tensor:
        """The same row of the real batch, or box in it: a view."""
        real = self.batch.materialise()
        return self._viewed(lambda: self._box_of(real))

    def copy(self, source: Memory) -> bool:
        """Note a copy of ``source``, of the same shape and dtype; whether that can be noted."""
        x, y, w, h = self.box
        _, _, height, width = self.batch.shape
        border = x, y, width - x - w, height - y - h
        if any(border):
            blank = self.batch._blank_row
            if blank is None or self.batch.rows[self.row_index] is not blank:
                return False
            value = blank[0, 0, 0].item()
            if not known_by_equality(value):
                return False
            source = source.then(("border", *border, value))
        elif not source.layout.contiguous:
            source = source.then(("contiguous",))
        self.batch.set_row(self.row_index, source.recording())
        return True

    def _box_of(self, batch: torch.Tensor) -> torch.Tensor:
        x, y, w, h = self.box
        return batch[self.row_index, :, y : y + h, x : x + w]

    def _real_or_none(self) -> torch.Tensor | None:
        return None if self.batch._real is None else self.materialise()


@functools.lru_cache(64)
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(torch.empty(shape, device="meta").stride())


KINDS: frozenset[type] = frozenset(
    {DeferredTensor, DeferredTVImage, DeferredUnsqueezed, DeferredBatch, DeferredRow}
)


def some_deferred(tensors: Sequence[object]) -> bool:
    """Whether one of these is deferred."""
    return not KINDS.isdisjoint(map(type, tensors))


def _without_data(tensor: torch.Tensor) -> None:
    """Have torch raise where C++ takes the address of what is not there, as ``to_dlpack`` does."""
    torch._C._set_throw_on_mutable_data_ptr(tensor)


def plain(value: torch.Tensor) -> torch.Tensor:
    """The tensor itself, materialised if it is deferred."""
    return value.materialise() if isinstance(value, Deferred) else value


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    if isinstance(tensor, Deferred) and tensor._real_or_none() is not None:
        tensor = tensor.materialise()
    with torch._C.DisableTorchFunction():  # of what is deferred they are the wrapper's own
        return tuple(tensor.stride())


def _eagerly(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call ``func`` with the real tensors."""
    wrappers: dict[int, Deferred] = {}
    result = func(*_real(tuple(args), func, wrappers), **_real(dict(kwargs), func, wrappers))
    # What works in place returns the tensor that it was given, or several.
    if type(result) in (list, tuple):
        return _with_elements(result, [wrappers.get(id(element), element) for element in result])
    return wrappers.get(id(result), result) if isinstance(result, torch.Tensor) else result


def _real(value: Any, func: Callable[..., Any], wrappers: dict[int, Deferred]) -> Any:
    """``value`` with real tensors, which ``func`` asks for; ``wrappers`` gets theirs, by their ids.

    Not a function within ``_eagerly``: that would be in a circle with itself, which keeps the
    tensors until the next garbage collection.
    """
    if isinstance(value, Deferred):
        if value._real_or_none() is None:
            with cause(_name(func)):
                real = value.materialise()
        else:
            real = value.materialise()
        wrappers[id(real)] = value
        return real
    if isinstance(value, (list, tuple)):
        return _with_elements(value, [_real(element, func, wrappers) for element in value])
    if type(value) is dict:
        return {key: _real(element, func, wrappers) for key, element in value.items()}
    return value


def _with_elements(container: Any, elements: list[Any]) -> Any:
    """A list or tuple like ``container``, with these parts; itself, if they are the same."""
    if all(map(operator.is_, elements, container)):
        return container
    if isinstance(container, list):
        return elements
    return type(container)(*elements) if hasattr(container, "_fields") else tuple(elements)


def _name(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", str(func))
    owner = getattr(func, "__self__", None)
    if name == "__get__" and owner is not None:
        name = getattr(owner, "__name__", name)
    return f"Tensor.{name}"


def pending(value: Any) -> bool:
    """Whether this is a deferred tensor of one image that is not materialised."""
    kind = type(value)
    return (kind is DeferredTensor or kind is DeferredTVImage) and value._memory.real is None


def like(tensor: DeferredTensor, memory: Memory, marked: bool = False) -> DeferredTensor:
    """A tensor of that memory; itself, if it is its own, unless it is a v2 image: as v2 gives it.

    ``marked``: a v2 image stays one. Most functions of torch give a plain tensor.
    """
    if memory is tensor._memory and type(tensor) is DeferredTensor:
        return tensor
    return (type(tensor) if marked else DeferredTensor)._of(memory)


def record(tensor: DeferredTensor, operation: Operation, marked: bool = False) -> DeferredTensor:
    """A new tensor: this one after an operation. ``marked``: a v2 image stays one."""
    return like(tensor, tensor._memory.then(operation), marked)


class Draft:
    """A tensor between two transforms of a chain: of its end alone one is made, which takes long.

    Attributes:
        memory, kind: those of the tensor.
        tensor: itself, where it was given; None: nobody has it.
    """

    __slots__ = ("kind", "memory", "tensor")

    def __init__(
        self, memory: Memory, kind: type[DeferredTensor], tensor: DeferredTensor | None = None
    ) -> None:
        self.memory = memory
        self.kind = kind
        self.tensor = tensor


def draft(value: Any) -> Any:
    """The draft of a deferred tensor that is not materialised; anything else stays."""
    return Draft(value._memory, type(value), value) if pending(value) else value


def finished(value: Any) -> Any:
    """The tensor of a draft; anything else stays."""
    if type(value) is not Draft:
        return value
    return value.kind._of(value.memory) if value.tensor is None else value.tensor


def record_in_place(tensor: DeferredTensor, operation: Operation) -> DeferredTensor:
    """The same tensor after an operation that changes neither shape nor dtype.

    Its memory must be ``alone``.
    """
    memory = tensor._memory
    memory.operations += (operation,)
    return tensor
