#include "entropy_table.h"

#include <algorithm>
#include <cstring>

namespace fastload {
namespace {

constexpr int kMaxDcSize = 11, kMaxAcSize = 10;
constexpr int kZeroRun = 0xF0;  // sixteen zeros

bool baseline(int symbol, bool ac) {
  const int size = symbol & 15;
  if (!ac) return symbol <= kMaxDcSize;
  return size == 0 ? symbol == 0 || symbol == kZeroRun : size <= kMaxAcSize;
}

constexpr uint64_t whole_entry(int length, int advance, int first_advance, int value, int first_value) {
  return static_cast<uint64_t>(length) | static_cast<uint64_t>(advance) << 8 |
         static_cast<uint64_t>(first_advance) << 16 |
         static_cast<uint64_t>(static_cast<uint16_t>(value)) << 32 |
         static_cast<uint64_t>(static_cast<uint16_t>(first_value)) << 48;
}

}  // namespace

HuffmanSymbol HuffmanTable::symbol(int value, int length) const {
  const int size = value & 15;
  const int advance = !ac_ ? 0 : value == 0 ? kEndOfBlock : (value >> 4) + 1;
  return {static_cast<uint8_t>(length), static_cast<uint8_t>(size), static_cast<uint8_t>(advance)};
}

bool HuffmanTable::same(const JHUFF_TBL& table, bool ac) const {
  return built_ && ac_ == ac && std::memcmp(counts_, table.bits, sizeof(counts_)) == 0 &&
         std::memcmp(symbols_, table.huffval, sizeof(symbols_)) == 0;
}

bool HuffmanTable::build(const JHUFF_TBL& table, bool ac) {
  if (same(table, ac)) return true;
  built_ = false;
  ac_ = ac;
  std::memcpy(counts_, table.bits, sizeof(counts_));
  std::memcpy(symbols_, table.huffval, sizeof(symbols_));
  // Codes of one length are consecutive numbers, so the entries fill up in order, without gaps.
  uint64_t alone[kEntries];  // one symbol with its value each
  int code = 0, index = 0, filled = 0;
  for (int length = 1; length <= 16; length++, code <<= 1) {
    const int count = counts_[length];
    if (index + count > 256 || code + count > 1 << length) return false;
    offset_[length] = index - code;
    for (int i = 0; i < count; i++, index++, code++) {
      if (!baseline(symbols_[index], ac)) return false;
      if (length > kBits) continue;
      const HuffmanSymbol found = symbol(symbols_[index], length);
      const int entries = 1 << (kBits - length), values = 1 << found.size;
      std::fill_n(first + filled, entries, found);
      if (values > entries) {
        std::fill_n(alone + filled, entries, 0);
      } else {
        for (int v = 0; v < values; v++) {
          const int value = 2 * v < values && found.size ? v + 1 - values : v;
          std::fill_n(alone + filled + v * (entries / values), entries / values,
                      whole_entry(length + found.size, found.advance, found.advance, value, value));
        }
      }
      filled += entries;
    }
    last_[length] = count ? code - 1 : -1;
  }
  std::fill_n(first + filled, kEntries - filled, HuffmanSymbol{0, 0, 0});
  std::fill_n(alone + filled, kEntries - filled, 0);
  if (ac) {
    pair_up(alone);
  } else {
    std::memcpy(whole, alone, sizeof(whole));
  }
  built_ = true;
  return true;
}

void HuffmanTable::pair_up(const uint64_t* alone) {
  for (int i = 0; i < kEntries; i++) {
    const uint64_t one = alone[i];
    const int length = static_cast<int>(one & 255), advance = static_cast<int>(one >> 8 & 255);
    const uint64_t next = alone[i << length & (kEntries - 1)];
    const int both = length + static_cast<int>(next & 255);
    whole[i] = one == 0 || next == 0 || both > kBits || advance == kEndOfBlock
                   ? one
                   : whole_entry(both, advance + static_cast<int>(next >> 8 & 255), advance,
                                 static_cast<int>(next >> 32), static_cast<int>(one >> 32));
  }
}

HuffmanSymbol HuffmanTable::find_long(uint64_t bits) const {
  const int next = static_cast<int>(bits >> 48);
  for (int length = kBits + 1; length <= 16; length++) {
    const int code = next >> (16 - length);
    if (code <= last_[length]) return symbol(symbols_[(code + offset_[length]) & 255], length);
  }
  return {0, 0, 0};
}

}  // namespace fastload
