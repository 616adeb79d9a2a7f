// Replaces libjpeg's entropy decoder by ours.
#pragma once

#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// Note [Hook]
// In libjpeg-turbo 2.1.5 to 3.2, the object at cinfo->entropy begins with these two members; the header that
// defines it is not installed. Nothing after them is read or written. decode_mcu is called once, in order,
// for every MCU of a row that is read, also for columns that jpeg_crop_scanline left out; and with a null
// pointer for every MCU of a row that jpeg_skip_scanlines skips. So counting the calls tells which MCU comes
// next, and cinfo->master, whose layout changes between releases, is not needed. Blocks come filled with
// zeros. The callback never suspends. DctSource::usable() tests all of this once before the first use.
struct EntropyDecoderPrefix {
  void (*start_pass)(j_decompress_ptr);
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*);
};

inline void replace_entropy_decoder(j_decompress_ptr cinfo,
                                    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*), void* client_data) {
  cinfo->client_data = client_data;
  reinterpret_cast<EntropyDecoderPrefix*>(cinfo->entropy)->decode_mcu = decode_mcu;
}

}  // namespace fastload
