"""What an engine reads: torch's meaning of every index, and the dataset as it is now."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from batches import EVAL, TRAIN
from fastload import FastLoader, PackedDataset, UsageError
from fastload._sources.packed import augmentation_of
from sides import assert_same

SMALL = v1.Compose([v1.Resize((20, 24)), v1.ToTensor()])


@pytest.fixture(params=["folder", "packed", "subset", "concat"])
def dataset(request, photos, store):
    folder, packed = ImageFolder(photos, SMALL), PackedDataset(store, SMALL)
    return {
        "folder": folder,
        "packed": packed,
        "subset": Subset(packed, [7, 3, 5, 11, 2]),
        "concat": ConcatDataset([Subset(packed, [4, 9]), folder]),
    }[request.param]


@pytest.fixture
def own_folder(photos, tmp_path):
    """A folder that the test may change."""
    shutil.copytree(photos, tmp_path / "imgs")
    return ImageFolder(tmp_path / "imgs", SMALL)


# --- indices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batches",
    [
        [[np.int32(3), np.uint8(1)], [np.int64(0)]],
        [[torch.tensor(4), torch.tensor([2])]],
        [torch.tensor([1, 0]), torch.tensor([3], dtype=torch.int16)],
        [np.array([1, 2], np.uint64), (3, 0), range(3), {4: "a"}],
        [[True, False]],
    ],
    ids=["NumPy ints", "tensors", "a tensor", "other iterables", "bools"],
)
def test_whatever_indexes_a_list_is_an_index(dataset, batches):
    theirs = list(DataLoader(dataset, batch_sampler=batches))
    loader = FastLoader(dataset, batch_sampler=batches)
    assert "engine: native" in loader.explain()
    assert_same(list(loader), theirs)


@pytest.mark.parametrize("indices", [[0.5], ["1"], [1.0, 2], [None], np.array([1.0]), [[1, 2]]])
@pytest.mark.parametrize("threads", [0, 2])
def test_what_does_not_index_a_list_is_no_index(dataset, indices, threads):
    for loader in (
        FastLoader(dataset, batch_sampler=[indices], num_workers=threads),
        DataLoader(dataset, batch_sampler=[indices]),
    ):
        with pytest.raises(TypeError):
            list(loader)


@pytest.mark.parametrize("threads", [0, 2])
def test_negative_indices_count_from_the_end(photos, store, threads):
    n = len(PackedDataset(store))
    for dataset in (ImageFolder(photos, SMALL), PackedDataset(store, SMALL)):
        expected = list(DataLoader(dataset, batch_size=2, sampler=[n - 1, 0]))
        loader = FastLoader(dataset, batch_size=2, sampler=[-1, -n], num_workers=threads)
        assert_same(list(loader), expected)


@pytest.mark.native
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("beyond", [1000, -1000])
def test_an_index_beyond_the_dataset_raises_at_its_batch(dataset, threads, beyond):
    batches = [[0, 1], [2, beyond], [1]]
    iterator = iter(FastLoader(dataset, batch_sampler=batches, num_workers=threads))
    next(iterator)
    with pytest.raises(IndexError, match=f"index {beyond} is out of range"):
        next(iterator)
    assert_same([next(iterator)], list(DataLoader(dataset, batch_sampler=[[1]])))
    assert next(iterator, None) is None


def test_a_subset_of_wrong_indices_fails_as_in_torch(photos):
    folder = ImageFolder(photos, SMALL)
    for indices, error in (([0, 99], IndexError), ([0.5], TypeError)):
        for kind in (DataLoader, FastLoader):
            with pytest.raises(error):
                list(kind(Subset(folder, indices), batch_size=2))


def test_an_empty_batch_is_refused_as_in_torch(dataset):
    for kind in (DataLoader, FastLoader):
        with pytest.raises(IndexError):
            list(kind(dataset, batch_sampler=[[]]))


@pytest.mark.parametrize("threads", [0, 2])
def test_empty_tiny_and_oversized(photos, store, threads):
    for dataset in (ImageFolder(photos, SMALL), PackedDataset(store, SMALL)):
        for indices in ([], [5]):
            for arguments in ({}, {"drop_last": True}, {"batch_size": 1000}):
                arguments = {"batch_size": 3, **arguments}
                theirs = DataLoader(Subset(dataset, indices), **arguments)
                ours = FastLoader(Subset(dataset, indices), num_workers=threads, **arguments)
                assert len(ours) == len(theirs)
                assert_same(list(ours), list(theirs))


def test_a_distributed_sampler_is_followed(dataset):
    def batches(kind, rank):
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, seed=4)
        loader = kind(dataset, batch_size=2, sampler=sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            yield from loader

    for rank in range(2):
        assert_same(list(batches(FastLoader, rank)), list(batches(DataLoader, rank)))


# --- changes between epochs ----------------------------------------------------------------------


def test_samples_changed_in_place_are_seen_in_the_next_epoch(own_folder):
    loader = FastLoader(own_folder, batch_size=4)
    list(loader)

    def relabel():
        own_folder.samples[0] = (own_folder.samples[0][0], 2)

    def replace():
        own_folder.samples[3] = own_folder.samples[10]

    def shrink():
        del own_folder.samples[5:]

    def grow():
        own_folder.samples.extend(own_folder.samples[:3])

    for change in (relabel, replace, shrink, grow):
        change()
        assert_same(list(loader), list(DataLoader(own_folder, batch_size=4)))
        assert "engine: native" in loader.explain()


def test_labels_that_are_no_ints_are_left_to_torch(own_folder):
    own_folder.samples[:] = [(path, label + 0.5) for path, label in own_folder.samples]
    loader = FastLoader(own_folder, batch_size=4)
    assert "labels that are not ints" in loader.explain()
    assert_same(list(loader), list(DataLoader(own_folder, batch_size=4)))


@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
def test_transforms_changed_between_epochs_are_seen_in_the_next(photos, store, kind):
    reference = ImageFolder(photos)
    for dataset in (ImageFolder(photos), PackedDataset(store)):
        dataset.transform = reference.transform = v1.Compose([v1.Resize((9, 9)), v1.ToTensor()])
        loader = kind(dataset, batch_size=6)
        theirs = DataLoader(reference, batch_size=6)
        list(loader)
        dataset.transform = reference.transform = v1.Compose([v1.Resize((20, 24)), v1.ToTensor()])
        assert_same(list(loader), list(theirs))
        dataset.transform.transforms[0] = v1.Resize((8, 7))
        assert_same(list(loader), list(theirs))
        dataset.transform.transforms[0].size = (5, 6)
        assert_same(list(loader), list(theirs))
        dataset.target_transform = reference.target_transform = str
        assert [labels for _, labels in loader] == [labels for _, labels in theirs]
        reference.target_transform = None


def test_a_running_epoch_keeps_the_dataset_it_began_with(store):
    dataset = PackedDataset(store, SMALL)
    loader = FastLoader(dataset, batch_size=4)
    expected = list(loader)
    iterator = iter(loader)
    first = next(iterator)
    dataset.transform, dataset.target_transform = EVAL, str
    next(iter(loader))
    assert_same([first, *iterator], expected)


def test_an_engine_that_was_asked_for_is_not_left_silently(store):
    dataset = PackedDataset(store, SMALL)
    loader = FastLoader(dataset, batch_size=4, engine="native")
    list(loader)
    dataset.transform = v1.Compose([v1.RandomPerspective(), v1.ToTensor()])
    with pytest.raises(UsageError, match=r"cannot read this dataset: .*RandomPerspective"):
        iter(loader)


def test_a_concatenation_whose_parts_changed_is_left_to_torch(own_folder):
    dataset = ConcatDataset([own_folder, own_folder])
    del own_folder.samples[-2:]
    loader = FastLoader(dataset, batch_size=4, sampler=[0, 5])
    assert "changed in length" in loader.explain()
    assert_same(list(loader), list(DataLoader(dataset, batch_size=4, sampler=[0, 5])))


# --- the memory of a dataset is not the caller's -------------------------------------------------


def test_writing_into_a_batch_changes_no_store(dataset):
    for loader in (FastLoader(dataset, batch_size=4), DataLoader(dataset, batch_size=4)):
        expected = [[images.clone(), labels.clone()] for images, labels in loader]
        for images, labels in loader:
            images.zero_()
            labels.fill_(-1)
        assert_same(list(loader), expected)


# --- seeds of the dataset ------------------------------------------------------------------------


def test_a_seeded_dataset_gives_the_same_in_both_loaders_once_the_epoch_is_set(store):
    dataset = PackedDataset(store, TRAIN, seed=3)
    ours, theirs = FastLoader(dataset, batch_size=6), DataLoader(dataset, batch_size=6)
    first = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert_same(list(ours), list(theirs))
        first.append(next(iter(ours))[0])
    assert not torch.equal(*first)
    ours.set_epoch(0)
    assert torch.equal(next(iter(theirs))[0], first[0])


def test_a_loader_tells_the_epoch_to_datasets_within(store):
    dataset = PackedDataset(store, TRAIN, seed=3)
    for outer in (Subset(dataset, range(4)), ConcatDataset([Subset(dataset, [0, 1])])):
        for epoch in (5, 6):
            FastLoader(outer, batch_size=2).set_epoch(epoch)
            assert augmentation_of(dataset) == (3, epoch)


def test_loaders_that_add_a_transform_to_one_dataset_have_epochs_of_their_own(store):
    dataset = PackedDataset(store, seed=3)
    train, val = (FastLoader(dataset, transform=transform) for transform in (TRAIN, EVAL))
    train.set_epoch(5)
    val.set_epoch(0)
    assert dataset.transform is None
    assert (
        augmentation_of(train.dataset),
        augmentation_of(val.dataset),
        augmentation_of(dataset),
    ) == ((3, 5), (3, 0), None)


def test_without_an_epoch_a_seeded_dataset_is_not_the_same_in_every_epoch(store):
    for kind in (FastLoader, DataLoader):
        loader = kind(PackedDataset(store, TRAIN, seed=3), batch_size=6)
        assert not torch.equal(next(iter(loader))[0], next(iter(loader))[0])


def test_parts_with_different_seeds_are_left_to_torch(store):
    parts = [PackedDataset(store, TRAIN, seed=seed) for seed in (1, 2)]
    for part in parts:
        part.set_epoch(0)
    loader = FastLoader(ConcatDataset(parts), batch_size=4)
    assert "different seeds" in loader.explain()
    assert_same(list(loader), list(DataLoader(ConcatDataset(parts), batch_size=4)))
