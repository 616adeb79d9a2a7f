"""Every loader by name, in the order of the report. Its module is imported when it runs."""

from __future__ import annotations

import importlib

from bench.loaders.base import Loader

WHERE = {
    "fastload-folder": "fastload:Folder",
    "fastload-lmdb": "fastload:Store",
    "fastload-lmdb-dct": "fastload:Store",
    "fastload-lmdb-raw": "fastload:Store",
    "torch-pil": "torch_dataloader:TorchPil",
    "torch-v2": "torch_dataloader:TorchV2",
    "torch-lmdb": "torch_dataloader:TorchLmdb",
    "torch-array": "torch_array:TorchArray",
    "threads-simplejpeg": "threads_simplejpeg:ThreadsSimplejpeg",
    "ffcv": "ffcv:Ffcv",
    "ffcv-channels-last": "ffcv:FfcvChannelsLast",
    "dali": "dali:Dali",
    "spdl": "spdl:Spdl",
    "webdataset": "webdataset:Webdataset",
    "litdata": "litdata:Litdata",
    "streaming": "streaming:Streaming",
    "grain": "grain:Grain",
    "tf-data": "tf_data:TfData",
    "hf-datasets": "hf_datasets:HfDatasets",
}

# DCT-scaled decoding, whose pixels differ a little: measured on large photos alone.
SCALED = {
    "fastload-folder-scaled": "fastload:FolderScaled",
    "fastload-lmdb-scaled": "fastload:Store",
    "fastload-lmdb-dct-scaled": "fastload:Store",
}

# From an object store: the remote suite's.
REMOTE = {
    "fastload-remote": "fastload:Remote",
    "fastload-remote-window": "fastload:Remote",
    "fastload-remote-dct": "fastload:Remote",
}


def make(name: str) -> Loader:
    module, cls = (WHERE | SCALED | REMOTE)[name].split(":")
    loader: Loader = getattr(importlib.import_module(f"bench.loaders.{module}"), cls)(name)
    return loader
