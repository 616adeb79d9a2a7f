#include "worker.h"

#include <memory>

namespace fastload {

Worker& worker() {
  static thread_local std::unique_ptr<Worker> mine;
  if (!mine) mine = std::make_unique<Worker>();
  return *mine;
}

Status decode_span(const Span& span, Kind kind, const Placement& placement, Worker* worker) {
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
