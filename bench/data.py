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
from fastload.errors import FastloadError
from fastload.storage.folder import FolderStore

Say = Callable[[str], None]

# Suffixes that are not the format's name, and modes that are not RGB.
_SUFFIX = {"jpeg": "jpg", "cmyk": "jpg", "gray": "png", "palette": "png", "raw": "bmp"}
_MODE = {"gray": "L", "palette": "P", "cmyk": "CMYK"}


def cache_folder(given: str | None = None) -> Path:
    """The folder for images and packed stores: ``given``, or one in the temporary directory."""
    return Path(given) if given else Path(tempfile.gettempdir()) / f"fastload-bench-{os.getuid()}"


@dataclasses.dataclass(frozen=True)
class Images:
    """Folders of images below ``cache``; ``say`` prints a line for the user."""

    cache: Path
    say: Say

    def jpegs(self, count: int, *, small: bool = False, given: str | None = None) -> Path:
        """A folder of at least ``count`` JPEGs: of those in the folder ``given``, else made."""
        if given is None:

            def make(folder: Path) -> None:
                self.say(f"making {count} {'32x32 images' if small else 'photo-like images'}")
                make_images(folder, count, kind=SMALL if small else PHOTO)

            return self.made(f"{'small' if small else 'photos'}-{count}", make)
        groups = classes_of(Path(given).resolve())
        found = [(path, path.stat()) for group in groups.values() for path in group.values()]
        names = "".join(f"{path}:{stat.st_size}:{stat.st_mtime_ns}\n" for path, stat in found)
        copies = -(-count // len(found))

        def copy(folder: Path) -> None:
            self.say(f"copying {len(found)} images {copies} times")
            for label, group in groups.items():
                (folder / label).mkdir(parents=True)
                for number in range(copies):
                    for name, path in group.items():
                        # the number first: in file order no image is followed by its copy
                        shutil.copyfile(path, folder / label / f"{number}-{name}")

        digest = hashlib.sha256(names.encode()).hexdigest()[:12]
        return self.made(f"{digest}-{copies}x", copy)

    def large(self, *, toy: bool) -> Path:
        """A folder of 64 JPEGs of 12 megapixels, 16 pictures copied; a toy: 16 of 1 megapixel."""
        kind = dataclasses.replace(LARGE, sizes=((1152, 864), (864, 1152))) if toy else LARGE
        count, wanted = (4, 16) if toy else (16, 64)

        def make(folder: Path) -> None:
            self.say(f"making {count} large photo-like images")
            # one picture at a time: each takes 600 MB
            make_images(folder, count, kind=kind, classes=4, threads=1)

        return self.jpegs(wanted, given=str(self.made(f"large-{count}", make)))

    def converted(
        self, images: Path, kind: str, *, shorter: int | None = None, side: int | None = None
    ) -> Path:
        """The same images as Pillow writes them by default.

        ``kind``: a key of the tables above, or a suffix. ``shorter``: pixels of the shorter side
        that images are resized to; ``side``: of both.
        """

        def changed(picture: Image.Image) -> Image.Image:
            size = picture.size
            if side is not None:
                size = side, side
            elif shorter is not None:
                width, height = (max(shorter, shorter * it // min(size)) for it in size)
                size = width, height
            picture = picture.convert("RGB").resize(size, Image.Resampling.BILINEAR)
            return picture.convert(_MODE.get(kind, "RGB"))

        name = f"{kind}{side or shorter or ''}"
        return self._each(images, name, f".{_SUFFIX.get(kind, kind)}", changed)

    def masks(self, images: Path) -> Path:
        """A mask for each image, as a gray PNG at the same place: six classes, in smooth patches.

        The classes are levels of brightness of the blurred image, so that it can be seen whether a
        mask still belongs to its image.
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

        return self._each(images, "masks", ".png", drawn)

    def _each(
        self, images: Path, name: str, suffix: str, change: Callable[[Image.Image], Image.Image]
    ) -> Path:
        """A folder of what ``change`` makes of each image, at its place."""

        def fill(folder: Path) -> None:
            self.say(f"writing the images once more: {name}")
            for label, group in classes_of(images).items():
                (folder / label).mkdir(parents=True)
                for path in group.values():
                    with Image.open(path) as picture:
                        change(picture).save(folder / label / f"{path.stem}{suffix}")

        return self.made(f"{images.name}-{name}", fill)

    def made(self, name: str, fill: Callable[[Path], None]) -> Path:
        """The folder of images called ``name``, filled once."""
        return filled(self.cache / "images" / name, fill)


def files(folder: Path) -> list[Path]:
    """The images in a folder of ``Images``, in the order of their paths."""
    return [path for group in classes_of(folder).values() for path in group.values()]


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


def classes_of(root: Path) -> dict[str, dict[str, Path]]:
    """Images by class folder and name, as fastload finds them; a flat folder is one class."""
    try:
        store = FolderStore(root)
    except FastloadError as error:
        raise click.BadParameter(str(error)) from error
    labels = ["all"] if store.labels is None else store.classes
    groups: dict[str, dict[str, Path]] = {label: {} for label in labels}
    for index, path in enumerate(map(Path, store.files)):
        label = labels[0 if store.labels is None else int(store.labels[index])]
        groups[label]["_".join(path.relative_to(store.path).parts)] = path
    return groups
