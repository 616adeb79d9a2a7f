"""The plan: its table, its casts, and when two plans are the same."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload._transforms.recognise import Plan, recognise
from fastload.errors import UsageError
from in_core import made

NORMALIZE = v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRAIN = v1.Compose([v1.Resize(20), v1.CenterCrop(24), v1.ToTensor(), NORMALIZE])
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))


def plan_of(transform: Any) -> Plan:
    plan = recognise(transform)
    assert isinstance(plan, Plan), plan
    return plan


def result_of(plan: Plan) -> torch.Tensor:
    return made(plan, IMAGE, 0)


def test_the_steps_say_what_happens_in_order() -> None:
    assert [step.split("(")[0] for step in plan_of(TRAIN).steps] == [
        "Resize", "CenterCrop", "ToTensor", "Normalize",
    ]  # fmt: skip
    chain = v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float16, scale=True)])
    assert [step.split(" -> ")[1] for step in plan_of(chain).steps] == [
        "torch.uint8", "torch.float16",
    ]  # fmt: skip


def test_the_table_is_read_only_and_its_bytes_are_a_view() -> None:
    plan = plan_of(TRAIN)
    table = plan.lut_bytes()
    assert plan.lut is not None and table is not None
    assert plan.lut.shape == (3, 256) and plan.lut.dtype == np.float32
    assert table.dtype == np.uint8 and table.shape == (3 * 256 * 4,)
    assert np.shares_memory(table, plan.lut)
    assert not plan.lut.flags.writeable
    assert plan_of(None).lut_bytes() is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_another_dtype_is_torchs_cast_of_the_result(dtype: torch.dtype) -> None:
    plan = plan_of(TRAIN).with_output(dtype)
    assert plan.dtype == dtype
    assert torch.equal(result_of(plan), TRAIN(IMAGE).to(dtype))
    levels = plan_of(v1.PILToTensor()).with_output(dtype)
    assert torch.equal(result_of(levels), v1.PILToTensor()(IMAGE).to(dtype))


def test_the_dtype_it_has_already_changes_nothing() -> None:
    plan = plan_of(TRAIN)
    assert plan.with_output() is plan
    assert plan.with_output(torch.float32) is plan
    assert plan_of(None).with_output(torch.uint8).lut is None


def test_uint8_of_a_normalising_chain_is_refused_with_advice() -> None:
    with pytest.raises(UsageError, match="end the transform with PILToTensor"):
        plan_of(TRAIN).with_output(torch.uint8)
    with pytest.raises(UsageError, match="expected one of"):
        plan_of(TRAIN).with_output(torch.float64)


def test_plans_are_the_same_when_they_make_the_same() -> None:
    again = v1.Compose([v1.Resize([20]), v1.CenterCrop((24, 24)), v1.ToTensor(), NORMALIZE])
    plan = plan_of(TRAIN)
    assert plan.same_as(plan_of(again))
    assert not plan.same_as(plan_of(v1.Compose([v1.Resize(20), v1.CenterCrop(24), v1.ToTensor()])))
    assert not plan.same_as(plan.with_output(torch.bfloat16))
    assert not plan.same_as(plan_of(None))
    assert plan_of(None).same_as(plan_of(v1.PILToTensor()))


def test_a_plan_survives_pickling() -> None:
    plan = plan_of(TRAIN).with_output(torch.bfloat16)
    assert pickle.loads(pickle.dumps(plan)).same_as(plan)


def test_split_says_where_the_parts_run() -> None:
    from torchvision import transforms as v1

    from fastload._transforms.recognise import recognise

    crop, flip, jitter = v1.RandomResizedCrop(8), v1.RandomHorizontalFlip(), v1.ColorJitter(0.1)
    for chain, split in (
        ([crop, flip, v1.PILToTensor()], "1 crop-and-resize step"),
        (
            [crop, jitter, v1.ToTensor()],
            "1 crop-and-resize step, 1 operation on pixels, 1 table of output values",
        ),
        (
            [jitter, crop, jitter, flip, v1.ToTensor(), v1.RandomErasing()],
            "3 crop-and-resize steps, 2 operations on pixels, 1 table of output values, 1 erasing",
        ),
    ):
        plan = recognise(v1.Compose(chain))
        assert isinstance(plan, Plan)
        assert plan.split == f"everything runs in the engine: {split}"
