"""DALI on its CPU back end: the native engine's crops and verdicts."""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import warm
from batches import MEAN, STD
from fastload import Buckets, DecodeError, FastLoader, InternalError, UsageError, pack
from fastload._engine.nvidia import dali as dali_engine
from fastload._engine.nvidia import dali_graph
from fastload._engine.nvidia.dali_graph import PipelineOptions

pytestmark = [
    pytest.mark.native,  # what it is compared with
    pytest.mark.skipif(dali_graph.absent() is not None, reason="nvidia-dali is not installed"),
]


UINT8 = [
    v1.Compose([v1.RandomResizedCrop(96), v1.RandomHorizontalFlip(), v1.PILToTensor()]),
    v1.Compose([v1.Resize(112), v1.CenterCrop(96), v1.PILToTensor()]),
    v1.Compose([v1.Resize((80, 130)), v1.RandomCrop(96, padding=9, fill=77), v1.PILToTensor()]),
    v1.Compose([v1.RandomCrop(200), v1.Resize(300), v1.PILToTensor()]),
    v1.Compose([v1.CenterCrop(600), v1.RandomHorizontalFlip(), v1.PILToTensor()]),
    v1.Compose([v1.RandomResizedCrop(96, interpolation=3), v1.PILToTensor()]),
    v1.Compose([v1.Resize((96, 96), interpolation=1), v1.PILToTensor()]),
]
NAMES = ["train", "eval", "pad", "enlarge", "pad whole", "bicubic", "lanczos"]
FLOAT = v1.Compose(
    [
        v1.RandomResizedCrop(64),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
        v1.Normalize(MEAN, STD),
        v1.RandomErasing(p=0.7),
    ]
)


def batches(dataset: Any, engine: str, transform: Any = None, **arguments: Any) -> list[Any]:
    arguments = {"batch_size": 8, "num_workers": 2, "seed": 3, **arguments}
    return list(FastLoader(dataset, engine=engine, transform=transform, **arguments))


def close(theirs: list[Any], ours: list[Any]) -> None:
    """Assert the same labels, and levels that differ no more than two JPEG decoders do."""
    assert len(theirs) == len(ours)
    for (some, labels), (other, same) in zip(theirs, ours, strict=True):
        assert torch.equal(labels, same)
        assert some.shape == other.shape and some.dtype == other.dtype
        off = (some.int() - other.int()).abs().flatten(1).float()
        assert off.mean() < 0.5
        assert off.quantile(0.999, dim=1).max() < 20


@pytest.mark.parametrize("transform", UINT8, ids=NAMES)
def test_the_images_are_those_of_the_native_engine(store: Path, transform: Any) -> None:
    given = {"transform": transform, "shuffle": True}
    close(batches(store, "dali", **given), batches(store, "native", **given))


@pytest.mark.parametrize("transform", UINT8[:2], ids=NAMES[:2])
def test_real_photos_too(test_data: Path, transform: Any, count: Any) -> None:
    dataset = ImageFolder(str(test_data), transform=transform)
    every = max(1, len(dataset) // count(48, 400))
    some = torch.utils.data.Subset(dataset, range(0, len(dataset), every))
    close(batches(some, "dali"), batches(some, "native"))


@pytest.mark.parametrize("random", [False, True])
def test_batches_of_several_sizes_are_those_of_the_native_engine(store: Path, random: bool) -> None:
    buckets = Buckets([(64, 64), (48, 80), (80, 48)])
    chain = v1.Compose([buckets.crop(random=random), v1.PILToTensor()])
    theirs = batches(store, "dali", chain, batch_by=buckets)
    assert len({images.shape[2:] for images, _ in theirs}) > 1
    close(theirs, batches(store, "native", chain, batch_by=buckets))


def test_a_window_is_exact_to_the_pixel(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(8):
        gray = rng.integers(0, 256, (90 + i, 101), np.uint8)
        (tmp_path / "x").mkdir(exist_ok=True)
        Image.fromarray(gray).save(tmp_path / "x" / f"{i}.jpg", quality=100)
    for transform in (v1.RandomCrop(64), v1.RandomCrop(100, padding=30, pad_if_needed=True)):
        chain = v1.Compose([transform, v1.RandomHorizontalFlip(), v1.PILToTensor()])
        dataset = ImageFolder(str(tmp_path), transform=chain)
        ((theirs, _),), ((ours, _),) = batches(dataset, "dali"), batches(dataset, "native")
        off = (theirs.int() - ours.int()).abs()
        assert off.max() <= 2
        # noise: a window that lies elsewhere by a pixel is another image
        assert (theirs.int().roll(1, dims=3) - ours.int()).abs().float().mean() > 30


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_table_and_erasing_come_behind_it(store: Path, dtype: Any, memory_format: Any) -> None:
    given = {"transform": FLOAT, "dtype": dtype, "memory_format": memory_format}
    for (theirs, _), (ours, _) in zip(
        batches(store, "dali", **given), batches(store, "native", **given), strict=True
    ):
        assert theirs.dtype == ours.dtype and theirs.stride() == ours.stride()
        assert (theirs.float() - ours.float()).abs().mean() < 0.5 / 255 / min(STD)


def jpeg(mode: str = "RGB", size: tuple[int, int] = (90, 70), **options: Any) -> bytes:
    rng = np.random.default_rng(size[0])
    small = Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).resize(size)
    file = io.BytesIO()
    small.convert(mode).save(file, options.pop("format", "JPEG"), **options)
    return file.getvalue()


def damaged() -> bytes:
    """Whole by its first and last bytes and by its header; its Huffman tables are nonsense."""
    data = bytearray(jpeg())
    at = data.index(b"\xff\xc4")
    data[at + 5 : at + 21] = b"\xff" * 16
    return bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sixteen small JPEGs."""
    (tmp_path / "x").mkdir()
    for i in range(16):
        (tmp_path / "x" / f"{i:02}.jpg").write_bytes(jpeg(size=(80 + i, 70 + i)))
    return tmp_path


ROTATED = Image.Exif()
ROTATED[0x112] = 6

KINDS = {
    "gray.jpg": jpeg("L"),
    "progressive.jpg": jpeg(progressive=True),
    "4:2:0.jpg": jpeg(subsampling=2),
    "restart.jpg": jpeg(restart_marker_blocks=2),
    "cmyk.jpg": jpeg("CMYK"),
    "alpha.png": jpeg("RGBA", format="PNG"),
    "palette.png": jpeg("P", format="PNG"),
    "pixels.bmp": jpeg(format="BMP"),
    "lossless.webp": jpeg(format="WEBP", lossless=True),
    "orientation.jpg": jpeg(exif=ROTATED),
    "behind.jpg": jpeg() + b"something behind it",
}  # fmt: skip


def test_what_the_library_is_not_given_joins_the_batch(folder: Path) -> None:
    for name, data in KINDS.items():
        (folder / "x" / name).write_bytes(data)
    dataset = ImageFolder(str(folder), transform=UINT8[0])
    theirs, ours = (batches(dataset, e, batch_size=27) for e in ("dali", "native"))
    close(theirs, ours)
    exact = [os.path.basename(path) for path, _ in dataset.samples]
    for name in ("cmyk.jpg", "alpha.png", "palette.png", "pixels.bmp", "lossless.webp"):
        at = exact.index(name)
        assert torch.equal(theirs[0][0][at], ours[0][0][at]), name


@pytest.mark.parametrize("encode", ["dct", "raw"])
def test_stores_without_jpegs_are_decoded_natively(
    photos: Path, tmp_path: Path, encode: str
) -> None:
    pack(photos, tmp_path / "s.lmdb", encode=encode, resize=128)
    given = {"transform": UINT8[0]}
    for (theirs, _), (ours, _) in zip(
        batches(tmp_path / "s.lmdb", "dali", **given),
        batches(tmp_path / "s.lmdb", "native", **given),
        strict=True,
    ):
        assert torch.equal(theirs, ours)


@pytest.mark.parametrize("broken", ["damaged", "cut short", "gone"])
@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_broken_image_is_what_the_policy_says(folder: Path, broken: str, on_error: str) -> None:
    dataset = ImageFolder(str(folder), transform=UINT8[0])
    given = {"on_error": on_error, "max_errors": 4, "batch_size": 4}
    loaders = [FastLoader(dataset, engine=e, seed=1, num_workers=1, **given)
               for e in ("dali", "native")]  # fmt: skip
    for loader in loaders:
        assert len(list(loader)) == 4  # sizes are known from now on
    path = folder / "x" / "05.jpg"
    whole = path.read_bytes()
    if broken == "gone":
        path.unlink()
    else:
        data = jpeg(size=(85, 75))
        path.write_bytes(data[: len(data) // 2] if broken == "cut short" else _damaged(data))
    outcomes = []
    for loader in loaders:
        loader.set_epoch(1)
        made: list[Any] = []
        iterator = iter(loader)
        while True:
            try:
                made.append(next(iterator))
            except StopIteration:
                break
            except DecodeError as error:
                made.append((type(error), error.path, error.record))
            except Exception as error:
                made.append((type(error), str(error)))
        outcomes.append((made, [entry["index"] for entry in loader.stats()["errors"]]))
    (theirs, found), (ours, expected) = outcomes
    assert found == expected == ([] if on_error == "raise" else [5])
    assert len(theirs) == len(ours) == 4
    if on_error == "raise":
        assert theirs.pop(1) == ours.pop(1)
    elif broken == "damaged":
        assert torch.equal(theirs[1][0], ours[1][0])  # decoded by the CPU as a whole
    close(theirs, ours)
    path.write_bytes(whole)
    for loader in loaders:
        loader.set_epoch(2)
    close(list(loaders[0]), list(loaders[1]))


def _damaged(data: bytes) -> bytes:
    found = bytearray(data)
    at = found.index(b"\xff\xc4")
    found[at + 5 : at + 21] = b"\xff" * 16
    return bytes(found)


def test_what_it_failed_on_is_not_given_to_it_again(folder: Path) -> None:
    dataset = ImageFolder(str(folder), transform=UINT8[0])
    loader = FastLoader(dataset, 4, engine="dali", seed=1, num_workers=1, on_error="skip")
    list(loader)
    decoder = loader.inspect().engine
    assert decoder.graph.builds == 1
    path = folder / "x" / "05.jpg"
    path.write_bytes(_damaged(jpeg(size=(85, 75))))
    for _ in range(3):
        assert sum(len(labels) for _, labels in loader) == 15
    assert np.flatnonzero(decoder.for_cpu).tolist() == [5]
    assert decoder.graph.builds == 2  # one that was spoiled is built again


def test_failing_without_a_reason_is_not_gone_on_with(
    folder: Path, monkeypatch: Any, logged: list[str]
) -> None:
    """As where the library is there and what it decodes with is not."""
    from nvidia import dali

    def failing(*given: Any, **more: Any) -> None:
        raise RuntimeError("no decoder")

    monkeypatch.setattr(dali.Pipeline, "share_outputs", failing)
    dataset = ImageFolder(str(folder), transform=UINT8[0])
    loader = FastLoader(dataset, 2, engine="dali", seed=1, num_workers=1)
    iterator = iter(loader)
    ours = batches(dataset, "native", batch_size=2, seed=1)
    close([next(iterator) for _ in range(7)], ours[:7])
    assert "DALI failed on a batch, which the CPU has decoded" in "".join(logged)
    with pytest.raises(InternalError, match="8 batches in a row in which every image can be"):
        next(iterator)


@pytest.mark.parametrize("transform", UINT8[:3], ids=NAMES[:3])
def test_images_decoded_as_a_whole_give_the_same_crops(
    folder: Path, transform: Any, monkeypatch: Any
) -> None:
    """As on GPUs, whose decoders refuse boxes."""
    dataset = ImageFolder(str(folder), transform=transform)
    expected = batches(dataset, "dali")
    monkeypatch.setattr(
        dali_engine, "PipelineOptions", lambda **given: PipelineOptions(**{**given, "whole": True})
    )
    loader = FastLoader(dataset, 8, engine="dali", num_workers=2, seed=3)
    for (ours, labels), (theirs, same) in zip(loader, expected, strict=True):
        assert torch.equal(ours, theirs) and torch.equal(labels, same)
    assert loader.inspect().engine.graph._build.whole


def test_a_pipeline_that_cannot_be_made_is_told(folder: Path, monkeypatch: Any) -> None:
    from nvidia import dali

    def none(*given: Any, **more: Any) -> None:
        raise MemoryError("out of memory\non the device")

    monkeypatch.setattr(dali.Pipeline, "build", none)
    dataset = ImageFolder(str(folder), transform=UINT8[0])
    loader = FastLoader(dataset, 4, engine="dali", num_workers=1)
    with pytest.raises(
        UsageError, match=r"cannot make a pipeline on the CPU \(out of memory on the de"
    ):
        next(iter(loader))


def test_files_stay_until_the_images_made_of_them_are_complete(store: Path) -> None:
    """On a GPU DALI hands out images that are yet to be decoded, in the order of a stream."""
    loader = FastLoader(store, 4, transform=UINT8[0], engine="dali", num_workers=1, seed=1)
    next(iter(loader))
    decoder = loader.inspect().engine
    decoder.acquire(decoder)
    ticket, unwanted = (decoder.submit(np.arange(4), seed=1, epoch=0) for _ in range(2))
    images, _ = ticket.wait()
    assert images is not None and len(ticket._work.inputs["encoded"]) == 4
    unwanted.cancel()
    decoder.graph.take(unwanted._work)
    assert not unwanted._work.inputs  # nothing is made of them
    decoder.release(decoder)


def test_a_spoiled_pipeline_ends_before_the_next_one_is_built(folder: Path) -> None:
    """It has threads, and on a GPU memory; nothing else may keep it until a garbage collection."""
    dataset = ImageFolder(str(folder), transform=UINT8[0])
    loader = FastLoader(dataset, 4, engine="dali", seed=1, num_workers=1, on_error="skip")
    list(loader)
    graph = loader.inspect().engine.graph
    spoiled = weakref.ref(graph._pipe)
    path = folder / "x" / "05.jpg"
    path.write_bytes(_damaged(jpeg(size=(85, 75))))
    gc.disable()
    try:
        list(loader)
        assert graph.builds == 2 and graph._pipe is not None
        assert spoiled() is None
    finally:
        gc.enable()


def test_a_pipeline_ends_with_its_engine(store: Path) -> None:
    loader = FastLoader(store, 4, transform=UINT8[0], engine="dali", num_workers=1, seed=1)
    next(iter(loader))
    decoder = pickle.loads(pickle.dumps(loader.inspect().engine))
    decoder.acquire(loader)
    ticket = decoder.submit(np.arange(4), seed=1, epoch=0)
    ticket.settle()
    pipeline = weakref.ref(decoder.graph._pipe)
    gc.disable()
    try:
        decoder.release(loader)
        del ticket, decoder
        assert pipeline() is None
    finally:
        gc.enable()


def test_what_dali_makes_of_an_error_is_decoded_again(folder: Path, monkeypatch: Any) -> None:
    from nvidia import dali

    dataset = ImageFolder(str(folder), transform=UINT8[0])
    expected = batches(dataset, "native", batch_size=4)
    share, calls = dali.Pipeline.share_outputs, list[int]()

    def failing(*given: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError("out of memory")
        return share(*given, **more)

    monkeypatch.setattr(dali.Pipeline, "share_outputs", failing)
    loader = FastLoader(dataset, 4, engine="dali", num_workers=1, seed=3)
    close(list(loader), expected)
    assert loader.inspect().engine.graph.builds == 2


def test_a_file_replaced_by_a_larger_one_is_an_error(folder: Path) -> None:
    dataset = ImageFolder(str(folder), transform=UINT8[0])
    loader = FastLoader(dataset, 4, engine="dali", seed=1, num_workers=1)
    list(loader)
    (folder / "x" / "05.jpg").write_bytes(jpeg(size=(200, 300)))
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(DecodeError, match="not 85x75 pixels any more"):
        next(iterator)
    assert len(list(iterator)) == 2


def test_a_wrong_checksum_is_an_error(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "s.tar")
    files = FastLoader(tmp_path / "s.tar").dataset.store
    span = files.spans(np.array([5]))
    with open(files.files[0], "r+b") as file:
        file.seek(int(span.offset[0]) + int(span.nbytes[0]) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    loader = FastLoader(tmp_path / "s.tar", 8, engine="dali", transform=UINT8[0], num_workers=2,
                        on_error="skip", max_errors=1)  # fmt: skip
    assert [len(labels) for _, labels in loader] == [7, 8, 8]
    assert loader.stats()["errors"][0]["error"].startswith("ChecksumError")


def test_batches_stay_as_they_were(store: Path) -> None:
    loader = FastLoader(store, 2, engine="dali", transform=UINT8[0], num_workers=2, seed=1)
    kept, sums = [], []
    for _ in range(3):
        for images, _ in loader:
            kept.append(images)
            sums.append(int(images.long().sum()))
    assert [int(images.long().sum()) for images in kept] == sums


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_leaving_early_twice_and_a_second_loader(store: Path, workers: int, no_leaks: None) -> None:
    given = {"engine": "dali", "transform": UINT8[0], "num_workers": workers, "seed": 1}
    loader = FastLoader(store, 2, **given)
    expected = [images.clone() for images, _ in FastLoader(store, 2, **given)]
    for _ in range(2):
        loader.set_epoch(0)
        for number, (images, _) in enumerate(loader):
            assert torch.equal(images, expected[number])
            if number == 2:
                break
    second = FastLoader(store, 2, **given)
    assert all(torch.equal(a[0], b) for a, b in zip(second, expected, strict=True))
    loader.set_epoch(0)
    assert all(torch.equal(a[0], b) for a, b in zip(loader, expected, strict=True))
    assert loader.inspect().engine.graph.builds == 1


def test_two_iterators_of_one_loader_at_once(store: Path) -> None:
    loader = FastLoader(store, 4, engine="dali", transform=UINT8[1], num_workers=1)
    one, other = [list(pair) for pair in zip(*zip(loader, loader, strict=True), strict=True)]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(one, other, strict=True))


def test_batches_of_several_lengths(store: Path) -> None:
    order = [[0, 1], list(range(2, 14)), [14], list(range(15, 24))]
    given = {"batch_sampler": order, "transform": UINT8[1], "num_workers": 1}
    close(list(FastLoader(store, engine="dali", **given)),
          list(FastLoader(store, engine="native", **given)))  # fmt: skip


def test_a_loader_can_be_pickled_and_a_fork_of_its_process_is_told(store: Path) -> None:
    loader = FastLoader(store, 8, engine="dali", transform=UINT8[1], num_workers=1)
    first = list(loader)
    again = list(pickle.loads(pickle.dumps(loader)))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    child = os.fork()
    if not child:
        signal.alarm(20)  # whatever happens, nothing is left behind
        code = 1
        try:
            list(loader)
        except UsageError as error:
            code = 0 if "does not survive a fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, loader, strict=True))


def test_the_end_of_a_process_that_holds_a_loader_says_nothing(store: Path) -> None:
    script = (
        "import sys; from fastload import FastLoader\n"
        "from torchvision import transforms as t\n"
        "t = t.Compose([t.CenterCrop(64), t.PILToTensor()])\n"
        "loader = FastLoader(sys.argv[1], 8, engine=sys.argv[2], transform=t, num_workers=1)\n"
        "decoder = iter(loader) and next(iter(loader)) and loader.inspect().engine\n"
        "held = getattr(decoder, 'codec', None) or decoder.graph\n"
    )
    done = warm.run(["-c", script, store, "dali"])
    assert done.returncode == 0 and "Exception ignored" not in done.stderr, done.stderr


def test_a_forked_child_of_its_process_ends(store: Path) -> None:
    """DALI closes pipelines when a process ends, and waits for threads that a child lacks."""
    script = (
        "import os, signal, sys; from fastload import FastLoader\n"
        "from torchvision import transforms as t\n"
        "t = t.Compose([t.CenterCrop(64), t.PILToTensor()])\n"
        "loader = FastLoader(sys.argv[1], 8, engine='dali', transform=t, num_workers=1)\n"
        "next(iter(loader))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(20)\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert len(list(loader)) == 3\n"
    )
    done = warm.run(["-c", script, store])
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr


def test_resumes_at_the_next_sample(store: Path) -> None:
    given = {"engine": "dali", "transform": UINT8[0], "num_workers": 1, "seed": 5, "shuffle": True}
    loader = FastLoader(store, 4, **given)
    expected = list(loader)
    loader = FastLoader(store, 4, **given)
    iterator = iter(loader)
    next(iterator), next(iterator)
    other = FastLoader(store, 4, **given)
    other.load_state_dict(loader.state_dict())
    close(list(other), expected[2:])


def memory_after(loader: Any, batches: int) -> int:
    """Resident bytes after so many batches more."""
    left = batches
    while left > 0:
        for _ in loader:
            left -= 1
            if not left:
                break
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "total", [60, pytest.param(1000, marks=pytest.mark.long)], ids=["short", "a thousand"]
)
def test_memory_stays_flat(store: Path, total: int) -> None:
    loader = FastLoader(store, 8, engine="dali", transform=UINT8[0], num_workers=2, seed=1)
    before = memory_after(loader, 40)
    assert memory_after(loader, total) - before < 24 << 20
    assert loader.inspect().engine.graph.builds == 1


def test_explain_says_what_decodes(store: Path) -> None:
    said = FastLoader(store, engine="dali", transform=UINT8[0]).explain()
    assert said.startswith("engine: dali")
    assert "by DALI" in said and "CPU back end" in said
    jitter = v1.Compose([v1.RandomResizedCrop(64), v1.ColorJitter(0.4), v1.ToTensor()])
    loader = FastLoader(store, 8, engine="dali", transform=jitter, seed=1, num_workers=1)
    assert loader.explain().startswith("engine: native")
    assert "cannot be given our parameters for" in loader.explain()
    ours = FastLoader(store, 8, engine="native", transform=jitter, seed=1, num_workers=1)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(loader, ours, strict=True))
    assert loader.stats()["engine"] == "native"


def test_stats_name_it(store: Path) -> None:
    loader = FastLoader(store, 8, engine="dali", transform=UINT8[0], num_workers=1)
    list(loader)
    stats = loader.stats()
    assert stats["engine"] == "dali"
    assert set(stats["stages_s"]) >= {"read", "dali"}


def test_a_cache_is_refused(store: Path) -> None:
    with pytest.raises(UsageError, match="engine='dali' decodes elsewhere"):
        FastLoader(store, engine="dali", cache="ram")


def test_a_dataset_of_the_users_is_refused(store: Path) -> None:
    with pytest.raises(UsageError, match="engine='dali' cannot read this dataset"):
        FastLoader([1, 2, 3], engine="dali")
