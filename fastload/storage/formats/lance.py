"""Lance datasets as a store: rows are taken by their number, ahead of their batch.

pylance reads the format, on disks and in object stores. It takes any rows at once, so a batch needs
nothing but its own rows. What was taken for a batch stays in memory until that has been filled:
``_row_groups.py`` has the threads and the limit.

A dataset has versions. The newest one is read when a store is opened, and stays the one that is
read, also by a process that the store is sent to.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import StoreError, StoreNotFoundError, UsageError, install, needed
from .._arrow_columns import images_in
from .._column_store import ColumnStore
from .._local import is_url
from .._row_groups import ColumnChunk, DecodedColumn, Key, Pins
from .._spans import Held
from ..base import Spans
from ..column_options import DEFAULT, ColumnOptions
from ..registry import Format
from ..remote.counters import RemoteCounters
from ..remote.options import RemoteOptions
from ..remote.urls import RemoteUrl, redacted

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".lance"
_ROW_NBYTES = 100_000  # where the dataset does not say how large its files are

# The process in which pylance was used first: its threads are not in a forked child.
_process: int | None = None


class LanceStore(ColumnStore):
    """The rows of the Lance dataset at ``path`` or its URL; a record is a row's image.

    ``remote``: only ``storage_options``, which are pylance's. ``version``: None: the newest.
    """

    format = "lance"
    remote = True
    mapped = False

    def __init__(
        self,
        path: str,
        *,
        options: ColumnOptions = DEFAULT,
        remote: RemoteOptions | None = None,
        version: int | None = None,
    ) -> None:
        self._url = RemoteUrl(path)
        self.path = self._url.shown if is_url(path) else path
        self._options, self._remote, self._wanted = options, remote or RemoteOptions(), version
        if self._remote.cache_dir is not None or self._remote.disk_limit is not None:
            raise UsageError(
                f"cache_dir, disk_limit: pylance reads {self.path!r} itself, without a cache: "
                "give storage_options alone"
            )
        self._waited_s = 0.0
        self._open()

    def _open(self) -> None:
        global _process
        if _process not in (None, os.getpid()):
            raise UsageError(
                "this process was forked from one that has read a Lance dataset, and pylance works "
                "in no forked process: pass multiprocessing_context='forkserver'"
            )
        lance = needed(
            "lance",
            f"{self.path!r} is a Lance dataset; reading it needs pylance: {install('lance')}",
        )
        if not is_url(self._url.text) and not os.path.isdir(self.path):
            raise StoreNotFoundError("expected a Lance dataset, found nothing", path=self.path)
        _process = os.getpid()
        given = self._remote.storage_options
        with self._named("expected a Lance dataset, found none that can be read"):
            self._dataset = lance.dataset(
                self._url.text,
                version=self._wanted,
                storage_options=None if given is None else dict(given),
            )
            self._wanted = int(self._dataset.version)
            self._rows = int(self._dataset.count_rows())
            files = [
                file.file_size_bytes
                for fragment in self._dataset.get_fragments()
                for file in fragment.data_files()
            ]
        total = sum(nbytes or 0 for nbytes in files) if None not in files else 0
        self._mean = max(1, total // max(1, self._rows)) if total else _ROW_NBYTES
        self._read_schema(self._dataset.schema, self._options.column)
        self._forget_sizes(self._rows)

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Errors of pylance become StoreErrors, without credentials."""
        try:
            yield
        except StoreError:
            raise
        # It raises ValueError, OSError and its own. Panics over damaged files are no Exceptions.
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            text = redacted(str(error), self._url, self._remote.secrets()) or type(error).__name__
            kind = StoreNotFoundError if "was not found" in text else StoreError
            raise kind(f"{what}: {text}", path=self.path) from None

    # --- columns ----------------------------------------------------------------------------------

    def _whole(self, name: str) -> pa.ChunkedArray:
        self._check_process()
        with self._named(f"cannot read the column {name!r}"):
            return self._dataset.to_table(columns=[name]).column(name)

    def _has_nulls(self, name: str) -> bool | None:
        import pyarrow as pa

        field = self._dataset.schema.field(name)
        if pa.types.is_nested(field.type):
            return None  # a filter says nothing of what is in a list
        if not field.nullable:
            return False
        with self._named(f"cannot read the column {name!r}"):
            return bool(self._dataset.count_rows(filter=f"`{name}` IS NULL"))

    def _given(self, name: str, indices: np.ndarray) -> list[Any]:
        values: list[Any] = self._taken(name, indices).to_pylist()
        return values

    def _taken(self, name: str, indices: np.ndarray) -> pa.ChunkedArray:
        import pyarrow as pa

        self._check_process()
        if not len(indices):
            return pa.chunked_array([], self._schema.field(name).type)
        with self._named(f"cannot read rows of the column {name!r}"):
            table = self._dataset.take(np.asarray(indices).tolist(), columns=[name])
            if table.num_rows != len(indices):
                raise StoreError(
                    f"expected {len(indices)} rows, found {table.num_rows}: the dataset is damaged",
                    path=self.path,
                )
            return table.column(name)

    def _check_process(self) -> None:
        if _process != os.getpid():
            self._open()  # says that it cannot be, in a forked child

    # --- records ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._rows

    @property
    def files(self) -> Sequence[str]:
        """The dataset itself: which of its files has a row, only pylance knows."""
        return [self.path]

    def places(self, indices: np.ndarray) -> Spans:
        """As if all rows had one length, one after the other."""
        indices = np.asarray(indices, np.int64)
        return Spans(
            file=np.zeros(len(indices), np.int32),
            offset=indices * self._mean,
            nbytes=np.full(len(indices), self._mean, np.int64),
        )

    def spans(self, indices: np.ndarray) -> Spans:
        """Places in ``Spans.memory``, which is Arrow's."""
        chunk = self._pin(indices)
        assert chunk is not None, "only what is ahead may find no room"
        held = Pins(self._groups, chunk)
        begin = time.monotonic()
        images = self._groups.wait(chunk)
        self._waited_s += time.monotonic() - begin
        images.check_bytes(np.arange(len(indices)), indices, self._image, self.path)
        return Spans(
            file=(-1 - images.file).astype(np.int32),
            offset=images.offset,
            nbytes=images.nbytes,
            held=held,
            memory=images.buffers,
        )

    def ahead(self, indices: np.ndarray, *, urgency: float, blocks: bool = False) -> Held | None:
        """There are no blocks, as nothing is kept for other batches."""
        chunk = self._pin(indices, urgency=urgency, ahead=True)
        return None if chunk is None else Pins(self._groups, chunk)

    def _readable(self, indices: np.ndarray) -> np.ndarray:
        images = images_in(self._taken(self._image, indices))
        return images.have_bytes(np.arange(len(indices)))

    def _pin(
        self, indices: np.ndarray, *, urgency: float = 0.0, ahead: bool = False
    ) -> ColumnChunk | None:
        indices = np.ascontiguousarray(indices, np.int64)
        return self._groups.pin(
            self,
            (self._image, indices.tobytes()),
            self._mean * len(indices),
            urgency=urgency,
            ahead=ahead,
            once=True,
        )

    def decode(self, key: Key) -> DecodedColumn:
        name, rows = key
        assert isinstance(rows, bytes)
        indices = np.frombuffer(rows, np.int64)
        column = self._taken(name, indices)
        images = images_in(column)
        return DecodedColumn(images, sum(buffer.nbytes for buffer in images.buffers))

    def next_use(self, rows: int | bytes) -> float:
        """No other batch uses it."""
        return float("inf")

    def fetched(self) -> Mapping[str, float] | None:
        if not is_url(self._url.text):
            return None
        done = self._dataset.io_stats_snapshot()
        counters = RemoteCounters(
            nbytes=done.read_bytes,
            missed_nbytes=done.read_bytes,
            requests=done.read_iops,
            wait_s=self._waited_s,
        )
        return counters.snapshot()

    def close(self) -> None:
        self._groups.drop(self)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": self._url.text,
            "options": self._options,
            "remote": self._remote,
            "version": self._wanted,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        LanceStore.__init__(self, **state)


FORMAT = Format(
    name="lance",
    title="Lance",
    suffixes=(SUFFIX,),
    open=LanceStore,
    folders=True,
    columns=True,
)
