"""A batch over deferred images; where one is damaged, the caller makes the batch again without.

The user's code then sees what it would have seen where Pillow decodes, and draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...errors import InternalError
from .switch import deferring
from .thread_state import BatchContext, batch

_Made = TypeVar("_Made")
_Completed = TypeVar("_Completed")


def attempt(
    context: BatchContext,
    make: Callable[[], _Made | None],
    complete: Callable[[_Made], _Completed],
    restore: Callable[[], object],
    *,
    kept: bool = False,
) -> _Completed | None:
    """``complete(make())``, where ``make`` runs over deferred images.

    Args:
        context: of the batch.
        make: runs the user's code; what it returns is None if nothing can be deferred.
        complete: finishes the batch, deferring nothing.
        restore: gives the generators their states from before.
        kept: whether the user's code may have kept deferred images of an earlier batch.

    Returns:
        None: an image is damaged, or anything was raised while images were deferred; or ``make``
        gave None. The generators are restored.

    Raises:
        InternalError: a bug in fastload.
        What ``make`` raises if it has nothing to do with images.
    """
    with batch(context):
        try:
            with deferring():
                made = make()
            if made is not None and not context.has_failed():
                return complete(made)
        except InternalError:
            raise
        except Exception:
            if not (context.opened or kept or context.has_failed()):
                raise
    restore()
    return None
