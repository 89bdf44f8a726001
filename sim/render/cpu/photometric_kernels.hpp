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

// The part of an image that one item works on: rows [begin, end) and values [left, left + n) of each row, n <= kColumns.
struct Patch {
    int begin, end, left, n;
};
R2S_INLINE Patch patch_of(const PhotometricJob& job, int begin, int end, int column) {
    const int left = column * kColumns;
    return {begin, end, left, job.length - left < kColumns ? job.length - left : kColumns};
}

// A patch's rows of several images after the horizontal pass, the last 11 of each: small enough for the first cache.
struct RowRing {
    float* data;
    float* row(int map, int y) const { return data + (map * kTaps + (y + kTaps) % kTaps) * kColumns; }
};
// Vertical pass of one map around row y, at value i of the patch.
struct Column {
    const float* rows[kTaps];
    R2S_INLINE Column(const RowRing& ring, int map, int y) {
        for (int k = 0; k < kTaps; ++k) rows[k] = ring.row(map, y + k - kReach);
    }
    R2S_INLINE F at(int i) const {
        return window_sum([&](int k) { return load(rows[k + kReach] + i); });
    }
};

// Per value of a row, from value `first` on: 1 where it counts, 0 where the mask excludes it or past the row's ends.
R2S_INLINE void fill_keep(const PhotometricJob& job, int y, int first, int n, float* keep) {
    const std::uint8_t* mask = job.keep ? job.keep + static_cast<std::size_t>(y) * job.width : nullptr;
    for (int i = 0; i < n; ++i) {
        const int value = first + i;
        keep[i] = value >= 0 && value < 3 * job.width && (!mask || mask[value / 3]) ? 1.0f : 0.0f;
    }
}

// Copies n values of a row of an image from value `first` on, zero where `keep` is.
R2S_INLINE void copy_kept(const float* image, const PhotometricJob& job, int y, int first, int n, const float* keep,
                          float* out) {
    const float* row = image + static_cast<std::size_t>(y) * job.width * 3;
    const int begin = first < 0 ? -first : 0, end = 3 * job.width - first < n ? 3 * job.width - first : n;
    for (int i = 0; i < begin; ++i) out[i] = 0.0f;
    for (int i = begin; i < end; ++i) out[i] = keep[i] != 0.0f ? row[first + i] : 0.0f;
    for (int i = end > begin ? end : begin; i < n; ++i) out[i] = 0.0f;
}

R2S_INLINE double lane_sum(F v) {
    alignas(64) float lanes[W];
    store(lanes, v);
    double sum = 0;
    for (float lane : lanes) sum += lane;
    return sum;
}

// Row of both images around a patch: in place where it lies whole in the image and no mask cuts it, else copied.
struct alignas(64) PatchRows {
    static constexpr int kWhole = kColumns + 2 * kPadding;
    const float *x, *y, *keep;  // [patch.n + 2 kPadding], the patch begins at kPadding
    float x_copy[kWhole], y_copy[kWhole], keep_copy[kWhole], ones[kWhole], gradient[kColumns];

    PatchRows() {
        for (float& one : ones) one = 1.0f;
    }

    void look_at(const PhotometricJob& job, const Patch& patch, int row) {
        const int first = patch.left - kPadding, n = patch.n + 2 * kPadding;
        if (!job.keep && first >= 0 && first + n <= 3 * job.width) {
            const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * job.width * 3 + first;
            x = job.x + at, y = job.y + at, keep = ones;
            return;
        }
        fill_keep(job, row, first, n, keep_copy);
        copy_kept(job.x, job, row, first, n, keep_copy, x_copy);
        copy_kept(job.y, job, row, first, n, keep_copy, y_copy);
        x = x_copy, y = y_copy, keep = keep_copy;
    }
};

// Horizontal pass of x, y, x x, y y, x y of row `row` into the ring.
R2S_INLINE void blur_products(const PhotometricJob& job, const Patch& patch, int row, const RowRing& ring,
                              PatchRows& rows) {
    if (row < 0 || row >= job.height) {
        for (int map = 0; map < 5; ++map) std::memset(ring.row(map, row), 0, kColumns * sizeof(float));
        return;
    }
    rows.look_at(job, patch, row);
    for (int i = 0; i < patch.n; i += W) {
        F sum[5];
        for (int k = 0; k <= kReach; ++k) {
            const int left = kPadding + i + 3 * (k - kReach), right = kPadding + i + 3 * (kReach - k);
            const F w = set1(kWindow[k]), x0 = loadu(rows.x + left), y0 = loadu(rows.y + left);
            F terms[5] = {x0, y0, x0 * x0, y0 * y0, x0 * y0};
            if (k < kReach) {
                const F x1 = loadu(rows.x + right), y1 = loadu(rows.y + right);
                terms[0] = x0 + x1, terms[1] = y0 + y1;
                terms[2] = fma(x1, x1, terms[2]), terms[3] = fma(y1, y1, terms[3]), terms[4] = fma(x1, y1, terms[4]);
            }
            for (int map = 0; map < 5; ++map) sum[map] = k ? fma(w, terms[map], sum[map]) : w * terms[map];
        }
        for (int map = 0; map < 5; ++map) store(ring.row(map, row) + i, sum[map]);
    }
}

// SSIM of a row of the patch and its derivatives by m, p and q; returns the row's sum.
R2S_INLINE double ssim_row(const PhotometricJob& job, const Patch& patch, int row, const RowRing& ring,
                           const float* keep) {
    const F one = set1(1.0f), two = set1(2.0f), c1 = set1(kC1), c2 = set1(kC2);
    const Column x(ring, 0, row), y(ring, 1, row), x2(ring, 2, row), y2(ring, 3, row), product(ring, 4, row);
    const std::size_t at = static_cast<std::size_t>(row) * job.stride() + kPadding + patch.left;
    F total = set1(0.0f);
    for (int i = 0; i < patch.n; i += W) {
        const F mx = x.at(i), my = y.at(i), xx = x2.at(i), yy = y2.at(i), xy = product.at(i), kept = loadu(keep + i);
        const F mxy = mx * my, m2 = fma(mx, mx, my * my);
        const F a1 = fma(two, mxy, c1), a2 = fma(two, xy - mxy, c2), b1 = m2 + c1, b2 = (xx + yy - m2) + c2;
        const F inverse_b1 = one / b1, inverse_b2 = one / b2, inverse = inverse_b1 * inverse_b2;
        const F s = a1 * a2 * inverse;
        total = fma(s, kept, total);
        const F by_mean = two * (my * (a2 - a1) * inverse + mx * s * (inverse_b2 - inverse_b1));
        store(job.maps[0] + at + i, by_mean * kept);
        store(job.maps[1] + at + i, two * a1 * inverse * kept);
        store(job.maps[2] + at + i, negate(s * inverse_b2 * kept));
    }
    return lane_sum(total);
}

// The zeros on either side of the maps' rows.
R2S_INLINE void clear_margins(const PhotometricJob& job, int row) {
    for (float* map : job.maps) {
        float* begin = map + static_cast<std::size_t>(row) * job.stride();
        std::memset(begin, 0, kPadding * sizeof(float));
        std::memset(begin + kPadding + job.length, 0, kPadding * sizeof(float));
    }
}

void photometric_ssim(const PhotometricJob& job, int begin, int end, int column) {
    alignas(64) float data[5 * kTaps * kColumns];
    const Patch patch = patch_of(job, begin, end, column);
    const RowRing ring{data};
    PatchRows rows;
    for (int row = begin - kReach; row < end + kReach; ++row) {
        blur_products(job, patch, row, ring, rows);
        const int done = row - kReach;
        if (done < begin) continue;
        rows.look_at(job, patch, done);
        if (column == 0) clear_margins(job, done);
        job.ssim_sums[static_cast<std::size_t>(done) * job.columns() + column] = 
            ssim_row(job, patch, done, ring, rows.keep + kPadding);
    }
}

// L1 and SSIM's gradient of a row of the patch; returns the row's sum of |x - y|.
R2S_INLINE double gradient_row(const PhotometricJob& job, const Patch& patch, int row, const RowRing& ring,
                               PatchRows& rows) {
    const F zero = set1(0.0f), l1 = set1(job.l1_scale), ssim = set1(job.ssim_scale), two = set1(2.0f);
    const Column by_mean(ring, 0, row), by_xy(ring, 1, row), by_xx(ring, 2, row);
    rows.look_at(job, patch, row);
    F total = zero;
    for (int i = 0; i < patch.n; i += W) {
        const F a = loadu(rows.x + kPadding + i), b = loadu(rows.y + kPadding + i), d = a - b;
        total = total + max(d, negate(d));
        F g = select(d > zero, l1, select(negate(d) > zero, negate(l1), zero));
        if (job.ssim_scale != 0) g = fnma(ssim, fma(b, by_xy.at(i), fma(two * a, by_xx.at(i), by_mean.at(i))), g);
        store(rows.gradient + i, g * loadu(rows.keep + kPadding + i));
    }
    const int n = 3 * job.width - patch.left < patch.n ? 3 * job.width - patch.left : patch.n;
    std::memcpy(job.gradient + static_cast<std::size_t>(row) * job.width * 3 + patch.left, rows.gradient,
                n * sizeof(float));
    return lane_sum(total);
}

void photometric_gradient(const PhotometricJob& job, int begin, int end, int column) {
    alignas(64) float data[3 * kTaps * kColumns];
    const Patch patch = patch_of(job, begin, end, column);
    const RowRing ring{data};
    PatchRows rows;
    const int reach = job.ssim_scale != 0 ? kReach : 0;
    for (int row = begin - reach; row < end + reach; ++row) {
        for (int map = 0; reach && map < 3; ++map) {
            float* out = ring.row(map, row);
            if (row < 0 || row >= job.height) {
                std::memset(out, 0, kColumns * sizeof(float));
                continue;
            }
            const float* in = job.maps[map] + static_cast<std::size_t>(row) * job.stride() + kPadding + patch.left;
            for (int i = 0; i < patch.n; i += W)
                store(out + i, window_sum([&](int k) { return loadu(in + i + 3 * k); }));
        }
        const int done = row - reach;
        if (done < begin) continue;
        job.l1_sums[static_cast<std::size_t>(done) * job.columns() + column] = gradient_row(job, patch, done, ring, rows);
    }
}

}  // namespace
