"""Hugging Face datasets: an Arrow table with the files' bytes, behind torch's DataLoader."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

from torch.utils.data import default_collate

from bench.loaders.base import record
from bench.loaders.torch_dataloader import DataLoaderBase
from bench.workload import Workload


class HfDatasets(DataLoaderBase):
    summary = "Hugging Face datasets on Arrow, simplejpeg and OpenCV in set_transform"
    needs = ("datasets", "simplejpeg", "cv2")
    store = "arrow"

    def pack(self, work: Workload, folder: Path) -> None:
        import datasets

        features = datasets.Features(
            {"image": datasets.Value("binary"), "label": datasets.Value("int64")}
        )

        cache, samples = folder / "cache", work.samples()[0]
        table = datasets.Dataset.from_generator(
            lambda: map(record, samples), features=features, cache_dir=str(cache)
        )
        table.save_to_disk(str(folder / "table"))
        shutil.rmtree(cache)

    def dataset(self, work: Workload) -> Any:
        import datasets

        from bench.loaders._opencv import Finish

        table = datasets.load_from_disk(str(self.store_folder(work) / "table"))
        return table.with_transform(functools.partial(_finished, Finish(work)))

    def options(self, work: Workload) -> dict[str, Any]:
        return {**super().options(work), "collate_fn": _collate}


def _finished(finish: Any, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    samples = zip(rows["image"], rows["label"])
    return {"sample": [finish({"image": image, "label": label}) for image, label in samples]}


def _collate(rows: list[dict[str, Any]]) -> Any:
    return default_collate([row["sample"] for row in rows])
