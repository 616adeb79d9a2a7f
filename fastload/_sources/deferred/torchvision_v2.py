"""The same of torchvision's v2, whose transforms are imported by few programs.

``torchvision_transforms.py`` says what comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torchvision.transforms.v2.functional as functional_v2
from torchvision.transforms import v2

from . import torchvision_transforms as v1
from .image import DeferredImage, waiting
from .tensor import DeferredTensor, DeferredTVImage
from .trial import Function

# They take any structure. That a single image is none need not be found out.

_LEAVES: Final = (DeferredImage, DeferredTensor, DeferredTVImage)


def _takes(transform: Any, value: object, needed: Function) -> bool:
    """Whether a transform of v2 changes ``value``, its only input."""
    if type(transform)._needs_transform_list is not needed:
        return False  # it has its own rules
    for kind in transform._transformed_types:
        if isinstance(value, kind) if isinstance(kind, type) else kind(value):
            return True
    return False


def forward(*, at_random: bool) -> Callable[[Function], Function]:
    """``forward`` of all transforms; ``at_random``: of those with a ``p``."""

    def make(original: Function) -> Function:
        needed = v2.Transform._needs_transform_list

        def forward(self: Any, *inputs: Any) -> Any:
            if (
                len(inputs) == 1
                and isinstance(inputs[0], _LEAVES)
                and _takes(self, inputs[0], needed)
            ):
                self.check_inputs([inputs[0]])
                if at_random and not v1.happens(self.p):
                    return inputs[0]
                return self.transform(inputs[0], self.make_params([inputs[0]]))
            return original(self, *inputs)

        return forward

    return make


def color_jitter_v2(original: Function) -> Function:
    unchanged = v1.unchanged_in(functional_v2, *v1.ADJUSTMENTS)

    def transform(self: Any, inpt: Any, params: Any) -> Any:
        if (
            waiting(inpt)
            and type(self) is v2.ColorJitter
            and v1.keeps_mode(inpt)
            and type(params) is dict
            and unchanged()
        ):
            factors = [params[f"{name}_factor"] for name in v1.COLORS]
            hue = factors[3]
            plain = all(factor is None or type(factor) is float for factor in factors)
            if plain and (hue is None or -0.5 <= hue <= 0.5):
                return v1.jittered(inpt, params["fn_idx"].tolist(), factors)
        return original(self, inpt, params)

    return transform
