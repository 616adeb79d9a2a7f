#include "batch/thread_state.h"

#include <memory>

namespace fastload {

ThreadState& worker() {
  static thread_local std::unique_ptr<ThreadState> mine;
  if (!mine) mine = std::make_unique<ThreadState>();
  return *mine;
}

Status decode_span(const Span& span, Kind kind, const Placement& placement, ThreadState* worker) {
  switch (kind) {
    case Kind::kRaw:
      return decode_raw(span, placement, &worker->rows, &worker->resampler);
    case Kind::kDct:
      return worker->jpeg.decode_dct(span, placement, &worker->rows, &worker->resampler);
    case Kind::kTurned:
      return Status::kUnsupported;
    case Kind::kEncoded:
      break;
  }
  if (span.nbytes >= 2 && span.data[0] == 'B' && span.data[1] == 'M') {
    return decode_bmp(span, placement, &worker->rows, &worker->resampler);
  }
  return worker->jpeg.decode(span, placement, &worker->rows, &worker->resampler);
}

}  // namespace fastload
