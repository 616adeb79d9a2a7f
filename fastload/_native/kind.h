// What the bytes of a record are, as storage/base.py numbers it.
#pragma once

#include <cstdint>

namespace fastload {

enum class Kind : uint8_t { kEncoded = 0, kRaw = 1, kDct = 2 };

}  // namespace fastload
