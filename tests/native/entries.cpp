// Decodes JPEGs repeatedly with their entry points (jpeg/huffman_index.h), and damages the files and the
// points in between, under AddressSanitizer and UBSan. Fails if a crop has another status or other pixels
// than without entry points. Built and run by test_fuzz.py:
//
//   entries SEED COUNT FILE...
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "image/header.h"
#include "jpeg/huffman_index.h"
#include "jpeg/jpeg.h"

namespace {

using Bytes = std::vector<uint8_t>;

std::mt19937_64 generator;

size_t below(size_t limit) {
  return limit == 0 ? 0 : generator() % limit;
}

// The file with a leading comment that makes it large enough for entry points.
Bytes lengthened(const Bytes& file) {
  constexpr size_t kComment = fastload::FileEntryPoints::kSmall;
  Bytes bytes(file.begin(), file.begin() + 2);
  for (const size_t byte : {size_t{0xFF}, size_t{0xFE}, kComment >> 8, kComment & 255})
    bytes.push_back(static_cast<uint8_t>(byte));
  bytes.resize(bytes.size() + kComment - 2);
  bytes.insert(bytes.end(), file.begin() + 2, file.end());
  return bytes;
}

// Damages bytes after the comment, and in one of eight cases anywhere.
void damage(Bytes* bytes) {
  const size_t from = below(8) ? fastload::FileEntryPoints::kSmall : 2;
  if (bytes->size() <= from) return;
  const size_t at = from + below(bytes->size() - from);
  switch (below(6)) {
    case 0:
    case 1:
      (*bytes)[at] ^= static_cast<uint8_t>(1u << below(8));
      break;
    case 2:
      (*bytes)[at] = below(2) ? 0xFF : 0;
      break;
    case 3:
      bytes->resize(at);
      break;
    case 4:
      bytes->insert(bytes->begin() + static_cast<ptrdiff_t>(at), static_cast<uint8_t>(generator()));
      break;
    default:
      bytes->erase(bytes->begin() + static_cast<ptrdiff_t>(at));
  }
}

void damage(const fastload::EntryList& known) {
  if (known.count == 0) return;
  auto* const bytes = reinterpret_cast<uint8_t*>(const_cast<fastload::EntryPoint*>(known.points));
  const size_t nbytes = static_cast<size_t>(known.count) * sizeof(fastload::EntryPoint);
  for (size_t n = 1 + below(4); n-- > 0;) bytes[below(nbytes)] = static_cast<uint8_t>(generator());
}

struct Crop {
  fastload::Status status;
  Bytes pixels;
};

Crop decode(fastload::JpegDecoder* jpeg, const Bytes& bytes, fastload::Placement placement,
            const fastload::EntryRef& entries) {
  static fastload::RowBuffer rows;
  static fastload::Resampler resampler;
  const fastload::Resize& resize = placement.resize;
  Crop crop{fastload::Status::kOk,
            Bytes(size_t{3} * static_cast<size_t>(resize.out_w) * static_cast<size_t>(resize.out_h))};
  placement.target.data = crop.pixels.data();
  fastload::Span span{bytes.data(), bytes.size(), bytes.size()};
  span.entries = entries;
  crop.status = jpeg->decode(span, placement, &rows, &resampler);
  if (crop.status != fastload::Status::kOk) crop.pixels.clear();
  return crop;
}

fastload::Placement placement_in(int width, int height) {
  fastload::Placement placement{};
  placement.box_x = static_cast<int>(below(static_cast<size_t>(width)));
  placement.box_y = static_cast<int>(below(static_cast<size_t>(height)));
  fastload::Resize& resize = placement.resize;
  resize.box_w = 1 + static_cast<int>(below(static_cast<size_t>(width - placement.box_x)));
  resize.box_h = 1 + static_cast<int>(below(static_cast<size_t>(height - placement.box_y)));
  if (below(4) == 0) {
    placement.box_x = placement.box_y = 0;
    resize.box_w = width;
    resize.box_h = height;
  }
  placement.scaled = below(4) == 0;
  const int part = placement.scaled ? 4 : 1;
  resize.out_w = resize.resized_w = std::max(1, resize.box_w / part);
  resize.out_h = resize.resized_h = std::max(1, resize.box_h / part);
  resize.filter = static_cast<fastload::Filter>(2);
  placement.target.dtype = fastload::Dtype::kUint8;
  placement.target.row_stride = int64_t{3} * resize.out_w;
  placement.target.pixel_stride = 3;
  placement.target.channel_stride = 1;
  return placement;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  generator.seed(std::strtoull(argv[1], nullptr, 10));
  const long count = std::strtol(argv[2], nullptr, 10);
  std::vector<Bytes> originals;
  for (int i = 3; i < argc; i++) {
    std::ifstream file(argv[i], std::ios::binary);
    const Bytes bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (bytes.size() < 4) return 2;
    originals.push_back(lengthened(bytes));
  }
  fastload::JpegDecoder with, without;
  long known = 0, forgotten = 0, refused = 0, done = 0;
  while (done < count) {
    const Bytes& original = originals[below(originals.size())];
    int width = 0, height = 0;
    if (fastload::probe_size(original.data(), original.size(), &width, &height) != fastload::Status::kOk)
      return 2;
    fastload::EntryTable table(1, size_t{1} << 18);
    Bytes bytes = original;
    for (size_t turns = 2 + below(6); turns-- > 0; done++) {
      switch (below(6)) {
        case 0:
          bytes = original;
          break;
        case 1:
          damage(&bytes);
          bytes.shrink_to_fit();  // so that the sanitizer sees reads past the end
          break;
        case 2:
          damage(table.find(0));
          break;
        default:
          break;
      }
      const fastload::EntryList before = table.find(0);
      known += before.count > 0;
      const fastload::Placement placement = placement_in(width, height);
      const Crop mine = decode(&with, bytes, placement, {&table, 0});
      const Crop other = decode(&without, bytes, placement, {});
      forgotten += before.place != 0 && table.find(0).place != before.place;
      refused += mine.status != fastload::Status::kOk;
      if (mine.status != other.status || mine.pixels != other.pixels) {
        std::printf("crop %ld: status %d, without entry points %d%s\n", done, static_cast<int>(mine.status),
                    static_cast<int>(other.status), mine.status == other.status ? ", other pixels" : "");
        return 1;
      }
    }
  }
  std::printf("%ld crops: %ld of files that were known, %ld forgotten, %ld refused\n", done, known, forgotten,
              refused);
  return 0;
}
