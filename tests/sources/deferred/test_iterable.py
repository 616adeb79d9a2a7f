"""Images that an IterableDataset opens, or a Dataset with a state: no batch is made again."""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import deferred_datasets as shapes
from combinations import combinations
from fastload import FastLoader
from fastload._native import load
from sides import assert_same, outcome, side_by_side

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return shapes.write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = shapes.write_photos(tmp_path_factory.mktemp("damaged"))
    for at in (3, 8):
        shapes.truncate(paths[at])
    return paths


def mine(paths: list[Path]) -> list[Path]:
    """This worker's part."""
    info = get_worker_info()
    return paths if info is None else paths[info.id :: info.num_workers]


class Stream(IterableDataset[Any]):
    """Photos, cropped and flipped."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.transform = shapes.train()

    def __iter__(self) -> Iterator[Any]:
        for path in mine(self.paths):
            yield self.transform(Image.open(path).convert("RGB")), path.name


class OfBytes(Stream):
    """Opened from memory, as out of an archive."""

    def __iter__(self) -> Iterator[Any]:
        for path in mine(self.paths):
            image = Image.open(io.BytesIO(path.read_bytes()))
            image.load()
            yield self.transform(image.convert("RGB")), path.name


class Skipping(Stream):
    """Leaves out what it cannot read, and goes on."""

    def __iter__(self) -> Iterator[Any]:
        for path in mine(self.paths):
            try:
                image = Image.open(path).convert("RGB")
            except OSError:
                torch.rand(())
                continue
            yield self.transform(image), path.name


class Buffered(Skipping):
    """Holds samples back and shuffles them."""

    def __iter__(self) -> Iterator[Any]:
        held: list[Any] = []
        for sample in super().__iter__():
            held.append(sample)
            if len(held) == 5:
                yield held.pop(random.randrange(5))
        yield from held


class Passing(Stream):
    """Each file is gone when the next one comes."""

    def __iter__(self) -> Iterator[Any]:
        for path in mine(self.paths):
            copy = path.with_name(f"{os.getpid()}.tmp")
            copy.write_bytes(path.read_bytes())
            sample = self.transform(Image.open(copy).convert("RGB"))
            copy.unlink()
            yield sample, path.name


class Samples(Stream):
    """An iterator that goes on after it has raised."""

    def __iter__(self) -> Iterator[Any]:
        return map(self._sample, mine(self.paths))

    def _sample(self, path: Path) -> Any:
        return self.transform(Image.open(path).convert("RGB")), path.name


class Counting(Dataset[Any]):
    """Map-style, with a state."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths, self.calls = paths, 0
        self.transform = shapes.train()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        try:
            image = Image.open(self.paths[index]).convert("RGB")
        except OSError:
            return torch.zeros(3, 32, 32), -self.calls
        return self.transform(image), self.calls

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


STREAMS = [Stream, OfBytes, Skipping, Buffered, Passing, Samples]


# With workers: where an image is damaged, below.
@pytest.mark.parametrize("kind", STREAMS)
def test_batches_are_those_of_torchs_loader(photos: list[Path], kind: type[Stream]) -> None:
    side_by_side(kind(photos), batch_size=4)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [*STREAMS, Counting])
def test_a_damaged_image_is_what_it_is_in_torchs_loader(
    damaged: list[Path], kind: Callable[[list[Path]], Any], num_workers: int
) -> None:
    options = {"batch_size": 4, "num_workers": num_workers}
    ours = outcome(FastLoader, kind(damaged), 2, **options)  # a dataset each: one counts its calls
    assert_same(ours, outcome(DataLoader, kind(damaged), 2, **options))


@pytest.mark.parametrize(("kind", "num_workers"), combinations([*STREAMS, Counting], [0, 2]))
def test_its_images_are_deferred(
    photos: list[Path], kind: Callable[[list[Path]], Any], num_workers: int
) -> None:
    loader = FastLoader(kind(photos), batch_size=4, num_workers=num_workers)
    list(loader)
    count = len(photos)
    assert f"{count} opened in the last epoch; {count} tensors stayed deferred" in loader.explain()


@pytest.mark.parametrize("on_error", ["skip", "replace", "refill"])
def test_bad_samples_are_skipped_or_replaced(damaged: list[Path], on_error: Any) -> None:
    loader = FastLoader(Samples(damaged), batch_size=4, on_error=on_error, max_errors=5)
    names = [name for _, batch in loader for name in batch]
    bad = {damaged[3].name, damaged[8].name}
    assert not bad & set(names)
    assert len(names) == len(damaged) - (2 if on_error != "replace" else 0)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [Stream, Buffered, Counting])
def test_it_resumes_at_the_next_batch(
    photos: list[Path], kind: Callable[[list[Path]], Any], num_workers: int
) -> None:
    def loader() -> FastLoader[Any]:
        return FastLoader(kind(photos), batch_size=3, num_workers=num_workers, seed=5)

    whole = list(loader())
    first = loader()
    batches = iter(first)
    for _ in range(2):
        next(batches)
    second = loader()
    second.load_state_dict(first.state_dict())
    rest = list(second)
    assert len(rest) == len(whole) - 2
    for (images, others), (its, names) in zip(rest, whole[2:], strict=True):
        assert torch.equal(images, its)
        assert others == names if isinstance(names, tuple) else torch.equal(others, names)


@pytest.fixture(scope="module")
def tars(damaged: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tars")
    names = []
    for number in range(2):
        names.append(str(folder / f"{number}.tar"))
        with tarfile.open(names[-1], "w") as archive:
            for at, path in enumerate(damaged[number::2]):
                for name, data in ((path.suffix, path.read_bytes()), (".cls", b"%d" % at)):
                    member = tarfile.TarInfo(f"{path.stem}{name}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return names


@pytest.mark.parametrize("num_workers", [0, 2])
def test_webdataset_decodes_and_leaves_out_as_ever(tars: list[str], num_workers: int) -> None:
    webdataset = pytest.importorskip("webdataset")

    def pipeline() -> Any:
        return (
            webdataset.WebDataset(tars, shardshuffle=False)
            .decode("pilrgb", handler=webdataset.ignore_and_continue)
            .to_tuple("jpg;png;webp", "cls")
            .map_tuple(shapes.train(), int)
        )

    options = {"batch_size": 4, "num_workers": num_workers}
    ours = outcome(FastLoader, pipeline(), 2, **options)
    assert_same(ours, outcome(DataLoader, pipeline(), 2, **options))
    loader = FastLoader(pipeline(), **options)
    counts = [len(classes) for _, classes in loader]
    assert f"{sum(counts)} tensors stayed deferred" in loader.explain()
    assert sum(counts) == 12  # of 14


def _mutated(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(changed)))
        match int(rng.integers(4)):
            case 0:
                changed[at] = int(rng.integers(256))
            case 1:
                del changed[at : at + int(rng.integers(1, 40))]
            case 2:
                changed[at:at] = rng.integers(0, 256, int(rng.integers(1, 9)), np.uint8).tobytes()
            case _:
                del changed[max(at, 64) :]
    return bytes(changed)


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"optimize": True, "subsampling": 0, "restart_marker_blocks": 2}),
        ("PNG", {}),
    ],
)
def test_what_is_sound_is_decoded_by_pillow(
    suffix: str, options: dict[str, Any], count: Callable[[int, int], int]
) -> None:
    core = load()
    assert core is not None
    rng = np.random.default_rng(3)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 11, 3), np.uint8))
    stream = io.BytesIO()
    coarse.resize((89, 71), Image.Resampling.BICUBIC).save(stream, suffix, **options)
    whole = stream.getvalue()
    assert core.sound(whole, 89, 71)
    assert not core.sound(whole, 88, 71)
    sound = 0
    for _ in range(count(400, 20_000)):
        data = _mutated(whole, rng)
        if core.sound(data, 89, 71):
            sound += 1
            Image.open(io.BytesIO(data)).load()  # or it raises
    assert sound or suffix == "PNG"


@pytest.mark.parametrize("workers", [0, 2])
def test_later_epochs_defer_too(photos: list[Path], workers: int) -> None:
    """Workers that have reached the end of a stream make batches of nothing, which say nothing."""
    loader = FastLoader(
        Stream(photos), 2, num_workers=workers, prefetch_factor=4 if workers else None
    )
    for _ in range(3):
        list(loader)
        assert loader.stats()["images_deferred"] == len(photos)
