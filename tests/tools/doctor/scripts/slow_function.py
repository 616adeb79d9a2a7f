"""A function in the transform takes most of the time."""

import time
from typing import Any

from common import Ready, loader, train


def blur(image: Any) -> Any:
    end = time.thread_time() + 0.001
    while time.thread_time() < end:
        pass
    return image


class Blurred(Ready):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return blur(image), label


if __name__ == "__main__":
    train(loader(Blurred()), work_s=0.002)
