"""Packed stores in a ConcatDataset or a Mix, read as one store.

An engine already reads them as one (``source.py``). If the transform is the user's own code, torch
asks a ConcatDataset for one sample at a time, and looking up one record takes longer than running
most transforms on its deferred image. Here the records of a whole batch are looked up at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import ConcatDataset

from ..errors import UsageError
from .mix import MixDataset
from .packed import PackedDataset, augmentation_of


class Joined:
    """Remembers the one dataset of the stores of a ConcatDataset."""

    def __init__(self) -> None:
        self._settings: Sequence[tuple[object, ...]] = []
        self._dataset: PackedDataset | None = None

    def of(self, dataset: object, indices: Sequence[Any], *, seeded: bool) -> PackedDataset | None:
        """A dataset that has the same samples at ``indices``; None: ``dataset`` is no such one.

        ``seeded``: the caller seeds each sample. Otherwise a part with its own seed cannot be
        joined, because that seed goes with the part's own record numbers.
        """
        plain = type(dataset) is ConcatDataset
        mixed = type(dataset) is MixDataset and not dataset.mix.numbered
        if not (plain or mixed):
            return None
        assert isinstance(dataset, ConcatDataset)
        n = dataset.cumulative_sizes[-1]
        if not all(type(index) is int and -n <= index < n for index in indices):
            return None  # torch's error, for that sample
        stores: list[PackedDataset] = []
        for component in dataset.datasets:
            if type(component) is not PackedDataset or component.joint is not None:
                return None
            if not seeded and augmentation_of(component) is not None:
                return None
            stores.append(component)
        # The user may have changed any of these since the last call.
        settings = [
            (each.store, each.transform, each.target_transform, each.fields, each.check_crc)
            for each in stores
        ]
        if not _same(settings, self._settings):
            self._settings, self._dataset = settings, _joined(stores, dataset.cumulative_sizes)
        return self._dataset


def _same(settings: Sequence[tuple[object, ...]], others: Sequence[tuple[object, ...]]) -> bool:
    return len(settings) == len(others) and all(
        one is other for pair in zip(settings, others) for one, other in zip(*pair)
    )


def _joined(datasets: Sequence[PackedDataset], ends: Sequence[int]) -> PackedDataset | None:
    first = datasets[0]
    alike = all(
        other.transform is first.transform
        and other.target_transform is first.target_transform
        and (other.fields, other.check_crc) == (first.fields, first.check_crc)
        and (other.store.labels is None) == (first.store.labels is None)
        for other in datasets[1:]
    )
    if not alike:
        return None
    from .._transforms.recognise import Unrecognised, recognise

    if not isinstance(recognise(first.transform), Unrecognised):
        return None  # random numbers would be drawn once for a batch, not for each sample
    try:
        joined = PackedDataset(
            [dataset.store for dataset in datasets],
            first.transform,
            first.target_transform,
            fields=first.fields,
            check_crc=first.check_crc,
        )
    except UsageError:  # their labels or fields do not mean the same
        return None
    return joined if len(joined) == ends[-1] else None
