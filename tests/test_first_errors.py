"""The errors of the first hour end with the one line to type next, ready to copy."""

from __future__ import annotations

import importlib.machinery
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torchvision import datasets
from torchvision import transforms as T

import warm
from fastload import FastLoader, PackedDataset, _native, pack
from fastload._base.machine import cpu
from fastload.cli import main
from fastload.errors import (
    DataError,
    MissingDependencyError,
    StoreError,
    StoreNotFoundError,
    UsageError,
)

FIXED_SIZE = "transform=T.Compose([T.RandomResizedCrop(224), T.ToTensor()])"


def line_of(error: BaseException) -> str:
    """What the error says to type, in the last line that a traceback shows."""
    last = "".join(traceback.format_exception_only(error)).rstrip().splitlines()[-1]
    assert last.startswith("type next: "), str(error)
    return last.removeprefix("type next: ")


# Below a message of torch's, which stays as it is, the line is a note.
NOTED = pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions had no notes")


def said(kind: type[BaseException], make: Callable[[], Any]) -> str:
    with pytest.raises(kind) as raised:
        make()
    return line_of(raised.value)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder of images of several sizes."""
    for number in range(6):
        path = tmp_path / "mixed" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + number, 9), (number, 2, 3)).save(path)
    return tmp_path / "mixed"


class Samples(torch.utils.data.Dataset):
    """A Dataset of the user's own: what ``make`` gives for each index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


# --- paths


def test_a_mistyped_name_is_answered_with_the_one_that_is_there(
    store: Path, tmp_path: Path
) -> None:
    (tmp_path / "both.lmdb").touch()  # is like any short name, if the suffix counts
    link = tmp_path / "my imgs.lmdb"
    link.symlink_to(store)
    for typed in ("my imgs.lmbd", "my imgs", "my_imgs.lmdb"):
        line = said(StoreNotFoundError, lambda name=typed: FastLoader(str(tmp_path / name)))
        assert line == f"fastload info {shlex.quote(str(link))}"
    done = warm.run(["-m", *shlex.split(line)], finalize=False)
    assert done.returncode == 0, done.stderr


def test_a_command_over_a_mistyped_path_is_to_be_typed_with_the_right_one(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my list.csv").write_text(f"path,label\n{store},1\n")
    (tmp_path / "data.lmdb").symlink_to(store)
    monkeypatch.chdir(tmp_path)
    for words, right in (
        (["pack", "my lsit.csv", "x.lmdb"], ["pack", f"{tmp_path}/my list.csv", "x.lmdb"]),
        (["pack", "./dtaa.lmdb", "y.tar", "--overwrite"],
         ["pack", f"{tmp_path}/data.lmdb", "y.tar", "--overwrite"]),
        (["verify", f"{tmp_path}/data.lmbd"], ["verify", f"{tmp_path}/data.lmdb"]),
    ):  # fmt: skip
        told = CliRunner().invoke(main, words).stderr
        assert "did you mean" in told
        assert told.rstrip().splitlines()[-1] == f"type next: {shlex.join(['fastload', *right])}"


def test_a_link_to_nothing_is_no_mistyping(tmp_path: Path) -> None:
    link = tmp_path / "imgs.lmdb"
    link.symlink_to("gone.lmdb")
    (tmp_path / "imgs2.lmdb").touch()
    told = CliRunner().invoke(main, ["verify", str(link)]).stderr
    assert "it is a link to 'gone.lmdb'\n" in told
    assert told.rstrip().splitlines()[-1] == f"type next: ls -l {link}"


def test_no_command_is_suggested_that_has_a_store_twice(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train-0.lmdb", "a\x1b[31mb.lmdb"):
        (tmp_path / name).symlink_to(store)
    monkeypatch.chdir(tmp_path)
    first = tmp_path / "train-0.lmdb"
    for words in (
        ["concat", "train-0.lmdb", "train-1.lmdb", "all.lmdb"],
        ["append", "train-0.lmdb", "train-1.lmdb"],
        ["pack", "train-1.lmdb", "train-0.lmdb"],
    ):
        told = CliRunner().invoke(main, words).stderr.rstrip()
        assert told.splitlines()[-1] == f"type next: fastload info {first}", told
    told = CliRunner().invoke(main, ["verify", "a[31mb.lmdb"], color=True).stderr
    assert "did you mean" in told and "a\x1b[31mb" not in told


def test_a_path_that_nothing_resembles_shows_the_nearest_folder(tmp_path: Path) -> None:
    for typed in ("nothing", "nothing.lmdb", "nothing.tfrecord", "no/such/folder.lmdb"):
        line = said(StoreNotFoundError, lambda name=typed: FastLoader(str(tmp_path / name)))
        assert line == f"ls {tmp_path}"
    assert said(StoreNotFoundError, lambda: pack(tmp_path / "x", tmp_path / "y.lmdb")) == line


def test_a_folder_without_images_is_listed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    line = said(StoreNotFoundError, lambda: FastLoader(str(tmp_path)))
    assert line == f"find {tmp_path} | head -20"
    listed = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    assert "notes.txt" in listed.stdout


def test_empty_class_folders_are_removed_by_the_line(mixed: Path) -> None:
    for name in ("empty", "void"):
        (mixed / name).mkdir()
    line = said(StoreNotFoundError, lambda: FastLoader(str(mixed), 4))
    assert line == f"rmdir {mixed}/empty {mixed}/void"
    subprocess.run(line, shell=True, check=True)
    assert len(FastLoader(str(mixed), 4, transform=T.Resize((8, 8))).dataset) == 6


def test_class_folders_with_something_else_in_them_are_not_removed(mixed: Path) -> None:
    (mixed / "text").mkdir()
    (mixed / "text" / "a.txt").write_text("x")
    line = said(StoreNotFoundError, lambda: FastLoader(str(mixed), 4))
    assert line == f"find {mixed / 'text'} | head -20"


def test_a_file_of_another_kind_is_to_be_packed(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,label\n")
    line = said(StoreError, lambda: FastLoader(str(tmp_path / "list.csv")))
    assert line == f"fastload pack {tmp_path / 'list.csv'} imgs.lmdb"


def made_of_the_line(line: str, folder: Path) -> Path:
    """The store of the line's last command, after the line ran in ``folder``."""
    run = f"{shlex.quote(sys.executable)} -m fastload"
    done = subprocess.run(
        line.replace("fastload", run, 1), shell=True, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder / shlex.split(line)[-1]


@pytest.mark.parametrize(
    ("name", "mode"),
    [("x.tar.gz", "w:gz"), ("an x.tgz", "w:gz"), ("x.tar.xz", "w:xz"), ("x", "w:gz")],
)
def test_a_compressed_archive_is_packed_by_the_line(
    mixed: Path, tmp_path: Path, name: str, mode: Any
) -> None:
    with tarfile.open(tmp_path / name, mode) as archive:
        archive.add(mixed, ".")
    line = said(StoreError, lambda: FastLoader(str(tmp_path / name)))
    assert len(PackedDataset(made_of_the_line(line, tmp_path))) == 6


@pytest.mark.skipif(shutil.which("unzip") is None, reason="unzip is not installed")
def test_a_zip_is_unpacked_by_the_line(mixed: Path, tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "x"), "zip", mixed)
    line = said(StoreError, lambda: FastLoader(str(tmp_path / "x.zip")))
    assert len(PackedDataset(made_of_the_line(line, tmp_path))) == 6


@pytest.mark.parametrize("suffix", [".tfrecord", ".tar", ".h5"])
def test_a_store_without_a_suffix_is_known_by_its_first_bytes(
    mixed: Path, tmp_path: Path, suffix: str
) -> None:
    pack(mixed, tmp_path / f"x{suffix}")
    bare = tmp_path / "train-00000-of-00001"
    (tmp_path / f"x{suffix}").rename(bare)
    for sidecar in tmp_path.glob("x*.fastload"):  # with what fastload's own stores have beside them
        sidecar.rename(f"{bare}.fastload")
    assert len(PackedDataset(bare)) == 6
    if suffix != ".h5":  # the files alone, as those of other programs
        assert len(PackedDataset(tmp_path / "train-*-of-[0-9]*1")) == 6


@pytest.mark.parametrize("content", [b"", b"\x01\x02" * 300])
def test_a_file_of_a_foreign_format_is_not_answered_with_itself(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "x.beton").write_bytes(content)
    line = said(StoreError, lambda: pack(tmp_path / "x.beton", tmp_path / "y.lmdb"))
    assert line == "fastload pack mymodule:MyDataset imgs.lmdb"


def test_cifar_s_archive_is_packed_by_the_line(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(b"\x1f\x8b")
    assert said(StoreError, lambda: FastLoader(str(path))) == f"fastload pack {path} imgs.lmdb"


def test_an_image_is_answered_with_its_folder(mixed: Path) -> None:
    image = mixed / "class0" / "0.png"
    for make in (lambda: FastLoader(str(image)), lambda: pack(image, mixed / "x.lmdb")):
        assert said(StoreError, make) == f"fastload info {image.parent}"


# --- the core


def test_a_core_that_was_not_built_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "_tried", True)
    monkeypatch.setattr(_native, "_module", None)
    monkeypatch.setattr(_native, "_warned", False)
    monkeypatch.delenv("FASTLOAD_NO_NATIVE", raising=False)
    line = line_of(_native.missing())
    assert line.startswith(f"apt install -y {_native.PACKAGES} && FASTLOAD_REQUIRE_NATIVE=1 pip ")
    source = Path(shlex.split(line)[-1])  # a clone, here; else the distribution's name
    assert (source / "setup.py").is_file()
    with pytest.warns(RuntimeWarning, match="type next: apt install"):
        _native.warn_missing()


def test_a_clone_that_hides_the_installed_package_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After `pip install .`, Python started in the clone imports the clone, which is not built."""
    name = f"_core{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    core = tmp_path / "fastload" / "_native" / name
    core.parent.mkdir(parents=True)
    core.touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(_native, "_tried", True)
    monkeypatch.setattr(_native, "_module", None)
    monkeypatch.delenv("FASTLOAD_NO_NATIVE", raising=False)
    assert f"instead of the installed package in '{tmp_path}'" in str(_native.missing())


@pytest.mark.filterwarnings("ignore:fastload has no native core")
def test_a_hidden_core_says_which_variable_hides_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")
    make = lambda: FastLoader(str(store), 4, engine="native")  # noqa: E731 - said calls it
    assert said(MissingDependencyError, make) == "unset FASTLOAD_NO_NATIVE"


# --- transforms and sizes


@pytest.mark.native
def test_a_transform_that_is_not_native_can_run_with_the_default_engine(photos: Path) -> None:
    class Own:
        def __call__(self, image: Image.Image) -> torch.Tensor:
            return T.functional.to_tensor(image.resize((8, 8)))

    dataset = datasets.ImageFolder(str(photos), Own())
    line = said(UsageError, lambda: FastLoader(dataset, 4, engine="native"))
    assert line == 'engine="auto"'
    images, _ = next(iter(eval(f"FastLoader(dataset, 4, {line})")))  # noqa: S307 - that is the claim
    assert images.shape == (4, 3, 8, 8)


@NOTED
@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_several_sizes_need_a_crop(mixed: Path, workers: int) -> None:
    folder = datasets.ImageFolder(str(mixed), T.ToTensor())
    for dataset, kind in ((folder, DataError), (Samples(lambda i: folder[i]), RuntimeError)):
        loader = FastLoader(dataset, 4, num_workers=workers)
        assert said(kind, lambda loader=loader: next(iter(loader))) == FIXED_SIZE
    transform = eval(FIXED_SIZE.removeprefix("transform="))  # noqa: S307 - that is the claim
    images, _ = next(iter(FastLoader(str(mixed), 4, transform=transform)))
    assert images.shape == (4, 3, 224, 224)


@pytest.mark.parametrize("shape", [(5, 4, 3), (5, 80)])
def test_what_is_no_image_gets_no_line_about_images(shape: tuple[int, ...]) -> None:
    loader = FastLoader(Samples(lambda i: torch.zeros(shape[0] + i, *shape[1:])), 4, num_workers=1)
    with pytest.raises(RuntimeError) as raised:
        next(iter(loader))
    assert "type next" not in str(raised.value)


@NOTED
@pytest.mark.parametrize("workers", [0, 1])
def test_gray_images_among_colour_images_need_three_channels(tmp_path: Path, workers: int) -> None:
    paths = [tmp_path / f"{mode}.png" for mode in ("RGB", "L")]
    for path in paths:
        Image.new(path.stem, (8, 8)).save(path)

    def sample(i: int) -> torch.Tensor:
        return T.functional.to_tensor(Image.open(paths[i % 2]))

    loader = FastLoader(Samples(sample), 4, num_workers=workers)
    line = said(RuntimeError, lambda: next(iter(loader)))
    assert line == 'image = Image.open(path).convert("RGB")'

    def mended(i: int) -> torch.Tensor:
        path = paths[i % 2]
        names = {"Image": Image, "path": path}
        exec(line, names)
        return T.functional.to_tensor(names["image"])

    assert next(iter(FastLoader(Samples(mended), 4))).shape == (4, 3, 8, 8)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_no_image_is_not_told_to_be_cropped(workers: int) -> None:
    loader = FastLoader(Samples(lambda i: torch.zeros(i + 1)), 4, num_workers=workers)
    with pytest.raises(RuntimeError) as caught:
        next(iter(loader))
    assert "type next" not in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))


@NOTED
def test_images_that_stay_pillow_images_need_a_tensor(mixed: Path) -> None:
    loader = FastLoader(Samples(lambda i: Image.new("RGB", (8, 8))), 4)
    assert said(TypeError, lambda: next(iter(loader))) == "transform=T.ToTensor()"


# --- num_workers, copied from a DataLoader


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"num_workers": "4"}, "num_workers=4"),
        ({"num_workers": "many"}, 'num_workers="auto"'),
        ({"num_workers": 2.0}, 'num_workers="auto"'),
        pytest.param({"num_workers": -1}, 'num_workers="auto"', marks=NOTED),
        *(
            pytest.param({"num_workers": 0, **more}, f"num_workers={cpu.available()}", marks=NOTED)
            for more in ({"prefetch_factor": 2}, {"persistent_workers": True})
        ),
    ],
)
def test_workers_that_cannot_be_are_corrected(
    store: Path, given: dict[str, Any], line: str
) -> None:
    assert said(ValueError, lambda: FastLoader(str(store), 4, **given)) == line
    kept = {name: value for name, value in given.items() if name != "num_workers"}
    typed = eval(f"dict({line})")  # noqa: S307 - that is the claim
    FastLoader(str(store), 4, **kept, **typed)


# --- macOS, Windows, Python 3.14

SCRIPT = """
import sys
import traceback
from torch.utils.data import TensorDataset
import torch
from fastload import FastLoader

{guard}
    loader = FastLoader(list(torch.zeros(4, 3)), 2, num_workers=1,
                        multiprocessing_context="spawn")
    print(len(list(loader)), "batches")
"""


@pytest.mark.parametrize(
    "guard", ["if True:", pytest.param('if __name__ == "__main__":', marks=pytest.mark.long)]
)
def test_a_script_that_workers_run_again_is_told_to_guard_its_loop(
    tmp_path: Path, guard: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(guard=guard))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=150, env={**os.environ}
    )
    if guard == "if True:":
        assert done.returncode != 0
        assert done.stderr.rstrip().endswith('type next: if __name__ == "__main__":')
    else:
        assert (done.returncode, done.stdout) == (0, "2 batches\n"), done.stderr
