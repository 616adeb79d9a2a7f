"""Mix: several stores or datasets, each with its share of every epoch.

A ``Mix`` is what the user writes down: components, weights, the length of an epoch. ``FastLoader``
opens it to a ``MixDataset``, a ConcatDataset of the components. ``_run/mix_sampler.py`` makes the
order. Counts are worked out in fractions, so that they are the same on every machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, IterableDataset

from .._base.machine import memory
from ..errors import UsageError
from ..hints import Batching, StoppingStrategy
from ..storage.base import Store
from ..storage.concat import check_labels

if TYPE_CHECKING:  # only a Mix needs it
    from fractions import Fraction

COMPONENT = "component"
"""The field that says which component a sample comes from."""

_ORDER_NBYTES = 55  # of memory for each sample while ``_run/mix_sampler.py`` makes an order

# A component: what FastLoader takes as its dataset, which may be anything with indices.
_Component = Any

# Mappings have keys of type Any, as a Mapping[str | PathLike, ...] would not take a dict of Paths.


class Mix:
    """Several stores or datasets that are read in fixed proportions.

    The order is a function of (seed, epoch, weights), with the loader's ``seed``, or 0 without one.
    With ``shuffle=True``, every sample of a component is read once before any is read a second
    time, also from one epoch to the next: a component has one random order after the other, and
    each epoch continues where the last one ended.

    Example:
        >>> mix = Mix({"photos.lmdb": 0.7, "drawings.lmdb": 0.3})
        >>> loader = FastLoader(mix, 256, shuffle=True, seed=1, transform=train_tf)

    Args:
        components: weights by path; or a list of pairs (component, weight), whose components are
            paths, lists of paths, or map-style datasets. A transform given to the loader
            applies to paths. Weights are at least 0 and need not add up to 1. A
            component with weight 0 is not read. Stores that are given by path have to have the same
            classes; for datasets this is not checked.
        epoch_size: The samples of an epoch, over all ranks. "all_exhausted": as many as it takes
            until every sample of every component was read, while those of smaller components
            repeat. "first_exhausted": as many as there are until one component is used up, so that
            no sample repeats within an epoch. Or a number.
        batching: "stratified": each batch has its share of every component: exactly weight x
            ``batch_size`` samples where that is a whole number, otherwise one more or less (with
            many components sometimes two). With ``drop_last=False`` that does not apply to the last
            batch. "random": the same samples in an epoch, but in any order, so that each batch has
            its share only on average.
        numbered: samples, which are then dicts, have the field "component": the number of the
            component that they come from, in the order given here.

    Attributes:
        names: of the components: the path, or for anything else the position as text ("0", "1").

    Raises:
        UsageError: an argument is invalid; or, once the components are open, an epoch is too short
            to have one sample of each, or so long that its order does not fit into memory.
    """

    def __init__(
        self,
        components: Mapping[Any, float] | Sequence[tuple[_Component, float]],
        *,
        epoch_size: int | StoppingStrategy = "all_exhausted",
        batching: Batching = "stratified",
        numbered: bool = False,
    ) -> None:
        pairs = _pairs(components)
        self.components: list[_Component] = [component for component, _ in pairs]
        self.names: list[str] = [
            os.fspath(component) if isinstance(component, (str, os.PathLike)) else str(position)
            for position, component in enumerate(self.components)
        ]
        if len(set(self.names)) < len(self.names):
            raise UsageError(f"Mix: expected each path once, got {', '.join(self.names)}")
        _check_epoch_size(epoch_size)
        if batching not in get_args(Batching):
            choices = ", ".join(map(repr, get_args(Batching)))
            raise UsageError(f"Mix: batching: expected one of {choices}, got {batching!r}")
        self.epoch_size = epoch_size
        self.batching = batching
        self.numbered = numbered
        # The first epoch of each set of weights, ascending, and the weights as shares of 1.
        self._timeline = [(0, _shares(self.names, [weight for _, weight in pairs]))]
        self._sizes: list[int] | None = None  # samples of each component, once they are open
        self._begun = -1

    @property
    def weights(self) -> dict[str, float]:
        """The share of each component, by name, from the next epoch on; they add up to 1."""
        return dict(zip(self.names, map(float, self._timeline[-1][1])))

    def set_weights(self, weights: Mapping[Any, float] | Sequence[float]) -> None:
        """Change the weights from the next epoch on. An epoch that has begun keeps its own.

        With several ranks, call it on all of them. ``state_dict`` of the loader keeps the weights.

        Example:
            >>> mix.set_weights({"photos.lmdb": 0.5, "drawings.lmdb": 0.5})

        Args:
            weights: by name, for each component; or in the order of the components.

        Raises:
            UsageError: weights for other components, or as for the class.
        """
        if isinstance(weights, Mapping):
            by_name = {os.fspath(name): weight for name, weight in weights.items()}
            if by_name.keys() != set(self.names):
                raise UsageError(
                    f"set_weights: expected a weight for each of {', '.join(self.names)}, got "
                    f"{', '.join(by_name)}"
                )
            values = [by_name[name] for name in self.names]
        else:
            values = list(weights)
            if len(values) != len(self.names):
                raise UsageError(
                    f"set_weights: expected {len(self.names)} weights, got {len(values)}"
                )
        upcoming = self._begun + 1
        timeline = [entry for entry in self._timeline if entry[0] < upcoming]
        timeline.append((upcoming, _shares(self.names, values)))
        if self._sizes is not None:
            self._check(timeline[-1][1], self._sizes)
        self._timeline = timeline

    def begin(self, epoch: int) -> None:
        """Note that ``epoch`` begins: ``set_weights`` concerns those after it."""
        self._begun = epoch

    def opened(self, open_one: Callable[[_Component], Dataset[Any]]) -> MixDataset:
        """The components as one dataset.

        Args:
            open_one: opens a component.

        Raises:
            UsageError: a component is no map-style dataset, or empty; stores that are given by path
                have different classes; an epoch is too short, or too long.
        """
        datasets = [open_one(component) for component in self.components]
        sizes = [_size(name, dataset) for name, dataset in zip(self.names, datasets)]
        by_path = [isinstance(component, (str, os.PathLike)) for component in self.components]
        check_labels([dataset.store for dataset, path in zip(datasets, by_path) if path])  # type: ignore[attr-defined]
        self._check(self._timeline[-1][1], sizes)
        self._sizes = sizes
        return MixDataset(self, datasets)

    # --- what an epoch has ------------------------------------------------------------------------

    def shares(self, epoch: int) -> list[Fraction]:
        """The share of each component in ``epoch``."""
        return next(shares for first, shares in reversed(self._timeline) if first <= max(epoch, 0))

    def counts(self, epoch: int) -> list[int]:
        """How many samples of each component ``epoch`` has."""
        return self._counts(self.shares(epoch), self._opened_sizes())

    def before(self, epoch: int) -> list[int]:
        """How many samples of each component the epochs before ``epoch`` had, together."""
        total = np.zeros(len(self.names), object)  # Python's ints, which have no largest
        ends = [first for first, _ in self._timeline[1:]] + [epoch]
        for (first, shares), end in zip(self._timeline, ends):
            epochs = max(0, min(end, epoch) - first)
            total += epochs * np.array(self._counts(shares, self._opened_sizes()), object)
        return list(total)

    def _opened_sizes(self) -> list[int]:
        assert self._sizes is not None, "only a MixDataset asks, and by then they are open"
        return self._sizes

    def _check(self, shares: list[Fraction], sizes: list[int]) -> None:
        """Raise UsageError for an epoch that is too short, or too long for its order to fit."""
        total, most = sum(self._counts(shares, sizes)), memory.available()
        if 0 < most < total * _ORDER_NBYTES:
            least, name = min((share, name) for share, name in zip(shares, self.names) if share)
            by_weight = not isinstance(self.epoch_size, int)
            why = f", as {name} has weight {float(least):.2g}" if by_weight else ""
            number = f"{total:,}" if total < 10**18 else "more than 10**18"
            raise UsageError(
                f"Mix: epoch_size={self.epoch_size!r} makes an epoch of {number} samples{why}, "
                f"whose order does not fit into the {most >> 30} GiB of memory that are available: "
                "give a smaller number, or weights closer to each other"
            )

    def _counts(self, shares: list[Fraction], sizes: list[int]) -> list[int]:
        """How many samples of each component an epoch with these shares has.

        Whole numbers that add up to the length, by the largest remainder.
        """
        needed = [size / share for size, share in zip(sizes, shares) if share]
        if self.epoch_size == "all_exhausted":
            total = math.ceil(max(needed))
        elif self.epoch_size == "first_exhausted":
            total = math.floor(min(needed))
        else:
            total = self.epoch_size
        exact = [total * share for share in shares]
        counts = [math.floor(share) for share in exact]
        by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
        for i in by_remainder[: total - sum(counts)]:
            counts[i] += 1
        for name, share, count in zip(self.names, shares, counts):
            if share and not count:
                raise UsageError(
                    f"Mix: {name} has weight {float(share):.2g}, less than one sample in an epoch "
                    f"of {total}: expected a larger epoch_size, or weight 0"
                )
        return counts

    # --- resuming ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The weights of all epochs so far, for the loader's ``state_dict``; JSON-able."""
        return {
            "weights": [[first, list(map(str, shares))] for first, shares in self._timeline],
            "begun": self._begun,
            "sizes": self._opened_sizes(),
            "batching": self.batching,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the weights from ``state``. Raises UsageError if it is of another mix."""
        for name, here in (("sizes", self._opened_sizes()), ("batching", self.batching)):
            saved = state.get(name)
            if type(saved) is not type(here) or repr(saved) != repr(here):
                raise UsageError(
                    f"the state was saved with a Mix of other {name}: expected {saved}, got "
                    f"{here}; use the same components in the same order"
                )
        from fractions import Fraction

        try:
            timeline = [
                (int(first), _shares(self.names, list(map(Fraction, shares))))
                for first, shares in state["weights"]
            ]
            begun = int(state["begun"])
            if timeline[0][0] != 0 or any(a >= b for (a, _), (b, _) in pairwise(timeline)):
                raise ValueError(f"weights from the epochs {[first for first, _ in timeline]} on")
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise UsageError(
                f"load_state_dict: the state of the Mix is damaged ({type(error).__name__}: "
                f"{error}): use another checkpoint"
            ) from error
        for _, shares in timeline:
            self._check(shares, self._opened_sizes())
        self._timeline, self._begun = timeline, begun

    def __repr__(self) -> str:
        shares = ", ".join(f"{name!r}: {share:.4g}" for name, share in self.weights.items())
        return f"Mix({{{shares}}}, epoch_size={self.epoch_size!r}, batching={self.batching!r})"


class MixDataset(ConcatDataset[Any]):
    """The components of a mix, one after the other.

    Args:
        mix: knows the weights.
        datasets: the components, open.
    """

    def __init__(self, mix: Mix, datasets: Sequence[Dataset[Any]]) -> None:
        if mix.numbered:
            _check_no_such_field(datasets)
        super().__init__(datasets)
        self.mix = mix

    def opened(self, open_one: Callable[[_Component], Dataset[Any]]) -> MixDataset:
        """Apply a loader's arguments once more, for a trainer that rebuilds the loader."""
        datasets = [open_one(dataset) for dataset in self.datasets]
        if all(new is old for new, old in zip(datasets, self.datasets)):
            return self
        return MixDataset(self.mix, datasets)

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)  # type: ignore[no-untyped-call]
        if not self.mix.numbered:
            return sample
        component = int(np.searchsorted(self.cumulative_sizes, index % len(self), side="right"))
        return {**sample, COMPONENT: component}


def _pairs(components: object) -> list[tuple[_Component, Any]]:
    """(component, weight) of each. Raises UsageError if it is no mapping or list of pairs."""
    if isinstance(components, Mapping):
        pairs = list(components.items())
    elif isinstance(components, Sequence) and all(
        isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in components
    ):
        pairs = [(component, weight) for component, weight in components]
    else:
        raise UsageError(
            f"Mix: expected a dict of weights by path, or a list of pairs (dataset, weight), got "
            f"{components!r}"
        )
    if not pairs:
        raise UsageError("Mix: expected at least one component, got none")
    for component, _ in pairs:
        if isinstance(component, (Mix, MixDataset)):
            raise UsageError("Mix: expected stores and datasets as components, got another Mix")
    return pairs


def _shares(names: list[str], weights: list[Any]) -> list[Fraction]:
    """The weights as shares of 1. Raises UsageError if one is no number of at least 0."""
    from fractions import Fraction

    exact = []
    for name, weight in zip(names, weights, strict=True):
        number = isinstance(weight, (int, float, np.integer, np.floating, Fraction))
        if not number or isinstance(weight, bool) or not 0 <= weight < math.inf:
            raise UsageError(f"Mix: expected a weight of at least 0 for {name}, got {weight!r}")
        # As written: 0.7 is 7/10 then, and 70 samples of weight 0.7 make an epoch of 100.
        exact.append(Fraction(str(weight)))
    total = sum(exact)
    if not total:
        raise UsageError("Mix: expected at least one weight above 0, got none")
    return [weight / total for weight in exact]


def _check_epoch_size(epoch_size: object) -> None:
    """Raise UsageError if it is no positive int and no stopping strategy."""
    if epoch_size in get_args(StoppingStrategy):
        return
    if not isinstance(epoch_size, int) or isinstance(epoch_size, bool) or epoch_size < 1:
        choices = ", ".join(map(repr, get_args(StoppingStrategy)))
        raise UsageError(
            f"Mix: epoch_size: expected {choices} or a positive number of samples, got "
            f"{epoch_size!r}"
        )


def _size(name: str, dataset: Dataset[Any]) -> int:
    """The length of a component. Raises UsageError if it has none, or no sample."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"Mix: expected map-style datasets with a length, got {type(dataset).__name__} as "
            f"component {name}"
        )
    size = len(dataset)
    if not size:
        raise UsageError(f"Mix: expected components with samples, got none in {name}")
    return size


def _check_no_such_field(datasets: Sequence[object]) -> None:
    """Raise UsageError if a store has a field "component" of its own."""
    for dataset in datasets:
        store = getattr(dataset, "store", None)
        if isinstance(store, Store) and COMPONENT in store.fields:
            raise UsageError(
                f"Mix(numbered=True): {COMPONENT!r} is the number of the component in a Mix, but "
                f"{store.path!r} has a field of its own of that name: pack it under another name"
            )
