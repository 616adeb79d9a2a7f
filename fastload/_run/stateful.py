"""Stateful: a dataset, iterator or sampler whose state can be saved and restored."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard


class Stateful(Protocol):
    """The interface that torchdata's samplers and datasets have."""

    def state_dict(self) -> Any:
        """The state; any object that can be pickled."""

    def load_state_dict(self, state: Any) -> None:
        """Resume from ``state``."""


def is_stateful(value: object) -> TypeGuard[Stateful]:
    """Whether ``value`` has both methods."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
