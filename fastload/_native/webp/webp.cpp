#include "webp/webp.h"

#include <algorithm>

#include "base/limits.h"
#include "image/uncompressed.h"
#include "io/crc32c.h"

#ifdef FASTLOAD_LIBWEBP

#include <webp/decode.h>
#include <webp/demux.h>

#include <atomic>

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

// A rectangle of an image, in pixels.
struct Part {
  int x, y, w, h;
};

// What is decoded. libwebp interpolates colours between neighbours, and repeats the last one at the edge of
// what it decodes; a margin keeps that outside what is needed. It starts at even pixels.
Part part_of(const Placement& placement, const Resampler& resampler, int width, int height) {
  constexpr int kMargin = 4;
  const auto first = [](int at) { return std::max(at - kMargin, 0) & ~1; };
  const int x = first(placement.box_x + resampler.need_x0()),
            y = first(placement.box_y + resampler.need_y0());
  return {x, y, std::min(placement.box_x + resampler.need_x1() + kMargin, width) - x,
          std::min(placement.box_y + resampler.need_y1() + kMargin, height) - y};
}

// Files that were decoded to their last row, by size and CRC32C. Pillow decodes whole files, and raises for
// damage anywhere; libwebp stops below a crop, which saves a third of the time. So the first crop of a file
// goes on to the end.
class KnownSound {
 public:
  explicit KnownSound(const Span& span) : sum_(crc32c(0, span.data, span.nbytes)) {
    const uint64_t key = (uint64_t{span.nbytes} << 32 | sum_) * 0x9E3779B97F4A7C15;
    place_ = &kPlaces[key >> (64 - kBits)];
  }
  explicit operator bool() const { return sum_ != 0 && place_->load(std::memory_order_relaxed) == sum_; }
  void note() { place_->store(sum_, std::memory_order_relaxed); }

 private:
  static constexpr int kBits = 21;  // 8 MB of memory that is taken as it is written to
  static inline std::atomic<uint32_t> kPlaces[size_t{1} << kBits];
  uint32_t sum_;
  std::atomic<uint32_t>* place_;
};

}  // namespace

Status WebpDecoder::decode(const Span& span, const Placement& placement, RowBuffer* rows,
                           Resampler* resampler) {
  const Frame frame(span);
  if (!frame.whole()) return Status::kUnsupported;
  const WebPData& data = frame.get().fragment;
  WebPDecoderConfig config;
  // Pillow asks this of the whole file too, which finds headers that the demuxer lets pass.
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(span.data, span.nbytes, &features) != VP8_STATUS_OK) return Status::kUnsupported;
  if (!WebPInitDecoderConfig(&config) ||
      WebPGetFeatures(data.bytes, data.size, &config.input) != VP8_STATUS_OK) {
    return Status::kUnsupported;
  }
  const int width = config.input.width, height = config.input.height;
  if (width != frame.get().width || height != frame.get().height || config.input.has_animation ||
      int64_t{width} * height > kMaxPixels) {
    return Status::kUnsupported;
  }
  Status status = begin_placement(placement, width, height, resampler);
  if (status != Status::kOk) return status;
  Part part = part_of(placement, *resampler, width, height);
  KnownSound sound(span);
  if (!sound) part.h = height - part.y;
  // Alpha is decoded too, because Pillow refuses a file in which it is damaged.
  const int bytes = config.input.has_alpha ? 4 : 3;
  const size_t stride = static_cast<size_t>(part.w) * static_cast<size_t>(bytes);
  const size_t nbytes = stride * static_cast<size_t>(part.h);
  uint8_t* const pixels = pixels_.reserve(nbytes);
  if (pixels == nullptr) return Status::kIo;
  config.options.use_cropping = part.w < width || part.h < height;
  config.options.crop_left = part.x;
  config.options.crop_top = part.y;
  config.options.crop_width = part.w;
  config.options.crop_height = part.h;
  config.output.colorspace = bytes == 4 ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = pixels;
  config.output.u.RGBA.stride = static_cast<int>(stride);
  config.output.u.RGBA.size = nbytes;
  const VP8StatusCode decoded = WebPDecode(data.bytes, data.size, &config);
  WebPFreeDecBuffer(&config.output);
  status = Status::kUnsupported;
  if (decoded == VP8_STATUS_OK) {
    if (part.y + part.h == height) sound.note();
    Placement moved = placement;
    moved.box_x -= part.x;
    moved.box_y -= part.y;
    status = feed_pixels(pixels, static_cast<ptrdiff_t>(stride), bytes, pixels + nbytes + Scratch::kSlack,
                         moved, rows, resampler);
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
