// PNG files, decoded without Pillow.
//
// What it does. PngDecoder decodes the box of a PNG into its sample. chunks.h reads the chunks and judges
// them as Pillow does, inflate.h calls libdeflate, unfilter.h undoes the filters of rows, expand.h turns rows
// of every colour type into RGB. Without libdeflate at build time every file is kUnsupported.
//
// Guarantees
//   exactness      what Pillow's Image.open(file).convert("RGB") gives, bit for bit; a file that Pillow
//                  refuses, or may read in another way, is kUnsupported, whatever the crop: all of the data
//                  is inflated and its Adler-32 is compared. The one exception is a stream whose Adler-32 is
//                  right although its Huffman codes are ones that zlib refuses: codes which DEFLATE reserves
//                  and, before libdeflate 1.16, more code lengths than the block announces
//   bounds         every length of a file is checked before it is used; an image above kMaxPixels is
//                  kUnsupported, and so is one that its data cannot fill
//   errors         results are a Status; nothing throws but std::bad_alloc
//   thread safety  a PngDecoder belongs to one thread
//   ownership      the caller owns spans and targets
//
// Tests: tests/native/test_png.py, test_png_oddities.py, test_fuzz.py (fuzz_png.cpp).
//
// Source of the format: PNG specification, third edition (W3C). Of the conversions and of what is refused:
// Pillow, PngImagePlugin.py, ZipDecode.c, Unpack.c and Convert.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "image/placement.h"
#include "io/files.h"
#include "png/chunks.h"
#include "png/inflate.h"
#include "resample/resample.h"

namespace fastload {

bool is_png(const uint8_t* data, size_t nbytes);

// Decodes one image after another; its memory is reused.
class PngDecoder {
 public:
  Status decode(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler);

  // The whole image as Pillow's np.asarray(image) has it, if that is uint8 with one channel: indices of a
  // palette, or gray levels, row by row. kUnsupported: another kind of image.
  Status decode_levels(const Span& span, std::vector<uint8_t>* levels, int* width, int* height);

  // Reads a file whose rows copy_rows() gives: `nbytes` in all. kUnsupported: interlaced, too.
  Status read_rows(const Span& span, size_t* nbytes);
  // The samples of each row as the file has them, without the byte of its filter.
  Status copy_rows(uint8_t* to);

 private:
  Status inflate();
  // Calls use(row) for every row of an image that is not interlaced, inflated.
  template <typename Use>
  void each_whole_row(uint8_t* lines, Use use) const;
  void trim();

  PngFile file_;
  Inflater inflater_;
  Scratch joined_;              // the data of several chunks in one piece
  Scratch raw_;                 // what it inflates to: filtered rows
  Scratch lines_;               // rows without their filters
  std::vector<uint8_t> image_;  // RGB pixels of an interlaced image
};

// The version of libdeflate, or nullptr: the core was built without it.
const char* png_library();

}  // namespace fastload
