"""The native core, as C++ exposes it.

Arrays are C-contiguous; a wrong dtype or a read-only array is a TypeError, a wrong shape or value a
ValueError.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

class Watched:
    """While it lives, reading a page of ``map`` that its file no longer has gives zeros.

    Otherwise it would end the process by SIGBUS. ``map``: a mapped file, contiguous; it is kept.
    """

    def __init__(self, map: Any) -> None: ...
    @property
    def cut(self) -> int:
        """Offset of the first page that was found missing; -1: none was."""

class Files:
    """Files of a store, opened or mapped when first read, in every process that reads.

    paths: the paths in the file system's encoding, one after the other, without separators.
    ends: int64 (n,), where each path ends in ``paths``.
    mapped: uint8 (n,), 1: map the file (packed, local), 0: open, read, close for every sample.
    The arrays are kept, not copied.
    arena: its memory file is file number n, behind the others.
    memory: by file number, arrays that take the place of files; ``mapped`` must say 1 for these.
        uint8 (n,), contiguous: the file's bytes. Or (n, h, w, 3) of any strides that are not
        negative: raw images, each of which a span from its first to its last byte is. Read where
        they are, so what is changed in them is seen.
    """

    def __init__(
        self,
        paths: bytes,
        ends: npt.NDArray[np.int64],
        mapped: npt.NDArray[np.uint8],
        arena: Arena | None = None,
        memory: dict[int, npt.NDArray[np.uint8]] = ...,
    ) -> None: ...
    def close(self) -> None:
        """Let go of the maps, once the jobs that read them are done. Idempotent."""
    def may_be_turned(
        self,
        file: npt.NDArray[np.int32],
        offset: npt.NDArray[np.int64],
        nbytes: npt.NDArray[np.int64],
        out: npt.NDArray[np.uint8],
    ) -> None:
        """Write 0 into ``out`` (n,) for each JPEG, PNG or BMP that certainly lies upright.

        1: EXIF or XMP says otherwise, or only Pillow can tell; also where it cannot be read. On the
        caller's thread, without the GIL.
        """
    def readahead(
        self,
        file: npt.NDArray[np.int32],
        offset: npt.NDArray[np.int64],
        nbytes: npt.NDArray[np.int64],
    ) -> None:
        """Ask the system to read spans (n,) into the page cache, in the order of the disk.

        Returns without waiting for the data, without the GIL meanwhile. Only advice: spans outside
        of their files and files that cannot be opened are left out.
        """
    def __len__(self) -> int: ...

class Arena:
    """Records in a memory file, see _engine/cache/memory.py (its protocol) and arena.h.

    fd: of the memory file; it may be closed afterwards.
    lock: keep what this object puts there from being swapped out, as far as the system allows.

    Raises:
        RuntimeError: the file is none.
    """

    def __init__(self, fd: int, *, lock: bool) -> None: ...
    @property
    def full(self) -> bool: ...
    @property
    def used(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def locked(self) -> int: ...
    def find(
        self,
        records: npt.NDArray[np.int64],
        offset: npt.NDArray[np.int64],
        nbytes: npt.NDArray[np.int64],
        kind: npt.NDArray[np.uint8],
        size: npt.NDArray[np.int32],
        converted: npt.NDArray[np.uint8],
    ) -> int: ...
    def put(
        self, record: int, data: Any, kind: int, width: int, height: int, converted: bool
    ) -> bool: ...

class EntryTable:
    """Where rows of MCUs begin in JPEGs that were decoded, see entry_points.h.

    records: how many the store has. limit: bytes at most, taken as they are used.
    """

    def __init__(self, records: int, limit: int) -> None: ...
    @property
    def used(self) -> int:
        """Bytes of what is remembered."""
    @property
    def count(self) -> int:
        """Records of which something is remembered."""

class Keep:
    """Which of n samples go into an arena while they are decoded.

    form: 0: their bytes; 1: JPEG files as DCT records, other bytes as they are; 2: pixels.
    records: (n,) their numbers in the arena; wanted: (n,), 1 for the samples to keep.
    stage: with form 2, of each sample source (n, 2), box (n, 4), resized (n, 2) and window (n, 4)
        with its width and height; then what ``submit`` is given is for the pixels that are kept.
    filter, order, fill: of the stage, as submit's.
    """

    def __init__(
        self,
        arena: Arena,
        form: int,
        records: npt.NDArray[np.int64],
        wanted: npt.NDArray[np.uint8],
        stage: tuple[npt.NDArray[np.int32], ...] | None = None,
        *,
        filter: int = 0,
        order: int = 0,
        fill: tuple[int, int, int] = (0, 0, 0),
    ) -> None: ...

class Job:
    """A submitted batch. It keeps its buffers alive; dropped before its end, it is cancelled."""

    def wait(self) -> None:
        """Return when every sample has its status; without the GIL; may be called again.

        Raises:
            RuntimeError: the job was submitted before a fork and was not finished then.
            KeyboardInterrupt: as any wait in Python; the job goes on.
        """
    def cancel(self) -> None:
        """Drop unstarted samples (their status stays -1) and wait for running ones."""
    @property
    def done(self) -> bool: ...
    @property
    def nanoseconds(self) -> dict[str, int]:
        """Time per stage (read, check, decode, resize, augment), summed over threads."""

def submit(
    files: Files,
    file: npt.NDArray[np.int32],
    offset: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    kind: npt.NDArray[np.uint8],
    size: npt.NDArray[np.int32],
    checksum: npt.NDArray[np.uint32] | None,
    check: npt.NDArray[np.uint8] | None,
    box: npt.NDArray[np.int32],
    resized: npt.NDArray[np.int32],
    window: npt.NDArray[np.int32],
    flip: npt.NDArray[np.uint8],
    out: npt.NDArray[np.uint8] | memoryview,
    lut: npt.NDArray[np.uint8] | None,
    *,
    out_h: int,
    out_w: int,
    dtype: int,
    channels_last: bool,
    filter: int,
    order: int,
    fill: tuple[int, int, int],
    status: npt.NDArray[np.int32],
    detail: npt.NDArray[np.int32],
    threads: int,
    times: npt.NDArray[np.int64] | None = None,
    stages: tuple[
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        npt.NDArray[np.float64],
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
    ]
    | None = None,
    erase: tuple[
        npt.NDArray[np.int32],
        npt.NDArray[np.uint64],
        npt.NDArray[np.uint8],
        npt.NDArray[np.uint8],
    ]
    | None = None,
    keep: Keep | None = None,
    channels: int = 3,
    scaled: bool = False,
    begin: bool = True,
    views: tuple[list[Job], npt.NDArray[np.int32]] | None = None,
    entries: tuple[EntryTable, npt.NDArray[np.int64]] | None = None,
) -> Job:
    """Start filling a batch of n samples.

    begin: False: only check and keep the arguments, for ``views`` of another call.
    views: jobs of the same samples that were not begun, which this one fills too (wait for this
        one); and (n, 4) x, y, w, h of the source: what of it is decoded once for all of them, where
        w is not 0, and holds their boxes.

    entries: what is remembered of the records, and their numbers (n,) there; changes no pixel.

    file, offset, nbytes: (n,), the bytes of each sample; nbytes -1: up to the end of the file.
    kind: (n,), ENCODED (JPEG or BMP; else UNSUPPORTED), RAW (uint8 HWC, needs size),
        DCT, or TURNED (UNSUPPORTED). UNSUPPORTED is also a JPEG without an end, which may be
        truncated, and a sample with a side above 65,535 anywhere, of what it is made of or becomes.
    size: (n, 2) width, height of the source image, 0, 0 where unknown.
    checksum: (n,) CRC32C of the bytes; check: (n,), 1 where to verify it (None: everywhere).
    box: (n, 4) x, y, w, h; resized: (n, 2) w, h; window: (n, 2) x, y; flip: (n,).
    out: n * channels * out_h * out_w elements of dtype, as bytes, one dimension.
    lut: bytes of a (3, 256) table of dtype, copied; None: uint8 levels as they are.
    dtype: 0 uint8, 1 float32, 2 float16, 3 bfloat16. filter, order: as numbered in resample.h.
    status, detail: (n,), written: one of the constants of fastload._native, and an errno for IO.
    threads: number of pool threads that may work on it; 0: the caller's, within wait().
    times: (n, 7), written where given: the thread as threading.get_native_id() numbers it, then, on
        the clock of time.perf_counter_ns(), begin, end of reading, end of checking; how long rows
        were resized between those that were decoded; end of decoding, end.
    stages: what comes between the first frame and the batch: first_size (n, 2), width and height of
        the first frame; codes (n, k) and values (n, k, v), operations as numbered in pixels.h;
        frames (n, f, 11), each box (x, y, w, h), resized (w, h), window (x, y), flip, size (w, h);
        settings (f, 5), each how many operations come before the frame, filter, fill (r, g, b).
    erase: rectangles of the result: boxes (n, e, 4), each x, y, w, h (w 0: none); keys (n, e) of
        the noise; noise (e,), 1 where there is some; values as bytes of dtype, of each e 3 or, with
        noise, 3 x 65,536, and then up to a multiple of 4 bytes.
    keep: what of the samples goes into a cache.
    channels: 3; or 1 for gray images, whose three channels are equal in everything that is asked
        for: one of them is written.
    scaled: whether JPEGs and DCT records that are much larger than needed are decoded at 1/2, 1/4
        or 1/8 of their size, see scale_of in image.h.
    """

def resample(
    image: npt.NDArray[np.uint8],
    resized: tuple[int, int],
    window: tuple[int, int],
    flip: bool,
    out: npt.NDArray[np.uint8] | memoryview,
    lut: npt.NDArray[np.uint8] | None,
    *,
    out_h: int,
    out_w: int,
    dtype: int,
    channels_last: bool,
    filter: int,
    order: int,
    fill: tuple[int, int, int],
) -> None:
    """Resize one image (h, w, 3) to resized (w, h), cut the window at (x, y), store it into out.

    The other arguments are submit's, for one sample. ValueError where a side is not 1 to 65,535.
    """

def pixels(
    image: npt.NDArray[np.uint8], codes: npt.NDArray[np.int32], values: npt.NDArray[np.float64]
) -> None:
    """Apply operations (k,) with values (k, v), as numbered in pixels.h, to an image (h, w, 3)."""

def probe(
    files: Files,
    file: npt.NDArray[np.int32],
    offset: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    kind: npt.NDArray[np.uint8],
    size_out: npt.NDArray[np.int32],
    status: npt.NDArray[np.int32],
    threads: int,
) -> None:
    """Read image sizes out of headers of JPEG, PNG, BMP and DCT records, without the GIL.

    size_out: (n, 2) width, height, written where status is OK. Other formats are UNSUPPORTED.
    """

def gather(
    files: Files,
    file: npt.NDArray[np.int32],
    memory: npt.NDArray[np.uint8],
    offset: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    crc32c: npt.NDArray[np.uint32],
    size: npt.NDArray[np.int32],
    status: npt.NDArray[np.int32],
    detail: npt.NDArray[np.int32],
) -> int:
    """Read whole files into ``memory``, one after the other, until one does not fit.

    All arrays but ``memory`` and ``size`` (n, 2) are (n,); all but ``file`` are filled: where each
    file lies in ``memory``, its CRC32C, width and height, what became of it (1: read, of a format
    whose size the core does not know, or a JPEG without an end), an errno.

    Returns:
        How many were read. Of the first that did not fit ``nbytes`` says how large it is.
    """

def start_writeback(descriptor: int, offset: int, nbytes: int) -> None:
    """Ask the system to begin writing a part of a file to the disk, and do not wait for it.

    Only advice, and no promise that anything is durable: fsync is what waits.
    """

def random_words(
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.int64],
    streams: npt.NDArray[np.uint64],
    out: npt.NDArray[np.uint64],
) -> None:
    """Fill ``out`` with what ``_philox.words`` returns, for n indices and b streams.

    Args:
        seed: below 2**64.
        epoch: below 2**32.
        indices, streams: (n,) and (b,).
        out: (4 * b, n): word k of stream j in row ``k * b + j``.
    """

def mix_up(batch: npt.NDArray[np.float32], before: float, own: float) -> None:
    """Each sample of ``batch`` becomes ``before`` times the one before it and ``own`` times itself.

    The one before the first is the last. Products and sum are rounded to float32.
    """

def cut_mix(batch: npt.NDArray[np.uint8], top: int, bottom: int, left: int, right: int) -> None:
    """Into a box of each sample of ``batch`` comes that of the one before it; first after last.

    Args:
        batch: (n, planes, rows, bytes of a row).
        top, bottom: rows.
        left, right: bytes of a row.

    Raises ValueError where the box reaches outside.
    """

def crc32c(buffer: Any, crc: int = 0) -> int:
    """CRC32C of a bytes-like object, going on from ``crc``."""

def _crc32c_portable(buffer: Any, crc: int = 0) -> int: ...
def simd() -> str:
    """Instruction set of the resampler: "avx512", "avx2" or "scalar"."""

def jpeg_version() -> str:
    """Version of libjpeg-turbo that the core was compiled against."""

def _inverse_dct(
    blocks: npt.NDArray[np.int16],
    quant: npt.NDArray[np.uint16],
    samples: npt.NDArray[np.uint8],
) -> None:
    """Samples of blocks side by side, by the instruction set in use. For the tests.

    Args:
        blocks: (n, 64), quantised, row by row.
        quant: (64,), in the same order.
        samples: (8, 8 * n), written.
    """

def _ycc_to_rgb(
    sampling: int,
    luma: npt.NDArray[np.uint8],
    chroma: npt.NDArray[np.uint8],
    far_below: bool,
    x0: int,
    rgb: npt.NDArray[np.uint8],
) -> None:
    """Pixels of a row from column ``x0`` on, by the instruction set in use. For the tests.

    Args:
        sampling: of ycc.h.
        luma: the row, behind its 64th byte and before its 64th last.
        chroma: likewise, four rows: the nearer Cb and Cr, the farther Cb and Cr.
        far_below: whether the farther rows lie below.
        x0: first column.
        rgb: (width, 3), written.
    """

def _own_entropy(jpeg: Any, times: int = 2) -> bool:
    """Whether the core's own Huffman decoder decodes this file, and not libjpeg's. For the tests.

    times: how often it is decoded; tables for a small file are built the second time.

    Raises:
        ValueError: not a JPEG, PNG or BMP file.
    """

def pool_size() -> int:
    """Threads that the pool of this process holds now."""

def set_simd(name: str) -> bool:
    """Choose the instruction set for images begun from now on ("": the best one here).

    False, and nothing changed, where this machine lacks it. DCT records take the next lower one
    where they need more of it than the resampler does; Huffman codes go by that choice. For the
    tests.
    """

def set_stamps(on: bool) -> None:
    """Whether batches read the clock from now on; without, ``Job.nanoseconds`` stays 0.

    On from the start. For the benchmark of what the clock costs.
    """

def dct_encode(jpeg: Any, *, column_block: int = 8, keep_metadata: bool = True) -> bytes:
    """DCT record of a JPEG file; column_block and keep_metadata as in dct.h.

    Raises:
        ValueError: the original bytes must be kept; the message says why.
    """

def dct_to_jpeg(record: Any) -> bytes:
    """A JPEG file with the coefficients of a DCT record.

    Raises:
        ValueError: the record is corrupt.
    """

def planes_usable() -> bool:
    """Whether common JPEGs and DCT records become pixels without libjpeg."""

def dct_usable() -> bool:
    """Whether the linked libjpeg lets DCT records take the place of its entropy decoder.

    Where not (or with FASTLOAD_NO_DCT_HOOK in the environment) they decode by way of a rebuilt
    JPEG, and JPEG files by libjpeg's own Huffman decoder: the same pixels, slower.
    """

def dct_simd() -> str:
    """Instruction set that expands DCT records now: "avx512", "avx2", "neon" or "scalar"."""

def find_features(
    data: Any,
    offset: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    names: list[bytes],
    kind: npt.NDArray[np.uint8],
    count: npt.NDArray[np.int32],
    found_offset: npt.NDArray[np.int64],
    found_nbytes: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
) -> int:
    """Where m features lie in n examples: ``storage._example.find`` says what is written.

    The arrays that are written are (n, m) and hold zeros. Returns the first example that is no
    valid message, or -1.
    """

def find_datums(
    data: Any,
    offset: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    table: npt.NDArray[np.int64],
) -> int:
    """Fields of n messages of Caffe into a table (n, 8) of zeros: see ``storage._datum.find``.

    Returns the first that is no valid message, or -1.
    """

def tar_members(
    data: Any,
) -> tuple[int, str, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, list[bytes]]:
    """The members of a tar archive: ``storage._tar_members.Members``, arrays as their bytes.

    Before them: where the walk ended, what is wrong there ("" if nothing is; "{name}" stands for
    what comes next), and the name of the member that is refused.
    """
