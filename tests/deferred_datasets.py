"""Datasets in the shapes that people write, over a folder of small photos."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image, ImageFile, ImageFilter, ImageOps
from torch.utils.data import Dataset, get_worker_info
from torchvision import transforms as T
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2

Filter = T.InterpolationMode

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def opened(path: Path, mode: str | None = "RGB") -> Image.Image:
    """The image in ``mode``; None: in its own."""
    return Image.open(path).convert(mode)


def write_colour_jpegs(folder: Path) -> list[Path]:
    """Those of twenty photos that are JPEGs in colour."""
    paths = write_photos(folder, 20)
    return [path for path in paths if path.suffix == ".jpg" and opened(path, None).mode == "RGB"]


def write_photos(folder: Path, count: int = 14) -> list[Path]:
    """JPEGs of several sizes: colour and gray, baseline and progressive; some CMYK, some PNG."""
    generator = np.random.default_rng(7)
    paths = []
    for i in range(count):
        width, height = (int(side) for side in generator.integers(48, 90, 2))
        coarse = generator.integers(0, 256, (6, 6, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        path = folder / f"{i:02d}.jpg"
        options: dict[str, Any] = {"quality": 85, "progressive": i % 4 == 1}
        if i % 7 == 3:
            image = image.convert("L")
        elif i % 7 == 5:
            image = image.convert("CMYK")
        elif i % 7 == 6:
            path, options = path.with_suffix(".png"), {}
        image.save(path, **options)
        paths.append(path)
    return paths


def train() -> T.Compose:
    """The usual chain."""
    return T.Compose(
        [
            T.RandomResizedCrop(32),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )


class Photos(Dataset[Any]):
    """Opens, converts, transforms, returns with a label."""

    def __init__(self, paths: list[Path], transform: Any = None) -> None:
        self.paths = paths
        self.transform = transform or train()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.open(self.paths[i]).convert("RGB")), i


class WithHandle(Photos):
    """Closes the file before the pixels are needed."""

    def __getitem__(self, i: int) -> Any:
        with open(self.paths[i], "rb") as file:
            image = Image.open(file).convert("RGB")
        return {"image": self.transform(image), "label": i, "name": self.paths[i].name}


class InMemory(Photos):
    """Opens bytes."""

    def __init__(self, paths: list[Path], transform: Any = None) -> None:
        super().__init__(paths, transform)
        self.data = [path.read_bytes() for path in paths]

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.open(io.BytesIO(self.data[i])).convert("RGB"))


class Zipped(Photos):
    """Opens members of an archive."""

    def __init__(self, paths: list[Path], transform: Any = None) -> None:
        super().__init__(paths, transform)
        self.archive = paths[0].parent / "photos.zip"
        with zipfile.ZipFile(self.archive, "w") as archive:
            for path in paths:
                archive.write(path, path.name)

    def __getitem__(self, i: int) -> Any:
        with zipfile.ZipFile(self.archive) as archive, archive.open(self.paths[i].name) as member:
            return self.transform(Image.open(member).convert("RGB")), str(i)


class TwoViews(Photos):
    """Two random views of one image, with colour."""

    def __getitem__(self, i: int) -> Any:
        image = default_loader(str(self.paths[i]))
        view = T.Compose(
            [
                T.RandomResizedCrop(24, scale=(0.2, 1.0)),
                T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
                T.RandomGrayscale(p=0.2),
                T.RandomHorizontalFlip(),
                T.ToTensor(),
                T.Normalize(MEAN, STD),
            ]
        )
        return [view(image), view(image)], i


class Blurred:
    """A blur of Pillow's, with a random radius, as self-supervised methods write it."""

    def __init__(self, p: float, low: float, high: float) -> None:
        self.p, self.low, self.high = p, low, high

    def __call__(self, image: Image.Image) -> Image.Image:
        if random.random() >= self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(self.low, self.high)))


def solarized(image: Image.Image) -> Image.Image:
    """With Pillow's own threshold."""
    return ImageOps.solarize(image)


class Crops(Photos):
    """Global and local crops of one image: each chain with its own blur and solarization."""

    def __init__(self, paths: list[Path], transform: Any = None) -> None:
        super().__init__(paths, transform)
        colour = [
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            T.RandomGrayscale(p=0.2),
        ]
        end = [T.ToTensor(), T.Normalize(MEAN, STD)]
        cubic = T.InterpolationMode.BICUBIC

        def chain(size: int, low: float, high: float, *more: Any) -> T.Compose:
            crop = T.RandomResizedCrop(size, scale=(low, high), interpolation=cubic)
            return T.Compose([crop, *colour, *more, *end])

        self.first = chain(32, 0.4, 1.0, Blurred(1.0, 0.1, 2.0))
        self.second = chain(32, 0.4, 1.0, Blurred(0.5, 0.1, 2.0), T.RandomApply([solarized], p=0.5))
        self.local = chain(16, 0.05, 0.4, Blurred(0.5, 0.1, 2.0))

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i]).convert("RGB")
        return [self.first(image), self.second(image), *(self.local(image) for _ in range(2))], i


class Warped(Photos):
    """Perspective, rotation and affine maps, and the policies that choose among operations."""

    def __init__(self, paths: list[Path], transform: Any = None) -> None:
        linear = T.InterpolationMode.BILINEAR
        chain = [
            T.Resize((40, 44)),
            T.RandomPerspective(0.4, p=0.7),
            T.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5, interpolation=linear),
            T.RandomChoice([T.RandAugment(), T.TrivialAugmentWide(), T.AutoAugment()]),
            T.ToTensor(),
        ]
        super().__init__(paths, T.Compose(chain))


class SameCrop(Photos):
    """An image and its mask, cropped by the same numbers."""

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i]).convert("RGB")
        mask = Image.open(self.paths[i]).convert("L")
        image, mask = (F.resize(one, [40, 44], one_filter(one)) for one in (image, mask))
        top, left, height, width = T.RandomCrop.get_params(image, (32, 32))
        image, mask = (F.crop(one, top, left, height, width) for one in (image, mask))
        if random.random() < 0.5:
            image, mask = F.hflip(image), F.hflip(mask)
        return F.to_tensor(image), torch.as_tensor(np.array(mask), dtype=torch.int64)


class InSizes(Photos):
    """Several sizes of one jittered photo. Now and then one is jittered again, or mirrored."""

    def __getitem__(self, i: int) -> Any:
        jitter = T.ColorJitter(0.4, 0.4, 0.4, 0.1)
        image = jitter(Image.open(self.paths[i]).convert("RGB"))
        w, h = image.size
        box = random.randint(0, h // 2), random.randint(0, w // 2), h // 2, w // 2
        views = []
        for side, filter in ((24, Filter.BICUBIC), (12, Filter.LANCZOS), (24, Filter.BILINEAR)):
            seen = jitter(image) if random.random() < 0.3 else image
            view = F.resized_crop(seen, *box, [side, side], filter)
            if random.random() < 0.3:
                view = F.hflip(view)
            views.append(F.to_tensor(view))
        return *views, F.to_tensor(F.resized_crop(image, *box, [20, 20], Filter.BICUBIC)), i


def one_filter(image: Image.Image) -> T.InterpolationMode:
    """Nearest for masks."""
    return T.InterpolationMode.NEAREST if image.mode == "L" else T.InterpolationMode.BILINEAR


class OwnPil(Photos):
    """Pillow's own methods, its size and mode, and a draw of each generator."""

    def __getitem__(self, i: int) -> Any:
        image = ImageOps.exif_transpose(Image.open(self.paths[i]))
        if image.mode != "RGB":
            image = image.convert("RGB")
        image.load()
        w, h = image.size
        side = min(w, h)
        x, y = random.randint(0, w - side), np.random.randint(0, h - side + 1)
        image = image.crop((x, y, x + side, y + side)).resize((36, 36), Image.Resampling.BICUBIC)
        if torch.rand(()) < 0.5:
            image = ImageOps.mirror(image)
        image = ImageOps.expand(image.rotate(90 * random.randrange(4)), 2, fill=0)
        return F.normalize(F.to_tensor(image), MEAN, STD), (w, h)


class V2(Photos):
    """torchvision's v2, with a cast and erasing."""

    def __init__(self, paths: list[Path], transform: Any = None) -> None:
        super().__init__(
            paths,
            v2.Compose(
                [
                    v2.RandomResizedCrop(32, antialias=True),
                    v2.RandomVerticalFlip(),
                    v2.ToImage(),
                    v2.ToDtype(torch.float32, scale=True),
                    v2.Normalize(MEAN, STD),
                    v2.RandomErasing(p=0.5),
                ]
            ),
        )


class AsArray(Photos):
    """Asks for the pixels."""

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i]).convert("RGB").resize((20, 24))
        return torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1), i


class NoConvert(Photos):
    """Whatever mode the file has; the channels differ, so each sample is a batch."""

    def __getitem__(self, i: int) -> Any:
        return F.pil_to_tensor(F.resize(Image.open(self.paths[i]), [30, 31])).float() / 255


class Thresholded(Photos):
    """Works on the tensor."""

    def __getitem__(self, i: int) -> Any:
        x = self.transform(Image.open(self.paths[i]).convert("RGB"))
        y = x.clone()
        y[0] = 0.5
        return torch.cat([x, y]), (x > 0.5).float(), torch.stack([x, x]).half()


class Recovering(Photos):
    """Takes another image in the place of a damaged one, after a draw of each generator."""

    def __getitem__(self, i: int) -> Any:
        try:
            image = Image.open(self.paths[i]).convert("RGB")
        except OSError:
            random.random()
            torch.rand(3)
            return self[(i + 1) % len(self)]
        return self.transform(image), random.random(), np.random.rand(), i


class Keeping(Photos):
    """Keeps what it has opened, and transforms it anew in each epoch."""

    def __init__(self, paths: list[Path], transform: Any = None) -> None:
        super().__init__(paths, transform)
        self.kept: dict[int, Any] = {}
        self.tensors: dict[int, Any] = {}

    def __getitem__(self, i: int) -> Any:
        if i not in self.kept:
            self.kept[i] = Image.open(self.paths[i]).convert("RGB")
            self.tensors[i] = F.to_tensor(self.kept[i].resize((10, 11)))
        return self.transform(self.kept[i]), self.tensors[i]


class FromArrays(Photos):
    """Pixels in memory, of which it makes images, as datasets of small images do."""

    def __init__(self, paths: list[Path], transform: Any = None) -> None:
        super().__init__(paths, transform)
        generator = np.random.default_rng(2)
        self.pixels = generator.integers(0, 256, (len(paths), 40, 36, 3), np.uint8)

    def __getitem__(self, i: int) -> Any:
        pixels = self.pixels[i].copy()
        image = Image.fromarray(pixels)
        whole = Image.fromarray(pixels[::-1])
        pixels ^= 255  # what was made of them does not change
        return self.transform(image), F.to_tensor(ImageOps.mirror(whole))


class TwoPictures(Photos):
    """Two pictures side by side in each file, which arrays mirror half the time."""

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i]).convert("RGB")
        w, h = image.size
        pictures = [image.crop((0, 0, w / 2, h)), image.crop((w / 2, 0, w, h))]
        if random.random() < 0.5:
            pictures = [Image.fromarray(np.array(one)[:, ::-1, :]) for one in pictures]
        left, right = (self.transform(picture) for picture in pictures)
        return {"left": left, "right": right}


class Reseeded(Photos):
    """An image and its mask, transformed alike by setting the seed back."""

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i]).convert("RGB")
        mask = Image.open(self.paths[i]).convert("L").point(lambda level: level // 64)
        alike = T.Compose([T.RandomResizedCrop(28, interpolation=0), T.RandomVerticalFlip()])
        seed = np.random.randint(2**31)
        made = []
        for one in (image, mask):
            torch.manual_seed(seed)
            random.seed(seed)
            made.append(alike(one))
        return F.to_tensor(made[0]), F.pil_to_tensor(made[1]).long()


class ManyCrops(Photos):
    """Two large views and four small ones, each with its own draws."""

    def __getitem__(self, i: int) -> Any:
        image = default_loader(str(self.paths[i]))
        small = T.Compose([T.RandomResizedCrop(12), T.RandomSolarize(128), T.ToTensor()])
        return [*(train()(image) for _ in range(2)), *(small(image) for _ in range(4))]


class Images(Photos):
    """PIL images, which a collate_fn makes tensors of."""

    def __getitem__(self, i: int) -> Any:
        return Image.open(self.paths[i]).convert("RGB").resize((25, 26)), i


def stack(samples: list[Any]) -> Any:
    """A collate_fn of one's own."""
    images, labels = zip(*samples)
    return {"x": torch.stack(images), "y": torch.tensor(labels)}


def late(samples: list[Any]) -> Any:
    """A collate_fn that transforms."""
    return torch.stack([train()(image) for image, _ in samples]) * 2, [i for _, i in samples]


def as_they_are(samples: list[Any]) -> Any:
    """A collate_fn that leaves samples as they are."""
    return samples


def seed_numpy(worker: int) -> None:
    """A worker_init_fn."""
    info = get_worker_info()
    assert info is not None
    assert info.id == worker
    np.random.seed(torch.initial_seed() % 2**32)


def truncate(path: Path) -> None:
    """Leave half of the file."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def allow_truncated(worker: int = 0) -> None:
    """As many scripts begin."""
    ImageFile.LOAD_TRUNCATED_IMAGES = True
