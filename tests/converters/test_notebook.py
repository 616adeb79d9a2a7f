"""What a notebook shows for the report of ``pack`` says what the command line says."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

import fastload
from fastload.cli.pack import show
from notebook_html import Cells, rows
from storage.formats import picture


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for index in range(20):
        folder = tmp_path / "imgs" / ("cat", "dog")[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index:02}.jpg").write_bytes(picture(index, 200, 100))
    return tmp_path / "imgs"


def test_a_report_shows_the_store_the_speed_and_some_images(images: Path, tmp_path: Path) -> None:
    report = fastload.pack(images, tmp_path / "a.lmdb", encode="dct")
    shown = rows(report)
    assert shown[str(tmp_path / "a.lmdb")].startswith("20 records, 2 classes, ")
    assert shown["time"].endswith(" images/s")
    found = Cells(report._repr_html_()).images
    assert [image["title"] for image in found][::7] == ["cat/00.jpg", "dog/19.jpg"]
    assert len(found) == 8
    for image in found:
        kind, _, data = image["src"].partition(";base64,")
        assert kind == "data:image/jpeg"
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == (96, 48)
    assert "<" not in repr(report)


def test_the_words_are_those_of_the_command_line(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = fastload.pack(images, tmp_path / "a.lmdb")
    show(report, quiet=False, as_json=False)
    store, time = capsys.readouterr().out.splitlines()
    shown = rows(report)
    path = str(tmp_path / "a.lmdb")
    assert (store, time) == (f"{path}: {shown[path]}", shown["time"])


def test_parts_of_a_split_and_kept_files_have_bars(images: Path, tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(images / "cat" / "x.png")
    report = fastload.pack(images, tmp_path / "a.lmdb", encode="dct", split="val=0.5")
    cells = Cells(report._repr_html_())
    widths = [float(width.removesuffix("em")) for width in cells.widths]
    records = [part.records for part in report.parts]
    assert widths[:2] == pytest.approx([12 * count / 21 for count in records], abs=0.01)
    assert rows(report)["kept unchanged"].startswith("1, ")


def test_skipped_and_damaged_files_are_named(images: Path, tmp_path: Path) -> None:
    bad = images / "cat" / "<b>.jpg"
    bad.write_bytes(b"no image")
    broken = images / "cat" / "00.jpg"
    data = broken.read_bytes()
    broken.write_bytes(data[:250] + b"\xff\xd9")  # an end, but the middle is missing
    report = fastload.pack(images, tmp_path / "a.lmdb", on_error="skip")
    html = report._repr_html_()
    assert "<b>" not in html and escape(f"{bad} (record ") in html
    cells = Cells(html)
    assert len(cells.images) == 7 and "cat/00.jpg: " in dict(cells.rows)["images"]


def test_a_store_that_was_moved_still_has_its_figures(images: Path, tmp_path: Path) -> None:
    report = fastload.pack(images, tmp_path / "a.lmdb")
    (tmp_path / "a.lmdb").rename(tmp_path / "b.lmdb")
    shown = rows(report)
    assert shown["time"] and shown["images"].startswith("cannot be shown: ")


def test_append_shows_the_same(images: Path, tmp_path: Path) -> None:
    fastload.pack(images / "cat", tmp_path / "a.lmdb")
    report = fastload.append(tmp_path / "a.lmdb", images / "dog")
    assert rows(report)[str(tmp_path / "a.lmdb")].startswith("20 records, ")


def test_the_json_of_a_report_has_no_html(images: Path, tmp_path: Path) -> None:
    from fastload.cli import main

    words = ["pack", str(images), str(tmp_path / "a.lmdb"), "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0 and "<" not in done.output
