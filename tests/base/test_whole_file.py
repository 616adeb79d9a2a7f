"""Files that appear whole or not at all: their errors name the file that the user asked for."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastload import unpack
from fastload._base.whole_file import check_writable, whole_file
from fastload.converters import pack
from fastload.errors import StoreError
from storage.formats import picture


@pytest.fixture
def full_disk() -> Iterator[None]:
    """A limit on the size of files stands for the disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_cannot_be_made_is_named_without_its_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "none" / "grid.png"
    with pytest.raises(FileNotFoundError) as raised, whole_file(path):
        pass
    assert raised.value.filename == str(path)
    with pytest.raises(FileNotFoundError, match="create it first") as raised:
        check_writable(path)
    assert raised.value.filename == str(path)


def test_a_file_that_fills_the_disk_is_named_and_removed(tmp_path: Path, full_disk: None) -> None:
    path = tmp_path / "grid.png"
    with pytest.raises(OSError) as raised, whole_file(path) as file:
        file.write(bytes(1 << 16))
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))
    assert os.listdir(tmp_path) == []


def test_errors_of_other_files_keep_their_names(tmp_path: Path) -> None:
    other = tmp_path / "other"
    with pytest.raises(FileNotFoundError) as raised, whole_file(tmp_path / "grid.png"):
        other.read_bytes()
    assert raised.value.filename == str(other)


def test_looking_whether_a_file_can_be_written_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tune.json"
    path.write_text("old")
    check_writable(path)
    assert os.listdir(tmp_path) == ["tune.json"] and path.read_text() == "old"


def test_unpacking_that_fills_the_disk_names_the_folder(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "imgs").mkdir()
    (tmp_path / "imgs" / "a.jpg").write_bytes(picture(0, 30, 20))
    pack(tmp_path / "imgs", tmp_path / "a.tar")
    request.getfixturevalue("full_disk")
    with pytest.raises(StoreError, match="File too large: choose another") as raised:
        unpack(tmp_path / "a.tar", tmp_path / "out")
    assert raised.value.path == str(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "a.tar.fastload", "imgs"]
