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
from torchvision import datasets
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode

from bench import data
from bench import datasets as own
from bench.data import Say
from bench.workload import MEAN, STD


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where things are: the script's ``checkout``, and photos in ``root`` (``lay_out``)."""

    checkout: Path
    root: Path
    toy: bool

    def at(self, name: str) -> str:
        """The path of a file or folder in ``root``."""
        return str(self.root / name)

    @property
    def train(self) -> str:
        """A folder with one subfolder per class."""
        return self.at("train")


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
        timm: it imports from a checkout of timm, too.
        needs: libraries that these import, beside torch, torchvision and timm's.
    """

    repository: str
    commit: str
    file: str
    make: Callable[[Place], Given]
    batch: int = 64
    heavy: bool = False
    imports: tuple[str, ...] | None = None
    timm: bool = False
    needs: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of its checkout."""
        return self.repository.split("/")[1]

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders in REPOS that it imports from."""
        own = (self.folder,) if self.imports is None else self.imports
        return (*own, *["pytorch-image-models"] * self.timm)

    @property
    def libraries(self) -> tuple[str, ...]:
        return (*self.needs, *("huggingface_hub", "safetensors", "yaml") * self.timm)

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


def _distributed(dataset: Any, *, drop_last: bool) -> Given:
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
    return Given(dataset, sampler=sampler, pin_memory=True, drop_last=drop_last)


def _folder(place: Place, transform: Callable[[Any], Any]) -> Any:
    return datasets.ImageFolder(place.train, transform)


def chain(*steps: Any) -> Any:
    """``steps`` on a PIL image, then to a tensor, normalised as for ImageNet."""
    return T.Compose([*steps, T.ToTensor(), T.Normalize(MEAN, STD)])


def _usual() -> Any:
    """What most scripts for ImageNet begin with."""
    return chain(T.RandomResizedCrop(224), T.RandomHorizontalFlip())


def _jitter(*strength: float) -> Any:
    return T.RandomApply([T.ColorJitter(*strength)], p=0.8)


def _two_crops(place: Place, loader: Any) -> Given:
    """Two views, with MoCo's classes in the module ``loader``."""
    view = chain(
        T.RandomResizedCrop(224, scale=(0.2, 1.0)),
        _jitter(0.4, 0.4, 0.4, 0.1),
        T.RandomGrayscale(p=0.2),
        T.RandomApply([loader.GaussianBlur([0.1, 2.0])], p=0.5),
        T.RandomHorizontalFlip(),
    )
    return _distributed(_folder(place, loader.TwoCropsTransform(view)), drop_last=True)


@script("pytorch/examples", "77f55b9121", "imagenet/main.py", imports=())
def imagenet(place: Place) -> Given:
    """ImageFolder; random crop, flip"""
    return Given(_folder(place, _usual()), shuffle=True, pin_memory=True)


@script(
    "pytorch/vision",
    "v0.21.0",
    "references/classification/train.py",
    batch=32,
    imports=("vision/references/classification",),
)
def classification(place: Place) -> Given:
    """ImageFolder; its own class around random crop and flip"""
    presets = importlib.import_module("presets")
    dataset = _folder(place, presets.ClassificationPresetTrain(crop_size=224))
    return Given(dataset, sampler=RandomSampler(dataset), pin_memory=True)


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


@script("huggingface/pytorch-image-models", "aa4b5850c1", "train.py", imports=(), timm=True)
def timm(place: Place) -> Given:
    """its own Dataset; crop with random interpolation, jitter; its own collate_fn (uint8)"""
    timm = importlib.import_module("timm.data")
    collate = importlib.import_module("timm.data.loader").fast_collate
    dataset = timm.create_dataset("", root=place.train, split="train", is_training=True)
    dataset.transform = timm.create_transform(
        224, is_training=True, use_prefetcher=True, color_jitter=0.4, interpolation="random"
    )
    return Given(dataset, shuffle=True, collate_fn=collate, pin_memory=False, drop_last=True)


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


def _timm_options(place: Place, **more: Any) -> Any:
    """Arguments of the command line, as scripts built on timm have them."""
    return types.SimpleNamespace(
        data_set="IMNET",
        data_path=str(place.root),
        input_size=224,
        aa="rand-m9-mstd0.5-inc1",
        train_interpolation="bicubic",
        reprob=0.25,
        remode="pixel",
        recount=1,
        **more,
    )


@script("facebookresearch/deit", "7e160fe43f", "main.py", timm=True)
def deit(place: Place) -> Given:
    """timm's crop, flip, RandAugment, erasing"""
    _keep_a_bit()
    module = definitions(place.checkout / "datasets.py")
    dataset, _ = module.build_dataset(True, _timm_options(place, color_jitter=0.3))
    return Given(dataset, sampler=RandomSampler(dataset), pin_memory=True, drop_last=True)


@script("facebookresearch/ConvNeXt", "048efcea89", "main.py", timm=True)
def convnext(place: Place) -> Given:
    """timm's crop, flip, RandAugment, erasing"""
    _keep_a_bit()
    module = definitions(place.checkout / "datasets.py")
    options = _timm_options(place, imagenet_default_mean_and_std=True, color_jitter=0.4)
    dataset, _ = module.build_dataset(True, options)
    return _distributed(dataset, drop_last=True)


@script("microsoft/Swin-Transformer", "f82860bfb5", "main.py", timm=True)
def swin(place: Place) -> Given:
    """timm's crop, flip, RandAugment, erasing"""
    _keep_a_bit()
    module = definitions(place.checkout / "data/build.py")
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


@script("facebookresearch/mae", "efb2a8062c", "main_pretrain.py", imports=())
def mae(place: Place) -> Given:
    """ImageFolder; random crop (bicubic), flip"""
    transform = chain(
        T.RandomResizedCrop(224, scale=(0.2, 1.0), interpolation=InterpolationMode.BICUBIC),
        T.RandomHorizontalFlip(),
    )
    return _distributed(_folder(place, transform), drop_last=True)


@script(
    "microsoft/unilm",
    "768a3c873f",
    "beit/run_beit_pretraining.py",
    imports=("unilm/beit",),
    timm=True,
)
def beit(place: Place) -> Given:
    """jitter of the whole photo, then one crop in two sizes; masks of patches"""
    root = place.checkout / "beit"
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
    return _distributed(module.build_beit_pretraining_dataset(options), drop_last=True)


@script("facebookresearch/dino", "7c446df5b9", "main_dino.py", heavy=True)
def dino(place: Place) -> Given:
    """two crops of 224, eight of 96; jitter, blur, solarize"""
    module = definitions(place.checkout / "main_dino.py")
    transform = module.DataAugmentationDINO((0.4, 1.0), (0.05, 0.4), 8)
    return _distributed(_folder(place, transform), drop_last=True)


@script("bytedance/ibot", "da316d8263", "main_ibot.py", heavy=True)
def ibot(place: Place) -> Given:
    """two crops of 224, ten of 96; jitter, blur, solarize; masks drawn in Python"""
    module = definitions(place.checkout / "main_ibot.py")
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


@script("sthalles/SimCLR", "1848fc934a", "run.py")
def simclr(place: Place) -> Given:
    """two views of 96; jitter, blurred by a convolution of torch's"""
    views = importlib.import_module("data_aug.view_generator").ContrastiveLearningViewGenerator
    module = importlib.import_module("data_aug.contrastive_learning_dataset")
    transform = module.ContrastiveLearningDataset.get_simclr_pipeline_transform(96)
    return Given(_folder(place, views(transform, 2)), shuffle=True, pin_memory=True, drop_last=True)


@script("HobbitLong/SupContrast", "66a8fe5388", "main_supcon.py")
def supcontrast(place: Place) -> Given:
    """two views of 32; jitter, grayscale"""
    transform = chain(
        T.RandomResizedCrop(size=32, scale=(0.2, 1.0)),
        T.RandomHorizontalFlip(),
        _jitter(0.4, 0.4, 0.4, 0.1),
        T.RandomGrayscale(p=0.2),
    )
    dataset = _folder(place, importlib.import_module("util").TwoCropTransform(transform))
    return Given(dataset, shuffle=True, pin_memory=True)


@script("facebookresearch/moco", "78b69cafae", "main_moco.py")
def moco(place: Place) -> Given:
    """two views; jitter, grayscale, blur"""
    return _two_crops(place, importlib.import_module("moco.loader"))


@script("facebookresearch/moco-v3", "c349e6e24f", "main_moco.py")
def moco_v3(place: Place) -> Given:
    """two views; jitter, grayscale, blur, solarize"""
    loader = importlib.import_module("moco.loader")

    def view(blur: float, solarize: float) -> Any:
        return chain(
            T.RandomResizedCrop(224, scale=(0.08, 1.0)),
            _jitter(0.4, 0.4, 0.2, 0.1),
            T.RandomGrayscale(p=0.2),
            T.RandomApply([loader.GaussianBlur([0.1, 2.0])], p=blur),
            *[T.RandomApply([loader.Solarize()], p=solarize)] * (solarize > 0),
            T.RandomHorizontalFlip(),
        )

    views = loader.TwoCropsTransform(view(1.0, 0.0), view(0.1, 0.2))
    return _distributed(_folder(place, views), drop_last=True)


@script("facebookresearch/simsiam", "a7bc177289", "main_simsiam.py")
def simsiam(place: Place) -> Given:
    """two views; jitter, grayscale, blur"""
    return _two_crops(place, importlib.import_module("simsiam.loader"))


@script("facebookresearch/barlowtwins", "8e8d284ca0", "main.py")
def barlowtwins(place: Place) -> Given:
    """two views, bicubic; jitter, grayscale, blur, solarize"""
    module = definitions(place.checkout / "main.py")
    return _distributed(_folder(place, module.Transform()), drop_last=False)


@script("facebookresearch/vicreg", "4e12602fd4", "main_vicreg.py")
def vicreg(place: Place) -> Given:
    """two views, bicubic; jitter, grayscale, blur, solarize, drawn by NumPy"""
    transform = importlib.import_module("augmentations").TrainTransform()
    return _distributed(_folder(place, transform), drop_last=False)


@script("facebookresearch/swav", "06b1b7cbaf", "main_swav.py", heavy=True)
def swav(place: Place) -> Given:
    """a subclass of ImageFolder; two crops of 224, six of 96; jitter, blur"""
    module = definitions(place.checkout / "src/multicropdataset.py", logger=types.SimpleNamespace())
    dataset = module.MultiCropDataset(place.train, [224, 96], [2, 6], [0.14, 0.05], [1.0, 0.14])
    return _distributed(dataset, drop_last=True)


@script("lucidrains/byol-pytorch", "299312613c", "examples/lightning/train.py", batch=32)
def byol(place: Place) -> Given:
    """its own Dataset; resize, centre crop to 256, a Lambda"""
    script = place.checkout / "examples/lightning/train.py"
    module = definitions(script, IMAGE_EXTS=[".jpg", ".png", ".jpeg"])
    return Given(module.ImagesDataset(place.train, 256), shuffle=True)


@script(
    "mlfoundations/open_clip",
    "89fb801f1e",
    "src/open_clip_train/main.py",
    imports=("open_clip/src",),
    timm=True,
    needs=("ftfy", "regex", "pandas"),
)
def open_clip(place: Place) -> Given:
    """photos listed in a CSV file; bicubic crop, text as tokens"""
    module = importlib.import_module("open_clip.transform")
    tokenizer = importlib.import_module("open_clip.tokenizer").SimpleTokenizer()
    csv = definitions(
        place.checkout / "src/open_clip_train/data.py",
        _logger=types.SimpleNamespace(debug=lambda line: None),
    )
    dataset = csv.CsvDataset(
        place.at("captions.csv"),
        module.image_transform_v2(module.PreprocessCfg(), is_train=True),
        img_key="filepath",
        caption_key="title",
        tokenizer=tokenizer,
    )
    return Given(dataset, shuffle=True, pin_memory=True, drop_last=True)


@script("milesial/Pytorch-UNet", "21d7850f2a", "train.py", batch=1, heavy=True, needs=("tqdm",))
def unet(place: Place) -> Given:
    """image and mask at half size, as arrays"""
    module = definitions(place.checkout / "utils/data_loading.py")
    dataset = module.BasicDataset(place.root / "imgs", place.root / "masks", 0.5)
    return Given(dataset, shuffle=True, pin_memory=True)


@script("junyanz/pytorch-CycleGAN-and-pix2pix", "master", "train.py", batch=1)
def cyclegan(place: Place) -> Given:
    """two photos, resized to 286 (bicubic), cropped to 256; batches of one"""
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
    return Given(dataset, shuffle=True)


@script(
    "facebookresearch/detr", "29901c51d7", "main.py", batch=2, heavy=True, needs=("pycocotools",)
)
def detr(place: Place) -> Given:
    """COCO: image and boxes, resized up to 800 x 1333; batches of two, padded"""
    misc = definitions(place.checkout / "util/misc.py")
    path = place.checkout / "datasets/transforms.py"
    joint = definitions(path, interpolate=misc.interpolate)
    module = definitions(place.checkout / "datasets/coco.py", T=joint)
    dataset = module.CocoDetection(
        place.root / "imgs",
        place.root / "coco.json",
        transforms=module.make_coco_transforms("train"),
        return_masks=False,
    )
    sampler = BatchSampler(RandomSampler(dataset), 2, drop_last=True)
    return Given(dataset, batch_sampler=sampler, collate_fn=misc.collate_fn)


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
    transform = _usual()

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
