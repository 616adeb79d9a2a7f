"""Types for hints in user code: the words that arguments accept, and the result of ``stats``.

Each ``Literal`` is the only list of its words: the checks at run time and the choices of the
command line are taken from it.

    from fastload.hints import Engine

    def make_loader(engine: Engine = "auto") -> FastLoader: ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypedDict

# --- arguments of FastLoader ------------------------------------------------------------------

Engine: TypeAlias = Literal["auto", "native", "dali", "ray", "torch"]
"""``engine``: which engine makes the batches."""

Decode: TypeAlias = Literal["exact", "scaled"]
"""``decode``: JPEGs in full size, or at 1/2, 1/4 or 1/8 of it if that is large enough."""

CheckCrc: TypeAlias = Literal["first", "always", "never"]
"""``check_crc``: when a record is compared with its checksum."""

CacheKind: TypeAlias = Literal["ram", "decoded", "shm", "dct"]
"""``cache``: what is kept for later epochs."""

NumWorkers: TypeAlias = int | Literal["auto"]
"""``num_workers``: number of threads or processes; "auto": adjusted while the loop runs."""

Action: TypeAlias = Literal["raise", "skip", "replace"]
"""The result of a callable ``on_error``."""

OnErrorName: TypeAlias = Literal[Action, "refill"]
"""``on_error`` by name."""

OnError: TypeAlias = OnErrorName | Callable[[Any, Exception], Action]
"""``on_error``: a name, or a callable that is called with (index, error)."""

BoxFormat: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]
"""Boxes in pixels: two corners; a corner, width and height; the centre, width and height."""

StoppingStrategy: TypeAlias = Literal["all_exhausted", "first_exhausted"]
"""``epoch_size`` of a Mix: until all components were read once, or until the first one was."""

Batching: TypeAlias = Literal["stratified", "random"]
"""``batching`` of a Mix: each batch has its share of every component, or only the epoch does."""

JointKind: TypeAlias = Literal["mask", BoxFormat, "points", "labels"]
"""The kind of a field that is transformed with its image: a value of ``joint``."""

# --- arguments of pack ------------------------------------------------------------------------

Encoding: TypeAlias = Literal["keep", "dct", "jpeg", "png", "bmp", "raw"]
"""``encode``: the encoding of a record."""

OnPackError: TypeAlias = Literal["raise", "skip"]
"""``on_error`` of ``pack``."""

Compression: TypeAlias = Literal["gzip", "lzf"]
"""``compression`` of an .h5 store."""

# --- what stats returns -----------------------------------------------------------------------

Bound: TypeAlias = Literal[
    "compute", "reading", "decoding", "python", "transport", "copy", "loader", "unknown"
]
"""What limits a loop: the training step ("compute"), reading, decoding, the dataset's own code
("python"), the transfer of batches from worker processes ("transport"), the copy to the device, or
the loader itself (drawing the order and handing over batches); "unknown" before the second batch.
"""


class BadSampleStats(TypedDict):
    """One bad sample that ``on_error`` handled."""

    index: Any
    """The sampler's index; for an IterableDataset, the number of samples that the same worker
    yielded before it."""
    file: str | None
    """The bad file, if the error names one."""
    error: str
    """Type and message of the error."""
    action: OnErrorName
    """The action taken: "skip", "replace" or "refill"."""


class MaterialisedStats(TypedDict):
    """Code that asked for the values of deferred images."""

    function: str
    """What it called: "Image.__array_interface__" (NumPy), "Tensor.mean" ..."""
    where: str
    """``file:line`` of the user's code."""
    count: int
    """How many images and tensors it had made."""
    seconds: float
    """Time that making them took, summed over processes."""


class RemoteStats(TypedDict):
    """What an epoch has fetched from a remote store, in this process."""

    nbytes: int
    """Bytes received."""
    requests: int
    """Requests sent, repeated and hedged ones included."""
    retries: int
    """Requests that were repeated because one failed."""
    hedged: int
    """Requests that were sent a second time because the first one took unusually long."""
    hit_nbytes: int
    """Bytes that were in the cache when they were asked for."""
    damaged: int
    """Pieces of the cache, of 4 KiB, whose checksum did not match; they were fetched again."""
    wait_s: float
    """Seconds in which the producer of batches waited for bytes."""


class Stats(TypedDict):
    """``FastLoader.stats()``: figures of the current epoch, or of the last one.

    Units are in the names: ``_s`` seconds, ``_per_s`` per second of ``elapsed_s``, ``mb`` 10**6
    bytes, ``nbytes`` bytes, ``share`` 0 to 1.
    """

    engine: str
    """The engine that made the batches: "native", "gather" (rows of a TensorDataset),
    "dali", or "torch" (torch's DataLoader)."""
    images: int
    """Samples handed to the consumer."""
    batches: int
    """Batches handed to the consumer."""
    images_per_s: float
    """``images`` over ``elapsed_s``; 0.0 before the first batch."""
    mb_per_s: float
    """Size of the records read; 0.0 if their sizes are not known beforehand."""
    elapsed_s: float
    """Wall time from the start of the epoch to the last batch."""
    wait_s: float
    """Time the consumer spent waiting for batches."""
    wait_share: float
    """``wait_s`` over ``elapsed_s``."""
    stages_s: dict[str, float]
    """Seconds of work by stage, summed over threads and processes, so that the total may exceed
    ``elapsed_s``. Only stages that ran: "read", "check" (checksums), "decode", "resize", "augment",
    "pillow", "dali"; of a user's Dataset "fetch", of that "blocked" (waiting), "collate", "fill"
    (waiting for C++ threads that decode what it opened); with ``device``, "staging" and "move" on
    the host, "copy" and "device" there."""
    decisions: list[str]
    """What ``num_workers="auto"`` tried and why, in words."""
    padding: int
    """Samples of this rank that repeat others, so that all ranks have the same number."""
    errors: list[BadSampleStats]
    """The bad samples that ``on_error`` handled."""
    cache_hits: int
    """Images read from the cache."""
    cache_misses: int
    """Images that were not in the cache; 0 without ``cache``."""
    cache_nbytes: int
    """Size of the cache's content."""
    remote: RemoteStats | None
    """What was fetched, if the dataset is at a URL; else None."""
    entry_points_nbytes: int
    """Size of the entry points kept to decode crops of JPEGs faster (docs/performance.md)."""
    samples_eager: int
    """Samples that a user's Dataset made without deferring their images, to measure what that
    takes, or because it takes less."""
    images_opened: int
    """Images that a user's Dataset opened and that were deferred."""
    images_from_arrays: int
    """Images that it made of arrays (``Image.fromarray``) and that were deferred."""
    images_deferred: int
    """Tensors of these that stayed deferred until their batch was made in C++."""
    images_materialised: int
    """Images and tensors of these whose values the user's code asked for before that."""
    materialised: list[MaterialisedStats]
    """Where it did, the longest time first."""
    images_read: int
    """Images that were decoded in C++ for another library, such as OpenCV."""
    bound: Bound
    """What limits the loop."""
    why: str
    """The figures behind ``bound``, in words."""
    headroom: float | None
    """How many times faster the loop would be if data were free; None before ``replay``."""
