"""FastLoader: a torch DataLoader whose batches fastload's engines can make."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import operator
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.context import BaseContext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ._base import callers
from ._base.keywords import names_nearest
from ._base.machine import cpu
from ._base.torch_loader import DataLoader, exchanged, no_warning
from ._base.trace import batch_length
from ._run import accelerate, route
from ._run import progress as _progress
from ._run import shard as _shard
from ._run.config import (
    ARGUMENTS,
    INSTEAD,
    OURS,
    LoaderConfig,
    Sample,
    dtype_of,
    instead_of_workers,
    workers_given,
)
from ._run.cursor import EpochCursor
from ._run.epoch_iterator import EpochContext, EpochIterator
from ._run.order import order_of
from ._run.own_sampler import MadeWith, order_arguments
from ._run.resources import Inspection, Resources
from ._run.route import EngineRoute, TorchRoute
from ._run.shard import ShardBy
from ._sources.augmentation_checks import check_augmentation, epoch_number
from ._sources.deferred.thread_state import THREAD
from ._sources.kinds import is_image_stream, is_mix_dataset
from ._sources.opening import open_dataset
from .errors import FastloadError, UsageError, advise
from .hints import (
    CacheKind,
    Decode,
    Engine,
    NumWorkers,
    OnError,
    Stats,
)

if TYPE_CHECKING:
    from ._run.bucket_sampler import BatchBy
    from ._sources.mix import Mix

_Batch = TypeVar("_Batch")

_TORCHS = ARGUMENTS[: -len(OURS)]

# What this torch's DataLoader takes beside the dataset: in_order was added in 2.6.
_NAMED = inspect.signature(DataLoader.__init__).parameters
_PASSED = [name for name in _TORCHS[1:] if name != "in_order" or name in _NAMED]

_torchs, _ours = operator.attrgetter(*_TORCHS), operator.attrgetter(*OURS)


class FastLoader(DataLoader[Sample]):
    """A drop-in DataLoader that keeps the training loop from waiting for data.

    Takes every argument of torch's DataLoader, with the same name, default and meaning, and gives
    the same batches in the same order. ``explain()`` says which of these ways a loader takes, and
    why:

    - Native threads decode and augment whole batches. This needs a dataset that fastload can read
      itself (a packed store; Parquet files; torchvision's ImageFolder, DatasetFolder, CIFAR, MNIST
      and its variants, SVHN and STL10; Hugging Face and Lance datasets; a Subset or ConcatDataset
      of these) and a transform that it recognises.
    - For a TensorDataset, the rows of a batch are copied at once.
    - Every other dataset runs its own code in torch's worker processes, or in this process. Images
      that it opens are decoded in C++ (docs/your-dataset.md).

    Example:
        >>> loader = FastLoader("imgs.lmdb", batch_size=256, shuffle=True, transform=train_tf)
        >>> for images, labels in loader: ...

    Args:
        dataset: any Dataset; a Mix of several stores and datasets with weights; or the path or URL
            of a store, or a list of them: short for ``PackedDataset(path, transform=...)``, which
            takes what says what the data is (fields, masks and boxes, the options of a URL).
        num_workers: The number of threads of the native engine (0: the calling thread makes each
            batch), or of worker processes where the dataset's own code runs. Images that only
            Pillow can decode are decoded in as many processes. Not given: native threads follow
            the CPU quota; other datasets and a TensorDataset get torch's default, 0. "auto" starts
            with one worker for each CPU and adjusts it: threads and prefetched batches while the
            loop runs, processes between epochs (an IterableDataset gets one). The attribute is
            always an int.
        prefetch_factor: Batches to prefetch: per worker process as in torch, but in total for an
            engine, and on the device beside the one in use. Default 2.
        snapshot_every_n_steps: As in torchdata's StatefulDataLoader: a worker sends the state of an
            IterableDataset after every so many batches. Resuming restores the last state sent and
            draws the batches since then again, so the next batch is the same either way. 0 or
            None: only at the end of the epoch.
        transform, target_transform: For a path, or for a PackedDataset that has none, also inside
            of a Subset or ConcatDataset. A list of transforms makes several views of each image; a
            batch is then ``[[images of view 0, images of view 1, ...], labels]``.
        engine: Who makes batches. "auto" chooses. "native": the C++ core. "dali": NVIDIA DALI
            decodes JPEGs on ``device``, with slightly different pixels, or its CPU backend does
            (docs/gpu.md). "ray": processes on the Ray cluster that this process is connected to,
            each one batch at a time on one CPU; ``num_workers`` is how many at a time,
            ``prefetch_factor`` how many for each of them are ahead (docs/distributed.md). "torch":
            the dataset's own code in torch's workers, and nothing of fastload's.
        dtype: dtype of the images: ``torch.float32``, float16, bfloat16 (or their names, such as
            "float32"), or uint8 if the transform ends in uint8. None keeps the transform's.
        memory_format: Layout of the images in memory: ``torch.contiguous_format`` (NCHW) or
            ``torch.channels_last`` (NHWC).
        seed: None: order and augmentation are drawn from ``generator``, or from torch's global
            generator, once per epoch, as in DataLoader. An int makes the order a function of
            (seed, epoch) and the augmentation a function of (seed, epoch, index); where a sampler
            repeats an index, each repetition is drawn anew. For other datasets, Python's, NumPy's
            and torch's global generators are seeded that way before each sample (for an
            IterableDataset, before each batch), and so are Albumentations' pipelines that are found
            in the dataset's attributes.
        decode: "exact" decodes every pixel. "scaled" decodes a JPEG at 1/2, 1/4 or 1/8 of its size
            when that is still at least twice the size needed: several times faster for large
            photos, with slightly different pixels (docs/performance.md).
        tuned: Path of a file written by ``fastload autotune``. Its num_workers, prefetch_factor,
            pin_memory and cache (with ``--approximate`` also decode) apply where they are not given
            here; the batch size never does. If it was tuned on another machine or dataset, a
            warning says so and nothing is applied.
        shard: True: each rank reads its own part of every epoch, as with torch's
            DistributedSampler, and ``len`` counts that part. ``set_epoch`` is not needed. The rank
            comes from torch.distributed, or from torchrun's environment. A DeviceMesh, such as
            ``mesh["dp"]``: each of its positions is a rank, so that the processes of one tensor- or
            pipeline-parallel group read the same samples. (rank, world_size): without either. Has
            no effect with a ``sampler`` or ``batch_sampler``. Off by default, because trainers
            shard by themselves.
        on_error: What to do with a sample that cannot be made. "raise". "skip": the batch gets
            shorter. "replace": repeat the next good sample of the batch. "refill": take a sample
            from the end of the epoch's order, so that the epoch gets shorter instead; where there
            are several ranks, which need equal numbers of batches, this is "replace". Or a callable
            ``(index, error) -> "raise" | "skip" | "replace"``. A batch without any good sample is
            left out. ``stats()["errors"]`` lists bad samples, and a warning at the end of the epoch
            counts them.
        max_errors: How many bad samples an epoch may have before TooManyErrors is raised: an int is
            a number, a float is a share of the samples (at least one sample, unless it is 0).
        cache: What to keep for later epochs; batches stay the same (docs/performance.md). "ram":
            the bytes of the records. "dct": JPEGs converted to DCT records, which need no Huffman
            decoding. "decoded": decoded images, or the result of Resize or CenterCrop if the
            transform begins with one. "shm": as "ram", in one copy for all processes of this user
            on this machine. With a Dataset of your own: what it opens (docs/your-dataset.md).
        cache_limit: Size in bytes, or a string such as "8GB". Default: half of the available
            memory (for "ram", "dct" and "decoded", divided among the ranks of this machine).
            Records that do not fit are read from the store as before. It is the limit of
            ``cache`` alone: that of a URL is ``PackedDataset(url, disk_limit=...)``.
        shuffle_window: For a packed store, with ``shuffle=True`` and a ``seed``: shuffle in such a
            way that blocks of 8 MB, or row groups of Parquet files, are read whole. The blocks come
            in random order, and records are shuffled within windows of so many blocks. None: a full
            shuffle.
        batch_by: Which samples may share a batch. "aspect": those that the transform brings to one
            size; ("aspect", pixels): and as many of them as have so many pixels together, at least
            one, and at most ``batch_size`` if that is above 1. ``Buckets``: those whose aspect
            ratios belong to one bucket; the transform begins with ``buckets.crop()``. A sequence
            with a key for each sample, or a callable that takes an index and gives its key: those
            with equal keys; a pair of integers is a height and a width. Each batch has up to
            ``batch_size`` samples; groups come in random order with ``shuffle=True``, a function of
            (seed, epoch), and without a seed that of seed 0. ``drop_last`` leaves out the
            incomplete last batch of each group. ``shard`` divides whole batches (docs/buckets.md).
            None: any samples.
        device: Where to put batches, of any structure: "cuda", "cuda:1", an index, a
            ``torch.device``; "mps" and "xpu" too. None and "cpu" mean host memory. On CUDA, batches
            are copied on a side stream while the caller computes, and are complete when the
            caller's current stream reaches them. (Objects with a ``to`` method of their own are
            moved by it, without overlap.) Call ``next`` on the training thread, and never while a
            CUDA graph is captured. With an engine of fastload and no ``collate_fn``, uint8 pixels
            are copied and the device applies the lookup table, the cast and RandomErasing, with
            the same result.
        batch_transform: Called with each whole batch, on the device if there is one; for example
            torchvision's ``v2.MixUp(num_classes=10)``. While it runs, Python's, NumPy's and torch's
            global generators (of the CPU and of CUDA) are seeded by a function of (seed, epoch,
            batch number); the caller's states are restored afterwards. On CUDA it runs beside the
            caller's step, for batches ahead: what it reads must not be what the step writes. Call
            such a function in the loop instead.

    All other arguments are torch's.

    Yields:
        What DataLoader yields: ``[images, labels]``, or a dict with ``fields``. Images are (n, 3,
        h, w), RGB, on ``device`` or in host memory (pinned with ``pin_memory=True`` if there is
        CUDA). The memory of a batch is never reused while anything refers to it.

    Raises:
        UsageError: arguments that cannot be combined.
        DataError: while iterating: a sample cannot be read. It names the file, record and offset.
        TooManyErrors: while iterating: more samples failed than ``max_errors`` allows.
    """

    in_order = True  # torch sets it from 2.6 on, and trainers read every argument as an attribute

    # fastload's own arguments, under their own names.
    snapshot_every_n_steps: int | None
    engine: Engine
    dtype: torch.dtype | None
    memory_format: torch.memory_format
    seed: int | None
    decode: Decode
    on_error: OnError
    max_errors: float
    tuned: str | os.PathLike[str] | None
    cache: CacheKind | None
    device: str | int | torch.device | None
    batch_transform: Callable[[Any], Any] | None
    shuffle_window: int | None
    batch_by: BatchBy | None
    shard: ShardBy

    # Defaults for subclasses that never call our __init__. torchdata's StatefulDataLoader is one if
    # it is defined while FastLoader replaces torch's DataLoader: it repeats what torch's __init__
    # does instead of calling it.
    _loader_given: Mapping[str, Any] | None = MappingProxyType({"shard": False})
    _loader_of_torch = (
        False  # whether its class was derived from torch's, which FastLoader replaced
    )
    _loader_begun = False  # whether our __init__ was called
    _epoch_cursor: EpochCursor
    _threads = False
    _chosen_workers: int | None = None
    _made_with = MadeWith(None, None, own=False)
    _kept_config: tuple[tuple[Any, ...], LoaderConfig] | None = None  # and what it was made of

    _is_accelerate_prepared = accelerate.PreparedAttribute()
    _adapter: weakref.ref[accelerate.Adapter] | None = None  # accelerate's, around this loader
    _exchanged = ""  # as in LoaderConfig
    _left_out = 0  # batches that accelerate skips at the start of each epoch

    @functools.partial(names_nearest, instead=INSTEAD)
    def __init__(
        self,
        dataset: Dataset[Sample] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mix,
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
        multiprocessing_context: str | BaseContext | None = None,
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
        tuned: str | os.PathLike[str] | None = None,
        shard: ShardBy = False,
        on_error: OnError = "raise",
        max_errors: float = 0.001,
        cache: CacheKind | None = None,
        cache_limit: int | str | None = None,
        shuffle_window: int | None = None,
        batch_by: BatchBy | None = None,
        device: str | int | torch.device | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        num_workers = workers_given(num_workers)
        check_augmentation(seed, transform, target_transform)
        collate_fn = accelerate.collate_of(collate_fn)
        workers = num_workers if isinstance(num_workers, int) else 0
        given = {name: value for name, value in locals().items() if name in ARGUMENTS}
        given |= {
            "batch_size": batch_size if batch_sampler is None else None,
            "num_workers": workers,
            "dtype": dtype_of(dtype),
        }
        own_order = sampler is None and (batch_sampler is None or order_of(batch_sampler).batched)
        config = LoaderConfig(
            **given, torch_workers=workers, own_order=own_order, exchanged=exchanged()
        )
        opened = open_dataset(
            dataset, seed=seed, transform=transform, target_transform=target_transform
        )
        if tuned is not None:
            from ._run.tuned_file import complete

            config, num_workers = complete(config, opened, num_workers)
        if is_image_stream(opened):
            if config.single:
                raise UsageError("batch_size: expected a number with a streaming dataset, got None")
            from ._sources.streams import collate_rows

            collate_fn = collate_fn or collate_rows
        if opened is not dataset or collate_fn is not config.collate_fn:
            config = dataclasses.replace(config, dataset=opened, collate_fn=collate_fn)
        self._loader_resources = Resources()
        if config.cache is not None or cache_limit is not None:
            from ._engine.cache.cache import Cache

            self._loader_resources.cache = Cache.of(config.cache, cache_limit, engine)
        chosen_route = route.find(config)
        self._loader_resources.native = isinstance(chosen_route, EngineRoute)
        self._threads = isinstance(chosen_route, EngineRoute) and not chosen_route.source.tensors
        workers = self._resolved_workers(num_workers, chosen_route, config)
        # Attributes have the names of the arguments: trainers read them to rebuild the loader.
        # Not one by one: for each, torch's __setattr__ compares names.
        given = dict(zip(OURS, _ours(config), strict=True))
        shown = given | {
            "transform": transform,
            "target_transform": target_transform,
            "cache_limit": cache_limit,
        }
        others = self._loader_of_torch or "_torchs_init" in vars(self)
        if others:  # what a derived class has set before, and calls so
            shown |= {name: getattr(self, name) for name in shown if hasattr(self, name)}
        vars(self).update(
            shown,
            _loader_begun=True,
            _loader_given=given if others else None,
            _epoch_cursor=EpochCursor(),
            _exchanged=config.exchanged,
            _chosen_workers=None if isinstance(num_workers, int) else workers,
        )
        if not in_order and "in_order" not in _PASSED:
            raise UsageError(f"in_order=False needs torch 2.6 or newer, got {torch.__version__}")
        arguments = {name: getattr(config, name) for name in _PASSED}
        arguments |= order_arguments(config, batch_size=batch_size, shuffle=shuffle)
        arguments["num_workers"] = workers
        # Where others have wrapped torch's __init__ since ``install``, theirs is what called this.
        init = vars(self).pop("_torchs_init", super().__init__)
        try:
            init(opened, **arguments)
        except ValueError as error:
            if workers < 0 or (workers == 0 and (prefetch_factor or persistent_workers)):
                advise(error, instead_of_workers(workers))
            raise
        self._made_with = MadeWith(self.sampler, self.batch_sampler, config.own_order)

    def _resolved_workers(
        self, given: NumWorkers | None, chosen_route: route.Route, config: LoaderConfig
    ) -> int:
        """How many threads or processes; makes the governor for "auto"."""
        if given is None:
            # Rows of tensors are copied in the call to next, so that a batch shows changes made
            # to the tensors before it.
            return cpu.available(device=config.accelerated) if self._threads else 0
        if given != "auto":
            return given
        if config.engine == "ray":
            raise UsageError(
                "engine='ray': expected a number of num_workers, got 'auto', which adjusts threads "
                "of this process"
            )
        from ._run import governor as _governor

        governor = self._loader_resources.governor = _governor.for_loader(chosen_route, config)
        return 1 if governor is None else governor.setting.workers

    @property
    def _loader_own(self) -> Mapping[str, Any]:
        """The arguments that only fastload has.

        Of a loader that was made as a FastLoader, they are the attributes. Those that code written
        for torch sets on its loaders and classes (a ``device``, ``seed`` or ``cache``) are its own.
        """
        given = self._loader_given
        return dict(zip(OURS, _ours(self), strict=True)) if given is None else given

    def _loader_config(self, *, begin: bool = False) -> LoaderConfig:
        """The arguments as they are now: attributes may have been set since ``__init__``.

        ``begin``: for an epoch that begins.
        """
        order = self._made_with.now(self)
        prepared = self._adapter is not None and accelerate.adapter_of(self) is not None
        if begin:
            self._exchanged = exchanged()
        others = self._left_out, prepared, self._chosen_workers, self._exchanged
        made_with = self._loader_given  # not _loader_own: this is asked at each ``iter``
        own = _ours(self) if made_with is None else made_with.values()
        seen = (*_torchs(self), *own, *order.values(), *others)
        kept = self._kept_config
        if kept is None or not all(map(operator.is_, seen, kept[0])):
            given = dict(zip(ARGUMENTS, seen, strict=False)) | order
            workers = self.num_workers
            given |= {
                "collate_fn": accelerate.collate_of(self.collate_fn),
                "left_out": self._left_out,
                "prepared": prepared,
                "exchanged": self._exchanged,
                "torch_workers": 0 if workers == self._chosen_workers else workers,
            }
            config = LoaderConfig(**given)
            # What is in a sampler of the user's may change, and nobody sees it here.
            kept = seen, config
            self._kept_config = kept if config.own_order else None
        config = kept[1]
        return (
            self._loader_resources.resolved(config, begin=begin) if config.accelerated else config
        )

    @property
    def check_worker_number_rationality(self) -> Callable[[], None]:
        """torch's warning about too many worker processes; not for threads and "auto".

        torch calls it without a frame of ours between, so that its warning has torch's module.
        """
        automatic = self._loader_begun and self._loader_resources.governor is not None
        return no_warning if self._threads or automatic else super().check_worker_number_rationality

    # --- iterating --------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        Also works on an iterator that has not given a batch yet. Samplers and datasets with a
        ``set_epoch`` method are told too. If the loader and its sampler are told different epochs,
        the last call decides. Without any call, every iteration is the next epoch.

        Raises:
            UsageError: ``epoch`` is not an integer below 2**62.
        """
        if self._loader_begun:
            self._epoch_cursor.set_epoch(self._loader_config(), epoch_number(epoch))

    def __len__(self) -> int:
        """Batches per epoch; with ``shard=True``, those of this rank."""
        length = self._loader_config().part_length() if self._loader_own["shard"] else None
        return super().__len__() if length is None else length

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._adapter is not None:
            accelerate.follow(self)
        return super().__iter__()  # torch's, which other packages may wrap

    def _get_iterator(self) -> Iterator[Any]:  # type: ignore[override]
        """A new iterator over the next epoch. Subclasses may override it, as with torch's."""
        if not self._loader_begun:
            return super()._get_iterator()
        if self._epoch_cursor.resume is None:
            self._epoch_cursor.base_seed = (
                None  # it belongs to one iterator, as persistent workers do
            )
        outer = THREAD.making
        if outer is None:
            return EpochIterator(self._begin_iteration())
        left = outer.deferred and outer.inner.brief and self._leaves_images()
        iterator: Iterator[Any]
        if left:
            from ._sources.deferred.within import BriefIterator

            iterator = BriefIterator(self, outer)
        else:
            iterator = EpochIterator(self._begin_iteration())
        outer.begin(iterator)
        return iterator

    def _leaves_images(self) -> bool:
        """Whether torch's own iterator does, and another loader makes the images: ``within.py``."""
        if self._loader_resources.native or self._epoch_cursor.resume is not None:
            return False
        config = self._loader_config(begin=True)
        return config.repeatable and not config.left_to_torch

    def _begin_iteration(self) -> EpochContext:
        """What an iterator needs from this loader to start an epoch."""
        resources = self._loader_resources
        if resources.governor is not None:
            from ._run import governor as _governor

            self.num_workers = _governor.workers(resources.governor, resources.measurements)
            self._chosen_workers = self.num_workers
        config = self._loader_config(begin=True)
        if not config.shard and config.own_order:
            _shard.warn_if_every_rank_reads_all(self.dataset)
        return EpochContext(
            config=config,
            resources=resources,
            cursor=self._epoch_cursor,
            reported=getattr(self, "_IterableDataset_len_called", None),
            loader=weakref.ref(self),
        )

    @property
    def _loader_stateless(self) -> bool:
        """Whether ``state_dict`` raises: torch's own iterator runs, whose batches may arrive in any
        order, or the state of the dataset or sampler cannot be taken.
        """
        config = self._loader_config()
        if isinstance(route.find(config), TorchRoute):
            return True
        parts = config.dataset, config.batch_sampler, config.sampler
        stateful = filter(_progress.is_stateful, parts)
        return any(isinstance(_progress.state_of(p), _progress.Unsaved) for p in stateful)

    def _torch_iterator(self, kept: object | None) -> _BaseDataLoaderIter:
        """torch's own iterator: ``kept``, whose worker processes persist, or a new one."""
        if not isinstance(kept, _BaseDataLoaderIter) or kept._num_workers != self.num_workers:
            return super()._get_iterator()
        kept._reset(self)
        return kept

    # --- resuming ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint of this loader, which resumes after the newest batch.

        After ``load_state_dict``, and until an iterator begins, it resumes what that one will give.
        It holds the states of two random generators (7 KB each), a few numbers, and the states of
        datasets and samplers that have their own ``state_dict``. It is cheap enough to take at
        every step. Everything but the datasets' and samplers' own states can be written as JSON.

        Raises:
            UsageError: batches come in no fixed order: ``in_order=False`` with worker processes, a
                DataPipe, or code that another package has put in torch's iteration; or the state of
                the dataset or sampler could not be taken. While ``fastload.install`` makes
                FastLoaders of torch's, it is a warning, as trainers save the state of whatever has
                this method: then the state says that there is none.
        """
        try:
            return self._saved_state()
        except UsageError as error:
            if self._loader_given is None:
                raise
            warnings.warn(str(error), stacklevel=callers.stacklevel())
            return _progress.without(error)

    def _saved_state(self) -> dict[str, Any]:
        """As ``state_dict``, which may raise."""
        if not self._loader_begun:
            raise UsageError("state_dict: expected a class that calls DataLoader.__init__")
        progress = self._epoch_cursor.running() or self._epoch_cursor.snapshot(
            self._loader_config()
        )
        if progress.unordered:
            raise UsageError(
                "state_dict: expected batches in the order of their samples, got in_order=False "
                "with workers, a DataPipe, or code of another package in torch's iteration "
                "(explain() names it); use in_order=True and a Dataset"
            )
        state = progress.state()
        if is_mix_dataset(self.dataset):
            state["mix"] = self.dataset.mix.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the next iteration from a checkpoint.

        With an int ``seed``, the remaining batches are exactly those of the uninterrupted run, with
        any number of workers and, with ``shard=True``, on any number of ranks. (Every rank has come
        equally far, so any rank's state serves all of them.) Without a seed, the order and the
        native engine's augmentation are the same too, because the states of torch's generators are
        saved; random transforms that run in a dataset's own code differ, because workers draw
        their own numbers.

        An IterableDataset is resumed by its ``state_dict`` and its iterator's. If it has neither,
        it is read again up to the same place; errors on the way are ignored, as they were raised
        before. A map-style dataset with ``state_dict`` and ``load_state_dict`` gets its state
        back. Datasets that are iterable or stateful need as many workers as before, because each
        worker has a state of its own.

        Example:
            >>> torch.save({"loader": loader.state_dict(), ...}, "checkpoint.pt")
            >>> loader.load_state_dict(torch.load("checkpoint.pt")["loader"])

        Args:
            state: from ``state_dict`` of a loader with the same arguments.

        Raises:
            UsageError: this loader cannot resume ``state``; raised here or by the next ``iter``.
        """
        missing = _progress.missing(state)
        if missing and self._loader_given is not None:
            warnings.warn(f"{missing}: its epoch begins anew", stacklevel=callers.stacklevel())
            return
        if not self._loader_begun:
            raise UsageError("load_state_dict: expected a class that calls DataLoader.__init__")
        resume, config = _progress.read(state), self._loader_config()
        if is_mix_dataset(self.dataset):
            self.dataset.mix.load_state_dict(_progress.mix_of(state))
        self._epoch_cursor.load(config, resume)
        accelerate.resume(self, resume.epoch)
        self._iterator = None  # its persistent workers are at another place in the data

    def __getstate__(self) -> dict[str, Any]:
        # Resources and cursor leave out threads, processes and iterators by themselves.
        return {**self.__dict__, "_iterator": None, "_adapter": None, "_kept_config": None}

    def __copy__(self) -> FastLoader[Sample]:
        """A loader of the same dataset, with the same arguments, that counts its own epochs.

        As with torch's DataLoader, iterating over one does not change the other. The copy's first
        epoch is the one that would come next here.
        """
        made = type(self).__new__(type(self))
        state = self.__getstate__()
        if self._loader_begun:
            state |= self._made_with.of_copy(self)
        for name in {"_epoch_cursor", "_loader_resources"} & state.keys():
            state[name] = copy.copy(state[name])
        vars(made).update(state)
        return made

    # --- reports ----------------------------------------------------------------------------------

    def explain(self) -> str:
        """A text: which engine runs and why, what is fused, and what would be faster.

        A notebook shows it as a table.
        """
        from ._run import explain
        from ._run.notebook import Explanation

        return Explanation(explain.explain(self._loader_config(), self._loader_resources))

    def stats(self) -> Stats:
        """Measurements of the running epoch, or of the last one.

        Returns:
            A dict of counts, rates, times, errors, and what the loop waits for.
            ``fastload.hints.Stats`` describes each entry and its unit. A notebook shows a table
            with bars.
        """
        from ._run import explain
        from ._run.notebook import as_figures

        return as_figures(explain.figures(self._loader_resources))

    def __repr__(self) -> str:
        """What a terminal shows: explain(), and stats() once the loader has run."""
        if not self._loader_begun:
            return super().__repr__()
        from ._run.notebook import loader_text

        try:
            explained = self.explain()
        except FastloadError as error:  # the loop will raise it; this is only shown
            explained = str(error)
        return loader_text(self._title, explained, self.stats())

    def inspect(self) -> Inspection:
        """What this loader keeps at the moment: engine, slabs, caches, mover.

        It is there for tests and for looking into a running program; any release may change it.
        """
        return Inspection(self._loader_resources)

    def _repr_html_(self) -> str | None:
        """The same for a notebook."""
        if not self._loader_begun:
            return None
        from ._run.notebook import loader_html

        return loader_html(self._title, self.explain(), self.stats())

    @property
    def _title(self) -> str:
        return f"FastLoader: {type(self.dataset).__name__}, batch_size={self.batch_size}"

    def replay(self, batch: _Batch, steps: int) -> Iterator[_Batch]:
        """Yield the same batch ``steps`` times, to measure the loop without data loading.

        Afterwards, ``stats()["headroom"]`` says how many times faster the loop could be.

        Example:
            >>> for batch in loader: train_step(batch)
            >>> for batch in loader.replay(batch, 50): train_step(batch)
            >>> loader.stats()["headroom"]

        Args:
            batch: for example the last one of an epoch.
            steps: at least 2; the first step is not measured.

        Raises:
            UsageError: fewer than 2 steps.
        """
        if steps < 2:
            raise UsageError(f"replay: expected at least 2 steps, got {steps}")
        return self._replay(batch, steps)

    def _replay(self, batch: _Batch, steps: int) -> Iterator[_Batch]:
        yield batch
        begin = time.perf_counter()
        for _ in range(steps - 1):
            yield batch
        elapsed = time.perf_counter() - begin
        self._loader_resources.replayed = (steps - 1) * batch_length(batch) / max(elapsed, 1e-9)
