"""Every suite by name."""

from __future__ import annotations

from bench.suites.any_dataset import AnyDataset, NeverSlower
from bench.suites.base import Suite
from bench.suites.in_turn import BucketsSuite, Cache
from bench.suites.processes import Cold, Memory, Pack, Startup
from bench.suites.race import Augment, ImagenetEval, ImagenetTrain, RawTrain, SmallImages
from bench.suites.remote import Remote
from bench.suites.scripts import Scripts

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        ImagenetTrain(),
        ImagenetEval(),
        SmallImages(),
        RawTrain(),
        Augment(),
        Pack(),
        Startup(),
        Memory(),
        Cold(),
        Cache(),
        BucketsSuite(),
        Remote(),
        AnyDataset(),
        NeverSlower(),
        Scripts(),
    )
}
