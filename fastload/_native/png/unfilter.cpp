#include "png/unfilter.h"

#include <cstdlib>
#include <cstring>

#include "base/x86.h"

#ifdef FASTLOAD_ARM
#include <arm_neon.h>
#endif

namespace fastload {
namespace {

// Left, above, and above left.
uint8_t paeth(int a, int b, int c) {
  const int pa = std::abs(b - c), pb = std::abs(a - c), pc = std::abs(a + b - 2 * c);
  return static_cast<uint8_t>(pa <= pb && pa <= pc ? a : pb <= pc ? b : c);
}

void add_above(const uint8_t* from, const uint8_t* above, uint8_t* to, size_t nbytes) {
  for (size_t i = 0; i < nbytes; i++) to[i] = static_cast<uint8_t>(from[i] + above[i]);
}

template <size_t kStep>
void unfilter_bytes(uint8_t filter, const uint8_t* from, const uint8_t* above, uint8_t* to, size_t nbytes) {
  const size_t first = nbytes < kStep ? nbytes : kStep;
  switch (filter) {
    case kFilterSub:
      std::memcpy(to, from, first);
      for (size_t i = first; i < nbytes; i++) to[i] = static_cast<uint8_t>(from[i] + to[i - kStep]);
      break;
    case kFilterAverage:
      for (size_t i = 0; i < first; i++) to[i] = static_cast<uint8_t>(from[i] + above[i] / 2);
      for (size_t i = first; i < nbytes; i++) {
        to[i] = static_cast<uint8_t>(from[i] + (to[i - kStep] + above[i]) / 2);
      }
      break;
    default:
      add_above(from, above, to, first);  // nothing to the left: Paeth takes what is above
      for (size_t i = first; i < nbytes; i++) {
        to[i] = static_cast<uint8_t>(from[i] + paeth(to[i - kStep], above[i], above[i - kStep]));
      }
  }
}

void unfilter_scalar(uint8_t filter, int step, const uint8_t* from, const uint8_t* above, uint8_t* to,
                     size_t nbytes) {
  if (filter == kFilterNone) {
    std::memcpy(to, from, nbytes);
    return;
  }
  if (filter == kFilterUp) {
    add_above(from, above, to, nbytes);
    return;
  }
  switch (step) {
    case 1:
      return unfilter_bytes<1>(filter, from, above, to, nbytes);
    case 2:
      return unfilter_bytes<2>(filter, from, above, to, nbytes);
    case 3:
      return unfilter_bytes<3>(filter, from, above, to, nbytes);
    case 4:
      return unfilter_bytes<4>(filter, from, above, to, nbytes);
    case 6:
      return unfilter_bytes<6>(filter, from, above, to, nbytes);
    default:
      return unfilter_bytes<8>(filter, from, above, to, nbytes);
  }
}

#ifdef FASTLOAD_X86

#define PIXELS __attribute__((target("sse4.1")))
#define SSE41 __attribute__((target("sse4.1"), always_inline)) inline

// A pixel of up to 8 bytes. Reads and writes 4 bytes for pixels of 3.
template <size_t kStep>
SSE41 __m128i load(const uint8_t* from) {
  if constexpr (kStep <= 4) return _mm_loadu_si32(from);
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}

template <size_t kStep>
SSE41 void store(uint8_t* to, __m128i pixel) {
  if constexpr (kStep <= 4) {
    _mm_storeu_si32(to, pixel);
  } else {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), pixel);
  }
}

template <size_t kStep>
SSE41 void sub(const uint8_t* from, uint8_t* to, size_t nbytes) {
  __m128i left = _mm_setzero_si128();
  for (size_t i = 0; i < nbytes; i += kStep) {
    left = _mm_add_epi8(left, load<kStep>(from + i));
    store<kStep>(to + i, left);
  }
}

template <size_t kStep>
SSE41 void average(const uint8_t* from, const uint8_t* above, uint8_t* to, size_t nbytes) {
  const __m128i one = _mm_set1_epi8(1);
  __m128i left = _mm_setzero_si128();
  for (size_t i = 0; i < nbytes; i += kStep) {
    const __m128i up = load<kStep>(above + i);
    // The instruction rounds up; PNG rounds down.
    const __m128i odd = _mm_and_si128(_mm_xor_si128(left, up), one);
    left = _mm_add_epi8(load<kStep>(from + i), _mm_sub_epi8(_mm_avg_epu8(left, up), odd));
    store<kStep>(to + i, left);
  }
}

// What Paeth's filter predicts; 16 bits per byte.
SSE41 __m128i predict(__m128i left, __m128i up, __m128i corner) {
  const __m128i by_up = _mm_sub_epi16(left, corner), by_left = _mm_sub_epi16(up, corner);
  const __m128i far = _mm_abs_epi16(_mm_add_epi16(by_left, by_up));
  const __m128i near_left = _mm_abs_epi16(by_left), near_up = _mm_abs_epi16(by_up);
  const __m128i least = _mm_min_epi16(far, _mm_min_epi16(near_left, near_up));
  const __m128i best = _mm_blendv_epi8(corner, up, _mm_cmpeq_epi16(least, near_up));
  return _mm_blendv_epi8(best, left, _mm_cmpeq_epi16(least, near_left));
}

template <size_t kStep>
SSE41 void paeth(const uint8_t* from, const uint8_t* above, uint8_t* to, size_t nbytes) {
  __m128i left = _mm_setzero_si128(), corner = _mm_setzero_si128();
  for (size_t i = 0; i < nbytes; i += kStep) {
    const __m128i up = _mm_cvtepu8_epi16(load<kStep>(above + i));
    left = _mm_add_epi8(predict(left, up, corner), _mm_cvtepu8_epi16(load<kStep>(from + i)));
    corner = up;
    store<kStep>(to + i, _mm_packus_epi16(left, left));
  }
}

// One register holds a pixel of the first row and, above it, the pixel of the second row that is one column
// to its left: what is above that one was made in the step before.
template <size_t kStep>
__attribute__((target("sse4.1"))) void paeth_two(const uint8_t* first, const uint8_t* second,
                                                 const uint8_t* above, uint8_t* to_first, uint8_t* to_second,
                                                 size_t nbytes) {
  const auto wide = [](const uint8_t* from) __attribute__((target("sse4.1"), always_inline)) {
    return _mm_cvtepu8_epi16(load<kStep>(from));
  };
  __m128i corner = wide(above);
  __m128i left = _mm_add_epi8(predict(_mm_setzero_si128(), corner, _mm_setzero_si128()), wide(first));
  // The second row's pixel before its first: nothing.
  left = _mm_move_epi64(left);
  corner = _mm_move_epi64(corner);
  store<kStep>(to_first, _mm_packus_epi16(left, left));
  for (size_t i = kStep; i < nbytes; i += kStep) {
    const __m128i up = _mm_unpacklo_epi64(wide(above + i), left);
    const __m128i add = _mm_unpacklo_epi64(wide(first + i), wide(second + i - kStep));
    left = _mm_add_epi8(predict(left, up, corner), add);
    corner = up;
    const __m128i bytes = _mm_packus_epi16(left, left);
    store<kStep>(to_first + i, bytes);
    store<kStep>(to_second + i - kStep, _mm_srli_si128(bytes, 4));
  }
  const __m128i up = _mm_unpacklo_epi64(left, left);
  left = _mm_unpackhi_epi64(left, left);
  corner = _mm_unpackhi_epi64(corner, corner);
  left = _mm_add_epi8(predict(left, up, corner), wide(second + nbytes - kStep));
  store<kStep>(to_second + nbytes - kStep, _mm_packus_epi16(left, left));
}

void unfilter_two_sse41(int step, const uint8_t* first, const uint8_t* second, const uint8_t* above,
                        uint8_t* to_first, uint8_t* to_second, size_t nbytes) {
  switch (step) {
    case 1:
      return paeth_two<1>(first, second, above, to_first, to_second, nbytes);
    case 2:
      return paeth_two<2>(first, second, above, to_first, to_second, nbytes);
    case 3:
      return paeth_two<3>(first, second, above, to_first, to_second, nbytes);
    default:
      return paeth_two<4>(first, second, above, to_first, to_second, nbytes);
  }
}

#elif defined(FASTLOAD_ARM)

#define PIXELS

// A pixel of up to 8 bytes. Reads and writes 4 bytes for pixels of 3.
template <size_t kStep>
uint8x8_t load(const uint8_t* from) {
  if constexpr (kStep <= 4) {
    uint32_t pixel;
    std::memcpy(&pixel, from, sizeof(pixel));
    return vcreate_u8(pixel);
  }
  return vld1_u8(from);
}

template <size_t kStep>
void store(uint8_t* to, uint8x8_t pixel) {
  if constexpr (kStep <= 4) {
    vst1_lane_u32(reinterpret_cast<uint32_t*>(to), vreinterpret_u32_u8(pixel), 0);
  } else {
    vst1_u8(to, pixel);
  }
}

template <size_t kStep>
void sub(const uint8_t* from, uint8_t* to, size_t nbytes) {
  uint8x8_t left = vdup_n_u8(0);
  for (size_t i = 0; i < nbytes; i += kStep) {
    left = vadd_u8(left, load<kStep>(from + i));
    store<kStep>(to + i, left);
  }
}

template <size_t kStep>
void average(const uint8_t* from, const uint8_t* above, uint8_t* to, size_t nbytes) {
  uint8x8_t left = vdup_n_u8(0);
  for (size_t i = 0; i < nbytes; i += kStep) {
    left = vadd_u8(load<kStep>(from + i), vhadd_u8(left, load<kStep>(above + i)));
    store<kStep>(to + i, left);
  }
}

template <size_t kStep>
void paeth(const uint8_t* from, const uint8_t* above, uint8_t* to, size_t nbytes) {
  uint8x8_t left = vdup_n_u8(0), corner = left;
  for (size_t i = 0; i < nbytes; i += kStep) {
    const uint8x8_t up = load<kStep>(above + i);
    const uint8x8_t near_left = vabd_u8(up, corner), near_up = vabd_u8(left, corner);
    // Saturated, for the other distances have 8 bits.
    const uint8x8_t far = vqmovn_u16(vabdq_u16(vaddl_u8(left, up), vshll_n_u8(corner, 1)));
    const uint8x8_t other = vbsl_u8(vcle_u8(near_up, far), up, corner);
    const uint8x8_t best = vbsl_u8(vcle_u8(near_left, vmin_u8(near_up, far)), left, other);
    left = vadd_u8(load<kStep>(from + i), best);
    corner = up;
    store<kStep>(to + i, left);
  }
}

#endif

#if defined(PIXELS)

template <size_t kStep>
PIXELS void unfilter_pixels(uint8_t filter, const uint8_t* from, const uint8_t* above, uint8_t* to,
                            size_t nbytes) {
  if (filter == kFilterSub) {
    sub<kStep>(from, to, nbytes);
  } else if (filter == kFilterAverage) {
    average<kStep>(from, above, to, nbytes);
  } else {
    paeth<kStep>(from, above, to, nbytes);
  }
}

// With the pixels of this processor's registers.
void unfilter_fast(uint8_t filter, int step, const uint8_t* from, const uint8_t* above, uint8_t* to,
                   size_t nbytes) {
  if (filter == kFilterNone || filter == kFilterUp || step < 3) {
    return unfilter_scalar(filter, step, from, above, to, nbytes);
  }
  switch (step) {
    case 3:
      return unfilter_pixels<3>(filter, from, above, to, nbytes);
    case 4:
      return unfilter_pixels<4>(filter, from, above, to, nbytes);
    case 6:
      return unfilter_pixels<6>(filter, from, above, to, nbytes);
    default:
      return unfilter_pixels<8>(filter, from, above, to, nbytes);
  }
}

#endif

}  // namespace

Unfilter unfilter_of_simd() {
#if defined(PIXELS)
  if (simd_in_use() != Simd::kScalar) return unfilter_fast;
#endif
  return unfilter_scalar;
}

UnfilterTwo unfilter_two_of_simd() {
#ifdef FASTLOAD_X86
  if (simd_in_use() >= Simd::kAvx2) return unfilter_two_sse41;
#endif
  return nullptr;
}

}  // namespace fastload
