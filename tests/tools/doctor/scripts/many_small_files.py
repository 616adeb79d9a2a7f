"""A file of some KiB for each sample."""

from common import Files, loader, train

if __name__ == "__main__":
    train(loader(Files(2000, 4000, wait_s=0.002)), work_s=0.005)
