"""Loaders with ``device`` and ``batch_transform``: the same batches, elsewhere, in their order."""

from __future__ import annotations

import copy
import inspect
import json
import multiprocessing
import pickle
import random
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from batches import EVAL, MEAN, STD, TRAIN
from deferred_datasets import Photos, train, write_photos
from fake_device import FakeDevice
from fastload import FastLoader, UsageError
from fastload._base.devices import accelerator, cuda
from fastload._base.devices.mover import PIN_FROM
from fastload._base.trace import Snapshot
from fastload._run import resources
from fastload._run.bottleneck import verdict
from fastload._run.workers.columns import SMALL_NBYTES
from sides import assert_same

ERASED = v1.Compose([*TRAIN.transforms, v1.RandomErasing(0.8, value="random")])


@pytest.fixture
def devices(monkeypatch):
    """What loaders take for CUDA devices; they run at once."""
    made = []

    def make(device):
        made.append(FakeDevice(late=False))
        return made[-1]

    monkeypatch.setattr(accelerator, "check", lambda device: None)
    monkeypatch.setattr(accelerator, "make", make)
    yield made
    for device in made:
        device.pins.clear()


class Arrays(Dataset):
    """Samples of a user's: a dict of tensors, large enough to be staged."""

    def __len__(self):
        return 23

    def __getitem__(self, i):
        if i == 7 and getattr(self, "bad", False):
            raise ValueError("seven")
        return {"x": torch.full((70, 70), float(i)), "i": i, "random": torch.rand(2)}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Arrays()[i] for i in range(23))


# --- the same batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [EVAL, ERASED], ids=["eval", "erased"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 0},
        {"dtype": torch.bfloat16, "memory_format": torch.channels_last},
        {"collate_fn": torch.utils.data.default_collate},
        {"collate_fn": lambda samples: [torch.stack([x for x, _ in samples]), samples[0][1]]},
    ],
    ids=["plain", "this thread", "bfloat16", "torch's collate", "own collate"],
)
def test_batches_of_an_engine_arrive_as_they_would_in_host_memory(
    store, devices, transform, options
):
    def batches(**more):
        loader = FastLoader(store, 5, shuffle=True, seed=3, transform=transform, **options, **more)
        return [batch for _ in range(2) for batch in loader]

    assert_same(batches(device="cuda"), batches())
    assert len(devices) == 1  # one side stream for the loader's life
    assert devices[0].copies > 0


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_rectangles_follow_their_samples_when_others_are_left_out(
    photos, tmp_path, devices, on_error
):
    import shutil

    from torchvision.datasets import ImageFolder

    shutil.copytree(photos, tmp_path / "photos")
    for path in sorted((tmp_path / "photos").rglob("*.jpg"))[2:20:5]:
        path.write_bytes(path.read_bytes()[:2000])
    folder = ImageFolder(tmp_path / "photos", ERASED)

    def batches(**more):
        loader = FastLoader(
            folder, 4, shuffle=True, seed=3, on_error=on_error, max_errors=0.5, **more
        )
        return list(loader)

    assert_same(batches(device="cuda"), batches())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Arrays(), Stream()], ids=["map", "iterable"])
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_batches_of_any_dataset_arrive_as_torchs_loader_gives_them(
    devices, dataset, workers, options
):
    if not workers:
        options = {}

    def batches(kind, **more):
        torch.manual_seed(5)
        loader = kind(dataset, 4, num_workers=workers, **more)
        return [copy.deepcopy(batch) for _ in range(2) for batch in loader], torch.rand(1)

    got = batches(FastLoader, device="cuda", **options)
    assert_same(got, batches(DataLoader, **options))


def test_slabs_that_workers_fill_are_pinned_where_they_are(devices):
    loader = FastLoader(Arrays(), 4, num_workers=2, device="cuda")
    for _ in range(3):
        list(loader)
    slabs = {slab.address for slab in loader.inspect().shared._slabs}
    assert slabs & set(devices[0].pins)
    assert devices[0].host.allocations <= 4  # the first batches come before there are slabs


class Large(Dataset):
    """Four samples are a batch that is collated in a slab."""

    def __len__(self):
        return 160

    def __getitem__(self, i):
        return torch.full((SMALL_NBYTES // 16,), float(i))


@pytest.mark.parametrize("seed", [5, 51])
def test_no_pinned_slab_is_freed_when_a_late_device_catches_up(monkeypatch, devices, seed):
    device = FakeDevice(seed)
    monkeypatch.setattr(accelerator, "make", lambda given: device)
    monkeypatch.setattr(resources, "AHEAD_ON_DEVICE", 3)
    loader = FastLoader(Large(), 4, device="cuda")
    for _ in loader:
        device.launch(lambda: None)
        device.run(device.random.randrange(10))
    ring = loader.inspect().warm
    assert set(device.pins) == {slab.address for slab in ring._slabs}
    assert ring.allocations == len(ring._slabs) <= 3 + 3


def test_slabs_that_an_engine_fills_are_pinned_where_they_are(store, devices):
    loader = FastLoader(store, 8, transform=TRAIN, device="cuda")
    for _ in range(3):
        list(loader)
    (ring,) = loader.inspect().engine.rings
    assert set(devices[0].pins) >= {slab.address for slab in ring._slabs}
    assert devices[0].host.allocations == 0  # labels are copied as they are
    assert ring.allocations <= 2 + 1 + 4


@pytest.mark.native
@pytest.mark.parametrize("workers", [0, 2])
def test_slabs_of_a_users_own_images_are_pinned_where_they_are(devices, tmp_path, workers):
    photos = Photos(write_photos(tmp_path), train())
    loader = FastLoader(photos, 7, num_workers=workers, device="cuda")
    for _ in range(3):
        for images, _ in loader:
            assert images.nbytes >= PIN_FROM
    ring = loader.inspect().decoder.memory
    assert ring._slabs and set(devices[0].pins) >= {slab.address for slab in ring._slabs}
    assert devices[0].host.allocations == 0


def test_views_arrive_as_they_would_in_host_memory(store, devices):
    def batches(**more):
        loader = FastLoader(store, 8, seed=3, transform=[TRAIN, EVAL], **more)
        return [batch for _ in range(3) for batch in loader]

    assert_same(batches(device="cuda"), batches())
    assert devices[0].copies > 0


class Gated(Dataset):
    """From the second sample on each waits for the gate."""

    def __init__(self):
        self.gate, self.late = multiprocessing.Event(), multiprocessing.Event()

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i and not self.gate.wait(60):
            self.late.set()
        return torch.full((70, 70), float(i))


@pytest.mark.usefixtures("devices")
def test_a_batch_that_is_there_does_not_wait_for_those_behind_it():
    dataset = Gated()
    batches = iter(FastLoader(dataset, 1, device="cuda", num_workers=1))
    assert next(batches)[0, 0, 0] == 0
    assert not dataset.late.is_set()
    dataset.gate.set()
    assert [int(batch[0, 0, 0]) for batch in batches] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_moved_in_inference_mode_can_be_trained_with(store, devices, workers):
    loader = FastLoader(store, 3, transform=ERASED, num_workers=workers, device="cuda")
    weight, iterator = torch.ones(1, requires_grad=True), iter(loader)
    with torch.inference_mode():
        assert not next(iterator)[0].is_inference()
    for images, _ in iterator:
        (images * weight).sum().backward()
    assert weight.grad is not None


def test_errors_come_in_the_place_of_their_batch(devices):
    dataset = Arrays()
    dataset.bad = True
    iterator = iter(FastLoader(dataset, 5, device="cuda"))
    assert next(iterator)["i"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="seven"):
        next(iterator)
    assert next(iterator)["i"].tolist() == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_device_is_called_in_the_callers_thread_alone(store, devices, workers):
    """A graph may be captured there between two batches, which calls elsewhere would end."""
    loader = FastLoader(store, 4, transform=TRAIN, num_workers=workers, device="cuda")
    for _ in range(2):
        assert len(list(loader)) == 6
    assert devices[0].threads == {threading.get_ident()}


def test_to_apples_and_intels_devices_a_batch_is_moved_by_torch(monkeypatch):
    """ "meta" is the one of them that is always there: no values, but a device of its own."""
    monkeypatch.setattr(accelerator, "check", lambda device: None)
    for batch in FastLoader(Arrays(), 4, device="meta", batch_transform=lambda batch: batch):
        assert [batch[name].device.type for name in ("x", "i", "random")] == ["meta"] * 3


def test_explain_says_where_copies_come_from_if_cuda_refuses_to_pin(monkeypatch, devices):
    loader = FastLoader(Arrays(), 4, device="cuda")
    assert "from pinned slabs" in loader.explain()
    monkeypatch.setattr(cuda, "_refusal", "CUDA error 712")
    assert "by way of pinned memory of torch's" in loader.explain()
    assert "(CUDA error 712)" in loader.explain()


@pytest.mark.usefixtures("no_leaks")
def test_leaving_early_ends_workers_and_engines(store, devices):
    for loader in (
        FastLoader(Arrays(), 4, num_workers=2, device="cuda"),
        FastLoader(store, 2, transform=TRAIN, num_workers=2, device="cuda"),
    ):
        for _ in range(3):
            for _ in loader:
                break


def test_on_the_cpu_batches_stay_where_they_are(store):
    loader = FastLoader(store, 5, transform=EVAL, device="cpu")
    assert_same(list(loader), list(FastLoader(store, 5, transform=EVAL)))
    assert "stay in host memory" in loader.explain()


# --- resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", None])
@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("what", ["store", "map", "iterable"])
def test_a_state_counts_what_the_caller_has_seen_and_resumes_transforms_too(
    store, devices, what, steps, device
):
    def make():
        dataset = {"store": store, "map": Arrays(), "iterable": Stream()}[what]
        more = {"transform": TRAIN} if what == "store" else {}
        return FastLoader(
            dataset,
            5,
            shuffle=None if what == "iterable" else True,
            seed=4,
            device=device,
            batch_transform=noisy,
            **more,
        )

    loader = make()
    seen = []
    for batch in loader:
        seen.append(copy.deepcopy(batch))
        if len(seen) == steps:
            state = loader.state_dict()
    assert state["batches"] == steps
    other = make()
    other.load_state_dict(state)
    assert_same(list(other) or list(other), seen[steps:] or list(loader))


# --- batch_transform ------------------------------------------------------------------------------


def noisy(batch):
    return [batch, torch.rand(2), random.random(), np.random.rand()]


def draws(**options):
    loader = FastLoader(Arrays(), 5, batch_transform=noisy, **options)
    return [batch[1:] for _ in range(2) for batch in loader]


def test_numbers_of_a_transform_depend_on_seed_epoch_and_batch_alone(devices):
    reference = draws(seed=1)
    assert len({numbers[0][0].item() for numbers in reference}) == 10
    for options in (
        {"num_workers": 2},
        {"device": "cuda"},
        {"shuffle": True},
        {"device": "cuda", "num_workers": 1, "prefetch_factor": 4},
    ):
        torch.manual_seed(random.randrange(99))
        assert_same(draws(seed=1, **options), reference)
    assert draws(seed=2)[0][1] != reference[0][1]
    assert len(devices[-1].seeds) == 2 * 10
    assert -1 not in devices[-1].seeds[::2]


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_leaves_the_callers_generators_alone(devices, device, seed, workers):
    def after(**more):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        dataset = list(range(23))
        list(FastLoader(dataset, 4, shuffle=True, num_workers=workers, seed=seed, **more))
        return torch.rand(1).item(), random.random(), np.random.rand()

    assert after(batch_transform=noisy, device=device) == after()


def test_without_a_seed_numbers_follow_torchs_generator():
    def drawn(seed):
        torch.manual_seed(seed)
        return draws()

    assert_same(drawn(3), drawn(3))
    assert drawn(3)[0][1] != drawn(4)[0][1]
    one = drawn(3)
    assert one[0][1] != one[5][1]  # of two epochs


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("mix", [v2.MixUp, v2.CutMix])
def test_torchvisions_mixup_and_cutmix(store, devices, device, mix):
    transform = mix(num_classes=3)

    def batches(**more):
        loader = FastLoader(store, 6, shuffle=True, seed=2, transform=EVAL, **more)
        return list(loader)

    mixed = batches(batch_transform=transform, device=device)
    for (images, labels), (plain, numbers) in zip(mixed, batches(), strict=True):
        assert images.shape == plain.shape
        assert not torch.equal(images, plain)
        assert labels.shape == (6, 3)
        assert torch.allclose(labels.sum(1), torch.ones(6))
        assert ((labels > 0).sum(1) >= 1).all()
        assert (labels.gather(1, numbers[:, None]) >= 0).all()


def test_an_error_of_a_transform_is_raised_at_its_batch_and_generators_are_put_back():
    def fail(batch):
        torch.rand(1)
        raise RuntimeError("no")

    torch.manual_seed(3)
    expected = torch.get_rng_state()
    iterator = iter(FastLoader(range(9), 4, seed=1, batch_transform=fail))
    after = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no"):
        next(iterator)
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.is_tensor(expected)


# --- arguments, words and figures -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "cudaa"}, "device: expected a device such as 'cuda'"),
        ({"device": "meta"}, "expected cpu, cuda, mps or xpu"),
        ({"device": 1.5}, "device: expected a device such as 'cuda'"),
        ({"batch_transform": 3}, "batch_transform: expected a callable"),
    ],
)
def test_what_cannot_work_is_said_at_once(arguments, message):
    with pytest.raises(UsageError, match=message):
        FastLoader(range(4), **arguments)


def test_a_device_that_is_not_there_is_said_at_once(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    FastLoader(range(4), device="cuda:1")
    with pytest.raises(UsageError, match="finds 2 cuda devices here"):
        FastLoader(range(4), device="cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="finds no cuda devices here; use device=None"):
        FastLoader(range(4), device="cuda")


def test_trainers_that_rebuild_a_loader_keep_its_device(store, devices):
    loader = FastLoader(
        store,
        5,
        transform=EVAL,
        device="cuda",
        num_workers=2,
        prefetch_factor=1,
        batch_transform=noisy,
    )
    given = {
        name: getattr(loader, name)
        for name in inspect.signature(FastLoader.__init__).parameters
        if name not in ("self", "shuffle", "sampler", "batch_sampler")
    }
    again = type(loader)(**given)
    assert (again.device, again.prefetch_factor, again.batch_transform) == ("cuda", 1, noisy)
    assert_same([b[0] for b in again], [b[0] for b in loader])
    loaded = pickle.loads(pickle.dumps(again))
    assert_same([b[0] for b in loaded], [b[0] for b in loader])


def test_explain_says_where_the_transfer_happens(store, devices):
    told = FastLoader(
        store, transform=ERASED, device="cuda:1", batch_transform=v2.MixUp(num_classes=3)
    ).explain()
    assert "device: cuda:1, copied on a side stream, 2 batches ahead" in told
    assert "slabs that the engine fills" in told
    assert "on the device, batch by batch: 1 table of output values, 1 erasing" in told
    assert "batch_transform: MixUp, on cuda:1, once a batch" in told
    assert (
        "slabs that workers collate into"
        in FastLoader(Arrays(), num_workers=1, device="cuda").explain()
    )
    assert "copied when a batch is asked for" in FastLoader(Arrays(), device="mps").explain()
    told = FastLoader(Arrays(), batch_transform=noisy).explain()
    assert "batch_transform: noisy, in host memory, once a batch" in told


def test_figures_count_what_was_handed_over(store, devices):
    loader = FastLoader(store, 4, transform=TRAIN, device="cuda", num_workers=2)
    iterator = iter(loader)
    for taken in (1, 2, 3):
        next(iterator)
        assert loader.stats()["batches"] == taken
        assert loader.stats()["images"] == 4 * taken
    list(iterator)
    stats = loader.stats()
    assert stats["batches"] == 6
    assert {"copy", "device", "move", "staging", "decode"} <= set(stats["stages_s"])
    assert stats["stages_s"]["copy"] > 0


def test_a_timeline_shows_each_copy_on_a_track_of_its_own(store, devices, tmp_path):
    loader = FastLoader(store, 4, transform=TRAIN, device="cuda")
    with fastload.trace(tmp_path / "run.json"):
        list(loader)
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    track = tracks["cpu side stream"]
    spans = [e["name"] for e in events if e["ph"] == "X" and e["tid"] == track]
    assert spans.count("copy") == spans.count("device") == 6
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert {"gpu MB", "pinned MB"} <= counters
    waits = [e for e in events if e["name"] == "wait"]
    assert len(waits) == 7


def figures(**stages):
    return Snapshot(
        images=100,
        batches=10,
        elapsed_s=10.0,
        wait_s=stages.pop("wait", 4.0),
        stages_s=stages,
        cache_hits=0,
        cache_misses=0,
        read_nbytes=0,
        workers_s=0.0,
    )


def test_the_verdict_names_copies_that_bound_the_loop():
    assert verdict(figures(copy=9.5, wait=0.1), native=True)[0] == "copy"
    assert verdict(figures(copy=3.0, move=3.0, decode=20.0), native=True)[0] == "copy"
    assert verdict(figures(copy=3.0, move=0.5, decode=20.0), native=True)[0] == "decoding"
    assert verdict(figures(copy=3.0, move=0.1, wait=0.1), native=True)[0] == "compute"


def test_a_normalised_batch_crosses_in_one_byte_a_value(store, devices):
    transform = v1.Compose([v1.Resize((32, 32)), v1.ToTensor(), v1.Normalize(MEAN, STD)])
    loader = FastLoader(store, 8, transform=transform, device="cuda")
    list(loader)
    (ring,) = loader.inspect().engine.rings
    assert {slab.memory.nbytes for slab in ring._slabs} == {8 * 3 * 32 * 32}
