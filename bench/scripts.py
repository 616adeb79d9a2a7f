"""Public training scripts, for the suite scripts: what each of them gives to DataLoader.

They were chosen before any of them was measured, of many kinds, and nobody tuned fastload to them.
None of their code is here. Classes and functions of a script are imported from the user's checkout.
Code inside a function that trains cannot be imported: mostly a list of torchvision's transforms,
which ``make`` builds again. Sizes, probabilities and arguments are the defaults of the script, or
those of its README. Where a library no longer has a name that a script uses (``Image.ANTIALIAS``,
``np.float``), it is given.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import itertools
import logging
import os
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import RandomSampler
from torchvision import transforms as T

from bench.datasets import Given, recipe
from bench.workload import MEAN, STD

_Make = Callable[[Path, Path], Given]


@dataclasses.dataclass(frozen=True)
class Script:
    """A public training script.

    Attributes:
        repository: owner and name on GitHub. Its checkout is the folder of that name in REPOS.
        commit: one with which ``make`` works.
        file: the script, in its repository.
        make: does what the script does before its loop, given its checkout and the folder of photos
            (``lay_out``). Its docstring says what the Dataset does, for a table.
        batch: samples in a batch. Where a script has more than 64 it is 64, so that an epoch of
            some hundred photos is several batches.
        heavy: it makes many views of each image, or large ones. Half the photos are enough.
        imports: the folder of its checkout from which it imports.
        needs: libraries that these import, beside torch and torchvision.
    """

    repository: str
    commit: str
    file: str
    make: _Make
    batch: int = 64
    heavy: bool = False
    imports: str = ""
    needs: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return self.repository.split("/")[1]

    def clone(self, repos: str) -> str:
        """The command that makes its checkout."""
        target = f"{repos}/{self.folder}"
        return (
            f"git clone -q --filter=blob:none https://github.com/{self.repository} {target} && "
            f"git -C {target} checkout -q {self.commit}"
        )


SCRIPTS: dict[str, Script] = {}
"""By variant of the suite."""


def script(repository: str, commit: str, file: str, **more: Any) -> Callable[[_Make], _Make]:
    """Put the ``make`` below it into ``SCRIPTS``, under its name; the rest is Script's."""

    def add(make: _Make) -> _Make:
        SCRIPTS[make.__name__.replace("_", "-")] = Script(repository, commit, file, make, **more)
        return make

    return add


# --- importing from checkouts ---------------------------------------------------------------------


@contextlib.contextmanager
def imported(folder: Path) -> Iterator[None]:
    """Modules in ``folder`` can be imported inside, and are forgotten afterwards.

    Many scripts have a module of the same name (``utils``, ``data``, ``datasets``). Installed
    modules of such names are hidden inside.
    """
    names = {path.stem for path in folder.iterdir()}
    hidden = {name: sys.modules[name] for name in sys.modules if name.split(".")[0] in names}
    for name in hidden:
        del sys.modules[name]
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if Path(file).is_relative_to(folder):
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


# --- the scripts ----------------------------------------------------------------------------------


@script(
    "facebookresearch/maskrcnn-benchmark",
    "57eec25b75",
    "tools/train_net.py",
    batch=2,
    heavy=True,
    needs=("pycocotools", "yaml"),
)
def maskrcnn(checkout: Path, photos: Path) -> Given:
    """detection: COCO, resized up to 800 x 1333, BGR; grouped by shape, padded"""
    root = checkout / "maskrcnn_benchmark"
    boxes = definitions(root / "structures/bounding_box.py", FLIP_LEFT_RIGHT=0, FLIP_TOP_BOTTOM=1)
    lists = definitions(root / "structures/image_list.py")
    joint = definitions(root / "data/transforms/transforms.py")
    collate = definitions(root / "data/collate_batch.py", to_image_list=lists.to_image_list)
    sampler = definitions(root / "data/samplers/grouped_batch_sampler.py")
    module = definitions(root / "data/datasets/coco.py", BoxList=boxes.BoxList)
    transform = joint.Compose(
        [
            joint.ColorJitter(0.0, 0.0, 0.0, 0.0),
            joint.Resize((800,), 1333),
            joint.RandomHorizontalFlip(0.5),
            joint.RandomVerticalFlip(0.0),
            joint.ToTensor(),
            joint.Normalize([102.9801, 115.9465, 122.7717], [1.0, 1.0, 1.0], to_bgr255=True),
        ]
    )
    dataset = module.COCODataset(str(photos / "coco.json"), str(photos / "imgs"), True, transform)
    shapes = [dataset.get_img_info(number) for number in range(len(dataset))]
    upright = [int(shape["height"] >= shape["width"]) for shape in shapes]
    batches = sampler.GroupedBatchSampler(RandomSampler(dataset), upright, 2, drop_uneven=False)
    return Given(dataset, batch_sampler=batches, collate_fn=collate.BatchCollator(32))


@script("jfzhang95/pytorch-deeplab-xception", "9135e104a7", "train.py", batch=4, heavy=True)
def deeplab(checkout: Path, photos: Path) -> Given:
    """segmentation: VOC, scaled by 0.5 to 2, cropped to 513, blurred; arrays of float32"""
    root = checkout / "dataloaders"
    joint = definitions(root / "custom_transforms.py")
    module = definitions(root / "datasets/pascal.py", tr=joint)
    sizes = types.SimpleNamespace(base_size=513, crop_size=513)
    dataset = module.VOCSegmentation(sizes, str(photos / "VOCdevkit/VOC2012"))
    return Given(dataset, shuffle=True, pin_memory=True)


@script("leftthomas/SRGAN", "5e9da9395c", "train.py")
def srgan(checkout: Path, photos: Path) -> Given:
    """super-resolution: PNG, a crop of 88, and that resized to 22 by way of a tensor"""
    module = importlib.import_module("data_utils")
    folder = str(photos / "pairs/target")
    dataset = module.TrainDatasetFromFolder(folder, crop_size=88, upscale_factor=4)
    return Given(dataset, shuffle=True)


@script(
    "swz30/MPRNet",
    "43feb2aed4",
    "Deblurring/train.py",
    batch=16,
    heavy=True,
    imports="Deblurring",
)
def mprnet(checkout: Path, photos: Path) -> Given:
    """deblurring: two PNGs, saturation, then crops, flips and turns of tensors"""
    module = importlib.import_module("dataset_RGB")
    dataset = module.DataLoaderTrain(str(photos / "pairs"), {"patch_size": 256})
    return Given(dataset, shuffle=True, drop_last=False, pin_memory=True)


@script("Holmeyoung/crnn-pytorch", "dc2f21afc1", "train.py", needs=("lmdb", "six"))
def crnn(checkout: Path, photos: Path) -> Given:
    """OCR: words from LMDB in gray, resized to 100 x 32 in its collate_fn"""
    module = importlib.import_module("dataset")
    dataset = module.lmdbDataset(root=str(photos / "words"))
    collate = module.alignCollate(imgH=32, imgW=100, keep_ratio=False)
    return Given(dataset, shuffle=True, collate_fn=collate)


@script(
    "tjddus9597/Proxy-Anchor-CVPR2020",
    "51db57031e",
    "code/train.py",
    imports="code",
)
def proxy_anchor(checkout: Path, photos: Path) -> Given:
    """metric learning: channels exchanged, random crop, flip, arithmetic"""
    module = importlib.import_module("dataset")
    birds = photos / "CUB_200_2011"
    birds.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (birds / "images").symlink_to((photos / "train").resolve())
    transform = module.utils.make_transform(is_train=True, is_inception=True)
    dataset = module.load(name="cub", root=str(photos), mode="train", transform=transform)
    return Given(dataset, shuffle=True, drop_last=True, pin_memory=True)


@script("yinboc/few-shot-meta-baseline", "779fae39da", "train_meta.py", batch=80)
def few_shot(checkout: Path, photos: Path) -> Given:
    """few-shot: episodes of 5 classes and 16 photos, resize, centre crop"""
    module = importlib.import_module("datasets")
    samplers = importlib.import_module("datasets.samplers")
    dataset = module.make("image-folder", root_path=str(photos / "train"))
    smallest = min(np.bincount(dataset.label))
    batches = samplers.CategoriesSampler(dataset.label, 4, 5, min(16, int(smallest)))
    return Given(dataset, batch_sampler=batches, pin_memory=True)


@script("mit-han-lab/temporal-shift-module", "1f6a834b02", "main.py", batch=8)
def tsm(checkout: Path, photos: Path) -> Given:
    """video: clips of 8 frames, one crop and flip, put together as an array"""
    group = importlib.import_module("ops.transforms")
    transform = T.Compose(
        [
            group.GroupMultiScaleCrop(224, [1, 0.875, 0.75, 0.66]),
            group.GroupRandomHorizontalFlip(is_flow=False),
            group.Stack(roll=False),
            group.ToTorchFormatTensor(div=True),
            group.GroupNormalize(list(MEAN), list(STD)),
        ]
    )
    dataset = importlib.import_module("ops.dataset").TSNDataSet(
        str(photos / "frames"), str(photos / "videos.txt"), num_segments=8, transform=transform
    )
    return Given(dataset, shuffle=True, pin_memory=True, drop_last=True)


@script("LeeJunHyun/Image_Segmentation", "bc69043e28", "main.py", batch=1, heavy=True)
def image_segmentation(checkout: Path, photos: Path) -> Given:
    """medical: photo and mask, resized twice, turned, cropped, jittered; batches of one"""
    dataset = importlib.import_module("data_loader").ImageFolder(
        root=str(photos / "isic/train") + "/"
    )
    return Given(dataset, shuffle=True)


@script(
    "4uiiurz1/pytorch-nested-unet",
    "557ea02f0b",
    "train.py",
    batch=16,
    needs=("cv2", "albumentations"),
)
def nested_unet(checkout: Path, photos: Path) -> Given:
    """medical: OpenCV and Albumentations, PNGs of 96 x 96 with masks, resized to 256"""
    import albumentations as A

    module = definitions(checkout / "dataset.py")
    # Flip, RandomBrightness and RandomContrast have other names since Albumentations 2.
    transform = A.Compose(
        [
            A.RandomRotate90(),
            A.OneOf([A.HorizontalFlip(p=1), A.VerticalFlip(p=1)], p=0.5),
            A.OneOf(
                [
                    A.HueSaturationValue(),
                    A.RandomBrightnessContrast(contrast_limit=0),
                    A.RandomBrightnessContrast(brightness_limit=0),
                ],
                p=1,
            ),
            A.Resize(256, 256),
            A.Normalize(),
        ],
        seed=1,
    )
    names = sorted(path.stem for path in (photos / "cells" / "images").iterdir())
    dataset = module.Dataset(
        names,
        str(photos / "cells/images"),
        str(photos / "cells/masks"),
        ".png",
        ".png",
        1,
        transform,
    )
    return Given(dataset, shuffle=True, drop_last=True)


@script(
    "filipradenovic/cnnimageretrieval-pytorch", "1e66a417af", "cirtorch/examples/train.py", batch=5
)
def retrieval(checkout: Path, photos: Path) -> Given:
    """image retrieval: lists of 7 photos of 1024 pixels, thumbnails of 362"""
    vars(Image)["ANTIALIAS"] = Image.Resampling.LANCZOS  # which Pillow 10 took away
    root = checkout / "cirtorch/datasets"
    helpers = definitions(root / "datahelpers.py")
    module = definitions(
        root / "traindataset.py", default_loader=helpers.default_loader, imresize=helpers.imresize
    )
    images = sorted(map(str, (photos / "landmarks").iterdir()))
    # What __init__ reads from a file, and what create_epoch_tuples searches with the network.
    dataset = module.TuplesDataset.__new__(module.TuplesDataset)
    drawn = random.Random(1)
    count = max(1, len(images) // 7)
    chosen = [drawn.choices(range(len(images)), k=7) for _ in range(count)]
    dataset.__dict__.update(
        images=images,
        imsize=362,
        qsize=count,
        qidxs=[tuple_[0] for tuple_ in chosen],
        pidxs=[tuple_[1] for tuple_ in chosen],
        nidxs=[tuple_[2:] for tuple_ in chosen],
        transform=recipe(),
        loader=helpers.default_loader,
    )
    return Given(
        dataset, shuffle=True, pin_memory=True, drop_last=True, collate_fn=helpers.collate_tuples
    )


@script(
    "leoxiaobin/deep-high-resolution-net.pytorch",
    "6f69e4676a",
    "tools/train.py",
    batch=32,
    imports="lib",
    needs=("cv2", "pycocotools"),
)
def hrnet(checkout: Path, photos: Path) -> Given:
    """keypoints: OpenCV, one affine warp; heatmaps drawn by NumPy"""
    root = checkout / "lib/dataset"
    base = definitions(root / "JointsDataset.py")
    module = definitions(
        root / "coco.py",
        JointsDataset=base.JointsDataset,
        np=types.SimpleNamespace(**{**vars(np), "float": float}),  # np.float was there before 1.24
        logger=logging.getLogger(__name__),
    )
    given = types.SimpleNamespace
    config = given(
        OUTPUT_DIR="",
        DATASET=given(
            DATA_FORMAT="jpg",
            SCALE_FACTOR=0.35,
            ROT_FACTOR=45,
            FLIP=True,
            NUM_JOINTS_HALF_BODY=8,
            PROB_HALF_BODY=0.3,
            COLOR_RGB=True,
            SELECT_DATA=False,
        ),
        MODEL=given(TARGET_TYPE="gaussian", IMAGE_SIZE=[192, 256], HEATMAP_SIZE=[48, 64], SIGMA=2),
        LOSS=given(USE_DIFFERENT_JOINTS_WEIGHT=False),
        TEST=given(
            NMS_THRE=1.0,
            IMAGE_THRE=0.0,
            SOFT_NMS=False,
            OKS_THRE=0.9,
            IN_VIS_THRE=0.2,
            COCO_BBOX_FILE="",
            USE_GT_BBOX=True,
        ),
    )
    dataset = module.COCODataset(config, str(photos / "people"), "train2017", True, recipe())
    return Given(dataset, shuffle=True, pin_memory=True)


@script("bbrattoli/JigsawPuzzlePytorch", "ec85994b9f", "JigsawTrain.py", heavy=True)
def jigsaw(checkout: Path, photos: Path) -> Given:
    """self-supervision: nine tiles, each jittered by NumPy and normalized by itself"""
    module = definitions(checkout / "Dataset/JigsawImageLoader.py")
    before = Path.cwd()
    os.chdir(photos)  # where it looks for its table of permutations
    try:
        dataset = module.DataLoader(str(photos / "imgs"), "listed.txt", classes=1000)
    finally:
        os.chdir(before)
    return Given(dataset, shuffle=True)
