// Tables of float32 that arithmetic gives.
//
// Note [Normalised]
// A table of float32 is nearly always ToTensor and Normalize: level / 255, less a mean, divided by a
// deviation, each step rounded. find_formula guesses mean and deviation from the table, and keeps them if the
// steps give all 256 levels bit for bit. Then rows are computed: a table in memory costs a load for each
// value. A division is a multiplication by the reciprocal in two parts, rounded once.
#pragma once

#include "resample/kernels.h"

namespace fastload::resampling {

// A reciprocal as the sum of two numbers. Divided by it: fma(value, high, value * low).
struct Reciprocal {
  float high, low;
};

// value = (level * scale - mean) * inverse.
struct Formula {
  Reciprocal scale;
  float mean[3];
  Reciprocal inverse[3];
};

// Whether the kernels compute the 256 values of one channel's table by this formula.
using Gives = bool (*)(const Formula& formula, int channel, const float* table);

// Whether the output's lut has a formula. Looks only at a lut that differs from the one before: what was
// found is in output->tables. Throws std::bad_alloc.
bool has_formula(RowOutput* output, Gives gives);

// The formula, after has_formula.
const Formula& formula_of(const RowOutput& output);

}  // namespace fastload::resampling
