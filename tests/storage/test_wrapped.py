"""A store in front of stores answers what they answer, whatever ``Store`` comes to have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload import open_store, pack
from fastload._engine.cache.store import BYTES, CachedStore
from fastload.storage.base import Store
from fastload.storage.concat import ConcatStore
from fastload.storage.remote.options import RemoteOptions
from fastload.storage.wrapped import WrappedStore
from loose_files import LooseFiles
from object_server import ObjectServer

COUNT = 6
ATTRIBUTES = set(inspect.get_annotations(Store))
METHODS = {name for name in vars(Store) if not name.startswith("_")} - ATTRIBUTES
ALL = np.arange(COUNT)


class Front(WrappedStore):
    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._describe(inner)

    @property
    def inner(self) -> Store:
        return self._inner


@pytest.mark.parametrize("name", sorted(METHODS - {"locate"}))
def test_every_method_and_its_arguments_are_forwarded(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, method = Front(LooseFiles(tmp_path / "a", [b"a"], [(1, 1)], 0)), vars(Store)[name]
    if isinstance(method, property):
        monkeypatch.setattr(LooseFiles, name, "the answer")
        assert getattr(store, name) == "the answer"
        return
    given: list[Any] = []
    parameters = list(inspect.signature(method).parameters.values())[1:]
    named = {one.name: object() for one in parameters if one.kind is one.KEYWORD_ONLY}
    placed = [object() for one in parameters if one.kind is not one.KEYWORD_ONLY]

    def answer(_: Store, *args: Any, **kwargs: Any) -> str:
        given.extend([list(args), kwargs])
        return "the answer"

    monkeypatch.setattr(LooseFiles, name, answer)
    assert getattr(store, name)(*placed, **named) == "the answer"
    assert given == [placed, named]


def test_every_attribute_is_taken_over(tmp_path: Path) -> None:
    inner = LooseFiles(tmp_path / "a", [b"a"], [(1, 1)], 0)
    values = {name: object() for name in ATTRIBUTES}
    for name, value in values.items():
        setattr(inner, name, value)
    store = Front(inner)
    assert {name: getattr(store, name) for name in ATTRIBUTES} == values


# --- the stores in front of others, over a store that has everything ------------------------------


class Made:
    classes = ("cat", "dog")

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {
            "image": Image.fromarray(np.random.default_rng(i).integers(0, 256, (20, 30, 3), "u1")),
            "label": i % 2,
            "caption": f"caption {i}",
            "numbers": np.array([i, 7], np.int64),
        }


ANSWERS: dict[str, Callable[[Store], Any]] = {
    "batch": lambda store: [store.batch(name, ALL) for name in ("caption", "numbers")],
    "check_columns": lambda store: store.check_columns(),
    "check_whole": lambda store: store.check_whole(),
    "check_window": lambda store: store.check_window(1),
    "checksums": lambda store: store.checksums(ALL),
    "column": lambda store: store.column("numbers"),
    "fields": lambda store: dict(store.fields),
    "hint": lambda store: [store.hint(windowed=windowed) for windowed in (False, True)],
    "keys": lambda store: store.keys(ALL),
    "kinds": lambda store: store.kinds(ALL),
    "joint": lambda store: store.joint,
    "labels": lambda store: store.labels,
    "locate": lambda store: store.locate(ALL).sizes,
    "memory": lambda store: dict(store.memory()),
    "places": lambda store: positions(store.places(ALL)),
    "read": lambda store: store.read(ALL),
    "sizes": lambda store: store.sizes(ALL),
    "spans": lambda store: positions(store.spans(ALL)),
    "tables": lambda store: positions(store.tables()),
    "values": lambda store: store.values("caption", ALL),
    # of the files, as many as the store behind it has
    "file_table": lambda store: [len(store.file_table()[1]) >= 1, store.file_table()[1][-1]
                                 == sum(map(len, store.files))],
    "files": lambda store: len(list(store.files)) >= 1,
    "mapped_files": lambda store: [store.mapped_files()[0], len(store.mapped_files())
                                   == len(store.files)],
    "shown": lambda store: Path(store.shown(0)).name,
    "close": lambda store: [store.close(), store.read(ALL[:1])],
}  # fmt: skip
REMOTE = {"ahead", "doubt", "expect", "fetched", "passed", "read_through"}
ITS_OWN = {"format", "path", "mapped", "remote", "generation"}


def positions(spans: Any) -> list[Any]:
    return [spans.file.tolist(), spans.offset.tolist(), spans.nbytes.tolist()]


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    return [plain(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("inner") / "made.lmdb"
    pack(Made(), path)
    return open_store(path)


@pytest.fixture(params=["concat", "cache", "url"])
def store(request: pytest.FixtureRequest, inner: Store, tmp_path: Path) -> Any:
    if request.param == "concat":
        yield ConcatStore([inner])
    elif request.param == "cache":
        yield CachedStore(inner, [inner], "ram", BYTES, None, 1 << 20)
    else:
        pytest.importorskip("obstore", reason="obstore is not installed")
        server = ObjectServer(Path(inner.path).parent)
        opened = open_store(
            f"{server.url}/made.lmdb", remote=RemoteOptions(cache_dir=tmp_path / "cache")
        )
        yield opened
        opened.close()
        server.close()


def test_a_store_in_front_of_a_store_answers_as_that_one(store: Store, inner: Store) -> None:
    assert ANSWERS.keys() | REMOTE == METHODS
    assert len(store) == len(inner)
    for name in ATTRIBUTES - ITS_OWN:
        if not (isinstance(store, ConcatStore) and name == "metadata"):
            assert getattr(store, name) == getattr(inner, name), name
    for name, answer in ANSWERS.items():
        assert plain(answer(store)) == plain(answer(inner)), name
    if not store.remote:
        assert store.fetched() is None and not store.doubt(ALL)


def test_a_cache_says_of_kept_records_what_the_store_says(inner: Store) -> None:
    cached = CachedStore(inner, [inner], "ram", BYTES, None, 1 << 20)
    for record, data in enumerate(inner.read(ALL[:3])):
        assert cached.arena.put(record, data, 0, 30, 20, False)
    kept = cached.locate(ALL).kept
    assert kept is not None and kept.tolist() == [True] * 3 + [False] * 3
    for name in ANSWERS.keys() - {"places", "spans"}:
        assert plain(ANSWERS[name](cached)) == plain(ANSWERS[name](inner)), name
