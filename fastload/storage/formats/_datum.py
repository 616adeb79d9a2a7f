"""Caffe's Datum: where the fields of each message lie.

    Datum  1: channels  2: height  3: width  4: data  5: label  6: float_data  7: encoded

``data`` is an image file if ``encoded`` is set, otherwise uint8 pixels of shape (channels, height,
width), BGR. Source: Caffe's ``caffe.proto``.
"""

from __future__ import annotations

import numpy as np

from ._protobuf import Data

# Columns of what ``find`` returns.
CHANNELS, HEIGHT, WIDTH, OFFSET, LABEL, NBYTES, ENCODED, LABELLED = range(8)


def find(data: Data, offset: np.ndarray, nbytes: np.ndarray) -> tuple[np.ndarray, int]:
    """int64 (n, 8): the columns above of n messages; and the first that is no Datum, or -1.

    OFFSET and NBYTES are those of ``data``, LABELLED is 1 if there is a label.
    """
    from ... import _native

    found = np.zeros((len(offset), 8), np.int64)
    core = _native.required("an LMDB of Caffe's needs the native core")
    return found, int(core.find_datums(data, offset, nbytes, found))
