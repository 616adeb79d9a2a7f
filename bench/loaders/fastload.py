"""fastload on the loose files and on stores of each kind."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from bench.loaders._torchvision import mixed, transforms_joint, transforms_v1
from bench.loaders.base import Batch, Loader, NotAvailable, Setting
from bench.workload import Workload

_LIBRARIES = {".lmdb": "lmdb", ".h5": "h5py"}  # libraries that write formats


class _Fastload(Loader):
    needs = ("fastload", "torchvision")
    user_imports = ("torchvision.datasets", "torchvision.transforms")
    decode: ClassVar[str] = "exact"

    def load(self) -> None:
        import fastload

        fastload.FastLoader  # noqa: B018 - attributes are imported when first used

    def load_writer(self) -> None:
        import fastload

        fastload.pack  # noqa: B018 - so are peers' writers, with their packages

    def settings(self, work: Workload) -> list[Setting]:
        return [{"num_workers": work.threads}]

    def source(self, work: Workload) -> dict[str, Any]:
        """The first argument of FastLoader, and the transform where the source has none."""
        raise NotImplementedError

    def open(self, work: Workload, setting: Setting) -> None:
        from fastload import FastLoader

        source = self.source(work)
        if work.memory_format == "channels_last":
            source["memory_format"] = torch.channels_last
        if work.recipe == "train-mixup":
            source["batch_transform"] = mixed(work)
        self._loader = FastLoader(
            source.pop("dataset"),
            batch_size=work.batch,
            shuffle=work.shuffled,
            drop_last=True,
            seed=0,
            decode=self.decode,
            **source,
            **setting,
        )

    def epoch(self) -> Iterator[Batch]:
        for batch in self._loader:
            yield (batch["image"], batch["mask"]) if isinstance(batch, dict) else batch


class Folder(_Fastload):
    summary = "FastLoader on torchvision's ImageFolder, nothing converted"

    def refusal(self, work: Workload) -> str | None:
        return "masks are fields of a store" if work.masks else None

    def source(self, work: Workload) -> dict[str, Any]:
        from torchvision.datasets import ImageFolder

        return {"dataset": ImageFolder(work.images, transform=transforms_v1(work))}


class Lmdb(_Fastload):
    summary = "FastLoader on an LMDB store, image files kept as they are"
    store = "fastload-keep"
    encode: ClassVar[str] = "keep"
    suffix: ClassVar[str] = ".lmdb"

    def load_writer(self) -> None:
        super().load_writer()
        from fastload.storage import find_by_suffix

        find_by_suffix(f"images{self.suffix}")  # imports its module
        if self.suffix in _LIBRARIES:
            importlib.import_module(_LIBRARIES[self.suffix])

    def pack(self, work: Workload, folder: Path) -> None:
        from fastload import UsageError, pack

        source = _Masked(work) if work.masks else work.images
        try:
            pack(source, folder / f"images{self.suffix}", encode=self.encode)
        except UsageError as error:
            raise NotAvailable(f"not available: {error}") from error

    def source(self, work: Workload) -> dict[str, Any]:
        path = str(self.store_folder(work) / f"images{self.suffix}")
        if work.masks:
            from fastload import PackedDataset

            dataset = PackedDataset(path, joint={"mask": "mask"})
            return {"dataset": dataset, "transform": transforms_joint(work)}
        return {"dataset": path, "transform": transforms_v1(work)}


class FolderScaled(Folder):
    summary = "the same, with DCT-scaled decoding"
    decode = "scaled"


class LmdbScaled(Lmdb):
    summary = "FastLoader on an LMDB store of image files, with DCT-scaled decoding"
    decode = "scaled"


class _Masked:
    """The records of images with masks: the bytes of both files."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._samples, self.classes = work.samples()

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, label = self._samples[index]
        mask = Path(self._work.mask_of(path)).read_bytes()
        return {"image": Path(path).read_bytes(), "label": label, "mask": mask}


class LmdbDct(Lmdb):
    summary = "FastLoader on an LMDB store of quantised DCT coefficients"
    store = "fastload-dct"
    encode = "dct"

    def refusal(self, work: Workload) -> str | None:
        return None if work.pixels == "jpeg" else "the DCT form is made from JPEGs"


class LmdbDctScaled(LmdbDct):
    summary = "FastLoader on an LMDB store of DCT coefficients, with DCT-scaled decoding"
    decode = "scaled"


class LmdbRaw(Lmdb):
    summary = "FastLoader on an LMDB store of raw pixels"
    store = "fastload-raw"
    encode = "raw"

    def refusal(self, work: Workload) -> str | None:
        return None if work.pixels == "raw" else "raw pixels are the raw suites' bytes"


class Hdf5(Lmdb):
    summary = "FastLoader on an HDF5 store, image files kept as they are"
    store = "fastload-keep-h5"
    suffix = ".h5"


class TFRecord(Lmdb):
    summary = "FastLoader on a TFRecord file, image files kept as they are"
    store = "fastload-keep-tfrecord"
    suffix = ".tfrecord"


class RecordIO(Lmdb):
    summary = "FastLoader on an MXNet RecordIO file, image files kept as they are"
    store = "fastload-keep-rec"
    suffix = ".rec"


class Tar(Lmdb):
    summary = "FastLoader on a WebDataset tar, image files kept as they are"
    store = "fastload-keep-tar"
    suffix = ".tar"


class Hdf5Raw(LmdbRaw):
    summary = "FastLoader on an HDF5 store of raw pixels"
    store = "fastload-raw-h5"
    suffix = ".h5"


class PthRaw(LmdbRaw):
    summary = "FastLoader on a .pth file of raw pixels"
    store = "fastload-raw-pth"
    suffix = ".pth"


class N5Raw(LmdbRaw):
    summary = "FastLoader on an N5 store of raw pixels"
    store = "fastload-raw-n5"
    suffix = ".n5"


class ZarrRaw(LmdbRaw):
    summary = "FastLoader on a Zarr store of raw pixels"
    store = "fastload-raw-zarr"
    suffix = ".zarr"
