"""Applies the geometry log of a batch (``geometry_log.py``) to its bounding boxes and points.

The values of all samples are concatenated, so each step is a few array operations for the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..geometry.crop_geometry import Array
from ..geometry.geometry_log import LogEntry, LoggedCrop, LoggedMirror, LoggedResize, LoggedSanitize

if TYPE_CHECKING:
    import numpy.typing as npt

Float = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def move_boxes(
    boxes: Sequence[Array], steps: Sequence[LogEntry], form: str
) -> tuple[list[Float], list[npt.NDArray[np.int64]]]:
    """The boxes of n samples after ``steps``: float32 (k', 4) for each, and their positions among
    the k.

    ``boxes`` are (k, 4) for each sample, in pixels of the source image. ``form`` is "xyxy",
    "xywh" or "cxcywh", of the arguments and of the result.
    """
    counts = np.array([len(some) for some in boxes], np.int64)
    b, owner = _joined(boxes, 4), np.repeat(np.arange(len(boxes)), counts)
    positions = np.concatenate([np.arange(count) for count in counts]) if len(counts) else owner
    for step in steps:
        if isinstance(step, LoggedCrop):
            b[:, 0] -= step.anchor_x[owner].astype(np.float32)
            b[:, 1] -= step.anchor_y[owner].astype(np.float32)
            if form == "xyxy":
                b[:, 2] -= step.anchor_x[owner].astype(np.float32)
                b[:, 3] -= step.anchor_y[owner].astype(np.float32)
            _clamp(b, form, step.w[owner], step.h[owner])
        elif isinstance(step, LoggedResize):
            b[:, 0::2] *= (step.w / step.before_w)[owner, None].astype(np.float32)
            b[:, 1::2] *= (step.h / step.before_h)[owner, None].astype(np.float32)
        elif isinstance(step, LoggedMirror):
            _mirror(b, form, step, owner)
        else:
            good = _good(b, form, step, owner)
            b, owner, positions = b[good], owner[good], positions[good]
    ends = np.cumsum(np.bincount(owner, minlength=len(boxes)))[:-1]
    return np.split(b, ends), np.split(positions, ends)


def move_points(points: Sequence[Array], steps: Sequence[LogEntry]) -> list[Float]:
    """The points of n samples, (..., 2) each, after ``steps``: float32, in the same shapes."""
    flat = [np.asarray(some).reshape(-1, 2) for some in points]
    counts = np.array([len(some) for some in flat], np.int64)
    p, owner = _joined(flat, 2), np.repeat(np.arange(len(flat)), counts)
    for step in steps:
        if isinstance(step, LoggedCrop):
            p[:, 0] -= step.anchor_x[owner].astype(np.float32)
            p[:, 1] -= step.anchor_y[owner].astype(np.float32)
        elif isinstance(step, LoggedResize):
            p[:, 0] *= (step.w / step.before_w)[owner].astype(np.float32)
            p[:, 1] *= (step.h / step.before_h)[owner].astype(np.float32)
        elif isinstance(step, LoggedMirror):
            rows = step.which[owner]
            axis, side = (1, step.h) if step.vertical else (0, step.w)
            p[rows, axis] = -(p[rows, axis] - (side[owner][rows] - 1).astype(np.float32))
    moved = np.split(p, np.cumsum(counts)[:-1])
    return [some.reshape(np.shape(was)) for some, was in zip(moved, points, strict=True)]


def _joined(arrays: Sequence[Array], width: int) -> Float:
    if not len(arrays):
        return np.zeros((0, width), np.float32)
    joined = np.concatenate([np.reshape(array, (-1, width)) for array in arrays])
    return np.array(joined, np.float32)


def _corners(b: Float, form: str) -> None:
    """Convert ``b`` to xyxy, in place."""
    if form == "cxcywh":
        b[:, :2] -= b[:, 2:] / np.float32(2)
    if form != "xyxy":
        b[:, 2:] += b[:, :2]


def _clamp(b: Float, form: str, w: Array, h: Array) -> None:
    _corners(b, form)
    np.clip(b[:, 0::2], 0, w[:, None].astype(np.float32), out=b[:, 0::2])
    np.clip(b[:, 1::2], 0, h[:, None].astype(np.float32), out=b[:, 1::2])
    if form != "xyxy":
        b[:, 2:] -= b[:, :2]
    if form == "cxcywh":
        b[:, :2] = (b[:, :2] * np.float32(2) + b[:, 2:]) / np.float32(2)


def _mirror(b: Float, form: str, step: LoggedMirror, owner: Array) -> None:
    axis, sides = (1, step.h) if step.vertical else (0, step.w)
    rows = step.which[owner]
    side = sides[owner][rows].astype(np.float32)
    if form == "xyxy":
        low, high = b[rows, axis], b[rows, axis + 2]
        b[rows, axis], b[rows, axis + 2] = -(high - side), -(low - side)
    else:
        start = b[rows, axis] + b[rows, axis + 2] if form == "xywh" else b[rows, axis]
        b[rows, axis] = -(start - side)


def _good(b: Float, form: str, step: LoggedSanitize, owner: Array) -> npt.NDArray[np.bool_]:
    """Which boxes torchvision's ``sanitize_bounding_boxes`` keeps."""
    corners = b.copy()
    _corners(corners, form)
    w, h = corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1]
    width, height = step.w[owner, None], step.h[owner, None]
    good: npt.NDArray[np.bool_] = (
        (w >= step.min_size)
        & (h >= step.min_size)
        & (corners >= 0).all(axis=1)
        & (w * h >= step.min_area)
        & (corners[:, 0::2] <= width).all(axis=1)
        & (corners[:, 1::2] <= height).all(axis=1)
    )
    return good
