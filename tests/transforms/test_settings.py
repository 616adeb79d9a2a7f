"""The plan of a transform is kept until one of its settings changes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload._transforms.plan import Plan
from fastload._transforms.recognise import Unrecognised, recognise
from fastload._transforms.settings import settings_of


def chain(T: Any) -> Any:
    return T.Compose(
        [
            T.RandomResizedCrop(24),
            T.RandomHorizontalFlip(0.5),
            T.ColorJitter(0.1, 0.1, 0.1),
            T.ToTensor(),
            T.Normalize([0.4, 0.5, 0.6], [0.2, 0.2, 0.2]),
            T.RandomErasing(0.3, value=[1, 2, 3]),
        ]
    )


@pytest.mark.filterwarnings("ignore:The transform `ToTensor")
@pytest.mark.parametrize("T", [v1, v2])
def test_an_unchanged_transform_is_read_once(T: Any) -> None:
    transform = chain(T)
    plan = recognise(transform)
    assert isinstance(plan, Plan)
    assert recognise(transform) is plan
    assert recognise(chain(T)) is not plan
    assert isinstance(recognise(transform, "L"), Unrecognised)  # for another mode it is read again


def crop(t: Any) -> None:
    t.transforms[0].size = (16, 16)


def filter(t: Any) -> None:
    t.transforms[0].interpolation = v1.InterpolationMode.NEAREST


def another_type(t: Any) -> None:
    t.transforms[1].p = True
    t.transforms[1].p = 1.0


def inside_a_list(t: Any) -> None:
    t.transforms[4].mean[1] = 0.25


def order(t: Any) -> None:
    t.transforms[0], t.transforms[1] = t.transforms[1], t.transforms[0]


def left_out(t: Any) -> None:
    del t.transforms[5]


def more(t: Any) -> None:
    t.transforms.insert(2, v1.RandomVerticalFlip())


def erased(t: Any) -> None:
    t.transforms[5].value = [3, 2, 1]


@pytest.mark.parametrize(
    "change", [crop, filter, another_type, inside_a_list, order, left_out, more, erased]
)
def test_whatever_is_changed_shows_in_the_plan(change: Callable[[Any], None]) -> None:
    transform, same = chain(v1), chain(v1)
    before = recognise(transform)
    change(transform)
    change(same)  # which was never read before
    after, fresh = recognise(transform), recognise(same)
    assert isinstance(before, Plan) and isinstance(after, Plan)
    assert after.same_as(fresh) and after.steps == fresh.steps  # type: ignore[union-attr]
    assert not after.same_as(before) or after.steps != before.steps


def test_a_hook_or_a_method_of_another_class_is_seen_at_once(monkeypatch: Any) -> None:
    transform = chain(v1)
    assert isinstance(recognise(transform), Plan)
    with monkeypatch.context() as patch:
        patch.setattr(v1.RandomHorizontalFlip, "forward", lambda self, image: image)
        assert isinstance(recognise(transform), Unrecognised)
    assert isinstance(recognise(transform), Plan)
    transform.transforms[0].register_forward_hook(lambda *given: None)
    assert isinstance(recognise(transform), Unrecognised)


def test_the_default_dtype_is_one_of_the_settings() -> None:
    transform = v1.ToTensor()
    assert recognise(transform).dtype == torch.float32  # type: ignore[union-attr]
    torch.set_default_dtype(torch.float16)
    try:
        assert recognise(transform).dtype == torch.float16  # type: ignore[union-attr]
    finally:
        torch.set_default_dtype(torch.float32)


def test_of_the_users_own_objects_nothing_is_compared() -> None:
    assert settings_of(v1.Compose([v1.Resize(8), lambda image: image]), "RGB") is None
    assert settings_of(v1.Lambda(abs), "RGB") is None
    endless = v1.Compose([])
    endless.transforms.append(endless)
    assert settings_of(endless, "RGB") is None


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_sizes_and_objects_of_torch_among_the_settings() -> None:
    image = torch.zeros(3, 8, 6)
    plan = recognise(v1.Compose([v1.CenterCrop(image.shape[-2:]), v1.PILToTensor()]))
    assert isinstance(plan, Plan) and plan.size == (8, 6)
    transform = chain(v1)
    for other in (torch.Generator(), torch.device("cpu"), torch.strided, torch.ones(3).to_mkldnn()):
        transform.transforms[0].note = other
        assert isinstance(recognise(transform), Plan)
    scripted = torch.jit.script(torch.nn.Sequential(v1.Normalize([0.5], [0.5])))
    assert isinstance(recognise(v1.Compose([v1.ToTensor(), scripted])), Unrecognised)


@pytest.mark.parametrize("kind", [torch.as_tensor, torch.nn.Parameter])
def test_a_tensor_of_any_type_that_is_changed_in_place_is_seen(kind: Any) -> None:
    mean = kind(torch.tensor([0.1, 0.2, 0.3]))
    transform = v1.Compose([v1.ToTensor(), v1.Normalize(mean, [1.0, 1.0, 1.0])])
    before = recognise(transform)
    mean.data[1] = 0.7
    after = recognise(transform)
    assert isinstance(before, Plan) and isinstance(after, Plan)
    assert before.lut is not None and after.lut is not None
    assert before.lut[1, 0] == np.float32(-0.2) and after.lut[1, 0] == np.float32(-0.7)


def test_a_plan_is_kept_no_longer_than_its_transform() -> None:
    transform = chain(v1)
    recognise(transform)
    gone = weakref.ref(transform)
    del transform
    gc.collect()
    assert gone() is None
