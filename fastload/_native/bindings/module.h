// Python bindings: the extension module fastload._native._core. Only this folder includes Python.
//
// What it does. Each file binds one part of the core and checks every argument before the core runs. This
// header holds what the files share: buffers of the caller, checks, and the GIL. fastload/_native/_core.pyi
// documents the module.
//
// Guarantees
//   checks         a wrong dtype or a read-only array is a TypeError, a wrong shape or value a ValueError;
//                  both name the argument, and the sample if one is wrong
//   errors         C++ exceptions become Python exceptions; per-sample failures are statuses
//   thread safety  the GIL is released around work that takes more than microseconds; the core never takes it
//   ownership      an array is held (Buffer) for as long as the core may use it; small arrays are copied, so
//                  that later changes by the caller cannot bypass the checks
//
// Tests: tests/native/test_arguments.py, test_sample_params.py, test_pool.py, tests/run/test_endings.py.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "batch/batch.h"

namespace fastload {

namespace py = pybind11;

// A C-contiguous buffer of the caller, held until this object is destroyed (which needs the GIL).
class Buffer {
 public:
  Buffer() { view_.obj = nullptr; }
  Buffer(Buffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  Buffer& operator=(Buffer&&) = delete;
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }

  // kind: 'i' signed or 'u' unsigned integer, 'f' floating point; nbytes: size of one element.
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
    const char found = std::strchr("bhilqn", code)   ? 'i'
                       : std::strchr("BHILQN", code) ? 'u'
                       : std::strchr("fd", code)     ? 'f'
                                                     : '?';
    std::string wrong;
    if (found != kind || view_.itemsize != nbytes || format.size() > 2 || format[0] == '>' ||
        format[0] == '!') {
      wrong = std::string(": expected dtype ") +
              (kind == 'u'   ? "uint"
               : kind == 'f' ? "float"
                             : "int") +
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

  // Throws ValueError unless the shape is (rows,) or (rows, columns).
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

// An array of the given shape that is only read.
inline Buffer read_array(const py::handle& object, const char* name, char kind, int nbytes, py::ssize_t rows,
                         py::ssize_t columns = 0) {
  Buffer buffer(object, name, kind, nbytes, false);
  buffer.expect_shape(name, rows, columns);
  return buffer;
}

// An array of the given shape that the core writes to.
inline Buffer written_array(const py::handle& object, const char* name, char kind, int nbytes,
                            py::ssize_t rows, py::ssize_t columns = 0) {
  Buffer buffer(object, name, kind, nbytes, true);
  buffer.expect_shape(name, rows, columns);
  return buffer;
}

// A one-dimensional array of any length that is only read.
inline Buffer read_vector(const py::handle& object, const char* name, char kind, int nbytes) {
  Buffer buffer(object, name, kind, nbytes, false);
  buffer.expect_shape(name, buffer.length());
  return buffer;
}

// Throws ValueError about sample `i` of the argument `name` unless `valid`.
inline void require(bool valid, const char* name, size_t i, const char* expected) {
  if (valid) return;
  throw py::value_error(std::string(name) + ": sample " + std::to_string(i) + ": expected " + expected);
}

// Whether the resampler takes images with this side.
inline bool is_side(int32_t side) {
  return side >= 1 && side <= kMaxSide;
}

// Window coordinates are limited so that every sum of two of them fits 32 bits.
inline bool is_coordinate(int32_t value) {
  constexpr int32_t kMaxCoordinate = 1 << 24;
  return value >= -kMaxCoordinate && value <= kMaxCoordinate;
}

inline void check_filter(int filter) {
  if (filter < 0 || filter >= kFilters) throw py::value_error("filter: expected 0 up to 7, see resample.h");
}

inline void check_pass_order(int order) {
  if (order < 0 || order > 2) throw py::value_error("order: expected 0 to 2, see PassOrder in resample.h");
}

// The arguments `file`, `offset` and `nbytes`, (n,) each: one span of a file per sample.
struct SpanArrays {
  Buffer files, offsets, lengths;

  SpanArrays(const py::object& file, const py::object& offset, const py::object& nbytes)
      : files(read_vector(file, "file", 'i', 4)),
        offsets(read_array(offset, "offset", 'i', 8, files.length())),
        lengths(read_array(nbytes, "nbytes", 'i', 8, files.length())) {}

  py::ssize_t count() const { return files.length(); }
  int32_t file(size_t i) const { return files.data<int32_t>()[i]; }
  int64_t offset(size_t i) const { return offsets.data<int64_t>()[i]; }
  int64_t nbytes(size_t i) const { return lengths.data<int64_t>()[i]; }

  // Throws ValueError unless span `i` may lie in one of `file_count` files.
  void check(size_t i, size_t file_count) const {
    require(file(i) >= 0 && static_cast<size_t>(file(i)) < file_count, "file", i, "an index of files");
    require(offset(i) >= 0, "offset", i, "a value of 0 or more");
    require(nbytes(i) >= -1, "nbytes", i, "a length, or -1 for up to the end");
  }
};

inline bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// Releases the GIL in its scope, except while the interpreter is finalizing. The core never takes the GIL, so
// keeping it then cannot block a worker.
//
// A daemon thread that returns from the core during finalization must not continue: it waits here until the
// process has ended, as in Python 3.14. Before that version PyEval_RestoreThread unwinds such a thread if
// finalization began just after our check, hence noexcept(false).
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

// A bytes-like argument: any contiguous buffer, of any element type.
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

// `stages`, `values` and `erase` of a BatchSpec, checked for n samples; see _core.pyi. None: an empty result.
// `large` (n) becomes 1 for samples with a side above kMaxSide, which Pillow decodes; where it is 1 already,
// nothing is checked.
SampleParams make_sample_params(const py::object& stages, py::ssize_t n, int out_w, int out_h,
                                uint8_t* large);
// `values` of a BatchSpec: sets params->last.
void set_value_resize(const py::object& values, const BatchOutput& output, SampleParams* params);
Erasing make_erasing(const py::object& erase, py::ssize_t n, const BatchOutput& output);

// The core's object behind a Files object of Python. TypeError for another object, ValueError if it is
// closed.
std::shared_ptr<Files> core_of(const py::object& files);

// Arena, EntryTable and CacheFill. Call before bind_files and bind_batches, which use them.
void bind_cache(py::module_& m);

// Files.
void bind_files(py::module_& m);

// Job, submit and probe.
void bind_batches(py::module_& m);

// pixels, for the tests.
void bind_pixels(py::module_& m);

// gather and start_writeback.
void bind_packing(py::module_& m);

// _inverse_dct and _ycc_to_rgb, for the tests.
void bind_samples(py::module_& m);

// find_features, find_datums and tar_members.
void bind_scans(py::module_& m);

}  // namespace fastload
