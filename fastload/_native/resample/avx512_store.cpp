// Storing finished rows with AVX-512 VBMI: table lookup, mirroring and layout in one step.
//
// Note [Byte planes]
// Normalised values come from a table (Target::lut). A table of 256 float32 is kept as four tables of 256
// bytes: byte 0 of every value, byte 1, and so on. vpermi2b looks up 64 levels in 128 bytes at a time; two of
// them and a blend cover 256, and unpacking joins the bytes of each value. The result is the table's value
// whatever it is. Arithmetic cannot promise that: no fused multiply-add gives torch's two roundings.
#include "resample/kernels.h"

#include "base/x86.h"

#ifdef FASTLOAD_X86

#include <algorithm>

namespace fastload::resampling {

namespace {

// Arranges 64 levels so that unpacking `kBytes`-byte values leaves them in order.
template <int kBytes, bool kFlip>
struct Order {
  alignas(64) uint8_t at[64];
  constexpr Order() : at() {
    constexpr int kRun = 16 / kBytes;  // values in one 128-bit lane of a result
    for (int lane = 0; lane < 4; ++lane) {
      for (int part = 0; part < kBytes; ++part) {
        for (int i = 0; i < kRun; ++i) {
          const int level = 4 * kRun * part + kRun * lane + i;
          at[16 * lane + kRun * part + i] = static_cast<uint8_t>(kFlip ? 63 - level : level);
        }
      }
    }
  }
};

// From three registers of one channel each to three registers of interleaved pixels.
template <typename Index, int kLanes>
struct Interleaving {
  alignas(64) Index red_green[3][kLanes];
  alignas(64) Index blue[3][kLanes];
  uint64_t is_blue[3];
  constexpr Interleaving() : red_green(), blue(), is_blue() {
    for (int i = 0; i < 3 * kLanes; ++i) {
      const int part = i / kLanes, lane = i % kLanes, pixel = i / 3, channel = i % 3;
      red_green[part][lane] = static_cast<Index>(channel == 1 ? kLanes + pixel : pixel);
      blue[part][lane] = static_cast<Index>(pixel);
      if (channel == 2) is_blue[part] |= uint64_t{1} << lane;
    }
  }
};

// From three registers of RGB bytes to one channel's 64 levels.
struct Deinterleaving {
  alignas(64) uint8_t first_two[3][64];
  alignas(64) uint8_t third[3][64];
  uint64_t is_third[3];
  constexpr Deinterleaving() : first_two(), third(), is_third() {
    for (int channel = 0; channel < 3; ++channel) {
      for (int i = 0; i < 64; ++i) {
        const int at = 3 * i + channel;
        first_two[channel][i] = static_cast<uint8_t>(at % 128);
        third[channel][i] = static_cast<uint8_t>(at % 64);
        if (at >= 128) is_third[channel] |= uint64_t{1} << i;
      }
    }
  }
};

constexpr Deinterleaving kDeinterleaving;

FASTLOAD_AVX512 __mmask64 first_bytes(int n) {
  return n >= 64 ? ~uint64_t{0} : _bzhi_u64(~uint64_t{0}, std::max(n, 0));
}

// Lookup tables of one channel: 4 registers (256 bytes) for each byte of a value.
template <int kBytes>
struct Tables {
  __m512i bytes[kBytes][4];
};

template <int kBytes>
FASTLOAD_AVX512 Tables<kBytes> load_tables(const RowOutput& output, int channel) {
  Tables<kBytes> tables;
  const uint8_t* from = output.tables.get<uint8_t>() + static_cast<ptrdiff_t>(channel) * kBytes * 256;
  for (int b = 0; b < kBytes; ++b) {
    for (int i = 0; i < 4; ++i) tables.bytes[b][i] = _mm512_load_si512(from + 256 * b + 64 * i);
  }
  return tables;
}

// Looks up 64 levels, arranged by Order, in kBytes registers of values.
template <int kBytes>
FASTLOAD_AVX512 void look_up(const Tables<kBytes>& tables, __m512i levels, __m512i* values) {
  const __mmask64 upper = _mm512_movepi8_mask(levels);
  __m512i bytes[kBytes];
  for (int b = 0; b < kBytes; ++b) {
    const __m512i low = _mm512_permutex2var_epi8(tables.bytes[b][0], levels, tables.bytes[b][1]);
    const __m512i high = _mm512_permutex2var_epi8(tables.bytes[b][2], levels, tables.bytes[b][3]);
    bytes[b] = _mm512_mask_blend_epi8(upper, low, high);
  }
  if constexpr (kBytes == 1) {
    values[0] = bytes[0];
  } else if constexpr (kBytes == 2) {
    values[0] = _mm512_unpacklo_epi8(bytes[0], bytes[1]);
    values[1] = _mm512_unpackhi_epi8(bytes[0], bytes[1]);
  } else {
    const __m512i low_first = _mm512_unpacklo_epi8(bytes[0], bytes[1]);
    const __m512i low_second = _mm512_unpackhi_epi8(bytes[0], bytes[1]);
    const __m512i high_first = _mm512_unpacklo_epi8(bytes[2], bytes[3]);
    const __m512i high_second = _mm512_unpackhi_epi8(bytes[2], bytes[3]);
    values[0] = _mm512_unpacklo_epi16(low_first, high_first);
    values[1] = _mm512_unpackhi_epi16(low_first, high_first);
    values[2] = _mm512_unpacklo_epi16(low_second, high_second);
    values[3] = _mm512_unpackhi_epi16(low_second, high_second);
  }
}

// The 64 levels for columns x .. x + 63 of the target. May read up to 64 bytes before or after the plane.
template <int kBytes, bool kFlip>
FASTLOAD_AVX512 __m512i load_levels(const uint8_t* plane, int x, int width) {
  static constexpr Order<kBytes, kFlip> kOrder;
  const __m512i levels = _mm512_loadu_si512(kFlip ? plane + width - 64 - x : plane + x);
  if (kBytes == 1 && !kFlip) return levels;
  return _mm512_permutexvar_epi8(_mm512_load_si512(kOrder.at), levels);
}

// Stores a register of values; `n` bytes of the row are left.
FASTLOAD_AVX512 void store_bytes(uint8_t* to, __m512i values, ptrdiff_t n, bool past) {
  if (n >= 64) {
    if (past)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), values);
    else
      _mm512_storeu_si512(to, values);
  } else if (n > 0) {
    _mm512_mask_storeu_epi8(to, first_bytes(static_cast<int>(n)), values);
  }
}

template <int kBytes, bool kTable, bool kFlip>
FASTLOAD_AVX512_CALL void store_planar(const RowOutput& output, const uint8_t* const* planes, void* row) {
  for (int channel = 0; channel < 3; ++channel) {
    Tables<kBytes> tables;
    if (kTable) tables = load_tables<kBytes>(output, channel);
    uint8_t* to = static_cast<uint8_t*>(row) + channel * output.channel_stride * kBytes;
    const bool past = output.is_past_cache(to);
    for (int x = 0; x < output.width; x += 64) {
      const __m512i levels = load_levels<kBytes, kFlip>(planes[channel], x, output.width);
      __m512i values[kBytes];
      if (kTable) {
        look_up<kBytes>(tables, levels, values);
      } else {
        values[0] = levels;
      }
      const ptrdiff_t left = static_cast<ptrdiff_t>(output.width - x) * kBytes;
      for (int i = 0; i < kBytes; ++i) {
        store_bytes(to + static_cast<ptrdiff_t>(x) * kBytes + 64 * i, values[i], left - 64 * i, past);
      }
    }
  }
}

// Interleaves 64 / kBytes values of each channel; `part` of three.
template <int kBytes>
FASTLOAD_AVX512 __m512i interleaved(__m512i red, __m512i green, __m512i blue, int part) {
  if constexpr (kBytes == 1) {
    static constexpr Interleaving<uint8_t, 64> k;
    const __m512i two = _mm512_permutex2var_epi8(red, _mm512_load_si512(k.red_green[part]), green);
    return _mm512_mask_permutexvar_epi8(two, k.is_blue[part], _mm512_load_si512(k.blue[part]), blue);
  } else if constexpr (kBytes == 2) {
    static constexpr Interleaving<uint16_t, 32> k;
    const __m512i two = _mm512_permutex2var_epi16(red, _mm512_load_si512(k.red_green[part]), green);
    return _mm512_mask_permutexvar_epi16(two, static_cast<__mmask32>(k.is_blue[part]),
                                         _mm512_load_si512(k.blue[part]), blue);
  } else {
    static constexpr Interleaving<uint32_t, 16> k;
    const __m512i two = _mm512_permutex2var_epi32(red, _mm512_load_si512(k.red_green[part]), green);
    return _mm512_mask_permutexvar_epi32(two, static_cast<__mmask16>(k.is_blue[part]),
                                         _mm512_load_si512(k.blue[part]), blue);
  }
}

template <int kBytes, bool kTable, bool kFlip>
FASTLOAD_AVX512_CALL void store_interleaved(const RowOutput& output, const uint8_t* const* planes,
                                            void* row) {
  const bool past = output.is_past_cache(row);
  for (int x = 0; x < output.width; x += 64) {
    __m512i values[3][kBytes];
    for (int channel = 0; channel < 3; ++channel) {
      const __m512i levels = load_levels<kBytes, kFlip>(planes[channel], x, output.width);
      if (kTable) {
        look_up<kBytes>(load_tables<kBytes>(output, channel), levels, values[channel]);
      } else {
        values[channel][0] = levels;
      }
    }
    uint8_t* to = static_cast<uint8_t*>(row) + static_cast<ptrdiff_t>(x) * 3 * kBytes;
    const ptrdiff_t left = static_cast<ptrdiff_t>(output.width - x) * 3 * kBytes;
    for (int i = 0; i < kBytes; ++i) {
      for (int part = 0; part < 3; ++part) {
        const int at = 64 * (3 * i + part);
        const __m512i mixed = interleaved<kBytes>(values[0][i], values[1][i], values[2][i], part);
        store_bytes(to + at, mixed, left - at, past);
      }
    }
  }
}

// Splits 3 x 256 values into byte planes, 64 bytes at a time: a permutation gathers equal bytes within a
// register, and each piece goes to its plane.
template <int kBytes>
FASTLOAD_AVX512_CALL void make_tables(RowOutput* output) {
  uint8_t* to = output->tables.room_for<uint8_t>(3 * 256 * kBytes);
  const uint8_t* from = static_cast<const uint8_t*>(output->lut);
  constexpr int kValues = 64 / kBytes;  // in a register
  alignas(64) uint8_t gather[64];
  for (int b = 0; b < kBytes; ++b) {
    for (int i = 0; i < kValues; ++i) gather[b * kValues + i] = static_cast<uint8_t>(i * kBytes + b);
  }
  const __m512i order = _mm512_load_si512(gather);
  for (int channel = 0; channel < 3; ++channel, to += 256 * kBytes) {
    for (int i = 0; i < 256; i += kValues, from += 64) {
      const __m512i split = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(from));
      if constexpr (kBytes == 1) {
        _mm512_store_si512(to + i, split);
      } else if constexpr (kBytes == 2) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + i), _mm512_castsi512_si256(split));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 256 + i), _mm512_extracti64x4_epi64(split, 1));
      } else {
        _mm_store_si128(reinterpret_cast<__m128i*>(to + i), _mm512_castsi512_si128(split));
        _mm_store_si128(reinterpret_cast<__m128i*>(to + 256 + i), _mm512_extracti32x4_epi32(split, 1));
        _mm_store_si128(reinterpret_cast<__m128i*>(to + 512 + i), _mm512_extracti32x4_epi32(split, 2));
        _mm_store_si128(reinterpret_cast<__m128i*>(to + 768 + i), _mm512_extracti32x4_epi32(split, 3));
      }
    }
  }
}

template <int kBytes, bool kTable>
StoreRow choose(RowOutput* output) {
  const bool planar = output->pixel_stride == 1;
  if (!planar && (output->pixel_stride != 3 || output->channel_stride != 1)) return scalar_store_for(output);
  if constexpr (kTable) make_tables<kBytes>(output);
  if (planar) return output->flip ? store_planar<kBytes, kTable, true> : store_planar<kBytes, kTable, false>;
  return output->flip ? store_interleaved<kBytes, kTable, true> : store_interleaved<kBytes, kTable, false>;
}

}  // namespace

FASTLOAD_AVX512_CALL void avx512_deinterleave(const uint8_t* rgb, int count, uint8_t* const* planes) {
  for (int x = 0; x < count; x += 64, rgb += 192) {
    const int n = std::min(64, count - x);
    __m512i source[3];
    for (int i = 0; i < 3; ++i)
      source[i] = _mm512_maskz_loadu_epi8(first_bytes(3 * n - 64 * i), rgb + 64 * i);
    for (int channel = 0; channel < 3; ++channel) {
      const __m512i two = _mm512_permutex2var_epi8(
          source[0], _mm512_load_si512(kDeinterleaving.first_two[channel]), source[1]);
      const __m512i all =
          _mm512_mask_permutexvar_epi8(two, kDeinterleaving.is_third[channel],
                                       _mm512_load_si512(kDeinterleaving.third[channel]), source[2]);
      _mm512_mask_storeu_epi8(planes[channel] + x, first_bytes(n), all);
    }
  }
}

StoreRow avx512_store_for(RowOutput* output) {
  switch (output->dtype) {
    case Dtype::kFloat32:
      return choose<4, true>(output);
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      return choose<2, true>(output);
    default:
      return output->lut ? choose<1, true>(output) : choose<1, false>(output);
  }
}

}  // namespace fastload::resampling

#endif  // FASTLOAD_X86
