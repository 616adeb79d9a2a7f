// Limits on what a file may claim.
#pragma once

#include <cstdint>

namespace fastload {

// Larger images are left to Pillow, whatever the user allows: this bounds what a header can make a decoder
// allocate. The user's own limit, PIL.Image.MAX_IMAGE_PIXELS, comes with each batch.
constexpr int64_t kMaxPixels = 89478485;

}  // namespace fastload
