"""Convolutions in float32."""

from common import Ready, loader, train

if __name__ == "__main__":
    train(loader(Ready()), autocast=False)
