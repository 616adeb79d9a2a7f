"""Mix: counts of every batch, the order on any number of ranks, weights, resuming."""

from __future__ import annotations

import collections
import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, IterableDataset, Subset
from torchvision.datasets import ImageFolder

from batches import EVAL, TRAIN
from fastload import FastLoader, Mix, PackedDataset, UsageError, pack
from sides import assert_same

THOUSAND = 1000  # what a number says of its component: those of component c begin at c * THOUSAND


def numbers(*sizes):
    return [range(c * THOUSAND, c * THOUSAND + size) for c, size in enumerate(sizes)]


def mixed(sizes, weights, **arguments):
    return Mix(list(zip(numbers(*sizes), weights, strict=True)), **arguments)


def epoch(loader):
    """The batches of an epoch, as lists."""
    return [batch.tolist() for batch in loader]


def counts(batch, components):
    found = collections.Counter(number // THOUSAND for number in batch)
    return [found[c] for c in range(components)]


# --- counts ---------------------------------------------------------------------------------------


@given(
    tenths=st.lists(st.integers(0, 10), min_size=1, max_size=6).filter(any),
    scale=st.integers(1, 4),
    shuffle=st.booleans(),
    seed=st.integers(0, 99),
)
def test_each_batch_has_exactly_its_share_where_that_is_a_whole_number(
    tenths, scale, shuffle, seed
):
    size = sum(tenths) * scale
    mix = mixed([17] * len(tenths), [t / 10 for t in tenths], epoch_size=7 * size)
    for _ in range(2):
        for batch in FastLoader(mix, size, shuffle=shuffle, seed=seed):
            assert counts(batch.tolist(), len(tenths)) == [t * scale for t in tenths]


@given(
    weights=st.lists(st.floats(0.05, 1), min_size=2, max_size=6),
    size=st.integers(1, 70),
)
def test_other_shares_are_the_nearest_whole_numbers_with_two_components_and_near_with_more(
    weights, size
):
    mix = mixed([40] * len(weights), weights, epoch_size=900)
    shares = np.array(list(mix.weights.values()))
    found = [counts(batch, len(weights)) for batch in epoch(FastLoader(mix, size, drop_last=True))]
    away = np.abs(np.array(found) - shares * size).max()
    assert away < (1 if len(weights) == 2 else 3)
    assert mix.counts(0) == [
        sum(column) for column in zip(*[counts(b, len(weights)) for b in epoch(FastLoader(mix, 1))])
    ]
    assert np.abs(np.array(mix.counts(0)) - shares * 900).max() < 1


def test_random_batching_has_the_same_epoch_and_its_shares_on_average_only():
    samples = []
    for batching in ("stratified", "random"):
        mix = mixed([70, 30], [0.7, 0.3], batching=batching)
        batches = epoch(FastLoader(mix, 10, shuffle=True, seed=3))
        samples.append(sorted(itertools.chain(*batches)))
        first = {counts(batch, 2)[0] for batch in batches}
        assert (first == {7}) == (batching == "stratified")
    assert samples[0] == samples[1]


def test_the_places_of_a_batch_are_shuffled():
    """Else a transform that pairs neighbours would never pair two of one component."""
    mix = mixed([64, 64], [0.5, 0.5])
    pairs = collections.Counter()
    for batch in epoch(FastLoader(mix, 32, shuffle=True, seed=1)):
        pairs.update((a // THOUSAND, b // THOUSAND) for a, b in itertools.pairwise(batch))
    assert set(pairs) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert min(pairs.values()) > 10


@pytest.mark.parametrize(
    ("epoch_size", "length"), [("all_exhausted", 100), ("first_exhausted", 40), (64, 64)]
)
def test_the_length_of_an_epoch(epoch_size, length):
    mix = mixed([50, 20], [1, 1], epoch_size=epoch_size)
    loader = FastLoader(mix, 4, shuffle=True, seed=2)
    assert len(loader) == length // 4
    seen = collections.Counter(itertools.chain(*epoch(loader)))
    assert seen.total() == length
    if epoch_size == "all_exhausted":
        assert len(seen) == 70
    if epoch_size == "first_exhausted":
        assert max(seen.values()) == 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_sample_comes_once_before_any_comes_twice_over_all_epochs_and_weights(shuffle):
    mix = mixed([50, 7], [0.8, 0.2], epoch_size=23)
    loader = FastLoader(mix, 1, shuffle=shuffle, seed=4)  # places are shuffled within batches
    streams = [[], []]
    for weights in ([0.8, 0.2], [0.8, 0.2], [0.4, 0.6], [0.9, 0.1], [0.5, 0.5]):
        mix.set_weights(weights)
        for number in itertools.chain(*epoch(loader)):
            streams[number // THOUSAND].append(number)
    for component, stream in zip(numbers(50, 7), streams, strict=True):
        size = len(component)
        rounds = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert len(rounds) > 1
        for whole in rounds[:-1]:
            assert sorted(whole) == list(component)
        assert (rounds[0] != rounds[1][: len(rounds[0])]) or not shuffle or len(rounds[1]) < size


def test_a_component_without_weight_is_not_read():
    mix = mixed([5, 5, 5], [1, 0, 1])
    seen = set(itertools.chain(*epoch(FastLoader(mix, 2, shuffle=True, seed=0))))
    assert seen == {*range(5), *range(2 * THOUSAND, 2 * THOUSAND + 5)}


# --- the order ------------------------------------------------------------------------------------


def test_the_order_is_a_function_of_seed_epoch_and_weights():
    def orders(seed, weights):
        loader = FastLoader(mixed([40, 20], weights), 6, shuffle=True, seed=seed)
        return [epoch(loader) for _ in range(2)]

    first = orders(1, [0.5, 0.5])
    assert first == orders(1, [2, 2])
    assert first[0] != first[1]
    assert first != orders(2, [0.5, 0.5])
    assert first != orders(1, [0.4, 0.6])
    loader = FastLoader(mixed([40, 20], [0.5, 0.5]), 6, shuffle=True, seed=1)
    loader.set_epoch(1)
    assert epoch(loader) == first[1]


def test_without_a_seed_the_order_is_that_of_seed_0():
    loaders = [
        FastLoader(mixed([9, 4], [2, 1]), 3, shuffle=True, **seed) for seed in ({}, {"seed": 0})
    ]
    assert epoch(loaders[0]) == epoch(loaders[1])


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_take_the_batches_of_one_rank_in_turn(drop_last):
    def loader(**ranks):
        mix = mixed([90, 61], [0.6, 0.4])
        return FastLoader(mix, 5, shuffle=True, seed=3, drop_last=drop_last, **ranks)

    whole = epoch(loader())
    parts = [epoch(loader(shard=(rank, 3))) for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    full = len(whole) // 3 * 3
    assert [batch for step in zip(*parts, strict=True) for batch in step][:full] == whole[:full]
    missing = collections.Counter(itertools.chain(*whole))
    missing.subtract(itertools.chain(*itertools.chain(*parts)))
    assert drop_last or not +missing


# --- resuming -------------------------------------------------------------------------------------


def state_of(loader, steps):
    iterator = iter(loader)
    taken = [next(iterator).tolist() for _ in range(steps)]
    return taken, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize(("batch_size", "world"), [(4, 5), (4, 3), (4, 12), (4, 1), (7, 5)])
def test_saved_by_eight_ranks_an_epoch_is_resumed_by_others(batch_size, world):
    def loader(size, rank, world):
        mix = mixed([300, 97], [0.7, 0.3])
        mix.set_weights([0.6, 0.4])
        return FastLoader(mix, size, shuffle=True, seed=5, shard=(rank, world))

    parts = [state_of(loader(4, rank, 8), 6) for rank in range(8)]
    states = [state for _, state in parts]
    for name in states[0].keys() - {"generators"}:  # these are of the process, here one for all
        assert all(state[name] == states[0][name] for state in states)
    first = itertools.chain(*(batch for taken, _ in parts for batch in taken))
    rest, padding = [], 0
    for rank in range(world):
        resumed = loader(batch_size, rank, world)
        resumed.load_state_dict(states[0])
        rest += itertools.chain(*epoch(resumed))
        padding += resumed.stats()["padding"]
    whole = collections.Counter(itertools.chain(*epoch(loader(4, 0, 1))))
    seen = collections.Counter(first) + collections.Counter(rest)
    assert seen.total() == whole.total() + padding
    assert not whole - seen


def test_a_resumed_epoch_has_the_very_batches_that_would_have_come():
    def loader():
        return FastLoader(mixed([50, 31], [0.7, 0.3]), 4, shuffle=True, seed=5)

    whole = loader()
    epochs = [epoch(whole) for _ in range(3)]
    first = loader()
    epoch(first)
    taken, state = state_of(first, 5)
    assert taken == epochs[1][:5]
    second = loader()
    second.load_state_dict(state)
    assert epoch(second) == epochs[1][5:]
    assert epoch(second) == epochs[2]


# --- weights --------------------------------------------------------------------------------------


def test_an_epoch_that_has_begun_keeps_its_weights_and_so_does_a_resumed_one():
    def loader():
        mix = mixed([60, 60], [0.8, 0.2], epoch_size=60)
        return mix, FastLoader(mix, 10, shuffle=True, seed=5)

    mix, whole = loader()
    iterator = iter(whole)
    batches = [next(iterator).tolist() for _ in range(2)]
    mix.set_weights({"0": 1, "1": 1})
    state = json.loads(json.dumps(whole.state_dict()))
    batches += epoch(iterator)
    assert [counts(batch, 2) for batch in batches] == [[8, 2]] * 6
    following = epoch(whole)
    assert [counts(batch, 2) for batch in following] == [[5, 5]] * 6

    other, resumed = loader()
    resumed.load_state_dict(state)
    assert other.weights == {"0": 0.5, "1": 0.5}
    assert epoch(resumed) == batches[2:]
    assert epoch(resumed) == following


def test_the_length_follows_the_weights():
    mix = mixed([60, 60], [0.5, 0.5])
    loader = FastLoader(mix, 10)
    assert len(loader) == 12
    mix.set_weights([0.75, 0.25])
    assert len(loader) == 24
    assert len(epoch(loader)) == 24


def test_weights_set_between_epochs_and_a_checkpoint_between_epochs():
    mix = mixed([60, 60], [0.5, 0.5])
    loader = FastLoader(mix, 10, seed=1, shuffle=True)
    epoch(loader)
    mix.set_weights([3, 1])
    state = loader.state_dict()
    other = mixed([60, 60], [0.5, 0.5])
    resumed = FastLoader(other, 10, seed=1, shuffle=True)
    resumed.load_state_dict(state)
    assert len(resumed) == 24
    assert epoch(resumed) == epoch(loader)


# --- images ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stores(photos, tmp_path_factory):
    """The same photos in two formats, as JPEGs and as raw pixels, with a field."""
    folder = tmp_path_factory.mktemp("mixed")
    pack(photos, folder / "jpeg.lmdb")
    pack(photos, folder / "raw.zarr", encode="raw", resize="80x80")
    return folder / "jpeg.lmdb", folder / "raw.zarr"


def mix_of(stores, **arguments):
    return Mix({stores[0]: 0.75, stores[1]: 0.25}, **arguments)


@pytest.mark.native
def test_one_batch_has_images_of_several_formats(stores):
    loader = FastLoader(mix_of(stores), 8, shuffle=True, seed=1, transform=EVAL)
    both = ConcatDataset([PackedDataset(path, EVAL) for path in stores])
    order = list(loader.sampler)
    batches = list(loader)
    assert len(batches) == len(order) // 8
    for number, (images, labels) in enumerate(batches):
        samples = [both[i] for i in order[number * 8 : number * 8 + 8]]
        assert torch.equal(images, torch.stack([image for image, _ in samples]))
        assert labels.tolist() == [label for _, label in samples]
    assert loader.stats()["engine"] == "native"


def augmented(batches):
    """The images of all batches, in no order."""
    return sorted(image.numpy().tobytes() for images, _ in batches for image in images)


def test_each_repetition_is_augmented_anew_and_alike_on_any_number_of_ranks(stores):
    def loader(**ranks):
        mix = Mix({stores[0]: 0.5, stores[1]: 0.5}, epoch_size=96)  # each sample twice
        return FastLoader(mix, 4, shuffle=True, seed=3, transform=TRAIN, **ranks)

    whole = list(loader())
    images = augmented(whole)
    assert len(set(images)) == 96
    parts = [list(loader(shard=(rank, 3))) for rank in range(3)]
    for step, batch in enumerate(whole):
        assert_same(parts[step % 3][step // 3], batch)
    first = loader()
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    second = loader()
    second.load_state_dict(first.state_dict())
    assert_same(list(second), whole[5:])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_datasets_own_code_augments_repetitions_anew_and_alike_too(photos, workers):
    def loader(**ranks):
        mix = Mix([(ImageFolder(photos, TRAIN), 1)], epoch_size=48)
        return FastLoader(
            mix, 4, shuffle=True, seed=3, engine="torch", num_workers=workers, **ranks
        )

    whole = list(loader())
    assert len(set(augmented(whole))) == 48
    parts = [list(loader(shard=(rank, 2))) for rank in range(2)]
    for step, batch in enumerate(whole):
        assert_same(parts[step % 2][step // 2], batch)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_field_says_which_component_a_sample_is_of(stores, engine):
    arguments = {"transform": EVAL, "seed": 1, "shuffle": True}
    weights = mix_of(stores).weights.values()
    named = [PackedDataset(path, fields="key") for path in stores]
    mix = Mix(list(zip(named, weights)), numbered=True)
    loader = FastLoader(mix, 8, engine=engine, **arguments)
    keys = [PackedDataset(path).store.keys(np.arange(24)) for path in stores]
    order, sizes = np.array(list(loader.sampler)), 24
    batches = list(loader)
    components = torch.cat([batch["component"] for batch in batches])
    assert components.dtype == torch.int64
    assert components.tolist() == (order // sizes).tolist()
    names = list(itertools.chain(*(batch["key"] for batch in batches)))
    assert names == [keys[i // sizes][i % sizes] for i in order.tolist()]
    plain = FastLoader(mix_of(stores), 8, engine=engine, **arguments)
    for batch, (images, labels) in zip(batches, plain, strict=True):
        assert torch.equal(batch["image"], images)
        assert torch.equal(batch["label"], labels)


def test_a_trainer_that_rebuilds_the_loader_gets_the_same_batches(stores):
    mix = mix_of(stores, numbered=True)
    loader = FastLoader(mix, 8, shuffle=True, seed=1, transform=TRAIN, num_workers=1)
    rebuilt = FastLoader(
        loader.dataset,
        8,
        sampler=loader.sampler,
        seed=1,
        transform=loader.transform,
    )
    assert rebuilt.dataset is loader.dataset
    expected = list(FastLoader(mix_of(stores), 8, shuffle=True, seed=1, transform=TRAIN))
    for batch, (images, labels) in zip(rebuilt, expected, strict=True):
        assert torch.equal(batch["image"], images)
        assert torch.equal(batch["label"], labels)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_bad_sample_is_refilled_from_the_end_with_the_random_numbers_of_its_place(
    photos, tmp_path, engine
):
    shutil.copytree(photos, tmp_path / "imgs")
    bad = sorted((tmp_path / "imgs").glob("*/*.jpg"))[3]
    bad.write_bytes(b"no image")

    def loader(folder, **arguments):
        mix = Mix([(ImageFolder(folder, TRAIN), 1)], epoch_size=48)
        return FastLoader(mix, 4, shuffle=True, seed=3, engine=engine, **arguments)

    whole = list(loader(photos))
    order = list(loader(photos).sampler)
    places = [place for place, index in enumerate(order) if index == 3]
    images = [image for batch, _ in whole for image in batch]
    ends = [place for place in range(47, 0, -1) if order[place] != 3]
    filled = list(loader(tmp_path / "imgs", on_error="refill", max_errors=3, num_workers=0))
    assert [len(batch) for batch, _ in filled] == [4] * 11 + [2]
    got = [image for batch, _ in filled for image in batch]
    for place, end in zip(places, ends, strict=False):
        assert torch.equal(got[place], images[end])
    first = loader(tmp_path / "imgs", on_error="refill", max_errors=3, num_workers=0)
    iterator = iter(first)
    for _ in range(places[0] // 4 + 1):
        next(iterator)
    resumed = loader(tmp_path / "imgs", on_error="refill", max_errors=3, num_workers=0)
    resumed.load_state_dict(first.state_dict())
    assert_same(list(resumed), filled[places[0] // 4 + 1 :])


def test_explain_says_what_an_epoch_reads(stores):
    loader = FastLoader(mix_of(stores), 8, transform=EVAL)
    assert f"24 samples of {stores[0]} (75.0%), 8 samples of {stores[1]} (25.0%)" in (
        FastLoader(mix_of(stores, epoch_size=32), 8, transform=EVAL).explain()
    )
    assert loader.explain().startswith("engine: native")
    assert "weights have no effect" in FastLoader(mix_of(stores), sampler=[3]).explain()


def test_components_may_be_subsets_and_folders(stores, photos):
    mix = Mix(
        [
            (Subset(PackedDataset(stores[0], EVAL), range(6)), 1),
            (ImageFolder(photos, EVAL), 1),
        ]
    )
    loader = FastLoader(mix, 4, shuffle=True, seed=1)
    assert loader.explain().startswith("engine: native")
    assert len(list(loader)) == 12


# --- what is refused ------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(9))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mix({}), "at least one component"),
        (lambda: Mix(["a.lmdb"]), "a dict of weights by path, or a list of pairs"),
        (lambda: mixed([3, 3], [0, 0]), "at least one weight above 0"),
        (lambda: mixed([3, 3], [1, -1]), "a weight of at least 0 for 1, got -1"),
        (lambda: mixed([3, 3], [1, float("nan")]), "a weight of at least 0 for 1, got nan"),
        (lambda: mixed([3, 3], [1, True]), "a weight of at least 0 for 1, got True"),
        (lambda: mixed([3], [1], epoch_size=0), "a positive number of samples, got 0"),
        (lambda: mixed([3], [1], epoch_size="longest"), "'all_exhausted', 'first_exhausted'"),
        (lambda: mixed([3], [1], batching="per_batch"), "'stratified', 'random'"),
        (lambda: Mix([(mixed([3], [1]), 1)]), "another Mix"),
        (lambda: Mix([("a.lmdb", 1), ("a.lmdb", 1)]), "each path once"),
        (lambda: FastLoader(mixed([3, 0], [1, 1])), "got none in 1"),
        (lambda: FastLoader(Mix([(Stream(), 1)])), "map-style datasets"),
        (lambda: FastLoader(mixed([9, 9], [99, 1], epoch_size=20)), "less than one sample"),
        (lambda: FastLoader(mixed([99, 99], [1, 1e-9])), "as 1 has weight 1e-09, whose order does"),
        (
            lambda: FastLoader(mixed([9], [1], epoch_size=10**40)),
            "more than 10",
        ),
        (lambda: mixed([3, 3], [1, 1]).set_weights([1]), "expected 2 weights, got 1"),
        (lambda: mixed([3, 3], [1, 1]).set_weights({"0": 1}), "a weight for each of 0, 1"),
    ],
)
def test_what_cannot_be_mixed_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_weights_that_leave_too_little_are_refused_and_change_nothing():
    mix = mixed([9, 9], [1, 1], epoch_size=20)
    loader = FastLoader(mix, 5, seed=1)
    with pytest.raises(UsageError, match="less than one sample"):
        mix.set_weights([99, 1])
    assert mix.weights == {"0": 0.5, "1": 0.5}
    assert len(epoch(loader)) == 4


def test_weights_that_make_an_epoch_too_long_are_refused_and_change_nothing():
    mix = mixed([9, 9], [1, 1])
    loader = FastLoader(mix, 5, seed=1)
    with pytest.raises(UsageError, match=r"does not fit into the .* GiB of memory"):
        mix.set_weights([1, 1e-300])
    assert mix.weights == {"0": 0.5, "1": 0.5}
    assert len(epoch(loader)) == 4


@pytest.mark.parametrize(
    "weights",
    [5, [], [[0]], [[0, ["1/0", "1"]]], [[0, ["x", "1"]]], [[0, ["1"]]], [[1, ["1", "1"]]],
     [[0, ["1", "1"]], [0, ["1", "2"]]], [[0, ["-1", "2"]]], [[0, None]], [["a", ["1", "1"]]]],
)  # fmt: skip
def test_a_damaged_state_of_a_mix_is_refused_and_changes_nothing(weights):
    loader = FastLoader(mixed([9, 9], [1, 1]), seed=1)
    state = loader.state_dict()
    with pytest.raises(UsageError, match=r"state of the Mix is damaged|weight of at least 0"):
        loader.load_state_dict({**state, "mix": {**state["mix"], "weights": weights}})
    assert loader.dataset.mix.weights == {"0": 0.5, "1": 0.5}


def test_stores_with_other_classes_are_refused(stores, photos, tmp_path):
    (tmp_path / "imgs" / "other").mkdir(parents=True)
    file = next(photos.glob("*/*.jpg"))
    (tmp_path / "imgs" / "other" / "1.jpg").write_bytes(file.read_bytes())
    pack(tmp_path / "imgs", tmp_path / "other.lmdb")
    mix = Mix({stores[0]: 1, tmp_path / "other.lmdb": 1})
    with pytest.raises(UsageError, match="the same classes"):
        FastLoader(mix, transform=EVAL)


def test_a_state_of_another_mix_is_refused():
    state = FastLoader(mixed([9, 9], [1, 1])).state_dict()
    with pytest.raises(UsageError, match="other sizes"):
        FastLoader(mixed([9, 8], [1, 1])).load_state_dict(state)
    with pytest.raises(UsageError, match="other batching"):
        FastLoader(mixed([9, 9], [1, 1], batching="random")).load_state_dict(state)
    with pytest.raises(UsageError, match="a loader over a Mix"):
        FastLoader(mixed([9, 9], [1, 1])).load_state_dict(FastLoader(range(9)).state_dict())
