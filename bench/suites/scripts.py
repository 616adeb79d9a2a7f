"""scripts: public training scripts, whose DataLoader is replaced by FastLoader."""

from __future__ import annotations

import contextlib
import io
import traceback
from pathlib import Path
from typing import Any

from bench import machine
from bench.process import missing
from bench.report import TIMES, Row
from bench.script_files import lay_out
from bench.scripts import SCRIPTS, Script, imported
from bench.suites.base import Figures, Options, Suite
from bench.suites.pairs import compare

_PHOTOS = 300


class Scripts(Suite):
    name = "scripts"
    summary = "public training scripts: FastLoader against DataLoader, in turn (needs --repos)"
    variants = {name: {} for name in SCRIPTS}

    def run(self, variant: str, options: Options) -> list[Row]:
        script = SCRIPTS[variant]
        loader = f"fastload, {script.repository}"
        facts = {
            "suite": self.name,
            "variant": variant,
            "script": {"repository": script.repository, "file": script.file},
            "does": script.make.__doc__,
            "data": "given" if options.data else "made",
        }
        figures = Figures(options, ((TIMES, "x", ""),), **facts)
        rows: list[Row] = []
        reason = _absent(script, options.repos)
        try:
            for workers in () if reason else (0, options.threads):
                rows.append(_measured(script, options, workers, {**facts, "loader": loader}))
        except Exception as error:  # someone else's code: the other scripts are measured
            options.say(traceback.format_exc())
            reason = f"failed: {type(error).__name__}: {error}"
        if reason:
            options.say(f"{variant}: {reason}")
            figures.none(loader, reason)
        return rows + figures.rows


def _absent(script: Script, repos: Path | None) -> str:
    """What to install or clone for ``script``; empty if it is all there."""
    if repos is None:
        return "--repos is not given: the folder of checkouts"
    if absent := missing(script.needs):
        return absent
    return "" if (repos / script.folder).is_dir() else script.clone(str(repos))


def _measured(script: Script, options: Options, workers: int, facts: dict[str, Any]) -> Row:
    assert options.repos is not None
    checkout = options.repos / script.folder
    count = 24 if options.toy else _PHOTOS // (1 + script.heavy)
    photos = lay_out(options.images, options.images.jpegs(count, given=options.data))
    with imported(checkout / script.imports):
        said = io.StringIO()  # most say what they do while they make a dataset
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            given = script.make(checkout, photos)
        images_in_it = len(given.dataset) if hasattr(given.dataset, "__len__") else count
        facts = {**facts, "images": images_in_it, "checkout": machine.commit(checkout)}
        return compare(given, options, batch=script.batch, workers=workers, **facts)
