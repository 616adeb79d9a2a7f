"""The pictures of the documents."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import fastload

_ROOT = Path(__file__).resolve().parent.parent
_PICTURES = _ROOT / "docs" / "pictures"
_NAMES = ("batch", "heatmap", "notebook", "timeline")


def words(path: Path) -> list[str]:
    """The texts of a picture; a file that is no XML is an error."""
    root = ElementTree.parse(path).getroot()
    style = "{http://www.w3.org/2000/svg}style"
    texts = [text for one in root.iter() if one.tag != style for text in [one.text, one.tail]]
    return [text.strip() for text in texts if text and text.strip()]


def test_the_documents_show_each_picture() -> None:
    pages = [*_ROOT.glob("*.md"), *(_ROOT / "docs").glob("*.md")]
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert sorted(path.stem for path in _PICTURES.iterdir()) == sorted(_NAMES)
    for name in _NAMES:
        assert f"pictures/{name}.svg" in shown


def test_the_path_of_a_batch_names_modules_that_exist() -> None:
    text = " ".join(words(_PICTURES / "batch.svg"))
    named = re.findall(r"(?:\w+/)+(?:\w+\.py)?", text)
    assert len(named) == 10
    for name in named:
        assert (Path(fastload.__file__).parent / name).exists(), name
