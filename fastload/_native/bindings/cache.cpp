// Arena, EntryTable and CacheFill of fastload._native._core: the memory of a cache, entry points into Huffman
// codes, and which samples of a batch are cached.
#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <pybind11/stl.h>

#include "batch/cache_fill.h"
#include "bindings/module.h"
#include "io/arena.h"
#include "jpeg/huffman_index.h"

namespace fastload {
namespace {

py::ssize_t find(const Arena& arena, const py::object& records, const py::object& offset,
                 const py::object& nbytes, const py::object& kind, const py::object& size,
                 const py::object& converted) {
  const Buffer record_array = read_vector(records, "records", 'i', 8);
  const py::ssize_t n = record_array.length();
  const Buffer offset_array = written_array(offset, "offset", 'i', 8, n);
  const Buffer nbytes_array = written_array(nbytes, "nbytes", 'i', 8, n);
  const Buffer kind_array = written_array(kind, "kind", 'u', 1, n);
  const Buffer size_array = written_array(size, "size", 'i', 4, n, 2);
  const Buffer converted_array = written_array(converted, "converted", 'u', 1, n);
  py::ssize_t found = 0;
  for (py::ssize_t i = 0; i < n; i++) {
    CachedRecord cached;
    const bool found_it = arena.find(record_array.data<int64_t>()[i], &cached);
    offset_array.data<int64_t>()[i] = found_it ? cached.offset : -1;
    if (!found_it) continue;
    found++;
    nbytes_array.data<int64_t>()[i] = cached.nbytes;
    kind_array.data<uint8_t>()[i] = static_cast<uint8_t>(cached.kind);
    size_array.data<int32_t>()[2 * i] = cached.width;
    size_array.data<int32_t>()[2 * i + 1] = cached.height;
    converted_array.data<uint8_t>()[i] = cached.converted;
  }
  return found;
}

bool put(Arena& arena, int64_t record, const py::object& data, int kind, int width, int height,
         bool converted) {
  if (kind < 0 || kind >= kKinds) {
    throw py::value_error("kind: expected 0 (encoded), 1 (raw), 2 (DCT) or 3 (turned)");
  }
  const Bytes bytes(data);
  WithoutGil released;
  return arena.claim(record) &&
         arena.put(record, bytes.data(), bytes.size(), static_cast<Kind>(kind), width, height, converted);
}

// For cached pixels: the box that is cut from the source, the size it is resized to, and the window of that.
void read_stage(const py::tuple& stage, py::ssize_t n, std::vector<CacheFillSample>* samples) {
  if (py::len(stage) != 4) throw py::value_error("stage: expected source, box, resized and window");
  const Buffer source = read_array(py::object(stage[0]), "source", 'i', 4, n, 2);
  const Buffer box = read_array(py::object(stage[1]), "box", 'i', 4, n, 4);
  const Buffer resized = read_array(py::object(stage[2]), "resized", 'i', 4, n, 2);
  const Buffer window = read_array(py::object(stage[3]), "window", 'i', 4, n, 4);
  for (size_t i = 0; i < samples->size(); i++) {
    CacheFillSample& s = (*samples)[i];
    if (!s.wanted) continue;
    const int32_t* at = source.data<int32_t>() + 2 * i;
    s.source_w = at[0], s.source_h = at[1];
    at = box.data<int32_t>() + 4 * i;
    s.box_x = at[0], s.box_y = at[1], s.box_w = at[2], s.box_h = at[3];
    at = resized.data<int32_t>() + 2 * i;
    s.resized_w = at[0], s.resized_h = at[1];
    at = window.data<int32_t>() + 4 * i;
    s.window_x = at[0], s.window_y = at[1], s.w = at[2], s.h = at[3];
    s.large = std::max({s.source_w, s.source_h, s.resized_w, s.resized_h, s.w, s.h}) > kMaxSide;
    if (s.large) continue;
    require(is_side(s.source_w) && is_side(s.source_h), "cache_fill", i, "a source of 1 up to 65,535 pixels");
    require(s.box_x >= 0 && s.box_y >= 0 && is_side(s.box_w) && is_side(s.box_h) &&
                s.box_x <= s.source_w - s.box_w && s.box_y <= s.source_h - s.box_h,
            "cache_fill", i, "a box inside the source");
    require(is_side(s.resized_w) && is_side(s.resized_h) && is_side(s.w) && is_side(s.h), "cache_fill", i,
            "sides of 1 up to 65,535");
    require(is_coordinate(s.window_x) && is_coordinate(s.window_y), "cache_fill", i,
            "window coordinates within 2**24 of 0");
  }
}

std::shared_ptr<CacheFill> make_cache_fill(const std::shared_ptr<Arena>& arena, int form,
                                           const py::object& records, const py::object& wanted,
                                           const py::object& stage, int filter, int order,
                                           const std::array<uint8_t, 3>& fill) {
  if (!arena) throw py::type_error("arena: expected an Arena, got None");
  if (form < 0 || form > 2) throw py::value_error("form: expected 0 (bytes), 1 (DCT) or 2 (pixels)");
  check_filter(filter);
  check_pass_order(order);
  if ((form == 2) == stage.is_none()) throw py::value_error("stage: expected with form 2, and only there");
  const Buffer record_array = read_vector(records, "records", 'i', 8);
  const py::ssize_t n = record_array.length();
  const Buffer wanted_array = read_array(wanted, "wanted", 'u', 1, n);
  auto cache_fill = std::make_shared<CacheFill>();
  cache_fill->arena = arena;
  cache_fill->form = static_cast<CacheForm>(form);
  cache_fill->filter = static_cast<Filter>(filter);
  cache_fill->order = static_cast<PassOrder>(order);
  for (size_t c = 0; c < 3; c++) cache_fill->fill[c] = fill[c];
  cache_fill->samples.resize(static_cast<size_t>(n));
  for (size_t i = 0; i < cache_fill->samples.size(); i++) {
    cache_fill->samples[i].record = record_array.data<int64_t>()[i];
    cache_fill->samples[i].wanted = wanted_array.data<uint8_t>()[i] != 0;
  }
  if (!stage.is_none()) read_stage(stage.cast<py::tuple>(), n, &cache_fill->samples);
  return cache_fill;
}

std::shared_ptr<EntryTable> make_entries(int64_t records, int64_t limit) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (records < 0 || records > kMost || limit < 0 || limit > kMost) {
    throw py::value_error("records, limit: expected values of 0 up to 2**40");
  }
  return std::make_shared<EntryTable>(records, static_cast<size_t>(limit));
}

}  // namespace

void bind_cache(py::module_& m) {
  using namespace pybind11::literals;
  py::class_<Arena, std::shared_ptr<Arena>>(m, "Arena", "Cached records in a memory file; see _core.pyi.")
      .def(py::init<int, bool>(), "fd"_a, py::kw_only(), "lock"_a)
      .def("find", &find, "records"_a, "offset"_a, "nbytes"_a, "kind"_a, "size"_a, "converted"_a)
      .def("put", &put, "record"_a, "data"_a, "kind"_a, "width"_a, "height"_a, "converted"_a)
      .def_property_readonly("full", &Arena::full)
      .def_property_readonly("used", &Arena::used)
      .def_property_readonly("count", &Arena::count)
      .def_property_readonly("locked", &Arena::locked);
  py::class_<EntryTable, std::shared_ptr<EntryTable>>(m, "EntryTable",
                                                      "Entry points into JPEGs; see _core.pyi.")
      .def(py::init(&make_entries), "records"_a, "limit"_a)
      .def_property_readonly("used", &EntryTable::used)
      .def_property_readonly("count", &EntryTable::count);
  py::class_<CacheFill, std::shared_ptr<CacheFill>>(m, "CacheFill",
                                                    "Which samples of a batch are added to an arena.")
      .def(py::init(&make_cache_fill), "arena"_a, "form"_a, "records"_a, "wanted"_a, "stage"_a = py::none(),
           py::kw_only(), "filter"_a = 0, "order"_a = 0, "fill"_a = std::array<uint8_t, 3>{0, 0, 0});
}

}  // namespace fastload
