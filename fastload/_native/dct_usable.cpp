// Whether the linked libjpeg lets its entropy decoder be replaced: found out by doing it once.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "dct.h"
#include "dct_libjpeg.h"

namespace fastload {
namespace {

// Wide and high enough for two MCU rows to be skipped, for several column blocks and for dummy blocks.
constexpr int kWidth = 203, kHeight = 91;

struct Compressor {
  jpeg_compress_struct cinfo;
  DctErrors errors;
  DctOutput out;
  Compressor() {
    std::memset(&cinfo, 0, sizeof(cinfo));
    errors.install(reinterpret_cast<jpeg_common_struct*>(&cinfo));
  }
  ~Compressor() { jpeg_destroy_compress(&cinfo); }
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;
};

struct Decompressor {
  jpeg_decompress_struct cinfo;
  DctErrors errors;
  Decompressor() {
    std::memset(&cinfo, 0, sizeof(cinfo));
    errors.install(reinterpret_cast<jpeg_common_struct*>(&cinfo));
  }
  ~Decompressor() { jpeg_destroy_decompress(&cinfo); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;
};

// A gradient with texture, in 4:2:0. Note [setjmp] (dct_libjpeg.h) holds for this and the next.
bool compress(Compressor* compressor) {
  jpeg_compress_struct* cinfo = &compressor->cinfo;
  if (setjmp(compressor->errors.jump)) return false;
  jpeg_create_compress(cinfo);
  compressor->out.install(cinfo);
  cinfo->image_width = kWidth;
  cinfo->image_height = kHeight;
  cinfo->input_components = 3;
  cinfo->in_color_space = JCS_RGB;
  jpeg_set_defaults(cinfo);
  jpeg_set_quality(cinfo, 95, TRUE);
  jpeg_start_compress(cinfo, TRUE);
  unsigned char row[3 * kWidth];
  for (int y = 0; y < kHeight; y++) {
    for (int x = 0; x < 3 * kWidth; x++)
      row[x] = static_cast<unsigned char>(x / 4 + y + (x * 37 ^ y * 101) % 64);
    JSAMPROW rows[] = {row};
    jpeg_write_scanlines(cinfo, rows, 1);
  }
  jpeg_finish_compress(cinfo);
  return true;
}

// Decodes columns [x0, x1) from row y0 on; `source` (may be null) takes the entropy decoder's place.
// `pixels` has room for kHeight rows of kWidth RGB pixels.
bool decode(Decompressor* decompressor, const uint8_t* jpeg, size_t nbytes, DctSource* source, int x0, int x1,
            int y0, uint8_t* pixels) {
  jpeg_decompress_struct* cinfo = &decompressor->cinfo;
  if (setjmp(decompressor->errors.jump)) return false;
  jpeg_create_decompress(cinfo);
  jpeg_mem_src(cinfo, const_cast<unsigned char*>(jpeg), static_cast<unsigned long>(nbytes));
  jpeg_read_header(cinfo, TRUE);
  cinfo->out_color_space = JCS_RGB;
  jpeg_start_decompress(cinfo);
  JDIMENSION x = static_cast<JDIMENSION>(x0), width = static_cast<JDIMENSION>(x1 - x0);
  jpeg_crop_scanline(cinfo, &x, &width);
  if (source && !source->attach(cinfo, static_cast<int>(x), static_cast<int>(x + width))) return false;
  jpeg_skip_scanlines(cinfo, static_cast<JDIMENSION>(y0));
  while (cinfo->output_scanline < cinfo->output_height) {
    JSAMPROW rows[] = {pixels + cinfo->output_scanline * 3 * kWidth};
    if (jpeg_read_scanlines(cinfo, rows, 1) != 1) return false;
  }
  return !source || !source->corrupt();
}

bool same_both_ways() {
  std::string why;
  std::vector<uint8_t> record;
  Compressor compressor;
  if (!compress(&compressor)) return false;
  if (!dct_encode(compressor.out.bytes, compressor.out.nbytes, &record, &why)) return false;
  const int windows[][3] = {{0, kWidth, 0}, {85, 150, 50}};
  for (const auto& window : windows) {
    DctSource source;
    const uint8_t* header;
    size_t header_nbytes;
    int width, height;
    if (!source.open(record.data(), record.size(), &header, &header_nbytes, &width, &height)) return false;
    std::vector<uint8_t> expected(3 * kWidth * kHeight), got(3 * kWidth * kHeight);
    Decompressor plain, hooked;
    if (!decode(&plain, compressor.out.bytes, compressor.out.nbytes, nullptr, window[0], window[1], window[2],
                expected.data()))
      return false;
    if (!decode(&hooked, header, header_nbytes, &source, window[0], window[1], window[2], got.data()))
      return false;
    if (expected != got) return false;
  }
  return true;
}

}  // namespace

bool DctSource::usable() {
  static const bool kUsable = !std::getenv("FASTLOAD_NO_DCT_HOOK") && same_both_ways();
  return kUsable;
}

}  // namespace fastload
