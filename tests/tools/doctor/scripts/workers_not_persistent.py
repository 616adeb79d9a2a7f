"""Workers are started for every epoch, and the epochs are short."""

from common import Ready, loader, train

if __name__ == "__main__":
    train(loader(Ready(64), persistent_workers=False), epochs=30, work_s=0.01)
