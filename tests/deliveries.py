"""Iterators of batches behind a transfer stage, in slabs and in memory that is freed at once."""

from __future__ import annotations

import numpy as np
import torch

from fastload._base.devices.mover import PIN_FROM, Mover
from fastload._base.slabs import SlabRing
from fastload._base.trace import Stamps
from fastload._run.delivery.transfer import Delivery
from fastload._run.epoch_iterator import Epoch
from fastload._run.maker import Maker, Outcome
from fastload._run.measurements import Measurements
from fastload._run.progress import Progress

LARGE = PIN_FROM // 4 + 5  # int32 values: a batch that is staged


class Slabs(Maker):
    """Batches in slabs of their own, which are filled again as soon as they are free.

    Attributes:
        ring: the slabs; ``delivery`` has as many kept as a loader with such a device keeps.
        most: slabs that were in use at one time.
    """

    def __init__(self, count, length=LARGE, fails=(), ready=None):
        self.ring = SlabRing(1)
        self.count, self.length, self.fails = count, length, fails
        self.made = self.most = 0
        if ready is not None:
            self.ready = ready

    def __iter__(self):
        return self

    def ready(self):
        return True

    def close(self):
        pass

    def __next__(self):
        if self.made == self.count:
            raise StopIteration
        self.made += 1
        if self.made in self.fails:
            return Outcome(error=ValueError(self.made))
        tensor, memory = self.ring.lease((self.length,), torch.int32, (1,))
        self.most = max(self.most, self.ring.in_use())
        memory.view(np.int32)[:] = self.made
        return Outcome(tensor, self.length)


class Pageable(Slabs):
    """The same in memory that is freed at once."""

    def __next__(self):
        outcome = super().__next__()
        outcome.batch = outcome.batch.clone()
        return outcome


class Plain:
    """What a loader without device stage and transform does."""

    def to_move(self, item):
        return item

    def finish(self, item, moved, number):
        return moved


class Consumed:
    """The batches of a stage as the consumer of an epoch gets them.

    Attributes:
        given: batches and errors so far.
    """

    def __init__(self, stage, inner, stamps):
        self.stage, self.inner, self.stamps = stage, inner, stamps
        self.progress = Progress(epoch=0)
        self._epoch = Epoch(stage, self.progress, Measurements(native=True, stamps=stamps))

    def __iter__(self):
        return self

    def __next__(self):
        return self._epoch.next()


def delivery(inner, device, ahead=2, finisher=None):
    mover = Mover(device, ahead)
    inner.ring = SlabRing(1 + ahead + 2)  # the batch that is made, and ``resources.slabs_held``
    mover.rings = (inner.ring,)
    stamps = Stamps()
    stage = Delivery(inner, mover, finisher or Plain(), stamps, 0)
    return Consumed(stage, inner, stamps), mover


def in_order(count):
    return [(i, i) for i in range(1, count + 1)]
