"""Fixed sizes, and no search for the fastest convolution."""

import torch
from common import Ready, loader, train

if __name__ == "__main__":
    torch.backends.cudnn.benchmark = False
    train(loader(Ready()))
