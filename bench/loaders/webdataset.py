"""WebDataset: tar shards read in sequence by torch's workers, shuffled in a buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from bench.loaders.base import Loader, Setting
from bench.workload import Workload

SHUFFLED = 1000  # samples


class Webdataset(Loader):
    """Batches are made in the workers, as its documentation advises; the shuffle is partial."""

    summary = "WebDataset tar shards, simplejpeg and OpenCV"
    needs = ("webdataset", "simplejpeg", "cv2")
    store = "webdataset"
    ordered = False  # each worker gets shards of its own
    shards: ClassVar[int] = 8

    def pack(self, work: Workload, folder: Path) -> None:
        import webdataset

        samples, _ = work.samples()
        pattern = str(folder / "images-%04d.tar")
        # Written in turn, so that each shard holds all classes.
        for shard in range(self.shards):
            chosen = list(enumerate(samples))[shard :: self.shards]
            with webdataset.TarWriter(pattern % shard) as writer:
                for index, (path, label) in chosen:
                    data = Path(path).read_bytes()
                    writer.write({"__key__": f"{index:09d}", "image": data, "cls": label})

    def settings(self, work: Workload) -> list[Setting]:
        return [{"num_workers": work.threads, "prefetch_factor": ahead} for ahead in (2, 4)]

    def open(self, work: Workload, setting: Setting) -> None:
        import webdataset

        from bench.loaders._opencv import Finish

        place = self.place(work)
        shuffled = len(place["urls"]) if work.shuffled else False
        dataset = webdataset.WebDataset(shardshuffle=shuffled, empty_check=False, **place)
        if work.shuffled:
            dataset = dataset.shuffle(SHUFFLED)
        dataset = dataset.map(Finish(work, label="cls")).batched(work.batch, partial=False)
        self._dataset = dataset
        self._loader = webdataset.WebLoader(
            dataset, batch_size=None, persistent_workers=True, **setting
        )

    def place(self, work: Workload) -> dict[str, Any]:
        """Where the shards are, as arguments of the dataset."""
        return {"urls": sorted(str(path) for path in self.store_folder(work).glob("*.tar"))}
