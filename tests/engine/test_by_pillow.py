"""What the core leaves to Pillow: the same with any number of threads, errors that name it."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1

import torchvision_oracle as oracle
from fastload._base.slabs import SlabRing
from fastload._engine import by_pillow
from fastload._engine.image_engine import EngineOptions
from fastload._engine.native import NativeEngine
from fastload._engine.pillow import decode_record
from fastload._transforms.recognise import Plan, recognise
from fastload.errors import ChecksumError, DecodeError, StoreError, StoreNotFoundError
from fastload.storage.base import ENCODED, RAW, Store
from loose_files import LooseFiles
from pictures import encoded, picture, pixels

pytestmark = pytest.mark.native

IMAGES = [picture(30 + i, 40 - i, seed=i) for i in range(12)]
TRAIN = v1.Compose(
    [
        v1.RandomResizedCrop(16),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
        v1.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
    ]
)


def store_of(tmp_path: Path, kind: int = ENCODED) -> LooseFiles:
    records = [image.tobytes() if kind == RAW else encoded(image, "TIFF") for image in IMAGES]
    return LooseFiles(tmp_path / "records", records, [image.size for image in IMAGES], kind)


def decoder_of(store: Store, threads: int = 2, **options: Any) -> NativeEngine:
    dtype = options.pop("dtype", None)
    plan = recognise(options.pop("transform", TRAIN))
    assert isinstance(plan, Plan)
    options = {"threads": threads, "ring": SlabRing(2), **options}
    return NativeEngine(store, plan.with_output(dtype), EngineOptions(**options))


def batch_of(decoder: NativeEngine, records: Any) -> torch.Tensor:
    decoder.acquire(decoder)
    try:
        return decoder.submit(np.array(records, np.int64), seed=1, epoch=2).result()
    finally:
        decoder.release(decoder)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("kind", [ENCODED, RAW])
def test_a_batch_is_the_same_with_any_number_of_threads(kind: int, tmp_path: Path) -> None:
    store = store_of(tmp_path, kind)
    records = [3, 0, 11, 3, 7, 1]
    batches = [batch_of(decoder_of(store, threads), records) for threads in (0, 1, 2, 4)]
    assert batches[0].shape == (6, 3, 16, 16)
    assert batches[0].unique().numel() > 100
    assert all(torch.equal(batch, batches[0]) for batch in batches[1:])
    for made, record in zip(batches[0], records, strict=True):
        assert torch.equal(made, oracle.sample(TRAIN, IMAGES[record], record, 1, 2))


def test_encoded_and_raw_records_give_the_same_batch(tmp_path: Path) -> None:
    encoded_batch = batch_of(decoder_of(store_of(tmp_path)), range(12))
    raw_batch = batch_of(decoder_of(store_of(tmp_path, RAW)), range(12))
    assert torch.equal(encoded_batch, raw_batch)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_ticket_tells_how_long_decoding_took(threads: int, tmp_path: Path) -> None:
    decoder = decoder_of(store_of(tmp_path), threads)
    decoder.acquire(decoder)
    ticket = decoder.submit(np.arange(4), seed=0, epoch=0)
    ticket.result()
    assert ticket.stages_ns()["pillow"] > 0
    decoder.release(decoder)


def test_a_user_that_begins_while_the_last_one_ends_has_threads(tmp_path: Path) -> None:
    decoder = decoder_of(store_of(tmp_path), 2)
    begun, go_on = threading.Event(), threading.Event()

    def next_user() -> int:
        decoder.acquire("next")
        pool = decoder.pool()
        begun.set()
        go_on.wait(30)
        return pool.submit(len, "four").result(30)

    class Users(set[int]):
        def __bool__(self) -> bool:  # asked by ``release``, before it ends the threads
            some = len(self) > 0
            if not users:
                users.append(outside.submit(next_user))
                begun.wait(0.5)  # in vain, where the next user waits for ``release``
            return some

    users: list[concurrent.futures.Future[int]] = []
    decoder._users = Users()
    decoder.acquire("last")
    decoder.pool()
    with concurrent.futures.ThreadPoolExecutor(1) as outside:
        decoder.release("last")
        go_on.set()
        assert users[0].result(30) == 4
    decoder.release("next")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layouts_and_dtypes_hold_the_same_values(dtype: torch.dtype, tmp_path: Path) -> None:
    store = store_of(tmp_path)
    reference = batch_of(decoder_of(store), range(5))
    batch = batch_of(decoder_of(store, dtype=dtype, channels_last=True), range(5))
    assert batch.dtype == dtype
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch, reference.to(dtype))


def test_samples_left_by_the_core_are_filled_into_their_places(tmp_path: Path) -> None:
    decoder = decoder_of(store_of(tmp_path))
    decoder.acquire(decoder)
    ticket: Any = decoder.submit(np.arange(6), seed=0, epoch=0)
    whole = ticket.result().clone()
    ticket._batch.images.fill_(-1)
    for which in ([4], [1, 5]):
        by_pillow.by_pillow(decoder, ticket._batch, np.array(which)).result()
    decoder.release(decoder)
    filled = [1, 4, 5]
    assert torch.equal(ticket._batch.images[filled], whole[filled])
    assert (ticket._batch.images[[0, 2, 3]] == -1).all()


def damage(store: LooseFiles, record: int) -> None:
    path = Path(store.path)
    data = bytearray(path.read_bytes())
    at = int(store._offset[record]) + 60
    data[at : at + 4] = b"\0\0\0\0"
    path.write_bytes(data)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("check", ["first", "never"])
def test_a_damaged_record_is_named(threads: int, check: str, tmp_path: Path) -> None:
    store = store_of(tmp_path)
    damage(store, 5)
    expected = ChecksumError if check == "first" else DecodeError
    with pytest.raises(expected) as info:
        batch_of(decoder_of(store, threads, check_crc=check), [0, 5, 2, 5])
    assert (info.value.path, info.value.record) == (store.path, 5)
    assert info.value.offset == int(store._offset[5])


def test_first_checks_a_record_once_and_always_checks_it_again(tmp_path: Path) -> None:
    store = store_of(tmp_path, RAW)
    first, always = (decoder_of(store, 0, check_crc=check) for check in ("first", "always"))
    for decoder in (first, always):
        batch_of(decoder, [1, 2])
    damage(store, 2)
    batch_of(first, [1, 2])
    with pytest.raises(ChecksumError, match="CRC32C"):
        batch_of(always, [1, 2])
    damage(store, 3)
    with pytest.raises(ChecksumError):
        batch_of(first, [3])


def test_an_image_of_another_size_than_the_store_says_is_named(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store._sizes[4] = (20, 20)
    with pytest.raises(DecodeError, match=r"not 20x20 pixels any more but 34x36") as info:
        batch_of(decoder_of(store), [1, 4])
    assert info.value.record == 4


def test_a_file_that_was_cut_short_or_is_gone_is_named(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    path = Path(store.path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(StoreError, match="reaches beyond the end of its file") as info:
        batch_of(decoder_of(store), [0, 11])
    assert info.value.record == 11
    path.unlink()
    with pytest.raises(StoreNotFoundError, match="cannot read the record: No such file") as gone:
        batch_of(decoder_of(store), [2])
    assert gone.value.record == 2


def test_a_record_to_the_end_of_its_file_is_read_whole(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store._nbytes[11] = -1
    assert pixels(decode_record(store, 11)) == pixels(IMAGES[11])
    assert pixels(decode_record(store_of(tmp_path, RAW), 3)) == pixels(IMAGES[3])


@pytest.mark.usefixtures("no_leaks")
def test_nothing_is_written_after_a_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = threading.Event(), threading.Event()
    original = by_pillow.decoded

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert release.wait(60)
        return original(*arguments)

    monkeypatch.setattr(by_pillow, "decoded", slow)
    decoder = decoder_of(store_of(tmp_path), threads=1)
    decoder.acquire(decoder)
    ticket: Any = decoder.submit(np.arange(12), seed=0, epoch=0)
    ticket.leave_to_pillow()
    images, tasks = ticket._batch.images, ticket._pillow_ticket._tasks
    images.fill_(-1)
    assert begun.wait(60)

    def release_it() -> None:
        while not all(task.cancelled() for task in tasks[1:]):
            time.sleep(0.001)
        release.set()

    releasing = threading.Thread(target=release_it)
    releasing.start()
    ticket.cancel()
    releasing.join()
    assert all(task.done() for task in tasks)
    assert (images == -1).all()
    decoder.release(decoder)
