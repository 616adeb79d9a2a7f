// find_features, feature_names, feature_numbers, find_datums and tar_members of fastload._native._core
// (scan/scan.h).
#include "scan/scan.h"
#include "bindings/module.h"

namespace fastload {
namespace {

int64_t features(const py::object& data, const py::object& offset, const py::object& nbytes,
                 const py::list& wanted, const py::object& kind, const py::object& count,
                 const py::object& where, const py::object& length, const py::object& first) {
  const Bytes bytes(data);
  std::vector<std::string> names;
  for (const py::handle& name : wanted) names.push_back(py::cast<py::bytes>(name));
  const Buffer offsets = read_vector(offset, "offset", 'i', 8);
  const py::ssize_t n = offsets.length(), m = static_cast<py::ssize_t>(names.size());
  const Buffer lengths = read_array(nbytes, "nbytes", 'i', 8, n);
  const auto output = [n, m](const py::object& object, const char* name, char type, int width) {
    Buffer buffer(object, name, type, width, true);
    if (n > 0 && m > 0) buffer.expect_shape(name, n, m);
    return buffer;
  };
  const Buffer kinds = output(kind, "kind", 'u', 1);
  const Buffer counts = output(count, "count", 'i', 4);
  const Buffer places = output(where, "found_offset", 'i', 8);
  const Buffer sizes = output(length, "found_nbytes", 'i', 8);
  const Buffer firsts = output(first, "first", 'i', 8);
  const Features found{kinds.data<uint8_t>(), counts.data<int32_t>(), places.data<int64_t>(),
                       sizes.data<int64_t>(), firsts.data<int64_t>()};
  const WithoutGil released;
  return find_features(bytes.data(), bytes.size(), offsets.data<int64_t>(), lengths.data<int64_t>(),
                       static_cast<size_t>(n), names, found);
}

py::tuple names_of(const py::object& data, const py::object& offset, const py::object& nbytes) {
  const Bytes bytes(data);
  const Buffer offsets = read_vector(offset, "offset", 'i', 8);
  const py::ssize_t n = offsets.length();
  const Buffer lengths = read_array(nbytes, "nbytes", 'i', 8, n);
  std::vector<std::string> names;
  const int64_t broken = feature_names(bytes.data(), bytes.size(), offsets.data<int64_t>(),
                                       lengths.data<int64_t>(), static_cast<size_t>(n), &names);
  py::list found;
  for (const std::string& name : names) found.append(py::bytes(name));
  return py::make_tuple(broken, found);
}

bool numbers_of(const py::object& data, unsigned kind, const py::object& offset, const py::object& nbytes,
                const py::object& numbers) {
  const Bytes bytes(data);
  const Buffer offsets = read_vector(offset, "offset", 'i', 8);
  const py::ssize_t n = offsets.length();
  const Buffer lengths = read_array(nbytes, "nbytes", 'i', 8, n);
  const Buffer out(numbers, "numbers", 'i', 8, true);
  out.expect_shape("numbers", out.length());
  const WithoutGil released;
  return feature_numbers(bytes.data(), bytes.size(), kind, offsets.data<int64_t>(), lengths.data<int64_t>(),
                         static_cast<size_t>(n), out.data<int64_t>(), static_cast<size_t>(out.length()));
}

int64_t datums(const py::object& data, const py::object& offset, const py::object& nbytes,
               const py::object& table) {
  const Bytes bytes(data);
  const Buffer offsets = read_vector(offset, "offset", 'i', 8);
  const py::ssize_t n = offsets.length();
  const Buffer lengths = read_array(nbytes, "nbytes", 'i', 8, n);
  const Buffer found = written_array(table, "table", 'i', 8, n, kDatumColumns);
  const WithoutGil released;
  return find_datums(bytes.data(), bytes.size(), offsets.data<int64_t>(), lengths.data<int64_t>(),
                     static_cast<size_t>(n), found.data<int64_t>());
}

template <typename T>
py::bytes packed(const std::vector<T>& values) {
  return py::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

py::tuple members(const py::object& data) {
  const Bytes bytes(data);
  TarMembers found;
  {
    const WithoutGil released;
    found = tar_members(bytes.data(), bytes.size());
  }
  py::list extensions;
  for (const std::string& extension : found.extensions) extensions.append(py::bytes(extension));
  return py::make_tuple(found.at, found.why, py::bytes(found.name), py::bytes(found.names),
                        packed(found.ends), packed(found.stem), packed(found.extension), packed(found.first),
                        packed(found.offset), packed(found.nbytes), extensions);
}

}  // namespace

void bind_scans(py::module_& m) {
  using namespace pybind11::literals;
  m.def("find_features", &features, "data"_a, "offset"_a, "nbytes"_a, "names"_a, "kind"_a, "count"_a,
        "found_offset"_a, "found_nbytes"_a, "first"_a,
        "Where named features of tf.train.Example are; see _core.pyi.");
  m.def("feature_names", &names_of, "data"_a, "offset"_a, "nbytes"_a,
        "The names of the features of tf.train.Example; see _core.pyi.");
  m.def("feature_numbers", &numbers_of, "data"_a, "kind"_a, "offset"_a, "nbytes"_a, "numbers"_a,
        "The numbers of lists of tf.train.Example; see _core.pyi.");
  m.def("find_datums", &datums, "data"_a, "offset"_a, "nbytes"_a, "table"_a,
        "Where the fields of Caffe's Datum are; see _core.pyi.");
  m.def("tar_members", &members, "data"_a, "The members of a tar archive; see _core.pyi.");
}

}  // namespace fastload
