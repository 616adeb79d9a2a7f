"""Choice: whether it is cheaper to defer the images of a user's Dataset, measured on its own code.

Deferred and eager give the same batches. So each process that makes batches makes some samples in
either way, and then keeps the way that takes less CPU time.

What is compared
    deferred  what a sample's own code takes, its share of what its batch takes besides (states of
              generators, collating, completing), and what the training process takes to fill it.
    eager     what a sample's own code takes, or its share of a batch that was made eagerly.

When both ways are tried
    Within a batch samples take turns, deferred and eager: as soon as a deferred one has asked for
    pixels; otherwise deferring is mostly far ahead, and a few samples of a later batch are eager. A
    batch of few samples, or one that its dataset makes as a whole, is made in the other way as a
    whole. The turns end when one way is ahead by more than chance. They come again so seldom that
    they take ``_SHARE`` of the time, sooner while little is known. Where the way that is kept comes
    to cost something else, the user's code does something else, and all is measured anew.

waiting
    To begin to defer takes a process up to a tenth of a second once: for imports, and to exchange
    and prove functions of other libraries. So with fewer than ``_MANY`` samples in an epoch, or
    nobody knows how many, a process waits, and makes samples as ever, until what they take in this
    epoch, or took in the epochs so far, comes to ``_STAKE_NS``, and they open images. Few batches
    are looked at meanwhile: the first one of an epoch, and batches 1, 2, 4, 8 ... They are
    measured; when all take as much, which may be known after three samples, the rest is watched
    until one opens an image (``opener_detector.py``). Where a batch opens none, nothing is watched
    for ``_WATCHED`` times as long. So a loader that lives for a few batches pays for none of that.
    A dataset that opens no images any more is waited for again. The training process learns from
    its workers that they do, and begins before it forks new ones, which have it from there. Where
    nothing could be deferred, as with TIFFs, it begins again after ``_VAIN`` samples, and then
    after twice as many each time. Where new workers have nothing from anywhere
    (``start_method.py``), each of them begins anew: then only this epoch's samples count.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..._base.per_process import PerProcess
from ..._sources.deferred.thread_state import THREAD
from ..measurements import Report, Spent

if TYPE_CHECKING:
    from ..._sources.deferred.opener_detector import OpenerDetector

clock: Callable[[], int] = time.process_time_ns
"""CPU nanoseconds of this process. Those of one thread would lack OpenCV's and the core's own."""

# Ten times what it takes to begin: where nothing is gained, so little is lost.
_STAKE_NS = 1_000_000_000

# Of the time, watching takes one part in so many.
_WATCHED: Final = 50

# The smallest images take 0.2 ms each, so that so many come to ``_STAKE_NS``: it begins at once.
_MANY: Final = 5000

_SHARE: Final = 0.005

# Measurements of a way, and the share of them that is left out.
_REMEMBERED: Final = 64
_LEFT_OUT: Final = 8

# In batches of fewer samples none take turns.
_FEW: Final = 4

_MOST_TURNS: Final = 16

# Samples of both ways that are needed to say that one is ahead.
_LEAST: Final = 2

# Samples until both ways are tried again: for each that was tried, at least; and at most.
_SOON: Final = 16
_LATE: Final = 1 << 14

# Batches until a dataset that asks for no pixels has its first eager samples.
_WARM: Final = 4

# How much samples differ in what they cost, since images have many sizes: the standard deviation,
# as a share of the average. It counts as so many measurements, beside those that there are.
_SPREAD: Final = 0.6
_BELIEVED: Final = 2

# A way is ahead for sure if it is by so many standard errors of the difference. Until then the one
# is kept that seems to be cheaper by ``_EQUAL``, and the other one is tried so often that the loss
# is ``_DOUBT`` of the time, if that one costs as much more as it may. With drawn costs that differ
# by 60 %, 4 to 7 % were lost in 256 samples, 1 to 3 % in 2,000.
_SURE: Final = 2.0
_EQUAL: Final = 0.03
_DOUBT: Final = 0.05

# Where the last samples cost so many times as much as when they were compared, or as little, all
# is measured anew. A measurement counts as at most so many times the others.
_LAST: Final = 32
_CHANGED: Final = 1.5
_OUTLIER: Final = 4

# Further ahead, a way is tried with samples among those of the other one. Else with batches of its
# own, at least so many samples, of which the first half only warms up what a CPU has for its code,
# and while the libraries' functions are as it needs them.
_CLOSE: Final = 0.5
_LONG: Final = 32

_PATIENCE: Final = 3  # batches without an image
_VAIN: Final = 1024  # samples after that

# Eager batches that take less are measured now and then only, since that takes time too.
_SHORT_NS: Final = 1_000_000
_SELDOM: Final = 16


class Cost:
    """What a sample costs: measurements of one or more samples each, the last ones.

    ``samples`` says how many it is known of.
    """

    def __init__(self) -> None:
        self._known: collections.deque[tuple[int, float]] = collections.deque()
        self._ns: float | None = None
        self._error = 0.0
        self.samples = 0

    def __copy__(self) -> Cost:
        other = Cost()
        vars(other).update(vars(self), _known=self._known.copy())
        return other

    def add(self, samples: int, ns: float) -> None:
        """Note what some more took together."""
        if len(self._known) == _REMEMBERED:
            self.samples -= self._known.popleft()[0]
        self._known.append((samples, ns / samples))
        self.samples += samples
        self._ns = None

    @property
    def ns(self) -> float:
        """CPU time of one: the average without the highest eighth, at least one where it can be.

        Those were first calls, or had a neighbour on their CPU.
        """
        if self._ns is None:
            ordered = sorted(self._known, key=lambda one: one[1])
            left_out = max(1, len(ordered) // _LEFT_OUT) if len(ordered) > 1 else 0
            kept = ordered[: len(ordered) - left_out]
            samples = max(1, sum(n for n, _ in kept))
            self._ns = sum(n * ns for n, ns in kept) / samples
            far = sum(n * (ns - self._ns) ** 2 for n, ns in kept) / max(1.0, self._ns) ** 2
            variance = (_BELIEVED * _SPREAD**2 + far) / (_BELIEVED + len(kept))
            self._error = math.sqrt(variance / samples)
        return self._ns

    @property
    def error(self) -> float:
        """The standard error of ``ns``, as a share of it."""
        return self._error if self.ns else math.inf


class Choice:
    """What is known of one dataset's two ways, from epoch to epoch.

    Args:
        measures: whether they are compared; if not, images are deferred.

    Attributes:
        measures: as above.
        begun: whether it has begun to defer, if it measures.
        opened: whether the dataset has opened an image, which it may have kept for a later batch.
        eager: whether its images are not deferred any more, because that is cheaper.
        deferred, eagerly: what a sample costs that is made in this way, where it is made.
        elsewhere_ns: what the training process spends on a deferred sample that a worker recorded.
    """

    def __init__(self, measures: bool = True) -> None:
        self.measures = measures
        self.begun = False
        self.opened = False
        self.eager = False
        self.deferred, self.eagerly = Cost(), Cost()
        self.elsewhere_ns = 0.0
        self._elsewhere = Cost()
        self._own = Cost()  # a deferred sample's own code
        self._batches = 0  # over deferred images
        self._asked = False  # for pixels, in the last of them
        self._whole = False  # no samples can take turns
        self._apart = False  # their batch asks for the pixels of the deferred ones if they do
        self._left = 0.0  # samples until both ways are tried again
        self._then = 0.0  # what a sample cost when they were
        self._lately = 0.0  # what the last ones cost
        self._ahead = 0.0  # how far the way that is kept was ahead
        self._quiet = 0  # batches without an image, one after the other
        self._left_alone = 0  # samples until it may begin again, since there were none
        self._vain = _VAIN  # and so many the next time
        self._alone = 0  # batches that are left alone now
        self._gap = 1  # and those until the next one is looked at, while it waits
        self._staked = False  # whether one was watched, or is to be, since so much is at stake
        self._trying = 0  # samples that are still to be made in the other way
        self._tried = 0  # and those that were
        self._lost_ns = 0  # in their batches
        self._epochs = 0  # that have begun
        self._expected = 0  # samples of this epoch, for each process
        self._made = 0  # those so far
        self._anew = False  # which processes make that have nothing of those before
        self._seen = False  # whether samples were seen to open images
        self._warm = 0  # the process that has made a batch over deferred images
        self._process = 0  # the one that has made a batch, in either way
        self._filled = False
        self._turns: _Turns | None = None

    @property
    def deferred_ns(self) -> float:
        """CPU time of a deferred sample, in all processes."""
        return self.deferred.ns + self.elsewhere_ns

    def __copy__(self) -> Choice:
        """Another one that knows the same. Each learns its own from there."""
        other = Choice()
        vars(other).update(vars(self), _turns=None)
        for name in ("deferred", "eagerly", "_elsewhere", "_own"):
            setattr(other, name, copy.copy(getattr(self, name)))
        return other

    # --- what is done -----------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether it has not begun to defer."""
        return self.measures and not self.begun

    @property
    def keeps(self) -> bool:
        """Whether batches are deferred, but for those that are made to compare."""
        return not (self.waits or self.eager) and self._quiet < _PATIENCE

    def expect(self, samples: int, processes: int, *, anew: bool = False) -> None:
        """An epoch begins, of so many samples (0: as many as before), which processes share.

        ``anew``: they are new, and begin to defer each by itself.
        """
        if self.waits:
            _TOTAL.ns += self.eagerly.ns * self._made
            if not self._quiet:
                self._alone = 0  # the first batch is measured
        self._expected, self._made = (samples or self._made) // processes, 0
        self._anew = anew
        if self.measures and anew and not self.at_stake:
            self.begun = False
        many = samples >= _MANY and not (self._epochs or anew)
        # THREAD.deferring: in a sample of another loader's, which has begun
        if self.waits and (THREAD.deferring or many or self._pays):
            self._begin()
        self._epochs += 1

    def passes(self, samples: int) -> bool:
        """Whether the next batch, of about so many samples, is left alone: nothing is deferred."""
        if self._alone:
            self._alone -= 1
            return True
        if self.keeps:
            return False
        if self.begun and self.eager:
            if 0 < self._lately * samples < _SHORT_NS:
                self._alone = int(min(_SELDOM - 1, max(0, self._left // samples)))
        else:
            self._alone, self._gap = self._gap - 1, self._gap * 2
        return False

    @property
    def at_stake(self) -> bool:
        """Whether samples take so long that deferring may pay."""
        return self.eagerly.samples >= _LEAST and self._stakes(self.eagerly.ns)

    def _stakes(self, ns: float) -> bool:
        """The same if a sample takes so long."""
        before_ns = 0 if self._anew else _TOTAL.ns
        return before_ns + ns * max(self._expected, self._made) >= _STAKE_NS

    @property
    def _pays(self) -> bool:
        return self._seen and self.at_stake and self._left_alone <= 0

    def watch(self) -> Watch | None:
        """What measures and watches the next batch, which is made without deferring."""
        if not self.waits:
            return None
        due_ns = _TOTAL.due_ns.get()
        due = self._left_alone <= 0 and (due_ns is None or _now() >= due_ns)
        return Watch(self._stakes if due else None, at_once=due and self.at_stake)

    def watched(self, samples: int, watch: Watch) -> Report:
        """The report of a batch of so many that was measured, and may have been watched."""
        end_ns = _now()
        if watch.begun:
            self._staked = self._staked or samples > 0
            if not watch.seen:
                _TOTAL.due_ns.put(end_ns + _WATCHED * (end_ns - watch.begin_ns))
        return Report(spent=watch.spent(samples, end_ns), seen=watch.seen)

    def ended(self) -> None:
        """What was looked at was no batch, but the end of a stream: look at the next one."""
        if self.waits:
            self._alone, self._gap = 0, max(1, self._gap // 2)

    def _begin(self) -> None:
        self.begun, self._quiet, self._alone = True, 0, 0

    def defers(self, samples: int) -> bool:
        """Whether to run the next batch, of about so many samples, over deferred images."""
        if self.waits:
            return False
        if not self._due():
            return not self.eager
        close = 0 < self._ahead < _CLOSE
        if not (self._whole or self._apart or samples < _FEW or close):
            return True
        if (self.eagerly if self.eager else self.deferred).samples < _LEAST:
            return not self.eager
        short = close and samples <= _LONG // 2
        if not (self._trying and short):  # what a shorter batch has begun is done, too
            self._trying = _LONG if short else 1
        return self.eager

    def _due(self) -> bool:
        # Not in a worker's first batch, if it makes more.
        if not self.measures or self._left > (-_LATE if self._then and self._first else 0):
            return False
        return self._asked or self.eager or (self._batches >= _WARM and not self._whole)

    @property
    def _first(self) -> bool:
        """Whether this process makes its first batch, which takes up to twice as long as others.

        Workers may be new in each epoch.
        """
        return self._process != os.getpid()

    def takes_turns(self, samples: int) -> bool:
        """Whether samples of this batch, which is run over deferred images, take turns."""
        wanted = self._due() or (self.measures and not self._then)
        return wanted and not self._apart and samples >= _FEW and THREAD.deferring is True

    @contextlib.contextmanager
    def turns(self, indices: Sequence[Any]) -> Iterator[Iterator[Any]]:
        """A context that gives ``indices``, of which samples are made in turns, in this order."""
        self._turns = _Turns(self, at_once=self._due(), cold=self._warm != os.getpid())
        try:
            yield self._turns.over(indices)
        finally:
            THREAD.deferring = True

    # --- what was measured ------------------------------------------------------------------------

    def begin(self) -> int:
        """A batch begins; returns what to give when it has ended."""
        self._turns = None
        return _now() if self.measures else 0

    def spent_eagerly(self, samples: int, begin_ns: int) -> Spent:
        """What so many samples took in this process that were made without deferring."""
        if not self.measures or not samples:
            return Spent()
        left_out = self._warms_up or (self._first and not self.waits)
        self._process = os.getpid()
        return Spent(eager=samples, eager_ns=0 if left_out else _now() - begin_ns)

    def spent(self, samples: int, begin_ns: int) -> Spent:
        """The same of a batch that was run over deferred images."""
        if not self.measures or not samples:
            return Spent()
        self._process = os.getpid()
        turns, ns = self._turns, _now() - begin_ns
        lost_ns = max(0, round(ns - samples * self.eagerly.ns)) if self.eager else 0
        if self._warms_up:
            return Spent(samples, lost_ns=lost_ns)
        cold, self._warm = self._warm != os.getpid(), os.getpid()
        if turns is None:
            many = samples >= _FEW and not self._apart
            self._whole = self._whole or (many and self._due())
            return Spent(samples, 0 if cold else ns, lost_ns=lost_ns)
        spent = turns.spent._replace(lost_ns=lost_ns)
        if cold:
            return spent
        share = (ns - turns.all_ns) * spent.deferred // samples
        return spent._replace(deferred_ns=spent.own_ns + share)

    @property
    def _warms_up(self) -> bool:
        return self._trying > _LONG // 2

    def passed(self, samples: int) -> Report:
        """The report of a batch that was left alone."""
        self._made += samples
        self._left -= samples
        self._left_alone -= samples
        if self.waits and not self._staked and self.at_stake:
            self._staked, self._alone = True, 0
        return _eager(samples)

    def learn(self, report: Report) -> None:
        """Note what became of a batch, which this process or a worker has made."""
        spent = report.spent
        self._made += spent.deferred + spent.eager
        self._left_alone -= spent.deferred + spent.eager
        if report.run:
            asked = bool(report.causes or report.read)
            if asked and spent.deferred and spent.eager and self._batches and not self._asked:
                # not what a deferred one costs
                self._apart, spent = True, spent._replace(deferred_ns=0)
            else:
                self._asked = asked
            self._batches += 1
            self._quiet = 0 if report.images else self._quiet + 1
            self.opened = self.opened or report.opened + report.given > 0
            in_vain = self.begun and self._quiet >= _PATIENCE
            self.begun = self._quiet < _PATIENCE
            if report.images:
                self._vain = _VAIN
            elif in_vain:
                self._left_alone, self._vain = self._vain, min(2 * self._vain, _LATE)
            self._seen = self._seen and self.begun
        self._seen = self._seen or report.seen
        if spent.own_ns:
            self._own.add(spent.deferred, spent.own_ns)
        if spent.deferred_ns:
            self.deferred.add(spent.deferred, spent.deferred_ns)
        if spent.eager_ns:
            self.eagerly.add(spent.eager, spent.eager_ns)
        self._left -= spent.deferred + spent.eager
        tried = spent.deferred if self.eager else spent.eager
        self._tried += tried
        self._lost_ns += spent.lost_ns
        self._trying = max(0, self._trying - tried)
        both = self.deferred.samples >= _LEAST <= self.eagerly.samples
        if (tried and not self._trying) or (both and not self._then and self._batches > 1):
            self._compare(max(self._tried, 1))
            self._tried, self._lost_ns = 0, 0
        elif not tried and (spent.eager_ns or spent.deferred_ns):
            self._look(spent)
        if self.waits and self._pays:
            self._begin()

    def filled(self, samples: int, ns: int) -> None:
        """Note what this process spent on deferred samples that a worker has recorded."""
        if samples and self._filled:  # the first ones wait for what is made once
            self._elsewhere.add(samples, ns)
            self.elsewhere_ns = self._elsewhere.ns
        self._filled = True

    def _compare(self, tried: int) -> None:
        """Keep the way that is ahead, now that ``tried`` samples were made in the other one."""
        known = min(self.deferred.samples, self.eagerly.samples)
        if known < 1:
            return
        less, more = sorted((self.deferred_ns, self.eagerly.ns))
        if not less:
            return
        ahead, chance = more / less - 1, _chance(self.deferred, self.eagerly)
        if ahead > _EQUAL:
            eager = self.eagerly.ns == less
            if eager and known < _LEAST:
                return  # they are tried again at once
            self.eager = eager
        self._ahead = ahead
        sure = ahead > chance
        most = tried * (ahead if sure else ahead + chance)
        lost = max(most, self._lost_ns / less)  # as much as so many samples take
        self._left = min(max(lost / _SHARE, tried * _SOON) if sure else lost / _DOUBT, _LATE)
        self._then = self._lately = (self.eagerly if self.eager else self.deferred).ns

    def _look(self, spent: Spent) -> None:
        """See whether the way that is kept costs what it did."""
        if not self._then:
            return
        samples = spent.deferred + spent.eager
        ns = min((spent.deferred_ns + spent.eager_ns) / samples, _OUTLIER * self._lately)
        self._lately += (ns - self._lately) * min(1.0, samples / _LAST)
        if not 1 / _CHANGED < self._lately / self._then < _CHANGED:
            self.deferred, self.eagerly, self._own = Cost(), Cost(), Cost()
            self._apart = False
            self._left = self._then = self._ahead = 0.0


class _Last(NamedTuple):
    """The last loader's choice for a dataset, which it does not keep alive, nor the dataset.

    ``state``: the attributes of the choice. The loader goes on changing them while it lives.
    """

    dataset: weakref.ref[object]
    state: dict[str, object]


_LAST_OF: Final[dict[tuple[int, bool, object], _Last]] = {}


def choice_for(dataset: object, collate: object, workers: int) -> Choice:
    """A new loader's choice, which begins with what the loader before has measured.

    Many scripts make a loader for each epoch. Where images are made, in workers or here, and what
    collates them, has a part in the cost.
    """
    code = getattr(collate, "__code__", None) or type(collate)  # a closure may refer to the dataset
    key = id(dataset), workers > 0, code
    last = _LAST_OF.get(key)
    known = Choice()
    if last is not None and last.dataset() is dataset:
        vars(known).update(last.state)
        known = copy.copy(known)
    try:
        reference = weakref.ref(dataset, lambda _: _LAST_OF.pop(key, None))
    except TypeError:
        return known  # a list, or a class with __slots__
    _LAST_OF[key] = _Last(reference, vars(known))
    return known


class _Turns:
    """Samples of one batch that are made in turn: deferred, eager, deferred, eager ...

    Args:
        choice: what is known before.
        at_once: whether they begin with the first sample, and not when one has asked for pixels.
        cold: whether this process has made no batch yet: what is done once is no sample's cost.

    Attributes:
        all_ns: what the samples so far took.
        eager, eager_ns: the eager ones of them.
        deferred: how many of the others count.
    """

    def __init__(self, choice: Choice, *, at_once: bool, cold: bool) -> None:
        self._own = copy.copy(choice._own)
        self._eagerly = copy.copy(choice.eagerly)
        self._left = _MOST_TURNS
        self._begun, self._cold = at_once, cold
        self._due = at_once
        # Before deferring began, eager samples were measured alone.
        self._known = not at_once and choice.eagerly.samples >= _LEAST
        self._rest = choice.eager  # how the samples after the turns are made
        self._next = False  # whether the next turn is an eager one's
        self.all_ns = self.deferred = self.eager = self.eager_ns = 0

    @property
    def spent(self) -> Spent:
        """On the samples, without what their batch takes besides."""
        own_ns = round(self.deferred * self._own.ns)
        return Spent(self.deferred, own_ns, self.eager, self.eager_ns, own_ns)

    def over(self, indices: Sequence[Any]) -> Iterator[Any]:
        """``indices``; the sample of each is made before the next one is asked for."""
        for index in indices:
            eager = (self._next if self._begun else False) if self._left else self._rest
            THREAD.deferring = not eager
            begin_ns = _now()
            yield index
            self._note(eager, _now() - begin_ns)

    def _note(self, eager: bool, ns: int) -> None:
        self.all_ns += ns
        if eager:
            self.eager += 1
            self.eager_ns += ns
            self._eagerly.add(1, ns)
        elif self._cold:
            self._cold = False
        else:
            self.deferred += 1
            self._own.add(1, ns)
        if self._left:
            self._begun = self._begun or bool(THREAD.causes) or THREAD.batch.read > 0
            if self._begun:
                self._turn()

    def _turn(self) -> None:
        """Who has the next turn, if anybody."""
        self._next = not (self._next or self._known)
        self._left -= 1
        known = min(self._own.samples, self._eagerly.samples)
        if known < 1 or (self._due and not self.eager):
            return  # what is known may be of long ago
        own_ns, eager_ns = self._own.ns, self._eagerly.ns
        chance = _chance(self._own, self._eagerly)
        if own_ns * (1 + chance) < eager_ns:
            self._left, self._rest = 0, False
        elif known >= _LEAST and own_ns > eager_ns * (1 + chance):
            self._left, self._rest = 0, True


class Watch:
    """A context in which one batch is made eagerly, while its loader waits.

    Args:
        stakes: whether so much is at stake that samples are watched, if each takes so many
            nanoseconds; None: they are not.
        at_once: whether they are from the first one on, until one opens an image.

    Attributes:
        thread: that makes the batch; others may make batches of the same loader.
        begin_ns: when it began.
        begun: whether samples were watched.
        seen: whether one has opened an image.
    """

    def __init__(self, stakes: Callable[[float], bool] | None, *, at_once: bool) -> None:
        self._stakes = stakes
        self._detector: OpenerDetector | None = None
        self._at_once = at_once
        self._watched = self._watched_ns = 0
        self.thread = threading.get_ident()
        self.begin_ns = _now()

    def __enter__(self) -> Watch:
        if self._at_once:
            self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        if self._detector is not None:
            self._detector.__exit__()

    @property
    def begun(self) -> bool:
        return self._detector is not None

    @property
    def seen(self) -> bool:
        return self._detector is not None and self._detector.seen

    def _begin(self) -> None:
        from ..._sources.deferred.opener_detector import OpenerDetector

        self._detector = OpenerDetector()
        self._detector.__enter__()

    def over(self, indices: Sequence[Any]) -> Iterator[Any]:
        """``indices``; the sample of each is made before the next one is asked for."""
        all_ns = 0
        for i, index in enumerate(indices):
            watching, begin_ns = self.begun and not self.seen, _now()
            yield index
            ns = _now() - begin_ns
            if watching:
                self._watched += 1
                self._watched_ns += ns
            elif 0 < i <= _LEAST and not self.begun:  # the first one does what is done once
                all_ns += ns
                if i == _LEAST and self._stakes is not None and self._stakes(all_ns / i):
                    self._begin()

    def spent(self, samples: int, end_ns: int) -> Spent:
        """On a batch of so many; the watched ones count as the others, since that takes time."""
        measured = samples - self._watched
        made_as_one = self._at_once and not self._watched
        if measured <= 0 or made_as_one or (self.begun and not self.seen):
            return Spent(eager=samples)
        ns = end_ns - self.begin_ns - self._watched_ns
        return Spent(eager=samples, eager_ns=ns * samples // measured)


class _Total:
    """Of all loaders of this process that waited.

    Attributes:
        ns: what samples took in epochs that are over.
        due_ns: when a batch may be watched again, by this process's CPU time, which begins at 0.
    """

    ns = 0.0
    due_ns: PerProcess[int] = PerProcess()


_TOTAL: Final = _Total()


def _now() -> int:
    """CPU nanoseconds of this process, but for what this thread has to do only once."""
    return clock() - THREAD.once_ns


@functools.lru_cache(16)
def _eager(samples: int) -> Report:
    """The report of a batch that nobody has measured, of so many samples, none deferred."""
    return Report(spent=Spent(eager=samples))


def _chance(one: Cost, other: Cost) -> float:
    """How far ahead of the other a way has to be, so that it hardly is by chance."""
    return _SURE * math.hypot(one.error, other.error)
