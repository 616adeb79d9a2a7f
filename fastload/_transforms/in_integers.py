"""torchvision's resize of uint8 tensors, which is in integers on some machines."""

from __future__ import annotations


def resizes_in_integers(name: str) -> bool:
    """Whether torchvision's v2 resizes uint8 tensors in integers here, with the filter ``name``."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2.functional import _geometry as theirs

    native = getattr(theirs, "_do_native_uint8_resize_on_cpu", None)
    return native is not None and bool(native(InterpolationMode(name)))
