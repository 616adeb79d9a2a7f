"""The loss is read in every step."""

import torch
from common import Ready, loader, train

if __name__ == "__main__":
    train(loader(Ready()), each=torch.Tensor.item)
