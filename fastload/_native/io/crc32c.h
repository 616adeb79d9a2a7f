// CRC32C (Castagnoli; RFC 3720), as used by iSCSI, TFRecord, Zarr and our own formats.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Checksum of nbytes at data; `crc`: the checksum of the bytes before (0 at the start).
uint32_t crc32c(uint32_t crc, const void* data, size_t nbytes) noexcept;

// The same without SSE4.2, for other processors. Public for the tests.
uint32_t crc32c_portable(uint32_t crc, const void* data, size_t nbytes) noexcept;

// Checksums of each `block` bytes at data, of which the last may be fewer: one for each block to `sums`.
void crc32c_blocks(const void* data, size_t nbytes, size_t block, uint32_t* sums) noexcept;

// The same of n blocks of an open file, by their numbers, which are fastest ascending: those that the file
// ends in or before are summed as far as they are there. Returns 0, or the errno of a read that failed.
int crc32c_of_file(int descriptor, const int64_t* numbers, size_t n, size_t block, uint32_t* sums);

}  // namespace fastload
