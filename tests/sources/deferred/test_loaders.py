"""A user's Dataset over deferred images: FastLoader gives what DataLoader gives, bit for bit."""

from __future__ import annotations

import contextlib
import gc
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from PIL import Image, ImageFile, ImageOps
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import deferred_datasets as shapes
import png_files
import releases
from fastload import FastLoader, InternalError
from fastload._base.slabs import SlabRing
from fastload._engine.kernel import Kernel
from fastload._sources.deferred import single, switch
from fastload._sources.deferred.batch import BatchDecoder
from fastload._sources.deferred.completion import fill
from fastload._sources.deferred.image import DeferredImage
from sides import side_by_side

# Pillow leaves a truncated file open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return shapes.write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def damaged(tmp_path: Path) -> list[Path]:
    paths = shapes.write_photos(tmp_path, 16)
    for i in (3, 9):
        shapes.truncate(paths[i])
    paths[12].write_bytes(b"no image")
    return paths


@pytest.fixture
def truncated_images() -> Iterator[None]:
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    shapes.allow_truncated()
    yield
    ImageFile.LOAD_TRUNCATED_IMAGES = before


SHAPES = [
    shapes.Photos,
    shapes.WithHandle,
    shapes.InMemory,
    shapes.Zipped,
    shapes.TwoViews,
    shapes.Crops,
    shapes.Warped,
    shapes.SameCrop,
    shapes.InSizes,
    shapes.OwnPil,
    shapes.V2,
    shapes.AsArray,
    shapes.Thresholded,
    shapes.Keeping,
    shapes.FromArrays,
    shapes.TwoPictures,
    shapes.Reseeded,
    shapes.ManyCrops,
]


def kinds_in(batch: Any) -> set[type]:
    """The types of tensors and images in a batch."""
    if isinstance(batch, (torch.Tensor, Image.Image)):
        return {type(batch)}
    parts = batch.values() if isinstance(batch, dict) else batch
    if isinstance(batch, (list, tuple, dict)):
        return set().union(*map(kinds_in, parts))
    return set()


@pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: kind.__name__)
def test_a_dataset_gives_the_same_in_this_process(photos: list[Path], kind: type) -> None:
    batches = side_by_side(kind(photos), epochs=3, batch_size=2, shuffle=True)
    assert kinds_in([batch for batch in batches if not isinstance(batch, str)]) <= {torch.Tensor}


@pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: kind.__name__)
def test_a_batch_goes_with_the_last_reference_to_it(photos: list[Path], kind: type) -> None:
    """Memory that waits for the garbage collector is not recycled, and collecting takes time."""
    batches = iter(FastLoader(kind(photos), 3, num_workers=0))
    next(batches)  # what is made once may be in circles
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            next(batches)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.long)])
def test_every_dataset_gives_the_same_in_workers(photos: list[Path], part: int) -> None:
    for kind in SHAPES[part::2]:
        side_by_side(
            kind(photos),
            batch_size=4,
            shuffle=True,
            num_workers=2,
            worker_init_fn=shapes.seed_numpy,
        )


@pytest.mark.native
@pytest.mark.parametrize("kind", [shapes.TwoViews, shapes.Crops, shapes.Warped])
def test_views_and_warps_are_made_by_the_core(tmp_path: Path, kind: type) -> None:
    paths = [path for path in shapes.write_photos(tmp_path) if path.suffix == ".jpg"]
    colour = [path for path in paths if Image.open(path).mode == "RGB"]
    loader = FastLoader(kind(colour), batch_size=4)
    list(loader)
    stats = loader.stats()
    assert stats["images_opened"] == len(colour)
    assert (
        stats["images_deferred"]
        == len(colour) * {"TwoViews": 2, "Crops": 4, "Warped": 1}[kind.__name__]
    )
    assert not releases.slower(loader.explain())  # nothing was left to Pillow


@pytest.mark.native
def test_explain_names_the_format_of_images_that_the_core_leaves_to_pillow(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.png", bytes(75 * (1 + 3 * 90))  # more than there are
    header = png_files.header(90, 70, 8, png_files.RGB)
    pixels = png_files.chunk(b"IDAT", zlib.compress(rows))
    path.write_bytes(png_files.png([header, pixels, png_files.chunk(b"IEND")]))
    loader = FastLoader(shapes.Photos([path] * 4, F.to_tensor), 2)
    for images, _ in loader:
        assert torch.equal(images, torch.zeros(2, 3, 70, 90))
    left = "slower: 4 were left to Pillow and torch: PNG images that the core leaves to Pillow"
    assert left in loader.explain()


class WithMode(Dataset[Any]):
    """Images that ``fromarray`` makes of arrays, given a mode."""

    def __init__(self, **mode: str | None) -> None:
        self.mode = mode

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        pixels = np.random.default_rng(i).integers(0, 256, (9, 8, 3), np.uint8)
        return F.to_tensor(Image.fromarray(pixels[:, ::-1], **self.mode))


@pytest.mark.native
@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")  # by Pillow 11.3 only
@pytest.mark.parametrize(
    ("mode", "count"), [({}, 4), ({"mode": None}, 4), ({"mode": "RGB"}, 4), ({"mode": "HSV"}, 0)]
)
def test_an_array_with_the_mode_of_its_bytes_is_deferred(
    mode: dict[str, str | None], count: int
) -> None:
    side_by_side(WithMode(**mode), batch_size=2)
    if mode and Image.__version__.startswith("11.3"):
        return
    loader = FastLoader(WithMode(**mode), 2)
    with contextlib.suppress(ValueError):  # Pillow 13 knows no HSV in such an array
        list(loader)
    assert loader.stats()["images_deferred"] == count


class Operations(TorchDispatchMode):
    """Notes torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.native
@pytest.mark.parametrize(
    "make",
    [
        F.to_tensor,
        F.pil_to_tensor,
        lambda image: F.to_tensor(image).bfloat16(),
        lambda image: F.to_tensor(image).half(),
    ],
    ids=["float32", "levels", "bfloat16", "float16"],
)
def test_rows_are_copied_to_their_batch_without_torchs_threads(
    photos: list[Path], make: Callable[[Any], torch.Tensor]
) -> None:
    # Beside workers that have every CPU, each wake-up of those threads takes milliseconds.
    colour = [path for path in photos if path.suffix == ".jpg" and Image.open(path).mode == "RGB"]
    paths = (colour * 6)[:6]

    def tensors() -> list[torch.Tensor]:
        small = [Image.open(path).convert("RGB").resize((60, 44)) for path in paths]
        # Of two colours, which the core fills in two calls.
        return [make(ImageOps.expand(one, 2, (7 * (i % 2),) * 3)) for i, one in enumerate(small)]

    expected = torch.stack(tensors())
    with switch.deferring():
        rows = tensors()
        for place in (0, 4):
            rows[place].sum()
        batch = torch.stack(rows)
    decoder = BatchDecoder(0, SlabRing(1))
    with Operations() as operations:
        found = fill(decoder, batch).result()
    assert found.stride() == expected.stride()
    assert torch.equal(found, expected)
    assert decoder.counts.native == 4
    assert not [name for name in operations.names if name.startswith(("copy_.", "index_put"))]


class Gray(shapes.Photos):
    """Asks for pixels."""

    def __getitem__(self, i: int) -> Any:
        return np.array(Image.open(self.paths[i]).convert("L").resize((20, 20)))


@pytest.mark.native
@pytest.mark.parametrize("kind", [shapes.Photos, pytest.param(Gray, marks=releases.array_errors)])
def test_a_bug_where_the_core_is_called_is_not_taken_for_a_damaged_image(
    photos: list[Path], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(*args: Any, **kwargs: Any) -> None:
        raise AttributeError("this core has no BatchSpec")

    list(FastLoader(kind(photos), batch_size=4))  # what is exchanged has proved itself
    monkeypatch.setattr(Kernel, "submit", submit)
    for least in ("LEAST_PIXELS", "LEAST_CHANGED"):
        monkeypatch.setattr(single, least, 0)
    with pytest.raises(InternalError, match="this core has no BatchSpec"):
        list(FastLoader(kind(photos), batch_size=4))


@pytest.mark.native
@pytest.mark.parametrize("workers", [0, 1])
def test_a_core_of_another_version_is_noticed(
    photos: list[Path], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stale:
        """A job without the CPU time that it took."""

        def __init__(self, job: Any) -> None:
            self.wait, self.cancel, self.done = job.wait, job.cancel, False

    submit = Kernel.submit
    monkeypatch.setattr(Kernel, "submit", lambda *args, **given: Stale(submit(*args, **given)))
    with pytest.raises(InternalError, match="cpu_ns"):
        list(FastLoader(shapes.Photos(photos), batch_size=4, num_workers=workers))


def test_persistent_workers_give_the_same_in_every_epoch(photos: list[Path]) -> None:
    side_by_side(
        shapes.TwoViews(photos),
        epochs=3,
        batch_size=4,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
        generator=lambda: torch.Generator().manual_seed(4),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_users_collate_fn_gets_what_it_can_stack(photos: list[Path], workers: int) -> None:
    side_by_side(shapes.Photos(photos), batch_size=4, collate_fn=shapes.stack, num_workers=workers)
    side_by_side(shapes.Images(photos), batch_size=4, collate_fn=shapes.late, num_workers=workers)


def test_single_samples_and_samples_as_they_are_come_plain(photos: list[Path]) -> None:
    side_by_side(shapes.NoConvert(photos), batch_size=None)
    side_by_side(shapes.NoConvert(photos), batch_size=1, num_workers=1)
    for workers in (0, 1):
        loader = FastLoader(
            shapes.Images(photos), 4, collate_fn=shapes.as_they_are, num_workers=workers
        )
        expected = DataLoader(shapes.Images(photos), 4, collate_fn=shapes.as_they_are)
        for ours, theirs in zip(loader, expected, strict=True):
            for (image, i), (other, j) in zip(ours, theirs, strict=True):
                assert type(image) is Image.Image
                assert (i, image.tobytes()) == (j, other.tobytes())


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_users_own_except_sees_a_damaged_image(damaged: list[Path], workers: int) -> None:
    side_by_side(
        shapes.Recovering(damaged),
        batch_size=3,
        shuffle=True,
        num_workers=workers,
        worker_init_fn=shapes.seed_numpy,
        persistent_workers=workers > 0,
    )


@pytest.mark.parametrize(("workers", "persistent"), [(1, False), (3, False), (2, True)])
def test_a_batch_is_made_again_wherever_it_is_in_the_order(
    tmp_path: Path, workers: int, persistent: bool
) -> None:
    paths = shapes.write_photos(tmp_path, 31)
    for i in (0, 6, 7, 12, 29, 30):
        shapes.truncate(paths[i])
    side_by_side(
        shapes.Recovering(paths),
        batch_size=6,
        num_workers=workers,
        worker_init_fn=shapes.seed_numpy,
        persistent_workers=persistent,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_raised_at_its_batch_and_the_others_follow(
    damaged: list[Path], workers: int
) -> None:
    side_by_side(shapes.Photos(damaged), batch_size=3, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("on_error", ["skip", "replace", "refill"])
def test_on_error_sees_a_damaged_image(damaged: list[Path], on_error: Any, workers: int) -> None:
    made = []
    for engine in ("torch", "auto"):
        random.seed(3), np.random.seed(3), torch.manual_seed(3)
        loader = FastLoader(
            shapes.Photos(damaged), 4, num_workers=workers, on_error=on_error, max_errors=9,
            seed=5, engine=engine,
        )  # fmt: skip
        made.append([batch[1].tolist() for batch in loader])
        assert [entry["index"] for entry in loader.stats()["errors"]] == [3, 9, 12]
    assert made[0] == made[1]


def test_truncated_images_are_loaded_where_pillow_is_told_to(
    damaged: list[Path], truncated_images: None
) -> None:
    side_by_side(shapes.Photos([*damaged[:12], *damaged[13:]]), batch_size=5)


def test_a_file_that_changes_between_opening_and_decoding_is_opened_again(
    tmp_path: Path,
) -> None:
    paths = shapes.write_photos(tmp_path, 4)[:3]

    class Changing(shapes.Photos):
        changed = False

        def __getitem__(self, i: int) -> Any:
            image = Image.open(self.paths[i]).convert("RGB").resize((16, 16))
            if not self.changed:
                self.changed = True
                Image.new("RGB", (60, 50), "red").save(self.paths[i])
            return shapes.F.to_tensor(image), i

    loader = FastLoader(Changing(paths), batch_size=3)
    images, _ = next(iter(loader))
    assert images[0, 0].min() > 0.9  # the second opening, which made the batch again
    assert loader.stats()["images_deferred"] == 0


def test_a_resumed_epoch_continues_with_the_same_images(photos: list[Path]) -> None:
    def loader() -> FastLoader[Any]:
        return FastLoader(shapes.Photos(photos), 4, shuffle=True, seed=2, num_workers=1)

    whole = list(loader())
    first = loader()
    batches = iter(first)
    next(batches), next(batches)
    rest = loader()
    rest.load_state_dict(first.state_dict())
    for ours, expected in zip(rest, whole[2:], strict=True):
        assert torch.equal(ours[0], expected[0])
        assert torch.equal(ours[1], expected[1])


def test_switched_off_nothing_is_deferred(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Looking(shapes.Photos):
        def __getitem__(self, i: int) -> Any:
            with Image.open(self.paths[i]) as image:
                seen.append(isinstance(image, DeferredImage))
            return i

    next(iter(FastLoader(Looking(photos), 2)))
    assert seen == [True, True]
    next(iter(FastLoader(Looking(photos), 2, engine="torch")))
    next(iter(FastLoader(Looking(photos), 2, engine="torch")))
    monkeypatch.setenv("FASTLOAD_DEFER", "0")
    next(iter(FastLoader(Looking(photos), 2)))
    assert seen[2:] == [False] * 6


def test_a_dataset_that_opens_no_image_is_soon_left_alone() -> None:
    from fastload._sources.deferred.thread_state import THREAD

    class Numbers(torch.utils.data.Dataset[int]):
        deferring: list[bool | None] = []

        def __len__(self) -> int:
            return 200

        def __getitem__(self, i: int) -> int:
            self.deferring.append(THREAD.deferring)
            return i

    assert len(list(FastLoader(Numbers(), 1))) == 200
    assert sum(map(bool, Numbers.deferring)) < 12


class MeanOfTensor(shapes.Photos):
    """Looks at the values of the tensor that the transform gives."""

    def __getitem__(self, i: int) -> Any:
        image, label = super().__getitem__(i)
        return image - float(image.mean()), label


def test_explain_and_stats_say_what_asked_for_pixels(photos: list[Path]) -> None:
    loader = FastLoader(shapes.AsArray(photos[:4]), 2)
    list(loader)
    text = loader.explain()
    assert "deferred_datasets.py:" in text
    assert "asked for the pixels of 4 images" in text
    assert "do it to the tensor that the transform gives, or to the whole batch" in text
    tensors = FastLoader(MeanOfTensor(photos[:4]), 2)
    list(tensors)
    assert "do it to the PIL image, before it becomes a tensor" in tensors.explain()
    stats = loader.stats()
    assert (stats["images_opened"], stats["images_deferred"]) == (4, 0)
    assert stats["images_materialised"] == 4
    plain = FastLoader(shapes.Photos(photos[:6]), 3)
    list(plain)
    assert plain.stats()["images_deferred"] == 6
    assert "CMYK" in plain.explain()


def test_leaving_early_leaves_nothing_behind(photos: list[Path], no_leaks: None) -> None:
    loader = FastLoader(shapes.Photos(photos), 2, num_workers=2)
    batches = iter(loader)
    next(batches)
    del batches, loader
