"""Each transform of pixels: native, and equal to torchvision's."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2

import torchvision_oracle
from fastload._base.slabs import SlabRing
from fastload._engine.image_engine import EngineOptions
from fastload._engine.registry import NATIVE, make_engine
from fastload._transforms.geometry.draws import Numbers
from fastload._transforms.recognise import Plan, recognise
from fastload.storage.folder import FolderStore

pytestmark = pytest.mark.native

SIZES = [(60, 45), (45, 61), (97, 33), (40, 40), (1, 1), (2, 7), (64, 3)]
POLICY = v1.AutoAugmentPolicy

EACH: dict[str, Callable[[Any], Any]] = {
    "brightness": lambda v: v.ColorJitter(brightness=0.9),
    "contrast": lambda v: v.ColorJitter(contrast=(0.0, 3.0)),
    "saturation": lambda v: v.ColorJitter(saturation=2.0),
    "hue": lambda v: v.ColorJitter(hue=0.5),
    "fixed hue": lambda v: v.ColorJitter(hue=(-0.2, -0.2)),
    "jitter": lambda v: v.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "jitter without hue": lambda v: v.ColorJitter(0.4, 0.4, 0.4),
    "no jitter": lambda v: v.ColorJitter(),
    "grayscale": lambda v: v.Grayscale(3),
    "random grayscale": lambda v: v.RandomGrayscale(0.5),
    "invert": lambda v: v.RandomInvert(),
    "solarize": lambda v: v.RandomSolarize(99.5),
    "solarize all": lambda v: v.RandomSolarize(0, p=1.0),
    "posterize": lambda v: v.RandomPosterize(3),
    "autocontrast": lambda v: v.RandomAutocontrast(0.8),
    "equalize": lambda v: v.RandomEqualize(0.8),
    "sharpen": lambda v: v.RandomAdjustSharpness(2.7, p=0.9),
    "soften": lambda v: v.RandomAdjustSharpness(0, p=0.9),
    "vertical flip": lambda v: v.RandomVerticalFlip(),
    "rotation": lambda v: v.RandomRotation(30),
    "rotation bilinear": lambda v: v.RandomRotation((-180, 180), Mode.BILINEAR, fill=(9, 99, 200)),
    "rotation bicubic": lambda v: v.RandomRotation(90, Mode.BICUBIC, fill=7),
    "rotation about a corner": lambda v: v.RandomRotation(20, center=(3, 5)),
    "no rotation": lambda v: v.RandomRotation(0),
    "half a turn": lambda v: v.RandomRotation((180, 180), Mode.BILINEAR),
    "a quarter turn": lambda v: v.RandomRotation((90, 90)),
    "a quarter turn back": lambda v: v.RandomRotation((-90, -90), Mode.BILINEAR),
    "affine": lambda v: v.RandomAffine(25, (0.2, 0.3), (0.5, 2.0), 20),
    "affine of four shears": lambda v: v.RandomAffine(0, shear=(-9, 9, -30, 3), fill=(1, 2, 3)),
    "affine bilinear": lambda v: v.RandomAffine(
        (5, 60), (0.1, 0), (0.9, 1.1), interpolation=Mode.BILINEAR, center=(7, 7)
    ),
    "affine bicubic": lambda v: v.RandomAffine(40, scale=(0.5, 3), interpolation=Mode.BICUBIC),
    "translation alone": lambda v: v.RandomAffine(0, translate=(0.4, 0.4)),
    "scaling alone": lambda v: v.RandomAffine(0, scale=(0.3, 3.0)),
    "far away": lambda v: v.RandomAffine((20, 20), scale=(1e-4, 2e-4)),
    "RandAugment": lambda v: v.RandAugment(),
    "RandAugment, strong": lambda v: v.RandAugment(3, 27, fill=[9, 8, 7]),
    "RandAugment bilinear": lambda v: v.RandAugment(4, interpolation=Mode.BILINEAR),
    "TrivialAugmentWide": lambda v: v.TrivialAugmentWide(),
    "TrivialAugmentWide bicubic": lambda v: v.TrivialAugmentWide(interpolation=Mode.BICUBIC),
    "AutoAugment": lambda v: v.AutoAugment(),
    "AutoAugment CIFAR10": lambda v: v.AutoAugment(POLICY.CIFAR10, fill=128),
    "AutoAugment SVHN": lambda v: v.AutoAugment(POLICY.SVHN, interpolation=Mode.BILINEAR),
    "AugMix": lambda v: v.AugMix(),
    "AugMix, strong": lambda v: v.AugMix(10, 2, 4, alpha=0.3, fill=[9, 8, 200]),
    "AugMix nearest": lambda v: v.AugMix(7, interpolation=Mode.NEAREST, alpha=2.5, fill=77),
    "AugMix of some": lambda v: v.AugMix(5, 4, 1, all_ops=False, interpolation=Mode.NEAREST),
    "expanding rotation": lambda v: v.RandomRotation(180, expand=True),
    "expanding rotation, bicubic": lambda v: v.RandomRotation(
        (-50, 80), Mode.BICUBIC, expand=True, fill=(9, 99, 200)
    ),
    "expanding rotation about a corner": lambda v: v.RandomRotation(
        60, Mode.BILINEAR, expand=True, center=(3, 5)
    ),
    "expanding quarter turn": lambda v: v.RandomRotation((90, 90), expand=True),
    "expanding quarter turn back": lambda v: v.RandomRotation((270, 270), expand=True),
    "expanding, by chance": lambda v: v.RandomApply([v.RandomRotation(70, expand=True)], p=0.5),
    "apply": lambda v: v.RandomApply([v.ColorJitter(0.4, 0.4), v.RandomInvert()], p=0.5),
    "choice": lambda v: v.RandomChoice(
        [
            v.RandomSolarize(9),
            v.ColorJitter(0.5, 0.5),
            v.RandomRotation(9),
            v.RandomHorizontalFlip(),
        ]
    ),
    "weighted choice": lambda v: v.RandomChoice(
        [v.RandomInvert(1.0), v.Compose([v.RandomEqualize(1.0), v.RandomInvert()])], p=[0.1, 0.9]
    ),
    "order": lambda v: v.RandomOrder(
        [v.RandomAutocontrast(), v.ColorJitter(0.3, 0.3, 0.3), v.RandomVerticalFlip()]
    ),
    "nest": lambda v: v.RandomApply(
        [
            v.RandomOrder(
                [
                    torch.nn.Sequential(v.Grayscale(3), v.RandomRotation(4)),
                    v.RandomChoice([v.RandAugment(1), v.RandomPosterize(2)]),
                ]
            )
        ],
        p=0.7,
    ),
}


@pytest.fixture(scope="session")
def bitmaps(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    """Pictures of many sizes as BMP files, which are read without loss."""
    folder = tmp_path_factory.mktemp("bitmaps") / "a"
    folder.mkdir()
    for number, size in enumerate(SIZES):
        torchvision_oracle.picture(*size, seed=number).save(folder / f"{number}.bmp")
    return FolderStore(str(folder.parent))


def made(store: FolderStore, plan: Plan, index: int, seed: int = 0) -> torch.Tensor:
    decoder = make_engine(NATIVE, store, plan, EngineOptions(threads=0, ring=SlabRing(2)))
    return decoder.submit(np.array([index]), seed=seed, epoch=0).result()[0].clone()


def pictures(store: FolderStore) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in store.files]


def check(chain: Any, store: FolderStore, which: list[int], seeds: int, within: int = 0) -> None:
    """The core's differ from torchvision's by ``within`` levels at most."""
    plan = recognise(chain)
    assert isinstance(plan, Plan), plan
    images = pictures(store)
    for index in which:
        for seed in range(seeds):
            theirs = torchvision_oracle.sample(chain, images[index], index, seed)
            theirs = theirs.as_subclass(torch.Tensor)
            ours = made(store, plan, index, seed)
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            if within:
                assert (ours.int() - theirs.int()).abs().max() <= within, (index, seed)
            else:
                assert torch.equal(ours, theirs), (index, seed)


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", EACH)
def test_a_transform_by_itself_is_torchvisions(
    name: str, version: Any, bitmaps: FolderStore, count: Callable[[int, int], int]
) -> None:
    chain = version.Compose([EACH[name](version), version.PILToTensor()])
    check(chain, bitmaps, list(range(len(SIZES))), seeds=count(2, 20))


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
def test_a_blur_is_within_a_level(version: Any, bitmaps: FolderStore) -> None:
    for kernel, sigma in ((5, (0.1, 2.0)), ((23, 3), 1.5), ((1, 31), (0.5, 9.0))):
        chain = version.Compose([version.GaussianBlur(kernel, sigma), version.PILToTensor()])
        check(chain, bitmaps, [0, 1, 2, 3], seeds=4, within=1)


def test_an_image_that_torch_cannot_reflect_is_refused(bitmaps: FolderStore) -> None:
    from fastload.errors import DataError

    plan = recognise(v1.Compose([v1.GaussianBlur(5), v1.PILToTensor()]))
    with pytest.raises(RuntimeError):
        v1.GaussianBlur(5)(pictures(bitmaps)[5])
    with pytest.raises(DataError, match="GaussianBlur needs an image larger"):
        made(bitmaps, plan, 5)


FLOATS = [v1.ToTensor(), v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
ERASED = {
    "zeros": [*FLOATS, v1.RandomErasing(0.8)],
    "a value": [*FLOATS, v1.RandomErasing(0.8, value=1.25)],
    "a colour, then normalised": [
        v1.ToTensor(),
        v1.RandomErasing(0.8, value=(0.1, 0.5, 2.0)),
        v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    ],
    "noise": [*FLOATS, v1.RandomErasing(0.8, value="random")],
    "noise, then normalised": [v1.ToTensor(), v1.RandomErasing(0.8, value="random"), FLOATS[1]],
    "noise in half precision": [*FLOATS, v1.RandomErasing(1.0, value="random")],
    "twice": [*FLOATS, v1.RandomErasing(0.9, value=5), v1.RandomErasing(0.9, value="random")],
    "levels": [v1.PILToTensor(), v1.RandomErasing(0.8, value=77)],
    "v2": [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5], [0.5]),
        v2.RandomErasing(0.8, value=[1, 2, 3]),
        v2.RandomErasing(0.5, value="random"),
    ],
    "v2 in half precision": [
        v2.ToImage(),
        v2.ToDtype(torch.float16, scale=True),
        v2.RandomErasing(0.8, value="random"),
        v2.ToDtype(torch.bfloat16),
    ],
    "of a small part, after colours": [
        v1.ColorJitter(0.4, 0.4),
        *FLOATS,
        v1.RandomErasing(0.9, (1e-4, 0.01), (0.1, 9.0)),
    ],
}


@pytest.mark.parametrize("name", ERASED)
def test_erasing_is_torchvisions(
    name: str, bitmaps: FolderStore, count: Callable[[int, int], int]
) -> None:
    check(v2.Compose(ERASED[name]), bitmaps, list(range(len(SIZES))), seeds=count(3, 20))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_layout_and_dtype_of_a_batch(
    bitmaps: FolderStore, channels_last: bool, dtype: torch.dtype
) -> None:
    chain = v1.Compose(
        [
            v1.RandomResizedCrop(32),
            v1.RandAugment(),
            v1.RandomHorizontalFlip(),
            *FLOATS,
            v1.RandomErasing(1.0, value="random"),
        ]
    )
    plan = recognise(chain).with_output(dtype)
    records = np.arange(len(SIZES))
    options = EngineOptions(threads=2, ring=SlabRing(2), channels_last=channels_last)
    decoder = make_engine(NATIVE, bitmaps, plan, options)
    batch = decoder.submit(records, seed=5, epoch=1).result()
    for index, image in enumerate(pictures(bitmaps)):
        theirs = torchvision_oracle.sample(chain, image, index, seed=5, epoch=1)
        assert torch.equal(batch[index], theirs.to(dtype))


def test_instruction_sets_give_the_same_bits() -> None:
    from instruction_sets import SIMD
    from native_core import core

    rng = np.random.default_rng(1)
    image = np.asarray(torchvision_oracle.picture(131, 77))
    for code in range(34):
        values = np.zeros((1, 14))
        if code in (1, 2, 3, 5, *range(22, 26)):
            values[0, 0] = rng.uniform(0, 3)
        elif code == 9:
            values[0, 0] = 3
        elif code in (4, 8, 28):
            values[0, 0] = 77
            values[0, 1] = code > 20
        elif code == 32:
            values[0, :12] = 3, 5, 2.5, *range(9)
        elif code == 33:
            values[0, :10] = 2, 1, 0.1, 0.2, 0.5, 0.2, 0.1, 0.2, 0.6, 0.3
        elif code == 31:
            values = np.array([[1.0, *rng.integers(0, 1 << 32, 64)]])
        elif code == 27:
            values[0, :11] = 0.9, 0.3, -5, -0.3, 1.1, 9, 2, 2, 1, 2, 3
        elif code == 19:
            values[0, :12] = 0.9, 0.3, -5, -0.3, 1.1, 9, 3, 1, 2, 3, 131, 77
        elif code == 17:
            values[0, :10] = 0.9, 0.3, -5, -0.3, 1.1, 9, 3, 1, 2, 3
        elif code == 18:
            values[0, :6] = 2, 1, 0.4, 0.2, 0.1, 0.5
            values[0, 6] = 0.25
        elif code == 29:
            values[0, :3] = 3.3, 0.7, 1
        elif code == 30:
            values[0] = 0.9, 0.3, -5, -0.3, 1.1, 9, 1e-3, -2e-3, 3, 1, 2, 3, 131, 77
        if code in (15, 16):
            continue  # these change the shape of an image
        results = []
        for simd in SIMD:
            if core().set_simd(simd):
                results.append(image.copy())
                core().pixels(results[-1], np.array([code], np.int32), values)
        assert core().set_simd("")
        assert all(np.array_equal(results[0], result) for result in results[1:]), code


def test_sequences_of_frames(bitmaps: FolderStore) -> None:
    for chain in (
        [v1.Resize(30), v1.ColorJitter(0.5, 0.5, 0.5), v1.RandomResizedCrop(20), v1.RandomInvert()],
        [v1.RandomRotation(20), v1.RandomResizedCrop((17, 23), interpolation=Mode.NEAREST)],
        [v1.RandomRotation(80, expand=True), v1.Resize((20, 33)), v1.AugMix()],
        [
            v1.RandomResizedCrop(30),
            v1.RandomRotation(80, expand=True),
            v1.CenterCrop(28),
            v1.RandomApply([v1.RandomRotation(30, expand=True, fill=7)], p=0.5),
            v1.Pad(2, fill=5),
            v1.RandomCrop(40, pad_if_needed=True),
            v1.RandomHorizontalFlip(),
        ],
        [v1.Resize(40), v1.RandomHorizontalFlip(), v1.Resize((20, 33), Mode.LANCZOS)],
        [v1.Pad(3, fill=(1, 2, 3)), v1.Resize((20, 33), Mode.BOX), v1.Pad((1, 2), fill=9)],
        [v1.Grayscale(3), v1.RandomCrop(50, pad_if_needed=True), v1.RandomHorizontalFlip()],
        [v1.RandomHorizontalFlip(), v1.RandomEqualize(), v1.Resize(9), v1.Resize(21, Mode.BICUBIC)],
    ):
        check(v1.Compose([*chain, v1.PILToTensor()]), bitmaps, [0, 1, 2, 3, 6], seeds=4)
        check(v1.Compose([*chain, *FLOATS]), bitmaps, [0, 1, 3], seeds=2)


def test_a_turned_image_that_would_be_too_large_names_its_record() -> None:
    from fastload._transforms import sample_params
    from fastload.errors import DataError

    plan = recognise(
        v1.Compose([v1.RandomRotation((45, 45), expand=True), v1.Resize((9, 9)), v1.ToTensor()])
    )
    sizes = np.array([[300, 200], [50000, 300]], np.int32)
    with pytest.raises(DataError, match=r"gives more than .* this 50000x300 image") as info:
        sample_params.draw(plan, sizes, Numbers(seed=0, epoch=0, indices=np.array([5, 8])))
    assert info.value.record == 8


def test_turned_images_of_one_size_are_a_list_for_loaders_that_can_take_one(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    from fastload import FastLoader, PackedDataset, open_writer
    from fastload.storage import Record

    images = [torchvision_oracle.picture(40, 30, i) for i in range(4)]
    with open_writer(tmp_path / "a.lmdb", classes=[]) as writer:
        for i, image in enumerate(images):
            data = io.BytesIO()
            image.save(data, "BMP")
            writer.append([Record(data=data.getvalue(), label=i, key=f"{i}", width=40, height=30)])
    chain = v1.Compose([v1.RandomRotation(40, expand=True), v1.PILToTensor()])
    dataset = PackedDataset(tmp_path / "a.lmdb", transform=chain, seed=3)
    dataset.set_epoch(0)
    (batch,) = DataLoader(dataset, batch_size=4, collate_fn=list)
    assert len({made.shape for made, _ in batch}) > 1
    for i, (made, _) in enumerate(batch):
        assert torch.equal(made, torchvision_oracle.sample(chain, images[i], i, 3, 0))
    assert "sizes: expand=True gives each image" in FastLoader(dataset, batch_size=4).explain()
    fixed = v1.Compose([v1.RandomRotation(40, expand=True), v1.Resize((9, 9)), v1.ToTensor()])
    assert "sizes:" not in FastLoader(tmp_path / "a.lmdb", transform=fixed).explain()


def test_crops_stay_when_colours_are_added() -> None:
    from fastload._transforms import sample_params

    crops = [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip()]
    plain = recognise(v1.Compose([*crops, v1.ToTensor()]))
    colours = recognise(v1.Compose([crops[0], v1.ColorJitter(0.5), crops[1], v1.ToTensor()]))
    sizes = np.full((50, 2), 90, np.int32)
    draws = [
        sample_params.draw(plan, sizes, Numbers(seed=3, epoch=1, indices=np.arange(50)))
        for plan in (plain, colours)
    ]
    assert np.array_equal(draws[0][0].box, draws[1][0].box)
    assert draws[1][1] is not None
    assert np.array_equal(draws[0][0].flip, draws[1][1].frames[:, 0, 8])


def test_threads_and_batches_do_not_matter(photos: Path) -> None:
    from torchvision.datasets import ImageFolder

    from fastload import FastLoader

    chain = v1.Compose([v1.RandomResizedCrop(64), v1.RandAugment(), *FLOATS, v1.RandomErasing(0.5)])
    batches = []
    for threads, size in ((0, 24), (1, 7), (4, 5)):
        loader = FastLoader(
            ImageFolder(photos, chain),
            batch_size=size,
            num_workers=threads,
            seed=4,
            engine="native",
        )
        batches.append(torch.cat([images for images, _ in loader]))
        assert "RandAugment" in loader.explain()
    assert torch.equal(batches[0], batches[1])
    assert torch.equal(batches[0], batches[2])
