// Damaged and made-up PNG files, and other damaged files, for fuzz_png.cpp and mutate.cpp.
#pragma once

#include <libdeflate.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "mutations.h"

inline void append(Bytes* to, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) to->push_back(static_cast<uint8_t>(value >> shift));
}

inline void append_chunk(Bytes* to, const char* type, const Bytes& data) {
  append(to, static_cast<uint32_t>(data.size()));
  const size_t from = to->size();
  to->insert(to->end(), type, type + 4);
  to->insert(to->end(), data.begin(), data.end());
  append(to, libdeflate_crc32(0, to->data() + from, to->size() - from));
}

// Bytes that any PNG of this size inflates to, or nearly.
inline Bytes random_rows(int width, int height, int bits, bool interlaced) {
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

inline Bytes made_up(libdeflate_compressor* compressor) {
  const int colours[] = {0, 2, 3, 4, 6}, depths[] = {1, 2, 4, 8, 16}, channels[] = {1, 0, 3, 1, 2, 0, 4};
  int colour = colours[below(5)], depth = depths[below(5)];
  // Most have one of the format's combinations of the two.
  const auto exists = [](int of_colour, int bits) {
    return of_colour == 0 || (of_colour == 3 ? bits <= 8 : bits >= 8);
  };
  while (below(20) != 0 && !exists(colour, depth)) {
    colour = colours[below(5)];
    depth = depths[below(5)];
  }
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

// Gives every whole chunk of a PNG its right checksum; leaves other files alone.
inline void mend(Bytes* png) {
  if (png->empty() || png->front() != 0x89) return;
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

// What the files are made of, and the next one: made up, or one of the originals with damage.
class Corpus {
 public:
  explicit Corpus(std::vector<Bytes> originals) : originals_(std::move(originals)) {
    for (const int level : {0, 1, 6}) compressors_.push_back(libdeflate_alloc_compressor(level));
  }
  ~Corpus() {
    for (libdeflate_compressor* each : compressors_) libdeflate_free_compressor(each);
  }
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  Bytes next() {
    const bool make = below(2) == 0;
    Bytes bytes = make ? made_up(compressors_[below(compressors_.size())]) : any();
    const size_t times = make ? below(2) : 1 + below(3);
    for (size_t n = times; n-- > 0;) damage(&bytes, 0, any());
    if (below(4) != 0) mend(&bytes);
    return bytes;
  }

 private:
  const Bytes& any() const { return originals_[below(originals_.size())]; }

  const std::vector<Bytes> originals_;
  std::vector<libdeflate_compressor*> compressors_;
};

// The files at these paths. Empty: one of them is empty or cannot be read.
inline std::vector<Bytes> read_files(char** paths, int count) {
  std::vector<Bytes> files;
  for (int i = 0; i < count; i++) {
    std::ifstream file(paths[i], std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (files.back().empty()) return {};
  }
  return files;
}
