"""Transforms on deferred images: what torchvision draws and what it records, in fewer steps."""

from __future__ import annotations

import concurrent.futures
import copy
import io
import random
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.overrides import TorchFunctionMode
from torchvision import transforms, tv_tensors
from torchvision.transforms import functional, v2
from torchvision.transforms.v2 import functional as functional_v2

import releases
from combinations import combinations
from fastload._sources.deferred import (
    guarded,
    switch,
    thread_state,
    torch_resize,
    torchvision_transforms,
    torchvision_v2,
)
from fastload._sources.deferred.image import DeferredImage
from fastload._sources.deferred.switch import deferring
from fastload._sources.deferred.tensor import DeferredTensor

SIZES = [(32, 32), (37, 29), (200, 31), (31, 200), (36, 32)]

MODE = transforms.InterpolationMode

V1: dict[str, tuple[type, dict[str, Any]]] = {
    "crop": (transforms.RandomCrop, {"size": 32}),
    "crop of a rectangle": (transforms.RandomCrop, {"size": (20, 24)}),
    "padded crop": (transforms.RandomCrop, {"size": 32, "padding": 4}),
    "crop padded by two": (transforms.RandomCrop, {"size": 32, "padding": [3, 5], "fill": 7}),
    "crop padded by four": (
        transforms.RandomCrop,
        {"size": (32, 30), "padding": (1, 0, 3, 4), "fill": (1, 2, 3)},
    ),
    "crop that mirrors": (
        transforms.RandomCrop,
        {"size": 32, "padding": 4, "padding_mode": "reflect"},
    ),
    "crop with a fractional fill": (
        transforms.RandomCrop,
        {"size": 32, "padding": 2, "fill": 2.5},
    ),
    "crop that pads if needed": (transforms.RandomCrop, {"size": 40, "pad_if_needed": True}),
    "cropped by a border": (transforms.RandomCrop, {"size": 20, "padding": -3}),
    "resized crop": (transforms.RandomResizedCrop, {"size": 24}),
    "resized crop of extremes": (
        transforms.RandomResizedCrop,
        {"size": (32, 16), "scale": (0.9, 1.0), "ratio": (3.0, 4.0)},
    ),
    "nearest resized crop": (
        transforms.RandomResizedCrop,
        {"size": 8, "interpolation": MODE.NEAREST, "ratio": [1, 1]},
    ),
    "lanczos": (transforms.RandomResizedCrop, {"size": 8, "interpolation": MODE.LANCZOS}),
    "flip": (transforms.RandomHorizontalFlip, {}),
    "rare flip": (transforms.RandomHorizontalFlip, {"p": 0.1}),
    "certain flip": (transforms.RandomHorizontalFlip, {"p": 1}),
    "flip upside down": (transforms.RandomVerticalFlip, {"p": 0.3}),
    "jitter": (
        transforms.ColorJitter,
        {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
    ),
    "jitter of some colours": (transforms.ColorJitter, {"contrast": (0.5, 0.5), "hue": (0, 0.5)}),
    "jitter of nothing": (transforms.ColorJitter, {}),
    "gray at random": (transforms.RandomGrayscale, {"p": 0.5}),
    "gray by a chance that is no float": (transforms.RandomGrayscale, {"p": torch.tensor(0.5)}),
    "some at random": (
        transforms.RandomApply,
        {"transforms": [transforms.ColorJitter(0.3), transforms.RandomGrayscale(0.5)], "p": 0.8},
    ),
    "some always": (transforms.RandomApply, {"transforms": [transforms.ToTensor()], "p": 1}),
    "one never": (transforms.RandomApply, {"transforms": [transforms.ToTensor()], "p": 0.0}),
}

V2: dict[str, Any] = {
    "crop": v2.RandomCrop(20, padding=4),
    "resized crop": v2.RandomResizedCrop(16),
    "flip": v2.RandomHorizontalFlip(),
    "rare flip": v2.RandomVerticalFlip(0.1),
    "resize": v2.Resize((20, 21)),
    "jitter": v2.ColorJitter(0.4, 0.4, 0.4),
    "jitter of the hue": v2.ColorJitter(contrast=(0.2, 3.0), hue=0.5),
    "jitter of nothing": v2.ColorJitter(),
    "gray at random": v2.RandomGrayscale(0.5),
    "image": v2.ToImage(),
    "tensor": v2.PILToTensor(),
    "dtype of an image": v2.ToDtype(torch.float32, scale=True),
    "identity": v2.Identity(),
    "error of an image": v2.Normalize([0.5] * 3, [0.2] * 3),
    "chain": v2.Compose(
        [
            v2.RandomResizedCrop(16),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.2] * 3),
        ]
    ),
}


def opened(size: tuple[int, int] = (40, 36), mode: str = "RGB") -> Image.Image:
    """A deferred image; call it while deferring."""
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    made = Image.open(jpeg(pixels, mode, stream)).convert(mode)
    assert isinstance(made, DeferredImage)
    return made


def jpeg(pixels: np.ndarray, mode: str, stream: io.BytesIO) -> io.BytesIO:
    Image.fromarray(pixels).convert(mode).save(stream, "JPEG")
    return stream


def made(transform: Any, image: Any, seed: int) -> tuple[object, torch.Tensor]:
    """What ``transform`` records of ``image``, or its error; and the generator's state after it."""
    torch.manual_seed(seed)
    try:
        result = transform(image)
    except Exception as error:
        return (type(error), str(error)), torch.get_rng_state()
    return recorded(result), torch.get_rng_state()


def recorded(result: Any) -> object:
    if isinstance(result, (DeferredImage, DeferredTensor)):
        assert result.recording is not None
        return type(result), result.recording.operations, result.recording.size
    return np.asarray(result).tolist()


def same(one: tuple[object, torch.Tensor], other: tuple[object, torch.Tensor]) -> bool:
    return one[0] == other[0] and torch.equal(one[1], other[1])


@pytest.mark.parametrize(("name", "mode"), combinations([*V1], ["RGB", "L"]))
def test_v1_transforms_draw_and_record_what_torchvision_does(name: str, mode: str) -> None:
    kind, options = V1[name]
    own = kind(**options)
    inherited = type("Inherited", (kind,), {})(**options)  # is left to torchvision
    for size in SIZES:
        with deferring():
            image = opened(size, mode)
            for seed in range(12):
                assert same(made(own, image, seed), made(inherited, image, seed)), (size, seed)


@pytest.mark.parametrize("name", V2)
def test_v2_transforms_draw_and_record_what_they_do_in_a_structure(name: str) -> None:
    transform = V2[name]
    for size in SIZES:
        with deferring():
            image = opened(size)
            for seed in range(6):
                alone = made(transform, image, seed)
                in_tuple = made(lambda one: transform((one, "label"))[0], image, seed)
                assert same(alone, in_tuple), (size, seed)


RESIZES: dict[str, tuple[Any, ...]] = {
    "shorter side": (20,),
    "shorter side of a list": ([20],),
    "the side that it has": (36,),
    "longer side at most": (20, MODE.BICUBIC, 22),
    "longer side at most that": (20, MODE.BICUBIC, 20),
    "both sides": ((20, 30), MODE.NEAREST_EXACT),
    "both sides and a limit": ((20, 30), MODE.BILINEAR, 50),
    "the sides that it has": ([36, 40],),
    "a filter of Pillow's": ([9, 50], 1),
    "no filter of Pillow's": ([9, 50], 9),
    "without antialias": (12, MODE.BILINEAR, None, False),
    "with any antialias": (12, MODE.BILINEAR, None, None),
    "no side": (0,),
    "a negative side": ((20, -1),),
    "three sides": ((1, 2, 3),),
    "a side of NumPy's": (np.int64(20),),
}
CROPS: list[Any] = [20, (20,), [20, 31], (36, 40), (37, 20), 50, 0, (-3, 4), 7.0, (2, 3, 4)]


def tried(function: Any, *args: Any) -> object:
    """What ``function`` records, or whether it gives back the same; its error and its warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            made = function(*args)
            result = "the same" if made is args[0] else recorded(made)
        except Exception as error:
            result = type(error), str(error)
    return result, [str(one.message) for one in warned]


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(40, 36), (36, 40), (33, 33)])
def test_functions_record_what_torchvision_records(
    mode: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = [(functional.resize, *given) for given in RESIZES.values()]
    calls += [(functional.center_crop, given) for given in CROPS]
    calls += [(functional.crop, *given) for given in ((1, 2, 3, 4), (-3, 2, 50, 4), (0, 0, 0, 0))]
    calls += [(transforms.Resize(20),), (transforms.Resize([20, 30]),)]
    calls += [(transforms.CenterCrop(20),)]
    with deferring():
        ours = [tried(function, opened(size, mode), *given) for function, *given in calls]
        theirs = functional.get_dimensions
        monkeypatch.setattr(functional, "get_dimensions", lambda img: theirs(img))
        crop = functional.F_pil.crop
        monkeypatch.setattr(functional.F_pil, "crop", lambda *args: crop(*args))
        long_way = [tried(function, opened(size, mode), *given) for function, *given in calls]
    for call, short, long in zip(calls, ours, long_way, strict=True):
        assert short == long, call


@pytest.fixture
def exchanged_anew() -> Iterator[None]:
    switch.uninstall()
    yield
    switch.uninstall()


@pytest.mark.usefixtures("exchanged_anew")
@pytest.mark.parametrize(
    ("name", "wrong", "transform"),
    [
        ("two_below", lambda first, second: (0, 0), transforms.RandomCrop(24)),
        ("two_below", lambda first, second: (0, 0), transforms.RandomResizedCrop(24)),
        (
            "random_factors",
            lambda ranges: ([3, 2, 1, 0], [1.0, 1.0, 1.0, 0.1]),
            transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
        ),
    ],
)
def test_a_version_that_draws_otherwise_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any], transform: Any
) -> None:
    monkeypatch.setattr(torchvision_transforms, name, wrong)
    inherited = copy.copy(transform)
    inherited.__class__ = type("Inherited", (type(transform),), {})
    transform, inherited = transforms.Compose([transform]), transforms.Compose([inherited])
    before = torch.get_rng_state()
    with deferring():
        lines = [line for line in guarded.left_out() if ".Compose.__call__ is left" in line]
        assert len(lines) == 1, guarded.left_out()
        assert torch.equal(torch.get_rng_state(), before)
        image = opened()
        for seed in range(12):
            assert same(made(transform, image, seed), made(inherited, image, seed)), seed


@pytest.mark.parametrize("kind", [transforms.ColorJitter, v2.ColorJitter])
def test_jitter_keeps_and_drops_what_is_known_of_a_file_as_torchvision_does(kind: type) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (20, 20)).save(stream, "JPEG", dpi=(72, 72), comment=b"a comment")
    for options in ({"saturation": 0.5}, {"hue": 0.5}, {"saturation": 0.5, "contrast": 0.5}):
        own, other = kind(**options), type("Inherited", (kind,), {})(**options)
        for read_before in (False, True):
            with deferring():
                image = Image.open(stream)
                if read_before:
                    assert image.info
                assert own(image).info == other(image).info


@pytest.mark.parametrize("kind", [transforms.ColorJitter, v2.ColorJitter])
def test_a_hue_that_does_not_exist_is_torchvisions_error(kind: Any) -> None:
    for jitter in (kind(hue=0.5), type("Inherited", (kind,), {})(hue=0.5)):
        jitter.hue = (0.7, 0.8)
        with deferring(), pytest.raises(ValueError, match="is not in"):
            jitter(opened())


@pytest.mark.skipif(
    "torchvision.transforms.v2.Transform.forward" in releases.LEFT_ALONE,
    reason="this torchvision's v2 is left alone",
)
def test_the_usual_transforms_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    switch.install()
    assert releases.unexpected(guarded.left_out()) == []
    taken = []
    for name in (
        "_border",
        "random_box",
        "happens",
        "_takes",
        "random_adjustments",
    ):
        module = torchvision_v2 if name == "_takes" else torchvision_transforms
        ours = getattr(module, name)

        def spy(*args: Any, name: str = name, ours: Any = ours, **named: Any) -> Any:
            result = ours(*args, **named)
            taken.append((name, result is not None))
            return result

        monkeypatch.setattr(module, name, spy)
    chain = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomResizedCrop(16),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=1.0),
            transforms.RandomGrayscale(),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
            v2.ToImage(),
        ]
    )
    with deferring():
        chain(opened())
    names = ["_border", "random_box", "happens", "random_adjustments"]
    names += ["_takes", "happens", "_takes", "_takes"]
    assert taken == [(name, True) for name in names]


@pytest.mark.parametrize("p", [0.1, 0.2, 0.3, 0.5, 0.7, 1 / 3, 0.0, 1.0])
def test_a_chance_is_compared_as_torch_compares_it(
    p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = np.float32(p)
    for value in (near, np.nextafter(near, np.float32(-1)), np.nextafter(near, np.float32(2))):
        drawn = torch.tensor([value])
        real = types.SimpleNamespace(uniform_=lambda drawn=drawn: drawn)
        monkeypatch.setattr(torchvision_transforms, "_SCRATCH", types.SimpleNamespace(real=real))
        assert torchvision_transforms.happens(p) == bool(drawn < p)


def test_numbers_are_drawn_as_torch_draws_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torchvision_transforms._fills_alike()
    drawn: list[list[Any]] = []
    for fills in (True, False):
        monkeypatch.setattr(torchvision_transforms, "_fills_alike", lambda fills=fills: fills)
        assert torchvision_transforms._draws_into_scratch() is fills
        torch.manual_seed(4)
        drawn.append([torchvision_transforms.two_below(n, 3 * n) for n in range(1, 200)])
        drawn[-1] += [torchvision_transforms.two_below(n, 1 << 14) for n in (9999, 1 << 14)]
        drawn[-1] += [torchvision_transforms.happens(0.5) for _ in range(20)]
        drawn[-1] += [torchvision_transforms.random_factors(((0.5, 1.5),) * 4)]
        drawn[-1].append(torch.get_rng_state().tolist())
    assert drawn[0] == drawn[1]


def test_a_mode_of_the_users_sees_what_is_drawn() -> None:
    class Counting(TorchFunctionMode):
        seen = 0

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen += func is torch.rand
            return func(*args, **(kwargs or {}))

    with Counting() as counting:
        torchvision_transforms.happens(0.5)
    assert counting.seen == 1


def test_a_thread_may_draw_first_in_inference_mode() -> None:
    def draw() -> None:
        with torch.inference_mode():
            torchvision_transforms.happens(0.5)
        torchvision_transforms.happens(0.5)  # of a tensor made in that mode this would be an error

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(draw).result()


def test_torchs_default_dtype_decides_what_is_drawn() -> None:
    own, flip = transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip(0.3)
    inherited = type("Inherited", (transforms.RandomResizedCrop,), {})(16)
    other = type("Inherited", (transforms.RandomHorizontalFlip,), {})(0.3)
    torch.set_default_dtype(torch.float64)
    try:
        with deferring():
            image = opened()
            for seed in range(20):
                assert same(made(own, image, seed), made(inherited, image, seed))
                assert same(made(flip, image, seed), made(other, image, seed))
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_a_program_puts_in_the_place_of_torchvisions_functions_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crop = transforms.RandomCrop(32)
    monkeypatch.setattr(crop, "get_params", lambda image, size: (1, 2, 32, 32))
    with deferring():
        assert recorded(crop(opened()))[1][-1] == ("crop", 2, 1, 32, 32)  # type: ignore[index]
        theirs = functional.hflip
        called = []
        monkeypatch.setattr(functional, "hflip", lambda img: called.append(img) or theirs(img))
        transforms.RandomHorizontalFlip(1)(opened())
        assert len(called) == 1
        monkeypatch.setattr(functional, "adjust_hue", lambda img, hue_factor: "put there")
        assert transforms.ColorJitter(hue=0.1)(opened()) == "put there"
        monkeypatch.setattr(functional_v2, "adjust_hue", lambda img, hue_factor: "put there")
        with pytest.raises(ValueError, match="No kernel registered"):  # as torchvision asks for
            v2.ColorJitter(hue=0.1)(opened())
        monkeypatch.setattr(
            transforms.RandomResizedCrop,
            "get_params",
            staticmethod(lambda image, scale, ratio: (0, 0, 5, 6)),
        )
        operations = recorded(transforms.RandomResizedCrop(16)(opened()))[1]  # type: ignore[index]
        assert ("crop", 0, 0, 6, 5) in operations


def test_a_hook_on_a_transform_is_called() -> None:
    flip = transforms.RandomHorizontalFlip(1)
    seen = []
    flip.register_forward_hook(lambda module, given, result: seen.append(result))
    with deferring():
        result = flip(opened())
    assert seen[0] is result


USUAL = [
    transforms.RandomCrop(32, padding=4),
    transforms.ColorJitter(0.3, 0.3, 0.3, 0.1),
    transforms.RandomHorizontalFlip(),
    transforms.RandomResizedCrop(16),
    transforms.ToTensor(),
    transforms.Normalize([0.5, 0.4, 0.3], [0.2] * 3),
]


def one_by_one(image: Any) -> Any:
    for transform in USUAL:
        image = transform(image)
    return image


def test_a_chain_draws_and_records_what_its_transforms_do_by_themselves() -> None:
    chain = transforms.Compose(USUAL)
    with deferring():
        image = opened()
        for seed in range(20):
            assert same(made(chain, image, seed), made(one_by_one, image, seed)), seed
        assert recorded(image) == recorded(opened())


def test_what_a_program_sees_within_a_chain_stays_as_it_was() -> None:
    seen: list[tuple[Any, object]] = []

    def look(value: Any) -> Any:
        seen.append((value, recorded(value)))
        return value

    chain = transforms.Compose([step for one in USUAL for step in (one, look)])
    with deferring():
        for seed in range(10):
            torch.manual_seed(seed)
            chain(opened())
        assert len(seen) == 60
        for value, was in seen:
            assert recorded(value) == was


def test_a_chain_calls_what_a_program_has_changed_in_it() -> None:
    flip, seen = transforms.RandomHorizontalFlip(1), []
    chain = transforms.Compose([flip, transforms.ToTensor()])
    with deferring():
        assert recorded(chain(opened()))[1][-2:] == (("flip", False), ("to_tensor",))  # type: ignore[index]
        chain.transforms[0] = transforms.RandomCrop((4, 5))
        assert recorded(chain(opened()))[2] == (5, 4)  # type: ignore[index]
        flip.p = 0.0
        chain.transforms = [flip, transforms.ToTensor()]
        assert ("flip", False) not in recorded(chain(opened()))[1]  # type: ignore[index]
    with deferring(), thread_state.batch(thread_state.BatchContext()):
        chain(opened())
        handle = flip.register_forward_hook(lambda module, given, result: seen.append(result))
        chain(opened())
        handle.remove()
        chain(opened())
    assert len(seen) == 1


ON_TENSORS = [
    v2.ToImage(),
    v2.RandomResizedCrop((20, 24), antialias=True),
    v2.RandomHorizontalFlip(1.0),
    v2.Resize(18),
    v2.CenterCrop(16),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize([0.5, 0.4, 0.3], [0.2] * 3),
]

needs_v2 = pytest.mark.skipif(
    "torchvision.transforms.v2.Compose.forward" in releases.LEFT_ALONE,
    reason="this torchvision's v2 is left alone",
)


@needs_v2
@pytest.mark.skipif(
    torch_resize.filter_of("bilinear") is None,
    reason="torchvision resizes tensors in floating point here",
)
def test_a_chain_of_v2_makes_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = v2.Compose(ON_TENSORS)
    makes, count = DeferredTensor._of.__func__, []  # type: ignore[attr-defined]

    def counted(kind: Any, memory: Any) -> Any:
        count.append(kind)
        return makes(kind, memory)

    with deferring():
        chain(opened())  # which has proved itself now
        monkeypatch.setattr(DeferredTensor, "_of", classmethod(counted))
        result = chain(opened())
    assert count == [type(result)]
    assert isinstance(result, tv_tensors.Image)


@needs_v2
@pytest.mark.parametrize("step", ON_TENSORS[:-1], ids=lambda step: type(step).__name__)
def test_a_chain_of_v2_calls_what_a_program_has_changed_in_it(
    step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, seen = v2.Compose(ON_TENSORS), []
    watched = ("make_params", "transform", "check_inputs", "_call_kernel", "forward")

    def ran() -> bool:
        seen.clear()
        with thread_state.batch(thread_state.BatchContext()):
            chain(opened())
        return bool(seen)

    with deferring():
        assert not ran()
        for name in watched:
            original = getattr(step, name)

            def watch(*args: Any, name: str = name, original: Any = original, **given: Any) -> Any:
                seen.append(name)
                return original(*args, **given)

            with monkeypatch.context() as changed:
                changed.setattr(step, name, watch)
                assert ran() or (name == "_call_kernel" and isinstance(step, v2.ToImage))
            with monkeypatch.context() as changed:
                changed.setattr(
                    type(step), name, lambda self, *args, **given: watch(*args, **given)
                )
                assert ran() or (name == "_call_kernel" and isinstance(step, v2.ToImage))
        handle = step.register_forward_hook(lambda module, given, result: seen.append(result))
        assert ran()
        handle.remove()
        assert not ran()


@needs_v2
def test_a_chain_of_v2_leaves_samples_and_masks_to_torchvision() -> None:
    chain = v2.Compose(ON_TENSORS[:5])
    outcomes = []
    for image in (opened, lambda: opened().materialise()):
        with deferring():
            given = image()
            mask = tv_tensors.Mask(torch.arange(40 * 36).reshape(36, 40))
            torch.manual_seed(4)
            first, second = chain({"image": given, "mask": mask, "label": 3}), chain(given, mask)
            outcomes.append([first["label"], *second, first["image"], first["mask"]])
    for deferred, real in zip(*outcomes, strict=True):
        assert isinstance(deferred, type(real))
        assert np.array_equal(np.asarray(deferred), np.asarray(real))


LABELS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "label": lambda image: (image, 3),
    "labels": lambda image: (torch.arange(3), image, "name", None),
    "sample": lambda image: ({"image": image, "target": {"label": 3, "of": [1.5, True]}},),
    "pair": lambda image: ((image, 7),),
}


@needs_v2
@pytest.mark.parametrize("name", LABELS)
def test_a_chain_of_v2_takes_labels_with_an_image(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied = v2.RandomApply([v2.ColorJitter(0.4), v2.RandomHorizontalFlip()])
    chain, outcomes = v2.Compose([v2.ToImage(), applied, *ON_TENSORS[1:]]), []
    for image in (lambda: opened().materialise(), opened):
        with deferring():
            chain(opened(), 1)  # which has proved itself now
            if image is opened:  # no transform is called
                monkeypatch.setattr(v2.Transform, "forward", None)
                monkeypatch.setattr(v2.Transform, "_needs_transform_list", None)
            torch.manual_seed(4)
            made = chain(*LABELS[name](image()))
        leaves, spec = torch.utils._pytree.tree_flatten(made)
        kinds = [getattr(type(leaf), "stands_for", type(leaf)) for leaf in leaves]
        values = [np.asarray(leaf).tolist() for leaf in leaves]
        outcomes.append((str(spec), kinds, values, torch.get_rng_state().tolist()))
    assert outcomes[0] == outcomes[1]


@needs_v2
def test_a_sample_that_no_transform_changes_is_given_back() -> None:
    never = v2.RandomHorizontalFlip(0.0)
    with deferring():
        sample = (opened(), 3)
        assert v2.Compose([never, v2.RandomApply([never], 0.5)])(sample) is sample
        assert v2.Compose([never, v2.ColorJitter()])(sample) is not sample


@needs_v2
def test_labels_are_torchvisions_where_an_image_is_not_known_as_one() -> None:
    chain = v2.Compose([v2.ToImage(), v2.ToPureTensor(), v2.ToDtype(torch.float32, scale=True)])
    made = []
    for image in (opened, lambda: opened().materialise()):
        with deferring():
            made.append(chain(torch.arange(3), image()))
    for deferred, real in zip(*made, strict=True):
        assert np.array_equal(np.asarray(deferred), np.asarray(real))
        assert deferred.dtype == real.dtype
    of_v1 = transforms.RandomApply([v2.RandomHorizontalFlip()])
    with deferring(), pytest.raises(TypeError):
        v2.Compose([v2.ToImage(), of_v1])(opened(), 3)


def test_what_a_step_of_random_apply_gives_may_be_the_users_to_keep() -> None:
    kept: list[Any] = []

    def remember(image: Any) -> Any:
        kept.append(image.resize((20, 20)))
        return kept[-1]

    chain = transforms.Compose(
        [transforms.RandomApply([remember], 1.0), transforms.RandomHorizontalFlip(1.0)]
    )
    with deferring():
        flipped = chain(opened())
        assert flipped is not kept[0]
        before = recorded(kept[0])
        assert recorded(flipped)[1] != before[1]  # type: ignore[index]


def test_steps_of_random_apply_may_change_between_samples() -> None:
    applied = transforms.RandomApply([transforms.Resize(20)], 1.0)
    chain = transforms.Compose([applied])
    with deferring():
        assert chain(opened()).size != (9, 9)
        applied.transforms = [transforms.Resize(20), transforms.Resize((9, 9))]
        assert chain(opened()).size == (9, 9)


def test_a_step_of_random_apply_that_gives_nothing_runs_once() -> None:
    calls: list[Any] = []
    chain = transforms.Compose([transforms.RandomApply([calls.append], 1.0)])
    with deferring():
        assert chain(opened()) is None
    assert len(calls) == 1


def test_what_is_not_deferred_is_torchvisions() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (40, 44, 3), np.uint8)
    chain = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    for given in (Image.fromarray(pixels), torch.from_numpy(pixels).permute(2, 0, 1)):
        for transform in (*chain, v2.RandomCrop(20), v2.RandomHorizontalFlip()):
            torch.manual_seed(3)
            one = transform(given)
            torch.manual_seed(3)
            kind = type("Inherited", (type(transform),), {})
            other = kind.__new__(kind)
            other.__dict__.update(transform.__dict__)
            assert np.array_equal(np.asarray(one), np.asarray(other(given)))


def test_transforms_can_still_be_scripted() -> None:
    with deferring():
        pass  # which redirects
    chain = torch.nn.Sequential(transforms.RandomHorizontalFlip(1.0), transforms.RandomCrop(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script is deprecated
        scripted = torch.jit.script(chain)
    image = torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)
    assert torch.equal(scripted(image), image.flip(-1))


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_a_model_that_calls_torchvision_can_still_be_compiled() -> None:
    with deferring():
        pass  # which redirects

    def model(images: torch.Tensor) -> torch.Tensor:
        small = functional.resize(functional.crop(images, 1, 2, 12, 12), [8, 8])
        return small + transforms.CenterCrop(8)(images)

    images = torch.rand(1, 3, 16, 16)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images), model(images))
    normalized = torch.compile(lambda x: functional.normalize(x, [0.5], [0.5]), backend="eager")
    assert torch.equal(normalized(images), images * 2 - 1)


def test_random_programs_of_settings_agree() -> None:
    chosen = random.Random(5)
    for seed in range(60):
        low, high = sorted(chosen.uniform(0.01, 1.3) for _ in range(2))
        options = {
            "size": (chosen.randint(1, 40), chosen.randint(1, 40)),
            "scale": (low, high),
            "ratio": tuple(sorted(chosen.uniform(0.1, 5) for _ in range(2))),
        }
        own = transforms.RandomResizedCrop(**options)
        inherited = type("Inherited", (transforms.RandomResizedCrop,), {})(**options)
        with deferring():
            image = opened((chosen.randint(1, 300), chosen.randint(1, 300)))
            assert same(made(own, image, seed), made(inherited, image, seed)), options
