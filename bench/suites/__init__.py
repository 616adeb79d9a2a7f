"""Every suite by name."""

from __future__ import annotations

from bench.suites.any_dataset import AnyDataset, NeverSlower
from bench.suites.base import Suite
from bench.suites.cold import Cold
from bench.suites.in_turn import BucketsSuite, Cache, EntryPoints
from bench.suites.memory import Memory
from bench.suites.pack import Pack
from bench.suites.race import Augment, ImagenetEval, ImagenetTrain, RawTrain, SmallImages
from bench.suites.remote import Remote
from bench.suites.scripts import Scripts
from bench.suites.startup import Startup

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
        EntryPoints(),
        BucketsSuite(),
        Remote(),
        AnyDataset(),
        NeverSlower(),
        Scripts(),
    )
}
