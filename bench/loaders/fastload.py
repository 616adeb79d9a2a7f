"""fastload: on the loose files, and on LMDB stores of the ways to pack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from bench.loaders._torchvision import transforms_v1
from bench.loaders.base import Batch, Loader, NotAvailable, Setting
from bench.workload import Workload


class _Fastload(Loader):
    needs = ("fastload", "torchvision")
    user_imports = ("torchvision.datasets", "torchvision.transforms")
    _loader: Any = None

    def load(self) -> None:
        import fastload

        fastload.FastLoader  # noqa: B018 - attributes are imported when first used

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
        self._loader = FastLoader(
            source.pop("dataset"),
            batch_size=work.batch,
            shuffle=work.shuffled,
            drop_last=True,
            seed=0,
            **source,
            **setting,
        )

    def epoch(self) -> Iterator[Batch]:
        yield from self._loader

    def close(self) -> None:
        self._loader = None


class Folder(_Fastload):
    summary = "FastLoader on torchvision's ImageFolder, nothing converted"

    def source(self, work: Workload) -> dict[str, Any]:
        from torchvision.datasets import ImageFolder

        return {"dataset": ImageFolder(work.images, transform=transforms_v1(work))}


class Lmdb(_Fastload):
    summary = "FastLoader on an LMDB store, image files kept as they are"
    store = "fastload-keep"
    encode: ClassVar[str] = "keep"

    def pack(self, work: Workload, folder: Path) -> None:
        from fastload import UsageError, pack

        try:
            pack(work.images, folder / "images.lmdb", encode=self.encode)
        except UsageError as error:
            raise NotAvailable(f"not available: {error}") from error

    def source(self, work: Workload) -> dict[str, Any]:
        path = str(self.store_folder(work) / "images.lmdb")
        return {"dataset": path, "transform": transforms_v1(work)}


class LmdbDct(Lmdb):
    summary = "FastLoader on an LMDB store of quantised DCT coefficients"
    store = "fastload-dct"
    encode = "dct"

    def refusal(self, work: Workload) -> str | None:
        return None if work.pixels == "jpeg" else "the DCT form is made from JPEGs"


class LmdbRaw(Lmdb):
    summary = "FastLoader on an LMDB store of raw pixels"
    store = "fastload-raw"
    encode = "raw"

    def refusal(self, work: Workload) -> str | None:
        return None if work.pixels == "raw" else "raw pixels are the raw suites' bytes"
