"""The command line as a user calls it, in a separate process where that matters."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import PIL
import PIL.features
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload import _native
from fastload._base.machine.load import Others
from fastload._version import __version__
from fastload.cli import COMMANDS, main
from fastload.converters import pack
from fastload.storage import Record, open_store
from storage.formats import picture


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "imgs"
    for index in range(20):
        path = root / f"klasse {index % 2} ü" / f"{index:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(index, 30 + index, 20))
    return root


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def shell(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastload", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, **options)  # type: ignore[call-overload,no-any-return]


def test_help_lists_the_commands_without_importing_them() -> None:
    code = (
        "import sys\nfrom fastload.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "print(sorted({'torch', 'lmdb', 'PIL', 'rich', 'numpy', 'torchvision'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[]\n"), done.stdout
    for command in COMMANDS:
        assert f"  {command}" in done.stdout


@pytest.mark.native
def test_commands_do_not_wait_for_torch_to_be_imported(images: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom fastload.cli import main\n"
        "for command in ('pack imgs a.lmdb', 'info a.lmdb', 'verify a.lmdb',\n"
        "                'info a.lmdb --grid a.png', 'pack a.lmdb b.lmdb --encode dct',\n"
        "                'unpack b.lmdb b', 'pack b.lmdb c.lmdb --encode raw',\n"
        "                'unpack c.lmdb c'):\n"
        "    try: main(command.split())\n    except SystemExit as end: assert end.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command", ["pack", "append", "concat", "verify", "unpack", "info", "show"]
)
def test_help_of_a_command_has_examples(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout and f"fastload {command}" in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_into_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, run(command, "--help").stdout.splitlines())) <= 80


def test_version_says_whether_the_core_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")
    result = run("--version")
    assert result.stdout.splitlines()[0] == f"fastload {__version__}"
    assert "native core: not" in result.stdout


@pytest.mark.native
def test_version_names_libjpeg_and_instruction_set() -> None:
    core = _native.load()
    shown = run("--version").stdout
    assert f"native core: built (libjpeg-turbo {core.jpeg_version()}, " in shown
    assert f"libwebp {core.webp_version()}, {core.simd()})" in shown


def test_version_names_the_pillow_whose_pixels_the_core_equals() -> None:
    jpeg = PIL.features.version("libjpeg_turbo")
    expected = f"Pillow {PIL.__version__} (libjpeg-turbo {jpeg})" if jpeg else "Pillow"
    assert expected in run("--version").stdout.splitlines()[-1]


def test_pack_then_info(images: Path, tmp_path: Path) -> None:
    done = shell("pack", images, tmp_path / "x.lmdb")
    assert done.returncode == 0, done.stderr
    assert "20 records" in done.stdout
    shown = shell("info", tmp_path / "x.lmdb")
    assert shown.returncode == 0
    for text in ("lmdb", "20", "30 to 49, median 40 pixels", "jpeg 20", "CRC32C", "klasse 0 ü"):
        assert text in shown.stdout


def test_info_as_json_and_contact_sheet(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "x.lmdb", encode="raw")
    result = run("info", tmp_path / "x.lmdb", "--json", "--grid", tmp_path / "sheet.png")
    summary = json.loads(result.stdout)
    assert summary["records"] == 20
    assert summary["classes"] == [["klasse 0 ü", 10], ["klasse 1 ü", 10]]
    assert summary["encodings"] == {"raw": 20}
    assert summary["width"] == {"min": 30, "median": 40, "max": 49}
    assert summary["checksums"] is True
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (960, 240)
        assert len(np.unique(np.asarray(sheet))) > 100
        below = [np.asarray(sheet.convert("L"))[96:120, x : x + 96] for x in range(0, 960, 96)]
        assert all((one < 128).any() for one in below)  # index, class and file
        assert len({one.tobytes() for one in below}) == 10
    assert sorted(os.listdir(tmp_path)) == ["imgs", "sheet.png", "x.lmdb"]


def of_one_colour(path: Path, colour: str | int, size: tuple[int, int] = (920, 460)) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)


def sheet_of_one(store: Path) -> np.ndarray:
    """The only picture of the contact sheet of ``store``, 92 pixels wide and 46 high."""
    sheet = store.with_suffix(".png")
    result = run("info", store, "--grid", sheet)
    assert result.exit_code == 0, result.output
    with Image.open(sheet) as whole:
        return np.asarray(whole)[25:71, 2:94]


def test_a_contact_sheet_draws_masks_as_show_does(tmp_path: Path) -> None:
    of_one_colour(tmp_path / "images" / "a.png", "white")
    of_one_colour(tmp_path / "masks" / "a.png", 3)
    pack(tmp_path / "images", tmp_path / "masked.lmdb", masks=tmp_path / "masks")
    shown = fastload.show(
        fastload.PackedDataset(tmp_path / "masked.lmdb", v2.ToImage(), joint=True), views=1
    )
    x, y, width, height = shown.tiles[0].box
    (colour,) = np.unique(
        np.asarray(shown.image)[y : y + height, x : x + width].reshape(-1, 3), axis=0
    )
    assert (colour < 255).any()
    assert (sheet_of_one(tmp_path / "masked.lmdb") == colour).all()


def test_a_contact_sheet_draws_boxes_whose_lines_can_be_seen(tmp_path: Path) -> None:
    of_one_colour(tmp_path / "images" / "a.png", "white")
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [100, 100, 400, 200]}
    image = {"id": 1, "file_name": "a.png", "width": 920, "height": 460}
    categories = [{"id": 1, "name": "cat"}]
    coco = {"images": [image], "annotations": [box], "categories": categories}
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    pack(tmp_path / "images", tmp_path / "boxes.lmdb", annotations=tmp_path / "coco.json")
    tile = sheet_of_one(tmp_path / "boxes.lmdb")
    for line in (tile[10, 10:50], tile[29, 10:50], tile[10:30, 10], tile[10:30, 49]):
        assert (line.min(axis=1) < 100).all()  # a whole pixel wide, though the photo has 920
    assert (tile[12:28, 12:48] == 255).all() and (tile[:9] == 255).all()


def test_a_record_whose_boxes_are_damaged_is_grey_in_a_contact_sheet(tmp_path: Path) -> None:
    fields = {"boxes": [[1, 2, 3]]}
    record = {"label": None, "key": "0.jpg", "width": 40, "height": 20, "fields": fields}
    with fastload.open_writer(tmp_path / "x.lmdb", metadata={"joint": {"boxes": "xyxy"}}) as writer:
        writer.append([Record(data=picture(1, 40, 20), **record)])
    assert (sheet_of_one(tmp_path / "x.lmdb") == 128).all()


def test_info_of_a_folder_with_a_file_that_is_no_image(images: Path, tmp_path: Path) -> None:
    (images / "klasse 0 ü" / "x.jpg").write_bytes(b"text")
    result = run("info", images, "--grid", tmp_path / "sheet.png")
    assert result.exit_code == 0
    assert "jpeg 20, other 1" in result.stdout and "checksums   none" in result.stdout
    assert "contact sheet of 21 records" in result.stdout


def test_a_contact_sheet_names_an_image_that_has_gone(images: Path, tmp_path: Path) -> None:
    from fastload.cli.info import _contact_sheet

    store = fastload.open_store(images)
    gone = Path(store.files[3])
    gone.unlink()
    with pytest.raises(fastload.StoreNotFoundError, match=f"{gone.name}', record 3"):
        _contact_sheet(store, str(tmp_path / "sheet.png"))


def test_info_of_an_empty_store(tmp_path: Path) -> None:
    from fastload.storage import open_writer

    open_writer(tmp_path / "x.lmdb").commit()
    result = run("info", tmp_path / "x.lmdb", "--grid", tmp_path / "sheet.png")
    assert result.exit_code == 0
    assert "records     0" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["info", "/nowhere/x.lmdb"], 1, "found nothing"),
        (["pack", "/nowhere", "x.lmdb"], 1, "found nothing"),
        (["pack", "IMAGES", "x.xyz"], 2, "ending in .lmdb"),
        (["pack", "IMAGES", "x.lmdb", "--resize", "big"], 2, "--resize: expected a side"),
        (["pack", "IMAGES", "x.lmdb", "--encode", "gif"], 2, "'gif' is not one of"),
        (["pack", "IMAGES"], 2, "Missing argument"),
        (["pakc", "IMAGES"], 2, "no command 'pakc': did you mean pack"),
        (["pack", "IMAGES", "x.lmdb", "--encod", "dct"], 2, "--encode"),
        (["pack", "IMAGES", "x.pth", "--encode", "png"], 2, "got --encode png: give --encode raw"),
        (["pack", "IMAGES", "x.lmdb", "--split", "val"], 2, "error: --split: expected NAME=SHARE"),
        (
            ["pack", "IMAGES", "x.lmdb", "--shard-size", "1MB"],
            2,
            "no shards, got --shard-size 1000",
        ),
        (["show", "IMAGES", "--out", "grid.xyz"], 2, "'grid.xyz': expected a picture file"),
        (["info", "IMAGES", "--grid", "grid.xyz"], 2, "'grid.xyz': expected a picture file"),
        (["paint"], 2, "no command 'paint': one of pack, append"),
        (["frobnicate"], 2, "no command 'frobnicate': one of pack, append"),
        (["pack", "IMAGES", "none/x.lmdb"], 1, "expected an existing folder"),
        (["pack", "IMAGES", f"{'n' * 300}.lmdb"], 1, "its folder cannot be written"),
        (["unpack", "IMAGES", "none/x"], 1, "there is no folder"),
        (["doctor", "none.py"], 1, "found no such file"),
        (["doctor", "IMAGES"], 1, "expected a Python script"),
        (["autotune", "IMAGES", "-o", "none/t.json"], 1, "there is no folder 'none'"),
        (["autotune", "IMAGES", "--memory", "much"], 2, "'--memory': expected a size"),
        (["autotune", "IMAGES", "--memory", "9" * 400], 2, "'--memory': expected a size"),
        (["autotune", "IMAGES", "--budget", "nan"], 2, "--budget: expected seconds above 0"),
        (["pack", "IMAGES", "x.tar", "--shards", "9" * 30], 2, "'--shards': 9"),
        (["pack", "IMAGES", "x.lmdb", "--workers", "9" * 30], 2, "'--workers': 9"),
        *(
            (["doctor", "--timeout", value, __file__], 2, "--timeout: expected seconds above 0")
            for value in ("nan", "inf", "-1", "0", "1e400")
        ),
    ],
)
def test_errors_are_one_message_and_a_status(
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*(images if argument == "IMAGES" else argument for argument in arguments))
    assert result.exit_code == status
    assert result.stderr.startswith("fastload: error: ")
    assert message in result.stderr and "Traceback" not in result.stderr
    assert "\nUsage: " not in result.stderr
    assert result.stdout == ""
    assert os.listdir(tmp_path) == ["imgs"]


@pytest.mark.parametrize("words", [[], ["cache"]])
def test_without_a_command_comes_the_help_and_no_error(words: list[str]) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: ") and "error:" not in result.stderr


def test_a_terminal_breaks_no_word_and_a_pipe_gets_long_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    words = ["info", f"no/{'x' * 100}.lmdb"]
    told = run(*words).stderr
    assert max(map(len, told.splitlines())) > 190
    parent, child = os.openpty()
    with os.fdopen(parent, "rb", buffering=0) as screen:
        with os.fdopen(child, "w") as terminal:
            command = [sys.executable, "-m", "fastload", *words]
            subprocess.run(command, stderr=terminal, stdout=subprocess.PIPE, timeout=150)
        printed = click.unstyle(screen.read(1 << 16).decode()).splitlines()
    assert " ".join(" ".join(printed).split()) == " ".join(told.split())
    for line in printed:
        assert len(line) <= 80 or " " not in line or line.startswith("type next: ")


def test_a_process_ends_with_that_status(images: Path, tmp_path: Path) -> None:
    done = shell("pack", images, "x.xyz", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ending in .lmdb" in done.stderr and "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["imgs"]


def test_a_store_that_exists_is_answered_with_the_option_that_replaces_it(
    images: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.tar"
    assert run("pack", images, path, "-q").exit_code == 0
    result = run("pack", images, path)
    assert result.exit_code == 2
    assert result.stderr.endswith("exists: choose another name, or replace it with --overwrite\n")
    assert run("pack", images, path, "-q", "--overwrite").exit_code == 0


def test_one_record_is_not_called_records(images: Path, tmp_path: Path) -> None:
    only = next(images.iterdir()).rename(tmp_path / "only")
    for path in sorted(only.iterdir())[1:]:
        path.unlink()
    assert ": 1 record, no labels" in run("info", only).stdout
    assert ": 1 record, no labels" in run("pack", only, tmp_path / "x.tar").stdout


@pytest.mark.parametrize(
    ("command", "status"),
    [("info none.lmdb", 1), ("verify none", 1), ("pack none a.xyz", 1), ("pack a b --encode c", 2),
     ("unpack nothing://a/b.lmdb c", 2), ("show", 2)],
)  # fmt: skip
def test_errors_are_json_where_that_was_asked_for(command: str, status: int) -> None:
    result = run(*command.split(), "--json")
    error = json.loads(result.stdout)["error"]
    assert result.exit_code == status and error["message"] in result.stderr
    assert error.keys() == {"type", "message", "path", "record", "offset"}
    assert run(*command.split()).stdout == ""


def test_an_error_of_the_users_own_code_is_json_too_and_has_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken_dataset.py").write_text(
        "print('printed by the module')\n"
        "class Data:\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, index): raise RuntimeError('broken')\n"
        "data = Data()\n"
    )
    command = [sys.executable, "-m", "fastload", "pack", "broken_dataset:data", "a.lmdb", "--json"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    error = json.loads(result.stdout)["error"]
    assert result.returncode == 1
    assert (error["type"], error["message"]) == ("RuntimeError", "RuntimeError: broken")
    assert "Traceback" in result.stderr and "in __getitem__" in result.stderr
    assert "printed by the module" in result.stderr


def test_json_of_info_is_one_document_though_its_picture_fails(
    images: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "none" / "sheet.png"
    result = run("info", images, "--json", "--grid", missing)
    assert result.exit_code == 1 and "error" in json.loads(result.stdout)
    assert result.stderr.startswith(f"fastload: error: '{missing}")


def test_names_that_are_no_text_are_shown(tmp_path: Path) -> None:
    folder = os.path.join(os.fsencode(tmp_path), b"imgs", b"c\xff")
    os.makedirs(folder)
    with open(os.path.join(folder, b"\xfe.jpg"), "wb") as file:
        file.write(picture(1, 8, 8))
    assert run("pack", tmp_path / "imgs", tmp_path / "a.lmdb").exit_code == 0
    result = run("info", tmp_path / "a.lmdb")
    assert result.exit_code == 0 and "1  c\\udcff" in result.stdout
    assert json.loads(run("info", tmp_path / "a.lmdb", "--json").stdout)["classes"] == [
        ["c\udcff", 1]
    ]


def test_damaged_record_of_a_source_is_named_with_its_offset(images: Path, tmp_path: Path) -> None:
    path = Path(pack(images, tmp_path / "a.lmdb").parts[0].path)
    with open_store(path) as store:
        offset = int(store.spans(np.array([7])).offset[0])
    data = bytearray(path.read_bytes())
    data[offset + 300] ^= 1
    path.write_bytes(data)
    result = run("pack", path, tmp_path / "b.tar")
    assert result.exit_code == 1
    assert f"fastload: error: {str(path)!r}, record 7, byte offset {offset}: " in result.stderr
    result = run("pack", path, tmp_path / "c.tar", "--on-error", "skip")
    assert result.exit_code == 0 and "a.lmdb (record 7): " in result.stderr


def test_skipped_files_are_named_on_stderr(images: Path, tmp_path: Path) -> None:
    bad = images / "klasse 0 ü" / "x.jpg"
    bad.write_bytes(b"text")
    stopped = shell("pack", images, tmp_path / "x.lmdb")
    assert stopped.returncode == 1 and "x.jpg" in stopped.stderr
    done = shell("pack", images, tmp_path / "y.lmdb", "--on-error", "skip")
    assert done.returncode == 0
    assert f"skipped {bad}" in done.stderr and "20 records" in done.stdout


def test_a_warning_is_one_line(images: Path, tmp_path: Path) -> None:
    root = tmp_path / "mixed"
    shutil.copytree(images, root)
    shutil.copy(next(root.rglob("*.jpg")), root / "beside.jpg")
    done = shell("pack", root, tmp_path / "x.lmdb", "--quiet")
    assert done.returncode == 0
    assert re.fullmatch(r"fastload: warning: 1 image.* beside its class folders.*\n", done.stderr)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_the_exit_status(command: str) -> None:
    done = CliRunner().invoke(main, [command, "--help"])
    assert done.exit_code == 0
    assert "Examples:" in done.output and "Exit status: 0" in done.output


def test_quiet_says_nothing(images: Path, tmp_path: Path) -> None:
    done = shell("pack", images, tmp_path / "x.lmdb", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


HEALTHY = Path(__file__).parents[1] / "tools" / "doctor" / "scripts" / "healthy.py"

WAITS = """
import os, time
from PIL import Image
class Pictures:
    def __len__(self):
        return 300
    def __getitem__(self, index):
        if index == 200 and not os.path.exists(os.environ["WAITING"]):
            open(os.environ["WAITING"], "w").close()
            time.sleep(600)  # until the signal comes
        return Image.new("RGB", (8, 8), (index % 256, 0, 0)), index
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_end_pack_and_the_same_command_completes(
    tmp_path: Path, number: int, status: int
) -> None:
    waiting = tmp_path / "waiting"
    (tmp_path / "waits.py").write_text(WAITS)
    arguments = ["pack", "waits:Pictures", str(tmp_path / "x.lmdb"), "--workers", "1"]
    environment = {**os.environ, "WAITING": str(waiting)}
    child = subprocess.Popen(
        [sys.executable, "-m", "fastload", *arguments], cwd=tmp_path, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not waiting.exists() and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(number)
    _, errors = child.communicate(timeout=150)
    assert child.returncode == status, errors
    kept = str(tmp_path / "x.lmdb.partial")
    said = f"fastload: stopped: the work so far is in {kept!r}: run the same again to resume"
    assert errors.strip().endswith(said) and "Traceback" not in errors
    assert not (tmp_path / "x.lmdb").exists()
    done = shell(*arguments, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(open_store(tmp_path / "x.lmdb")) == 300


def test_sigterm_ends_doctor_and_the_script_that_it_watches(tmp_path: Path) -> None:
    script, waiting = tmp_path / "train.py", tmp_path / "waiting"
    script.write_text(
        "import os, time\n"
        f"with open({str(waiting) + '.new'!r}, 'w') as file: file.write(str(os.getpid()))\n"
        f"os.rename({str(waiting) + '.new'!r}, {str(waiting)!r})\n"
        "time.sleep(600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "fastload", "doctor", str(script)], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not waiting.exists() and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=150)
    assert child.returncode == 143, errors
    assert errors.strip().endswith("fastload: stopped") and "Traceback" not in errors
    watched = int(waiting.read_text())
    deadline = time.monotonic() + 30
    while _runs(watched) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(watched)


def _runs(process: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("command", ["pack", "verify", "unpack"])
def test_progress_goes_to_stderr_with_a_last_line_but_not_beside_json(
    images: Path, tmp_path: Path, command: str
) -> None:
    pack(images, tmp_path / "a.lmdb")
    source = images if command == "pack" else tmp_path / "a.lmdb"
    target = [] if command == "verify" else [tmp_path / "new.lmdb"]
    done = run(command, source, *target)
    last = rf"{command}ing: 20 of 20, [\d.]+ images/s, [\d.]+ KiB, 00:00 left\n"
    assert done.exit_code == 0 and re.search(f"{last}$", done.stderr)
    assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f\x7f]*", done.stderr)
    target = [] if command == "verify" else [tmp_path / "json.lmdb"]
    assert run(command, source, *target, "--json").stderr == ""


@pytest.mark.parametrize("command", ["pack", "verify", "unpack", "doctor"])
def test_beside_json_progress_is_shown_on_a_terminal(
    images: Path, tmp_path: Path, command: str
) -> None:
    pack(images, tmp_path / "a.lmdb")
    words = {
        "pack": [images, tmp_path / "b.lmdb"],
        "verify": [tmp_path / "a.lmdb"],
        "unpack": [tmp_path / "a.lmdb", tmp_path / "out"],
        "doctor": ["--steps", 4, HEALTHY, tmp_path],
    }
    master, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fastload", command, "--json", *map(str, words[command])],
        stdout=subprocess.PIPE, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    drawn = ""
    with contextlib.suppress(OSError):  # the last one has closed the terminal
        while True:
            drawn += os.read(master, 1 << 16).decode()
    os.close(master)
    printed, _ = process.communicate(timeout=150)
    assert process.returncode in (0, 3) and json.loads(printed), drawn
    bar = r"watching: 100%.* 4/4 " if command == "doctor" else rf"{command}ing: 100%.* 20/20 "
    assert re.search(bar, drawn), drawn


def test_verify_names_the_damage_and_its_status_is_1(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    pack(images, path)
    result = run("verify", path)
    assert result.exit_code == 0 and "20 of 20 records: checksums right" in result.stdout
    spans = open_store(path).spans(np.array([3]))
    with open(path, "r+b") as file:
        file.seek(int(spans.offset[0]) + 40)
        file.write(b"\xa5\x5a")
    result = run("verify", path, "--decode", "-q")
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    key = "klasse 0 ü/06.jpg"
    assert f"record 3 ({key}), byte offset {spans.offset[0]}: expected CRC32C" in line
    result = run("verify", path, "--json")
    assert result.exit_code == 1
    assert [damage["record"] for damage in json.loads(result.stdout)["damaged"]] == [3]
    assert run("verify", tmp_path / "none.lmdb").exit_code == 1


def test_unpack_gives_the_files_back(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "a.lmdb")
    result = run("unpack", tmp_path / "a.lmdb", tmp_path / "out")
    assert result.exit_code == 0 and "20 images" in result.stdout
    for path in images.rglob("*.jpg"):
        assert (tmp_path / "out" / path.relative_to(images)).read_bytes() == path.read_bytes()
    again = run("unpack", tmp_path / "a.lmdb", tmp_path / "out")
    assert again.exit_code == 2 and "a new or empty folder" in again.stderr


def test_append_and_concat_say_what_they_did(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "a.lmdb")
    (images / "klasse 0 ü" / "neu.jpg").write_bytes(picture(99, 5, 5))
    for name in images.rglob("[0-9]*.jpg"):
        if "00" not in name.name and "01" not in name.name:
            name.unlink()
    (images / "klasse 0 ü" / "00.jpg").unlink()
    (images / "klasse 1 ü" / "01.jpg").rename(images / "klasse 1 ü" / "neu.jpg")
    (images / "klasse 0 ü" / "none.jpg").write_bytes(b"no image")
    result = run("append", tmp_path / "a.lmdb", images)
    assert result.exit_code == 1 and "--on-error skip" in result.stderr
    result = run("append", tmp_path / "a.lmdb", images, "--on-error", "skip", "--workers", 1)
    assert result.exit_code == 0 and "22 records" in result.stdout
    assert "skipped" in result.stderr and "none.jpg" in result.stderr
    result = run("concat", tmp_path / "a.lmdb", tmp_path / "a.lmdb", tmp_path / "b.lmdb", "--json")
    assert json.loads(result.stdout)["parts"][0]["records"] == 44
    assert run("info", tmp_path / "b.lmdb").exit_code == 0


@pytest.mark.parametrize(
    ("text", "nbytes"), [("256MB", 256_000_000), ("1.5 GiB", 3 << 29), ("7", 7)]
)
def test_shard_sizes_have_units(text: str, nbytes: int) -> None:
    from fastload.cli._options import size_of

    assert size_of(None, None, text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "0", "1..2K", "5X"])
def test_sizes_that_are_none_are_refused(text: str, images: Path, tmp_path: Path) -> None:
    result = run("pack", images, tmp_path / "a.lmdb", "--shard-size", text)
    assert result.exit_code == 2 and "256MB" in result.stderr


def test_dry_run_names_the_fastest_and_writes_nothing(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([0.02, 0.6, 0.0])
    monkeypatch.setattr(Others, "share", lambda self: next(shares))
    result = run("pack", images, tmp_path / "a.lmdb", "--dry-run")
    assert result.exit_code == 0, result.stderr
    header, *rows, last = result.stdout.splitlines()
    assert header.split()[:2] == ["encoding", "size"] and len(rows) >= 5
    assert last == f"on 20 images, in turn; {rows[0].split()[0]} would load fastest"
    busy = run("pack", images, tmp_path / "a.lmdb", "--dry-run", "--encode", "keep").stdout
    assert "other programs took 60% of the CPUs" in busy.splitlines()[-1]
    as_json = run("pack", images, tmp_path / "a.lmdb", "--dry-run", "--json", "--encode", "png")
    assert [one["encode"] for one in json.loads(as_json.stdout)] == ["png"]
    assert os.listdir(tmp_path) == ["imgs"]


@pytest.mark.parametrize("wanted", [None, "", "1"])
def test_the_word_that_matters_and_the_line_to_type_have_a_colour_on_a_terminal(
    wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if wanted is not None:
        monkeypatch.setenv("NO_COLOR", wanted)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imgs.lmdb").mkdir()
    words = ["info", "imgz.lmdb"]
    plain, terminal = (CliRunner().invoke(main, words, color=color) for color in (False, True))
    assert plain.stderr.startswith("fastload: error: ") and "\ntype next: " in plain.stderr
    assert click.unstyle(terminal.stderr) == plain.stderr
    if wanted:
        assert terminal.stderr == plain.stderr
    else:
        assert click.style("error", fg="red", bold=True) in terminal.stderr
        line = plain.stderr.partition("type next: ")[2].strip()
        assert click.style(line, fg="cyan") in terminal.stderr
