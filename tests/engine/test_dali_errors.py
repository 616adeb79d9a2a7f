"""A batch of DALI's with a bad sample: picked out without a stream of the GPU's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from fastload import DecodeError
from fastload._engine.nvidia.dali import _DaliTicket

ERROR = DecodeError("broken", path="a", record=1, offset=0)


class OnDevice(torch.Tensor):
    """A tensor that is said to lie on a GPU, and notes where it is copied from."""

    where: list[str]

    def cpu(self, *given: Any, **more: Any) -> torch.Tensor:
        self.where.append("copied")
        return self.as_subclass(torch.Tensor)


def settled(errors: dict[int, DecodeError]) -> tuple[torch.Tensor, list[str]]:
    where: list[str] = []
    made = torch.arange(4).as_subclass(OnDevice)
    made.where = where

    @contextlib.contextmanager
    def on_stream() -> Iterator[None]:
        where.append("in the decoder's stream")
        yield
        where.append("out of it")

    ticket = object.__new__(_DaliTicket)
    ticket.batch = SimpleNamespace()  # type: ignore[assignment]
    ticket._engine = SimpleNamespace(  # type: ignore[assignment]
        finished=lambda pixels, batch: made, verified=lambda batch: None, on_stream=on_stream
    )
    ticket._pixels = lambda: (torch.empty(0), errors)  # type: ignore[method-assign]
    images, found = ticket.settle()
    assert found == errors
    return images, where


def test_a_batch_with_a_bad_sample_comes_in_host_memory() -> None:
    images, where = settled({1: ERROR})
    assert type(images) is torch.Tensor
    assert where == ["in the decoder's stream", "copied", "out of it"]
    assert images[torch.tensor([0, 2, 3])].tolist() == [0, 2, 3]


def test_a_batch_without_one_stays_on_the_device() -> None:
    images, where = settled({})
    assert type(images) is OnDevice
    assert where == []
