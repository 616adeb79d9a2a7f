"""Fields of records, decoded: an error for each value that is not what its field says."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import StoreError
from .base import Store


def decoded(
    store: Store, name: str, records: np.ndarray
) -> tuple[np.ndarray | list[Any], dict[int, StoreError]]:
    """The field ``name`` of ``records`` as ``Store.batch`` gives it, and the errors by position.

    Where a value is damaged, all are in a list, with None in its place.
    """
    try:
        return store.batch(name, records), {}
    except (ValueError, RecursionError):
        pass  # which one it is, is found below
    values: list[Any] = []
    errors: dict[int, StoreError] = {}
    for at, record in enumerate(records.tolist()):
        record_alone = records[at : at + 1]
        try:
            values += list(store.batch(name, record_alone))
        except (ValueError, RecursionError) as error:
            values.append(None)
            errors[at] = StoreError(
                f"expected {store.fields[name].kind} in the field {name!r}, found something else: "
                f"{error}; write that value again, or leave the record out with on_error='skip'",
                path=store.shown(int(store.places(record_alone).file[0])),
                record=record,
            )
            errors[at].__cause__ = error
    return values, errors


def check_decoded(store: Store, name: str, records: np.ndarray) -> np.ndarray | list[Any]:
    """``decoded``, if nothing is damaged. Raises StoreError, which names the first record."""
    values, errors = decoded(store, name, records)
    if errors:
        raise errors[min(errors)]
    return values
