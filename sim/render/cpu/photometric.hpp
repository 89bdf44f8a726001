// SPDX-License-Identifier: Apache-2.0
// The training loss of an image, and its gradient.
#pragma once

#include "kernels.hpp"

namespace r2s {

// Loss of x against y, [height, width, 3] in 0..1, over the pixels where keep (or all, if null) is not zero; writes its
// gradient by x. The result does not depend on the number of threads.
double photometric(const Kernels& kernels, const float* x, const float* y, const std::uint8_t* keep, int width,
                   int height, double ssim_weight, float* gradient, int threads);

}  // namespace r2s
