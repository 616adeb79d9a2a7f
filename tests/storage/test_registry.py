"""The table of formats, and formats that other packages add by an entry point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torchvision.transforms import v2

from fastload import FastLoader, UsageError, open_store, open_writer, pack, verify
from fastload.cli import main
from fastload.errors import StoreError, StoreNotFoundError
from fastload.storage import Format, find_format, format_of, get_format, known_formats, registry
from storage.formats import CLASSES, picture, records

# A whole format: records one after the other without anything between them, and their table in the
# sidecar.
NPACK = """
from fastload.storage import Format
from fastload.storage.stream import StreamWriter, read_stream
from fastload.storage.table import TableStore


class NPackWriter(StreamWriter):
    format = "npack"

    def frames(self, first, batch):
        nothing = [b""] * len(batch.keys)
        return nothing, nothing


def read(path):
    return read_stream(path, "npack")


def open_npack(path):
    return TableStore(path, read)


FORMAT = Format(
    name="npack",
    title="NPack",
    suffixes=(".npack",),
    open=open_npack,
    writer=NPackWriter,
    options=frozenset({"shards"}),
)
"""
Install = Callable[..., None]


def _forget() -> None:
    registry._announced.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module that announces entry points."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    modules: list[str] = []

    def add(module: str, source: str, *lines: str, distribution: str = "acme-formats") -> None:
        (site / f"{module}.py").write_text(source)
        modules.append(module)
        info = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n"
        )
        (info / "entry_points.txt").write_text("\n".join(["[fastload.formats]", *lines]))
        _forget()

    yield add
    _forget()
    for module in modules:
        sys.modules.pop(module, None)


def test_the_table_says_what_each_built_in_format_says() -> None:
    for name, (_, *suffixes) in registry._BUILT_IN.items():
        found = get_format(name)
        assert (found.name, list(found.suffixes)) == (name, suffixes)
        assert all(format_of(f"x{suffix}") == name for suffix in suffixes)
        assert (found.recognise is not None) == (name in registry._BY_CONTENT)


def test_a_package_adds_a_format(install: Install, tmp_path: Path, photos: Path) -> None:
    install("acme_npack", NPACK, "npack = acme_npack:FORMAT")
    path = tmp_path / "imgs.npack"
    assert pack(photos, path).records == 24
    assert format_of(path) == "npack" and find_format(path) is get_format("npack")
    assert "npack" in [known.name for known in known_formats()]
    store = open_store(path)
    assert (store.format, len(store)) == ("npack", 24)
    assert list(store.classes) == ["class0", "class1", "class2"]

    transform = v2.Compose([v2.Resize(64), v2.CenterCrop(64), v2.PILToTensor()])
    both = []
    for source in (path, photos):
        loader = FastLoader(source, batch_size=24, engine="native", transform=transform)
        both.append(next(iter(loader)))
        assert loader.stats()["engine"] == "native"
    assert torch.equal(both[0][0], both[1][0]) and torch.equal(both[0][1], both[1][1])

    report = verify(path)
    assert report.records == 24 and not report.damaged
    shown = CliRunner().invoke(main, ["info", str(path)])
    assert shown.exit_code == 0 and "npack" in shown.output
    shown = CliRunner().invoke(main, ["verify", str(path)])
    assert shown.exit_code == 0, shown.output


def test_an_added_format_may_have_shards_and_other_features(
    install: Install, tmp_path: Path
) -> None:
    install("acme_npack", NPACK, "npack = acme_npack:FORMAT")
    given = records(9)
    with open_writer(tmp_path / "a.npack", classes=CLASSES, shards=3, total=9) as writer:
        writer.append(given)
    store = open_store(tmp_path / "a.npack")
    assert len(store.files) == 3 and store.read(np.arange(9)) == [one.data for one in given]
    with pytest.raises(UsageError, match="npack stores have no compression"):
        open_writer(tmp_path / "b.npack", compression="gzip")
    with pytest.raises(StoreNotFoundError, match="found nothing"):
        open_store(tmp_path / "missing.npack")


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        (
            "import nowhere_at_all",
            "foo = acme_foo:FORMAT",
            "cannot be imported (ModuleNotFoundError",
        ),
        ("", "foo = acme_foo:FORMAT", "cannot be imported (AttributeError"),
        ("FORMAT = 3", "foo = acme_foo:FORMAT", "expected a fastload.storage.Format, found int"),
        (NPACK, "foo = acme_foo:FORMAT", "name of its entry point, found 'npack'"),
        (NPACK, "lmdb = acme_foo:FORMAT", "a built-in format has this name"),
        (
            NPACK.replace('(".npack",)', '(".npack", ".tar")'),
            "npack = acme_foo:FORMAT",
            "the suffix .tar belongs to the built-in format 'tar'",
        ),
        (
            NPACK.replace('(".npack",)', '("npack",)'),
            "npack = acme_foo:FORMAT",
            "expected suffixes in lower case that start with a dot",
        ),
    ],
)
def test_a_broken_package_is_named_only_when_it_is_asked_for(
    install: Install, tmp_path: Path, source: str, line: str, why: str
) -> None:
    install("acme_foo", source, line)
    with open_writer(tmp_path / "a.lmdb", classes=CLASSES) as writer:
        writer.append(records(2))
    assert len(open_store(tmp_path / "a.lmdb")) == 2
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(picture(1, 4, 4))
    assert len(open_store(tmp_path / "images")) == 1
    assert format_of(tmp_path / "a.foo") is None
    (tmp_path / "a.foo").write_bytes(b"foo")
    package = f"acme-formats 1.2 (entry point {line})"
    for act in (open_store, open_writer):
        with pytest.raises((StoreError, UsageError)) as caught:
            act(tmp_path / "a.foo")
        assert package in str(caught.value) and why in str(caught.value)
    name = line.partition(" ")[0]
    if name != "lmdb":
        with pytest.raises(UsageError) as asked:
            get_format(name)
        assert package in str(asked.value) and why in str(asked.value)


def test_two_packages_with_one_name_are_both_named(install: Install, tmp_path: Path) -> None:
    install("acme_npack", NPACK, "npack = acme_npack:FORMAT")
    install("other_npack", NPACK, "npack = other_npack:FORMAT", distribution="other-formats")
    with pytest.raises(UsageError) as caught:
        get_format("npack")
    assert "acme-formats 1.2" in str(caught.value) and "other-formats 1.2" in str(caught.value)


def test_a_broken_package_does_not_hide_another(install: Install, tmp_path: Path) -> None:
    install("acme_foo", "import nowhere_at_all", "foo = acme_foo:FORMAT")
    install("acme_npack", NPACK, "npack = acme_npack:FORMAT", distribution="acme-npack")
    with open_writer(tmp_path / "a.npack", classes=CLASSES) as writer:
        writer.append(records(2))
    assert len(open_store(tmp_path / "a.npack")) == 2


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"one of the formats lmdb, hdf5.*got 'nothing'"):
        get_format("nothing")


def test_formats_without_a_writer_name_those_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise AssertionError(path)

    only_read = Format(name="toy", title="Toy", suffixes=(".toy",), open=refuse)  # type: ignore[arg-type]
    monkeypatch.setattr(registry, "_loadable", lambda: iter([only_read]))
    with pytest.raises(UsageError, match=r"ending in \.lmdb, .*reads Toy stores, but does not"):
        open_writer(tmp_path / "a.toy")


def test_built_in_formats_are_found_without_scanning_packages(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a.lmdb", classes=CLASSES) as writer:
        writer.append(records(2))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(picture(1, 4, 4))
    code = (
        "import sys, fastload\n"
        "for path in sys.argv[1:]: fastload.open_store(path)\n"
        "from fastload.storage import registry\n"
        "assert registry._announced.cache_info().misses == 0\n"
        "assert 'fastload.storage.formats.hdf5' not in sys.modules\n"
    )
    paths = [str(tmp_path / name) for name in ("a.lmdb", "images")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True, timeout=60)
