"""Many more workers than CPUs."""

import os

from common import Ready, loader, train

if __name__ == "__main__":
    workers = 2 * len(os.sched_getaffinity(0)) + 2
    train(loader(Ready(busy_s=0.001), num_workers=workers))
