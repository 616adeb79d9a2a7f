#include "resample/formula.h"

#include <cstring>

namespace fastload::resampling {

namespace {

// What output->tables holds: the table that was looked at last, and what was found.
struct Known {
  float table[3][256];
  bool any, normalised;
  Formula formula;
};

Reciprocal reciprocal_of(float divisor) {
  const double exact = 1.0 / static_cast<double>(divisor);
  const float high = static_cast<float>(exact);
  return {high, static_cast<float>(exact - static_cast<double>(high))};
}

// The float `steps` after this one.
float after(float value, int steps) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits += steps;
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

// Fills the channel's part of a formula with this scale; false: there is none.
bool find_channel(const float* table, Gives gives, int channel, Formula* formula) {
  // The guesses are at most three roundings away.
  constexpr int kNear = 4;
  const float spread = static_cast<float>(255.0 * static_cast<double>(formula->scale.high) /
                                          (static_cast<double>(table[255]) - static_cast<double>(table[0])));
  if (!(spread > 1e-6f && spread < 1e6f)) return false;
  for (int step = 0; step <= 2 * kNear; ++step) {
    const float deviation = after(spread, step % 2 != 0 ? (step + 1) / 2 : -step / 2);
    formula->inverse[channel] = reciprocal_of(deviation);
    const float mean = -table[0] * deviation;
    for (int off = -1; off <= 1; ++off) {
      formula->mean[channel] = mean == 0.0f ? 0.0f : after(mean, off);
      if (gives(*formula, channel, table)) return true;
    }
  }
  return false;
}

bool find_formula(const float (*table)[256], Gives gives, Formula* formula) {
  // Divided by 255, multiplied by its rounded reciprocal, and levels as they are.
  const Reciprocal scales[] = {reciprocal_of(255.0f), {1.0f / 255.0f, 0.0f}, {1.0f, 0.0f}};
  for (const Reciprocal& scale : scales) {
    formula->scale = scale;
    int channel = 0;
    while (channel < 3 && find_channel(table[channel], gives, channel, formula)) ++channel;
    if (channel == 3) return true;
  }
  return false;
}

}  // namespace

bool has_formula(RowOutput* output, Gives gives) {
  Known* const known = output->tables.room_for<Known>(1);
  if (!known->any || std::memcmp(known->table, output->lut, sizeof(known->table)) != 0) {
    std::memcpy(known->table, output->lut, sizeof(known->table));
    known->any = true;
    known->normalised = find_formula(known->table, gives, &known->formula);
  }
  return known->normalised;
}

const Formula& formula_of(const RowOutput& output) {
  return output.tables.get<Known>()->formula;
}

}  // namespace fastload::resampling
