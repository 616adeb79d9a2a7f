// Decodes damaged and made-up PNG and WebP files, each in memory of its exact size, under AddressSanitizer
// and UBSan. Built and run by test_fuzz.py:
//
//   fuzz_png SEED COUNT FILE...
//
// Fails if a file is decoded differently by a decoder that has decoded nothing before, or without SIMD.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/simd.h"
#include "image/header.h"
#include "png/png.h"
#include "png_mutations.h"
#include "webp/webp.h"

namespace {

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
  std::vector<Bytes> originals = read_files(argv + 3, argc - 3);
  if (originals.empty()) return 2;
  Corpus corpus(std::move(originals));
  Decoders decoders;
  long decoded = 0, levels = 0;
  for (long i = 0; i < count; i++) {
    Bytes bytes = corpus.next();
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
  std::printf("%ld of %ld decoded; %ld with levels\n", decoded, count, levels);
  return 0;
}
