"""Batches in pageable memory."""

from common import Ready, loader, train

if __name__ == "__main__":
    train(loader(Ready(), pin_memory=False))
