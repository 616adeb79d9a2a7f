// Resamples a whole box.
#include <cstring>
#include <new>

#include "resample/axis.h"
#include "resample/kernels.h"
#include "resample/resample.h"

namespace fastload {

using namespace resampling;

bool resample_image(const uint8_t* rgb, ptrdiff_t stride, const Resize& resize, const Target& target) {
  static thread_local Resampler resampler;
  if (!resampler.begin(resize, target)) return false;
  const int x0 = resampler.need_x0(), y1 = resampler.need_y1();
  int y = resampler.need_y0();
  const size_t nbytes = static_cast<size_t>(resampler.need_x1() - x0) * 3;
  const auto row = [&](int at) { return rgb + at * stride + static_cast<ptrdiff_t>(x0) * 3; };
  AlignedBytes padded;
  try {
    padded.room_for<uint8_t>(nbytes + kSlack);
  } catch (const std::bad_alloc&) {
    return false;
  }
  // Rows that are followed by enough bytes of the box are fed directly, the last ones from a copy.
  const uint8_t* end = rgb + (resize.box_h - 1) * stride + static_cast<ptrdiff_t>(resize.box_w) * 3;
  int direct = 0;
  while (y + direct < y1 && end - row(y + direct) >= static_cast<ptrdiff_t>(nbytes + kSlack)) ++direct;
  if (direct > 0) resampler.rows(row(y), stride, direct);
  for (y += direct; y < y1; ++y) {
    std::memcpy(padded.get<uint8_t>(), row(y), nbytes);
    resampler.rows(padded.get<uint8_t>(), 0, 1);
  }
  resampler.finish();
  return true;
}

}  // namespace fastload
