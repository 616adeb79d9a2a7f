// Files of fastload._native._core: paths and arrays of the caller, checked and held.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/module.h"
#include "image/orientation.h"
#include "io/files.h"
#include "io/sigbus_guard.h"

namespace fastload {
namespace {

// An array of the caller that takes the place of a file, held until this object is destroyed (needs the GIL).
class PyMemory {
 public:
  PyMemory(int64_t file, const py::handle& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
      throw py::error_already_set();
    }
    const std::string format = view_.format == nullptr ? "B" : view_.format;
    const char* wrong = nullptr;
    if (format != "B") {
      wrong = "memory: expected arrays of uint8";
    } else if (view_.ndim == 1) {
      if (view_.strides[0] != 1 && view_.shape[0] > 1) wrong = "memory: expected contiguous bytes";
    } else if (view_.ndim != 4 || view_.shape[3] != 3) {
      wrong = "memory: expected arrays of shape (n,) or (n, h, w, 3)";
    }
    int64_t extent = 1;
    for (int i = 0; wrong == nullptr && i < view_.ndim; i++) {
      if (view_.shape[i] == 0) extent = 0;
      if (view_.strides[i] < 0 || view_.strides[i] > kMaxStride)
        wrong = "memory: expected no strides below 0";
      // Never more than the array's memory, so it fits.
      if (wrong == nullptr && extent > 0) extent += (view_.shape[i] - 1) * view_.strides[i];
    }
    if (wrong != nullptr) {
      PyBuffer_Release(&view_);
      throw py::value_error(wrong);
    }
    memory_.file = file;
    memory_.data = static_cast<const uint8_t*>(view_.buf);
    memory_.nbytes = static_cast<size_t>(extent);
    memory_.packed = view_.ndim == 1;
    memory_.layout = PixelLayout{};
    if (!memory_.packed) memory_.layout = {view_.strides[1], view_.strides[2], view_.strides[3]};
  }
  PyMemory(PyMemory&& other) noexcept : view_(other.view_), memory_(other.memory_) {
    other.view_.obj = nullptr;
  }
  PyMemory& operator=(PyMemory&&) = delete;
  PyMemory(const PyMemory&) = delete;
  ~PyMemory() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }

  const MappedArray& memory() const { return memory_; }

 private:
  // 65,535 times this is far below 2^63.
  static constexpr py::ssize_t kMaxStride = py::ssize_t{1} << 44;

  Py_buffer view_;
  MappedArray memory_;
};

// fastload._native._core.Files
class PyFiles {
 public:
  PyFiles(py::bytes paths, const py::object& ends, const py::object& mapped,
          const std::shared_ptr<Arena>& arena, const py::dict& memory, const py::object& stamps)
      : paths_(std::move(paths)),
        ends_(ends, "ends", 'i', 8, false),
        mapped_(mapped, "mapped", 'u', 1, false),
        stamps_(stamps.is_none() ? Buffer() : Buffer(stamps, "stamps", 'i', 8, false)) {
    char* text = nullptr;
    py::ssize_t text_nbytes = 0;
    if (PyBytes_AsStringAndSize(paths_.ptr(), &text, &text_nbytes) != 0) throw py::error_already_set();
    const py::ssize_t count = ends_.length();
    ends_.expect_shape("ends", count);
    mapped_.expect_shape("mapped", count);
    if (!stamps.is_none()) stamps_.expect_shape("stamps", count, 3);
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
    std::vector<MappedArray> memories;
    for (const auto& [number, array] : memory) {
      const int64_t file = number.cast<int64_t>();
      if (file < 0 || file >= count || mapped_.data<uint8_t>()[file] == 0) {
        throw py::value_error("memory: expected numbers of mapped files, got " + std::to_string(file));
      }
      memories_.emplace_back(file, array);
      memories.push_back(memories_.back().memory());
    }
    // Jobs share the core's object; the arrays it borrows live as long as this object.
    core_ = std::make_shared<Files>(text, static_cast<size_t>(text_nbytes), ends_.data<int64_t>(),
                                    mapped_.data<uint8_t>(), static_cast<size_t>(count), arena, memories,
                                    stamps.is_none() ? nullptr : stamps_.data<int64_t>());
  }

  const std::shared_ptr<Files>& core() const {
    if (!core_) throw py::value_error("files: expected open files, got closed ones");
    return core_;
  }
  void close() { core_.reset(); }
  py::ssize_t length() const { return ends_.length(); }

 private:
  py::bytes paths_;
  Buffer ends_, mapped_, stamps_;
  std::vector<PyMemory> memories_;
  std::shared_ptr<Files> core_;
};

void readahead(const PyFiles& files, const py::object& file, const py::object& offset,
               const py::object& nbytes) {
  const std::shared_ptr<Files> core = files.core();
  const SpanArrays spans(file, offset, nbytes);
  std::vector<FileRange> ranges(static_cast<size_t>(spans.count()));
  for (size_t i = 0; i < ranges.size(); i++) ranges[i] = {spans.file(i), spans.offset(i), spans.nbytes(i)};
  WithoutGil released;
  core->readahead(&ranges);
}

void find_turned(const PyFiles& files, const py::object& file, const py::object& offset,
                 const py::object& nbytes, const py::object& out) {
  constexpr size_t kBeginning = 1 << 16;  // of a file that is not mapped; headers mostly fit
  const std::shared_ptr<Files> core = files.core();
  const SpanArrays spans(file, offset, nbytes);
  const size_t n = static_cast<size_t>(spans.count());
  const Buffer out_array = written_array(out, "out", 'u', 1, spans.count());
  for (size_t i = 0; i < n; i++) {
    require(spans.file(i) >= 0 && static_cast<size_t>(spans.file(i)) < core->count(), "file", i,
            "an index of files");
  }
  WithoutGil released;
  Scratch scratch;
  for (size_t i = 0; i < n; i++) {
    bool may_be = true;
    for (const size_t limit : {kBeginning, SIZE_MAX}) {
      Span span;
      int error = 0;
      if (core->read(spans.file(i), spans.offset(i), spans.nbytes(i), limit, &scratch, &span, &error) !=
          Status::kOk) {
        break;
      }
      may_be = may_be_turned(span.data, span.nbytes);
      if (!may_be || span.nbytes < limit) break;
    }
    out_array.data<uint8_t>()[i] = may_be;
  }
}

}  // namespace

// fastload._native._core.SigbusGuard
class PySigbusGuard {
 public:
  explicit PySigbusGuard(const py::buffer& map)
      : info_(map.request()), guard_(info_.ptr, static_cast<size_t>(info_.size * info_.itemsize)) {}

  int64_t first_missing() const {
    const size_t at = guard_.first_missing();
    return at == SIZE_MAX ? -1 : static_cast<int64_t>(at);
  }

 private:
  py::buffer_info info_;  // before the guard, so that it is destroyed after it
  SigbusGuard guard_;
};

std::shared_ptr<Files> core_of(const py::object& files) {
  if (!py::isinstance<PyFiles>(files)) throw py::type_error("files: expected fastload._native._core.Files");
  return files.cast<const PyFiles&>().core();
}

void bind_files(py::module_& m) {
  using namespace pybind11::literals;
  py::class_<PyFiles>(m, "Files", "Files of a store; see _core.pyi.")
      .def(py::init<py::bytes, const py::object&, const py::object&, const std::shared_ptr<Arena>&,
                    const py::dict&, const py::object&>(),
           "paths"_a, "ends"_a, "mapped"_a, "arena"_a = py::none(), "memory"_a = py::dict(),
           "stamps"_a = py::none())
      .def("close", &PyFiles::close, "Close the maps, once the jobs that read them are done.")
      .def("may_be_turned", &find_turned, "file"_a, "offset"_a, "nbytes"_a, "out"_a,
           "Which images may have an EXIF or XMP orientation; see _core.pyi.")
      .def("readahead", &readahead, "file"_a, "offset"_a, "nbytes"_a,
           "Ask the system to read these spans into the page cache; see _core.pyi.")
      .def("__len__", &PyFiles::length);
  py::class_<PySigbusGuard>(m, "SigbusGuard", "Guards a mapped file against missing pages; see _core.pyi.")
      .def(py::init<const py::buffer&>(), "map"_a)
      .def_property_readonly("first_missing", &PySigbusGuard::first_missing);
}

}  // namespace fastload
