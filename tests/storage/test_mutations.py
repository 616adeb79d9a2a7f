"""Stores whose files were changed at random: an error of ours, or the records that were written."""

from __future__ import annotations

import dataclasses
import random
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as T

from fastload import FastLoader
from fastload._tools.summary import summarise
from fastload._tools.verify import verify
from fastload.converters._store_source import StoreSource
from fastload.errors import DataError, FastloadError
from fastload.storage import Record, open_store
from storage.formats import ROWS, Row

COUNT = 12
EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


def filled(row: Row) -> list[Record]:
    """Records with fields of every kind, where the format has them."""
    if not row.fields:
        return row.records(COUNT)
    return [
        dataclasses.replace(
            record,
            fields={"mask": b"\0" * i, "text": f"é {i}", "more": {"a": i}, "number": 0.5 * i},
        )
        for i, record in enumerate(row.records(COUNT))
    ]


def content(path: Path) -> tuple[list[bytes], bool]:
    """All records, after everything else of the store was read; whether they have checksums."""
    with open_store(path) as store:
        everything = np.arange(len(store))
        for name, field in store.fields.items():
            if field.kind == "array":
                store.column(name)
            else:
                store.values(name, everything)
        store.keys(everything)
        store.sizes(everything)
        found = []
        for sample in StoreSource(store).read(everything):
            if isinstance(sample, DataError):
                raise sample
            assert isinstance(sample.data, bytes)
            found.append(sample.data)
        return found, store.checksums(everything) is not None


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A bit changed, bytes put in, left out or zeroed, a number made extreme, or an end missing."""
    made, n = bytearray(data), max(len(data), 1)
    near = min(n, 512)  # headers are at one end or the other
    at = chance.choice(
        [chance.randrange(n), chance.randrange(near), n - 1 - chance.randrange(near)]
    )
    match chance.randrange(6):
        case 0:
            return bytes(made[:at])
        case 1:
            made[at:at] = chance.randbytes(chance.choice([1, 4, 64]))
        case 2:
            del made[at : at + chance.choice([1, 2, 4])]
        case 3:
            made[at : at + 8] = bytes(len(made[at : at + 8]))
        case 4:
            width, order = chance.choice([4, 8]), chance.choice(["little", "big"])
            number = chance.choice(EXTREMES) % 256**width
            made[at : at + width] = number.to_bytes(width, order)  # type: ignore[arg-type]
        case _:
            made[at : at + 1] = bytes([made[at] ^ 1 << chance.randrange(8)] if made else [])
    return bytes(made)


def rearranged(data: bytes, chance: random.Random) -> bytes:
    """Cut off, swapped or repeated at boundaries of blocks and pages, or another number in text."""
    made, n = bytearray(data), max(len(data), 1)
    step = chance.choice([8, 64, 512, 4096])
    a, b = (chance.randrange(n // step + 1) * step for _ in range(2))
    match chance.randrange(5):
        case 0:
            return bytes(made[:a])
        case 1:
            made[a : a + step], made[b : b + step] = made[b : b + step], made[a : a + step]
        case 2:
            made[a:a] = made[b : b + step]
        case 3:
            made += bytes(step)
        case _:
            numbers = list(re.finditer(rb"\d+", data))
            if numbers:
                odd = [b"-1", b"1e308", b"18446744073709551616", b"null", b'"a"', b"[]", b"9" * 30]
                found = chance.choice(numbers)
                made[found.start() : found.end()] = chance.choice(odd)
    return bytes(made)


def batches(path: Path) -> list[torch.Tensor]:
    """The images of a store as a loader gives them."""
    chain = T.Compose([T.CenterCrop(4), T.ToTensor()])
    found = []
    for batch in FastLoader(path, 5, num_workers=0, transform=chain):
        images = batch["image"] if isinstance(batch, dict) else batch
        found.append(images if isinstance(images, torch.Tensor) else images[0])
    return found


# What commands and loaders do with a store.
USES: list[Callable[[Path], Any]] = [
    batches,
    lambda path: verify(path, workers=1).damaged,
    lambda path: summarise(open_store(path)),
]


# pylance may not return from a damaged file: nothing in its files says how much a row may have.
@pytest.mark.parametrize("row", [row for row in ROWS if not row.library], ids=lambda row: row.name)
def test_every_use_of_a_changed_store_succeeds_or_names_the_store(
    row: Row, tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    (tmp_path / "made").mkdir()
    place = row.make(tmp_path / "made", filled(row)).relative_to(tmp_path / "made")
    expected = batches(tmp_path / "made" / place)
    names = [path for path in sorted((tmp_path / "made").rglob("*")) if path.is_file()]
    for seed in range(count(4, 1000)):
        chance = random.Random(seed)
        shutil.rmtree(tmp_path / "work", ignore_errors=True)
        shutil.copytree(tmp_path / "made", tmp_path / "work")
        name = chance.choice(names)
        target = tmp_path / "work" / name.relative_to(tmp_path / "made")
        target.write_bytes(rearranged(name.read_bytes(), chance))
        for use in USES:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a sidecar that does not fit
                    found = use(tmp_path / "work" / place)
                    kept = open_store(tmp_path / "work" / place).checksums(np.arange(1)) is not None
            except FastloadError as error:
                assert str(tmp_path / "work") in str(error), f"seed {seed}: {error}"
                continue
            if use is batches and kept:
                same = len(found) == len(expected) and all(map(torch.equal, found, expected))
                assert same, f"seed {seed}: other batches, silently"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_changed_files_give_an_error_of_ours_or_the_records_that_were_written(
    row: Row, tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    (tmp_path / "made").mkdir()
    place = row.make(tmp_path / "made", filled(row)).relative_to(tmp_path / "made")
    expected, _ = content(tmp_path / "made" / place)
    names = [path for path in sorted((tmp_path / "made").rglob("*")) if path.is_file()]
    endings: dict[str, Any] = {"same": 0, "other": 0, "error": 0}
    for seed in range(count(25, 2000)):
        chance = random.Random(seed)
        shutil.rmtree(tmp_path / "work", ignore_errors=True)
        shutil.copytree(tmp_path / "made", tmp_path / "work")
        for name in chance.sample(names, 1):
            target = tmp_path / "work" / name.relative_to(tmp_path / "made")
            target.write_bytes(mutated(name.read_bytes(), chance))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a sidecar that does not fit
                found, checked = content(tmp_path / "work" / place)
        except FastloadError as error:
            endings["error"] += 1
            assert not isinstance(error, DataError) or error.path, error
            continue
        endings["same" if found == expected else "other"] += 1
        assert found == expected or not checked, f"seed {seed}: other records, silently"
    assert endings["error"] or not row.checksums
