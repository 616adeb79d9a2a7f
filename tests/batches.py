"""Transforms of the tests of loaders, and what it means that two lists of batches are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchvision import transforms as v1

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

EVAL = v1.Compose([v1.Resize(72), v1.CenterCrop(64), v1.ToTensor(), v1.Normalize(MEAN, STD)])
TRAIN = v1.Compose(
    [
        v1.RandomResizedCrop(64),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
        v1.Normalize(MEAN, STD),
    ]
)


def same(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Assert that both are the same [images, labels] batches: structure, dtypes and every bit."""
    assert len(ours) == len(theirs)
    for mine, reference in zip(ours, theirs, strict=True):
        assert type(mine) is type(reference) is list
        assert mine[0].dtype == reference[0].dtype
        assert torch.equal(mine[0], reference[0])
        assert mine[1].dtype == reference[1].dtype
        assert torch.equal(mine[1], reference[1])
