// The Python side of io/gather.h, and what writers ask of the system.
#include <fcntl.h>

#include <memory>

#include "bindings/module.h"
#include "io/gather.h"

namespace fastload {
namespace {

size_t gather_files(const py::object& files, const py::object& file, const py::object& memory,
                    const py::object& offset, const py::object& nbytes, const py::object& crc,
                    const py::object& size, const py::object& status, const py::object& detail) {
  const std::shared_ptr<Files> core = core_of(files);
  const Buffer numbers(file, "file", 'i', 4, false);
  const py::ssize_t n = numbers.length();
  numbers.expect_shape("file", n);
  const Buffer room(memory, "memory", 'u', 1, true);
  if (room.ndim() != 1) throw py::value_error("memory: expected one dimension");
  const Buffer offsets = write_array(offset, "offset", n, 0, 8);
  const Buffer lengths = write_array(nbytes, "nbytes", n, 0, 8);
  const Buffer crcs(crc, "crc32c", 'u', 4, true);
  crcs.expect_shape("crc32c", n);
  const Buffer sizes = write_array(size, "size", n, 2);
  const Buffer statuses = write_array(status, "status", n);
  const Buffer details = write_array(detail, "detail", n);
  const Gathered found{offsets.data<int64_t>(), lengths.data<int64_t>(),  crcs.data<uint32_t>(),
                       sizes.data<int32_t>(),   statuses.data<int32_t>(), details.data<int32_t>()};
  const WithoutGil released;
  return gather(*core, numbers.data<int32_t>(), static_cast<size_t>(n), room.data<uint8_t>(),
                static_cast<size_t>(room.nbytes()), found);
}

// Advice: what cannot be begun early is written by fsync.
void start_writeback(int descriptor, int64_t offset, int64_t nbytes) {
#ifdef SYNC_FILE_RANGE_WRITE
  const WithoutGil released;
  sync_file_range(descriptor, offset, nbytes, SYNC_FILE_RANGE_WRITE);
#else
  (void)descriptor, (void)offset, (void)nbytes;
#endif
}

}  // namespace

void bind_packing(py::module_& m) {
  using namespace pybind11::literals;
  m.def("gather", &gather_files, "files"_a, "file"_a, "memory"_a, "offset"_a, "nbytes"_a, "crc32c"_a,
        "size"_a, "status"_a, "detail"_a, "Read whole image files into one array; see _core.pyi.");
  m.def("start_writeback", &start_writeback, "descriptor"_a, "offset"_a, "nbytes"_a,
        "Ask the system to begin writing a part of a file to the disk; see _core.pyi.");
}

}  // namespace fastload
