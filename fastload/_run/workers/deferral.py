"""Deferral: a user's Dataset run over deferred images, batch by batch, in one process.

How it runs
    A batch is made inside ``switch.deferring()``: images that the dataset opens are deferred, and
    what is asked of them is recorded. Then ``complete`` has the core fill all tensors of the batch
    that were recorded, and makes the PIL images. In a worker process only the images are made:
    tensors travel as recordings (``transport.py``), and the training process fills them. Except a
    few images, if there are as many workers as CPUs: see Note [Few images].
How it ends
    success   the batch holds plain tensors and plain PIL images.
    failure   an image is damaged, which the user's code would have seen where Pillow decodes, also
              one that it asked for pixels and left out of the batch; or anything was raised while
              images were deferred. The batch is made again without deferring, from the states that
              Python's, NumPy's and torch's generators had before it, and those of the user's
              objects (``own_generators.py``). So the user's own ``except`` sees what it would have
              seen, and what is raised is what torch's DataLoader raises.
    eager     where that is cheaper, or it has not begun to defer (``choice.py``), the batch is
              made without deferring; what the dataset kept of earlier batches is completed.

Note [Few images]
    To send what was recorded of a batch and to begin it on other threads takes about a millisecond
    of CPU time, in processes that wake each other. That is little beside 64 images, and more than
    decoding one. So a worker fills a batch of a few images itself, in the slab. It gains only where
    all CPUs have a worker: otherwise the training process's threads have the other CPUs.

Note [Only once]
    What a stream gave is gone, so its batches cannot be made again. There every image is checked
    where Pillow would decode it, and what Pillow raises is raised there. For a JPEG that takes a
    twentieth of the time of decoding it (0.03 ms for 500 x 375), since its codes need not be read:
    whatever they are, libjpeg gives pixels. Other formats are decoded twice.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._base.derived import derived
from ..._base.own_generators import OwnGenerators
from ..._base.slabs import SlabRing
from ..._sources.deferred.needed import loaded
from ..measurements import Report

if TYPE_CHECKING:
    import torch

    from ..._base.own_generators import Before
    from ..._engine.cache.opened import OpenedCache
    from ..._sources.deferred.ahead import Ahead
    from ..._sources.deferred.batch import BatchDecoder
    from ..._sources.deferred.completion import DeferredObjects
    from ..._sources.deferred.tensor import DeferredBatch
    from ..._sources.deferred.thread_state import BatchContext
    from ..maker import Outcome
    from .choice import Choice, Watch
    from .transport import Packer

# Images of a batch that a worker fills itself.
_FEW = 4


def begin_epoch() -> None:
    """Redirect what opens images, as an epoch begins. What was left out may prove itself again.

    Forked workers have it, and the modules, from this process.
    """
    from ..._sources.deferred import attempt, completion, record_images, switch  # noqa: F401

    switch.install()
    switch.try_again()


def rest(choice: Choice) -> None:
    """Note that a loader of this ``choice`` does not defer for now in this process."""
    # While another thread imports it, the module has no such function, and nobody holds anything.
    release = getattr(sys.modules.get("fastload._sources.deferred.switch"), "release", None)
    if release is not None:
        release(choice)


class Local(NamedTuple):
    """What completes batches in the process that made them.

    ``ahead`` decodes ahead of the samples that ask for pixels; None: nothing does.
    """

    decoder: BatchDecoder
    ahead: Ahead | None


class Deferral:
    """Runs batches over deferred images. Each process that makes batches has its own.

    Args:
        choice: of the dataset's way. A worker that is not forked continues with a copy of it.
        cache: of what is opened, or None. Not for another process that is not forked from this one.
        keep: whether to keep the states of the generators before batches, until they are forgotten.
        few: gives what fills batches of a few images in a worker forked from this process; None:
            none are filled there. See Note [Few images].
        once: whether a batch cannot be made again. See Note [Only once].

    Attributes:
        local: is asked for once, before the next batch that is run over deferred images: many
            datasets have none. None: another process completes batches, or it was asked for.
    """

    local: Callable[[], Local] | None = None

    def __init__(
        self,
        choice: Choice,
        *,
        keep: bool = False,
        cache: OpenedCache | None = None,
        few: Callable[[], BatchDecoder] | None = None,
        once: bool = False,
    ) -> None:
        self.once = once
        self._cache = cache
        self._ahead: Ahead | None = None
        self._few = few
        self._keep = keep
        self._decoder: BatchDecoder | None = None
        self._few_decoder: BatchDecoder | None = None
        self._watch: Watch | None = None
        self.choice = choice
        self._states: dict[int, Before] = {}  # in the order of the tasks
        # Of the last batch: tensors that stayed deferred, and what its worker left to Pillow.
        self._deferred = 0
        self._replayed: tuple[tuple[str, int], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        # another process makes its own
        others = dict.fromkeys(("_decoder", "_cache", "_ahead", "_few", "_few_decoder"))
        state = {**self.__dict__, **others}
        state.pop("_own", None)
        return state

    @derived
    def _own(self) -> OwnGenerators:
        return OwnGenerators()

    @property
    def watch(self) -> Watch | None:
        """What measures the batch that this thread is making, while the choice waits."""
        watch = self._watch
        return None if watch is None or watch.thread != threading.get_ident() else watch

    def announced(
        self, indices: Sequence[Any]
    ) -> contextlib.AbstractContextManager[Sequence[Any] | Iterator[Any]]:
        """A context that gives ``indices``, of which samples are made in this order.

        Some may be made without deferring, to compare; or the core decodes meanwhile what following
        samples will ask for.
        """
        # A batch sampler of the user's may give anything that can be iterated over, once.
        if type(indices) not in (list, tuple, range):
            return contextlib.nullcontext(indices)
        watch = self.watch
        if watch is not None:
            return contextlib.nullcontext(watch.over(indices))
        if self.choice.takes_turns(len(indices)):
            return self.choice.turns(indices)
        if self._ahead is None or type(indices) is range:  # of which nothing is known
            return contextlib.nullcontext(indices)
        return self._ahead.watching(indices)

    @property
    def decoder(self) -> BatchDecoder:
        """Makes tensors in this process."""
        if self._decoder is None:
            from ..._sources.deferred.batch import BatchDecoder

            self._decoder = BatchDecoder(0, SlabRing(2))
            self._decoder.cache = self._cache
        return self._decoder

    def passes(self, samples: int) -> bool:
        """Whether the next batch, of about so many samples, is left alone: nothing is deferred."""
        return not loaded() or self.choice.passes(samples)

    def begin(self) -> None:
        """Prepare to complete batches in this process. Again does nothing, on other threads too."""
        local = self.local
        if local is None:
            return
        vars(self).pop("_own", None)  # the dataset may have got others
        begin_epoch()
        self._decoder, self._ahead = local()
        self._cache = self._decoder.cache
        self.local = None

    def run_eagerly(self, make: Callable[[], Outcome]) -> Outcome:
        """``make()``, which makes a batch without deferring; the choice learns what it takes."""
        choice = self.choice
        rest(choice)
        begin_ns = choice.begin()
        watch = choice.watch()
        if watch is None:
            made = make()
            made.report = Report(spent=choice.spent_eagerly(made.samples, begin_ns))
        else:
            self._watch = watch
            try:
                with watch:
                    made = make()
            finally:
                self._watch = None
            made.report = choice.watched(made.samples, watch)
        choice.learn(made.report)
        if made.empty and not (made.bad or made.missing):
            choice.ended()
        return made

    def run(
        self,
        number: int | None,
        owners: Sequence[object],
        make: Callable[[], Outcome],
        complete: Callable[[Outcome], Outcome],
    ) -> Outcome | None:
        """``complete(make())``, where ``make`` runs over deferred images.

        Args:
            number: of the task, to find the states of the generators before it again.
            owners: the user's objects that may have generators of their own.
            make: runs the user's code.
            complete: finishes the batch, still deferring nothing.

        Returns:
            The result; None: the generators have their states from before, and the caller makes
            the batch without deferring.
        """
        from ..._sources.deferred import switch
        from ..._sources.deferred.attempt import attempt
        from ..._sources.deferred.thread_state import THREAD, BatchContext

        self.begin()
        switch.hold(self.choice)
        if THREAD.making is not None and THREAD.making.deferral is self:
            THREAD.making.deferred = True
        begin_ns = self.choice.begin()
        self._deferred, self._replayed = 0, ()
        context = BatchContext(
            self._cache, self._fill, unmade=None if self.once else {}, checks=self.once
        )
        made = None
        try:
            if self.once:
                made = _run_once(context, make, complete)
            else:
                state = self._own.states(*owners)
                if number is not None and self._keep:
                    self._states[number] = state
                keeps = self.choice.opened
                made = attempt(context, make, complete, state.restore, may_keep=keeps)
        finally:
            self._note(context, begin_ns, made)
        return made

    def _note(self, batch: BatchContext, begin_ns: int, made: Outcome | None) -> None:
        """Note what became of a batch that began at ``begin_ns``; None: it was not made."""
        from ..._sources.deferred import thread_state

        images = batch.inner.and_of(
            thread_state.Images(
                batch.opened - batch.given,
                batch.given,
                self._deferred,
                batch.read,
                tuple(thread_state.materialised()),
            )
        )
        if thread_state.THREAD.deferring:  # the dataset of another loader iterates over this one
            outer = thread_state.THREAD.batch
            outer.inner = outer.inner.and_of(images)
        report = Report(
            run=made is None or not made.empty,  # at the end of a stream nothing is run
            **images._asdict(),
            hits=batch.hits,
            misses=batch.misses,
            replayed=self._replayed,
            spent=self.choice.spent(0 if made is None else made.samples, begin_ns),
        )
        self.choice.learn(report)
        if batch.opened:
            thread_state.note_opened()
        if not self.choice.keeps:
            rest(self.choice)
        if made is not None:
            made.report = report

    def state_before(self, number: int) -> Before | None:
        """The states of the generators before a task of this process; None: they are not kept."""
        return self._states.get(number)

    def forget_before(self, number: int) -> None:
        """Forget those before earlier tasks, which nobody will ask for."""
        for earlier in [one for one in self._states if one < number]:
            del self._states[earlier]

    def complete(self, batch: Any) -> Any:
        """``batch`` with plain tensors and plain PIL images.

        Raises:
            Damaged, or what Pillow raises: an image cannot be made.
        """
        found = self._find(batch)
        found.check_others()
        self._deferred = found.rows()
        return found.completed(batch, self.decoder) if found else batch

    def complete_to_send(self, batch: Any, packer: Packer) -> Any:
        """``batch`` with plain PIL images; its tensors are in the slab, or stay deferred.

        Raises:
            Damaged, or what Pillow raises: an image cannot be made.
        """
        from ..._sources.deferred.completion import replaced

        found = self._find(batch)
        found.check_others()
        if self._few is not None and found.tensors:
            sizes = found.sizes()
            if sizes is not None and found.rows() <= _FEW and packer.has_room(sizes):
                self._few_decoder = self._few_decoder or self._few()
                return self._filled(batch, found, self._few_decoder, packer)
        found.materialise_shared()
        self._deferred = found.rows()
        if not found.images:
            return batch
        results = {key: image.materialise() for key, image in found.images.items()}
        return replaced(batch, lambda part: results.get(id(part), part))

    def _filled(
        self, batch: Any, found: DeferredObjects, decoder: BatchDecoder, packer: Packer
    ) -> Any:
        """``batch``, in which ``found`` was found, with its tensors in the slab."""
        decoder.memory = packer
        decoder.counts.reasons.clear()
        completed = found.completed(batch, decoder)
        self._deferred = found.rows()
        self._replayed = tuple(decoder.counts.reasons.items())
        return completed

    def _find(self, batch: Any) -> DeferredObjects:
        from ..._sources.deferred.completion import DeferredObjects, replaced
        from ..._sources.deferred.thread_state import THREAD, may_be_kept

        found = DeferredObjects()
        if THREAD.batch.opened or may_be_kept():
            replaced(batch, found.add)
        return found

    def _fill(self, batch: DeferredBatch) -> torch.Tensor:
        """Makes a batch that the user's code looks into."""
        from ..._sources.deferred.completion import fill

        return fill(self.decoder, batch).result()


def _run_once(
    context: BatchContext, make: Callable[[], Outcome], complete: Callable[[Outcome], Outcome]
) -> Outcome:
    """``Deferral.run`` of a batch that cannot be made again: what is raised is the caller's."""
    from ..._sources.deferred import switch, thread_state
    from ..._sources.deferred.batch import damage_raised

    with damage_raised(), thread_state.batch(context):
        with switch.deferring():
            made = make()
        context.fill = None
        return complete(made)
