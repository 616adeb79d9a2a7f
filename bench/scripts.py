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
import io
import itertools
import json
import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler
from torchvision import datasets, transforms
from torchvision.transforms import InterpolationMode

from bench import data
from bench.data import Say
from bench.datasets import cifar
from bench.workload import MEAN, STD


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where things are.

    Attributes:
        repos: the folder of checkouts.
        root: photos, laid out by ``lay_out``.
        toy: the smallest size.
    """

    repos: Path
    root: Path
    toy: bool

    @property
    def train(self) -> str:
        """A folder with one subfolder per class."""
        return str(self.root / "train")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """A script's Dataset, and the arguments of its DataLoader but for batch size and workers."""

    dataset: Any
    arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """A public training script.

    Attributes:
        repository: owner and name on GitHub. Its checkout is the folder of that name in REPOS.
        commit: one with which ``make`` works.
        file: the script, in its repository.
        does: what its Dataset does, for a table.
        make: does what the script does before its loop.
        batch: samples in a batch. Where a script has more than 64 it is 64, so that an epoch of
            some hundred photos is several batches.
        heavy: it makes many views of each image, or large ones. Half the photos are enough.
        imports: folders in REPOS that it imports from; none if nothing of it is imported.
        needs: libraries that these import, beside torch and torchvision.
    """

    repository: str
    commit: str
    file: str
    does: str
    make: Callable[[Place], Made]
    batch: int = 64
    heavy: bool = False
    imports: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of its checkout."""
        return self.repository.split("/")[1]

    def clone(self, repos: str) -> str:
        """The command that makes its checkout."""
        target = f"{repos}/{self.folder}"
        return (
            f"git clone -q --filter=blob:none https://github.com/{self.repository} {target} && "
            f"git -C {target} checkout -q {self.commit}"
        )


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

    It has ``train``, ``trainA`` and ``trainB`` (folders of classes), ``imgs`` and ``masks`` (side
    by side), ``VOCdevkit``, ``coco.json`` with boxes, and ``captions.csv``.
    """
    masks = data.masks(cache, images, say=say)
    images, masks = images.resolve(), masks.resolve()

    def make(folder: Path) -> None:
        for name in ("train", "trainA", "trainB"):
            (folder / name).symlink_to(images)
        voc = folder / "VOCdevkit" / "VOC2012"
        plain, classes = folder / "imgs", folder / "masks"
        pictures, levels = voc / "JPEGImages", voc / "SegmentationClass"
        listed = voc / "ImageSets" / "Segmentation"
        for made in (plain, classes, pictures, levels, listed):
            made.mkdir(parents=True)
        names, found, boxes = [], [], []
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
            found.append(
                {"id": number, "file_name": f"{name}.jpg", "width": width, "height": height}
            )
            for part in range(4):
                boxes.append(_box(len(boxes), number, part, width, height))
        (listed / "train.txt").write_text("\n".join(names) + "\n")
        categories = [{"id": number, "name": str(number)} for number in range(91)]
        instances = {"images": found, "annotations": boxes, "categories": categories}
        (folder / "coco.json").write_text(json.dumps(instances))
        lines = [f"{images / path}\tphoto {path.stem}" for path in data.files(images)]
        (folder / "captions.csv").write_text("\n".join(["filepath\ttitle", *lines]) + "\n")

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


def _distributed(dataset: Any, *, drop_last: bool) -> Made:
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
    return Made(
        dataset=dataset,
        arguments={"sampler": sampler, "pin_memory": True, "drop_last": drop_last},
    )


def _folder(place: Place, transform: Callable[[Any], Any]) -> Any:
    return datasets.ImageFolder(place.train, transform)


def _normalize() -> Any:
    return transforms.Normalize(MEAN, STD)


def _usual() -> Any:
    """What most scripts for ImageNet begin with."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            _normalize(),
        ]
    )


def _jitter(*strength: float) -> Any:
    return transforms.RandomApply([transforms.ColorJitter(*strength)], p=0.8)


def _examples(place: Place) -> Made:
    dataset = _folder(place, _usual())
    return Made(dataset=dataset, arguments={"shuffle": True, "pin_memory": True})


def _classification(place: Place) -> Made:
    presets = importlib.import_module("presets")
    dataset = _folder(place, presets.ClassificationPresetTrain(crop_size=224))
    arguments = {"sampler": RandomSampler(dataset), "pin_memory": True}
    return Made(dataset=dataset, arguments=arguments)


def _segmentation(place: Place) -> Made:
    presets, utils = map(importlib.import_module, ("presets", "utils"))
    transform = presets.SegmentationPresetTrain(base_size=520, crop_size=480)
    dataset = datasets.VOCSegmentation(place.root, image_set="train", transforms=transform)
    arguments = {
        "sampler": RandomSampler(dataset),
        "collate_fn": utils.collate_fn,
        "drop_last": True,
    }
    return Made(dataset=dataset, arguments=arguments)


def _cifar(place: Place) -> Made:
    dataset = cifar(256 if place.toy else 20_000)
    dataset.transform = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        ]
    )
    dataset.transforms = datasets.vision.StandardTransform(dataset.transform)
    return Made(dataset=dataset, arguments={"shuffle": True})


def _timm(place: Place) -> Made:
    timm = importlib.import_module("timm.data")
    collate = importlib.import_module("timm.data.loader").fast_collate
    dataset = timm.create_dataset("", root=place.train, split="train", is_training=True)
    dataset.transform = timm.create_transform(
        224, is_training=True, use_prefetcher=True, color_jitter=0.4, interpolation="random"
    )
    arguments = {"shuffle": True, "collate_fn": collate, "pin_memory": False, "drop_last": True}
    return Made(dataset=dataset, arguments=arguments)


def _keep_a_bit() -> None:
    """Have timm's RandAugment keep one bit at least.

    About once in some hundred photos it posterizes to no bit at all. Pillow 13 raises then, and so
    does the script, with either loader.
    """
    ops = importlib.import_module("timm.data.auto_augment")
    original = ops.LEVEL_TO_ARG["PosterizeIncreasing"]

    def at_least_one(level: float, parameters: dict[str, Any]) -> tuple[int]:
        return (max(1, original(level, parameters)[0]),)

    ops.LEVEL_TO_ARG["PosterizeIncreasing"] = at_least_one


def _deit(place: Place) -> Made:
    _keep_a_bit()
    module = definitions(place.repos / "deit" / "datasets.py")
    options = types.SimpleNamespace(
        data_set="IMNET",
        data_path=str(place.root),
        input_size=224,
        color_jitter=0.3,
        aa="rand-m9-mstd0.5-inc1",
        train_interpolation="bicubic",
        reprob=0.25,
        remode="pixel",
        recount=1,
    )
    dataset, _ = module.build_dataset(True, options)
    arguments = {"sampler": RandomSampler(dataset), "pin_memory": True, "drop_last": True}
    return Made(dataset=dataset, arguments=arguments)


def _convnext(place: Place) -> Made:
    _keep_a_bit()
    module = definitions(place.repos / "ConvNeXt" / "datasets.py")
    options = types.SimpleNamespace(
        data_set="IMNET",
        data_path=str(place.root),
        input_size=224,
        imagenet_default_mean_and_std=True,
        color_jitter=0.4,
        aa="rand-m9-mstd0.5-inc1",
        train_interpolation="bicubic",
        reprob=0.25,
        remode="pixel",
        recount=1,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        dataset, _ = module.build_dataset(True, options)
    return _distributed(dataset, drop_last=True)


def _swin(place: Place) -> Made:
    _keep_a_bit()
    module = definitions(place.repos / "Swin-Transformer" / "data" / "build.py")
    given = types.SimpleNamespace
    config = given(
        DATA=given(
            DATASET="imagenet",
            DATA_PATH=str(place.root),
            ZIP_MODE=False,
            IMG_SIZE=224,
            INTERPOLATION="bicubic",
        ),
        AUG=given(
            COLOR_JITTER=0.4,
            AUTO_AUGMENT="rand-m9-mstd0.5-inc1",
            REPROB=0.25,
            REMODE="pixel",
            RECOUNT=1,
        ),
    )
    dataset, _ = module.build_dataset(True, config)
    return _distributed(dataset, drop_last=True)


def _mae(place: Place) -> Made:
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(
                224, scale=(0.2, 1.0), interpolation=InterpolationMode.BICUBIC
            ),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            _normalize(),
        ]
    )
    return _distributed(_folder(place, transform), drop_last=True)


def _beit(place: Place) -> Made:
    root = place.repos / "unilm" / "beit"
    # It says np.int, which NumPy has called int since 1.24.
    masking = definitions(
        root / "masking_generator.py", np=types.SimpleNamespace(zeros=np.zeros, int=int)
    )
    module = definitions(root / "datasets.py", MaskingGenerator=masking.MaskingGenerator)
    options = types.SimpleNamespace(
        data_path=place.train,
        imagenet_default_mean_and_std=False,
        input_size=224,
        second_input_size=112,
        train_interpolation="bicubic",
        second_interpolation="lanczos",
        discrete_vae_type="dall-e",
        window_size=(14, 14),
        num_mask_patches=75,
        max_mask_patches_per_block=None,
        min_mask_patches_per_block=16,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = module.build_beit_pretraining_dataset(options)
    return _distributed(dataset, drop_last=True)


def _dino(place: Place) -> Made:
    module = definitions(place.repos / "dino" / "main_dino.py")
    transform = module.DataAugmentationDINO((0.4, 1.0), (0.05, 0.4), 8)
    return _distributed(_folder(place, transform), drop_last=True)


def _ibot(place: Place) -> Made:
    module = definitions(place.repos / "ibot" / "main_ibot.py")
    dataset = importlib.import_module("loader").ImageFolderMask(
        place.train,
        transform=module.DataAugmentationiBOT((0.25, 1.0), (0.05, 0.4), 2, 10),
        patch_size=16,
        pred_ratio=[0.0, 0.3],
        pred_ratio_var=[0.0, 0.2],
        pred_aspect_ratio=(0.3, 1 / 0.3),
        pred_shape="block",
    )
    return _distributed(dataset, drop_last=True)


def _simclr(place: Place) -> Made:
    views = importlib.import_module("data_aug.view_generator").ContrastiveLearningViewGenerator
    module = importlib.import_module("data_aug.contrastive_learning_dataset")
    transform = module.ContrastiveLearningDataset.get_simclr_pipeline_transform(96)
    dataset = _folder(place, views(transform, 2))
    return Made(dataset=dataset, arguments={"shuffle": True, "pin_memory": True, "drop_last": True})


def _supcontrast(place: Place) -> Made:
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(size=32, scale=(0.2, 1.0)),
            transforms.RandomHorizontalFlip(),
            _jitter(0.4, 0.4, 0.4, 0.1),
            transforms.RandomGrayscale(p=0.2),
            transforms.ToTensor(),
            _normalize(),
        ]
    )
    dataset = _folder(place, importlib.import_module("util").TwoCropTransform(transform))
    return Made(dataset=dataset, arguments={"shuffle": True, "pin_memory": True})


def _moco(place: Place) -> Made:
    loader = importlib.import_module("moco.loader")
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224, scale=(0.2, 1.0)),
            _jitter(0.4, 0.4, 0.4, 0.1),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([loader.GaussianBlur([0.1, 2.0])], p=0.5),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            _normalize(),
        ]
    )
    return _distributed(_folder(place, loader.TwoCropsTransform(transform)), drop_last=True)


def _moco_v3(place: Place) -> Made:
    loader = importlib.import_module("moco.loader")

    def view(blur: float, solarize: float) -> Any:
        return transforms.Compose(
            [
                transforms.RandomResizedCrop(224, scale=(0.08, 1.0)),
                _jitter(0.4, 0.4, 0.2, 0.1),
                transforms.RandomGrayscale(p=0.2),
                transforms.RandomApply([loader.GaussianBlur([0.1, 2.0])], p=blur),
                *[transforms.RandomApply([loader.Solarize()], p=solarize)] * (solarize > 0),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                _normalize(),
            ]
        )

    views = loader.TwoCropsTransform(view(1.0, 0.0), view(0.1, 0.2))
    return _distributed(_folder(place, views), drop_last=True)


def _simsiam(place: Place) -> Made:
    loader = importlib.import_module("simsiam.loader")
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224, scale=(0.2, 1.0)),
            _jitter(0.4, 0.4, 0.4, 0.1),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([loader.GaussianBlur([0.1, 2.0])], p=0.5),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            _normalize(),
        ]
    )
    return _distributed(_folder(place, loader.TwoCropsTransform(transform)), drop_last=True)


def _barlowtwins(place: Place) -> Made:
    module = definitions(place.repos / "barlowtwins" / "main.py")
    return _distributed(_folder(place, module.Transform()), drop_last=False)


def _vicreg(place: Place) -> Made:
    transform = importlib.import_module("augmentations").TrainTransform()
    return _distributed(_folder(place, transform), drop_last=False)


def _swav(place: Place) -> Made:
    module = definitions(
        place.repos / "swav" / "src" / "multicropdataset.py", logger=types.SimpleNamespace()
    )
    dataset = module.MultiCropDataset(place.train, [224, 96], [2, 6], [0.14, 0.05], [1.0, 0.14])
    return _distributed(dataset, drop_last=True)


def _byol(place: Place) -> Made:
    path = place.repos / "byol-pytorch" / "examples" / "lightning" / "train.py"
    module = definitions(path, IMAGE_EXTS=[".jpg", ".png", ".jpeg"])
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = module.ImagesDataset(place.train, 256)
    return Made(dataset=dataset, arguments={"shuffle": True})


def _open_clip(place: Place) -> Made:
    module = importlib.import_module("open_clip.transform")
    tokenizer = importlib.import_module("open_clip.tokenizer").SimpleTokenizer()
    csv = definitions(
        place.repos / "open_clip" / "src" / "open_clip_train" / "data.py",
        _logger=types.SimpleNamespace(debug=lambda line: None),
    )
    dataset = csv.CsvDataset(
        str(place.root / "captions.csv"),
        module.image_transform_v2(module.PreprocessCfg(), is_train=True),
        img_key="filepath",
        caption_key="title",
        tokenizer=tokenizer,
    )
    arguments = {"shuffle": True, "pin_memory": True, "drop_last": True}
    return Made(dataset=dataset, arguments=arguments)


def _unet(place: Place) -> Made:
    path = place.repos / "Pytorch-UNet" / "utils" / "data_loading.py"
    with contextlib.redirect_stderr(io.StringIO()):
        dataset = definitions(path).BasicDataset(place.root / "imgs", place.root / "masks", 0.5)
    return Made(dataset=dataset, arguments={"shuffle": True, "pin_memory": True})


def _cyclegan(place: Place) -> Made:
    options = types.SimpleNamespace(
        dataroot=str(place.root),
        phase="train",
        max_dataset_size=math.inf,
        direction="AtoB",
        input_nc=3,
        output_nc=3,
        preprocess="resize_and_crop",
        load_size=286,
        crop_size=256,
        no_flip=False,
        serial_batches=False,
    )
    dataset = importlib.import_module("data.unaligned_dataset").UnalignedDataset(options)
    return Made(dataset=dataset, arguments={"shuffle": True})


def _detr(place: Place) -> Made:
    root = place.repos / "detr"
    misc = definitions(root / "util" / "misc.py")
    joint = definitions(root / "datasets" / "transforms.py", interpolate=misc.interpolate)
    module = definitions(root / "datasets" / "coco.py", T=joint)
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = module.CocoDetection(
            place.root / "imgs",
            place.root / "coco.json",
            transforms=module.make_coco_transforms("train"),
            return_masks=False,
        )
    sampler = BatchSampler(RandomSampler(dataset), 2, drop_last=True)
    return Made(
        dataset=dataset, arguments={"batch_sampler": sampler, "collate_fn": misc.collate_fn}
    )


def _hugging_face(place: Place) -> Made:
    import datasets as hugging_face

    train = datasets.ImageFolder(place.train)
    columns = {"image": [path for path, _ in train.samples], "labels": train.targets}
    dataset = hugging_face.Dataset.from_dict(columns)
    dataset = dataset.cast_column("image", hugging_face.Image())
    transform = _usual()

    def transformed(batch: dict[str, Any]) -> dict[str, Any]:
        batch["pixel_values"] = [transform(image.convert("RGB")) for image in batch["image"]]
        return batch

    dataset.set_transform(transformed)
    return Made(dataset=dataset, arguments={"shuffle": True, "collate_fn": _stacked})


def _stacked(samples: list[Any]) -> Any:
    images = torch.stack([sample["pixel_values"] for sample in samples])
    return {
        "pixel_values": images,
        "labels": torch.tensor([sample["labels"] for sample in samples]),
    }


_TIMM = "pytorch-image-models"

SCRIPTS: dict[str, Script] = {
    "imagenet": Script(
        repository="pytorch/examples",
        commit="77f55b9121",
        file="imagenet/main.py",
        does="ImageFolder; random crop, flip",
        make=_examples,
    ),
    "classification": Script(
        repository="pytorch/vision",
        commit="v0.21.0",
        file="references/classification/train.py",
        does="ImageFolder; its own class around random crop and flip",
        make=_classification,
        batch=32,
        imports=("vision/references/classification",),
    ),
    "segmentation": Script(
        repository="pytorch/vision",
        commit="v0.21.0",
        file="references/segmentation/train.py",
        does="VOC: image and mask, resized, flipped and cropped to 480 alike; its own collate_fn",
        make=_segmentation,
        batch=8,
        heavy=True,
        imports=("vision/references/segmentation",),
    ),
    "timm": Script(
        repository="huggingface/pytorch-image-models",
        commit="aa4b5850c1",
        file="train.py",
        does="its own Dataset; crop with random interpolation, jitter; its own collate_fn (uint8)",
        make=_timm,
        imports=(_TIMM,),
        needs=("huggingface_hub", "safetensors", "yaml"),
    ),
    "dino": Script(
        repository="facebookresearch/dino",
        commit="7c446df5b9",
        file="main_dino.py",
        does="two crops of 224, eight of 96; jitter, blur, solarize",
        make=_dino,
        heavy=True,
        imports=("dino",),
    ),
    "ibot": Script(
        repository="bytedance/ibot",
        commit="da316d8263",
        file="main_ibot.py",
        does="two crops of 224, ten of 96; jitter, blur, solarize; masks drawn in Python",
        make=_ibot,
        heavy=True,
        imports=("ibot",),
    ),
    "simclr": Script(
        repository="sthalles/SimCLR",
        commit="1848fc934a",
        file="run.py",
        does="two views of 96; jitter, blurred by a convolution of torch's",
        make=_simclr,
        imports=("SimCLR",),
    ),
    "supcontrast": Script(
        repository="HobbitLong/SupContrast",
        commit="66a8fe5388",
        file="main_supcon.py",
        does="two views of 32; jitter, grayscale",
        make=_supcontrast,
        imports=("SupContrast",),
    ),
    "moco": Script(
        repository="facebookresearch/moco",
        commit="78b69cafae",
        file="main_moco.py",
        does="two views; jitter, grayscale, blur",
        make=_moco,
        imports=("moco",),
    ),
    "moco-v3": Script(
        repository="facebookresearch/moco-v3",
        commit="c349e6e24f",
        file="main_moco.py",
        does="two views; jitter, grayscale, blur, solarize",
        make=_moco_v3,
        imports=("moco-v3",),
    ),
    "barlowtwins": Script(
        repository="facebookresearch/barlowtwins",
        commit="8e8d284ca0",
        file="main.py",
        does="two views, bicubic; jitter, grayscale, blur, solarize",
        make=_barlowtwins,
        imports=("barlowtwins",),
    ),
    "vicreg": Script(
        repository="facebookresearch/vicreg",
        commit="4e12602fd4",
        file="main_vicreg.py",
        does="two views, bicubic; jitter, grayscale, blur, solarize, drawn by NumPy",
        make=_vicreg,
        imports=("vicreg",),
    ),
    "swav": Script(
        repository="facebookresearch/swav",
        commit="06b1b7cbaf",
        file="main_swav.py",
        does="a subclass of ImageFolder; two crops of 224, six of 96; jitter, blur",
        make=_swav,
        heavy=True,
        imports=("swav",),
    ),
    "byol": Script(
        repository="lucidrains/byol-pytorch",
        commit="299312613c",
        file="examples/lightning/train.py",
        does="its own Dataset; resize, centre crop to 256, a Lambda",
        make=_byol,
        batch=32,
        imports=("byol-pytorch",),
    ),
    "simsiam": Script(
        repository="facebookresearch/simsiam",
        commit="a7bc177289",
        file="main_simsiam.py",
        does="two views; jitter, grayscale, blur",
        make=_simsiam,
        imports=("simsiam",),
    ),
    "mae": Script(
        repository="facebookresearch/mae",
        commit="efb2a8062c",
        file="main_pretrain.py",
        does="ImageFolder; random crop (bicubic), flip",
        make=_mae,
    ),
    "deit": Script(
        repository="facebookresearch/deit",
        commit="7e160fe43f",
        file="main.py",
        does="timm's crop, flip, RandAugment, erasing",
        make=_deit,
        imports=("deit", _TIMM),
        needs=("huggingface_hub", "safetensors", "yaml"),
    ),
    "convnext": Script(
        repository="facebookresearch/ConvNeXt",
        commit="048efcea89",
        file="main.py",
        does="timm's crop, flip, RandAugment, erasing",
        make=_convnext,
        imports=("ConvNeXt", _TIMM),
        needs=("huggingface_hub", "safetensors", "yaml"),
    ),
    "swin": Script(
        repository="microsoft/Swin-Transformer",
        commit="f82860bfb5",
        file="main.py",
        does="timm's crop, flip, RandAugment, erasing",
        make=_swin,
        imports=("Swin-Transformer", _TIMM),
        needs=("huggingface_hub", "safetensors", "yaml"),
    ),
    "beit": Script(
        repository="microsoft/unilm",
        commit="768a3c873f",
        file="beit/run_beit_pretraining.py",
        does="jitter of the whole photo, then one crop in two sizes; masks of patches",
        make=_beit,
        imports=("unilm/beit", _TIMM),
        needs=("huggingface_hub", "safetensors", "yaml"),
    ),
    "unet": Script(
        repository="milesial/Pytorch-UNet",
        commit="21d7850f2a",
        file="train.py",
        does="image and mask at half size, as arrays",
        make=_unet,
        batch=1,
        heavy=True,
        imports=("Pytorch-UNet",),
        needs=("tqdm",),
    ),
    "cifar": Script(
        repository="kuangliu/pytorch-cifar",
        commit="49b7aa97b0",
        file="main.py",
        does="CIFAR10 in memory; padded crop, flip",
        make=_cifar,
        batch=128,
    ),
    "cyclegan": Script(
        repository="junyanz/pytorch-CycleGAN-and-pix2pix",
        commit="master",
        file="train.py",
        does="two photos, resized to 286 (bicubic), cropped to 256; batches of one",
        make=_cyclegan,
        batch=1,
        imports=("pytorch-CycleGAN-and-pix2pix",),
    ),
    "detr": Script(
        repository="facebookresearch/detr",
        commit="29901c51d7",
        file="main.py",
        does="COCO: image and boxes, resized up to 800 x 1333; batches of two, padded",
        make=_detr,
        batch=2,
        heavy=True,
        imports=("detr",),
        needs=("pycocotools",),
    ),
    "open-clip": Script(
        repository="mlfoundations/open_clip",
        commit="89fb801f1e",
        file="src/open_clip_train/main.py",
        does="photos listed in a CSV file; bicubic crop, text as tokens",
        make=_open_clip,
        imports=("open_clip/src", _TIMM),
        needs=("ftfy", "regex", "pandas", "huggingface_hub", "safetensors", "yaml"),
    ),
    "hugging-face": Script(
        repository="huggingface/transformers",
        commit="main",
        file="examples/pytorch/image-classification/run_image_classification.py",
        does="a Hugging Face dataset with set_transform; random crop, flip",
        make=_hugging_face,
        batch=8,
        needs=("datasets",),
    ),
}
"""By variant of the suite."""
