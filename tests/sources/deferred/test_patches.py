"""Another release of a library costs speed, never pixels: what fails its proof is left out."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import torchvision.io
import torchvision.transforms.v2
from torch.utils.data import Dataset
from torchvision import tv_tensors

import fastload
import releases
import warm
from fastload import FastLoader
from fastload._base.named import named
from fastload._sources.deferred import batch, guarded, lowering, redirect, switch, torch_blur
from fastload._sources.deferred.patches import patch as patches
from fastload._sources.deferred.patches import pillow
from fastload._sources.deferred.patches import torch as of_torch
from fastload._sources.deferred.patches import torchvision as of_torchvision
from fastload._sources.deferred.patches import torchvision_v2 as of_v2
from fastload._sources.deferred.patches.patch import Patch
from fastload._transforms.in_integers import resizes_in_integers
from sides import side_by_side

ALL = [*pillow.PATCHES, *of_torchvision.PATCHES, *of_v2.PATCHES, *of_torch.PATCHES]
KERNELS = of_v2.KERNELS

_NUMBERS = itertools.count()


# Where torchvision says that its functions will move to another package.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")


@pytest.fixture(autouse=True)
def exchanged_anew() -> Iterator[None]:
    for proven in (False, True):
        fastload.uninstall()
        batch.kernel_of.cache_clear()  # whose tables the library's functions have made
        lowering.ramp.cache_clear()
        lowering.table_before.cache_clear()
        if not proven:
            yield


class Given:
    """What a proof's call is given, of a photo that the user's code opens."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def marked(self) -> Given:
        return self

    @property
    def array(self) -> np.ndarray:
        return np.asarray(self.image)

    @property
    def image(self) -> Any:
        return PIL.Image.open(self._path).convert("RGB")

    def source(self, name: str) -> Any:
        if name == "read_image":
            return str(self._path)
        return torch.frombuffer(bytearray(self._path.read_bytes()), dtype=torch.uint8)

    @property
    def tensor(self) -> Any:
        return torchvision.transforms.functional.to_tensor(self.image)

    @property
    def levels(self) -> Any:
        return torchvision.transforms.v2.functional.to_image(self.image)


class Calls(Dataset[Any]):
    """Samples of the call that a proof makes, after the usual beginning of a transform."""

    def __init__(self, paths: list[Path], call: Callable[[Any], Any]) -> None:
        self.paths = paths
        self.call = call

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        made = self.call(Given(self.paths[index]))
        if isinstance(made, PIL.Image.Image):
            made = torchvision.transforms.functional.to_tensor(made)
        return made


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{i}.jpg" for i in range(4)]
    rng = np.random.default_rng(0)
    for path in paths:
        pixels = rng.integers(0, 256, (9, 10, 3), np.uint8)
        PIL.Image.fromarray(pixels).resize((90, 80)).save(path)
    return paths


def _changed(result: Any) -> Any:
    """Other pixels."""
    if isinstance(result, PIL.Image.Image):
        return result.point([255 - level for level in range(256)] * len(result.getbands()))
    if isinstance(result, torch.Tensor):
        made = result.flip(-1)
        return made.as_subclass(tv_tensors.Image) if isinstance(result, tv_tensors.Image) else made
    return result + 1 if isinstance(result, int) else result


def _stand_in(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    """Give a function code that makes other pixels, with the same parameters."""
    code, called = function.__code__, f"stand-in {next(_NUMBERS)}"
    original = types.FunctionType(code, function.__globals__, "original", function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__
    by_position = redirect._by_position(original)

    def other(*args: Any, **kwargs: Any) -> Any:
        made = by_position(*args, **kwargs)
        if function.__name__ == "__init__":
            args[0].degenerate = _changed(args[0].degenerate)
        return _changed(made)

    stub = redirect._stub(code, called)
    assert stub is not None
    monkeypatch.setitem(function.__globals__, called, other)
    monkeypatch.setattr(function, "__code__", stub)


def _name(patch: Patch) -> str:
    return patch.names[0]


def _call(patch: Patch) -> Callable[[Any], Any]:
    """The call of a patch's proof, with the function as a program finds it."""
    function = named(*patch.names)
    found = patch.proof
    for cell in getattr(found, "__closure__", None) or ():
        if hasattr(cell.cell_contents, "call"):
            found = cell.cell_contents
    if patch.names[0].startswith("torchvision.io."):
        return lambda given: function(given.source(function.__name__))
    call: Callable[[Any, Any], Any] = getattr(found, "call")  # noqa: B009
    return lambda given: call(function, given)


@pytest.mark.native
@pytest.mark.parametrize("patch", ALL, ids=_name)
def test_a_function_that_gives_other_pixels_is_left_out(
    patch: Patch, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = named(*patch.names)
    _stand_in(monkeypatch, function)
    stand_in = function.__code__
    # Two only change what they ask the original. Blurs are compared for each size.
    asks_the_original = patch.needed and function.__name__ != "wrap"
    asks_the_original |= function.__name__ == "gaussian_blur"
    dataset = Calls(photos, _call(patch))
    side_by_side(dataset, batch_size=2, num_workers=0, epochs=1)
    loader = FastLoader(dataset, 2)
    list(loader)
    if asks_the_original:
        return
    said = loader.explain()
    assert f"slower: {patch.names[0]} is left as it is: " in said
    assert function.__code__ is stand_in
    assert function not in redirect.redirected()
    if patch.needed:
        assert loader.stats()["images_deferred"] == 0


@pytest.mark.native
@pytest.mark.parametrize("patch", ALL, ids=_name)
def test_the_function_of_this_release_proves_itself(patch: Patch, photos: list[Path]) -> None:
    side_by_side(Calls(photos, _call(patch)), batch_size=2, num_workers=0, epochs=1)
    if patch.names[0] in releases.LEFT_ALONE:
        pytest.skip("this release's is left alone")
    assert not [line for line in guarded.left_out() if line.startswith(f"{patch.names[0]} ")]
    assert named(*patch.names) in redirect.redirected()


@pytest.mark.native
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_kernel_that_gives_other_pixels_is_left_out(
    kernel: of_v2.Kernel, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel.name == "resize" and not resizes_in_integers("bilinear"):
        pytest.skip("torchvision resizes tensors in floating point here, so nothing asks for it")
    monkeypatch.setattr(torch_blur, "_alike", {})  # what was compared before
    function = getattr(torchvision.transforms.v2.functional, kernel.name)
    registry = named("torchvision.transforms.v2.functional._utils._KERNEL_REGISTRY")[function]
    for _, base in kernel.kinds:
        theirs = registry[base]

        @functools.wraps(theirs)
        def other(*args: Any, theirs: Any = theirs, **kwargs: Any) -> Any:
            return _changed(theirs(*args, **kwargs))

        monkeypatch.setitem(registry, base, other)
    calls = {
        "normalize": lambda given: function(given.tensor, [0.5] * 3, [0.2] * 3),
        "to_dtype": lambda given: function(given.levels, torch.float32, True),
        "resize": lambda given: function(given.levels, [20, 30]),
        "resized_crop": lambda given: function(given.levels, 1, 2, 30, 30, [20, 30]),
    }
    values: dict[str, tuple[Any, ...]] = {
        "adjust_hue": (0.2,),
        "posterize": (3,),
        "solarize": (100,),
        "autocontrast": (),
        "equalize": (),
        "invert": (),
        "affine": (0.0, [2, 3], 1.0, [0.0, 0.0]),
        "rotate": (30.0,),
        "gaussian_blur": ([3, 3], [1.0, 1.0]),
        "rgb_to_grayscale": (3,),
        "permute_channels": ([2, 0, 1],),
        "pad": ([1, 2, 3, 4], [9, 8, 7]),
    }
    given = values.get(kernel.name, (0.6,))
    of_images = any(base is PIL.Image.Image for _, base in kernel.kinds)
    call = calls.get(kernel.name, lambda of: function(of.image if of_images else of.levels, *given))
    dataset = Calls(photos, call)
    side_by_side(dataset, batch_size=2, num_workers=0, epochs=2)
    if kernel.name == "gaussian_blur":  # compared for each size
        return
    where = f"torchvision.transforms.v2.functional.{kernel.name}"
    assert any(line.startswith(f"{where} is left as it is: ") for line in guarded.left_out())
    for kind, base in kernel.kinds:
        assert registry[kind] is registry[base]


@pytest.mark.native
@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        *itertools.product(("adjust_contrast", "adjust_hue", "vertical_flip"), (True, False)),
        ("pad", True),  # with images a crop calls it
    ],
)
def test_a_chain_of_which_a_kernel_gives_other_pixels_is_left_out(
    name: str, tensors: bool, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = getattr(torchvision.transforms.v2.functional, name)
    registry = named("torchvision.transforms.v2.functional._utils._KERNEL_REGISTRY")[function]
    kind = tv_tensors.Image if tensors else PIL.Image.Image
    theirs = registry[kind]

    def other(*args: Any, **kwargs: Any) -> Any:
        return _changed(theirs(*args, **kwargs))

    monkeypatch.setitem(registry, kind, other)
    v2 = torchvision.transforms.v2
    steps = [
        v2.RandomCrop(40, padding=3),
        v2.RandomVerticalFlip(),
        v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
    ]
    chain = v2.Compose([v2.ToImage(), *steps] if tensors else [*steps, v2.ToImage()])
    side_by_side(Calls(photos, lambda given: chain(given.image)), batch_size=2, num_workers=0)
    where = "torchvision.transforms.v2.Compose.forward"
    assert any(line.startswith(f"{where} is left as it is: ") for line in guarded.left_out())


@pytest.mark.native
def test_a_function_that_is_not_there_is_left_out(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(PIL.Image, "blend")
    loader = FastLoader(Calls(photos, lambda given: given.tensor), 2)
    list(loader)
    assert "slower: PIL.Image.blend is left as it is: this release has no such" in loader.explain()
    assert loader.stats()["images_deferred"] == 4


@pytest.mark.native
def test_without_a_function_that_is_needed_nothing_is_deferred(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torchvision.transforms.v2._utils, "_get_fill")
    dataset = Calls(photos, lambda given: given.tensor)
    side_by_side(dataset, batch_size=2, num_workers=0, epochs=1)
    loader = FastLoader(dataset, 2)
    list(loader)
    assert "_get_fill is left as it is: without it nothing is deferred" in loader.explain()
    assert loader.stats()["images_deferred"] == 0
    fastload.uninstall()
    assert patches.MISSING == []


_WITHOUT_PRIVATE_NAMES = """
import sys, types
import numpy as np, PIL.Image, torch, torchvision
import torchvision.transforms.v2 as v2
import torchvision.transforms.functional as functional
from torchvision.transforms.v2.functional import _geometry, _utils
from torchvision.tv_tensors import _torch_function_helpers
for module, name in (
    (_geometry, "_compute_resized_output_size"), (_utils, "_KERNEL_REGISTRY"),
    (_torch_function_helpers, "_must_return_subclass"),
    (functional, "_compute_resized_output_size"), (v2._utils, "_get_fill"),
):
    delattr(module, name)
for name in ("_functional_pil", "_functional_tensor"):
    delattr(torchvision.transforms, name)
    sys.modules[f"torchvision.transforms.{name}"] = None
import fastload
from fastload._sources.deferred import completion, record_images, switch, guarded
switch.install()
for line in guarded.left_out():
    print(line)
"""


@pytest.mark.native
def test_absent_private_names_break_no_import() -> None:
    said = warm.run(["-c", _WITHOUT_PRIVATE_NAMES], finalize=False, only_torch=True)
    assert said.returncode == 0, said.stderr
    for name in ("_KERNEL_REGISTRY", "_get_fill", "_functional_pil"):
        assert name in said.stdout


@pytest.mark.native
def test_importing_fastload_proves_nothing_and_a_proof_leaves_no_trace(photos: list[Path]) -> None:
    switch.install()
    opened = list(guarded._OPEN)
    assert len(opened) > 25
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert releases.unexpected(guarded.left_out()) == []
    assert torch.equal(torch.get_rng_state(), before)
    assert guarded._OPEN == []
    assert {one._name for one in opened if not one.holds()} <= releases.LEFT_ALONE


@pytest.mark.native
@pytest.mark.parametrize("patch", ALL, ids=_name)
def test_an_entry_says_why_it_is_exchanged_and_what_keeps_it(patch: Patch) -> None:
    assert patch.why
    assert patch.kept_by
