"""scripts: public training scripts, whose DataLoader is replaced by FastLoader."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import multiprocessing
import os
import random
import resource
import statistics
import subprocess
import time
import traceback
import warnings
from functools import partial
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from bench import data
from bench.report import Row, row
from bench.scripts import SCRIPTS, Place, Script, imported, lay_out
from bench.suites.base import Options, Suite, Variant
from bench.suites.pairs import in_turn, quotients
from bench.untuned import UNTUNED, lay_out_more
from fastload import FastLoader

_ALL = {**SCRIPTS, **UNTUNED}

_PHOTOS = 600
_FEWER = 200  # for scripts that are measured both without and with workers


class Scripts(Suite):
    name = "scripts"
    summary = "public training scripts: FastLoader against DataLoader, in turn (needs --repos)"
    variants = {name: Variant() for name in _ALL}

    def run(self, variant: str, options: Options) -> list[Row]:
        script = _ALL[variant]
        facts = {
            "suite": self.name,
            "variant": variant,
            "loader": f"fastload, {script.repository}",
            "metric": "times DataLoader",
            "unit": "x",
            "script": {"repository": script.repository, "file": script.file},
            "does": script.make.__doc__,
            "untuned": variant in UNTUNED,
            **options.machine,
        }
        reason = _absent(script, options.repos)
        if reason:
            options.say(f"{variant}: {reason}")
            return [row(reason=reason, **facts)]
        assert options.repos is not None
        results = []
        try:
            with imported([options.repos / folder for folder in script.folders]):
                for workers in (0, options.threads) if facts["untuned"] else (options.threads,):
                    results.append(_measured(script, options, facts, workers))
        except Exception as error:  # someone else's code: the other scripts are measured
            options.say(f"{variant} failed:\n{traceback.format_exc()}")
            results.append(row(reason=f"failed: {type(error).__name__}: {error}", **facts))
        for result in results:
            if result["median"] is None:
                continue
            setting = result["setting"]
            options.say(
                f"{variant}, {setting['processes']} workers: {result['median']} times DataLoader "
                f"({result['min']} to {result['max']}), {setting['cpu']} times less CPU time; "
                f"{setting['checked']}; {setting['engine']}, "
                f"{' and '.join(map(str, setting['samples_per_s']))} samples/s"
            )
        return results


def _absent(script: Script, repos: Path | None) -> str:
    """What to install or clone for ``script``; empty if it is all there."""
    if repos is None:
        return "--repos is not given: the folder of checkouts"
    absent = [name for name in script.libraries if find_spec(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    folders = {folder.split("/")[0] for folder in script.folders}
    clones = [
        other.clone(str(repos))
        for name in sorted(folders)
        if not (repos / name).is_dir()
        for other in [next(listed for listed in _ALL.values() if listed.folder == name)]
    ]
    return "; ".join(clones)


def _measured(script: Script, options: Options, facts: dict[str, Any], workers: int) -> Row:
    assert options.repos is not None
    checkout = options.repos / script.folder
    photos = _FEWER if facts["untuned"] else _PHOTOS
    count = 24 if options.toy else photos // (1 + script.heavy)
    images = data.jpegs(options.cache, data=options.data, count=count, small=False, say=options.say)
    lay = lay_out_more if facts["untuned"] else lay_out
    root = lay(options.cache, images, say=options.say)
    said = io.StringIO()  # most say what they do while they make a dataset
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        made = script.make(Place(checkout=checkout, root=root, toy=options.toy))
    workers = min(workers, 2) if options.toy else workers
    batch = min(script.batch, 8) if options.toy else script.batch
    arguments: dict[str, Any] = {
        **made.arguments,
        "num_workers": workers,
        # An epoch of some hundred photos is not to be one of starting processes.
        "persistent_workers": workers > 0,
    }
    if "batch_sampler" not in arguments:
        arguments["batch_size"] = batch
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'pin_memory' argument is set as true")
        loaders: dict[str, Any] = {
            "torch": DataLoader(made.dataset, **arguments),
            "fastload": FastLoader(made.dataset, **arguments),
        }
        checked = _checked(loaders["torch"], loaders["fastload"])
        measures = [partial(_rate, loader, batch, options.seconds) for loader in loaders.values()]
        found = in_turn(measures, options.rounds)
    theirs, ours = ([rate for rate, _ in rounds] for rounds in found)
    spent = [statistics.median(cpu_s for _, cpu_s in rounds) for rounds in found]
    stats = loaders["fastload"].stats()
    result = row(
        values=quotients(ours, theirs),
        setting={
            "engine": stats["engine"],
            "processes": workers,
            "cpu": round(spent[0] / max(1e-9, spent[1]), 2),
            "checked": checked,
            "samples_per_s": [round(statistics.median(rates), 1) for rates in (ours, theirs)],
            "materialised": [
                f"{part['function']} ({part['count']})"
                for part in stats.get("materialised", [])[:3]
            ],
        },
        threads=max(1, workers),
        batch=batch,
        images=len(made.dataset) if hasattr(made.dataset, "__len__") else count,
        data="given" if options.data else "made",
        warmup_s=0.0,
        round_s=options.seconds,
        **facts,
        **_commit(checkout),
    )
    del loaders
    gc.collect()  # processes that persist are of the loaders
    return result


def _checked(theirs: Any, ours: Any) -> str:
    """Compare an epoch of both from the same seed, and say what is equal.

    Raises AssertionError if they differ in what FastLoader promises.
    """
    epochs = _epoch(theirs), _epoch(ours)
    native, equal = ours.stats()["engine"] == "native", True
    for number, (one, other) in enumerate(zip_longest(*epochs)):
        for expected, got in zip(one, other, strict=True):
            if expected != got:
                # An engine that knows the transform draws its own random numbers.
                drawn = isinstance(got, _Array) and got[:-1] == expected[:-1]
                assert native and drawn and len(got.shape) > 2, (
                    f"batch {number} differs: {got!r} instead of {expected!r}"
                )
                equal = False
    return "equal batches" if equal else "the same samples, its own random numbers"


def _epoch(loader: Any) -> list[list[Any]]:
    """What is in each batch of an epoch from a known seed: a digest of each array, or the value."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    transform = getattr(loader.dataset, "transform", None)
    if hasattr(transform, "set_random_seed"):  # Albumentations, which has its own generators
        transform.set_random_seed(1)
    return [[_described(leaf) for leaf in _leaves(batch)] for batch in loader]


class _Array(NamedTuple):
    kind: type
    shape: tuple[int, ...]
    dtype: torch.dtype
    digest: str


def _described(leaf: Any) -> Any:
    kind, array = type(leaf), leaf
    if isinstance(leaf, np.ndarray):
        array = torch.from_numpy(leaf)
    if not isinstance(array, torch.Tensor):
        return leaf
    values = array.detach().reshape(-1).view(torch.uint8).numpy()
    return _Array(kind, tuple(array.shape), array.dtype, hashlib.sha256(values).hexdigest())


def _leaves(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [leaf for part in batch.values() for leaf in _leaves(part)]
    if isinstance(batch, list | tuple):
        return [leaf for part in batch for leaf in _leaves(part)]
    if isinstance(batch, torch.Tensor | np.ndarray | np.generic) or not hasattr(batch, "__dict__"):
        return [batch]
    return [leaf for part in vars(batch).values() for leaf in _leaves(part)]


def _rate(loader: Any, batch: int, seconds: float) -> tuple[float, float]:
    """Samples a second, and CPU seconds a sample, over whole epochs of at least ``seconds``."""
    samples, begin, before = 0, time.perf_counter(), _cpu_s()
    while True:
        for _ in loader:
            samples += batch
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return samples / elapsed, (_cpu_s() - before) / samples


def _cpu_s() -> float:
    """CPU seconds that this process and its workers have spent."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    spent = own.ru_utime + own.ru_stime
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def _commit(checkout: Path) -> dict[str, str]:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"checkout": done.stdout.strip()} if done.returncode == 0 else {}
