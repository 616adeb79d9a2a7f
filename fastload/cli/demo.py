"""``fastload demo``: pack images, train from them, and compare with torch's DataLoader."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from .. import _native
from .._base.byte_sizes import human
from .._base.machine.cpu import available
from .._base.progress_bar import reporting
from ..errors import DataError, MissingDependencyError
from . import _demo_images
from ._stdout import kept_for_json

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from .._base.torch_loader import DataLoader
    from ..hints import Encoding
    from ._demo_train import Training

_MADE = 1_500  # pictures: an epoch long enough to measure, 165 MB
_MOST = 6_000  # images of a user's folder; more would only take longer
_BATCH = 64

_Setting: TypeAlias = "dict[str, Any]"  # arguments of a loader
_Loader: TypeAlias = "DataLoader[Any]"
# What is read, the loader, its settings, makes the loader. Rows of the same data are compared.
_Contestant = tuple[str, str, _Setting, Callable[[], _Loader]]
_Row: TypeAlias = "dict[str, Any]"  # figures of a training, for JSON


@click.command(
    epilog="""\b
Examples:
  fastload demo
  fastload demo --images ./imgs
"""
)
@click.option("--images", metavar="DIR", help="A folder of images. [default: synthetic images]")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option(
    "--count", type=click.IntRange(20), default=_MADE, show_default=True,
    help="Number of synthetic images.",
)  # fmt: skip
def command(images: str | None, as_json: bool, count: int) -> None:
    """Train a small network with torch's DataLoader and with FastLoader, and compare their speed.

    Both read the same images: from ImageFolder and from a custom Dataset; FastLoader also reads
    them from packed stores.

    Takes about three minutes on two cores. Everything is written to a temporary folder, which
    is removed at the end.
    """
    with kept_for_json(as_json), tempfile.TemporaryDirectory(prefix="fastload-demo-") as scratch:
        folder = Path(scratch) / "images"
        number = _gather(images, folder, count)
        stores = {"LMDB": Path(scratch) / "images.lmdb"}
        number = _pack(folder, stores["LMDB"], number)
        if _native.load() is not None:  # which writes DCT records
            stores["LMDB, DCT"] = Path(scratch) / "dct.lmdb"
            _pack(folder, stores["LMDB, DCT"], number, encode="dct")
        rows = _contest(folder, stores, number)
        _table(rows)
        _next_steps(images)
    if as_json:
        click.echo(json.dumps(rows, indent=1))


def _gather(images: str | None, folder: Path, count: int) -> int:
    if images is not None:
        number = _demo_images.linked(images, folder, _MOST)
        click.echo(f"{number:,} images of {images}")
        return number
    with reporting("making pictures", True) as report:
        assert report is not None  # True asks for one
        number = _demo_images.made(folder, count, report)
    nbytes = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    click.echo(f"made {number:,} photo-like pictures, {human(nbytes / number)} each")
    return number


def _pack(folder: Path, store: Path, number: int, encode: Encoding = "keep") -> int:
    """Pack; remove files that cannot be decoded from ``folder``; return the number left."""
    from .. import pack

    report = pack(folder, store, encode=encode, on_error="skip", progress=True)
    for skipped in report.skipped:
        click.echo(f"left out {Path(skipped.path).name}: {skipped.reason}", err=True)
        (folder / skipped.path).unlink()
    if not report.records:
        raise DataError("expected images that can be decoded, found none; see the files above")
    speed = report.records / max(report.seconds, 1e-6)
    nbytes = sum(part.nbytes for part in report.parts)
    click.echo(
        f"packed {report.records:,} images into {store.name}: {human(nbytes)} in "
        f"{report.seconds:.1f} s, {speed:,.0f} images/s"
    )
    return number - len(report.skipped)


def _contest(folder: Path, stores: Mapping[str, Path], number: int) -> list[_Row]:
    """Train once from each loader; return a row of figures for each."""
    import torch

    from . import _demo_train

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = min(_BATCH, max(1, number // 4))
    epochs = max(1, round(_MADE / number))
    classes = sum(1 for entry in folder.iterdir() if entry.is_dir())
    click.echo(
        f"training on the {'GPU' if device.type == 'cuda' else 'CPU'}: batches of {batch}, "
        f"{epochs} epoch{'s' if epochs > 1 else ''}, random crops of 224 x 224"
    )
    rows: list[_Row] = []
    with _gentle_threads():
        base: dict[str, float] = {}  # DataLoader's images/s, for each kind of data
        for data, name, setting, make in _loaders(folder, stores, batch, device):
            loader = make()
            done = _demo_train.train(loader, classes=classes, epochs=epochs, device=device)
            del loader  # ends its processes or threads before the next one is measured
            rows.append(_row(name, setting, done))
            speed = base.setdefault(data, done.images_per_s)
            rows[-1] |= {"data": data, "ratio": round(done.images_per_s / speed, 2)}
            click.echo(f"{name}: {_words(setting)}: {done.images_per_s:,.0f} images/s")
    return rows


def _loaders(
    folder: Path, stores: Mapping[str, Path], batch: int, device: torch.device
) -> Iterator[_Contestant]:
    """The loaders to compare; each is created when its turn comes. A DataLoader is the first of
    each kind of data."""
    from .. import FastLoader
    from .._base.torch_loader import PlainLoader
    from ._demo_dataset import Photos

    try:
        from torchvision.datasets import ImageFolder
    except ImportError as error:
        raise MissingDependencyError(
            "the demo compares with torchvision's ImageFolder: pip install torchvision"
        ) from error
    transform = _transform()
    dataset = ImageFolder(str(folder), transform=transform)
    shared: dict[str, Any] = {"batch_size": batch, "shuffle": True, "drop_last": True}
    if device.type == "cuda":
        shared["pin_memory"] = True

    def torch_loader(setting: _Setting) -> _Loader:
        return PlainLoader(dataset, persistent_workers=True, **shared, **setting)

    best = _best(torch_loader)
    yield "ImageFolder", "torch DataLoader", best, lambda: torch_loader(best)
    threads = available()
    setting: _Setting = {"num_workers": threads}
    yield (
        "ImageFolder",
        "FastLoader, folder",
        setting,
        lambda: FastLoader(dataset, num_workers=threads, **shared),
    )
    for kind, store in stores.items():
        make = functools.partial(FastLoader, str(store), transform=transform, **setting, **shared)
        yield "ImageFolder", f"FastLoader, {kind}", setting, make
    own = Photos(dataset.samples, transform)
    workers: _Setting = {"num_workers": best["num_workers"]}
    given: _Setting = {**workers, **shared, "persistent_workers": True}
    own_torch = functools.partial(PlainLoader, own, **given)
    yield "own Dataset", "torch DataLoader, own", workers, own_torch
    own_ours = functools.partial(FastLoader, own, **given)
    yield "own Dataset", "FastLoader, own", workers, own_ours


def _best(make: Callable[[_Setting], _Loader]) -> _Setting:
    """The fastest of the usual DataLoader settings on this machine."""
    import time

    cpus = available()
    candidates = [
        {"num_workers": workers, "prefetch_factor": prefetch}
        for workers in sorted({cpus, max(1, cpus - 1)}, reverse=True)
        for prefetch in (2, 4)
    ]
    rates = []
    for setting in candidates:
        loader = make(setting)
        images, start = 0, 0.0
        for number, (pixels, _) in enumerate(loader):
            if number == 0:  # the start of the workers is not measured
                start = time.perf_counter()
                continue
            images += len(pixels)
            if time.perf_counter() - start > 3:
                break
        rates.append(images / max(time.perf_counter() - start, 1e-6))
        del loader
    best = candidates[rates.index(max(rates))]
    click.echo(f"torch DataLoader is fastest here with {_words(best)} (of {len(candidates)} tried)")
    return best


def _transform() -> Callable[[Image.Image], torch.Tensor]:
    from torchvision import transforms

    from ._demo_train import SIZE

    return transforms.Compose(  # type: ignore[no-any-return]
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )


@contextlib.contextmanager
def _gentle_threads() -> Iterator[None]:
    """One thread for the training step: more would spin on the loaders' cores while they wait."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _row(name: str, setting: _Setting, done: Training) -> _Row:
    return {
        "loader": name,
        "images_per_s": round(done.images_per_s, 1),
        "ratio": 1.0,
        "wait_share": round(done.wait_share, 3),
        "first_batch_s": round(done.first_batch_s, 3),
        "images": done.images,
        "seconds": round(done.seconds, 2),
        "loss_first": round(done.loss(last=False), 3),
        "loss_last": round(done.loss(last=True), 3),
        "setting": setting,
    }


def _table(rows: list[_Row]) -> None:
    from rich.console import Console
    from rich.table import Table

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
    Console().print(table)


def _next_steps(images: str | None) -> None:
    """Three lines for the user's own script."""
    folder = "./imgs" if images is None else shlex.quote(images)
    click.echo(
        f"""
Pack your images once (fastload pack {folder} imgs.lmdb --encode dct), and in your script write

  from fastload import FastLoader
  loader = FastLoader("imgs.lmdb", 256, shuffle=True, transform=train_tf)
  loader = FastLoader(dataset, 256, shuffle=True, num_workers=2)  # or your own Dataset, as it is"""
    )


def _words(setting: _Setting) -> str:
    return ", ".join(f"{name}={value}" for name, value in setting.items())
