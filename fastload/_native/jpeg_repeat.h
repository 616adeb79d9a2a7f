// Small images one after the other with the same header: libjpeg is set up once for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "image.h"
#include "jpeg_decompress.h"

namespace fastload {

// Where the blocks of an image's MCUs lie.
struct CoefficientRows {
  static constexpr int kMostRows = 32;
  JBLOCKROW rows[3][kMostRows];  // of each component
  int components, mcus_per_row, mcu_rows, blocks_in_mcu;
  struct {
    int component, x, y, step_x, step_y;  // block of the first MCU; from an MCU to the next
  } at[D_MAX_BLOCKS_IN_MCU];

  void blocks_of(int mcu_row, int mcu_column, JBLOCKROW* blocks) const {
    for (int b = 0; b < blocks_in_mcu; b++)
      blocks[b] =
          rows[at[b].component][mcu_row * at[b].step_y + at[b].y] + mcu_column * at[b].step_x + at[b].x;
  }
};

// Per-thread state.
//
// Note [Repeated header]
// libjpeg's work for an image, whatever its size, is to parse the header, derive tables, and take and give
// back memory: more than decoding 32 x 32 pixels. Where files are made by one encoder their headers are the
// same bytes. Then an object is set up in libjpeg's buffered-image mode, which shows an image out of whole
// arrays of coefficients as often as it is asked: for each image the coefficients are put into those arrays
// by one of our decoders, and shown. This is libjpeg's public interface, but for the hook (libjpeg_hook.h)
// that keeps its entropy decoder from an empty scan. An image that turns out to be damaged is for the
// ordinary way, which looks at no more MCUs than are looked at here: what becomes of a file never depends on
// its neighbours.
class RepeatedHeader {
 public:
  // Pixels. Here all columns of a row are decoded, the ordinary way those of the crop: from 96 on crops lose.
  // Measured: docs/performance.md.
  static constexpr int kMostSide = 64;

  // Whether `file` begins with the header that this is set up for. `more`: bytes behind a header.
  bool ready(const uint8_t* file, size_t nbytes) const { return ready_ && begins(file, nbytes, header_); }
  size_t header_nbytes() const { return header_.size(); }

  // Whether it is for images of this size.
  static bool small(int width, int height) { return width <= kMostSide && height <= kMostSide; }

  // A file came that was not ready: once enough in a row had this header, the next will be.
  void note(const uint8_t* header, size_t nbytes);

  // The steps to decode an image. First what is needed of it: kOk, or how it ends; `*rows`: of MCUs, from the
  // first, whose blocks are to be put in; none: it is done already.
  Status begin(const Placement& placement, Resampler* resampler, int* rows);
  // Blocks of zeros, to be filled.
  const CoefficientRows& clear(int rows);
  // Then its pixels. kUnsupported: the ordinary way must be tried.
  Status show(RowBuffer* buffer, Resampler* resampler);

  j_decompress_ptr cinfo() { return &libjpeg_.cinfo; }
  void read_from(const uint8_t* data, size_t nbytes) { libjpeg_.read_from(data, nbytes); }

 private:
  static bool begins(const uint8_t* file, size_t nbytes, const std::vector<uint8_t>& header);
  bool set_up();
  bool set_up_body();
  Status show_body(RowBuffer* buffer, Resampler* resampler);
  Status guarded_show(RowBuffer* buffer, Resampler* resampler);

  Decompressor libjpeg_;
  std::vector<uint8_t> header_;     // that libjpeg is set up for, if ready_
  std::vector<uint8_t> candidate_;  // that of the last file that was not ready
  std::vector<uint8_t> stream_;     // the header and an end of image
  int sightings_ = 0;               // of the candidate in a row
  bool ready_ = false;
  CoefficientRows blocks_;
  int x0_, y0_, y1_;
};

}  // namespace fastload
