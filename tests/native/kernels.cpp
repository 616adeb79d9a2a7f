// Runs the kernels of every instruction set of this machine on random input, and compares each with the
// scalar ones: inverse DCT, colours, resize with all ways to store rows, and PNG's filters. A program without
// Python and libjpeg, so that code for another processor can be tested in an emulator (CONTRIBUTING.md,
// "Other processors"). tests/native/test_instruction_sets.py compiles and runs it.
//
//   kernels ROUNDS                compares
//   kernels TIMES SET KERNEL      runs one kernel that often on the same input, to count its instructions
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/simd.h"
#include "jpeg/idct.h"
#include "jpeg/ycc.h"
#include "png/unfilter.h"
#include "resample/resample.h"

namespace {

using fastload::Simd;
using Bytes = std::vector<uint8_t>;

constexpr int kSlack = 64;

struct Random {
  std::mt19937_64 engine;
  // 0 to n - 1.
  int below(int n) { return static_cast<int>(engine() % static_cast<uint64_t>(n)); }
  Bytes bytes(size_t n) {
    Bytes made(n);
    for (uint8_t& byte : made) byte = static_cast<uint8_t>(below(256));
    return made;
  }
};

int times = 1;  // that a kernel runs

// What a kernel is given, and where it puts its result. `large`: as in a photo; else of any size and kind.
using Kernel = Bytes (*)(Random* random, bool large);

Bytes inverse_dct(Random* random, bool large) {
  const int count = large ? 32 : 1 + random->below(9);
  std::vector<int16_t> memory(static_cast<size_t>(64 * count) + 32);
  const auto aligned = [](auto* at) {
    return at + (64 - reinterpret_cast<uintptr_t>(at) % 64) % 64 / sizeof(*at);
  };
  int16_t* const blocks = aligned(memory.data());
  std::vector<uint16_t> quant_memory(64 + 32);
  uint16_t* const quant = aligned(quant_memory.data());
  // Beyond these values instruction sets differ, as libjpeg's do: Note [Beyond range] in jpeg/idct_neon.cpp.
  const int most_quant = large ? 20 : 1 + random->below(32);
  for (int k = 0; k < 64; k++) quant[k] = static_cast<uint16_t>(1 + random->below(most_quant));
  for (int b = 0; b < count; b++) {
    const int most = large ? 20 : 1 + random->below(1023 / most_quant), used = large ? 20 : random->below(65);
    for (int k = 0; k < used; k++) {
      if (random->below(3)) blocks[64 * b + k] = static_cast<int16_t>(random->below(2 * most) - most);
    }
  }
  Bytes samples(static_cast<size_t>(8 * 8 * count));
  for (int i = 0; i < times; i++) fastload::inverse_dct()(blocks, count, quant, samples.data(), 8 * count);
  return samples;
}

Bytes colours(Random* random, bool large) {
  const int x0 = large ? 0 : random->below(40), width = large ? 500 : 1 + random->below(100);
  const size_t row_nbytes = static_cast<size_t>(x0 + width) + 2 * kSlack;
  Bytes rows[5];
  for (Bytes& row : rows) row = random->bytes(row_nbytes);
  const auto start = [&rows](int k) { return rows[k].data() + kSlack; };
  const fastload::YccRow row{start(0), {start(1), start(2)}, {start(3), start(4)}, random->below(2) != 0};
  Bytes rgb(3 * static_cast<size_t>(width) + kSlack);
  const auto sampling = static_cast<fastload::Sampling>(large ? 4 : random->below(5));
  for (int i = 0; i < times; i++) fastload::ycc_to_rgb()(sampling, row, x0, width, rgb.data());
  rgb.resize(3 * static_cast<size_t>(width));
  return rgb;
}

// What ToTensor and Normalize make of each level; odd: one value differs.
std::vector<float> table_of(Random* random, bool odd) {
  std::vector<float> table(3 * 256);
  for (int c = 0; c < 3; c++) {
    const float mean = static_cast<float>(random->below(1000)) / 1000.0f;
    const float deviation = static_cast<float>(100 + random->below(900)) / 1000.0f;
    for (int level = 0; level < 256; level++) {
      const float scaled = static_cast<float>(level) / 255.0f;
      const float centred = scaled - mean;
      table[static_cast<size_t>(256 * c + level)] = centred / deviation;
    }
  }
  if (odd) table[static_cast<size_t>(random->below(768))] = 9.0f;
  return table;
}

// `large`: only the passes named.
template <bool kHorizontal, bool kVertical, bool kFloats>
Bytes resize(Random* random, bool large) {
  const bool floats = kFloats;
  fastload::Resize resize{};
  const auto side = [random] { return 1 + random->below(random->below(4) ? 40 : 150); };
  resize.box_w = large ? (kHorizontal ? 300 : 224) : side();
  resize.box_h = large ? (kVertical ? 300 : 224) : side();
  resize.resized_w = large ? 224 : side(), resize.resized_h = large ? 224 : side();
  if (!large && random->below(4) == 0) resize.resized_w = resize.box_w;
  if (!large && random->below(4) == 0) resize.resized_h = resize.box_h;
  resize.out_w = resize.resized_w, resize.out_h = resize.resized_h;
  if (!large && random->below(3) == 0) {
    resize.window_x = random->below(9) - 4, resize.window_y = random->below(9) - 4;
    resize.out_w = 1 + random->below(60), resize.out_h = 1 + random->below(60);
  }
  resize.filter = static_cast<fastload::Filter>(large ? 2 : random->below(fastload::kFilters));
  resize.order = static_cast<fastload::PassOrder>(large ? 2 : random->below(3));
  const std::vector<float> table = table_of(random, !large && random->below(4) == 0);
  const Bytes levels = random->bytes(3 * 256);
  fastload::Target target{};
  target.dtype = floats ? fastload::Dtype::kFloat32 : fastload::Dtype::kUint8;
  const bool planar = large || random->below(2);
  target.row_stride = planar ? resize.out_w : 3 * resize.out_w;
  target.pixel_stride = planar ? 1 : 3;
  target.channel_stride = planar ? int64_t{resize.out_w} * resize.out_h : 1;
  target.lut = floats ? static_cast<const void*>(table.data()) : nullptr;
  if (!floats && !large && random->below(2)) target.lut = levels.data();
  target.flip = random->below(2);
  for (uint8_t& fill : target.fill) fill = static_cast<uint8_t>(random->below(256));
  target.reversed = !large && random->below(4) == 0;
  const ptrdiff_t stride = 3 * static_cast<ptrdiff_t>(resize.box_w);
  const Bytes pixels = random->bytes(static_cast<size_t>(stride * resize.box_h) + kSlack);
  Bytes result(3 * static_cast<size_t>(resize.out_w) * static_cast<size_t>(resize.out_h) *
               (floats ? sizeof(float) : 1));
  target.data = result.data();
  for (int i = 0; i < times; i++) {
    static fastload::Resampler resampler;
    if (!resampler.begin(resize, target)) std::abort();
    const int y = resampler.need_y0();
    resampler.rows(pixels.data() + y * stride + 3 * static_cast<ptrdiff_t>(resampler.need_x0()), stride,
                   resampler.need_y1() - y);
    resampler.finish();
  }
  return result;
}

Bytes unfilter(Random* random, bool large) {
  constexpr int kSteps[] = {1, 2, 3, 4, 6, 8};
  const int step = large ? 3 : kSteps[random->below(6)];
  const size_t nbytes = static_cast<size_t>(step * (large ? 500 : 1 + random->below(40)));
  Bytes from = random->bytes(nbytes + fastload::kRowSlack), above = random->bytes(from.size());
  Bytes to(from.size());
  const auto filter = static_cast<uint8_t>(large ? fastload::kFilterPaeth : random->below(5));
  for (int i = 0; i < times; i++)
    fastload::unfilter_of_simd()(filter, step, from.data(), above.data(), to.data(), nbytes);
  to.resize(nbytes);
  return to;
}

struct Named {
  const char* name;
  Kernel run;
};

const Named kKernels[] = {
    {"idct", inverse_dct},
    {"colours", colours},
    {"horizontal", resize<true, false, false>},
    {"vertical", resize<false, true, false>},
    {"levels", resize<false, false, false>},
    {"floats", resize<false, false, true>},
    {"unfilter", unfilter},
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  if (argc == 4) {
    if (!fastload::set_simd(argv[2])) return 2;
    for (const Named& kernel : kKernels) {
      if (std::string(kernel.name) != argv[3]) continue;
      Random random{std::mt19937_64(1)};
      times = rounds;
      kernel.run(&random, true);
      return 0;
    }
    return 2;
  }
  std::printf("in use: %s\n", fastload::simd_name(fastload::simd_in_use()));
  std::string sets;
  for (const Simd simd : {Simd::kNeon, Simd::kAvx2, Simd::kAvx512}) {
    const char* const set = fastload::simd_name(simd);
    if (!fastload::set_simd(set)) continue;
    sets += std::string(" ") + set;
    for (const Named& kernel : kKernels) {
      for (int round = 0; round < rounds; round++) {
        Random random{std::mt19937_64(static_cast<uint64_t>(round))}, again = random;
        fastload::set_simd("scalar");
        const Bytes expected = kernel.run(&random, false);
        fastload::set_simd(set);
        if (kernel.run(&again, false) == expected) continue;
        std::printf("%s, round %d: %s differs\n", kernel.name, round, set);
        return 1;
      }
    }
  }
  std::printf("the same in: scalar%s\n", sets.c_str());
  return 0;
}
