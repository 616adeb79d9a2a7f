"""Images become float32 before they cross the bus."""

from typing import Any

import torch
from common import Ready, loader, train


class Floats(Ready):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image.to(torch.float32), label


if __name__ == "__main__":
    train(loader(Floats()))
