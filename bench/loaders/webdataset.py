"""WebDataset: tar shards read in sequence by torch's workers, shuffled in a buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from bench.loaders.base import Loader, Setting
from bench.workload import Workload


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

        shards = sorted(str(path) for path in self.store_folder(work).glob("*.tar"))
        dataset = webdataset.WebDataset(
            shards, shardshuffle=len(shards) if work.shuffled else False, empty_check=False
        )
        if work.shuffled:
            dataset = dataset.shuffle(1000)
        dataset = decoded(dataset, work)
        self._loader = webdataset.WebLoader(
            dataset, batch_size=None, persistent_workers=True, **setting
        )


def decoded(dataset: Any, work: Workload) -> Any:
    """The batches of a WebDataset."""
    from bench.loaders._opencv import Finish

    return dataset.map(Finish(work, label="cls")).batched(work.batch, partial=False)
