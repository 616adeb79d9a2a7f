#include "jpeg/jpeg.h"

#include <setjmp.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <jpeglib.h>

#include "dct/record.h"
#include "image/header.h"
#include "jpeg/decompress.h"
#include "jpeg/entropy.h"
#include "jpeg/frame_header.h"
#include "jpeg/planes.h"

namespace fastload {
namespace {

// libjpeg's fancy upsampling uses one chroma pixel on each side, and its column crop is wrong at the edges of
// the cropped window. One pixel was enough for photographs; two-pixel windows of 4:2:0 need three (measured
// against whole decodes, see tests/native/test_jpeg.py).
constexpr int kMargin = 3;

// If a crop leaves a component fewer than two columns, libjpeg chooses its upsampling again from the cropped
// width; with fewer than three columns it repeats samples, whatever it did before.
constexpr int kLeastColumns = 3;

// Before version 3.0, libjpeg-turbo gives wrong pixels if columns are cropped from a scaled image. Our own
// entropy decoders leave the coefficients of those columns zero instead.
constexpr bool kCropsScaled =
#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER >= 3000000
    true;
#else
    false;
#endif

// A file of several scans keeps all its coefficients in memory; if they take more than this, Pillow decides.
constexpr int64_t kMaxCoefficientBytes = int64_t{256} << 20;

// Encoders write about ten scans. A decompression bomb has thousands of nearly empty ones, each of which
// costs a pass over the whole image.
constexpr int kMaxScans = 64;

// Longer headers (a colour profile, camera metadata) are unlikely to repeat.
constexpr size_t kMostHeader = 4096;

void on_progress(j_common_ptr cinfo) {
  if (reinterpret_cast<j_decompress_ptr>(cinfo)->input_scan_number > kMaxScans) escape(cinfo);
}

}  // namespace

struct JpegDecoder::Impl {
  Decompressor libjpeg;
  jpeg_progress_mgr progress{};
  DctSource dct;
  EntropyDecoder entropy;
  PlaneDecoder planes;
  // About the last file: our Huffman decoder decoded it, and found damage that libjpeg must judge.
  bool own_decoder = false, damaged = false;
  bool reused_header = false;           // see JpegDecoder::reused_header
  bool planar = false;                  // `planes` made the pixels
  const uint8_t* header_end = nullptr;  // the end of its header
  // The header of the last file that was decoded without libjpeg, and what it says; libjpeg still has the
  // tables from it. Empty: none. Note [Header].
  std::vector<uint8_t> known_header;
  FrameHeader frame;
  std::vector<uint8_t> rebuilt;  // a JPEG file made from a DCT record

  void forget_header() {
    if (!known_header.empty()) jpeg_abort_decompress(&libjpeg.cinfo);
    known_header.clear();
  }
};

namespace {

using Impl = JpegDecoder::Impl;

// What decodes the coefficients.
enum class CoefficientsFrom { kLibjpeg, kOwn, kDct };

// The arguments of one call of `guarded`; plain data.
struct DecodeCall {
  const Placement* placement;
  RowBuffer* rows;
  Resampler* resampler;
  CoefficientsFrom from;  // kOwn: if our decoder supports the file
  EntropyFile file;
};

bool nothing_needed(const Resampler& resampler) {
  return resampler.need_x1() <= resampler.need_x0() || resampler.need_y1() <= resampler.need_y0();
}

// The number of rows of MCUs that libjpeg reads, and whose damage it reports, for pixels down to row `last`.
// If chroma has half the rows, the last two rows of pixels of a row of MCUs wait for the next one.
int rows_read(const FrameHeader& frame, int last) {
  const int row = (last + (frame.v == 2 ? 2 : 0)) / frame.mcu_height();
  return std::min(row + 1, frame.mcu_rows);
}

// Makes the pixels of a scan that `entropy` has opened and of which something is needed.
Status decode_scan(Impl* impl, const DecodeCall& call) {
  const FrameHeader& frame = impl->frame;
  impl->own_decoder = true;
  Status status = impl->planes.decode(frame, &impl->entropy, *call.placement, call.rows, call.resampler);
  if (status != Status::kIo) {
    const int last = call.placement->box_y + call.resampler->need_y1() - 1;
    impl->damaged = status != Status::kOk || impl->entropy.damaged_in(rows_read(frame, last));
  }
  return impl->damaged ? Status::kUnsupported : status;
}

// Whether every bit of every coefficient was sent. If not, libjpeg smooths the image, and its versions do not
// agree on how.
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

Status decode_body(Impl* impl, const DecodeCall& call) {
  jpeg_decompress_struct& cinfo = impl->libjpeg.cinfo;
  Resampler* resampler = call.resampler;
  forget_tables(&cinfo);
  if (jpeg_read_header(&cinfo, TRUE) != JPEG_HEADER_OK || !supported(cinfo)) return Status::kUnsupported;
  // A record has all its tables, and there a quantiser of 0 does not mean that the table is missing.
  if (call.from != CoefficientsFrom::kDct && !quantisation_defined(cinfo)) return Status::kUnsupported;
  const int full_width = static_cast<int>(cinfo.image_width),
            full_height = static_cast<int>(cinfo.image_height);
  if (!fits(*call.placement, full_width, full_height)) return Status::kSize;
  // From here on, sizes and positions refer to the scaled image.
  const int scale = scale_of(*call.placement);
  const Placement placement = scale == 1 ? *call.placement : scaled_down(*call.placement, scale);
  const int width = (full_width + scale - 1) / scale, height = (full_height + scale - 1) / scale;
  const Status status = begin_placement(placement, width, height, resampler);
  if (status != Status::kOk) return status;
  if (nothing_needed(*resampler)) {
    resampler->finish();
    return Status::kOk;
  }
  const bool several_scans = jpeg_has_multiple_scans(&cinfo);
  impl->header_end = cinfo.src->next_input_byte;
  const size_t codes_nbytes = cinfo.src->bytes_in_buffer;
  bool ours = call.from == CoefficientsFrom::kOwn && !several_scans;
  if (ours && scale == 1 && codes_defined(cinfo) && PlaneDecoder::usable() &&
      read_frame_header(cinfo, &impl->frame)) {
    if (impl->entropy.open(&cinfo, call.file)) {
      impl->planar = true;
      return decode_scan(impl, call);
    }
    ours = false;  // a second request would count as a second file with the same tables
  }
  // First the pixels that are needed, then the larger part that is decoded.
  const int x0 = placement.box_x + resampler->need_x0(), x1 = placement.box_x + resampler->need_x1();
  const int y0 = placement.box_y + resampler->need_y0(), y1 = placement.box_y + resampler->need_y1();
  const int left = std::max(0, x0 - kMargin);
  const int right = std::min(width, std::max(x1 + kMargin, left + kLeastColumns * cinfo.max_h_samp_factor));
  const int top = std::max(0, y0 - kMargin);

  cinfo.out_color_space = JCS_RGB;
  cinfo.dct_method = JDCT_ISLOW;
  cinfo.scale_num = 1;
  cinfo.scale_denom = static_cast<unsigned>(scale);
  if (several_scans && coefficient_bytes(cinfo) > kMaxCoefficientBytes) return Status::kUnsupported;
  cinfo.progress = several_scans ? &impl->progress : nullptr;
  if (!several_scans && call.from != CoefficientsFrom::kDct && !codes_defined(cinfo))
    return Status::kUnsupported;
  if (!jpeg_start_decompress(&cinfo)) return Status::kUnsupported;
  if (several_scans && !codes_defined(cinfo)) return Status::kUnsupported;  // now all scans have been read
  if (several_scans && !progression_complete(cinfo)) return Status::kUnsupported;

  JDIMENSION crop_x = static_cast<JDIMENSION>(left), crop_w = static_cast<JDIMENSION>(right - left);
  if (right - left < width && (scale == 1 || kCropsScaled)) {
    jpeg_crop_scanline(&cinfo, &crop_x, &crop_w);
  } else {
    crop_x = 0;
  }
  const int crop_left = static_cast<int>(crop_x),
            crop_right = crop_left + static_cast<int>(cinfo.output_width);
  // Coefficients are needed only for these columns of the file, whatever else libjpeg converts.
  const int from = std::max(crop_left, left) * scale,
            to = std::min(std::min(crop_right, right) * scale, full_width);
  const bool dct = call.from == CoefficientsFrom::kDct;
  if (dct && !impl->dct.attach(&cinfo, from, to)) return Status::kCorrupt;
  const bool own = impl->own_decoder =
      ours && DctSource::usable() && impl->entropy.attach(&cinfo, call.file, from, to);
  // Our own decoder has the same rule. Files of several scans have been read to their end.
  if (!own && !dct && !several_scans && !jpeg_scan_ends(impl->header_end, codes_nbytes))
    return Status::kUnsupported;
  if (!call.rows->reserve(static_cast<size_t>(cinfo.output_width) * 3)) return Status::kIo;
  JSAMPROW rows[RowBuffer::kRows];
  for (int i = 0; i < RowBuffer::kRows; i++) rows[i] = call.rows->row(i);
  if (top > 0) jpeg_skip_scanlines(&cinfo, static_cast<JDIMENSION>(top));
  for (int y = top; y < y0; y++) {
    if (jpeg_read_scanlines(&cinfo, rows, 1) != 1) return Status::kUnsupported;
  }
  const uint8_t* first = rows[0] + static_cast<size_t>(x0 - crop_left) * 3;
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
    resampler->rows(first, call.rows->stride(), static_cast<int>(want));
    y += static_cast<int>(want);
  }
  resampler->finish();
  impl->damaged = own && impl->entropy.damaged();
  return impl->damaged ? Status::kUnsupported : Status::kOk;
}

// See Note [Errors of libjpeg].
__attribute__((noinline)) Status guarded(Impl* impl, const DecodeCall& call) {
  if (setjmp(impl->libjpeg.error.escape)) return Status::kUnsupported;
  return decode_body(impl, call);
}

Status run(Impl* impl, const uint8_t* data, size_t nbytes, const DecodeCall& call) {
  if (!impl->libjpeg.usable) return Status::kUnsupported;
  impl->forget_header();
  impl->libjpeg.read_from(data, nbytes);
  impl->planar = false;
  impl->header_end = data;
  const Status status = guarded(impl, call);
  const size_t header = static_cast<size_t>(impl->header_end - data);
  if (impl->planar && status == Status::kOk && header <= kMostHeader) {
    impl->known_header.assign(data, data + header);
    return status;
  }
  // Not jpeg_finish_decompress, which would decode the rows below the crop.
  jpeg_abort_decompress(&impl->libjpeg.cinfo);
  return status;
}

// Note [Header]
// libjpeg's fixed cost per image, mostly for reading the header, exceeds the time to decode 32 x 32 pixels.
// Files made by one encoder have the same header, byte for byte: then libjpeg would read again what it has
// from the image before.
//
// kUnsupported: decode in the ordinary way, which decides whether the file is damaged.
Status decode_with_known_header(Impl* impl, const Span& span, const DecodeCall& call) {
  if (scale_of(*call.placement) != 1) return Status::kUnsupported;
  Status status = begin_placement(*call.placement, impl->frame.width, impl->frame.height, call.resampler);
  if (status != Status::kOk) return status;
  if (nothing_needed(*call.resampler)) {
    call.resampler->finish();
    return Status::kOk;
  }
  const size_t header = impl->known_header.size();
  impl->libjpeg.read_from(span.data + header, span.nbytes - header);
  if (!impl->entropy.open(&impl->libjpeg.cinfo, call.file)) return Status::kUnsupported;
  status = decode_scan(impl, call);
  impl->reused_header = status == Status::kOk;
  return status;
}

// Decodes a DCT record without libjpeg.
Status decode_record(Impl* impl, const FrameHeader& frame, const DecodeCall& call) {
  const Status status = begin_placement(*call.placement, frame.width, frame.height, call.resampler);
  if (status != Status::kOk) return status;
  if (!nothing_needed(*call.resampler))
    return impl->planes.decode(frame, &impl->dct, *call.placement, call.rows, call.resampler);
  call.resampler->finish();
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
  // Baseline, extended and progressive Huffman; the others are lossless, hierarchical or arithmetic.
  if (sof != 0xC0 && sof != 0xC1 && sof != 0xC2) return Status::kUnsupported;
  // Checked for every crop, so that the result for a truncated file does not depend on the crop.
  if (!jpeg_ends(span.data, span.nbytes)) return Status::kUnsupported;
  const bool own = PlaneDecoder::usable() || DctSource::usable();
  DecodeCall call{&placement, rows, resampler, own ? CoefficientsFrom::kOwn : CoefficientsFrom::kLibjpeg,
                  EntropyFile{span.data, span.nbytes, span.entries}};
  impl_->own_decoder = impl_->damaged = impl_->reused_header = false;
  Status status = Status::kUnsupported;
  const std::vector<uint8_t>& header = impl_->known_header;
  if (!header.empty() && PlaneDecoder::usable() && span.nbytes > header.size() &&
      std::memcmp(span.data, header.data(), header.size()) == 0)
    status = decode_with_known_header(impl_, span, call);
  if (status == Status::kUnsupported && !impl_->damaged) status = run(impl_, span.data, span.nbytes, call);
  if (impl_->damaged) {
    // libjpeg decides: it may warn or accept the file.
    impl_->own_decoder = false;
    call.from = CoefficientsFrom::kLibjpeg;
    status = run(impl_, span.data, span.nbytes, call);
  }
  impl_->entropy.trim();
  return status;
}

Status JpegDecoder::decode_dct(const Span& span, const Placement& placement, RowBuffer* rows,
                               Resampler* resampler) {
  DecodeCall call{&placement, rows, resampler, CoefficientsFrom::kDct, {}};
  const bool planar = PlaneDecoder::usable();
  if (!planar && !DctSource::usable()) {
    // This libjpeg's entropy decoder cannot be replaced: decode an ordinary JPEG made from the record.
    std::string why;
    if (!dct_to_jpeg(span.data, span.nbytes, &impl_->rebuilt, &why)) return Status::kCorrupt;
    call.from = CoefficientsFrom::kLibjpeg;
    return run(impl_, impl_->rebuilt.data(), impl_->rebuilt.size(), call);
  }
  impl_->reused_header = false;
  if (!impl_->dct.open(span.data, span.nbytes)) return Status::kCorrupt;
  const FrameHeader* frame = impl_->dct.frame_header();
  if (planar && frame && scale_of(placement) == 1) return decode_record(impl_, *frame, call);
  size_t header_nbytes;
  const uint8_t* header = impl_->dct.jpeg_header(&header_nbytes);
  const Status status = run(impl_, header, header_nbytes, call);
  // libjpeg cannot object to a header that we wrote, so the record's values are at fault.
  return status == Status::kUnsupported ? Status::kCorrupt : status;
}

bool JpegDecoder::own_entropy() const {
  return impl_->own_decoder;
}

bool JpegDecoder::reused_header() const {
  return impl_->reused_header;
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
