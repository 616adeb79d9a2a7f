"""Images per second of several loaders on one workload, measured in turn."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from bench import reference
from bench.process import Failed, Process, Refused
from bench.report import Row
from bench.suites.base import Figures, Options
from bench.workload import Workload

# The number of fresh processes in which each loader runs its first epoch.
_FRESH = 2


@dataclasses.dataclass(kw_only=True)
class _Runner:
    process: Process
    facts: dict[str, Any]
    setting: dict[str, Any]
    tuned: dict[str, Any]
    rates: list[float] = dataclasses.field(default_factory=list)


def race(
    work: Workload,
    names: list[str],
    options: Options,
    *,
    fresh: int = _FRESH,
    **facts: Any,
) -> list[Row]:
    """Each loader in its own process; every round runs each once, and stops the others meanwhile.

    The order changes from round to round, so that a machine that gets slower or faster treats all
    alike. Afterwards each runs the first epoch of ``fresh`` new processes, with nothing remembered
    of the images but in the page cache.
    """
    figures = Figures(work, options, **facts)
    truth = reference.make(work)
    runners: list[_Runner] = []
    processes: list[Process] = []
    try:
        for name in names:
            process = Process(name)
            processes.append(process)
            try:
                runners.append(_started(process, work, options, truth))
            except (Refused, Failed) as error:
                figures.none(process, error)
                process.stop()
        for number in range(options.rounds):
            turn = number % max(1, len(runners))
            for runner in runners[turn:] + runners[:turn]:
                try:
                    _measure(runner, options)
                except Failed as error:
                    figures.none(runner.process, error)
                    runner.process.stop()  # it may have hung
                    runners.remove(runner)
            options.say(f"round {number + 1} of {options.rounds} done")
        firsts = _first_epochs(work, runners, min(fresh, options.rounds))
        for runner in runners:
            name = runner.process.name
            more = {**runner.facts, **firsts.get(name, {})}
            figures.add(name, "throughput", "images/s", runner.rates, runner.setting, **more)
    finally:
        for process in processes:
            process.stop()
    return figures.rows


def _started(process: Process, work: Workload, options: Options, truth: Path) -> _Runner:
    made = process.call("make", work=work.to_json())
    options.say(f"{process.name}: warming up")
    process.call("prepare", fresh=options.fresh)
    started = process.call(
        "start",
        seconds=options.seconds / 2,
        tries=1 if options.toy else options.tries,
        reference=str(truth),
        tuned=options.tuned.get(process.name),
    )
    process.hold()
    setting = dict(started["setting"])
    if made["memory_format"] != work.memory_format or work.memory_format != "contiguous":
        setting["memory_format"] = made["memory_format"]
    facts = {"versions": made["versions"], "check": started["check"], "tried": started["tried"]}
    return _Runner(process=process, facts=facts, setting=setting, tuned=started["setting"])


def _first_epochs(
    work: Workload, runners: list[_Runner], fresh: int
) -> dict[str, dict[str, list[float]]]:
    """By loader, images a second of the first epoch in so many new processes."""
    rates: dict[str, list[float]] = {}
    for _ in range(fresh):
        for runner in runners:
            name = runner.process.name
            with Process(name) as process:
                process.call("make", work=work.to_json())
                epoch = process.call("first_epoch", setting=runner.tuned)
            rates.setdefault(name, []).append(epoch["images_per_s"])
    return {
        name: {"first_epochs": [float(f"{rate:.5g}") for rate in measured]}
        for name, measured in rates.items()
    }


def _measure(runner: _Runner, options: Options) -> None:
    measured = runner.process.call("run", seconds=options.seconds)
    runner.rates.append(measured["images_per_s"])
    runner.process.hold()
