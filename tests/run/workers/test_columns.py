"""in_columns gives the batches, types and errors of torch's default_collate for any samples."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate_str_fn, default_collate_fn_map

from fastload._run.workers.columns import in_columns, torch_stack

Point = namedtuple("Point", "x y")

_NUMPY = [np.int64, np.int32, np.int16, np.float64, np.float32, np.float16, np.bool_, np.uint8]


def columns_of(samples: Any) -> Any:
    return in_columns(samples, torch_stack)


def outcome(collate: Any, samples: Any) -> Any:
    """The batch in terms that compare, or the error."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            return described(collate(samples))
        except Exception as error:
            return type(error), str(error)


def described(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        values = batch.float() if batch.dtype == torch.bfloat16 else batch
        return batch.dtype, batch.shape, batch.stride(), values.numpy().tobytes()
    if isinstance(batch, dict):
        return type(batch), [(key, described(value)) for key, value in batch.items()]
    if isinstance(batch, (list, tuple)):
        return type(batch), [described(value) for value in batch]
    return type(batch), batch


def same(samples: Any) -> None:
    assert outcome(columns_of, samples) == outcome(default_collate, samples)


def array(draw: Any, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    made = np.arange(int(np.prod(shape)) + 1)[1:].reshape(shape).astype(kind)
    return made[::-1] if shape and draw(st.integers(0, 20)) == 0 else made


@st.composite
def columns(draw: Any, count: int, depth: int = 0) -> list[Any]:
    """A column of ``count`` values, which fit together mostly."""
    odd = draw(st.integers(0, 8)) == 0
    kinds = ["number", "numpy", "text", "array", "tensor"]
    if depth < 2:
        kinds += ["dict", "ordered", "tuple", "list", "named"]
    kind = draw(st.sampled_from(kinds))
    if kind == "number":
        numbers = [st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans()]
        one = st.one_of(*numbers, st.integers(), st.none()) if odd else draw(
            st.sampled_from(numbers)
        )  # fmt: skip
        return [draw(one) for _ in range(count)]
    if kind == "numpy":
        types = [draw(st.sampled_from(_NUMPY))] * count
        if odd:
            types = [draw(st.sampled_from(_NUMPY)) for _ in range(count)]
        return [types[i](i % 2) for i in range(count)]
    if kind == "text":
        return [draw(st.sampled_from(["a", b"b", "c"])) for _ in range(count)]
    if kind in ("array", "tensor"):
        shape = draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
        shapes = [shape] * count
        types = [draw(st.sampled_from(_NUMPY))] * count
        if odd and draw(st.booleans()):
            shapes[-1] = draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
        elif odd:
            types[-1] = draw(st.sampled_from([*_NUMPY, ">f4", "U3"]))
        made = [array(draw, a, b) for a, b in zip(shapes, types)]
        if kind == "array" or types[-1] in (">f4", "U3"):
            return made
        return [torch.from_numpy(one.copy()) for one in made]
    width = draw(st.integers(0, 3)) if kind != "named" else 2
    parts = [draw(columns(count, depth + 1)) for _ in range(width)]
    rows = [list(row) for row in zip(*parts)] if parts else [[] for _ in range(count)]
    if odd and kind in ("tuple", "list"):
        rows[-1] = rows[-1] + [1]
    names = "abc"[:width]
    if kind in ("dict", "ordered"):
        made_of = dict if kind == "dict" else OrderedDict
        dicts = [made_of(zip(names, row)) for row in rows]
        if odd and width:
            dicts[-1].pop("a")
        return dicts
    return [Point(*row) if kind == "named" else tuple(row) if kind == "tuple" else row
            for row in rows]  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_what_torch_makes_of_any_samples_is_made(data: st.DataObject) -> None:
    same(data.draw(columns(data.draw(st.sampled_from([1, 2, 3, 9])))))


@pytest.mark.parametrize(
    "samples",
    [
        [],
        (),
        torch.arange(6).view(3, 2),
        {0: [1, 2]},
        [1, True],
        [True, 1],
        [2**63, 1],
        [1.0, 2],
        [np.float64(1), 2.0],
        [(1, 2), [3, 4]],
        [(1, 2), 3],
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": "x"}, {"b": "y", "a": 2, "c": 3}],
        [np.zeros((2, 3)), np.zeros((4, 3)), np.zeros((3, 3))],
        [np.zeros(3), np.zeros(3, np.float32)],
        [np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T],
        [np.flip(np.arange(3)), np.arange(3)],
        [np.array(1), np.array(2)],
        [np.broadcast_to(np.arange(2), (3, 2))] * 2,
        [object()],
        [torch.zeros(2), torch.zeros(3)],
        [torch.zeros(2), torch.zeros(2, dtype=torch.int64)],
    ],
)
def test_odd_samples_give_what_torch_gives(samples: Any) -> None:
    same(samples)
    if isinstance(samples, list):
        same(samples * 5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_in_torchs_words() -> None:
    same([torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])] * 2)


def test_what_the_user_registered_with_torch_collates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_collate_fn_map, int, lambda batch, *, collate_fn_map: "mine")
    assert columns_of([(1, 2.0)])[0] == "mine"
    monkeypatch.undo()
    monkeypatch.setitem(default_collate_fn_map, Point, lambda batch, *, collate_fn_map: "mine")
    assert columns_of([{"p": Point(1, 2)}]) == {"p": "mine"}


def test_numbers_follow_torchs_default_device() -> None:
    with torch.device("meta"):
        samples = [(1, np.zeros(2))] * 9
        ours, theirs = columns_of(samples), default_collate(samples)
    assert [part.device for part in ours] == [part.device for part in theirs]


def test_a_batch_can_be_resized_as_torchs_can() -> None:
    ids, rows = columns_of([(1, np.zeros(2))] * 9)
    assert ids.resize_(100).shape == (100,)
    assert rows.resize_(100, 2).shape == (100, 2)


def test_a_field_of_packed_records_is_refused_as_by_torch():
    records = np.zeros((4, 3), [("a", np.uint8), ("b", np.int32)])
    assert outcome(default_collate, list(records["b"]))[0] is ValueError
    same(list(records["b"]))


@pytest.mark.parametrize("kind", [str, int, float, np.ndarray])
def test_a_function_of_torchs_that_somebody_put_in_for_a_type_is_used(kind, monkeypatch):
    sample = {"n": 1, "x": 0.5, "t": torch.ones(2), "a": np.ones(2, np.float32)}
    same([sample] * 9)
    monkeypatch.setitem(default_collate_fn_map, kind, collate_str_fn)
    batch = columns_of([sample] * 9)
    assert {name: type(column) for name, column in batch.items()} == {
        name: list if isinstance(value, kind) else torch.Tensor for name, value in sample.items()
    }
    monkeypatch.undo()
    same([sample] * 9)
