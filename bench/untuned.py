"""Public scripts that nobody tuned fastload to, for the suite scripts: of many kinds, the bad too.

They were chosen before any of them was measured. As in ``bench/scripts.py``, none of their code is
here, and sizes and arguments are the script's own. Where a library no longer has a name that a
script uses (``Image.ANTIALIAS``, ``np.float``), it is given.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import io
import json
import logging
import random
import tarfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter
from torch.utils.data import RandomSampler, SubsetRandomSampler
from torchvision import transforms as T
from torchvision.transforms import functional

from bench import data, scripts
from bench.data import Say
from bench.datasets import ten_crops
from bench.scripts import Given, Place, Script, chain, definitions, lay_out
from bench.workload import MEAN, STD

UNTUNED: dict[str, Script] = {}
"""By variant of the suite."""

script = functools.partial(scripts.script, known=UNTUNED)

# --- photos, laid out as these scripts want them --------------------------------------------------


def lay_out_more(cache: Path, images: Path, *, say: Say) -> Path:
    """What ``lay_out`` makes, and what the scripts here want beside it.

    Files have the format and about the size that they have in the dataset of each script.
    """
    plain = lay_out(cache, images, say=say)
    files = [path.resolve() for path in data.files(images)]

    def make(folder: Path) -> None:
        say("laying photos out for more scripts")
        for path in plain.iterdir():
            (folder / path.name).symlink_to(path)
        for fill in (_boxes, _png, _words, _frames, _drives, _skin, _cells, _chests, _shards,
                     _landmarks, _faces, _people, _captions, _tiles):  # fmt: skip
            fill(folder, files)

    return data.made(cache, f"untuned-{images.name}", make)


def _rgb(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB")


def _mask(folder: Path, number: int) -> Image.Image:
    """The mask of photo ``number``: white where it is bright."""
    with Image.open(folder / "masks" / f"{number:06}.png") as mask:
        return mask.convert("L").point([255 * (level > 2) for level in range(256)])


def _saved(
    files: list[Path],
    folder: Path,
    change: Callable[[Image.Image], Image.Image] = lambda picture: picture,
    name: str = "{:06}.jpg",
    **how: Any,
) -> None:
    """Save the photos in the new ``folder``, changed, under the name that has their number."""
    folder.mkdir(parents=True)
    for number, path in enumerate(files):
        change(_rgb(path)).save(folder / name.format(number), **how)


def _boxes(folder: Path, files: list[Path]) -> None:
    """Boxes as YOLO's text files, beside photos."""
    images, labels = folder / "yolo" / "images", folder / "yolo" / "labels"
    images.mkdir(parents=True)
    labels.mkdir()
    for number, path in enumerate(files):
        (images / f"{number:06}.jpg").symlink_to(path)
        lines = [f"{number % 80} 0.3 0.3 0.4 0.4", f"{(number + 7) % 80} 0.6 0.7 0.5 0.4"]
        (labels / f"{number:06}.txt").write_text("\n".join(lines) + "\n")


def _png(folder: Path, files: list[Path]) -> None:
    """Sharp and blurred photos as PNG: datasets for super-resolution and deblurring are."""
    blur = ImageFilter.GaussianBlur(2)
    _saved(files, folder / "pairs" / "target", name="{:06}.png")
    _saved(files, folder / "pairs" / "input", lambda photo: photo.filter(blur), "{:06}.png")


def _words(folder: Path, files: list[Path]) -> None:
    """Strips of the size of words in LMDB, ten from each photo."""
    import lmdb

    drawn = random.Random(1)
    environment = lmdb.open(str(folder / "words"), map_size=1 << 30)
    count = 0
    with environment.begin(write=True) as records:
        for path in files:
            picture = _rgb(path)
            for _ in range(10):
                width, height = drawn.randint(50, 150), drawn.randint(25, 40)
                left = drawn.randint(0, max(0, picture.width - width))
                top = drawn.randint(0, max(0, picture.height - height))
                strip = io.BytesIO()
                picture.crop((left, top, left + width, top + height)).save(strip, "JPEG")
                count += 1
                records.put(f"image-{count:09}".encode(), strip.getvalue())
                records.put(f"label-{count:09}".encode(), b"word")
        records.put(b"num-samples", str(count).encode())
    environment.close()


def _frames(folder: Path, files: list[Path]) -> None:
    """Videos of 16 frames of 340 x 256, as frames of Kinetics are extracted."""
    lines = []
    for video in range(max(1, len(files) // 8)):
        frames = folder / "frames" / f"video{video:04}"
        frames.mkdir(parents=True)
        for number in range(16):
            path = files[(video * 8 + number) % len(files)]
            picture = _rgb(path).resize((340, 256))
            picture.save(frames / f"img_{number + 1:05}.jpg", quality=90)
        lines.append(f"{frames.name} 16 {video % 10}")
    (folder / "videos.txt").write_text("\n".join(lines) + "\n")


def _drives(folder: Path, files: list[Path]) -> None:
    """A drive of 1242 x 375, as KITTI's."""
    frames = folder / "kitti" / "drive" / "image_02" / "data"
    size, bicubic = (1242, 375), Image.Resampling.BICUBIC
    _saved(files, frames, lambda photo: photo.resize(size, bicubic), "{:010}.jpg", quality=92)


def _skin(folder: Path, files: list[Path]) -> None:
    """Photos with a mask each, named as ISIC names them."""
    _saved(files, folder / "isic" / "train", name="ISIC_{:07}.jpg", quality=90)
    masks = folder / "isic" / "train_GT"
    masks.mkdir()
    for number in range(len(files)):
        _mask(folder, number).save(masks / f"ISIC_{number:07}_segmentation.png")


def _cells(folder: Path, files: list[Path]) -> None:
    """PNGs of 96 x 96 with a mask each."""
    _saved(files, folder / "cells" / "images", lambda photo: photo.resize((96, 96)), "{:06}.png")
    masks = folder / "cells" / "masks" / "0"
    masks.mkdir(parents=True)
    for number in range(len(files)):
        _mask(folder, number).resize((96, 96)).save(masks / f"{number:06}.png")


def _chests(folder: Path, files: list[Path]) -> None:
    """Gray PNGs of 1024 x 1024, as ChestX-ray14's."""

    def gray(photo: Image.Image) -> Image.Image:
        return photo.convert("L").resize((1024, 1024), Image.Resampling.BICUBIC)

    _saved(files, folder / "chests", gray, "{:06}.png")
    lines = []
    for number in range(len(files)):
        labels = " ".join(str(int((number + part) % 5 == 0)) for part in range(14))
        lines.append(f"{number:06}.png {labels}")
    (folder / "chests.txt").write_text("\n".join(lines) + "\n")


def _shards(folder: Path, files: list[Path]) -> None:
    """Four tar archives of photos and class numbers."""
    (folder / "shards").mkdir()
    for shard in range(4):
        with tarfile.open(folder / "shards" / f"photos-{shard:06}.tar", "w") as archive:
            for number in range(shard, len(files), 4):
                for suffix, content in (
                    ("jpg", files[number].read_bytes()),
                    ("cls", str(number % 10).encode()),
                ):
                    member = tarfile.TarInfo(f"{number:06}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def _landmarks(folder: Path, files: list[Path]) -> None:
    """Photos of 1024 pixels on the longer side."""

    def scaled(photo: Image.Image) -> Image.Image:
        scale = 1024 / max(photo.size)
        size = (round(photo.width * scale), round(photo.height * scale))
        return photo.resize(size, Image.Resampling.BICUBIC)

    _saved(files, folder / "landmarks", scaled, quality=90)


def _faces(folder: Path, files: list[Path]) -> None:
    """JPEGs of 160 x 160, as MTCNN cuts faces out."""
    for number, path in enumerate(files):
        target = folder / "faces" / path.parent.name / f"{number:06}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        _rgb(path).resize((160, 160)).save(target)


def _people(folder: Path, files: list[Path]) -> None:
    """A person with 17 points in each photo, as COCO has them."""
    images = folder / "people" / "images" / "train2017"
    images.mkdir(parents=True)
    (folder / "people" / "annotations").mkdir()
    photos, marked = [], []
    for number, path in enumerate(files):
        with Image.open(path) as picture:
            width, height = picture.size
        (images / f"{number:012}.jpg").symlink_to(path)
        photos.append({"id": number, "width": width, "height": height})
        points: list[float] = []
        for joint in range(17):
            points += [width * (0.3 + joint % 4 * 0.12), height * (0.2 + joint // 4 * 0.15), 2]
        marked.append(
            {
                "id": number,
                "image_id": number,
                "category_id": 1,
                "iscrowd": 0,
                "area": width * height / 3,
                "bbox": [width * 0.2, height * 0.1, width * 0.6, height * 0.8],
                "keypoints": points,
                "num_keypoints": 17,
            }
        )
    categories = [{"id": 1, "name": "person"}]
    people = {"images": photos, "annotations": marked, "categories": categories}
    file = folder / "people" / "annotations" / "person_keypoints_train2017.json"
    file.write_text(json.dumps(people))


def _captions(folder: Path, files: list[Path]) -> None:
    """Photos resized to 256 x 256 by the script that comes with it, and a caption each."""
    size, lanczos = (256, 256), Image.Resampling.LANCZOS
    _saved(files, folder / "resized", lambda photo: photo.resize(size, lanczos))
    photos, said = [], []
    for number in range(len(files)):
        photos.append({"id": number, "file_name": f"{number:06}.jpg"})
        words = " ".join(f"word{(number * part) % 50}" for part in range(1, 4 + number % 9))
        said.append({"id": number, "image_id": number, "caption": words})
    (folder / "said.json").write_text(json.dumps({"images": photos, "annotations": said}))


def _tiles(folder: Path, files: list[Path]) -> None:
    """A list of photos, and a thousand orders of nine tiles."""
    with (folder / "listed.txt").open("w") as file:
        lines = csv.writer(file, delimiter=" ", lineterminator="\n")
        lines.writerows([f"{number:06}.jpg", number % 10] for number in range(len(files)))
    generator = np.random.default_rng(1)
    orders = np.stack([generator.permutation(9) for _ in range(1000)])
    np.save(folder / "permutations_1000.npy", orders)


# --- the scripts ----------------------------------------------------------------------------------


def _antialias() -> None:
    """Pillow 10 took ``Image.ANTIALIAS`` away."""
    vars(Image)["ANTIALIAS"] = Image.Resampling.LANCZOS


def _numpy_with_float() -> Any:
    """NumPy, with the name ``np.float`` that it had before 1.24."""
    return types.SimpleNamespace(**{**vars(np), "float": float})


class _FormerJitter:
    """ColorJitter as torchvision had it before 0.9: ``get_params`` gives a transform."""

    @staticmethod
    def get_params(*ranges: tuple[float, float]) -> Callable[[Any], Any]:
        order, *strengths = T.ColorJitter.get_params(*map(list, ranges))
        adjust = [
            functional.adjust_brightness,
            functional.adjust_contrast,
            functional.adjust_saturation,
            functional.adjust_hue,
        ]

        def changed(image: Any) -> Any:
            for number in order.tolist():
                image = adjust[number](image, strengths[number])
            return image

        return changed


@script(
    "facebookresearch/maskrcnn-benchmark",
    "57eec25b75",
    "tools/train_net.py",
    batch=2,
    heavy=True,
    needs=("pycocotools", "yaml"),
)
def maskrcnn(place: Place) -> Given:
    """detection: COCO, resized up to 800 x 1333, BGR; grouped by shape, padded"""
    root = place.checkout / "maskrcnn_benchmark"
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
    dataset = module.COCODataset(place.at("coco.json"), place.at("imgs"), True, transform)
    shapes = [dataset.get_img_info(number) for number in range(len(dataset))]
    upright = [int(shape["height"] >= shape["width"]) for shape in shapes]
    batches = sampler.GroupedBatchSampler(RandomSampler(dataset), upright, 2, drop_uneven=False)
    return Given(dataset, batch_sampler=batches, collate_fn=collate.BatchCollator(32))


@script(
    "WongKinYiu/yolov7",
    "a207844b1c",
    "train.py",
    batch=16,
    heavy=True,
    needs=("cv2", "yaml", "pandas", "tqdm", "requests", "matplotlib", "scipy"),
)
def yolov7(place: Place) -> Given:
    """detection: OpenCV, mosaics of four and nine photos, warped, jittered in HSV"""
    import yaml

    module = importlib.import_module("utils.datasets")
    folder = place.root / "yolo" / "images"
    (folder.parent / "labels.cache").unlink(missing_ok=True)
    # It looks for labels where the first folder called images would be called labels.
    vars(module)["img2label_paths"] = lambda paths: [
        str(folder.parent / "labels" / f"{Path(path).stem}.txt") for path in paths
    ]
    settings = (place.checkout / "data/hyp.scratch.p5.yaml").read_text()
    dataset = module.LoadImagesAndLabels(
        str(folder), 640, 16, augment=True, hyp=yaml.safe_load(settings), stride=32
    )
    return Given(dataset, pin_memory=True, collate_fn=module.LoadImagesAndLabels.collate_fn)


@script("jfzhang95/pytorch-deeplab-xception", "9135e104a7", "train.py", batch=4, heavy=True)
def deeplab(place: Place) -> Given:
    """segmentation: VOC, scaled by 0.5 to 2, cropped to 513, blurred; arrays of float32"""
    root = place.checkout / "dataloaders"
    joint = definitions(root / "custom_transforms.py")
    module = definitions(root / "datasets/pascal.py", tr=joint)
    sizes = types.SimpleNamespace(base_size=513, crop_size=513)
    dataset = module.VOCSegmentation(sizes, place.at("VOCdevkit/VOC2012"))
    return Given(dataset, shuffle=True, pin_memory=True)


@script("leftthomas/SRGAN", "5e9da9395c", "train.py")
def srgan(place: Place) -> Given:
    """super-resolution: PNG, a crop of 88, and that resized to 22 by way of a tensor"""
    module = importlib.import_module("data_utils")
    folder = place.at("pairs/target")
    dataset = module.TrainDatasetFromFolder(folder, crop_size=88, upscale_factor=4)
    return Given(dataset, shuffle=True)


@script(
    "swz30/MPRNet",
    "43feb2aed4",
    "Deblurring/train.py",
    batch=16,
    heavy=True,
    imports=("MPRNet/Deblurring",),
)
def mprnet(place: Place) -> Given:
    """deblurring: two PNGs, saturation, then crops, flips and turns of tensors"""
    module = importlib.import_module("dataset_RGB")
    dataset = module.DataLoaderTrain(place.at("pairs"), {"patch_size": 256})
    return Given(dataset, shuffle=True, drop_last=False, pin_memory=True)


@script("Holmeyoung/crnn-pytorch", "dc2f21afc1", "train.py", needs=("lmdb", "six"))
def crnn(place: Place) -> Given:
    """OCR: words from LMDB in gray, resized to 100 x 32 in its collate_fn"""
    module = importlib.import_module("dataset")
    dataset = module.lmdbDataset(root=place.at("words"))
    collate = module.alignCollate(imgH=32, imgW=100, keep_ratio=False)
    return Given(dataset, shuffle=True, collate_fn=collate)


@script(
    "tjddus9597/Proxy-Anchor-CVPR2020",
    "51db57031e",
    "code/train.py",
    imports=("Proxy-Anchor-CVPR2020/code",),
)
def proxy_anchor(place: Place) -> Given:
    """metric learning: channels exchanged, random crop, flip, arithmetic"""
    module = importlib.import_module("dataset")
    birds = place.root / "CUB_200_2011"
    birds.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (birds / "images").symlink_to((place.root / "train").resolve())
    transform = module.utils.make_transform(is_train=True, is_inception=True)
    dataset = module.load(name="cub", root=str(place.root), mode="train", transform=transform)
    return Given(dataset, shuffle=True, drop_last=True, pin_memory=True)


@script("yinboc/few-shot-meta-baseline", "779fae39da", "train_meta.py", batch=80)
def few_shot(place: Place) -> Given:
    """few-shot: episodes of 5 classes and 16 photos, resize, centre crop"""
    module = importlib.import_module("datasets")
    samplers = importlib.import_module("datasets.samplers")
    dataset = module.make("image-folder", root_path=place.train)
    smallest = min(np.bincount(dataset.label))
    batches = samplers.CategoriesSampler(dataset.label, 4, 5, min(16, int(smallest)))
    return Given(dataset, batch_sampler=batches, pin_memory=True)


@script("openai/guided-diffusion", "22e0df8183", "scripts/image_train.py", needs=("blobfile",))
def guided_diffusion(place: Place) -> Given:
    """diffusion: halved (box) while it can be, bicubic, then cropped as an array"""
    path = place.checkout / "guided_diffusion/image_datasets.py"
    module = definitions(path)
    dataset = module.ImageDataset(64, module._list_image_files_recursively(place.train))
    return Given(dataset, shuffle=True, drop_last=True)


@script("nianticlabs/monodepth2", "b676244e5a", "train.py", batch=12, heavy=True)
def monodepth2(place: Place) -> Given:
    """depth: three frames of 1242 x 375, four sizes of each, jittered alike"""
    _antialias()
    root = place.checkout / "datasets"
    former = types.SimpleNamespace(ToTensor=T.ToTensor, Resize=T.Resize, ColorJitter=_FormerJitter)
    base = definitions(root / "mono_dataset.py", transforms=former)
    module = definitions(root / "kitti_dataset.py", MonoDataset=base.MonoDataset)
    frames = len(list((place.root / "kitti" / "drive" / "image_02" / "data").iterdir()))
    dataset = module.KITTIRAWDataset(
        place.at("kitti"),
        [f"drive {number} l" for number in range(1, frames - 1)],
        192,
        640,
        [0, -1, 1],
        4,
        is_train=True,
        img_ext=".jpg",
    )
    return Given(dataset, shuffle=True, pin_memory=True, drop_last=True)


@script("mit-han-lab/temporal-shift-module", "1f6a834b02", "main.py", batch=8)
def tsm(place: Place) -> Given:
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
        place.at("frames"), place.at("videos.txt"), num_segments=8, transform=transform
    )
    return Given(dataset, shuffle=True, pin_memory=True, drop_last=True)


@script("LeeJunHyun/Image_Segmentation", "bc69043e28", "main.py", batch=1, heavy=True)
def image_segmentation(place: Place) -> Given:
    """medical: photo and mask, resized twice, turned, cropped, jittered; batches of one"""
    dataset = importlib.import_module("data_loader").ImageFolder(root=place.at("isic/train") + "/")
    return Given(dataset, shuffle=True)


@script(
    "4uiiurz1/pytorch-nested-unet",
    "557ea02f0b",
    "train.py",
    batch=16,
    needs=("cv2", "albumentations"),
)
def nested_unet(place: Place) -> Given:
    """medical: OpenCV and Albumentations, PNGs of 96 x 96 with masks, resized to 256"""
    import albumentations as A

    module = definitions(place.checkout / "dataset.py")
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
    names = sorted(path.stem for path in (place.root / "cells" / "images").iterdir())
    dataset = module.Dataset(
        names, place.at("cells/images"), place.at("cells/masks"), ".png", ".png", 1, transform
    )
    return Given(dataset, shuffle=True, drop_last=True)


@script("arnoweng/CheXNet", "3d45ee77e2", "model.py", batch=16, heavy=True)
def chexnet(place: Place) -> Given:
    """medical: gray PNGs of 1024 x 1024, ten crops of each"""
    module = importlib.import_module("read_data")
    dataset = module.ChestXrayDataSet(place.at("chests"), place.at("chests.txt"), ten_crops())
    return Given(dataset, shuffle=False, pin_memory=True)


@script("webdataset/webdataset", "e0953f9bba", "README.md", imports=(), needs=("webdataset",))
def webdataset(place: Place) -> Given:
    """stream: tar archives, decode('pil'), random crop, flip"""
    import webdataset as wds

    transform = chain(T.RandomResizedCrop(224), T.RandomHorizontalFlip())
    photos = place.at("shards/photos-{000000..000003}.tar")
    dataset = (
        wds.WebDataset(photos, shardshuffle=False, seed=1)
        .shuffle(100, rng=random)  # which is seeded before each epoch that is compared
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(transform, lambda label: label)
    )
    return Given(dataset)


@script(
    "filipradenovic/cnnimageretrieval-pytorch", "1e66a417af", "cirtorch/examples/train.py", batch=5
)
def retrieval(place: Place) -> Given:
    """image retrieval: lists of 7 photos of 1024 pixels, thumbnails of 362"""
    _antialias()
    root = place.checkout / "cirtorch/datasets"
    helpers = definitions(root / "datahelpers.py")
    module = definitions(
        root / "traindataset.py", default_loader=helpers.default_loader, imresize=helpers.imresize
    )
    images = sorted(map(str, (place.root / "landmarks").iterdir()))
    transform = chain()
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
        transform=transform,
        loader=helpers.default_loader,
    )
    return Given(
        dataset, shuffle=True, pin_memory=True, drop_last=True, collate_fn=helpers.collate_tuples
    )


@script("timesler/facenet-pytorch", "787da06156", "examples/finetune.ipynb", batch=32)
def facenet(place: Place) -> Given:
    """faces: JPEGs of 160 x 160 as float32 arrays, arithmetic"""
    from torchvision import datasets

    module = definitions(place.checkout / "models/mtcnn.py")
    transform = T.Compose([np.float32, T.ToTensor(), module.fixed_image_standardization])
    dataset = datasets.ImageFolder(place.at("faces"), transform=transform)
    return Given(dataset, sampler=SubsetRandomSampler(range(len(dataset))))


@script(
    "leoxiaobin/deep-high-resolution-net.pytorch",
    "6f69e4676a",
    "tools/train.py",
    batch=32,
    imports=("deep-high-resolution-net.pytorch/lib",),
    needs=("cv2", "pycocotools"),
)
def hrnet(place: Place) -> Given:
    """keypoints: OpenCV, one affine warp; heatmaps drawn by NumPy"""
    root = place.checkout / "lib/dataset"
    base = definitions(root / "JointsDataset.py")
    module = definitions(
        root / "coco.py",
        JointsDataset=base.JointsDataset,
        np=_numpy_with_float(),
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
    dataset = module.COCODataset(config, place.at("people"), "train2017", True, chain())
    return Given(dataset, shuffle=True, pin_memory=True)


@script(
    "yunjey/pytorch-tutorial",
    "0500d3df5a",
    "tutorials/03-advanced/image_captioning/train.py",
    needs=("pycocotools",),
)
def captioning(place: Place) -> Given:
    """captions: JPEGs of 256 x 256, crop, flip; sorted and padded in its collate_fn"""
    words = types.SimpleNamespace(tokenize=types.SimpleNamespace(word_tokenize=str.split))
    folder = place.checkout / "tutorials/03-advanced/image_captioning"
    vocabulary = definitions(folder / "build_vocab.py", nltk=words)
    module = definitions(folder / "data_loader.py", nltk=words, Vocabulary=vocabulary.Vocabulary)
    transform = chain(T.RandomCrop(224), T.RandomHorizontalFlip())
    said = place.at("said.json")
    vocab = vocabulary.build_vocab(said, 1)
    dataset = module.CocoDataset(place.at("resized"), said, vocab, transform)
    return Given(dataset, shuffle=True, collate_fn=module.collate_fn)


@script("bbrattoli/JigsawPuzzlePytorch", "ec85994b9f", "JigsawTrain.py", heavy=True)
def jigsaw(place: Place) -> Given:
    """self-supervision: nine tiles, each jittered by NumPy and normalized by itself"""
    module = definitions(place.checkout / "Dataset/JigsawImageLoader.py")
    with contextlib.chdir(place.root):
        dataset = module.DataLoader(place.at("imgs"), "listed.txt", classes=1000)
    return Given(dataset, shuffle=True)
