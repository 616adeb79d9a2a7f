"""FastLoader: torch's DataLoader with engines of its own."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, Sampler

from ._base.machine import cpu
from ._base.timeline import Timeline, active, lasting
from ._base.torch_loader import DataLoader
from ._base.trace import Observed, Stamps
from ._engine.base import BatchEngine
from ._engine.cache.cache import Cache
from ._engine.registry import chosen, is_engine, is_torch
from ._run import accelerate, runs
from ._run import arguments as _arguments
from ._run import decode_device as _decode_device
from ._run import epoch as _epoch
from ._run import shard as _shard
from ._run.arguments import Sample
from ._run.bad_samples.policy import BadSamples
from ._run.delivery import delivery
from ._run.order import of_loader
from ._run.reports import Reports
from ._run.resumable import Resumable
from ._run.retold import Retold
from ._run.row_order import of_rows
from ._run.shard import Shard
from ._sources.collate import collate
from ._sources.packed import open_dataset
from ._sources.source import Source, nested, resolve, several_sizes
from .errors import UsageError
from .hints import CacheKind, CheckCrc, Decode, DecodeDevice, Engine, JointKind, NumWorkers, OnError

if TYPE_CHECKING:  # what not every loader needs
    from ._run.governor import Governor

# Arguments of DataLoader that this torch knows: in_order came with 2.6.
_TORCH_ARGUMENTS = frozenset(inspect.signature(DataLoader.__init__).parameters)


class FastLoader(Reports, Resumable, DataLoader[Sample]):
    """A DataLoader that does not make the training loop wait.

    Takes all of torch's DataLoader arguments by name, default and meaning, and gives the same
    batches in the same order. Where fastload can read the dataset by itself (a packed store, a
    torchvision ImageFolder or DatasetFolder, CIFAR, MNIST, SVHN, STL10, Subset and ConcatDataset of
    these) with a transform it recognises, whole batches are decoded and augmented by native
    threads; of a TensorDataset rows are copied; anything else goes through torch's machinery
    unchanged. ``explain()`` says which and why.

    Example:
        >>> loader = FastLoader("imgs.lmdb", batch_size=256, shuffle=True, transform=train_tf)
        >>> for images, labels in loader: ...

    Args:
        dataset: any Dataset, the path of a packed store, or a list of such paths, which are read as
            one store.
        num_workers: unset: native threads follow the CPU quota; a user's Dataset and a
            TensorDataset get torch's 0. A number means that many threads in the native engine (0:
            the calling thread makes the batches), that many processes beside them where the dataset
            holds images that only Pillow decodes, and that many processes in torch's machinery.
            "auto" begins with the CPUs and adjusts to what the loop shows: threads and batches
            ahead while it runs, processes between epochs (one for an IterableDataset). The
            attribute is always an int.
        prefetch_factor: batches ahead: in torch's machinery per worker, in the engines in all.
            Default 2.
        snapshot_every_n_steps: as in torchdata's StatefulDataLoader: after how many batches of each
            worker the state of an IterableDataset travels to this process. What came since is drawn
            again when a state is resumed, so the next batch is the same. 0 and None: at the epoch's
            end only.
        transform, target_transform: for a path or a PackedDataset without transforms of its own.
            A list of transforms gives a list of views in place of the images: ``[[images of the
            first, images of the second, ...], labels]``.
        engine: "auto", "native", "python" (the same results through Pillow), "dali" (NVIDIA DALI on
            ``device``, or on its CPU back end; docs/gpu.md), "workers" (torch's machinery).
        dtype: of the images; None as the transform says. ``torch.float32`` (or "float32"), float16,
            bfloat16, or uint8 where the transform ends in uint8.
        memory_format: ``torch.contiguous_format`` (NCHW in memory) or ``torch.channels_last``.
        seed: None: order and augmentation are drawn once an epoch from ``generator`` or torch's
            global generator, as DataLoader draws them. An int: the order is a pure function of
            (seed, epoch), augmentation of (seed, epoch, index), and of how often it came before
            where a sampler repeats an index. A dataset of the user's finds Python's, NumPy's and
            torch's generators seeded so for each sample; an iterable one for each batch.
        decode: "exact": the pixels of a decoder that decodes all. "scaled": a JPEG is decoded at
            1/2, 1/4 or 1/8 of its size where it is at least twice as large as needed even so, which
            is several times faster for large photos and differs a little (docs/performance.md).
        check_crc: "first": verify each record's checksum the first time this process reads it;
            "always"; "never".
        fields: for a path or a PackedDataset: which fields of the store come with the images, such
            as ``("mask", "key")``, or "all". A batch is then a dict (see PackedDataset).
        joint: for a path or a PackedDataset: which fields move along with the images through crops,
            resizes, pads and flips, and what they are, such as ``{"mask": "mask", "boxes":
            "xyxy"}`` (see PackedDataset). They are fields of the batch: masks one tensor (n, h, w),
            all others lists of n tensors.
        tuned: a file that ``fastload autotune`` wrote: its num_workers, prefetch_factor,
            pin_memory, cache, and with ``--approximate`` decode are taken where they are not given
            here; the batch size stays. Where the file is of another machine or dataset, a warning
            says so and nothing is taken.
        shard: True: each rank reads its own part of every epoch, as with torch's
            DistributedSampler and with the epoch set; ``len`` counts the part. The rank is
            torch.distributed's, or torchrun's. A ``sampler`` or ``batch_sampler`` wins: then
            nothing is divided here. Off by default, as trainers divide by themselves.
        rank, world_size: of this process, where torch.distributed is not used.
        on_error: of a sample that cannot be made: "raise"; "skip": the batch is shorter;
            "replace": by the next good sample of the same batch; "refill": by the last sample of
            the epoch's order, which gets shorter there (on several ranks, which need equal numbers
            of batches, this is "replace"); or a callable ``(index, error) -> "raise" | "skip" |
            "replace"``. A batch without good samples is left out. ``stats()["errors"]`` lists
            them, a warning at the epoch's end counts them.
        max_errors: how many an epoch may have before TooManyErrors is raised: a number (int), or a
            share of the samples (float), which lets at least one pass unless it is 0.
        prefetch_thread: True: where a dataset of the user's runs in this process (num_workers=0),
            a thread makes the next two batches. Its random numbers then do not follow ``seed``.
        trace: path of a timeline of this loader, as ``fastload.trace`` writes for all loaders; it
            is written at the end of each epoch and at the interpreter's exit.
        cache: what later epochs need not do again; the batches are the same (docs/performance.md).
            "ram": the records' bytes stay in memory. "dct": JPEGs stay there as DCT records, whose
            Huffman codes need not be decoded again. "decoded": decoded images, and where the
            transform begins with Resize or CenterCrop, their result. "shm": like "ram", but one
            copy for all processes of the user on this machine.
        cache_limit: bytes, or a string such as "8GB"; default half of the memory that is available
            (of "ram", "dct" and "decoded" each rank's part). What does not fit is read as before.
        device: where batches arrive: "cuda", "cuda:1", an index, a ``torch.device``, also "mps" and
            "xpu"; whatever their structure. On CUDA they are copied on a stream of their own while
            the caller computes (objects with a ``to`` of their own: by it, without overlap), and
            are whole when his current stream comes to them; ``next`` is for the thread that
            trains, and never while a CUDA graph is captured. Where an engine of fastload runs and
            no ``collate_fn`` was given, levels (uint8) are copied, and the device does the table,
            the cast and RandomErasing, with the same result. None and "cpu": host memory.
        prefetch_device: batches ahead on the device, beside the one in use. 0: each is copied when
            it is asked for.
        batch_transform: called with each whole batch, on the device where there is one, such as
            torchvision's ``v2.MixUp(num_classes=10)``. Its random numbers (Python's, NumPy's and
            torch's global generators) are a function of (seed, epoch, number of the batch), drawn
            apart from the caller's.
        decode_device: "cpu"; "gpu": JPEGs are decoded on ``device``, by DALI, and levels come out a
            little different (docs/gpu.md); "auto": some of the data is decoded both ways before the
            first batch, and the faster way is taken for good.

    All other arguments are torch's.

    Yields:
        What DataLoader would: ``[images, labels]`` with images (n, 3, h, w), RGB, on ``device`` or
        in host memory (pinned with ``pin_memory=True`` where CUDA is there), or a dict with
        ``fields``. A batch is the caller's for as long as anything refers to its memory.

    Raises:
        UsageError: arguments that cannot work together.
        DataError: while iterating, a sample that cannot be read; it names file, record and offset.
        TooManyErrors: while iterating, ``on_error`` let more pass than ``max_errors``.
    """

    in_order = True  # torch sets it from 2.6 on; trainers read every argument as an attribute

    # Of a class that was derived while FastLoader stood in torch's place, and that does by itself
    # what torch's __init__ does, as torchdata's StatefulDataLoader: ours never runs.
    shard = False
    _threads = False

    _is_accelerate_prepared = accelerate.Asked()
    _adapter: weakref.ref[Any] | None = None  # accelerate's, around this loader
    _left_out = 0  # batches at the beginning of each epoch that accelerate skips

    def __init__(
        self,
        dataset: Dataset[Sample] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: NumWorkers | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        engine: Engine = "auto",
        dtype: torch.dtype | str | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        seed: int | None = None,
        decode: Decode = "exact",
        check_crc: CheckCrc = "first",
        fields: Sequence[str] | str | None = None,
        joint: Mapping[str, JointKind] | None = None,
        tuned: str | os.PathLike[str] | None = None,
        shard: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        on_error: OnError = "raise",
        max_errors: float = 0.001,
        prefetch_thread: bool = False,
        trace: str | os.PathLike[str] | None = None,
        cache: CacheKind | None = None,
        cache_limit: int | str | None = None,
        device: str | int | torch.device | None = None,
        prefetch_device: int = 2,
        batch_transform: Callable[[Any], Any] | None = None,
        decode_device: DecodeDevice = "cpu",
    ) -> None:
        _arguments.check(locals())
        given = {
            "transform": transform,
            "target_transform": target_transform,
            "fields": fields,
            "joint": joint,
        }
        opened = open_dataset(dataset, seed=seed, **given)
        num_workers, prefetch_factor, pin_memory, cache, decode = _arguments.tuned(
            tuned, opened, num_workers, prefetch_factor, pin_memory, cache, decode
        )
        _arguments.check_cache(cache, decode)
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.transform = transform
        self.target_transform = target_transform
        self.fields = fields
        self.joint = joint
        self.engine = engine
        self.dtype = _arguments.dtype_of(dtype)
        self.memory_format = memory_format
        self.seed = seed
        self.decode = decode
        self.check_crc = check_crc
        self.shard = shard
        self.rank = rank
        self.world_size = world_size
        self.on_error = on_error
        self.max_errors = max_errors
        self.prefetch_thread = prefetch_thread
        self.tuned = tuned
        self.trace = trace
        self._timeline = None if trace is None else lasting(trace)
        self.cache = cache
        self.cache_limit = cache_limit
        self.device = device
        self.prefetch_device = prefetch_device
        self.batch_transform = batch_transform
        self.decode_device = decode_device
        self._cache = Cache.of(cache, cache_limit, engine)
        self._made: tuple[object, BatchEngine] | None = None
        self._division: tuple[Any, ...] | None = None
        self._stamps = Stamps()
        self._bad = BadSamples(max_errors, None)
        self._padding = 0
        self._waiting = cpu.Waiting()
        self._own_order = sampler is None and batch_sampler is None
        _decode_device.check(self)
        single = batch_size is None and batch_sampler is None
        started = bool(num_workers and worker_init_fn)
        collate_fn = _arguments.collate_for(collate_fn, single=single)
        drawn = (sampler, batch_sampler, collate_fn)
        source = self._resolve(opened, drawn, single=single, started=started)
        self._native = not isinstance(source, str)
        self._threads = not isinstance(source, str) and not source.tensors
        self._governor: Governor | None = None
        if isinstance(num_workers, str):
            self._governor = runs.governor(source, opened, batch_size)
            num_workers = 1 if self._governor is None else self._governor.setting.workers
        if num_workers is None:
            # Rows of tensors are copied when asked for, so that the next batch has changed ones.
            num_workers = cpu.available() if self._threads else 0
        if self._own_order:
            sampler, shuffle = of_loader(opened, shuffle, seed, shard=shard)
        arguments: dict[str, Any] = {
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "pin_memory_device": pin_memory_device,
        }
        if "in_order" in _TORCH_ARGUMENTS:
            arguments["in_order"] = in_order
        elif not in_order:
            raise UsageError(f"in_order=False needs torch 2.6 or newer, got {torch.__version__}")
        super().__init__(
            opened,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            **arguments,
        )

    # --- what is chosen ---------------------------------------------------------------------------

    def _resolve(
        self, dataset: Any, drawn: tuple[Any, Any, Any], *, single: bool, started: bool
    ) -> Source | str:
        """What an engine of ours reads, or why torch's machinery has to; datasets may change."""
        source: Source | str
        sampler, batches, collate_fn = drawn
        if is_torch(self.engine):
            source = "engine='workers' was asked for"
        else:
            source = "batch_size=None asks for single samples" if single else resolve(dataset)
        if not isinstance(source, str) and self.engine == "auto":
            if source.tensors:
                source = of_rows(sampler, batches, started=started) or source
            elif collate_fn is not collate:
                source = several_sizes(source) or source
        if not isinstance(source, str):
            chosen(self.engine, source.store)  # raises where it is not there
            return source.with_output(self.dtype, self.memory_format).with_decode(self.decode)
        if is_engine(self.engine):
            raise UsageError(f"engine={self.engine!r} cannot read this dataset: {source}")
        if self.dtype is not None or self.memory_format != torch.contiguous_format:
            raise UsageError(
                "dtype and memory_format are for fastload's own engines, which do not run here: "
                f"{source}; convert in the transform or in collate_fn"
            )
        if self.decode != "exact":
            raise UsageError(
                f"decode={self.decode!r} is for fastload's own engines, which do not run here: "
                f"{source}"
            )
        return source

    def check_worker_number_rationality(self) -> None:
        """torch's warning about too many workers; not about threads, which are as many as given."""
        if not self._threads:
            super().check_worker_number_rationality()

    # --- iterating --------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, also of one that has given no batch yet.

        Samplers and datasets with an epoch are told too; of loader and sampler, whoever is told
        last decides. Without it every iteration is the next epoch.
        """
        self._next_epoch, self._told = epoch, True
        for part in (self.batch_sampler, self._epoch_sampler(), *nested(self.dataset)):
            tell = getattr(part, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def _epoch_sampler(self) -> Any:
        batches: Any = self.batch_sampler
        while not hasattr(batches, "sampler") and hasattr(batches, "batch_sampler"):
            batches = batches.batch_sampler  # wrapped in another, as by accelerate
        return getattr(batches, "sampler", self.sampler)

    def __len__(self) -> int:
        """Batches of an epoch, of this rank where ``shard=True`` divides it."""
        shard = self._shard()
        if shard is None:
            return super().__len__()
        samples = shard.count(len(self.sampler), drop_last=self.drop_last)  # type: ignore[arg-type]
        whole, rest = divmod(samples, self.batch_size or 1)
        return whole + (rest > 0 and not self.drop_last)

    def _shard(self) -> Shard | None:
        """This process's part, where the loader divides the epoch; a sampler of the user's wins."""
        if not (self.shard and self._own_order):
            return None
        return _shard.resolve(self.rank, self.world_size)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        accelerate.follow(self)
        # As in torch: workers that persist have one iterator, which begins anew.
        if not (self.persistent_workers and self.num_workers > 0):
            return self._get_iterator()
        if self._iterator is None:
            self._iterator = self._get_iterator()
        else:
            self._iterator._reset(self)
        return self._iterator  # type: ignore[no-any-return]

    def _get_iterator(self) -> Iterator[Any]:  # type: ignore[override]
        """A new iterator over the next epoch; what a subclass may override, as with torch's."""
        if "_own_order" not in vars(self):  # of a class that has not called our __init__
            return super()._get_iterator()
        self._inner = None  # workers that persist are those of one iterator, and so is their seed
        if self._resume is None:
            self._base_seed = None
        return Retold(self)

    def _begin(self) -> Iterator[Any]:
        """Begin an epoch."""
        shard = self._shard()
        if shard is None and self._own_order:
            _shard.warn_if_every_rank_reads_all(self.dataset)
        resume, self._resume = self._resume, None
        number = _epoch.number(self)
        if resume is not None and resume.epoch != number:
            resume = None  # set_epoch chose another one since the state was loaded
        last, self._stamps = self._stamps, Stamps(self._observer())
        source = self._source()
        self._native = not isinstance(source, str)
        runs.adjust(self, last)
        epoch = _epoch.begin(self, number, resume, shard)
        self._progress = epoch.progress
        self._padding = epoch.padding
        self._bad = BadSamples(self.max_errors, epoch.progress.length)
        with epoch.drawing():
            inner: Iterator[Any]
            if not isinstance(source, str):
                inner = runs.native(self, source, epoch)
            elif runs.plain(self):
                runs.leave_to_torch(self, epoch)
                inner = Observed(self._torchs(), self._stamps)
            else:
                from ._run.workers import run

                inner = run.iterator(self, epoch)
            return delivery.deliver(self, source, epoch, inner)

    @property
    def _collate(self) -> Callable[[list[Any]], Any]:
        collate_fn: Callable[[list[Any]], Any] = accelerate.collate_of(self.collate_fn)
        return collate_fn

    def _torchs(self) -> Any:
        """torch's own iterator; one that persists begins anew."""
        if not (self.persistent_workers and self.num_workers > 0):
            return super()._get_iterator()
        inner: Any = self._inner
        if inner is None:
            inner = self._inner = super()._get_iterator()
        else:
            inner._reset(self)
        return inner

    def _source(self) -> Source | str:
        drawn = (self.sampler, self.batch_sampler, self._collate)
        single = self.batch_sampler is None
        started = bool(self.num_workers and self.worker_init_fn)
        return self._resolve(self.dataset, drawn, single=single, started=started)

    def _observer(self) -> Timeline | None:
        """Where this epoch is written down; an enclosing ``fastload.trace`` comes first."""
        if self._timeline is not None:
            self._timeline.update()
        return active() or self._timeline
