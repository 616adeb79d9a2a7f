"""Rows for the contract tests, made from the registry of formats: how to write a store of each one,
and how to read its bytes without fastload."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import itertools
import json
import os
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google_crc32c import value as crc32c
from PIL import Image

from fastload import FastLoader
from fastload.storage import RAW, Record, Store, known_formats, open_store, open_writer
from fastload.storage._read import read_records

KEYS = ["Ähre/ein Bild 1.jpg", "Ähre/ein Bild 2.jpg", "猫/三 毛.jpg", "猫/写真 🐈.jpg"]
CLASSES = ["Ähre", "猫"]


def picture(seed: int, width: int, height: int) -> bytes:
    """A small JPEG."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def records(count: int) -> list[Record]:
    """``count`` records in the order of ImageFolder: names with spaces and non-Latin letters."""
    made = []
    for index in range(count):
        label = index * 2 // max(count, 1)
        width, height = 5 + index % 60, 4 + index % 50
        made.append(
            Record(
                data=picture(index, width, height),
                label=label,
                key=f"{CLASSES[label]}/Bild Nr {index:06d} 写真.jpg",
                width=width,
                height=height,
            )
        )
    return made


def pixels(count: int) -> list[Record]:
    """The same as raw pixels, all of 7 x 5."""
    made = []
    for index, record in enumerate(records(count)):
        data = np.random.default_rng(index).integers(0, 256, 7 * 5 * 3, dtype=np.uint8).tobytes()
        made.append(dataclasses.replace(record, data=data, width=7, height=5, kind=RAW))
    return made


def distinct(record: Record, number: int) -> bytes:
    """The bytes of ``record``, changed so that no other number gives the same."""
    mark = number.to_bytes(4, "little")
    if record.kind == RAW:
        return mark + bytes(record.data[4:])
    return bytes(record.data) + mark  # after the end of a JPEG


@dataclasses.dataclass(frozen=True)
class Row:
    """One format, or one way to write it.

    Attributes:
        name: of the row.
        suffix: of its stores.
        make: (folder, records) -> path of a store with these records.
        raw: path -> the bytes of all records in order, read without fastload; None: there is no
            other reader.
        empty: whether the format has empty stores.
        checksums: whether it has checksums.
        fields: whether it stores labels of all shapes, and named fields.
        keys: whether it has names of records; otherwise they are numbers.
        written: whether fastload writes it.
        library: only a library of its own finds records in its files, and works in no forked child.
        records: number -> records that it can hold.
        shards: the number of files that ``make`` writes; None: one.
    """

    name: str
    suffix: str
    make: Callable[[Path, Sequence[Record]], Path]
    raw: Callable[[Path], list[bytes]] | None
    empty: bool = True
    checksums: bool = True
    fields: bool = True
    keys: bool = True
    written: bool = True
    library: bool = False
    records: Callable[[int], list[Record]] = records
    shards: int | None = None


def _packed(suffix: str, shards: int | None = None) -> Callable[[Path, Sequence[Record]], Path]:
    def make(folder: Path, records: Sequence[Record]) -> Path:
        path = folder / f"ein Speicher 貯蔵{suffix}"
        with open_writer(
            path, classes=CLASSES, metadata={"made by": "test"}, shards=shards, total=len(records)
        ) as writer:
            writer.append(records)
        return path

    return make


def _of_shards(raw: Callable[[Path], list[bytes]]) -> Callable[[Path], list[bytes]]:
    def all_of_them(path: Path) -> list[bytes]:
        found = sorted(path.parent.glob(f"{path.stem}-*{path.suffix}"))
        assert len(found) == 3
        return [record for shard in found for record in raw(shard)]

    return all_of_them


def _raw_lmdb(path: Path) -> list[bytes]:
    import lmdb

    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=2) as env:
        table = env.open_db(b"records", create=False)
        with env.begin(db=table) as transaction:
            items = list(transaction.cursor())
    assert [key for key, _ in items] == [struct.pack(">Q", i) for i in range(len(items))]
    return [bytes(value) for _, value in items]


def _raw_hdf5(path: Path) -> list[bytes]:
    import h5py

    with h5py.File(path) as file:
        if "images" in file:
            return [image.tobytes() for image in file["images"]]
        data, offsets = file["bytes"], file["offsets"]
        return [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]


def _raw_pth(path: Path) -> list[bytes]:
    import torch

    images = torch.load(path, weights_only=True, mmap=True)["images"]
    return [image.permute(1, 2, 0).numpy().tobytes() for image in images]


def _raw_n5(path: Path) -> list[bytes]:
    tensorstore = pytest.importorskip("tensorstore")  # needs Python 3.11
    kvstore = {"driver": "file", "path": str(path / "images")}
    images = tensorstore.open({"driver": "n5", "kvstore": kvstore}).result().read().result()
    return [np.transpose(images[..., i]).tobytes() for i in range(images.shape[-1])]


def _raw_zarr(path: Path) -> list[bytes]:
    zarr = pytest.importorskip("zarr")  # needs Python 3.11
    return [np.asarray(image).tobytes() for image in zarr.open_array(path / "images", mode="r")[:]]


def _raw_tfrecord(path: Path) -> list[bytes]:
    from tfrecord.reader import tfrecord_loader

    loaded = tfrecord_loader(str(path), None, {"image/encoded": "byte"})
    return [bytes(example["image/encoded"]) for example in loaded]


def _raw_recordio(path: Path) -> list[bytes]:
    """By the specification of RecordIO; with one label in the header of an image."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        magic, nbytes = struct.unpack_from("<II", data, at)
        assert magic == 0xCED7230A and nbytes < 1 << 29
        flag = struct.unpack_from("<IfQQ", data, at + 8)[0]
        assert flag == 0
        found.append(data[at + 8 + 24 : at + 8 + nbytes])
        at += 8 + (nbytes + 3) // 4 * 4
    return found


def _raw_tar(path: Path) -> list[bytes]:
    with tarfile.open(path) as archive:
        members = [member for member in archive if member.name.endswith(".jpg")]
        return [archive.extractfile(member).read() for member in members]  # type: ignore[union-attr]


def _make_parquet(folder: Path, records: Sequence[Record]) -> Path:
    """As Hugging Face's datasets writes it, without its struct."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "ein Speicher 貯蔵.parquet"
    features = {"label": {"_type": "ClassLabel", "names": CLASSES}, "image": {"_type": "Image"}}
    columns = {
        "image": pa.array([bytes(record.data) for record in records], pa.binary()),
        "label": pa.array([record.label for record in records], pa.int64()),
    }
    noted = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.table(columns, metadata=noted), path, row_group_size=7)
    return path


def _raw_parquet(path: Path) -> list[bytes]:
    import pyarrow.parquet as pq

    found: list[bytes] = pq.read_table(path)["image"].to_pylist()
    return found


def _make_lance(folder: Path, records: Sequence[Record]) -> Path:
    import lance

    path = folder / "ein Speicher 貯蔵.lance"
    parquet = _make_parquet(folder, records)
    import pyarrow.parquet as pq

    lance.write_dataset(pq.read_table(parquet), str(path), max_rows_per_file=7)
    parquet.unlink()
    return path


def _raw_lance(path: Path) -> list[bytes]:
    import lance

    found: list[bytes] = lance.dataset(str(path)).to_table(columns=["image"])["image"].to_pylist()
    return found


def _make_folder(folder: Path, records: Sequence[Record]) -> Path:
    root = folder / "ein Ordner 写真"
    for record in records:
        path = root / record.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record.data)
    return root


def _raw_folder(path: Path) -> list[bytes]:
    found = sorted(os.path.join(root, name) for root, _, names in os.walk(path) for name in names)
    return [Path(name).read_bytes() for name in found]


# Readers of other projects, or written here from the specification. A format without one skips the
# tests that compare with it.
_RAW = {
    "lmdb": _raw_lmdb,
    "hdf5": _raw_hdf5,
    "pth": _raw_pth,
    "n5": _raw_n5,
    "zarr": _raw_zarr,
    "tfrecord": _raw_tfrecord,
    "recordio": _raw_recordio,
    "tar": _raw_tar,
}


def _rows() -> Iterator[Row]:
    """Rows for every registered format that can be written, and for folders of images."""
    for known in known_formats():
        if known.writer is None:
            continue
        name, suffix, raw = known.name, known.suffixes[0], _RAW.get(known.name)
        made = pixels if known.pixels == "only" else records
        yield Row(name, suffix, _packed(suffix), raw, records=made)
        if known.pixels == "one size":
            yield Row(f"{name}-raw", suffix, _packed(suffix), raw, records=pixels)
        if "shards" in known.options and not known.folders:
            of_all = None if raw is None else _of_shards(raw)
            yield Row(f"{name}-shards", suffix, _packed(suffix, 3), of_all, records=made, shards=3)
    if importlib.util.find_spec("pyarrow") is not None:
        yield Row(
            "parquet", ".parquet", _make_parquet, _raw_parquet,
            checksums=False, fields=False, keys=False, written=False,
        )  # fmt: skip
    if importlib.util.find_spec("lance") is not None:
        yield Row(
            "lance", ".lance", _make_lance, _raw_lance,
            checksums=False, fields=False, keys=False, written=False, library=True,
        )  # fmt: skip
    yield Row("folder", "", _make_folder, _raw_folder, empty=False, checksums=False, fields=False)


ROWS = list(_rows())
PACKED = [row for row in ROWS if row.written and row.suffix]


def alone(path: Path) -> Path:
    """Remove the sidecar of a store of one file; a pattern for what is left."""
    os.remove(f"{path}.fastload")
    return path.with_name(f"[{path.name[0]}]{path.name[1:]}")


def digest(path_or_store: Any, queue: Any = None) -> list[int]:
    """What a process sees of a store, boiled down."""
    store = path_or_store if isinstance(path_or_store, Store) else open_store(path_or_store)
    indices = np.arange(len(store))
    seen = [crc32c(data) for data in read_records(store, indices)]
    if store.labels is not None:
        seen += store.labels.tolist()
    seen += [crc32c(key.encode()) for key in store.keys(indices)]
    if queue is not None:
        queue.put(seen)
    return seen


def write(path: Path, given: list[Record], **options: Any) -> Path:
    """A store of ``given``, in two parts."""
    with open_writer(path, classes=CLASSES, **options) as writer:
        writer.append(given[:7])
        writer.append(given[7:])
    return path


def loaded(path: Path | Store, **options: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """All images, uint8 (N, 3, H, W), and labels if there are any, by FastLoader."""
    found = list(FastLoader(path, batch_size=8, num_workers=2, **options))
    if isinstance(found[0], torch.Tensor):
        return torch.cat(found), None
    return torch.cat([one[0] for one in found]), torch.cat([one[1] for one in found])


def data_of(path: Path | str) -> list[bytes]:
    """The bytes of all records, by fastload."""
    store = open_store(path)
    return list(read_records(store, np.arange(len(store))))
