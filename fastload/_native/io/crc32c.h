// CRC32C (Castagnoli), as iSCSI, LMDB sidecars, TFRecord and Zarr use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Checksum of nbytes at data; `crc` is that of what came before (0 at the start).
uint32_t crc32c(uint32_t crc, const void* data, size_t nbytes) noexcept;

// The same without SSE4.2: what other processors run. Here for the tests.
uint32_t crc32c_portable(uint32_t crc, const void* data, size_t nbytes) noexcept;

}  // namespace fastload
