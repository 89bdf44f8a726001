// SPDX-License-Identifier: Apache-2.0
#include "photometric.hpp"

#include <algorithm>

#include "buffer.hpp"
#include "team.hpp"

namespace r2s {

namespace {

constexpr int kLargestStrip = 64;  // rows that a thread takes at a time
constexpr int kStripsPerThread = 3;

// Buffers of the last image, kept so that their memory is mapped once; each thread of the caller has its own.
struct Scratch {
    Buffer<float> maps[3], rows;
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
    s.sums.resize(2 * static_cast<std::size_t>(height));
    job.row_l1 = s.sums.data(), job.row_ssim = s.sums.data() + height;
    const int strip = std::clamp(height / (kStripsPerThread * threads), 1, kLargestStrip);
    const std::int64_t strips = (height + strip - 1) / strip;
    const std::size_t rows = static_cast<std::size_t>(kPhotometricRows) * job.stride();
    s.rows.resize(rows * strips);
    Team team(strips < threads ? static_cast<int>(strips) : threads);
    auto each_strip = [&](void (*work)(const PhotometricJob&, int, int, float*)) {
        team.for_each(strips, [&](std::int64_t i) {
            const int begin = static_cast<int>(i) * strip;
            work(job, begin, std::min(begin + strip, height), s.rows.data() + i * rows);
        });
    };
    if (job.ssim_scale != 0) each_strip(kernels.photometric_ssim);
    each_strip(kernels.photometric_gradient);
    double l1 = 0, ssim = 0;
    for (int r = 0; r < height; ++r) {
        l1 += job.row_l1[r];
        if (job.ssim_scale != 0) ssim += job.row_ssim[r];
    }
    return (1 - ssim_weight) * share * l1 + ssim_weight * (1 - share * ssim);
}

}  // namespace r2s
