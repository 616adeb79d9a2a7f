// Numbers in byte buffers, at any alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastload {

template <typename T>
inline __attribute__((always_inline)) T load_le(const uint8_t* from) {
  T value;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  std::memcpy(&value, from, sizeof(T));
#else
  value = 0;
  for (size_t i = 0; i < sizeof(T); i++) value = static_cast<T>(value | static_cast<T>(from[i]) << (8 * i));
#endif
  return value;
}

template <typename T>
inline T load_be(const uint8_t* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); i++) value = static_cast<T>(value << 8 | from[i]);
  return value;
}

template <typename T>
inline void store_le(uint8_t* to, T value) {
  for (size_t i = 0; i < sizeof(T); i++) to[i] = static_cast<uint8_t>(value >> (8 * i));
}

}  // namespace fastload
