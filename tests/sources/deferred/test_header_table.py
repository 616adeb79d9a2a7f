"""What is remembered of a file's header is of that file, as it is."""

from __future__ import annotations

import os
from pathlib import Path

import PIL.Image
import pytest

from fastload._sources.deferred import headers, stamps, switch
from fastload._sources.deferred.headers import Header, HeaderTable


def jpeg(path: Path, size: tuple[int, int], mode: str = "RGB") -> Path:
    PIL.Image.new(mode, size).save(path)
    return path


def test_a_header_is_found_again_and_only_for_its_file(tmp_path: Path) -> None:
    table = HeaderTable()
    headers_of = {
        str(jpeg(tmp_path / f"{k}.jpg", (10 + k, 20))): Header((10 + k, 65_535), mode, k > 1, k)
        for k, mode in enumerate(("RGB", "L", "CMYK"))
    }
    for k, kind in enumerate(headers._KINDS):
        path = str(jpeg(tmp_path / f"of-kind-{k}.jpg", (10 + k, 20)))
        headers_of[path] = Header((10 + k, 7), kind[1], k > 1, k, kind[0])
    for path, header in headers_of.items():
        assert table.find(path, stamps.of_path(str(path))) is None
        table.keep(path, stamps.of_path(str(path)), header)
    for path, header in headers_of.items():
        assert table.find(path, stamps.of_path(str(path))) == header


@pytest.mark.parametrize("change", ["written", "replaced", "forbidden"])
def test_a_file_that_changed_is_read_again(tmp_path: Path, change: str) -> None:
    path = jpeg(tmp_path / "a.jpg", (30, 20))
    table, before = HeaderTable(), os.stat(path)
    table.keep(str(path), stamps.of(before), Header((30, 20), "RGB", True, 600))
    if change == "written":
        jpeg(path, (31, 20))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "replaced":
        jpeg(tmp_path / "b.jpg", (30, 20)).replace(path)
    else:
        path.chmod(0)
    assert table.find(str(path), stamps.of_path(str(path))) is None


def test_torn_entries_are_not_taken_for_headers(tmp_path: Path) -> None:
    path = jpeg(tmp_path / "a.jpg", (30, 20))
    for word in range(3):
        table = HeaderTable()
        table.keep(str(path), stamps.of_path(str(path)), Header((30, 20), "RGB", True, 600))
        words = table._words
        at = next(k for k in range(len(words)) if words[k]) // 3 * 3
        words[at + word] ^= 1 << 63
        assert table.find(str(path), stamps.of_path(str(path))) is None


def test_a_full_table_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_PLACES", 4)
    table = HeaderTable()
    paths = [str(jpeg(tmp_path / f"{k}.jpg", (30 + k, 20))) for k in range(9)]
    for k, path in enumerate(paths):
        table.keep(path, stamps.of_path(str(path)), Header((30 + k, 20), "RGB", True, 600))
    found = [table.find(path, stamps.of_path(str(path))) for path in paths]
    assert [header and header.size[0] for header in found] == [30, 31, 32, 33, *[None] * 5]


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("as_file", [False, True])
def test_the_second_time_a_header_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_file: bool, suffix: str
) -> None:
    path = jpeg(tmp_path / f"a.{suffix}", (30, 20), "L")
    with switch.deferring():
        PIL.Image.open(jpeg(tmp_path / "b.jpg", (4, 4)))  # the first call in a process is a guarded
    reads: list[int] = []
    read = headers.of_file
    monkeypatch.setattr(headers, "of_file", lambda *given: reads.append(1) or read(*given))
    seen = []
    for _ in range(2):
        with switch.deferring(), open(path, "rb") as file:
            image = PIL.Image.open(file if as_file else path)
            seen.append((image.size, image.mode, image.format, file.tell()))
    with PIL.Image.open(path) as expected:
        known = expected.size, expected.mode, expected.format
    assert seen[0] == seen[1] and seen[0][:3] == known
    assert len(reads) == 1
