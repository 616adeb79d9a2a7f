// What the bytes of a record are, as storage/base.py numbers it.
#pragma once

#include <cstdint>

namespace fastload {

// kTurned: an encoded image that has to be turned as it says itself, which is left to Pillow.
enum class Kind : uint8_t { kEncoded = 0, kRaw = 1, kDct = 2, kTurned = 3 };
constexpr int kKinds = 4;

}  // namespace fastload
