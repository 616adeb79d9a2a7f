#include "jpeg/jpeg.h"

#include <setjmp.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <jpeglib.h>

#include "dct/record.h"
#include "jpeg/decompress.h"
#include "jpeg/entropy.h"
#include "jpeg/frame_header.h"
#include "jpeg/planes.h"

namespace fastload {
namespace {

// libjpeg's fancy upsampling looks at one chroma pixel to each side, and its column crop is wrong at the
// edges of the cropped window. One pixel was enough for photographs, two-pixel windows of 4:2:0 need
// three (measured against whole decodes, see tests/native/test_jpeg.py).
constexpr int kMargin = 3;

// A cropped component of less than two columns has libjpeg choose anew how it upsamples, of each component
// by its cropped width; with less than three columns that is by repeating samples, whatever it was before.
constexpr int kLeastColumns = 3;

// Before version 3.0 libjpeg-turbo gives wrong pixels where columns are cropped of a scaled image. Our own
// entropy decoders leave those columns' coefficients zero instead.
constexpr bool kCropsScaled =
#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER >= 3000000
    true;
#else
    false;
#endif

// A file of several scans keeps all its coefficients in memory; beyond this Pillow decides.
constexpr int64_t kMaxCoefficientBytes = int64_t{256} << 20;

// Encoders write about ten scans. A bomb writes thousands of nearly empty ones, each of which costs a
// walk over the whole image.
constexpr int kMaxScans = 64;

// A longer header, with a colour profile or much about the camera, is that of one photo.
constexpr size_t kMostHeader = 4096;

void on_progress(j_common_ptr cinfo) {
  if (reinterpret_cast<j_decompress_ptr>(cinfo)->input_scan_number > kMaxScans) escape(cinfo);
}

}  // namespace

struct JpegDecoder::Impl {
  Decompressor libjpeg;
  jpeg_progress_mgr progress{};
  DctSource dct;
  EntropySource entropy;
  Planes planes;
  // Of the last file: entropy decoded it, and found damage that libjpeg must judge.
  bool own = false, damaged = false;
  bool again = false;             // see JpegDecoder::again
  bool planar = false;            // pixels came out of `planes`
  const uint8_t* data = nullptr;  // where its header ends
  // The header of the last file that was decoded without libjpeg, which has not forgotten it, and what it
  // says. Empty: none. Note [Header].
  std::vector<uint8_t> header;
  FrameHeader frame;
  std::vector<uint8_t> rebuilt;

  void forget_header() {
    if (!header.empty()) jpeg_abort_decompress(&libjpeg.cinfo);
    header.clear();
  }
};

namespace {

using Impl = JpegDecoder::Impl;

// Where coefficients come from.
enum class Entropy { kLibjpeg, kOwn, kDct };

// What one call of `guarded` works on; plain data.
struct Work {
  const Placement* placement;
  RowBuffer* rows;
  Resampler* resampler;
  Entropy entropy;  // kOwn: where it can be had
  EntropyFile file;
};

bool nothing_needed(const Resampler& resampler) {
  return resampler.need_x1() <= resampler.need_x0() || resampler.need_y1() <= resampler.need_y0();
}

// Asked for pixels down to row `last`, libjpeg looks at so many rows of MCUs, whose damage it reports, and at
// no more. Where chroma has half the rows, the last two rows of pixels of a row of MCUs wait for the next
// one.
int rows_read(const FrameHeader& frame, int last) {
  const int row = (last + (frame.v == 2 ? 2 : 0)) / frame.mcu_height();
  return std::min(row + 1, frame.mcu_rows);
}

// Pixels of a scan that `entropy` has begun with, of which something is needed.
Status show_scan(Impl* impl, const Work& work) {
  const FrameHeader& frame = impl->frame;
  impl->own = true;
  Status status = impl->planes.decode(frame, &impl->entropy, *work.placement, work.rows, work.resampler);
  if (status != Status::kIo) {
    const int last = work.placement->box_y + work.resampler->need_y1() - 1;
    impl->damaged = status != Status::kOk || impl->entropy.damaged_in(rows_read(frame, last));
  }
  return impl->damaged ? Status::kUnsupported : status;
}

// Whether every bit of every coefficient came. Where some are missing libjpeg smooths what it shows, and
// its versions do not agree on how.
bool progression_complete(const jpeg_decompress_struct& cinfo) {
  if (cinfo.coef_bits == nullptr) return true;
  for (int c = 0; c < cinfo.num_components; c++) {
    for (int k = 0; k < DCTSIZE2; k++) {
      if (cinfo.coef_bits[c][k] != 0) return false;
    }
  }
  return true;
}

int64_t coefficient_bytes(const jpeg_decompress_struct& cinfo) {
  int64_t blocks = 0;
  for (int c = 0; c < cinfo.num_components; c++) {
    blocks += static_cast<int64_t>(cinfo.comp_info[c].width_in_blocks) * cinfo.comp_info[c].height_in_blocks;
  }
  return blocks * DCTSIZE2 * static_cast<int64_t>(sizeof(JCOEF));
}

Status decode_body(Impl* impl, const Work& work) {
  jpeg_decompress_struct& cinfo = impl->libjpeg.cinfo;
  Resampler* resampler = work.resampler;
  forget_tables(&cinfo);
  if (jpeg_read_header(&cinfo, TRUE) != JPEG_HEADER_OK || !supported(cinfo)) return Status::kUnsupported;
  // A record has all tables, and a step of 0 in one is not the mark of a table that is not there.
  if (work.entropy != Entropy::kDct && !quantisation_defined(cinfo)) return Status::kUnsupported;
  const int full_width = static_cast<int>(cinfo.image_width),
            full_height = static_cast<int>(cinfo.image_height);
  if (!fits(*work.placement, full_width, full_height)) return Status::kSize;
  // From here on sizes and places are those of the scaled image.
  const int scale = scale_of(*work.placement);
  const Placement placement = scale == 1 ? *work.placement : scaled_down(*work.placement, scale);
  const int width = (full_width + scale - 1) / scale, height = (full_height + scale - 1) / scale;
  const Status begun = begin_placement(placement, width, height, resampler);
  if (begun != Status::kOk) return begun;
  if (nothing_needed(*resampler)) {
    resampler->finish();
    return Status::kOk;
  }
  const bool several_scans = jpeg_has_multiple_scans(&cinfo);
  impl->data = cinfo.src->next_input_byte;
  bool ours = work.entropy == Entropy::kOwn && !several_scans;
  if (ours && scale == 1 && codes_defined(cinfo) && Planes::usable() && frame_of(cinfo, &impl->frame)) {
    if (impl->entropy.open(&cinfo, work.file)) {
      impl->planar = true;
      return show_scan(impl, work);
    }
    ours = false;  // asked again, it would take this file for a second one with the same tables
  }
  // What is needed, then what is decoded.
  const int x0 = placement.box_x + resampler->need_x0(), x1 = placement.box_x + resampler->need_x1();
  const int y0 = placement.box_y + resampler->need_y0(), y1 = placement.box_y + resampler->need_y1();
  const int left = std::max(0, x0 - kMargin);
  const int right = std::min(width, std::max(x1 + kMargin, left + kLeastColumns * cinfo.max_h_samp_factor));
  const int top = std::max(0, y0 - kMargin);

  const int bytes = resampler->pixel_bytes();
  cinfo.out_color_space = bytes == 4 ? JCS_EXT_RGBX : JCS_RGB;
  cinfo.dct_method = JDCT_ISLOW;
  cinfo.scale_num = 1;
  cinfo.scale_denom = static_cast<unsigned>(scale);
  if (several_scans && coefficient_bytes(cinfo) > kMaxCoefficientBytes) return Status::kUnsupported;
  cinfo.progress = several_scans ? &impl->progress : nullptr;
  if (!several_scans && work.entropy != Entropy::kDct && !codes_defined(cinfo)) return Status::kUnsupported;
  if (!jpeg_start_decompress(&cinfo)) return Status::kUnsupported;
  if (several_scans && !codes_defined(cinfo)) return Status::kUnsupported;  // all scans are read by now
  if (several_scans && !progression_complete(cinfo)) return Status::kUnsupported;

  JDIMENSION crop_x = static_cast<JDIMENSION>(left), crop_w = static_cast<JDIMENSION>(right - left);
  if (right - left < width && (scale == 1 || kCropsScaled)) {
    jpeg_crop_scanline(&cinfo, &crop_x, &crop_w);
  } else {
    crop_x = 0;
  }
  const int crop_left = static_cast<int>(crop_x),
            crop_right = crop_left + static_cast<int>(cinfo.output_width);
  // Coefficients are needed for these columns of the file, whatever libjpeg makes of the others.
  const int from = std::max(crop_left, left) * scale,
            to = std::min(std::min(crop_right, right) * scale, full_width);
  const bool dct = work.entropy == Entropy::kDct;
  if (dct && !impl->dct.attach(&cinfo, from, to)) return Status::kCorrupt;
  const bool own = impl->own =
      ours && DctSource::usable() && impl->entropy.attach(&cinfo, work.file, from, to);
  if (!work.rows->reserve(static_cast<size_t>(cinfo.output_width) * static_cast<size_t>(bytes)))
    return Status::kIo;
  JSAMPROW rows[RowBuffer::kRows];
  for (int i = 0; i < RowBuffer::kRows; i++) rows[i] = work.rows->row(i);
  if (top > 0) jpeg_skip_scanlines(&cinfo, static_cast<JDIMENSION>(top));
  for (int y = top; y < y0; y++) {
    if (jpeg_read_scanlines(&cinfo, rows, 1) != 1) return Status::kUnsupported;
  }
  const uint8_t* first = rows[0] + static_cast<size_t>(x0 - crop_left) * static_cast<size_t>(bytes);
  for (int y = y0; y < y1;) {
    const JDIMENSION want = static_cast<JDIMENSION>(std::min(RowBuffer::kRows, y1 - y));
    JDIMENSION got = 0;
    while (got < want) {
      const JDIMENSION n = jpeg_read_scanlines(&cinfo, rows + got, want - got);
      if (n == 0) return Status::kUnsupported;
      got += n;
    }
    if (dct && impl->dct.corrupt()) return Status::kCorrupt;
    impl->damaged = own && impl->entropy.failed();
    if (impl->damaged) return Status::kUnsupported;
    resampler->rows(first, work.rows->stride(), static_cast<int>(want));
    y += static_cast<int>(want);
  }
  resampler->finish();
  impl->damaged = own && impl->entropy.damaged();
  return impl->damaged ? Status::kUnsupported : Status::kOk;
}

// See Note [Errors of libjpeg].
__attribute__((noinline)) Status guarded(Impl* impl, const Work& work) {
  if (setjmp(impl->libjpeg.error.escape)) return Status::kUnsupported;
  return decode_body(impl, work);
}

Status run(Impl* impl, const uint8_t* data, size_t nbytes, const Work& work) {
  if (!impl->libjpeg.usable) return Status::kUnsupported;
  impl->forget_header();
  impl->libjpeg.read_from(data, nbytes);
  impl->planar = false;
  const Status status = guarded(impl, work);
  const size_t header = static_cast<size_t>(impl->data - data);
  if (impl->planar && status == Status::kOk && header <= kMostHeader) {
    impl->header.assign(data, data + header);
    return status;
  }
  // Not jpeg_finish_decompress, which would decode the rows below the crop.
  jpeg_abort_decompress(&impl->libjpeg.cinfo);
  return status;
}

// Note [Header]
// What libjpeg does for an image whatever its size, most of which is reading its header, takes longer than
// decoding 32 x 32 pixels. Files made by one encoder have the same header, byte for byte: then what libjpeg
// has read of the one before is what it would read again.
//
// kUnsupported: the ordinary way must be tried, which has the last word on what is damaged.
Status run_again(Impl* impl, const Span& span, const Work& work) {
  if (scale_of(*work.placement) != 1) return Status::kUnsupported;
  const Status begun =
      begin_placement(*work.placement, impl->frame.width, impl->frame.height, work.resampler);
  if (begun != Status::kOk) return begun;
  if (nothing_needed(*work.resampler)) {
    work.resampler->finish();
    return Status::kOk;
  }
  const size_t header = impl->header.size();
  impl->libjpeg.read_from(span.data + header, span.nbytes - header);
  if (!impl->entropy.open(&impl->libjpeg.cinfo, work.file)) return Status::kUnsupported;
  const Status status = show_scan(impl, work);
  impl->again = status == Status::kOk;
  return status;
}

// A DCT record without libjpeg.
Status show_record(Impl* impl, const FrameHeader& frame, const Work& work) {
  const Status begun = begin_placement(*work.placement, frame.width, frame.height, work.resampler);
  if (begun != Status::kOk) return begun;
  if (!nothing_needed(*work.resampler))
    return impl->planes.decode(frame, &impl->dct, *work.placement, work.rows, work.resampler);
  work.resampler->finish();
  return Status::kOk;
}

}  // namespace

JpegDecoder::JpegDecoder() : impl_(new Impl) {
  impl_->progress.progress_monitor = on_progress;
}

JpegDecoder::~JpegDecoder() {
  delete impl_;
}

Status JpegDecoder::decode(const Span& span, const Placement& placement, RowBuffer* rows,
                           Resampler* resampler) {
  int sof = 0, width = 0, height = 0;
  if (!find_jpeg_frame(span.data, span.nbytes, &sof, &width, &height)) return Status::kUnsupported;
  // Baseline, extended and progressive Huffman: the others are lossless, hierarchical or arithmetic.
  if (sof != 0xC0 && sof != 0xC1 && sof != 0xC2) return Status::kUnsupported;
  // Whatever the crop: a file is truncated or it is not.
  if (!jpeg_ends(span.data, span.nbytes)) return Status::kUnsupported;
  const bool own = Planes::usable() || DctSource::usable();
  Work work{&placement, rows, resampler, own ? Entropy::kOwn : Entropy::kLibjpeg,
            EntropyFile{span.data, span.nbytes, span.entries}};
  impl_->own = impl_->damaged = impl_->again = false;
  Status status = Status::kUnsupported;
  const std::vector<uint8_t>& header = impl_->header;
  if (!header.empty() && Planes::usable() && span.nbytes > header.size() &&
      std::memcmp(span.data, header.data(), header.size()) == 0)
    status = run_again(impl_, span, work);
  if (status == Status::kUnsupported && !impl_->damaged) status = run(impl_, span.data, span.nbytes, work);
  if (impl_->damaged) {
    // What libjpeg makes of it counts, which may warn or go on.
    impl_->own = false;
    work.entropy = Entropy::kLibjpeg;
    status = run(impl_, span.data, span.nbytes, work);
  }
  impl_->entropy.trim();
  return status;
}

Status JpegDecoder::decode_dct(const Span& span, const Placement& placement, RowBuffer* rows,
                               Resampler* resampler) {
  Work work{&placement, rows, resampler, Entropy::kDct, {}};
  const bool planar = Planes::usable();
  if (!planar && !DctSource::usable()) {
    // A libjpeg whose entropy decoder cannot be replaced: by way of an ordinary JPEG.
    std::string why;
    if (!dct_to_jpeg(span.data, span.nbytes, &impl_->rebuilt, &why)) return Status::kCorrupt;
    work.entropy = Entropy::kLibjpeg;
    return run(impl_, impl_->rebuilt.data(), impl_->rebuilt.size(), work);
  }
  impl_->again = false;
  if (!impl_->dct.open(span.data, span.nbytes)) return Status::kCorrupt;
  const FrameHeader* frame = impl_->dct.frame();
  if (planar && frame && scale_of(placement) == 1) return show_record(impl_, *frame, work);
  size_t header_nbytes;
  const uint8_t* header = impl_->dct.header(&header_nbytes);
  const Status status = run(impl_, header, header_nbytes, work);
  // libjpeg has no reason to complain of a header we wrote: the record's values made it.
  return status == Status::kUnsupported ? Status::kCorrupt : status;
}

bool JpegDecoder::own_entropy() const {
  return impl_->own;
}

bool JpegDecoder::again() const {
  return impl_->again;
}

#define FASTLOAD_TEXT(value) #value
#define FASTLOAD_TEXT_OF(macro) FASTLOAD_TEXT(macro)

const char* jpeg_version() {
#ifdef LIBJPEG_TURBO_VERSION
  return FASTLOAD_TEXT_OF(LIBJPEG_TURBO_VERSION);
#else
  return "unknown";
#endif
}

}  // namespace fastload
