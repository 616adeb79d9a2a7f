"""The images of the demo: from the user's folder, or synthetic."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from .._tools.synthetic import make_images
from ..errors import UsageError
from ..storage.folder import IMAGE_SUFFIXES


def made(folder: Path, count: int, progress: Callable[[int, int, int], None]) -> int:
    """Make ``count`` photo-like pictures in class folders of ``folder``; return ``count``."""
    make_images(folder, count, progress=progress)
    return count


def linked(source: str, folder: Path, most: int) -> int:
    """Link at most ``most`` images of ``source``, spread evenly, into class folders of ``folder``.

    With links, a folder without classes or a part of a large one is read like any other, and
    nothing is written to the user's folder.

    Returns:
        The number of images.

    Raises:
        UsageError: ``source`` is not a folder, or has no images.
    """
    root = Path(source)
    if not root.is_dir():
        raise UsageError(f"{source!r}: expected a folder of images, found no folder")
    found = list(_images(root))
    if not found:
        raise UsageError(
            f"{source!r}: expected images in this folder, found none with the suffixes "
            f"{', '.join(IMAGE_SUFFIXES)}; give a folder with one folder per class, or leave out "
            "--images to use synthetic ones"
        )
    chosen = _evenly(found, most)
    for label, path in chosen:
        (folder / label).mkdir(parents=True, exist_ok=True)
        name = path.relative_to(root).as_posix().replace("/", "_")
        (folder / label / name).symlink_to(path.resolve())
    return len(chosen)


def _images(root: Path) -> list[tuple[str, Path]]:
    """(class, path) of each image. Classes are the folders of ``root``; "all" if it has none."""
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir())
    if not folders:
        return [("all", path) for path in sorted(root.iterdir()) if _is_image(path)]
    return [
        (folder.name, Path(parent) / name)
        for folder in folders
        for parent, _, names in sorted(os.walk(folder))
        for name in sorted(names)
        if _is_image(Path(parent) / name)
    ]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()


def _evenly(found: Sequence[tuple[str, Path]], most: int) -> list[tuple[str, Path]]:
    if len(found) <= most:
        return list(found)
    return [found[index * len(found) // most] for index in range(most)]
