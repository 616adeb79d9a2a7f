"""Every worker computes with many threads."""

import os

import torch
from common import Ready, loader, train


def many(worker: int) -> None:
    torch.set_num_threads(4 * len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    train(loader(Ready(), worker_init_fn=many))
