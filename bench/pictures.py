"""What fastload shows, as pictures for the documents: made from its own output, on photos.

``python -m bench draw`` makes them anew. Each is an SVG that light and dark pages can show.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torchvision import transforms as T

import fastload
from bench import synthetic
from fastload import FastLoader
from fastload._base import svg
from fastload._tools.tuning import page

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
_LETTER, _LINE, _EDGE = 7.83, 18, 14  # pixels
_IMAGES = 800

PRELUDE = """\
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

train_tf = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor()])
model = torch.nn.Conv2d(3, 2, kernel_size=3, stride=4)
"""

TRAIN = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for images, labels in DataLoader(ImageFolder("imgs", train_tf), batch_size=32, shuffle=True):
    loss = torch.nn.functional.cross_entropy(model(images).mean((2, 3)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

WATCHED = """\
import fastload

loader = fastload.FastLoader("imgs", batch_size=32, shuffle=True, transform=train_tf)
for images, labels in fastload.watch(loader, every_s=0.05): model(images)
"""


def make(folder: Path, images: int = _IMAGES, budget_s: float = 60.0) -> list[Path]:
    """Draw each of them into ``folder``, from ``images`` photos that it makes; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        synthetic.make_images(work / "imgs", images, classes=2)
        (work / "train.py").write_text(PRELUDE + TRAIN)
        (work / "watched.py").write_text(PRELUDE + WATCHED)
        drawn: dict[str, Callable[[Path], str]] = {
            "doctor": _doctor, "watch": _watch, "notebook": _notebook,
            "heatmap": lambda work: _heatmap(work, budget_s),
        }  # fmt: skip
        for name, draw in drawn.items():
            (folder / f"{name}.svg").write_text(draw(work), encoding="utf-8")
        _timeline(work, folder / "timeline.svg")
    return [folder / f"{name}.svg" for name in (*drawn, "timeline")]


def _doctor(work: Path) -> str:
    shown = _terminal([sys.executable, "-m", "fastload", "doctor", "train.py"], work, 62)
    return _screen("$ fastload doctor train.py", shown, 62)


def _watch(work: Path) -> str:
    shown = _terminal([sys.executable, "watched.py"], work, 76)
    return _screen("for images, labels in fastload.watch(loader): ...", shown[-1:], 76)


def _notebook(work: Path) -> str:
    loader, _ = _loader(work)
    for _ in loader:
        pass
    return _html(loader._repr_html_(), "color: var(--text)", 680, 25)


def _heatmap(work: Path, budget_s: float) -> str:
    tuning = fastload.autotune(str(work / "imgs"), budget_s=budget_s)
    table = f"<style>{page.STYLE} table {{ margin: 0 }}</style>{''.join(page.heat_map(tuning))}"
    return _html(table, "color: #222", 380, 29)


def _timeline(work: Path, path: Path) -> None:
    loader, step = _loader(work)
    for batch in loader:
        step(batch[0])
    with fastload.trace(path):
        for batch in itertools.islice(iter(loader), 4):
            step(batch[0])


def _loader(work: Path) -> tuple[FastLoader[list[torch.Tensor]], torch.nn.Module]:
    chain = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor()])
    loader = FastLoader(
        work / "imgs", batch_size=32, shuffle=True, seed=1, transform=chain, num_workers=2
    )
    return loader, torch.nn.Conv2d(3, 16, 3, stride=4)


def _terminal(command: list[str], folder: Path, columns: int) -> list[str]:
    """What a terminal shows at the end, its lines without colours."""
    typed = f"stty cols {columns} rows 40; {shlex.join(command)}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    environment.pop("COLUMNS", None)
    shown = subprocess.run(
        ["script", "-qc", typed, os.devnull], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown).replace("\r\n", "\n")
    return [line.rpartition("\r")[2].rstrip() for line in text.rstrip().split("\n")]


def _screen(typed: str, lines: list[str], columns: int) -> str:
    """What was typed, and what came, in letters of one width."""
    parts = [svg.text(_EDGE, _EDGE + 12, typed, "mono code")]
    for place, line in enumerate(lines, 1):
        if line:
            parts.append(svg.text(_EDGE, _EDGE + 16 + place * _LINE, line, "mono"))
    width = round(2 * _EDGE + columns * _LETTER)
    return svg.card(width, 2 * _EDGE + 10 + len(lines) * _LINE, parts)


def _html(html: str, style: str, width: int, row: int) -> str:
    """A table as a browser shows it, with rows of so many pixels."""
    height = row * html.count("<tr>") + 2 * _EDGE
    body = f'<div xmlns="http://www.w3.org/1999/xhtml" style="font: 13px system-ui; {style}">'
    inside = f'x="{_EDGE}" y="{_EDGE}" width="{width - 2 * _EDGE}" height="{height - _EDGE}"'
    return svg.card(width, height, [f"<foreignObject {inside}>{body}{html}</div></foreignObject>"])
