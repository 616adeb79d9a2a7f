"""The folders of the C++ core: their header comments, and which of them may include which."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "fastload" / "_native"
# From the top down: a folder includes itself, folders of its own row, and folders below.
LAYERS = [
    {"bindings"},
    {"batch"},
    {"jpeg", "dct"},  # a record holds the coefficients of a JPEG
    {"png", "webp"},
    {"pixels"},
    {"image"},
    {"resample"},
    {"io"},
    {"base"},
]
STANDALONE = {"scan"}
FOLDERS = sorted({path.parent.name for path in NATIVE.glob("*/*.h")})


def _named_tests(comment: str) -> list[Path]:
    """The paths behind "Tests:"; a bare file name is in the folder of the path before it."""
    text = re.sub(r"\n// ?", " ", comment.split("// Tests:", 1)[1].split("\n//\n", 1)[0])
    folder, found = ROOT / "tests", []
    for name in re.findall(r"tests/[\w/]+/(?=[\s,.;)]|$)|(?:tests/[\w/]*)?test_\w+\.py", text):
        path = ROOT / name if name.startswith("tests/") else folder / name
        folder = path if path.is_dir() else path.parent
        found.append(path)
    return found


def test_each_folder_has_one_header_comment_that_names_its_tests() -> None:
    for folder in FOLDERS:
        comments = [
            text.split("#pragma once")[0]
            for text in (path.read_text() for path in (NATIVE / folder).glob("*.h"))
            if "\n// Guarantees\n" in text
        ]
        assert len(comments) == 1, f"{folder}: expected one header with Guarantees"
        named = _named_tests(comments[0])
        assert named, f"{folder}: expected the tests that check the guarantees"
        missing = [str(path.relative_to(ROOT)) for path in named if not path.exists()]
        assert not missing, f"{folder}: tests that do not exist: {missing}"


def test_folders_include_only_folders_below_them() -> None:
    row = {folder: i for i, layer in enumerate(LAYERS) for folder in layer}
    assert sorted([*row, *STANDALONE]) == FOLDERS
    wrong = []
    for path in sorted(NATIVE.glob("*/*.h")) + sorted(NATIVE.glob("*/*.cpp")):
        folder = path.parent.name
        for line in re.findall(r'^#include "(\w+/[\w.]+)"', path.read_text(), flags=re.MULTILINE):
            other = line.split("/")[0]
            if folder == other or (folder == "bindings" and other in STANDALONE):
                continue
            if folder in STANDALONE or other in STANDALONE or row[other] < row[folder]:
                wrong.append(f"{path.relative_to(NATIVE)} includes {line}")
    assert not wrong
