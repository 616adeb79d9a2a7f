"""What a notebook shows for the report of ``pack``: a table, bars, and some of the images."""

from __future__ import annotations

import base64
import io
from html import escape

import numpy as np

from .._base.notebook import Row, bar, table
from .._engine.pillow import decode_record
from ..errors import FastloadError, StoreError
from ..storage import Store, open_store
from ..storage._local import is_url
from ._report import PackReport, contents, pace

_IMAGES = 8
_SIDE = 96  # pixels, at most
_SKIPPED = 10  # files that are listed


def report_html(report: PackReport) -> str:
    """The stores, the speed, what was kept unchanged or skipped, and images of the first store."""
    rows: list[Row] = []
    for part in report.parts:
        words = contents(part)
        several = len(report.parts) > 1
        share = part.records / max(report.records, 1)
        rows.append((part.path, bar(share, words) if several else escape(words)))
    rows.append(("time", escape(pace(report))))
    for reason, count in report.kept.items():
        rows.append(("kept unchanged", bar(count / max(report.records, 1), f"{count:,}, {reason}")))
    for skipped in report.skipped[:_SKIPPED]:
        where = f"{skipped.path} (record {skipped.record})"
        rows.append(("skipped", escape(f"{where}: {skipped.reason}")))
    if len(report.skipped) > _SKIPPED:
        rows.append(("skipped", f"{len(report.skipped) - _SKIPPED:,} more"))
    rows += [("left out", escape(str(files))) for files in report.left_out]
    images = _images(report.parts[0].path)
    return table([*rows, ("images", images)] if images else rows)


def _images(path: str) -> str:
    """Some images, spread evenly over the store; nothing of one at a URL, which is not fetched."""
    if is_url(path):
        return ""
    try:
        with open_store(path) as store:
            spread = np.linspace(0, len(store) - 1, min(_IMAGES, len(store)))
            records = spread.round().astype(np.int64)
            names = store.keys(records)
            shown = zip(records.tolist(), names, strict=True)
            return "\n".join(_image(store, record, name) for record, name in shown)
    except StoreError as error:  # it was moved or replaced since; the figures still hold
        return escape(f"cannot be shown: {error}")


def _image(store: Store, record: int, name: str) -> str:
    try:
        image = decode_record(store, record)
    except FastloadError as error:  # stored as it was found, for instance truncated
        return escape(f"{name}: {error}")
    image.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img src="data:image/jpeg;base64,{data}" title="{escape(name)}">'
