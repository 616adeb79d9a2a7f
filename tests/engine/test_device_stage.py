"""The device stage gives what the engine gives, bit for bit: table, cast, format, rectangles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision import transforms as v1

from array_datasets import mnist
from batches import MEAN, STD
from fastload import open_store
from fastload._base import philox
from fastload._base.slabs import SlabRing
from fastload._engine.device_stage import DeviceStage
from fastload._engine.device_stage import _philox as philox_on_device
from fastload._engine.image_engine import EngineOptions
from fastload._engine.registry import NATIVE, make_engine
from fastload._sources.arrays import arrays_of
from fastload._transforms import sample_params
from fastload._transforms.geometry.draws import Numbers
from fastload._transforms.recognise import Plan, recognise

CPU = torch.device("cpu")
CHAINS = {
    "normalised": [v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "levels": [v1.PILToTensor()],
    "erased": [
        v1.ToTensor(),
        v1.Normalize(MEAN, STD),
        v1.RandomErasing(0.7, value=(1.0, 2.0, 3.0)),
    ],
    "noise": [v1.ToTensor(), v1.RandomErasing(0.7, value="random")],
    "twice": [
        v1.PILToTensor(),
        v1.ConvertImageDtype(torch.float32),
        v1.RandomErasing(0.9, scale=(0.3, 0.5)),
        v1.RandomErasing(0.9, value="random"),
    ],
    "erased levels": [v1.PILToTensor(), v1.RandomErasing(0.9, value=7)],
}


def plan_of(tail):
    plan = recognise(v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), *tail]))
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.native
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("chain", CHAINS)
def test_levels_and_the_stage_are_what_the_engine_gives(chain, channels_last, dtype, store):
    opened, plan = open_store(store), plan_of(CHAINS[chain])
    if dtype is not None and plan.dtype != torch.uint8:
        plan = plan.with_output(dtype)
    records = np.arange(6, dtype=np.int64)
    drawing = {"seed": 3, "epoch": 1, "repeats": records % 2}

    def images(plan):
        decoder = make_engine(
            NATIVE,
            opened,
            plan,
            EngineOptions(threads=0, ring=SlabRing(2), channels_last=channels_last),
        )
        return decoder.submit(records, **drawing).result()

    expected = images(plan)
    levels = images(plan.levels())
    assert levels.dtype == torch.uint8
    drawn = sample_params.rectangles(plan, Numbers(indices=records, **drawing), 32, 32)
    assert (drawn.boxes[..., 2] > 0).any() == bool(plan.erasing)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    got = DeviceStage(plan, CPU, memory_format)(levels, drawn)
    assert got.dtype == expected.dtype
    assert got.stride() == expected.stride()
    assert torch.equal(got, expected)


@pytest.mark.native
@pytest.mark.parametrize("channels_last", [False, True])
def test_gray_images_have_one_channel_there_too(channels_last):
    chain = v1.Compose([v1.ToTensor(), v1.Normalize((0.1,), (0.3,)), v1.RandomErasing(0.9)])
    plan = recognise(chain, "L")
    assert isinstance(plan, Plan)
    opened = arrays_of(mnist(chain)).store
    records = np.arange(6, dtype=np.int64)

    def images(plan):
        decoder = make_engine(
            NATIVE,
            opened,
            plan,
            EngineOptions(threads=0, ring=SlabRing(2), channels_last=channels_last),
        )
        return decoder.submit(records, seed=3, epoch=1).result()

    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    drawn = sample_params.rectangles(plan, Numbers(3, 1, records), 28, 28)
    got = DeviceStage(plan, CPU, memory_format)(images(plan.levels()), drawn)
    assert got.shape == (6, 1, 28, 28)
    assert torch.equal(got, images(plan))


@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("wanted", [torch.contiguous_format, torch.channels_last])
def test_any_memory_format_comes_in_and_the_wanted_one_comes_out(given, wanted):
    plan = plan_of(CHAINS["noise"])
    levels = torch.randint(0, 256, (5, 3, 9, 7), dtype=torch.uint8)
    drawn = sample_params.rectangles(plan, Numbers(1, 0, np.arange(5)), 7, 9)
    reference = DeviceStage(plan, CPU, torch.contiguous_format)(levels.clone(), drawn)
    got = DeviceStage(plan, CPU, wanted)(levels.to(memory_format=given), drawn, drawn.columns())
    assert got.is_contiguous(memory_format=wanted)
    assert torch.equal(got, reference)


def test_noise_is_drawn_from_the_same_counters():
    keys = np.array([0, 1, 2**63 + 12345, 2**64 - 1], np.uint64)
    blocks = np.array([0, 1, 2**31 + 5, 77], np.int64)
    got = philox_on_device(torch.from_numpy(keys.view(np.int64)), torch.from_numpy(blocks))
    for row, key, block in zip(got, keys.tolist(), blocks, strict=True):
        expected = philox.words(key, 0, block[None], [0]).reshape(-1)
        assert row.tolist() == expected.tolist()
