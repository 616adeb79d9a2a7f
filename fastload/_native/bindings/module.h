// What the binding files share: the caller's buffers, checked and held, and the GIL. Included by
// bindings/module*.cpp alone, the only files that include Python.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "batch/batch.h"

namespace fastload {

namespace py = pybind11;

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

  // kind: 'i' signed, 'u' unsigned integer, 'f' floating point; nbytes: of one element.
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

inline Buffer read_array(const py::handle& object, const char* name, char kind, int nbytes, py::ssize_t rows,
                         py::ssize_t columns = 0) {
  Buffer buffer(object, name, kind, nbytes, false);
  buffer.expect_shape(name, rows, columns);
  return buffer;
}

inline Buffer write_array(const py::handle& object, const char* name, py::ssize_t rows,
                          py::ssize_t columns = 0, py::ssize_t itemsize = 4) {
  Buffer buffer(object, name, 'i', itemsize, true);
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

// What all samples share, checked; without `data`. ValueError or TypeError name the argument.
BatchOutput make_output(int out_h, int out_w, int dtype, bool channels_last, int filter, int order,
                        const py::sequence& fill, const py::object& lut);

// What `stages` and `erase` of submit hold, checked for n samples; see _core.pyi. None: an empty one.
// `large` (n) becomes 1 where a side is above kMaxSide: such samples are for Pillow.
Recipe make_recipe(const py::object& stages, py::ssize_t n, int out_w, int out_h, uint8_t* large);
Erasing make_erasing(const py::object& erase, py::ssize_t n, const BatchOutput& output);

// What a Files object of Python holds; TypeError for another object, ValueError for a closed one.
std::shared_ptr<Files> core_of(const py::object& files);

// Arena and CacheFill. Before bind_files and bind_batches, which take them.
void bind_keeping(py::module_& m);

// Files.
void bind_files(py::module_& m);

// Job, submit and probe.
void bind_batches(py::module_& m);

// pixels.
void bind_recipes(py::module_& m);

// gather and start_writeback.
void bind_packing(py::module_& m);

// _inverse_dct and _ycc_to_rgb.
void bind_samples(py::module_& m);

// find_features, find_datums and tar_members.
void bind_scans(py::module_& m);

}  // namespace fastload
