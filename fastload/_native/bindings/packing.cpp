// gather and start_writeback of fastload._native._core, for packing.
#include <fcntl.h>

#include <memory>

#include "batch/gather.h"
#include "bindings/module.h"

namespace fastload {
namespace {

size_t gather_files(const py::object& files, const py::object& file, const py::object& memory,
                    const py::object& offset, const py::object& nbytes, const py::object& crc,
                    const py::object& size, const py::object& status, const py::object& detail) {
  const std::shared_ptr<Files> core = core_of(files);
  const Buffer numbers = read_vector(file, "file", 'i', 4);
  const py::ssize_t n = numbers.length();
  const Buffer room(memory, "memory", 'u', 1, true);
  if (room.ndim() != 1) throw py::value_error("memory: expected one dimension");
  const Buffer offsets = written_array(offset, "offset", 'i', 8, n);
  const Buffer lengths = written_array(nbytes, "nbytes", 'i', 8, n);
  const Buffer crcs = written_array(crc, "crc32c", 'u', 4, n);
  const Buffer sizes = written_array(size, "size", 'i', 4, n, 2);
  const Buffer statuses = written_array(status, "status", 'i', 4, n);
  const Buffer details = written_array(detail, "detail", 'i', 4, n);
  const Gathered found{offsets.data<int64_t>(), lengths.data<int64_t>(),  crcs.data<uint32_t>(),
                       sizes.data<int32_t>(),   statuses.data<int32_t>(), details.data<int32_t>()};
  const WithoutGil released;
  return gather(*core, numbers.data<int32_t>(), static_cast<size_t>(n), room.data<uint8_t>(),
                static_cast<size_t>(room.nbytes()), found);
}

// Only advice: fsync writes what was not started here.
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
        "Ask the system to start writing a part of a file to the disk; see _core.pyi.");
}

}  // namespace fastload
