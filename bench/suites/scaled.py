"""scaled: how far the pixels of ``decode="scaled"`` are from the exact ones."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from bench import data
from bench.report import Row, missing, row
from bench.suites.base import Options, Suite, Variant
from fastload import FastLoader

# Output side, and whether the photos are those of 12 megapixels.
_SIZES = {"32": (32, False), "64": (64, False), "96": (96, False), "large": (224, True)}


class Scaled(Suite):
    name = "scaled"
    summary = 'the difference between decode="scaled" and exact pixels, as PSNR of each sample'
    variants = {name: Variant() for name in _SIZES}

    def run(self, variant: str, options: Options) -> list[Row]:
        from torchvision import transforms as t
        from torchvision.datasets import ImageFolder

        size, large = _SIZES[variant]
        if large:
            images = data.large(options.cache, toy=options.toy, say=options.say)
        else:
            count = 16 if options.toy else 300
            images = data.jpegs(
                options.cache, data=options.data, count=count, small=False, say=options.say
            )
        rows = []
        for name, step in (
            ("resize", t.Resize((size, size))),
            ("crop", t.RandomResizedCrop(size)),
        ):
            dataset = ImageFolder(str(images), transform=t.Compose([step, t.PILToTensor()]))
            begin = time.perf_counter()
            exact = _pixels(dataset, "exact", options)
            warmup_s = time.perf_counter() - begin
            found = [_psnr(*pair) for pair in zip(exact, _pixels(dataset, "scaled", options))]
            smaller = [value for value in found if math.isfinite(value)]
            facts: dict[str, Any] = {
                "suite": self.name,
                "variant": variant,
                "loader": f"fastload-folder, {name}",
                "metric": "PSNR of what was decoded smaller",
                "unit": "dB",
                "threads": options.threads,
                "batch": 1,
                "images": len(dataset),
                "data": "given" if options.data and not large else "made",
                "warmup_s": warmup_s,
                "round_s": time.perf_counter() - begin - warmup_s,
                **options.machine,
            }
            if smaller:
                fifth = torch.tensor(smaller).quantile(0.05).item()
                setting = {"decoded_smaller": len(smaller), "fifth_percentile": round(fifth, 1)}
                rows.append(row(values=smaller, setting=setting, **facts))
            else:
                rows.append(missing(reason="no image was decoded smaller", **facts))
        return rows


def _pixels(dataset: Any, decode: Any, options: Options) -> list[torch.Tensor]:
    loader = FastLoader(dataset, batch_size=1, seed=0, num_workers=options.threads, decode=decode)
    return [batch[0].clone() for batch, _ in loader]


def _psnr(exact: torch.Tensor, other: torch.Tensor) -> float:
    """Peak signal-to-noise ratio in dB; infinite if both are equal."""
    error = (exact.double() - other.double()).square().mean().item()
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)
