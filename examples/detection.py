"""Object detection: images with COCO's boxes, packed into one file, cropped and flipped together.

    python examples/detection.py train2017 instances_train2017.json

The same with VOC's folder of .xml or YOLO's of .txt. ``fastload pack`` makes the store in one line;
``joint=True`` then moves the boxes, and drops the labels of those that a crop cuts off.
"""

import argparse
from pathlib import Path

import torch
from torchvision.models.detection import fcos_resnet50_fpn
from torchvision.transforms import v2

from fastload import FastLoader, PackedDataset, pack


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("annotations", type=Path)
    parser.add_argument("--store", type=Path, default=Path("detection.lmdb"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=640)
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
    model = fcos_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=len(dataset.classes),
        min_size=args.size,
        max_size=args.size,
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.005, momentum=0.9)
    for epoch in range(args.epochs):
        for batch in loader:  # "image": float32 (n, 3, h, w); "boxes", "labels": n tensors
            targets = [
                {"boxes": boxes.to(device), "labels": labels.to(device)}
                for boxes, labels in zip(batch["boxes"], batch["labels"])
            ]
            loss = sum(model(list(batch["image"]), targets).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
