"""``estimate``: size, packing time and loading speed of each encoding, from a sample."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from .. import _native
from .._base.machine.cpu import available
from .._base.machine.load import Others
from ..errors import DecodeError, MissingDependencyError, UsageError
from ..hints import Encoding
from ..storage import open_store, open_writer
from . import _arrays, _split
from ._chunk import Chunk, read_chunk
from ._encoders import ENCODINGS, make_encoder
from ._labels import Chosen
from ._open import open_source, part_of
from ._resize import Resize
from ._source import PackSource

_SAMPLED = 128  # images: a second or two for each encoding of photos
_PIXELS = 1 << 27  # of the images of one encoding: raw, they take 400 MB in a temporary folder
_ROUNDS = 3  # of loading, after one that warms up; the fastest counts
_SIDE = 224  # pixels that images are cropped to, if they are that large


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate for one encoding.

    Attributes:
        nbytes: total size of the records.
        pack_seconds: to read and encode everything on ``workers`` threads, without writing.
        load_images_per_s: decoded, cropped at random and resized by the engine, on as many threads.
        sampled: number of images measured.
        others: share of the CPUs that other programs took meanwhile.
    """

    encode: str
    nbytes: int
    pack_seconds: float
    load_images_per_s: float
    sampled: int
    others: float


def estimate(
    source: object,
    destination: str | os.PathLike[str],
    *,
    encode: Encoding | None = None,
    resize: str | int | None = None,
    quality: int | None = None,
    workers: int | None = None,
    split: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    file_columns: Sequence[str] | str | None = None,
    masks: str | os.PathLike[str] | None = None,
    annotations: str | os.PathLike[str] | None = None,
) -> tuple[Estimate, ...]:
    """What ``pack`` with these arguments would take, measured on 128 images of the source.

    Example:
        >>> max(estimate("imgs", "imgs.lmdb"), key=lambda one: one.load_images_per_s).encode
        'dct'

    Args:
        source, destination, encode, resize, quality, workers, split, image_column, label_column,
            file_columns, masks, annotations: as for ``pack``. ``encode=None`` tries every encoding
            that the format can hold. Nothing is written to ``destination``.

    Returns:
        One item for each encoding, the fastest to load first.

    Raises:
        UsageError, StoreError: as ``pack`` does.
        MissingDependencyError: there is no native core, whose loading is measured.
        DecodeError: none of the images can be read.
    """
    _native.required("estimating (--dry-run) needs the native core")
    target = Resize.parse(resize) if resize is not None else None
    chosen = Chosen.of(image_column, label_column, file_columns, masks, annotations)
    part = _split.named(split)
    if part is not None:
        source, chosen = part_of(source, part), chosen.of_part(part)
    opened = open_source(source, chosen)
    if opened.streamed:
        raise UsageError(
            f"{opened.path} does not say how many samples it has, so nothing can be estimated "
            "(--dry-run): pack it"
        )
    threads = workers or available()
    path = os.path.abspath(os.path.expanduser(os.fspath(destination)))
    others = Others()
    # How many records, their bytes, and the seconds to read and encode them.
    measured: list[tuple[Encoding, int, int, float]] = []
    good, reason = np.delete(np.arange(len(opened)), list(opened.faults)), "it is empty"
    count = min(len(good), _SAMPLED)
    with tempfile.TemporaryDirectory(prefix="fastload-") as folder, contextlib.ExitStack() as stack:
        loaders = []
        for name in ENCODINGS if encode is None else (encode,):
            try:
                _arrays.encoding_for(path, name, name)
                encoder = make_encoder(name, resize=target, quality=quality)
            except (UsageError, MissingDependencyError):
                if encode is not None:
                    raise
                continue  # not possible with this format, resize or libjpeg
            indices = good[np.unique(np.linspace(0, len(good) - 1, count).astype(np.int64))]
            begin = time.perf_counter()
            chunk = read_chunk(opened, indices, encoder, threading.Event())
            seconds = time.perf_counter() - begin
            if not chunk.data:
                reason = chunk.failed[0][1] if chunk.failed else reason
                continue
            count = min(count, max(1, int(_PIXELS / chunk.sizes.prod(1).mean())))
            load = _loader(opened, chunk, threads, os.path.join(folder, f"{name}.lmdb"), stack)
            loaders.append(load)
            measured.append((name, len(chunk.data), sum(map(len, chunk.data)), seconds))
        if not measured:
            raise DecodeError(f"no image could be read: {reason}", path=opened.path)
        # In turn, so that a machine that becomes slower or faster meanwhile favours none of them.
        rounds = [[load(epoch) for load in loaders] for epoch in range(_ROUNDS + 1)]
    share = others.share()
    estimates = [
        Estimate(
            encode=name,
            nbytes=round(nbytes * len(opened) / done),
            pack_seconds=seconds * len(opened) / done / threads,
            load_images_per_s=done / min(load_s),
            sampled=done,
            others=share,
        )
        for (name, done, nbytes, seconds), *load_s in zip(measured, *rounds[1:], strict=True)
    ]
    return tuple(sorted(estimates, key=lambda one: -one.load_images_per_s))


def _loader(
    source: PackSource, chunk: Chunk, threads: int, path: str, stack: contextlib.ExitStack
) -> Callable[[int], float]:
    """Loads the records of ``chunk`` by the engine, for an epoch; returns the seconds it took."""
    from torchvision.transforms import v2

    from .._base.slabs import SlabRing
    from .._engine.image_engine import EngineOptions
    from .._engine.registry import make_engine, native
    from .._transforms.recognise import Plan, recognise

    side = int(min(_SIDE, chunk.sizes.min()))
    steps = [v2.RandomResizedCrop(side), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    plan = recognise(v2.Compose(steps))
    assert isinstance(plan, Plan)  # all these transforms are recognised
    with open_writer(path) as writer:
        writer.extend(chunk.batch(source))
    store = stack.enter_context(open_store(path))
    options = EngineOptions(threads=threads, ring=SlabRing(2), check_crc="never")
    decoder, user = make_engine(native(), store, plan, options), object()
    decoder.acquire(user)
    stack.callback(decoder.release, user)

    def load(epoch: int) -> float:
        begin = time.perf_counter()
        decoder.submit(np.arange(len(store)), seed=0, epoch=epoch).result()
        return time.perf_counter() - begin

    return load
