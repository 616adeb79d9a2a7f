#include "io/crc32c.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/x86.h"

namespace fastload {
namespace {

// RFC 3720, appendix B.4: polynomial 0x11EDC6F41, bits reflected.
constexpr uint32_t kPolynomial = 0x82F63B78;

using Table = std::array<uint32_t, 256>;
using Slices = std::array<Table, 8>;

// slices[k][b]: the effect of byte b on the checksum when k more bytes follow it.
constexpr Slices make_slices() {
  Slices slices{};
  for (uint32_t b = 0; b < 256; b++) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    slices[0][b] = crc;
  }
  for (uint32_t b = 0; b < 256; b++) {
    for (size_t k = 1; k < 8; k++) {
      const uint32_t before = slices[k - 1][b];
      slices[k][b] = (before >> 8) ^ slices[0][before & 0xFF];
    }
  }
  return slices;
}

constexpr Slices kSlices = make_slices();

uint32_t portable(uint32_t crc, const uint8_t* p, size_t n) {
  while (n >= 8) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word |= static_cast<uint64_t>(p[i]) << (8 * i);
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < 8; i++) crc ^= kSlices[7 - i][(word >> (8 * i)) & 0xFF];
    p += 8;
    n -= 8;
  }
  while (n-- > 0) crc = (crc >> 8) ^ kSlices[0][(crc ^ *p++) & 0xFF];
  return crc;
}

#ifdef FASTLOAD_X86

// Three lanes, because the crc32 instruction has a latency of three cycles and a throughput of one. To join
// two lanes, advance a checksum over kLane zero bytes: a linear map, done with four table look-ups.
constexpr size_t kLane = 2048;

struct Advance {
  std::array<Table, 4> table;

  constexpr Advance() : table() {
    std::array<uint32_t, 32> column{};
    for (size_t bit = 0; bit < 32; bit++) {
      uint32_t crc = uint32_t{1} << bit;
      for (size_t i = 0; i < kLane; i++) crc = (crc >> 8) ^ kSlices[0][crc & 0xFF];
      column[bit] = crc;
    }
    for (size_t byte = 0; byte < 4; byte++) {
      for (uint32_t value = 0; value < 256; value++) {
        uint32_t sum = 0;
        for (size_t bit = 0; bit < 8; bit++) {
          if ((value >> bit) & 1) sum ^= column[8 * byte + bit];
        }
        table[byte][value] = sum;
      }
    }
  }

  uint32_t operator()(uint32_t crc) const {
    return table[0][crc & 0xFF] ^ table[1][(crc >> 8) & 0xFF] ^ table[2][(crc >> 16) & 0xFF] ^
           table[3][crc >> 24];
  }
};

constexpr Advance kAdvance;

inline uint64_t load64(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

__attribute__((target("sse4.2"))) uint32_t with_sse(uint32_t crc, const uint8_t* p, size_t n) {
  while (n >= 3 * kLane) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      a = _mm_crc32_u64(a, load64(p + i));
      b = _mm_crc32_u64(b, load64(p + kLane + i));
      c = _mm_crc32_u64(c, load64(p + 2 * kLane + i));
    }
    crc = kAdvance(kAdvance(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(c);
    p += 3 * kLane;
    n -= 3 * kLane;
  }
  uint64_t wide = crc;
  for (; n >= 8; p += 8, n -= 8) wide = _mm_crc32_u64(wide, load64(p));
  crc = static_cast<uint32_t>(wide);
  while (n-- > 0) crc = _mm_crc32_u8(crc, *p++);
  return crc;
}

#endif

}  // namespace

uint32_t crc32c_portable(uint32_t crc, const void* data, size_t nbytes) noexcept {
  return ~portable(~crc, static_cast<const uint8_t*>(data), nbytes);
}

uint32_t crc32c(uint32_t crc, const void* data, size_t nbytes) noexcept {
#ifdef FASTLOAD_X86
  const bool sse = __builtin_cpu_supports("sse4.2");
  if (sse) return ~with_sse(~crc, static_cast<const uint8_t*>(data), nbytes);
#endif
  return crc32c_portable(crc, data, nbytes);
}

void crc32c_blocks(const void* data, size_t nbytes, size_t block, uint32_t* sums) noexcept {
  const auto* p = static_cast<const uint8_t*>(data);
  for (size_t at = 0; at < nbytes; at += block) *sums++ = crc32c(0, p + at, std::min(block, nbytes - at));
}

int crc32c_of_file(int descriptor, const int64_t* numbers, size_t n, size_t block, uint32_t* sums) {
  // Stays in the second-level cache between reading and summing.
  constexpr size_t kRead = size_t{256} << 10;
  const size_t most = std::max<size_t>(1, kRead / block);
  std::vector<uint8_t> memory(std::min(most, n) * block);
  for (size_t i = 0; i < n;) {
    size_t run = 1;
    while (run < most && i + run < n && numbers[i + run] == numbers[i] + static_cast<int64_t>(run)) run++;
    size_t there = 0;
    while (there < run * block) {
      const int64_t at = numbers[i] * static_cast<int64_t>(block) + static_cast<int64_t>(there);
      const ssize_t got = pread(descriptor, memory.data() + there, run * block - there, at);
      if (got == 0) break;
      if (got < 0 && errno != EINTR) return errno;
      if (got > 0) there += static_cast<size_t>(got);
    }
    for (size_t k = 0; k < run; k++) {
      const size_t begin = std::min(there, k * block);
      sums[i + k] = crc32c(0, memory.data() + begin, std::min(block, there - begin));
    }
    i += run;
  }
  return 0;
}

}  // namespace fastload
