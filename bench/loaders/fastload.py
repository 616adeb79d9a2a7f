"""fastload on the loose files and on stores of each kind."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from bench.loaders._torchvision import mixed, transforms_v1
from bench.loaders.base import Loader, Setting
from bench.process import Refused
from bench.workload import Workload

if TYPE_CHECKING:  # importing fastload is part of what is measured
    from fastload import hints

_RECORDS: dict[hints.Encoding, str] = {
    "keep": "unchanged image files",
    "dct": "DCT coefficients",
    "raw": "raw pixels",
}


class _Fastload(Loader):
    needs: ClassVar[tuple[str, ...]] = ("fastload", "torchvision")
    user_imports = ("torchvision.datasets", "torchvision.transforms")
    decode: hints.Decode = "exact"

    def load(self) -> None:
        import fastload

        fastload.FastLoader  # noqa: B018 - attributes are imported when first used

    def load_writer(self) -> None:
        import fastload
        from fastload.storage import find_by_suffix

        fastload.pack  # noqa: B018 - so are peers' writers, with their packages
        importlib.import_module("lmdb")
        find_by_suffix("images.lmdb")  # imports its module

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


class Folder(_Fastload):
    summary = "FastLoader on torchvision's ImageFolder, nothing converted"

    def source(self, work: Workload) -> dict[str, Any]:
        from torchvision.datasets import ImageFolder

        return {"dataset": ImageFolder(work.images, transform=transforms_v1(work))}


class FolderScaled(Folder):
    summary = "the same, with DCT-scaled decoding"
    decode = "scaled"


class Store(_Fastload):
    """Reads a packed store. Its name says which: ``-raw`` or ``-dct``, ``-scaled``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        more = name.split("-")
        self.encode: hints.Encoding = next((one for one in _RECORDS if one in more), "keep")
        self.decode = "scaled" if "scaled" in more else "exact"
        self.store = f"fastload-{self.encode}-lmdb"
        scaled = ", with DCT-scaled decoding" if self.decode == "scaled" else ""
        self.summary = f"FastLoader on an LMDB store of {_RECORDS[self.encode]}{scaled}"

    def refusal(self, work: Workload) -> str | None:
        if self.encode == "dct" and work.pixels != "jpeg":
            return "the DCT form is made from JPEGs"
        if self.encode == "raw" and work.pixels != "raw":
            return "raw pixels are the raw suites' bytes"
        return None

    def pack(self, work: Workload, folder: Path) -> None:
        from fastload import UsageError, pack

        try:
            pack(work.images, folder / "images.lmdb", encode=self.encode)
        except UsageError as error:
            raise Refused(f"not available: {error}") from error

    def source(self, work: Workload) -> dict[str, Any]:
        path = str(self.store_folder(work) / "images.lmdb")
        return {"dataset": path, "transform": transforms_v1(work)}


class Remote(Store):
    """Reads a packed store in S3. Its name says which: ``-dct``, ``-window``.

    The setting says where: ``server`` (its endpoint), ``bucket`` (the packed form's folder),
    ``cache`` (a folder on the disk), ``limit`` of that in bytes (0: all fits).
    """

    needs = (*Store.needs, "obstore")
    _place: Setting

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._window = 8 if name.endswith("-window") else None
        how = "windows of 8 blocks of 8 MB" if self._window else "all records"
        self.summary = f"{self.summary} in S3, {how} shuffled"

    def open(self, work: Workload, setting: Setting) -> None:
        self._place = setting
        super().open(work, self.settings(work)[0])

    def source(self, work: Workload) -> dict[str, Any]:
        from fastload import PackedDataset

        key = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench"}  # nobody looks
        dataset = PackedDataset(
            f"s3://{self._place['bucket']}/images.lmdb",
            transforms_v1(work),
            seed=0,
            storage_options={"endpoint": self._place["server"], "region": "us-east-1", **key},
            cache_dir=self._place["cache"],
            disk_limit=self._place["limit"] or None,
        )
        return {"dataset": dataset, "shuffle_window": self._window}
