// What becomes of an image behind its first frame: operations on pixels, further frames, erased rectangles.
//
// Note [Stages]
// A plain sample is one frame (box, resize, window, mirror), stored straight out of the decoder. With a
// recipe the first frame is stored as levels into a canvas instead. Each further frame takes the canvas,
// after the operations before it, to the next canvas, the last one through the table into the batch.
// Rectangles are erased there.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/image.h"
#include "pixels/pixels.h"
#include "resample/kernels.h"
#include "resample/resample.h"

namespace fastload {

// One frame of one sample: a window of the resized box of the canvas.
struct CropStage {
  int32_t box_x, box_y, box_w, box_h, resized_w, resized_h, window_x, window_y, flip, out_w, out_h;
};

// What a frame has in common for all samples.
struct StageSettings {
  int operations;  // that come before it, and behind the frame before
  Filter filter;
  uint8_t fill[3];
};

// Of all samples of a batch. Empty: samples are stored as they are decoded.
struct Recipe {
  int operations = 0, width = 0;    // of each sample; values of each operation
  std::vector<int32_t> first_size;  // (n, 2): width and height of the first frame
  std::vector<PixelOp> codes;       // (n, operations)
  std::vector<double> values;       // (n, operations, width)
  std::vector<CropStage> frames;    // (n, settings.size())
  std::vector<StageSettings> settings;

  bool empty() const { return settings.empty(); }
};

constexpr int kNoiseValues = 65536;  // quantiles that noise is taken from

struct EraseBox {
  int32_t x, y, w, h;  // none where w is 0
};

// Rectangles, the same number of each sample, erased one after the other.
struct Erasing {
  struct Fill {
    bool noise;     // each value one of kNoiseValues of its channel, else one value a channel
    size_t offset;  // of the values of channel 0, in bytes
  };
  std::vector<EraseBox> boxes;  // (n, fills.size())
  std::vector<uint64_t> keys;   // (n, fills.size()): of Philox, where there is noise
  std::vector<Fill> fills;
  std::vector<uint8_t> values;  // of the output's dtype, by fill, channel and position
};

// A canvas and what is needed to take it through a recipe. One per thread.
struct Workspace {
  Canvas canvas;
  RowBuffer rows;
  resampling::AlignedBytes line;  // three planes of one row
  resampling::RowOutput output;
};

// Room for the first frame of sample `item`; `placement` is changed so that the decoder fills it.
// Throws std::bad_alloc.
void begin_recipe(const Recipe& recipe, int64_t item, Workspace* kitchen, Placement* placement);

// The operations and frames behind the first, the last one into `target`. False where memory ran out.
// Throws std::bad_alloc.
bool finish_recipe(const Recipe& recipe, int64_t item, PassOrder order, const Target& target,
                   Workspace* kitchen, Resampler* resampler);

// Erases the rectangles of sample `item` in `target`, of `channels` channels and `element` bytes a value.
void erase(const Erasing& erasing, int64_t item, const Target& target, int channels, int element);

}  // namespace fastload
