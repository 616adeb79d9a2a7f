"""Read-ahead changes no batch, announces each record once, and stops where nothing is read."""

from __future__ import annotations

import os
import types
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import RandomSampler
from torchvision.datasets import ImageFolder

from batches import TRAIN
from fastload import FastLoader, StoreError
from fastload._run import readahead as _readahead
from fastload._run.drawing import index_batches
from fastload._run.order import Batches
from fastload._run.readahead import ReadAhead
from fastload.storage.base import Spans
from sides import assert_same

TABLES = -77  # where they lie here
NBYTES = (1 << 20) - 4096  # of every record here: with its page, a window is 64 of them


class Recorder:
    """A decoder that notes what is announced: lists of record numbers."""

    def __init__(self, nbytes: int = NBYTES, tables: int = 0) -> None:
        self.calls: list[list[int]] = []
        self.waited: list[bool] = []
        self.store = types.SimpleNamespace(places=self._spans, tables=self._tables)
        self._nbytes = nbytes
        self._tables_nbytes = tables

    def _tables(self) -> Spans:
        one = np.zeros(1 if self._tables_nbytes else 0, np.int64)
        return Spans(
            file=one.astype(np.int32), offset=one + TABLES, nbytes=one + self._tables_nbytes
        )

    def _spans(self, records: np.ndarray) -> Spans:
        if (records < 0).any():
            raise StoreError("outside", path="x")
        return Spans(
            file=np.zeros(len(records), np.int32),
            offset=records,
            nbytes=np.full(len(records), self._nbytes),
        )

    def readahead(self, spans, *, wait=False) -> None:
        self.calls.append([int(offset) for some in spans for offset in some.offset])
        self.waited.append(wait)

    @property
    def announced(self) -> list[int]:
        return [record for call in self.calls for record in call]


@pytest.fixture
def disk(monkeypatch):
    """A counter of bytes read, which rises by ``disk.rate`` at every look."""
    disk = types.SimpleNamespace(rate=0, total=0)

    def read() -> int:
        disk.total += disk.rate
        return disk.total

    monkeypatch.setattr(_readahead, "_nbytes_read", read)
    return disk


def batches(count: int, size: int) -> Batches:
    return Batches(np.arange(count * size, dtype=np.int64), size, False)


def run(decoder: Recorder, order: Batches, known: Batches) -> list[int]:
    """Submit all of ``order``; how many records beyond each batch were announced by then."""
    ahead = ReadAhead(decoder, lambda indices: indices, known)
    lead = []
    for records in order:
        ahead.submitted(records)
        lead.append(len(decoder.announced) - 1 - int(records[-1]))
    return lead


def test_a_warm_cache_is_announced_one_batch_and_no_more(disk):
    decoder, order = Recorder(), batches(50, 4)
    run(decoder, order, order)
    assert decoder.calls == [[0, 1, 2, 3]]
    assert decoder.waited == [True]  # so that the look after it sees what it read


def test_a_cold_cache_is_announced_once_each_in_order_within_the_window(disk):
    disk.rate = 1 << 30
    decoder, order = Recorder(), batches(100, 4)
    lead = run(decoder, order, order)
    assert decoder.announced == list(range(400))
    assert lead[:3] == [0, 0, 0]  # the first batches come first
    assert max(lead) == 64
    assert min(lead[3:80]) >= 48  # a piece of 16 is announced when it is missing


def test_announcements_come_in_pieces_that_are_worth_sorting(disk):
    disk.rate = 1 << 30
    decoder, order = Recorder(), batches(100, 4)
    run(decoder, order, order)
    assert {len(call) for call in decoder.calls[3:]} == {16, 4}  # 4: the end of the epoch


def test_small_batches_are_announced_few_at_a_time_and_count_their_pages(disk):
    disk.rate = 1 << 30
    decoder, order = Recorder(nbytes=1), batches(500, 256)
    lead = run(decoder, order, order)
    assert lead[2:6] == [0, 16 * 256, 31 * 256, 46 * 256]
    assert 59 * 256 < max(lead) < 65 * 256
    assert max(map(len, decoder.calls)) == 16 * 256
    assert decoder.announced == list(range(500 * 256))


def test_batches_larger_than_the_window_are_announced_one_ahead(disk):
    disk.rate = 1 << 30
    decoder, order = Recorder(), batches(5, 200)
    assert run(decoder, order, order) == [0, 0, 0, 200, 0]
    assert decoder.announced == list(range(1000))


def test_a_file_of_unknown_length_counts_as_a_typical_one(disk):
    disk.rate = 1 << 30
    decoder, order = Recorder(nbytes=-1), batches(100, 16)
    assert max(run(decoder, order, order)) == 512  # of 132 KB each, in whole batches


def test_it_starts_when_something_is_read_and_ends_when_nothing_is(disk):
    decoder, order = Recorder(), batches(200, 64)
    ahead = ReadAhead(decoder, lambda indices: indices, order)
    calls = []
    for number, records in enumerate(order):
        disk.rate = 1 << 20 if 50 <= number < 60 else 100
        ahead.submitted(records)
        calls.append(len(decoder.calls))
    assert calls[49] == 1
    assert calls[50] > 1
    assert calls[59] > calls[58]
    assert calls[70] == calls[199]
    assert len(decoder.announced) == len(set(decoder.announced))


def test_small_tables_are_announced_first_and_large_ones_when_it_is_cold(disk):
    decoder = Recorder(tables=64 << 20)
    run(decoder, batches(5, 4), batches(5, 4))
    assert decoder.calls == [[TABLES], [0, 1, 2, 3]]
    assert decoder.waited == [True, True]
    decoder = Recorder(tables=(64 << 20) + 1)
    run(decoder, batches(5, 4), batches(5, 4))
    assert decoder.calls == [[0, 1, 2, 3]]
    disk.rate = 1 << 30
    decoder = Recorder(tables=(64 << 20) + 1)
    run(decoder, batches(5, 4), batches(5, 4))
    assert decoder.calls[:3] == [[0, 1, 2, 3], [TABLES], [4, 5, 6, 7]]
    assert decoder.waited == [True, *[False] * (len(decoder.calls) - 1)]
    assert decoder.announced.count(TABLES) == 1


def test_with_an_unknown_order_each_batch_announces_itself(disk):
    disk.rate = 1 << 30
    decoder, order = Recorder(), batches(10, 4)
    assert run(decoder, order, batches(0, 4)) == [0] * 10
    assert decoder.calls == [batch.tolist() for batch in order]


def test_a_record_outside_the_store_is_left_to_its_own_batch(disk):
    disk.rate = 1 << 30
    decoder, order = Recorder(), batches(10, 4)
    order.indices[20] = -1
    run(decoder, order, order)
    assert decoder.announced == [*range(16), *range(24, 40)]  # all but the piece it is in


def test_torchs_order_is_known_with_its_first_batch_and_a_users_is_not(store):
    loader = FastLoader(store, batch_size=3, transform=TRAIN, shuffle=True)
    order = index_batches(loader.batch_sampler)
    assert list(order.known) == []
    drawn = [next(order)]
    assert len(order.known) == len(loader)
    drawn += list(order)
    assert all(np.array_equal(a, b) for a, b in zip(drawn, order.known, strict=True))

    loader = FastLoader(store, batch_size=3, transform=TRAIN, seed=1, shuffle=True)
    assert len(index_batches(loader.batch_sampler).known) == len(loader)
    loader = FastLoader(store, batch_size=3, sampler=RandomSampler(range(24), replacement=True))
    assert list(index_batches(loader.batch_sampler).known) == []


def test_a_users_sampler_is_drawn_no_further_ahead_than_by_torch(store, disk):
    disk.rate = 1 << 30
    drawn = []

    def sampler():
        for index in range(24):
            drawn.append(index)
            yield index

    loader = FastLoader(store, batch_size=2, transform=TRAIN, sampler=sampler(), num_workers=2)
    iterator = iter(loader)
    next(iterator)
    assert len(drawn) == 2 * (2 * 2 + 1)  # two batches for each worker, and the one that was taken
    iterator.close()


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "packed"])
def test_batches_are_the_same_with_and_without(photos, store, disk, packed, threads):
    def epoch():
        data = store if packed else ImageFolder(photos, TRAIN)
        transform = TRAIN if packed else None
        return list(
            FastLoader(
                data, batch_size=4, shuffle=True, seed=3, num_workers=threads, transform=transform
            )
        )

    without = epoch()
    disk.rate = 1 << 30
    assert_same(epoch(), without)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "packed"])
def test_leaving_early_ends_it(photos, store, disk, packed):
    disk.rate = 1 << 30
    data = store if packed else ImageFolder(photos, TRAIN)
    for _ in range(3):
        loader = FastLoader(data, batch_size=2, transform=TRAIN if packed else None, seed=1)
        for _ in loader:
            break


@pytest.mark.native
@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "packed"])
def test_what_is_announced_is_the_records_own_bytes(photos, store, disk, monkeypatch, packed):
    from fastload._engine.native import NativeEngine

    disk.rate = 1 << 30
    data = store if packed else ImageFolder(photos, TRAIN)
    loader = FastLoader(data, batch_size=4, transform=TRAIN if packed else None, num_workers=2)
    spans = []
    announce = NativeEngine.readahead

    def record(self, some, **keywords):
        spans.extend((self.store, one) for one in some)
        return announce(self, some, **keywords)

    monkeypatch.setattr(NativeEngine, "readahead", record)
    iterator = iter(loader)
    spans.clear()  # of the tables
    list(iterator)
    announced = sorted(
        (self.files[file], offset, nbytes)
        for self, one in spans
        for file, offset, nbytes in zip(one.file, one.offset, one.nbytes, strict=True)
    )
    size = 24
    assert len(announced) == size
    for path, offset, nbytes in announced:
        with Path(path).open("rb") as file:
            assert os.pread(file.fileno(), 2, offset) == b"\xff\xd8"
        assert nbytes == -1 or nbytes > 0
