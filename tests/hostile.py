"""Damaged PNG and WebP files by the million: decoded as Pillow does, or left to Pillow.

    PYTHONPATH=tests python tests/hostile.py --seed 0 --count 1000000

mutate.cpp makes the files, so that Python does not take longer than what it tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import shutil
import subprocess
import tempfile
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

import native_core
import png_files
from fastload import _native

SIDE = 64
"""Larger images are cropped to this."""

_AT_ONCE = 20_000  # files on disk
_BATCH = 2_000


@dataclasses.dataclass
class Counts:
    """What became of the files.

    Attributes:
        png, webp: files that begin as one.
        decoded: files that the core decoded, to Pillow's pixels.
        levels: masks that it read, with Pillow's levels.
        lenient: files that it decoded although zlib refuses their Huffman codes (png/png.h,
            exactness); their Adler-32 says that the pixels are right.
        outside: WebP files that it left to Pillow as a whole, because of damage below the crop.
        left: files that it left to Pillow.
    """

    png: int = 0
    webp: int = 0
    decoded: int = 0
    levels: int = 0
    lenient: int = 0
    outside: int = 0
    left: int = 0


def originals(folder: Path) -> list[Path]:
    """Whole files of every kind, written into ``folder``: three quarters are PNGs."""
    rng = np.random.default_rng(0)
    files: dict[str, bytes] = {}
    for colour, depth in png_files.KINDS:
        for interlaced in (False, True):
            width, height = (int(side) for side in rng.integers(8, SIDE, 2))
            files[f"{colour}-{depth}-{interlaced}.png"] = png_files.image(
                rng,
                width,
                height,
                colour,
                depth,
                interlaced=interlaced,
                smooth=not interlaced,
                piece=300,
                before=[png_files.chunk(b"tEXt", b"Comment\0damaged later")],
            )
    photo = native_core.photo(32, 32)
    alpha = native_core.photo(40, 30).convert("RGBA").rotate(30)
    for mode in ("1", "L", "P", "RGB"):
        files[f"pillow-{mode}.png"] = native_core.encode(photo.convert(mode), "PNG", optimize=True)
    files["pillow-RGBA.png"] = native_core.encode(alpha, "PNG")
    if native_core.core().webp_version() is not None:
        options = {
            "lossy": {"quality": 50},
            "fine": {"quality": 95, "method": 6},
            "lossless": {"lossless": True},
            "exif": {"quality": 70, "exif": b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0"},
        }
        for name, each in options.items():
            files[f"{name}.webp"] = native_core.encode(photo, "WEBP", **each)
            files[f"{name}-alpha.webp"] = native_core.encode(alpha, "WEBP", **each)
        frames = [native_core.photo(16, 16, seed) for seed in range(2)]
        files["animated.webp"] = native_core.encode(
            frames[0], "WEBP", save_all=True, append_images=frames[1:]
        )
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


def build(folder: Path) -> Path | None:
    """The program of mutate.cpp; None where there is no compiler or no libdeflate."""
    compiler = shutil.which("g++")
    if compiler is None or native_core.core().png_version() is None:
        return None
    here = Path(__file__).parent / "native"
    native = Path(_native.__file__).parent
    target = folder / "mutate"
    source = [f"-I{native}", str(here / "mutate.cpp"), "-o", str(target), "-ldeflate"]
    subprocess.run([compiler, "-std=c++17", "-O2", *source], check=True)
    return target


def compare(program: Path, folder: Path, files: list[Path], seed: int, count: int) -> Counts:
    """Decode ``count`` files made of ``files``, and compare each with Pillow.

    Raises:
        AssertionError: a file was decoded to other pixels, or is one that Pillow refuses. The file
            is then in ``folder``.
    """
    counts = Counts()
    rng = np.random.default_rng(seed)
    made = folder / f"made-{seed}"
    for part, first in enumerate(range(0, count, _AT_ONCE)):
        many = min(_AT_ONCE, count - first)
        command = [str(program), str(seed * 1_000_003 + part), str(many), str(made)]
        subprocess.run([*command, *map(str, files)], check=True)
        ends = np.fromfile(f"{made}.ends", np.uint64).astype(np.int64)
        data = Path(f"{made}.data").read_bytes()
        starts = np.concatenate([[0], ends[:-1]])
        for at in range(0, many, _BATCH):
            some = slice(at, at + _BATCH)
            _compare(Path(f"{made}.data"), data, starts[some], ends[some], rng, counts)
    return counts


def _compare(
    path: Path,
    data: bytes,
    starts: np.ndarray,
    ends: np.ndarray,
    rng: np.random.Generator,
    counts: Counts,
) -> None:
    n = len(starts)
    files = native_core.open_files([path])
    nbytes = ends - starts
    file, kind = np.zeros(n, np.int32), np.zeros(n, np.uint8)
    size, known = np.zeros((n, 2), np.int32), np.zeros(n, np.int32)
    native_core.core().probe(files, file, starts, nbytes, kind, size, known, threads=1)
    size[known != _native.OK] = 16
    box = np.zeros((n, 4), np.int32)
    box[:, 2:] = np.minimum(size, SIDE)
    box[:, :2] = rng.random((n, 2)) * (np.minimum(size, 60_000) - box[:, 2:] + 1)
    done = native_core.submit(
        files, box, file=file, offset=starts, nbytes=nbytes, resized=box[:, 2:].copy(),
        out_h=SIDE, out_w=SIDE,
    ).wait()  # fmt: skip
    for i in range(n):
        one = data[starts[i] : ends[i]]
        counts.png += one.startswith(png_files.SIGNATURE)
        counts.webp += one[:4] == b"RIFF"
        if done.status[i] != _native.OK:
            assert done.status[i] in (_native.UNSUPPORTED, _native.SIZE), done.status[i]
            counts.left += 1
            continue
        try:
            x, y, w, h = box[i].tolist()
            _check(one, (x, y, x + w, y + h), done.images[i, :h, :w], counts)
        except Exception as error:
            if isinstance(error, OSError) and _zlib_refuses(one):
                counts.lenient += 1
                continue
            if isinstance(error, OSError) and one[:4] == b"RIFF":
                whole = box[i : i + 1].copy()
                whole[0] = 0, 0, *size[i]
                again = native_core.submit(
                    files, whole, file=[0], offset=[starts[i]], nbytes=[nbytes[i]], threads=0
                )
                if again.wait().status[0] != _native.OK:
                    counts.outside += 1
                    continue
            kept = path.with_name(f"differs-{starts[i]}-{path.name}")
            kept.write_bytes(one)
            raise AssertionError(f"{kept}: expected Pillow's pixels of box {box[i]}") from error


def _check(data: bytes, box: tuple[int, int, int, int], found: np.ndarray, counts: Counts) -> None:
    """Compare one decoded image, its levels as a mask, and its rows."""
    image = Image.open(io.BytesIO(data))
    tiles = image.tile
    mask = native_core.core().png_levels(data) if image.mode in "LP" else None
    if mask is not None:
        levels = np.frombuffer(mask[0], np.uint8).reshape(mask[2], mask[1])
        assert np.array_equal(levels, np.asarray(image))
        counts.levels += 1
    rows = native_core.core().png_rows(data)
    if rows is not None:
        again = Image.new(image.mode, image.size)
        again.frombytes(rows, "raw", tiles[0][3])
        assert again.tobytes() == image.tobytes()
    rgb = image.convert("RGB")
    assert np.array_equal(found, np.asarray(rgb if box == (0, 0, *rgb.size) else rgb.crop(box)))
    counts.decoded += 1


def _zlib_refuses(data: bytes) -> bool:
    """Whether a PNG's first run of IDAT chunks has Huffman codes that zlib does not take."""
    at, parts = 8, []
    while at + 12 <= len(data) and not (parts and data[at + 4 : at + 8] != b"IDAT"):
        length = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"IDAT":
            parts.append(data[at + 8 : at + 8 + length])
        at += 12 + length
    try:
        zlib.decompress(b"".join(parts))
    except zlib.error as error:
        words = ("length", "distance", "code")
        return data.startswith(png_files.SIGNATURE) and any(word in str(error) for word in words)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1_000_000)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # Pillow's, about what is odd here
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder)
        if program is None:
            raise SystemExit("expected g++ and a core with libdeflate")
        try:
            print(compare(program, folder, originals(folder), given.seed, given.count))
        except AssertionError:
            kept = Path(tempfile.mkdtemp(prefix="hostile-"))
            for each in folder.glob("differs-*"):
                shutil.copy(each, kept)
            print(f"the file is in {kept}")
            raise


if __name__ == "__main__":
    main()
