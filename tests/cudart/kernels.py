"""torch's operations on the emulated devices: computed by the CPU's, when their stream gets there.

``install()`` replaces what torch has registered for CUDA, but for what only makes tensors or views.
An operation on tensors of a device gets its results' memory at once, out of torch's own CUDA
allocator, and is put into the current stream; when the stream's thread comes to it, the CPU's
operation runs on the same memory, in whatever state it is then. Nothing keeps a tensor until then:
memory that is let go of too early is seen as wrong numbers, as it would be on a device.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import itertools
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

# What torch does by calls of the runtime alone, or without any.
_OWN = (
    "_copy_from _copy_from_and_resize _has_same_storage_numel _local_scalar_dense _pin_memory "
    "_reshape_alias as_strided empty empty_strided is_pinned is_set_to record_stream resize_ set_ "
    "set_data unfold view view_as_complex view_as_real"
).split()

_emulated = ctypes.CDLL(None)
_kernels: dict[int, Callable[[], object]] = {}
_numbers = itertools.count()
_libraries: list[torch.library.Library] = []


@ctypes.CFUNCTYPE(None, ctypes.c_int64)
def _run(number: int) -> None:
    with torch.no_grad():
        _kernels[number]()


def launch(device: torch.device, kernel: Callable[[], object]) -> None:
    """Put ``kernel`` into the current stream of ``device``."""
    number = next(_numbers)

    def once() -> None:
        del _kernels[number]
        kernel()

    _kernels[number] = once
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream()
        status = _emulated.emulated_launch(
            ctypes.c_void_p(stream.cuda_stream), _run, ctypes.c_int64(number)
        )
    if status:
        raise RuntimeError(f"CUDA error: {status} at the launch of a kernel")


def host(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """What makes a CPU tensor of the memory that ``tensor`` has now; it doesn't keep the memory."""
    storage = tensor.untyped_storage()
    address, nbytes = storage.data_ptr(), storage.nbytes()
    dtype, size, stride = tensor.dtype, tensor.size(), tensor.stride()
    offset, odd = tensor.storage_offset(), tensor.is_conj() or tensor.is_neg()
    assert not odd, "conjugated views are not emulated"
    if tensor.numel():  # of a part of its block: the rest may be anybody's
        last = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        address += offset * tensor.element_size()
        nbytes = (last + 1) * tensor.element_size()

    def made() -> torch.Tensor:
        if not math.prod(size):
            return torch.empty(size, dtype=dtype)
        at = _memory(address, nbytes)
        memory = torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(at), dtype=torch.uint8)
        return memory.view(dtype).as_strided(size, stride)

    return made


_memory = _emulated.emulated_memory
_memory.restype = ctypes.c_void_p
_memory.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _is_cuda(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _device_of(arguments: Any) -> torch.device:
    found: list[torch.device] = []

    def look(value: Any) -> None:
        if _is_cuda(value):
            found.append(value.device)
        elif isinstance(value, torch.device) and value.type == "cuda":
            found.append(value)

    tree_map(look, arguments)
    if not found or found[0].index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found[0]


def _without_generator(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Arguments with a CPU generator for a device's, which is moved on as the device's would be."""
    known = op._schema.arguments
    at = next((i for i, a in enumerate(known) if "Generator" in str(a.type)), None)
    if at is None and "nondeterministic_seeded" not in str(op.tags):
        return args, kwargs
    if at is None:
        raise NotImplementedError(f"{op}: random numbers without a generator are not emulated")
    name = known[at].name
    given = args[at] if at < len(args) else kwargs.get(name)
    if given is None:
        given = torch.cuda.default_generators[_device_of((args, kwargs)).index]
    state = given.get_state()
    seed, offset = state.view(torch.int64).tolist()
    state.view(torch.int64)[1] = offset + 4
    given.set_state(state)
    ours = torch.Generator().manual_seed((seed * 1_000_003 + offset) % 2**63)
    if at < len(args):
        return (*args[:at], ours, *args[at + 1 :]), kwargs
    return args, {**kwargs, name: ours}


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    device = _device_of((args, kwargs))
    written = [a for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    call = op
    if any(
        str(a.type) == "Tensor" and isinstance(value, int | float)
        for a, value in zip(op._schema.arguments, args, strict=False)
    ):
        call = op.overloadpacket  # a number that torch had made a tensor of comes as a number
    args, kwargs = _without_generator(op, args, kwargs)
    given = {a.name: value for a, value in zip(op._schema.arguments, args, strict=False)} | kwargs
    results = [given[a.name] for a in written if given.get(a.name) is not None]

    def on(where: Callable[[torch.Tensor], Any], name: str) -> Any:
        def moved(value: Any) -> Any:
            if _is_cuda(value):
                return where(value)
            if isinstance(value, torch.device) or value in ("cuda", device):
                return torch.device(name)
            return value

        return tree_map(moved, (args, kwargs))

    shapes = None
    if all(a.kwarg_only for a in written):  # not in place
        try:
            few, named = on(lambda tensor: torch.empty_like(tensor, device="meta"), "meta")
            if named.get("pin_memory"):
                raise RuntimeError("only dense CPU tensors can be pinned")
            named = {k: v for k, v in named.items() if not isinstance(v, torch.Generator)}
            few = [None if isinstance(v, torch.Generator) else v for v in few]
            shapes = call(*few, **named)
        except NotImplementedError:  # its results' shapes are in the data
            torch.cuda.current_stream(device).synchronize()
            few, named = on(lambda tensor: host(tensor)(), "cpu")
            return tree_map(
                lambda made: made.to(device) if isinstance(made, torch.Tensor) else made,
                call(*few, **named),
            )
    if written:
        outs = shapes if isinstance(shapes, tuple | list) else [shapes]
        for result, shape in zip(results, outs, strict=False):
            if isinstance(shape, torch.Tensor) and isinstance(result, torch.Tensor):
                if result.shape != shape.shape:
                    result.resize_(shape.shape)
    else:
        results = tree_map(
            lambda shape: (
                torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype, device=device)
                if isinstance(shape, torch.Tensor)
                else shape
            ),
            shapes,
        )
    late_args, late_kwargs = on(host, "cpu")
    late_results = tree_map(lambda made: host(made) if _is_cuda(made) else None, results)

    def kernel() -> None:
        def now(value: Any) -> Any:
            return value() if callable(value) and not isinstance(value, type) else value

        few, named = tree_map(now, (late_args, late_kwargs))
        computed = call(*few, **named)
        if not written:
            torch.utils._pytree.tree_map(
                lambda to, made: to().copy_(made) if callable(to) else None, late_results, computed
            )

    launch(device, kernel)
    if not written:
        return results
    return results[0] if len(op._schema.returns) == 1 else tuple(results)


def _replaced(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _call(op, *args, **kwargs)


def _is_dense(tensor: torch.Tensor) -> bool:
    nbytes = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1 and stride != nbytes:
            return False
        nbytes *= length
    return True


def _copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    op = torch.ops.aten.copy_.default
    plain = target.dtype == source.dtype and target.shape == source.shape
    dense = target.is_contiguous() and source.is_contiguous()
    alike = target.stride() == source.stride() and _is_dense(target)
    if not (_is_cuda(target) and _is_cuda(source)) or (plain and (dense or alike)):
        key = torch._C.DispatchKey.CompositeExplicitAutograd  # type: ignore[attr-defined]
        return op._op_dk(key, target, source, non_blocking)  # type: ignore[no-any-return]
    if target.device != source.device:
        return target.copy_(source.to(target.dtype).expand_as(target).contiguous(), non_blocking)
    if target.data_ptr() != source.data_ptr() or target.stride() != source.stride():
        _call(op, target, source)
    return target


def _end() -> None:
    _emulated.emulated_end()
    gc.unfreeze()
    gc.enable()


def install(others: dict[str, Callable[..., Any]]) -> None:
    """Let the CPU compute what is put into the streams of the emulated devices.

    Args:
        others: operations that are to be done otherwise, by name.
    """
    others = {"copy_": _copy_, **others}
    sys.modules["triton"] = None  # type: ignore[assignment]  # it would look for a real driver
    # A collection in a stream's thread could wait there for what the thread itself has to do.
    gc.disable()
    torch.set_num_threads(1)
    atexit.register(_end)
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
            space, _, rest = name.partition("::")
            packet, _, overload = rest.partition(".")
            if space != "aten" or packet in _OWN or rest in others:
                continue
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(op, _replaced(op), "CUDA")
        for name, other in others.items():
            library.impl(name, other, "CUDA")
