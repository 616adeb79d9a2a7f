"""How many ranks of a distributed job share this machine."""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import Any


def local() -> int:
    """Ranks on this machine, at least 1, for dividing its CPUs and its memory.

    ``LOCAL_WORLD_SIZE``, which torchrun sets, decides. Where it is missing, as with
    ``torch.multiprocessing.spawn``, torch.distributed is asked, once it is initialised:

    - ranks that meet at a loopback address, or in a file, are all on this machine;
    - otherwise there is one rank for each CUDA device here, and at most all of them;
    - otherwise the number is not known: 1. Set ``LOCAL_WORLD_SIZE`` then.

    Nothing is sent: ranks need not call this together. Comparing host names through the job's store
    would need every rank to make a loader.
    """
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    if local_world_size.isdigit():
        return max(1, int(local_world_size))
    torch: Any = sys.modules.get("torch")  # not imported: no process group
    if torch is None or not torch.distributed.is_available():
        return 1
    if not torch.distributed.is_initialized():
        return 1
    world = int(torch.distributed.get_world_size())
    if world == 1 or _on_one_machine(torch.distributed):
        return world
    return max(1, min(world, int(torch.cuda.device_count())))


def _on_one_machine(distributed: Any) -> bool:
    """Whether the ranks meet where only processes of this machine can come."""
    store = distributed.distributed_c10d._get_default_store()
    while isinstance(store, distributed.PrefixStore):
        store = store.underlying_store
    if isinstance(store, distributed.FileStore):
        return True
    return isinstance(store, distributed.TCPStore) and _is_loopback(store.host)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name
        return False
