"""Loaders that read from a web server, through a cache on the disk.

The setting says where: ``url`` of the folder of the packed form, ``cache`` (a folder), ``limit``
of it in bytes (0: all fits).
"""

from __future__ import annotations

from typing import Any

from bench.loaders._torchvision import transforms_v1
from bench.loaders.base import Setting
from bench.loaders.fastload import Lmdb
from bench.loaders.litdata import Litdata
from bench.loaders.streaming import Streaming
from bench.loaders.webdataset import Webdataset, decoded
from bench.workload import Workload


class FastloadRemote(Lmdb):
    summary = "FastLoader on an LMDB store at a URL"

    def open(self, work: Workload, setting: Setting) -> None:
        from fastload import FastLoader

        self._loader = FastLoader(
            f"{setting['url']}/images.lmdb",
            batch_size=work.batch,
            shuffle=work.shuffled,
            drop_last=True,
            seed=0,
            transform=transforms_v1(work),
            num_workers=work.threads,
            cache_dir=setting["cache"],
            cache_limit=setting["limit"] or None,
        )


class WebdatasetRemote(Webdataset):
    summary = "WebDataset tar shards from a web server, by curl, and its cache folder"

    def open(self, work: Workload, setting: Setting) -> None:
        import webdataset

        count = len(list(self.store_folder(work).glob("*.tar")))
        options: dict[str, Any] = {"cache_dir": setting["cache"]}
        if setting["limit"]:
            options["cache_size"] = setting["limit"]
        dataset = webdataset.WebDataset(
            [f"{setting['url']}/images-{number:04d}.tar" for number in range(count)],
            shardshuffle=count,
            empty_check=False,
            **options,
        )
        dataset = decoded(dataset.shuffle(1000), work)
        self._loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=work.threads)


_NO_WEB_SERVER = "reads object stores, and no web server that speaks HTTP alone"


class StreamingRemote(Streaming):
    summary = "MosaicML Streaming"

    def refusal(self, work: Workload) -> str | None:
        return _NO_WEB_SERVER


class LitdataRemote(Litdata):
    summary = "LitData"

    def refusal(self, work: Workload) -> str | None:
        return _NO_WEB_SERVER
