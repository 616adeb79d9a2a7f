"""What many training scripts have: an LMDB of JPEGs read by torch's DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from bench.loaders._dataloader import DataLoaderBase
from bench.workload import Workload


class TorchLmdb(DataLoaderBase):
    summary = "torch DataLoader over a plain LMDB of the files, simplejpeg and OpenCV"
    needs = ("lmdb", "simplejpeg", "cv2")
    store = "torch-lmdb"

    def refusal(self, work: Workload) -> str | None:
        return "an LMDB of files; see torch-memmap for pixels" if work.pixels == "raw" else None

    def pack(self, work: Workload, folder: Path) -> None:
        import lmdb

        samples, _ = work.samples()
        size = sum(Path(path).stat().st_size for path, _ in samples)
        with lmdb.open(str(folder), map_size=2 * size + (64 << 20)) as store:
            with store.begin(write=True) as transaction:
                for index, (path, label) in enumerate(samples):
                    value = label.to_bytes(4, "little") + Path(path).read_bytes()
                    transaction.put(index.to_bytes(8, "big"), value)

    def dataset(self, work: Workload) -> Any:
        return _Records(work, str(self.store_folder(work)))


class _Records(Dataset[tuple[torch.Tensor, int]]):
    """Opens the store in each worker, as LMDB requires."""

    def __init__(self, work: Workload, path: str) -> None:
        self._work, self._path = work, path
        self._count = len(work.samples()[0])
        self._store: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from bench.loaders import _opencv

        if self._store is None:
            import lmdb

            _opencv.setup()
            self._store = lmdb.open(self._path, readonly=True, lock=False, readahead=False)
        with self._store.begin(buffers=True) as transaction:
            value = transaction.get(index.to_bytes(8, "big"))
            sample = _opencv.sample(bytes(value[4:]), self._work)
            return sample, int.from_bytes(value[:4], "little")
