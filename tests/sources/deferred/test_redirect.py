"""What is exchanged in other packages: it looks like the original, and it can be put back."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
import torch._dynamo
import torchvision.transforms.functional as F
from torch.utils.data import Dataset

import fastload
import releases
from fastload import FastLoader
from fastload._sources.deferred import guarded, redirect, switch
from fastload._sources.deferred.patches.patch import Patch


def _exchanged() -> dict[types.FunctionType, types.CodeType]:
    """The functions that are redirected, with their original codes."""
    switch.install()
    return {one: redirect._EXCHANGES[one].original for one in redirect.redirected()}


@pytest.fixture
def thread_that_defers() -> Iterator[None]:
    """On another one, the first call of a function may prove nothing."""
    with switch.deferring():
        yield


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    rng = np.random.default_rng(0)
    PIL.Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(path)
    return path


class Photos(Dataset[torch.Tensor]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        tensor: torch.Tensor = F.to_tensor(PIL.Image.open(self.path).convert("RGB"))
        return tensor


def _parameters(code: types.CodeType) -> tuple[object, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        flags,
        code.co_varnames[: count + bin(flags).count("1")],
    )


def test_all_functions_of_these_releases_are_redirected() -> None:
    fastload.uninstall()
    assert 25 < len(_exchanged()) < 45  # Albumentations' too, if it is imported
    assert releases.unexpected(guarded.left_out()) == []


def test_every_stub_has_the_parameters_of_its_original() -> None:
    for function, original in _exchanged().items():
        assert function.__code__ is not original
        assert _parameters(function.__code__) == _parameters(original), function
        before = types.FunctionType(original, {}, argdefs=function.__defaults__)
        before.__kwdefaults__ = function.__kwdefaults__
        before.__annotations__ = function.__annotations__
        assert inspect.signature(function) == inspect.signature(before)
        assert "__signature__" not in vars(function)


def _holds(original: Callable[..., Any], ours: Callable[..., Any]) -> str:
    return ""


def _patch(name: str, make: Callable[..., Any], proof: Callable[..., str] = _holds) -> Patch:
    return Patch(names=(name,), ours=make, why="", kept_by="", proof=proof)


def _positional(a: int, /, b: int = 2) -> tuple[int, ...]:
    return a, b


def _by_keyword(a: int, *, b: int = 2) -> tuple[int, ...]:
    return a, b


def _others(a: int, *others: int) -> tuple[int, ...]:
    return a, *others


def _named(a: int, *, b: int, **named: int) -> tuple[int, ...]:
    return a, b, *named.values()


def _all(a: int, *others: int, b: int = 2, **named: int) -> tuple[int, ...]:
    return a, b, *others, *named.values()


_KINDS = [_positional, _by_keyword, _others, _named, _all]


@pytest.mark.usefixtures("thread_that_defers")
@pytest.mark.parametrize("function", _KINDS)
def test_a_stub_passes_on_whatever_the_original_takes(
    function: Callable[..., tuple[int, ...]],
) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def tens(a: int, b: int = 0) -> list[int]:
            return [10 * a, 10 * b]

        def tens_of_others(a: int, *others: int) -> list[int]:
            return [10 * a, *(10 * one for one in others)]

        def tens_of_named(a: int, b: int, **named: int) -> list[int]:
            return [10 * a, 10 * b, *(10 * one for one in named.values())]

        def tens_of_all(a: int, b: int, others: Any, named: Any) -> list[int]:
            return [10 * one for one in (a, b, *others, *named.values())]

        named = {"_others": tens_of_others, "_named": tens_of_named, "_all": tens_of_all}
        return named.get(original.__name__, tens)

    redirect.redirect(function, _patch(function.__name__, make))
    try:
        if function is _others:
            assert function(1, 2, 3) == [10, 20, 30]
        elif function is _named:
            assert function(1, b=2, c=3) == [10, 20, 30]
            with pytest.raises(TypeError, match="b"):
                function(1, 2)
        elif function is _all:
            assert function(1, 3, c=4) == [10, 20, 30, 40]
            assert function(1, b=3) == [10, 30]
        else:
            assert function(1) == [10, 20]
            assert function(1, b=3) == [10, 30]
            with pytest.raises(TypeError, match="c"):
                function(1, c=3)
    finally:
        switch.uninstall()


def _of_another_release(image: int, size: int, more: int = 0) -> int:
    return image + size + more


def _of_many_parameters(
    a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int
) -> int:
    return a


@pytest.mark.parametrize("function", [_of_another_release, _of_many_parameters])
def test_a_function_with_other_parameters_is_left_out_with_a_line_in_explain(
    function: Callable[..., int], photo: Path
) -> None:
    def make(original: Callable[..., int]) -> Callable[..., int]:
        def ours(image: int, size: int) -> int:
            raise AssertionError

        return ours

    loader = FastLoader(Photos(photo), batch_size=2)
    list(loader)
    before = function.__code__
    for _ in range(2):
        assert redirect.redirect(function, _patch(function.__name__, make)) is None
    assert function.__code__ is before
    (line,) = releases.unexpected(guarded.left_out())
    assert f"{function.__name__} is left as it is" in line
    assert f"slower: {line}" in loader.explain()


@pytest.mark.usefixtures("thread_that_defers")
@pytest.mark.parametrize("function", _KINDS)
def test_a_function_that_fails_its_proof_is_the_original_from_its_first_call_on(
    function: Callable[..., tuple[int, ...]],
) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def named(a: int, b: int, **named: int) -> Any:
            raise AssertionError

        def others(a: int, *others: int) -> Any:
            raise AssertionError

        def all_of_them(a: int, b: int, others: Any, named: Any) -> Any:
            raise AssertionError

        def ours(a: int, b: int) -> Any:
            raise AssertionError

        known = {"_others": others, "_named": named, "_all": all_of_them}
        return known.get(original.__name__, ours)

    before = function.__code__
    fastload.uninstall()
    redirect.redirect(function, _patch("a.function", make, lambda original, ours: "it is other"))
    assert function.__code__ is not before
    assert function(1, 3) == (1, 3) if function is _others else function(1, b=3) == (1, 3)
    assert function.__code__ is before
    assert guarded.left_out() == ["a.function is left as it is: it is other"]
    fastload.uninstall()
    assert releases.unexpected(guarded.left_out()) == []


def _centre(image: torch.Tensor) -> torch.Tensor:
    return F.resize(F.center_crop(image, 16), [8, 8]).mean()


@pytest.fixture
def without_compiled_code() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.native
@pytest.mark.usefixtures("without_compiled_code")
def test_a_compiled_model_that_calls_torchvision_keeps_working(photo: Path) -> None:
    fastload.uninstall()
    images = [torch.rand(1, 3, side, side) for side in (32, 40)]
    expected = [_centre(image) for image in images]
    compiled = torch.compile(_centre, backend="eager", fullgraph=True, dynamic=False)
    assert [compiled(image) for image in images] == expected
    next(iter(FastLoader(Photos(photo), batch_size=2)))
    assert F.resize in redirect.redirected()
    images += [torch.rand(1, 3, 48, 48)]
    expected.append(_centre(images[-1]))
    assert [compiled(image) for image in images] == expected
    assert torch._dynamo.explain(_centre)(images[-1]).graph_break_count == 0
    later = torch.compile(_centre, backend="eager", fullgraph=True, dynamic=False)
    assert [later(image) for image in images] == expected
    fastload.uninstall()
    assert [compiled(image) for image in images] == expected


def test_uninstall_gives_every_function_its_own_code_again() -> None:
    imread = cv2.imread
    known = _exchanged()
    assert cv2.imread is not imread or hasattr(imread, "_original")
    fastload.uninstall()
    assert redirect.redirected() == []
    for function, original in known.items():
        assert function.__code__ is original, function
    assert isinstance(cv2.imread, types.BuiltinFunctionType)
    assert isinstance(cv2.imdecode, types.BuiltinFunctionType)
    fastload.uninstall()  # of what is not installed
    assert redirect.redirected() == []


def test_uninstall_leaves_what_another_program_has_exchanged_since() -> None:
    fastload.uninstall()
    own = PIL.Image.open.__code__
    switch.install()

    def theirs(fp: Any, mode: Any = "r", formats: Any = None) -> Any:
        return fp

    PIL.Image.open.__code__ = theirs.__code__
    try:
        fastload.uninstall()
        assert PIL.Image.open.__code__ is theirs.__code__
    finally:
        PIL.Image.open.__code__ = own


@pytest.mark.native
def test_after_uninstall_a_loader_defers_again(photo: Path) -> None:
    loader = FastLoader(Photos(photo), batch_size=2)
    expected = list(loader)
    for again in (loader, FastLoader(Photos(photo), batch_size=2)):
        fastload.uninstall()
        assert PIL.Image.open not in redirect.redirected()
        found = list(again)
        assert PIL.Image.open in redirect.redirected()
        assert all(map(torch.equal, found, expected))
        assert again.stats()["images_deferred"] == 4


@pytest.mark.native
def test_a_loader_that_is_running_goes_on_after_uninstall(photo: Path) -> None:
    batches = iter(FastLoader(Photos(photo), batch_size=1))
    first = next(batches)
    fastload.uninstall()
    assert all(torch.equal(first, batch) for batch in batches)


def test_what_is_deferred_is_made_after_uninstall(photo: Path) -> None:
    with switch.deferring():
        image = PIL.Image.open(photo).convert("RGB")
        tensor = F.to_tensor(image)
        small = F.resize(image, 8)
    fastload.uninstall()
    real = PIL.Image.open(photo).convert("RGB")
    assert torch.equal(F.to_tensor(image), F.to_tensor(real))
    assert torch.equal(tensor + 0, F.to_tensor(real))
    assert torch.equal(F.to_tensor(small), F.to_tensor(F.resize(real, 8)))
    assert torch.equal(F.resize(tensor, [8]), F.resize(F.to_tensor(real), [8]))
