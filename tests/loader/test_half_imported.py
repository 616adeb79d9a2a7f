"""A library that another thread is importing is in sys.modules, without its names.

Nothing can be of its classes yet, and whoever asks must not fail.
"""

from __future__ import annotations

import sys
import types

import pytest
import torch

from fastload._base import huggingface
from fastload._base.devices import mover
from fastload._base.machine import cpu
from fastload._run.workers import columns, deferral
from fastload._run.workers.choice import Choice
from fastload._sources import kinds
from fastload._transforms.pixels import mixing


def half_imported(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def test_a_loader_that_rests_meets_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    half_imported(monkeypatch, "fastload._sources.deferred.switch")
    deferral.rest(Choice())


@pytest.mark.parametrize(
    ("library", "ask"),
    [
        ("PIL.Image", columns.is_pillow),
        ("datasets.arrow_dataset", huggingface.is_dataset),
        ("torchvision.datasets.folder", kinds.is_image_folder),
        ("torchvision.tv_tensors", mover._is_tv_tensor),
        ("torchvision.transforms.v2", mixing.in_place),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_of_a_class_to_come(
    monkeypatch: pytest.MonkeyPatch, library: str, ask: types.FunctionType
) -> None:
    half_imported(monkeypatch, library)
    assert not ask(torch.nn.Identity())


def test_a_dataset_with_several_transforms_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    half_imported(monkeypatch, "torchvision.datasets.vision")
    dataset = types.SimpleNamespace(transform=[torch.nn.Identity()])
    assert kinds.runnable(dataset) is dataset  # type: ignore[arg-type]


def test_a_worker_limits_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    half_imported(monkeypatch, "cv2")  # by another thread of the process that forks
    monkeypatch.setattr(cpu, "_COUNTS", ())
    monkeypatch.setattr(cpu, "_libraries", list)
    cpu.one_thread()
