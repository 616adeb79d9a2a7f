"""The interface of every loader in the benchmark.

Each instance has its own process. ``pack`` may run in another process than ``open``, so the two
share only files.
"""

from __future__ import annotations

import abc
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from bench.workload import Workload

Setting = dict[str, Any]
Batch = tuple[torch.Tensor, torch.Tensor]


def record(sample: tuple[str, int]) -> dict[str, Any]:
    """A file's bytes and its label, as packed forms hold them."""
    path, label = sample
    return {"image": Path(path).read_bytes(), "label": label}


class Loader(abc.ABC):
    """One way to get batches from images.

    Attributes:
        name: its name in the command line and in the report.
        summary: one line for ``python -m bench list``.
        needs: modules without which it cannot run.
        user_imports: those of them that a training script imports anyway, for its transforms; not
            counted as the loader's import time.
        store: name of its packed form, shared by loaders that read the same one; None if it reads
            the loose files.
        ordered: whether an unshuffled epoch comes in the order of the files.
        layout: the memory format that it yields, where it is not the workload's.
    """

    summary: str
    needs: ClassVar[tuple[str, ...]] = ()
    user_imports: ClassVar[tuple[str, ...]] = ()
    store: str | None = None
    ordered: ClassVar[bool] = True
    layout: ClassVar[str | None] = None
    _loader: Any = None
    _channels_last = False  # whether batches of ``_loader`` are still to become that

    def __init__(self, name: str) -> None:
        self.name = name

    def load(self) -> None:
        for module in self.needs:
            importlib.import_module(module)

    def load_writer(self) -> None:  # noqa: B027 - most have it in their packages
        """Import what only packing needs."""

    def refusal(self, work: Workload) -> str | None:
        """Why it cannot do ``work``, or None."""
        return None

    def pack(self, work: Workload, folder: Path) -> None:
        """Write its packed form of ``work.images`` into the empty ``folder``.

        Raises Refused where the installed version cannot do it.
        """
        raise NotImplementedError(f"{self.name} reads the loose files")

    def store_folder(self, work: Workload) -> Path:
        return Path(work.stores) / f"{Path(work.images).name}-{self.store}"

    def data_folder(self, work: Workload) -> Path:
        return Path(work.images) if self.store is None else self.store_folder(work)

    def prepare(self, work: Workload) -> None:
        """Pack, unless it is there already."""
        if self.store is not None:
            from bench.data import filled

            filled(self.store_folder(work), lambda folder: self.pack(work, folder))

    def settings(self, work: Workload) -> list[Setting]:
        """Settings to try, the most promising first; the fastest in the warm-up is used."""
        return [{}]

    @abc.abstractmethod
    def open(self, work: Workload, setting: Setting) -> None:
        """Make the loader, so that ``epoch`` can be called again and again."""

    def epoch(self) -> Iterator[Batch]:
        """The batches of one epoch: images as ``work`` says, labels int64, full batches only."""
        for images, labels in self._loader:
            if self._channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            yield images, labels

    def close(self) -> None:
        """Release everything that ``open`` made; processes and threads end with ``_loader``."""
        self._loader = None
