"""MosaicML Streaming: MDS shards on the local disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.loaders.base import record
from bench.loaders.torch_dataloader import DataLoaderBase
from bench.workload import Workload


class Streaming(DataLoaderBase):
    summary = "MosaicML Streaming, MDS shards of the files' bytes, simplejpeg and OpenCV"
    needs = ("streaming", "simplejpeg", "cv2")
    store = "mds"
    ordered = False  # each worker gets blocks of its own

    def pack(self, work: Workload, folder: Path) -> None:
        from streaming import MDSWriter

        columns = {"image": "bytes", "label": "int"}
        with MDSWriter(out=str(folder), columns=columns) as writer:
            for sample in work.samples()[0]:
                writer.write(record(sample))

    def dataset(self, work: Workload) -> Any:
        import streaming

        from bench.loaders._opencv import Finish

        finish = Finish(work)
        streaming.base.util.clean_stale_shared_memory()

        class Images(streaming.StreamingDataset):
            def __getitem__(self, index: Any) -> Any:
                return finish(super().__getitem__(index))

        folder = str(self.store_folder(work))
        return Images(local=folder, shuffle=work.shuffled, batch_size=work.batch)

    def options(self, work: Workload) -> dict[str, Any]:
        return {"batch_size": work.batch, "drop_last": True}
