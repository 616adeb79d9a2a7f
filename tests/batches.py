"""Transforms of the tests of loaders."""

from __future__ import annotations

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
