"""Public training scripts, for the suite scripts: what each of them gives to DataLoader.

None of their code is here. Classes and functions of a script are imported from the user's checkout.
Code inside a function that trains cannot be imported: mostly a list of torchvision's transforms,
which ``make`` builds again. Sizes, probabilities and arguments are the defaults of the script, or
those of its README.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import itertools
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DistributedSampler, RandomSampler
from torchvision import datasets
from torchvision import transforms as T

from bench import data
from bench import datasets as own
from bench.data import Say
from bench.workload import MEAN, STD


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where things are: ``repos`` has checkouts, ``root`` photos, laid out by ``lay_out``."""

    repos: Path
    root: Path
    toy: bool

    @property
    def train(self) -> str:
        """A folder with one subfolder per class."""
        return str(self.root / "train")


class Given:
    """A script's Dataset, and the arguments of its DataLoader but for batch size and workers."""

    def __init__(self, dataset: Any, **arguments: Any) -> None:
        self.dataset, self.arguments = dataset, arguments


@dataclasses.dataclass(frozen=True)
class Script:
    """A public training script.

    Attributes:
        repository: owner and name on GitHub. Its checkout is the folder of that name in REPOS.
        commit: one with which ``make`` works.
        file: the script, in its repository.
        make: does what the script does before its loop. Its docstring says what the Dataset does,
            for a table.
        batch: samples in a batch. Where a script has more than 64 it is 64, so that an epoch of
            some hundred photos is several batches.
        heavy: it makes many views of each image, or large ones. Half the photos are enough.
        imports: folders in REPOS that it imports from; None: its checkout.
        needs: libraries that these import, beside torch and torchvision.
    """

    repository: str
    commit: str
    file: str
    make: Callable[[Place], Given]
    batch: int = 64
    heavy: bool = False
    imports: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of its checkout."""
        return self.repository.split("/")[1]

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders in REPOS that it imports from."""
        return (self.folder,) if self.imports is None else self.imports

    def clone(self, repos: str) -> str:
        """The command that makes its checkout."""
        target = f"{repos}/{self.folder}"
        return (
            f"git clone -q --filter=blob:none https://github.com/{self.repository} {target} && "
            f"git -C {target} checkout -q {self.commit}"
        )


SCRIPTS: dict[str, Script] = {}
"""By variant of the suite."""

_Make = Callable[[Place], Given]


def script(
    *source: str, known: dict[str, Script] = SCRIPTS, **more: Any
) -> Callable[[_Make], _Make]:
    """Put the ``make`` below it among ``known`` scripts, under its name; the rest is Script's."""

    def add(make: _Make) -> _Make:
        known[make.__name__.replace("_", "-")] = Script(*source, make, **more)
        return make

    return add


# --- importing from checkouts ---------------------------------------------------------------------


@contextlib.contextmanager
def imported(folders: list[Path]) -> Iterator[None]:
    """Modules in ``folders`` can be imported inside, and are forgotten afterwards.

    Many scripts have a module of the same name (``utils``, ``data``, ``datasets``). Installed
    modules of such names are hidden inside.
    """
    names = {path.stem for folder in folders for path in folder.iterdir()}
    hidden = {name: sys.modules[name] for name in sys.modules if name.split(".")[0] in names}
    for name in hidden:
        del sys.modules[name]
    before, paths = set(sys.modules), sys.path[:]
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = paths
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if any(Path(file).is_relative_to(folder) for folder in folders):
                del sys.modules[name]
        sys.modules.update(hidden)


_NUMBERS = itertools.count()


def definitions(path: Path, **known: Any) -> Any:
    """The classes and functions of a script that trains, or parses arguments, when it is imported.

    It is a module inside ``imported``. Its own imports are made, but for those that fail; then what
    is built on them is absent, too. What is needed of them is in ``known``.
    """
    # By which workers pickle what they send; a script is read once for each loader.
    module = types.ModuleType(f"script_{path.stem}_{next(_NUMBERS)}")
    module.__file__ = str(path)
    vars(module).update(known)
    sys.modules[module.__name__] = module
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, kinds):
            with contextlib.suppress(ImportError, NameError):
                exec(compile(ast.Module([node], []), str(path), "exec"), vars(module))
    vars(module).update(known)
    return module


# --- photos, laid out as scripts want them --------------------------------------------------------


def lay_out(cache: Path, images: Path, *, say: Say) -> Path:
    """A folder with ``images`` and their masks, as each script wants them; files are links.

    It has ``train`` (folders of classes), ``imgs`` and ``masks`` (side by side), ``VOCdevkit``, and
    ``coco.json`` with boxes.
    """
    masks = data.masks(cache, images, say=say)
    images, masks = images.resolve(), masks.resolve()

    def make(folder: Path) -> None:
        (folder / "train").symlink_to(images)
        voc = folder / "VOCdevkit" / "VOC2012"
        plain, classes = folder / "imgs", folder / "masks"
        pictures, levels = voc / "JPEGImages", voc / "SegmentationClass"
        listed = voc / "ImageSets" / "Segmentation"
        for made in (plain, classes, pictures, levels, listed):
            made.mkdir(parents=True)
        names, photos, boxes = [], [], []
        for number, path in enumerate(data.files(images)):
            mask = (masks / path.relative_to(images)).with_suffix(".png")
            name = f"{number:06}"
            names.append(name)
            (plain / f"{name}.jpg").symlink_to(path)
            (classes / f"{name}.png").symlink_to(mask)
            (pictures / f"{name}.jpg").symlink_to(path)
            palette = Image.open(mask).convert("L")
            palette.putpalette([level for level in range(256) for _ in range(3)])
            palette.save(levels / f"{name}.png")
            width, height = palette.size
            photos.append(
                {"id": number, "file_name": f"{name}.jpg", "width": width, "height": height}
            )
            for part in range(4):
                boxes.append(_box(len(boxes), number, part, width, height))
        (listed / "train.txt").write_text("\n".join(names) + "\n")
        categories = [{"id": number, "name": str(number)} for number in range(91)]
        instances = {"images": photos, "annotations": boxes, "categories": categories}
        (folder / "coco.json").write_text(json.dumps(instances))

    return data.made(cache, f"scripts-{images.name}", make)


def _box(number: int, image: int, part: int, width: int, height: int) -> dict[str, Any]:
    """An annotation in COCO's format: one of four boxes in an image."""
    wide, high = width / 2, height / 2
    left, top = part % 2 * wide * 0.8, part // 2 * high * 0.8
    return {
        "id": number,
        "image_id": image,
        "category_id": 1 + (image + part) % 90,
        "bbox": [left, top, wide, high],
        "area": wide * high,
        "iscrowd": 0,
    }


# --- the scripts ----------------------------------------------------------------------------------

# Every script here that trains on several GPUs gives DataLoader a DistributedSampler.


def _distributed(dataset: Any, *, drop_last: bool) -> Given:
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
    return Given(dataset, sampler=sampler, pin_memory=True, drop_last=drop_last)


def _folder(place: Place, transform: Callable[[Any], Any]) -> Any:
    return datasets.ImageFolder(place.train, transform)


def chain(*steps: Any) -> Any:
    """``steps`` on a PIL image, then to a tensor, normalised as for ImageNet."""
    return T.Compose([*steps, T.ToTensor(), T.Normalize(MEAN, STD)])


def _two_crops(place: Place, loader: Any) -> Given:
    """Two views, with MoCo's classes in the module ``loader``."""
    view = chain(
        T.RandomResizedCrop(224, scale=(0.2, 1.0)),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        T.RandomGrayscale(p=0.2),
        T.RandomApply([loader.GaussianBlur([0.1, 2.0])], p=0.5),
        T.RandomHorizontalFlip(),
    )
    return _distributed(_folder(place, loader.TwoCropsTransform(view)), drop_last=True)


@script(
    "pytorch/vision",
    "v0.21.0",
    "references/segmentation/train.py",
    batch=8,
    heavy=True,
    imports=("vision/references/segmentation",),
)
def segmentation(place: Place) -> Given:
    """VOC: image and mask, resized, flipped and cropped to 480 alike; its own collate_fn"""
    presets, utils = map(importlib.import_module, ("presets", "utils"))
    transform = presets.SegmentationPresetTrain(base_size=520, crop_size=480)
    dataset = datasets.VOCSegmentation(place.root, image_set="train", transforms=transform)
    return Given(
        dataset, sampler=RandomSampler(dataset), collate_fn=utils.collate_fn, drop_last=True
    )


@script("kuangliu/pytorch-cifar", "49b7aa97b0", "main.py", batch=128, imports=())
def cifar(place: Place) -> Given:
    """CIFAR10 in memory; padded crop, flip"""
    dataset = own.cifar(256 if place.toy else 20_000)
    dataset.transform = T.Compose(
        [
            T.RandomCrop(32, padding=4),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        ]
    )
    dataset.transforms = datasets.vision.StandardTransform(dataset.transform)
    return Given(dataset, shuffle=True)


@script("sthalles/SimCLR", "1848fc934a", "run.py")
def simclr(place: Place) -> Given:
    """two views of 96; jitter, blurred by a convolution of torch's"""
    views = importlib.import_module("data_aug.view_generator").ContrastiveLearningViewGenerator
    module = importlib.import_module("data_aug.contrastive_learning_dataset")
    transform = module.ContrastiveLearningDataset.get_simclr_pipeline_transform(96)
    dataset = _folder(place, views(transform, 2))
    return Given(dataset, shuffle=True, pin_memory=True, drop_last=True)


@script("facebookresearch/moco", "78b69cafae", "main_moco.py")
def moco(place: Place) -> Given:
    """two views; jitter, grayscale, blur"""
    return _two_crops(place, importlib.import_module("moco.loader"))


@script("facebookresearch/simsiam", "a7bc177289", "main_simsiam.py")
def simsiam(place: Place) -> Given:
    """two views; jitter, grayscale, blur"""
    return _two_crops(place, importlib.import_module("simsiam.loader"))


@script("facebookresearch/swav", "06b1b7cbaf", "main_swav.py", heavy=True)
def swav(place: Place) -> Given:
    """a subclass of ImageFolder; two crops of 224, six of 96; jitter, blur"""
    module = definitions(
        place.repos / "swav" / "src" / "multicropdataset.py", logger=types.SimpleNamespace()
    )
    dataset = module.MultiCropDataset(place.train, [224, 96], [2, 6], [0.14, 0.05], [1.0, 0.14])
    return _distributed(dataset, drop_last=True)


@script("lucidrains/byol-pytorch", "299312613c", "examples/lightning/train.py", batch=32)
def byol(place: Place) -> Given:
    """its own Dataset; resize, centre crop to 256, a Lambda"""
    path = place.repos / "byol-pytorch" / "examples" / "lightning" / "train.py"
    module = definitions(path, IMAGE_EXTS=[".jpg", ".png", ".jpeg"])
    dataset = module.ImagesDataset(place.train, 256)
    return Given(dataset, shuffle=True)


@script(
    "huggingface/transformers",
    "main",
    "examples/pytorch/image-classification/run_image_classification.py",
    batch=8,
    imports=(),
    needs=("datasets",),
)
def hugging_face(place: Place) -> Given:
    """a Hugging Face dataset with set_transform; random crop, flip"""
    import datasets as hugging_face

    train = datasets.ImageFolder(place.train)
    columns = {"image": [path for path, _ in train.samples], "labels": train.targets}
    dataset = hugging_face.Dataset.from_dict(columns)
    dataset = dataset.cast_column("image", hugging_face.Image())
    transform = chain(T.RandomResizedCrop(224), T.RandomHorizontalFlip())

    def transformed(batch: dict[str, Any]) -> dict[str, Any]:
        batch["pixel_values"] = [transform(image.convert("RGB")) for image in batch["image"]]
        return batch

    dataset.set_transform(transformed)
    return Given(dataset, shuffle=True, collate_fn=_stacked)


def _stacked(samples: list[Any]) -> Any:
    images = torch.stack([sample["pixel_values"] for sample in samples])
    return {
        "pixel_values": images,
        "labels": torch.tensor([sample["labels"] for sample in samples]),
    }
