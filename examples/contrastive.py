"""Contrastive learning (SimCLR's loss): two random views of each image, without labels.

    python examples/contrastive.py ./imgs

A list of transforms gives a list of views. An image is read once for all of them.
"""

import argparse

import torch
from torch import nn
from torchvision import models
from torchvision import transforms as T

from fastload import FastLoader


def contrast(first: torch.Tensor, second: torch.Tensor, temperature: float = 0.1) -> torch.Tensor:
    """The NT-Xent loss of (n, d) embeddings: each view has to find the other among 2 n - 1."""
    both = nn.functional.normalize(torch.cat([first, second]), dim=1)
    likeness = both @ both.T / temperature
    likeness.fill_diagonal_(float("-inf"))
    n = len(first)
    partner = torch.arange(2 * n, device=both.device).roll(n)
    return nn.functional.cross_entropy(likeness, partner)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images", help="a folder of images, or a store that fastload packed")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--model", default="resnet18")
    args = parser.parse_args()

    view = T.Compose(
        [
            T.RandomResizedCrop(args.size, scale=(0.2, 1.0)),
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            T.RandomGrayscale(p=0.2),
            T.ToTensor(),
            T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = FastLoader(
        args.images,
        args.batch_size,
        shuffle=True,
        drop_last=True,
        seed=0,
        transform=[view, view],
        device=device if device == "cuda" else None,
    )
    model = models.get_model(args.model, num_classes=128).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    for epoch in range(args.epochs):
        for batch in loader:
            # with labels (a folder of class folders): views, labels
            first, second = batch[0] if len(loader.dataset.classes) else batch
            loss = contrast(model(first), model(second))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    torch.save(model.state_dict(), "contrastive.pt")


if __name__ == "__main__":
    main()
