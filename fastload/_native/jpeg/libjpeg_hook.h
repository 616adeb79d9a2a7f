// The place in libjpeg where an entropy decoder of ours is put.
#pragma once

#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// Note [Hook]
// What libjpeg-turbo 2.1.5 to 3.2 keeps behind cinfo->entropy begins with these two members; upstream does
// not install the header that says so. Nothing behind them is read or written. decode_mcu is called once for
// every MCU of a row that is read, in order, whether or not jpeg_crop_scanline left it out, and with a null
// pointer for every MCU of a row that jpeg_skip_scanlines passes: so counting calls tells which MCU is due,
// and cinfo->master, whose layout changes between releases, is not needed. Blocks come filled with zeros.
// The callback never suspends. DctSource::usable() tries all of this once before the first use.
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
