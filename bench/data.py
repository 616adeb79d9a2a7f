"""The images of a run: the user's, or photo-like ones made here; cached between runs.

What comes out is always a folder with one subfolder per class. A set smaller than a suite wants is
copied several times over, so that an epoch is long enough to time and no loader lives on the
processor's caches.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
from PIL import Image

from bench.synthetic import LARGE, PHOTO, SMALL, make_images

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
Say = Callable[[str], None]


class NoImages(click.ClickException):
    """The given --data holds no images."""


def cache_folder(given: str | None = None) -> Path:
    """The folder for images and packed stores: ``given``, or one in the temporary directory."""
    return Path(given) if given else Path(tempfile.gettempdir()) / f"fastload-bench-{os.getuid()}"


def jpegs(cache: Path, *, data: str | None, count: int, small: bool, say: Say) -> Path:
    """A folder of at least ``count`` JPEGs: from the folder ``data``, else made."""
    if data is None:
        name = f"{'small' if small else 'photos'}-{count}"

        def make(folder: Path) -> None:
            say(f"making {count} {'32x32 images' if small else 'photo-like images'}")
            make_images(folder, count, kind=SMALL if small else PHOTO)

        return made(cache, name, make)
    source = Path(data).resolve()
    if not source.is_dir():
        raise NoImages(f"--data {data}: no such folder")
    groups = _classes(source)
    files = sum(len(group) for group in groups.values())
    if not files:
        raise NoImages(f"--data {data}: no images ({', '.join(sorted(_SUFFIXES))}) in it")
    copies = -(-count // files)

    def copy(folder: Path) -> None:
        say(f"copying {files} images {copies} times")
        for label, group in groups.items():
            (folder / label).mkdir(parents=True)
            for number in range(copies):
                for path in group:
                    # the number first: in file order no image is followed by its copy
                    shutil.copyfile(path, folder / label / f"{number}-{path.name}")

    return made(cache, f"{_fingerprint(groups)}-{copies}x", copy)


def files(folder: Path) -> list[Path]:
    """The images in ``folder`` as ``jpegs`` makes it, in the order of their paths."""
    return sorted(path for group in _classes(folder).values() for path in group)


def large(cache: Path, *, toy: bool, say: Say) -> Path:
    """A folder of 64 JPEGs of 12 megapixels, 16 pictures copied; 16 of 1 megapixel as a toy."""
    kind = dataclasses.replace(LARGE, sizes=((1152, 864), (864, 1152))) if toy else LARGE
    count, wanted = (4, 16) if toy else (16, 64)

    def make(folder: Path) -> None:
        say(f"making {count} photo-like images of 12 megapixels" if not toy else "making images")
        # one picture at a time: each takes 600 MB
        make_images(folder, count, kind=kind, classes=4, threads=1)

    pictures = made(cache, f"large-{count}", make)
    return jpegs(cache, data=str(pictures), count=wanted, small=False, say=say)


def converted(
    cache: Path, images: Path, kind: str, *, shorter: int | None = None, say: Say
) -> Path:
    """The same images as Pillow writes them by default.

    ``kind``: "png", "webp", or "raw" for uncompressed BMP. ``shorter``: pixels of the shorter side
    that images are resized to.
    """

    def changed(picture: Image.Image) -> Image.Image:
        picture = picture.convert("RGB")
        if shorter is None:
            return picture
        width, height = (max(shorter, shorter * side // min(picture.size)) for side in picture.size)
        return picture.resize((width, height), Image.Resampling.BILINEAR)

    suffix = ".bmp" if kind == "raw" else f".{kind}"
    return _each(cache, images, f"{kind}{shorter or ''}", suffix, changed, say)


def masks(cache: Path, images: Path, *, say: Say) -> Path:
    """A mask for each image, as a gray PNG at the same place: six classes, in smooth patches.

    The classes are levels of brightness of the blurred image, so that it can be seen whether a mask
    still belongs to its image.
    """

    def drawn(picture: Image.Image) -> Image.Image:
        gray = picture.convert("L")
        small = gray.resize(
            (max(1, gray.width // 24), max(1, gray.height // 24)), Image.Resampling.BOX
        )
        patches = small.resize(gray.size, Image.Resampling.BILINEAR).point(
            [v // 43 for v in range(256)]
        )
        patches.info.clear()  # masks have no colour profile
        return patches

    return _each(cache, images, "masks", ".png", drawn, say)


def _each(
    cache: Path,
    images: Path,
    name: str,
    suffix: str,
    change: Callable[[Image.Image], Image.Image],
    say: Say,
) -> Path:
    """A folder of what ``change`` makes of each image, at its place."""

    def fill(folder: Path) -> None:
        say(f"writing the images once more: {name}")
        for label, group in _classes(images).items():
            (folder / label).mkdir(parents=True)
            for path in group:
                with Image.open(path) as picture:
                    change(picture).save(folder / label / f"{path.stem}{suffix}")

    return made(cache, f"{images.name}-{name}", fill)


def made(cache: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """The folder of images called ``name``, filled once."""
    return filled(cache / "images" / name, fill)


def filled(folder: Path, fill: Callable[[Path], None]) -> Path:
    """``folder``, filled once; it has another name until it is complete."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        try:
            fill(partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _classes(root: Path) -> dict[str, list[Path]]:
    """Images by class folder. A lone folder on top is looked through; a flat one is one class.

    Images beside class folders are left out, as ImageFolder leaves them.
    """
    entries = sorted(root.iterdir())
    folders = [entry for entry in entries if entry.is_dir()]
    if len(folders) == 1 and not any(_is_image(entry) for entry in entries):
        inner = _classes(folders[0])
        return inner if len(inner) > 1 else {folders[0].name: next(iter(inner.values()), [])}
    images_of = {folder.name: [path for path in sorted(folder.iterdir()) if _is_image(path)]
             for folder in folders}  # fmt: skip
    images_of = {name: group for name, group in images_of.items() if group}
    return images_of or {"all": [entry for entry in entries if _is_image(entry)]}


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and path.is_file()


def _fingerprint(groups: dict[str, list[Path]]) -> str:
    digest = hashlib.sha256()
    for label, group in groups.items():
        for path in group:
            stat = path.stat()
            digest.update(f"{label}/{path}:{stat.st_size}:{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]
