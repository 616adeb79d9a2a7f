// Random numbers that are a function of what they are for: Philox4x32-10, see _base/philox.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Four words, each in 64 bits, for each of `streams` and each of `indices`: word k of stream b and index i at
// out[(k * stream_count + b) * index_count + i]. Counter words: stream, low and high half of index, epoch.
void philox_words(uint64_t seed, uint32_t epoch, const int64_t* indices, size_t index_count,
                  const uint64_t* streams, size_t stream_count, uint64_t* out);

}  // namespace fastload
