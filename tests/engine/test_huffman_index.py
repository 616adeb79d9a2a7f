"""What is remembered of JPEGs makes later epochs faster, and never changes a batch."""

from __future__ import annotations

import io
import multiprocessing
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import native_core
from batches import MEAN, STD
from fastload import DecodeError, FastLoader, PackedDataset, pack
from fastload._engine import huffman_index
from fastload._sources.source import resolve
from sides import assert_same

pytestmark = pytest.mark.native

CROP = v1.Compose(
    [
        v1.RandomResizedCrop(64, scale=(0.05, 0.6)),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
        v1.Normalize(MEAN, STD),
    ]
)
WHOLE = v1.Compose([v1.Resize((80, 80)), v1.ToTensor()])

SIDE = 330  # pixels: files are large enough to be remembered


def large(kind: str, seed: int = 0) -> bytes:
    """A JPEG of more than 8 KB."""
    # "wide": several points in a row of MCUs
    image = native_core.photo(*((1100, 150) if kind == "wide" else (SIDE, SIDE - 20)), seed)
    options: dict[str, Any] = {"quality": 93}
    if kind == "gray":
        return native_core.encode(image.convert("L"), **options)
    if kind == "progressive":
        return native_core.encode(image, subsampling="4:2:0", progressive=True, **options)
    if kind == "restarts":
        return native_core.encode(image, subsampling="4:2:0", restart_marker_rows=2, **options)
    subsampling = "4:4:4" if kind == "wide" else kind
    return native_core.encode(image, subsampling=subsampling, **options)


KINDS = ["4:4:4", "4:2:2", "4:2:0", "gray", "progressive", "restarts", "wide"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of every kind that there is, each of more than 8 KB, and a small one."""
    root = tmp_path_factory.mktemp("entry points") / "imgs"
    for number, kind in enumerate(KINDS * 2):
        data = large(kind, number)
        assert len(data) > 8192
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.jpg").write_bytes(data)
    (root / "class0" / "small.jpg").write_bytes(native_core.encode(native_core.photo(90, 80)))
    return root


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(made, tmp_path / "imgs"))


class Forgetful:
    """A context in which nothing is remembered from batch to batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, loader: Callable[[], Any]) -> list[Any]:
        core = native_core.core()

        def fresh(store: Any) -> Any:
            return core.EntryTable(len(store), 0)

        with self._patch.context() as patch:
            patch.setattr("fastload._engine.native.table_of", fresh)
            return list(loader())


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forgetful]:
    yield Forgetful(monkeypatch)


def loader_of(dataset: Any, epoch: int = 0, **options: Any) -> FastLoader:
    loader = FastLoader(dataset, batch_size=5, seed=7, shuffle=True, **options)
    loader.set_epoch(epoch)
    return loader


def remembered(dataset: Any) -> int:
    return huffman_index.nbytes(resolve(dataset).parts)


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("transform", [CROP, WHOLE], ids=["crops", "whole images"])
def test_epochs_are_those_of_a_loader_that_remembers_nothing(made, forgetful, transform, threads):
    dataset = ImageFolder(str(made), transform=transform)
    for epoch in range(4):
        mine = list(loader_of(dataset, epoch, num_workers=threads))
        other = ImageFolder(str(made), transform=transform)
        assert_same(mine, forgetful(lambda: loader_of(other, epoch)))  # noqa: B023
    assert remembered(dataset) > 0
    assert remembered(other) == 0


def test_epochs_are_those_of_pillows_pixels(made, tmp_path):
    pack(made, tmp_path / "pixels.lmdb", encode="raw")
    dataset = ImageFolder(str(made), transform=CROP)
    pixels = PackedDataset(tmp_path / "pixels.lmdb", transform=CROP)
    for epoch in range(2):
        assert_same(list(loader_of(dataset, epoch)), list(loader_of(pixels, epoch)))


@pytest.mark.parametrize("encode", ["keep", "dct"])
@pytest.mark.parametrize("cache", [None, "ram"])
def test_packed_stores_remember_too(made, tmp_path, forgetful, encode, cache):
    pack(made, tmp_path / "imgs.lmdb", encode=encode)
    dataset = PackedDataset(tmp_path / "imgs.lmdb", transform=CROP)
    for epoch in range(3):
        mine = list(loader_of(dataset, epoch, cache=cache))
        other = PackedDataset(tmp_path / "imgs.lmdb", transform=CROP)
        assert_same(mine, forgetful(lambda: loader_of(other, epoch)))  # noqa: B023
    assert (remembered(dataset) > 0) == (encode == "keep")


def test_scaled_decoding_remembers_too(made, forgetful):
    shrunk = v1.Compose([v1.RandomResizedCrop(20, scale=(0.5, 1)), v1.ToTensor()])
    dataset = ImageFolder(str(made), transform=shrunk)
    for epoch in range(3):
        mine = list(loader_of(dataset, epoch, decode="scaled"))
        other = ImageFolder(str(made), transform=shrunk)
        assert_same(mine, forgetful(lambda: loader_of(other, epoch, decode="scaled")))  # noqa: B023


def test_subsets_and_concatenations_share_what_their_datasets_know(made, forgetful):
    def parts(one: Any, two: Any) -> Any:
        return ConcatDataset([Subset(one, [3, 1, 9, 11]), two, Subset(one, [1, 2])])

    one, two = (ImageFolder(str(made), transform=CROP) for _ in range(2))
    for epoch in range(3):
        mine = list(loader_of(parts(one, two), epoch))
        others = [ImageFolder(str(made), transform=CROP) for _ in range(2)]
        assert_same(mine, forgetful(lambda: loader_of(parts(*others), epoch)))  # noqa: B023
    assert remembered(parts(one, two)) > 0
    assert remembered(one) == 0, "these are other record numbers"


def test_a_resumed_epoch_is_the_same(made):
    dataset = ImageFolder(str(made), transform=CROP)
    whole = list(loader_of(dataset))
    first = loader_of(dataset)
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    del batches
    again = loader_of(dataset)
    again.load_state_dict(state)
    assert_same(list(again), whole[1:])


@pytest.mark.parametrize("kind", ["4:4:4", "4:2:0", "gray"])
def test_a_file_that_is_replaced_by_one_of_its_size_is_seen(folder, forgetful, kind):
    path = folder / "class0" / "00.jpg"
    one, two = large(kind, 100), large(kind, 101)
    length = max(len(one), len(two))
    path.write_bytes(one.ljust(length, b"\0"))
    dataset = ImageFolder(str(folder), transform=CROP)
    list(loader_of(dataset, 0))
    list(loader_of(dataset, 1))
    path.write_bytes(two.ljust(length, b"\0"))
    for epoch in range(2, 5):
        mine = list(loader_of(dataset, epoch))
        other = ImageFolder(str(folder), transform=CROP)
        assert_same(mine, forgetful(lambda: loader_of(other, epoch)))  # noqa: B023


def test_a_file_that_is_cut_short_fails_as_without_what_is_remembered(folder):
    path = folder / "class0" / "00.jpg"
    data = path.read_bytes()
    dataset = ImageFolder(str(folder), transform=WHOLE)
    list(loader_of(dataset))
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DecodeError, match=r"00\.jpg"):
        list(loader_of(dataset))


def crop_of(path: Path, box: tuple[int, int, int, int], table: Any = None) -> tuple[int, bytes]:
    """Status and pixels of a crop, with what is remembered of record 0."""
    known = None if table is None else (table, np.zeros(1, np.int64))
    done = native_core.submit(native_core.open_files([path]), box, entries=known).wait()
    status = int(done.status[0])
    return status, b"" if status else done.images.tobytes()


@pytest.mark.parametrize("kind", ["4:4:4", "4:2:2", "4:2:0", "gray", "wide"])
def test_any_byte_may_change_between_epochs(kind, tmp_path):
    """Of a file whose points are known: status and pixels of a crop are those of the file alone."""
    sound, path = large(kind, 5), tmp_path / "a.jpg"
    random = np.random.default_rng(0)
    for turn in range(60):
        table = native_core.core().EntryTable(1, 1 << 20)
        path.write_bytes(sound)
        with Image.open(path) as image:
            width, height = image.size
        assert crop_of(path, (0, 0, width, height), table)[0] == 0
        assert table.count == 1
        data = bytearray(sound)
        at = int(random.integers(2, len(data)) if turn % 3 else random.integers(2, 700))
        data[at] ^= 1 << int(random.integers(8))
        if turn % 10 == 9:
            del data[at:]
        path.write_bytes(data)
        box = (int(random.integers(width - 39)), int(random.integers(height - 34)), 40, 35)
        alone = crop_of(path, box)
        for _ in range(2):
            assert crop_of(path, box, table) == alone


def test_forked_children_read_and_add(made):
    dataset = ImageFolder(str(made), transform=CROP)
    list(loader_of(dataset, 0))
    before = remembered(dataset)
    mine = list(loader_of(dataset, 1))
    context = multiprocessing.get_context("fork")
    parent, child = context.Pipe()

    def run() -> None:
        images = [images.numpy() for images, _ in loader_of(dataset, 1)]
        child.send((images, remembered(dataset)))

    process = context.Process(target=run)
    process.start()
    images, known = parent.recv()
    process.join()
    assert known >= before > 0
    for one, (other, _) in zip(images, mine, strict=True):
        assert np.array_equal(one, other.numpy())


def test_it_is_bounded_and_tells_of_itself(made, monkeypatch):
    dataset = ImageFolder(str(made), transform=CROP)
    loader = loader_of(dataset)
    assert "entry points" not in loader.explain()
    list(loader)
    (line,) = re.findall("entry points: of ([0-9]+) JPEGs, (.*) bytes", loader.explain())
    assert 0 < int(line[0]) < 2 * len(KINDS) + 1  # which of them need one is up to who wrote them
    assert line[1] == f"{remembered(dataset):,}"
    assert loader.stats()["entry_points_nbytes"] == remembered(dataset)
    monkeypatch.setattr("fastload._base.machine.memory.available", lambda: 3000 * 100)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    small = ImageFolder(str(made), transform=CROP)
    for epoch in range(3):
        assert_same(list(loader_of(small, epoch)), list(loader_of(dataset, epoch)))
    assert 0 < remembered(small) <= 1500


def test_nothing_is_remembered_where_not_even_its_table_fits():
    core = native_core.core()
    for table in (core.EntryTable(1000, 4000), core.EntryTable(0, 0), core.EntryTable(1, 1 << 40)):
        assert (table.used, table.count) == (0, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_packed_dataset_in_torchs_dataloader_gives_the_same(made, tmp_path, workers):
    pack(made, tmp_path / "imgs.lmdb")
    dataset = PackedDataset(tmp_path / "imgs.lmdb", transform=CROP, seed=3)
    alone = PackedDataset(tmp_path / "imgs.lmdb", transform=CROP, seed=3)
    for epoch in range(3):
        for one in (dataset, alone):
            one.set_epoch(epoch)
        loader = DataLoader(dataset, batch_size=4, num_workers=workers)
        mine = [image for images, _ in loader for image in images]
        for image, at in zip(mine, range(len(alone)), strict=True):
            assert torch.equal(image, alone[at][0])


def test_loaders_of_one_dataset_share_what_is_known(made):
    dataset = ImageFolder(str(made), transform=CROP)
    list(loader_of(dataset))
    known = remembered(dataset)
    list(loader_of(dataset))
    assert remembered(dataset) == known > 0
    assert remembered(ImageFolder(str(made), transform=CROP)) == 0


def test_pillow_reads_the_same_pixels(made):
    """The whole way round: no engine of ours in what is compared with."""
    crop = v1.Compose([v1.CenterCrop(64), v1.PILToTensor()])
    dataset = ImageFolder(str(made), transform=crop)
    for _ in range(3):
        loader = FastLoader(dataset, batch_size=1)
        for (images, _), (path, _) in zip(loader, dataset.samples, strict=True):
            with Image.open(io.BytesIO(Path(path).read_bytes())) as image:
                assert torch.equal(images[0], crop(image.convert("RGB")))
