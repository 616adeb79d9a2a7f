// Counter-based random numbers: Philox4x32-10, as in _base/philox.py.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

namespace philox {

constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;  // added to the key after each round
constexpr int kRounds = 10;

}  // namespace philox

// Four words, each in 64 bits, for each of `streams` and each of `indices`: word k of stream b and index i is
// at out[(k * stream_count + b) * index_count + i]. Counter words: stream, low and high half of index, epoch.
void philox_words(uint64_t seed, uint32_t epoch, const int64_t* indices, size_t index_count,
                  const uint64_t* streams, size_t stream_count, uint64_t* out);

// The four words of the counter (0, low half of index, high half, 0).
struct PhiloxBlock {
  uint32_t words[4];
  PhiloxBlock(uint64_t key, uint64_t index);
};

inline PhiloxBlock::PhiloxBlock(uint64_t key, uint64_t index) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  uint32_t x0 = 0, x1 = static_cast<uint32_t>(index), x2 = static_cast<uint32_t>(index >> 32), x3 = 0;
  for (int round = 0; round < philox::kRounds; ++round, key0 += philox::kWeyl0, key1 += philox::kWeyl1) {
    const uint64_t product0 = philox::kMultiplier0 * x0, product1 = philox::kMultiplier1 * x2;
    x0 = static_cast<uint32_t>(product1 >> 32) ^ x1 ^ key0;
    x2 = static_cast<uint32_t>(product0 >> 32) ^ x3 ^ key1;
    x1 = static_cast<uint32_t>(product1);
    x3 = static_cast<uint32_t>(product0);
  }
  words[0] = x0;
  words[1] = x1;
  words[2] = x2;
  words[3] = x3;
}

}  // namespace fastload
