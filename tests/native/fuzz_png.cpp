// Decodes damaged and made-up PNG and WebP files, each in memory of its exact size, under AddressSanitizer
// and UBSan. Built and run by test_fuzz.py:
//
//   fuzz_png SEED COUNT FILE...
//
// Fails if a file is decoded differently by a decoder that has decoded nothing before, or without SIMD.
#include <libdeflate.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "image/header.h"
#include "mutations.h"
#include "png/png.h"
#include "webp/webp.h"

namespace {

void append(Bytes* to, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) to->push_back(static_cast<uint8_t>(value >> shift));
}

void append_chunk(Bytes* to, const char* type, const Bytes& data) {
  append(to, static_cast<uint32_t>(data.size()));
  const size_t from = to->size();
  to->insert(to->end(), type, type + 4);
  to->insert(to->end(), data.begin(), data.end());
  append(to, libdeflate_crc32(0, to->data() + from, to->size() - from));
}

// Bytes that any PNG of this size inflates to, or nearly.
Bytes random_rows(int width, int height, int bits, bool interlaced) {
  Bytes rows;
  const int passes[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                            {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
  for (int pass = 0; pass < (interlaced ? 7 : 1); pass++) {
    const int x = interlaced ? passes[pass][0] : 0, y = interlaced ? passes[pass][1] : 0;
    const int dx = interlaced ? passes[pass][2] : 1, dy = interlaced ? passes[pass][3] : 1;
    const int w = (width - x + dx - 1) / dx, h = (height - y + dy - 1) / dy;
    if (w <= 0) continue;
    for (int row = 0; row < h; row++) {
      rows.push_back(static_cast<uint8_t>(below(300) ? below(5) : below(256)));
      const uint8_t level = static_cast<uint8_t>(generator());
      const bool noisy = below(2) == 0;
      for (int i = 0; i < (w * bits + 7) / 8; i++) {
        rows.push_back(noisy ? static_cast<uint8_t>(generator()) : level);
      }
    }
  }
  if (below(20) == 0) rows.resize(below(rows.size() + 1));
  if (below(20) == 0) rows.push_back(0);
  return rows;
}

Bytes made_up(libdeflate_compressor* compressor) {
  const int colours[] = {0, 2, 3, 4, 6}, depths[] = {1, 2, 4, 8, 16}, channels[] = {1, 0, 3, 1, 2, 0, 4};
  const int colour = colours[below(5)], depth = depths[below(5)];
  const int width = between(1, 70), height = between(1, 40);
  const bool interlaced = below(3) == 0;
  Bytes file{0x89, 'P', 'N', 'G', 13, 10, 26, 10}, header;
  append(&header, static_cast<uint32_t>(width));
  append(&header, static_cast<uint32_t>(height));
  for (const int field : {depth, colour, 0, 0, static_cast<int>(interlaced)}) {
    header.push_back(static_cast<uint8_t>(field));
  }
  append_chunk(&file, "IHDR", header);
  if (colour == 3 || below(9) == 0) {
    Bytes palette(3 * static_cast<size_t>(below(4) ? 256 : between(0, 257)));
    for (uint8_t& level : palette) level = static_cast<uint8_t>(generator());
    append_chunk(&file, "PLTE", palette);
  }
  if (below(4) == 0) append_chunk(&file, "tRNS", Bytes(below(260)));
  const Bytes rows = random_rows(width, height, channels[colour] * depth, interlaced);
  Bytes data(libdeflate_zlib_compress_bound(compressor, rows.size()));
  data.resize(libdeflate_zlib_compress(compressor, rows.data(), rows.size(), data.data(), data.size()));
  for (size_t at = 0; at < data.size();) {
    const size_t n = std::min(data.size() - at, below(2) ? data.size() : 1 + below(100));
    append_chunk(
        &file, "IDAT",
        Bytes(data.begin() + static_cast<ptrdiff_t>(at), data.begin() + static_cast<ptrdiff_t>(at + n)));
    at += n;
  }
  append_chunk(&file, "IEND", {});
  return file;
}

// Gives every whole chunk its right checksum.
void mend(Bytes* png) {
  for (size_t at = 8; at + 12 <= png->size();) {
    const size_t length = fastload::load_be<uint32_t>(png->data() + at);
    if (length > png->size() - at - 12) return;
    const uint32_t crc = libdeflate_crc32(0, png->data() + at + 4, length + 4);
    for (size_t i = 0; i < 4; i++) {
      (*png)[at + 8 + length + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
    }
    at += 12 + length;
  }
}

struct Decoders {
  fastload::PngDecoder png;
  fastload::WebpDecoder webp;
  fastload::Status decode(const fastload::Span& span, const fastload::Placement& placement) {
    if (fastload::is_webp(span.data, span.nbytes)) return webp.decode(span, placement, &rows, &resampler);
    return png.decode(span, placement, &rows, &resampler);
  }
  fastload::RowBuffer rows;
  fastload::Resampler resampler;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  generator.seed(std::strtoull(argv[1], nullptr, 10));
  const long count = std::strtol(argv[2], nullptr, 10);
  std::vector<Bytes> originals;
  for (int i = 3; i < argc; i++) {
    std::ifstream file(argv[i], std::ios::binary);
    originals.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (originals.back().empty()) return 2;
  }
  libdeflate_compressor* const compressor = libdeflate_alloc_compressor(1);
  Decoders decoders;
  long decoded = 0, levels = 0;
  for (long i = 0; i < count; i++) {
    const bool make = below(2) == 0;
    Bytes bytes = make ? made_up(compressor) : originals[below(originals.size())];
    const size_t times = make ? below(2) : 1 + below(3);
    for (size_t n = times; n-- > 0;) damage(&bytes, 0, originals[below(originals.size())]);
    if (fastload::is_png(bytes.data(), bytes.size()) && below(4) != 0) mend(&bytes);
    bytes.shrink_to_fit();  // so that the sanitizer sees reads past the end
    int width = 0, height = 0;
    if (fastload::probe_size(bytes.data(), bytes.size(), &width, &height) != fastload::Status::kOk) {
      width = height = 16;
    }
    Bytes out;
    const fastload::Placement placement =
        random_placement(std::min(width, 3000), std::min(height, 3000), &out);
    const fastload::Span span{bytes.data(), bytes.size(), bytes.size()};
    const fastload::Status status = decoders.decode(span, placement);
    decoded += status == fastload::Status::kOk;
    const auto fresh = std::make_unique<Decoders>();
    Bytes alone(out.size());
    fastload::Placement apart = placement;
    apart.target.data = alone.data();
    fastload::set_simd(below(2) ? "scalar" : "");
    const fastload::Status expected = fresh->decode(span, apart);
    fastload::set_simd("");
    if (status != expected || (status == fastload::Status::kOk && out != alone)) {
      std::printf("image %ld: status %d, alone %d\n", i, static_cast<int>(status),
                  static_cast<int>(expected));
      return 1;
    }
    Bytes indices;
    if (fastload::is_png(bytes.data(), bytes.size())) {
      levels += decoders.png.decode_levels(span, &indices, &width, &height) == fastload::Status::kOk;
    }
  }
  libdeflate_free_compressor(compressor);
  std::printf("%ld of %ld decoded; %ld with levels\n", decoded, count, levels);
  return 0;
}
