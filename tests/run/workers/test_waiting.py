"""A dataset waits to defer until it is worth it, and others' functions rest while nobody defers."""

from __future__ import annotations

import gc
import itertools
import math
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import torch
import torch._dynamo
import torchvision.transforms as T
import torchvision.transforms.functional as F
from torch.utils.data import Dataset, IterableDataset

import deferred_datasets as shapes
import fastload
import warm
from fastload import FastLoader
from fastload._base.per_process import PerProcess
from fastload._run.maker import Outcome
from fastload._run.measurements import Spent
from fastload._run.workers import choice
from fastload._run.workers.choice import Choice, Watch
from fastload._run.workers.deferral import Deferral
from fastload._sources.deferred import guarded, redirect, switch
from fastload._sources.deferred.image import DeferredImage
from fastload._sources.deferred.opener_detector import OpenerDetector
from fastload._sources.deferred.thread_state import THREAD
from sides import side_by_side

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fastload.uninstall()
    monkeypatch.delenv("FASTLOAD_DEFER")
    monkeypatch.setattr(choice._TOTAL, "ns", 0.0)
    monkeypatch.setattr(choice._TOTAL, "due_ns", PerProcess())
    gc.collect()  # loaders of other tests that hold the functions
    yield
    fastload.uninstall()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = shapes.write_photos(tmp_path_factory.mktemp("photos"))
    return [path for path in paths if path.suffix == ".jpg"]


class Kinds(Dataset[bool]):
    """Whether each image that it opens is deferred."""

    def __init__(self, paths: list[Path], opens: bool = True) -> None:
        self.paths = paths * 4
        self.opens = opens

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> bool:
        if not self.opens:
            return False
        with PIL.Image.open(self.paths[i]) as image:
            return isinstance(image, DeferredImage)


def _original(function: Any) -> bool:
    return function not in redirect.redirected()


def _choose(loader: FastLoader[Any], *, eager: bool) -> Choice:
    """Have a loader keep one way, without looking at the other one."""
    known = loader._loader_resources.choice = loader._loader_resources.choice or Choice()
    known._begin()
    known.eager, known._left = eager, float("inf")
    return known


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes time, so that no way is found to be cheaper."""
    monkeypatch.setattr(choice, "clock", lambda: 0)
    monkeypatch.setattr(guarded, "clock", lambda: 0)


# --- waiting --------------------------------------------------------------------------------------


class Uncounted(Kinds):
    def __len__(self) -> int:
        raise RuntimeError("nobody knows")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_length_is_not_asked_for_that_torch_does_not_ask_for(
    photos: list[Path], workers: int
) -> None:
    loader = FastLoader(Uncounted(photos), 2, sampler=range(6), num_workers=workers)
    assert len(list(loader)) == 3


def test_a_dataset_goes_with_its_loader(photos: list[Path]) -> None:
    dataset = Kinds(photos)
    there = weakref.ref(dataset)
    loader = FastLoader(dataset, 4)
    list(loader)
    gc.disable()
    try:
        del loader, dataset
        assert there() is None
    finally:
        gc.enable()


def test_an_epoch_of_much_work_is_deferred_from_its_second_batch_on(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_STAKE_NS", 0)
    first, second, *_ = map(any, FastLoader(Kinds(photos), 4))
    assert not first
    assert second


def test_watched_samples_are_not_what_an_eager_one_costs(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    monkeypatch.setattr(choice, "clock", lambda: now_ns)
    asked: list[float] = []

    def stakes(ns: float) -> bool:
        asked.append(ns)
        return True

    with Watch(stakes, at_once=False) as watch:
        for i in watch.over(range(10)):
            # The first sample does what is done once, and the fourth and fifth ones are watched.
            now_ns += {0: 90, 3: 500, 4: 700}.get(i, 10)
            if i >= 4:
                PIL.Image.open(photos[0]).close()
        now_ns += 20  # collating
    assert asked == [10]
    assert watch.seen
    assert watch.spent(10, watch.begin_ns + now_ns) == Spent(
        eager=10, eager_ns=(90 + 7 * 10 + 20) * 10 // 8
    )


def test_under_a_programs_profiler_images_are_deferred_from_the_second_batch_on(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_STAKE_NS", 0)
    sys.setprofile(lambda *event: None)
    try:
        first, second, *_ = map(any, FastLoader(Kinds(photos), 4))
    finally:
        sys.setprofile(None)
    assert not first
    assert second


def test_a_watch_is_of_the_thread_that_makes_its_batch() -> None:
    deferral = Deferral(Choice())
    seen: list[Watch | None] = []

    def make() -> Outcome:
        seen.append(deferral.watch)
        with ThreadPoolExecutor(1) as threads:
            seen.append(threads.submit(lambda: deferral.watch).result())
        return Outcome(False, 1)

    deferral.run_eagerly(make)
    mine, others = seen
    assert isinstance(mine, Watch)
    assert others is None and deferral.watch is None


def test_what_was_watched_to_its_end_is_not_measured() -> None:
    with Watch(lambda ns: True, at_once=False) as watch:
        assert list(watch.over(range(10))) == list(range(10))
        assert sys.getprofile() is not None
    assert sys.getprofile() is None
    assert watch.begun and not watch.seen
    assert watch.spent(10, watch.begin_ns + 100) == Spent(eager=10)


def test_two_threads_may_iterate_over_one_loader(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_DEFER", "1")
    chain = T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor()])
    loader = FastLoader(shapes.Photos(photos * 4, chain), 2)
    expected = [images for images, *_ in loader]

    def epochs(_: int) -> bool:
        again = (zip(expected, loader, strict=True) for _ in range(4))
        return all(torch.equal(one, batch[0]) for epoch in again for one, batch in epoch)

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(epochs, range(2)))


@pytest.mark.parametrize("workers", [0, 2])
def test_little_work_is_left_as_it_is(photos: list[Path], workers: int) -> None:
    loader = FastLoader(Kinds(photos), 4, num_workers=workers)
    for _ in range(3):
        assert not any(torch.cat(list(loader)))
    assert loader._loader_resources.choice.waits
    assert redirect.redirected() == []
    assert loader.stats()["samples_eager"] == len(loader.dataset)
    assert "images: opened as ever, until making samples takes so long" in loader.explain()


def test_it_begins_at_once_only_where_even_the_smallest_images_take_long_enough() -> None:
    for samples in (80, 1000, choice._MANY):
        known = Choice()
        known.expect(samples, 1)
        assert known.waits == (samples < choice._MANY)
    # of the smallest images, which take 0.2 ms each
    assert choice._MANY * 200_000 >= choice._STAKE_NS


@pytest.mark.parametrize("workers", [0, 2])
def test_enough_work_with_images_is_deferred(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(choice, "_STAKE_NS", 0)
    monkeypatch.setattr(choice, "_SPREAD", 1e9)  # neither way is ahead
    loader = FastLoader(Kinds(photos), 2, num_workers=workers)
    first = list(map(any, loader))
    # Each process makes its first batch as ever.
    assert not any(first[: max(1, workers)])
    assert any(first[max(1, workers) :])


def test_new_workers_have_what_the_training_process_has_begun(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = FastLoader(Kinds(photos), 2, num_workers=2)
    assert not any(map(any, loader))
    monkeypatch.setattr(choice, "_STAKE_NS", 0)
    # The first batch of each worker is watched. Later ones would be compared.
    assert not any(map(any, itertools.islice(loader, 2)))
    assert all(map(any, itertools.islice(loader, 2)))


def test_without_a_length_an_epoch_is_expected_to_be_as_long_as_the_one_before(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Kinds(photos)
    loader = FastLoader(dataset, 4, sampler=range(len(dataset)))
    list(loader)
    known = loader._loader_resources.choice
    assert known is not None
    monkeypatch.setattr(choice, "_STAKE_NS", 1.5 * known.eagerly.ns * len(dataset))
    monkeypatch.setattr(choice, "_EQUAL", math.inf)  # neither way is ahead
    _, *later = map(any, loader)  # the first batch is watched
    assert all(later)


class Flowing(IterableDataset[bool]):
    """As Kinds, as a stream. It is a clock by which each image takes a millisecond."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.opened = 0

    def __iter__(self) -> Iterator[bool]:
        for path in itertools.islice(itertools.cycle(self.paths), 8):
            with PIL.Image.open(path) as image:
                self.opened += 1
                yield isinstance(image, DeferredImage)

    def clock(self) -> int:
        return self.opened * 1_000_000


@pytest.mark.parametrize("samples", [3, 12, 20, 40])
def test_a_stream_in_workers_that_persist_is_deferred_when_it_has_taken_long_enough(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch, samples: int
) -> None:
    stream = Flowing(photos)
    monkeypatch.setattr(choice, "clock", stream.clock)
    monkeypatch.setattr(choice, "_STAKE_NS", samples * 1_000_000)
    choice._TOTAL.due_ns.put(10**18)  # by the clock of this process
    loader = FastLoader(stream, 2, num_workers=1, persistent_workers=True)
    kinds = [bool(kind) for _ in range(7) for batch in loader for kind in batch]
    assert samples <= kinds.index(True) <= samples + 6


def test_epochs_that_are_over_count(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FastLoader(Kinds(photos), 4)
    list(loader)
    assert choice._TOTAL.ns == 0
    list(loader)
    assert choice._TOTAL.ns > 0
    monkeypatch.setattr(choice, "_STAKE_NS", choice._TOTAL.ns)
    other = FastLoader(Kinds(photos), 4)
    list(other)
    assert not other._loader_resources.choice.waits


def test_a_dataset_without_images_exchanges_nothing(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_STAKE_NS", 0)
    loader = FastLoader(Kinds(photos, opens=False), 1)
    for _ in range(4):
        list(loader)
    assert loader._loader_resources.choice.waits
    assert redirect.redirected() == []


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[OpenerDetector]:
    """What has watched batches."""
    made: list[OpenerDetector] = []

    class Counted(OpenerDetector):
        def __init__(self) -> None:
            made.append(self)

    monkeypatch.setattr("fastload._sources.deferred.opener_detector.OpenerDetector", Counted)
    return made


def test_little_work_is_not_watched(photos: list[Path], watches: list[OpenerDetector]) -> None:
    loader = FastLoader(Kinds(photos, opens=False), 4)
    for _ in range(3):
        list(loader)
    assert watches == []


def test_where_no_images_are_seen_few_batches_are_watched(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch, watches: list[OpenerDetector]
) -> None:
    monkeypatch.setattr(choice, "_STAKE_NS", 0)
    monkeypatch.setattr(choice, "clock", itertools.count().__next__)
    loaders = [FastLoader(Kinds(photos, opens=False), 4) for _ in range(2)]
    for _ in range(10):
        for loader in loaders:
            next(iter(loader))
    assert len(watches) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_where_nothing_can_be_deferred_that_is_tried_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    class Tries(Kinds):
        def __getitem__(self, i: int) -> bool:
            with PIL.Image.open(self.paths[i]):
                return bool(THREAD.deferring)

    PIL.Image.new("RGB", (9, 9)).save(tmp_path / "a.tif")
    monkeypatch.setattr(choice, "_STAKE_NS", 0)
    monkeypatch.setattr(choice, "_VAIN", 64)
    monkeypatch.setattr(choice, "_WATCHED", 0)
    monkeypatch.setattr(Choice, "_compare", lambda *args: None)  # deferring is kept
    loader = FastLoader(
        Tries([tmp_path / "a.tif"] * 64), 4, num_workers=workers, persistent_workers=workers > 0
    )
    tried = [int(torch.cat(list(loader)).sum()) for _ in range(8)]
    assert 12 <= sum(tried) <= 80  # of 2048


def test_the_loader_of_a_sample_defers_when_the_outer_one_does(photos: list[Path]) -> None:
    class Episodes(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            return next(iter(FastLoader(Kinds(photos), 4)))

    loader = FastLoader(Episodes(), 2)
    assert not torch.cat(list(loader)).any()
    _choose(loader, eager=False)
    assert torch.cat(list(loader)).all()


def test_a_watch_sees_what_opens_an_image(photos: list[Path]) -> None:
    with OpenerDetector() as watch:
        PIL.Image.new("RGB", (2, 2)).resize((3, 3))
    assert not watch.seen
    with OpenerDetector() as watch:
        PIL.Image.open(photos[0]).close()
        assert sys.getprofile() is None
    assert watch.seen


def test_a_watch_leaves_a_programs_profiler_alone(photos: list[Path]) -> None:
    called = []

    def theirs(frame: types.FrameType, event: str, argument: Any) -> None:
        called.append(event)

    sys.setprofile(theirs)
    try:
        with OpenerDetector() as watch:
            PIL.Image.new("RGB", (2, 2))
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    assert watch.seen
    assert called


# --- rest -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("still")
def test_functions_have_their_own_codes_while_a_loader_is_eager(photos: list[Path]) -> None:
    codes = {one: one.__code__ for one in (PIL.Image.open, F.to_tensor, F.normalize)}
    loader = FastLoader(Kinds(photos), 4)
    known = _choose(loader, eager=False)
    assert torch.cat(list(loader)).all()
    assert not any(map(_original, codes))
    stubs = {one: one.__code__ for one in codes}
    known.eager = True
    list(loader)
    assert all(one.__code__ is code for one, code in codes.items())
    known.eager, known._left = False, float("inf")
    assert torch.cat(list(loader)).all()
    assert all(one.__code__ is stub for one, stub in stubs.items())


def test_functions_come_back_when_ways_are_measured_anew(photos: list[Path]) -> None:
    seen = []

    class Looking(Kinds):
        def __getitem__(self, i: int) -> bool:
            seen.append(_original(PIL.Image.open))
            return super().__getitem__(i)

    loader = FastLoader(Looking(photos), 2)
    known = _choose(loader, eager=True)
    list(loader)
    assert all(seen)
    known._left = 0
    seen.clear()
    list(loader)
    assert not all(seen)
    assert known.deferred.samples


@pytest.mark.usefixtures("still")
def test_what_a_dataset_kept_stays_right_at_rest(photos: list[Path]) -> None:
    dataset = shapes.Keeping(photos)
    loader = FastLoader(dataset, 4)
    known = _choose(loader, eager=False)
    list(loader)
    known.eager = True
    expected = list(torch.utils.data.DataLoader(shapes.Keeping(photos), 4))
    found = list(loader)
    assert len(found) == len(expected)
    needed = {one.__name__ for one in redirect.redirected()}
    assert needed == {"wrap", "_get_fill", "transform"}


@pytest.mark.usefixtures("still")
def test_a_loader_that_defers_holds_the_functions_as_long_as_it_lives(photos: list[Path]) -> None:
    deferring, eager = (FastLoader(Kinds(photos), 4) for _ in range(2))
    _choose(deferring, eager=False)
    _choose(eager, eager=True)
    list(deferring)
    list(eager)
    assert not _original(PIL.Image.open)
    del deferring
    gc.collect()
    list(eager)
    assert _original(PIL.Image.open)


@pytest.mark.usefixtures("still")
def test_another_thread_that_defers_keeps_the_functions(photos: list[Path]) -> None:
    entered, leave = threading.Event(), threading.Event()

    def defer() -> None:
        with switch.deferring():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=defer)
    thread.start()
    entered.wait()
    try:
        loader = FastLoader(Kinds(photos), 4)
        _choose(loader, eager=True)
        assert not torch.cat(list(loader)).any()
        assert not _original(PIL.Image.open)
    finally:
        leave.set()
        thread.join()
    list(loader)
    assert _original(PIL.Image.open)


@pytest.mark.usefixtures("still")
def test_threads_that_rest_and_wake_see_what_they_should(photos: list[Path]) -> None:
    wrong = []
    first = FastLoader(Kinds(photos), 4)
    _choose(first, eager=False)
    list(first)  # functions prove themselves, on one thread at a time
    del first

    def run(eager: bool) -> None:
        loader = FastLoader(Kinds(photos), 4)
        _choose(loader, eager=eager)
        for _ in range(10):
            if torch.cat(list(loader)).any().item() is eager:
                wrong.append(eager)

    threads = [threading.Thread(target=run, args=(eager,)) for eager in (True, False) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.usefixtures("still")
def test_uninstall_restores_everything_at_rest_too(photos: list[Path]) -> None:
    before = {one: one.__code__ for one in (PIL.Image.open, F.to_tensor)}
    loader = FastLoader(Kinds(photos), 4)
    known = _choose(loader, eager=False)
    list(loader)
    known.eager = True
    list(loader)
    fastload.uninstall()
    assert redirect.redirected() == []
    assert all(one.__code__ is code for one, code in before.items())
    known.eager = False
    assert torch.cat(list(loader)).all()


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_whose_workers_defer_keeps_its_own_codes(
    photos: list[Path], workers: int
) -> None:
    loader = FastLoader(Kinds(photos), 4, num_workers=workers)
    _choose(loader, eager=False)
    assert torch.cat(list(loader)).all()
    assert _original(PIL.Image.open)


def _centre(image: torch.Tensor) -> torch.Tensor:
    return F.resize(F.center_crop(image, 16), [8, 8]).mean()


@pytest.mark.usefixtures("still")
def test_a_compiled_model_is_not_compiled_again_each_time(photos: list[Path]) -> None:
    torch._dynamo.reset()
    compiled_so_far = 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal compiled_so_far
        compiled_so_far += 1
        return graph.forward

    image = torch.rand(1, 3, 32, 32)
    compiled = torch.compile(_centre, backend=backend, fullgraph=True, dynamic=False)
    expected = compiled(image)
    loader = FastLoader(Kinds(photos), 4)
    known = _choose(loader, eager=False)
    counts = []
    for n in range(12):
        known.eager = bool(n % 2)
        list(loader)
        assert _original(F.resize) is known.eager
        assert torch.equal(compiled(image), expected)
        counts.append(compiled_so_far)
    assert counts[-1] == counts[1] <= 2
    assert torch._dynamo.explain(_centre)(image).graph_break_count == 0
    torch._dynamo.reset()


WAITED = [shapes.Photos, shapes.V2, shapes.Keeping, shapes.FromArrays]


@pytest.mark.parametrize(
    ("kind", "workers"),
    [(kind, 0) for kind in WAITED]
    + [
        pytest.param(kind, 2, marks=() if kind is shapes.Keeping else pytest.mark.long)
        for kind in WAITED
    ],
)
def test_batches_are_the_same_from_waiting_to_deferring(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch, kind: type, workers: int
) -> None:
    monkeypatch.setattr(choice, "_STAKE_NS", 0)
    side_by_side(
        kind(photos * 4),
        batch_size=2,
        shuffle=True,
        num_workers=workers,
        worker_init_fn=shapes.seed_numpy,
    )


def test_without_workers_nothing_is_imported_that_only_they_need() -> None:
    program = """
import sys
from fastload import FastLoader
parts = ["tasks", "task_fetcher", "transport", "queues", "worker_maker"]
for workers in (0, 1):
    assert len(list(FastLoader(range(8), batch_size=4, num_workers=workers))) == 2
    print(sum(f"fastload._run.workers.{part}" in sys.modules for part in parts))
"""
    said = warm.run(["-c", program], check=True, finalize=False, only_torch=True)
    assert said.stdout.split() == ["0", "5"]
