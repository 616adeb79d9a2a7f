"""Which tensors of a batch a stream is recorded on: as far as that needs no device."""

from __future__ import annotations

import collections
import dataclasses
import gc
import weakref
from collections.abc import Callable

import pytest
import torch

from fastload._base import nested
from fastload._base.devices import cuda


class Own:
    """An object that moves itself, as a tokenizer's batches do."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.itself: object = self

    def to(self, device: torch.device) -> Own:
        return self


@dataclasses.dataclass
class Fields:
    x: torch.Tensor


def test_every_tensor_of_a_batch_is_found_whatever_it_is_in() -> None:
    x = [torch.full((3,), float(i)) for i in range(7)]
    packed = torch.nn.utils.rnn.pack_sequence([x[0], x[1]])
    batch = {
        "packed": packed,
        "own": [Own(x[2]), Own(x[3])],
        "user": collections.UserDict(data=(x[4], "text")),
        "fields": Fields(x[5]),
        "plain": x[6],
    }
    found = {tensor.data_ptr() for tensor in nested.all_tensors(batch)}
    assert found == {t.data_ptr() for t in [packed.data, packed.batch_sizes, *x[2:]]}


def _nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(2)], layout=layout)


EYE = torch.eye(4)
MADE: dict[str, Callable[[], torch.Tensor]] = {
    "coo": EYE.to_sparse,
    "csr": EYE.to_sparse_csr,
    "csc": EYE.to_sparse_csc,
    "bsr": lambda: EYE.to_sparse_bsr((2, 2)),
    "bsc": lambda: EYE.to_sparse_bsc((2, 2)),
    "nested": lambda: _nested(torch.strided),
    "jagged": lambda: _nested(torch.jagged),
}


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("kind", MADE)
def test_of_sparse_and_nested_tensors_the_dense_parts_are_recorded(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch records streams on dense memory only, and refuses other tensors."""
    tensor = MADE[kind]()
    recorded: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda part, _: recorded.append(part))
    cuda._record([tensor], None)  # type: ignore[arg-type]
    assert all(part.layout == torch.strided and not part.is_nested for part in recorded)
    recorded = [part for part in recorded if part.numel()]  # without a jagged one's lengths
    (values,) = [part for part in recorded if part.is_floating_point()]
    assert values.sum() == 4  # all of them
    assert len(recorded) == {"nested": 1, "coo": 2, "jagged": 2}.get(kind, 3)


def test_what_was_found_in_a_batch_is_not_kept() -> None:
    """Not until a garbage collection either: memory of a device is scarce."""
    batch = {"own": [Own(torch.ones(3))], "x": (torch.ones(2),)}
    kept = [weakref.ref(tensor) for tensor in nested.all_tensors(batch)]
    gc.disable()
    try:
        assert len(nested.all_tensors(batch)) == 2
        batch["own"][0].itself = None
        batch.clear()
        assert [tensor() for tensor in kept] == [None, None]
    finally:
        gc.enable()
