"""LoaderConfig: the arguments of a FastLoader, validated once and passed down.

Nothing below ``_loader.py`` sees the loader itself. The loader makes a config from its attributes
at the start of every epoch, because trainers and users change attributes of existing loaders.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    Sampler,
    default_collate,
)
from torch.utils.data._utils import collate as torchs_collate

from .. import _native
from .._base.derived import derived
from .._base.machine import cpu
from .._base.torch_loader import is_torchs
from .._base.value_class import value_class
from .._engine import registry
from .._sources.augmentation_checks import check_seed, is_integer
from .._sources.collate import Collate, collate
from .._sources.kinds import is_mix, is_mix_dataset, unreadable_type
from ..errors import UsageError, type_next
from ..hints import (
    CacheKind,
    Decode,
    Engine,
    NumWorkers,
    OnError,
)
from . import shard
from .bad_samples import policy
from .order import Division, Order, OwnOrder, grouped, order_of
from .progress import is_stateful
from .shard import Shard, ShardBy

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from .bucket_sampler import BatchBy

    # The default is for paths, which have no sample type: FastLoader("imgs.lmdb") is a
    # FastLoader[Any].
    Sample = TypeVar("Sample", covariant=True, default=Any)
else:
    from typing import TypeVar  # without defaults before Python 3.13

    Sample = TypeVar("Sample", covariant=True)


PREFETCH = 2
"""Batches ahead by default, as in torch for each worker."""


_ENGINES, _DECODES = get_args(Engine), get_args(Decode)


# Nobody compares or prints one, and for so many fields it takes a millisecond to make that code.
@value_class(kw_only=True, eq=False)
class LoaderConfig:
    """The arguments of a FastLoader that its epochs need, under their own names.

    ``FastLoader`` describes them. To add an argument, add it here and to ``FastLoader.__init__``
    and its docstring, and use it in the module that it is about.

    Attributes:
        num_workers: the number that was resolved; 0 until the route is known.
        collate_fn: None until torch has set its default where none was given.
        own_order: neither a sampler nor a batch_sampler was given.
        left_out: batches that accelerate skips at the start of each epoch; ``batch_transform``
            counts them.
        prepared: accelerate prepared the loader and chooses its epochs.
        torch_workers: workers of the DataLoader whose order this loader's is: ``num_workers``, or 0
            if that was left to fastload.
        exchanged: which function of torch's iteration other code is in the place of, or "".
        iterable: the dataset is an IterableDataset.
        batched: samples are collated into batches.
        index_sampler: gives lists of indices, or single indices where there are no batches; None
            until torch has made one.
        single: single samples are asked for (``batch_size=None``) rather than batches.
        custom_collate: ``collate_fn`` is not torch's default, or others have put theirs in its
            place.
        collate: what makes a batch of samples: ``collate_fn``, but fastload's for torch's default.
        persistent: worker processes live on after an epoch.
        accelerated: batches are moved to a device other than the CPU.
        overlapped: that is a CUDA device: batches are copied beside the caller's work.
        pinned: batches are pinned in host memory; moving them to a device pins by itself.
        channels_last: images are NHWC in memory.
    """

    dataset: Any
    batch_size: int | None = 1
    sampler: Sampler[Any] | Iterable[Any] | None = None
    batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None
    num_workers: int = 0
    collate_fn: Collate | None = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: str | BaseContext | None = None
    generator: torch.Generator | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory_device: str = ""
    in_order: bool = True
    # fastload's own:
    snapshot_every_n_steps: int | None = 1
    engine: Engine = "auto"
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    seed: int | None = None
    decode: Decode = "exact"
    shard: ShardBy = False
    on_error: OnError = "raise"
    max_errors: float = 0.001
    tuned: str | os.PathLike[str] | None = None
    cache: CacheKind | None = None
    device: str | int | torch.device | None = None
    batch_transform: Callable[[Any], Any] | None = None
    shuffle_window: int | None = None
    batch_by: BatchBy | None = None
    # Not arguments of FastLoader:
    own_order: bool = True
    left_out: int = 0
    prepared: bool = False
    torch_workers: int = 0
    exchanged: str = ""
    # Made of the arguments:
    iterable: bool = dataclasses.field(init=False)
    batched: bool = dataclasses.field(init=False)
    index_sampler: Iterable[Any] = dataclasses.field(init=False)
    single: bool = dataclasses.field(init=False)
    custom_collate: bool = dataclasses.field(init=False)
    collate: Collate = dataclasses.field(init=False)
    persistent: bool = dataclasses.field(init=False)
    accelerated: bool = dataclasses.field(init=False)
    overlapped: bool = dataclasses.field(init=False)
    pinned: bool = dataclasses.field(init=False)
    channels_last: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Raise UsageError for arguments that are invalid, alone or together."""
        collate_fn = torchs_collate.default_collate if self.collate_fn is None else self.collate_fn
        custom = collate_fn is not default_collate or not is_torchs(collate_fn)
        vars(self).update(
            iterable=isinstance(self.dataset, IterableDataset),
            batched=self.batch_sampler is not None,
            index_sampler=self.sampler if self.batch_sampler is None else self.batch_sampler,
            single=self.batch_size is None and self.batch_sampler is None,
            custom_collate=custom,
            collate=collate_fn if custom else collate,
            persistent=self.persistent_workers and self.num_workers > 0,
            channels_last=self.memory_format == torch.channels_last,
        )
        check_seed(self.seed)
        check_choice("engine", self.engine, _ENGINES)
        check_choice("decode", self.decode, _DECODES)
        if self.memory_format not in (torch.contiguous_format, torch.channels_last):
            raise UsageError(
                "memory_format: expected torch.contiguous_format or torch.channels_last, "
                f"got {self.memory_format}"
            )
        every = self.snapshot_every_n_steps
        if every is not None and (not isinstance(every, int) or every < 0):
            raise UsageError(
                f"snapshot_every_n_steps: expected an integer of at least 0 or None, got {every!r}"
            )
        window = self.shuffle_window
        if window is not None:
            if not is_integer(window) or window < 1:
                raise UsageError(f"shuffle_window: expected at least 1 block, got {window!r}")
            if self.seed is None:
                raise UsageError("shuffle_window: expected an int seed too, got seed=None")
            if not self.own_order:
                raise UsageError(
                    "shuffle_window: expected shuffle=True, got a sampler, which makes the order"
                )
        if self.batch_by is not None:
            self._check_batch_by(self.batch_by)
        policy.check(self.on_error, self.max_errors)
        if self.on_error == "refill" and self.batch_sampler is not None and self.batch_size is None:
            raise UsageError(
                "on_error='refill': expected a sampler and a batch_size, as it divides the order "
                "into batches itself, got a batch_sampler; use on_error='replace'"
            )
        if self.shard is not False:
            shard.check(self.shard)
        if self.shard and self.iterable:
            raise UsageError(
                "shard: expected a map-style dataset, got an IterableDataset, which divides "
                "its data among ranks and workers itself (torch.distributed.get_rank, "
                "torch.utils.data.get_worker_info)"
            )
        device = "cpu" if self.device is None else _checked(self.device).type
        vars(self).update(
            accelerated=device != "cpu",
            overlapped=device == "cuda",
            pinned=self.pin_memory and device == "cpu",
        )
        transform = self.batch_transform
        if transform is not None and not callable(transform):
            raise UsageError(
                f"batch_transform: expected a callable that takes a batch, got {transform!r}"
            )
        self._check_engine()
        if self.cache == "decoded" and self.decode == "scaled":
            raise UsageError(
                "cache='decoded' keeps images in full size, but decode='scaled' makes smaller "
                "ones: use cache='dct' or 'ram', or decode='exact'"
            )

    def _check_batch_by(self, batch_by: BatchBy) -> None:
        from . import bucket_sampler

        bucket_sampler.check(batch_by)
        if self.iterable or is_mix(self.dataset) or is_mix_dataset(self.dataset):
            raise UsageError(
                "batch_by: expected a map-style dataset, whose samples can come in any order, got "
                f"{type(self.dataset).__name__}"
            )
        if self.shuffle_window is not None:
            raise UsageError("batch_by and shuffle_window both make the order: give one of them")
        if self.on_error == "refill":
            raise UsageError(
                "on_error='refill' takes samples from the end of the order, which batch_by divides "
                "into groups: use on_error='replace'"
            )
        if grouped(self.batch_sampler) is not None:
            return  # made by an earlier loader, which a trainer rebuilds
        if not self.own_order:
            raise UsageError("batch_by makes the order: expected neither sampler nor batch_sampler")
        size = self.batch_size
        if size is None or not is_integer(size) or size < 1:
            raise UsageError(f"batch_by: expected a batch_size, got {size!r}")

    def _check_engine(self) -> None:
        """Raise UsageError for an engine that does not go with another argument, or is missing."""
        engine = self.engine
        if self.seed is not None and _native.load() is None:
            raise _native.missing("seed= needs the native core, which draws the random numbers")
        if self.cache is not None and (registry.on_device(engine) or registry.on_ray(engine)):
            raise UsageError(
                f"cache={self.cache!r} keeps images that this process decodes, and "
                f"engine={engine!r} decodes elsewhere: leave one of them out"
            )
        if registry.on_device(engine):
            missing = registry.KINDS[engine].missing()
            if missing is not None:
                raise missing

    # --- derived from the arguments -------------------------------------------------------------

    @derived
    def left_to_torch(self) -> bool:
        """Whether torch's own iterator runs if no engine does: see ``TorchRoute``."""
        unordered = not self.in_order and self.num_workers > 0
        datapipe = isinstance(self.dataset, (IterDataPipe, MapDataPipe))
        return unordered or datapipe or bool(self._replaced)

    @derived
    def left_to_python(self) -> str:
        """Why no engine can make batches, as far as arguments and types say so; "": they do not."""
        if registry.is_torch(self.engine):
            return "engine='torch' was asked for"
        if self.single:
            return "batch_size=None asks for single samples"
        return self._replaced or unreadable_type(self.dataset)

    @derived
    def _replaced(self) -> str:
        """Why the code that others have put in torch's iteration has to run; "": it has not.

        What was asked of fastload itself counts more: torch's iterator would do nothing of it.
        """
        if not self.exchanged or (self._asks_for_ours and not registry.is_torch(self.engine)):
            return ""
        return f"{self.exchanged} is not torch's own code, and only torch's iterator calls it"

    @derived
    def repeatable(self) -> bool:
        """Whether the same epoch comes again where torch's global generators are set back, and
        nothing of our own is asked for, such as to skip bad samples.
        """
        if self.num_workers or self.pin_memory or self.iterable or self._asks_for_ours:
            return False
        return self.own_order and self.generator is None and not is_stateful(self.dataset)

    @property
    def needs_workers(self) -> bool:
        """Whether a function is given that only worker processes call, and nothing of our own."""
        given = self.torch_workers > 0 and self.worker_init_fn is not None
        return given and not self._asks_for_ours

    @property
    def _asks_for_ours(self) -> bool:
        given = [(getattr(self, name), default) for name, default in _OURS_BY_DEFAULT.items()]
        # batch_by may be an array, which compares element by element
        return any(type(one) is not type(default) or one != default for one, default in given)

    @property
    def measures(self) -> bool:
        """Whether images are deferred only where that is measured to be cheaper."""
        return os.environ.get("FASTLOAD_DEFER") != "1"

    @property
    def one_size(self) -> bool:
        """Whether ``batch_by`` makes batches of images of one size."""
        if self.batch_by is None:
            return False
        from . import bucket_sampler

        return bucket_sampler.one_size(self.batch_by)

    @property
    def cuda(self) -> torch.device | None:
        """The CUDA device that batches are moved to, with its index; None: it is no CUDA device."""
        if self.device is None or not torch.cuda.is_available():
            return None
        device = torch.device(self.device)
        if device.type != "cuda":
            return None
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.device("cuda", index)

    @derived
    def epoch_sampler(self) -> Sampler[Any] | Iterable[Any] | None:
        """The sampler that is told the epoch; it may be nested in batch samplers."""
        batches: object = self.batch_sampler
        in_groups = grouped(batches)
        if in_groups is not None:
            return in_groups
        while not hasattr(batches, "sampler") and hasattr(batches, "batch_sampler"):
            batches = batches.batch_sampler  # accelerate wraps batch samplers
        sampler: Sampler[Any] | Iterable[Any] | None = getattr(batches, "sampler", self.sampler)
        while isinstance(sampler, (BatchSampler, OwnOrder)):  # timm and ultralytics wrap torch's
            sampler = sampler.inner if isinstance(sampler, OwnOrder) else sampler.sampler
        return sampler

    @derived
    def order(self) -> Order:
        """The order of the loader: of its batches, if they make it, else of its samples."""
        batches = order_of(self.batch_sampler)
        # With a batch_sampler of the user's, batch_size is None and the sampler is never asked.
        asked = self.batch_sampler is None or self.batch_size is not None
        return order_of(self.sampler) if asked and not batches.batched else batches

    @derived
    def epochs(self) -> Order:
        """The order that is told the epoch; others may divide it among ranks or into batches."""
        return order_of(self.epoch_sampler)

    def division(self, shard: Shard | None) -> Division:
        """How the order is divided among ranks, and into batches."""
        return Division(shard or Shard(), self.batch_size or 1, self.drop_last)

    def part(self) -> Shard | None:
        """This process's rank, if ``shard`` divides the epoch; a given sampler prevents that.

        Raises UsageError if the rank is not known.
        """
        if not (self.shard and self.own_order):
            return None
        return shard.resolve(self.shard)

    def part_length(self) -> int | None:
        """Batches of this rank; None if the loader does not divide the epoch."""
        part = self.part()
        if part is None:
            return None
        return self.order.count(self.division(part))


_FIELDS = [field.name for field in dataclasses.fields(LoaderConfig)]

ARGUMENTS: Sequence[str] = _FIELDS[: _FIELDS.index("own_order")]
"""The names of the arguments, which are also attributes of a FastLoader."""

OURS: Sequence[str] = ARGUMENTS[_FIELDS.index("snapshot_every_n_steps") :]
"""The names of fastload's own arguments, which torch's ``__init__`` does not set."""

_OURS_BY_DEFAULT = {f.name: f.default for f in dataclasses.fields(LoaderConfig) if f.name in OURS}

_OF_PACKED = (
    "storage_options", "cache_dir", "column", "memory_limit", "fields", "joint", "check_crc",
)  # fmt: skip

INSTEAD = {name: f"FastLoader(PackedDataset(path, {name}=...))" for name in _OF_PACKED} | {
    "rank": "shard=(rank, world_size)",
    "world_size": "shard=(rank, world_size)",
    "batch_pixels": 'batch_by=("aspect", pixels), or Buckets(sizes, batch_pixels=pixels)',
    "decode_device": 'engine="dali"',
    "decode_on": 'engine="ray"',
    "defer": 'engine="torch"',
    "prefetch_device": "prefetch_factor=2",
    "prefetch_thread": "num_workers=1",
    "trace": 'with fastload.trace("run.json"): ...',
}
"""Arguments that FastLoader had once: what to write instead."""


def workers_given(num_workers: NumWorkers | None) -> NumWorkers | None:
    """``num_workers`` as an int, "auto" or None; torch refuses negative ones.

    Raises:
        UsageError: it is another value.
    """
    if num_workers is None or num_workers == "auto":
        return num_workers
    if not is_integer(num_workers):
        meant = str(num_workers).isdigit()
        line = f"num_workers={num_workers}" if meant else 'num_workers="auto"'
        raise UsageError(
            f"num_workers: expected an integer of at least 0 or 'auto', got {num_workers!r}"
            f"{type_next(line)}"
        )
    return operator.index(num_workers)


def instead_of_workers(num_workers: int) -> str:
    """What to type next where torch refuses ``num_workers`` or what goes with it."""
    return 'num_workers="auto"' if num_workers < 0 else f"num_workers={cpu.available()}"


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The torch dtype given as such or by name. Raises UsageError for anything else."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    named = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else None
    if not isinstance(named, torch.dtype):
        raise UsageError(
            f"dtype: expected a torch dtype or its name, such as 'float16', got {dtype!r}"
        )
    return named


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise UsageError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise UsageError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")


def _checked(device: str | int | torch.device) -> torch.device:
    """The device. Raises UsageError if this machine has none such."""
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            "device: expected a device such as 'cuda', 'cuda:1' or torch.device('cuda'), "
            f"got {device!r}"
        ) from error
    from .._base.devices import accelerator

    accelerator.check(target)
    return target
