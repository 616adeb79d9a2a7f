"""What to type next where a path leads to nothing, or to a folder without images."""

from __future__ import annotations

import difflib
import os
import shlex

from ..errors import type_next


def nothing_at(path: str) -> str:
    """The end of a message about ``path``, at which there is nothing.

    It tells of unfinished work, names where a link leads, or what lies in the same folder and is
    called almost the same; else it shows the nearest folder that exists.
    """
    if os.path.isdir(path + ".partial"):
        return ": its packing was not finished: run the same pack command again"
    if os.path.islink(path):
        return f": it is a link to {os.readlink(path)!r}{type_next(f'ls -l {shlex.quote(path)}')}"
    alike = nearest(path)
    if alike is not None:
        return f": did you mean {alike!r}?{type_next(f'fastload info {shlex.quote(alike)}')}"
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    return f": check the path{type_next(f'ls {shlex.quote(above)}')}"


def nearest(path: str) -> str | None:
    """What lies in the same folder and is called almost the same as ``path``; None: nothing.

    None of a link, which is no mistyping.
    """
    if os.path.islink(path):
        return None
    parent, name = os.path.split(os.path.abspath(path))
    near = _most_alike(name, _names(parent))
    return None if near is None else os.path.join(parent, near)


def without_images(path: str) -> str:
    """The end of a message about a folder that has no images where they should be."""
    return type_next(f"find {shlex.quote(path)} | head -20")


def empty_folders(root: str, names: list[str]) -> str:
    """The end of a message about class folders of ``root`` that have no images."""
    folders = [os.path.join(root, name) for name in names]
    if any(_names(folder) for folder in folders):
        return without_images(folders[0])
    # rmdir removes nothing that holds anything
    return type_next(f"rmdir {' '.join(map(shlex.quote, folders))}")


def _most_alike(name: str, names: list[str]) -> str | None:
    """The one of ``names`` that ``name`` may be a mistyping of; None: none.

    Stems are compared: with .lmdb at the end of both, any two short names are alike.
    """
    stem = os.path.splitext(name)[0]
    by_stem: dict[str, list[str]] = {}
    for candidate in names:
        by_stem.setdefault(os.path.splitext(candidate)[0], []).append(candidate)
    near = difflib.get_close_matches(stem, by_stem, n=1, cutoff=0.75)
    if not near:
        return None
    return max(by_stem[near[0]], key=lambda it: difflib.SequenceMatcher(a=name, b=it).ratio())


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
