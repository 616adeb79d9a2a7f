"""Where images are decoded: ``decode_device``, and the engine that it comes to.

A GPU's decoder rounds differently, and it is not always the faster one: a machine with many cores,
small images or DCT records may decode more on the CPU. "auto" therefore decodes some of the user's
own data both ways before the first batch of a loader, and takes the GPU where that is clearly
faster. What it found holds for the life of the loader, travels in ``state_dict`` and, where
``tuned`` names a file, is kept there: pixels never change in the middle of an epoch.
"""

from __future__ import annotations

import collections
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from .._base import callers
from .._base.slabs import SlabRing
from .._engine import chosen, make_decoder
from .._engine.decoder import Decoder, Ticket
from .._sources.source import Source
from .._transforms.plan import Plan
from ..errors import DataError, FastloadError, UsageError
from ..hints import DecodeDevice
from .config import LoaderConfig

if TYPE_CHECKING:
    from .._base.devices.mover import Mover

HW_DECODER_LOADS = (0.65, 0.85, 1.0)
"""Shares of the images for the GPU's JPEG engine that "auto" tries: DALI's default, what NVIDIA
found best on an A100, and all."""

# The GPU has to win by so much: on the CPU levels are exact.
_MARGIN = 1.1

# Batches that a rate is taken over, behind the first ones, and the seconds that end it earlier.
_BATCHES, _WARM_UP, _SECONDS = 16, 3, 2.0

# Images of a batch where the loader's size is not known: a sampler of the user's makes the batches.
_BATCH = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What "auto" found.

    Attributes:
        device: "cpu" or "gpu".
        cpu_images_per_s, gpu_images_per_s: decoded, and on the device.
        hw_decoder_load: share of the images for the GPU's JPEG engine that was the fastest.
    """

    device: str
    cpu_images_per_s: float
    gpu_images_per_s: float
    hw_decoder_load: float

    def __str__(self) -> str:
        return (
            f"{self.cpu_images_per_s:,.0f} images/s decoded on the CPU, "
            f"{self.gpu_images_per_s:,.0f} on the GPU"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """What a loader decodes with.

    Attributes:
        engine: "native", "python" or "dali".
        device: where: a CUDA device or the CPU.
        why: in words, for ``explain()``; "" where nothing else was asked for.
        hw_decoder_load: of Choice, or None for the engine's default.
    """

    engine: str
    device: torch.device
    why: str = ""
    hw_decoder_load: float | None = None


def check(config: LoaderConfig) -> None:
    """Refuse arguments that cannot be.

    Raises:
        UsageError: two of them contradict each other, or a device is not there.
        MissingDependencyError: engine="dali" without it.
    """
    where, engine = config.decode_device, config.engine
    if where not in get_args(DecodeDevice):
        names = ", ".join(map(repr, get_args(DecodeDevice)))
        raise UsageError(f"decode_device: expected one of {names}, got {where!r}")
    if where != "cpu" and engine not in ("auto", "dali"):
        raise UsageError(
            f"decode_device={where!r} leaves the engine to fastload, and engine={engine!r} decodes "
            "on the CPU: leave one of them out"
        )
    if (engine == "dali" or where == "gpu") and config.cache is not None:
        raise UsageError(
            f"cache={config.cache!r} is for images that are decoded on the CPU by fastload: leave "
            f"it out, or engine={engine!r} and decode_device={where!r}"
        )
    if where == "gpu" and not torch.cuda.is_available():
        raise UsageError(
            "decode_device='gpu': expected a CUDA device, found none; use decode_device='auto', "
            "which takes one where there is one"
        )
    if where == "gpu" and config.cuda is None:
        raise UsageError(
            "decode_device='gpu' gives batches that are on a GPU: expected device='cuda' beside "
            f"it, got device={config.device!r}"
        )
    if engine == "dali":
        from .._engine.nvidia import dali_graph

        if dali_graph.absent():
            raise dali_graph.missing()


def decoding(config: LoaderConfig, choice: Choice | None, source: Source) -> Decoding:
    """What ``source`` is decoded with, as far as it is known before the loader iterates.

    Args:
        choice: what "auto" found, or None so far.
    """
    cuda, where = config.cuda, config.decode_device
    asked = config.engine == "dali"
    engine = chosen("auto" if asked else config.engine, source.store)
    on_cpu = Decoding(engine=engine, device=torch.device("cpu"))
    if not asked and where == "cpu":
        return on_cpu
    reason = ""
    if not asked and where == "auto":
        reason = _why_not_measured(config)
    reason = reason or _refusal(source)
    if reason:
        return dataclasses.replace(on_cpu, why=f"on the CPU, as {reason}")
    from .._engine.nvidia import dali_graph

    load, why = None, f"by DALI {dali_graph.version()} on {cuda or 'its CPU back end'}"
    if not asked and where == "auto":
        if choice is None:
            return dataclasses.replace(on_cpu, why="measured before the first batch, CPU and GPU")
        if choice.device == "cpu":
            return dataclasses.replace(on_cpu, why=f"on the CPU; measured: {choice}")
        load, why = choice.hw_decoder_load, f"{why}; measured: {choice}"
    return Decoding(engine="dali", device=cuda or on_cpu.device, why=why, hw_decoder_load=load)


def settle(config: LoaderConfig, choice: Choice | None, source: Source) -> Choice | None:
    """What "auto" chooses for a loader that is about to iterate; ``choice`` where it has chosen."""
    device = config.cuda
    if config.decode_device != "auto" or config.engine != "auto" or choice is not None:
        return choice
    if device is None or _why_not_measured(config) or _refusal(source):
        return None
    from .tuned_file import decoding_in, keep_decoding

    if config.tuned is not None:
        choice = choice_of(decoding_in(config.tuned, config.dataset))
        if choice is not None:
            return choice
    assert isinstance(source.plan, Plan)  # views are not for DALI
    levels = source.plan.levels()

    def make(decoding: Decoding) -> Decoder:
        return make_decoder(
            decoding.engine,
            source.store,
            levels,
            threads=config.num_workers,
            ring=SlabRing(3),
            channels_last=True,
            check_crc="never",  # the loop does it
            device=decoding.device,
            hw_decoder_load=decoding.hw_decoder_load,
        )

    choice = measure(make, source, config.batch_size or _BATCH, device)
    if config.tuned is not None:
        keep_decoding(config.tuned, config.dataset, dataclasses.asdict(choice))
    return choice


def measure(
    make: Callable[[Decoding], Decoder],
    source: Source,
    batch_size: int,
    device: torch.device,
) -> Choice:
    """Decode some of the user's data on the CPU and on ``device``.

    Args:
        make: gives a decoder of ``source``.
        batch_size: images that are decoded at a time.
        device: where batches have to be in the end.
    """
    cpu = Decoding(engine=chosen("auto", source.store), device=torch.device("cpu"))
    on_cpu = rate(make(cpu), _some(source, batch_size), device)
    best, best_load = 0.0, HW_DECODER_LOADS[0]
    for load in HW_DECODER_LOADS:
        gpu = Decoding(engine="dali", device=device, hw_decoder_load=load)
        try:
            found = rate(make(gpu), _some(source, batch_size), device)
        except (RuntimeError, FastloadError) as error:
            reason = " ".join(str(error).split())[:300]
            warnings.warn(
                f"decode_device='auto': DALI does not decode on {device}, so the CPU "
                f"does: {reason}",
                stacklevel=2,
            )
            break
        if found > best:
            best, best_load = found, load
    return Choice(
        device="gpu" if best > on_cpu * _MARGIN else "cpu",
        cpu_images_per_s=on_cpu,
        gpu_images_per_s=best,
        hw_decoder_load=best_load,
    )


def rate(decoder: Decoder, batches: Sequence[np.ndarray], device: torch.device) -> float:
    """Images a second of ``batches`` (record numbers) decoded and on ``device``.

    The first ones are not counted (that is when slabs are pinned); two are in work at a time.
    Samples that cannot be read count as any other: the loop that follows says what they are.
    """
    from .._base.devices import accelerator
    from .._base.devices.mover import Mover

    tickets: collections.deque[Ticket] = collections.deque()
    target = accelerator.make(device)
    mover = None if target is None else Mover(target, 1)
    begin, count, taken = 0.0, 0, 0
    user = object()
    decoder.acquire(user)
    try:
        for ticket in _tickets(decoder, batches):
            tickets.append(ticket)
            if len(tickets) < 2:
                continue
            images, _ = tickets.popleft().settle()
            if mover is not None:
                mover.rings = decoder.rings
                _moved(mover, images)
            taken += 1
            if taken == _WARM_UP:
                begin = time.perf_counter()
            elif taken > _WARM_UP:
                count += len(images[0] if isinstance(images, list) else images)
                if time.perf_counter() - begin > _SECONDS:
                    break
        elapsed = time.perf_counter() - begin
    finally:
        for ticket in tickets:
            ticket.cancel()
        decoder.release(user)
    return count / elapsed if count else 0.0


def _moved(mover: Mover, images: Any) -> None:
    """Bring a batch to the device as the loop does, out of pinned slabs, and wait for it."""
    target, held = mover.accelerator, list[Any]()
    target.follow()
    with target.side():
        moved = mover.move(images, held)
    target.mark().wait()
    del moved, held  # not before


def _tickets(decoder: Decoder, batches: Sequence[np.ndarray]) -> Iterator[Ticket]:
    for records in batches:
        known = records[decoder.store.sizes(records).min(axis=1, initial=1) > 0]
        try:
            ticket = decoder.submit(known, seed=0, epoch=0)
        except DataError:
            continue  # such as an image too small for the crop: raised at its batch in the loop
        yield ticket


def _some(source: Source, batch_size: int) -> list[np.ndarray]:
    """Records of a few batches, from all over the dataset."""
    count = (_BATCHES + _WARM_UP + 1) * batch_size
    indices = np.linspace(0, len(source) - 1, count).astype(np.int64)
    # each batch of all parts of the dataset, which may lie sorted by class or by size
    batches = indices.reshape(batch_size, -1).T
    return [source.lookup(np.ascontiguousarray(batch)) for batch in batches]


def state_of(choice: Choice | None) -> dict[str, Any] | None:
    """``choice`` as ``state_dict`` and a tuning file hold it."""
    return None if choice is None else dataclasses.asdict(choice)


def choice_of(state: Mapping[str, Any] | None) -> Choice | None:
    """What ``state_of`` was given. Raises UsageError where it is something else."""
    if state is None:
        return None
    try:
        choice = Choice(**state)
        if choice.device not in ("cpu", "gpu"):
            raise ValueError(f"device {choice.device!r}")
    except (TypeError, ValueError) as error:
        raise UsageError(
            "expected what FastLoader wrote down about decoding, got something else "
            f"({error}): measure again"
        ) from error
    return choice


def resumed(config: LoaderConfig, state: Mapping[str, Any] | None) -> Choice | None:
    """The choice of a ``state_dict``; warns where this machine cannot follow it."""
    choice = None if config.decode_device != "auto" else choice_of(state)
    if choice is not None and choice.device == "gpu" and config.cuda is None:
        warnings.warn(
            "the state was taken where images were decoded on a GPU, and here they are decoded on "
            "the CPU: the crops are the same, levels differ a little",
            stacklevel=callers.stacklevel(),
        )
    return choice


def _why_not_measured(config: LoaderConfig) -> str:
    if not torch.cuda.is_available():
        return "decode_device='auto' finds no CUDA device"
    if config.cuda is None:
        return f"batches are wanted in host memory (device={config.device!r})"
    if config.cache is not None:
        return f"cache={config.cache!r} is for images that are decoded there"
    return ""


def _refusal(source: Source) -> str:
    """Why DALI does not decode ``source``, in words; "" where it does."""
    if source.tensors:
        return "rows of tensors are not decoded"
    from .._engine.nvidia import dali, dali_graph

    return dali_graph.absent() or dali.refusal(source.plan, source.store) or ""
