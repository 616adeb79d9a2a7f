"""A dataset's two ways, deferred and eager: the cheaper one is kept, and batches are the same.

The clock is not the machine's: datasets say what each of their samples takes.
"""

from __future__ import annotations

import gc
import math
import os
import pickle
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset

import deferred_datasets as shapes
from fastload import FastLoader
from fastload._run.measurements import Report, Spent
from fastload._run.workers import choice
from fastload._run.workers.choice import Choice
from fastload._sources.deferred import guarded
from fastload._sources.deferred.image import DeferredImage
from fastload._sources.deferred.thread_state import THREAD, Cause
from sides import side_by_side

# Pillow leaves a truncated file open.
pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Clock:
    """Stands still but where a dataset says that it takes time."""

    def __init__(self) -> None:
        self.ns = 1
        self.readings = 0

    def __call__(self) -> int:
        self.readings += 1
        return self.ns


CLOCK = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "clock", CLOCK)
    monkeypatch.setattr(guarded, "clock", CLOCK)
    monkeypatch.delenv("FASTLOAD_DEFER")
    # Every loader begins to defer at once; and every batch is measured, however little it takes.
    monkeypatch.setattr(Choice, "waits", False)
    monkeypatch.setattr(choice, "_SHORT_NS", 0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = shapes.write_photos(tmp_path_factory.mktemp("photos"))
    return [path for path in paths if path.suffix == ".jpg"]


class Measured(shapes.Photos):
    """Its samples take what they are told to: a deferred one, and an eager one."""

    deferred_ns, eager_ns = 1000, 1000
    asks = True  # for a pixel of each image
    tells = True  # which samples were deferred

    def __init__(self, paths: list[Path], count: int, **attributes: Any) -> None:
        super().__init__([paths[i % len(paths)] for i in range(count)])
        vars(self).update(attributes)

    def __getitem__(self, i: int) -> Any:
        with Image.open(self.paths[i]) as image:
            deferred = isinstance(image, DeferredImage)
            CLOCK.ns += self.deferred_ns if deferred else self.eager_ns
            if self.asks:
                image.getpixel((0, 0))
            return torch.tensor(image.size), torch.rand(2), deferred and self.tells


class Stream(IterableDataset[Any]):
    """The same as a stream."""

    def __init__(self, dataset: Measured) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        for i in range(len(self.dataset)):
            yield self.dataset[i]


class Whole(Measured):
    """The same, whose batches are made as a whole."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


def ways(loader: FastLoader[Any]) -> list[list[bool]]:
    """Which samples of each batch of an epoch were deferred."""
    return [batch[2].tolist() for batch in loader]


def deferred(loader: FastLoader[Any]) -> int:
    return sum(map(sum, ways(loader)))


def test_a_dataset_that_loses_is_left_eager_within_its_first_batch(photos: list[Path]) -> None:
    loader = FastLoader(Measured(photos, 64, eager_ns=500), 64)
    assert ways(loader)[0] == [True, False] * 3 + [True] + [False] * 57
    assert deferred(loader) == 0


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_a_dataset_that_loses_is_eager(photos: list[Path], size: int, workers: int) -> None:
    loader = FastLoader(
        Measured(photos, 64, eager_ns=500),
        size,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    assert deferred(loader) < 32
    assert deferred(loader) <= 8
    assert deferred(loader) <= 8


@pytest.mark.parametrize("size", [1, 4, 16])
def test_workers_of_the_next_epoch_know_what_those_before_have_measured(
    photos: list[Path], size: int
) -> None:
    loader = FastLoader(Measured(photos, 64, eager_ns=500), size, num_workers=2)
    deferred(loader)
    assert deferred(loader) <= 8


def test_what_is_kept_is_kept_where_a_worker_makes_one_batch(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_LATE", 64)
    loader = FastLoader(Whole(photos, 32, eager_ns=500), 16, num_workers=2)
    known = loader._loader_resources.choice = Choice()
    known.eager = known._whole = True
    known.deferred.add(64, 64 * 1000)
    known.eagerly.add(64, 64 * 500)
    known._then = known._lately = 500.0
    tried = [deferred(loader) > 0 for _ in range(20)]
    assert 0 < sum(tried) <= 8


class Cold(Measured):
    """The first samples of each process take longer: what they touch is there once for all."""

    made: ClassVar[dict[int, int]] = {}  # by process

    def __getitem__(self, i: int) -> Any:
        self.made[os.getpid()] = made = self.made.get(os.getpid(), 0) + 1
        if made <= 16:
            CLOCK.ns += 500
        return super().__getitem__(i)


def test_a_worker_that_begins_slowly_has_nothing_measured_anew(photos: list[Path]) -> None:
    loader = FastLoader(Cold(photos, 160, eager_ns=500), 16, num_workers=2)
    known = []
    for _ in range(4):
        deferred(loader)
        assert loader._loader_resources.choice is not None
        known.append(loader._loader_resources.choice.eagerly.samples)
    assert known == sorted(known)
    assert known[-1] > 400  # of 640


def test_what_the_first_try_of_a_process_costs_counts_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(THREAD, "deferring", None)
    known = Choice()
    known.eager = True
    known.eagerly.add(8, 4000)
    lost = []
    for _ in range(2):
        begin_ns = known.begin()
        with known.turns(range(4)) as indices:
            for _ in indices:
                CLOCK.ns += 6000
        lost.append(known.spent(4, begin_ns).lost_ns)
    assert lost == [4 * 5500, 4 * 5500]  # in the first one the process has made none before


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_a_dataset_that_gains_has_two_eager_samples(
    photos: list[Path], size: int, asks: bool
) -> None:
    loader = FastLoader(Measured(photos, 96, eager_ns=6000, asks=asks), size)
    assert 1 <= 96 - deferred(loader) <= 2
    assert 96 - deferred(loader) <= 2
    assert 96 - deferred(loader) <= 2


@pytest.mark.parametrize("eager_ns", [6000, 2000, 500, 100])
def test_tries_take_a_small_share_of_the_time(photos: list[Path], eager_ns: int) -> None:
    loader = FastLoader(Measured(photos, 256, eager_ns=eager_ns), 64)
    for _ in range(3):
        deferred(loader)
    begin_ns = CLOCK.ns
    for _ in range(6):
        deferred(loader)
    assert CLOCK.ns - begin_ns <= 6 * 256 * min(1000, eager_ns) * 1.02


@pytest.mark.parametrize("asks", [False, True])
def test_both_ways_are_tried_seldom_and_then_really(photos: list[Path], asks: bool) -> None:
    loader = FastLoader(Measured(photos, 64, eager_ns=3000, asks=asks), 16)
    eager, turns = 0, 0
    for _ in range(40):
        readings = CLOCK.readings
        eager += 64 - deferred(loader)
        turns += CLOCK.readings - readings > 32  # one for a sample, not for a batch
    assert 4 <= eager <= 16
    assert turns <= 16


def test_turns_that_make_a_batch_ask_for_its_pixels_are_not_taken_again() -> None:
    known = Choice()
    for _ in range(8):
        known.learn(Report(run=True, opened=64, spent=Spent(64, 64_000, own_ns=6400)))
    asked = (Cause("Tensor.cat", "collate.py", 1, 63, 1000),)
    known.learn(Report(run=True, opened=63, causes=asked, spent=Spent(63, 315_000, 1, 2500, 630)))
    assert not known.eager
    assert known.deferred_ns == 1000
    for _ in range(1000):
        if known.defers(64):
            known.learn(Report(run=True, opened=64, spent=Spent(64, 64_000, own_ns=6400)))
        else:
            known.learn(Report(spent=Spent(eager=64, eager_ns=64 * 2500)))
        assert not known.takes_turns(64)
    assert not known.eager
    assert known.eagerly.samples > 64


def test_what_the_training_process_spends_on_filling_counts() -> None:
    costs = Choice(), Choice()
    costs[1].elsewhere_ns = 1000
    for one in costs:
        one.learn(Report(run=True, opened=8, spent=Spent(8, 8000, 8, 12_000)))
    assert [one.eager for one in costs] == [False, True]


def test_a_stream_is_measured_sample_by_sample(photos: list[Path]) -> None:
    loader = FastLoader(Stream(Measured(photos, 64, eager_ns=500)), 16)
    assert ways(loader)[0] == [True, False] * 3 + [True] + [False] * 9
    assert deferred(loader) == 0


def test_batches_that_are_made_as_a_whole_are_compared_as_a_whole(photos: list[Path]) -> None:
    loader = FastLoader(Whole(photos, 64, eager_ns=500), 8)
    assert [all(batch) for batch in ways(loader)] == [True, True, *[False] * 6]
    gaining = FastLoader(Whole(photos, 64, eager_ns=6000, asks=False), 8)
    assert deferred(gaining) == deferred(gaining) == 64


def test_code_that_does_something_else_later_is_measured_anew(photos: list[Path]) -> None:
    dataset = Measured(photos, 64, eager_ns=500)
    loader = FastLoader(dataset, 16)
    deferred(loader)
    assert deferred(loader) == 0
    dataset.deferred_ns, dataset.eager_ns = 1000, 6000
    deferred(loader)
    assert deferred(loader) == 64
    dataset.deferred_ns, dataset.eager_ns = 4000, 1000
    deferred(loader)
    assert deferred(loader) == 0


def test_one_slow_call_decides_nothing(photos: list[Path]) -> None:
    class Once(Measured):
        left = 1

        def __getitem__(self, i: int) -> Any:
            if i == 2 and self.left:
                self.left = 0
                CLOCK.ns += 1_000_000  # imports something
            return super().__getitem__(i)

    loader = FastLoader(Once(photos, 256, eager_ns=3000), 16)
    deferred(loader)
    assert deferred(loader) >= 254


def kept(known: Choice, samples: int, spread: float) -> float:
    """The part of so many samples that were eager, which take a tenth less time.

    Samples differ by about ``spread``, without an order.
    """
    eager = 0
    for i in range(0, samples, 8):
        ns = 8000 * (1 + spread * math.sin(i * i))
        deferring = known.defers(8)
        if deferring and known.takes_turns(8):
            other = 8000 * (1 + spread * math.cos(i * i))
            spent = Spent(4, round(ns / 2), 4, round(other * 0.45), 1)
        else:
            spent = Spent(8, round(ns)) if deferring else Spent(eager=8, eager_ns=round(ns * 0.9))
        known.learn(Report(run=deferring, opened=8, read=8, spent=spent))
        eager += spent.eager
    return eager / samples


def test_a_way_that_seems_to_be_cheaper_is_kept_while_the_other_is_still_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(THREAD, "deferring", True)
    known = Choice()
    known.learn(Report(run=True, opened=8, read=8, spent=Spent(8, 8000, own_ns=8000)))
    known.learn(Report(run=True, opened=8, read=8, spent=Spent(4, 4000, 4, 3600, 4000)))
    assert known.eager
    assert known._left < 64  # that was four samples each
    assert kept(known, 1600, 0.3) > 0.75
    assert known.eager


def test_a_cost_is_known_as_well_as_its_measurements_agree() -> None:
    alike, differing = choice.Cost(), choice.Cost()
    assert alike.error == math.inf
    for i in range(32):
        alike.add(1, 1000)
        differing.add(1, 100 + 1800 * (i % 2))
    assert alike.error < 0.05
    assert differing.error > 3 * alike.error


def other_collate(samples: list[Any]) -> list[Any]:
    return samples


def test_the_next_loader_of_a_dataset_knows_what_the_one_before_has_measured(
    photos: list[Path],
) -> None:
    dataset = Measured(photos, 64, eager_ns=500)
    deferred(FastLoader(dataset, 16))
    assert deferred(FastLoader(dataset, 16)) == 0
    assert sum(len(batch) for batch in FastLoader(dataset, 16, collate_fn=other_collate)) == 64
    assert deferred(FastLoader(Measured(photos, 64, eager_ns=500), 16)) > 0


def test_workers_of_the_next_loader_know_it_too(photos: list[Path]) -> None:
    dataset = Measured(photos, 64, eager_ns=500)
    for _ in range(2):
        deferred(FastLoader(dataset, 16, num_workers=1))
    assert deferred(FastLoader(dataset, 16, num_workers=1)) == 0


def test_what_is_known_of_a_dataset_goes_with_it(photos: list[Path]) -> None:
    gc.collect()  # what earlier tests left
    before = len(choice._LAST_OF)
    dataset = Measured(photos, 64)
    loader = FastLoader(dataset, 16)
    deferred(loader)
    gone, first = weakref.ref(dataset), weakref.ref(loader._loader_resources.choice)
    del loader
    gc.collect()
    assert first() is None  # or it would hold what is exchanged in other libraries
    del dataset
    gc.collect()
    assert gone() is None
    assert len(choice._LAST_OF) == before


def test_ways_that_are_equal_stay_as_they_are() -> None:
    known = Choice()
    known.learn(Report(run=True, opened=64, spent=Spent(64, 64_000, 64, 64_500)))
    assert not known.eager
    known.eager = True
    known.learn(Report(run=True, opened=64, spent=Spent(64, 64_500, 64, 64_000)))
    assert known.eager


PARITY = [
    shapes.Photos,
    shapes.TwoViews,
    shapes.Crops,
    shapes.AsArray,
    shapes.Keeping,
    shapes.FromArrays,
    shapes.InMemory,
    shapes.V2,
]


class Mixed:
    """A clock by which neither way is ahead: samples take turns in every batch."""

    def __call__(self) -> int:
        CLOCK.ns += 1000
        return CLOCK.ns


KEPT = (shapes.Photos, shapes.Keeping, shapes.V2)  # V2: batches of deferred and plain tensors


# The two ways take turns in the code of a sample; test_few_images.py and
# tests/sources/deferred/test_loaders.py have workers with most of these kinds.
@pytest.mark.parametrize(
    ("kind", "workers"),
    [(kind, 0) for kind in PARITY]
    + [pytest.param(kind, 2, marks=() if kind in KEPT else pytest.mark.long) for kind in PARITY],
)
def test_batches_with_samples_of_both_kinds_are_the_same(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch, kind: type, workers: int
) -> None:
    monkeypatch.setattr(choice, "clock", Mixed())
    monkeypatch.setattr(choice, "_SOON", 0)
    monkeypatch.setattr(choice, "_WARM", 0)
    for size in (5,) if workers else (1, 5):
        side_by_side(
            kind(photos * 2),
            batch_size=size,
            shuffle=True,
            num_workers=workers,
            worker_init_fn=shapes.seed_numpy,
        )


def test_a_collate_fn_gets_samples_of_both_kinds(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "clock", Mixed())
    monkeypatch.setattr(choice, "_SOON", 0)
    side_by_side(shapes.Photos(photos * 2), batch_size=5, collate_fn=shapes.stack)
    side_by_side(shapes.Images(photos * 2), batch_size=5, collate_fn=shapes.late)


@pytest.mark.parametrize("eager_ns", [500, 1000, 6000])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_resumes_with_the_same_batches_whatever_was_chosen(
    photos: list[Path], eager_ns: int, workers: int
) -> None:
    def make() -> FastLoader[Any]:
        dataset = Measured(photos, 40, eager_ns=eager_ns, tells=False)
        return FastLoader(dataset, 4, shuffle=True, seed=3, num_workers=workers)

    whole = list(make())
    first = make()
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    del batches
    rest = make()
    rest.load_state_dict(state)
    for ours, expected in zip(rest, whole[3:], strict=True):
        assert torch.equal(ours[0], expected[0])
        assert torch.equal(ours[1], expected[1])


@pytest.mark.usefixtures("short_farewell")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_seen_whichever_way_its_sample_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(choice, "clock", Mixed())
    monkeypatch.setattr(choice, "_SOON", 0)
    monkeypatch.setattr(choice, "_WARM", 0)
    damaged = shapes.write_photos(tmp_path, 16)
    for i in (2, 3, 9):
        shapes.truncate(damaged[i])
    for kind in (shapes.Recovering, shapes.Photos):
        side_by_side(kind(damaged), batch_size=5, num_workers=workers)


def test_what_is_known_travels_with_a_loader(photos: list[Path]) -> None:
    loader = FastLoader(Measured(photos, 64, eager_ns=500), 16)
    deferred(loader)
    assert deferred(pickle.loads(pickle.dumps(loader))) == 0


def test_a_dataset_without_images_is_not_measured() -> None:
    known = Choice()
    for _ in range(3):
        assert not known.passes(1)
        known.learn(Report(run=True))
    assert [known.passes(1) for _ in range(128)].count(False) == 8


def test_a_cost_is_that_of_the_last_samples_without_the_highest() -> None:
    cost = choice.Cost()
    assert (cost.samples, cost.ns) == (0, 0)
    cost.add(1, 9000)
    assert (cost.samples, cost.ns) == (1, 9000)
    cost.add(1, 100)
    assert (cost.samples, cost.ns) == (2, 100)
    for _ in range(64):
        cost.add(2, 400)
    assert (cost.samples, cost.ns) == (128, 200)


def test_explain_and_stats_say_what_was_measured_and_chosen(photos: list[Path]) -> None:
    loader = FastLoader(Measured(photos, 64, deferred_ns=4_000_000, eager_ns=2_000_000), 64)
    deferred(loader)
    told = loader.explain()
    assert "opened by Pillow as ever: a sample takes 4 ms of CPU time deferred, and 2 ms" in told
    assert loader.stats()["samples_eager"] == 60
    gaining = FastLoader(Measured(photos, 64, deferred_ns=1_000_000, eager_ns=6_000_000), 64)
    deferred(gaining)
    assert "images: deferred: a sample takes 1 ms of CPU time deferred, and 6 ms" in (
        gaining.explain()
    )


def test_what_asks_for_pixels_has_a_share_of_the_work(photos: list[Path]) -> None:
    loader = FastLoader(Measured(photos, 64), 64)
    deferred(loader)
    found = re.search(
        r"Image.getpixel at .*test_choice.py:\d+ asked .* \((\d+)% of", loader.explain()
    )
    assert found is not None
    assert 50 <= int(found[1]) <= 100


class Gray(Measured):
    """Asks whether an image is gray in a way that takes its pixels."""

    def __getitem__(self, i: int) -> Any:
        with Image.open(self.paths[i]) as image:
            return len(image.getcolors(1 << 24))


def test_advice_fits_what_was_asked(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOAD_DEFER", "1")
    loader = FastLoader(Gray(photos, 8), 4)
    list(loader)
    assert "ask image.mode or image.getbands() whether it is gray" in loader.explain()
    assert "because FASTLOAD_DEFER is 1" in loader.explain()


def test_torchs_own_iterator_defers_nothing_and_explain_says_so(photos: list[Path]) -> None:
    loader = FastLoader(Measured(photos, 8), 4, num_workers=1, in_order=False)
    assert "images: made where the dataset asks for them" in loader.explain()


def test_explain_counts_the_images_of_a_stream(photos: list[Path]) -> None:
    loader = FastLoader(Stream(Measured(photos, 16, asks=False)), 4)
    deferred(loader)
    assert "images: 16 opened in the last epoch" in loader.explain()
