"""Train a small network on CIFAR-10, read where torchvision put it: nothing is packed.

    python examples/cifar.py --download

FastLoader takes torchvision's dataset as it is, and makes whole batches of its array in C++.
"""

import argparse

import torch
from torch import nn
from torchvision import datasets
from torchvision import transforms as T

from fastload import FastLoader

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="data")
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()

    train_tf = T.Compose(
        [
            T.RandomCrop(32, padding=4),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )
    val_tf = T.Compose([T.ToTensor(), T.Normalize(MEAN, STD)])
    train_set = datasets.CIFAR10(args.root, transform=train_tf, download=args.download)
    val_set = datasets.CIFAR10(args.root, train=False, transform=val_tf, download=args.download)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    onto = device if device == "cuda" else None  # None: batches stay in host memory
    train = FastLoader(
        train_set, args.batch_size, shuffle=True, drop_last=True, seed=0, device=onto
    )
    val = FastLoader(val_set, args.batch_size, device=onto)

    width = args.width
    model = nn.Sequential(
        block(3, width),
        block(width, 2 * width),
        block(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 3e-3, epochs=args.epochs, steps_per_epoch=len(train)
    )
    print(train.explain())
    for epoch in range(args.epochs):
        model.train()
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(images).argmax(1) == labels).sum() for images, labels in val)
        speed = train.stats()["images_per_s"]
        accuracy = float(right) / len(val_set)
        print(f"epoch {epoch}: accuracy {accuracy:.1%}, {speed:,.0f} images/s")


if __name__ == "__main__":
    main()
