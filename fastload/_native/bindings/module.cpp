// The Python module fastload._native._core, and its functions that work on one buffer.
#include <atomic>
#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "base/philox.h"
#include "base/simd.h"
#include "batch/batch.h"
#include "batch/pool.h"
#include "batch/thread_state.h"
#include "bindings/module.h"
#include "dct/record.h"
#include "image/header.h"
#include "io/crc32c.h"
#include "jpeg/jpeg.h"
#include "jpeg/planes.h"
#include "pixels/mix.h"
#include "png/png.h"
#include "resample/resample.h"
#include "webp/webp.h"

namespace fastload {
namespace {

uint32_t checksum_of(const py::object& buffer, uint32_t crc, bool portable) {
  // Takes microseconds: while other threads are busy, getting the GIL back would take longer.
  constexpr size_t kShort = size_t{32} << 10;
  const Bytes bytes(buffer);
  std::optional<WithoutGil> released;
  if (bytes.size() > kShort) released.emplace();
  return portable ? crc32c_portable(crc, bytes.data(), bytes.size())
                  : crc32c(crc, bytes.data(), bytes.size());
}

void checksums_of_blocks(const py::object& buffer, size_t block, const py::object& out) {
  if (block < 1) throw py::value_error("block: expected at least 1 byte");
  const Bytes bytes(buffer);
  const size_t n = bytes.size() / block + (bytes.size() % block != 0);
  const Buffer sums = written_array(out, "out", 'u', 4, static_cast<py::ssize_t>(n));
  const WithoutGil released;
  crc32c_blocks(bytes.data(), bytes.size(), block, sums.data<uint32_t>());
}

void checksums_of_file(int descriptor, const py::object& blocks, size_t block, const py::object& out) {
  constexpr size_t kMost = size_t{1} << 20;
  if (block < 1 || block > kMost) throw py::value_error("block: expected 1 up to 2**20 bytes");
  const Buffer given = read_vector(blocks, "blocks", 'i', 8);
  const auto n = static_cast<size_t>(given.length());
  const Buffer sums = written_array(out, "out", 'u', 4, given.length());
  // A copy, so that they stay as they were checked.
  const std::vector<int64_t> numbers(given.data<const int64_t>(), given.data<const int64_t>() + n);
  for (size_t i = 0; i < n; i++) {
    const bool inside = numbers[i] >= 0 && numbers[i] < (int64_t{1} << 62) / static_cast<int64_t>(block);
    require(inside, "blocks", i, "a number from 0 on, of a block that a file can have");
  }
  int failed;
  {
    const WithoutGil released;
    failed = crc32c_of_file(descriptor, numbers.data(), n, block, sums.data<uint32_t>());
  }
  if (failed == 0) return;
  errno = failed;
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

bool own_entropy(const py::object& jpeg, int times) {
  const Bytes bytes(jpeg);
  Resize resize{};
  if (probe_size(bytes.data(), bytes.size(), &resize.box_w, &resize.box_h) != Status::kOk)
    throw py::value_error("jpeg: expected a JPEG file");
  resize.resized_w = resize.out_w = resize.box_w;
  resize.resized_h = resize.out_h = resize.box_h;
  std::vector<uint8_t> out(static_cast<size_t>(resize.out_w) * static_cast<size_t>(resize.out_h) * 3);
  Placement placement{};
  placement.resize = resize;
  placement.target.data = out.data();
  placement.target.row_stride = resize.out_w * ptrdiff_t{3};
  placement.target.pixel_stride = 3;
  placement.target.channel_stride = 1;
  WithoutGil released;
  JpegDecoder decoder;
  RowBuffer rows;
  Resampler resampler;
  const Span span{bytes.data(), bytes.size(), bytes.size()};
  for (int i = 0; i < times; i++) decoder.decode(span, placement, &rows, &resampler);
  return decoder.own_entropy();
}

// Takes microseconds, so the GIL is kept: getting it back would take longer.
void random_words(uint64_t seed, uint32_t epoch, const py::object& indices, const py::object& streams,
                  const py::object& out) {
  const Buffer index_array(indices, "indices", 'i', 8, false),
      stream_array(streams, "streams", 'u', 8, false);
  const py::ssize_t n = index_array.length(), b = stream_array.length();
  index_array.expect_shape("indices", n);
  stream_array.expect_shape("streams", b);
  if (n == 0 || b == 0) return;
  const Buffer words(out, "out", 'u', 8, true);
  words.expect_shape("out", 4 * b, n);
  philox_words(seed, epoch, index_array.data<const int64_t>(), static_cast<size_t>(n),
               stream_array.data<const uint64_t>(), static_cast<size_t>(b), words.data<uint64_t>());
}

void mix_batch(const py::object& batch, float before, float own) {
  const Buffer values(batch, "batch", 'f', 4, true);
  if (values.ndim() == 0) throw py::value_error("batch: expected at least one dimension, got none");
  const auto samples = static_cast<size_t>(values.length());
  if (values.nbytes() == 0) return;
  WithoutGil released;
  mix_up(values.data<float>(), samples, static_cast<size_t>(values.nbytes()) / 4 / samples, before, own);
}

void cut_batch(const py::object& batch, int top, int bottom, int left, int right) {
  const Buffer bytes(batch, "batch", 'u', 1, true);
  if (bytes.ndim() != 4)
    throw py::value_error("batch: expected 4 dimensions, got " + std::to_string(bytes.ndim()));
  if (top < 0 || top > bottom || bottom > bytes.extent(2) || left < 0 || left > right ||
      right > bytes.extent(3))
    throw py::value_error("the box extends outside the images");
  if (bytes.nbytes() == 0) return;
  const auto rows = static_cast<size_t>(bytes.extent(2)), row = static_cast<size_t>(bytes.extent(3));
  CutMixBox box{};
  box.offset = static_cast<size_t>(top) * row + static_cast<size_t>(left);
  box.planes = static_cast<size_t>(bytes.extent(1));
  box.rows = static_cast<size_t>(bottom - top);
  box.plane_stride = rows * row;
  box.row_stride = row;
  box.length = static_cast<size_t>(right - left);
  WithoutGil released;
  cut_mix(bytes.data<unsigned char>(), static_cast<size_t>(bytes.length()), box.planes * box.plane_stride,
          box);
}

// None, or (levels, width, height).
py::object png_levels(const py::object& png) {
  const Bytes bytes(png);
  std::vector<uint8_t> levels;
  int width = 0, height = 0;
  Status status;
  {
    WithoutGil released;
    const Span span{bytes.data(), bytes.size(), bytes.size()};
    status = is_png(span.data, span.nbytes) ? thread_state().png.decode_levels(span, &levels, &width, &height)
                                            : Status::kUnsupported;
  }
  if (status != Status::kOk) return py::none();
  return py::make_tuple(py::bytes(reinterpret_cast<const char*>(levels.data()), levels.size()), width,
                        height);
}

// None, or the rows.
py::object png_rows(const py::object& png) {
  const Bytes bytes(png);
  PngDecoder& decoder = thread_state().png;
  size_t nbytes = 0;
  Status status;
  {
    WithoutGil released;
    const Span span{bytes.data(), bytes.size(), bytes.size()};
    status = is_png(span.data, span.nbytes) ? decoder.read_rows(span, &nbytes) : Status::kUnsupported;
  }
  if (status != Status::kOk) return py::none();
  const auto rows =
      py::reinterpret_steal<py::object>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes)));
  if (!rows) throw py::error_already_set();
  auto* const to = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(rows.ptr()));  // nobody else has it yet
  {
    WithoutGil released;
    status = decoder.copy_rows(to);
  }
  return status == Status::kOk ? rows : py::none();
}

// Whether the core has decoded the image file `data` into `out`, as it is documented in _core.pyi.
bool decode(const py::object& data, const py::object& out, bool reversed) {
  const Bytes bytes(data);
  const Buffer pixels(out, "out", 'u', 1, true);
  const bool gray = pixels.ndim() == 2;
  if (!gray && (pixels.ndim() != 3 || pixels.extent(2) != 3))
    throw py::value_error("out: expected shape (h, w, 3) or (h, w)");
  for (const py::ssize_t side : {pixels.extent(0), pixels.extent(1)}) {
    if (side < 1 || side > kMaxSide) throw py::value_error("out: expected sides of 1 up to 65,535 pixels");
  }
  const int h = static_cast<int>(pixels.extent(0)), w = static_cast<int>(pixels.extent(1));
  Placement placement{};
  placement.source_w = w;
  placement.source_h = h;
  placement.resize = Resize{w, h, w, h, 0, 0, w, h, Filter{}, PassOrder{}};
  placement.target.data = pixels.data<uint8_t>();
  placement.target.row_stride = gray ? w : int64_t{3} * w;
  placement.target.pixel_stride = gray ? 1 : 3;
  placement.target.channel_stride = gray ? 0 : 1;
  placement.target.reversed = reversed;
  const WithoutGil released;
  const Span span{bytes.data(), bytes.size(), bytes.size()};
  const Status status = decode_span(span, Kind::kEncoded, placement, &thread_state());
  // See Note [Past the cache] in resample/kernels.h.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return status == Status::kOk;
}

// Whether the core decodes the whole image file `data`, as it is documented in _core.pyi. Of its pixels only
// one is made: Huffman codes and the like take most of the work, and nothing else can be damaged.
bool sound(const py::object& data, int width, int height) {
  const Bytes bytes(data);
  uint8_t pixel[3];
  Placement placement{};
  placement.source_w = width;
  placement.source_h = height;
  placement.resize = Resize{1, 1, 1, 1, 0, 0, 1, 1, Filter{}, PassOrder{}};
  placement.target.data = pixel;
  placement.target.row_stride = placement.target.pixel_stride = 3;
  placement.target.channel_stride = 1;
  const WithoutGil released;
  const Span span{bytes.data(), bytes.size(), bytes.size()};
  return decode_span(span, Kind::kEncoded, placement, &thread_state()) == Status::kOk;
}

// Width, height and end of the image file `data`, or None, as it is documented in _core.pyi.
py::object image_header(const py::object& data) {
  const Bytes bytes(data);
  int width = 0, height = 0;
  if (probe_size(bytes.data(), bytes.size(), &width, &height) != Status::kOk) return py::none();
  const bool ends = !is_jpeg(bytes.data(), bytes.size()) || jpeg_ends(bytes.data(), bytes.size());
  return py::make_tuple(width, height, ends);
}

py::object png_version() {
  const char* version = png_library();
  return version == nullptr ? py::object(py::none()) : py::str(version);
}

py::object webp_version() {
  const int version = webp_library();
  if (version == 0) return py::none();
  return py::str(std::to_string(version >> 16) + "." + std::to_string(version >> 8 & 255) + "." +
                 std::to_string(version & 255));
}

template <typename Codec>
py::bytes convert(const py::object& buffer, Codec codec) {
  const Bytes bytes(buffer);
  std::vector<uint8_t> result;
  std::string why;
  bool converted;
  {
    WithoutGil released;
    converted = codec(bytes.data(), bytes.size(), &result, &why);
  }
  if (!converted) throw py::value_error(why);
  return py::bytes(reinterpret_cast<const char*>(result.data()), result.size());
}

}  // namespace
}  // namespace fastload

PYBIND11_MODULE(_core, m) {
  using namespace fastload;
  using namespace pybind11::literals;
  m.doc() = "fastload's native core. Private: see _core.pyi for what each function takes.";

  bind_cache(m);
  bind_files(m);
  bind_batches(m);
  bind_pixels(m);
  bind_scans(m);
  bind_packing(m);
  bind_samples(m);
  m.def(
      "crc32c", [](const py::object& buffer, uint32_t crc) { return checksum_of(buffer, crc, false); },
      "buffer"_a, "crc"_a = 0, "CRC32C of a buffer, continued from crc.");
  m.def(
      "_crc32c_portable",
      [](const py::object& buffer, uint32_t crc) { return checksum_of(buffer, crc, true); }, "buffer"_a,
      "crc"_a = 0, "The same without SSE4.2, for the tests.");
  m.def("crc32c_blocks", &checksums_of_blocks, "buffer"_a, "block"_a, "out"_a,
        "CRC32C of each block of a buffer; see _core.pyi.");
  m.def("crc32c_of_file", &checksums_of_file, "descriptor"_a, "blocks"_a, "block"_a, "out"_a,
        "CRC32C of blocks of an open file; see _core.pyi.");
  m.def("random_words", &random_words, "seed"_a, "epoch"_a, "indices"_a, "streams"_a, "out"_a,
        "Philox words; see _core.pyi.");
  m.def("mix_up", &mix_batch, "batch"_a, "before"_a, "own"_a, "MixUp in place; see _core.pyi.");
  m.def("cut_mix", &cut_batch, "batch"_a, "top"_a, "bottom"_a, "left"_a, "right"_a,
        "CutMix in place; see _core.pyi.");
  m.def("simd", [] { return simd_name(simd_in_use()); }, "Instruction set in use.");
  m.def("jpeg_version", &jpeg_version, "Version of libjpeg-turbo that the core was compiled against.");
  m.def("png_version", &png_version, "Version of libdeflate; None: PNG files are left to Pillow.");
  m.def("webp_version", &webp_version, "Version of libwebp; None: WebP files are left to Pillow.");
  m.def("decode", &decode, "data"_a, "out"_a, py::kw_only(), "reversed"_a = false,
        "Decode a whole image on this thread; see _core.pyi.");
  m.def("sound", &sound, "data"_a, "width"_a, "height"_a, "Whether a whole image is decoded; see _core.pyi.");
  m.def("image_header", &image_header, "data"_a, "Size and end of an image file; see _core.pyi.");
  m.def("png_levels", &png_levels, "png"_a, "Indices or gray levels of a PNG; see _core.pyi.");
  m.def("png_rows", &png_rows, "png"_a, "Rows of a PNG; see _core.pyi.");
  m.def("_own_entropy", &own_entropy, "jpeg"_a, "times"_a = 2,
        "Whether the core's own Huffman decoder decodes this file; for the tests.");
  m.def("pool_size", &pool::size, "Number of threads in the pool now.");
  m.def("set_simd", &set_simd, "name"_a, "Choose the instruction set; False if this machine lacks it.");
  m.def(
      "dct_encode",
      [](const py::object& jpeg, int column_block, bool keep_metadata) {
        DctOptions options;
        options.column_block = column_block;
        options.keep_metadata = keep_metadata;
        return convert(
            jpeg, [&options](const uint8_t* data, size_t nbytes, std::vector<uint8_t>* record,
                             std::string* why) { return dct_encode(data, nbytes, options, record, why); });
      },
      "jpeg"_a, py::kw_only(), "column_block"_a = DctOptions().column_block,
      "keep_metadata"_a = DctOptions().keep_metadata,
      "JPEG file to DCT record; ValueError says why the original must be kept.");
  m.def(
      "dct_to_jpeg", [](const py::object& record) { return convert(record, dct_to_jpeg); }, "record"_a,
      "DCT record to a JPEG file with equal coefficients.");
  m.def("dct_usable", &DctSource::usable, "Whether DCT records are decoded without rebuilding a JPEG.");
  m.def("planes_usable", &PlaneDecoder::usable, "Whether common JPEGs are decoded without libjpeg.");

  // Joins the pool before the interpreter is finalized: its threads write to memory that Python owns.
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    WithoutGil released;
    pool::shutdown();
  }));
}
