"""The samples are made in the training loop."""

from common import Ready, loader, train

if __name__ == "__main__":
    train(loader(Ready(busy_s=0.002), num_workers=0, persistent_workers=False))
