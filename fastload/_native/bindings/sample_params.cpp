// Crop stages, pixel operations and erased rectangles from the arrays that Python drew; and `pixels`.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "bindings/module.h"
#include "pixels/sample_params.h"

namespace fastload {

namespace {

// Whether a side of one of the sample's images exceeds kMaxSide. `frames`: `count` rows of 11.
bool is_large(const int32_t* first_size, const int32_t* frames, py::ssize_t count) {
  int32_t most = std::max(first_size[0], first_size[1]);
  for (const int32_t* f = frames; f < frames + 11 * count; f += 11)
    most = std::max({most, f[2], f[3], f[4], f[5], f[9], f[10]});
  return most > kMaxSide;
}

py::tuple as_tuple(const py::object& object, const char* name, size_t items) {
  if (!py::isinstance<py::tuple>(object) || py::len(object) != items) {
    throw py::type_error(std::string(name) + ": expected a tuple of " + std::to_string(items) + " arrays");
  }
  return py::reinterpret_borrow<py::tuple>(object);
}

void check_frame(const CropStage& f, size_t i, int width, int height) {
  require(f.box_x >= 0 && f.box_y >= 0 && f.box_w >= 1 && f.box_h >= 1 && f.box_w <= width &&
              f.box_h <= height && f.box_x <= width - f.box_w && f.box_y <= height - f.box_h,
          "frames", i, "a box inside the current image");
  require(is_side(f.resized_w) && is_side(f.resized_h) && is_side(f.out_w) && is_side(f.out_h), "frames", i,
          "sides of 1 up to 65,535");
  require(is_coordinate(f.window_x) && is_coordinate(f.window_y), "frames", i,
          "coordinates within 2**24 of 0");
}

// Updates `width` and `height` from the operation's input to its result.
void check_operation(PixelOp op, const double* values, int count, size_t i, int* width, int* height) {
  const int code = static_cast<int>(op);
  require(code >= 0 && code < kPixelOps, "codes", i, "operations as numbered in pixels.h");
  const int used = pixel_op_values(op, values, count, *width, *height);
  require(used >= 0 && used <= count, "values", i, "values as pixels.h lists them for the operation");
  pixel_op_size(op, values, width, height);
}

}  // namespace

SampleParams make_sample_params(const py::object& stages, py::ssize_t n, int out_w, int out_h,
                                uint8_t* large) {
  SampleParams params;
  if (stages.is_none()) return params;
  const py::tuple parts = as_tuple(stages, "stages", 5);
  const Buffer settings(parts[4], "settings", 'i', 4, false);
  if (settings.ndim() != 2 || settings.extent(0) < 1 || settings.extent(1) != 5) {
    throw py::value_error("settings: expected shape (frames, 5) with at least one frame");
  }
  const Buffer size = read_array(parts[0], "first_size", 'i', 4, n, 2);
  const Buffer codes(parts[1], "codes", 'i', 4, false);
  const Buffer values(parts[2], "values", 'f', 8, false);
  const Buffer frames(parts[3], "frames", 'i', 4, false);
  const py::ssize_t count = settings.extent(0);
  const bool shaped = codes.ndim() == 2 && codes.extent(0) == n && values.ndim() == 3 &&
                      values.extent(0) == n && values.extent(1) == codes.extent(1) && frames.ndim() == 3 &&
                      frames.extent(0) == n && frames.extent(1) == count && frames.extent(2) == 11;
  if (!shaped || codes.extent(1) > 4096 || values.extent(2) > 4096) {
    throw py::value_error(
        "stages: expected codes (n, k), values (n, k, v) and frames (n, f, 11), k and v up to 4,096");
  }
  params.operations = static_cast<int>(codes.extent(1));
  params.width = static_cast<int>(values.extent(2));
  const size_t samples = static_cast<size_t>(n);
  int64_t operations = 0;
  for (py::ssize_t f = 0; f < count; f++) {
    const int32_t* row = settings.data<int32_t>() + 5 * f;
    const bool levels = std::all_of(row + 2, row + 5, [](int32_t v) { return v >= 0 && v <= 255; });
    if (row[0] < 0 || row[1] < 0 || row[1] >= kFilters || !levels) {
      throw py::value_error("settings: expected a number of operations, a filter and three levels");
    }
    operations += row[0];
    params.settings.push_back(
        {row[0],
         static_cast<Filter>(row[1]),
         {static_cast<uint8_t>(row[2]), static_cast<uint8_t>(row[3]), static_cast<uint8_t>(row[4])}});
  }
  if (operations != params.operations) throw py::value_error("settings: expected each operation once");
  params.first_size.assign(size.data<int32_t>(), size.data<int32_t>() + 2 * samples);
  params.values.assign(values.data<double>(),
                       values.data<double>() + samples * static_cast<size_t>(operations * params.width));
  const int32_t* code = codes.data<int32_t>();
  const double* value = params.values.data();
  const int32_t* f = frames.data<int32_t>();
  for (size_t i = 0; i < samples; i++) {
    int width = params.first_size[2 * i], height = params.first_size[2 * i + 1];
    large[i] = large[i] || is_large(&params.first_size[2 * i], f, count);
    if (large[i]) {  // Pillow decodes it
      params.codes.resize(params.codes.size() + static_cast<size_t>(operations), PixelOp::kNone);
      params.crops.resize(params.crops.size() + params.settings.size());
      code += operations;
      value += operations * params.width;
      f += 11 * count;
      continue;
    }
    require(is_side(width) && is_side(height), "first_size", i, "sides of 1 up to 65,535");
    for (const StageSettings& stage : params.settings) {
      for (int k = 0; k < stage.operations; k++, code++, value += params.width) {
        params.codes.push_back(static_cast<PixelOp>(*code));
        check_operation(params.codes.back(), value, params.width, i, &width, &height);
      }
      const CropStage frame{f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10]};
      f += 11;
      check_frame(frame, i, width, height);
      params.crops.push_back(frame);
      width = frame.out_w;
      height = frame.out_h;
    }
    require(width == out_w && height == out_h, "frames", i, "a last frame of out_w x out_h");
  }
  return params;
}

void set_value_resize(const py::object& values, const BatchOutput& output, SampleParams* params) {
  if (values.is_none()) return;
  const py::tuple parts = as_tuple(values, "values", 3);
  if (params->empty() || output.dtype != Dtype::kFloat32) {
    throw py::value_error("values: expected stages and float32 output");
  }
  const Buffer codes(parts[0], "codes", 'i', 4, false);
  const Buffer operands = read_array(parts[1], "operands", 'f', 4, codes.length(), 3);
  const int sums = parts[2].cast<int>();
  if (codes.ndim() != 1 || sums < 0 || sums >= resampling::kSums) {
    throw py::value_error("values: expected codes (k,), and sums as numbered in resample/values.h");
  }
  resampling::ValueResize& last = params->last;
  for (py::ssize_t k = 0; k < codes.length(); k++) {
    const int code = codes.data<int32_t>()[k];
    require(code >= 0 && code < resampling::kValueOperations, "codes", static_cast<size_t>(k),
            "operations as numbered in resample/values.h");
    const float* operand = operands.data<float>() + 3 * k;
    last.operations.push_back(
        {static_cast<resampling::ValueOperation::Kind>(code), {operand[0], operand[1], operand[2]}});
  }
  last.sums = static_cast<resampling::Sums>(sums);
  last.table.resize(3 * 256);
  std::memcpy(last.table.data(), output.lut.data(), output.lut.size());
}

Erasing make_erasing(const py::object& erase, py::ssize_t n, const BatchOutput& output) {
  Erasing erasing;
  if (erase.is_none()) return erasing;
  const py::tuple parts = as_tuple(erase, "erase", 4);
  const Buffer boxes(parts[0], "boxes", 'i', 4, false);
  const Buffer kinds(parts[2], "kinds", 'u', 1, false);
  const py::ssize_t count = kinds.length();
  if (kinds.ndim() != 1 || boxes.ndim() != 3 || boxes.extent(0) != n || boxes.extent(1) != count ||
      boxes.extent(2) != 4) {
    throw py::value_error("erase: expected boxes (n, e, 4) and kinds (e,)");
  }
  const Buffer keys = read_array(parts[1], "keys", 'u', 8, n, count);
  const size_t element = dtype_nbytes(output.dtype);
  size_t nbytes = 0;
  for (py::ssize_t e = 0; e < count; e++) {
    const uint8_t kind = kinds.data<uint8_t>()[e];
    if (kind > 2) throw py::value_error("erase: expected kinds from 0 to 2");
    erasing.fills.push_back({static_cast<Erasing::Kind>(kind), nbytes});
    nbytes += 3 * element * (kind == 1 ? kNoiseValues : 1);
    nbytes = (nbytes + 3) / 4 * 4;  // keeps the values of each fill aligned
  }
  const Buffer values = read_array(parts[3], "erase values", 'u', 1, static_cast<py::ssize_t>(nbytes));
  erasing.values.assign(values.data<uint8_t>(), values.data<uint8_t>() + nbytes);
  const size_t all = static_cast<size_t>(n) * static_cast<size_t>(count);
  erasing.keys.assign(keys.data<uint64_t>(), keys.data<uint64_t>() + all);
  for (size_t k = 0; k < all; k++) {
    const int32_t* b = boxes.data<int32_t>() + 4 * k;
    const EraseBox box{b[0], b[1], b[2], b[3]};
    require(box.x >= 0 && box.y >= 0 && box.w >= 0 && box.h >= 0 && box.w <= output.out_w &&
                box.h <= output.out_h && box.x <= output.out_w - box.w && box.y <= output.out_h - box.h,
            "erase", k / static_cast<size_t>(count), "a rectangle inside the result");
    erasing.boxes.push_back(box);
  }
  return erasing;
}

namespace {

// Applies operations to one image on the caller's thread: for the tests, and for images with a side that is
// too long for a batch.
void pixels(const py::object& image, const py::object& codes, const py::object& values) {
  const Buffer pixels(image, "image", 'u', 1, true);
  constexpr py::ssize_t kMostBytes = std::numeric_limits<int32_t>::max();
  if (pixels.ndim() != 3 || pixels.extent(2) != 3 || pixels.nbytes() == 0 || pixels.nbytes() > kMostBytes) {
    throw py::value_error("image: expected shape (h, w, 3) of 1 up to 2**31 - 1 bytes");
  }
  const int width = static_cast<int>(pixels.extent(1)), height = static_cast<int>(pixels.extent(0));
  const Buffer code_array(codes, "codes", 'i', 4, false);
  const Buffer value_array(values, "values", 'f', 8, false);
  if (code_array.ndim() != 1 || value_array.ndim() != 2 || value_array.length() != code_array.length()) {
    throw py::value_error("codes, values: expected shapes (k,) and (k, v)");
  }
  const int count = static_cast<int>(value_array.extent(1));
  int out_width = width, out_height = height;
  for (py::ssize_t k = 0; k < code_array.length(); k++) {
    check_operation(static_cast<PixelOp>(code_array.data<int32_t>()[k]),
                    value_array.data<double>() + k * count, count, 0, &out_width, &out_height);
  }
  if (out_width != width || out_height != height) {
    throw py::value_error("codes, values: expected operations that keep the image's size");
  }
  WithoutGil released;
  Canvas canvas;
  canvas.resize(width, height);
  uint8_t* data = pixels.data<uint8_t>();
  for (size_t i = 0; i < canvas.area(); i++) {
    for (int c = 0; c < 3; c++) canvas.plane(c)[i] = data[3 * i + static_cast<size_t>(c)];
  }
  for (py::ssize_t k = 0; k < code_array.length(); k++) {
    apply_pixel_op(static_cast<PixelOp>(code_array.data<int32_t>()[k]),
                   value_array.data<double>() + k * count, &canvas);
  }
  for (size_t i = 0; i < canvas.area(); i++) {
    for (int c = 0; c < 3; c++) data[3 * i + static_cast<size_t>(c)] = canvas.plane(c)[i];
  }
}

// Resizes the values of one image on the caller's thread: to find out how torch rounds sums, and for the
// tests.
void resize_values(const py::object& image, const py::object& table, const py::object& out, int sums) {
  const Buffer pixels(image, "image", 'u', 1, false), values(out, "out", 'f', 4, true);
  const auto fits = [](py::ssize_t side) { return side >= 1 && side <= kMaxSide; };
  if (pixels.ndim() != 3 || pixels.extent(2) != 3 || !fits(pixels.extent(0)) || !fits(pixels.extent(1)) ||
      values.ndim() != 3 || values.extent(0) != 3 || !fits(values.extent(1)) || !fits(values.extent(2))) {
    throw py::value_error("image, out: expected shapes (h, w, 3) and (3, h, w) of sides from 1 up to 65,535");
  }
  if (sums < 0 || sums >= resampling::kSums) throw py::value_error("sums: expected one of resample/values.h");
  const Buffer levels = read_array(table, "table", 'f', 4, 3, 256);
  const int width = static_cast<int>(pixels.extent(1)), height = static_cast<int>(pixels.extent(0));
  const int out_w = static_cast<int>(values.extent(2)), out_h = static_cast<int>(values.extent(1));
  WithoutGil released;
  resampling::ValueResize resize;
  resize.table.assign(levels.data<float>(), levels.data<float>() + 3 * 256);
  resize.sums = static_cast<resampling::Sums>(sums);
  Canvas canvas;
  canvas.resize(width, height);
  const uint8_t* data = pixels.data<uint8_t>();
  resampling::LevelBox planes[3];
  for (int c = 0; c < 3; c++) {
    for (size_t i = 0; i < canvas.area(); i++) canvas.plane(c)[i] = data[3 * i + static_cast<size_t>(c)];
    planes[c] = {canvas.plane(c), width, width, height};
  }
  Target target{};
  target.data = values.data<float>();
  target.row_stride = out_w;
  target.pixel_stride = 1;
  target.channel_stride = int64_t{out_w} * out_h;
  resampling::AlignedBytes memory;
  resampling::resize_values(
      resize, planes,
      Resize{width, height, out_w, out_h, 0, 0, out_w, out_h, Filter::kBilinear, PassOrder::kPillow12},
      target, &memory);
}

}  // namespace

void bind_pixels(py::module_& m) {
  using namespace pybind11::literals;
  m.attr("value_sums") = resampling::kSums;
  m.def("resize_values", &resize_values, "image"_a, "table"_a, "out"_a, "sums"_a,
        "Resize the values of one image; see _core.pyi.");
  m.def("pixels", &pixels, "image"_a, "codes"_a, "values"_a,
        "Apply operations to one image in place; see _core.pyi.");
}

}  // namespace fastload
