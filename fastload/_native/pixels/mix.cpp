// Sources: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018; Yun et al., "CutMix", ICCV
// 2019; pairs and arithmetic as in torchvision.transforms.v2. Goes from the last sample to the first, so that
// each sample is read before it is overwritten; a copy of the last one is kept for the first.
#include "pixels/mix.h"

#include <cstring>
#include <vector>

namespace fastload {
namespace {

// `previous` and `sample` may be the same.
void mix_sample(const float* previous, float* sample, size_t values, float before, float own) {
  for (size_t k = 0; k < values; k++) sample[k] = previous[k] * before + sample[k] * own;
}

void copy_box(const unsigned char* from, unsigned char* to, const CutMixBox& box) {
  for (size_t p = 0; p < box.planes; p++) {
    size_t at = box.offset + p * box.plane_stride;
    for (size_t y = 0; y < box.rows; y++, at += box.row_stride) std::memcpy(to + at, from + at, box.length);
  }
}

}  // namespace

void mix_up(float* batch, size_t samples, size_t values, float before, float own) {
  if (samples == 0) return;
  const float* end = batch + samples * values;
  const std::vector<float> last(end - values, end);
  for (size_t i = samples - 1; i > 0; i--)
    mix_sample(batch + (i - 1) * values, batch + i * values, values, before, own);
  mix_sample(last.data(), batch, values, before, own);
}

void cut_mix(unsigned char* batch, size_t samples, size_t stride, const CutMixBox& box) {
  if (samples < 2 || box.length == 0) return;
  const unsigned char* end = batch + samples * stride;
  const std::vector<unsigned char> last(end - stride, end);
  for (size_t i = samples - 1; i > 0; i--) copy_box(batch + (i - 1) * stride, batch + i * stride, box);
  copy_box(last.data(), batch, box);
}

}  // namespace fastload
