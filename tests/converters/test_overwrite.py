"""``overwrite=True``: the old store stays until the new one is complete; nothing is left of it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fastload._tools.verify import verify
from fastload.cli import main
from fastload.converters import _overwrite, _run, append, concat, pack
from fastload.errors import StoreError, UsageError
from fastload.storage import _partial, open_store
from storage.formats import picture

SUFFIXES = (".lmdb", ".tfrecord", ".rec", ".tar", ".h5", ".zarr", ".n5", ".pth")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "imgs"
    for index in range(12):
        path = root / f"c{index % 2}" / f"{index:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(index, 16, 16))
    return root


@pytest.fixture
def fewer(images: Path, tmp_path: Path) -> Path:
    """The images of one class only."""
    root = tmp_path / "fewer"
    root.mkdir()
    (root / "c1").symlink_to(images / "c1")
    return root


def keys(path: Path) -> list[str]:
    with open_store(path) as store:
        return store.keys(np.arange(len(store)))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_new_store_takes_the_place_of_the_old_one(
    images: Path, fewer: Path, tmp_path: Path, suffix: str
) -> None:
    folder, alone = tmp_path / "out", tmp_path / "alone"
    folder.mkdir()
    alone.mkdir()
    path = folder / f"a{suffix}"
    pack(images, path)
    with pytest.raises(UsageError, match="exists"):
        pack(fewer, path)
    report = pack(fewer, path, overwrite=True)
    assert report.parts[0].path == str(path) and report.records == 6
    pack(fewer, alone / f"a{suffix}")
    assert keys(path) == keys(alone / f"a{suffix}")
    assert sorted(os.listdir(folder)) == sorted(os.listdir(alone))


@pytest.mark.parametrize("suffix", [".tfrecord", ".rec", ".tar", ".h5"])
@pytest.mark.parametrize(("before", "after"), [(4, None), (None, 3), (5, 2)])
def test_no_file_of_an_old_set_of_shards_is_left(
    images: Path, tmp_path: Path, suffix: str, before: int | None, after: int | None
) -> None:
    folder, alone = tmp_path / "out", tmp_path / "alone"
    folder.mkdir()
    alone.mkdir()
    pack(images, folder / f"a{suffix}", shards=before)
    pack(images, folder / f"a{suffix}", shards=after, overwrite=True)
    pack(images, alone / f"a{suffix}", shards=after)
    assert sorted(os.listdir(folder)) == sorted(os.listdir(alone))
    assert len(open_store(folder / f"a{suffix}")) == 12


@pytest.mark.parametrize("suffix", [".tfrecord", ".h5"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, None), (None, 2)])
def test_whatever_is_in_the_way_is_named_with_the_way_to_replace_it(
    images: Path, tmp_path: Path, suffix: str, before: int | None, after: int | None
) -> None:
    path = tmp_path / f"a{suffix}"
    pack(images, path, shards=before)
    for again in (pack, concat):
        given: Any = images if again is pack else [images, images]
        with pytest.raises(UsageError, match=r"exists: .*, or replace it with overwrite=True"):
            again(given, path, shards=after)
    assert not list(tmp_path.glob("*.partial"))
    assert concat([images, images], path, shards=after, overwrite=True).records == 24
    assert len(open_store(path)) == 24


def test_the_command_concat_replaces_a_store_too(images: Path, tmp_path: Path) -> None:
    arguments = ["concat", str(images), str(images), str(tmp_path / "a.lmdb")]
    pack(images, tmp_path / "a.lmdb")
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 2 and "replace it with --overwrite" in refused.stderr
    assert CliRunner().invoke(main, [*arguments, "--overwrite"]).exit_code == 0
    assert len(open_store(tmp_path / "a.lmdb")) == 24


def test_where_nothing_is_it_packs_as_without(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "a.lmdb", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "imgs"]


def test_the_parts_of_a_split_are_replaced_together(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "a.lmdb", split="val=0.3")
    parts = pack(images, tmp_path / "a.lmdb", split="val=0.3", encode="png", overwrite=True).parts
    assert [Path(part.path).name for part in parts] == ["a.lmdb", "a-val.lmdb"]
    assert sum(len(open_store(part.path)) for part in parts) == 12
    assert sorted(os.listdir(tmp_path)) == ["a-val.lmdb", "a.lmdb", "imgs"]


@pytest.mark.parametrize("suffix", [".lmdb", ".zarr"])
def test_a_part_of_a_split_that_an_interrupted_run_finished_is_not_in_the_way(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    publish = _partial.Partial.publish

    def full(partial: _partial.Partial, renames: Any) -> None:
        if partial.path.endswith(f"-val{suffix}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        publish(partial, renames)

    with monkeypatch.context() as patch:
        patch.setattr(_partial.Partial, "publish", full)
        with pytest.raises(StoreError, match="run the same command again"):
            pack(images, tmp_path / f"a{suffix}", split="val=0.3")
    with pytest.raises(UsageError, match=rf"a{suffix}' exists"):
        pack(images, tmp_path / f"a{suffix}", split="val=0.4")
    parts = pack(images, tmp_path / f"a{suffix}", split="val=0.3").parts
    assert [Path(part.path).name for part in parts] == [f"a{suffix}", f"a-val{suffix}"]
    assert sum(len(open_store(part.path)) for part in parts) == 12
    for part in parts:  # as of a run that was killed when it had only this left to delete
        os.mkdir(f"{part.path}.partial")
        (Path(f"{part.path}.partial") / "settings.json").write_text("{}")
    with pytest.raises(UsageError, match=r"exists: .*, or replace it with overwrite=True"):
        pack(images, tmp_path / f"a{suffix}", split="val=0.3")
    assert not list(tmp_path.glob("*.partial"))


def test_an_interrupted_run_leaves_the_old_store_and_is_resumed(
    images: Path, fewer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_run, "_CHUNK", 2)
    monkeypatch.setattr(_run, "_CHUNK_MOST", 2)
    pack(fewer, tmp_path / "a.lmdb")

    def stop(done: int, total: int | None, nbytes: int) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"work so far is in .*a\.lmdb\.partial': run the"):
        pack(images, tmp_path / "a.lmdb", overwrite=True, progress=stop)
    assert len(open_store(tmp_path / "a.lmdb")) == 6
    (part,) = pack(images, tmp_path / "a.lmdb", overwrite=True).parts
    assert part.resumed >= 6 and len(open_store(tmp_path / "a.lmdb")) == 12
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "fewer", "imgs"]


def killed_before_the_swap(
    images: Path, path: Path, monkeypatch: pytest.MonkeyPatch, encode: Any = None
) -> None:
    """``pack --overwrite`` ends when the new store is whole, but not in its place."""

    class Killed(BaseException):
        pass

    def kill(folder: str) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(_overwrite, "in_order", kill)
        with pytest.raises(Killed):
            pack(images, path, overwrite=True, encode=encode)


@pytest.mark.parametrize("suffix", [".lmdb", ".tar", ".zarr"])
def test_a_run_that_was_killed_before_the_swap_completes_it(
    images: Path, fewer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    pack(fewer, path)
    killed_before_the_swap(images, path, monkeypatch)
    assert len(open_store(path)) == 6
    assert pack(images, path, overwrite=True).parts[0].resumed == 12
    assert len(open_store(path)) == 12
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("suffix", [".lmdb", ".tar", ".zarr"])
def test_images_that_changed_after_a_run_was_killed_before_the_swap_are_noticed(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    pack(images, path)
    killed_before_the_swap(images, path, monkeypatch, encode="png" if suffix != ".zarr" else None)
    (images / "c1" / "03.jpg").write_bytes(picture(77, 16, 16))
    for _ in range(2):
        with pytest.raises(UsageError, match=r"03\.jpg' has changed since .*: delete '") as raised:
            pack(images, path, overwrite=True, encode="png" if suffix != ".zarr" else None)
    shutil.rmtree(str(raised.value).rsplit("delete '", 1)[1].split("'")[0])
    assert pack(images, path, overwrite=True).records == 12
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("suffix", "before", "after"),
    [
        (".lmdb", {}, {}),
        (".lmdb", {"split": "val=0.5"}, {"split": "val=0.3"}),
        (".tar", {}, {}),
        (".zarr", {}, {}),
        (".tar", {"shards": 2}, {"shards": 1}),
        (".tfrecord", {"shards": 2}, {"shards": 3}),
        (".h5", {"shards": 2}, {}),
    ],
)
def test_a_run_that_was_killed_at_any_rename_is_finished_by_the_next(
    images: Path, fewer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    suffix: str, before: dict[str, Any], after: dict[str, Any],
) -> None:  # fmt: skip
    class Killed(BaseException):
        pass

    moment, calls = -1, 0

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def either(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > moment:
                raise Killed
            return call(*arguments, **options)

        return either

    (tmp_path / "new").mkdir()
    pack(images, tmp_path / "new" / f"a{suffix}", **after)
    expected = sorted(os.listdir(tmp_path / "new"))
    while True:
        moment, calls = moment + 1, 0
        folder = tmp_path / str(moment)
        folder.mkdir()
        path = folder / f"a{suffix}"
        pack(fewer, path, **before)
        with monkeypatch.context() as patch:
            for module, name in (
                (os, "rename"), (os, "replace"), (os, "remove"), (shutil, "rmtree")
            ):  # fmt: skip
                patch.setattr(module, name, dying(getattr(module, name)))
            try:
                pack(images, path, overwrite=True, **after)
            except Killed:
                killed = True
                _partial._held.clear()  # as if that process had ended
            else:
                killed = False
        parts = pack(images, path, overwrite=True, **after).parts
        assert sum(len(open_store(part.path)) for part in parts) == 12
        assert all(open_store(part.path).classes == ["c0", "c1"] for part in parts)
        assert sorted(os.listdir(folder)) == expected
        if not killed:
            break
    assert moment > 4


def test_a_folder_that_is_no_store_is_not_lost(images: Path, tmp_path: Path) -> None:
    mine = tmp_path / "a.zarr"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years")
    with pytest.raises(UsageError, match=r"a\.zarr' is a folder and not a store"):
        pack(images, mine, overwrite=True)
    assert os.listdir(mine) == ["thesis.tex"]
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "imgs"]


def test_the_source_is_not_overwritten(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "a.lmdb")
    with pytest.raises(UsageError, match="is also the source"):
        pack(tmp_path / "a.lmdb", tmp_path / "a.lmdb", encode="png", overwrite=True)
    stores = [tmp_path / "a.lmdb", images]
    with pytest.raises(UsageError, match="is also the source"):
        concat(stores, tmp_path / "a.lmdb", overwrite=True)
    assert len(open_store(tmp_path / "a.lmdb")) == 12
    os.rename(tmp_path / "a.lmdb", tmp_path / "b-val.lmdb")
    with pytest.raises(UsageError, match=r"b-val\.lmdb' is also the source"):
        pack(tmp_path / "b-val.lmdb", tmp_path / "b.lmdb", overwrite=True, split="val=0.5")
    assert len(open_store(tmp_path / "b-val.lmdb")) == 12


def test_a_url_is_not_overwritten(images: Path) -> None:
    with pytest.raises(UsageError, match="expected a local destination"):
        pack(images, "memory://b/a.lmdb", overwrite=True)


def test_of_two_runs_at_once_one_is_refused_and_one_whole_store_remains(
    images: Path, fewer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins between two renames of the first, which it must not take back."""
    path, refused = tmp_path / "a.tar", list[str]()
    pack(fewer, path)
    before = sorted(os.listdir(tmp_path))
    replace = os.replace

    def interrupted(source: str, target: str) -> None:
        replace(source, target)
        if os.path.dirname(target) != str(tmp_path) or refused:
            return
        code = "import sys; from fastload.converters import pack; pack(*sys.argv[1:], overwrite=1)"
        words = [sys.executable, "-c", code, str(fewer), str(path)]
        refused.append(subprocess.run(words, capture_output=True, text=True).stderr)

    monkeypatch.setattr(os, "replace", interrupted)
    assert pack(images, path, overwrite=True).records == 12
    monkeypatch.undo()
    assert "another process is appending to this store or overwriting it: wait" in refused[0]
    with open_store(path) as store:
        assert len(store) == 12 and verify(path).damaged == ()
    assert sorted(os.listdir(tmp_path)) == before


def test_a_store_is_not_overwritten_while_another_process_appends(
    images: Path, fewer: Path, tmp_path: Path
) -> None:
    path, tried = tmp_path / "a.tar", list[str]()
    pack(images, path)

    def second(done: int, total: int | None, nbytes: int) -> None:
        if not tried:
            with pytest.raises(UsageError, match="another process is appending to this store"):
                pack(fewer, path, overwrite=True)
            tried.append("refused")

    other = tmp_path / "more" / "d"
    other.mkdir(parents=True)
    (other / "new.jpg").write_bytes(picture(99, 16, 16))
    with pytest.raises(UsageError):  # without classes
        append(path, other, progress=second)
    other.rename(tmp_path / "more" / "c0")
    (tmp_path / "more" / "c1").mkdir()
    (tmp_path / "more" / "c1" / "one.jpg").write_bytes(picture(98, 16, 16))
    assert append(path, tmp_path / "more", progress=second).records == 14
    assert tried and len(open_store(path)) == 14
    assert "a.tar.replacing-lock" not in os.listdir(tmp_path)


@pytest.mark.parametrize("split_first", [True, False])
def test_a_part_of_a_split_is_not_replaced_by_two_processes_at_once(
    images: Path, fewer: Path, tmp_path: Path, split_first: bool
) -> None:
    whole, part = tmp_path / "a.lmdb", tmp_path / "a-val.lmdb"
    pack(images, whole, split="val=0.3")
    before = sorted(os.listdir(tmp_path))
    first: dict[str, Any] = {"split": "val=0.4"} if split_first else {}
    second: dict[str, Any] = {} if split_first else {"split": "val=0.4"}
    paths = (whole, part) if split_first else (part, whole)
    tried = list[str]()

    def meanwhile(done: int, total: int | None, nbytes: int) -> None:
        with pytest.raises(
            UsageError, match=r"a-val\.lmdb': another process is appending"
        ) as raised:
            pack(fewer, paths[1], overwrite=True, **second)
        tried.append(str(raised.value))

    pack(images, paths[0], overwrite=True, progress=meanwhile, **first)
    assert tried and sorted(os.listdir(tmp_path)) == before
    pack(fewer, paths[1], overwrite=True, **second)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_folder_that_cannot_be_written_is_an_error_of_the_machine(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(images, tmp_path / "a.lmdb")

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "open", refuse)  # root may write anywhere
    with pytest.raises(StoreError, match=r"cannot be written \(Permission denied\): make it"):
        pack(images, tmp_path / "a.lmdb", overwrite=True)


def test_a_file_system_without_locks_is_not_called_another_process(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(images, tmp_path / "a.lmdb")
    before = sorted(os.listdir(tmp_path))

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_locks)
        with pytest.raises(StoreError, match=r"file system cannot do that \(No locks available\)"):
            pack(images, tmp_path / "a.lmdb", overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", no_locks)
        with pytest.raises(StoreError, match=r"file system cannot do that \(No locks available\)"):
            pack(images, tmp_path / "b.lmdb")
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_locks)
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        with pytest.raises(
            StoreError, match=r"cannot do that \(No locks.*: set TMPDIR to a folder"
        ):
            pack(images, "memory://bucket/b.lmdb")
    assert sorted(os.listdir(tmp_path)) == before
