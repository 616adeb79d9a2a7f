"""Albumentations' pipelines over deferred tensors give DataLoader's batches, bit for bit."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms  # noqa: F401 - fastload defers tensors where it is imported
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import fastload
from fastload import FastLoader
from sides import assert_same, outcome

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it would ask its index at every import
A = pytest.importorskip("albumentations", reason="albumentations is not installed")
from albumentations.pytorch import ToTensorV2  # noqa: E402

STATISTICS = ([0.4, 0.5, 0.6], [0.2, 0.25, 0.3])


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    fastload.uninstall()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(4)
    paths = []
    for n in range(12):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 11, 3), np.uint8))
        paths.append(folder / f"{n}.jpg")
        coarse.resize((120 + 9 * n, 100 + 7 * n), Image.Resampling.BICUBIC).save(paths[-1])
    return paths


def crop() -> Any:
    return A.RandomResizedCrop((64, 72))


def seeded(transform: Any) -> Any:
    """A pipeline that draws the same each time it is made, in every release."""
    getattr(transform, "set_random_seed", lambda seed: None)(5)
    return transform


class Photos(Dataset[Any]):
    """Samples of a pipeline, which gets what ``arguments`` makes of an image."""

    def __init__(
        self,
        paths: list[Path],
        transform: Any,
        arguments: Callable[[np.ndarray], dict[str, Any]] = lambda image: {"image": image},
        names: tuple[str, ...] = ("image",),
        mode: str = "RGB",
    ) -> None:
        self.paths, self.transform, self.arguments = paths, transform, arguments
        self.names, self.mode = names, mode

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = np.array(Image.open(self.paths[index]).convert(self.mode))
        made = self.transform(**self.arguments(image))
        return [made[name] for name in self.names], index


class Kept(FastLoader):
    last: FastLoader

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Kept.last = self


def compared(
    make: Callable[[], Dataset[Any]], deferred: bool, workers: tuple[int, ...] = (0,)
) -> None:
    """Assert that both loaders come to the same; ``deferred``: whether tensors were."""
    for count in workers:
        arguments = {"batch_size": 5, "shuffle": True, "num_workers": count}
        theirs = outcome(DataLoader, make(), 2, **arguments)
        assert_same(outcome(Kept, make(), 2, **arguments), theirs)
        assert (Kept.last.stats()["images_deferred"] > 0) == deferred


@pytest.mark.native
def test_the_tensor_of_normalize_and_to_tensor_is_made_with_the_batch(photos: list[Path]) -> None:
    def make() -> Photos:
        flips = [A.HorizontalFlip(), A.VerticalFlip()]
        return Photos(
            photos, seeded(A.Compose([crop(), *flips, A.Normalize(*STATISTICS), ToTensorV2()]))
        )

    compared(make, deferred=True, workers=(0, 2))


@pytest.mark.native
def test_a_mask_and_another_image_go_the_same_way(photos: list[Path]) -> None:
    def arguments(image: np.ndarray) -> dict[str, Any]:
        return {"image": image, "after": image[::-1], "mask": image[..., 0] > 99}

    def make() -> Photos:
        steps = [crop(), A.Normalize(), ToTensorV2()]
        transform = seeded(A.Compose(steps, additional_targets={"after": "image"}))
        return Photos(photos, transform, arguments, ("image", "after", "mask"))

    compared(make, deferred=True)


@pytest.mark.native
def test_boxes_are_what_they_are(photos: list[Path]) -> None:
    def arguments(image: np.ndarray) -> dict[str, Any]:
        return {"image": image, "bboxes": [[2, 3, 50, 60]], "labels": [1]}

    def make() -> Photos:
        boxes = A.BboxParams("pascal_voc", label_fields=["labels"])
        steps = [A.Resize(80, 90), A.HorizontalFlip(), A.Normalize(), ToTensorV2()]
        return Photos(photos, seeded(A.Compose(steps, bbox_params=boxes)), arguments)

    compared(make, deferred=True)


@pytest.mark.native
def test_a_pipeline_within_another_may_end_in_a_tensor(photos: list[Path]) -> None:
    def make() -> Photos:
        inner = A.Compose([A.Normalize(), ToTensorV2()])
        return Photos(photos, seeded(A.Compose([crop(), inner])))

    compared(make, deferred=True)


@pytest.mark.native
def test_settings_that_change_between_batches_are_heeded(photos: list[Path]) -> None:
    class Changed(Photos):
        def __getitem__(self, index: int) -> Any:
            last = self.transform.transforms[-2]
            self.transform.transforms[-2] = A.Normalize(*STATISTICS) if index % 2 else last
            return super().__getitem__(index)

    compared(
        lambda: Changed(photos, A.Compose([A.Resize(70, 80), A.Normalize(), ToTensorV2()])),
        deferred=True,
    )


@pytest.mark.native
def test_settings_that_change_within_a_batch_are_heeded(photos: list[Path]) -> None:
    class Changed(Photos):
        def __getitem__(self, index: int) -> Any:
            settings = vars(A.Normalize((index / 20,) * 3)).items()
            vars(self.transform.transforms[-2]).update(
                (name, value) for name, value in settings if not name.startswith("_")
            )
            return super().__getitem__(index)

    compared(
        lambda: Changed(photos, A.Compose([A.Resize(70, 80), A.Normalize(), ToTensorV2()])),
        deferred=True,
    )


@pytest.mark.native
def test_a_pipeline_that_another_calls_leaves_its_values_alone(photos: list[Path]) -> None:
    class Both(Photos):
        def __getitem__(self, index: int) -> Any:
            seen: list[torch.Tensor] = []

            def note(image: np.ndarray, **others: Any) -> np.ndarray:
                seen.append(inner(image=image)["image"])
                return image

            normalize = A.Normalize()
            for mine in (A.Normalize(*STATISTICS), normalize):
                inner = A.Compose([mine, ToTensorV2()])
                steps = [A.Resize(70, 80), A.Lambda(image=note), normalize, ToTensorV2()]
                self.transform = A.Compose(steps)
                seen.append(super().__getitem__(index)[0][0])
            return seen

    compared(lambda: Both(photos, None), deferred=True)


@pytest.mark.native
@pytest.mark.parametrize(
    ("statistics", "deferred"), [(STATISTICS, False), (((0.5,) * 3, (0.2,) * 3), True)]
)
def test_channels_in_another_order_keep_their_values(
    photos: list[Path], statistics: Any, deferred: bool
) -> None:
    class Ordered(Photos):
        def __getitem__(self, index: int) -> Any:
            [tensor], _ = super().__getitem__(index)
            flipped = tensor.flip(2).contiguous()
            return tensor.contiguous()[[2, 1, 0]], flipped[[1, 2, 0]]

    steps = [A.Resize(70, 80), A.Normalize(*statistics), ToTensorV2()]
    compared(lambda: Ordered(photos, A.Compose(steps)), deferred)


@pytest.mark.native
@pytest.mark.parametrize(
    ("transform", "mode"),
    [
        (lambda: A.Compose([A.Normalize(normalization="min_max"), ToTensorV2()]), "RGB"),
        (lambda: A.Compose([A.Normalize((0.5,), (0.5,)), ToTensorV2()]), "L"),
        (lambda: A.Compose([A.ToFloat(), A.Normalize(max_pixel_value=1.0), ToTensorV2()]), "RGB"),
        (lambda: A.Compose([A.Normalize(), ToTensorV2(p=0.5)]), "RGB"),
        (lambda: A.Compose([A.Normalize(), A.HorizontalFlip(), ToTensorV2()]), "RGB"),
        (lambda: A.Compose([A.Resize(70, 80), ToTensorV2()]), "RGB"),
    ],
)
def test_other_ends_of_a_pipeline_are_left_alone(
    photos: list[Path], transform: Callable[[], Any], mode: str
) -> None:
    compared(lambda: Photos(photos[:1] * 5, seeded(transform()), mode=mode), deferred=False)


@pytest.mark.native
def test_normalize_by_itself_gives_an_array(photos: list[Path]) -> None:
    class Both(Photos):
        def __getitem__(self, index: int) -> Any:
            [tensor], _ = super().__getitem__(index)
            image = np.array(Image.open(self.paths[index]).resize((30, 40)))
            return tensor, self.transform.transforms[-2](image=image)["image"]

    compared(
        lambda: Both(photos, seeded(A.Compose([crop(), A.Normalize(), ToTensorV2()]))),
        deferred=True,
    )


@pytest.mark.native
def test_what_follows_is_recorded_or_gets_the_values(photos: list[Path]) -> None:
    class Followed(Photos):
        def __getitem__(self, index: int) -> Any:
            [tensor], _ = super().__getitem__(index)
            return tensor[:, 3:40, 2:50].flip(-1), tensor.half(), tensor.mean(), tensor * 2

    compared(
        lambda: Followed(photos, seeded(A.Compose([crop(), A.Normalize(), ToTensorV2()]))),
        deferred=True,
    )


@pytest.mark.native
def test_the_array_may_change_afterwards(photos: list[Path]) -> None:
    class Changing(Photos):
        array = np.zeros((70, 80, 3), np.uint8)

        def __getitem__(self, index: int) -> Any:
            self.array[:] = index
            made = self.transform(image=self.array)["image"]
            self.array[:] = 9
            return made

    compared(lambda: Changing(photos, A.Compose([A.Normalize(), ToTensorV2()])), deferred=True)


@pytest.mark.skipif(
    not hasattr(A.Compose, "set_random_seed"), reason="this release draws from Python's generator"
)
def test_with_a_seed_each_sample_has_crops_of_its_own_in_any_worker(photos: list[Path]) -> None:
    dataset = Photos(photos[:1] * 24, A.Compose([A.RandomCrop(40, 40)]))
    epochs = []
    for workers in (0, 2):
        loader = FastLoader(dataset, batch_size=4, num_workers=workers, seed=3)
        epochs.append([image for _ in range(2) for [images], _ in loader for image in images])
    assert_same(*epochs)
    assert len({image.numpy().tobytes() for image in epochs[0]}) > 40
    repeated = [image for [images], _ in FastLoader(dataset, 4, num_workers=2) for image in images]
    assert len({image.numpy().tobytes() for image in repeated}) <= 12


def _random_pipeline(rng: random.Random) -> Any:
    steps = [
        lambda: A.RandomResizedCrop((64, 64)),
        lambda: A.Resize(96, 80),
        lambda: A.HorizontalFlip(p=rng.random()),
        lambda: A.VerticalFlip(p=rng.random()),
        lambda: A.RandomRotate90(),
        lambda: A.RandomBrightnessContrast(),
        lambda: A.ToGray(p=0.3),
        lambda: A.CoarseDropout(p=0.5),
        lambda: A.Blur(p=0.3),
    ]
    first = [rng.choice(steps)() for _ in range(rng.randrange(5))]
    mean, std = ([rng.uniform(0.1, 0.9) for _ in range(3)] for _ in range(2))
    end = [A.Normalize(mean, std, rng.choice([255.0, 1.0, 100.0]), p=rng.choice([1.0, 0.5]))]
    return seeded(A.Compose([*first, *end, ToTensorV2()], p=rng.choice([1.0, 0.9])))


@pytest.mark.native
@pytest.mark.parametrize("number", range(12))
def test_random_pipelines_give_the_same(photos: list[Path], number: int) -> None:
    def made(kind: Any) -> list[Any]:
        dataset = Photos(photos, _random_pipeline(random.Random(number)))
        return outcome(kind, dataset, 2, batch_size=None, shuffle=True)

    assert_same(made(FastLoader), made(DataLoader))


def test_torch_has_its_own_memory_for_each_sample(photos: list[Path]) -> None:
    dataset = Photos(photos, A.Compose([A.Resize(70, 80), A.Normalize(), ToTensorV2()]))
    samples = [sample[0][0] for sample in FastLoader(dataset, batch_size=None)]
    assert len({sample.data_ptr() for sample in samples}) == len(samples)
    assert all(type(sample) is torch.Tensor for sample in samples)
