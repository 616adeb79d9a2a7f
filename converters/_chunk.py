"""A chunk of a source on its way into a store: read and encoded, with checksums."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Iterable

import numpy as np

from ..errors import DataError, DecodeError, sample_error
from ..storage import DCT, ENCODED, RAW, Batch
from ..storage._crc import crc32c
from ..storage._read import Where
from ._encoders import Encoded, Encoder, examine, plain
from ._gather import Gatherer
from ._source import LabelsAndFields, PackSource, Sample

# ``Run`` names the sample, if it is refused.
_NOWHERE: Where = {"path": None, "record": None, "offset": None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """Records ready to be written, as in ``Batch``, and the samples that gave none."""

    indices: np.ndarray  # int64 (n,), of the records in the source
    data: list[bytes | memoryview]
    sizes: np.ndarray
    kinds: np.ndarray
    crc32c: np.ndarray
    annotations: LabelsAndFields
    failed: list[tuple[int, str]]  # index and reason of each that is not read, or no image
    kept: collections.Counter[str]  # why records keep their bytes despite another wanted encoding
    # int64, the last of the wanted indices, not read because of too many bytes
    left: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))

    def batch(self, source: PackSource) -> Batch:
        """The records, which come from ``source``."""
        return Batch(
            data=self.data,
            keys=[source.key(index) for index in self.indices.tolist()],
            labels=self.annotations.labels,
            sizes=self.sizes,
            kinds=self.kinds,
            crc32c=self.crc32c,
            fields=self.annotations.fields,
            field_kinds=self.annotations.field_kinds,
        )


def read_chunk(
    source: PackSource,
    indices: np.ndarray,
    encoder: Encoder,
    stop: threading.Event,
    samples: Iterable[Sample | DataError] | None = None,
    gatherer: Gatherer | None = None,
) -> Chunk:
    """Read and encode some samples; once ``stop`` is set, return those that are done.

    ``samples``: those of ``indices`` (int64, ascending), if another thread has read them.
    ``gatherer`` reads files that the encoder keeps unchanged.
    """
    if gatherer is None or samples is not None or not encoder.as_is or stop.is_set():
        return _one_by_one(source, indices, encoder, stop, samples)
    gathered = gatherer.read(indices)
    indices, left = np.split(indices, [len(gathered.readable)])
    mine = indices[gathered.readable]
    others = _one_by_one(source, indices[~gathered.readable], encoder, stop, None)
    both = np.concatenate([mine, others.indices])
    order = np.argsort(both, kind="stable")
    data, kinds = [*gathered.data, *others.data], np.full(len(mine), ENCODED, np.uint8)
    return Chunk(
        indices=both[order],
        data=[data[at] for at in order.tolist()],
        sizes=np.concatenate([gathered.sizes, others.sizes])[order],
        kinds=np.concatenate([kinds, others.kinds])[order],
        crc32c=np.concatenate([gathered.crc32c, others.crc32c])[order],
        annotations=source.annotate(both[order], ()) if len(both) else LabelsAndFields(),
        failed=others.failed,
        kept=others.kept,
        left=left,
    )


def _one_by_one(
    source: PackSource,
    indices: np.ndarray,
    encoder: Encoder,
    stop: threading.Event,
    samples: Iterable[Sample | DataError] | None,
) -> Chunk:
    """As ``read_chunk``, for any source and any encoder."""
    done: list[int] = []
    taken: list[Sample] = []
    data: list[bytes | memoryview] = []
    crcs: list[int] = []
    shape: list[tuple[int, int, int]] = []
    failed: list[tuple[int, str]] = []
    kept: collections.Counter[str] = collections.Counter()
    samples = source.read(indices) if samples is None else samples
    for index, sample in zip(indices.tolist(), samples):
        if stop.is_set():
            break
        try:
            if isinstance(sample, DataError):
                raise sample
            encoded = _encode(encoder, sample)
        except Exception as error:  # noqa: BLE001 - libraries raise anything for damaged images
            failed.append((index, sample_error(error).message))
            continue
        done.append(index)
        taken.append(sample)
        data.append(encoded.data)
        crc = sample.crc32c if encoded.data is sample.data else None
        crcs.append(crc32c(encoded.data) if crc is None else crc)
        if encoded.kept is not None:
            kept[encoded.kept] += 1
        shape.append((encoded.width, encoded.height, encoded.kind))
    shapes = np.array(shape, np.int32).reshape(-1, 3)
    chosen = np.array(done, np.int64)
    return Chunk(
        indices=chosen,
        data=data,
        sizes=np.ascontiguousarray(shapes[:, :2]),
        kinds=shapes[:, 2].astype(np.uint8),
        crc32c=np.array(crcs, np.uint32),
        annotations=source.annotate(chosen, taken) if done else LabelsAndFields(),
        failed=failed,
        kept=kept,
    )


def _encode(encoder: Encoder, sample: Sample) -> Encoded:
    """``sample`` as a record. A record of a store stays unchanged if the encoder keeps its kind."""
    data, size = sample.data, sample.size
    if not isinstance(data, bytes):
        try:
            data.load()  # a Dataset may have opened a file and read only the header
        except (OSError, SyntaxError, ValueError) as error:
            raise DecodeError(f"the image cannot be decoded: {error}") from error
        return encoder.image(plain(data))
    if size is not None and sample.kind in encoder.keeps:
        _judge(data, sample, check=encoder.check)
        return Encoded(data, sample.kind, *size)
    if sample.kind not in (RAW, DCT):
        return encoder.file(data)
    from .._engine.pillow import dct_to_jpeg, image_of

    if sample.kind == RAW:
        return encoder.image(image_of(data, RAW, size or (0, 0), _NOWHERE))
    return encoder.file(dct_to_jpeg(data, _NOWHERE))


def _judge(data: bytes, sample: Sample, *, check: bool) -> None:
    """Raise DecodeError for a damaged record that would be kept unchanged."""
    if sample.kind == ENCODED:
        if check or not sample.written:
            examine(data, check=check)
    elif check:
        from .._engine.pillow import image_of

        image_of(data, sample.kind, sample.size or (0, 0), _NOWHERE)
