"""What old releases of other libraries lack. The exactness of what they have is tested as ever.

``make test-versions`` runs the tests with them. The minima are those of CONTRIBUTING.md's table.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

import numpy as np
import PIL
import pytest
import torchvision

from fastload._transforms.in_integers import resizes_in_integers


def at_least(release: str, *numbers: int) -> bool:
    """Whether a release, such as "2.4.0+cu121", is of these numbers or newer."""
    found = tuple(int(part) for part in release.split("+")[0].split(".")[: len(numbers)])
    return found >= numbers


_TORCHVISION = torchvision.__version__
_OPENCV = version("opencv-python-headless")

LEFT_ALONE: frozenset[str] = frozenset(
    name
    for name, is_known in {
        # Their checks of what they are given have had private names.
        "torchvision.transforms.v2.Transform.forward": at_least(_TORCHVISION, 0, 21),
        "torchvision.transforms.v2.Compose.forward": at_least(_TORCHVISION, 0, 21),
        "torchvision.transforms.v2.RandomHorizontalFlip.forward": at_least(_TORCHVISION, 0, 21),
        # They refused a path or a mode's name, which fastload takes.
        "torchvision.io.read_image": at_least(_TORCHVISION, 0, 20),
        "torchvision.io.decode_image": at_least(_TORCHVISION, 0, 20),
        "cv2.imread": at_least(_OPENCV, 4, 6),
    }.items()
    if not is_known
)
"""The functions of these releases that fastload leaves as they are."""

MAKE_PARAMS, TRANSFORM = (
    ("make_params", "transform") if at_least(_TORCHVISION, 0, 21) else ("_get_params", "_transform")
)
"""What the methods of v2's transforms are called that draw, and that do."""

HAS_POINTS = at_least(_TORCHVISION, 0, 23)
"""Whether torchvision moves points with their images."""

SANITISES_BESIDE_MASKS = at_least(_TORCHVISION, 0, 25)
"""Whether ``SanitizeBoundingBoxes`` lets a mask of the whole image through."""

TRUNCATED_JPEGS_ARE_CERTAIN = not at_least(_OPENCV, 4, 10) or at_least(_OPENCV, 4, 12)
"""Whether OpenCV gives what is left of a JPEG the same pixels at each call (4.12 refuses it)."""

HAS_TWO_RADII = at_least(PIL.__version__, 10)
"""Whether Pillow blurs by two radii."""

turned_in_place = pytest.mark.skipif(
    not at_least(PIL.__version__, 10), reason="this Pillow turns no image in place"
)
opened_with_16_bits = pytest.mark.skipif(
    not at_least(PIL.__version__, 10, 3), reason="this Pillow opens 16 bits as 32"
)
exchanged_io = pytest.mark.skipif(
    "torchvision.io.read_image" in LEFT_ALONE, reason="torchvision.io is left alone before 0.20"
)
exchanged_imread = pytest.mark.skipif(
    "cv2.imread" in LEFT_ALONE, reason="this OpenCV's imread is left alone"
)
ARRAYS_RAISE = at_least(np.__version__, 1, 24)
"""Whether NumPy lets through what an image raises that is made an array."""

CLOSED_FILES_RAISE = ARRAYS_RAISE and at_least(PIL.__version__, 13)
"""Whether that is so for an image of a closed file: NumPy takes an AttributeError for no array."""

array_errors = pytest.mark.skipif(
    not ARRAYS_RAISE, reason="this NumPy swallows what __array_interface__ raises"
)
in_integers = pytest.mark.skipif(
    not resizes_in_integers("bilinear"),  # before 0.20 not with AVX-512 either
    reason="torchvision resizes tensors in floating point here",
)


def unexpected(lines: Iterable[str]) -> list[str]:
    """Of lines about functions that are left as they are, those that this release does not explain.

    Lines of ``explain()`` may be given too.
    """
    known = [f"{name} is left as it is: " for name in LEFT_ALONE]
    return [line for line in lines if not any(words in line for words in known)]


def slower(said: str) -> list[str]:
    """What ``explain()`` says is slower, this release aside."""
    return unexpected(line for line in said.splitlines() if line.strip().startswith("slower: "))
