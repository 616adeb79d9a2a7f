"""What FastLoader is given, checked and completed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch.utils.data import IterableDataset, default_collate

from .._sources.collate import collate
from .._sources.drawing import check_drawing, is_whole
from ..errors import UsageError
from ..hints import CacheKind, CheckCrc, Decode, Engine, NumWorkers
from . import accelerate, shard
from .bad_samples import policy

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # A path does not say what a sample is: FastLoader("imgs.lmdb") is a FastLoader[Any].
    Sample = TypeVar("Sample", covariant=True, default=Any)
else:
    from typing import TypeVar  # without defaults before Python 3.13

    Sample = TypeVar("Sample", covariant=True)


def check(arguments: dict[str, Any]) -> None:
    """Raise UsageError for arguments of FastLoader that cannot work."""
    check_workers(arguments["num_workers"])
    check_drawing(*(arguments[name] for name in ("seed", "transform", "target_transform")))
    one_of("engine", arguments["engine"], get_args(Engine))
    one_of("check_crc", arguments["check_crc"], get_args(CheckCrc))
    one_of("decode", arguments["decode"], get_args(Decode))
    formats = (torch.contiguous_format, torch.channels_last)
    if arguments["memory_format"] not in formats:
        raise UsageError(
            "memory_format: expected torch.contiguous_format or torch.channels_last, "
            f"got {arguments['memory_format']}"
        )
    every = arguments["snapshot_every_n_steps"]
    if every is not None and (not isinstance(every, int) or every < 0):
        raise UsageError(
            f"snapshot_every_n_steps: expected batches, 0 or more, or None, got {every!r}"
        )
    policy.check(arguments["on_error"], arguments["max_errors"])
    if arguments["on_error"] == "refill" and arguments["batch_sampler"] is not None:
        raise UsageError(
            "on_error='refill' cuts the batches itself: expected a sampler and a batch_size, got a "
            "batch_sampler; use on_error='replace' with it"
        )
    if arguments["shard"] and isinstance(arguments["dataset"], IterableDataset):
        raise UsageError(
            "shard=True is for map-style datasets: an IterableDataset decides by itself what each "
            "rank and worker reads (torch.distributed.get_rank, torch.utils.data.get_worker_info)"
        )
    device, ahead, transform = (
        arguments[name] for name in ("device", "prefetch_device", "batch_transform")
    )
    if device is not None:
        _device(device)
    if not isinstance(ahead, int) or ahead < 0:
        raise UsageError(f"prefetch_device: expected batches ahead, 0 or more, got {ahead!r}")
    if transform is not None and not callable(transform):
        raise UsageError(
            f"batch_transform: expected something to call with a batch, got {transform!r}"
        )
    if arguments["rank"] is not None or arguments["world_size"] is not None:
        shard.resolve(arguments["rank"], arguments["world_size"])


def check_workers(num_workers: Any) -> None:
    """Raise UsageError for what is no number of workers; of negative ones torch says it."""
    if num_workers is not None and num_workers != "auto" and not is_whole(num_workers):
        raise UsageError(
            f"num_workers: expected an integer of at least 0 or 'auto', got {num_workers!r}"
        )


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype that is meant by torch's or by its name; raises UsageError where there is none."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else None
    if not isinstance(found, torch.dtype):
        raise UsageError(f"dtype: expected one of torch's, such as 'float16', got {dtype!r}")
    return found


def check_cache(cache: CacheKind | None, decode: Decode) -> None:
    """Raise UsageError where what a cache keeps would not be what ``decode`` gives."""
    if cache == "decoded" and decode == "scaled":
        raise UsageError(
            "cache='decoded' keeps images of their whole size, and decode='scaled' makes smaller "
            "ones: take cache='dct' or 'ram', or decode='exact'"
        )


def _device(device: Any) -> None:
    """Raise UsageError for what is no device of this machine."""
    try:
        known = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"device: expected such as 'cuda', 'cuda:1' or torch.device('cuda'), got {device!r}"
        ) from error
    from .._base.devices import accelerator

    accelerator.check(known)


def collate_for(
    collate_fn: Callable[[list[Any]], Any] | None, *, single: bool
) -> Callable[[list[Any]], Any] | None:
    """Ours where none was given: a rebuilt loader passes torch's default by name."""
    collate_fn = accelerate.collate_of(collate_fn)
    return collate if collate_fn in (None, default_collate) and not single else collate_fn


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise UsageError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise UsageError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")


def tuned(
    file: str | os.PathLike[str] | None,
    dataset: Any,
    num_workers: NumWorkers | None,
    prefetch_factor: int | None,
    pin_memory: bool,
    cache: CacheKind | None,
    decode: Decode,
) -> tuple[NumWorkers | None, int | None, bool, CacheKind | None, Decode]:
    """These arguments, completed from a file of ``fastload autotune`` where they were not given."""
    if file is None:
        return num_workers, prefetch_factor, pin_memory, cache, decode
    from .tuned_file import arguments_for

    found = arguments_for(file, dataset, stacklevel=4)
    if num_workers is None:
        num_workers = found.get("num_workers")
    if prefetch_factor is None and num_workers:
        prefetch_factor = found.get("prefetch_factor")
    pin_memory = pin_memory or found.get("pin_memory", False)
    cache = cache or found.get("cache")
    if decode == "exact" and cache != "decoded":
        decode = found.get("decode", decode)
    return num_workers, prefetch_factor, pin_memory, cache, decode
