"""Builds the sdist, builds the wheel from it, and uses that in an empty environment.

    .venv/bin/python .ci/wheel.py

The environment gets the wheel and, linked out of .venv instead of downloaded again (torch is 5 GB),
exactly the distributions that the wheel's metadata asks for: a missing requirement fails here.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / "build" / "wheel"
DISTRIBUTION = "torch-fastload"

USE = """
import pathlib, sys
import torch, torchvision
from torchvision import transforms
import fastload
from fastload import _native

assert pathlib.Path(fastload.__file__).is_relative_to(sys.prefix), fastload.__file__
assert _native.load() is not None, "the wheel has no native core"

transform = transforms.Compose(
    [transforms.Resize(64), transforms.CenterCrop(48), transforms.ToTensor()]
)
expected = torchvision.datasets.ImageFolder("photos", transform=transform)
want = torch.utils.data.DataLoader(expected, batch_size=5)
for source in ("photos.lmdb", expected):
    given = {"transform": transform} if isinstance(source, str) else {}
    loader = fastload.FastLoader(source, batch_size=5, **given)
    assert len(loader) == len(want) == 4
    for (ours, our_labels), (theirs, their_labels) in zip(loader, want):
        assert torch.equal(ours, theirs)
        assert torch.equal(our_labels, their_labels)
"""


def main() -> int:
    wheel = build()
    inspect(wheel)
    with tempfile.TemporaryDirectory(prefix="fastload-wheel-") as folder:
        use(wheel, Path(folder))
    print(f"wheel: {wheel.name} ({wheel.stat().st_size // 1024} KB) works in an empty environment")
    return 0


def build() -> Path:
    """The wheel, built from the sdist without the network."""
    for old in WHEELS.glob("torch_fastload-*"):
        old.unlink()
    run(sys.executable, ROOT / "setup.py", "--quiet", "sdist", "--dist-dir", WHEELS, cwd=ROOT)
    (sdist,) = WHEELS.glob("torch_fastload-*.tar.gz")
    # Not the wheel that pip has cached for an sdist of this name.
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--quiet"]
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", WHEELS, sdist)
    (wheel,) = WHEELS.glob("torch_fastload-*.whl")
    return wheel


def inspect(wheel: Path) -> None:
    """Fail if the wheel lacks a file that it needs, or holds one that it must not."""
    names = zipfile.ZipFile(wheel).namelist()
    needed = ["fastload/py.typed", "fastload/converters/__init__.py", "fastload/cli/__init__.py"]
    missing = [name for name in needed if name not in names]
    if not any(
        name.startswith("fastload/_native/_core.") and name.endswith(".so") for name in names
    ):
        missing.append("fastload/_native/_core.*.so")
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/"
    strange = [name for name in names if not name.startswith(("fastload/", info))]
    if missing or strange:
        raise SystemExit(f"wheel: {wheel.name} lacks {missing} and holds by mistake {strange}")


def use(wheel: Path, folder: Path) -> None:
    """Install it into an empty environment, pack a few images there and load them."""
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    command = environment / "bin" / "fastload"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    link_requirements(environment / "lib" / version / "site-packages")

    said = run(command, "--version", cwd=folder)
    if "native core: built" not in said:
        raise SystemExit(
            f"wheel: expected `fastload --version` to name the native core, got\n{said}"
        )
    make = "from fastload._tools.synthetic import make_images; make_images('photos', 20, classes=2)"
    run(python, "-I", "-c", make, cwd=folder)
    run(command, "pack", "photos", "photos.lmdb", cwd=folder)
    run(command, "info", "photos.lmdb", cwd=folder)
    run(python, "-I", "-W", "error", "-c", USE, cwd=folder)


def link_requirements(site: Path) -> None:
    """Link the wheel's requirements, and theirs, from .venv into ``site``."""
    (installed,) = importlib.metadata.distributions(name=DISTRIBUTION, path=[str(site)])
    waiting = requirements(installed, set())
    done = {DISTRIBUTION}
    while waiting:
        name, extras = waiting.pop()
        if name in done:
            continue
        done.add(name)
        distribution = importlib.metadata.distribution(name)
        waiting += requirements(distribution, extras)
        for top in {path.parts[0] for path in distribution.files or [] if path.parts[0] != ".."}:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))


def requirements(
    distribution: importlib.metadata.Distribution, extras: set[str]
) -> list[tuple[str, set[str]]]:
    """(name, extras) of each requirement that holds on this machine."""
    wanted = []
    for line in distribution.requires or []:
        need = Requirement(line)
        chosen = [{"extra": extra} for extra in ("", *extras)]
        if need.marker is None or any(need.marker.evaluate(extra) for extra in chosen):
            wanted.append((canonicalize_name(need.name), need.extras))
    return wanted


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """The output of the command; if it fails, this program ends and prints it."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "FASTLOAD_NO_NATIVE")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        shown = " ".join(str(part)[:200] for part in command)
        raise SystemExit(f"{done.stdout}\nwheel: exit {done.returncode} from: {shown}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
