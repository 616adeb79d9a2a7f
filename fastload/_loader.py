"""FastLoader: torch's DataLoader with engines of its own."""

from __future__ import annotations

import dataclasses
import inspect
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from ._base.machine import cpu
from ._base.timeline import active, lasting
from ._base.torch_loader import DataLoader
from ._base.trace import batch_length
from ._engine.cache.cache import Cache
from ._run import accelerate, route
from ._run import decode_device as _decode_device
from ._run import progress as _progress
from ._run import shard as _shard
from ._run.config import (
    ARGUMENTS,
    OURS,
    LoaderConfig,
    Sample,
    check_workers,
    collate_for,
    dtype_of,
)
from ._run.cursor import EpochCursor
from ._run.iteration import EpochIterator, Iteration
from ._run.measured import Measured
from ._run.order import of_loader
from ._run.resources import Resources
from ._run.route import EngineRoute, TorchRoute
from ._sources.drawing import check_drawing
from ._sources.packed import open_dataset
from .errors import UsageError
from .hints import (
    CacheKind,
    CheckCrc,
    Decode,
    DecodeDevice,
    Engine,
    JointKind,
    NumWorkers,
    OnError,
    Stats,
)

# Arguments of DataLoader that this torch knows: in_order came with 2.6.
_TORCH_ARGUMENTS = frozenset(inspect.signature(DataLoader.__init__).parameters)


class FastLoader(DataLoader[Sample]):
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

    # Arguments of ours, under their own names.
    snapshot_every_n_steps: int | None
    engine: Engine
    dtype: torch.dtype | None
    memory_format: torch.memory_format
    seed: int | None
    decode: Decode
    check_crc: CheckCrc
    rank: int | None
    world_size: int | None
    on_error: OnError
    max_errors: float
    prefetch_thread: bool
    tuned: str | os.PathLike[str] | None
    cache: CacheKind | None
    device: str | int | torch.device | None
    prefetch_device: int
    batch_transform: Callable[[Any], Any] | None
    decode_device: DecodeDevice

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
        check_workers(num_workers)
        check_drawing(seed, transform, target_transform)
        config = LoaderConfig(
            dataset=dataset,
            batch_size=batch_size if batch_sampler is None else None,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers if isinstance(num_workers, int) else 0,
            collate_fn=accelerate.collate_of(collate_fn),
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
            snapshot_every_n_steps=snapshot_every_n_steps,
            engine=engine,
            dtype=dtype_of(dtype),
            memory_format=memory_format,
            seed=seed,
            decode=decode,
            check_crc=check_crc,
            shard=shard,
            rank=rank,
            world_size=world_size,
            on_error=on_error,
            max_errors=max_errors,
            prefetch_thread=prefetch_thread,
            tuned=tuned,
            cache=cache,
            device=device,
            prefetch_device=prefetch_device,
            batch_transform=batch_transform,
            decode_device=decode_device,
            own_order=sampler is None and batch_sampler is None,
        )
        opened = open_dataset(
            dataset,
            seed=seed,
            transform=transform,
            target_transform=target_transform,
            fields=fields,
            joint=joint,
        )
        if tuned is not None:
            from ._run.tuned_file import complete

            config, num_workers = complete(config, opened, num_workers)
        config = dataclasses.replace(
            config, dataset=opened, collate_fn=collate_for(config.collate_fn, single=config.single)
        )
        self._cursor = EpochCursor()
        self._resources = Resources(
            Measured(native=False), cache=Cache.of(config.cache, cache_limit, engine)
        )
        _decode_device.check(config)
        found = route.find(config)
        self._resources.measured.native = isinstance(found, EngineRoute)
        self._threads = isinstance(found, EngineRoute) and found.decodes
        if num_workers == "auto":
            from ._run import governor as _governor

            governor = self._resources.governor = _governor.for_loader(found, config)
            num_workers = 1 if governor is None else governor.setting.workers
        elif num_workers is None:
            # Rows of tensors are copied when asked for, so that the next batch has changed ones.
            num_workers = cpu.available() if self._threads else 0
        # Attributes by the names of the arguments: trainers read them to make another loader.
        for name in OURS:
            setattr(self, name, getattr(config, name))
        self.transform = transform
        self.target_transform = target_transform
        self.fields = fields
        self.joint = joint
        self.trace = trace
        self.cache_limit = cache_limit
        self._timeline = None if trace is None else lasting(trace)
        self._own_order = config.own_order
        if self._own_order:
            sampler, shuffle = of_loader(opened, shuffle, seed, shard=shard)
        arguments: dict[str, Any] = {
            "prefetch_factor": config.prefetch_factor,
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
            config.collate_fn,
            config.pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            **arguments,
        )

    def _config(self) -> LoaderConfig:
        """The arguments as they stand: attributes may have been set since."""
        given = {name: getattr(self, name) for name in ARGUMENTS}
        given["collate_fn"] = accelerate.collate_of(self.collate_fn)
        return LoaderConfig(
            **given,
            own_order=self._own_order,
            left_out=self._left_out,
            prepared=accelerate.prepared(self),
        )

    def check_worker_number_rationality(self) -> None:
        """torch's warning about too many workers; not about threads, which are as many as given."""
        if not self._threads:
            super().check_worker_number_rationality()

    # --- iterating --------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, also of one that has given no batch yet.

        Samplers and datasets with an epoch are told too; of loader and sampler, whichever was told
        last decides. Without it every iteration is the next epoch.
        """
        self._cursor.set_epoch(self._config(), epoch)

    def __len__(self) -> int:
        """Batches of an epoch, of this rank where ``shard=True`` divides it."""
        length = self._config().part_length() if self.shard else None
        return super().__len__() if length is None else length

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        accelerate.follow(self)
        # As in torch: workers that persist have one iterator, which begins anew.
        if not (self.persistent_workers and self.num_workers > 0):
            return self._get_iterator()
        if self._iterator is None:
            self._iterator = self._get_iterator()  # type: ignore[assignment]
        else:
            self._iterator._reset(self)
        return self._iterator  # type: ignore[return-value]

    def _get_iterator(self) -> Iterator[Any]:  # type: ignore[override]
        """A new iterator over the next epoch; what a subclass may override, as with torch's."""
        if "_resources" not in vars(self):  # of a class that has not called our __init__
            return super()._get_iterator()
        # Workers that persist are those of one iterator, and so is their seed.
        self._resources.end_workers()
        if self._cursor.resume is None:
            self._cursor.base_seed = None
        return EpochIterator(self._iteration())

    def _iteration(self) -> Iteration:
        """What an iterator needs of this loader to begin an epoch."""
        resources = self._resources
        if resources.governor is not None:
            from ._run import governor as _governor

            workers = _governor.workers(resources.governor, resources.measured)
            if workers != self.num_workers:
                self.num_workers = workers
                resources.end_workers()  # of the number that there was
        config = self._config()
        if not config.shard and config.own_order:
            _shard.warn_if_every_rank_reads_all(self.dataset)
        if self._timeline is not None:
            self._timeline.update()
        return Iteration(
            config=config,
            resources=resources,
            cursor=self._cursor,
            timeline=active() or self._timeline,  # an enclosing ``fastload.trace`` comes first
            length=config.part_length(),
            reported=getattr(self, "_IterableDataset_len_called", None),
            torchs=_weak(self),
        )

    @property
    def _unordered(self) -> bool:
        """Whether torch's own iterator runs, whose batches may come in any order."""
        return isinstance(route.find(self._config()), TorchRoute)

    def _torchs(self) -> Iterator[Any]:
        """torch's own iterator; one that persists begins anew."""
        if not (self.persistent_workers and self.num_workers > 0):
            return super()._get_iterator()
        resources = self._resources
        inner: Any = resources.torchs
        if inner is None:
            inner = resources.torchs = super()._get_iterator()
        else:
            inner._reset(self)
        return inner  # type: ignore[no-any-return]

    # --- resuming ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What resumes this loader at the sample after the newest batch; see load_state_dict.

        Small (the states of two generators, 7 KB each, a few numbers, and what datasets with a
        state of their own give), and cheap enough for every step. Beside the datasets' states, and
        a sampler's, it is made of what JSON has.

        Raises:
            UsageError: with ``in_order=False`` and worker processes, where batches have no order.
        """
        progress = self._cursor.under_way() or self._cursor.standing(self._config())
        if progress.unordered:
            raise UsageError(
                "state_dict needs in_order=True, and a dataset that is no DataPipe: expected "
                "batches that come in the order of their samples"
            )
        state = progress.state()
        if self._resources.choice is not None:
            state["decode"] = _decode_device.state_of(self._resources.choice)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration resume where ``state`` was taken.

        With an int ``seed`` the batches are those that would have come: with any number of
        workers, and with ``shard=True`` on any number of ranks (the state of one rank serves all
        of them, as every rank has come equally far). Without one the order is the same, drawn
        again from the states of torch's generators, and augmentation in the native engine too;
        random transforms of a dataset of the user's are not, as workers draw their own numbers.
        An IterableDataset resumes by its own ``state_dict`` and its iterator's; without either it
        is read again up to there, and what raised on the way does not stop it. A map-style dataset
        with ``state_dict`` and ``load_state_dict`` gets its state back. All of them need the same
        number of workers, each of which has its own state.

        Example:
            >>> torch.save({"loader": loader.state_dict(), ...}, "checkpoint.pt")
            >>> loader.load_state_dict(torch.load("checkpoint.pt")["loader"])

        Args:
            state: from ``state_dict`` of a loader made alike.

        Raises:
            UsageError: here or by the next ``iter``, where the loader cannot resume it.
        """
        resume, config = _progress.read(state), self._config()
        self._cursor.load(config, resume)
        accelerate.resume(self, resume.epoch)
        self._iterator = None  # persistent workers stand elsewhere
        self._resources.end_workers()
        choice = _decode_device.resumed(config, state.get("decode"))
        if choice is not None:
            self._resources.choice = choice

    def __getstate__(self) -> dict[str, Any]:
        # Resources and cursor leave out what is alive.
        return {**self.__dict__, "_iterator": None, "_adapter": None}

    # --- reports ----------------------------------------------------------------------------------

    def explain(self) -> str:
        """Which engine runs and why, what is fused, what would be faster, in plain words."""
        from ._run import explain

        return explain.explain(self._config(), self._resources)

    def stats(self) -> Stats:
        """Figures of the epoch that runs, or of the last one.

        Returns:
            A dict of counts, rates, times, errors, and what the loop waits for:
            ``fastload.hints.Stats`` describes each entry, with its unit.
        """
        from ._run import explain

        return explain.figures(self.engine, self._resources)

    def replay(self, batch: Any, steps: int) -> Iterator[Any]:
        """One batch, ``steps`` times: the loop as it would be if data were free.

        After it, ``stats()["headroom"]`` says how much faster the loop could be.

        Example:
            >>> for batch in loader: train_step(batch)
            >>> for batch in loader.replay(batch, 50): train_step(batch)
            >>> loader.stats()["headroom"]

        Args:
            batch: such as the loop had last.
            steps: at least 2; the first one is not counted.

        Raises:
            UsageError: fewer than 2 steps.
        """
        if steps < 2:
            raise UsageError(f"replay: expected at least 2 steps, got {steps}")
        return self._replay(batch, steps)

    def _replay(self, batch: Any, steps: int) -> Iterator[Any]:
        yield batch
        begin = time.perf_counter()
        for _ in range(steps - 1):
            yield batch
        elapsed = time.perf_counter() - begin
        self._resources.replayed = (steps - 1) * batch_length(batch) / max(elapsed, 1e-9)


def _weak(loader: FastLoader[Any]) -> Callable[[], Iterator[Any] | None]:
    """Gives torch's own iterator; None when ``loader``, which it does not keep, is gone."""
    method = weakref.WeakMethod(loader._torchs)

    def torchs() -> Iterator[Any] | None:
        make = method()
        return None if make is None else make()

    return torchs
