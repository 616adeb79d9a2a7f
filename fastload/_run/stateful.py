"""Stateful: a dataset, iterator or sampler whose state can be saved and restored."""

from __future__ import annotations

import inspect
from typing import Any, Protocol, TypeGuard


class Stateful(Protocol):
    """The interface that torchdata's samplers and datasets have."""

    def state_dict(self) -> Any:
        """The state; any object that can be pickled."""

    def load_state_dict(self, state: Any) -> None:
        """Resume from ``state``."""


def is_stateful(value: object) -> TypeGuard[Stateful]:
    """Whether ``value`` has both methods, and they can be called as in ``Stateful``.

    LitData's and MosaicML's datasets have methods of these names that their own loaders call, with
    arguments that no other loader knows.
    """
    save, load = getattr(value, "state_dict", None), getattr(value, "load_state_dict", None)
    return callable(save) and callable(load) and _takes(save, 0) and _takes(load, 1)


def _takes(method: Any, count: int) -> bool:
    try:
        inspect.signature(method).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a built-in method that does not say what it takes
        return True
    return True
