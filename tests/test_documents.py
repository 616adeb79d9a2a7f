"""The documents: links lead somewhere, examples are Python, commands and options exist."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fastload.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_readme_is_short_and_its_code_narrow() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1200
    for block in blocks(ROOT / "README.md", "python", "sh"):
        for line in block.splitlines():
            assert len(line) <= 76, f"cut off on a phone: {line}"


def test_a_phone_shows_the_readme_s_first_block_whole() -> None:
    first = next(blocks(ROOT / "README.md", "python"))
    assert max(map(len, first.splitlines())) <= 42


def blocks(path: Path, *languages: str) -> Iterator[str]:
    for language, text in _BLOCK.findall(path.read_text(encoding="utf-8")):
        if language in languages:
            yield text


def anchor(heading: str) -> str:
    """What GitHub makes of a heading: letters, numbers, hyphens and underscores, in lower case."""
    kept = (c for c in heading.lower() if c in "-_ " or unicodedata.category(c)[0] in "LN")
    return "".join(kept).strip().replace(" ", "-")


def headings(path: Path) -> set[str]:
    text = _BLOCK.sub("", path.read_text(encoding="utf-8"))
    return {anchor(line.lstrip("#").strip()) for line in text.splitlines() if line.startswith("#")}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_that_exist(path: Path) -> None:
    for link in _LINK.findall(_BLOCK.sub("", path.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{path.name}: {link}"
        assert not heading or heading in headings(target), f"{path.name}: {link}"


# What people type, and the page that should come first.
TYPED = {
    "my own Dataset": "your-dataset",
    "timm": "trainers",
    "Lightning": "trainers",
    "HF Trainer": "trainers",
    "multi-GPU": "distributed",
    "resume": "parity",
    "why is it not faster": "tuning",
    "weighted sampling": "recipes",
    "train/val split": "recipes",
    "16-bit": "recipes",
    "file names in the batch": "recipes",
    "masks": "transforms",
    "S3": "remote",
}


@pytest.mark.parametrize("typed", TYPED)
def test_what_people_type_is_in_a_heading_which_the_search_prefers(typed: str) -> None:
    page = ROOT / "docs" / f"{TYPED[typed]}.md"
    assert any(anchor(typed) in one for one in headings(page))


def test_the_search_of_the_site_finds_what_people_type_at_first_place() -> None:
    node = shutil.which("node") or pytest.skip("node is not installed: it runs the site's search")
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    subprocess.run([sys.executable, ROOT / ".ci" / "docs.py"], check=True, timeout=300)
    site = ROOT / "build" / "site"
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    index = site / "search" / "search_index.json"
    asked = [node, ROOT / "tests" / "site_search.js", worker, index, *TYPED]
    done = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    first = {typed: pages[0][0].partition("/")[0] for typed, pages in found.items() if pages}
    assert first == TYPED


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_are_python(path: Path) -> None:
    for text in blocks(path, "python"):
        compile(text, path.name, "exec")


def examples() -> Iterator[tuple[str, str]]:
    """Every command line of fastload in a document's blocks, or behind a command's --help."""
    for path in DOCUMENTS:
        for text in blocks(path, "sh", ""):
            for line in text.splitlines():
                if line.startswith("fastload "):
                    yield path.name, line
    for name, (module, _) in COMMANDS.items():
        epilog = importlib.import_module(module).command.epilog or ""
        for line in epilog.splitlines():
            if line.strip().startswith("fastload "):
                yield f"{name} --help", line.strip()


def test_commands_in_documents_and_help_have_these_options() -> None:
    seen = set()
    for place, line in examples():
        words = shlex.split(line.partition(" | ")[0], comments=True)
        words = ["..." if word in ("FOLDER", "SOURCE") else word for word in words]
        if words[1].startswith("-"):
            assert words[1] in ("--version", "--help"), f"{place}: {line}"
            continue
        assert words[1] in COMMANDS, f"{place}: {line}"
        command = importlib.import_module(COMMANDS[words[1]][0]).command
        try:
            command.make_context(words[1], words[2:], resilient_parsing=False).close()
        except click.FileError:
            pass  # a file that the reader has
        except click.BadParameter as error:
            assert "does not exist" in str(error), f"{place}: {line}: {error}"
        seen.add(words[1])
    assert seen >= {"pack", "info", "verify", "unpack", "append", "concat", "show", "autotune"}
