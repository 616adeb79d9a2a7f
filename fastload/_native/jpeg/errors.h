// What jpeg_std_error does, without stderr and exit().
//
// Note [libjpeg is linked statically]
// torchvision's wheels bring a libjpeg whose soname is the system's (libjpeg.so.62 or .so.8). Whichever is
// loaded first then serves both, and torchvision 0.19's has no jpeg_crop_scanline: `import torchvision`
// made our core unloadable. So libjpeg.a goes into the core, its symbols hidden (setup.py). Distributions
// compile it for executables only; jerror.o, which names `stderr`, is all of it that a shared object cannot
// take, and it is pulled in by jpeg_std_error alone.
#pragma once

#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// Fills in everything but error_exit, and gives back `errors`. Messages are formatted by format_message
// and shown nowhere; the caller sets error_exit, which must not return.
jpeg_error_mgr* quiet_errors(jpeg_error_mgr* errors);

}  // namespace fastload
