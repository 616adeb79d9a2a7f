"""The native core, as C++ exposes it.

Arrays are C-contiguous. A wrong dtype or a read-only array is a TypeError, a wrong shape or value a
ValueError.
"""

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

class SigbusGuard:
    """Lets the process survive reads of pages that a mapped file has lost; they read as zeros.

    Without it, such a read ends the process with SIGBUS. ``map``: a mapped file, contiguous; the
    guard holds it.
    """

    def __init__(self, map: Buffer) -> None: ...
    @property
    def first_missing(self) -> int:
        """Offset of the first page that was found missing, or -1."""

class Files:
    """Files of a store. Each process opens or maps them when it first reads them.

    paths: the paths in the file system's encoding, concatenated without separators.
    ends: int64 (n,), where each path ends in ``paths``.
    mapped: uint8 (n,), 1: map the file (packed, local); 0: open, read, close it for every sample.
    arena: its memory file becomes file number n.
    memory: arrays by the number of the file that they replace; ``mapped`` must be 1 for these.
        uint8 (n,), contiguous: the file's bytes. Or (n, h, w, 3) with any non-negative strides: raw
        images; the span of an image is from its first to its last byte. Read in place, so later
        changes are seen.
    stamps: int64 (n, 3): time of change (ctime) in ns, bytes and inode that a file must have when
        it is opened, else it cannot be read: ESTALE. Bytes -1, or None: any.

    The arrays are held, not copied.
    """

    def __init__(
        self,
        paths: bytes,
        ends: npt.NDArray[np.int64],
        mapped: npt.NDArray[np.uint8],
        arena: Arena | None = None,
        memory: dict[int, npt.NDArray[np.uint8]] = ...,
        stamps: npt.NDArray[np.int64] | None = None,
    ) -> None: ...
    def close(self) -> None:
        """Close the maps, once the jobs that read them are done. Idempotent."""
    def may_be_turned(
        self,
        file: npt.NDArray[np.int32],
        offset: npt.NDArray[np.int64],
        nbytes: npt.NDArray[np.int64],
        out: npt.NDArray[np.uint8],
    ) -> None:
        """Write 0 into ``out`` (n,) for each JPEG, PNG or BMP that is certainly upright.

        1: it has an EXIF or XMP orientation, only Pillow can tell, or it cannot be read. Runs on
        the caller's thread, without the GIL.
        """
    def readahead(
        self,
        file: npt.NDArray[np.int32],
        offset: npt.NDArray[np.int64],
        nbytes: npt.NDArray[np.int64],
    ) -> None:
        """Ask the system to read spans (n,) into the page cache, in the order of the disk.

        Returns without waiting for the data; releases the GIL. Only advice: spans outside their
        files and files that cannot be opened are skipped.
        """
    def __len__(self) -> int: ...

class Arena:
    """Cached records in a memory file; see _engine/cache/memory_file.py and io/arena.h.

    fd: of the memory file; it may be closed afterwards.
    lock: lock records that this object adds into memory, as far as the system allows.

    Raises:
        RuntimeError: the file is no arena.
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
    ) -> int:
        """Look up records (n,) and return how many are cached.

        Writes for each of them where it is: offset (-1: not cached) and nbytes in the memory file,
        kind, size (n, 2) width and height, and converted: 1 if these are not the store's bytes.
        """
    def put(
        self, record: int, data: Buffer, kind: int, width: int, height: int, converted: bool
    ) -> bool:
        """Add a record. False: it is already there, or there is no room."""

class EntryTable:
    """Where rows of MCUs begin in JPEGs that were decoded; see jpeg/huffman_index.h.

    records: the number of records in the store. limit: bytes at most, taken as they are used.
    """

    def __init__(self, records: int, limit: int) -> None: ...
    @property
    def used(self) -> int:
        """Bytes of entry points."""
    @property
    def count(self) -> int:
        """Records with entry points."""

class CacheFill:
    """Which of n samples are added to an arena while they are decoded.

    form: 0: their bytes; 1: JPEG files as DCT records, other records as they are; 2: pixels.
    records: (n,) their numbers in the arena; wanted: (n,), 1 for the samples to add.
    stage: with form 2, for each sample source (n, 2), box (n, 4), resized (n, 2) and window (n, 4)
        with its width and height; the geometry of the ``BatchSpec`` then applies to these pixels.
    filter, order, fill: of the stage, as in ``BatchSpec``.
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
    """A submitted batch. It holds its buffers; dropping it before its end cancels it."""

    def wait(self) -> None:
        """Return when every sample has its status. Releases the GIL; may be called again.

        Raises:
            RuntimeError: the job was submitted before a fork and was not finished then.
            KeyboardInterrupt: like any wait in Python; the job continues.
        """
    def cancel(self) -> None:
        """Drop unstarted samples (their status stays -1) and wait for running ones."""
    @property
    def done(self) -> bool: ...
    @property
    def cpu_ns(self) -> int:
        """CPU time that the pool's threads spent on it; complete once it is done."""
    @property
    def nanoseconds(self) -> dict[str, int]:
        """Time per stage (read, check, decode, resize, augment), summed over threads."""

class BatchSpec:
    """What the core is asked for: n samples, and what is made of them. ``submit`` checks it.

    Args:
        other: to copy; without it every field has its default.

    What is the same for each batch of a kernel:
        dtype: 0 uint8, 1 float32, 2 float16, 3 bfloat16.
        channels: 3; or 1 for gray images if the three channels are equal in everything that is
            asked for: one of them is written.
        channels_last: memory order of ``out``.
        filter, order: as numbered in resample.h.
        fill: level of each channel where the window reaches outside.
        lut: bytes of a (3, 256) table of dtype, copied; None: uint8 levels unchanged.
        scaled: whether JPEGs and DCT records much larger than needed are decoded at 1/2, 1/4 or
            1/8 of their size, see scale_of in image/placement.h.
        values: the last of ``stages`` looks values up in ``lut`` first and resizes them, as torch
            does with float32 tensors (antialiased, bilinear): codes (k,) and operands (k, 3), what
            is done to the values then, and Sums, all as numbered in resample/values.h. For dtype 1.
    Of one batch:
        file, offset, nbytes: (n,), the bytes of each sample; nbytes -1: to the end of the file.
        kind: (n,), ENCODED (JPEG or BMP), RAW (uint8 HWC, needs size), DCT or TURNED.
        size: (n, 2) width, height of the source image; 0, 0: unknown.
        checksum: (n,) CRC32C of the bytes; check: (n,), 1 where to verify it (None: everywhere).
        box: (n, 4) x, y, w, h; resized: (n, 2) w, h; window: (n, 2) x, y; flip: (n,).
        filters: (n,), the filter of each sample's first resize, instead of ``filter``.
        out: n * channels * out_h * out_w elements of dtype, as bytes, one dimension.
        rows: (n,), the row of ``out`` that each sample is stored in, of which there may be more
            than n; None: the same as the sample.
        status, detail: (n,), written: a constant of fastload._native, and an errno for IO.
            UNSUPPORTED samples are left to Pillow: other formats, TURNED, a JPEG without an end (it
            may be truncated), and a sample in which any image has a side above 65,535, or whose
            source has more than ``most_pixels``.
        threads: number of pool threads that may work on it; 0: the caller's, within wait().
        times: (n, 7), written: the thread as threading.get_native_id() numbers it; then, on the
            clock of time.perf_counter_ns(), begin, end of reading, end of checking; how long rows
            were resized while decoding; end of decoding, end.
        stages: what follows the first crop: first_size (n, 2), width and height of its result;
            codes (n, k) and values (n, k, v), operations as numbered in pixels.h; frames
            (n, f, 11), crop stages: box (x, y, w, h), resized (w, h), window (x, y), flip, size
            (w, h); settings (f, 5): how many operations precede the crop stage, filter, fill
            (r, g, b).
        erase: rectangles of the result: boxes (n, e, 4), each x, y, w, h (w 0: none); keys (n, e)
            of the noise; kinds (e,): 0 for values, 1 for noise, 2 for the bits that remain; values
            as bytes of dtype, for each e 3 or, with noise, 3 x 65,536, padded to a multiple of 4
            bytes.
        cache_fill: which samples are added to a cache.
        begin: False: only check and hold the arguments, for ``views`` of another call.
        views: jobs of the same samples with ``begin=False``, which this job fills too (wait for
            this one); and (n, 4) x, y, w, h of the source: the region that is decoded once for all
            of them. It contains their boxes; w 0: each decodes by itself.
        entries: a table of entry points, and the records' numbers (n,) there; changes no pixel.
    """

    dtype: int
    channels: int
    channels_last: bool
    filter: int
    order: int
    fill: tuple[int, int, int]
    lut: npt.NDArray[np.uint8] | None
    scaled: bool
    values: tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], int] | None
    file: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]
    size: npt.NDArray[np.int32]
    checksum: npt.NDArray[np.uint32] | None
    check: npt.NDArray[np.uint8] | None
    box: npt.NDArray[np.int32]
    resized: npt.NDArray[np.int32]
    window: npt.NDArray[np.int32]
    flip: npt.NDArray[np.uint8]
    filters: npt.NDArray[np.uint8] | None
    out: npt.NDArray[np.uint8] | memoryview
    rows: npt.NDArray[np.int64] | None
    out_h: int
    out_w: int
    status: npt.NDArray[np.int32]
    detail: npt.NDArray[np.int32]
    threads: int
    times: npt.NDArray[np.int64] | None
    stages: tuple[npt.NDArray[np.generic], ...] | None
    erase: tuple[npt.NDArray[np.generic], ...] | None
    cache_fill: CacheFill | None
    begin: bool
    views: tuple[list[Job], npt.NDArray[np.int32]] | None
    entries: tuple[EntryTable, npt.NDArray[np.int64]] | None
    most_pixels: int

    def __init__(self, other: BatchSpec = ...) -> None: ...

def submit(files: Files, spec: BatchSpec) -> Job:
    """Start filling a batch from ``files``, which the spans of ``spec`` refer to."""

def pixels(
    image: npt.NDArray[np.uint8], codes: npt.NDArray[np.int32], values: npt.NDArray[np.float64]
) -> None:
    """Apply operations (k,) with values (k, v), as numbered in pixels.h, to an image (h, w, 3).

    They must keep its size.
    """

value_sums: int
"""How many kinds of ``Sums`` resample/values.h numbers."""

def resize_values(
    image: npt.NDArray[np.uint8],
    table: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    sums: int,
) -> None:
    """Look up the levels of an image (h, w, 3) in a table (3, 256), and resize that into ``out``.

    out: (3, h, w), antialiased and bilinear, as torch resizes float32. sums: see resample/values.h.
    """

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
    """Read image sizes from headers of JPEG, PNG, WebP, BMP and DCT records, without the GIL.

    size_out: (n, 2) width, height, written if status is OK. Other formats are UNSUPPORTED.
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
    """Read whole files into ``memory``, one after another, until one does not fit.

    All arrays but ``memory`` and ``size`` (n, 2) are (n,); all but ``file`` are written: where each
    file is in ``memory``, its CRC32C, width and height, status (1: read, but the core cannot tell
    the size, or a JPEG without an end), and an errno.

    Returns:
        How many were read. ``nbytes`` of the first that did not fit is set.
    """

def start_writeback(descriptor: int, offset: int, nbytes: int) -> None:
    """Ask the system to start writing a part of a file to the disk, without waiting.

    Only advice, and no promise that anything is durable: that takes fsync.
    """

def random_words(
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.int64],
    streams: npt.NDArray[np.uint64],
    out: npt.NDArray[np.uint64],
) -> None:
    """Fill ``out`` with what ``_base.philox.words`` returns, for n indices and b streams.

    Args:
        seed: below 2**64.
        epoch: below 2**32.
        indices, streams: (n,) and (b,).
        out: (4 * b, n): word k of stream j in row ``k * b + j``.
    """

def mix_up(batch: npt.NDArray[np.float32], before: float, own: float) -> None:
    """Replace each sample by ``before`` times the previous sample plus ``own`` times itself.

    The sample before the first is the last. Products and sum are rounded to float32.
    """

def cut_mix(batch: npt.NDArray[np.uint8], top: int, bottom: int, left: int, right: int) -> None:
    """Copy a box from each sample of ``batch`` to the next, and from the last to the first.

    Args:
        batch: (n, planes, rows, bytes of a row).
        top, bottom: rows.
        left, right: bytes of a row.

    Raises:
        ValueError: the box extends outside the images.
    """

def crc32c(buffer: Buffer, crc: int = 0) -> int:
    """CRC32C of a bytes-like object, continued from ``crc``."""

def _crc32c_portable(buffer: Buffer, crc: int = 0) -> int: ...
def crc32c_blocks(buffer: Buffer, block: int, out: npt.NDArray[np.uint32]) -> None:
    """CRC32C of each ``block`` bytes of a bytes-like object into ``out``; the last may be fewer."""

def crc32c_of_file(
    descriptor: int, blocks: npt.NDArray[np.int64], block: int, out: npt.NDArray[np.uint32]
) -> None:
    """CRC32C of blocks of an open file, one of each of ``blocks`` into ``out``, without the GIL.

    Args:
        descriptor: of the file.
        blocks: (n,), numbers of blocks; ascending is fastest. What is behind the end of the file is
            left out.
        block: bytes, at most 1 MiB.
        out: (n,).

    Raises:
        OSError: it cannot be read.
    """

def simd() -> str:
    """Instruction set in use: "avx512", "avx2", "neon" or "scalar"."""

def png_version() -> str | None:
    """Version of libdeflate that the core was compiled against.

    None: it was built without, so that Pillow decodes PNG files.
    """

def webp_version() -> str | None:
    """Version of libwebp; None: the core was built without, so that Pillow decodes WebP files."""

def decode(data: Buffer, out: npt.NDArray[np.uint8], *, reversed: bool = False) -> bool:
    """Decode a whole image file into ``out``, on the caller's thread.

    The pixels are those of ``PIL.Image.open(...).convert("RGB")``. Releases the GIL; nothing may
    change ``data`` meanwhile.

    Args:
        data: the file.
        out: uint8 (h, w, 3), or (h, w) for a gray image; of the image's size.
        reversed: blue first.

    Returns:
        False: it has another size, is damaged, or is left to Pillow; ``out`` may be partly written.
    """

def sound(data: Buffer, width: int, height: int) -> bool:
    """Whether ``decode`` would decode this image file, of which it makes one pixel.

    Of a JPEG with a single scan the Huffman codes are not read: libjpeg gives pixels for any.
    """

def image_header(data: Buffer) -> tuple[int, int, bool] | None:
    """Width and height of an image file, as ``probe`` reads them; None: its header is another one.

    Also whether it has an end, which a JPEG may lack if it was truncated; True for other formats.
    """

def png_levels(png: Buffer) -> tuple[bytes, int, int] | None:
    """Indices of a palette or gray levels, as ``np.asarray(PIL.Image.open(...))`` has them.

    Returns uint8 levels row by row, the width and the height; None where Pillow has to decode the
    file: other kinds of images, 1 and 16 bits per pixel, and whatever Pillow may object to.
    """

def png_rows(png: Buffer) -> bytes | None:
    """The samples of a PNG row by row, as the file has them: inflated, and without their filters.

    Rows begin at whole bytes; 16-bit samples have their high byte first. None where Pillow has to
    decode the file: interlaced ones, and whatever Pillow may object to.
    """

def jpeg_version() -> str:
    """Version of libjpeg-turbo that the core was compiled against."""

def _inverse_dct(
    blocks: npt.NDArray[np.int16],
    quant: npt.NDArray[np.uint16],
    samples: npt.NDArray[np.uint8],
) -> None:
    """Samples of blocks side by side, with the instruction set in use. For the tests.

    Args:
        blocks: (n, 64), quantised, row-major.
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
    """Pixels of a row from column ``x0`` on, with the instruction set in use. For the tests.

    Args:
        sampling: as numbered in ycc.h.
        luma: the row, with 64 bytes before and after it.
        chroma: likewise, four rows: the nearer Cb and Cr, the farther Cb and Cr.
        far_below: whether the farther rows are below.
        x0: first column.
        rgb: (width, 3), written.
    """

def _own_entropy(jpeg: Buffer, times: int = 2) -> bool:
    """Whether the core's own Huffman decoder decodes this file, and not libjpeg's. For the tests.

    times: how often it is decoded; tables for a small file are built the second time.

    Raises:
        ValueError: not a JPEG, PNG or BMP file.
    """

def pool_size() -> int:
    """Number of threads in this process's pool now."""

def set_simd(name: str) -> bool:
    """Choose the instruction set for images begun from now on ("": the best one here).

    False, and nothing changed, if this machine lacks it. For the tests.
    """

def dct_encode(jpeg: Buffer, *, column_block: int = 8, keep_metadata: bool = True) -> bytes:
    """DCT record of a JPEG file; column_block and keep_metadata as in dct/record.h.

    Raises:
        ValueError: the original bytes must be kept; the message says why.
    """

def dct_to_jpeg(record: Buffer) -> bytes:
    """A JPEG file with the coefficients of a DCT record.

    Raises:
        ValueError: the record is corrupt.
    """

def planes_usable() -> bool:
    """Whether common JPEGs and DCT records are decoded to pixels without libjpeg."""

def dct_usable() -> bool:
    """Whether the linked libjpeg allows DCT records to replace its entropy decoder.

    If not (or with FASTLOAD_NO_DCT_HOOK in the environment), records are decoded through a rebuilt
    JPEG, and JPEG files by libjpeg's own Huffman decoder: the same pixels, slower.
    """

def find_features(
    data: Buffer,
    offset: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    names: list[bytes],
    kind: npt.NDArray[np.uint8],
    count: npt.NDArray[np.int32],
    found_offset: npt.NDArray[np.int64],
    found_nbytes: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
) -> int:
    """Where m features are in n examples: ``storage/formats/_example.py`` defines what is written.

    The written arrays are (n, m) and must hold zeros. Returns the first example that is not a valid
    message, or -1.
    """

def feature_names(
    data: Buffer, offset: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]
) -> tuple[int, list[bytes]]:
    """The first of n examples that is not a valid message, or -1; the names of their features."""

def feature_numbers(
    data: Buffer,
    kind: int,
    offset: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.int64],
) -> bool:
    """The numbers of n lists of this kind, one list after the other; of a float its 32 bits.

    Whether there are as many as ``numbers`` holds.
    """

def find_datums(
    data: Buffer,
    offset: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    table: npt.NDArray[np.int64],
) -> int:
    """Fields of n Caffe messages into a table (n, 8) of zeros: see ``storage/formats/_datum.py``.

    Returns the first that is not a valid message, or -1.
    """

def tar_members(
    data: Buffer,
) -> tuple[int, str, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, list[bytes]]:
    """The members of a tar archive: ``storage/formats/tar.Members``, arrays as bytes.

    Before them: where parsing ended, the error there ("" if there is none; "{name}" stands for the
    next item), and the name of the member that is refused.
    """
