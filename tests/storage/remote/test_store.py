"""RemoteStore: what it reads is what lies there, for every format and kind of server."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import re
import tarfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastload.storage.remote.store as store_module
from fastload import StoreError, StoreNotFoundError, UsageError, info, pack, verify
from fastload.errors import DataError, DecodeError, FastloadError, MissingDependencyError
from fastload.storage import Store, open_store, open_writer
from fastload.storage.remote.blocks import CELL
from fastload.storage.remote.options import RemoteOptions
from fastload.storage.remote.urls import RemoteUrl, redacted
from object_server import Faults, ObjectServer
from storage.test_recordio import with_magic

RANGED = ["photos.lmdb", "photos.tfrecord", "photos.rec", "photos.tar", "shards.tfrecord"]
Opener = Callable[..., Store]


def same(store: Store, local: Store) -> None:
    order = np.random.default_rng(0).permutation(len(local))
    assert len(store) == len(local)
    for part in np.array_split(order, 5):
        assert store.read(part) == local.read(part)
    assert store.keys(order) == local.keys(order)
    assert np.array_equal(store.labels, local.labels)  # type: ignore[arg-type]
    assert np.array_equal(store.sizes(order), local.sizes(order))
    assert np.array_equal(store.kinds(order), local.kinds(order))
    assert list(store.classes) == list(local.classes)
    assert store.metadata == local.metadata and store.format == local.format


@pytest.mark.parametrize("limit", [None, 0, "3MB"])
@pytest.mark.parametrize("name", RANGED)
def test_a_store_at_a_url_is_the_local_one(
    opened: Opener, remote_folder: Path, name: str, limit: Any
) -> None:
    with open_store(remote_folder / name) as local:
        store = opened(name, disk_limit=limit)
        same(store, local)


@pytest.mark.parametrize("limit", [None, "7MB"])
def test_recordio_with_records_in_pieces_is_the_local_one(
    tmp_path: Path, cache: Path, limit: str | None
) -> None:
    served = tmp_path / "served"
    served.mkdir()
    with open_writer(served / "a.rec", shards=2, total=16) as writer:
        writer.append(with_magic(tail=100_000))
        whole = with_magic()[5]
        data = whole.data + bytes(1_000_000)  # in one piece, as the others of this shard
        writer.append([dataclasses.replace(whole, data=data, key=f"{n}+") for n in range(8)])
    server = ObjectServer(served)
    try:
        options = RemoteOptions(cache_dir=cache, disk_limit=limit)
        with (
            open_store(served / "a.rec") as local,
            open_store(f"{server.url}/a.rec", remote=options) as store,
        ):
            everything = np.arange(len(local))
            assert store._here.cache.fits == (limit is None)
            store.expect(everything, everything, length=len(local))
            same(store, local)
    finally:
        server.close()


@pytest.mark.parametrize("name", ["raw.h5", "raw.pth"])
def test_other_formats_are_fetched_whole_and_need_a_disk(
    opened: Opener, server: ObjectServer, remote_folder: Path, name: str
) -> None:
    with open_store(remote_folder / name) as local:
        store = opened(name)
        size = sum(path.stat().st_size for path in remote_folder.glob(f"{name}*"))
        assert server.nbytes == size
        same(store, local)
        assert server.nbytes == size
    with pytest.raises(StoreError, match=r"fetched whole.*another disk_limit"):
        opened(name, disk_limit=0)


def test_an_lmdb_of_another_program_is_fetched_whole(
    photos: Path, tmp_path: Path, cache: Path
) -> None:
    import lmdb

    served = tmp_path / "served"
    served.mkdir()
    version = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}
    with lmdb.open(str(served / "a.lmdb"), subdir=False, lock=False, **version) as env:
        with env.begin(write=True) as transaction:
            for path in photos.rglob("*.jpg"):
                transaction.put(path.name.encode(), path.read_bytes()[:20_000])
    server = ObjectServer(served)
    try:
        with (
            open_store(served / "a.lmdb") as local,
            open_store(f"{server.url}/a.lmdb", remote=RemoteOptions(cache_dir=cache)) as store,
        ):
            assert len(local) > 5
            same(store, local)
    finally:
        server.close()


@pytest.mark.parametrize("name", RANGED)
def test_no_byte_is_fetched_twice_and_reopening_fetches_none(
    opened: Opener, server: ObjectServer, name: str
) -> None:
    for _ in range(2):
        store = opened(name)
        everything = np.arange(len(store))
        store.read(everything)
        store.read(everything[::-1])
        store.close()
        fetched: dict[str, list[tuple[int, int]]] = {}
        for one in server.gets():
            fetched.setdefault(one.path, []).append((one.start, one.stop))
        for ranges in fetched.values():
            ends = sorted(ranges)
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends)), (
                "a byte was fetched twice"
            )


def test_opening_takes_three_round_trips_and_reads_little(
    opened: Opener, server: ObjectServer, remote_folder: Path
) -> None:
    opened("photos.lmdb")
    sizes = [one.nbytes for one in server.gets()]
    assert len(sizes) <= 2, "the ends of the file, in one trip; all columns lie there"
    assert sum(sizes) < 1 << 20
    with server.asked() as asked:
        opened("photos.tfrecord")
    assert [one.path for one in asked if one.method == "GET"] == [
        "/photos.tfrecord.fastload",
        "/photos.tfrecord",
        "/photos.tfrecord",
    ]


def test_records_are_read_to_within_a_page(opened: Opener, server: ObjectServer) -> None:
    store = opened("photos.lmdb")
    first = np.array([0])
    nbytes = int(store.places(first).nbytes[0])
    with server.asked() as asked:
        store.read(first)
    assert sum(one.nbytes for one in asked) <= nbytes + 2 * 4096


def test_spans_keep_their_bytes_as_long_as_they_live(opened: Opener) -> None:
    store = opened("photos.lmdb", disk_limit="1.5MB")
    everything = np.arange(len(store))
    kept = store.spans(everything[:3])
    path = store.files[0]
    before = [_at(path, kept.offset[i], kept.nbytes[i]) for i in range(3)]
    for one in everything[3:]:
        store.read(np.array([one]))
    assert [_at(path, kept.offset[i], kept.nbytes[i]) for i in range(3)] == before
    del kept
    for one in everything[3:]:
        store.read(np.array([one]))
    assert store.read(everything[:3]) == before


def _at(path: str, offset: int, nbytes: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(int(offset))
        return file.read(int(nbytes))


def test_more_than_the_limit_at_once_is_refused(opened: Opener) -> None:
    store = opened("photos.lmdb", disk_limit="1MB")
    with pytest.raises(StoreError, match="disk_limit: 1000000 bytes are too few"):
        store.spans(np.arange(len(store)))
    assert len(store.read(np.arange(2))) == 2


@pytest.mark.parametrize("ignore", [False, True])
def test_a_changed_object_is_an_error_that_names_it(
    photos: Path, tmp_path: Path, cache: Path, ignore: bool
) -> None:
    folder = tmp_path / "changing"
    folder.mkdir()
    pack(photos, folder / "a.lmdb")
    server = ObjectServer(folder)
    server.faults = Faults(ignore_if_match=ignore)
    try:
        store = open_store(f"{server.url}/a.lmdb", remote=RemoteOptions(cache_dir=cache))
        data = (folder / "a.lmdb").read_bytes()
        (folder / "a.lmdb").write_bytes(data[:-1] + b"x")
        with pytest.raises(StoreError, match="replaced since it was opened") as found:
            store.read(np.arange(len(store)))
        assert found.value.path == f"{server.url}/a.lmdb"
        store.close()
    finally:
        server.close()


def test_a_damaged_object_is_named_by_its_url_in_the_whole_traceback(
    tmp_path: Path, cache: Path
) -> None:
    with tarfile.open(tmp_path / "labels-only.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("0.cls"))
    server = ObjectServer(tmp_path)
    try:
        with pytest.raises(StoreError, match="expected an image in every sample") as found:
            open_store(f"{server.url}/labels-only.tar", remote=RemoteOptions(cache_dir=cache))
    finally:
        server.close()
    assert found.value.path == f"{server.url}/labels-only.tar"
    assert str(cache) not in "".join(traceback.format_exception(found.value))


def test_what_is_not_there_is_not_found(opened: Opener, server: ObjectServer) -> None:
    with pytest.raises(StoreNotFoundError, match="nothing") as found:
        opened("absent.lmdb")
    assert found.value.path == f"{server.url}/absent.lmdb"


def test_no_credentials_in_messages_names_or_state(
    server: ObjectServer, cache: Path, remote_folder: Path
) -> None:
    secret = server.url.replace("://", "://me:hunter22@")
    options = RemoteOptions(cache_dir=cache, storage_options={"no_such_option": "hunter33"})
    assert "hunter" not in repr(options)
    plain = RemoteOptions(cache_dir=cache)
    store = open_store(f"{secret}/photos.lmdb", remote=plain)
    store.read(np.arange(2))
    assert store.path == f"{server.url}/photos.lmdb"
    assert "hunter" not in store.path + "".join(store.files) + store.shown(0)
    for path in cache.rglob("*"):
        assert "hunter" not in str(path)
        if path.is_file() and not path.is_symlink() and path.name != "data":
            assert b"hunter" not in path.read_bytes()
    store.close()
    with pytest.raises(StoreNotFoundError) as found:
        open_store(f"{secret}/absent.lmdb", remote=plain)
    with pytest.raises(UsageError) as refused:
        open_store(f"{server.url}/a.lmdb?X-Amz-Signature=hunter44", remote=plain)
    with pytest.raises(UsageError) as unknown:
        open_store("s3://bucket/a.lmdb", remote=options)
    for error in (found, refused, unknown):
        one: BaseException | None = error.value
        while one is not None:  # as a traceback shows them
            assert "hunter" not in str(one)
            one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://me:hunt/er2+2@bucket/a@b.lmdb", "s3://bucket/a@b.lmdb"),  # such are keys of S3
        ("https://me:hunt@er2@host/a.tar", "https://host/a.tar"),
        ("https://me:hunt?er2@host/a.tar", "https://host/a.tar"),
        ("https://host:80/a@b.tar?hunter=2", "https://host:80/a@b.tar"),
        ("http://[::1]:80/a@b.tar", "http://[::1]:80/a@b.tar"),
        ("s3://AKIA:12/34hunter2@bucket/x", "s3://bucket/x"),
        ("abfss://me:hunter2@account/a.tar", "abfss://account/a.tar"),
        ("https://host/a b.tar?hunter2", "https://host/a b.tar"),
    ],
)
def test_a_password_with_unusual_characters_is_not_shown(url: str, shown: str) -> None:
    assert RemoteUrl(url).shown == shown


@pytest.mark.parametrize(
    "text",
    [
        "https://host:80/a@b.tar",
        "s3://b/a?b/x.lmdb",
        "s3://b/a#1.lmdb",
        "s3://b/?*.tar, got 'x'",
        "abfss://data@account.dfs.core.windows.net/imgs.lmdb",
        "got 's3://b/x.tar' or 'https://a/b'? Ask me@host (https://a/b)?",
    ],
)
def test_what_is_no_credential_is_shown(text: str) -> None:
    assert str(UsageError(text)) == str(DataError(text)) == text
    assert text[0] == "g" or RemoteUrl(text).shown == text


def test_a_local_path_that_looks_like_a_url_stays_in_errors() -> None:
    assert StoreError("damaged", path="/data/https://me@host?b/x.lmdb").path == (
        "/data/https://me@host?b/x.lmdb"
    )


@pytest.mark.parametrize(
    "text", ["://a:", "://", "://@", "s3://u:b/k,", "http://", "http://?", "https://h?a ", "x"]
)
def test_a_message_of_any_text_takes_no_time(text: str) -> None:
    begin = time.process_time()
    DecodeError(text * (200_000 // len(text)))
    assert time.process_time() - begin < 2  # it takes 0.1 s


@pytest.mark.parametrize("kind", [UsageError, MissingDependencyError, StoreNotFoundError])
def test_no_error_shows_the_credentials_of_a_url(kind: type[FastloadError]) -> None:
    error = kind("got 's3://me:hunt/er2@bucket/a.tar' and 'https://a/b?token=hunter2' (100 %?)")
    if isinstance(error, StoreNotFoundError):
        error = error.at(path="https://me:hunter2@host/a.tar?token=hunter2")
        assert error.path == "https://host/a.tar"
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert "hunt" not in f"{one} {one!r} {vars(one)}"
        assert str(one).endswith("got 's3://bucket/a.tar' and 'https://a/b' (100 %?)")


def test_no_error_of_another_library_shows_the_credentials_of_a_url() -> None:
    url = RemoteUrl("s3://me:hunter2@bucket/a.tar")
    said = redacted("Invalid bucket name 'me:hunter2@bucket', key 'hunter2'", url)
    assert said == "Invalid bucket name '***@bucket', key '***'"
    url = RemoteUrl("s3://me:hunt/er2er2@bucket/a.tar")
    said = redacted("Invalid bucket name 'me:hunt', port 'hunt', key 'er2er2'", url)
    assert said == "Invalid bucket name '***', port '***', key '***'"


@pytest.mark.parametrize("url", ["abfss://data@account/a.tar", "sftp://data@host/a.tar"])
def test_a_name_without_a_password_is_no_secret(url: str) -> None:
    said = "the container 'data' has no metadata of a.tar: is that so?"
    assert redacted(said, RemoteUrl(url)) == said


@pytest.mark.parametrize("url", ["http://[::1/x.tar", "http://a:99999/x.tar", "http://", "s3:///x"])
def test_a_url_of_no_place_is_an_error_that_names_it(url: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{url!r}: ")):
        open_store(url)


@pytest.mark.parametrize("url", ["http://", "s3:///x"])
def test_a_url_without_a_place_says_what_is_expected(url: str) -> None:
    with pytest.raises(UsageError, match="expected SCHEME://BUCKET/PATH or SCHEME://HOST/PATH"):
        open_store(url)


def test_a_pickled_store_that_cannot_be_opened_is_opened_by_the_next_call(
    opened: Opener, remote_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = pickle.loads(pickle.dumps(opened("photos.lmdb")))

    def unreachable(*_: object) -> None:
        raise StoreError("it cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(store_module._Attached, "open", unreachable)
        with pytest.raises(StoreError, match="it cannot be read"):
            copy.read(np.arange(3))
    with open_store(remote_folder / "photos.lmdb") as local:
        same(copy, local)
    copy.close()


def test_a_pickled_store_reads_on_without_asking_again(
    opened: Opener, server: ObjectServer, remote_folder: Path
) -> None:
    store = opened("photos.tfrecord")
    copy = pickle.loads(pickle.dumps(store))
    with server.asked() as asked, open_store(remote_folder / "photos.tfrecord") as local:
        same(copy, local)
    assert {one.method for one in asked} == {"GET"}
    copy.close()


def test_threads_may_read_at_the_same_time(opened: Opener, remote_folder: Path) -> None:
    store = opened("photos.lmdb", disk_limit="2MB")
    with open_store(remote_folder / "photos.lmdb") as local:
        expected = local.read(np.arange(len(local)))
    failed: list[BaseException] = []

    def read(seed: int) -> None:
        try:
            for one in np.random.default_rng(seed).permutation(len(store)).tolist():
                assert store.read(np.array([one])) == [expected[one]]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_info_and_verify_take_urls(
    server: ObjectServer, remote_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url = f"{server.url}/photos.lmdb"
    found, local = info(url), info(remote_folder / "photos.lmdb")
    assert (found.path, found.records, found.nbytes) == (url, local.records, local.nbytes)
    assert verify(url).damaged == ()
    assert (tmp_path / "fastload" / "objects").is_dir()


@pytest.mark.long
def test_s3_is_read_with_the_usual_credentials(
    remote_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        for path in remote_folder.iterdir():
            client.upload_file(str(path), "bucket", f"some/{path.name}")
        options = RemoteOptions(
            cache_dir=cache,
            storage_options={"endpoint": endpoint, "client_options": {"allow_http": True}},
        )
        for name in ("photos.lmdb", "shards.tfrecord", "shards-*.tfrecord", "raw.h5"):
            local_name = re.sub(r"-\*", "", name)
            with open_store(remote_folder / local_name) as local:
                with open_store(f"s3://bucket/some/{name}", remote=options) as store:
                    assert store.read(np.arange(len(store))) == local.read(np.arange(len(local)))
        with pytest.raises(StoreError, match=r"cannot be read|nothing"):
            open_store("s3://absent/a.lmdb", remote=options)
    finally:
        server.stop()


def test_a_sidecar_whose_data_file_is_gone_is_no_store(remote_folder: Path, cache: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    system = fsspec.filesystem("memory")
    sidecar = remote_folder / "photos.tar.fastload"
    system.put(str(sidecar.with_suffix("")), "/gone/photos.tar")
    system.put(str(sidecar), "/gone/copied.tar.fastload")
    try:
        with pytest.raises(StoreNotFoundError, match=r"gone/copied\.tar"):
            open_store("memory://gone/copied.tar", remote=RemoteOptions(cache_dir=cache))
    finally:
        system.rm("/gone", recursive=True)


def test_fsspec_reads_what_obstore_does_not(remote_folder: Path, cache: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    system = fsspec.filesystem("memory")
    system.put(str(remote_folder / "photos.lmdb"), "/bucket/photos.lmdb")
    try:
        options = RemoteOptions(cache_dir=cache)
        with open_store("memory://bucket/photos.lmdb", remote=options) as store:
            with open_store(remote_folder / "photos.lmdb") as local:
                same(store, local)
    finally:
        system.rm("/bucket", recursive=True)


def test_a_block_needs_no_byte_of_the_block_behind_its_last_record(
    opened: Opener, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = 256 << 10
    monkeypatch.setattr(store_module, "BLOCK_NBYTES", block)
    store = opened("photos.lmdb")
    spans = store.places(np.arange(len(store)))
    number = int(spans.offset[len(store) // 2]) // block
    mine = np.flatnonzero(spans.offset // block == number)
    end = int((spans.offset + spans.nbytes)[mine].max())
    assert end > (number + 1) * block, "its last record goes on in the next block"
    with server.asked() as asked:
        held = store.ahead(mine[:1], urgency=0.0, blocks=True)
        assert held is not None
        held.wait(lambda: False)
        held.release()
        store.read(mine)
    (one,) = asked
    assert int(spans.offset[mine].min()) - CELL < one.start <= int(spans.offset[mine].min())
    assert end <= one.stop < end + CELL
