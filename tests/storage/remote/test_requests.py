"""Requests: repeated, hedged, refused."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fastload.storage.remote.requests as requests_module
from fastload import MissingDependencyError, StoreError, StoreNotFoundError, UsageError
from fastload.storage import Store, open_store
from fastload.storage.remote.options import RemoteOptions
from fastload.storage.remote.requests import Latencies, RequestPace
from fastload.storage.remote.service import Permanent
from fastload.storage.remote.urls import RemoteUrl
from object_server import Faults, ObjectServer

Opener = Callable[..., Store]


def one_by_one(store: Store) -> list[bytes]:
    return [data for index in range(len(store)) for data in store.read(np.array([index]))]


def test_what_fails_is_repeated(
    opened: Opener, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "_PAUSE_S", 0.01)
    server.faults = Faults(unavailable=0.2, reset=0.2)
    store = opened("photos.lmdb")
    before = random.getstate()
    found = one_by_one(store)
    assert random.getstate() == before, "repeating drew from the caller's generator"
    with open_store(server.folder / "photos.lmdb") as local:
        assert found == local.read(np.arange(len(local)))
    assert store.fetched()["retries"] > 0  # type: ignore[index]


def test_what_stalls_is_asked_for_again(
    opened: Opener, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "_HEDGE_S", 0.1)
    monkeypatch.setattr(requests_module, "_HEDGED_SHARE", 1.0)
    store = opened("photos.lmdb")
    faults = itertools.cycle([None, None, None, "stall"])  # never two in a row
    monkeypatch.setattr(server, "_drawn", lambda: next(faults))
    server.faults = Faults(stall_s=600)
    assert len(one_by_one(store)) == len(store)
    assert store.fetched()["hedged"] > 0  # type: ignore[index]
    assert store.fetched()["retries"] == 0  # type: ignore[index]


def test_a_server_that_is_gone_is_an_error_that_names_the_object(
    opened: Opener, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "_PAUSE_S", 0.001)
    store = opened("photos.lmdb")
    server.faults = Faults(unavailable=1.0)
    with pytest.raises(StoreError, match="8 times in a row") as found:
        store.read(np.arange(3))
    assert found.value.path == f"{server.url}/photos.lmdb"
    server.faults = Faults()
    assert len(store.read(np.arange(3))) == 3, "it may be asked again"


@pytest.mark.parametrize("name", ["a.lmdb", "folder/"])
def test_a_bucket_that_is_not_there_is_asked_for_once_and_said_to_be_missing(
    server: ObjectServer, cache: Path, name: str
) -> None:
    keys = {"endpoint": server.url, "access_key_id": "a", "secret_access_key": "b"}
    options = RemoteOptions(storage_options=keys, cache_dir=cache)
    with (
        server.asked() as asked,
        pytest.raises(StoreNotFoundError, match=r"folder .*: 404") as said,
    ):
        open_store(f"s3://absent/{name}", remote=options)
    assert len(asked) <= 4 and said.value.path == f"s3://absent/{name}"
    assert "AWS_ACCESS_KEY_ID" in str(said.value) and server.url in str(said.value)


def test_missing_credentials_are_said_to_be_missing() -> None:
    from obstore.exceptions import GenericError

    from fastload.storage.remote.obstore_service import _asked

    async def unanswered(status: str) -> None:
        raise GenericError(f"PUT http://169.254.169.254/latest/api/token - {status}")

    for status, kind in (("status code: 403 Forbidden", Permanent), ("no route", GenericError)):
        with pytest.raises(kind, match="no credentials were found"):
            asyncio.run(_asked(unanswered(status)))


def test_an_endpoint_that_is_no_url_is_refused(cache: Path) -> None:
    options = RemoteOptions(storage_options={"endpoint": "me:hunter2@host:9"}, cache_dir=cache)
    with pytest.raises(UsageError, match=r"s3://bucket/a\.lmdb.*the endpoint .* got 'host:9'"):
        open_store("s3://bucket/a.lmdb", remote=options)


def test_what_other_programs_call_an_endpoint_is_none(
    server: ObjectServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload.storage.remote.obstore_service import ObstoreService

    for name in ("ENDPOINT", "ENDPOINT_URL", "BASE_URL"):
        monkeypatch.setenv(name, "/predict")
    with open_store(f"{server.url}/photos.lmdb", remote=RemoteOptions(cache_dir=cache)) as store:
        assert len(store)
    ObstoreService(RemoteUrl("gs://box/a.lmdb"), {"skip_signature": True})
    ObstoreService(RemoteUrl("s3://box/a.lmdb"), {"skip_signature": True})


def test_an_account_that_is_not_named_is_said_where_to_name(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UsageError, match=r"az://box/a\.lmdb.*AZURE_STORAGE_ACCOUNT_NAME"):
        open_store("az://box/a.lmdb", remote=RemoteOptions(cache_dir=cache))


def test_the_extra_is_named_where_obstore_is_missing(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "fastload.storage.remote.obstore_service", raising=False)
    with pytest.raises(MissingDependencyError, match=r"torch-fastload\[remote\]"):
        open_store(f"{server.url}/photos.lmdb")


def test_more_requests_are_sent_as_long_as_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(requests_module.time, "monotonic", lambda: now)
    pace, widths = RequestPace(first=4), []
    for _ in range(3000):  # a link that serves 32 requests at a time, and is slower with more
        rate = min(pace.width, 32) - max(0, pace.width - 32) / 2
        now += 1.0 / rate
        pace.answered(1000, waiting=True, in_flight=pace.width)
        widths.append(pace.width)
    assert widths[-1] == 32 and max(widths) == 64
    for _ in range(20):
        pace.refused()
    assert pace.width == RequestPace.least


def test_a_link_that_a_few_requests_fill_gets_no_more_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0  # idle until then
    monkeypatch.setattr(requests_module.time, "monotonic", lambda: now)
    pace, blocks = RequestPace(), 4
    for _ in range(40):  # all in flight share the link, so they arrive together
        now += blocks * 8 / 50
        for left in range(blocks, 0, -1):
            pace.answered(8 << 20, waiting=True, in_flight=left)
        blocks = next(n for n in itertools.count() if not pace.room(n, (n + 1) * (8 << 20)))
    assert blocks == 4


def test_a_link_that_begins_faster_than_it_lasts_keeps_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(requests_module.time, "monotonic", lambda: now)
    pace, widths = RequestPace(), []
    for answer in range(3000):  # 20 ms each, 450 a second; the first ones three times as many
        now += 1.0 / min(pace.width / 0.02, 1350 if answer < 100 else 450)
        pace.answered(100_000, waiting=True, in_flight=pace.width)
        widths.append(pace.width)
    assert min(widths) >= 16, "with fewer the latency counts"


def test_unusual_is_what_the_slowest_percent_take() -> None:
    latencies = Latencies()
    for milliseconds in range(1000, 1200):
        latencies.add(100_000, milliseconds / 1000)
    assert 1.5 * 1.19 <= latencies.unusual_s(100_001) <= 1.5 * 1.2
    assert requests_module._HEDGE_S <= latencies.unusual_s(10) < requests_module._HEDGE_S + 0.1


def test_a_slow_link_is_not_asked_twice_for_its_first_large_requests() -> None:
    latencies = Latencies()
    assert latencies.unusual_s(8 << 20) > 8, "seconds, at 1 MB/s"
    for _ in range(10):
        latencies.add(8 << 20, 3.0)
    assert latencies.unusual_s(8 << 20) == 9.0


def test_large_requests_are_fewer_at_a_time_than_small_ones() -> None:
    def most(nbytes: int) -> int:
        pace = RequestPace()
        return next(n for n in itertools.count() if not pace.room(n, (n + 1) * nbytes))

    assert [most(nbytes) for nbytes in (100_000, 8 << 20, 64 << 20)] == [16, 4, 4]


def test_what_cannot_succeed_later_is_asked_for_once(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened("photos.lmdb")

    async def refused(*_: object) -> bytes:
        raise Permanent("no permission")

    monkeypatch.setattr(requests_module, "_PAUSE_S", 0.001)
    monkeypatch.setattr(type(store._here.origin.service), "read", refused)  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="it cannot be read: no permission; check the URL"):
        store.read(np.arange(len(store)))
    assert store.fetched()["retries"] == 0  # type: ignore[index]
