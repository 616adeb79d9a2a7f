"""Deferring ends where it was asked for: at its block, its thread, and at whatever is no image."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import threading
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.Image import open as open_imported_before
from torchvision.transforms import functional as F
from torchvision.transforms import v2
from torchvision.transforms.functional import to_tensor as to_tensor_imported_before

import warm
from fastload._sources.deferred import switch, thread_state
from fastload._sources.deferred.image import DeferredImage
from fastload._sources.deferred.tensor import DeferredTensor


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(path)
    return path


def is_deferred(value: object) -> bool:
    return isinstance(value, (DeferredImage, DeferredTensor))


def defers(path: Path) -> bool:
    with Image.open(path) as image:
        return is_deferred(image)


def test_only_what_is_opened_within_the_block_is_deferred(photo: Path) -> None:
    assert not defers(photo)
    with switch.deferring():
        assert defers(photo)
        with switch.deferring():
            assert defers(photo)
        assert defers(photo)
    assert not defers(photo)


def test_an_exception_ends_deferring(photo: Path) -> None:
    with pytest.raises(RuntimeError), switch.deferring():
        raise RuntimeError
    assert not defers(photo)


def test_a_generator_that_is_left_ends_deferring(photo: Path) -> None:
    def images() -> Generator[bool]:
        with switch.deferring():
            yield defers(photo)

    left = images()
    assert next(left)
    left.close()
    assert not defers(photo)


def test_functions_imported_before_defer(photo: Path) -> None:
    with switch.deferring():
        image = open_imported_before(photo)
        assert is_deferred(image)
        assert is_deferred(to_tensor_imported_before(image))


def test_another_thread_sees_nothing_of_it(photo: Path) -> None:
    seen: list[bool] = []
    with switch.deferring():
        thread = threading.Thread(target=lambda: seen.append(defers(photo)))
        thread.start()
        thread.join()
        assert defers(photo)
    assert seen == [False]


def test_two_threads_that_defer_do_not_end_each_others(photo: Path) -> None:
    inside, ended = threading.Event(), threading.Event()
    seen: list[bool] = []

    def other() -> None:
        with switch.deferring():
            inside.set()
            ended.wait(60)
            seen.append(defers(photo))
        seen.append(defers(photo))

    thread = threading.Thread(target=other)
    with switch.deferring():
        thread.start()
        assert inside.wait(60)
    ended.set()
    thread.join()
    assert seen == [True, False]


def test_what_materialised_is_told_per_thread(photo: Path) -> None:
    thread_state.materialised()
    told: list[list[thread_state.Cause]] = []

    def other() -> None:
        with switch.deferring():
            Image.open(photo).convert("RGB").getpixel((0, 0))
        told.append(thread_state.materialised())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert thread_state.materialised() == []
    (cause,) = told[0]
    line = inspect.getsourcelines(other)[1] + 2
    assert (cause.function, cause.file, cause.line) == ("Image.getpixel", __file__, line)
    assert cause.count == 1
    assert cause.ns > 0


def _child(path: Path, answers: multiprocessing.SimpleQueue[list[bool]]) -> None:
    with switch.deferring():
        inside = defers(path)
    answers.put([inside, defers(path)])


@pytest.mark.parametrize(
    "method",
    ["fork", pytest.param("spawn", marks=pytest.mark.long)],  # imports torch again
)
def test_a_child_process_defers_when_it_asks_for_it(photo: Path, method: str) -> None:
    with switch.deferring():
        assert defers(photo)
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    child = context.Process(target=_child, args=(photo, answers))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert answers.get() == [True, False]


def test_importing_and_asking_changes_nothing_until_something_is_deferred(photo: Path) -> None:
    program = f"""
import PIL.Image, torch
before = PIL.Image.open.__code__
from fastload._sources.deferred import switch, thread_state
assert PIL.Image.open.__code__ is before
assert thread_state.materialised() == []
assert PIL.Image.open.__code__ is before
with switch.deferring():
    pass
assert PIL.Image.open.__code__ is not before
with PIL.Image.open({str(photo)!r}) as image:
    assert type(image).__name__ == "JpegImageFile"
"""
    done = warm.run(["-c", program], timeout=120)
    assert done.returncode == 0, done.stderr


def test_redirected_functions_look_as_before(photo: Path) -> None:
    with switch.deferring():
        pass
    assert str(inspect.signature(Image.open)).startswith("(fp")
    assert inspect.getsource(F.normalize).startswith("def normalize(")
    assert Image.open.__code__.co_name == "open"
    assert os.path.basename(inspect.getsourcefile(Image.open) or "") == "Image.py"


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_torchscript_still_compiles_redirected_functions() -> None:
    with switch.deferring():
        pass
    scripted = torch.jit.script(F.normalize)
    image = torch.rand(3, 4, 5)
    expected = F.normalize(image, [0.5] * 3, [0.25] * 3)
    assert torch.equal(scripted(image, [0.5] * 3, [0.25] * 3), expected)
    levels = torch.arange(180, dtype=torch.uint8).reshape(3, 6, 10)
    expected = v2.functional.resize_image(levels, [4, 5])
    assert torch.equal(torch.jit.script(v2.functional.resize_image)(levels, [4, 5]), expected)


def test_plain_tensors_and_images_go_the_usual_way_within_the_block() -> None:
    image = Image.new("RGB", (6, 5), (1, 2, 3))
    expected = v2.functional.normalize(F.to_tensor(image), [0.5], [0.5])
    with switch.deferring():
        found = v2.functional.normalize(F.to_tensor(image), [0.5], [0.5])
    assert type(found) is torch.Tensor
    assert torch.equal(found, expected)


def test_a_wrong_call_has_the_same_error_as_before() -> None:
    with switch.deferring():
        pass
    with pytest.raises(TypeError):
        F.to_tensor()
    with pytest.raises(TypeError):
        Image.open()
    with pytest.raises(ValueError, match="bad mode"):
        Image.open("x", "w")
