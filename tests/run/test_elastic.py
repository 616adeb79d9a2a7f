"""Saved in the middle of an epoch by some ranks, resumed by others: every sample exactly once.

What comes after the checkpoint is the rest of the one order, with the same random numbers, however
many ranks read it: the batches of all ranks are compared with those of one rank that never stopped.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fastload import FastLoader, PackedDataset, open_writer, pack
from fastload.storage import Record
from object_server import ObjectServer
from torchrun import torchrun

SAMPLES = 168  # 8 ranks read 48 before the checkpoint; 5, 3 and 12 ranks have as many each of 120
TRAIN = v1.Compose([v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images that differ in every place."""
    folder = tmp_path_factory.mktemp("elastic") / "imgs"
    pixels = np.random.default_rng(1)
    for name in range(SAMPLES):
        path = folder / f"class{name % 4}" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(pixels.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        coarse.resize((40, 32)).save(path)
    return folder


@pytest.fixture(scope="module")
def packed(folder):
    pack(folder, folder.parent / "imgs.lmdb")
    return folder.parent / "imgs.lmdb"


class Own(Dataset):
    """A user's Dataset, over which fastload defers images."""

    def __init__(self, folder):
        self.paths = sorted(folder.rglob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return TRAIN(Image.open(self.paths[index]).convert("RGB")), index


def of_kind(kind, folder, packed, **arguments):
    arguments = {"batch_size": 3, "shuffle": True, "seed": 5, **arguments}
    if kind == "packed":
        return FastLoader(packed, transform=TRAIN, **arguments)
    return FastLoader(ImageFolder(folder, TRAIN) if kind == "folder" else Own(folder), **arguments)


def samples(batches):
    """The samples of batches one by one: bytes of the image, and label."""
    return [
        (image.numpy().tobytes(), int(label))
        for images, labels in batches
        for image, label in zip(images, labels, strict=True)
    ]


def together(parts):
    """The samples of all ranks in the order that they divided."""
    return list(itertools.chain(*zip(*parts, strict=True)))


@pytest.mark.parametrize("kind", ["packed", "folder", "deferred"])
def test_saved_by_8_ranks_and_resumed_by_others_every_sample_comes_exactly_once(
    kind, folder, packed
):
    def ranks(world, **arguments):
        return [
            of_kind(kind, folder, packed, shard=(rank, world), **arguments) for rank in range(world)
        ]

    one = of_kind(kind, folder, packed)
    one.set_epoch(1)
    whole = samples(one)
    assert len({image for image, _ in whole}) == SAMPLES
    if kind == "deferred":
        assert one.stats()["images_deferred"] == SAMPLES
    before, states = [], []
    for loader in ranks(8):
        loader.set_epoch(1)
        iterator = iter(loader)
        before.append(samples(next(iterator) for _ in range(2)))
        states.append(loader.state_dict())
    assert together(before) == whole[:48]
    for world, workers in ((5, 0), (3, 1), (12, 0)):
        rest = []
        for rank, loader in enumerate(ranks(world, num_workers=workers)):
            loader.load_state_dict(states[rank % 8])
            rest.append(samples(loader))
            assert loader.stats()["padding"] == 0
        assert together(rest) == whole[48:]


@pytest.mark.parametrize("kind", ["packed", "deferred"])
def test_resumed_twice_by_other_ranks_the_epoch_still_has_every_sample(kind, folder, packed):
    whole, seen, state = samples(of_kind(kind, folder, packed)), [], None
    for world, steps in ((8, 2), (5, 4), (3, 2), (2, None)):
        parts = []
        for rank in range(world):
            loader = of_kind(kind, folder, packed, shard=(rank, world))
            if state is not None:
                loader.load_state_dict(state)
            parts.append(samples(itertools.islice(loader, steps)))
        state = loader.state_dict()
        seen += together(parts)
    assert seen == whole


MESH = """
import itertools, torch
from torch.distributed.device_mesh import init_device_mesh
from fastload import FastLoader, PackedDataset

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")

def loader(mesh):
    return FastLoader(range(120), 5, shuffle=True, seed=3, shard=mesh["dp"])

def epoch(batches):
    return [batch.tolist() for batch in batches]

small = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "pp", "tp"))
wide = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
first = loader(small)
before = epoch(itertools.islice(first, 4))
second = loader(wide)
second.load_state_dict(first.state_dict())
report([small["dp"].get_local_rank(), before, wide["dp"].get_local_rank(), epoch(second)])
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_eight_processes_of_a_mesh_read_by_groups_and_other_groups_resume(tmp_path):
    each = torchrun(MESH, tmp_path, ranks=8)
    (whole,) = FastLoader(range(120), 120, shuffle=True, seed=3)
    for column, groups in ((0, 2), (2, 4)):
        parts = [[part[column + 1] for part in each if part[column] == g] for g in range(groups)]
        for group in parts:
            assert len(group) == 8 // groups
            assert all(batches == group[0] for batches in group)
        read = together([list(itertools.chain(*group[0])) for group in parts])
        assert read == (whole[:40] if column == 0 else whole[40:]).tolist()


# --- a store at a URL -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(packed, tmp_path_factory):
    """``packed``, and blocks.lmdb of four blocks, behind a server of objects."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    folder = tmp_path_factory.mktemp("served")
    (folder / "imgs.lmdb").symlink_to(packed)
    pixels = np.random.default_rng(2)
    with open_writer(folder / "blocks.lmdb", classes=["one"]) as writer:
        writer.append(
            [
                Record(
                    data=pixels.bytes(224 * 224 * 3),
                    label=0,
                    key=str(name),
                    width=224,
                    height=224,
                    kind=1,
                )
                for name in range(SAMPLES)
            ]
        )
    server = ObjectServer(folder)
    yield server
    server.close()


@pytest.mark.parametrize(
    ("name", "window"), [("imgs.lmdb", None), ("blocks.lmdb", None), ("blocks.lmdb", 2)]
)
def test_a_store_at_a_url_is_resumed_by_other_ranks_and_fetched_once(
    name, window, served, tmp_path
):
    def ranks(world, path, workers=None, **remote):
        return [
            FastLoader(
                PackedDataset(path, **remote), 3, shuffle=True, seed=5, transform=TRAIN,
                shuffle_window=window, shard=(rank, world), num_workers=workers)
            for rank in range(world)
        ]  # fmt: skip

    url, cache = f"{served.url}/{name}", {"cache_dir": tmp_path / "cache"}
    (one,) = ranks(1, served.folder / name)
    one.set_epoch(1)
    whole = samples(one)
    assert len({image for image, _ in whole}) == SAMPLES
    before, states, iterators = [], [], []
    with served.asked() as asked:
        for loader in ranks(8, url, **cache):
            loader.set_epoch(1)
            iterator = iter(loader)
            before.append(samples(next(iterator) for _ in range(2)))
            states.append(loader.state_dict())
            iterators.append(iterator)  # one that ends early cancels what it has asked for
        assert together(before) == whole[:48]
        for world, workers in ((5, 0), (3, 2), (12, 1)):
            rest = []
            for rank, loader in enumerate(ranks(world, url, workers=workers, **cache)):
                loader.load_state_dict(states[rank % 8])
                rest.append(samples(loader))
                assert loader.stats()["padding"] == 0
            assert together(rest) == whole[48:]
    size = (served.folder / name).stat().st_size
    assert sum(one.nbytes for one in asked) <= 1.02 * size + (64 << 10)
