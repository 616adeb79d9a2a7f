"""Large tensors of samples are copied to their batch when each sample is made."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fastload import FastLoader
from fastload._run.workers import placed_rows
from fastload._run.workers.placed_rows import PlacedRows, worth_placing
from sides import assert_same

SIDE = 200  # 3 x 200 x 200 x 4 bytes: large


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_rows, "WARM_NBYTES", 1 << 20)


def image(index: int, side: int = SIDE) -> torch.Tensor:
    """Rows of pixels, as most libraries have them, seen as (3, h, w)."""
    values = np.random.default_rng(index).random((side, side, 3), np.float32)
    return torch.from_numpy(values).permute(2, 0, 1)


class Made(Dataset[Any]):
    """24 samples in one of the structures that are common."""

    def __init__(self, structure: str) -> None:
        self._structure = structure
        self._buffer = np.zeros((3, SIDE, SIDE), np.float32)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        x = image(index)
        if self._structure == "tensor":
            return x
        if self._structure == "tuple":
            return x, index
        if self._structure == "dict":
            return {"image": x, "target": {"mask": x[:1].bool(), "label": index}}
        if self._structure == "views":
            return [x, x.flip(2)], str(index)
        if self._structure == "the same twice":
            return x, x
        if self._structure == "one buffer":
            self._buffer[:] = index
            return torch.from_numpy(self._buffer), index
        if self._structure == "sizes differ":
            return image(index, SIDE + (index > 20)), index
        if self._structure == "dtypes differ":
            return x.double() if index > 20 else x, index
        if self._structure == "one is no tensor":
            return x if index < 20 else index, index
        assert self._structure == "one needs gradients"
        return x.requires_grad_(index == 21), index


def batches(kind: Any, structure: str, workers: int) -> Any:
    """All batches of two epochs, or the error."""
    loader = kind(
        Made(structure), batch_size=6, num_workers=workers, persistent_workers=workers > 0
    )
    made = []
    try:
        for _ in range(2):
            made += list(loader)
    except (RuntimeError, TypeError, AttributeError) as error:
        return [*made, type(error), _torchs_words(str(error))]
    finally:
        del loader
    return made


def _torchs_words(message: str) -> str:
    """The line that names the error, without the advice that FastLoader adds."""
    lines = message.splitlines()
    return next((line for line in reversed(lines) if "Error: " in line), lines[0])


@pytest.mark.parametrize(
    "structure",
    [
        "tensor", "tuple", "dict", "views", "the same twice", "one buffer", "sizes differ",
        "dtypes differ", "one is no tensor", "one needs gradients",
    ],
)  # fmt: skip
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_and_errors_are_dataloaders(structure: str, workers: int) -> None:
    assert_same(batches(FastLoader, structure, workers), batches(DataLoader, structure, workers))


@pytest.fixture
def rows() -> PlacedRows:
    return PlacedRows(3, lambda shape, dtype: torch.empty(shape, dtype=dtype))


def test_a_sample_is_in_its_batch_once_it_is_added(rows: PlacedRows) -> None:
    images = [image(i) for i in range(3)]
    samples = [rows.add((one, i)) for i, one in enumerate(images)]
    batch = rows.batch_of([sample[0] for sample in samples])
    assert batch is not None
    assert batch.is_contiguous()
    assert torch.equal(batch, torch.stack(images))
    assert [sample[1] for sample in samples] == [0, 1, 2]


def test_rows_in_another_order_are_no_batch(rows: PlacedRows) -> None:
    samples = [rows.add(image(i)) for i in range(3)]
    assert rows.batch_of(samples[::-1]) is None
    assert rows.batch_of(samples[:2]) is None
    assert rows.batch_of([image(0)] * 3) is None


def test_a_sample_that_does_not_fit_stays_as_it_is(rows: PlacedRows) -> None:
    first, other = rows.add(image(0)), image(1, SIDE + 1)
    assert rows.add(other) is other
    assert torch.equal(first, image(0))


def test_a_list_of_the_datasets_own_is_not_changed(rows: PlacedRows) -> None:
    kept = [image(0), {"mask": image(1)}]
    before = list(kept), dict(kept[1])
    rows.add(kept)
    assert kept[0] is before[0][0]
    assert kept[1]["mask"] is before[1]["mask"]


def test_small_tensors_and_shared_memory_are_not_worth_it() -> None:
    assert worth_placing([(image(i), i) for i in range(6)])
    assert not worth_placing([(torch.zeros(3, 32, 32), i) for i in range(6)])
    assert not worth_placing([image(0)])
    buffer = image(0)
    assert not worth_placing([buffer, image(1), image(2), buffer])


def test_in_this_process_malloc_has_memory_for_batches_that_are_not_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = [image(i) for i in range(6)]
    assert worth_placing(samples)
    assert not worth_placing(samples, 16 << 20)
    monkeypatch.setattr(placed_rows, "WARM_NBYTES", 16 << 20)
    loader = FastLoader(Made("tensor"), 6, num_workers=0)
    assert len(list(loader)) == 4
    warm = loader._loader_resources.warm
    assert warm is not None
    assert warm.allocations == 0


def test_types_that_numpy_lacks_and_other_orders_are_placed() -> None:
    for dtype in (torch.bfloat16, torch.complex64, torch.uint8):
        placed = PlacedRows(9, lambda shape, dtype: torch.empty(shape, dtype=dtype))
        images = [image(i).mul(100).to(dtype) for i in range(9)]
        images[1] = images[1].contiguous()
        batch = placed.batch_of([placed.add(one) for one in images])
        assert batch is not None
        assert torch.equal(batch, torch.stack(images))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("structure", "placed"), [("tuple", True), ("one buffer", False)])
def test_rows_are_placed_once_a_batch_had_its_own_memory(
    structure: str, placed: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = multiprocessing.get_context("fork").Value("i", 0)
    add = PlacedRows.add

    def counted(self: PlacedRows, sample: Any) -> Any:
        added.value += 1
        return add(self, sample)

    monkeypatch.setattr(PlacedRows, "add", counted)  # in the worker as well, which is forked
    batches(FastLoader, structure, workers)
    assert bool(added.value) is placed  # the first batches, which have no slab yet, are not
