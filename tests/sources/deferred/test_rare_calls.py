"""What few programs call gives the same on deferred objects, and leaves the same behind."""

from __future__ import annotations

import contextlib
import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import functional as F
from torchvision.transforms.v2 import functional as F2

import deferred_programs
from fastload import FastLoader
from fastload._sources.deferred import single, switch

SIZE = (23, 17)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rare")
    rng = np.random.default_rng(5)
    rgb = Image.fromarray(rng.integers(0, 256, (*SIZE[::-1], 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, options in {"a.jpg": {}, "a.png": {}, "a.webp": {"exif": exif}}.items():
        rgb.save(made / name, **options)
    return made


@pytest.fixture(autouse=True)
def by_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    for least in ("LEAST_PIXELS", "LEAST_CHANGED"):
        monkeypatch.setattr(single, least, 0)  # else it would make none of these images


def opened(folder: Path, name: str = "a.jpg") -> Any:
    return Image.open(folder / name)


def rgb(folder: Path) -> Any:
    return opened(folder).convert("RGB")


def tensor(folder: Path) -> Any:
    return F.to_tensor(rgb(folder))


def levels(folder: Path) -> Any:
    return F.pil_to_tensor(rgb(folder))


def asked_for(value: Any) -> Any:
    return value.stride(), value.sum().item(), value.stride(), value


def image_of_v2(folder: Path) -> Any:
    return tv_tensors.Image(levels(folder))


def unsqueezed(folder: Path) -> Any:
    return tensor(folder)[None]


def row_to_fill(folder: Path) -> Any:
    value = tensor(folder)
    batch = value.new_zeros((2, *value.shape))
    batch[0].copy_(value)
    return batch[0]


def failed(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:  # whatever it is has to be the same
        return f"{type(error).__name__}: {error}"
    return "nothing"


def after(value: Any, *calls: Callable[[Any], Any]) -> Any:
    """What calls give or raise, and what is there afterwards."""
    given = [failed(lambda: call(value)) for call in calls]  # noqa: B023 - called at once
    return given, value, value.mode, value.size


def _closed(folder: Path) -> Any:
    image = rgb(folder)
    image.info["mark"] = 1
    image.close()
    return image.info


def _files_after_close(folder: Path) -> list[bool]:
    """Whether files that the images were given are closed with them."""
    closed = []
    ways: list[Callable[[Any], Any]] = [
        lambda image: None,
        lambda image: image.size,
        lambda image: image.load(),
        lambda image: image.getpixel((0, 0)),
        lambda image: image.draft("L", (4, 4)),
        lambda image: (image.__exit__(None, None, None), image.info),
    ]
    for name in ("a.jpg", "a.png", "a.webp"):
        for before in ways:
            with (folder / name).open("rb") as file:
                image = Image.open(file)
                before(image)
                image.close()
                closed.append(file.closed)
    return closed


def _files_after_with(folder: Path) -> list[Any]:
    files = []
    for name in ("a.jpg", "a.png", "a.webp"):
        with opened(folder, name) as image:
            image.getbands()
        files.append(image.fp)
    return files


def _drafted(folder: Path) -> Any:
    with opened(folder) as image:
        return failed(lambda: image.draft("L", (4.5, "x"))), image.mode, image.size


def _asked_for_info_and_loaded(folder: Path) -> Any:
    image = opened(folder, "a.webp")
    before = image.getexif()[0x0112]
    image.tobytes()
    return before, sorted(map(str, image.info))


INF, NAN = float("inf"), float("nan")

IMAGES: dict[str, Callable[[Path], Any]] = {
    # Numbers that the core does not take.
    **{
        f"{name} by {factor}": lambda folder, name=name, factor=factor: getattr(ImageEnhance, name)(
            rgb(folder)
        ).enhance(factor)
        for name in ("Brightness", "Contrast", "Color", "Sharpness")
        for factor in (NAN, INF, 3e38, -1e300)
    },
    "solarize": lambda folder: ImageOps.solarize(rgb(folder), NAN),
    "rotate": lambda folder: rgb(folder).rotate(NAN),
    "affine": lambda folder: rgb(folder).transform((8, 7), Image.Transform.AFFINE, (NAN,) * 6),
    "kernel": lambda folder: rgb(folder).filter(ImageFilter.Kernel((3, 3), [NAN] * 9, 1)),
    "scale": lambda folder: rgb(folder).filter(ImageFilter.Kernel((3, 3), [1] * 9, NAN)),
    # Integers that C does not take are refused at once.
    "crop": lambda folder: failed(lambda: rgb(folder).crop((2**40, 0, 2**40 + 2, 2))),
    "far crop": lambda folder: rgb(folder).crop((2**24 + 1, 0, 2**24 + 9, 3)),
    "resize": lambda folder: failed(lambda: rgb(folder).resize((2**31, 1))),
    "transform": lambda folder: failed(
        lambda: rgb(folder).transform((2**31, 1), Image.Transform.AFFINE, (1, 0, 0, 0, 1, 0))
    ),
    # What fails half way.
    "putalpha": lambda folder: after(rgb(folder), lambda x: x.putalpha("no alpha")),
    "putpalette": lambda folder: after(rgb(folder).convert("L"), lambda x: x.putpalette([300]))[2:],
    "draft": lambda folder: _drafted(folder),
    "thumbnail": lambda folder: after(opened(folder), lambda x: x.thumbnail((5, 4), "none")),
    # What is said of an image, in its state.
    "closed": _closed,
    "closed, its file": _files_after_close,
    "left, its file": _files_after_with,
    "info of a webp": _asked_for_info_and_loaded,
    "loaded": lambda folder: (lambda image: (image.load() and 0, image.fp, image.tile, image.map))(
        opened(folder)
    ),
    "no info": lambda folder: (lambda image: (setattr(image, "info", None), image.info))(
        rgb(folder)
    ),
    "unknown keyword": lambda folder: after(
        rgb(folder), lambda x: x.convert("L", no=1), lambda x: x.resize(), lambda x: x.seek()
    ),
    "draw": lambda folder: type(ImageDraw.Draw(rgb(folder))).__qualname__,
}


@pytest.mark.parametrize("name", IMAGES)
def test_a_call_on_an_image_gives_the_same(folder: Path, name: str) -> None:
    assert_the_same(IMAGES[name], folder)


def _with_gradient(value: Any) -> Any:
    value.requires_grad_()
    (value * 3).sum().backward()
    return value, value.grad


def _in_place(value: Any, name: str, *arguments: Any) -> Any:
    getattr(value, name)(*arguments)
    return value.shape, value.stride(), value


def _mine(value: Any) -> list[Any]:
    value.mine = 3
    return [
        getattr(copied, "mine", None)
        for copied in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value)))
    ]


def _as_of_old(value: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once
        return value.sub_(0.5, torch.tensor(0.1)), failed(lambda: value.add_(0.5, 0.1))


def _in_inference_mode(value: Any) -> Any:
    with torch.inference_mode():
        mean = value.mean().item()
    return mean, value.is_inference(), value.requires_grad_().mul(2)


TENSORS: dict[str, Callable[[Path], Any]] = {
    # Types.
    "clone of v2's": lambda folder: torch.clone(image_of_v2(folder)),
    "marked again": lambda folder: tv_tensors.Image(tensor(folder), requires_grad=False),
    "marked, device": lambda folder: tv_tensors.Image(tensor(folder), device="cpu"),
    "wrapped like a batch": lambda folder: tv_tensors.wrap(
        torch.ones(2), like=torch.stack([tensor(folder)])
    ),
    "made by its type": lambda folder: type(tensor(folder))([1, 2]),
    "by that of v2's": lambda folder: type(image_of_v2(folder))(torch.ones(3, 2, 2)),
    "by that of a batch": lambda folder: type(torch.stack([tensor(folder)]))(tensor(folder)),
    # Sizes that torch refuses.
    "half a pixel": lambda folder: failed(lambda: F2.resize(tensor(folder), [8.5])),
    "letters": lambda folder: failed(lambda: F2.resize(tensor(folder), "ab")),
    # Strides of what was a part, whether it is asked for or not; and those of sides of one.
    "resized crop": lambda folder: asked_for(F2.resized_crop(levels(folder), 1, 2, 9, 8, [5, 7])),
    "resized part": lambda folder: asked_for(F2.resize(levels(folder)[:, 1:9, 2:8], [7, 9])),
    "pad": lambda folder: F.pad(F.to_tensor(rgb(folder).resize((1, 1))), [1, 2, 3, 4]),
    # Views have a shape and a gradient of their own.
    "gradient": lambda folder: _with_gradient(unsqueezed(folder)),
    "gradient of a row": lambda folder: _with_gradient(row_to_fill(folder)),
    "a larger one": lambda folder: tensor(folder).resize_(40, 40, 9).shape,
    "unsqueeze_": lambda folder: _in_place(unsqueezed(folder), "unsqueeze_", 0),
    "squeeze_": lambda folder: _in_place(unsqueezed(folder), "squeeze_", 0),
    "unsqueeze_ a row": lambda folder: _in_place(row_to_fill(folder), "unsqueeze_", 0),
    "leaf": lambda folder: failed(lambda: tensor(folder).requires_grad_().add_(1)),
    # Whatever torch takes.
    "several dimensions": lambda folder: failed(lambda: tensor(folder).squeeze(0, 0)),
    "an old overload": lambda folder: _as_of_old(tensor(folder)),
    # The same objects.
    "several in place": lambda folder: (
        lambda values: [
            one is other for one, other in zip(torch.atleast_3d(*values), values, strict=True)
        ]
    )([tensor(folder), tensor(folder)]),
    "inference": lambda folder: _in_inference_mode(tensor(folder)),
    "inference on a batch": lambda folder: _in_inference_mode(torch.stack([tensor(folder)])),
    "attributes": lambda folder: [_mine(tensor(folder)), _mine(unsqueezed(folder))],
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_call_on_a_tensor_gives_the_same(folder: Path, name: str) -> None:
    assert_the_same(TENSORS[name], folder)


@pytest.mark.parametrize("name", ["resized crop", "resized part"])
def test_a_tensor_by_the_libraries_has_the_strides_that_it_told(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "LEAST_PIXELS", 10_000)
    assert_the_same(TENSORS[name], folder)


def assert_the_same(call: Callable[[Path], Any], folder: Path) -> None:
    def outcome(context: contextlib.AbstractContextManager[None]) -> Any:
        return deferred_programs.run(deferred_programs.Program(folder, call, [], 1), context)

    expected = outcome(contextlib.nullcontext())
    assert expected[0][0] == "value"
    assert outcome(switch.deferring()) == expected


class Named(Dataset[Any]):
    """Tensors with an attribute, and images that are enhanced beyond what the core takes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        value = tensor(self.folder)
        value.label, value.box = f"{index}", index
        factor = NAN if index == 1 else 0.5
        return value, F.to_tensor(ImageEnhance.Brightness(rgb(self.folder)).enhance(factor))


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def _batches(loader: Any) -> Iterator[Any]:
    for samples in loader:
        yield [(value.label, value.box, value.clone(), other.clone()) for value, other in samples]


def test_a_batch_has_the_attributes_and_values_of_dataloaders(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_DEFER", "1")
    dataset = Named(folder)
    loaders = [kind(dataset, 2, collate_fn=as_they_are) for kind in (DataLoader, FastLoader)]
    expected, found = (list(_batches(loader)) for loader in loaders)
    assert deferred_programs.described(found) == deferred_programs.described(expected)
