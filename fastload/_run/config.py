"""LoaderConfig: the arguments of a FastLoader, validated once and passed down from there.

Nothing below ``_loader.py`` sees the loader itself. It makes a config of its attributes at the
beginning of every epoch, because trainers and users set attributes of a loader that exists.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch.utils.data import IterableDataset, Sampler, SequentialSampler, default_collate

from .._sources.collate import collate
from .._sources.drawing import check_seed, is_whole
from ..errors import UsageError
from ..hints import CacheKind, CheckCrc, Decode, DecodeDevice, Engine, NumWorkers, OnError
from . import shard
from .bad_samples import policy
from .order import InOrder, SeededSampler
from .shard import Shard

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # A path does not say what a sample is: FastLoader("imgs.lmdb") is a FastLoader[Any].
    Sample = TypeVar("Sample", covariant=True, default=Any)
else:
    from typing import TypeVar  # without defaults before Python 3.13

    Sample = TypeVar("Sample", covariant=True)

Collate = Callable[[Any], Any]
"""A ``collate_fn``: gets a list of samples, or one sample where there are no batches."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TorchArguments:
    """What torch's DataLoader is given, under its own names.

    Attributes:
        num_workers: resolved; 0 until the route is known.
        collate_fn: ours where none was given.
    """

    dataset: Any
    batch_size: int | None = 1
    sampler: Sampler[Any] | Iterable[Any] | None = None
    batch_sampler: Any = None
    num_workers: int = 0
    collate_fn: Collate | None = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory_device: str = ""
    in_order: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderConfig(TorchArguments):
    """The arguments of a FastLoader that matter after it is made, under their own names.

    ``FastLoader`` describes them. To add one, add it here, to ``FastLoader.__init__`` and its
    docstring, and use it where it is needed.

    Attributes:
        own_order: neither a sampler nor a batch_sampler was given.
        left_out: batches at the beginning of each epoch that accelerate skips; they number the
            batches of ``batch_transform``.
        prepared: accelerate says which epoch comes next.
    """

    snapshot_every_n_steps: int | None = 1
    engine: Engine = "auto"
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    seed: int | None = None
    decode: Decode = "exact"
    check_crc: CheckCrc = "first"
    shard: bool = False
    rank: int | None = None
    world_size: int | None = None
    on_error: OnError = "raise"
    max_errors: float = 0.001
    prefetch_thread: bool = False
    tuned: str | os.PathLike[str] | None = None
    cache: CacheKind | None = None
    device: str | int | torch.device | None = None
    prefetch_device: int = 2
    batch_transform: Callable[[Any], Any] | None = None
    decode_device: DecodeDevice = "cpu"
    # what follows from the arguments
    own_order: bool = True
    left_out: int = 0
    prepared: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for arguments that cannot work, alone or together."""
        check_seed(self.seed)
        one_of("engine", self.engine, get_args(Engine))
        one_of("check_crc", self.check_crc, get_args(CheckCrc))
        one_of("decode", self.decode, get_args(Decode))
        if self.memory_format not in (torch.contiguous_format, torch.channels_last):
            raise UsageError(
                "memory_format: expected torch.contiguous_format or torch.channels_last, "
                f"got {self.memory_format}"
            )
        every = self.snapshot_every_n_steps
        if every is not None and (not isinstance(every, int) or every < 0):
            raise UsageError(
                f"snapshot_every_n_steps: expected batches, 0 or more, or None, got {every!r}"
            )
        policy.check(self.on_error, self.max_errors)
        if self.on_error == "refill" and self.batch_sampler is not None and self.batch_size is None:
            raise UsageError(
                "on_error='refill' cuts the batches itself: expected a sampler and a batch_size, "
                "got a batch_sampler; use on_error='replace' with it"
            )
        if self.shard and isinstance(self.dataset, IterableDataset):
            raise UsageError(
                "shard=True is for map-style datasets: an IterableDataset decides by itself what "
                "each rank and worker reads (torch.distributed.get_rank, "
                "torch.utils.data.get_worker_info)"
            )
        if self.device is not None:
            _check_device(self.device)
        ahead, transform = self.prefetch_device, self.batch_transform
        if not isinstance(ahead, int) or ahead < 0:
            raise UsageError(f"prefetch_device: expected batches ahead, 0 or more, got {ahead!r}")
        if transform is not None and not callable(transform):
            raise UsageError(
                f"batch_transform: expected something to call with a batch, got {transform!r}"
            )
        if self.rank is not None or self.world_size is not None:
            shard.resolve(self.rank, self.world_size)
        if self.cache == "decoded" and self.decode == "scaled":
            raise UsageError(
                "cache='decoded' keeps images of their whole size, and decode='scaled' makes "
                "smaller ones: take cache='dct' or 'ram', or decode='exact'"
            )

    # --- what follows ---------------------------------------------------------------------------

    @property
    def collate(self) -> Collate:
        """What collates."""
        assert self.collate_fn is not None, "torch chooses one where there is none"
        return self.collate_fn

    @property
    def collates(self) -> bool:
        """Whether a ``collate_fn`` was given that is not torch's default."""
        return self.collate_fn is not collate

    @property
    def iterable(self) -> bool:
        """Whether the dataset is an IterableDataset."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def batched(self) -> bool:
        """Whether samples are collated into batches."""
        return self.batch_sampler is not None

    @property
    def single(self) -> bool:
        """Whether single samples were asked for, rather than batches."""
        return self.batch_size is None and self.batch_sampler is None

    @property
    def index_sampler(self) -> Any:
        """What gives the indices: of batches, or of single samples."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def persistent(self) -> bool:
        """Whether worker processes outlive an epoch."""
        return self.persistent_workers and self.num_workers > 0

    @property
    def accelerated(self) -> bool:
        """Whether batches go to another device than the CPU."""
        return self.device is not None and torch.device(self.device).type != "cpu"

    @property
    def pinned(self) -> bool:
        """Whether batches in host memory are to be pinned; the transfer stage pins by itself."""
        return self.pin_memory and not self.accelerated

    @property
    def channels_last(self) -> bool:
        """Whether images lie in memory as NHWC."""
        return self.memory_format == torch.channels_last

    @property
    def cuda(self) -> torch.device | None:
        """The CUDA device that batches are wanted on, with its number; None: there is none."""
        if self.device is None or not torch.cuda.is_available():
            return None
        device = torch.device(self.device)
        if device.type != "cuda":
            return None
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.device("cuda", index)

    @property
    def epoch_sampler(self) -> Any:
        """The sampler that is told the epoch; it may lie inside batch samplers."""
        batches = self.batch_sampler
        while not hasattr(batches, "sampler") and hasattr(batches, "batch_sampler"):
            batches = batches.batch_sampler  # wrapped in another, as by accelerate
        return getattr(batches, "sampler", self.sampler)

    @property
    def own_sampler(self) -> SeededSampler | InOrder | SequentialSampler:
        """The sampler, where it is torch's sequence or one of ours."""
        assert isinstance(self.sampler, (SeededSampler, InOrder, SequentialSampler))
        return self.sampler

    def part(self) -> Shard | None:
        """This process's part where the loader divides the epoch; a sampler that is given wins.

        Raises UsageError where the rank is not known.
        """
        if not (self.shard and self.own_order):
            return None
        return shard.resolve(self.rank, self.world_size)

    def part_length(self) -> int | None:
        """Batches of this process's part; None where the loader does not divide the epoch."""
        part = self.part()
        if part is None:
            return None
        samples = part.count(len(self.own_sampler), drop_last=self.drop_last)
        whole, rest = divmod(samples, self.batch_size or 1)
        return whole + (rest > 0 and not self.drop_last)


def _names(kind: type[TorchArguments]) -> list[str]:
    derived = ("own_order", "left_out", "prepared")
    return [field.name for field in dataclasses.fields(kind) if field.name not in derived]


ARGUMENTS: Sequence[str] = _names(LoaderConfig)
"""The names of the arguments, which are attributes of a FastLoader too."""

OURS: Sequence[str] = ARGUMENTS[len(_names(TorchArguments)) :]
"""Those of them that torch does not set."""


def check_workers(num_workers: NumWorkers | None) -> None:
    """Raise UsageError for what is no number of workers; torch refuses negative ones."""
    if num_workers is not None and num_workers != "auto" and not is_whole(num_workers):
        raise UsageError(
            f"num_workers: expected an integer of at least 0 or 'auto', got {num_workers!r}"
        )


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """torch's dtype, given by itself or by name. Raises UsageError where there is none."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else None
    if not isinstance(found, torch.dtype):
        raise UsageError(f"dtype: expected one of torch's, such as 'float16', got {dtype!r}")
    return found


def collate_for(collate_fn: Collate | None, *, single: bool) -> Collate | None:
    """Ours where none was given: a rebuilt loader passes torch's default by name."""
    return collate if collate_fn in (None, default_collate) and not single else collate_fn


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise UsageError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise UsageError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")


def _check_device(device: str | int | torch.device) -> None:
    """Raise UsageError for what is no device of this machine."""
    try:
        known = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"device: expected such as 'cuda', 'cuda:1' or torch.device('cuda'), got {device!r}"
        ) from error
    from .._base.devices import accelerator

    accelerator.check(known)
