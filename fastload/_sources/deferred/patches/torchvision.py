"""What fastload exchanges in torchvision.

``torchvision_transforms.py`` has what comes to the recording in fewer steps, ``torchvision_io.py``
what reads files. The others are here; ``torchvision_v2.py`` has those of v2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
import torchvision.io  # noqa: F401 - whose functions are exchanged
from torchvision import transforms

from ...._base.pixel_limit import is_within
from .. import agreement, torch_blur, torchvision_io
from .. import torchvision_transforms as fewer_steps
from ..from_array import deferred_array, may_defer
from ..guarded import Function
from ..image import PLAIN, DeferredImage, sides_of, waiting
from ..tensor import Deferred, DeferredTensor, like, pending
from ..thread_state import OF_MODE, cause
from .patch import Patch
from .proof import Proof, ProofInputs, Same, jpeg, path_of, values

# torchvision on images.


def _pad(original: Function) -> Function:
    def pad(img: Any, padding: Any, fill: Any = 0, padding_mode: Any = "constant") -> Any:
        padded = _padded(img, padding, fill, padding_mode) if waiting(img) else None
        return original(img, padding, fill, padding_mode) if padded is None else padded

    return pad


def _padded(img: DeferredImage, padding: Any, fill: Any, padding_mode: Any) -> DeferredImage | None:
    """None: it is not recorded here. A constant border is left to ``ImageOps.expand``."""
    if img._mode not in PLAIN or padding_mode not in ("edge", "reflect", "symmetric"):
        return None
    if not isinstance(padding, (int, tuple, list)):
        return None
    values = padding if isinstance(padding, int) else tuple(padding)
    if isinstance(values, tuple) and len(values) == 1:
        values = values[0]
    sides = sides_of(values)
    if sides is None or not (fill is None or isinstance(fill, (int, float, tuple, list))):
        return None
    w, h = img._size
    if not is_within(w + sides[0] + sides[2], h + sides[1] + sides[3]):
        return None
    return img._then(("pad", *sides, padding_mode))


def _adjust_hue(original: Function) -> Function:
    def adjust_hue(img: Any, hue_factor: Any) -> Any:
        if waiting(img) and img._mode == "RGB" and type(hue_factor) in (int, float):
            if -0.5 <= hue_factor <= 0.5:
                return img._then(("hue", hue_factor))
        return original(img, hue_factor)

    return adjust_hue


def _to_grayscale(original: Function) -> Function:
    def to_grayscale(img: Any, num_output_channels: Any) -> Any:
        if waiting(img) and img._mode in PLAIN and num_output_channels == 3:
            gray = img._then(("convert", "L"), ("convert", "RGB"))
            gray._info = {}
            return gray
        return original(img, num_output_channels)

    return to_grayscale


def gaussian_blurrer(v2: bool) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def gaussian_blur(img: Any, kernel_size: Any, sigma: Any = None) -> Any:
            if waiting(img) and img._mode in PLAIN and fewer_steps.made_on_the_cpu():
                blur = torch_blur.recorded(img._size, kernel_size, sigma, v2)
                if blur is not None:
                    return img._then(("kernel_blur", v2, *blur))
            return original(img, kernel_size, sigma)

        return gaussian_blur

    return make


# torchvision, from images to tensors, and on those.


def _to_tensor(name: str) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def to_tensor(pic: Any) -> Any:
            if type(pic) is np.ndarray and name == "to_tensor" and may_defer(pic):
                if min(pic.strides) >= 0:  # else torch has to say what it does not take
                    pic = deferred_array(pic)
            if waiting(pic):
                memory = fewer_steps.to_tensor(pic, name)
                if memory is not None:
                    return DeferredTensor._of(memory)
                if pic._real is None and pic._mode not in fewer_steps.BYTES:
                    with cause(f"{name}{OF_MODE}{pic._mode}"):
                        pic.materialise().load()
            return original(pic)

        return to_tensor

    return make


def _to_pil_image(original: Function) -> Function:
    """The image that a tensor of it came from. Its ``info`` is not the file's."""

    def to_pil_image(pic: Any, mode: Any = None) -> Any:
        if pending(pic) and pic._memory.alone and mode in (None, pic._memory.mode):
            *before, last = pic._memory.operations
            if pic._memory.mode in PLAIN and last[0] in _comes_back():
                return DeferredImage.of_pixels(
                    pic._memory.recording()._replace(operations=tuple(before))
                )
        return original(pic, mode)

    return to_pil_image


@functools.cache
def _comes_back() -> frozenset[str]:
    """Operations of which ``to_pil_image`` gives every level back."""
    levels = torch.arange(256, dtype=torch.uint8, device="cpu")
    as_floats = levels.to(torch.float32).div(255).mul(255).byte()
    return frozenset(("to_image", "to_tensor") if torch.equal(levels, as_floats) else ("to_image",))


def normalizer(marked: bool) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def normalize(tensor: Any, mean: Any, std: Any, inplace: Any = False) -> Any:
            memory = None
            if pending(tensor) and not (marked and tensor._memory.size == fewer_steps.ONE_PIXEL):
                memory = fewer_steps.normalized(tensor._memory, mean, std, bool(inplace))
            if memory is None:
                return original(tensor, mean, std, inplace)
            return like(tensor, memory, marked)

        return normalize

    return make


def _wrap(original: Function) -> Function:
    """What v2 makes of the result for a marked image: an image, deferred or not."""

    def wrap(wrappee: Any, like: Any, **kwargs: Any) -> Any:
        if isinstance(like, Deferred):
            return wrappee.as_subclass(type(like).stands_for)
        return original(wrappee, like=like, **kwargs)

    return wrap


# The list.


# A usual size, and those without room for the usual ratios, which are too narrow and too wide.
SIZES: Final = ((50, 37), (4, 40), (7, 1))


def _composed(call: Function, inputs: ProofInputs) -> Any:
    """What every step of a Compose makes, with either outcome of those that are drawn."""
    crop = transforms.Compose([transforms.RandomResizedCrop(6), transforms.ToTensor()])
    others = transforms.Compose(
        [
            transforms.RandomCrop(8, padding=2),
            transforms.RandomHorizontalFlip(),
            transforms.RandomVerticalFlip(),
            transforms.Resize(9),
            transforms.CenterCrop((7, 8)),
            transforms.ColorJitter((0.6, 1.4), (0.0, 2.0), (0.3, 0.3), (-0.1, 0.1)),
            transforms.RandomApply([transforms.ColorJitter(contrast=0.5, hue=(0.0, 0.5))]),
            transforms.ToTensor(),
            transforms.Normalize([0.5, 0.4, 0.3], [0.2] * 3),
        ]
    )
    crops = [call(crop, inputs.image.resize(size)) for size in SIZES]
    return [*crops, call(others, inputs.image), call(others, inputs.image)]


# Whether the core has torch's bits is found out for each size: ``torch_blur.py``.
BLURS: Final = Same(lambda blur, inputs: blur(inputs.image, [3, 5], [1.3, 0.7]))


def _and_decodes(same: Proof) -> Proof:
    """Whether JPEGs of every usual kind are decoded as by the core, and the proof."""

    def proof(original: Function, ours: Function) -> str:
        def theirs(data: bytes) -> np.ndarray:
            decoded = original(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            values: np.ndarray = decoded.permute(1, 2, 0).numpy()
            return values[:, :, 0] if values.shape[2] == 1 else values

        return agreement.fault(theirs) or same(original, ours)

    return proof


def _of_file(read: Function, inputs: ProofInputs) -> Any:
    with path_of(jpeg()) as path:  # a mode by its name: not before 0.20
        return values(read(path, "UNCHANGED"))  # while it is there


def _of_bytes(decode: Function, inputs: ProofInputs) -> Any:
    data = torch.frombuffer(bytearray(jpeg()), dtype=torch.uint8)
    return decode(data, "UNCHANGED")


def _of_either(decode: Function, inputs: ProofInputs) -> Any:
    return _of_file(decode, inputs), values(_of_bytes(decode, inputs))


_PIXELS: Final = "it asks for the pixels, which makes the image then and there, one at a time"
_VALUES: Final = "torch's own functions would need the values, one image at a time"
STEPS: Final = "it draws and records the same in fewer steps"
_PHOTOS: Final = "photos: 9.9 times DataLoader with 0 workers, 6.3 with 2 (any-dataset, train)"
_VIEWS: Final = "two views with jitter, grayscale, blur: 7 to 8 times DataLoader (moco-v3, simsiam)"
_CPU: Final = "CPU per image without fewer steps: 1.26 on photos, 1.85 on 32x32 JPEGs"
EXACT: Final = "none: without it a deferred image would get what is meant for others"

PATCHES: Final = [
    Patch(
        names=("torchvision.tv_tensors.wrap.__wrapped__", "torchvision.tv_tensors.wrap"),
        ours=_wrap,
        why="it would make a deferred image of values",
        kept_by=EXACT,
        proof=Same(lambda wrap, inputs: wrap(torch.eye(3), like=inputs.marked().levels)),
        needed=True,
    ),
    Patch(
        names=("torchvision.transforms._functional_pil.adjust_hue",),
        ours=_adjust_hue,
        why=_PIXELS,
        kept_by=_VIEWS,
        proof=Same(lambda adjust_hue, inputs: adjust_hue(inputs.image, 0.1)),
    ),
    Patch(
        names=("torchvision.transforms._functional_pil.to_grayscale",),
        ours=_to_grayscale,
        why=_PIXELS,
        kept_by=_VIEWS,
        proof=Same(lambda to_grayscale, inputs: to_grayscale(inputs.image, 3)),
    ),
    Patch(
        names=("torchvision.transforms.functional.gaussian_blur",),
        ours=gaussian_blurrer(v2=False),
        why=_PIXELS,
        kept_by=_VIEWS,
        proof=BLURS,
    ),
    Patch(
        names=("torchvision.transforms.functional.to_tensor",),
        ours=_to_tensor("to_tensor"),
        why=_PIXELS,
        kept_by=_PHOTOS,
        proof=Same(lambda to_tensor, inputs: to_tensor(inputs.image)),
        in_usual_state=True,
    ),
    Patch(
        names=("torchvision.transforms.functional.to_pil_image",),
        ours=_to_pil_image,
        why="the small image of super-resolution is made of the tensor of the large one: "
        + _PIXELS,
        kept_by="SRGAN (scripts)",
        proof=Same(lambda to_pil_image, inputs: to_pil_image(inputs.levels)),
    ),
    Patch(
        names=("torchvision.transforms.functional.pil_to_tensor",),
        ours=_to_tensor("to_image"),
        why=_PIXELS,
        kept_by="timm's collate of uint8: 5.3 times DataLoader (pytorch-image-models)",
        proof=Same(lambda pil_to_tensor, inputs: pil_to_tensor(inputs.image)),
    ),
    Patch(
        names=("torchvision.transforms.functional.normalize",),
        ours=normalizer(marked=False),
        why=_VALUES,
        kept_by=_PHOTOS,
        proof=Same(lambda normalize, inputs: normalize(inputs.tensor, [0.5, 0.4, 0.3], [0.2] * 3)),
    ),
    Patch(
        names=("torchvision.transforms._functional_pil.pad",),
        ours=_pad,
        why="reflected borders need the pixels",
        kept_by="CIFAR10 with a reflected border, as kuangliu/pytorch-cifar's with padding",
        proof=Same(lambda pad, inputs: pad(inputs.image, [1, 2], 0, "reflect")),
    ),
    Patch(
        names=("torchvision.transforms.functional.resize",),
        ours=fewer_steps.resize,
        why=STEPS + "; of a tensor torch would need the values",
        kept_by=_CPU,
        proof=Same(lambda resize, inputs: resize(inputs.image, [4, 5])),
    ),
    Patch(
        names=("torchvision.transforms.Compose.__call__",),
        ours=fewer_steps.composer(
            transforms.Compose, lambda: fewer_steps.RECORDED_TRANSFORMS, fewer_steps.APPLIES
        ),
        why=STEPS,
        kept_by="a seventh of the CPU per image on 32x32 JPEGs, and of the bytecodes",
        proof=Same(_composed, seeds=(1,)),
        in_usual_state=True,
    ),
    Patch(
        names=("torchvision.io.read_image",),
        ours=torchvision_io.reader(warnings=3),
        why="it gives deferred tensors, on a thread that defers",
        kept_by=_PHOTOS,
        proof=Same(_of_file),
    ),
    Patch(
        names=("torchvision.io.decode_image",),
        ours=torchvision_io.reader(warnings=2),
        why="it gives deferred tensors, on a thread that defers",
        kept_by=_PHOTOS,
        proof=_and_decodes(Same(_of_either)),
    ),
]
"""torchvision's functions that are exchanged.

v1's ``convert_image_dtype`` and ``erase`` are not among them: what they ask of a tensor is
recorded. Nor are the forwards of v1's transforms, which most programs put into a ``Compose``.
"""
