"""The rules: what in an observation is worth changing, and the predicted gain.

Each rule examines an observation and returns a finding or None. A gain is predicted for the whole
loop from measured times, by removing the part at fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..._run.workers.copy_on_write import REMEDY
from .observation import LoaderSeen, Observation

PART = 0.1
"""Share of the loop's time; less waiting than this is not reported."""

# Decoded pixels / used pixels: with fewer, RandomResizedCrop enlarges its smallest crops (8 %).
_LARGE = 16.0
_SMALL_FILE = 64 << 10
_MANY_FILES = 1000
_SMALL_REQUEST = 64 << 10  # bytes
_GROWTH = 512 << 10  # bytes per batch
_SLOW = 0.3  # share of the dataset's time in one function
_LOOKS = 30  # the profiler's samples needed to report a share


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to change.

    Attributes:
        name: short fixed identifier.
        what: what was observed, with figures.
        change: what to do.
        where: ``file:line`` of the script's code; "" if it has no place.
        gain: predicted speed-up of the loop; 1.0 if unknown, or if the finding is not about speed.
        verified: False if only a GPU could show that it matters, and there is none.
    """

    name: str
    what: str
    change: str
    where: str = ""
    gain: float = 1.0
    verified: bool = True


def findings(seen: Observation) -> list[Finding]:
    """What to change, the largest gain first; unverified findings come last."""
    kept = [finding for rule in _RULES if (finding := rule(seen)) is not None]
    return sorted(kept, key=lambda finding: (not finding.verified, -finding.gain))


def _without(loader: LoaderSeen, wait_s: float) -> float:
    """Speed-up of the loop if it waited ``wait_s`` for each batch."""
    after = max(wait_s, 0.0) + loader.step_s
    return (loader.wait_s + loader.step_s) / after if after else 1.0


def _waits(seen: Observation) -> bool:
    """Whether the dataset's code waits (for a disk, a network) more than it computes."""
    return seen.fetch_s > 0 and seen.fetch_cpu_s < 0.5 * seen.fetch_s


def _hidden(seen: Observation) -> list[str]:
    """Settings that the script makes only with CUDA, which a run without CUDA cannot observe."""
    return [] if seen.cuda else seen.cuda_only


def _native(loader: LoaderSeen) -> bool:
    """Whether FastLoader would decode the loader's images in C++."""
    return loader.fast is not None and (loader.fast.native or loader.fast.defers)


def _import(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or loader.waiting < PART or loader.fast is None or not _native(loader):
        return None
    fast = loader.fast
    # Two standard errors slower, so that the prediction does not rest on luck.
    batch_s = fast.batch_s * (1 + 2 * fast.error)
    gain = _without(loader, batch_s - (loader.step_s if fast.ahead else 0.0))
    if gain < 1 + PART / 2:
        return None
    rate = loader.images / len(loader.steps_s) / fast.batch_s
    return Finding(
        name="import-fastload",
        what=f"the loop waits {loader.waiting:.0%} of its time; FastLoader "
        + ("reads" if fast.native else "decodes the images of")
        + f" this {loader.dataset} natively, {rate:,.0f} images/s (± {fast.error:.0%}) without a "
        "training step",
        change="change the import: from fastload import FastLoader as DataLoader",
        where=loader.made,
        gain=gain,
    )


def _materialised(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or loader.waiting < PART or loader.fast is None:
        return None
    fast = loader.fast
    for one in fast.materialised:
        if one.share < PART:
            return None
        return Finding(
            name="pixels-in-python",
            what=f"with FastLoader, {one.function} asks for the pixels of {one.images:.0%} of the "
            f"images before their batch is made, which takes {one.share:.0%} of the time",
            change="end the transform in ToTensor or ToImage and compute after it "
            '(docs/your-dataset.md); or keep what is decoded: FastLoader(cache="decoded")',
            where=one.where,
            gain=_without(loader, fast.batch_s * (1 - one.share) - loader.step_s * fast.ahead),
        )
    return None


def _workers_0(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or loader.num_workers or loader.waiting < PART:
        return None
    # Workers load in parallel, and while the step runs.
    workers = max(1, seen.cpus if not _waits(seen) else 4 * seen.cpus)
    return Finding(
        name="workers-0",
        what=f"num_workers=0: the loop waits {loader.waiting:.0%} of its time while its process "
        "makes the samples",
        change=f"num_workers={workers}" + ", or FastLoader" * _native(loader),
        where=loader.made,
        gain=_without(loader, max(0.0, loader.wait_s / workers - loader.step_s)),
    )


def _too_many_workers(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or loader.num_workers <= 2 * seen.cpus or _waits(seen):
        return None
    start = max(loader.starts_s, default=0.0)
    return Finding(
        name="workers-too-many",
        what=f"num_workers={loader.num_workers} on {seen.cpus} CPUs, {seen.running:.1f} threads "
        f"running at a time; the first batch took {start:.1f} s",
        change=f"num_workers={seen.cpus}: more only compete for CPUs and memory",
        where=loader.made,
        gain=1.05,
    )


def _not_persistent(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or loader.persistent_workers or not loader.num_workers:
        return None
    again = loader.starts_s[1:]
    if not again:
        return None
    start = sum(again) / len(again) - loader.wait_s
    epoch = (sum(loader.steps_s) + sum(loader.waits_s) + sum(loader.starts_s)) / len(
        loader.starts_s
    )
    if start < PART * epoch:
        return None
    return Finding(
        name="workers-not-persistent",
        what=f"each epoch of {epoch:.2f} s begins with {start:.2f} s of starting workers",
        change="persistent_workers=True",
        where=loader.made,
        gain=epoch / (epoch - start),
    )


def _pageable(seen: Observation) -> Finding | None:
    loader = seen.training
    if (
        loader is None
        or loader.pin_memory
        or "pin_memory" in _hidden(seen)
        or not loader.num_workers
        or loader.batch_nbytes < 1 << 20
    ):
        return None
    return Finding(
        name="pin-memory-off",
        what=f"batches of {loader.batch_nbytes / 2**20:.0f} MiB are in pageable memory, from which "
        "a copy to the GPU is slower and blocks",
        change="pin_memory=True, and x.to(device, non_blocking=True)",
        where=loader.made,
        verified=seen.cuda,
    )


def _float32(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or loader.image_dtype != "float32" or loader.image_shape[1] not in (1, 3):
        return None  # with other numbers of channels, it may not be an image
    return Finding(
        name="float32-over-the-bus",
        what=f"images of {loader.image_shape} cross the bus as float32, four times the bytes of "
        "uint8",
        change="end the transform with PILToTensor(), and scale and normalise on the device",
        where=loader.made,
        verified=seen.cuda,
    )


def _items(seen: Observation) -> Finding | None:
    loader = seen.training
    items = 0 if loader is None else sum(loader.items.values())
    if loader is None or not items or items < 0.9 * len(loader.steps_s):
        return None
    return Finding(
        name="item-every-step",
        what=f"{items / len(loader.steps_s):.1f} calls of item(), cpu() or similar per step: each "
        "waits until the GPU has caught up",
        change="sum on the device, and read the sum only now and then",
        where=max(loader.items, key=lambda place: loader.items[place]),
        verified=seen.cuda,
    )


def _large_photos(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or not seen.loads or len(loader.image_shape) != 4:
        return None
    decoded = seen.load_pixels / seen.loads
    height, width = loader.image_shape[2:]
    used = width * height
    if decoded < _LARGE * used or seen.load_s < 0.3 * seen.fetch_s or loader.waiting < PART:
        return None
    return Finding(
        name="large-photos",
        what=f"photos of {decoded / 1e6:.1f} megapixels are decoded for images of "
        f"{width} x {height}, which is {seen.load_s / seen.fetch_s:.0%} of the "
        "dataset's time",
        change="fastload pack --resize once"
        + ", or FastLoader, which decodes only what the crop needs" * _native(loader),
        where=loader.made,
        gain=_without(loader, loader.wait_s * (1 - 0.8 * seen.load_s / seen.fetch_s)),
    )


def _pillow(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or not seen.loads or loader.waiting < PART:
        return None
    share, pack = (seen.load_s + seen.resize_s) / seen.fetch_s, "fastload pack"
    if share < 0.3 or _large_photos(seen) is not None or _resized_again(seen) is not None:
        return None
    return Finding(
        name="pillow-decode",
        what=f"Pillow's decoding is {share:.0%} of the dataset's time, and the loop waits "
        f"{loader.waiting:.0%} of its time",
        change=f"FastLoader decodes in native threads; {pack} makes it faster still"
        if _native(loader)
        else f"{pack} makes a store of it, which FastLoader decodes in native threads",
        where=loader.made,
        gain=_without(loader, loader.wait_s * (1 - 0.6 * share)),
    )


def _resized_again(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or seen.resizes < 0.9 * max(1, seen.loads) or loader.waiting < PART:
        return None
    share = (seen.load_s + seen.resize_s) / seen.fetch_s if seen.fetch_s else 0.0
    if not seen.loads or share < 0.3:
        return None
    return Finding(
        name="resize-every-epoch",
        what=f"each image is decoded completely and scaled down in every epoch: {share:.0%} of the "
        "dataset's time",
        change="do it once: fastload pack --resize",
        where=loader.made,
        gain=_without(loader, loader.wait_s * (1 - 0.9 * share)) + 0.01,
    )


def _small_files(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or not seen.opens or loader.samples < _MANY_FILES:
        return None
    mean = seen.open_nbytes / seen.opens
    if seen.opens < 0.9 * seen.fetched or mean > _SMALL_FILE or loader.waiting < PART:
        return None
    if seen.loads and seen.load_s > 0.5 * seen.fetch_s:
        return None  # most of the time is spent on decoding, not on opening files
    return Finding(
        name="many-small-files",
        what=f"{loader.samples:,} files of {mean / 1024:.0f} KiB, one opened for each sample",
        change="fastload pack writes them into one file",
        where=loader.made,
        gain=_without(loader, loader.wait_s * 0.5),
    )


def _cacheable(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or not _waits(seen) or loader.waiting < PART or not seen.opens:
        return None
    nbytes = loader.samples * seen.open_nbytes / max(1, seen.fetched)
    if not nbytes or _small_files(seen) is not None:
        return None
    busy = seen.fetch_cpu_s / seen.fetch_s
    what = f"the dataset's code waits {1 - busy:.0%} of its time for its files"
    if nbytes < seen.memory_nbytes / 2:
        return Finding(
            name="fits-in-memory",
            what=f"{what}, which are about {nbytes / 2**20:,.0f} MiB in total",
            change='cache them: FastLoader(cache="ram")'
            + ", after fastload pack" * (not _native(loader)),
            where=loader.made,
            gain=_without(loader, loader.wait_s * busy),
        )
    return Finding(
        name="slow-disk",
        what=what,
        change="more workers, a faster disk, or fastload pack with a smaller encoding",
        where=loader.made,
        gain=_without(loader, loader.wait_s * max(busy, 0.25)),
    )


def _network(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or not loader.remote_requests:
        return None
    waits_s = sum(loader.waits_s) + sum(loader.starts_s)
    total_s = waits_s + sum(loader.steps_s)
    network_s = min(loader.network_s, waits_s)  # what is fetched while the step runs is free
    if network_s < PART * total_s:
        return None
    nbytes, requests = loader.remote_nbytes, loader.remote_requests
    hits = loader.remote_hit_nbytes / (loader.remote_hit_nbytes + nbytes)
    if nbytes / requests < _SMALL_REQUEST:
        change = "shuffle_window=8 (with a seed): blocks of 8 MB are fetched, not single records"
    elif len(loader.starts_s) > 1:
        change = "a larger disk_limit of PackedDataset: what fits into the cache is fetched once"
    else:
        change = (
            "a disk_limit that holds the store, for later epochs; for the first one a smaller "
            "encoding (fastload pack --resize), or a machine nearer to the data"
        )
    return Finding(
        name="waits-for-network",
        what=f"the loop waits for the network {network_s / total_s:.0%} of the time: "
        f"{nbytes / 1e6:,.0f} MB came in {requests:,} requests, {nbytes / 1e6 / total_s:,.0f} "
        f"MB/s, and {hits:.0%} of the bytes were in the cache",
        change=change,
        where=loader.made,
        gain=total_s / (total_s - network_s) if network_s < total_s else 1.0,
    )


def _shuffled_evaluation(seen: Observation) -> Finding | None:
    for loader in seen.evaluations:
        if loader.shuffled:
            return Finding(
                name="shuffle-at-evaluation",
                what=f"the evaluation over {loader.dataset} is shuffled without benefit",
                change="shuffle=False: sequential reads, and comparable results",
                where=loader.made,
                gain=1.01,
            )
    return None


def _gradients_at_evaluation(seen: Observation) -> Finding | None:
    for loader in seen.evaluations:
        if loader.grad > 0.5 * loader.forwards:
            return Finding(
                name="gradients-at-evaluation",
                what=f"{loader.grad} of {loader.forwards} forward passes of the evaluation store "
                "activations for gradients",
                change="torch.inference_mode() around the evaluation",
                where=loader.looped,
                gain=1.03,
            )
    return None


def _training_mode_at_evaluation(seen: Observation) -> Finding | None:
    for loader in seen.evaluations:
        if loader.train_mode > 0.5 * loader.forwards:
            return Finding(
                name="training-mode-at-evaluation",
                what="the model is in training mode during the evaluation: dropout and batch "
                "statistics change its results",
                change="model.eval() before, model.train() after",
                where=loader.looped,
                gain=1.04,
            )
    return None


def _benchmark(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or not seen.convolutions or not loader.image_shapes:
        return None
    if loader.image_shapes == 1 and not seen.benchmark and "benchmark" not in _hidden(seen):
        return Finding(
            name="cudnn-benchmark-off",
            what=f"all images are {loader.image_shape[2:]}, and cudnn.benchmark is off",
            change="torch.backends.cudnn.benchmark = True",
            where=loader.looped,
            verified=seen.cuda,
        )
    if loader.image_shapes > 3 and seen.benchmark:
        return Finding(
            name="cudnn-benchmark-on",
            what=f"{loader.image_shapes} shapes: cudnn.benchmark tries all algorithms for each",
            change="torch.backends.cudnn.benchmark = False",
            where=loader.looped,
            verified=seen.cuda,
        )
    return None


def _autocast(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or not seen.convolutions or not loader.forwards or loader.autocast:
        return None
    if "autocast" in _hidden(seen):
        return None
    return Finding(
        name="no-autocast",
        what="convolutions run in float32, without tensor cores",
        change='torch.autocast("cuda", dtype=torch.bfloat16)',
        where=loader.called,
        verified=seen.cuda,
    )


def _memory_format(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or not seen.convolutions or not loader.autocast or loader.channels_last:
        return None
    if "channels_last" in _hidden(seen):
        return None
    return Finding(
        name="not-channels-last",
        what="convolutions under autocast get contiguous NCHW images",
        change="model.to(memory_format=torch.channels_last), and the batches too",
        where=loader.called,
        verified=seen.cuda,
    )


def _growing_workers(seen: Observation) -> Finding | None:
    loader = seen.training
    objects = "" if loader is None else loader.held
    grow = f"the worker processes grow by {seen.growth_nbytes / 1024:,.0f} KiB with every batch"
    what = [grow] * (seen.growth_nbytes >= _GROWTH) + [objects] * bool(objects)
    if not what:
        return None
    change = f"keep no lists of Python objects in the dataset: {REMEDY}"
    where = "" if loader is None else loader.made
    return Finding(name="workers-grow", what="; ".join(what), change=change, where=where, gain=1.02)


def _oversubscribed(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or not loader.num_workers or seen.process_threads <= 1:
        return None
    threads = loader.num_workers * seen.process_threads
    if threads <= 2 * seen.cpus:
        return None
    return Finding(
        name="threads-oversubscribed",
        what=f"{loader.num_workers} workers with {seen.process_threads} threads each on "
        f"{seen.cpus} CPUs",
        change="torch.set_num_threads(1) in workers (torch's default), cv2.setNumThreads(0)",
        where=loader.made,
        gain=1.1,
    )


def _slow_function(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or loader.waiting < PART:
        return None
    for function in seen.functions:
        if function.share < _SLOW or function.looks < _LOOKS:
            return None
        if function.torchvision and _native(loader):
            continue  # the core does it
        at = "" if function.torchvision else f", {function.line_share:.0%} of it at {function.line}"
        return Finding(
            name="slow-function",
            what=f"{function.name} takes {function.share:.0%} of the dataset's time{at}",
            change="make it faster: half the time would give this gain",
            where=function.where or loader.made,
            gain=_without(loader, loader.wait_s * (1 - function.share / 2)),
        )
    return None


def _epoch_not_set(seen: Observation) -> Finding | None:
    loader = seen.training
    if loader is None or len(loader.epochs) < 2 or len(set(loader.epochs)) > 1:
        return None
    return Finding(
        name="epoch-not-set",
        what=f"set_epoch was not called: the sampler's epoch is {loader.epochs[0]} in each of "
        f"{len(loader.epochs)} epochs, so all have the same order",
        change="sampler.set_epoch(epoch) before each epoch",
        where=loader.looped or loader.made,
    )


_RULES: tuple[Callable[[Observation], Finding | None], ...] = (
    _import,
    _materialised,
    _workers_0,
    _too_many_workers,
    _not_persistent,
    _large_photos,
    _pillow,
    _resized_again,
    _small_files,
    _cacheable,
    _network,
    _growing_workers,
    _oversubscribed,
    _slow_function,
    _epoch_not_set,
    _shuffled_evaluation,
    _gradients_at_evaluation,
    _training_mode_at_evaluation,
    _pageable,
    _float32,
    _items,
    _benchmark,
    _autocast,
    _memory_format,
)
