"""The dataset remembers everything it has seen."""

from typing import Any

from common import Ready, loader, train


class Remembering(Ready):
    def __init__(self) -> None:
        super().__init__(8192)
        self.seen: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        self.seen.append([str(number) for number in range(2000)])
        return super().__getitem__(index)


if __name__ == "__main__":
    train(loader(Remembering()), epochs=1)
