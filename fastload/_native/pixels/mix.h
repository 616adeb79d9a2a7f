// MixUp and CutMix of a batch in place: each sample with the one before it, the first with the last.
#pragma once

#include <cstddef>

namespace fastload {

// sample[i] = sample[i - 1] * before + sample[i] * own: each product and the sum rounded to float.
void mix_up(float* batch, size_t samples, size_t values, float before, float own);

// A box of one sample: pieces of `length` bytes.
struct CutMixBox {
  size_t offset;        // of the first piece, from the start of the sample
  size_t planes, rows;  // `rows` pieces in each of `planes`
  size_t plane_stride, row_stride;
  size_t length;
};

// Copies the box of sample[i - 1] to sample[i]. `stride`: bytes from sample to sample.
void cut_mix(unsigned char* batch, size_t samples, size_t stride, const CutMixBox& box);

}  // namespace fastload
