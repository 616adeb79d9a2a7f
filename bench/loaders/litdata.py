"""LitData: chunks of samples, streamed from the local disk."""

from __future__ import annotations

import os
from pathlib import Path

from bench.loaders.base import Setting, record
from bench.loaders.torch_dataloader import DataLoaderBase
from bench.workload import Workload

# Its import would ask a package index for newer versions.
os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")


class Litdata(DataLoaderBase):
    summary = "LitData StreamingDataset of the files' bytes, simplejpeg and OpenCV"
    needs = ("litdata", "simplejpeg", "cv2")
    store = "litdata"
    ordered = False  # each worker gets chunks of its own

    def pack(self, work: Workload, folder: Path) -> None:
        import litdata

        samples, _ = work.samples()
        litdata.optimize(
            fn=record,
            inputs=samples,
            output_dir=str(folder),
            chunk_bytes="16MB",
            num_workers=work.threads,
            reorder_files=False,
            verbose=False,
        )

    def open(self, work: Workload, setting: Setting) -> None:
        import litdata

        from bench.loaders._opencv import Finish

        self._channels_last = work.memory_format == "channels_last"
        dataset = litdata.StreamingDataset(
            str(self.store_folder(work)),
            shuffle=work.shuffled,
            drop_last=True,
            transform=Finish(work),
        )
        self._loader = litdata.StreamingDataLoader(
            dataset, batch_size=work.batch, drop_last=True, **setting
        )
