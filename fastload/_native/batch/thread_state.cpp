#include "batch/thread_state.h"

#include <memory>

#include "image/header.h"
#include "image/uncompressed.h"

namespace fastload {

ThreadState& thread_state() {
  static thread_local std::unique_ptr<ThreadState> state;
  if (!state) state = std::make_unique<ThreadState>();
  return *state;
}

Status decode_span(const Span& span, Kind kind, const Placement& placement, ThreadState* state) {
  switch (kind) {
    case Kind::kRaw:
      return decode_raw(span, placement, &state->rows, &state->resampler);
    case Kind::kDct:
      return state->jpeg.decode_dct(span, placement, &state->rows, &state->resampler);
    case Kind::kTurned:
      return Status::kUnsupported;
    case Kind::kEncoded:
      break;
  }
  if (span.nbytes >= 2 && span.data[0] == 'B' && span.data[1] == 'M') {
    return decode_bmp(span, placement, &state->rows, &state->resampler);
  }
  if (is_png(span.data, span.nbytes)) {
    return state->png.decode(span, placement, &state->rows, &state->resampler);
  }
  if (is_webp(span.data, span.nbytes)) {
    return state->webp.decode(span, placement, &state->rows, &state->resampler);
  }
  return state->jpeg.decode(span, placement, &state->rows, &state->resampler);
}

}  // namespace fastload
