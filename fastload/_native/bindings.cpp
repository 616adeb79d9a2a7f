// The Python module fastload._native._core. The only file that includes Python: it checks every
// argument, keeps the caller's buffers alive, and lets go of the GIL while the core works.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "batch.h"
#include "crc32c.h"
#include "dct.h"
#include "files.h"
#include "image.h"
#include "jpeg.h"
#include "pool.h"
#include "resample.h"

namespace py = pybind11;

namespace fastload {
namespace {

// A C-contiguous buffer of the caller's, held until this object dies (with the GIL).
class Buffer {
 public:
  Buffer() { view_.obj = nullptr; }
  Buffer(Buffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  Buffer& operator=(Buffer&&) = delete;
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }

  // kind: 'i' signed, 'u' unsigned integer; nbytes: of one element.
  Buffer(const py::handle& object, const char* name, char kind, int nbytes, bool writable) {
    view_.obj = nullptr;
    const int flags = PyBUF_ND | PyBUF_STRIDES | PyBUF_FORMAT;
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
      PyErr_Clear();
      view_.obj = nullptr;
      throw py::type_error(std::string(name) + ": expected an array or buffer, got " +
                           std::string(py::str(py::type::handle_of(object).attr("__name__"))));
    }
    const std::string format = view_.format == nullptr ? "B" : view_.format;
    const char code = format.empty() ? '?' : format.back();
    const char found = std::strchr("bhilqn", code) ? 'i' : std::strchr("BHILQN", code) ? 'u' : '?';
    std::string wrong;
    if (found != kind || view_.itemsize != nbytes || format.size() > 2 || format[0] == '>' ||
        format[0] == '!') {
      wrong = std::string(": expected dtype ") + (kind == 'u' ? "u" : "") + "int" +
              std::to_string(8 * nbytes) + ", got format '" + format + "' of " +
              std::to_string(view_.itemsize) + " bytes";
    } else if (!PyBuffer_IsContiguous(&view_, 'C')) {
      wrong = ": expected a C-contiguous array";
    } else if (writable && view_.readonly) {
      wrong = ": expected a writable array";
    }
    if (wrong.empty()) return;
    PyBuffer_Release(&view_);
    view_.obj = nullptr;
    throw py::type_error(name + wrong);
  }

  // Throws ValueError unless the shape is (rows) or (rows, columns).
  void expect_shape(const char* name, py::ssize_t rows, py::ssize_t columns = 0) const {
    const bool fits = columns == 0 ? view_.ndim == 1 && view_.shape[0] == rows
                                   : view_.ndim == 2 && view_.shape[0] == rows && view_.shape[1] == columns;
    if (fits) return;
    std::string shape;
    for (int i = 0; i < view_.ndim; i++) shape += (i ? ", " : "") + std::to_string(view_.shape[i]);
    throw py::value_error(std::string(name) + ": expected shape (" + std::to_string(rows) +
                          (columns ? ", " + std::to_string(columns) : "") + "), got (" + shape + ")");
  }

  int ndim() const { return view_.ndim; }
  py::ssize_t nbytes() const { return view_.len; }
  py::ssize_t length() const { return view_.ndim == 0 ? 0 : view_.shape[0]; }
  py::ssize_t extent(int axis) const { return view_.shape[axis]; }
  template <typename T>
  T* data() const {
    return static_cast<T*>(view_.buf);
  }

 private:
  Py_buffer view_;
};

Buffer read_array(const py::handle& object, const char* name, char kind, int nbytes, py::ssize_t rows,
                  py::ssize_t columns = 0) {
  Buffer buffer(object, name, kind, nbytes, false);
  buffer.expect_shape(name, rows, columns);
  return buffer;
}

Buffer write_array(const py::handle& object, const char* name, py::ssize_t rows, py::ssize_t columns = 0) {
  Buffer buffer(object, name, 'i', 4, true);
  buffer.expect_shape(name, rows, columns);
  return buffer;
}

inline bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// Lets go of the GIL for its scope, except while the interpreter ends. The core never takes the GIL, so
// keeping it cannot block a worker.
//
// A daemon thread that comes back while the interpreter ends may not go on: it stays here until the process
// is gone, as in Python 3.14. Before that version PyEval_RestoreThread unwinds such a thread if the end began
// just after our look, hence noexcept(false).
class WithoutGil {
 public:
  WithoutGil() : state_(interpreter_ends() ? nullptr : PyEval_SaveThread()) {}
  ~WithoutGil() noexcept(false) {
    if (state_ == nullptr) return;
    while (interpreter_ends()) std::this_thread::sleep_for(std::chrono::seconds(1));
    PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Waits in slices, so that Ctrl-C is heard.
void wait_for(Job& job) {
  constexpr std::chrono::milliseconds kSlice(100);
  for (;;) {
    pool::Wait outcome;
    {
      WithoutGil released;
      outcome = pool::wait(job, kSlice);
    }
    if (outcome == pool::Wait::kDone) return;
    if (outcome == pool::Wait::kForked) {
      throw std::runtime_error(
          "this job was submitted before the process forked and was not finished: submit it again in this "
          "process");
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

// fastload._native._core.Files
class PyFiles {
 public:
  PyFiles(py::bytes paths, const py::object& ends, const py::object& mapped)
      : paths_(std::move(paths)),
        ends_(ends, "ends", 'i', 8, false),
        mapped_(mapped, "mapped", 'u', 1, false) {
    char* text = nullptr;
    py::ssize_t text_nbytes = 0;
    if (PyBytes_AsStringAndSize(paths_.ptr(), &text, &text_nbytes) != 0) throw py::error_already_set();
    const py::ssize_t count = ends_.length();
    ends_.expect_shape("ends", count);
    mapped_.expect_shape("mapped", count);
    int64_t before = 0;
    for (py::ssize_t i = 0; i < count; i++) {
      const int64_t end = ends_.data<int64_t>()[i];
      if (end < before)
        throw py::value_error("ends: expected values that do not decrease, at " + std::to_string(i));
      before = end;
    }
    if (before != text_nbytes) {
      throw py::value_error("ends: expected the last one to be the length of paths, " +
                            std::to_string(text_nbytes) + ", got " + std::to_string(before));
    }
    if (std::memchr(text, 0, static_cast<size_t>(text_nbytes)) != nullptr) {
      throw py::value_error("paths: expected no NUL byte");
    }
    // Jobs share the core's object; the arrays it borrows must live as long.
    core_ = std::make_shared<Files>(text, static_cast<size_t>(text_nbytes), ends_.data<int64_t>(),
                                    mapped_.data<uint8_t>(), static_cast<size_t>(count));
  }

  const std::shared_ptr<Files>& core() const {
    if (!core_) throw py::value_error("files: expected open files, got closed ones");
    return core_;
  }
  void close() { core_.reset(); }
  py::ssize_t length() const { return ends_.length(); }

 private:
  py::bytes paths_;
  Buffer ends_, mapped_;
  std::shared_ptr<Files> core_;
};

std::shared_ptr<Files> core_of(const py::object& files) {
  if (!py::isinstance<PyFiles>(files)) throw py::type_error("files: expected fastload._native._core.Files");
  return files.cast<const PyFiles&>().core();
}

// fastload._native._core.Job
class PyJob {
 public:
  PyJob(std::shared_ptr<Batch> batch, py::object files, Buffer out, Buffer status, Buffer detail)
      : batch_(std::move(batch)),
        files_(std::move(files)),
        out_(std::move(out)),
        status_(std::move(status)),
        detail_(std::move(detail)) {}
  ~PyJob() { cancel(); }
  PyJob(const PyJob&) = delete;
  PyJob& operator=(const PyJob&) = delete;

  void wait() { wait_for(*batch_); }
  void cancel() {
    if (batch_->done()) return;
    WithoutGil released;
    pool::cancel(*batch_);
  }
  bool done() const { return batch_->done(); }
  py::dict nanoseconds() const {
    const Stages& stages = batch_->stages();
    py::dict result;
    result["read"] = stages.read.load(std::memory_order_relaxed);
    result["check"] = stages.check.load(std::memory_order_relaxed);
    result["decode"] = stages.decode.load(std::memory_order_relaxed);
    return result;
  }

 private:
  std::shared_ptr<Batch> batch_;
  py::object files_;  // owns the arrays that the core's Files borrows
  Buffer out_, status_, detail_;
};

std::string at(const char* name, size_t i) {
  return std::string(name) + ": sample " + std::to_string(i) + ": ";
}

void require(bool fits, const char* name, size_t i, const char* expected) {
  if (!fits) throw py::value_error(at(name, i) + "expected " + expected);
}

// Coordinates within this keep every sum of two of them inside 32 bits.
constexpr int32_t kMaxCoordinate = 1 << 24;

void check_sample(const Sample& s, size_t i, size_t files) {
  require(s.file >= 0 && static_cast<size_t>(s.file) < files, "file", i, "an index of files");
  require(s.offset >= 0, "offset", i, "a value of 0 or more");
  require(s.nbytes >= -1, "nbytes", i, "a length, or -1 for up to the end");
  require(static_cast<int>(s.kind) <= 2, "kind", i, "0 (encoded), 1 (raw) or 2 (DCT)");
  require(s.source_w >= 0 && s.source_h >= 0 && s.source_w <= kMaxSide && s.source_h <= kMaxSide, "size", i,
          "0 (unknown) up to 65,535");
  require((s.source_w == 0) == (s.source_h == 0), "size", i, "width and height, or neither");
  require(s.box_x >= 0 && s.box_y >= 0 && s.box_w >= 1 && s.box_h >= 1 && s.box_x <= kMaxSide &&
              s.box_y <= kMaxSide && s.box_w <= kMaxSide && s.box_h <= kMaxSide,
          "box", i, "x, y of 0 or more and w, h of 1 or more, up to 65,535");
  require(s.source_w == 0 || (s.box_x + s.box_w <= s.source_w && s.box_y + s.box_h <= s.source_h), "box", i,
          "a box inside the image");
  require(s.resized_w >= 1 && s.resized_h >= 1 && s.resized_w <= kMaxSide && s.resized_h <= kMaxSide,
          "resized", i, "1 up to 65,535");
  require(s.window_x >= -kMaxCoordinate && s.window_x <= kMaxCoordinate && s.window_y >= -kMaxCoordinate &&
              s.window_y <= kMaxCoordinate,
          "window", i, "coordinates within 2**24 of 0");
}

Output make_output(int out_h, int out_w, int dtype, bool channels_last, int filter, int order,
                   const py::sequence& fill, const py::object& lut) {
  if (out_h < 1 || out_w < 1 || out_h > kMaxSide || out_w > kMaxSide) {
    throw py::value_error("out_h, out_w: expected 1 up to 65,535");
  }
  if (dtype < 0 || dtype > 3) {
    throw py::value_error("dtype: expected 0 (uint8), 1 (float32), 2 (float16) or 3 (bfloat16)");
  }
  if (filter < 0 || filter > 5) throw py::value_error("filter: expected 0 up to 5, see resample.h");
  if (order < 0 || order > 2) throw py::value_error("order: expected 0 to 2, see PassOrder in resample.h");
  if (py::len(fill) != 3) throw py::value_error("fill: expected three levels");
  Output output{};
  output.dtype = static_cast<Dtype>(dtype);
  output.out_w = out_w;
  output.out_h = out_h;
  output.channels_last = channels_last;
  output.filter = static_cast<Filter>(filter);
  output.order = static_cast<PassOrder>(order);
  for (size_t c = 0; c < 3; c++) {
    const int level = fill[c].cast<int>();
    if (level < 0 || level > 255) throw py::value_error("fill: expected levels from 0 to 255");
    output.fill[c] = static_cast<uint8_t>(level);
  }
  if (!lut.is_none()) {
    const py::ssize_t wanted = static_cast<py::ssize_t>(3 * 256 * dtype_nbytes(output.dtype));
    const Buffer table = read_array(lut, "lut", 'u', 1, wanted);
    output.lut.assign(table.data<uint8_t>(), table.data<uint8_t>() + wanted);
  } else if (output.dtype != Dtype::kUint8) {
    throw py::value_error("lut: expected a table, for only uint8 can go without");
  }
  return output;
}

// One image, on the caller's thread.
void resample(const py::object& image, std::pair<int, int> resized, std::pair<int, int> window, bool flip,
              const py::object& out, const py::object& lut, int out_h, int out_w, int dtype,
              bool channels_last, int filter, int order, const py::sequence& fill) {
  const Buffer pixels(image, "image", 'u', 1, false);
  if (pixels.ndim() != 3 || pixels.extent(2) != 3) throw py::value_error("image: expected shape (h, w, 3)");
  const Output output = make_output(out_h, out_w, dtype, channels_last, filter, order, fill, lut);
  const Buffer out_buffer(out, "out", 'u', 1, true);
  const int64_t w = out_w, h = out_h;
  out_buffer.expect_shape("out", static_cast<py::ssize_t>(3 * w * h * dtype_nbytes(output.dtype)));
  for (const py::ssize_t side : {pixels.extent(0), pixels.extent(1)}) {
    if (side < 1 || side > kMaxSide) throw py::value_error("image: expected sides of 1 up to 65,535 pixels");
  }
  Resize resize{};
  resize.box_w = static_cast<int>(pixels.extent(1));
  resize.box_h = static_cast<int>(pixels.extent(0));
  std::tie(resize.resized_w, resize.resized_h) = resized;
  std::tie(resize.window_x, resize.window_y) = window;
  resize.out_w = out_w;
  resize.out_h = out_h;
  resize.filter = output.filter;
  resize.order = output.order;
  Target target{};
  target.data = out_buffer.data<uint8_t>();
  target.dtype = output.dtype;
  target.row_stride = channels_last ? 3 * w : w;
  target.pixel_stride = channels_last ? 3 : 1;
  target.channel_stride = channels_last ? 1 : w * h;
  target.lut = output.lut.empty() ? nullptr : output.lut.data();
  target.flip = flip;
  std::copy_n(output.fill, 3, target.fill);
  bool done;
  {
    WithoutGil released;
    done = resample_image(pixels.data<const uint8_t>(), resize.box_w * ptrdiff_t{3}, resize, target);
  }
  if (!done) throw py::value_error("resample: sizes of 1 up to 65,535 expected, or memory ran out");
}

std::unique_ptr<PyJob> submit(const py::object& files, const py::object& file, const py::object& offset,
                              const py::object& nbytes, const py::object& kind, const py::object& size,
                              const py::object& checksum, const py::object& check, const py::object& box,
                              const py::object& resized, const py::object& window, const py::object& flip,
                              const py::object& out, const py::object& lut, int out_h, int out_w, int dtype,
                              bool channels_last, int filter, int order, const py::sequence& fill,
                              const py::object& status, const py::object& detail, int threads) {
  const std::shared_ptr<Files> core = core_of(files);
  if (threads < 0) throw py::value_error("threads: expected 0 or more, got " + std::to_string(threads));
  const Buffer file_array(file, "file", 'i', 4, false);
  const py::ssize_t n = file_array.length();
  file_array.expect_shape("file", n);
  const Buffer offset_array = read_array(offset, "offset", 'i', 8, n);
  const Buffer nbytes_array = read_array(nbytes, "nbytes", 'i', 8, n);
  const Buffer kind_array = read_array(kind, "kind", 'u', 1, n);
  const Buffer size_array = read_array(size, "size", 'i', 4, n, 2);
  const Buffer box_array = read_array(box, "box", 'i', 4, n, 4);
  const Buffer resized_array = read_array(resized, "resized", 'i', 4, n, 2);
  const Buffer window_array = read_array(window, "window", 'i', 4, n, 2);
  const Buffer flip_array = read_array(flip, "flip", 'u', 1, n);
  if (checksum.is_none() && !check.is_none())
    throw py::value_error("check: expected None where checksum is None");
  const Buffer checksum_array = checksum.is_none() ? Buffer() : read_array(checksum, "checksum", 'u', 4, n);
  const Buffer check_array = check.is_none() ? Buffer() : read_array(check, "check", 'u', 1, n);

  Output output = make_output(out_h, out_w, dtype, channels_last, filter, order, fill, lut);
  Buffer out_array(out, "out", 'u', 1, true);
  // 3 * 2^32 * 4 bytes a sample at most, and n is bounded by what the arrays hold: 128 bits are safe.
  const __int128 wanted =
      static_cast<__int128>(n) * 3 * out_h * out_w * static_cast<int>(dtype_nbytes(output.dtype));
  if (out_array.ndim() != 1 || wanted != out_array.nbytes()) {
    throw py::value_error("out: expected one dimension of n * 3 * out_h * out_w * itemsize = " +
                          std::to_string(static_cast<long long>(wanted)) + " bytes, got " +
                          std::to_string(out_array.nbytes()));
  }
  output.data = out_array.data<uint8_t>();
  Buffer status_array = write_array(status, "status", n);
  Buffer detail_array = write_array(detail, "detail", n);

  // Copied, so that nothing the caller does to the arrays later escapes the checks.
  std::vector<Sample> samples(static_cast<size_t>(n));
  for (size_t i = 0; i < samples.size(); i++) {
    Sample& s = samples[i];
    s.file = file_array.data<int32_t>()[i];
    s.offset = offset_array.data<int64_t>()[i];
    s.nbytes = nbytes_array.data<int64_t>()[i];
    s.kind = static_cast<Kind>(kind_array.data<uint8_t>()[i]);
    s.source_w = size_array.data<int32_t>()[2 * i];
    s.source_h = size_array.data<int32_t>()[2 * i + 1];
    s.checksum = checksum.is_none() ? 0 : checksum_array.data<uint32_t>()[i];
    s.check = !checksum.is_none() && (check.is_none() || check_array.data<uint8_t>()[i] != 0);
    const int32_t* b = box_array.data<int32_t>() + 4 * i;
    s.box_x = b[0];
    s.box_y = b[1];
    s.box_w = b[2];
    s.box_h = b[3];
    s.resized_w = resized_array.data<int32_t>()[2 * i];
    s.resized_h = resized_array.data<int32_t>()[2 * i + 1];
    s.window_x = window_array.data<int32_t>()[2 * i];
    s.window_y = window_array.data<int32_t>()[2 * i + 1];
    s.flip = flip_array.data<uint8_t>()[i] != 0;
    check_sample(s, i, core->count());
  }
  for (size_t i = 0; i < samples.size(); i++) {
    status_array.data<int32_t>()[i] = static_cast<int32_t>(Status::kPending);
    detail_array.data<int32_t>()[i] = 0;
  }
  auto batch = std::make_shared<Batch>(core, std::move(samples), std::move(output),
                                       status_array.data<int32_t>(), detail_array.data<int32_t>(), threads);
  auto job = std::make_unique<PyJob>(batch, files, std::move(out_array), std::move(status_array),
                                     std::move(detail_array));
  pool::submit(batch);
  return job;
}

void probe(const py::object& files, const py::object& file, const py::object& offset,
           const py::object& nbytes, const py::object& kind, const py::object& size_out,
           const py::object& status, int threads) {
  const std::shared_ptr<Files> core = core_of(files);
  if (threads < 0) throw py::value_error("threads: expected 0 or more, got " + std::to_string(threads));
  const Buffer file_array(file, "file", 'i', 4, false);
  const py::ssize_t n = file_array.length();
  file_array.expect_shape("file", n);
  const Buffer offset_array = read_array(offset, "offset", 'i', 8, n);
  const Buffer nbytes_array = read_array(nbytes, "nbytes", 'i', 8, n);
  const Buffer kind_array = read_array(kind, "kind", 'u', 1, n);
  const Buffer size_array = write_array(size_out, "size_out", n, 2);
  const Buffer status_array = write_array(status, "status", n);
  std::vector<ProbeSample> samples(static_cast<size_t>(n));
  for (size_t i = 0; i < samples.size(); i++) {
    ProbeSample& s = samples[i];
    s.file = file_array.data<int32_t>()[i];
    s.offset = offset_array.data<int64_t>()[i];
    s.nbytes = nbytes_array.data<int64_t>()[i];
    s.kind = static_cast<Kind>(kind_array.data<uint8_t>()[i]);
    require(s.file >= 0 && static_cast<size_t>(s.file) < core->count(), "file", i, "an index of files");
    require(s.offset >= 0, "offset", i, "a value of 0 or more");
    require(s.nbytes >= -1, "nbytes", i, "a length, or -1 for up to the end");
    require(static_cast<int>(s.kind) <= 2, "kind", i, "0 (encoded), 1 (raw) or 2 (DCT)");
  }
  for (size_t i = 0; i < samples.size(); i++) {
    status_array.data<int32_t>()[i] = static_cast<int32_t>(Status::kPending);
  }
  auto job = std::make_shared<Probe>(core, std::move(samples), size_array.data<int32_t>(),
                                     status_array.data<int32_t>(), threads);
  pool::submit(job);
  try {
    wait_for(*job);
  } catch (const std::exception&) {
    WithoutGil released;
    pool::cancel(*job);
    throw;
  }
}

// A bytes-like argument; any contiguous buffer, of any element type.
class Bytes {
 public:
  explicit Bytes(const py::object& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

uint32_t checksum_of(const py::object& buffer, uint32_t crc, bool portable) {
  const Bytes bytes(buffer);
  WithoutGil released;
  return portable ? crc32c_portable(crc, bytes.data(), bytes.size())
                  : crc32c(crc, bytes.data(), bytes.size());
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

  py::class_<PyFiles>(m, "Files", "Files of a store, opened or mapped when first read.")
      .def(py::init<py::bytes, const py::object&, const py::object&>(), "paths"_a, "ends"_a, "mapped"_a)
      .def("close", &PyFiles::close, "Let go of the maps, once the jobs that read them are done.")
      .def("__len__", &PyFiles::length);

  py::class_<PyJob>(m, "Job", "A submitted batch. Dropped before its end, it is cancelled.")
      .def("wait", &PyJob::wait,
           "Return when every sample has its status. Other Python threads run meanwhile.")
      .def("cancel", &PyJob::cancel, "Drop unstarted samples (status -1) and wait for running ones.")
      .def_property_readonly("done", &PyJob::done, "True once no sample is left and no thread at work.")
      .def_property_readonly("nanoseconds", &PyJob::nanoseconds, "Time per stage, summed over threads.");

  m.def("submit", &submit, "files"_a, "file"_a, "offset"_a, "nbytes"_a, "kind"_a, "size"_a, "checksum"_a,
        "check"_a, "box"_a, "resized"_a, "window"_a, "flip"_a, "out"_a, "lut"_a, py::kw_only(), "out_h"_a,
        "out_w"_a, "dtype"_a, "channels_last"_a, "filter"_a, "order"_a, "fill"_a, "status"_a, "detail"_a,
        "threads"_a, "Start filling a batch; see _core.pyi.");
  m.def("resample", &resample, "image"_a, "resized"_a, "window"_a, "flip"_a, "out"_a, "lut"_a, py::kw_only(),
        "out_h"_a, "out_w"_a, "dtype"_a, "channels_last"_a, "filter"_a, "order"_a, "fill"_a,
        "Resize, cut and store one image; see _core.pyi.");
  m.def("probe", &probe, "files"_a, "file"_a, "offset"_a, "nbytes"_a, "kind"_a, "size_out"_a, "status"_a,
        "threads"_a, "Read image sizes out of headers; see _core.pyi.");
  m.def(
      "crc32c", [](const py::object& buffer, uint32_t crc) { return checksum_of(buffer, crc, false); },
      "buffer"_a, "crc"_a = 0, "CRC32C of a buffer, going on from crc.");
  m.def(
      "_crc32c_portable",
      [](const py::object& buffer, uint32_t crc) { return checksum_of(buffer, crc, true); }, "buffer"_a,
      "crc"_a = 0, "The same without SSE4.2, for the tests.");
  m.def("simd", &Resampler::simd, "Instruction set of the resampler.");
  m.def("jpeg_version", &jpeg_version, "Version of libjpeg-turbo this was compiled against.");
  m.def("pool_size", &pool::size, "Threads the pool holds now.");
  m.def(
      "set_simd",
      [](const std::string& name) { return set_simd(name.c_str()) && dct_set_simd(name.c_str()); }, "name"_a,
      "Choose the instruction set from now on; False where this machine lacks it.");
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
  m.def("dct_usable", &DctSource::usable, "Whether DCT records decode without a detour by way of a JPEG.");
  m.def("dct_simd", &DctSource::simd, "Instruction set of the DCT records' expansion.");

  // Before the interpreter goes: threads of ours must not outlive what they write into.
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    WithoutGil released;
    pool::shutdown();
  }));
}
