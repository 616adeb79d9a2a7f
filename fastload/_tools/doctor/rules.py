"""The rules: what in an observation is worth changing, and the predicted gain.

Each rule examines an observation and its training loop. A gain is predicted for the whole loop from
measured times, by removing the part at fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

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
    loader, found = seen.training, list(_evaluations(seen))
    if loader is not None:
        rules = (_fast, _decoding, _files, _slow_functions) if loader.waiting >= PART else ()
        for rule in (*rules, _workers, _memory, _network, _epochs, _on_gpu):
            found += rule(seen, loader)
    return sorted(found, key=lambda finding: (not finding.verified, -finding.gain))


def _without(loader: LoaderSeen, wait_s: float) -> float:
    """Speed-up of the loop if it waited ``wait_s`` for each batch."""
    after = max(wait_s, 0.0) + loader.step_s
    return (loader.wait_s + loader.step_s) / after if after else 1.0


def _waits(seen: Observation) -> bool:
    """Whether the dataset's code waits (for a disk, a network) more than it computes."""
    return seen.fetch_s > 0 and seen.fetch_cpu_s < 0.5 * seen.fetch_s


def _native(loader: LoaderSeen) -> bool:
    """Whether FastLoader would decode the loader's images in C++."""
    return loader.fast is not None and (loader.fast.native or loader.fast.defers)


# --- what the loop waits for ----------------------------------------------------------------------


def _fast(seen: Observation, loader: LoaderSeen) -> Iterator[Finding]:
    """What the trial of FastLoader showed."""
    fast = loader.fast
    if fast is None:
        return
    # Two standard errors slower, so that the prediction does not rest on luck.
    batch_s = fast.batch_s * (1 + 2 * fast.error)
    gain = _without(loader, batch_s - (loader.step_s if fast.ahead else 0.0))
    if _native(loader) and gain >= 1 + PART / 2:
        rate = loader.images / len(loader.steps_s) / fast.batch_s
        yield Finding(
            name="import-fastload",
            what=f"the loop waits {loader.waiting:.0%} of its time; FastLoader "
            + ("reads" if fast.native else "decodes the images of")
            + f" this {loader.dataset} natively, {rate:,.0f} images/s (± {fast.error:.0%}) without "
            "a training step",
            change="change the import: from fastload import FastLoader as DataLoader",
            where=loader.made,
            gain=gain,
        )
    for one in fast.materialised[:1]:
        if one.share >= PART:
            yield Finding(
                name="pixels-in-python",
                what=f"with FastLoader, {one.function} asks for the pixels of {one.images:.0%} of "
                "the images before their batch is made, which takes "
                f"{one.share:.0%} of the time",
                change="end the transform in ToTensor or ToImage and compute after it "
                '(docs/your-dataset.md); or keep what is decoded: FastLoader(cache="decoded")',
                where=one.where,
                gain=_without(loader, fast.batch_s * (1 - one.share) - loader.step_s * fast.ahead),
            )


def _decoding(seen: Observation, loader: LoaderSeen) -> Iterator[Finding]:
    """What Pillow takes of the time of the dataset's code."""
    if not seen.loads or not seen.fetch_s:
        return
    of_decoding = seen.load_s / seen.fetch_s
    share = of_decoding + seen.resize_s / seen.fetch_s
    pixels = seen.load_pixels / seen.loads
    height, width = loader.image_shape[2:] if len(loader.image_shape) == 4 else (0, 0)
    large = of_decoding >= 0.3 and 0 < _LARGE * width * height <= pixels
    again = share >= 0.3 and seen.resizes >= 0.9 * seen.loads
    if large:
        yield Finding(
            name="large-photos",
            what=f"photos of {pixels / 1e6:.1f} megapixels are decoded for images of "
            f"{width} x {height}, which is {of_decoding:.0%} of the dataset's time",
            change="fastload pack --resize once"
            + ", or FastLoader, which decodes only what the crop needs" * _native(loader),
            where=loader.made,
            gain=_without(loader, loader.wait_s * (1 - 0.8 * of_decoding)),
        )
    if again:
        yield Finding(
            name="resize-every-epoch",
            what="each image is decoded completely and scaled down in every epoch: "
            f"{share:.0%} of the dataset's time",
            change="do it once: fastload pack --resize",
            where=loader.made,
            gain=_without(loader, loader.wait_s * (1 - 0.9 * share)) + 0.01,
        )
    if share >= 0.3 and not large and not again:
        pack = "fastload pack"
        yield Finding(
            name="pillow-decode",
            what=f"Pillow's decoding is {share:.0%} of the dataset's time, and the loop waits "
            f"{loader.waiting:.0%} of its time",
            change=f"FastLoader decodes in native threads; {pack} makes it faster still"
            if _native(loader)
            else f"{pack} makes a store of it, which FastLoader decodes in native threads",
            where=loader.made,
            gain=_without(loader, loader.wait_s * (1 - 0.6 * share)),
        )


def _files(seen: Observation, loader: LoaderSeen) -> Iterator[Finding]:
    """How the dataset's code reads its files."""
    if not seen.opens:
        return
    mean = seen.open_nbytes / seen.opens
    each = seen.opens >= 0.9 * seen.fetched and loader.samples >= _MANY_FILES
    decodes = bool(seen.loads) and seen.load_s > 0.5 * seen.fetch_s  # rather than opens files
    nbytes = loader.samples * seen.open_nbytes / max(1, seen.fetched)
    if each and mean <= _SMALL_FILE and not decodes:
        yield Finding(
            name="many-small-files",
            what=f"{loader.samples:,} files of {mean / 1024:.0f} KiB, one opened for each sample",
            change="fastload pack writes them into one file",
            where=loader.made,
            gain=_without(loader, loader.wait_s * 0.5),
        )
    elif nbytes and _waits(seen):
        busy = seen.fetch_cpu_s / seen.fetch_s
        fits = nbytes < seen.memory_nbytes / 2
        total = f", which are about {nbytes / 2**20:,.0f} MiB in total" * fits
        cache = 'cache them: FastLoader(cache="ram")' + ", after fastload pack" * (
            not _native(loader)
        )
        yield Finding(
            name="fits-in-memory" if fits else "slow-disk",
            what=f"the dataset's code waits {1 - busy:.0%} of its time for its files{total}",
            change=cache
            if fits
            else "more workers, a faster disk, or fastload pack with a smaller encoding",
            where=loader.made,
            gain=_without(loader, loader.wait_s * (busy if fits else max(busy, 0.25))),
        )


def _slow_functions(seen: Observation, loader: LoaderSeen) -> Iterator[Finding]:
    # What the core does instead does not count.
    functions = (one for one in seen.functions if not (one.torchvision and _native(loader)))
    function = next(functions, None)
    if function is None or function.share < _SLOW or function.looks < _LOOKS:
        return
    at = "" if function.torchvision else f", {function.line_share:.0%} of it at {function.line}"
    yield Finding(
        name="slow-function",
        what=f"{function.name} takes {function.share:.0%} of the dataset's time{at}",
        change="make it faster: half the time would give this gain",
        where=function.where or loader.made,
        gain=_without(loader, loader.wait_s * (1 - function.share / 2)),
    )


def _network(seen: Observation, loader: LoaderSeen) -> Iterator[Finding]:
    if not loader.remote_requests:
        return
    waits_s = sum(loader.waits_s) + sum(loader.starts_s)
    total_s = waits_s + sum(loader.steps_s)
    network_s = min(loader.network_s, waits_s)  # what is fetched while the step runs is free
    if network_s < PART * total_s:
        return
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
    yield Finding(
        name="waits-for-network",
        what=f"the loop waits for the network {network_s / total_s:.0%} of the time: "
        f"{nbytes / 1e6:,.0f} MB came in {requests:,} requests, {nbytes / 1e6 / total_s:,.0f} "
        f"MB/s, and {hits:.0%} of the bytes were in the cache",
        change=change,
        where=loader.made,
        gain=total_s / (total_s - network_s) if network_s < total_s else 1.0,
    )


# --- how the loader is set up ---------------------------------------------------------------------


def _workers(seen: Observation, loader: LoaderSeen) -> Iterator[Finding]:
    if not loader.num_workers and loader.waiting >= PART:
        # Workers load in parallel, and while the step runs.
        workers = max(1, seen.cpus if not _waits(seen) else 4 * seen.cpus)
        wait_s = loader.wait_s / workers - loader.step_s
        if not (seen.cuda or _waits(seen)):  # the step needs the CPUs, too
            wait_s = max(wait_s, (loader.wait_s + loader.step_s) / workers - loader.step_s)
        yield Finding(
            name="workers-0",
            what=f"num_workers=0: the loop waits {loader.waiting:.0%} of its time while its "
            "process makes the samples",
            change=f"num_workers={workers}" + ", or FastLoader" * _native(loader),
            where=loader.made,
            gain=_without(loader, wait_s),
        )
    if loader.num_workers > 2 * seen.cpus and not _waits(seen):
        yield Finding(
            name="workers-too-many",
            what=f"num_workers={loader.num_workers} on {seen.cpus} CPUs, {seen.running:.1f} "
            "threads running at a time; the first batch took "
            f"{max(loader.starts_s, default=0.0):.1f} s",
            change=f"num_workers={seen.cpus}: more only compete for CPUs and memory",
            where=loader.made,
            gain=1.05,
        )
    again = loader.starts_s[1:]
    if again and loader.num_workers and not loader.persistent_workers:
        start = sum(again) / len(again) - loader.wait_s
        whole = sum(loader.steps_s) + sum(loader.waits_s) + sum(loader.starts_s)
        epoch = whole / len(loader.starts_s)
        if start >= PART * epoch:
            yield Finding(
                name="workers-not-persistent",
                what=f"each epoch of {epoch:.2f} s begins with {start:.2f} s of starting workers",
                change="persistent_workers=True",
                where=loader.made,
                gain=epoch / (epoch - start),
            )
    threads = loader.num_workers * seen.process_threads
    if seen.process_threads > 1 and threads > 2 * seen.cpus:
        yield Finding(
            name="threads-oversubscribed",
            what=f"{loader.num_workers} workers with {seen.process_threads} threads each on "
            f"{seen.cpus} CPUs",
            change="torch.set_num_threads(1) in workers (torch's default), cv2.setNumThreads(0)",
            where=loader.made,
            gain=1.1,
        )


def _memory(seen: Observation, loader: LoaderSeen) -> Iterator[Finding]:
    grow = f"the worker processes grow by {seen.growth_nbytes / 1024:,.0f} KiB with every batch"
    what = [grow] * (seen.growth_nbytes >= _GROWTH) + [loader.held] * bool(loader.held)
    if what:
        yield Finding(
            name="workers-grow",
            what="; ".join(what),
            change=f"keep no lists of Python objects in the dataset: {REMEDY}",
            where=loader.made,
            gain=1.02,
        )


def _epochs(seen: Observation, loader: LoaderSeen) -> Iterator[Finding]:
    if len(loader.epochs) > 1 and len(set(loader.epochs)) == 1:
        yield Finding(
            name="epoch-not-set",
            what=f"set_epoch was not called: the sampler's epoch is {loader.epochs[0]} in each of "
            f"{len(loader.epochs)} epochs, so all have the same order",
            change="sampler.set_epoch(epoch) before each epoch",
            where=loader.looped or loader.made,
        )


def _evaluations(seen: Observation) -> Iterator[Finding]:
    """The first evaluation with each fault."""
    loaders = seen.evaluations
    shuffled = [one for one in loaders if one.shuffled]
    storing = [one for one in loaders if one.grad > 0.5 * one.forwards]
    training = [one for one in loaders if one.train_mode > 0.5 * one.forwards]
    for loader in shuffled[:1]:
        yield Finding(
            name="shuffle-at-evaluation",
            what=f"the evaluation over {loader.dataset} is shuffled without benefit",
            change="shuffle=False: sequential reads, and comparable results",
            where=loader.made,
            gain=1.01,
        )
    for loader in storing[:1]:
        yield Finding(
            name="gradients-at-evaluation",
            what=f"{loader.grad} of {loader.forwards} forward passes of the evaluation store "
            "activations for gradients",
            change="torch.inference_mode() around the evaluation",
            where=loader.looped,
            gain=1.03,
        )
    for loader in training[:1]:
        yield Finding(
            name="training-mode-at-evaluation",
            what="the model is in training mode during the evaluation: dropout and batch "
            "statistics change its results",
            change="model.eval() before, model.train() after",
            where=loader.looped,
            gain=1.04,
        )


# --- what matters on a GPU ------------------------------------------------------------------------


def _on_gpu(seen: Observation, loader: LoaderSeen) -> Iterator[Finding]:
    """What only a GPU can show to matter."""
    for finding in _of_gpu(seen, loader):
        yield dataclasses.replace(finding, verified=seen.cuda)


def _of_gpu(seen: Observation, loader: LoaderSeen) -> Iterator[Finding]:
    # What the script sets only with CUDA, a run without CUDA cannot observe.
    hidden = set() if seen.cuda else set(seen.cuda_only)
    pageable = bool(loader.num_workers) and not loader.pin_memory
    if pageable and loader.batch_nbytes >= 1 << 20 and "pin_memory" not in hidden:
        yield Finding(
            name="pin-memory-off",
            what=f"batches of {loader.batch_nbytes / 2**20:.0f} MiB are in pageable memory, from "
            "which a copy to the GPU is slower and blocks",
            change="pin_memory=True, and x.to(device, non_blocking=True)",
            where=loader.made,
        )
    # With other numbers of channels, it may not be an image.
    if loader.image_dtype == "float32" and loader.image_shape[1] in (1, 3):
        yield Finding(
            name="float32-over-the-bus",
            what=f"images of {loader.image_shape} cross the bus as float32, four times the bytes "
            "of uint8",
            change="end the transform with PILToTensor(), and scale and normalise on the device",
            where=loader.made,
        )
    items = sum(loader.items.values())
    if items and items >= 0.9 * len(loader.steps_s):
        yield Finding(
            name="item-every-step",
            what=f"{items / len(loader.steps_s):.1f} calls of item(), cpu() or similar per step: "
            "each waits until the GPU has caught up",
            change="sum on the device, and read the sum only now and then",
            where=max(loader.items, key=lambda place: loader.items[place]),
        )
    if not seen.convolutions:
        return
    if loader.image_shapes == 1 and not seen.benchmark and "benchmark" not in hidden:
        yield Finding(
            name="cudnn-benchmark-off",
            what=f"all images are {loader.image_shape[2:]}, and cudnn.benchmark is off",
            change="torch.backends.cudnn.benchmark = True",
            where=loader.looped,
        )
    if loader.image_shapes > 3 and seen.benchmark:
        yield Finding(
            name="cudnn-benchmark-on",
            what=f"{loader.image_shapes} shapes: cudnn.benchmark tries all algorithms for each",
            change="torch.backends.cudnn.benchmark = False",
            where=loader.looped,
        )
    if loader.forwards and not loader.autocast and "autocast" not in hidden:
        yield Finding(
            name="no-autocast",
            what="convolutions run in float32, without tensor cores",
            change='torch.autocast("cuda", dtype=torch.bfloat16)',
            where=loader.called,
        )
    if loader.autocast and not loader.channels_last and "channels_last" not in hidden:
        yield Finding(
            name="not-channels-last",
            what="convolutions under autocast get contiguous NCHW images",
            change="model.to(memory_format=torch.channels_last), and the batches too",
            where=loader.called,
        )
