"""What the engine of a GPU's decoder does with its outputs, with a stand-in for the decoder.

The stand-in writes late, in a stream and into memory of its own, and writes the next batch into
memory that nobody holds any more, as DALI does. So this needs no DALI, and decodes nothing.
"""

from __future__ import annotations

import collections
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload._base.devices.cuda import on_stream
from fastload._engine.nvidia import dali_graph

pytestmark = [pytest.mark.gpu, pytest.mark.native]

SIDE, COUNT = 64, 12
LEVELS = v1.Compose([v1.RandomResizedCrop(SIDE), v1.PILToTensor()])
FLOATS = v1.Compose([v1.RandomResizedCrop(SIDE), v1.ToTensor()])


class Outputs:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def as_tensor(self) -> torch.Tensor:
        return self.tensor

    def as_array(self) -> np.ndarray:
        return self.tensor.numpy()


class StandIn:
    """Every pixel of an image is the first one of its file."""

    def __init__(
        self, build: dali_graph.PipelineOptions, batch: int, source: Callable[[], tuple[Any, ...]]
    ) -> None:
        assert build.device_id is not None and build.whole
        self._pipe = object()
        self._source = source
        self._stream = torch.cuda.Stream(build.device_id)
        self._made = collections.deque[tuple[Outputs, Outputs]]()

    def schedule_run(self) -> None:
        while True:
            try:
                encoded = self._source()[0]
            except StopIteration:
                return
            files = [Image.open(io.BytesIO(file.tobytes())) for file in encoded]
            found = [(file.height, file.width, len(file.getbands())) for file in files]
            with on_stream(self._stream):
                images = torch.empty((len(files), SIDE, SIDE, 3), dtype=torch.uint8, device="cuda")
                images.fill_(255)
                torch.cuda._sleep(2_000_000)
                for image, file in zip(images, files, strict=True):
                    image.fill_(file.convert("L").getpixel((0, 0)))
            self._made.append((Outputs(images), Outputs(torch.tensor(found))))

    def reset(self) -> None:
        pass

    def share_outputs(self, *, cuda_stream: torch.cuda.Stream) -> tuple[Outputs, Outputs]:
        cuda_stream.wait_stream(self._stream)
        return self._made.popleft()

    def release_outputs(self) -> None:
        pass


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dali_graph, "_pipeline", StandIn)
    monkeypatch.setattr(dali_graph, "absent", lambda: None)


def flat(mode: str, level: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (80, 70), level).convert(mode).save(file, "JPEG", quality=100)  # exact
    return file.getvalue()


@pytest.mark.parametrize("transform", [LEVELS, FLOATS], ids=["uint8", "float"])
@pytest.mark.parametrize("odd", ["none", "cmyk", "broken"])
def test_batches_are_whole_however_late_the_decoder_is(
    tmp_path: Path, stand_in: None, transform: Any, odd: str
) -> None:
    """CMYK is seen when the batch is there; a broken file is an error of the CPU's decoder."""
    for i in range(COUNT):
        data = flat("CMYK" if odd == "cmyk" and i == 5 else "RGB", 20 * i)
        (tmp_path / f"{i:02}").mkdir()
        (tmp_path / f"{i:02}" / "a.jpg").write_bytes(data)
    loader: FastLoader[Any] = FastLoader(
        ImageFolder(str(tmp_path), transform=transform),
        4,
        shuffle=True,
        seed=1,
        num_workers=1,
        device="cuda",
        engine="dali",
        on_error="skip",
        memory_format=torch.channels_last,  # as the decoder's outputs lie
    )
    if odd == "broken":
        (tmp_path / "05" / "a.jpg").write_bytes(flat("RGB", 100)[:-2])
    count, wrong = 0, torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(4):
        for images, labels in loader:
            count += len(labels)
            torch.cuda._sleep(4_000_000)
            levels = images if transform is LEVELS else (images * 255).round()
            wrong += (levels != 20 * labels.view(-1, 1, 1, 1)).sum()
            del images, levels
    assert count == 4 * (COUNT - (odd == "broken"))
    assert wrong.item() == 0
