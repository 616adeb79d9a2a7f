#include "jpeg/entropy_table.h"

#include <algorithm>
#include <cstring>

namespace fastload {
namespace {

constexpr int kMaxDcSize = 11, kMaxAcSize = 10;
constexpr int kZeroRun = 0xF0;  // sixteen zeros

// The largest advance of a skip entry, unless it contains an end of block: an index of kEndOfBlock or more
// must mean such an end.
constexpr int kMaxAdvance = kEndOfBlock - 63;

bool baseline(int symbol, bool ac) {
  const int size = symbol & 15;
  if (!ac) return symbol <= kMaxDcSize;
  return size == 0 ? symbol == 0 || symbol == kZeroRun : size <= kMaxAcSize;
}

// Fills the entries for all values of a symbol whose code is followed by `free` bits. The value comes first
// in those.
void put_alone(int symbol, int length, int free, bool ac, uint32_t* entries) {
  const int size = symbol & 15;
  if (size > free || (ac && size > SymbolPair::kMaxSize)) {
    std::fill_n(entries, 1 << free, 0u);
    return;
  }
  const int advance = huffman_advance(symbol), first_advance = symbol == 0 ? 1 : advance;
  for (int v = 0; v < 1 << size; v++) {
    const int value = size == 0 || v >> (size - 1) ? v : v + 1 - (1 << size);  // F.2.2.1, EXTEND
    const uint32_t entry = ac ? SymbolPair::pack(length + size, advance, first_advance, value, value)
                              : SymbolPair::pack_dc(length + size, value);
    std::fill_n(entries + (v << (free - size)), 1 << (free - size), entry);
  }
}

}  // namespace

bool HuffmanTable::Code::is(const JHUFF_TBL& table, bool with_ac) const {
  return ac == with_ac && std::memcmp(counts, table.bits, sizeof(counts)) == 0 &&
         std::memcmp(symbols, table.huffval, sizeof(symbols)) == 0;
}

bool HuffmanTable::build(const JHUFF_TBL& table, bool ac, Effort effort) {
  const int shift = 64 - (effort == kWide ? kWideBits : kBits);
  // A table that is wider than necessary is kept.
  if (built_ && shift_ <= shift && code_.is(table, ac)) return true;
  const bool wanted = effort != kLazy || refused_.is(table, ac);
  Code& code = wanted ? code_ : refused_;
  code.ac = ac;
  std::memcpy(code.counts, table.bits, sizeof(code.counts));
  std::memcpy(code.symbols, table.huffval, sizeof(code.symbols));
  if (!wanted) return false;
  shift_ = shift;
  built_ = fill();
  return built_;
}

bool HuffmanTable::fill() {
  const int bits = 64 - shift_, entries = 1 << bits;
  uint32_t alone[kMostEntries];  // as pairs_, but with one symbol each
  // Codes of one length are consecutive numbers, so the entries are filled in order, without gaps.
  int code = 0, index = 0, filled = 0;
  for (int length = 1; length <= 16; length++, code <<= 1) {
    const int count = code_.counts[length];
    if (index + count > 256 || code + count > 1 << length) return false;
    offset_[length] = index - code;
    for (int i = 0; i < count; i++, index++, code++) {
      const int symbol = code_.symbols[index];
      if (!baseline(symbol, code_.ac)) return false;
      if (length > bits) continue;
      const int free = bits - length;
      std::fill_n(first_ + filled, 1 << free, static_cast<uint16_t>(length << 8 | symbol));
      put_alone(symbol, length, free, code_.ac, alone + filled);
      filled += 1 << free;
    }
    last_[length] = count ? code - 1 : -1;
  }
  std::fill(first_ + filled, first_ + entries, uint16_t{0});
  std::fill(alone + filled, alone + entries, 0u);
  if (code_.ac) {
    pair_up(alone);
  } else {
    std::copy_n(alone, entries, pairs_);
  }
  return true;
}

void HuffmanTable::pair_up(const uint32_t* alone) {
  const int width = 64 - shift_, entries = 1 << width;
  const auto behind = [entries](int bits, int used) { return bits << used & (entries - 1); };
  for (int i = 0; i < entries; i++) {
    const uint32_t one = alone[i];
    const int nbits = SymbolPair::nbits(one), advance = static_cast<int>(SymbolPair::advance(one));
    const uint32_t two = alone[behind(i, nbits)];
    const int both = nbits + SymbolPair::nbits(two);
    const bool pair = one != 0 && two != 0 && both <= width && advance < kEndOfBlock;
    const uint32_t joined = SymbolPair::pack(both, advance + static_cast<int>(SymbolPair::advance(two)),
                                             static_cast<int>(SymbolPair::first_advance(one)),
                                             SymbolPair::value(two), SymbolPair::first_value(one));
    pairs_[i] = pair ? joined : one;
  }
  for (int i = 0; i < entries; i++) {
    const uint32_t known = pairs_[i];
    const int nbits = SymbolPair::nbits(known), advance = static_cast<int>(SymbolPair::advance(known));
    const int next = first_[behind(i, nbits)], length = next >> 8, symbol = next & 255;
    const int further = huffman_advance(symbol);
    const bool more = next != 0 && length <= width - nbits && advance < kEndOfBlock &&
                      (symbol == 0 || advance + further <= kMaxAdvance);
    const int all_nbits = nbits + (more ? length + (symbol & 15) : 0);
    const int all_advance = advance + (more ? further : 0);
    skips_[i] = static_cast<uint16_t>(all_nbits | all_advance << 6);
  }
}

HuffmanSymbol HuffmanTable::find_long(uint64_t bits) const {
  const int next = static_cast<int>(bits >> 48);
  for (int length = 64 - shift_ + 1; length <= 16; length++) {
    const int code = next >> (16 - length);
    if (code <= last_[length]) return symbol(code_.symbols[(code + offset_[length]) & 255], length);
  }
  return {0, 0, 0};
}

}  // namespace fastload
