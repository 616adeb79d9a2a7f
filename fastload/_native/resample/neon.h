// Shared by the NEON files.
#pragma once

#include "resample/kernels.h"

namespace fastload::resampling {

// The function that stores rows; see Kernels::store_for.
StoreRow neon_store_for(RowOutput* output);

}  // namespace fastload::resampling
