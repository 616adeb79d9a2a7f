"""on_error: what cannot be read is raised, skipped or replaced; counted, bounded, reported."""

from __future__ import annotations

import sys

import pytest
from torch.utils.data import IterableDataset

from broken_datasets import Broken, BrokenMany, BrokenStream, damaged_photos
from fastload import DecodeError, FastLoader, StoreError, TooManyErrors, UsageError
from sides import assert_same


def indices(loader):
    return [batch[0].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Broken, BrokenMany])
@pytest.mark.parametrize(
    ("on_error", "expected"),
    [
        ("skip", [[0, 2], [3, 4, 5], [8], [9, 10, 11]]),
        ("replace", [[0, 2, 2], [3, 4, 5], [8, 8, 8], [9, 10, 11]]),
        (
            lambda i, error: "replace" if i == 7 else "skip",
            [[0, 2], [3, 4, 5], [8, 8], [9, 10, 11]],
        ),
    ],
    ids=["skip", "replace", "callable"],
)
def test_a_dataset_of_the_users(kind, workers, on_error, expected, logged):
    loader = FastLoader(kind(), 3, num_workers=workers, on_error=on_error, max_errors=3)
    assert indices(loader) == expected
    errors = loader.stats()["errors"]
    assert [error["index"] for error in errors] == [1, 6, 7]
    assert errors[0]["file"] == "/data/1.jpg"
    assert errors[0]["error"].startswith("FileNotFoundError: ")
    (line,) = logged
    assert "epoch 0: 3 samples could not be read" in line
    assert f" {sum(map(len, expected))} were given: " in line
    assert "sample 1 (/data/1.jpg)" in line


@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_without_a_good_sample_is_left_out(on_error, workers):
    loader = FastLoader(
        Broken(bad=range(3, 6)), 3, num_workers=workers, on_error=on_error, max_errors=3
    )
    assert indices(loader) == [[0, 1, 2], [6, 7, 8], [9, 10, 11]]
    single = FastLoader(Broken(), None, num_workers=workers, on_error=on_error, max_errors=3)
    assert [int(sample[0]) for sample in single] == [0, 2, 3, 4, 5, 8, 9, 10, 11]


def test_by_default_an_error_is_raised():
    with pytest.raises(FileNotFoundError):
        list(FastLoader(Broken(), 3))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("limit", "passes"), [(2, False), (3, True), (0.2, True), (0.1, False)])
def test_too_many_errors_end_the_epoch(workers, limit, passes):
    loader = FastLoader(Broken(), 3, num_workers=workers, on_error="skip", max_errors=limit)
    if passes:
        assert len(list(loader)) == 4
        return
    with pytest.raises(TooManyErrors, match=r"max_errors=.*last one, sample 7: FileNotFound"):
        list(loader)
    assert len(loader.stats()["errors"]) == 3


def test_the_default_limit_lets_one_of_a_small_dataset_pass():
    assert len(list(FastLoader(Broken(bad=(1,)), 3, on_error="skip"))) == 4
    with pytest.raises(TooManyErrors):
        list(FastLoader(Broken(bad=(1, 2)), 3, on_error="skip"))


def test_errors_are_of_one_epoch():
    loader = FastLoader(Broken(bad=(1,)), 3, on_error="skip")
    for _ in range(3):
        assert len(list(loader)) == 4
        assert len(loader.stats()["errors"]) == 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("on_error", "expected"),
    [
        ("skip", [[0, 2], [3, 4, 5], [8], [9, 10, 11]]),
        ("replace", [[0, 2, 2], [3, 4, 5], [8, 8, 8], [9, 10, 11]]),
    ],
)
def test_an_iterable_dataset(workers, on_error, expected):
    loader = FastLoader(BrokenStream(), 3, num_workers=workers, on_error=on_error, max_errors=3)
    assert indices(loader) == expected
    assert [error["index"] for error in loader.stats()["errors"]] == [1, 6, 7]


def test_a_generator_that_raised_is_not_taken_for_one_that_ended():
    class Generator(IterableDataset):
        def __iter__(self):
            return (Broken()[i] for i in range(12))

    with pytest.raises(FileNotFoundError):
        list(FastLoader(Generator(), 3, on_error="skip", max_errors=3))


@pytest.fixture(scope="module")
def damaged(photos, tmp_path_factory):
    return damaged_photos(photos, tmp_path_factory.mktemp("damaged") / "photos", no_images=[1])


@pytest.mark.native
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_an_engine_of_ours_gives_the_same_as_the_datasets_own_code(damaged, threads, on_error):
    arguments = {"batch_size": 3, "on_error": on_error, "max_errors": 3}
    ours = FastLoader(damaged, num_workers=threads, **arguments)
    theirs = FastLoader(damaged, engine="torch", **arguments)
    assert_same(list(ours), list(theirs))
    for loader in (ours, theirs):
        errors = loader.stats()["errors"]
        assert [error["index"] for error in errors] == [1, 5, 6]
        assert all(error["action"] == on_error for error in errors)
    paths = [path for path, _ in damaged.samples]
    assert [error["file"] for error in ours.stats()["errors"]] == [paths[1], paths[5], paths[6]]


@pytest.mark.native
def test_an_engine_of_ours_asks_a_callable_and_keeps_to_the_limit(damaged):
    seen = []

    def choose(index, error):
        seen.append((index, type(error)))
        return "raise" if index == 6 else "skip"

    loader = FastLoader(damaged, 3, on_error=choose, max_errors=3)
    iterator = iter(loader)
    assert len(next(iterator)[0]) == 2
    assert len(next(iterator)[0]) == 2
    with pytest.raises((StoreError, DecodeError)):
        next(iterator)
    assert len(list(iterator)) == 5
    assert [index for index, _ in seen] == [1, 5, 6]
    with pytest.raises(TooManyErrors):
        list(FastLoader(damaged, 3, on_error="skip", max_errors=2))


@pytest.mark.parametrize("threads", [0, 2])
def test_a_callable_that_exits_the_program_does_so_at_its_batch(damaged, threads):
    def leave(index, error):
        sys.exit(f"sample {index}")

    iterator = iter(FastLoader(damaged, 3, num_workers=threads, on_error=leave, max_errors=3))
    with pytest.raises(SystemExit, match="sample 1"):
        next(iterator)


@pytest.mark.parametrize(
    "arguments",
    [{"on_error": "ignore"}, {"max_errors": -1}, {"max_errors": 1.5}, {"max_errors": True}],
)
def test_arguments_that_cannot_work_are_refused(arguments):
    with pytest.raises(UsageError, match=next(iter(arguments))):
        FastLoader(Broken(), **arguments)


def test_a_callable_that_returns_something_else_is_told():
    with pytest.raises(UsageError, match="must return 'raise', 'skip' or 'replace', got None"):
        list(FastLoader(Broken(), 3, on_error=lambda index, error: None))
