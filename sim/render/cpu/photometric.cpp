// SPDX-License-Identifier: Apache-2.0
#include "photometric.hpp"

#include <algorithm>

#include "buffer.hpp"
#include "team.hpp"

namespace r2s {

namespace {

constexpr int kStrip = 96;  // rows that a thread takes at a time; 10 more are read again for each

// Buffers of the last image, kept so that their memory is mapped once; each thread of the caller has its own.
struct Scratch {
    Buffer<float> maps[3];
    Buffer<double> sums;
};

Scratch& scratch() {
    static thread_local Scratch instance;
    return instance;
}

}  // namespace

double photometric(const Kernels& kernels, const float* x, const float* y, const std::uint8_t* keep, int width,
                   int height, double ssim_weight, float* gradient, int threads) {
    std::size_t kept = static_cast<std::size_t>(width) * height;
    if (keep) {
        kept = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(width) * height; ++i) kept += keep[i] != 0;
    }
    const double share = kept ? 1.0 / (3.0 * static_cast<double>(kept)) : 0.0;
    Scratch& s = scratch();
    PhotometricJob job{};
    job.x = x, job.y = y, job.keep = keep, job.gradient = gradient;
    job.width = width, job.height = height, job.length = (3 * width + 15) / 16 * 16;
    job.l1_scale = static_cast<float>((1 - ssim_weight) * share);
    job.ssim_scale = static_cast<float>(ssim_weight * share);
    for (int k = 0; k < 3; ++k) {
        s.maps[k].resize(static_cast<std::size_t>(height) * job.stride());
        job.maps[k] = s.maps[k].data();
    }
    const std::size_t count = static_cast<std::size_t>(height) * job.columns();
    s.sums.resize(2 * count);
    job.l1_sums = s.sums.data(), job.ssim_sums = s.sums.data() + count;
    const std::int64_t strips = (height + kStrip - 1) / kStrip;
    Team team(threads);
    auto each_patch = [&](void (*work)(const PhotometricJob&, int, int, int)) {
        team.for_each(strips * job.columns(), [&](std::int64_t i) {
            const int begin = static_cast<int>(i / job.columns()) * kStrip;
            work(job, begin, std::min(begin + kStrip, height), static_cast<int>(i % job.columns()));
        });
    };
    if (job.ssim_scale != 0) each_patch(kernels.photometric_ssim);
    each_patch(kernels.photometric_gradient);
    double l1 = 0, ssim = 0;
    for (std::size_t i = 0; i < count; ++i) {
        l1 += job.l1_sums[i];
        if (job.ssim_scale != 0) ssim += job.ssim_sums[i];
    }
    return (1 - ssim_weight) * share * l1 + ssim_weight * (1 - share * ssim);
}

}  // namespace r2s
