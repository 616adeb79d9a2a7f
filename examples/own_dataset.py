"""A Dataset of your own, unchanged: it opens files with Pillow, and C++ threads do the pixels.

    python examples/own_dataset.py labels.csv --images ./imgs

``labels.csv`` has the columns ``file`` and ``label``. Replace FastLoader by torch's DataLoader, and
the script runs as before, with the same batches, bit for bit.
"""

import argparse
import csv
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision import models
from torchvision import transforms as T

from fastload import FastLoader


class Listed(Dataset):
    """The images that a CSV file lists. Nothing in here knows of fastload."""

    def __init__(self, listing: Path, images: Path, transform) -> None:
        with open(listing, newline="") as file:
            self.rows = list(csv.DictReader(file))
        self.classes = sorted({row["label"] for row in self.rows})
        self.images = images
        self.transform = transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int):
        row = self.rows[index]
        image = Image.open(self.images / row["file"]).convert("RGB")
        if image.width > image.height:  # whatever your own code asks of an image
            image = image.rotate(90, expand=True)
        return {
            "pixels": self.transform(image),
            "label": self.classes.index(row["label"]),
            "file": row["file"],
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("listing", type=Path)
    parser.add_argument("--images", type=Path, default=Path("."))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="resnet18")
    args = parser.parse_args()

    transform = T.Compose(
        [
            T.RandomResizedCrop(args.size),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    dataset = Listed(args.listing, args.images, transform)
    loader = FastLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = models.get_model(args.model, num_classes=len(dataset.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        for batch in loader:
            pixels, labels = batch["pixels"].to(device), batch["label"].to(device)
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    print(loader.explain())  # how many images stayed deferred, and what materialised the others


if __name__ == "__main__":
    main()
