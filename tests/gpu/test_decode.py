"""Decoding on a GPU: the native engine's crops and verdicts; memory that is recycled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fastload import DecodeError, FastLoader
from fastload._engine.nvidia import dali_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.native,
    pytest.mark.skipif(dali_graph.absent() is not None, reason="nvidia-dali is not installed"),
]


TRAIN = v1.Compose([v1.RandomResizedCrop(96), v1.RandomHorizontalFlip(), v1.PILToTensor()])
EVAL = v1.Compose([v1.Resize(112), v1.CenterCrop(96), v1.PILToTensor()])
FLOAT = v1.Compose([v1.RandomResizedCrop(96), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.5] * 3)])


def on_gpu(dataset: Any, batch_size: int = 8, **arguments: Any) -> FastLoader[Any]:
    given = {"seed": 3, "num_workers": 2, "device": "cuda", "engine": "dali", **arguments}
    loader: FastLoader[Any] = FastLoader(dataset, batch_size, **given)
    assert "by DALI" in loader.explain()
    return loader


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("transform", [TRAIN, EVAL, FLOAT], ids=["train", "eval", "float"])
def test_the_images_are_those_of_the_native_engine(
    store: Path, transform: Any, memory_format: torch.memory_format
) -> None:
    given = {"transform": transform, "memory_format": memory_format}
    reference = FastLoader(store, 8, seed=3, num_workers=2, engine="native", **given)
    scale = 127.5 if transform is FLOAT else 1
    count = 0
    for (theirs, labels), (ours, same) in zip(on_gpu(store, **given), reference, strict=True):
        assert theirs.is_cuda and labels.is_cuda
        assert theirs.dtype == ours.dtype and theirs.stride() == ours.stride()
        assert torch.equal(labels.cpu(), same)
        off = (theirs.cpu().float() - ours.float()).abs().flatten(1) * scale
        assert off.mean() < 1
        assert off.quantile(0.999, dim=1).max() < 20
        count += 1
    assert count == 3


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_broken_image_is_what_the_policy_says(
    photos: Path, tmp_path: Path, on_error: str
) -> None:
    for path in sorted(photos.rglob("*.jpg"))[:8]:
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    dataset = ImageFolder(str(tmp_path), transform=TRAIN)
    loader = on_gpu(dataset, 4, on_error=on_error, max_errors=2)
    assert len(list(loader)) == 2
    broken = Path(dataset.samples[5][0])
    data = bytearray(broken.read_bytes())
    at = data.index(b"\xff\xc4")
    data[at + 5 : at + 21] = b"\xff" * 16  # Huffman tables that cannot be
    broken.write_bytes(data)
    iterator = iter(loader)
    assert len(next(iterator)[1]) == 4
    if on_error == "raise":
        with pytest.raises(DecodeError):
            next(iterator)
    else:
        assert len(next(iterator)[1]) == (3 if on_error == "skip" else 4)
        assert [entry["index"] for entry in loader.stats()["errors"]] == [5]
    assert next(iterator, None) is None


@pytest.mark.parametrize("transform", [TRAIN, FLOAT], ids=["uint8", "float"])
def test_recycled_memory_is_never_torn(
    store: Path, transform: Any, count: Callable[[int, int], int]
) -> None:
    loader = on_gpu(store, 4, transform=transform)
    loader.set_epoch(0)
    expected = [images.clone() for images, _ in loader]
    busy = torch.ones(2048, 2048, device="cuda")
    found = []
    for _ in range(count(20, 60)):
        loader.set_epoch(0)
        for number, (images, _) in enumerate(loader):
            for _ in range(10):
                busy = busy @ busy / 2048  # what follows waits behind it
            found.append((images.float() - expected[number].float()).abs().mean())
            del images  # while the line above still waits
    # Which decoder of the GPU takes an image may differ; an image of another batch is far off.
    assert torch.stack(found).max() < (1 if transform is TRAIN else 1 / 127)


def test_memory_of_the_device_stays_flat(store: Path, count: Callable[[int, int], int]) -> None:
    loader = on_gpu(store, 8, transform=FLOAT)
    for _ in range(10):
        for _ in loader:
            pass
    torch.cuda.synchronize()
    free, allocated = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    for _ in range(count(20, 100)):
        for _ in loader:
            pass
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= allocated
    assert free - torch.cuda.mem_get_info()[0] < 32 << 20


def test_a_graph_is_captured_while_batches_are_decoded(store: Path) -> None:
    """DALI's threads call CUDA meanwhile, which only this mode of capturing allows."""
    static, graph = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
    iterator = iter(on_gpu(store, 4, transform=TRAIN))
    next(iterator)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        doubled = static * 2
    graph.replay()
    assert doubled.sum().item() == 16
    assert len(list(iterator)) == 5
