// The parameters of a batch's samples after the first crop: pixel operations, further crop stages, erased
// rectangles.
//
// Note [Stages]
// A plain sample is one crop stage (box, resize, window, mirror), stored directly by the decoder. With
// further stages, the first one is stored as levels into a canvas instead. Each further stage reads the
// canvas after the operations before it and writes the next canvas; the last one writes through the table
// into the batch. Rectangles are erased there.
#pragma once

#include <cstdint>
#include <vector>

#include "image/placement.h"
#include "pixels/pixels.h"
#include "resample/kernels.h"
#include "resample/resample.h"
#include "resample/values.h"

namespace fastload {

// One crop stage of one sample: a window of the resized box of the canvas.
struct CropStage {
  int32_t box_x, box_y, box_w, box_h, resized_w, resized_h, window_x, window_y, flip, out_w, out_h;
};

// What one crop stage has in common for all samples.
struct StageSettings {
  int operations;  // the number of operations before it, after the stage before
  Filter filter;
  uint8_t fill[3];
};

// The drawn parameters of all samples of a batch. Empty: samples are stored as they are decoded.
struct SampleParams {
  int operations = 0, width = 0;    // operations per sample; values per operation
  std::vector<int32_t> first_size;  // (n, 2): width and height of the first crop stage
  std::vector<PixelOp> codes;       // (n, operations)
  std::vector<double> values;       // (n, operations, width)
  std::vector<CropStage> crops;     // (n, settings.size())
  std::vector<StageSettings> settings;
  resampling::ValueResize last;  // if not empty, the last crop stage resizes values; its filter is not used

  bool empty() const { return settings.empty(); }
};

constexpr int kNoiseValues = 65536;  // quantiles from which noise is drawn

struct EraseBox {
  int32_t x, y, w, h;  // w == 0: none
};

// Rectangles to erase, the same number for each sample, one after another.
struct Erasing {
  enum class Kind : uint8_t {
    kValue = 0,  // one value per channel
    kNoise = 1,  // each value is drawn from kNoiseValues of its channel
    kBits = 2,   // of each value these bits remain
  };
  struct Fill {
    Kind kind;
    size_t offset;  // in bytes, of the values of channel 0
  };
  std::vector<EraseBox> boxes;  // (n, fills.size())
  std::vector<uint64_t> keys;   // (n, fills.size()): Philox keys of the noise
  std::vector<Fill> fills;
  std::vector<uint8_t> values;  // of the output's dtype; by fill, channel and position
};

// One thread's memory for the stages of a sample.
struct Workspace {
  Canvas canvas;
  RowBuffer rows;
  resampling::AlignedBytes line;  // two rows of three planes each
  resampling::RowOutput output;
};

// Makes room for the first crop stage of sample `item`, and changes `placement` so that the decoder fills it.
// Throws std::bad_alloc.
void begin_stages(const SampleParams& params, int64_t item, Workspace* workspace, Placement* placement);

// Whether sample `item` of two batches, whose first crop stages are the same, is the same up to the second
// crop stage, and the canvas is still that after `one` has run.
bool begin_alike(const SampleParams& one, const SampleParams& other, int64_t item);

// Runs the operations and crop stages after the first one; the last one writes to `target`. begun: the canvas
// holds the image after the first operations already. False: memory ran out. Throws std::bad_alloc. The
// caller trims the canvas.
bool run_stages(const SampleParams& params, int64_t item, PassOrder order, const Target& target, bool begun,
                Workspace* workspace, Resampler* resampler);

// Erases the rectangles of sample `item` in `target`, with `channels` channels and `element` bytes per value.
void erase(const Erasing& erasing, int64_t item, const Target& target, int channels, int element);

}  // namespace fastload
