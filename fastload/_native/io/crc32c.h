// CRC32C (Castagnoli; RFC 3720), as used by iSCSI, TFRecord, Zarr and our own formats.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Checksum of nbytes at data; `crc`: the checksum of the bytes before (0 at the start).
uint32_t crc32c(uint32_t crc, const void* data, size_t nbytes) noexcept;

// The same without SSE4.2, for other processors. Public for the tests.
uint32_t crc32c_portable(uint32_t crc, const void* data, size_t nbytes) noexcept;

}  // namespace fastload
