"""LMDB's pages, read without LMDB: from a key, or from a whole tree, to byte ranges in the file.

The LMDB library trusts the file it maps: a truncated or crafted one can end the process. Everything
here is checked against the file before it is used, so damage raises StoreError. Spans come from
here too: one vectorised walk gives the file offset of every value.

The layout is that of data format 1, which LMDB 0.9 writes. Source: ``mdb.c`` of LMDB 0.9 (openldap,
libraries/liblmdb): ``MDB_page``, ``MDB_node``, ``MDB_meta``, ``MDB_db``, ``OVPAGES``.

    page    u64 number | u16 pad | u16 flags | u16 lower, u16 upper (or u32 pages) | u16 pointers...
    node    u16 lo | u16 hi | u16 flags | u16 key size | key | data
    meta    page header | u32 magic | u32 version | u64 address | u64 map size | 2 trees
            | u64 last page | u64 transaction
    tree    u32 pad | u16 flags | u16 depth | u64 branch, leaf, overflow pages | u64 entries
            | u64 root
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ...errors import StoreError
from .._mapped import TruncationWatch, map_file

_MAGIC = 0xBEEFC0DE
_BRANCH, _LEAF, _OVERFLOW, _META, _LEAF2 = 0x01, 0x02, 0x04, 0x08, 0x20
_BIG, _SUBTREE, _DUPLICATES = 0x01, 0x02, 0x04  # node flags
_HEADER = 16  # bytes of a page before its pointers or its payload
_NODE = 8  # bytes of a node before its key
_NO_PAGE = 2**64 - 1
_MAX_DEPTH = 32  # LMDB's own limit on the height of a tree (CURSOR_STACK)

_TREE = struct.Struct("<IHHQQQQQ")
_META_HEAD = struct.Struct("<IIQQ")


# Read at once when a remote LMDB file is opened: the meta pages, and the end, where what was
# written last lies: with fastload's stores the columns of some thousand records and all of their
# trees, so that fewer round trips follow.
_HEAD_NBYTES = 128 << 10  # two pages of the largest size
_TAIL_NBYTES = 512 << 10

Need: TypeAlias = Callable[[Sequence[tuple[int, int]]], object]


@dataclasses.dataclass(frozen=True)
class Tree:
    """One B+tree: the main one, or a named sub-database."""

    depth: int
    entries: int
    root: int


@dataclasses.dataclass(frozen=True)
class Entries:
    """All entries of a tree in key order: where in the file keys and values begin, int64 (n,)."""

    key: np.ndarray
    key_nbytes: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray


class Pages:
    """The data file of an LMDB environment, mapped read-only.

    ``need`` fetches (offset, bytes) ranges before they are read, where nothing of the file is there
    yet.

    Attributes:
        bytes: uint8, the whole file; slices of it are values without a copy.
        transaction: number of the last committed transaction.
        main: the main tree.
        watch: notices that the file was truncated since.
    """

    def __init__(self, path: str, need: Need | None = None) -> None:
        self.path, self.need = path, need
        mapped = map_file(path)
        if isinstance(mapped, bytes) or len(mapped) < 2 * 256:
            raise self._bad("expected an LMDB file, found fewer than two pages")
        self._map = mapped
        self.watch = TruncationWatch(self._map, path)
        if need is not None:
            nbytes = len(mapped)
            tail = max(0, nbytes - _TAIL_NBYTES)
            need([(0, min(nbytes, _HEAD_NBYTES)), (tail, nbytes - tail)])
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.page_size, self.transaction, self.main, last = self._meta()
        self.count = len(self.bytes) // self.page_size
        if last >= self.count:
            raise self._bad(
                f"the file is truncated: expected {last + 1} pages of {self.page_size} bytes, "
                f"found {self.count}; copy it again or pack it again"
            )
        self._words = np.frombuffer(self._map, "<u2", count=len(self.bytes) // 2)

    def _bad(self, message: str, offset: int | None = None) -> StoreError:
        return StoreError(message, path=self.path, offset=offset)

    def _meta(self) -> tuple[int, int, Tree, int]:
        """Page size, transaction, main tree and last page, of the newer of the two meta pages."""
        first = self._meta_at(0)
        page_size = first[0]
        if page_size not in (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
            raise self._bad(f"expected a page size of 256 to 65536 bytes, found {page_size}", 0)
        if len(self.bytes) < 2 * page_size:
            raise self._bad("the file is truncated within its second page")
        second = self._meta_at(page_size)
        return first if first[1] >= second[1] or second[0] != page_size else second

    def _meta_at(self, start: int) -> tuple[int, int, Tree, int]:
        head = start + _HEADER
        trees = head + _META_HEAD.size
        flags = int.from_bytes(self.bytes[start + 10 : start + 12].tobytes(), "little")
        magic, version, _, _ = _META_HEAD.unpack_from(self._map, head)
        if not flags & _META or magic != _MAGIC:
            raise self._bad("expected an LMDB meta page, found other bytes", start)
        if version != 1:
            raise self._bad(
                f"expected LMDB data format 1 (LMDB 0.9), found {version}; copy the records with "
                "mdb_dump and mdb_load of LMDB 0.9",
                start,
            )
        page_size = _TREE.unpack_from(self._map, trees)[0]
        last, transaction = struct.unpack_from("<QQ", self._map, trees + 2 * _TREE.size)
        return page_size, transaction, self._tree(trees + _TREE.size), last

    def _tree(self, offset: int) -> Tree:
        _, _, depth, _, _, _, entries, root = _TREE.unpack_from(self._map, offset)
        if depth > _MAX_DEPTH:
            raise self._bad(
                f"expected a tree at most {_MAX_DEPTH} levels deep, found {depth}", offset
            )
        return Tree(depth, entries, root)

    def subtree(self, name: bytes) -> Tree | None:
        leaf = self._descend(self.main, name)
        if leaf is None:
            return None
        node, flags = leaf
        offset = node + _NODE + len(name)
        if not flags & _SUBTREE or offset + _TREE.size > len(self.bytes):
            return None
        return self._tree(offset)

    def find(self, tree: Tree, key: bytes) -> tuple[int, int] | None:
        """Where the value of ``key`` lies: (offset, nbytes), or None."""
        leaf = self._descend(tree, key)
        if leaf is None:
            return None
        node = np.array([leaf[0]], np.int64)
        values = self._values(node, self._fields(node))
        return int(values.offset[0]), int(values.nbytes[0])

    def _descend(self, tree: Tree, key: bytes) -> tuple[int, int] | None:
        """Position and flags of the leaf node with ``key``."""
        page = tree.root
        for level in range(tree.depth):
            nodes = self._nodes(np.array([page], np.uint64), leaf=level == tree.depth - 1)
            if not len(nodes) and level < tree.depth - 1:
                raise self._bad(f"expected entries on the branch page {page}, found none")
            lo, hi, flags, _ = self._fields(nodes)
            low, high = 0, len(nodes)  # the first node whose key is greater than `key`
            if level < tree.depth - 1:
                low = 1  # the first key of a branch page is empty: it stands for "all smaller"
            while low < high:
                middle = (low + high) // 2
                if self._key(int(nodes[middle])) <= key:
                    low = middle + 1
                else:
                    high = middle
            if low == 0:
                return None
            at = low - 1
            if level == tree.depth - 1:
                same = self._key(int(nodes[at])) == key
                return (int(nodes[at]), int(flags[at])) if same else None
            page = int(lo[at]) | int(hi[at]) << 16 | int(flags[at]) << 32
        return None

    def _key(self, node: int) -> bytes:
        size = int(self._words[node // 2 + 3])
        return self.bytes[node + _NODE : node + _NODE + size].tobytes()

    def walk(self, tree: Tree) -> Entries:
        """Every entry of ``tree``, in key order, level by level with arrays."""
        empty = np.empty(0, np.int64)
        if tree.depth == 0 or tree.root == _NO_PAGE:
            return Entries(empty, empty, empty, empty)
        pages = np.array([tree.root], np.uint64)
        for level in range(tree.depth):
            last = level == tree.depth - 1
            nodes = self._nodes(pages, leaf=last)
            fields = self._fields(nodes)
            if last:
                break
            lo, hi, flags, _ = (field.astype(np.uint64) for field in fields)
            pages = lo | hi << np.uint64(16) | flags << np.uint64(32)
            if len(pages) > self.count:
                raise self._bad("the tree has more pages than the file: its pages form a loop")
        if len(nodes) != tree.entries:
            raise self._bad(f"expected {tree.entries} entries in the tree, found {len(nodes)}")
        return self._values(nodes, fields)

    def keys(self, entries: Entries) -> list[bytes]:
        data, places = self.bytes.data, zip(entries.key.tolist(), entries.key_nbytes.tolist())
        return [bytes(data[at : at + nbytes]) for at, nbytes in places]

    def _nodes(self, pages: np.ndarray, *, leaf: bool) -> np.ndarray:
        """Positions of all nodes on ``pages`` (uint64)."""
        if len(pages) and int(pages.max()) >= self.count:
            raise self._bad(f"page {int(pages.max())} lies outside the file of {self.count} pages")
        start = pages.astype(np.int64) * self.page_size
        if self.need is not None:
            self.need([(at, self.page_size) for at in start.tolist()])
        flags = self._words[start // 2 + 5]
        expected = _LEAF if leaf else _BRANCH
        wrong = np.flatnonzero(flags & (_BRANCH | _LEAF | _OVERFLOW | _META | _LEAF2) != expected)
        if len(wrong):
            at = int(start[wrong[0]])
            kind = "leaf" if leaf else "branch"
            raise self._bad(f"expected a {kind} page, found flags {int(flags[wrong[0]]):#x}", at)
        lower = self._words[start // 2 + 6].astype(np.int64)
        if len(lower) and (int(lower.min()) < _HEADER or int(lower.max()) > self.page_size):
            raise self._bad("a page's count of entries is larger than the page")
        count = (lower - _HEADER) // 2
        before = np.cumsum(count) - count
        slot = np.arange(int(count.sum())) - np.repeat(before, count)
        base = np.repeat(start, count)
        pointer = self._words[(base + _HEADER) // 2 + slot].astype(np.int64)
        if len(pointer) and (
            int(pointer.min()) < _HEADER
            or int(pointer.max()) > self.page_size - _NODE
            or (pointer & 1).any()
        ):
            raise self._bad("an entry lies outside its page")
        positions: np.ndarray = base + pointer
        return positions

    def _fields(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """lo, hi, flags and key size of each node; the key is inside the page."""
        word = nodes // 2
        lo, hi, flags, key = (self._words[word + i].astype(np.int64) for i in range(4))
        if len(nodes) and bool((nodes % self.page_size + _NODE + key > self.page_size).any()):
            raise self._bad("a key reaches beyond its page")
        return lo, hi, flags, key

    def _values(
        self, nodes: np.ndarray, fields: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
    ) -> Entries:
        lo, hi, flags, key_nbytes = fields
        if bool((flags & (_SUBTREE | _DUPLICATES)).any()):
            raise self._bad("expected plain values, found sub-databases or duplicate keys")
        nbytes = lo | hi << 16
        offset = nodes + _NODE + key_nbytes
        big = np.flatnonzero(flags & _BIG)
        on_page = np.where(flags & _BIG, 8, nbytes)  # a large value leaves its page number there
        if bool((nodes % self.page_size + _NODE + key_nbytes + on_page > self.page_size).any()):
            raise self._bad("a value reaches beyond its page")
        if len(big):
            rows = np.lib.stride_tricks.sliding_window_view(self.bytes, 8)
            page = rows[offset[big]].view("<u8")[:, 0]
            offset[big] = self._overflow(page, nbytes[big])
        return Entries(nodes + _NODE, key_nbytes, offset, nbytes)

    def _overflow(self, page: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        """Where values of ``nbytes`` bytes on pages of their own, from ``page`` on, start."""
        need = (_HEADER - 1 + nbytes) // self.page_size + 1
        if int(page.max()) >= self.count or bool((page.astype(np.int64) + need > self.count).any()):
            raise self._bad("a value lies outside the file")
        start = page.astype(np.int64) * self.page_size
        if self.need is not None:  # whole values: what asks for them reads them
            lengths = (need * self.page_size).tolist()
            self.need(list(zip(start.tolist(), lengths, strict=True)))
        if bool((self._words[start // 2 + 5] & _OVERFLOW == 0).any()):
            raise self._bad("expected a page with the start of a large value")
        return start + _HEADER
