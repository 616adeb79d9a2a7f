"""The table of storage formats: the built-in ones, and those that other packages add.

To add a built-in format, write its module with a ``FORMAT`` and name the module in ``_BUILT_IN``.
Another package adds a format by an entry point, whose name is the format's name:

    [project.entry-points."fastload.formats"]
    npack = "npack.store:FORMAT"

A built-in format is imported when one of its paths is opened. Entry points are looked up only for a
path or a name that no built-in format has, because scanning the installed packages takes time.
docs/formats.md, "Add a format", has an example.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .._base.value_class import value_class
from ..errors import MissingDependencyError, UsageError
from ._read import open_regular

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from ._writer import PartialWriter
    from .base import Store, Writer
    from .column_options import ColumnOptions

GROUP = "fastload.formats"

# name: the module in this package, and the suffixes, so that only the module of a path is imported
_BUILT_IN: dict[str, tuple[str, ...]] = {
    "lmdb": ("formats.lmdb", ".lmdb"),
    "hdf5": ("formats.hdf5", ".h5", ".hdf5"),
    "pth": ("formats.pth", ".pth"),
    "n5": ("formats.n5", ".n5"),
    "zarr": ("formats.zarr", ".zarr"),
    "tfrecord": ("formats.tfrecord", ".tfrecord", ".tfrecords"),
    "recordio": ("formats.recordio", ".rec"),
    "tar": ("formats.tar", ".tar"),
    "parquet": ("formats.parquet", ".parquet"),
    "lance": ("formats.lance", ".lance"),
    "arrow": ("arrow",),
    "folder": ("folder",),
}
# How files begin (offset, bytes, format) that have no suffix; TFRecord has a checksum there.
_BEGINS = (
    (257, b"ustar", "tar"),
    (0, b"\x89HDF\r\n\x1a\n", "hdf5"),
    (0, b"PAR1", "parquet"),
)
_HEAD = 512  # bytes that are read of a file
# Formats that recognise a folder by what it contains, in this order; the last one takes any folder.
_BY_CONTENT = ("lmdb", "arrow", "parquet", "folder")


class Apart(NamedTuple):
    """How one shard of a store is written apart from the others.

    Attributes:
        writer: called as ``Format.writer``, with ``shard``, a ``ShardStart``, and no other options
            of shards; its store is one file, with the bytes of this shard in the whole store.
        name: (path of the whole store, number of the shard, number of shards) -> the file's name.
    """

    writer: Callable[..., PartialWriter]
    name: Callable[[str, int, int], str]


@value_class(kw_only=True)
class Format:
    """One storage format.

    Example:
        >>> FORMAT = Format(name="npack", title="NPack", suffixes=(".npack",), open=NPackStore)

    Attributes:
        name: identifies the format; the name of its entry point if another package adds it.
        title: what messages call it.
        suffixes: of its paths, in lower case, with the dot.
        open: absolute path -> the store; raises StoreError where the path is no such store.
        writer: called with the absolute path and the keyword arguments ``classes``, ``metadata``,
            ``settings`` and those that ``options`` allows; None if fastload only reads the format.
        recognise: folder -> whether it is a store of this format, for folders without one of the
            suffixes; None: it never is. Asked of built-in formats only.
        options: which options of ``open_writer`` the writer takes: "shards" (``shards``,
            ``shard_nbytes`` and ``total``), "compression".
        folders: whether a store may be a folder.
        pixels: what raw pixels a store holds: "any" size, "one size", or one size and "only" raw
            pixels.
        companions: other files of a store, such as "{path}.idx" or "{stem}.lst", for each data
            file; ``stem`` is the path without its suffix.
        ranged: (path, need) -> the store, for files of which nothing is there but what ``need``
            was asked for: a list of (file, offset, bytes), -1 bytes for all of it. Records are
            fetched by their spans later, everything else must be asked for. None: the format's
            files are fetched whole.
        columns: it is a table: ``open`` and ``ranged`` take ``options``, a ``ColumnOptions``.
        apart: how several processes write the shards of a store; None: one process does.

    Raises:
        UsageError: a suffix that cannot be found again.
    """

    name: str
    title: str
    open: Callable[..., Store]
    suffixes: tuple[str, ...] = ()
    writer: Callable[..., Writer] | None = None
    recognise: Callable[[str], bool] | None = None
    options: frozenset[str] = frozenset()
    folders: bool = False
    pixels: Literal["any", "one size", "only"] = "any"
    companions: tuple[str, ...] = ()
    ranged: Callable[..., Store] | None = None
    columns: bool = False
    apart: Apart | None = None

    def __post_init__(self) -> None:
        for suffix in self.suffixes:
            if not suffix.startswith(".") or suffix != suffix.lower() or len(suffix) < 2:
                raise UsageError(
                    f"format {self.name!r}: expected suffixes in lower case that start with a dot, "
                    f"got {suffix!r}"
                )

    def taken(self, options: ColumnOptions | None, path: str) -> dict[str, Any]:
        """The arguments of ``open`` and ``ranged`` that pass ``options`` on. Raises UsageError."""
        if options is None or not options.given:
            return {}
        if not self.columns:
            raise UsageError(
                f"{options.given[0]}: expected Parquet files or a Lance dataset, got {path!r} "
                f"({self.title})"
            )
        return {"options": options}


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Name of the format that the suffix of ``path`` stands for, or None.

    A built-in format is not imported for this.
    """
    name = _built_in_suffix(path)
    if name is not None:
        return name
    added = _added(path)
    return None if added is None else added.name


def find_by_suffix(path: str | os.PathLike[str]) -> Format | None:
    """The format that the suffix of ``path`` stands for, or None."""
    name = _built_in_suffix(path)
    return _added(path) if name is None else _built_in(name)


def find_format(path: str | os.PathLike[str]) -> Format | None:
    """The format of the store at ``path``: by its suffix, or by what is in it; else None.

    Raises UsageError for a folder that holds several stores.
    """
    form = find_by_suffix(path)
    if form is None and os.path.isdir(path):
        for name in _BY_CONTENT:
            candidate = _built_in(name)
            if candidate.recognise is not None and candidate.recognise(os.fspath(path)):
                return candidate
    return _by_begin(path) if form is None else form


def _by_begin(path: str | os.PathLike[str]) -> Format | None:
    """The format of files without a known suffix, such as ImageNet's train-00000-of-01024."""
    from ._shards import data_files, is_pattern

    path = os.fspath(path)
    if not os.path.isfile(path) and not is_pattern(path):
        return None
    with open(data_files(path)[0], "rb", opener=open_regular) as file:
        head = file.read(_HEAD)
    for at, begin, name in _BEGINS:
        if head[at:].startswith(begin):
            return _built_in(name)
    from .formats import tfrecord

    try:
        begin = tfrecord.head(int.from_bytes(head[:8], "little"))
    except MissingDependencyError:
        return None  # it cannot be told without checksums
    return _built_in("tfrecord") if head.startswith(begin) else None


def get_format(name: str) -> Format:
    """The format called ``name``. Raises UsageError for a package that cannot be used, too."""
    if name in _BUILT_IN:
        return _built_in(name)
    entries = _announced().get(name)
    if entries is None:
        names = ", ".join([*_BUILT_IN, *_announced()])
        raise UsageError(f"expected one of the formats {names}, got {name!r}")
    return _load(name)


def known_formats() -> Iterator[Format]:
    """Every built-in format, then every added one that can be loaded. Imports all of them."""
    yield from map(_built_in, _BUILT_IN)
    yield from _loadable()


def known_suffixes() -> list[str]:
    """The suffixes of all formats: the built-in ones first."""
    every = [suffix for _, *suffixes in _BUILT_IN.values() for suffix in suffixes]
    return every + [suffix for added in _loadable() for suffix in added.suffixes]


def broken_formats() -> list[UsageError]:
    """Why formats that other packages announce cannot be used, one error for each."""
    errors = []
    for name in _announced():
        try:
            _load(name)
        except UsageError as error:
            errors.append(error)
    return errors


def _built_in_suffix(path: str | os.PathLike[str]) -> str | None:
    name = os.fspath(path).rstrip(os.sep).lower()
    for format_, (_, *suffixes) in _BUILT_IN.items():
        if name.endswith(tuple(suffixes)):
            return format_
    return None


@functools.cache
def _built_in(name: str) -> Format:
    form = importlib.import_module(f".{_BUILT_IN[name][0]}", __package__).FORMAT
    assert isinstance(form, Format)
    return form


def _added(path: str | os.PathLike[str]) -> Format | None:
    name = os.path.basename(os.fspath(path).rstrip(os.sep)).lower()
    if "." not in name:
        return None  # most folders of images: no package is scanned for them
    return next((added for added in _loadable() if name.endswith(added.suffixes)), None)


def _loadable() -> Iterator[Format]:
    for name in _announced():
        try:
            yield _load(name)
        except UsageError:
            continue  # ``broken_formats`` says why, where no format is found


@functools.cache
def _announced() -> dict[str, list[EntryPoint]]:
    """The entry points by name: more than one if several packages use the same name."""
    from importlib.metadata import entry_points  # takes 10 ms to import

    entries: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        entries.setdefault(entry.name, []).append(entry)
    return entries


def _load(name: str) -> Format:
    entry, *others = _announced()[name]

    def broken(why: str) -> UsageError:
        return UsageError(
            f"the format {name!r} of {_origin(entry)} cannot be used: {why}; update or uninstall "
            "that package"
        )

    if name in _BUILT_IN:
        raise broken("a built-in format has this name")
    if others:
        raise broken(f"{_origin(others[0])} adds a format of this name too")
    try:
        form = entry.load()
    except Exception as error:  # an import may raise anything
        raise broken(f"it cannot be imported ({type(error).__name__}: {error})") from error
    if not isinstance(form, Format):
        raise broken(f"expected a fastload.storage.Format, found {type(form).__name__}")
    if form.name != name:
        raise broken(f"expected a Format with the name of its entry point, found {form.name!r}")
    for suffix in form.suffixes:
        taken = _built_in_suffix(f"name{suffix}")
        if taken is not None:
            raise broken(f"the suffix {suffix} belongs to the built-in format {taken!r}")
    return form


def _origin(entry: EntryPoint) -> str:
    package = entry.dist
    name = "an unknown package" if package is None else f"{package.name} {package.version}"
    return f"{name} (entry point {entry.name} = {entry.value})"
