"""The one place that counts: an outcome counts when it is returned, what is raised does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastload import TooManyErrors
from fastload._run.bad_samples.policy import BadSample, BadSamples
from fastload._run.bad_samples.refill import Refill, Refilled
from fastload._run.epoch_iterator import Epoch
from fastload._run.maker import Maker, Outcome
from fastload._run.measurements import Measurements
from fastload._run.progress import Position, Positions, Progress


class Listed(Maker):
    """Gives outcomes, and raises errors that are no outcomes."""

    def __init__(self, outcomes: Sequence[Outcome | Exception]) -> None:
        self.left = list(outcomes)

    def __next__(self) -> Outcome:
        if not self.left:
            raise StopIteration
        outcome = self.left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def epoch_of(*outcomes: Outcome | Exception, workers: int = 0, limit: int = 9) -> Epoch:
    positions = Positions([Position() for _ in range(workers)])
    progress = Progress(epoch=0, positions=positions)
    return Epoch(
        Listed(outcomes), progress, Measurements(native=False, bad=BadSamples(limit, None))
    )


def taken(epoch: Epoch) -> list[Any]:
    """What the consumer sees, with how many batches a state would skip then."""
    seen: list[Any] = []
    while True:
        try:
            seen.append((epoch.next(), epoch.progress.batches))
        except StopIteration:
            return seen
        except Exception as error:
            seen.append((type(error), epoch.progress.batches))


def test_an_outcome_counts_whatever_is_in_it_and_what_is_raised_does_not() -> None:
    epoch = epoch_of(
        Outcome("a", 2), TimeoutError(), Outcome(error=KeyError()), Outcome(empty=True),
        Outcome("b", 2), Outcome(empty=True, taken=0), Outcome("c", 2, taken=3),
    )  # fmt: skip
    assert taken(epoch) == [("a", 1), (TimeoutError, 1), (KeyError, 2), ("b", 4), ("c", 7)]
    assert epoch.yielded == 3
    assert epoch.progress.ended
    figures = epoch._stamps.snapshot()
    assert (figures.batches, figures.images) == (3, 6)


def test_bad_samples_count_with_their_batch_and_beyond_the_limit_they_take_its_place() -> None:
    bad = [BadSample(5, None, "no image", "skip")]
    epoch = epoch_of(
        Outcome("a", 1, bad=bad), Outcome(empty=True, bad=bad), Outcome("b", 1), limit=1
    )
    assert taken(epoch) == [("a", 1), (TooManyErrors, 2), ("b", 3)]
    assert epoch._bad.entries == 2 * bad


def test_the_position_of_a_worker_is_that_of_the_newest_batch_that_was_given() -> None:
    states = [
        Position(1, {"dataset": 1}),
        Position(2, None, since_state=1),
        Position(1, ended=True),
    ]
    epoch = epoch_of(
        Outcome("a", 1, position=states[0]), Outcome("b", 1, worker=1, position=states[2]),
        Outcome("c", 1, position=states[1]), workers=2,
    )  # fmt: skip
    assert [epoch.next(), epoch.progress.positions.turn] == ["a", 1]
    assert epoch.progress.positions.workers == [states[0], Position()]
    assert [epoch.next(), epoch.next()] == ["b", "c"]
    assert epoch.progress.positions.workers[0] == Position(2, {"dataset": 1}, since_state=1)
    assert epoch.progress.positions.workers[1].ended


class Broken(Listed):
    """Has batches of two made again; each answer comes late once."""

    def __init__(self, bad: set[int]) -> None:
        super().__init__([self.made([i, i + 1], bad) for i in range(0, 8, 2)])
        self.bad, self.late = bad, True

    @staticmethod
    def made(indices: list[int], bad: set[int]) -> Outcome:
        missing = [place for place, i in enumerate(indices) if i in bad]
        if missing:
            told = [BadSample(indices[place], None, "no image", "refill") for place in missing]
            return Outcome(empty=True, bad=told, missing=missing)
        return Outcome(indices, len(indices))

    def ask(self, indices: list[Any], repeats: list[int] | None) -> list[int]:
        return indices

    def answer(self, ticket: list[int]) -> Outcome:
        self.late = not self.late
        if not self.late:
            raise TimeoutError
        return self.made(ticket, self.bad)


def test_a_batch_that_is_filled_up_late_is_the_next_one_still() -> None:
    refill = Refill(2, drop_last=False, limit=9, spent=0, number=0)
    refill.order = lambda: list(range(8))
    progress = Progress(epoch=0)
    maker = Refilled(Broken({1, 7, 2}), refill)
    epoch = Epoch(maker, progress, Measurements(native=False, bad=BadSamples(9, None)))
    late = [(TimeoutError, count) for count in range(3)]
    batches = [([0, 6], 1), ([5, 3], 2), ([4], 3)]
    assert taken(epoch) == [late[0], late[0], batches[0], late[1], batches[1], late[2], batches[2]]
    assert progress.refilled == 3
    assert [entry.index for entry in epoch._bad.entries] == [1, 7, 2]
