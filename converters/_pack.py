"""``pack``: images from any source into one store, or one store per part of a split.

Threads read and encode samples in chunks; one thread writes the chunks in order (``_run.py``). The
native core reads image files whose bytes are kept (``_gather.py``). An interrupted run leaves
``NAME.partial``; the same call resumes it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from .._base.keywords import names_nearest
from .._base.machine.cpu import available
from .._base.progress_bar import Progress, reporting
from .._tools.summary import describe_count
from ..errors import StoreError, UsageError
from ..hints import Compression, Encoding, OnPackError
from ..storage import Store, Writer, open_store, open_writer
from ..storage._local import is_url
from ..storage._partial import clear_finished
from ..storage._shards import Sharding
from ..storage._sidecar import is_manifest, sidecar_of
from ..storage.remote.options import RemoteOptions
from ..storage.table import Table
from . import _arrays, _overwrite, _remote, _split, _turn
from ._encoders import QUALITY, make_encoder
from ._labels import Chosen
from ._open import open_source, part_of
from ._report import PackedPart, PackReport, Skipped, no_images
from ._resize import Resize
from ._run import PackJob, Run
from ._source import PackSource
from ._workplace import Workplace


@names_nearest
def pack(
    source: str | os.PathLike[str] | Store | Sequence[str | os.PathLike[str] | Store] | Any,
    destination: str | os.PathLike[str],
    *,
    encode: Encoding | None = None,
    resize: str | int | None = None,
    quality: int | None = None,
    workers: int | None = None,
    split: str | None = None,
    on_error: OnPackError = "raise",
    exif: bool = False,
    check: bool = False,
    shards: int | None = None,
    shard_nbytes: int | None = None,
    compression: Compression | None = None,
    overwrite: bool = False,
    image_column: str | None = None,
    label_column: str | None = None,
    file_columns: Sequence[str] | str | None = None,
    masks: str | os.PathLike[str] | None = None,
    annotations: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    ray: str | None = None,
    progress: Progress | bool | None = None,
) -> PackReport:
    """Pack images into a store.

    Example:
        >>> report = pack("imgs", "imgs.lmdb")
        >>> report.records
        1000

    Args:
        source: class folders as for torchvision's ImageFolder (same order, labels, class names), or
            a folder of images without labels; images are what Pillow can read. A list as CSV, TSV
            or JSONL: a column of paths, relative to the list (path, file_name, filename, file,
            image, ...), a column of labels, which are numbers or class names (label, class, target,
            category, ...), and any other columns, which become fields. A store of any format, or a
            list of stores: records are copied unchanged, after comparing their checksums. MNIST's
            or CIFAR's files as downloaded. ``"module:object"``, or a Dataset, whose samples are
            (image, label), an image, or a dict; also an iterable one that ends: its number of
            samples is unknown, and an interrupted run starts again. A URL (``s3://...``) of a
            folder, a list or a store, which is fetched while it is packed.
        destination: the store; its suffix names the format. It appears when it is complete; until
            then the work is in ``destination`` + ".partial", and the same call resumes it. If it is
            a URL, the store is written in the system's temporary folder and then uploaded (with
            ``ray``, each shard by its task).
        encode: "keep": the files' own bytes, without decoding: only the header is read, and for a
            JPEG whether it has an end. Damage in between is stored too; ``check`` finds it now,
            ``verify(..., decode=True)`` later. "jpeg", "png": encode again. "bmp": uncompressed.
            "raw": uint8 RGB pixels. "dct": JPEGs without Huffman coding (docs/formats.md): the same
            pixels, about 1.3 times the size, decoded several times faster; files that are not
            JPEGs, or JPEGs that this form cannot hold, keep their bytes. With ``resize``, the image
            is first encoded as a JPEG of this quality. None: "keep", or "jpeg" with ``resize``;
            "raw" if the format holds nothing else (.pth, .n5, .zarr) and for MNIST and CIFAR; "png"
            for a Dataset, whose images have no bytes to keep (an ImageFolder without transforms has
            its files).
        resize: ``256``: the shorter side becomes 256 pixels, with the arithmetic of torchvision's
            ``Resize(256)`` and Pillow's antialiased bilinear filter; smaller images are enlarged.
            ``"longest:256"``: the longer side becomes 256 if it is longer; nothing is enlarged.
            ``"crop:224"``: as ``224``, then the square in the middle. ``"320x240"``: this width and
            height, whatever the shape of the image. Raw pixels in .h5, .pth, .n5 and .zarr are one
            array, so all images need one size.
        quality: of the JPEGs that are encoded (``encode="jpeg"``, ``resize``, ``exif``), 1 to 100;
            None: 95.
        workers: threads that read and encode; None: as many as CPUs.
        split: ``"val=0.1"``: about a tenth of the records, chosen by a hash of their keys, goes to
            ``NAME-val.lmdb``, the rest to ``NAME.lmdb``. Several: ``"val=0.1,test=0.1"``. A name
            alone, ``"train"``, selects that folder of a source with a folder for each split, or
            that dataset of several.
        on_error: "raise", or "skip": leave out files that are not images, or truncated, and list
            them in the report.
        exif: apply the EXIF orientation of images. (By default it is ignored, as by torchvision.)
            With ``encode="keep"`` or "dct" only images with an orientation are encoded again.
        check: decode every image that is kept unchanged before it is stored, which takes several
            times longer; ``on_error`` decides about images that cannot be decoded.
        shards: write this many files with equally many records.
        shard_nbytes: write several files of at most this many bytes each (.h5, .pth, .n5, .zarr:
            bytes of images).
        compression: "gzip" or "lzf", for an .h5 store: smaller, and several times slower to load.
        overwrite: replace a store at ``destination`` once the new one is complete; until then it
            stays, and the same call resumes an interrupted run.
        image_column, label_column: of a list, or of the dicts of a Dataset, if they do not have
            usual names. The labels of stores and Hugging Face datasets may be any field. In a list,
            several columns of numbers are one label: ``"cat,dog"`` or ``"is_*"``.
        file_columns: columns of a list whose files become fields, such as masks.
        masks: a folder with a mask for each image, of the same name; or ``annotations``, whose
            polygons are drawn (``pip install 'torch-fastload[coco]'``). They are the field
            ``mask``.
        annotations: of the images in the folder ``source``: COCO's JSON, a folder of VOC's XML or
            of YOLO's text files, or one of VOC's ImageSets. They become the fields ``boxes`` (x0,
            y0, x1, y1 in pixels), ``labels`` (classes), and what else there is for each box;
            ``PackedDataset(path, joint=True)`` moves boxes and labels with the images.
        storage_options: for a URL, the source's if both are: options of obstore if the source is a
            packed store, as for ``FastLoader``; else of fsspec's file system, such as
            ``{"endpoint_url": ...}``. Credentials come from the places where these libraries look
            for them, unless they are given here (docs/remote.md).
        ray: have tasks on a Ray cluster write the shards of a store of several files: "auto" joins
            the cluster of this machine, "local" starts one here, anything else is the address of
            one. Needs ``shards``, a format whose shards can be written apart
            (.tfrecord, .rec, .tar, .h5, .pth), and folders that all machines share, or URLs. The
            bytes are those that one machine writes; the same call resumes (docs/distributed.md).
            ``workers`` are then the threads and CPUs of a task; None: 1.
        progress: True: a progress bar on stderr, in pipes and logs a line every ten seconds; False:
            none; None: a bar on a terminal or in a notebook. Or a function, which is called with
            (records done, total records, bytes written) at the start and after every chunk; the
            total is None for an iterable Dataset.

    Returns:
        What was written and what was left out.

    Raises:
        UsageError: arguments that cannot work, a destination that exists, or an unfinished one that
            was started with other arguments.
        DecodeError: a file that is not an image, with ``on_error="raise"``, or no images at all.
        MissingDependencyError: ``encode="dct"`` without a native core that reads it fast; ``ray``
            without Ray.
        StoreNotFoundError: nothing there.
        StoreError: writing failed, for instance on a full disk.
    """
    chosen = Chosen.of(image_column, label_column, file_columns, masks, annotations)
    part = _split.named(split)
    if part is not None:
        source, split = part_of(source, part), None
        chosen = chosen.of_part(part)
    if on_error not in get_args(OnPackError):
        raise UsageError(f"on_error: expected 'raise' or 'skip', got {on_error!r}")
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise UsageError(f"workers: expected an integer of at least 1, got {workers!r}")
    if is_url(destination) and overwrite:
        raise UsageError(
            f"{destination!r}: expected a local destination with overwrite=True: "
            "delete the old store first"
        )
    if storage_options is not None and not (is_url(source) or is_url(destination)):
        raise UsageError(
            f"storage_options: expected a URL with them, got {source!r} and {destination!r}"
        )
    options = {"shards": shards, "shard_nbytes": shard_nbytes, "compression": compression}
    target = Resize.parse(resize) if resize is not None else None
    remote = RemoteOptions(storage_options=storage_options)
    of_destination = RemoteOptions() if is_url(source) else remote

    def pack_into(path: str) -> PackReport:
        with contextlib.ExitStack() as stack:
            given = source
            if is_url(source):
                given = stack.enter_context(_remote.fetched(str(source), chosen, remote))
            opened = open_source(given, chosen)
            if ray is not None:
                from . import _ray

                _ray.check(path, opened, Sharding(shards, shard_nbytes, len(opened)), compression)
            begin = functools.partial(
                _pack, opened, encode=encode, target=target, quality=quality, workers=workers,
                split=split, on_error=on_error, exif=exif, check=check, options=options, ray=ray,
                progress=progress, remote=of_destination,
            )  # fmt: skip
            return _begun(path, split, opened, begin, overwrite=overwrite)

    if is_url(destination) and ray is None:
        return _remote.pack_to(str(destination), split, pack_into, of_destination)
    path = os.fspath(destination)  # a URL, to which Ray's tasks write
    return pack_into(path if is_url(path) else os.path.abspath(os.path.expanduser(path)))


def _begun(
    path: str,
    split: str | None,
    opened: PackSource,
    begin: Callable[..., PackReport],
    *,
    overwrite: bool,
) -> PackReport:
    """Have ``begin`` pack to ``path``, if that may be, or beside what it is to replace."""
    staged = _turn.is_staging(path)
    parts = _split.paths(path, split)
    if not staged and not is_url(path):
        there = [part for part in parts if os.path.lexists(part) or is_manifest(part)]
        for part in there:
            clear_finished(part, mark=part if os.path.lexists(part) else sidecar_of(part))
        # A part that is missing is packed, if an interrupted run of the same settings has the rest.
        if not overwrite and len(there) == len(parts):
            raise UsageError(
                f"{there[0]!r} exists: choose another name, or replace it with overwrite=True"
            )
    try:
        if overwrite and _overwrite.needed(path, parts):
            sources = set(map(os.path.realpath, opened.paths()))
            for part in parts:
                if os.path.realpath(part) in sources:
                    raise UsageError(f"{part!r} is also the source: expected another destination")
            return _overwrite.replacing(path, parts, functools.partial(begin, staged=True))
        return begin(path, staged=staged)
    except KeyboardInterrupt as stop:
        stop.args = (_how_to_resume(path, split),)
        raise


def _how_to_resume(path: str, split: str | None) -> str:
    """What to do after a Ctrl-C that ended the writing of ``path``."""
    if is_url(path):
        return f"finished shards are in {path + '.partial'!r}: run the same again to resume"
    for part in (*_split.paths(path, split), *_split.paths(Workplace(path).staged, split)):
        if os.path.isdir(f"{part}.partial"):
            return f"the work so far is in {part + '.partial'!r}: run the same again to resume"
    return "nothing is kept of the work so far: run the same again to start anew"


def _pack(
    opened: PackSource,
    path: str,
    *,
    encode: Encoding | None,
    target: Resize | None,
    quality: int | None,
    workers: int | None,
    split: str | None,
    on_error: OnPackError,
    exif: bool,
    check: bool,
    options: dict[str, Any],
    ray: str | None,
    progress: Progress | bool | None,
    remote: RemoteOptions,
    staged: bool,
) -> PackReport:
    """``pack`` of an open source to a path with nothing there, or finished parts of a split.

    ``staged``: keep stores that an earlier run finished but was killed before moving.
    """
    started = time.monotonic()
    default: Encoding = (
        "jpeg" if opened.encoding == "keep" and target is not None else opened.encoding
    )
    encoding = _arrays.encoding_for(path, encode, default)
    making = functools.partial(
        make_encoder, encoding, resize=target, quality=quality, exif=exif, check=check
    )
    encoder = making()
    lossy = encoding == "jpeg" or (encoding == "dct" and target is not None)
    if quality is None:
        quality = QUALITY
    elif not lossy and not exif:
        raise UsageError(
            f"quality={quality}: expected encode='jpeg', or resize: encode={encoding!r} stores no "
            "image as a new JPEG"
        )
    _arrays.check_sizes(path, opened, encoding, target, exif=exif)
    if opened.joint and (target is not None or exif):
        raise UsageError(
            f"{'exif' if target is None else 'resize'}: expected images that stay as they are, "
            f"because {', '.join(opened.joint)} would no longer fit them: resize in the loader,"
            " with PackedDataset(path, joint=True)"
        )
    if opened.faults and on_error == "raise":
        first, more = min(opened.faults), len(opened.faults) - 1
        others = f" ({more:,} more {'is' if more == 1 else 'are'} wrong)" if more else ""
        raise StoreError(
            f"{opened.faults[first]}{others}: correct it, or leave such images out with "
            "on_error='skip'",
            path=opened.where(first),
            record=first,
        )
    if opened.streamed and split is not None:
        raise UsageError(
            f"{opened.path} is read from start to end, and its samples have no keys to split them "
            "by: pack it into one store, and that store with a split"
        )
    keys = list(opened.keys)
    settings = {
        "encode": encoding,
        "resize": str(target) if target is not None else None,
        "quality": quality if lossy or exif else None,
        "exif": exif,
        **({"check": True} if check else {}),
        "on_error": on_error,
        "source": opened.name(),
        "source_digest": opened.identity or opened.digest(),
    }
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(reporting("packing", progress))
        jobs = list(_jobs(path, keys, list(opened.faults), split, settings, remote))
        stores = list(map(_finished, jobs))
        finished = [part for part in stores if part is not None]
        if staged:
            _check_unchanged(opened, [job for job, part in zip(jobs, stores) if part is not None])
        # A run may have been killed between the commits of the parts of a split.
        if staged or len(finished) < len(jobs):
            jobs = [job for job in jobs if job.path not in {part.path for part in finished}]
        if ray is None:
            run = Run(opened, encoder, on_error, workers or available(), report)
            parts = _here(jobs, run, opened, options)
            skipped, kept = run.skipped, run.kept
        else:
            from .._base.ray_cluster import connected
            from ._ray import Common, RayTasks

            total = sum(len(job.indices) for job in jobs)
            sharding = Sharding(options["shards"], options["shard_nbytes"], total)
            common = Common(source=opened, encoder=making, on_error=on_error, workers=workers or 1)
            with connected(ray) as cluster:
                parts, noted = RayTasks(cluster, common, total, report).write(jobs, sharding)
            skipped, kept = noted.skipped, noted.kept
    parts = finished + parts
    return PackReport(
        parts=tuple(parts),
        skipped=(
            *(
                Skipped(path=opened.where(index), reason=opened.faults[index], record=index)
                for index in sorted(opened.faults)
            ),
            *skipped,
        ),
        left_out=tuple(opened.left_out),
        joint=dict(opened.joint),
        kept=dict(kept.most_common()),
        seconds=time.monotonic() - started,
    )


def _here(
    jobs: Sequence[PackJob], run: Run, opened: PackSource, options: Mapping[str, Any]
) -> list[PackedPart]:
    with contextlib.ExitStack() as stack:
        writers: list[tuple[PackJob, Writer, int]] = []
        for job in jobs:
            begin = functools.partial(
                open_writer, job.path, classes=opened.classes, metadata=job.metadata(opened),
                settings=job.settings, total=None if opened.streamed else len(job.indices),
                **options,
            )  # fmt: skip
            writer = _restarted(begin(), begin) if opened.streamed else begin()
            stack.callback(_leave, writer, keep=not opened.streamed)
            writers.append((job, writer, len(writer)))
        for job, writer, _ in writers:
            run.fill(writer, job.indices)
        if run.skipped and not any(len(writer) for _, writer, _ in writers):
            raise no_images(run.skipped)
        nbytes = [writer.nbytes for _, writer, _ in writers]
        for _, writer, _ in writers:
            writer.commit()
        parts = []
        for (job, _, resumed), size in zip(writers, nbytes, strict=True):
            with open_store(job.path) as store:
                parts.append(PackedPart.of(job.path, store, size, resumed))
        return parts


def _jobs(
    path: str,
    keys: list[str],
    without: list[int],
    split: str | None,
    settings: dict[str, Any],
    remote: RemoteOptions,
) -> Iterator[PackJob]:
    """The stores to write, of all records but those ``without``."""
    good = np.delete(np.arange(len(keys)), without)
    if split is None:
        alone = {**settings, "part": None}
        yield PackJob(path=path, indices=good, settings=alone, remote=remote)
        return
    shares = _split.parse(split)
    part_of_key = _split.assign(keys, list(shares.values()))
    for number, (part, name) in enumerate(zip(_split.paths(path, split), ["train", *shares])):
        yield PackJob(
            path=part,
            indices=good[part_of_key[good] == number],
            settings={**settings, "split": split, "part": name},
            remote=remote,
        )


def _finished(job: PackJob) -> PackedPart | None:
    """The store of ``job``, if an earlier run with the same settings wrote it."""
    if is_url(job.path):
        from . import _url_shards

        table = _url_shards.finished(job.path, job.remote)
        if table is None or not _same_settings(table, job):
            return None
        return PackedPart.of(job.path, table, int(table.nbytes.sum()), len(table))
    try:
        store = open_store(job.path)
    except StoreError:
        return None  # nothing there, or another store: then the writer refuses
    with store:
        if not _same_settings(store, job):
            return None
        nbytes = int(store.places(np.arange(len(store))).nbytes.sum())
        return PackedPart.of(store.path, store, nbytes, len(store))


def _check_unchanged(opened: PackSource, finished: Sequence[PackJob]) -> None:
    """Raise UsageError if a sample of a store that an earlier run finished has changed since.

    That run was killed before the store was moved or uploaded to its place.
    """
    for job in finished:
        with open_store(job.path) as store:
            since_ns = max((os.stat(file).st_mtime_ns for file in store.files), default=0)
        changed = (index for index in job.indices.tolist() if opened.changed(index, since_ns))
        first = next(changed, None)
        if first is not None:
            raise UsageError(
                f"{opened.where(first)!r} has changed since an interrupted run packed it: delete "
                f"{os.path.dirname(job.path)!r} to start again"
            )


def _same_settings(store: Store | Table, job: PackJob) -> bool:
    return all(store.metadata.get(name) == value for name, value in job.settings.items())


def _restarted(writer: Writer, begin: Callable[[], Writer]) -> Writer:
    """A writer without records: those of an iterable cannot be compared with earlier ones."""
    if not len(writer):
        return writer
    warnings.warn(
        f"what an interrupted run has packed ({describe_count(len(writer))}) is dropped: an "
        "iterable dataset is packed from its start",
        stacklevel=3,
    )
    writer.abort(keep_partial=False)
    return begin()


def _leave(writer: Writer, *, keep: bool) -> None:
    """Abort a writer unless it has committed; an empty partial is deleted."""
    writer.abort(keep_partial=keep and len(writer) > 0)
