"""Loaders that read from an object store or a web server, through a cache on the disk.

The setting says where: ``server`` (its URL, which is the S3 endpoint), ``bucket`` (its folder with
the packed form), ``cache`` (a folder), ``limit`` of it in bytes (0: all fits).

The other loaders read shards. The larger the shards, the less they shuffle. Theirs have 16 MB, less
than they recommend for large data, because of 64 MB there would be only a few here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from bench.loaders._torchvision import transforms_v1
from bench.loaders.base import Loader, Setting
from bench.loaders.fastload import Store
from bench.loaders.litdata import Litdata
from bench.loaders.streaming import Streaming
from bench.loaders.webdataset import SHUFFLED, Webdataset
from bench.workload import Workload

_SHARD_NBYTES = 16 << 20
_KEY = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench"}  # the server looks at none
# Its default, 16, asks for all chunks at once here: the first batch comes with the last one.
_LITDATA = {"LITDATA_ASYNC_DOWNLOAD_CONCURRENCY": "4"}


class Remote(Loader):
    """Opens with the loader's own first setting. The one that is given says where the data is."""

    _place: Setting

    def open(self, work: Workload, setting: Setting) -> None:
        self._place = setting
        super().open(work, self.settings(work)[0])  # type: ignore[safe-super]


class FastloadRemote(Remote, Store):
    needs = (*Store.needs, "obstore")
    about = "FastLoader on an LMDB store in S3, all records shuffled"
    window: ClassVar[int | None] = None

    def __init__(self, name: str) -> None:
        super().__init__(name.replace("remote", "lmdb"))
        self.name, self.summary = name, self.about

    def source(self, work: Workload) -> dict[str, Any]:
        from fastload import PackedDataset

        path = str(self.store_folder(work) / "images.lmdb")
        server, options = self._place["server"], {}
        if server is not None:  # else the packed file itself, to compare
            path = f"s3://{self._place['bucket']}/images.lmdb"
            options = {
                "storage_options": {"endpoint": server, "region": "us-east-1", **_KEY},
                "cache_dir": self._place["cache"],
                "disk_limit": self._place["limit"] or None,
            }
        dataset = PackedDataset(path, transforms_v1(work), seed=0, **options)
        return {"dataset": dataset, "shuffle_window": self.window}


class FastloadRemoteWindow(FastloadRemote):
    about = "the same, shuffled in windows of 8 blocks of 8 MB"
    window = 8


class FastloadRemoteDct(FastloadRemote):
    about = "FastLoader on an LMDB store of DCT coefficients in S3, 1.3 times as many bytes"


class WebdatasetRemote(Remote, Webdataset):
    summary = "WebDataset tar shards of 16 MB from a web server, by curl, and its cache folder"
    store = "webdataset-16mb"

    def pack(self, work: Workload, folder: Path) -> None:
        samples, _ = work.samples()
        nbytes = sum(Path(path).stat().st_size for path, _ in samples)
        self.shards = max(work.threads, -(-nbytes // _SHARD_NBYTES))
        super().pack(work, folder)

    def open(self, work: Workload, setting: Setting) -> None:
        from webdataset.cache import FileCache

        super().open(work, setting)
        for stage in self._dataset.pipeline:
            if isinstance(stage, FileCache) and stage.cleaner is not None:
                stage.cleaner.interval = None  # 30 s are longer than an epoch here

    def place(self, work: Workload) -> dict[str, Any]:
        folder = f"{self._place['server']}/{self._place['bucket']}"
        files = [Path(path).name for path in super().place(work)["urls"]]
        limit = {"cache_size": self._place["limit"]} if self._place["limit"] else {}
        urls = [f"{folder}/{name}" for name in files]
        return {"urls": urls, "cache_dir": self._place["cache"], **limit}


class StreamingRemote(Remote, Streaming):
    summary = "MosaicML Streaming, MDS shards of 16 MB from S3"
    needs = (*Streaming.needs, "boto3")
    store = "mds-16mb"
    shard_nbytes = _SHARD_NBYTES

    def open(self, work: Workload, setting: Setting) -> None:
        os.environ["S3_ENDPOINT_URL"] = setting["server"]
        os.environ.update({name.upper(): value for name, value in _KEY.items()})
        super().open(work, setting)

    def place(self, work: Workload) -> dict[str, Any]:
        # The default of ``shuffle_block_size``, 262,144 samples, needs all shards at once here.
        ahead, block = 8 * work.batch, SHUFFLED
        if work.variant == "half":
            # All shards that the workers shuffle among must fit into ``cache_limit``: it evicts
            # those that are about to be read otherwise, and a thread waits for ever for one that
            # was evicted between being asked for and being there.
            ahead, block = 2 * work.batch, SHUFFLED // 4
        return {
            "remote": f"s3://{self._place['bucket']}",
            "local": self._place["cache"],
            "cache_limit": self._place["limit"] or None,
            "predownload": ahead,
            "shuffle_block_size": block,
        }


class LitdataRemote(Remote, Litdata):
    summary = "LitData, chunks of 16 MB from S3"
    needs = (*Litdata.needs, "boto3", "obstore")

    def open(self, work: Workload, setting: Setting) -> None:
        from litdata.streaming import downloader

        os.environ.update(_LITDATA)
        # It has no argument for the options of obstore's client.
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
        super().open(work, setting)

    def place(self, work: Workload) -> dict[str, Any]:
        return {
            "input_dir": f"s3://{self._place['bucket']}",
            "cache_dir": self._place["cache"],
            "max_cache_size": self._place["limit"] or "100GB",  # its default leaves 50 GB free
            "storage_options": {
                "endpoint_url": self._place["server"],
                "region_name": "us-east-1",
                **_KEY,
            },
        }
