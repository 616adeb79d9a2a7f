"""Segmentation: images with masks, packed into one file, cropped and flipped together.

    python examples/segmentation.py images masks

``images`` holds JPEGs, ``masks`` a PNG of the same name for each, whose gray levels are classes
(255: ignored). Both go into one store; ``joint=True`` then moves each mask with its image.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastload import FastLoader, PackedDataset, pack

IGNORED = 255


def network(classes: int, width: int) -> nn.Module:
    def convolution(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    return nn.Sequential(
        convolution(3, width, 2),
        convolution(width, 2 * width, 2),
        convolution(2 * width, 2 * width, 1),
        nn.Conv2d(2 * width, classes, 1),
        nn.Upsample(scale_factor=4, mode="bilinear"),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("masks", type=Path)
    parser.add_argument("--store", type=Path, default=Path("segmentation.lmdb"))
    parser.add_argument("--classes", type=int, default=21)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    if not args.store.exists():
        pack(args.images, args.store, masks=args.masks)

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(args.size, scale=(0.5, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.3, 0.3),  # leaves masks alone
            v2.ToImage(),
            v2.ToDtype(
                {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None},
                scale=True,
            ),
        ]
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = FastLoader(
        PackedDataset(args.store, joint=True),
        args.batch_size,
        shuffle=True,
        drop_last=True,
        seed=0,
        transform=transform,
        device=device if device == "cuda" else None,
    )
    model = network(args.classes, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        for batch in loader:  # "image": float32 (n, 3, h, w); "mask": int64 (n, h, w)
            levels = model(batch["image"])
            loss = nn.functional.cross_entropy(levels, batch["mask"], ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
