"""FastLoader: torch's DataLoader with engines of its own."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from . import _cpu, _memory, _sampler
from ._buffers import SlabRing
from ._collate import annotations_of, batch_of, collate, samples_of
from ._dataset import PackedDataset, open_dataset
from ._engine import chosen, make_decoder
from ._engine.decoder import Decoder
from ._governor import Governor, after_epoch, for_engine, for_processes
from ._iterator import BatchIterator
from ._sampler import SeededSampler
from ._source import Source, nested, resolve
from ._timeline import Timeline, active, lasting
from ._trace import Observed, Snapshot, Stamps
from .errors import UsageError

_ENGINES = ("auto", "native", "python", "workers")
_CHECKS = ("first", "always", "never")

# Batches ahead of the consumer where prefetch_factor is not given: torch's own default per worker.
_PREFETCH = 2

# How long the producer waits for a consumer to let go of the batch before. It does so within
# microseconds of taking the next one, if at all; a new slab of 256 photos costs 30 ms.
_PATIENCE_S = 2e-3

# Arguments of DataLoader that this torch knows: in_order came with 2.6.
_TORCH_ARGUMENTS = frozenset(inspect.signature(DataLoader.__init__).parameters)


class FastLoader(DataLoader[Any]):
    """A DataLoader that does not make the training loop wait.

    Takes all of torch's DataLoader arguments by name, default and meaning, and gives the same
    batches in the same order. Where fastload can read the dataset by itself (a packed store, a
    torchvision ImageFolder or DatasetFolder, Subset and ConcatDataset of these) with a transform it
    recognises, whole batches are decoded and augmented by native threads; anything else goes
    through torch's machinery unchanged. ``explain()`` says which and why.

    Example:
        >>> loader = FastLoader("imgs.lmdb", batch_size=256, shuffle=True, transform=train_tf)
        >>> for images, labels in loader: ...

    Args:
        dataset: any Dataset, the path of a packed store, or a list of such paths, which are read as
            one store.
        num_workers: unset: native threads follow the CPU quota, a user's Dataset gets torch's 0.
            A number means that many threads in the native engine (0: the calling thread makes the
            batches) and that many processes in torch's machinery. "auto" begins with the CPUs and
            adjusts to what the loop shows: threads and batches ahead while it runs, processes
            between epochs (one for an IterableDataset). The attribute is always an int.
        prefetch_factor: batches ahead: in torch's machinery per worker, in the engines in all.
            Default 2.
        transform, target_transform: for a path or a PackedDataset without transforms of its own.
        engine: "auto", "native", "python" (the same results through Pillow), "workers" (torch's
            machinery).
        dtype: of the images; None as the transform says. float32, float16, bfloat16, or uint8 where
            the transform ends in uint8.
        memory_format: ``torch.contiguous_format`` (NCHW in memory) or ``torch.channels_last``.
        seed: None: order and augmentation are drawn once an epoch from ``generator`` or torch's
            global generator, as DataLoader draws them. An int: the order is a pure function of
            (seed, epoch), augmentation of (seed, epoch, index), and of how often it came before
            where a sampler repeats an index. In torch's machinery it decides the order; transforms
            that run there draw from their own generators.
        check_crc: "first": verify each record's checksum the first time this process reads it;
            "always"; "never".
        fields: for a path or a PackedDataset: which fields of the store come with the images, such
            as ``("mask", "key")``, or "all". A batch is then a dict (see PackedDataset).
        tuned: a file that ``fastload autotune`` wrote: its num_workers, prefetch_factor, pin_memory
            and cache are taken where they are not given here; the batch size stays. Where the file
            is of another machine or dataset, a warning says so and nothing is taken.
        trace: path of a timeline of this loader, as ``fastload.trace`` writes for all loaders; it
            is written at the end of each epoch and at the interpreter's exit.

    All other arguments are torch's.

    Yields:
        What DataLoader would: ``[images, labels]`` with images (n, 3, h, w), RGB, in host memory
        (pinned with ``pin_memory=True`` where CUDA is there), or a dict with ``fields``. A batch is
        the caller's for as long as anything refers to its memory.

    Raises:
        UsageError: arguments that cannot work together.
        DataError: while iterating, a sample that cannot be read; it names file, record and offset.
    """

    def __init__(
        self,
        dataset: Dataset[Any] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | str | None = None,
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
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        engine: str = "auto",
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        seed: int | None = None,
        check_crc: str = "first",
        fields: Sequence[str] | str | None = None,
        tuned: str | os.PathLike[str] | None = None,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        _one_of("engine", engine, _ENGINES)
        _one_of("check_crc", check_crc, _CHECKS)
        if memory_format not in (torch.contiguous_format, torch.channels_last):
            raise UsageError(
                "memory_format must be torch.contiguous_format or torch.channels_last, "
                f"got {memory_format}"
            )
        given = {"transform": transform, "target_transform": target_transform, "fields": fields}
        opened = open_dataset(dataset, seed=seed, **given)
        self.transform = transform
        self.target_transform = target_transform
        self.fields = fields
        self.engine = engine
        self.dtype = dtype
        self.memory_format = memory_format
        self.seed = seed
        self.check_crc = check_crc
        self.tuned = tuned
        self.trace = trace
        self._timeline = None if trace is None else lasting(trace)
        self._made: tuple[object, Decoder] | None = None
        self._stamps = Stamps()
        self._next_epoch = 0
        self._base_seed: int | None = None
        source = self._resolve(opened, single=batch_size is None and batch_sampler is None)
        self._native = not isinstance(source, str)
        if tuned is not None:
            from ._tuning.result import arguments_for

            found = arguments_for(tuned, opened, stacklevel=3)
            if num_workers is None:
                num_workers = found.get("num_workers")
            if prefetch_factor is None and num_workers:
                prefetch_factor = found.get("prefetch_factor")
            pin_memory = pin_memory or found.get("pin_memory", False)
        self._governor: Governor | None = None
        if isinstance(num_workers, str):
            _one_of("num_workers", num_workers, ("auto",))
            self._governor = self._automatic(source, opened, batch_size)
            num_workers = 1 if self._governor is None else self._governor.setting.workers
        if num_workers is None:
            num_workers = _cpu.available() if self._native else 0
        if seed is not None and shuffle and sampler is None and batch_sampler is None:
            sampler, shuffle = SeededSampler(opened, seed), None
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
            _collate_for(collate_fn, single=batch_size is None and batch_sampler is None),
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            **arguments,
        )

    # --- what is chosen ---------------------------------------------------------------------------

    def _resolve(self, dataset: Any, *, single: bool) -> Source | str:
        """What an engine of ours reads, or why torch's machinery has to; datasets may change."""
        source: Source | str
        if self.engine == "workers":
            source = "engine='workers' was asked for"
        else:
            source = "batch_size=None asks for single samples" if single else resolve(dataset)
        if not isinstance(source, str):
            chosen(self.engine, source.store)  # raises where it is not there
            return dataclasses.replace(source, plan=source.plan.with_output(self.dtype))
        if self.engine in ("native", "python"):
            raise UsageError(f"engine={self.engine!r} cannot read this dataset: {source}")
        if self.dtype is not None or self.memory_format != torch.contiguous_format:
            raise UsageError(
                "dtype and memory_format are for fastload's own engines, which do not run here: "
                f"{source}; convert in the transform or in collate_fn"
            )
        return source

    @staticmethod
    def _automatic(source: Source | str, dataset: Any, batch_size: int | None) -> Governor | None:
        """What adjusts the workers; None for an IterableDataset, which workers would repeat."""
        memory_nbytes = _memory.available()
        if not isinstance(source, str):
            nbytes = source.plan.nbytes
            return for_engine(
                cpus=_cpu.available(),
                batch_nbytes=None if nbytes is None else nbytes * (batch_size or 1),
                memory_nbytes=memory_nbytes,
            )
        if isinstance(dataset, IterableDataset):
            return None
        return for_processes(cpus=_cpu.available(), memory_nbytes=memory_nbytes)

    def check_worker_number_rationality(self) -> None:
        """torch's warning about too many workers, which is not about threads."""
        if not self._native:
            super().check_worker_number_rationality()

    def explain(self) -> str:
        """Which engine runs and why, what is fused, what would be faster, in plain words."""
        source = self._resolve(self.dataset, single=self.batch_sampler is None)
        if isinstance(source, str):
            lines = [
                f"engine: workers (torch's DataLoader machinery, {self.num_workers} processes)",
                f"because: {source}",
            ]
            if self.num_workers == 0 and self.engine != "workers":
                lines.append("faster: num_workers > 0 would decode in parallel processes")
            return "\n".join(lines)
        lines = [
            f"engine: {chosen(self.engine, source.store)} ({self.num_workers or 'the calling'} "
            f"thread{'s' if self.num_workers != 1 else ''})",
            f"store: {source.store.format}, {len(source.store)} records",
            "fused: " + " -> ".join(source.plan.steps),
            f"batch: {source.plan.dtype}, "
            + ("channels_last" if self.memory_format == torch.channels_last else "contiguous NCHW"),
        ]
        if source.store.format == "folder":
            lines.append("faster: `fastload pack` saves opening a file for every image")
        if source.store.indirect is not None:
            lines.append(f"slower: {source.store.indirect}")
        return "\n".join(lines)

    # --- iterating --------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; samplers and datasets with an epoch are told too.

        Without it every iteration is the next epoch.
        """
        self._next_epoch = epoch
        for part in (self.batch_sampler, self._epoch_sampler(), *nested(self.dataset)):
            tell = getattr(part, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def _epoch_sampler(self) -> Any:
        return getattr(self.batch_sampler, "sampler", self.sampler)

    def _begin_epoch(self) -> int:
        """The epoch that begins now; whoever set it last, on the loader or its sampler, decides."""
        sampler = self._epoch_sampler()
        if isinstance(sampler, SeededSampler):
            epoch = sampler.begin(self._next_epoch)
        else:
            epoch = self._next_epoch
        if self.seed is not None and isinstance(self.dataset, PackedDataset):
            self.dataset.set_epoch(epoch)
        self._next_epoch = epoch + 1
        return epoch

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        epoch = self._begin_epoch()
        figures, self._stamps = self._stamps.snapshot(), Stamps(self._observer())
        source = self._resolve(self.dataset, single=self.batch_sampler is None)
        self._native = not isinstance(source, str)
        if isinstance(source, str):
            self._adjust_processes(figures)
            return Observed(super().__iter__(), self._stamps)
        if self._governor is not None:
            self.num_workers = self._governor.setting.workers
        # As in DataLoader: first the sampler's iterator, then the base seed, then its first draw.
        order = _sampler.index_batches(self.batch_sampler)
        seed, epoch = self._augmentation(source, epoch)
        return BatchIterator(
            source=source,
            decoder=self._decoder(source),
            order=order,
            sized=self.batch_sampler,  # type: ignore[arg-type]
            assemble=functools.partial(_assemble, source, self.collate_fn, self._pinned()),
            prefetch=self._batches_ahead() if self.num_workers else 0,
            timeout_s=self.timeout,
            seed=seed,
            epoch=epoch,
            stamps=self._stamps,
            governor=self._governor,
        )

    def _batches_ahead(self) -> int:
        """Batches that an engine of ours keeps ahead of the consumer."""
        if self._governor is not None:
            return self._governor.setting.prefetch
        return self.prefetch_factor or _PREFETCH

    def _adjust_processes(self, last: Snapshot) -> None:
        """Begin an epoch with as many processes as the last one suggests."""
        if self._governor is None:
            return
        workers = after_epoch(self._governor, last).workers
        if workers != self.num_workers:
            self.num_workers = workers
            if self._iterator is not None:  # persistent workers, of the number there was
                self._iterator._shutdown_workers()  # type: ignore[attr-defined]
                self._iterator = None

    def _observer(self) -> Timeline | None:
        """Where this epoch is written down; an enclosing ``fastload.trace`` comes first."""
        if self._timeline is not None:
            self._timeline.update()
        return active() or self._timeline

    def _augmentation(self, source: Source, epoch: int) -> tuple[int, int]:
        """Seed and epoch that augmentation is drawn for."""
        # Workers that persist keep their first base seed: DataLoader draws no other then.
        persistent = self.persistent_workers and self.num_workers > 0
        if self._base_seed is None or not persistent:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            self._base_seed = int(drawn.item())
        if self.seed is not None:
            return self.seed, epoch
        return source.draw or (self._base_seed, epoch if persistent else 0)

    def _pinned(self) -> bool:
        if self.pin_memory and not torch.cuda.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=3,
            )
        return self.pin_memory and torch.cuda.is_available()

    def _decoder(self, source: Source) -> Decoder:
        """The decoder of this process for ``source``; kept from epoch to epoch."""
        # Not one that was made before a fork: its threads are the parent's.
        key = (os.getpid(), source.parts)
        if self._made is not None:
            made_for, decoder = self._made
            if made_for == key and decoder.plan.same_as(source.plan):
                decoder.threads = self.num_workers
                return decoder
        pinned = self.pin_memory and torch.cuda.is_available()
        ahead = self._batches_ahead() if self._governor is None else self._governor.most.prefetch
        decoder = make_decoder(
            self.engine,
            source.store,
            source.plan,
            threads=self.num_workers,
            # what is ahead, and the one the consumer works on
            ring=None if pinned else SlabRing(ahead + 1, _PATIENCE_S if self.num_workers else 0),
            channels_last=self.memory_format == torch.channels_last,
            check_crc=self.check_crc,
        )
        self._made = key, decoder
        return decoder

    # --- figures ----------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Figures of the epoch that runs, or of the last one.

        Returns:
            ``images``, ``batches``, ``images_per_s``, ``elapsed_s``, ``wait_s`` (time the consumer
            waited for batches), ``wait_share`` (of the elapsed time, 0 to 1), ``stages_s`` (seconds
            of work per stage, added up over threads), ``engine``, and ``decisions`` (what
            ``num_workers="auto"`` tried and why, in words).
        """
        figures = self._stamps.snapshot()
        elapsed = figures.elapsed_s
        return {
            "engine": self._engine_name(),
            "images": figures.images,
            "batches": figures.batches,
            "images_per_s": figures.images / elapsed if elapsed else 0.0,
            "elapsed_s": elapsed,
            "wait_s": figures.wait_s,
            "wait_share": figures.wait_s / elapsed if elapsed else 0.0,
            "stages_s": dict(figures.stages_s),
            "decisions": [] if self._governor is None else list(self._governor.decisions),
        }

    def _engine_name(self) -> str:
        if not self._native:
            return "workers"
        return chosen(self.engine) if self._made is None else self._made[1].name

    def __getstate__(self) -> dict[str, Any]:
        # The decoder holds files and threads; the other process makes its own.
        return {**self.__dict__, "_made": None, "_base_seed": None, "_iterator": None}


def _assemble(
    source: Source,
    collate_fn: Callable[[list[Any]], Any],
    pinned: bool,
    images: torch.Tensor,
    records: np.ndarray,
) -> Any:
    """The batch as the caller gets it."""
    annotations = annotations_of(
        source.store, records, source.labels, source.target_transform, source.fields
    )
    if collate_fn is collate:
        batch = batch_of(images, annotations)
    else:
        batch = collate_fn(samples_of(images, annotations))
    return pin_memory(batch) if pinned else batch  # type: ignore[no-untyped-call]


def _collate_for(
    collate_fn: Callable[[list[Any]], Any] | None, *, single: bool
) -> Callable[[list[Any]], Any] | None:
    """Ours where none was given: a rebuilt loader passes torch's default by name."""
    return collate if collate_fn in (None, default_collate) and not single else collate_fn


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
