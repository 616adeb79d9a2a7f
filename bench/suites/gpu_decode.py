"""gpu-decode: JPEGs to batches on a GPU, decoded there or on the CPU."""

from __future__ import annotations

import dataclasses

import click
import torch

from bench.loaders import GPU
from bench.report import Row
from bench.suites.base import Options, Suite, Variant
from bench.suites.race import race


class GpuDecode(Suite):
    name = "gpu-decode"
    summary = "JPEGs to batches on a GPU: decoded there, or on the CPU and copied; beside others"
    variants = {"photos": Variant(), "photos-uint8": Variant(dtype="uint8"), "small": Variant()}

    def known(self) -> tuple[str, ...]:
        return tuple(GPU)

    def run(self, variant: str, options: Options) -> list[Row]:
        if not torch.cuda.is_available() and not options.toy:
            raise click.ClickException(
                "gpu-decode: expected a CUDA device, found none; --toy runs it on DALI's CPU back "
                "end, which shows that it runs and nothing else"
            )
        work = self.work(variant, options, images="small" if variant == "small" else "photos")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        work = dataclasses.replace(work, device=device)
        names = self.loaders(variant, options)
        return race(work, names, options, fresh=0, device=_name(device))


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "none: DALI's CPU back end"
