"""A loader that does less than the whole work is found out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bench import check
from bench.loaders.base import Batch, Loader, Setting
from bench.synthetic import make_images
from bench.workload import Workload

pytest.importorskip("torchvision")


class Given(Loader):
    """Torchvision's own output, spoilt by ``spoil``."""

    def __init__(self, work: Workload, spoil: Callable[[Batch], Batch]) -> None:
        super().__init__("given")
        self._work, self._spoil = work, spoil

    def open(self, work: Workload, setting: Setting) -> None: ...

    def epoch(self) -> Iterator[Batch]:
        from torchvision.datasets import ImageFolder

        from bench.loaders._torchvision import transforms_v1

        dataset = ImageFolder(self._work.images, transform=transforms_v1(self._work))
        order: list[int] = list(range(len(dataset)))
        if self._work.shuffled:
            order = torch.randperm(len(dataset), generator=torch.Generator()).tolist()
        size = self._work.batch
        for at in range(0, len(order) - size + 1, size):
            images, labels = zip(*(dataset[index] for index in order[at : at + size]))
            yield self._spoil((torch.stack(images), torch.tensor(labels)))

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    root = tmp_path_factory.mktemp("check")
    return Workload(
        suite="test",
        variant="float32",
        images=str(make_images(root / "images", 24, classes=2)),
        recipe="eval",
        size=48,
        resize=64,
        batch=6,
        threads=1,
        stores=str(root / "stores"),
    )


def checked(work: Workload, spoil: Callable[[Batch], Batch] = lambda batch: batch) -> object:
    return check.check(Given(work, spoil), work, str(check.reference(work)))


def test_torchvisions_own_output_passes(work: Workload) -> None:
    found = checked(work)
    assert isinstance(found, dict)
    assert found["levels_off"] == 0.0
    checked(dataclasses.replace(work, dtype="uint8"))
    checked(dataclasses.replace(work, recipe="train"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda batch: (batch[0][:3], batch[1][:3]), "expected images"),
        (lambda batch: (batch[0].half(), batch[1]), "expected images"),
        (lambda batch: (batch[0].to(memory_format=torch.channels_last), batch[1]), "strides"),
        (lambda batch: (batch[0] * 0.5, batch[1]), "of the pixels is"),
        (lambda batch: (batch[0] + 3, batch[1]), "not 0 to 1"),
        (lambda batch: (batch[0][:1].expand_as(batch[0]).contiguous(), batch[1]), "are the same"),
        (lambda batch: (batch[0], batch[1] + 7), "labels outside"),
        (lambda batch: (batch[0], batch[1].int()), "expected labels"),
        (lambda batch: (batch[0], 1 - batch[1]), "other labels than the files"),
        (lambda batch: (batch[0].flip(0), batch[1]), "grey levels"),
    ],
)
def test_spoilt_output_is_refused(
    work: Workload, spoil: Callable[[Batch], Batch], message: str
) -> None:
    with pytest.raises(check.WrongOutput, match=message):
        checked(work, spoil)


def test_the_reference_is_made_once(work: Workload) -> None:
    path = check.reference(work)
    made = path.stat().st_mtime_ns
    assert check.reference(work) == path
    assert Path(path).stat().st_mtime_ns == made
