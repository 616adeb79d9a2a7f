"""What packing with Ray costs per record: seconds, the manifest, and the memory of this process.

    python -m bench.ray_scale 400000

Records are small, because their bytes are not what is measured. Prints a line of JSON, which
docs/distributed.md extrapolates.
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from fastload import open_writer, pack
from fastload.storage import Batch
from fastload.storage._crc import crc32c

_AT_A_TIME = 5000
_CLASSES = 1000
_SHARDS = 20


def make(path: Path, count: int) -> None:
    """A store of ``count`` equal records with keys as ImageNet has them."""
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (24, 24, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG")
    data = buffer.getvalue()
    classes = [f"n{number:08d}" for number in range(_CLASSES)]
    with open_writer(path, classes=classes) as writer:
        for at in range(0, count, _AT_A_TIME):
            n = min(_AT_A_TIME, count - at)
            numbers = range(at, at + n)
            writer.extend(
                Batch(
                    data=[data] * n,
                    keys=[f"{classes[i % _CLASSES]}/{classes[i % _CLASSES]}_{i}" for i in numbers],
                    labels=np.arange(at, at + n) % _CLASSES,
                    sizes=np.full((n, 2), 24, np.int32),
                    kinds=np.zeros(n, np.uint8),
                    crc32c=np.full(n, crc32c(data), np.uint32),
                )
            )


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main(count: int) -> None:
    import ray

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "source.tfrecord", count)
        ray.init(include_dashboard=False, log_to_driver=False)
        before, begin = peak(), time.monotonic()
        out = folder / "out.tfrecord"
        report = pack(folder / "source.tfrecord", out, ray="local", shards=_SHARDS)
        figures = {
            "shards": _SHARDS,
            "records": report.records,
            "seconds": round(time.monotonic() - begin, 1),
            "manifest_nbytes": os.path.getsize(folder / "out.tfrecord.fastload"),
            "peak_nbytes_before": before,
            "peak_nbytes": peak(),
        }
        print(json.dumps(figures), flush=True)
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
