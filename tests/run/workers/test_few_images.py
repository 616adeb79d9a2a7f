"""Batches of a few images, which workers fill themselves where every CPU has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import deferred_datasets as shapes
from fastload import FastLoader
from fastload._base.machine import cpu
from fastload._run.workers.tasks import Outcome, TaskIterator
from sides import side_by_side

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return shapes.write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "available", lambda **_: 2)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many tensors of each batch came as what was recorded."""
    counts: list[int] = []
    begin = TaskIterator.begin

    def counted(self: TaskIterator, outcome: Outcome) -> None:
        if outcome.message is not None and outcome.task not in self._begun:
            counts.append(outcome.message.recorded)
        begin(self, outcome)

    monkeypatch.setattr(TaskIterator, "begin", counted)
    yield counts


def plain(photos: list[Path]) -> list[Path]:
    paths = [path for path in photos if path.suffix == ".jpg"]
    return [path for path in paths if Image.open(path).mode == "RGB"]


def test_as_many_workers_as_cpus_fill_them_once_there_are_slabs(
    photos: list[Path], recorded: list[int]
) -> None:
    paths = plain(photos) * 4
    side_by_side(shapes.TwoViews(paths), batch_size=1, num_workers=2, epochs=1)
    assert len(recorded) == len(paths)
    assert any(recorded[:4])  # the size of a slab is not known yet
    assert not any(recorded[8:])


def test_fewer_workers_leave_them_to_the_threads_of_this_process(
    photos: list[Path], recorded: list[int]
) -> None:
    side_by_side(shapes.Photos(plain(photos)), batch_size=2, num_workers=1, epochs=1)
    assert all(recorded)


def test_a_larger_batch_is_filled_by_the_threads_of_this_process(
    photos: list[Path], recorded: list[int]
) -> None:
    side_by_side(shapes.Photos(plain(photos) * 3), batch_size=6, num_workers=2, drop_last=True)
    assert all(recorded)


KINDS = [
    shapes.Photos,
    shapes.InMemory,
    shapes.Crops,
    shapes.Warped,
    shapes.V2,
    shapes.AsArray,
    shapes.Keeping,
    shapes.NoConvert,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_dataset_gives_the_same(photos: list[Path], kind: type) -> None:
    side_by_side(
        kind(photos),
        batch_size=1,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=shapes.seed_numpy,
    )


def test_single_samples_are_the_same(photos: list[Path]) -> None:
    side_by_side(shapes.NoConvert(photos), batch_size=None, num_workers=2)


def test_a_users_collate_fn_gets_what_it_can_stack(photos: list[Path]) -> None:
    side_by_side(shapes.Photos(photos), batch_size=2, collate_fn=shapes.stack, num_workers=2)
    side_by_side(shapes.Images(photos), batch_size=2, collate_fn=shapes.late, num_workers=2)


@pytest.mark.usefixtures("short_farewell")
def test_the_users_own_except_sees_a_damaged_image(tmp_path: Path) -> None:
    damaged = shapes.write_photos(tmp_path, 16)
    for i in (3, 9):
        shapes.truncate(damaged[i])
    damaged[12].write_bytes(b"no image")
    for kind in (shapes.Recovering, shapes.Photos):
        side_by_side(
            kind(damaged),
            batch_size=1,
            shuffle=True,
            num_workers=2,
            worker_init_fn=shapes.seed_numpy,
            persistent_workers=True,
        )


def test_what_was_left_to_pillow_is_reported(photos: list[Path]) -> None:
    loader = FastLoader(shapes.Photos(photos[:6] * 4), 1, num_workers=2)
    list(loader)
    assert loader.stats()["images_deferred"] == 24
    assert "CMYK" in loader.explain()
