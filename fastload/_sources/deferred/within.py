"""Loaders over which a Dataset iterates while it makes a sample for another loader.

Few-shot learning does that: ``next(iter(loader))`` for each class. What such a loader's images
become is best left to the outer loader, which fills its batch as a whole, and makes it again as a
whole if an image is damaged. Then the Dataset makes an inner iterator anew. One that it keeps for
other batches would go on instead, so such an iterator has to see to its images itself.

Nobody knows of an iterator whether it will be kept. So those of a Dataset are watched first, also
while the outer loader does not defer.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from typing_extensions import override

from ..._base.torch_loader import DataLoader
from .thread_state import THREAD, eagerly

# So many iterators have to end within the batch in which they began.
_LEAST: Final = 8


class InnerIterators:
    """What is known of the iterators that a Dataset makes within its samples."""

    def __init__(self) -> None:
        self._ended = 0  # within their batch
        self._any_kept = False  # one was

    @property
    def brief(self) -> bool:
        """Whether each ends within its batch, as far as is known."""
        return self._ended >= _LEAST and not self._any_kept

    def note(self, iterator: object | None) -> None:
        """Note what became of one within its batch; None: it ended."""
        if iterator is None:
            self._ended += 1
        else:
            self._any_kept = True


class Making:
    """A batch that is made for no sample of another one.

    Attributes:
        inner: iterators of its Dataset.
        deferral: what may defer its images; None: nothing does.
        deferred: whether it does, at least those of some samples.
    """

    def __init__(self, inner: InnerIterators, deferral: object) -> None:
        self.inner = inner
        self.deferral = deferral
        self.deferred = False
        self._begun: list[weakref.ref[object]] = []

    def begin(self, iterator: object) -> None:
        """``iterator`` of another loader begins in one of its samples."""
        self._begun.append(weakref.ref(iterator))

    def end(self) -> None:
        """The batch is made."""
        for begun in self._begun:
            self.inner.note(begun())


class BriefIterator(_SingleProcessDataLoaderIter):
    """torch's own, which leaves its images to the batch ``making``.

    A Dataset that goes on with it in another batch, against what is known of its iterators, gets
    images that are not deferred: that batch may be made again, and this would go on. The batch in
    which a Dataset begins to keep iterators is not made as by torch if an image in it is damaged.
    """

    def __init__(self, loader: DataLoader[Any], making: Making) -> None:
        super().__init__(loader)
        self._making = making

    @override
    def _next_data(self) -> Any:
        if THREAD.making is self._making:
            return super()._next_data()  # type: ignore[no-untyped-call]
        with eagerly():
            return super()._next_data()  # type: ignore[no-untyped-call]
