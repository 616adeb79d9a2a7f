"""A cache changes how often bytes are read and decoded, and never a batch."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import leaks
from batches import EVAL, MEAN, STD, TRAIN
from fastload import ChecksumError, DecodeError, FastLoader, PackedDataset, UsageError, pack
from fastload._engine.cache.cache import KINDS, Cache
from fastload.storage import open_store
from sides import assert_same

TAIL = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
CHAINS: dict[str, Any] = {
    "train": TRAIN,
    "eval": EVAL,
    "resized, then random": v1.Compose(
        [v1.Resize(80), v1.RandomCrop(64, padding=3), v1.RandomHorizontalFlip(), *TAIL]
    ),
    "padded": v1.Compose([v1.CenterCrop(200), v1.PILToTensor()]),
    "one size, then random": v1.Compose(
        [v1.Resize((90, 80)), v1.RandomCrop(70, pad_if_needed=True), v1.CenterCrop(60), *TAIL]
    ),
    "coloured and erased": v1.Compose(
        [v1.Resize(80), v1.ColorJitter(0.3, 0.3, 0.3), v1.RandomCrop(64), *TAIL, v1.RandomErasing()]
    ),
    "flipped only": v1.Compose([v1.CenterCrop(50), v1.RandomHorizontalFlip(), *TAIL]),
}


CASES = [
    *(("folder", chain) for chain in CHAINS),
    *itertools.product(("keep", "dct", "raw"), ("train", "eval")),
    ("keep", "one size, then random"),
    ("raw", "padded"),
]


@pytest.fixture(scope="module")
def folder(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight small photos, a PNG, a gray JPEG, and a CMYK one that Pillow has to decode."""
    root = tmp_path_factory.mktemp("cache") / "imgs"
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))[::3]):
        (root / path.parent.name).mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            small = image.resize((150 + 5 * number, 130), Image.Resampling.BOX)
            small.save(root / path.parent.name / path.name, quality=92)
    with Image.open(path) as image:
        image.resize((120, 90)).save(root / "class0" / "a.png")
        image.resize((120, 90)).convert("CMYK").save(root / "class1" / "a.jpg")
        image.convert("L").save(root / "class2" / "gray.jpg", quality=71)
    return root


@pytest.fixture(scope="module")
def stores(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``folder``, and packed as it is, as DCT records where they can be made, and as pixels."""
    from fastload import _native

    base = tmp_path_factory.mktemp("stores")
    found = {"folder": folder}
    for name in ("keep", "dct", "raw"):
        if name == "dct" and _native.load() is None:
            continue
        found[name] = base / f"{name}.lmdb"
        pack(folder, found[name], encode=name)
    return found


def dataset(path: Path, transform: Any, **given: Any) -> Any:
    if path.is_dir() and path.suffix != ".lmdb":
        return ImageFolder(path, transform=transform)
    return PackedDataset(path, transform=transform, **given)


def loader(data: Any, **options: Any) -> FastLoader:
    arguments = {"batch_size": 5, "shuffle": True, "seed": 5, "num_workers": 2, **options}
    return FastLoader(data, **arguments)


def epochs(loading: FastLoader, count: int = 3) -> list[Any]:
    return [batch for _ in range(count) for batch in loading]


@pytest.mark.native
@pytest.mark.parametrize(("kept", "chain"), CASES)
def test_the_batches_are_those_without_a_cache(
    stores: dict[str, Path], kept: str, chain: str
) -> None:
    data = dataset(stores[kept], CHAINS[chain])
    plain = epochs(loader(data))
    n = len(data)
    for kind in KINDS:
        caching = loader(data, cache=kind)
        assert_same(epochs(caching, 1), plain[: len(caching)])
        assert (caching.stats()["cache_hits"], caching.stats()["cache_misses"]) == (0, n)
        assert_same(epochs(caching, 2), plain[len(caching) :])
        assert (caching.stats()["cache_hits"], caching.stats()["cache_misses"]) == (n, 0)
        assert f"cache: {kind}, {n} of {n} records kept" in caching.explain()


@pytest.mark.native
@pytest.mark.parametrize(
    ("kind", "threads"),
    [
        pytest.param(
            *(kind, threads),
            marks=() if threads == 3 or kind == "decoded" else pytest.mark.long,
        )
        for kind in KINDS
        for threads in (0, 1, 3)
    ],
)
def test_what_does_not_fit_is_read_as_without_a_cache(
    stores: dict[str, Path], kind: str, threads: int
) -> None:
    for kept, chain in (
        ("folder", "train"),
        ("keep", "resized, then random"),
        ("keep", "coloured and erased"),
    ):
        data = dataset(stores[kept], CHAINS[chain])
        plain = epochs(loader(data))
        caching = loader(data, cache=kind, cache_limit=90_000, num_workers=threads)
        assert_same(epochs(caching), plain)
        stats = caching.stats()
        assert stats["cache_hits"] + stats["cache_misses"] == len(data)
        assert stats["cache_nbytes"] <= 90_000
        assert stats["cache_hits"] > 0
        assert stats["cache_misses"] > 0
        assert "does not fit" in caching.explain()


@pytest.mark.native
def test_what_is_kept_stays_the_same_from_epoch_to_epoch(stores: dict[str, Path]) -> None:
    caching = loader(dataset(stores["folder"], TRAIN), cache="ram", cache_limit="60KB")
    seen = []
    for _ in range(4):
        epochs(caching, 1)
        decoder = caching.inspect().engine  # type: ignore[index]
        seen.append(decoder.store.locate(np.arange(len(caching.dataset))).kept.tolist())  # type: ignore[arg-type]
    assert any(seen[0])
    assert not all(seen[0])
    assert seen == seen[:1] * 4


@pytest.mark.native
def test_a_limit_below_the_table_keeps_nothing(stores: dict[str, Path]) -> None:
    data = dataset(stores["keep"], EVAL)
    caching = loader(data, cache="ram", cache_limit=100)
    assert_same(epochs(caching), epochs(loader(data)))
    assert caching.stats()["cache_hits"] == 0
    assert caching.stats()["cache_nbytes"] == 0


@pytest.mark.native
@pytest.mark.usefixtures("nothing_open")
@pytest.mark.parametrize("kind", KINDS)
def test_epochs_left_early_keep_what_was_made(stores: dict[str, Path], kind: str) -> None:
    data = dataset(stores["folder"], TRAIN)
    caching, plain = loader(data, cache=kind), loader(data)
    for number in range(4):
        ours = list(itertools.islice(caching, 1 + number % 2))
        assert_same(ours, list(itertools.islice(plain, 1 + number % 2)))
    assert_same(epochs(caching), epochs(plain))
    assert caching.stats()["cache_misses"] == 0


@pytest.mark.native
@pytest.mark.parametrize("kind", KINDS)
def test_subsets_and_concatenations_are_cached_by_the_record(
    stores: dict[str, Path], kind: str
) -> None:
    one, other = (dataset(stores[name], EVAL) for name in ("folder", "keep"))
    for data in (Subset(one, [7, 2, 2, 5, 1, 9]), ConcatDataset([Subset(other, [4, 3]), one])):
        caching = loader(data, cache=kind)
        assert_same(epochs(caching), epochs(loader(data)))
        assert caching.stats()["cache_misses"] == 0


@pytest.mark.native
def test_loaders_over_one_dataset_share_a_cache(stores: dict[str, Path]) -> None:
    data = dataset(stores["folder"], TRAIN)
    first, second = (
        loader(Subset(data, part), cache="dct", cache_limit="1GB")
        for part in ([0, 1, 2, 3, 4], [3, 4, 5, 6])
    )
    epochs(first, 1)
    epochs(second, 1)
    assert (second.stats()["cache_hits"], second.stats()["cache_misses"]) == (2, 2)
    assert first.stats()["cache_nbytes"] == second.stats()["cache_nbytes"]
    assert_same(epochs(first), epochs(loader(Subset(data, [0, 1, 2, 3, 4])), 4)[1:])


@pytest.mark.native
def test_two_iterators_of_a_loader_fill_one_cache(stores: dict[str, Path]) -> None:
    data = dataset(stores["keep"], TRAIN)
    caching, plain = loader(data, cache="decoded"), loader(data)
    ours = [batch for pair in zip(caching, caching, strict=True) for batch in pair]
    assert_same(ours, [batch for pair in zip(plain, plain, strict=True) for batch in pair])
    assert_same(epochs(caching, 1), epochs(plain, 1))
    assert caching.stats()["cache_misses"] == 0


@pytest.mark.native
def test_decoded_keeps_what_the_first_operations_give(stores: dict[str, Path]) -> None:
    n = len(dataset(stores["keep"], EVAL))
    caching = loader(dataset(stores["keep"], EVAL), cache="decoded")
    epochs(caching, 1)
    assert caching.stats()["cache_nbytes"] == n * 3 * 64 * 64
    # another beginning of the transform is another cache
    caching.dataset.transform = TRAIN  # type: ignore[attr-defined]
    plain = loader(dataset(stores["keep"], TRAIN))
    plain.set_epoch(1)
    assert_same(epochs(caching, 1), epochs(plain, 1))
    assert caching.stats()["cache_hits"] == 0


@pytest.mark.native
@pytest.mark.parametrize("check_crc", ["first", "always"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_record_fails_its_checksum_and_is_not_kept(
    stores: dict[str, Path], tmp_path: Path, kind: str, check_crc: str
) -> None:
    with open_store(stores["keep"]) as store:
        at = int(store.spans(np.array([4])).offset[0]) + 1000
    path = tmp_path / "x.lmdb"
    data = bytearray(stores["keep"].read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    errors = []
    for options in ({}, {"cache": kind}):
        loading = loader(dataset(path, TRAIN, check_crc=check_crc), **options)
        for _ in range(2):
            with pytest.raises(ChecksumError) as info:
                epochs(loading, 1)
            errors.append((str(info.value), info.value.record))
    assert len(set(errors)) == 1
    assert errors[0][1] == 4


@pytest.mark.native
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_gives_the_error_without_a_cache(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "imgs"
    shutil.copytree(folder, root)
    victim = sorted((root / "class1").glob("*.jpg"))[-1]
    victim.write_bytes(victim.read_bytes()[:1500])
    data = ImageFolder(root, transform=EVAL)
    errors = set()
    for options in ({}, {"cache": kind}):
        loading = loader(data, **options)
        for _ in range(2):
            with pytest.raises(DecodeError) as info:
                epochs(loading, 1)
            errors.add((str(info.value), info.value.path, info.value.record, info.value.offset))
    assert len(errors) == 1
    assert errors.pop()[1] == str(victim)


@pytest.mark.native
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_changed_its_size_gives_the_error_without_a_cache(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "imgs"
    shutil.copytree(folder, root)
    data = ImageFolder(root, transform=EVAL)
    # Without threads, so that none still reads headers when the file is changed.
    options = {"shuffle": False, "num_workers": 0}
    loading = [loader(data, **options), loader(data, **options, cache=kind)]
    next(iter(loading[0]))  # sizes are read
    last = loading[0].inspect().engine.store  # type: ignore[index]
    last.sizes(np.arange(len(data)))
    with Image.open(data.samples[-1][0]) as image:
        image.resize((77, 66)).save(data.samples[-1][0])
    messages = []
    for each in loading:
        with pytest.raises(DecodeError) as info:
            epochs(each, 1)
        messages.append(str(info.value))
    assert messages[0] == messages[1]


@pytest.mark.native
def test_images_of_several_sizes_give_the_error_without_a_cache(folder: Path) -> None:
    data = ImageFolder(folder, transform=v1.Compose([v1.Resize(40), v1.PILToTensor()]))
    messages = []
    for options in ({}, {"cache": "decoded", "cache_limit": "10KB"}):
        loading = loader(data, shuffle=False, batch_size=len(data), **options)
        with pytest.raises(Exception, match="one size") as info:
            epochs(loading, 1)
        messages.append((type(info.value), str(info.value)))
    assert messages[0] == messages[1]


@pytest.mark.native
def test_the_files_are_not_opened_any_more(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "imgs"
    shutil.copytree(folder, root)
    data = ImageFolder(root, transform=TRAIN)
    plain = epochs(loader(data))
    caching = {kind: loader(data, cache=kind) for kind in KINDS}
    for each in caching.values():
        epochs(each, 1)
    shutil.rmtree(root)
    for each in caching.values():
        assert_same(epochs(each, 2), plain[len(each) :])


@pytest.mark.native
def test_a_loader_is_pickled_without_its_cache(stores: dict[str, Path]) -> None:
    caching = loader(dataset(stores["keep"], TRAIN), cache="ram")
    epochs(caching, 1)
    clone = pickle.loads(pickle.dumps(caching))
    assert (clone.cache, clone.stats()["cache_nbytes"]) == ("ram", 0)
    assert_same(epochs(clone, 1), epochs(caching, 1))
    assert clone.stats()["cache_hits"] == 0


@pytest.mark.native
@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_sees_the_cache_and_adds_to_it(stores: dict[str, Path], kind: str) -> None:
    data = dataset(stores["folder"], TRAIN)
    caching, plain = loader(data, cache=kind, batch_size=2), loader(data, batch_size=2)
    list(itertools.islice(caching, 1))
    before = caching.stats()["cache_nbytes"]
    assert before > 0
    reference = epochs(plain, 2)[len(plain) :]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # No operation of torch's on the pixels: its OpenMP threads do not survive a fork.
            ours = [(images.numpy().tobytes(), *labels.tolist()) for images, labels in caching]
            theirs = [(images.numpy().tobytes(), *labels.tolist()) for images, labels in reference]
            hits = caching.stats()["cache_hits"]
            code = 0 if ours == theirs and 0 < hits < len(data) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert_same(epochs(caching, 1), reference)
    assert caching.stats()["cache_misses"] == 0
    assert caching.stats()["cache_nbytes"] > before


@pytest.mark.native
def test_the_memory_goes_with_the_last_loader(stores: dict[str, Path]) -> None:
    def mapped() -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return len({line.split()[4] for line in lines if "memfd:fastload-cache" in line})

    before = mapped()
    data = dataset(stores["folder"], TRAIN)
    first, second = loader(data, cache="ram"), loader(data, cache="ram")
    epochs(first, 1)
    epochs(second, 1)
    assert mapped() == before + 1
    del first
    assert_same(epochs(second, 1), epochs(loader(data), 2)[len(second) :])
    del second
    assert mapped() == before


def test_a_dataset_that_opens_no_image_leaves_its_cache_empty(folder: Path) -> None:
    class Other(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index

    loading = FastLoader(Other(), cache="ram")
    assert [batch.item() for batch in loading] == [0, 1, 2]
    assert "cache: ram" in loading.explain()
    assert loading.stats()["cache_hits"] == loading.stats()["cache_misses"] == 0
    with pytest.raises(UsageError, match="torch"):
        FastLoader(ImageFolder(folder, transform=TRAIN), engine="torch", cache="ram")


@pytest.mark.parametrize(
    ("limit", "nbytes"),
    [(8_000_000, 8_000_000), ("8GB", 8 * 10**9), ("1.5 gib", 3 * 2**29), ("700", 700)],
)
def test_limits_are_bytes_or_have_a_unit(limit: int | str, nbytes: int) -> None:
    found = Cache.of("ram", limit, "auto")
    assert found is not None
    assert found._limit == nbytes


@pytest.mark.parametrize("limit", ["8 gallons", "", 0, -5, "-1GB", True, 1.5])
def test_other_limits_are_refused(limit: Any) -> None:
    with pytest.raises(UsageError, match="cache_limit"):
        Cache.of("ram", limit, "auto")


def test_other_caches_are_refused() -> None:
    with pytest.raises(UsageError, match="'ram', 'decoded', 'shm', 'dct'"):
        FastLoader([1], cache="disk")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs cache="):
        FastLoader([1], cache_limit="1GB")  # type: ignore[arg-type]


def test_the_default_is_half_of_the_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastload._base.machine.memory.available", lambda: 1000)
    for kind, ranks, nbytes in (("ram", "1", 500), ("ram", "4", 125), ("shm", "4", 500)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        found = Cache.of(kind, None, "auto")
        assert found is not None
        assert found._most() == nbytes


@pytest.fixture(autouse=True)
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads decode what the core does not: to fork for each epoch takes longer than all the rest.

    tests/engine/test_processes.py has every kind of cache in processes.
    """
    monkeypatch.setattr("fastload._run.setup._SHARE", 2.0)


@pytest.fixture
def nothing_open() -> Iterator[None]:
    """A test leaves no thread and no descriptor behind."""
    before = leaks.snapshot()
    yield
    after = leaks.snapshot()
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
