#include "png/inflate.h"

#ifdef FASTLOAD_LIBDEFLATE

#include <libdeflate.h>

namespace fastload {

namespace {

libdeflate_decompressor* handle(void* decompressor) {
  return static_cast<libdeflate_decompressor*>(decompressor);
}

}  // namespace

Inflater::Inflater() : decompressor_(nullptr) {}

Inflater::~Inflater() {
  if (decompressor_ != nullptr) libdeflate_free_decompressor(handle(decompressor_));
}

bool Inflater::usable() {
  return true;
}

const char* Inflater::version() {
  return LIBDEFLATE_VERSION_STRING;
}

bool Inflater::inflate(const uint8_t* data, size_t nbytes, uint8_t* out, size_t out_nbytes) {
  // Made on first use, because most threads never see a PNG.
  if (decompressor_ == nullptr) decompressor_ = libdeflate_alloc_decompressor();
  if (decompressor_ == nullptr) return false;
  size_t read = 0;
  return libdeflate_zlib_decompress_ex(handle(decompressor_), data, nbytes, out, out_nbytes, &read,
                                       nullptr) == LIBDEFLATE_SUCCESS;
}

bool Inflater::inflates_below(const uint8_t* data, size_t nbytes, size_t limit) {
  constexpr size_t kMostRatio =
      1032;  // a code of one bit or more for each 258 bytes, and two of them a match
  if (nbytes < limit / kMostRatio) return true;
  if (decompressor_ == nullptr) decompressor_ = libdeflate_alloc_decompressor();
  uint8_t* const out = measured_.reserve(limit);
  if (decompressor_ == nullptr || out == nullptr) return false;
  size_t read = 0, written = 0;
  return libdeflate_zlib_decompress_ex(handle(decompressor_), data, nbytes, out, limit - 1, &read,
                                       &written) == LIBDEFLATE_SUCCESS;
}

uint32_t Inflater::crc32(const uint8_t* data, size_t nbytes) {
  return libdeflate_crc32(0, data, nbytes);
}

}  // namespace fastload

#else

namespace fastload {

Inflater::Inflater() : decompressor_(nullptr) {}

Inflater::~Inflater() = default;

bool Inflater::usable() {
  return false;
}

const char* Inflater::version() {
  return nullptr;
}

bool Inflater::inflate(const uint8_t*, size_t, uint8_t*, size_t) {
  return false;
}

bool Inflater::inflates_below(const uint8_t*, size_t, size_t) {
  return false;
}

uint32_t Inflater::crc32(const uint8_t*, size_t) {
  return 0;
}

}  // namespace fastload

#endif
