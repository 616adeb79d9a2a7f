"""``FastLoader.explain()`` and ``FastLoader.stats()``: what a loader does, in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from .._base.own_generators import kind_of_own
from .._base.shared_slabs import SharedRing
from .._engine import huffman_index
from .._engine.registry import NATIVE, is_torch
from .._sources.deferred.switch import left_out
from .._sources.deferred.thread_state import OF_MODE
from .._sources.kinds import is_mix_dataset
from .._sources.source import Source
from .._transforms import sample_params
from .._transforms.geometry.crop_geometry import scales
from .._transforms.geometry.draws import Numbers
from .._transforms.plan import Plan
from ..errors import DataError, UsageError
from ..hints import Stats
from ..storage.base import RAW
from .bottleneck import verdict
from .bucket_sampler import BucketSampler
from .config import LoaderConfig
from .delivery import delivery
from .measurements import ImageCounts
from .order import grouped
from .resources import Resources
from .route import EngineRoute, TorchRoute, WorkersRoute, find
from .setup import decide
from .workers.choice import Choice
from .workers.copy_on_write import REMEDY, object_memory

# Groups of ``batch_by`` that ``explain`` names.
_MOST_GROUPS = 8

# Lines of the user's code that ``explain`` names.
_MOST_CAUSES = 5

_LOOKED_AT = 64  # images whose headers it reads, for ``decode="scaled"``
_WORTH_MENTIONING = 0.25  # share of the samples from which it suggests that


def explain(config: LoaderConfig, resources: Resources) -> str:
    """Which engine runs and why, and what would be faster."""
    route = find(config)
    if isinstance(route, EngineRoute):
        lines = _engine(config, resources, route)
    else:
        lines = _workers(config, resources, route)
    lines += delivery.explain(config, route)
    told = config.order.explain()
    if is_mix_dataset(config.dataset) and not told:
        told = ["mix: weights have no effect, because the given sampler decides what is read"]
    lines += told
    buckets = grouped(config.batch_sampler)
    if isinstance(buckets, BucketSampler):
        lines += _groups(buckets, route)
    if config.shard and not config.own_order:
        lines.append("shard: has no effect, because the given sampler decides what is read")
    return "\n".join(lines)


def _engine(config: LoaderConfig, resources: Resources, route: EngineRoute) -> list[str]:
    setup, source, workers = decide(config, resources, route), route.source, config.num_workers
    threads = f"{workers or 'the calling'} thread{'s' * (workers > 1)}"
    if resources.governor is not None:
        threads += ", adjusted while the loop runs"
    rows = f"{'one' if workers else 'the calling'} thread copies rows"
    if setup.on_ray:
        threads = f"on Ray, {max(1, workers)} batches at a time, {setup.ahead} ahead"
    lines = [
        f"engine: {setup.engine.name} ({threads if not source.tensors else rows})",
        f"store: {source.store.format}, {len(source.store)} records",
    ]
    if not (workers or source.tensors or setup.on_ray):
        lines.append(
            "slower: num_workers=0, which trainers pass by default, has the training loop's thread "
            "make each batch while the loop waits; leave it unset, or give a number, and threads "
            "make batches ahead (Hugging Face's TrainingArguments: dataloader_num_workers)"
        )
    where = setup.describe()
    if where is not None:
        lines.append(f"decoded: {where}")
    views = source.plan.each
    layout = "channels_last" if config.channels_last else "contiguous NCHW"
    for number, plan in enumerate(views):
        lines += [f"view {number}:"] * (len(views) > 1)
        lines.append("fused: " + " -> ".join(plan.steps))
        if not source.tensors:
            split = delivery.split(setup, plan)
            lines += [f"split: {split}", f"batch: {plan.dtype}, {layout}"]
        if plan.drawn_size:
            lines.append(
                "sizes: expand=True gives each image another size, so only batches of one image "
                "can be made; end the transforms with a crop or a resize to a fixed (h, w)"
            )
    if resources.cache is not None:
        lines.append(f"cache: {resources.cache.explain(setup.engine, source.store)}")
    entry_points = huffman_index.describe(source.parts)
    if entry_points is not None:
        lines.append(f"entry points: {entry_points}")
    if setup.pillow is not None:
        lines += setup.pillow.explain(source, workers)
    lines += _scaled(source)
    lines += [f"left out: {one}" for one in source.store.left_out]
    if source.store.format == "folder":
        lines.append("faster: `fastload pack` makes one file, so no file is opened for each image")
    hint = source.store.hint(windowed=config.order.blocks)
    if hint is not None:
        lines.append(f"slower: {hint}")
    if source.store.indirect is not None:
        lines.append(f"slower: {source.store.indirect}")
    return lines


def _groups(sampler: BucketSampler, route: EngineRoute | WorkersRoute | TorchRoute) -> list[str]:
    """The groups of ``batch_by``, and what their crops cut off."""
    groups, sizes = sampler.groups(), sampler.sizes()
    counts = groups.counts
    largest = np.argsort(-counts, kind="stable")
    named = [f"{groups.names[i]}: {counts[i]} samples" for i in largest[:_MOST_GROUPS].tolist()]
    if len(counts) > _MOST_GROUPS:
        named.append(f"and {len(counts) - _MOST_GROUPS} more")
    few, most = sizes.min(), sizes.max()
    whole = f"{most}" if few == most else f"{few} to {most}"
    incomplete = int(np.count_nonzero(counts % sizes))
    left = "leaves out the rest of" if sampler.drop_last else "has an incomplete batch of"
    lines = [
        f"batch_by: {len(counts)} groups ({', '.join(named)}); {len(sampler)} batches of {whole} "
        f"samples; the epoch {left} {incomplete} groups"
    ]
    if len(sampler) and counts.sum() < 2 * len(sampler) and sizes.max() > 1:
        lines.append(
            "slower: most batches have one sample, because few samples share a group; begin the "
            "transform with buckets.crop() (docs/buckets.md)"
        )
    if isinstance(route, EngineRoute) and isinstance(route.source.plan, Plan):
        source, plan = route.source, route.source.plan
        images = source.store.sizes(source.lookup(np.arange(len(source), dtype=np.int64)))
        coverage = sample_params.coverage(plan, images)
        if coverage is not None:
            resized, cut, padded = coverage
            lines.append(
                f"pixels: crops cut off {cut / max(resized, 1):.1%} of the resized images; "
                f"{padded * plan.channels * plan.dtype.itemsize:,} bytes of padding"
            )
    return lines


def _workers(
    config: LoaderConfig, resources: Resources, route: WorkersRoute | TorchRoute
) -> list[str]:
    workers = config.num_workers
    where = f"{workers} process{'es' * (workers != 1)}" if workers else "this process"
    lines = [
        f"engine: torch (torch's DataLoader machinery, {where})",
        f"because: {route.reason}",
    ]
    lines += _images(config, route, resources)
    if workers:
        lines.append("transport: " + _transport(route, resources.ring))
        objects = object_memory(config.dataset, workers)
        if objects is not None:
            lines.append(f"memory: {objects.words(workers)}; {REMEDY}")
        lines += _repeated(config)
    elif not is_torch(config.engine):
        lines.append("faster: num_workers > 0 makes batches in other processes in parallel")
    if resources.cache is not None:
        defers = isinstance(route, WorkersRoute) and not route.eager
        lines.append(f"cache: {resources.cache.explain(None, None, opened=defers)}")
    return lines


def _repeated(config: LoaderConfig) -> list[str]:
    """What workers draw again, because each has a copy of the same generator."""
    own = None
    if config.num_workers > 1 and config.seed is None and config.worker_init_fn is None:
        own = kind_of_own(config.dataset)
    if own is None:
        return []
    return [
        f"random: the dataset has a generator of its own ({own}), and each worker a copy: they "
        "draw the same numbers, as with DataLoader; an int seed= seeds Albumentations for each "
        "sample, and a worker_init_fn can seed anything"
    ]


def _transport(route: WorkersRoute | TorchRoute, ring: SharedRing | None) -> str:
    """How worker processes send batches."""
    if isinstance(route, TorchRoute):
        return "torch's own, a shared file for each tensor"
    if ring is not None and ring.failure:
        return f"torch's own, a shared file for each tensor, because {ring.failure}"
    if ring is not None and ring.left:
        return (
            "slabs of shared memory; but some tensors are not plain, or were in shared memory "
            "already, and are sent in torch's way, in a shared file each"
        )
    return "slabs of shared memory, which workers collate into and which are reused"


def _images(
    config: LoaderConfig, route: WorkersRoute | TorchRoute, resources: Resources
) -> list[str]:
    """What becomes of the images that the dataset opens, in words."""
    if isinstance(route, TorchRoute) or route.eager:
        why = "torch's own iterator runs" if isinstance(route, TorchRoute) else route.eager
        return [f"images: made where the dataset asks for them, because {why}"]
    measured, choice = resources.measurements, resources.choice or Choice(config.measures)
    images = measured.images
    lines = _choice(choice, images)
    counts = [(images.opened, "opened"), (images.given, "made of arrays")]
    seen = " and ".join(f"{count} {how}" for count, how in counts if count)
    if seen:
        lines.append(
            f"images: {seen} in the last epoch; {images.deferred} tensors stayed "
            "deferred until their batch was made in C++"
        )
    if images.read:
        lines.append(
            f"images: {images.read} read by functions of OpenCV or torchvision, and decoded in C++"
        )
    elif not seen and not choice.opened:
        lines.append(
            "images: opened as ever, until making samples takes so long that deferring may pay"
            if choice.waits
            else "images: deferred, and made in C++ for a whole batch, if the dataset opens any"
        )
    lines += [f"slower: {line}" for line in left_out()]
    all_images = max(1, images.opened + images.given)
    work = _work_in_samples(measured.stamps.snapshot().stages_s)
    for (function, file, line), (count, _) in _by_time(images)[:_MOST_CAUSES]:
        if OF_MODE in function:
            mode = function.partition(OF_MODE)[2]
            lines.append(
                f"slower: {count} images of mode {mode} became tensors at {file}:{line}; Pillow "
                "decodes what has more than 8 bits per channel, or 1"
            )
            continue
        share = min(1.0, count / all_images) * work
        lines.append(
            f"slower: {function} at {file}:{line} asked for the pixels of {count} images, and what "
            f"follows is done to one after the other ({share:.0%} of the work went to their "
            f"samples); {_instead(function)} (docs/your-dataset.md)"
        )
    for reason, count in sorted(images.replayed().items(), key=lambda item: -item[1]):
        lines.append(f"slower: {count} were left to Pillow and torch: {reason}")
    if images.again:
        lines.append(
            f"images: {images.again} batches were made again without deferring, because something "
            "was raised while they were made, or an image in them is damaged"
        )
    return lines


def _choice(choice: Choice, images: ImageCounts) -> list[str]:
    """What was measured of the dataset's two ways, and which one is taken."""
    if not choice.measures:
        return ["images: deferred whatever it costs, because FASTLOAD_DEFER is 1"]
    deferred, eager = choice.deferred.samples, choice.eagerly.samples
    if not (choice.opened and deferred and eager):
        return []
    taken = "opened by Pillow as ever" if choice.eager else "deferred"
    return [
        f"images: {taken}: a sample takes {choice.deferred_ns / 1e6:.3g} ms of CPU time deferred, "
        f"and {choice.eagerly.ns / 1e6:.3g} ms otherwise (of the last {deferred} and {eager} that "
        f"were measured; {images.eager} of the last epoch were not deferred)"
    ]


_GRAY: Final = ("split", "getchannel", "getcolors")


def _instead(function: str) -> str:
    """What to do so that images stay deferred, for a user's code that called ``function``."""
    if not function.startswith("Image."):  # it is a tensor already
        return "do it to the PIL image, before it becomes a tensor, or to the whole batch"
    if function.removeprefix("Image.") in _GRAY:
        return "ask image.mode or image.getbands() whether it is gray"
    advice = "do it to the tensor that the transform gives, or to the whole batch"
    if function == "Image.__array_interface__":
        advice += "; image.size and image.mode say the array's shape"
    return advice


def _work_in_samples(stages_s: Mapping[str, float]) -> float:
    """The share of a loader's work that the samples' own code is."""
    own_s = stages_s.get("fetch", 0.0) - stages_s.get("blocked", 0.0)
    all_s = own_s + stages_s.get("collate", 0.0) + stages_s.get("fill", 0.0)
    return own_s / all_s if own_s > 0 else 0.0


def _by_time(images: ImageCounts) -> list[tuple[tuple[str, str, int], tuple[int, int]]]:
    """What materialised images, and how many in how many ns; the longest time first."""
    return sorted(images.causes.items(), key=lambda item: -item[1][1])


def figures(resources: Resources) -> Stats:
    """``FastLoader.stats()``."""
    measured, governor, cache = resources.measurements, resources.governor, resources.cache
    figures = measured.stamps.snapshot()
    elapsed = figures.elapsed_s
    rate = figures.images / elapsed if elapsed else 0.0
    bound, why = verdict(figures, native=measured.native)
    return {
        "engine": _engine_name(resources),
        "images": figures.images,
        "batches": figures.batches,
        "images_per_s": rate,
        "mb_per_s": figures.read_nbytes / 1e6 / elapsed if elapsed else 0.0,
        "elapsed_s": elapsed,
        "wait_s": figures.wait_s,
        "wait_share": figures.wait_s / elapsed if elapsed else 0.0,
        "stages_s": dict(figures.stages_s),
        "decisions": [] if governor is None else list(governor.decisions),
        "padding": measured.padding,
        "errors": [
            {
                "index": entry.index,
                "file": entry.file,
                "error": entry.error,
                "action": entry.action,
            }
            for entry in measured.bad.entries
        ],
        "cache_hits": figures.cache_hits + measured.images.hits,
        "cache_misses": figures.cache_misses + measured.images.misses,
        "cache_nbytes": 0 if cache is None else cache.nbytes,
        "remote": measured.fetched(),
        "entry_points_nbytes": 0
        if resources.engine is None
        else huffman_index.nbytes(resources.engine[0].parts),
        "samples_eager": measured.images.eager,
        "images_opened": measured.images.opened,
        "images_from_arrays": measured.images.given,
        "images_deferred": measured.images.deferred,
        "images_materialised": sum(count for count, _ in measured.images.causes.values()),
        "materialised": [
            {"function": function, "where": f"{file}:{line}", "count": count, "seconds": ns / 1e9}
            for (function, file, line), (count, ns) in _by_time(measured.images)
        ],
        "images_read": measured.images.read,
        "bound": bound,
        "why": why,
        "headroom": resources.replayed / rate if rate and resources.replayed else None,
    }


def _engine_name(resources: Resources) -> str:
    if not resources.measurements.native:
        return "torch"
    return NATIVE.name if resources.engine is None else resources.engine[1].name


def _scaled(source: Source) -> list[str]:
    """Lines: how many images ``decode="scaled"`` decodes smaller, or could."""
    share = _share(source)
    if any(plan.scaled and not source.tensors for plan in source.plan.each):
        known = "" if share is None else f", about {share:.0%} of the samples"
        return [f"decode: scaled, to 1/2, 1/4 or 1/8 where a JPEG is large enough{known}"]
    if share is None or share < _WORTH_MENTIONING:
        return []
    return [
        f"faster: decode='scaled' would decode about {share:.0%} of the samples at half their size "
        "or less; the pixels differ a little (docs/performance.md has the gain)"
    ]


def _share(source: Source) -> float | None:
    """The share of samples that "scaled" decodes smaller; None if it is not known."""
    if source.tensors:
        return None
    records = np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(np.int64))
    records = source.lookup(records) if len(source) else records[:0]
    records = records[source.store.kinds(records) != RAW]
    sizes = source.store.sizes(records)
    known = sizes.min(axis=1, initial=1) > 0
    if not known.any():
        return None
    shares = []
    for plan in source.plan.each:
        try:
            geometry, _ = sample_params.draw(plan, sizes[known], Numbers(0, 0, records[known]))
        except (DataError, UsageError):  # raised again in the loop
            return None
        shares.append((scales(geometry.box, geometry.resized, plan.filter) > 1).mean())
    return float(np.mean(shares))
