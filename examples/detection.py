"""Object detection: images with boxes, packed into one file, cropped and flipped together.

    python examples/detection.py train2017 instances_train2017.json

The annotations are COCO's, or a folder of VOC's .xml or YOLO's .txt. ``joint=True`` then moves the
boxes, and drops the labels of those that a crop cuts off. The network is a small one without
anchors; any of torchvision.models.detection takes the same boxes and labels.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torchvision.transforms import v2

from fastload import FastLoader, PackedDataset, pack

CELL = 8  # pixels


class Detector(nn.Module):
    """For each cell, which classes have a box centred in it, and the box's sides as logarithms."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(4 * width, classes + 2, 3, 1, 1)
        nn.init.constant_(self.head.bias[:classes], -4.0)  # most cells have no box

    def loss(self, images, boxes, labels) -> torch.Tensor:
        found = self.head(self.body(images))
        wanted = torch.zeros_like(found[:, :-2])
        sides = []
        for at, (some, numbers) in enumerate(zip(boxes, labels)):
            column, row = ((some[:, :2] + some[:, 2:]) / 2 // CELL).long().T
            row.clamp_(max=found.shape[2] - 1)
            column.clamp_(max=found.shape[3] - 1)
            wanted[at, numbers, row, column] = 1
            logs = (some[:, 2:] - some[:, :2]).clamp(min=1).log()
            sides.append((found[at, -2:, row, column].T - logs).abs().sum())
        scores = nn.functional.binary_cross_entropy_with_logits(
            found[:, :-2], wanted, reduction="sum"
        )
        return (scores + torch.stack(sides).sum()) / max(1, sum(map(len, boxes)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("annotations", type=Path)
    parser.add_argument("--store", type=Path, default=Path("detection.lmdb"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    if not args.store.exists():
        pack(args.images, args.store, annotations=args.annotations)

    transform = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.RandomCrop(args.size, pad_if_needed=True),
            v2.SanitizeBoundingBoxes(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = PackedDataset(args.store, joint=True)
    loader = FastLoader(
        dataset,
        args.batch_size,
        shuffle=True,
        drop_last=True,
        seed=0,
        transform=transform,
        device=device if device == "cuda" else None,
    )
    model = Detector(len(dataset.classes), args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        for batch in loader:  # "image": float32 (n, 3, h, w); "boxes", "labels": n tensors
            loss = model.loss(batch["image"], batch["boxes"], batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
