// jpeg_std_error without stderr and exit().
//
// Note [libjpeg is linked statically]
// torchvision's wheels contain a libjpeg with the system's soname (libjpeg.so.62 or .so.8). The one loaded
// first serves both, and torchvision 0.19's lacks jpeg_crop_scanline: after `import torchvision` our core
// could not be loaded. So libjpeg.a is linked into the core with hidden symbols (setup.py). Distributions
// compile it for executables only; jerror.o, which refers to `stderr`, is the only object that cannot go into
// a shared library, and only jpeg_std_error pulls it in.
#pragma once

#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// Sets everything but error_exit, and returns `errors`. format_message formats messages; nothing prints them.
// The caller sets error_exit, which must not return.
jpeg_error_mgr* quiet_errors(jpeg_error_mgr* errors);

}  // namespace fastload
