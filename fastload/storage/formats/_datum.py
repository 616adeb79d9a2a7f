"""Caffe's Datum: where the fields of each message lie.

    Datum  1: channels  2: height  3: width  4: data  5: label  6: float_data  7: encoded

``data`` is an image file if ``encoded`` is set, otherwise uint8 pixels of shape (channels, height,
width), BGR. Source: Caffe's ``caffe.proto``. ``_protobuf.py`` has the wire format.
"""

from __future__ import annotations

import numpy as np

from ._protobuf import MAX_NBYTES, Data, fields, signed, varint

# Columns of what ``find`` returns.
CHANNELS, HEIGHT, WIDTH, OFFSET, LABEL, NBYTES, ENCODED, LABELLED = range(8)
_NUMBERS = {1: CHANNELS, 2: HEIGHT, 3: WIDTH, 5: LABEL, 7: ENCODED}
_DATA, _LABEL = 4, 5


def find(data: Data, offset: np.ndarray, nbytes: np.ndarray) -> tuple[np.ndarray, int]:
    """The fields of n messages, and the number of the first one that is not a Datum, or -1.

    Args:
        data: the file, mapped.
        offset, nbytes: int64 (n,), of the messages.

    Returns:
        int64 (n, 8): the columns above; OFFSET and NBYTES are those of ``data``, LABELLED is 1 if
        there is a label.
    """
    from ... import _native

    found = np.zeros((len(offset), 8), np.int64)
    core = _native.load()
    if core is not None:
        return found, int(core.find_datums(data, offset, nbytes, found))
    for row, (begin, length) in enumerate(zip(offset.tolist(), nbytes.tolist())):
        try:
            if length > MAX_NBYTES:
                return found, row
            for number, wire, start, stop in fields(data, begin, begin + length):
                if number == _DATA and wire == 2:
                    found[row, OFFSET], found[row, NBYTES] = start, stop - start
                elif number in _NUMBERS and wire == 0:
                    found[row, _NUMBERS[number]] = signed(varint(data, start, stop)[0])
                    found[row, LABELLED] |= number == _LABEL
        except (ValueError, IndexError):
            return found, row
    return found, -1
