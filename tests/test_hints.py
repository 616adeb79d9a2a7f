"""What type checkers know of fastload, and that it is true at run time."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

import click
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import FastLoader, UsageError, hints

TRANSFORM = v2.Compose([v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
PROGRAM = Path(__file__).with_name("typed_program.py")

# Only the used parts of torch are checked; all of torch would take half a minute.
CONFIGURATION = """
[mypy]
strict = True
[mypy-torch.*]
follow_imports = skip
[mypy-torch,torch._C.*,torch._tensor,torch.utils.data.*]
follow_imports = silent
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where mypy keeps what it has found out: what is imported is read once for all tests."""
    return tmp_path_factory.mktemp("mypy")


def mypy(folder: Path, known: Path, program: Path) -> str:
    """The output of mypy, in a folder without fastload, so that it finds the installed one."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    (folder / "mypy.ini").write_text(CONFIGURATION)
    shutil.copy(program, folder / "program.py")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", f"--cache-dir={known}", "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_a_typed_program_passes_and_its_mistakes_are_found(tmp_path: Path, known: Path) -> None:
    assert mypy(tmp_path, known, PROGRAM) == ""


def test_every_public_name_has_a_type(tmp_path: Path, known: Path) -> None:
    names = tmp_path / "names.py"
    names.write_text(
        "import fastload\n" + "".join(f"reveal_type(fastload.{n})\n" for n in fastload.__all__)
    )
    lines = mypy(tmp_path, known, names).splitlines()
    assert len(lines) == len(fastload.__all__)
    assert [line for line in lines if "Revealed type" not in line or line.endswith('"Any"')] == []


WORDS: dict[str, Any] = {
    "engine": hints.Engine,
    "decode": hints.Decode,
    "cache": hints.CacheKind,
    "on_error": hints.OnErrorName,
}


@pytest.mark.parametrize("argument", WORDS)
def test_the_words_of_a_type_are_those_that_the_loader_takes(argument: str, store: Path) -> None:
    arguments: dict[str, Any] = {argument: "nonsense"}
    with pytest.raises(UsageError, match=argument) as refused:
        FastLoader(store, **arguments)
    assert [
        word for word in get_args(WORDS[argument]) if repr(word) not in str(refused.value)
    ] == []


@pytest.mark.parametrize("argument", ["encode", "on_error", "compression"])
def test_the_words_of_a_type_are_those_that_pack_takes(
    argument: str, photos: Path, tmp_path: Path
) -> None:
    words = {
        "encode": hints.Encoding,
        "on_error": hints.OnPackError,
        "compression": hints.Compression,
    }[argument]
    arguments: dict[str, Any] = {argument: "nonsense"}
    with pytest.raises(UsageError, match=argument) as refused:
        fastload.pack(photos, tmp_path / "x.h5", **arguments)
    assert [word for word in get_args(words) if word not in str(refused.value)] == []
    command: click.Command = importlib.import_module("fastload.cli.pack").command
    (option,) = [one for one in command.params if one.name == argument]
    assert isinstance(option.type, click.Choice) and option.type.choices == get_args(words)


def fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is UnionType:
        return any(fits(value, one) for one in get_args(hint))
    if is_typeddict(hint):
        types = get_type_hints(hint)
        return (
            isinstance(value, dict)
            and value.keys() == types.keys()
            and all(fits(part, types[name]) for name, part in value.items())
        )
    return isinstance(value, get_origin(hint) or hint)


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_stats_are_what_their_type_says(engine: hints.Engine, store: Path) -> None:
    loader = FastLoader(store, batch_size=6, transform=TRANSFORM, engine=engine)
    for _ in range(2):  # before and after an epoch
        stats = loader.stats()
        types = get_type_hints(hints.Stats)
        assert stats.keys() == types.keys()
        assert [name for name, value in stats.items() if not fits(value, types[name])] == []
        for _images, _labels in loader:
            pass
    assert stats["images"] == 24 and loader.stats()["batches"] == 4


def test_bad_samples_are_reported_as_their_type_says(photos: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(photos, tmp_path / "photos")
    broken = sorted(folder.rglob("*.jpg"))[3]
    broken.write_bytes(b"not an image")
    loader = FastLoader(folder, transform=TRANSFORM, on_error="skip", max_errors=1)
    assert sum(len(labels) for _, labels in loader) == 23
    (error,) = loader.stats()["errors"]
    assert error.keys() == hints.BadSampleStats.__annotations__.keys()
    assert error["index"] == 3 and error["file"] == str(broken) and error["action"] == "skip"
