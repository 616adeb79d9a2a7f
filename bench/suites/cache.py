"""cache: the cost of each FastLoader cache in the first epoch, and its gain in later ones.

In one process, on loose files. All caches take turns within a round, so that a machine that gets
slower or faster treats all alike; ratios are of neighbours in time.
"""

from __future__ import annotations

import time
from typing import Any

from bench.loaders._torchvision import transforms_v1
from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant, imagenet, small
from bench.workload import Workload
from fastload import FastLoader

_KINDS = (None, "ram", "shm", "dct", "decoded")


class Cache(Suite):
    name = "cache"
    summary = "FastLoader(cache=...) on loose files: the first epoch, later ones, bytes an image"
    variants = {"train": Variant(), "eval": Variant(), "small": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        from torchvision.datasets import ImageFolder

        spec = self.variants[variant]
        if variant == "small":
            work = small(self.name, variant, spec, options)
        else:
            work = imagenet(self.name, variant, variant, spec, options)
        dataset = ImageFolder(work.images, transform=transforms_v1(work))
        # Sizes are read, files are in the page cache.
        warmup_s = len(dataset) / _rate(_loader(dataset, work, None))
        first: dict[str | None, list[float]] = {kind: [] for kind in _KINDS}
        later: dict[str | None, list[float]] = {kind: [] for kind in _KINDS}
        nbytes: dict[str | None, int] = {}
        for number in range(options.rounds):
            for kind in _KINDS:
                loader = _loader(dataset, work, kind)
                first[kind].append(_rate(loader))
                later[kind].append(_rate(loader))
                nbytes[kind] = loader.stats()["cache_nbytes"] // len(dataset)
                del loader  # and its memory
            options.say(f"round {number + 1} of {options.rounds} done")
        epochs = options.rounds * 2 * len(_KINDS)
        total_s = sum(
            len(dataset) / rate
            for rates in (first, later)
            for kind in _KINDS
            for rate in rates[kind]
        )
        facts = {**self.facts(work, options), "warmup_s": warmup_s, "round_s": total_s / epochs}
        return [
            row(
                suite=self.name,
                variant=variant,
                loader="fastload-folder",
                metric=f"{epoch} epoch, cache={kind}",
                unit="of no cache",
                values=[mine / none for mine, none in zip(rates[kind], rates[None], strict=True)],
                setting={
                    "cache": kind,
                    "images_per_s": [round(rate) for rate in rates[kind]],
                    "bytes_an_image": nbytes[kind],
                },
                **facts,
            )
            for epoch, rates in (("first", first), ("later", later))
            for kind in _KINDS[1:]
        ]


def _loader(dataset: Any, work: Workload, kind: str | None) -> FastLoader:
    return FastLoader(
        dataset,
        batch_size=work.batch,
        shuffle=work.shuffled,
        seed=0,
        num_workers=work.threads,
        cache=kind,
    )


def _rate(loader: FastLoader) -> float:
    """Images per second over an epoch."""
    begin = time.perf_counter()
    images = sum(len(batch) for batch, _ in loader)
    return images / (time.perf_counter() - begin)
