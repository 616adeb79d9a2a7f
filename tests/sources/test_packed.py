"""PackedDataset: torchvision's interface over a store, whole batches, in any process."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from batches import EVAL, TRAIN
from fastload import FastLoader, PackedDataset, pack
from fastload._sources.collate import ReadyBatch, collate
from fastload._sources.packed import augmentation_of
from sides import assert_same


@pytest.fixture(scope="module")
def pngs(tmp_path_factory):
    """Images that the core leaves to Pillow's threads."""
    root = tmp_path_factory.mktemp("pngs")
    rng = np.random.default_rng(0)
    for number in range(12):
        path = root / "imgs" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (80, 90, 3), dtype=np.uint8)).save(path)
    pack(root / "imgs", root / "pngs.lmdb")
    return root


def test_it_has_imagefolders_interface(photos, store):
    ours, theirs = PackedDataset(store, EVAL), ImageFolder(photos, EVAL)
    assert (ours.classes, ours.class_to_idx) == (theirs.classes, theirs.class_to_idx)
    assert ours.targets == theirs.targets
    assert [label for _, label in ours.samples] == [label for _, label in theirs.samples]
    for index in (0, 5, -1, np.int64(3), torch.tensor(2)):
        assert torch.equal(ours[index][0], theirs[index][0])
        assert type(ours[index][1]) is int
        assert ours[index][1] == theirs[index][1]


@pytest.mark.parametrize("index", [24, -25])
def test_an_index_beyond_it_raises_indexerror(store, index):
    with pytest.raises(IndexError, match="out of range for a dataset of 24 samples"):
        PackedDataset(store, EVAL)[index]


def test_iterating_over_it_ends(store):
    assert len(list(PackedDataset(store, EVAL))) == 24


# --- batches -------------------------------------------------------------------------------------


def test_a_ready_batch_is_not_copied_and_a_changed_one_is_collated_anew(store):
    samples = PackedDataset(store, EVAL).__getitems__([3, 1, 2])
    assert type(samples) is ReadyBatch
    images, _ = collate(samples)
    assert images.data_ptr() == samples[0][0].data_ptr()
    assert_same([collate(samples)], [torch.utils.data.default_collate(samples)])
    del samples[0]
    assert_same([collate(samples)], [torch.utils.data.default_collate(list(samples))])


def test_samples_put_in_place_of_others_are_collated(store):
    dataset = PackedDataset(store, EVAL, fields=["key"])
    plain = PackedDataset(store, EVAL)

    def put_one(samples):
        samples[1] = (torch.zeros_like(samples[1][0]), 9)

    def change_dict(samples):
        samples[1]["image"] = torch.zeros_like(samples[1]["image"])

    for given, change in (
        (plain, put_one),
        (plain, lambda samples: samples.reverse()),
        (plain, lambda samples: samples.insert(0, samples.pop())),
        (dataset, lambda samples: samples.reverse()),
        (dataset, change_dict),
        (dataset, lambda samples: samples[2].update(key="other")),
    ):
        samples = given.__getitems__([3, 1, 2])
        change(samples)
        theirs = torch.utils.data.default_collate(list(samples))
        ours = collate(samples)
        if isinstance(theirs, dict):
            assert ours["key"] == theirs["key"]
            ours, theirs = ([batch["image"], batch["label"]] for batch in (ours, theirs))
        assert_same([ours], [theirs])


def test_a_target_transform_is_called_once_for_each_sample(store):
    calls = []

    def note(label):
        calls.append(label)
        return {"twice": label * 2, "name": str(label)}

    samples = PackedDataset(store, EVAL, note).__getitems__([23, 0])
    _, labels = collate(samples)
    assert calls == [2, 0]
    assert labels["twice"].tolist() == [4, 0]
    assert labels["name"] == ["2", "0"]
    expected = torch.utils.data.default_collate(list(samples))[1]
    assert labels["name"] == expected["name"]


def test_images_of_many_sizes_come_as_samples(photos, store):
    ours = PackedDataset(store).__getitems__([0, 1])
    reference = ImageFolder(photos, v1.PILToTensor())
    for index, (image, label) in enumerate(ours):
        assert torch.equal(image, reference[index][0])
        assert label == 0


# --- random numbers ------------------------------------------------------------------------------


def test_nothing_random_draws_no_random_number(store):
    state = torch.get_rng_state()
    PackedDataset(store, EVAL).__getitems__([0, 1])
    assert torch.equal(torch.get_rng_state(), state)


def test_without_a_seed_torchs_generator_decides(store):
    dataset = PackedDataset(store, TRAIN)

    def batch(seed):
        torch.manual_seed(seed)
        return torch.stack([image for image, _ in dataset.__getitems__([4, 4])])

    assert torch.equal(batch(1), batch(1))
    assert not torch.equal(batch(1), batch(2))
    assert not torch.equal(*batch(1))  # one sample twice in a batch: two augmentations


def test_with_a_seed_and_an_epoch_a_sample_is_the_same_wherever_it_stands(store):
    dataset = PackedDataset(store, TRAIN, seed=5)
    dataset.set_epoch(2)
    alone = dataset[7][0]
    assert torch.equal(dataset.__getitems__([1, 7])[1][0], alone)
    dataset.set_epoch(3)
    assert not torch.equal(dataset[7][0], alone)


# --- processes -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_worker_processes_after_the_parent_used_it(pngs, start, count):
    expected = list(DataLoader(ImageFolder(pngs / "imgs", EVAL), batch_size=4))
    dataset = PackedDataset(pngs / "pngs.lmdb", EVAL)
    assert_same(list(DataLoader(dataset, batch_size=4)), expected)  # Pillow's threads run here now
    for _ in range(count(1, 20)):
        workers = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=start)
        assert_same(list(workers), expected)
    del dataset, workers


@pytest.mark.parametrize("clone", [lambda d: d, copy.copy, copy.deepcopy])
def test_workers_that_persist_see_the_epoch(store, clone):
    dataset = clone(PackedDataset(store, TRAIN, seed=3))
    loader = DataLoader(dataset, batch_size=6, num_workers=1, persistent_workers=True)
    batches = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        batches.append(next(iter(loader))[0])
    assert torch.equal(batches[0], batches[2])
    assert not torch.equal(batches[0], batches[1])


def test_it_is_pickled_after_use_without_what_belongs_to_the_process(store):
    dataset = PackedDataset(store, EVAL, seed=1)
    dataset.set_epoch(4)
    expected = list(DataLoader(dataset, batch_size=8))
    data = pickle.dumps(dataset)
    assert len(data) < 100_000
    clone = pickle.loads(data)
    assert augmentation_of(clone) == (1, 4)
    assert_same(list(DataLoader(clone, batch_size=8)), expected)


def test_a_forked_child_makes_threads_of_its_own(pngs):
    dataset = PackedDataset(pngs / "pngs.lmdb", EVAL)
    loader = FastLoader(dataset, batch_size=4, num_workers=2)
    expected = [images.numpy().tobytes() for images, _ in loader]
    dataset.__getitems__([0, 1, 2])
    iterator = iter(loader)
    next(iterator)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            samples = dataset.__getitems__([0, 1, 2])
            batches = [images.numpy().tobytes() for images, _ in loader]
            del iterator
            code = 0 if len(samples) == 3 and batches == expected else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(list(iterator)) == 2


def test_its_public_methods_are_those_that_users_call() -> None:
    public = {name for name in vars(PackedDataset) if not name.startswith("_")}
    assert public == {"set_epoch", "targets", "samples"}
