"""A mistyped argument is answered with the nearest name, as newer versions of Python do."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import UsageError, type_next

_ALIKE = 0.7  # of a mistyped name and the right one

_OF_PEERS = {
    "batches_ahead": "prefetch_factor",  # FFCV
    "distributed": "shard",  # FFCV
    "drop_remainder": "drop_last",  # tf.data
    "os_cache": "cache",  # FFCV
    "pipelines": "transform",  # FFCV
    "prefetch_queue_depth": "prefetch_factor",  # DALI
    "num_threads": "num_workers",  # DALI
}
"""Arguments of other loaders, and what FastLoader calls them."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def names_nearest(
    function: _Function,
    passes_to: Callable[..., Any] | None = None,
    instead: Mapping[str, str] | None = None,
) -> _Function:
    """``function``, whose TypeError for an unknown keyword argument names the nearest one.

    Args:
        passes_to: another function, which gets its other keyword arguments.
        instead: what to write instead of arguments that it had once. For these it raises
            UsageError.
    """
    parameters = dict(inspect.signature(function).parameters)
    if passes_to is not None:
        parameters |= inspect.signature(passes_to).parameters

    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        for name in named.keys() - parameters.keys():
            if instead is not None and name in instead:
                callee = function.__qualname__.removesuffix(".__init__")
                raise UsageError(
                    f"{name} is no argument of {callee} any more{type_next(instead[name])}"
                )
            near = difflib.get_close_matches(name, parameters, n=1, cutoff=_ALIKE)
            near = [_OF_PEERS[name]] if _OF_PEERS.get(name) in parameters else near
            hint = f". Did you mean {near[0]!r}?" if near else ""
            raise TypeError(
                f"{function.__qualname__}() got an unexpected keyword argument {name!r}{hint}"
            )
        return function(*args, **named)

    return checked  # type: ignore[return-value]
