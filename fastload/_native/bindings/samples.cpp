// Binds the inverse DCT and the colour conversion by themselves, for the tests.
#include <vector>

#include "bindings/module.h"
#include "jpeg/idct.h"
#include "jpeg/ycc.h"
#include "resample/axis.h"

namespace fastload {
namespace {

// Bytes before and after a row that may be read, and after a row that may be written.
constexpr py::ssize_t kPadding = 64;

void make_samples(const py::object& blocks, const py::object& quant, const py::object& samples) {
  const Buffer numbers(blocks, "blocks", 'i', 2, false);
  const py::ssize_t count = numbers.length();
  numbers.expect_shape("blocks", count, 64);
  const Buffer factors = read_array(quant, "quant", 'u', 2, 64);
  const Buffer out(samples, "samples", 'u', 1, true);
  out.expect_shape("samples", 8, 8 * count);
  resampling::AlignedBytes storage[2];
  int16_t* const aligned = storage[0].room_for<int16_t>(static_cast<size_t>(64 * count));
  uint16_t* const aligned_quant = storage[1].room_for<uint16_t>(64);
  std::memcpy(aligned, numbers.data<int16_t>(), static_cast<size_t>(numbers.nbytes()));
  std::memcpy(aligned_quant, factors.data<uint16_t>(), sizeof(uint16_t) * 64);
  inverse_dct()(aligned, static_cast<int>(count), aligned_quant, out.data<uint8_t>(), 8 * count);
}

void make_pixels(int sampling, const py::object& luma, const py::object& chroma, bool far_below, int x0,
                 const py::object& rgb) {
  const Buffer luma_row(luma, "luma", 'u', 1, false), chroma_rows(chroma, "chroma", 'u', 1, false);
  const Buffer out(rgb, "rgb", 'u', 1, true);
  const py::ssize_t width = out.length();
  out.expect_shape("rgb", width, 3);
  const bool halved =
      sampling == static_cast<int>(Sampling::k2x1) || sampling == static_cast<int>(Sampling::k2x2);
  const py::ssize_t needed = x0 + width, needed_chroma = halved ? (needed + 1) / 2 : needed;
  if (sampling < 0 || sampling > static_cast<int>(Sampling::k2x2))
    throw py::value_error("sampling: expected a value of Sampling in ycc.h");
  if (x0 < 0 || luma_row.ndim() != 1 || luma_row.length() < needed + 2 * kPadding)
    throw py::value_error("luma: expected 64 bytes before and after the row");
  if (chroma_rows.ndim() != 2 || chroma_rows.length() != 4 ||
      chroma_rows.extent(1) < needed_chroma + 2 * kPadding)
    throw py::value_error("chroma: expected four rows with 64 bytes before and after");
  YccRow row{};
  row.luma = luma_row.data<uint8_t>() + kPadding;
  for (int k = 0; k < 2; k++) {
    row.near[k] = chroma_rows.data<uint8_t>() + k * chroma_rows.extent(1) + kPadding;
    row.far[k] = chroma_rows.data<uint8_t>() + (2 + k) * chroma_rows.extent(1) + kPadding;
  }
  row.far_below = far_below;
  std::vector<uint8_t> converted(static_cast<size_t>(3 * width + kPadding));
  ycc_to_rgb()(static_cast<Sampling>(sampling), row, x0, static_cast<int>(width), converted.data());
  std::memcpy(out.data<uint8_t>(), converted.data(), static_cast<size_t>(3 * width));
}

}  // namespace

void bind_samples(py::module_& m) {
  using namespace pybind11::literals;
  m.def("_inverse_dct", &make_samples, "blocks"_a, "quant"_a, "samples"_a, "For the tests; see _core.pyi.");
  m.def("_ycc_to_rgb", &make_pixels, "sampling"_a, "luma"_a, "chroma"_a, "far_below"_a, "x0"_a, "rgb"_a,
        "For the tests; see _core.pyi.");
}

}  // namespace fastload
