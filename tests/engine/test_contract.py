"""The contract of the engines (``_engine/base.py``), which every engine fulfils."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1

import torchvision_oracle as oracle
from fastload import ChecksumError, DataError, DecodeError, StoreError, UsageError, hints
from fastload._base.slabs import SlabRing
from fastload._engine import registry
from fastload._engine.base import BatchEngine
from fastload._engine.cache.cache import Cache
from fastload._engine.image_engine import EngineOptions
from fastload._engine.pillow import decode_record
from fastload._transforms.plan import Plan, Views, seed_of
from fastload._transforms.recognise import recognise
from fastload.storage.base import ENCODED, Spans, Store
from fastload.storage.memory import TensorStore
from loose_files import LooseFiles

COUNT = 12
CHAIN = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.PILToTensor()])
OTHER = v1.Compose([v1.CenterCrop(24), v1.PILToTensor()])


def plan_of(chain: Any) -> Plan:
    plan = recognise(chain)
    assert isinstance(plan, Plan)
    return plan


def picture(seed: int) -> Image.Image:
    """A smooth one, so that decoders differ little."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 5, 3), np.uint8))
    return small.resize((60 + seed, 80 - seed), Image.Resampling.BICUBIC)


def encoded(seed: int) -> bytes:
    """JPEG files, and some that the core and DALI do not decode."""
    file = io.BytesIO()
    image = picture(seed)
    image.save(file, "PNG" if seed % 4 == 3 else "JPEG")
    return file.getvalue()


def images(path: Path) -> LooseFiles:
    records = [encoded(seed) for seed in range(COUNT)]
    sizes = [picture(seed).size for seed in range(COUNT)]
    return LooseFiles(path / "records", records, sizes, ENCODED)


def tensors(path: Path) -> TensorStore:
    rows = torch.arange(COUNT * 6, dtype=torch.float32).view(COUNT, 2, 3)
    return TensorStore([rows, torch.arange(COUNT)])


@dataclasses.dataclass(frozen=True)
class Case:
    """An engine under test.

    Attributes:
        engine: its name.
        store: makes what it reads.
        plan: what it makes of that.
        exact: whether images are the reference's bit for bit.
        decodes: whether it decodes images, so that records can fail.
    """

    engine: str
    store: Callable[[Path], Store] = images
    plan: Plan | Views = dataclasses.field(default_factory=lambda: plan_of(CHAIN))
    exact: bool = True
    decodes: bool = True

    def make(self, store: Store, threads: int = 2, plan: Any = None, **more: Any) -> BatchEngine:
        options = EngineOptions(threads=threads, **{"ring": SlabRing(3), **more})
        return registry.make_engine(registry.KINDS[self.engine], store, plan or self.plan, options)

    def images(
        self, store: Store, records: Any, threads: int = 0, **more: Any
    ) -> list[torch.Tensor]:
        return batch_of(self.make(store, threads, **more), records)


def batch_of(engine: BatchEngine, records: Any) -> list[torch.Tensor]:
    """Copies of the tensors of a batch."""
    engine.acquire(engine)
    try:
        made = engine.submit(np.array(records, np.int64), seed=7, epoch=2).result()
    finally:
        engine.release(engine)
    return [one.clone() for one in (made if isinstance(made, list) else [made])]


_native = pytest.mark.native


def _dali() -> Any:
    missing = registry.DALI.missing()
    return pytest.mark.skipif(missing is not None, reason="nvidia-dali is not installed")


CASES = [
    pytest.param(Case("native"), id="native", marks=_native),
    pytest.param(Case("dali", exact=False), id="dali", marks=[_native, _dali()]),
    pytest.param(
        Case("native", plan=Views((plan_of(CHAIN), plan_of(OTHER)))),
        id="native views",
        marks=_native,
    ),
    pytest.param(Case("gather", store=tensors, decodes=False), id="gather"),
]

every = pytest.mark.parametrize("case", CASES)
decoding = pytest.mark.parametrize(
    "case",
    [param for param in CASES if param.values[0].decodes],  # type: ignore[attr-defined]
)


def test_the_suite_has_every_engine_and_users_can_name_those_that_decode() -> None:
    tested = {param.values[0].engine for param in CASES}  # type: ignore[attr-defined]
    assert tested == set(registry.KINDS)
    named = set(get_args(hints.Engine)) - {"auto", "ray", "torch"}
    assert named == set(registry.KINDS) - {registry.ROWS.name}
    assert all(kind.name == name for name, kind in registry.KINDS.items())


def reference(store: Store, plan: Plan | Views, records: Any) -> list[torch.Tensor]:
    """The batch by Pillow and torchvision, with the random numbers of these samples."""
    if isinstance(store, TensorStore):
        return [tensor[records] for tensor in store.tensors]
    plans = plan.each if isinstance(plan, Views) else (plan,)
    views = []
    for view, one in enumerate(plans):
        (chain,) = (chain for chain in (CHAIN, OTHER, SMALL) if plan_of(chain).same_as(one))
        numbers = np.asarray(records).tolist()
        made = [
            oracle.sample(chain, decode_record(store, record), record, seed_of(7, view), 2)
            for record in numbers
        ]
        views.append(torch.stack(made))
    return views


def same(case: Case, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        if case.exact:
            assert torch.equal(one, other)
        else:
            assert (one.float() - other.float()).abs().mean() < 1


@every
@pytest.mark.parametrize("threads", [0, 3])
def test_a_batch_is_the_same_with_any_number_of_threads(
    case: Case, threads: int, tmp_path: Path
) -> None:
    store = case.store(tmp_path)
    for records in ([3, 0, 11, 7, 1], [5], list(range(COUNT))):
        expected = reference(store, case.plan, records)
        same(case, case.images(store, records, threads), expected)


@every
def test_threads_may_change_between_two_batches(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    engine = case.make(store)
    batches = []
    for threads in (2, 0, 3):
        engine.use_threads(threads)
        assert engine.threads == threads
        batches.append(batch_of(engine, [1, 2, 3]))
    for batch in batches:
        same(case, batch, reference(store, case.plan, [1, 2, 3]))


@decoding
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_layouts_and_dtypes_hold_the_same_values(
    case: Case, dtype: torch.dtype, channels_last: bool, tmp_path: Path
) -> None:
    store, records = case.store(tmp_path), [4, 2, 3]
    plan = case.plan.with_output(dtype)
    for made, expected in zip(
        case.images(store, records, plan=plan, channels_last=channels_last),
        reference(store, case.plan, records),
        strict=True,
    ):
        assert made.dtype is dtype and made.shape == expected.shape
        assert made.is_contiguous(
            memory_format=torch.channels_last if channels_last else torch.contiguous_format
        )
        if case.exact:
            assert torch.equal(made.float(), expected.to(dtype).float())


@every
def test_batches_that_are_kept_are_not_written_to_again(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    engine = case.make(store)
    engine.acquire(engine)
    tickets = [engine.submit(np.array([i]), seed=7, epoch=2) for i in range(6)]
    kept = [ticket.result() for ticket in tickets]
    engine.release(engine)
    for i, batch in enumerate(kept):
        same(case, batch if isinstance(batch, list) else [batch], reference(store, case.plan, [i]))


@every
def test_rings_are_where_batches_lie(case: Case, tmp_path: Path) -> None:
    engine = case.make(case.store(tmp_path))
    made = engine.submit(np.arange(4), seed=0, epoch=0).result()
    first = made[0] if isinstance(made, list) else made
    assert any(ring.memory_at(first.data_ptr()) is not None for ring in engine.rings)


@every
@pytest.mark.parametrize("timed", [False, True])
def test_a_ticket_has_its_figures(case: Case, timed: bool, tmp_path: Path) -> None:
    engine = case.make(case.store(tmp_path))
    engine.acquire(engine)
    ticket = engine.submit(np.arange(4), seed=0, epoch=0, timed=timed)
    ticket.result()
    engine.release(engine)
    assert ticket.nbytes > 0
    assert ticket.hits is None and ticket.moving is None
    assert sum(ticket.stages_ns().values()) > 0
    assert ticket.times is None or (timed and (ticket.times[:, 0] > 0).all())


# --- failure ------------------------------------------------------------------------------------


def damaged(path: Path) -> tuple[LooseFiles, dict[int, type[DataError]]]:
    """Records that cannot be read or decoded, and the errors that say so."""
    store = images(path)
    data = bytearray(Path(store.path).read_bytes())
    changed = [1, 5, 7]  # two JPEG files and a PNG file
    for record in changed:
        begin, nbytes = int(store._offset[record]), int(store._nbytes[record])
        head = nbytes // 3 if record != 7 else 8
        data[begin + head : begin + nbytes] = bytes(nbytes - head)
        store.crcs[record] = 0 if record == 5 else _crc(bytes(data[begin : begin + nbytes]))
    Path(store.path).write_bytes(data)
    store._sizes[8] = 20, 20
    store._nbytes[9] = 1 << 40
    return store, {
        1: DecodeError,
        5: ChecksumError,
        7: DecodeError,
        8: DecodeError,
        9: StoreError,
    }


def _crc(data: bytes) -> int:
    from fastload.storage._crc import crc32c

    return crc32c(data)


SMALL = v1.Compose([v1.RandomCrop(16), v1.PILToTensor()])


@decoding
@pytest.mark.parametrize("threads", [0, 2])
def test_settle_gives_the_errors_by_position_and_the_other_images(
    case: Case, threads: int, tmp_path: Path
) -> None:
    store, bad = damaged(tmp_path)
    plan: Any = plan_of(SMALL)
    plan = Views((plan, plan)) if isinstance(case.plan, Views) else plan
    records = np.array([0, 9, 2, 5, 8, 1, 3, 7, 4, 6], np.int64)
    engine = case.make(store, threads, plan)
    engine.acquire(engine)
    made, errors = engine.submit(records, seed=7, epoch=2).settle()
    made = [one.clone() for one in (made if isinstance(made, list) else [made])]
    engine.release(engine)
    assert {int(records[i]): type(error) for i, error in errors.items()} == bad
    for i, error in errors.items():
        record = int(records[i])
        assert (error.path, error.record) == (store.path, record)
        assert error.offset == int(store._offset[record])
    good = [i for i in range(len(records)) if i not in errors]
    expected = reference(store, plan, records[good])
    same(case, [one[good] for one in made], expected)


@decoding
@pytest.mark.parametrize("threads", [0, 2])
def test_result_raises_the_first_error(case: Case, threads: int, tmp_path: Path) -> None:
    store, bad = damaged(tmp_path)
    plan: Any = plan_of(SMALL)
    plan = Views((plan, plan)) if isinstance(case.plan, Views) else plan
    engine = case.make(store, threads, plan)
    for first in bad:
        others = [record for record in bad if record != first]
        with pytest.raises(bad[first]) as info:
            batch_of(engine, [0, first, *others])
        assert info.value.record == first
    same(case, batch_of(engine, [0, 2]), reference(store, plan, [0, 2]))


@decoding
def test_an_image_without_a_size_is_refused_at_once(case: Case, tmp_path: Path) -> None:
    store = images(tmp_path)
    store._sizes[3] = 0, 0
    engine = case.make(store)
    with pytest.raises(DecodeError, match="could not be read before, but can be now") as info:
        engine.submit(np.array([1, 3]), seed=0, epoch=0)
    assert (info.value.path, info.value.record) == (store.path, 3)


@decoding
def test_an_image_that_is_too_small_is_refused_at_once(case: Case, tmp_path: Path) -> None:
    plan: Any = plan_of(v1.Compose([v1.RandomCrop(65), v1.PILToTensor()]))
    plan = Views((plan, plan)) if isinstance(case.plan, Views) else plan
    store = images(tmp_path)
    engine = case.make(store, plan=plan)
    with pytest.raises(DataError) as info:
        engine.submit(np.array([11, 2, 8]), seed=0, epoch=0)  # 2 is 62 x 78 pixels
    assert (info.value.path, info.value.record) == (store.path, 2)
    assert info.value.position == 1  # type: ignore[attr-defined]


@every
def test_where_says_where_a_record_lies(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    where = case.make(store).where(5)
    assert where["path"] == store.files[0] and where["record"] == 5
    in_file = not store.memory()
    assert where["offset"] == (int(store.spans(np.array([5])).offset[0]) if in_file else None)


# --- the end ------------------------------------------------------------------------------------


@every
@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("threads", [0, 2])
def test_a_cancelled_batch_gives_nothing_and_the_next_one_is_right(
    case: Case, threads: int, tmp_path: Path
) -> None:
    store = case.store(tmp_path)
    engine = case.make(store, threads)
    engine.acquire(engine)
    tickets = [engine.submit(np.arange(COUNT), seed=7, epoch=2) for _ in range(4)]
    for ticket in tickets[:2]:
        ticket.cancel()
        ticket.cancel()
    canceller = threading.Thread(target=tickets[3].cancel)
    canceller.start()
    canceller.join(30)
    assert [ticket.cancelled for ticket in tickets] == [True, True, False, True]
    for ticket in tickets[0], tickets[3]:
        with pytest.raises(concurrent.futures.CancelledError):
            ticket.result()
    with pytest.raises(concurrent.futures.CancelledError):
        tickets[1].settle()
    made = tickets[2].result()
    same(
        case,
        made if isinstance(made, list) else [made],
        reference(store, case.plan, list(range(COUNT))),
    )
    del made
    engine.release(engine)


@every
@pytest.mark.usefixtures("no_leaks")
def test_the_last_of_several_users_ends_it_and_it_starts_again(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    engine, one, other = case.make(store), object(), object()
    expected = reference(store, case.plan, [1, 2, 3])
    for user in (one, other):
        engine.acquire(user)
    ticket = engine.submit(np.array([1, 2, 3]), seed=7, epoch=2)
    engine.release(one)
    engine.release(one)
    made = ticket.result()
    same(case, made if isinstance(made, list) else [made], expected)
    engine.release(other)
    engine.release(other)
    same(case, batch_of(engine, [1, 2, 3]), expected)


@every
def test_another_process_makes_the_same_from_the_pickled_engine(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    engine = case.make(store)
    expected = batch_of(engine, [1, 2, 3])
    copy = pickle.loads(pickle.dumps(engine))
    assert type(copy) is type(engine) and copy.threads == engine.threads
    same(case, batch_of(copy, [1, 2, 3]), expected)


@every
def test_a_forked_child_makes_an_engine_of_its_own(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    engine = case.make(store)
    expected = batch_of(engine, [1, 2, 3])
    child = os.fork()
    if not child:
        status = 1
        try:
            same(case, case.images(store, [1, 2, 3], threads=2), expected)
            status = 0
        except UsageError:  # what DALI says: it does not survive a fork
            status = 2
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (2 if case.engine == "dali" else 0)
    same(case, batch_of(engine, [1, 2, 3]), expected)


# --- what callers ask -----------------------------------------------------------------------------


@every
@pytest.mark.parametrize("wait", [False, True])
def test_any_spans_may_be_read_ahead(case: Case, wait: bool, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    engine = case.make(store)
    engine.acquire(engine)

    def spans(file: int, offset: list[int], nbytes: list[int]) -> Spans:
        return Spans(
            file=np.full(len(offset), file, np.int32),
            offset=np.array(offset, np.int64),
            nbytes=np.array(nbytes, np.int64),
        )

    engine.readahead([], wait=wait)
    engine.readahead([spans(0, [], [])], wait=wait)
    engine.readahead([store.spans(np.arange(3)), store.spans(np.arange(COUNT))], wait=wait)
    engine.readahead([spans(0, [0, 1 << 50, 3], [-1, 100, 1 << 50])], wait=wait)
    engine.readahead([spans(99, [0], [10])], wait=wait)
    same(case, batch_of(engine, [1, 2]), reference(store, case.plan, [1, 2]))
    engine.release(engine)


@every
def test_it_knows_what_it_makes(case: Case, tmp_path: Path) -> None:
    engine = case.make(case.store(tmp_path))
    assert engine.makes(case.plan)
    assert not engine.makes(plan_of(v1.Compose([v1.CenterCrop(5), v1.PILToTensor()])))
    assert engine.uniform(np.arange(3))
    assert engine.name in registry.KINDS


@decoding
def test_images_of_several_sizes_make_no_batch(case: Case, tmp_path: Path) -> None:
    plan: Any = plan_of(v1.PILToTensor())
    plan = Views((plan, plan)) if isinstance(case.plan, Views) else plan
    engine = case.make(images(tmp_path), plan=plan)
    assert engine.uniform(np.array([2]))
    assert not engine.uniform(np.array([2, 3]))
    with pytest.raises(DataError):
        engine.submit(np.array([2, 3]), seed=0, epoch=0).result()


@decoding
@pytest.mark.parametrize("kind", ["ram", "decoded", "dct"])
def test_a_cache_in_front_changes_no_image(case: Case, kind: Any, tmp_path: Path) -> None:
    if registry.on_device(case.engine):
        pytest.skip("it takes no cache")
    store = images(tmp_path)
    cache = Cache.of(kind, "8MB", case.engine)
    assert cache is not None
    cached = cache.before(
        store, [store], case.plan, engine=registry.KINDS[case.engine], checked=True
    )
    engine = case.make(cached)
    records = [3, 1, 8, 2]
    for hits in (0, 4):
        engine.acquire(engine)
        ticket = engine.submit(np.array(records), seed=7, epoch=2)
        made = ticket.result()
        same(
            case,
            made if isinstance(made, list) else [made],
            reference(store, case.plan, records),
        )
        assert ticket.hits == hits
        del made
        engine.release(engine)
