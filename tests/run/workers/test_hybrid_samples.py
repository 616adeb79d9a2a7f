"""Transforms that an engine begins and Python ends: samples as from the chain by itself."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import torchvision_oracle
from fastload import FastLoader, PackedDataset, UsageError
from fastload._run.workers.randomness import sample_seeds, seed_all

BEGIN = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip()]


def negative(image: Image.Image) -> Image.Image:
    assert type(image) is Image.Image and image.mode == "RGB"
    return ImageOps.invert(image)


def noisy(image: Any) -> Any:
    """Draws from all three generators."""
    shift = random.random() + np.random.random()
    return image + torch.rand(1) + shift


class MyFlip(v1.RandomHorizontalFlip):
    """Does what it likes."""

    def forward(self, image: Any) -> Any:
        return image.rotate(180)


def as_image(image: Any) -> Any:
    assert type(image) is tv_tensors.Image
    return image.float() / 2


CHAINS = {
    "a PIL image": (BEGIN, [negative, v1.PILToTensor()]),
    "a tensor": ([*BEGIN, v1.ToTensor()], [noisy]),
    "an Image": ([v2.Resize((20, 30)), v2.ToImage()], [as_image]),
    "a subclass": (BEGIN, [MyFlip(), v1.ToTensor()]),
    "colours": ([*BEGIN, v1.ColorJitter(0.4, 0.4)], [negative, v1.PILToTensor(), noisy]),
    "a Lambda": (BEGIN, [v1.Lambda(negative), v1.ToTensor()]),
    "several sizes": (BEGIN[1:], [negative, v1.Resize((9, 9)), v1.ToTensor()]),
}


def expected(
    begin: list[Any], tail: list[Any], image: Image.Image, index: int, epoch: int
) -> torch.Tensor:
    made = torchvision_oracle.sample(v1.Compose(begin), image, index, seed=3, epoch=epoch)
    seed_all(sample_seeds(3, epoch, [index], None)[0])
    for transform in tail:
        made = transform(made)
    return torch.as_tensor(made).as_subclass(torch.Tensor)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_are_those_of_the_whole_chain(photos: Path, name: str, num_workers: int) -> None:
    begin, tail = CHAINS[name]
    dataset = ImageFolder(photos, v1.Compose([v1.Compose(begin), *tail]))
    loader = FastLoader(dataset, batch_size=5, shuffle=True, seed=3, num_workers=num_workers)
    for epoch in range(2):
        loader.set_epoch(epoch)
        order = list(loader.sampler)
        loader.set_epoch(epoch)
        for number, (images, labels) in enumerate(loader):
            indices = order[5 * number : 5 * number + 5]
            assert labels.tolist() == [dataset.targets[i] for i in indices]
            for index, image in zip(indices, images, strict=True):
                whole = dataset.loader(dataset.samples[index][0])
                assert torch.equal(image, expected(begin, tail, whole, index, epoch)), name


def test_without_the_core_they_are_the_same(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = v1.Compose([*BEGIN, negative, v1.ToTensor()])

    def first() -> torch.Tensor:
        images, _ = next(iter(FastLoader(store, batch_size=6, transform=chain, seed=4)))
        return images

    with_core = first()
    monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")
    monkeypatch.setattr("fastload._native.warn_missing", lambda: None)
    assert torch.equal(first(), with_core)


def test_explain_says_where_each_part_runs_and_names_what_stays_in_python(store: Path) -> None:
    loader = FastLoader(store, transform=v1.Compose([*BEGIN, negative, v1.ToTensor()]))
    text = loader.explain()
    assert "engine: workers" in text
    assert "because: negative is not a transform fastload knows" in text
    begin, end = [line for line in text.splitlines() if line.startswith("split")]
    assert "engine" in begin and "RandomResizedCrop" in begin and "ToTensor" not in begin
    assert end == "split, in Python, sample by sample: negative -> ToTensor()"
    whole = FastLoader(store, transform=v1.Compose([*BEGIN, negative]), engine="workers").explain()
    assert "split" not in whole
    with pytest.raises(UsageError, match="engine='native' cannot read this dataset: negative"):
        FastLoader(store, transform=v1.Compose([*BEGIN, negative]), engine="native")


def test_a_chain_that_begins_with_something_else_runs_as_it_is(photos: Path) -> None:
    chain = v1.Compose([negative, v1.Resize((20, 20)), v1.PILToTensor()])
    dataset = ImageFolder(photos, chain)
    loader = FastLoader(dataset, batch_size=24)
    assert "split" not in loader.explain()
    (batch,) = loader
    assert torch.equal(batch[0], torch.stack([dataset[i][0] for i in range(24)]))


def test_samples_may_be_pil_images_for_a_collate_fn(store: Path) -> None:
    loader = FastLoader(
        store, batch_size=4, transform=v1.Compose(BEGIN), collate_fn=lambda samples: samples
    )
    (image, label), *_ = next(iter(loader))
    assert type(image) is Image.Image and image.size == (24, 24) and type(label) is int


def test_what_pillow_remembers_of_a_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    picture = torchvision_oracle.picture(40, 30)
    picture.save(tmp_path / "a" / "0.jpg", exif=exif, dpi=(72, 72))
    picture.save(tmp_path / "a" / "1.png", dpi=(90, 90))
    begin = [v1.Resize((20, 30)), ImageOps.exif_transpose, v1.Resize((16, 16)), v1.ToTensor()]
    dataset = ImageFolder(tmp_path, v1.Compose(begin))
    for dpi, (images, _), (theirs, _) in zip((72, 90), FastLoader(dataset), dataset):
        assert torch.equal(images[0], theirs), dpi
    seen: list[Any] = []
    dataset = ImageFolder(tmp_path, v1.Compose([v1.CenterCrop(9), lambda im: seen.append(im.info)]))
    list(FastLoader(dataset, collate_fn=len))
    assert seen == [dict(dataset.loader(path).info) for path, _ in dataset.samples]


def test_what_is_transparent_in_a_palette_is_a_colour_in_rgb(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    palette = torchvision_oracle.picture(40, 30).quantize(16)
    palette.save(tmp_path / "a" / "0.png", transparency=3)
    seen: list[Any] = []
    dataset = ImageFolder(tmp_path, v1.Compose([v1.CenterCrop(9), lambda im: seen.append(im.info)]))
    list(FastLoader(dataset, collate_fn=len))
    assert seen == [dict(dataset.loader(dataset.samples[0][0]).info)]
    assert isinstance(seen[0]["transparency"], tuple)


def test_an_index_that_is_no_int_is_refused_as_by_a_list(store: Path) -> None:
    chain = v1.Compose([*BEGIN, negative, v1.ToTensor()])
    for kind in (FastLoader, DataLoader):
        with pytest.raises(TypeError):
            list(kind(PackedDataset(store, chain), sampler=[0.0, 1.7]))


def test_packed_datasets_are_begun_in_torchs_loader_too(store: Path, photos: Path) -> None:
    chain = v1.Compose([v1.Resize((21, 20)), negative, v1.ToTensor()])
    theirs = ImageFolder(photos, chain)
    dataset = PackedDataset(store, chain)
    loader = DataLoader(dataset, batch_size=8, num_workers=2)
    images = torch.cat([images for images, _ in loader])
    assert torch.equal(images, torch.stack([theirs[i][0] for i in range(24)]))


def test_subsets_and_concatenations_of_one_chain_are_begun(store: Path) -> None:
    chain = v1.Compose([v1.Resize((21, 20)), negative, v1.ToTensor()])
    dataset = PackedDataset(store, chain)
    both = ConcatDataset([Subset(dataset, [4, 2]), dataset])
    loader = FastLoader(both, batch_size=4)
    assert "split, in Python" in loader.explain()
    images, _ = next(iter(loader))
    assert torch.equal(images, torch.stack([dataset[i][0] for i in (4, 2, 0, 1)]))
    other = PackedDataset(store, v1.Compose([v1.Resize((21, 20)), MyFlip(), v1.ToTensor()]))
    assert "different transforms" in FastLoader(ConcatDataset([dataset, other])).explain()


def test_random_parts_differ_between_samples_and_epochs_without_a_seed(store: Path) -> None:
    chain = v1.Compose([v1.RandomResizedCrop(8), negative, v1.ToTensor()])
    loader = FastLoader(Subset(PackedDataset(store, chain), [0] * 6), batch_size=6)
    (first, _), (second, _) = next(iter(loader)), next(iter(loader))
    assert len(torch.unique(torch.cat([first, second]), dim=0)) == 12


def test_a_sample_that_python_cannot_end_is_skipped(store: Path) -> None:
    def picky(image: Image.Image) -> Image.Image:
        if sum(image.getpixel((0, 0))) % 3 == 0:
            raise ValueError("not this one")
        return image

    chain = v1.Compose([v1.Resize((9, 9)), picky, v1.PILToTensor()])
    loader = FastLoader(store, batch_size=8, transform=chain, on_error="skip", max_errors=24)
    plain = PackedDataset(store, v1.Compose([v1.Resize((9, 9)), v1.PILToTensor()]))
    kept = [image for image, _ in plain if int(image[:, 0, 0].sum()) % 3]
    assert 0 < len(kept) < 24
    assert torch.equal(torch.cat([images for images, _ in loader]), torch.stack(kept))
    assert len(loader.stats()["errors"]) == 24 - len(kept)


class InvertAndMirror:
    """A callable of Albumentations' form: arrays by name in, a dict of arrays out."""

    def __call__(self, *, image: np.ndarray) -> dict[str, np.ndarray]:
        return {"image": 255 - image[:, ::-1]}


def check_arrays(store: Path, augmentation: Any) -> None:
    def augment(image: Image.Image) -> torch.Tensor:
        made = augmentation(image=np.asarray(image))["image"]
        return torch.from_numpy(np.ascontiguousarray(made)).permute(2, 0, 1)

    loader = FastLoader(store, batch_size=6, transform=v1.Compose([v1.Resize((24, 24)), augment]))
    assert "sample by sample: check_arrays" not in loader.explain()
    assert "sample by sample: augment" in loader.explain()
    plain = PackedDataset(store, v1.Compose([v1.Resize((24, 24)), v1.PILToTensor()]))
    images, _ = next(iter(loader))
    for index, image in enumerate(images):
        assert torch.equal(image, 255 - plain[index][0].flip(2))


def test_callables_that_take_arrays_get_what_was_decoded_and_cropped(store: Path) -> None:
    check_arrays(store, InvertAndMirror())


@pytest.mark.long
def test_albumentations_get_what_was_decoded_and_cropped(store: Path) -> None:
    A = pytest.importorskip("albumentations")
    check_arrays(store, A.Compose([A.InvertImg(p=1.0), A.HorizontalFlip(p=1.0)]))


FORKED = """
import sys
import torch
from torchvision import transforms as v1
from fastload import FastLoader

torch.multiprocessing.set_start_method("fork")
modules = set()

def note(worker):
    modules.update(sys.modules)

def last(image):
    later = [name for name in set(sys.modules) - modules if name.startswith(("fastload", "numpy"))]
    assert modules and not later, later
    return torch.zeros(1)

chain = v1.Compose([v1.RandomResizedCrop(8), last])
loader = FastLoader(sys.argv[1], transform=chain, batch_size=4, num_workers=1, worker_init_fn=note)
assert "split, in the engine" in loader.explain(), loader.explain()
print(len(list(loader)))
"""


def test_worker_processes_import_nothing_that_their_parent_could(store: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(store)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 1
