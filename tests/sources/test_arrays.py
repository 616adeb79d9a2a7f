"""torchvision's datasets in memory: natively what DataLoader gives, and torch's machinery else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import torchvision_oracle
from array_datasets import COLOUR, COUNT, GRAY, cifar, mnist, qmnist, stl10, svhn
from batches import MEAN, STD
from combinations import combinations
from fastload import FastLoader, UsageError
from sides import assert_same

TO_TENSOR = v1.ToTensor()
ONE = v1.Compose([v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))])
CHAINS = {
    "to tensor": v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "resize": v1.Compose([v1.Resize(40), v1.CenterCrop((37, 33)), v1.ToTensor()]),
    "pad": v1.Compose([v1.Pad(3, fill=9), v1.ToTensor()]),
    "v2": v2.Compose([v2.ToImage(), v2.CenterCrop(24), v2.ToDtype(torch.float32, scale=True)]),
    "uint8": v1.Compose([v1.CenterCrop(31), v1.PILToTensor()]),
}
GRAY_CHAINS = {
    "to tensor": ONE,
    "resize": v1.Compose([v1.Resize(40), v1.CenterCrop((37, 33)), v1.ToTensor()]),
    "pad": v1.Compose([v1.Pad(2, fill=9), v1.ToTensor()]),
    "uint8": v1.PILToTensor(),
    "rotated": v1.Compose([v1.RandomRotation((30, 30), fill=7), v1.ToTensor()]),
    "bilinear": v1.Compose(
        [v1.RandomRotation((30, 30), v1.InterpolationMode.BILINEAR), v1.ToTensor()]
    ),
    "three channels": v1.Compose([v1.Grayscale(3), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "v2": v2.Compose([v2.RGB(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
    "inverted": v1.Compose([v1.RandomInvert(1.0), v1.RandomVerticalFlip(1.0), v1.ToTensor()]),
}


def both(dataset: Any, **arguments: Any) -> None:
    """FastLoader gives what DataLoader gives, from the same generator, and not through torch."""
    arguments = {"batch_size": 8, **arguments}
    theirs = DataLoader(dataset, generator=torch.Generator().manual_seed(3), **arguments)
    generator = torch.Generator().manual_seed(3)
    ours = FastLoader(dataset, generator=generator, **arguments)
    assert ours.explain().startswith("engine: native")
    assert_same(list(ours), list(theirs))


def declined(dataset: Any, reason: str) -> None:
    loader = FastLoader(dataset, batch_size=8)
    assert "engine: torch" in loader.explain()
    assert reason in loader.explain()


@pytest.mark.native
@pytest.mark.parametrize("name", COLOUR)
@pytest.mark.parametrize("chain", CHAINS)
def test_colour_images_are_those_of_torch(name: str, chain: str) -> None:
    both(COLOUR[name](CHAINS[chain]), shuffle=True)


@pytest.mark.native
@pytest.mark.parametrize("chain", GRAY_CHAINS)
def test_gray_images_are_those_of_torch(chain: str) -> None:
    both(mnist(GRAY_CHAINS[chain]), shuffle=True)


@pytest.mark.parametrize("name", GRAY)
def test_gray_images_have_one_channel(name: str) -> None:
    dataset = GRAY[name](ONE)
    both(dataset)
    images, _ = next(iter(FastLoader(dataset, batch_size=8)))
    assert images.shape == (8, 1, 28, 28)
    assert images.is_contiguous()


@pytest.mark.usefixtures("simd")
@pytest.mark.native
def test_every_instruction_set_gives_the_same() -> None:
    for chain in GRAY_CHAINS.values():
        both(mnist(chain))
    for chain in CHAINS.values():
        both(svhn(chain))
        both(cifar(chain))


@pytest.mark.native
def test_random_transforms_draw_for_each_sample() -> None:
    chain = v1.Compose(
        [
            v1.RandomCrop(32, padding=4),
            v1.RandomHorizontalFlip(),
            v1.ColorJitter(0.4),
            v1.ToTensor(),
        ]
    )
    gray = v1.Compose(
        [v1.RandomAffine(20, (0.1, 0.2), (0.8, 1.1)), v1.RandomCrop(20), *ONE.transforms]
    )
    for dataset, transform in ((cifar(chain), chain), (mnist(gray), gray)):
        loader = FastLoader(dataset, batch_size=8, seed=4)
        images = torch.cat([images for images, _ in loader])
        for index, image in enumerate(images):
            source = Image.fromarray(np.asarray(dataset.data[index]))
            torch.testing.assert_close(
                image,
                torchvision_oracle.sample(transform, source, index, seed=4),
                rtol=0,
                atol=0,
            )


@pytest.mark.native
def test_erased_rectangles_on_gray_images() -> None:
    plain, erased = (
        torch.cat([images for images, _ in FastLoader(mnist(t), batch_size=8, seed=1)])
        for t in (ONE, v1.Compose([*ONE.transforms, v1.RandomErasing(1.0, value="random")]))
    )
    assert erased.shape == plain.shape
    changed = (plain != erased).flatten(1).float().mean(1)
    assert bool(((changed > 0.01) & (changed < 0.5)).all())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_layouts_and_dtypes(layout: torch.memory_format) -> None:
    for dataset in (cifar(TO_TENSOR), mnist(TO_TENSOR)):
        ours = FastLoader(dataset, batch_size=8, memory_format=layout, dtype=torch.float16)
        for (images, _), (expected, _) in zip(ours, DataLoader(dataset, batch_size=8)):
            assert images.is_contiguous(memory_format=layout)
            assert torch.equal(images, expected.to(torch.float16))


@pytest.mark.parametrize("threads", [0, 2])
def test_subsets_and_concatenations(threads: int) -> None:
    first, second = cifar(TO_TENSOR), cifar(TO_TENSOR)
    second.data = second.data[::-1].copy()  # packed HWC
    for dataset in (
        Subset(first, [5, 3, 30, 3]),
        random_split(first, [0.5, 0.5], torch.Generator().manual_seed(1))[1],
        ConcatDataset([first, second]),
        ConcatDataset([Subset(second, [1, 2]), first]),
        ConcatDataset([mnist(ONE), mnist(ONE)]),
    ):
        both(dataset, shuffle=True, num_workers=threads)


def test_images_in_memory_and_in_files_are_read_as_one(photos: Any) -> None:
    chain = v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])
    folder = datasets.ImageFolder(photos, chain)
    both(ConcatDataset([cifar(chain), folder, svhn(chain)]), shuffle=True)


def test_targets_are_those_of_torch() -> None:
    both(cifar(TO_TENSOR, lambda label: label + 0.5))
    both(mnist(TO_TENSOR, lambda label: [label, -label]))
    both(qmnist(TO_TENSOR, compat=False))
    both(qmnist(TO_TENSOR, lambda row: row[2:4], compat=False))
    noisy = cifar(TO_TENSOR)
    noisy.targets = np.array(noisy.targets)
    both(noisy)
    listed = mnist(TO_TENSOR)
    listed.targets = listed.targets.tolist()
    both(listed)


def test_a_custom_collate_fn_gets_the_samples_of_torch() -> None:
    dataset = mnist(ONE)

    def collate(samples: list[Any]) -> list[Any]:
        assert type(samples[0][1]) is int
        return [torch.stack([image for image, _ in samples]), torch.tensor([y for _, y in samples])]

    both(dataset, collate_fn=collate)


@pytest.mark.parametrize("make", [cifar, mnist, stl10])
@pytest.mark.parametrize("threads", [0, 2])
def test_what_is_changed_between_epochs_is_seen(make: Any, threads: int) -> None:
    dataset = make(TO_TENSOR)
    loader = FastLoader(dataset, batch_size=8, num_workers=threads)
    labels = dataset.labels if make is stl10 else dataset.targets
    list(loader)

    def in_place() -> None:
        dataset.data[3] = 77

    def relabel() -> None:
        labels[2] = 9

    def replace() -> None:
        dataset.data = dataset.data[:20] + 1

    def another_transform() -> None:
        dataset.transform = v1.Compose([v1.CenterCrop(20), v1.ToTensor()])

    for change in (in_place, relabel, replace, another_transform):
        change()
        assert_same(list(loader), list(DataLoader(dataset, batch_size=8)))
        assert "engine: native" in loader.explain()


def test_labels_of_another_type_are_seen_though_they_are_equal() -> None:
    dataset = cifar(TO_TENSOR)
    loader = FastLoader(dataset, batch_size=8)
    zeros_and_ones = [label % 2 for label in dataset.targets]
    for targets in (
        zeros_and_ones,
        [float(label) for label in zeros_and_ones],
        [bool(label) for label in zeros_and_ones],
        np.array(zeros_and_ones),
        torch.tensor(zeros_and_ones),
        tuple(zeros_and_ones),
        zeros_and_ones,
    ):
        dataset.targets = targets
        assert_same(list(loader), list(DataLoader(dataset, batch_size=8)))


def test_nothing_is_copied() -> None:
    from fastload._sources.source import resolve

    dataset = cifar(TO_TENSOR)
    source = resolve(dataset)
    assert not isinstance(source, str)
    assert np.shares_memory(source.store.memory()[0], dataset.data)
    assert resolve(dataset).store is source.store  # type: ignore[union-attr]


class Own(datasets.CIFAR10):
    """A user's subclass, which may do anything."""


def test_what_is_not_understood_stays_with_torch() -> None:
    declined(cifar(TO_TENSOR, kind=Own), "Own is not a dataset")
    declined(cifar(None), "PIL images")
    declined(mnist(v1.Compose([v1.RandomEqualize(), v1.ToTensor()])), "gray images")
    floats = mnist(TO_TENSOR)
    floats.data = floats.data.float()
    declined(floats, "not the uint8 tensor")
    backwards = cifar(TO_TENSOR)
    backwards.data = backwards.data[::-1]
    declined(backwards, "negative strides")
    words = cifar(TO_TENSOR)
    words.targets = [str(label) for label in words.targets]
    declined(words, "not ints")
    short = cifar(TO_TENSOR)
    short.targets = short.targets[:5]
    declined(short, "5 labels")
    unlabelled = stl10(TO_TENSOR)
    unlabelled.labels = None
    declined(unlabelled, "no labels")
    declined(ConcatDataset([cifar(TO_TENSOR), mnist(TO_TENSOR)]), "different transforms")


def darker(image: Any) -> Any:
    """Somebody's own function, on PIL images and tensors."""
    return image.point(lambda level: level // 2) if isinstance(image, Image.Image) else image / 2


def smooth(image: Image.Image) -> Image.Image:
    """Somebody's own function that Pillow has to run."""
    return image.filter(ImageFilter.MedianFilter(3))


TAILS = {
    "of PIL images": [v1.Pad(3, fill=9), smooth, v1.ToTensor()],
    "of tensors": [v1.CenterCrop(24), v1.ToTensor(), darker],
}


@pytest.mark.parametrize(
    ("name", "tail", "num_workers"), combinations([*COLOUR], [*TAILS], [0, 2], rounds=2)
)
def test_a_function_behind_them_gets_what_it_gets_in_torch(
    name: str, tail: str, num_workers: int
) -> None:
    dataset = COLOUR[name](v1.Compose(TAILS[tail]))
    arguments: Any = {"batch_size": 8, "shuffle": True, "num_workers": num_workers}
    theirs = DataLoader(dataset, generator=torch.Generator().manual_seed(3), **arguments)
    ours = FastLoader(dataset, generator=torch.Generator().manual_seed(3), **arguments)
    assert_same(list(ours), list(theirs))
    assert ours.stats()["images_from_arrays"] == COUNT
    assert ours.stats()["images_opened"] == 0
    assert f"images: {COUNT} made of arrays in the last epoch" in ours.explain()
    part = Subset(dataset, [5, 1, 3])
    assert_same(list(FastLoader(part, batch_size=2)), list(DataLoader(part, batch_size=2)))


def noisy(image: torch.Tensor) -> torch.Tensor:
    """Somebody's own function that needs chance."""
    return image + torch.rand(image.shape)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_function_gets_the_random_numbers_of_torch(num_workers: int) -> None:
    dataset = svhn(v1.Compose([v1.CenterCrop(24), v1.ToTensor(), noisy]))
    torch.manual_seed(5)
    theirs = list(DataLoader(dataset, batch_size=8, shuffle=True, num_workers=num_workers))
    torch.manual_seed(5)
    ours = FastLoader(dataset, batch_size=8, shuffle=True, num_workers=num_workers)
    assert_same(list(ours), theirs)
    assert ours.stats()["images_from_arrays"] == COUNT


def test_gray_images_before_a_function_stay_with_torch() -> None:
    dataset = mnist(v1.Compose([v1.CenterCrop(24), darker, v1.ToTensor()]))
    loader = FastLoader(dataset, batch_size=8)
    assert_same(list(loader), list(DataLoader(dataset, batch_size=8)))


def test_three_values_on_one_channel_fail_as_in_torch() -> None:
    for chain in (
        v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        v1.Compose([v1.Pad(2, fill=(1, 2, 3)), v1.ToTensor()]),
    ):
        for kind in (DataLoader, FastLoader):
            with pytest.raises((RuntimeError, ValueError, TypeError)):
                list(kind(mnist(chain), batch_size=8))


def test_caches_do_not_keep_it_twice() -> None:
    dataset = cifar(TO_TENSOR)
    loader = FastLoader(dataset, batch_size=8, cache="ram")
    assert_same(list(loader), list(DataLoader(dataset, batch_size=8)))
    assert "in memory already" in loader.explain()
    assert loader.stats()["cache_nbytes"] == 0
    chain = v1.Compose([v1.Resize(48), v1.ToTensor()])
    large = svhn(chain)
    loader = FastLoader(large, batch_size=8, cache="decoded")
    for _ in range(2):
        assert_same(list(loader), list(DataLoader(large, batch_size=8)))
    assert loader.stats()["cache_hits"] == COUNT


def test_errors_of_the_core_name_the_argument() -> None:
    from fastload import _native

    core = _native.load()
    if core is None:
        pytest.skip("the native core is not built")
    end = np.array([1], np.int64)
    one = np.ones(1, np.uint8)
    images = np.zeros((2, 4, 4, 3), np.uint8)
    assert len(core.Files(b"x", end, one, memory={0: images})) == 1
    for memory, message in (
        ({1: images}, "numbers of mapped files"),
        ({-1: images}, "numbers of mapped files"),
        ({0: images.astype(np.int16)}, "uint8"),
        ({0: images[..., :2]}, r"\(n, h, w, 3\)"),
        ({0: images[::-1]}, "strides below 0"),
        ({0: np.zeros(9, np.uint8)[::2]}, "contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            core.Files(b"x", end, one, memory=memory)
    with pytest.raises(ValueError, match="numbers of mapped files"):
        core.Files(b"x", end, np.zeros(1, np.uint8), memory={0: images})


def test_dtype_is_not_for_rows_of_tensors() -> None:
    dataset = torch.utils.data.TensorDataset(torch.zeros(3, 3, 4, 4))
    with pytest.raises(UsageError, match="TensorDataset"):
        FastLoader(dataset, dtype=torch.float16)
