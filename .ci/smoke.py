"""Uses an installed fastload: the batches of every way to read are torchvision's, to the last bit.

    python -I .ci/smoke.py       in any folder, with any wheel; writes to a temporary folder

For an environment that has nothing but the wheel and what its metadata asks for: no compiler, no
headers, no libraries of the system.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision import transforms

import fastload
from fastload import _native
from fastload.cli import main


def use() -> None:
    """Pack a few images of each kind that the core decodes, and load them."""
    core = _native.load()
    assert core is not None, "the wheel has no native core"
    assert core.png_version(), "the core has no libdeflate"
    assert core.webp_version(), "the core has no libwebp"

    random = np.random.default_rng(0)
    for number in range(20):
        path = Path("photos", f"class{number % 2}", f"{number:02}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        levels = random.integers(0, 256, (12, 16, 3), np.uint8)
        Image.fromarray(levels).resize((160 + number, 120)).save(path, quality=90)
    for number, path in enumerate(sorted(Path("photos").rglob("*.jpg"))[:6]):
        format = ("png", "webp")[number % 2]
        with Image.open(path) as image:
            image.save(path.with_suffix(f".{format}"), quality=90)
    fastload.pack("photos", "photos.lmdb")
    fastload.pack("photos", "dct.lmdb", encode="dct")

    transform = transforms.Compose(
        [transforms.Resize(64), transforms.CenterCrop(48), transforms.ToTensor()]
    )
    expected = torchvision.datasets.ImageFolder("photos", transform=transform)
    want = torch.utils.data.DataLoader(expected, batch_size=5)
    for source in ("photos.lmdb", "dct.lmdb", expected):
        given = {"transform": transform} if isinstance(source, str) else {}
        loader = fastload.FastLoader(source, batch_size=5, **given)
        assert len(loader) == len(want) == 6
        for (ours, our_labels), (theirs, their_labels) in zip(loader, want):
            assert torch.equal(ours, theirs)
            assert torch.equal(our_labels, their_labels)


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    use()
    main(["--version"])
