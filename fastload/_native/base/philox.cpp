#include "base/philox.h"

#include <algorithm>

namespace fastload {
namespace {

using namespace philox;

// Counters computed together, in arrays that the compiler vectorises.
constexpr size_t kLanes = 16;

}  // namespace

void philox_words(uint64_t seed, uint32_t epoch, const int64_t* indices, size_t index_count,
                  const uint64_t* streams, size_t stream_count, uint64_t* out) {
  const size_t plane = stream_count * index_count;
  for (size_t b = 0; b < stream_count; b++) {
    // From all 64 bits: an epoch's order is drawn from a stream beyond 32 bits.
    const uint64_t first_product = streams[b] * kMultiplier0;
    for (size_t first = 0; first < index_count; first += kLanes) {
      const size_t count = std::min(kLanes, index_count - first);
      uint64_t word[4][kLanes];
      for (size_t i = 0; i < kLanes; i++) {
        const uint64_t index = static_cast<uint64_t>(indices[first + std::min(i, count - 1)]);
        word[0][i] = streams[b];
        word[1][i] = static_cast<uint32_t>(index);
        word[2][i] = index >> 32;
        word[3][i] = epoch;
      }
      uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
      for (int round = 0; round < kRounds; round++, key0 += kWeyl0, key1 += kWeyl1) {
        for (size_t i = 0; i < kLanes; i++) {
          const uint64_t product0 = round == 0 ? first_product : (word[0][i] & 0xFFFFFFFF) * kMultiplier0;
          const uint64_t product1 = (word[2][i] & 0xFFFFFFFF) * kMultiplier1;
          word[0][i] = (product1 >> 32) ^ word[1][i] ^ key0;
          word[1][i] = product1 & 0xFFFFFFFF;
          word[2][i] = (product0 >> 32) ^ word[3][i] ^ key1;
          word[3][i] = product0 & 0xFFFFFFFF;
        }
      }
      for (size_t k = 0; k < 4; k++) std::copy_n(word[k], count, out + k * plane + b * index_count + first);
    }
  }
}

}  // namespace fastload
