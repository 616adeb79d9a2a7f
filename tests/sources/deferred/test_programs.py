"""Random programs give the same with deferred images as without: result, exception, warnings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies

import deferred_programs
import releases
from fastload._sources.deferred import single, switch, thread_state


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return deferred_programs.write_sources(tmp_path_factory.mktemp("sources"))


@contextlib.contextmanager
def _checking() -> Iterator[None]:
    """Deferring as for a stream, whose batches cannot be made again."""
    with thread_state.batch(thread_state.BatchContext(checks=True)), switch.deferring():
        yield


# A program that fails before it loads leaves its file open, without deferred images too.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_program_gives_the_same_with_deferred_images(
    sources: list[Path], count: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "LEAST_PIXELS", 0)  # else the core would make none of these images

    @hypothesis.settings(max_examples=count(500, 10_000))
    @hypothesis.given(deferred_programs.programs(sources), strategies.booleans())
    def same(program: deferred_programs.Program, core_changes: bool) -> None:
        monkeypatch.setattr(single, "LEAST_CHANGED", 0 if core_changes else 96 * 96)
        eager = deferred_programs.run(program, contextlib.nullcontext())
        deferred = deferred_programs.run(program, switch.deferring())
        failed = eager[0][0] == "error" or any("__array_interface__" in told for told in eager[1])
        if failed and not releases.CLOSED_FILES_RAISE:
            return
        assert deferred_programs.run(program, _checking()) == eager
        if program.path.name == deferred_programs.DAMAGED and eager[0][0] == "error":
            return  # only who asks for the pixels learns of it: see image.py, Errors of the body
        assert deferred == eager

    same()
