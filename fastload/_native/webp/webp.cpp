#include "webp/webp.h"

#include "base/limits.h"
#include "image/uncompressed.h"

#ifdef FASTLOAD_LIBWEBP

#include <webp/decode.h>
#include <webp/demux.h>

namespace fastload {
namespace {

// The one frame of a file that is not animated, and what must be freed.
class Frame {
 public:
  explicit Frame(const Span& span) {
    const WebPData data{span.data, span.nbytes};
    demuxer_ = WebPDemux(&data);
    if (demuxer_ == nullptr) return;
    found_ = (WebPDemuxGetI(demuxer_, WEBP_FF_FORMAT_FLAGS) & ANIMATION_FLAG) == 0 &&
             WebPDemuxGetI(demuxer_, WEBP_FF_FRAME_COUNT) == 1 && WebPDemuxGetFrame(demuxer_, 1, &frame_);
  }
  ~Frame() {
    WebPDemuxReleaseIterator(&frame_);
    WebPDemuxDelete(demuxer_);
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  // Whether there is one, whole and as large as the image.
  bool whole() const {
    return found_ && frame_.complete && frame_.x_offset == 0 && frame_.y_offset == 0 &&
           static_cast<uint32_t>(frame_.width) == WebPDemuxGetI(demuxer_, WEBP_FF_CANVAS_WIDTH) &&
           static_cast<uint32_t>(frame_.height) == WebPDemuxGetI(demuxer_, WEBP_FF_CANVAS_HEIGHT);
  }
  const WebPIterator& get() const { return frame_; }

 private:
  WebPDemuxer* demuxer_ = nullptr;
  WebPIterator frame_{};
  bool found_ = false;
};

}  // namespace

Status WebpDecoder::decode(const Span& span, const Placement& placement, RowBuffer* rows,
                           Resampler* resampler) {
  const Frame frame(span);
  if (!frame.whole()) return Status::kUnsupported;
  const WebPData& data = frame.get().fragment;
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config) ||
      WebPGetFeatures(data.bytes, data.size, &config.input) != VP8_STATUS_OK) {
    return Status::kUnsupported;
  }
  const int width = config.input.width, height = config.input.height;
  if (width != frame.get().width || height != frame.get().height || config.input.has_animation ||
      int64_t{width} * height > kMaxPixels) {
    return Status::kUnsupported;
  }
  if (!fits(placement, width, height)) return Status::kSize;
  // Alpha is decoded too, because Pillow refuses a file in which it is damaged.
  const int bytes = config.input.has_alpha ? 4 : 3;
  const size_t stride = static_cast<size_t>(width) * static_cast<size_t>(bytes);
  const size_t nbytes = stride * static_cast<size_t>(height);
  uint8_t* const pixels = pixels_.reserve(nbytes);
  if (pixels == nullptr) return Status::kIo;
  config.output.colorspace = bytes == 4 ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = pixels;
  config.output.u.RGBA.stride = static_cast<int>(stride);
  config.output.u.RGBA.size = nbytes;
  const VP8StatusCode decoded = WebPDecode(data.bytes, data.size, &config);
  WebPFreeDecBuffer(&config.output);
  Status status = Status::kUnsupported;
  if (decoded == VP8_STATUS_OK) {
    status = feed_pixels(pixels, width, height, bytes, nbytes + Scratch::kSlack, placement, rows, resampler);
  }
  pixels_.trim();
  return status;
}

int webp_library() {
  return WebPGetDecoderVersion();
}

}  // namespace fastload

#else

namespace fastload {

Status WebpDecoder::decode(const Span&, const Placement&, RowBuffer*, Resampler*) {
  return Status::kUnsupported;
}

int webp_library() {
  return 0;
}

}  // namespace fastload

#endif
