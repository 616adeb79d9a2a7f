"""Few files on a slow disk, read in every epoch."""

from common import Files, loader, train

if __name__ == "__main__":
    train(loader(Files(320, 200_000, wait_s=0.003)), epochs=10, work_s=0.005)
