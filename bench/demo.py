"""Pack images, train from them, and compare with torch's DataLoader.

make demo [IMAGES=DIR]
python -m bench.demo [--images DIR]
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from bench.data import classes_of
from bench.datasets import Trained, train_transform
from bench.synthetic import make_images
from fastload import FastLoader, _native, pack
from fastload.errors import DataError

_MADE = 1_500  # pictures: an epoch long enough to measure, 165 MB
_MOST = 6_000  # images of a user's folder; more would only take longer
_BATCH = 64
_MOST_S = 60.0  # of one training, so that the demo ends in minutes on any machine
_CPUS = len(os.sched_getaffinity(0))

_Row = dict[str, Any]  # figures of a training, for JSON


def network(classes: int) -> nn.Module:
    """A network that is small enough for the loader to limit the speed.

    A training step takes 0.16 ms per image on one core. (n, 3, 224, 224) float32 -> (n, classes).
    The initial weights are always the same.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.AvgPool2d(8),
        nn.Conv2d(3, 16, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def train(
    loader: Iterable[Sequence[torch.Tensor]], *, classes: int, epochs: int, device: torch.device
) -> _Row:
    """Train a new network from ``loader`` for at most ``_MOST_S`` seconds.

    The share of waiting is of the time from requesting the first batch to the end of the last step,
    losses are means of the first and the last quarter of the steps, and the first batch is that of
    a loader that has not started.
    """
    start = time.perf_counter()
    next(iter(loader))
    waited_first = time.perf_counter() - start
    model = network(classes).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    images, wait_s = 0, 0.0
    losses: list[torch.Tensor] = []
    start = time.perf_counter()
    for _ in range(epochs):
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            wait_s += time.perf_counter() - asked
            if batch is None or time.perf_counter() - start > _MOST_S:
                break
            pixels, labels = (part.to(device, non_blocking=True) for part in batch)
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            torch.autograd.backward([loss])
            optimizer.step()
            losses.append(loss.detach())
            images += len(labels)
        del batches
    quarter = max(1, len(losses) // 4)
    first, last = (
        float(torch.stack(part).mean()) for part in (losses[:quarter], losses[-quarter:])
    )
    seconds = time.perf_counter() - start  # the losses waited for the device
    return {
        "images_per_s": round(images / seconds, 1),
        "wait_share": round(wait_s / seconds, 3),
        "first_batch_s": round(waited_first, 3),
        "images": images,
        "seconds": round(seconds, 2),
        "loss_first": round(first, 3),
        "loss_last": round(last, 3),
    }


@click.command()
@click.option("--images", metavar="DIR", help="A folder of images. [default: synthetic images]")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option(
    "--count", type=click.IntRange(20), default=_MADE, show_default=True,
    help="Number of synthetic images.",
)  # fmt: skip
def main(images: str | None, as_json: bool, count: int) -> None:
    """Train a small network with torch's DataLoader and with FastLoader, and compare their speed.

    Both read the same images: from ImageFolder and from a custom Dataset; FastLoader also reads
    them from packed stores.

    Takes about three minutes on two cores. Everything is written to a temporary folder, which
    is removed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="fastload-demo-") as scratch:
        folder = Path(scratch) / "images"
        _gather(images, folder, count)
        stores = {"LMDB": Path(scratch) / "images.lmdb"}
        number = _pack(folder, stores["LMDB"])
        if _native.load() is not None:  # which writes DCT records
            stores["LMDB, DCT"] = Path(scratch) / "dct.lmdb"
            _pack(folder, stores["LMDB, DCT"], encode="dct")
        rows = _contest(folder, stores, number)
        _table(rows)
        _next_steps(images)
    if as_json:
        click.echo(json.dumps(rows, indent=1))


def _gather(images: str | None, folder: Path, count: int) -> None:
    if images is not None:
        _say(f"{linked(Path(images), folder, _MOST):,} images of {images}")
        return
    make_images(folder, count)
    nbytes = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    _say(f"made {count:,} photo-like pictures, {nbytes / count / 1e3:.0f} KB each")


def linked(root: Path, folder: Path, most: int) -> int:
    """Link at most ``most`` images of ``root``, spread evenly, into class folders of ``folder``.

    With links, a folder without classes or a part of a large one is read like any other, and
    nothing is written to the user's folder. Returns the number of images.
    """
    found = [
        (label, name, path)
        for label, group in classes_of(root).items()
        for name, path in group.items()
    ]
    step = max(1.0, len(found) / most)
    chosen = [found[int(place * step)] for place in range(min(most, len(found)))]
    for label, name, path in chosen:
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / name).symlink_to(path)
    return len(chosen)


def _pack(folder: Path, store: Path, encode: Any = "keep") -> int:
    """Pack; remove files that cannot be decoded from ``folder``; return the number left."""
    try:
        report = pack(folder, store, encode=encode, on_error="skip", progress=True)
    except DataError as error:
        raise click.ClickException(str(error)) from error
    for skipped in report.skipped:
        _say(f"left out {Path(skipped.path).name}: {skipped.reason}")
        (folder / skipped.path).unlink()
    speed = report.records / max(report.seconds, 1e-6)
    nbytes = sum(part.nbytes for part in report.parts)
    _say(
        f"packed {report.records:,} images into {store.name}: {nbytes / 1e6:.1f} MB in "
        f"{report.seconds:.1f} s, {speed:,.0f} images/s"
    )
    return report.records


def _contest(folder: Path, stores: Mapping[str, Path], number: int) -> list[_Row]:
    """Train once from each loader; return a row of figures for each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = min(_BATCH, max(1, number // 4))
    epochs = max(1, round(_MADE / number))
    classes = sum(1 for entry in folder.iterdir() if entry.is_dir())
    _say(
        f"training on the {'GPU' if device.type == 'cuda' else 'CPU'}: batches of {batch}, "
        f"{epochs} epoch{'s' if epochs > 1 else ''}, random crops of 224 x 224"
    )
    torch.set_num_threads(1)  # more would spin on the loaders' cores while they wait
    shared = {"batch_size": batch, "shuffle": True, "drop_last": True}
    shared["pin_memory"] = device.type == "cuda"
    rows: list[_Row] = []
    base: dict[str, float] = {}  # DataLoader's images/s, for each kind of data
    for data, name, setting, make in _loaders(folder, stores, shared):
        # No name for the loader: its processes and threads end before the next one is measured.
        done = train(make(**shared, **setting), classes=classes, epochs=epochs, device=device)
        ratio = done["images_per_s"] / base.setdefault(data, done["images_per_s"])
        about = {"loader": name, "setting": setting, "data": data, "ratio": round(ratio, 2)}
        rows.append({**about, **done})
        _say(f"{name}: {_words(setting)}: {done['images_per_s']:,.0f} images/s")
    return rows


def _loaders(
    folder: Path, stores: Mapping[str, Path], shared: dict[str, Any]
) -> Iterator[tuple[str, str, dict[str, int], Callable[..., DataLoader[Any]]]]:
    """What is read, a loader's name, its settings, what makes it of those and ``shared``.

    A DataLoader is the first of each kind of data, to which the others are compared.
    """
    transform = train_transform()
    dataset = ImageFolder(str(folder), transform=transform)
    theirs = functools.partial(DataLoader, dataset, persistent_workers=True)
    best = _best(functools.partial(theirs, **shared))
    yield "ImageFolder", "torch DataLoader", best, theirs
    every = {"num_workers": _CPUS}
    ours = functools.partial(FastLoader, dataset)
    yield "ImageFolder", "FastLoader, folder", every, ours
    for kind, store in stores.items():
        packed = functools.partial(FastLoader, str(store), transform=transform)
        yield "ImageFolder", f"FastLoader, {kind}", every, packed
    paths, labels = zip(*dataset.samples)
    own = Trained(paths, transform, labels=labels)
    workers = {"num_workers": best["num_workers"]}
    for name, loader in (("torch DataLoader, own", DataLoader), ("FastLoader, own", FastLoader)):
        yield "own Dataset", name, workers, functools.partial(loader, own, persistent_workers=True)


def _best(make: Callable[..., DataLoader[Any]]) -> dict[str, int]:
    """The fastest of the usual DataLoader settings on this machine."""
    candidates = [
        {"num_workers": workers, "prefetch_factor": prefetch}
        for workers in sorted({_CPUS, max(1, _CPUS - 1)}, reverse=True)
        for prefetch in (2, 4)
    ]
    rates = []
    for setting in candidates:
        batches = iter(make(**setting))
        next(batches)  # the start of the workers is not measured
        images, start = 0, time.perf_counter()
        while time.perf_counter() - start < 3 and (batch := next(batches, None)) is not None:
            images += len(batch[0])
        rates.append(images / (time.perf_counter() - start))
        del batches
    best = candidates[rates.index(max(rates))]
    _say(f"torch DataLoader is fastest here with {_words(best)} (of {len(candidates)} tried)")
    return best


def _table(rows: list[_Row]) -> None:
    table = Table()
    table.add_column("loader", no_wrap=True)
    for heading in ("images/s", "ratio", "waiting", "start", "loss"):
        table.add_column(heading, justify="right", no_wrap=True)
    for before, row in zip([rows[0], *rows], rows):
        if row["data"] != before["data"]:
            table.add_section()
        table.add_row(
            row["loader"],
            f"{row['images_per_s']:,.0f}",
            f"{row['ratio']:.2f} x",
            f"{row['wait_share']:.0%}",
            f"{row['first_batch_s']:.2f} s",
            f"{row['loss_first']:.2f} to {row['loss_last']:.2f}",
        )
    table.caption = (
        "own: a custom Dataset that opens files; ratio: to DataLoader on the same data; "
        "waiting: share of the time without a batch; start: to the first batch; loss: first and "
        "last quarter"
    )
    Console(stderr=True).print(table)


def _next_steps(images: str | None) -> None:
    """Three lines for the user's own script."""
    folder = "./imgs" if images is None else shlex.quote(images)
    _say(
        f"""
Pack your images once (fastload pack {folder} imgs.lmdb --encode dct), and in your script write

  from fastload import FastLoader
  loader = FastLoader("imgs.lmdb", 256, shuffle=True, transform=train_tf)
  loader = FastLoader(dataset, 256, shuffle=True, num_workers=2)  # or your own Dataset, as it is"""
    )


def _words(setting: dict[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in setting.items())


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main(prog_name="python -m bench.demo")
