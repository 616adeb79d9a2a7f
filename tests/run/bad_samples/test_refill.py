"""on_error="refill": batches stay full, the epoch gets shorter at its end, resuming stays exact."""

from __future__ import annotations

import copy
import itertools
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.datasets import ImageFolder

from batches import TRAIN
from broken_datasets import Broken, BrokenMany, BrokenStream, damaged_photos
from combinations import combinations
from fastload import FastLoader, TooManyErrors, UsageError
from sides import assert_same


def filled_up(order, bad, size, drop_last):
    """The batches as they are promised, by the shortest way there is."""
    left, batches = list(order), []
    while left:
        batch, left = left[:size], left[size:]
        while lost := [place for place, i in enumerate(batch) if i in bad]:
            for place in lost:
                batch[place] = left.pop() if left else None
            batch = [i for i in batch if i is not None]
        batches.append(batch)
    return [batch for batch in batches if len(batch) >= (size if drop_last else 1)]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def indices(loader):
    return [batch[0].tolist() for batch in loader]


cases = given(
    n=st.integers(1, 24),
    bad=st.sets(st.integers(0, 23), max_size=12),
    size=st.integers(1, 7),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)


@cases
def test_batches_are_full_and_every_good_sample_comes_once(n, bad, size, drop_last, shuffle):
    given = {"shuffle": shuffle, "drop_last": drop_last, "seed": 5}
    order = [
        i for batch in FastLoader(range(n), 1, shuffle=shuffle, seed=5) for i in batch.tolist()
    ]
    loader = FastLoader(Broken(n, bad), size, on_error="refill", max_errors=99, **given)
    expected = filled_up(order, bad, size, drop_last)
    assert indices(loader) == expected
    if not drop_last:
        assert sorted(flat(expected)) == sorted(set(range(n)) - bad)
        found = sorted(error["index"] for error in loader.stats()["errors"])
        assert found == sorted(bad & set(range(n)))


@cases
@settings(max_examples=settings.default.max_examples // 4)
def test_worker_processes_give_the_same(n, bad, size, drop_last, shuffle):
    made = []
    for workers in (0, 2):
        loader = FastLoader(
            BrokenMany(n, bad),
            size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=5,
            num_workers=workers,
            prefetch_factor=3 if workers else None,
            on_error="refill",
            max_errors=99,
        )
        made.append([list(loader), loader.stats()["errors"]])
    assert_same(made[1], made[0])


@pytest.mark.parametrize(
    ("workers", "persistent", "seed"),
    [(0, False, None), (0, False, 3), (2, True, None), (2, False, 3),
     pytest.param(2, False, None, marks=pytest.mark.long),
     pytest.param(2, True, 3, marks=pytest.mark.long)],
)  # fmt: skip
def test_every_state_resumes_at_the_very_next_sample(workers, persistent, seed):
    def make():
        return FastLoader(
            Broken(29, {0, 3, 4, 11, 17, 28}),
            4,
            shuffle=True,
            seed=seed,
            generator=torch.Generator().manual_seed(1),
            num_workers=workers,
            persistent_workers=persistent,
            on_error="refill",
            max_errors=99,
        )

    def keep(batch):
        return copy.deepcopy(batch if seed is not None else batch[0])

    loader, batches, states = make(), [], []
    for _ in range(2):
        for batch in loader:
            batches.append(keep(batch))
            states.append(loader.state_dict())
    assert len(batches) == 12
    for step in (2, 9) if workers else range(1, len(batches)):
        other = make()
        other.load_state_dict(states[step - 1])
        rest = [keep(batch) for _ in range(2) for batch in other]
        expected = batches[step:]
        assert_same(rest[: len(expected)], expected)


def test_a_state_goes_on_with_other_ranks_without_losing_or_repeating_a_sample():
    bad = {0, 3, 4}
    loader = FastLoader(Broken(23, bad), 2, shuffle=True, seed=3, on_error="refill", max_errors=9)
    seen, state = [], None
    for number, (batch, _) in enumerate(loader):
        seen += batch.tolist()
        if number == 3:
            state = loader.state_dict()
            break
    taken = {error["index"] for error in loader.stats()["errors"]}
    rest = []
    for rank in range(3):
        part = FastLoader(
            Broken(23, ()), 2, shuffle=True, seed=3, on_error="refill",
        shard=(rank, 3))  # fmt: skip
        part.load_state_dict(state)
        rest.append([i for batch, _ in part for i in batch.tolist()])
        assert part.stats()["padding"] == len(rest[-1]) - len(set(rest[-1]) - set(flat(rest[:-1])))
    assert sorted({*flat(rest)} | {*seen} | taken) == list(range(23))
    assert not {*flat(rest)} & ({*seen} | taken)


@pytest.mark.parametrize("workers", [0, 1])
def test_several_ranks_come_to_the_same_number_of_full_batches(workers):
    """There a good sample of the batch comes twice, as with "replace": an epoch that is shorter on
    one rank leaves the others waiting for it."""
    for bad in (set(), {0, 2, 8, 14}):
        batches = []
        for rank in range(2):
            loader = FastLoader(
                Broken(24, bad), 4, num_workers=workers,
                on_error="refill", max_errors=9,
            shard=(rank, 2))  # fmt: skip
            batches.append(indices(loader))
            actions = {error["action"] for error in loader.stats()["errors"]}
            assert actions <= {"replace"}
        assert [len(batch) for part in batches for batch in part] == [4] * 6


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_the_users_decides_the_order(workers):
    order = [5, 1, 1, 7, 0, 3, 9, 2, 1, 8]
    loader = FastLoader(
        Broken(10, {1, 9}), 3, sampler=order, seed=2, num_workers=workers, on_error="refill",
        max_errors=9,
    )  # fmt: skip
    # 1, 1: 8, and 2 after 1 failed again; then 9: nothing is left.
    assert indices(loader) == [[5, 8, 2], [7, 0, 3]]
    assert [error["index"] for error in loader.stats()["errors"]] == [1, 1, 1, 9]


def test_a_sample_that_is_drawn_again_is_augmented_anew(photos, tmp_path):
    """How often a sample came before is counted along the sampler's order."""
    root = tmp_path / "photos"
    shutil.copytree(photos, root)
    folder = ImageFolder(root, TRAIN)
    with open(folder.samples[2][0], "wb") as file:
        file.write(b"no image at all")
    made = []
    for threads in (0, 2):
        loader = FastLoader(
            folder, 3, sampler=[7, 2, 5, 7, 8, 9, 1, 7, 7], seed=4,
            num_workers=threads, on_error="refill", max_errors=9,
        )  # fmt: skip
        made.append(list(loader))
    labels = [len(labels) for _, labels in made[0]]
    assert labels == [3, 3, 2]
    first = made[0][0][0]
    assert not torch.equal(first[0], first[1])  # both are sample 7
    assert_same(made[1], made[0])


@pytest.fixture(scope="module")
def damaged(photos, tmp_path_factory):
    return damaged_photos(photos, tmp_path_factory.mktemp("damaged") / "photos", no_images=[1, 22])


@pytest.mark.native
@pytest.mark.parametrize(
    ("arguments", "size", "threads"),
    combinations(
        [{}, {"shuffle": True, "seed": 3}, {"drop_last": True}], [3, 5, 24], [0, 2], rounds=3
    ),
)
def test_an_engine_of_ours_gives_the_same_as_the_datasets_own_code(
    damaged, threads, size, arguments
):
    arguments = {"batch_size": size, "on_error": "refill", "max_errors": 4, **arguments}
    ours = FastLoader(damaged, num_workers=threads, **arguments)
    theirs = FastLoader(damaged, engine="torch", **arguments)
    assert_same(list(ours), list(theirs))
    found = [[error["index"] for error in loader.stats()["errors"]] for loader in (ours, theirs)]
    assert found[0] == found[1]
    assert sorted(found[0]) == [1, 5, 6, 22]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("threads", [0, 2])
def test_an_engine_of_ours_resumes_at_the_very_next_sample(damaged, seed, threads):
    def make():
        return FastLoader(
            damaged, 4, shuffle=True, seed=seed, generator=torch.Generator().manual_seed(2),
            num_workers=threads, on_error="refill", max_errors=4,
        )  # fmt: skip

    loader, batches, states = make(), [], []
    for _ in range(2):
        for images, labels in loader:
            batches.append([images.clone(), labels.clone()])
            states.append(loader.state_dict())
    assert [len(labels) for _, labels in batches] == [4] * 10
    for step in (1, 3, 8):
        other = make()
        other.load_state_dict(states[step - 1])
        rest = [batch for _ in range(2) for batch in other]
        assert_same(rest[: 10 - step], batches[step:])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_iterable_dataset_is_read_on(workers, drop_last):
    def make():
        return FastLoader(
            BrokenStream(20, {1, 6, 7, 18}),
            5,
            num_workers=workers,
            drop_last=drop_last,
            on_error="refill",
            max_errors=9,
        )

    loader, states = make(), []
    batches = [(states.append(loader.state_dict()), batch[0].tolist())[1] for batch in loader]
    expected = [[0, 2, 3, 4, 5], [8, 9, 10, 11, 12], [13, 14, 15, 16, 17], [19]]
    assert batches == expected[: 3 if drop_last else 4]
    assert [error["index"] for error in loader.stats()["errors"]] == [1, 6, 7, 18]
    other = make()
    other.load_state_dict(states[1])
    assert indices(other) == batches[2:]


def test_single_samples_are_left_out():
    loader = FastLoader(Broken(6, {2}), None, on_error="refill")
    assert [i for i, _ in loader] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_of_which_nothing_can_be_read_ends_at_the_limit(workers):
    read = []

    class Counting(Broken):
        def __getitem__(self, i):
            read.append(i)
            return super().__getitem__(i)

    loader = FastLoader(
        Counting(1000, range(1000)), 5, num_workers=workers, on_error="refill", max_errors=7
    )
    with pytest.raises(TooManyErrors):
        list(loader)
    assert len(read) <= 40


def test_an_error_of_collate_fn_is_raised_at_its_batch_and_the_rest_comes(logged):
    def collate(samples):
        numbers = [i for i, _ in samples]
        if 9 in numbers:
            raise ZeroDivisionError("on purpose")
        return numbers

    for arguments in ({}, {"num_workers": 1}):
        loader = FastLoader(
            Broken(12, {1}), 3, collate_fn=collate, on_error="refill", max_errors=1, **arguments
        )
        iterator = iter(loader)
        assert next(iterator) == [0, 11, 2]
        assert next(iterator) == [3, 4, 5]
        assert next(iterator) == [6, 7, 8]
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            next(iterator)
        assert list(iterator) == []
    assert "1 sample could not be read (1 refilled)" in "".join(logged)


@pytest.mark.usefixtures("no_leaks")
def test_leaving_early_leaves_nothing(count):
    for attempt in range(count(4, 100)):
        loader = FastLoader(
            Broken(40, {0, 9, 23, 39}), 5, num_workers=2, on_error="refill", max_errors=9
        )
        for number, batch in enumerate(loader):  # noqa: B007 - looked at below
            if number == attempt % 7:
                break
        assert len(batch[0]) == 5
        del loader, batch


def test_what_has_no_order_cannot_be_filled_up():
    with pytest.raises(UsageError, match=r"refill.*batch_sampler"):
        FastLoader(range(4), batch_sampler=[[1], [2]], on_error="refill")

    class Endless:
        def __iter__(self):
            while True:
                yield 0

    loader = FastLoader(range(4), 2, sampler=Endless(), on_error="refill")
    with pytest.raises(UsageError, match="a sampler with a length"):
        next(iter(loader))


@pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="in_order came with torch 2.6")
def test_where_batches_have_no_order_on_error_is_refused():
    for on_error in ("skip", "refill"):
        loader = FastLoader(range(4), 2, num_workers=1, in_order=False, on_error=on_error)
        with pytest.raises(UsageError, match="in_order"):
            iter(loader)
    assert np.concatenate(list(FastLoader(range(4), 2, num_workers=1, in_order=False))).size == 4
