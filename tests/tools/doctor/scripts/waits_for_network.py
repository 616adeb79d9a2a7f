"""Small records behind a slow network, each fetched by a request of its own."""

import sys
from pathlib import Path

import numpy as np
from common import FOLDER, train

from fastload import FastLoader, PackedDataset
from fastload.storage import Record, open_writer

sys.path.append(str(Path(__file__).resolve().parents[3]))
from object_server import Faults, ObjectServer

SIDE = 64

if __name__ == "__main__":
    (FOLDER / "elsewhere").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (960, SIDE, SIDE, 3), np.uint8)
    with open_writer(FOLDER / "elsewhere" / "raw.lmdb", classes=["one"]) as writer:
        writer.append(
            [
                Record(data=one.tobytes(), label=0, key=str(i), width=SIDE, height=SIDE, kind=1)
                for i, one in enumerate(pixels)
            ]
        )
    server = ObjectServer(FOLDER / "elsewhere")
    server.faults = Faults(latency_s=0.2)
    url, cache = f"{server.url}/raw.lmdb", FOLDER / "cache"
    train(
        FastLoader(PackedDataset(url, cache_dir=cache), 32, shuffle=True, drop_last=True),
        work_s=0.005,
    )
