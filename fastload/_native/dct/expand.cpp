// The portable expander, and the choice among all.
#include "dct/expand.h"

#include "base/simd.h"
#include "dct/block.h"
#include "dct/format.h"

namespace fastload {
namespace {

bool expand_block(const DctBlockHeader& header, int16_t dc, JCOEF* block) {
  const int width = header.width;
  const unsigned codes = (1u << width) - 1;
  // A code up to half the range is the value itself; a larger one is the value plus the range. Code 0, which
  // no non-zero coefficient needs, is the escape. In 2 bits it is -2 instead, because an escape there would
  // push too many blocks to a larger width.
  const int half = 1 << (width - 1), range = 1 << width;
  const int zero_code = width == kDctMinWidth ? -2 : 0;
  uint64_t escaped = 0;
  unsigned bit = 0;
  for (uint64_t left = header.mask; left; left &= left - 1, bit += width) {
    const int code = static_cast<int>(load_le<uint16_t>(header.values + (bit >> 3)) >> (bit & 7) & codes);
    const int value = code == 0 ? zero_code : code > half ? code - range : code;
    if (value == 0)
      escaped |= left & -left;
    else
      block[kNaturalOrder[__builtin_ctzll(left)]] = static_cast<JCOEF>(value);
  }
  block[0] = dc;
  return put_escapes(header, escaped, block, kNaturalOrder);
}

bool expand(DctCursor* cursor, const int* component, int count, JBLOCKROW* blocks) {
  return for_each_block(cursor, component, count, [&](const DctBlockHeader& header, int16_t dc, int b) {
    return expand_block(header, dc, blocks[b][0]);
  });
}

bool skip(DctCursor* cursor, const int* component, int count) {
  return for_each_block(cursor, component, count, [](const DctBlockHeader&, int16_t, int) { return true; });
}

}  // namespace

const DctExpander& dct_expander_scalar() {
  static const DctExpander kScalar = {expand, skip};
  return kScalar;
}

const DctExpander& dct_expander() {
  return FASTLOAD_IN_USE(dct_expander);
}

}  // namespace fastload
