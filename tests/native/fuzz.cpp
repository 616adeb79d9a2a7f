// Decodes damaged images, each in memory of its exact size, under AddressSanitizer and UBSan. Built and run
// by test_fuzz.py:
//
//   fuzz SEED COUNT FILE...     files: JPEG, BMP or DCT records (by the name's end)
//
// The first line of its output depends on these arguments alone: statuses, and a digest of what was decoded.
// Fails if a small image is decoded differently by a decoder that has decoded nothing before.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dct/format.h"
#include "dct/record.h"
#include "image/header.h"
#include "image/uncompressed.h"
#include "jpeg/jpeg.h"
#include "mutations.h"

namespace {

struct Original {
  Bytes bytes;
  bool dct;
  size_t header;  // bytes that come before the coefficients
  bool small;     // decode it with a new decoder too, and compare
};

Original original_of(Bytes bytes, bool dct) {
  size_t header = 0;
  int width = 0, height = 0;
  if (dct) {
    fastload::DctRecord record;
    header = fastload::dct_parse_header(bytes.data(), bytes.size(), &record);
    width = record.image.width;
    height = record.image.height;
  } else {
    const uint8_t scan[2] = {0xFF, 0xDA};
    const auto at = std::search(bytes.begin(), bytes.end(), scan, scan + 2);
    if (at != bytes.end() && bytes.end() - at > 4)
      header = static_cast<size_t>(at - bytes.begin()) + 2 + at[3];
    fastload::probe_size(bytes.data(), bytes.size(), &width, &height);
  }
  return {std::move(bytes), dct, header, width <= 64 && height <= 64};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  generator.seed(std::strtoull(argv[1], nullptr, 10));
  const long count = std::strtol(argv[2], nullptr, 10);
  std::vector<Original> originals;
  for (int i = 3; i < argc; i++) {
    const std::string name = argv[i];
    std::ifstream file(name, std::ios::binary);
    Bytes bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (bytes.empty()) return 2;
    originals.push_back(
        original_of(std::move(bytes), name.size() > 4 && name.substr(name.size() - 4) == ".dct"));
  }

  fastload::JpegDecoder jpeg;
  fastload::RowBuffer rows;
  fastload::Resampler resampler;
  long statuses[8] = {}, own = 0, again = 0;
  uint64_t digest = 14695981039346656037u;  // FNV-1a
  double slowest = 0;
  size_t chosen = 0;
  for (long i = 0; i < count; i++) {
    // Several in a row: the decoder builds Huffman tables for a small file the second time, and reads no
    // header twice.
    if (i % 32 == 0) chosen = below(originals.size());
    const Original& original = originals[chosen];
    Bytes bytes = original.bytes;
    const size_t from = below(4) == 0 ? 0 : original.header;
    for (size_t n = below(4); n-- > 0;) damage(&bytes, from, originals[below(originals.size())].bytes);
    bytes.shrink_to_fit();  // so that the sanitizer sees reads past the end

    const auto begin = std::chrono::steady_clock::now();
    int width = 0, height = 0;
    const bool sized = original.dct ? fastload::dct_size(bytes.data(), bytes.size(), &width, &height)
                                    : fastload::probe_size(bytes.data(), bytes.size(), &width, &height) ==
                                          fastload::Status::kOk;
    if (!sized || width < 1 || height < 1) width = height = 16;
    Bytes out;
    const fastload::Placement placement =
        random_placement(std::min(width, 3000), std::min(height, 3000), &out);
    const fastload::Span span{bytes.data(), bytes.size(), bytes.size()};
    fastload::Status status;
    if (original.dct) {
      status = jpeg.decode_dct(span, placement, &rows, &resampler);
      std::string why;
      Bytes restored;
      if (below(4) == 0) fastload::dct_to_jpeg(bytes.data(), bytes.size(), &restored, &why);
    } else if (bytes.size() > 1 && bytes[0] == 'B') {
      status = decode_bmp(span, placement, &rows, &resampler);
    } else {
      status = jpeg.decode(span, placement, &rows, &resampler);
      std::string why;
      Bytes record;
      if (below(4) == 0)
        fastload::dct_encode(bytes.data(), bytes.size(), fastload::DctOptions(), &record, &why);
    }
    again += jpeg.reused_header();
    if (original.small) {
      fastload::JpegDecoder fresh;
      Bytes alone(out.size());
      fastload::Placement apart = placement;
      apart.target.data = alone.data();
      const fastload::Status expected = original.dct ? fresh.decode_dct(span, apart, &rows, &resampler)
                                                     : fresh.decode(span, apart, &rows, &resampler);
      if (status != expected || (status == fastload::Status::kOk && out != alone)) {
        std::printf("image %ld: status %d, alone %d%s\n", i, static_cast<int>(status),
                    static_cast<int>(expected), status == expected ? ", other pixels" : "");
        return 1;
      }
    }
    statuses[static_cast<int>(status) + 1]++;
    if (status == fastload::Status::kOk) {
      own += !original.dct && jpeg.own_entropy();
      for (const uint8_t byte : out) digest = (digest ^ byte) * 1099511628211u;
    }
    digest = (digest ^ static_cast<uint64_t>(status)) * 1099511628211u;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (seconds > slowest) slowest = seconds;
  }
  std::printf("statuses -1 to 6:");
  for (long n : statuses) std::printf(" %ld", n);
  std::printf("; digest %016llx\n", static_cast<unsigned long long>(digest));
  std::printf("%ld by our own Huffman decoder; %ld with the header of the one before; slowest %.3f s\n", own,
              again, slowest);
  return 0;
}
