"""Checking from the opcodes of a pickle what it would build, before it is loaded.

Loading hashes the keys of dicts, and hashing a tuple visits everything in it. If each level of
nested tuples contains the next one twice, that takes forever; ten thousand levels overflow the
stack. The pickles of tensors and texts nest tuples only a few levels deep. Source: the opcodes in
CPython's ``Lib/pickletools.py``.
"""

from __future__ import annotations

import struct

_TEXT, _LONG_PUT, _STOP = b"Xr."
_MOST = 1000  # tuples that hashing one value may visit
_CLASS, _INSTANCE, _NAME = -1, -2, -3  # of OrderedDict, to which torch adds attributes
_FIXED = {  # opcodes that push one value, and how many of its bytes follow
    b"N": 0, b"\x88": 0, b"\x89": 0, b"K": 1, b"M": 2, b"J": 4, b"G": 8, b"]": 0, b"}": 0, b")": 0,
}  # fmt: skip
_COUNTED = {  # opcodes that push one value, and the size of the length before it
    b"\x8c": 1, b"\x8d": 8, b"B": 4, b"C": 1, b"\x8e": 8, b"T": 4, b"U": 1, b"\x8a": 1,
}  # fmt: skip
_SKIPPED = {b"\x80": 1, b"\x95": 8}  # the protocol, a frame
_PUT, _GET = {b"q": 1, b"r": 4}, {b"h": 1, b"j": 4}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
_POPS = {b"a": 1, b"s": 2}  # APPEND, SETITEM
_TO_MARK = b"eu"  # APPENDS, SETITEMS


def check_shape(data: bytes) -> None:
    """Raise unless the pickle ``data`` has only plain values, in shallow tuples.

    ValueError, IndexError or struct.error.
    """
    length, push = struct.Struct("<I").unpack_from, (stack := _Stack()).values.append
    at = 0
    while True:
        code = data[at]
        at += 1
        if code == _TEXT:  # one for each record
            at += 4 + length(data, at)[0]
            push(0)
            if data[at] == _LONG_PUT:  # texts need not be remembered
                at += 5
                stack.counted = -1
        elif code == _STOP:
            return
        else:
            at = stack.do(bytes([code]), data, at)


class _Stack:
    """The stack of the unpickler, and all opcodes except the most frequent ones.

    Attributes:
        values: for each value on the stack, how many tuples hashing it visits.
        counted: the number of values that MEMOIZE numbered; -1 if the pickle numbers them itself.
    """

    def __init__(self) -> None:
        self.values: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[int, int] = {}  # only values that visit tuples
        self.counted = 0

    def do(self, code: bytes, data: bytes, at: int) -> int:
        """Do the opcode ``code``, whose argument starts at ``at``; where the next one starts."""
        values = self.values
        if code in _FIXED:
            values.append(0)
            return at + _FIXED[code]
        if code in _COUNTED:
            begin = at + _COUNTED[code]
            end = begin + int.from_bytes(data[at:begin], "little")
            values.append(_NAME if data[begin:end] == b"OrderedDict" else 0)
            return end
        if code in _SKIPPED:
            return at + _SKIPPED[code]
        if code in _PUT:
            if values[-1]:
                self._memo[int.from_bytes(data[at : at + _PUT[code]], "little")] = values[-1]
            self.counted = -1
            return at + _PUT[code]
        if code in _GET:
            number = int.from_bytes(data[at : at + _GET[code]], "little")
            values.append(self._memo.get(number, 0))
            return at + _GET[code]
        if code == b"\x94":  # MEMOIZE: by the next number, which no pickler mixes with PUT
            if self.counted < 0:
                raise ValueError("two ways of remembering values")
            self._memo[self.counted] = values[-1]
            self.counted += 1
        elif code == b"(":
            self._marks.append(len(values))
        elif code in _TO_MARK:
            del values[self._marks.pop() :]
        elif code in _POPS:
            del values[len(values) - _POPS[code] :]
        elif code == b"t" or code in _TUPLES:
            self._tuple(self._marks.pop() if code == b"t" else len(values) - _TUPLES[code])
        elif code == b"c":  # GLOBAL
            end = data.index(b"\n", data.index(b"\n", at) + 1) + 1
            values.append(_CLASS if data[at:end] == b"collections\nOrderedDict\n" else 0)
            return end
        elif code == b"\x93":  # STACK_GLOBAL; find_class checks the module
            name, _ = values.pop(), values.pop()
            values.append(_CLASS if name == _NAME else 0)
        elif code == b"Q":  # BINPERSID
            values[-1] = 0
        elif code == b"R":  # REDUCE
            arguments, made = values.pop(), values.pop()
            values.append(_INSTANCE if made == _CLASS else arguments)
        elif code == b"b" and values[-2] == _INSTANCE:  # BUILD: attributes, as a state_dict has
            values.pop()
        else:
            raise ValueError(f"the opcode {code!r}")
        return at

    def _tuple(self, begin: int) -> None:
        if not 0 <= begin <= len(self.values):
            raise ValueError("a tuple of missing values")
        visits = 1 + sum(visits for visits in self.values[begin:] if visits > 0)
        if visits > _MOST:
            raise ValueError(f"more than {_MOST} tuples in each other")
        self.values[begin:] = [visits]
