"""``pack`` and ``append`` move and delete only what they made themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastload.converters import append, pack
from fastload.errors import UsageError
from fastload.storage import open_store
from storage.formats import picture

SUFFIXES = (".lmdb", ".tar", ".rec", ".zarr")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "imgs"
    for index in range(4):
        path = root / f"c{index % 2}" / f"{index:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(index, 16, 16))
    return root


@pytest.fixture
def more(tmp_path: Path) -> Path:
    root = tmp_path / "more"
    for index in range(2):
        path = root / f"c{index}" / f"new{index}.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(picture(10 + index, 16, 16))
    return root


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of somebody else's files."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years")
    (folder / "list.csv").write_text("other")
    return folder


def everything(folder: Path) -> dict[str, bytes | None]:
    """What is below ``folder``: the content of files, None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if ".fastload" not in path.name  # a sidecar is compared through its store
    }


@pytest.mark.parametrize("kind", ["link", "file"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_overwriting_follows_no_link_and_deletes_no_file_of_others(
    images: Path, theirs: Path, tmp_path: Path, suffix: str, kind: str
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "list.csv").write_text("labels of a year")
    pack(images, shared / f"a{suffix}")
    place = shared / f"a-overwriting{suffix}.partial"
    if kind == "link":
        place.symlink_to(theirs)
    else:
        place.write_text("mine")
    before = everything(tmp_path)
    with pytest.raises(UsageError, match=r"a folder that fastload made at .*: move it"):
        pack(images, shared / f"a{suffix}", overwrite=True)
    assert everything(tmp_path) == before
    place.rename(tmp_path / "moved")
    assert pack(images, shared / f"a{suffix}", overwrite=True).records == 4


def test_overwriting_moves_only_the_new_store_out_of_its_folder(
    images: Path, tmp_path: Path
) -> None:
    path, work = tmp_path / "a.tar", tmp_path / "a-overwriting.tar.partial"
    pack(images, path)
    (tmp_path / "list.csv").write_text("labels of a year")

    def put(done: int, total: int | None, nbytes: int) -> None:
        (work / "list.csv").write_text("put there meanwhile")

    for _ in range(2):
        assert pack(images, path, overwrite=True, progress=put).records == 4
        assert (work / "list.csv").read_text() == "put there meanwhile"
        assert os.listdir(work) == ["list.csv"]
    assert (tmp_path / "list.csv").read_text() == "labels of a year"
    assert len(open_store(path)) == 4


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("suffix", [".rec", ".tfrecord"])
def test_a_file_called_like_an_index_of_no_store_is_not_replaced(
    images: Path, tmp_path: Path, suffix: str, overwrite: bool
) -> None:
    mine = tmp_path / ("a.lst" if suffix == ".rec" else "a.tfrecord.idx")
    mine.write_text("what I listed")
    for _ in range(2):
        with pytest.raises(UsageError, match=f"{mine.name}' exists: move it and run the same"):
            pack(images, tmp_path / f"a{suffix}", overwrite=overwrite)
    assert mine.read_text() == "what I listed"
    mine.rename(tmp_path / "moved")
    report = pack(images, tmp_path / f"a{suffix}", overwrite=overwrite)
    assert report.parts[0].resumed == 4
    assert len(open_store(tmp_path / f"a{suffix}")) == 4


@pytest.mark.parametrize("suffix", [".lmdb", ".tar", ".rec"])
def test_append_leaves_what_lies_beside_the_store(
    images: Path, more: Path, tmp_path: Path, suffix: str
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    path = folder / f"a{suffix}"
    pack(images, path)
    made = set(os.listdir(folder))
    for name in (
        "a-appending.log", f"a-appending{suffix}", f"a-appending-added{suffix}", "a-appending.idx",
        "a-appending.lst", f"a{suffix}.fastload-next.log",
    ):  # fmt: skip
        (folder / name).write_text(f"mine: {name}")
    (folder / "a-appending.d").mkdir()
    (folder / "a-appending.d" / "notes").write_text("x")
    before = {name: content for name, content in everything(folder).items() if name not in made}
    assert append(path, more).records == 6
    with pytest.raises(UsageError, match="already has a record"):
        append(path, more)
    now = everything(folder)
    assert {name: now.get(name) for name in before} == before
    assert len(open_store(path)) == 6
    assert set(os.listdir(folder)) == made | {name.split("/")[0] for name in before} | {
        f"a{suffix}.fastload-next.log"
    }


def test_append_follows_no_link_in_the_place_of_its_folder(
    images: Path, more: Path, theirs: Path, tmp_path: Path
) -> None:
    pack(images, tmp_path / "a.tar")
    (tmp_path / "a-appending.tar.partial").symlink_to(theirs)
    before = everything(tmp_path)
    with pytest.raises(UsageError, match=r"a folder that fastload made at .*: move it"):
        append(tmp_path / "a.tar", more)
    assert everything(tmp_path) == before and len(open_store(tmp_path / "a.tar")) == 4


def test_append_leaves_what_others_put_into_its_folder(
    images: Path, more: Path, theirs: Path, tmp_path: Path
) -> None:
    pack(images, tmp_path / "a.tar")
    place = tmp_path / "a-appending.tar.partial"
    theirs.rename(place)
    before = everything(place)
    assert append(tmp_path / "a.tar", more).records == 6
    assert everything(place) == before


@pytest.mark.parametrize("kind", ["link", "file", "folder"])
def test_what_is_called_like_a_lock_and_is_none_stays(
    images: Path, more: Path, theirs: Path, tmp_path: Path, kind: str
) -> None:
    pack(images, tmp_path / "a.tar")
    place = tmp_path / "a.tar.replacing-lock"
    if kind == "link":
        place.symlink_to(theirs / "thesis.tex")
    elif kind == "file":
        place.write_text("mine")
    else:
        theirs.rename(place)
    before = everything(tmp_path)
    for change in (
        lambda: append(tmp_path / "a.tar", more),
        lambda: pack(images, tmp_path / "a.tar", overwrite=True),
    ):
        with pytest.raises(UsageError, match=r"an empty file at .*replacing-lock.*move it"):
            change()
    assert everything(tmp_path) == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_unfinished_store_is_not_made_in_a_folder_of_others(
    images: Path, theirs: Path, tmp_path: Path, suffix: str
) -> None:
    place = tmp_path / f"a{suffix}.partial"
    theirs.rename(place)
    before = everything(tmp_path)
    with pytest.raises(UsageError, match=r"a folder that fastload made at .*: move it"):
        pack(images, tmp_path / f"a{suffix}")
    assert everything(tmp_path) == before
