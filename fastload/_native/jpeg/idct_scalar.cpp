// The inverse DCT in plain C++: all other instruction sets must agree with it.
#include "jpeg/idct.h"

#include <algorithm>

#include "base/simd.h"
#include "jpeg/idct_constants.h"

namespace fastload {
namespace {

using idct::Pair;

int16_t wrapped(int value) {
  return static_cast<int16_t>(static_cast<uint16_t>(value));
}

// Unsigned, because its overflow is defined.
uint32_t sum(Pair factors, int16_t a, int16_t b) {
  return static_cast<uint32_t>(a * factors.first) + static_cast<uint32_t>(b * factors.second);
}

int16_t descaled(uint32_t value, int shift) {
  const int32_t rounded = static_cast<int32_t>(value + (1u << (shift - 1))) >> shift;
  return static_cast<int16_t>(std::min(std::max(rounded, -32768), 32767));
}

// Transforms eight values, `step` apart, in place.
void transform(int16_t* in, int step, int shift) {
  const auto at = [in, step](int k) -> int16_t& { return in[k * step]; };
  const uint32_t even0 = static_cast<uint32_t>(wrapped(at(0) + at(4))) << idct::kConstBits;
  const uint32_t even1 = static_cast<uint32_t>(wrapped(at(0) - at(4))) << idct::kConstBits;
  const uint32_t even2 = sum(idct::kEven2, at(2), at(6)), even3 = sum(idct::kEven3, at(2), at(6));
  const uint32_t even[] = {even0 + even3, even1 + even2, even1 - even2, even0 - even3};

  const int16_t sum3 = wrapped(at(7) + at(3)), sum4 = wrapped(at(5) + at(1));
  const uint32_t odd3 = sum(idct::kOddSum3, sum3, sum4), odd4 = sum(idct::kOddSum4, sum3, sum4);
  const uint32_t odd[] = {odd4 + sum(idct::kOdd3, at(7), at(1)), odd3 + sum(idct::kOdd2, at(3), at(5)),
                          odd4 + sum(idct::kOdd1, at(3), at(5)), odd3 + sum(idct::kOdd0, at(7), at(1))};
  for (int k = 0; k < 4; k++) {
    at(k) = descaled(even[k] + odd[k], shift);
    at(7 - k) = descaled(even[k] - odd[k], shift);
  }
}

void inverse(const int16_t* block, const uint16_t* quant, uint8_t* samples, ptrdiff_t stride) {
  int16_t work[64];
  for (int i = 0; i < 64; i++) work[i] = wrapped(block[i] * quant[i]);
  // Test coefficients, not products: a product of two non-zero values may wrap to zero.
  const bool flat = std::all_of(block + 8, block + 64, [](int16_t value) { return value == 0; });
  for (int x = 0; x < 8; x++) {
    if (flat)  // transform() would give the same, but saturates where this wraps
      for (int y = 7; y >= 0; y--) work[8 * y + x] = wrapped(work[x] * (1 << idct::kPass1Bits));
    else
      transform(work + x, 8, idct::kShift1);
  }
  for (int y = 0; y < 8; y++) {
    transform(work + 8 * y, 1, idct::kShift2);
    for (int x = 0; x < 8; x++)
      samples[y * stride + x] = static_cast<uint8_t>(std::min(std::max(work[8 * y + x] + 128, 0), 255));
  }
}

void inverse_row(const int16_t* blocks, int count, const uint16_t* quant, uint8_t* samples,
                 ptrdiff_t stride) {
  for (int i = 0; i < count; i++) inverse(blocks + 64 * i, quant, samples + 8 * i, stride);
}

}  // namespace

InverseDct inverse_dct() {
  return FASTLOAD_IN_USE(inverse_dct);
}

InverseDct inverse_dct_scalar() {
  return inverse_row;
}

}  // namespace fastload
