// SPDX-License-Identifier: Apache-2.0
// The hot loops. This file is compiled once for each instruction set, with R2S_TABLE naming the table it defines.
// It includes nothing whose inline functions another translation unit could share.
#include "kernels.hpp"
#include "photometric_kernels.hpp"
#include "projection_gradient.hpp"
#include "raster_gradient.hpp"
#include "rays.hpp"

namespace r2s {

#define R2S_STRING_OF(x) #x
#define R2S_STRING(x) R2S_STRING_OF(x)
extern const Kernels R2S_TABLE;
const Kernels R2S_TABLE = {R2S_STRING(R2S_NAME), project_rows, rasterize_tile, rasterize_tile_gradient,
                           gaussian_gradient, photometric_ssim, photometric_gradient, trace_rays};

}  // namespace r2s
