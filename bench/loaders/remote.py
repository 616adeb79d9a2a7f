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
from bench.loaders.webdataset import Webdataset, decoded
from bench.workload import Workload

_SHARD_NBYTES = 16 << 20
_SHUFFLED = 1000  # samples among which the others shuffle, beside the order of the shards
_KEY = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench"}  # the server looks at none
# Its default, 16, asks for all chunks at once here: the first batch comes with the last one.
_LITDATA = {"LITDATA_ASYNC_DOWNLOAD_CONCURRENCY": "4"}


class Remote(Loader):
    """What the loaders of this module say about themselves."""

    def stated(self, work: Workload) -> Setting:
        """How it reads, for the report."""
        return {"num_workers": work.threads}


class FastloadRemote(Remote, Store):
    needs = (*Store.needs, "obstore")
    about = "FastLoader on an LMDB store in S3, all records shuffled"
    window: ClassVar[int | None] = None

    def __init__(self, name: str) -> None:
        super().__init__(name.replace("remote", "lmdb"))
        self.name, self.summary = name, self.about

    def stated(self, work: Workload) -> Setting:
        window = {} if self.window is None else {"shuffle_window": self.window}
        return {**super().stated(work), **window}

    def open(self, work: Workload, setting: Setting) -> None:
        from fastload import FastLoader, PackedDataset

        place = str(self.store_folder(work) / "images.lmdb")
        options: dict[str, Any] = {}
        if setting["server"] is not None:  # else the packed file itself, to compare
            place = f"s3://{setting['bucket']}/images.lmdb"
            options = {
                "storage_options": {
                    "endpoint": setting["server"],
                    "region": "us-east-1",
                    **_KEY,
                },
                "cache_dir": setting["cache"],
                "disk_limit": setting["limit"] or None,
            }
        self._loader = FastLoader(
            PackedDataset(place, transforms_v1(work), seed=0, **options),
            batch_size=work.batch,
            shuffle=work.shuffled,
            drop_last=True,
            seed=0,
            num_workers=work.threads,
            shuffle_window=self.window,
        )


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

    def stated(self, work: Workload) -> Setting:
        return {**super().stated(work), "shuffle": _SHUFFLED}

    def open(self, work: Workload, setting: Setting) -> None:
        import webdataset
        from webdataset.cache import FileCache

        count = len(list(self.store_folder(work).glob("*.tar")))
        options: dict[str, Any] = {"cache_dir": setting["cache"]}
        if setting["limit"]:
            options["cache_size"] = setting["limit"]
        place = f"{setting['server']}/{setting['bucket']}"
        dataset = webdataset.WebDataset(
            [f"{place}/images-{number:04d}.tar" for number in range(count)],
            shardshuffle=count,
            empty_check=False,
            **options,
        )
        for stage in dataset.pipeline:
            if isinstance(stage, FileCache) and stage.cleaner is not None:
                stage.cleaner.interval = None  # 30 s are longer than an epoch here
        dataset = decoded(dataset.shuffle(_SHUFFLED), work)
        self._loader = webdataset.WebLoader(
            dataset, batch_size=None, num_workers=work.threads, persistent_workers=True
        )


class StreamingRemote(Remote, Streaming):
    summary = "MosaicML Streaming, MDS shards of 16 MB from S3"
    needs = (*Streaming.needs, "boto3")
    store = "mds-16mb"
    shard_nbytes = _SHARD_NBYTES
    _setting: Setting

    def stated(self, work: Workload) -> Setting:
        return {**super().stated(work), **self._shuffled(work)}

    def _shuffled(self, work: Workload) -> dict[str, Any]:
        """Samples that each worker asks for ahead, and among which it shuffles."""
        if work.variant == "half":
            # All shards that the workers shuffle among must fit into ``cache_limit``: it evicts
            # those that are about to be read otherwise, and a thread waits for ever for one that
            # was evicted between being asked for and being there.
            return {"predownload": 2 * work.batch, "shuffle_block_size": _SHUFFLED // 4}
        # ``predownload`` is its default. That of ``shuffle_block_size``, 262,144 samples, needs all
        # shards at once here.
        return {"predownload": 8 * work.batch, "shuffle_block_size": _SHUFFLED}

    def open(self, work: Workload, setting: Setting) -> None:
        os.environ["S3_ENDPOINT_URL"] = setting["server"]
        os.environ.update({name.upper(): value for name, value in _KEY.items()})
        self._setting = setting
        super().open(work, self.settings(work)[0])

    def place(self, work: Workload) -> dict[str, Any]:
        return {
            "remote": f"s3://{self._setting['bucket']}",
            "local": self._setting["cache"],
            "cache_limit": self._setting["limit"] or None,
            **self._shuffled(work),
        }


class LitdataRemote(Remote, Litdata):
    summary = "LitData, chunks of 16 MB from S3"
    needs = (*Litdata.needs, "boto3", "obstore")
    _setting: Setting

    def stated(self, work: Workload) -> Setting:
        return {**super().stated(work), **_LITDATA}

    def open(self, work: Workload, setting: Setting) -> None:
        from litdata.streaming import downloader

        os.environ.update(_LITDATA)
        # It has no argument for the options of obstore's client.
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
        self._setting = setting
        super().open(work, self.settings(work)[0])

    def place(self, work: Workload) -> dict[str, Any]:
        return {
            "input_dir": f"s3://{self._setting['bucket']}",
            "cache_dir": self._setting["cache"],
            "max_cache_size": self._setting["limit"] or "100GB",  # its default leaves 50 GB free
            "storage_options": {
                "endpoint_url": self._setting["server"],
                "region_name": "us-east-1",
                **_KEY,
            },
        }
