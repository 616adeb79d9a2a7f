"""Ray: the module, and this process's connection to a cluster."""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections.abc import Iterator
from typing import Any

from ..errors import MissingDependencyError, UsageError, install


def load() -> Any:  # ray's functions are typed by decorators that mypy cannot follow
    """The module ``ray``; MissingDependencyError if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingDependencyError(f"this needs Ray: {install('ray')}") from error


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A context with the module ``ray``, connected to a cluster; UsageError where there is none.

    ``address``: "local": start Ray on this machine and stop it at the end; "auto": the cluster that
    this machine belongs to; else the address of a cluster, such as ``"10.0.0.1:6379"`` or
    ``"ray://10.0.0.1:10001"``. A process that is connected already stays so, whatever the address.
    """
    ray = load()
    if ray.is_initialized():
        yield ray
        return
    options = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="warning", **options)
    except (ConnectionError, ValueError) as error:
        raise UsageError(
            f"ray: expected 'local', 'auto' or the address of a cluster, got {address!r}, where "
            f"there is none ({error}): `ray start --head` starts one"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def put(value: object, description: str) -> Any:
    """A reference to ``value``, for ``get`` in the processes of the cluster.

    Ray alone would give them arrays that cannot be written, in memory that they share. The
    UsageError of a value that cloudpickle cannot pickle begins with ``description``.
    """
    ray = load()
    from ray import cloudpickle

    try:
        return ray.put(cloudpickle.dumps(value))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise UsageError(
            f"{description} cannot be sent to other processes ({error}): open files and "
            "connections where they are used, or do without Ray"
        ) from error


def get(reference: Any) -> object:
    """A copy of the value that ``put`` was given."""
    ray = load()
    from ray import cloudpickle

    value: object = cloudpickle.loads(ray.get(reference))
    return value
