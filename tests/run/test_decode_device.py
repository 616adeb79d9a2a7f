"""decode_device: what it refuses, what "auto" measures, and where that is remembered."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fastload._run.decode_device import Choice, choice_of, measure, rate, state_of
from torchvision import transforms

from batches import TRAIN
from fake_device import FakeDevice
from fastload import FastLoader, MissingDependencyError, PackedDataset, UsageError
from fastload._base.devices import accelerator
from fastload._base.slabs import SlabRing
from fastload._engine import registry
from fastload._engine.nvidia import dali_graph
from fastload._engine.registry import chosen
from fastload._run import decode_device as _decode_device
from fastload._run import tuned_file
from fastload._run.config import LoaderConfig
from fastload._run.point import Point
from fastload._sources.source import resolve
from sides import assert_same

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decode_device": "tpu"}, "'cpu', 'gpu', 'auto', got 'tpu'"),
        ({"decode_device": "gpu", "engine": "native"}, "decode_device='gpu' lets fastload choose"),
        ({"decode_device": "auto", "engine": "python"}, "decode_device='auto' lets fastload"),
        ({"decode_device": "gpu", "cache": "dct"}, "cache='dct' needs images"),
    ],
)
def test_what_cannot_be_is_refused(store: Path, arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FastLoader(store, **arguments)


@without_cuda
def test_gpu_without_one_is_an_error(store: Path) -> None:
    with pytest.raises(UsageError, match="expected a CUDA device, found none; decode_device="):
        FastLoader(store, decode_device="gpu")


@without_cuda
def test_auto_without_a_gpu_is_the_cpu_and_says_so(store: Path) -> None:
    given = {"transform": TRAIN, "seed": 1, "num_workers": 1}
    loader = FastLoader(store, 8, decode_device="auto", **given)
    assert loader.decode_device == "auto"
    assert (
        "decode_device: on the CPU, because decode_device='auto' found no CUDA device"
        in loader.explain()
    )
    assert_same(list(loader), list(FastLoader(store, 8, **given)))
    assert "decode_device:" not in FastLoader(store, 8, **given).explain()


def test_without_dali_the_engine_names_the_extra(store: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'torch-fastload\[dali\]'"):
        FastLoader(store, engine="dali")


class Timed:
    """A decoder that takes so many milliseconds a batch."""

    def __init__(self, milliseconds: float) -> None:
        self._seconds = milliseconds / 1000
        self.store = SimpleNamespace(sizes=lambda records: np.ones((len(records), 2), np.int32))
        self.users = self.submitted = self.cancelled = 0

    def acquire(self, user: object) -> None:
        self.users += 1

    def release(self, user: object) -> None:
        self.users -= 1

    def submit(self, records: np.ndarray, **drawn: int) -> Any:
        self.submitted += 1

        def settle() -> Any:
            time.sleep(self._seconds)
            return torch.zeros(len(records), 3, 1, 1), {}

        def cancel() -> None:
            self.cancelled += 1

        return SimpleNamespace(settle=settle, cancel=cancel)


class Source:
    store = SimpleNamespace(indirect=None)
    lookup = staticmethod(lambda indices: indices)

    def __len__(self) -> int:
        return 1000


@pytest.mark.parametrize(
    ("cpu", "gpus", "device", "load"),
    [
        (900, {0.65: 2000, 0.85: 3000, 1.0: 1500}, "gpu", 0.85),
        (3000, {0.65: 2000, 0.85: 900, 1.0: 900}, "cpu", 0.65),
        (2900, {0.65: 2000, 0.85: 3000, 1.0: 900}, "cpu", 0.85),  # hardly faster: the exact one
        (10, {0.65: 0.0, 0.85: 0.0, 1.0: 0.0}, "cpu", 0.65),
    ],
)
def test_auto_takes_the_one_that_is_clearly_faster(
    monkeypatch: Any, cpu: float, gpus: Any, device: str, load: float
) -> None:
    rates = {registry.NATIVE: cpu, **gpus}
    monkeypatch.setattr(_decode_device, "rate", lambda decoder, batches, where: rates[decoder])
    monkeypatch.setattr(registry, "chosen", lambda engine, store: registry.NATIVE)

    def make(decoding: Any) -> Any:
        on_device = decoding.engine.on_device
        assert decoding.device == torch.device("cuda:1" if on_device else "cpu")
        return decoding.hw_decoder_load if on_device else decoding.engine

    choice = measure(make, Source(), 8, torch.device("cuda:1"))  # type: ignore[arg-type]
    assert choice == Choice(
        device=device,
        cpu_images_per_s=cpu,
        gpu_images_per_s=max(gpus.values()),
        hw_decoder_load=load,
    )
    assert f"{cpu:,.0f} images/s decoded on the CPU" in str(choice)


@pytest.mark.parametrize(("cpu", "measured"), [(19_000, 3), (21_000, 0)])
def test_a_cpu_that_is_faster_than_any_step_leaves_the_gpu_unmeasured(
    monkeypatch: Any, cpu: float, measured: int
) -> None:
    """The GPU is measured idle: in the loop, its decoder would slow the step."""
    loads: list[float | None] = []

    def make(decoding: Any) -> Any:
        if decoding.engine.on_device:
            loads.append(decoding.hw_decoder_load)
            return 100_000.0
        return cpu

    monkeypatch.setattr(_decode_device, "rate", lambda decoder, batches, where: decoder)
    monkeypatch.setattr(registry, "chosen", lambda engine, store: registry.NATIVE)
    nbytes = 3 * 224 * 224
    choice = measure(make, Source(), 8, torch.device("cuda:1"), nbytes)  # type: ignore[arg-type]
    assert len(loads) == measured
    assert (choice.device, choice.enough) == (("gpu", False) if measured else ("cpu", True))
    assert ("the GPU was not measured" in str(choice)) == choice.enough
    assert choice_of(state_of(choice)) == choice


def test_a_library_that_cannot_decode_there_leaves_it_to_the_cpu(monkeypatch: Any) -> None:
    def rate(engine: registry.EngineKind, batches: Any, where: Any) -> float:
        if engine.on_device:
            raise RuntimeError("no driver")
        return 100.0

    monkeypatch.setattr(_decode_device, "rate", rate)
    monkeypatch.setattr(registry, "chosen", lambda engine, store: registry.NATIVE)
    with pytest.warns(UserWarning, match="DALI does not decode on cuda:1.*: no driver") as heard:
        choice = measure(
            lambda decoding: decoding.engine,  # type: ignore[arg-type, return-value]
            Source(),  # type: ignore[arg-type]
            8,
            torch.device("cuda:1"),
        )
    assert (choice.device, choice.cpu_images_per_s, choice.gpu_images_per_s) == ("cpu", 100, 0)
    assert heard[0].filename == __file__


def test_a_rate_leaves_nothing_behind(monkeypatch: Any) -> None:
    monkeypatch.setattr(_decode_device, "_SECONDS", 0.02)
    decoder = Timed(5)
    found = rate(decoder, [np.arange(10)] * 100, torch.device("cpu"))  # type: ignore[arg-type]
    assert 0 < found <= 10 / 0.005
    assert decoder.submitted < 30
    assert decoder.cancelled == 1
    assert decoder.users == 0


class Slabs(Timed):
    """A decoder whose batches lie in slabs, all of one value."""

    def __init__(self) -> None:
        super().__init__(0)
        self.ring = SlabRing(3)
        self.rings = (self.ring,)

    def submit(self, records: np.ndarray, **drawn: int) -> Any:
        self.submitted += 1
        images, memory = self.ring.lease(
            (len(records), 3, 64, 64), torch.uint8, (12288, 4096, 64, 1)
        )
        memory[:] = self.submitted
        return SimpleNamespace(settle=lambda: (images, {}), cancel=lambda: None)


def test_a_rate_has_batches_copied_out_of_pinned_slabs(monkeypatch: Any) -> None:
    device = FakeDevice()
    monkeypatch.setattr(accelerator, "make", lambda where: device)
    decoder = Slabs()
    rate(decoder, [np.arange(10)] * 12, torch.device("cuda:1"))  # type: ignore[arg-type]
    assert decoder.submitted == device.copies + 1 == 12
    assert set(device.pins) == {slab.address for slab in decoder.ring._slabs}
    assert device.waits and decoder.ring.allocations <= 3
    device.pins.clear()


CHOICE = Choice(device="gpu", cpu_images_per_s=100.0, gpu_images_per_s=250.5, hw_decoder_load=0.85)


def test_a_choice_survives_being_written_down() -> None:
    assert choice_of(state_of(CHOICE)) == CHOICE
    assert choice_of(None) is None
    for wrong in ({"device": "gpu"}, {**state_of(CHOICE), "device": "tpu"}):  # type: ignore[dict-item]
        with pytest.raises(UsageError, match="measure again"):
            choice_of(wrong)


@without_cuda
def test_a_state_carries_the_choice(store: Path) -> None:
    loader = FastLoader(store, 4, decode_device="auto", num_workers=0, seed=1)
    loader._resources.choice = CHOICE
    state = loader.state_dict()
    other = FastLoader(store, 4, decode_device="auto", num_workers=0, seed=1)
    with pytest.warns(UserWarning, match="crops are the same, pixels differ slightly"):
        other.load_state_dict(state)
    assert other._resources.choice == CHOICE
    plain = FastLoader(store, 4, num_workers=0, seed=1)
    plain.load_state_dict(state)
    assert plain._resources.choice is None
    older = {key: value for key, value in state.items() if key != "decode"}
    other.load_state_dict(older)


def on_gpu(dataset: PackedDataset, **more: Any) -> LoaderConfig:
    """A loader with decode_device="auto" where there is a GPU."""
    given = {"decode_device": "auto", "device": "cuda", "num_workers": 1, "batch_size": 8}
    return LoaderConfig(dataset=dataset, **{**given, **more})


@pytest.fixture
def pretended(monkeypatch: Any) -> list[Choice]:
    """A GPU that is said to be there, and DALI; what is measured is in the list, and CHOICE."""
    measured: list[Choice] = []

    def measure(make: Any, source: Any, batch_size: int, device: torch.device, nbytes: int) -> Any:
        assert nbytes == source.plan.levels().nbytes > 0  # else a CPU is never fast enough
        measured.append(CHOICE)
        return CHOICE

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "pretended")
    monkeypatch.setattr(dali_graph, "absent", lambda: None)
    monkeypatch.setattr(dali_graph, "version", lambda: "2.4.0")
    monkeypatch.setattr(_decode_device, "measure", measure)
    return measured


def test_auto_measures_once(store: Path, pretended: list[Choice]) -> None:
    dataset = PackedDataset(store, transform=TRAIN)
    source = resolve(dataset)
    config, choice = on_gpu(dataset), None
    for _ in range(3):
        choice = _decode_device.settle(config, choice, source)
    assert choice == CHOICE
    assert len(pretended) == 1
    found = _decode_device.decoding(config, choice, source)
    assert (found.engine, found.device) == (registry.DALI, torch.device("cuda:0"))
    assert found.hw_decoder_load == 0.85
    choice = dataclasses.replace(CHOICE, device="cpu")
    found = _decode_device.decoding(config, choice, source)
    assert (found.engine, found.device) == (chosen("auto"), torch.device("cpu"))
    assert "on the CPU; measured: 100 images/s decoded on the CPU, 250 on the GPU" in found.why


def test_without_dali_it_is_the_cpu(store: Path, pretended: list[Choice], monkeypatch: Any) -> None:
    chain = transforms.Compose([transforms.RandomResizedCrop(96), transforms.PILToTensor()])
    dataset = PackedDataset(store, transform=chain)
    config = on_gpu(dataset, decode_device="gpu")
    source = resolve(dataset)
    assert _decode_device.decoding(config, None, source).why == "by DALI 2.4.0 on cuda:0"
    monkeypatch.setattr(dali_graph, "absent", lambda: "there is no DALI")
    found = _decode_device.decoding(config, None, source)
    assert (found.engine, found.device.type) == (chosen("auto"), "cpu")
    assert found.why == "on the CPU, because there is no DALI"


@pytest.mark.parametrize("change", ["cache", "device", "plan"])
def test_auto_measures_nothing_where_only_the_cpu_can_do_it(
    store: Path, pretended: list[Choice], change: str
) -> None:
    chain = [TRAIN, transforms.ColorJitter(0.4)] if change == "plan" else [TRAIN]
    dataset = PackedDataset(store, transform=transforms.Compose(chain[::-1]))
    changes = {"cache": {"cache": "ram"}, "device": {"device": None}, "plan": {}}
    config = on_gpu(dataset, **changes[change])
    source = resolve(dataset)
    choice = _decode_device.settle(config, None, source)
    assert not pretended
    found = _decode_device.decoding(config, choice, source)
    assert found.engine == chosen("auto") and found.why.startswith("on the CPU, because ")


def test_a_tuning_file_remembers_it(store: Path, tmp_path: Path, pretended: list[Choice]) -> None:
    dataset = PackedDataset(store, transform=TRAIN)
    path = tmp_path / "tune.json"
    here = tuned_file.machine()
    written = {
        "format": tuned_file.FORMAT,
        "version": tuned_file.VERSION,
        "chosen": dataclasses.asdict(Point(num_workers=1, batch_size=8, prefetch_factor=2)),
        "machine": {"cpu": "another"},
        "dataset": tuned_file.fingerprint(dataset),
    }
    source = resolve(dataset)
    for number, machine in enumerate(({"cpu": "another"}, here, here)):
        if number < 2:
            path.write_text(json.dumps({**written, "machine": machine}))
        choice = _decode_device.settle(on_gpu(dataset, tuned=path), None, source)
        assert choice == CHOICE
        assert ("decoding" in json.loads(path.read_text())) == (number > 0)
    assert len(pretended) == 2  # the third one read it
    assert json.loads(path.read_text())["dataset"] == written["dataset"]
