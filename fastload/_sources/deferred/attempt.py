"""A batch over deferred images; where one is damaged, the caller makes the batch again without.

The user's code then sees what it would have seen where Pillow decodes, and draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...errors import InternalError
from .switch import deferring
from .thread_state import BatchContext, batch

_Recorded = TypeVar("_Recorded")
_Completed = TypeVar("_Completed")


def attempt(
    context: BatchContext,
    make: Callable[[], _Recorded | None],
    complete: Callable[[_Recorded], _Completed],
    restore: Callable[[], object],
    *,
    may_keep: bool = False,
) -> _Completed | None:
    """``complete(make())``, where ``make`` runs over deferred images.

    Args:
        context: of the batch.
        make: runs the user's code; what it returns is None if nothing can be deferred.
        complete: finishes the batch, deferring nothing.
        restore: gives the generators their states from before.
        may_keep: whether the user's code may have kept deferred images of an earlier batch.

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
                recorded = make()
            context.fill = None
            if recorded is not None and not context.has_failed():
                return complete(recorded)
        except InternalError:
            raise
        except Exception:
            if not (context.opened or may_keep or context.has_failed()):
                raise
    restore()
    return None
