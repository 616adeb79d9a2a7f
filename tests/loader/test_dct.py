"""A store packed with encode="dct" gives the kept store's batches, bit for bit, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1

from fastload import ChecksumError, FastLoader, PackedDataset, pack
from fastload.storage import DCT, ENCODED, open_store
from sides import assert_same

pytestmark = pytest.mark.native

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TAIL = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "train": v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), *TAIL]),
    "eval": v1.Compose([v1.Resize(56), v1.CenterCrop(48), *TAIL]),
    "bytes": v1.Compose([v1.RandomResizedCrop(48), v1.PILToTensor()]),
    "padded": v1.Compose([v1.RandomCrop(600, padding=4, pad_if_needed=True), *TAIL]),
}


@pytest.fixture(scope="module")
def folder(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos, and what the form cannot hold: a PNG, a CMYK JPEG."""
    root = tmp_path_factory.mktemp("dct") / "imgs"
    for path in sorted(photos.rglob("*.jpg")):
        (root / path.parent.name).mkdir(parents=True, exist_ok=True)
        (root / path.parent.name / path.name).write_bytes(path.read_bytes())
    with Image.open(path) as image:
        image.resize((120, 90)).save(root / "class0" / "a.png")
        image.resize((120, 90)).convert("CMYK").save(root / "class1" / "a.jpg")
        image.convert("L").save(root / "class2" / "gray.jpg", quality=71)
    return root


@pytest.fixture(scope="module")
def stores(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = {name: tmp_path_factory.mktemp(name) / "x.lmdb" for name in ("keep", "dct")}
    for name, path in paths.items():
        pack(folder, path, encode=name)
    with open_store(paths["dct"]) as store:
        kinds = store.kinds(np.arange(len(store))).tolist()
    assert (kinds.count(DCT), kinds.count(ENCODED)) == (25, 2)
    return paths


def epochs(path: Path, transform: Any, **options: Any) -> list[Any]:
    arguments = {"batch_size": 7, "shuffle": True, "seed": 5, **options}
    loader = FastLoader(PackedDataset(path, transform, check_crc="always"), **arguments)
    return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_batches_are_those_of_the_kept_store(stores: dict[str, Path], name: str) -> None:
    options = {"engine": "native", "num_workers": 2}
    kept, dct = (epochs(stores[kind], TRANSFORMS[name], **options) for kind in ("keep", "dct"))
    assert len(kept) == 8
    assert_same(dct, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_in_every_dtype_and_layout(
    stores: dict[str, Path], dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    options = {"dtype": dtype, "memory_format": memory_format, "num_workers": 2}
    kept, dct = (epochs(stores[kind], TRANSFORMS["train"], **options) for kind in ("keep", "dct"))
    assert_same(dct, kept)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_with_any_number_of_threads(stores: dict[str, Path], threads: int) -> None:
    kept = epochs(stores["keep"], TRANSFORMS["train"], num_workers=0)
    assert_same(epochs(stores["dct"], TRANSFORMS["train"], num_workers=threads), kept)


def test_a_packed_dataset_and_a_transform_of_the_users_own_read_it(stores: dict[str, Path]) -> None:
    def sizes(image: Image.Image) -> Any:
        return torch.tensor([*image.size, int(np.asarray(image).sum())])

    for transform in (TRANSFORMS["eval"], sizes):
        kept, dct = (
            list(DataLoader(PackedDataset(stores[kind], transform=transform), batch_size=7))
            for kind in ("keep", "dct")
        )
        assert_same(dct, kept)


def test_a_changed_record_fails_its_checksum(stores: dict[str, Path], tmp_path: Path) -> None:
    with open_store(stores["dct"]) as store:
        at = int(store.spans(np.array([4])).offset[0]) + 500
    path = tmp_path / "x.lmdb"
    data = bytearray(stores["dct"].read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError) as info:
        epochs(path, TRANSFORMS["train"])
    assert info.value.record == 4
