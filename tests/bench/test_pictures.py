"""The pictures of the documents: they show what fastload prints today."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import fastload
from bench import pictures

_ROOT = Path(__file__).resolve().parent.parent.parent
_NAMES = ("batch", "doctor", "heatmap", "notebook", "timeline", "watch")


def words(path: Path) -> list[str]:
    """The texts of a picture; a file that is no XML is an error."""
    root = ElementTree.parse(path).getroot()
    style = "{http://www.w3.org/2000/svg}style"
    texts = [text for one in root.iter() if one.tag != style for text in [one.text, one.tail]]
    return [text.strip() for text in texts if text and text.strip()]


def shape(text: str) -> str:
    """``text`` without what differs from run to run: figures."""
    return re.sub(r"[\d.,:█▉▊▋▌▍▎▏]+", "", text)


def test_the_documents_show_each_picture() -> None:
    pages = [*_ROOT.glob("*.md"), *(_ROOT / "docs").glob("*.md")]
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert sorted(path.stem for path in pictures.FOLDER.iterdir()) == sorted(_NAMES)
    for name in _NAMES:
        assert f"pictures/{name}.svg" in shown


def test_the_path_of_a_batch_names_modules_that_exist() -> None:
    text = " ".join(words(pictures.FOLDER / "batch.svg"))
    named = re.findall(r"(?:\w+/)+(?:\w+\.py)?", text)
    assert len(named) == 10
    for name in named:
        assert (Path(fastload.__file__).parent / name).exists(), name


@pytest.mark.native
@pytest.mark.timeout(600)  # doctor and autotune measure
def test_pictures_are_what_fastload_shows(tmp_path: Path) -> None:
    made = {path.stem: words(path) for path in pictures.make(tmp_path, images=40, budget_s=1)}
    kept = {name: words(pictures.FOLDER / f"{name}.svg") for name in made}
    assert {*made, "batch"} == set(_NAMES)  # which is drawn by hand
    assert shape(made["watch"][-1])[:8] == shape(kept["watch"][-1])[:8] == "epoch %|"
    assert "images/s" in made["watch"][-1] and "images/s" in kept["watch"][-1]
    for lines in (made["doctor"], kept["doctor"]):
        assert lines[0] == "$ fastload doctor train.py"
        assert re.match("the (loop waits for data|training step is)", lines[1])
        assert any(line.startswith("seen:") for line in lines)
    heads = [{text for text in found["notebook"] if text in _HEADINGS} for found in (made, kept)]
    assert heads[0] == heads[1] == _HEADINGS
    for found in (made, kept):
        assert "num_workers \\ batch_size" in found["heatmap"]
    assert {"the loop", "decoder", "wait", "step"} <= set(made["timeline"]) & set(kept["timeline"])


_HEADINGS = {"engine", "store", "fused", "speed", "waiting", "bound by", "stage decode"}
