"""Types for hints in user code: the words that arguments take, and what ``stats`` returns.

Each ``Literal`` is the only list of its words: checks at run time and the command line take their
choices from it.

    from fastload.hints import Engine

    def make_loader(engine: Engine = "auto") -> FastLoader: ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypedDict

# --- arguments of FastLoader ------------------------------------------------------------------

Engine: TypeAlias = Literal["auto", "native", "python", "dali", "workers"]
"""``engine``: what makes the batches."""

Decode: TypeAlias = Literal["exact", "scaled"]
"""``decode``: JPEGs in full size, or at 1/2, 1/4 or 1/8 of it where that is large enough."""

DecodeDevice: TypeAlias = Literal["cpu", "gpu", "auto"]
"""``decode_device``: where JPEGs are decoded."""

CheckCrc: TypeAlias = Literal["first", "always", "never"]
"""``check_crc``: when a record is compared with its checksum."""

CacheKind: TypeAlias = Literal["ram", "decoded", "shm", "dct"]
"""``cache``: what later epochs need not do again."""

NumWorkers: TypeAlias = int | Literal["auto"]
"""``num_workers``: threads or processes, or their number found while the loop runs."""

Action: TypeAlias = Literal["raise", "skip", "replace"]
"""What a callable ``on_error`` returns."""

OnErrorName: TypeAlias = Literal[Action, "refill"]
"""``on_error`` by name."""

OnError: TypeAlias = OnErrorName | Callable[[Any, Exception], Action]
"""``on_error``: a name, or a callable that gets (index, error)."""

BoxFormat: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]
"""Boxes in pixels: two corners; a corner, width and height; the centre, width and height."""

JointKind: TypeAlias = Literal["mask", BoxFormat, "points", "labels"]
"""What a field that moves along with its image is: a value of ``joint``."""

# --- arguments of pack ------------------------------------------------------------------------

Encoding: TypeAlias = Literal["keep", "dct", "jpeg", "png", "bmp", "raw"]
"""``encode``: what a record holds."""

OnPackError: TypeAlias = Literal["raise", "skip"]
"""``on_error`` of ``pack``."""

Compression: TypeAlias = Literal["gzip", "lzf"]
"""``compression`` of an .h5 store."""

# --- what stats returns -----------------------------------------------------------------------

Bound: TypeAlias = Literal[
    "compute", "reading", "decoding", "python", "transport", "copy", "loader", "unknown"
]
"""What a loop waits for: the training step ("compute"), reading, decoding, the dataset's own code
("python"), batches on their way from worker processes ("transport"), the copy to the device, or the
loader itself (drawing the order and handing batches over); "unknown" before the second batch."""


class BadSampleStats(TypedDict):
    """One sample that ``on_error`` let pass."""

    index: Any
    """What the sampler asked for; of an IterableDataset, how many samples came before it from the
    same worker."""
    file: str | None
    """The file at fault, where the error names one."""
    error: str
    """Type and message."""
    action: OnErrorName
    """What was done: "skip", "replace" or "refill"."""


class Stats(TypedDict):
    """``FastLoader.stats()``: figures of the running epoch, or of the last one.

    Units are in the names: ``_s`` seconds, ``_per_s`` per second of ``elapsed_s``, ``mb`` 10**6
    bytes, ``nbytes`` bytes, ``share`` 0 to 1.
    """

    engine: str
    """What made the batches: "native", "python", "gather" (rows of a TensorDataset), "dali",
    or "workers" (torch's machinery)."""
    images: int
    """Samples handed to the consumer."""
    batches: int
    """Batches handed to the consumer."""
    images_per_s: float
    """``images`` over ``elapsed_s``; 0.0 before the first batch."""
    mb_per_s: float
    """Records read, as they are stored; 0.0 where their sizes are not known beforehand."""
    elapsed_s: float
    """Wall time from the start of the epoch to the last batch."""
    wait_s: float
    """Time that the consumer waited for batches."""
    wait_share: float
    """``wait_s`` over ``elapsed_s``."""
    stages_s: dict[str, float]
    """Seconds of work by stage ("read", "decode", "resize", "fetch", "copy" ...), added up over
    threads and processes, so that together they may exceed ``elapsed_s``. Only stages that ran."""
    decisions: list[str]
    """What ``num_workers="auto"`` tried and why, in words."""
    padding: int
    """Samples of this rank that repeat others, so that all ranks have equally many."""
    errors: list[BadSampleStats]
    """The samples that ``on_error`` let pass."""
    cache_hits: int
    """Images made of what the cache held."""
    cache_misses: int
    """Images made of what the cache did not hold; 0 without ``cache``."""
    cache_nbytes: int
    """What the cache holds."""
    entry_points_nbytes: int
    """What is remembered of JPEGs in order to decode crops faster (docs/performance.md)."""
    bound: Bound
    """What the loop waits for."""
    why: str
    """The figures behind ``bound``, in words."""
    headroom: float | None
    """How many times faster the loop would be if data were free; None before ``replay``."""
