// SPDX-License-Identifier: Apache-2.0
// The training loss of 3DGS, (1 - w) mean|x - y| + w (1 - mean SSIM), and its gradient by x, row by row.
// SSIM: Wang et al. 2004, with an 11 px Gaussian window (sigma 1.5 px) and zeros outside the image. The window is its
// own adjoint, so with m = blur(x), q = blur(x x), p = blur(x y) the gradient of sum(SSIM) is
// blur(dS/dm) + y blur(dS/dp) + 2 x blur(dS/dq).
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace {

using namespace r2s;

constexpr int kTaps = 11, kReach = kTaps / 2;
constexpr float kWindow[kReach + 1] = {  // from the outermost tap to the centre; the whole window sums to 1
    0.00102838009f, 0.00759875821f, 0.0360007721f, 0.109360687f, 0.213005543f, 0.266011715f};
constexpr float kC1 = 0.01f * 0.01f, kC2 = 0.03f * 0.03f;

// Weighted sum of 11 vectors that `at` gives for offsets -5 .. 5.
template <typename At>
R2S_INLINE F window_sum(const At& at) {
    F sum = set1(kWindow[kReach]) * at(0);
    for (int k = 0; k < kReach; ++k) sum = fma(set1(kWindow[k]), at(k - kReach) + at(kReach - k), sum);
    return sum;
}

// Rows of `maps` images after the horizontal pass, the last 11 of each, in turn.
struct RowRing {
    float* data;
    int length;
    float* row(int map, int y) const { return data + (static_cast<std::size_t>(map) * kTaps + (y + kTaps) % kTaps) * length; }
    F vertical(int map, int y, int i) const {
        return window_sum([&](int k) { return load(row(map, y + k) + i); });
    }
};

// Factor per value of a row: 1 where it counts, 0 where the mask excludes it and past the row's end.
R2S_INLINE void fill_keep(const PhotometricJob& job, int y, float* keep) {
    const int n = 3 * job.width;
    for (int i = 0; i < n; ++i)
        keep[i] = !job.keep || job.keep[static_cast<std::size_t>(y) * job.width + i / 3] ? 1.0f : 0.0f;
    for (int i = n; i < job.length; ++i) keep[i] = 0.0f;
}

R2S_INLINE double lane_sum(F v) {
    alignas(64) float lanes[W];
    store(lanes, v);
    double sum = 0;
    for (float lane : lanes) sum += lane;
    return sum;
}

// Copies a row of an image into the middle of zeros, times keep.
R2S_INLINE void pad_row(const float* row, const float* keep, int n, int length, float* out) {
    std::memset(out, 0, kPadding * sizeof(float));
    for (int i = 0; i < n; ++i) out[kPadding + i] = row[i] * keep[i];
    std::memset(out + kPadding + n, 0, (length - n + kPadding) * sizeof(float));
}

// Horizontal pass of x, y, x x, y y, x y of row y into the ring.
R2S_INLINE void blur_products(const PhotometricJob& job, int y, const RowRing& ring, float* px, float* py, float* keep) {
    if (y < 0 || y >= job.height) {
        for (int map = 0; map < 5; ++map) std::memset(ring.row(map, y), 0, job.length * sizeof(float));
        return;
    }
    fill_keep(job, y, keep);
    const std::size_t at = static_cast<std::size_t>(y) * job.width * 3;
    pad_row(job.x + at, keep, 3 * job.width, job.length, px);
    pad_row(job.y + at, keep, 3 * job.width, job.length, py);
    for (int i = 0; i < job.length; i += W) {
        F sum[5];
        for (int k = 0; k <= kReach; ++k) {
            const int left = kPadding + i + 3 * (k - kReach), right = kPadding + i + 3 * (kReach - k);
            const F w = set1(kWindow[k]), x0 = loadu(px + left), y0 = loadu(py + left);
            F terms[5] = {x0, y0, x0 * x0, y0 * y0, x0 * y0};
            if (k < kReach) {
                const F x1 = loadu(px + right), y1 = loadu(py + right);
                terms[0] = x0 + x1, terms[1] = y0 + y1;
                terms[2] = fma(x1, x1, terms[2]), terms[3] = fma(y1, y1, terms[3]), terms[4] = fma(x1, y1, terms[4]);
            }
            for (int map = 0; map < 5; ++map) sum[map] = k ? fma(w, terms[map], sum[map]) : w * terms[map];
        }
        for (int map = 0; map < 5; ++map) store(ring.row(map, y) + i, sum[map]);
    }
}

// SSIM of row y and its derivatives by m, p and q; returns the row's sum.
R2S_INLINE double ssim_row(const PhotometricJob& job, int y, const RowRing& ring, const float* keep) {
    const F one = set1(1.0f), two = set1(2.0f), c1 = set1(kC1), c2 = set1(kC2);
    float* out[3];
    for (int k = 0; k < 3; ++k) {
        out[k] = job.maps[k] + static_cast<std::size_t>(y) * job.stride();
        std::memset(out[k], 0, kPadding * sizeof(float));
        std::memset(out[k] + kPadding + job.length, 0, kPadding * sizeof(float));
    }
    F total = set1(0.0f);
    for (int i = 0; i < job.length; i += W) {
        const F mx = ring.vertical(0, y, i), my = ring.vertical(1, y, i), xx = ring.vertical(2, y, i);
        const F yy = ring.vertical(3, y, i), xy = ring.vertical(4, y, i), kept = load(keep + i);
        const F mxy = mx * my, m2 = fma(mx, mx, my * my);
        const F a1 = fma(two, mxy, c1), a2 = fma(two, xy - mxy, c2), b1 = m2 + c1, b2 = (xx + yy - m2) + c2;
        const F inverse_b1 = one / b1, inverse_b2 = one / b2, inverse = inverse_b1 * inverse_b2;
        const F s = a1 * a2 * inverse;
        total = fma(s, kept, total);
        const F by_mean = two * (my * (a2 - a1) * inverse + mx * s * (inverse_b2 - inverse_b1));
        store(out[0] + kPadding + i, by_mean * kept);
        store(out[1] + kPadding + i, two * a1 * inverse * kept);
        store(out[2] + kPadding + i, negate(s * inverse_b2 * kept));
    }
    return lane_sum(total);
}

void photometric_ssim(const PhotometricJob& job, int begin, int end, float* scratch) {
    const RowRing ring{scratch, job.length};
    float* px = scratch + static_cast<std::size_t>(5) * kTaps * job.length;
    float* py = px + job.stride();
    float* keep = py + job.stride();
    for (int y = begin - kReach; y < end + kReach; ++y) {
        blur_products(job, y, ring, px, py, keep);
        const int done = y - kReach;
        if (done < begin) continue;
        fill_keep(job, done, keep);
        job.row_ssim[done] = ssim_row(job, done, ring, keep);
    }
}

// L1 and SSIM's gradient of row y; returns the row's sum of |x - y|.
R2S_INLINE double gradient_row(const PhotometricJob& job, int y, const RowRing& ring, float* px, float* py, float* keep,
                               float* gradient) {
    const F zero = set1(0.0f), l1 = set1(job.l1_scale), ssim = set1(job.ssim_scale), two = set1(2.0f);
    const std::size_t at = static_cast<std::size_t>(y) * job.width * 3;
    fill_keep(job, y, keep);
    pad_row(job.x + at, keep, 3 * job.width, job.length, px);
    pad_row(job.y + at, keep, 3 * job.width, job.length, py);
    F total = zero;
    for (int i = 0; i < job.length; i += W) {
        const F a = load(px + kPadding + i), b = load(py + kPadding + i), d = a - b;
        total = total + max(d, negate(d));
        F g = select(d > zero, l1, select(negate(d) > zero, negate(l1), zero));
        if (job.ssim_scale != 0) {
            const F by_mean = ring.vertical(0, y, i), by_xy = ring.vertical(1, y, i), by_xx = ring.vertical(2, y, i);
            g = fnma(ssim, fma(b, by_xy, fma(two * a, by_xx, by_mean)), g);
        }
        store(gradient + i, g * load(keep + i));
    }
    std::memcpy(job.gradient + at, gradient, 3 * job.width * sizeof(float));
    return lane_sum(total);
}

void photometric_gradient(const PhotometricJob& job, int begin, int end, float* scratch) {
    const RowRing ring{scratch, job.length};
    float* px = scratch + static_cast<std::size_t>(5) * kTaps * job.length;
    float* py = px + job.stride();
    float* keep = py + job.stride();
    float* gradient = keep + job.length;
    const int reach = job.ssim_scale != 0 ? kReach : 0;
    for (int y = begin - reach; y < end + reach; ++y) {
        for (int map = 0; reach && map < 3; ++map) {
            float* out = ring.row(map, y);
            if (y < 0 || y >= job.height) {
                std::memset(out, 0, job.length * sizeof(float));
                continue;
            }
            const float* in = job.maps[map] + static_cast<std::size_t>(y) * job.stride() + kPadding;
            for (int i = 0; i < job.length; i += W)
                store(out + i, window_sum([&](int k) { return loadu(in + i + 3 * k); }));
        }
        const int done = y - reach;
        if (done >= begin) job.row_l1[done] = gradient_row(job, done, ring, px, py, keep, gradient);
    }
}

}  // namespace
