"""``joint=``: which fields of a store are transformed with their images, and as what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch

from ...errors import UsageError
from ...hints import BoxFormat, JointKind

if TYPE_CHECKING:
    from ...storage.base import Store

KINDS, FORMATS = get_args(JointKind), get_args(BoxFormat)


class Joint(NamedTuple):
    """The fields of a store that are transformed with the images, and their kinds.

    Attributes:
        kinds: (name of the field, kind), in the order given.
        casts: (name of the field, dtype) of the fields that a transform casts in the end.
    """

    kinds: tuple[tuple[str, JointKind], ...]
    casts: tuple[tuple[str, torch.dtype], ...] = ()

    @classmethod
    def of(cls, joint: Mapping[str, JointKind] | Literal[True] | Joint, store: Store) -> Joint:
        """The argument ``joint``, checked; True: the fields that ``store`` names.

        Raises:
            UsageError: an unknown kind, or ``store`` names none.
        """
        if isinstance(joint, Joint):
            return joint
        if joint is True and not store.joint:
            raise UsageError(
                f"joint=True: expected a store that `fastload pack` made with masks or "
                f"annotations, got {store.path!r}: name the fields, such as {{'mask': 'mask'}}"
            )
        joint = store.joint if joint is True else joint
        if not isinstance(joint, Mapping) or not joint:
            raise UsageError(
                "joint: expected a dict of field names and kinds, such as "
                f"{{'mask': 'mask', 'boxes': 'xyxy'}}, got {joint!r}"
            )
        for name, kind in joint.items():
            if kind not in KINDS:
                raise UsageError(
                    f"joint[{name!r}]: expected one of {', '.join(KINDS)}, got {kind!r}"
                )
        return cls(tuple(joint.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(name for name, _ in self.kinds)

    def named(self, *kinds: str) -> list[tuple[str, str]]:
        """(name, kind) of the fields of these kinds."""
        return [(name, kind) for name, kind in self.kinds if kind in kinds]

    def check(self, store: Store) -> None:
        """Raise UsageError if a field of ``store`` cannot be of its kind."""
        for name, kind in self.kinds:
            field = store.fields.get(name)
            if field is None:
                names = ", ".join(store.fields) or "none"
                raise UsageError(f"joint: expected a field of the store ({names}), got {name!r}")
            shape = field.shape
            fits = {
                "mask": field.kind == "bytes" or (field.kind == "array" and len(shape) == 2),
                "points": field.kind == "json" or (field.kind == "array" and shape[-1:] == (2,)),
                "labels": field.kind in ("json", "array"),
            }.get(kind, field.kind == "json" or (field.kind == "array" and shape[-1:] == (4,)))
            if not fits:
                expected = "an image file (bytes) or an array (h, w)" if kind == "mask" else (
                    "numbers (JSON, or an array)"
                )  # fmt: skip
                raise UsageError(
                    f"joint[{name!r}] = {kind!r}: expected {expected} in that field, got "
                    f"{field.kind} {shape or ''}"
                )
