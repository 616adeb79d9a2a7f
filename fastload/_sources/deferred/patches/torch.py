"""What fastload exchanges in torch."""

from __future__ import annotations

from typing import Any, Final

from ..guarded import Function
from ..tensor import plain, some_deferred
from ..tensor_functions import stack
from ..thread_state import THREAD, cause
from .patch import Patch
from .proof import Same


def _collate(original: Function) -> Function:
    def collate_tensor_fn(batch: Any, collate_fn_map: Any = None) -> Any:
        if some_deferred(batch):
            # Elsewhere nobody completes it: another loader over what a dataset has kept.
            stacked = stack(batch) if THREAD.deferring else NotImplemented
            if stacked is not NotImplemented:
                return stacked
            with cause("default_collate"):
                batch = [plain(row) for row in batch]
        return original(batch, collate_fn_map=collate_fn_map)

    return collate_tensor_fn


PATCHES: Final = [
    Patch(
        names=("torch.utils.data._utils.collate.collate_tensor_fn",),
        ours=_collate,
        why="default_collate, in the hands of a user's collate_fn, writes to memory of its own",
        kept_by="open_clip, transformers: 4 times DataLoader and more (scripts)",
        proof=Same(lambda collate, inputs: collate([inputs.levels, inputs.levels])),
    ),
]
"""torch's functions that are exchanged."""
