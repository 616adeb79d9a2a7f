// Limits on what a file may claim.
#pragma once

#include <cstdint>

namespace fastload {

// Larger images are left to Pillow, which warns from this size on (its MAX_IMAGE_PIXELS) and refuses
// decompression bombs.
constexpr int64_t kMaxPixels = 89478485;

}  // namespace fastload
