// Self-tests of the linked libjpeg, run once per process: whether its entropy decoder can be replaced, and
// whether it converts coefficients to the same pixels as our code.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "dct/record.h"
#include "jpeg/frame_header.h"
#include "jpeg/libjpeg.h"
#include "jpeg/planes.h"

namespace fastload {
namespace {

struct TestImage {
  int width, height, components;
  int h, v;  // sampling of luma over chroma
};

// Wide and high enough to skip two MCU rows, for several column blocks and for padding blocks.
constexpr TestImage kLarge = {203, 91, 3, 2, 2};
// All kinds that are decoded without libjpeg, with all kinds of edges.
constexpr TestImage kSmall[] = {
    {61, 39, 3, 2, 2}, {45, 21, 3, 2, 1}, {21, 45, 3, 1, 2}, {29, 21, 3, 1, 1}, {29, 21, 1, 1, 1}};

struct TestCompressor {
  jpeg_compress_struct cinfo;
  LibjpegErrors errors;
  LibjpegOutput out;
  TestCompressor() {
    std::memset(&cinfo, 0, sizeof(cinfo));
    errors.install(reinterpret_cast<jpeg_common_struct*>(&cinfo));
  }
  ~TestCompressor() { jpeg_destroy_compress(&cinfo); }
  TestCompressor(const TestCompressor&) = delete;
  TestCompressor& operator=(const TestCompressor&) = delete;
};

struct TestDecompressor {
  jpeg_decompress_struct cinfo;
  LibjpegErrors errors;
  TestDecompressor() {
    std::memset(&cinfo, 0, sizeof(cinfo));
    errors.install(reinterpret_cast<jpeg_common_struct*>(&cinfo));
  }
  ~TestDecompressor() { jpeg_destroy_decompress(&cinfo); }
  TestDecompressor(const TestDecompressor&) = delete;
  TestDecompressor& operator=(const TestDecompressor&) = delete;
};

// Compresses a gradient with texture. Note [setjmp] (jpeg/libjpeg.h) applies to this function and the next.
bool compress(TestCompressor* compressor, const TestImage& picture) {
  jpeg_compress_struct* cinfo = &compressor->cinfo;
  if (setjmp(compressor->errors.jump)) return false;
  jpeg_create_compress(cinfo);
  compressor->out.install(cinfo);
  cinfo->image_width = static_cast<JDIMENSION>(picture.width);
  cinfo->image_height = static_cast<JDIMENSION>(picture.height);
  cinfo->input_components = picture.components;
  cinfo->in_color_space = picture.components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(cinfo);
  cinfo->comp_info[0].h_samp_factor = picture.h;
  cinfo->comp_info[0].v_samp_factor = picture.v;
  jpeg_set_quality(cinfo, 95, TRUE);
  jpeg_start_compress(cinfo, TRUE);
  unsigned char row[3 * kLarge.width];
  for (int y = 0; y < picture.height; y++) {
    for (int x = 0; x < picture.components * picture.width; x++)
      row[x] = static_cast<unsigned char>(x / 4 + y + (x * 37 ^ y * 101) % 64);
    JSAMPROW rows[] = {row};
    jpeg_write_scanlines(cinfo, rows, 1);
  }
  jpeg_finish_compress(cinfo);
  return true;
}

// Decodes columns [x0, x1) from row y0 on; `source` (may be null) replaces the entropy decoder. `pixels` has
// room for all RGB pixels.
bool decode(TestDecompressor* decompressor, const uint8_t* jpeg, size_t nbytes, DctSource* source, int x0,
            int x1, int y0, uint8_t* pixels) {
  jpeg_decompress_struct* cinfo = &decompressor->cinfo;
  if (setjmp(decompressor->errors.jump)) return false;
  jpeg_create_decompress(cinfo);
  jpeg_mem_src(cinfo, const_cast<unsigned char*>(jpeg), static_cast<unsigned long>(nbytes));
  jpeg_read_header(cinfo, TRUE);
  cinfo->out_color_space = JCS_RGB;
  jpeg_start_decompress(cinfo);
  JDIMENSION x = static_cast<JDIMENSION>(x0), width = static_cast<JDIMENSION>(x1 - x0);
  if (width < cinfo->image_width) jpeg_crop_scanline(cinfo, &x, &width);
  if (source && !source->attach(cinfo, static_cast<int>(x), static_cast<int>(x + width))) return false;
  if (y0 > 0) jpeg_skip_scanlines(cinfo, static_cast<JDIMENSION>(y0));
  while (cinfo->output_scanline < cinfo->output_height) {
    JSAMPROW rows[] = {pixels + cinfo->output_scanline * 3 * cinfo->image_width};
    if (jpeg_read_scanlines(cinfo, rows, 1) != 1) return false;
  }
  return !source || !source->corrupt();
}

bool same_with_hook() {
  std::string why;
  std::vector<uint8_t> record;
  TestCompressor compressor;
  if (!compress(&compressor, kLarge)) return false;
  if (!dct_encode(compressor.out.bytes, compressor.out.nbytes, DctOptions(), &record, &why)) return false;
  const int windows[][3] = {{0, kLarge.width, 0}, {85, 150, 50}};
  for (const auto& window : windows) {
    DctSource source;
    if (!source.open(record.data(), record.size())) return false;
    size_t header_nbytes;
    const uint8_t* header = source.jpeg_header(&header_nbytes);
    std::vector<uint8_t> expected(3 * kLarge.width * kLarge.height), got(expected.size());
    TestDecompressor plain, hooked;
    if (!decode(&plain, compressor.out.bytes, compressor.out.nbytes, nullptr, window[0], window[1], window[2],
                expected.data()))
      return false;
    if (!decode(&hooked, header, header_nbytes, &source, window[0], window[1], window[2], got.data()))
      return false;
    if (expected != got) return false;
  }
  return true;
}

bool same_pixels(const TestImage& picture) {
  std::string why;
  std::vector<uint8_t> record;
  TestCompressor compressor;
  if (!compress(&compressor, picture)) return false;
  if (!dct_encode(compressor.out.bytes, compressor.out.nbytes, DctOptions(), &record, &why)) return false;
  const int width = picture.width, height = picture.height;
  std::vector<uint8_t> expected(static_cast<size_t>(3 * width * height)), got(expected.size());
  TestDecompressor plain;
  if (!decode(&plain, compressor.out.bytes, compressor.out.nbytes, nullptr, 0, width, 0, expected.data()))
    return false;
  DctSource source;
  if (!source.open(record.data(), record.size()) || !source.frame_header()) return false;
  Placement placement{};
  placement.resize.box_w = placement.resize.resized_w = placement.resize.out_w = width;
  placement.resize.box_h = placement.resize.resized_h = placement.resize.out_h = height;
  placement.target.data = got.data();
  placement.target.row_stride = 3 * width;
  placement.target.pixel_stride = 3;
  placement.target.channel_stride = 1;
  PlaneDecoder planes;
  RowBuffer rows;
  Resampler resampler;
  return begin_placement(placement, width, height, &resampler) == Status::kOk &&
         planes.decode(*source.frame_header(), &source, placement, &rows, &resampler) == Status::kOk &&
         expected == got;
}

// Tests turn it off to compare both ways.
bool enabled() {
  return std::getenv("FASTLOAD_NO_DCT_HOOK") == nullptr;
}

// A test that runs once. Its result is no static variable of a function: a thread that initialises one holds
// a lock, and a process that forks meanwhile leaves it locked in the child for ever. Threads that come at the
// same time each run the test.
class SelfTest {
 public:
  constexpr explicit SelfTest(bool (*run)()) : run_(run) {}
  bool passed() {
    int known = known_.load(std::memory_order_relaxed);
    if (known == kUnknown) known_.store(known = run_(), std::memory_order_relaxed);
    return known != 0;
  }

 private:
  static constexpr int kUnknown = -1;
  bool (*const run_)();
  std::atomic<int> known_{kUnknown};
};

SelfTest hook_test([] { return enabled() && same_with_hook(); });
SelfTest planes_test([] {
  return enabled() && std::all_of(std::begin(kSmall), std::end(kSmall), same_pixels);
});

}  // namespace

bool DctSource::usable() {
  return hook_test.passed();
}

bool PlaneDecoder::usable() {
  return available() && planes_test.passed();
}

}  // namespace fastload
