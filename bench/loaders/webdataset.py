"""WebDataset: tar shards read in sequence by torch's workers, shuffled in a buffer."""

from __future__ import annotations

from pathlib import Path

from bench.loaders.base import Loader, Setting
from bench.workload import Workload

_SHARDS, _SHUFFLED = 8, 1000  # the latter: samples


class Webdataset(Loader):
    """Batches are made in the workers, as its documentation advises; the shuffle is partial."""

    summary = "WebDataset tar shards, simplejpeg and OpenCV"
    needs = ("webdataset", "simplejpeg", "cv2")
    store = "webdataset"
    ordered = False  # each worker gets shards of its own

    def pack(self, work: Workload, folder: Path) -> None:
        import webdataset

        samples, _ = work.samples()
        pattern = str(folder / "images-%04d.tar")
        # Written in turn, so that each shard holds all classes.
        for shard in range(_SHARDS):
            chosen = list(enumerate(samples))[shard::_SHARDS]
            with webdataset.TarWriter(pattern % shard) as writer:
                for index, (path, label) in chosen:
                    data = Path(path).read_bytes()
                    writer.write({"__key__": f"{index:09d}", "image": data, "cls": label})

    def settings(self, work: Workload) -> list[Setting]:
        return [{"num_workers": work.threads, "prefetch_factor": ahead} for ahead in (2, 4)]

    def open(self, work: Workload, setting: Setting) -> None:
        import webdataset

        from bench.loaders._opencv import Finish

        urls = sorted(str(path) for path in self.store_folder(work).glob("*.tar"))
        shuffled = len(urls) if work.shuffled else False
        dataset = webdataset.WebDataset(urls, shardshuffle=shuffled, empty_check=False)
        if work.shuffled:
            dataset = dataset.shuffle(_SHUFFLED)
        dataset = dataset.map(Finish(work, label="cls")).batched(work.batch, partial=False)
        self._channels_last = work.memory_format == "channels_last"
        self._loader = webdataset.WebLoader(
            dataset, batch_size=None, persistent_workers=True, **setting
        )
