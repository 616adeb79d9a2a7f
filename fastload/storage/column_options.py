"""ColumnOptions: how a table of columns, such as Parquet files, is read as a store."""

from __future__ import annotations

from .._base import byte_sizes
from .._base.value_class import value_class
from ..errors import UsageError


@value_class(kw_only=True)
class ColumnOptions:
    """How a table is read.

    Example:
        >>> ColumnOptions(column="photo", memory_limit="2GB").limit
        2000000000

    Attributes:
        column: the one that holds the images; None: as docs/formats.md says.
        memory_limit: bytes that what was read may take in the memory of this process, such as
            "2GB"; None: a quarter of what is available, divided among the processes that read.

    Raises:
        UsageError: another type, or no size.
    """

    column: str | None = None
    memory_limit: int | str | None = None

    def __post_init__(self) -> None:
        if self.column is not None and not isinstance(self.column, str):
            raise UsageError(
                f"column: expected the name of a column, got {type(self.column).__name__}"
            )
        _ = self.limit  # raises for what is no size

    @property
    def limit(self) -> int | None:
        """``memory_limit`` in bytes; None where it was not given."""
        if self.memory_limit is None:
            return None
        return byte_sizes.argument("memory_limit", self.memory_limit)

    @property
    def given(self) -> list[str]:
        named = {"column": self.column, "memory_limit": self.memory_limit}
        return [name for name, value in named.items() if value is not None]


DEFAULT = ColumnOptions()
