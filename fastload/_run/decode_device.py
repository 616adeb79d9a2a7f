"""Where images are decoded (``decode_device``), and with which engine.

A GPU's decoder rounds differently, and it is not always faster: the CPU may be, with many cores,
small images or DCT records. So "auto" decodes some of the user's data both ways before the first
batch of a loader, and uses the GPU if it is clearly faster. The GPU is idle while this is measured.
In the loop, decoding there slows the training step down, and decoding on the CPU does not. So the
GPU is not even measured if the CPU is faster than any step. The choice holds for the life of the
loader; it is saved in ``state_dict`` and in the file of ``tuned``, if there is one. So pixels never
change in the middle of an epoch.
"""

from __future__ import annotations

import collections
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .._base import callers
from .._base.slabs import SlabRing
from .._engine import registry
from .._engine.base import BatchEngine, Images, Ticket
from .._engine.image_engine import EngineOptions
from .._engine.registry import EngineKind
from .._sources.source import Source
from .._transforms.plan import Plan
from ..errors import DataError, FastloadError, UsageError
from .config import LoaderConfig

if TYPE_CHECKING:
    from .._base.devices.mover import Mover

HW_DECODER_LOADS = (0.65, 0.85, 1.0)
"""Shares of the images for the GPU's JPEG hardware that "auto" tries: DALI's default, what NVIDIA
found best on an A100, and all of them."""

# The GPU must be faster by this factor, because the CPU's pixels are exact.
_MARGIN = 1.1

# 20,000 images of 224 x 224 a second, in bytes of their levels: no training step takes so many (a
# ResNet-50 on an H100 takes about 3,000). From published figures; not measured here.
_ANY_STEP_NBYTES_PER_S = 20_000 * 224 * 224 * 3

# A rate is measured over so many batches, after so many for warm-up, or for so many seconds.
_BATCHES, _WARM_UP, _SECONDS = 16, 3, 2.0

# Batch size to measure with if the loader's is not known, as with a user's batch sampler.
_BATCH = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What "auto" chose, and its measurements.

    Attributes:
        device: "cpu" or "gpu".
        cpu_images_per_s, gpu_images_per_s: rates of decoding and moving to the device.
        hw_decoder_load: the fastest share of the images for the GPU's JPEG hardware.
        enough: the CPU is faster than any training step, so the GPU was not measured (rate 0).
    """

    device: str
    cpu_images_per_s: float
    gpu_images_per_s: float
    hw_decoder_load: float
    enough: bool = False

    def __str__(self) -> str:
        if self.enough:
            return (
                f"{self.cpu_images_per_s:,.0f} images/s decoded on the CPU, more than any training "
                "step takes, so the GPU was not measured"
            )
        return (
            f"{self.cpu_images_per_s:,.0f} images/s decoded on the CPU, "
            f"{self.gpu_images_per_s:,.0f} on the GPU"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """The engine and device that a loader decodes with.

    Attributes:
        engine: which one.
        device: a CUDA device or the CPU.
        why: the reason in words, for ``explain()``; "" if only the CPU was asked for.
        hw_decoder_load: as in Choice; None: the engine's default.
    """

    engine: EngineKind
    device: torch.device
    why: str = ""
    hw_decoder_load: float | None = None


def check(config: LoaderConfig) -> None:
    """Check the arguments that decide where images are decoded.

    Raises:
        UsageError: two of them contradict each other, or there is no such device.
        MissingDependencyError: engine="dali", and DALI is not installed.
    """
    where, engine = config.decode_device, config.engine
    named = registry.is_engine(engine) or registry.is_torch(engine)
    if where != "cpu" and named and not registry.on_device(engine):
        raise UsageError(
            f"decode_device={where!r} lets fastload choose the engine, but engine={engine!r} "
            "decodes on the CPU: leave one of them out"
        )
    if (registry.on_device(engine) or where == "gpu") and config.cache is not None:
        raise UsageError(
            f"cache={config.cache!r} needs images that fastload decodes on the CPU: leave it out, "
            f"or leave out engine={engine!r} and decode_device={where!r}"
        )
    if where == "gpu" and not torch.cuda.is_available():
        raise UsageError(
            "decode_device='gpu': expected a CUDA device, found none; decode_device='auto' uses "
            "one if it is there"
        )
    if where == "gpu" and config.cuda is None:
        raise UsageError(
            "decode_device='gpu' gives batches on a GPU: expected device='cuda', got "
            f"device={config.device!r}"
        )
    if registry.on_device(engine):
        missing = registry.KINDS[engine].missing()
        if missing is not None:
            raise missing


def decoding(config: LoaderConfig, choice: Choice | None, source: Source) -> Decoding:
    """The engine and device for ``source``, as far as known before the loader iterates.

    Args:
        choice: what "auto" chose, or None so far.
    """
    cuda, where = config.cuda, config.decode_device
    asked = registry.on_device(config.engine)
    engine = registry.chosen(config.engine, source.store)
    on_cpu = Decoding(engine=engine, device=torch.device("cpu"))
    if not asked and where == "cpu":
        return on_cpu
    reason = ""
    if not asked and where == "auto":
        reason = _why_not_measured(config)
    reason = reason or _refusal(source)
    if reason:
        return dataclasses.replace(on_cpu, why=f"on the CPU, because {reason}")
    on_device = registry.device_engine()
    load, why = None, f"by {on_device.describe()} on {cuda or 'its CPU back end'}"
    if not asked and where == "auto":
        if choice is None:
            return dataclasses.replace(on_cpu, why="measured before the first batch, CPU and GPU")
        if choice.device == "cpu":
            return dataclasses.replace(on_cpu, why=f"on the CPU; measured: {choice}")
        load, why = choice.hw_decoder_load, f"{why}; measured: {choice}"
    return Decoding(engine=on_device, device=cuda or on_cpu.device, why=why, hw_decoder_load=load)


def settle(config: LoaderConfig, choice: Choice | None, source: Source) -> Choice | None:
    """The choice of "auto" for a loader that is about to iterate; ``choice`` if made before."""
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

    def make(decoding: Decoding) -> BatchEngine:
        options = EngineOptions(
            threads=config.num_workers,
            ring=SlabRing(3),
            channels_last=True,
            check_crc="never",  # the loop checks
            device=decoding.device,
            hw_decoder_load=decoding.hw_decoder_load,
        )
        return registry.make_engine(decoding.engine.name, source.store, levels, options)

    choice = measure(make, source, config.batch_size or _BATCH, device, levels.nbytes)
    if config.tuned is not None:
        keep_decoding(config.tuned, config.dataset, state_of(choice))
    return choice


def measure(
    make: Callable[[Decoding], BatchEngine],
    source: Source,
    batch_size: int,
    device: torch.device,
    nbytes: int | None = None,
) -> Choice:
    """Measure how fast the CPU and ``device`` decode some of the user's data.

    Args:
        make: makes a decoder of ``source``.
        batch_size: images to decode at a time.
        device: where batches must arrive.
        nbytes: of the levels of an image; None: not known.
    """
    cpu = Decoding(engine=registry.chosen("auto", source.store), device=torch.device("cpu"))
    on_cpu = rate(make(cpu), _some(source, batch_size), device)
    if nbytes is not None and on_cpu * nbytes >= _ANY_STEP_NBYTES_PER_S:
        return Choice(
            device="cpu",
            cpu_images_per_s=on_cpu,
            gpu_images_per_s=0.0,
            hw_decoder_load=HW_DECODER_LOADS[0],
            enough=True,
        )
    best, best_load = 0.0, HW_DECODER_LOADS[0]
    for load in HW_DECODER_LOADS:
        gpu = Decoding(engine=registry.device_engine(), device=device, hw_decoder_load=load)
        try:
            found = rate(make(gpu), _some(source, batch_size), device)
        except (RuntimeError, FastloadError) as error:
            reason = " ".join(str(error).split())[:300]
            warnings.warn(
                f"decode_device='auto': DALI does not decode on {device}, so the CPU "
                f"does: {reason}",
                stacklevel=callers.stacklevel(),
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


def rate(engine: BatchEngine, batches: Sequence[np.ndarray], device: torch.device) -> float:
    """Images per second that are decoded and moved to ``device``; ``batches`` has record numbers.

    The first batches, in which slabs are pinned, are not counted; two batches are in flight at a
    time. Samples that cannot be read are counted too, as the loop reports them later.
    """
    from .._base.devices import accelerator
    from .._base.devices.mover import Mover

    tickets: collections.deque[Ticket] = collections.deque()
    target = accelerator.make(device)
    mover = None if target is None else Mover(target, 1)
    begin, count, taken = 0.0, 0, 0
    user = object()
    engine.acquire(user)
    try:
        for ticket in _tickets(engine, batches):
            tickets.append(ticket)
            if len(tickets) < 2:
                continue
            images, _ = tickets.popleft().settle()
            if mover is not None:
                mover.rings = engine.rings
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
        engine.release(user)
    return count / elapsed if count else 0.0


def _moved(mover: Mover, images: Images) -> None:
    """Move a batch to the device as the loop does, out of pinned slabs, and wait for it."""
    target, held = mover.accelerator, list[object]()
    target.follow()
    with target.side():
        moved = mover.move(images, held)
    target.mark().wait()
    del moved, held  # only after the copies are done


def _tickets(decoder: BatchEngine, batches: Sequence[np.ndarray]) -> Iterator[Ticket]:
    for records in batches:
        known = records[decoder.store.sizes(records).min(axis=1, initial=1) > 0]
        try:
            ticket = decoder.submit(known, seed=0, epoch=0)
        except DataError:
            continue  # for example an image too small for the crop: raised again in the loop
        yield ticket


def _some(source: Source, batch_size: int) -> list[np.ndarray]:
    """Record numbers of a few batches, from all over the dataset."""
    count = (_BATCHES + _WARM_UP + 1) * batch_size
    indices = np.linspace(0, len(source) - 1, count).astype(np.int64)
    # Each batch has samples from everywhere: the dataset may be sorted by class or by size.
    batches = indices.reshape(batch_size, -1).T
    return [source.lookup(np.ascontiguousarray(batch)) for batch in batches]


def state_of(choice: Choice) -> dict[str, Any]:
    """``choice`` in the form that ``state_dict`` and a tuning file have."""
    return dataclasses.asdict(choice)


def choice_of(state: Mapping[str, Any] | None) -> Choice | None:
    """The inverse of ``state_of``. Raises UsageError for anything else."""
    if state is None:
        return None
    try:
        choice = Choice(**state)
        if choice.device not in ("cpu", "gpu"):
            raise ValueError(f"device {choice.device!r}")
        rates = choice.cpu_images_per_s, choice.gpu_images_per_s, choice.hw_decoder_load
        if not all(isinstance(rate, (int, float)) and rate >= 0 for rate in rates):
            raise ValueError(f"rates {rates}")
    except (TypeError, ValueError) as error:
        raise UsageError(
            "decode_device: expected the choice that a FastLoader saved, got something else "
            f"({error}): measure again"
        ) from error
    return choice


def resumed(config: LoaderConfig, state: Mapping[str, Any] | None) -> Choice | None:
    """The choice in a ``state_dict``; warns if this machine cannot follow it."""
    choice = None if config.decode_device != "auto" else choice_of(state)
    if choice is not None and choice.device == "gpu" and config.cuda is None:
        warnings.warn(
            "the state is from a run that decoded images on a GPU, and here the CPU decodes them: "
            "crops are the same, pixels differ slightly",
            stacklevel=callers.stacklevel(),
        )
    return choice


def _why_not_measured(config: LoaderConfig) -> str:
    if not torch.cuda.is_available():
        return "decode_device='auto' found no CUDA device"
    if config.cuda is None:
        return f"batches stay in host memory (device={config.device!r})"
    if config.cache is not None:
        return f"cache={config.cache!r} needs images that are decoded there"
    return ""


def _refusal(source: Source) -> str:
    """Why DALI cannot decode ``source``, in words; "" if it can."""
    return registry.device_engine().refusal(source.store, source.plan) or ""
