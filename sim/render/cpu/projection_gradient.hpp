// SPDX-License-Identifier: Apache-2.0
// From the sums of the pairs to the gradients of the Gaussians' own values, W Gaussians at a time.
#pragma once

#include "projection.hpp"
#include "raster_gradient.hpp"

namespace {

// Upstream gradients of W projected Gaussians.
struct ProjectedGradient {
    F x, y;             // of the projected centre [1 / px]
    F m[2][3];          // of J Rc S
    F z;                // of the depth
    F colour[3];        // of the colour, after the clamp
    F gp;               // dL/d(log alpha), summed
};

// Pairs lie in depth order, footprints in row order: fetch those of a footprint some time before they are summed.
R2S_INLINE void prefetch_pairs(const GaussianGradientJob& job, std::int64_t footprint) {
    const std::size_t begin = job.pair_begin[footprint];
    const std::uint32_t count = job.pair_count[footprint] < 8 ? job.pair_count[footprint] : 8;
    prefetch(job.touched + begin);
    for (std::uint32_t k = 0; k < count; ++k) prefetch(job.pair_sums + (begin + k) * kPairSums);
}

// Sums the pairs of one footprint in their order.
R2S_INLINE void gather_pairs(const GaussianGradientJob& job, std::int64_t footprint, float (&total)[kPairSums]) {
    for (float& t : total) t = 0.0f;
    const std::size_t begin = job.pair_begin[footprint], end = begin + job.pair_count[footprint];
    for (std::size_t pair = begin; pair < end; ++pair) {
        if (!job.touched[pair]) continue;
        const float* sums = job.pair_sums + pair * kPairSums;
        for (int i = 0; i < kPairSums; ++i) total[i] += sums[i];
    }
}

R2S_INLINE void gradient_of_sums(const Projected& p, const float (&table)[kPairSums][W], ProjectedGradient& g) {
    auto sum = [&](PairSum i) { return load(table[sum_slot(i)]); };
    const F k1 = set1(2.0f * kLn2), k2 = set1(4.0f * kLn2 * kLn2);
    g.gp = sum(kGp);
    g.x = k1 * p.u1 * sum(kGpT);
    g.y = k1 * fma(p.u2, sum(kGpT), p.u3 * sum(kGpS));
    // dL/dcovariance = 2 ln2^2 U^T M U, M the second moments of (t, s); dL/dm = 2 dL/dcovariance m.
    const F tt = k2 * sum(kGpTT), ts = k2 * sum(kGpTS), ss = k2 * sum(kGpSS);
    for (int k = 0; k < 3; ++k) {
        const F a = fma(p.u1, p.m[0][k], p.u2 * p.m[1][k]), b = p.u3 * p.m[1][k];  // U m
        const F c = fma(tt, a, ts * b), d = fma(ts, a, ss * b);
        g.m[0][k] = p.u1 * c;
        g.m[1][k] = fma(p.u2, c, p.u3 * d);
    }
    g.z = sum(kWZ);
    g.colour[0] = sum(kWR), g.colour[1] = sum(kWG), g.colour[2] = sum(kWB);
}

// Gradient of the unit quaternion of a rotation matrix, then of the quaternion of any norm.
R2S_INLINE void quat_gradient(const Projected& p, const F (&v)[9], F (&out)[4]) {
    const F w = p.q[0], x = p.q[1], y = p.q[2], z = p.q[3], two = set1(2.0f);
    const F s01 = v[1] + v[3], s02 = v[2] + v[6], s12 = v[5] + v[7];
    const F a = v[7] - v[5], b = v[2] - v[6], c = v[3] - v[1];
    F g[4];
    g[0] = two * fma(x, a, fma(y, b, z * c));
    g[1] = two * (fma(w, a, fma(y, s01, z * s02)) - two * x * (v[4] + v[8]));
    g[2] = two * (fma(w, b, fma(x, s01, z * s12)) - two * y * (v[0] + v[8]));
    g[3] = two * (fma(w, c, fma(x, s02, y * s12)) - two * z * (v[0] + v[4]));
    const F along = fma(w, g[0], fma(x, g[1], fma(y, g[2], z * g[3])));
    for (int i = 0; i < 4; ++i) out[i] = (g[i] - p.q[i] * along) * p.inv_norm;
}

// Shape and position: dL/d(J Rc S) and the rest to the centre in the camera, the scales and the quaternion.
R2S_INLINE void projection_vjp(const View& view, const Projected& p, const ProjectedGradient& g, F (&v_point)[3],
                               F (&v_scales)[3], F (&v_quat)[4]) {
    const F zero = set1(0.0f), fx = set1(view.fx), fy = set1(view.fy);
    const F jx = fx * p.inv_z, jy = fy * p.inv_z;
    F v_Rc[9], v_j00 = zero, v_j11 = zero, v_j02 = zero, v_j12 = zero;
    for (int k = 0; k < 3; ++k) {
        v_scales[k] = fma(g.m[0][k], p.A[0][k], g.m[1][k] * p.A[1][k]);
        const F a0 = g.m[0][k] * p.s[k], a1 = g.m[1][k] * p.s[k];
        v_Rc[k] = jx * a0;
        v_Rc[3 + k] = jy * a1;
        v_Rc[6 + k] = negate(fma(jx * p.slope_x, a0, jy * p.slope_y * a1));
        v_j00 = fma(a0, p.Rc[k], v_j00);
        v_j11 = fma(a1, p.Rc[3 + k], v_j11);
        v_j02 = fma(a0, p.Rc[6 + k], v_j02);
        v_j12 = fma(a1, p.Rc[6 + k], v_j12);
    }
    F v_Rq[9];
    for (int r = 0; r < 3; ++r)
        for (int k = 0; k < 3; ++k)
            v_Rq[3 * r + k] = fma(set1(view.R[r]), v_Rc[k], fma(set1(view.R[3 + r]), v_Rc[3 + k],
                                                               set1(view.R[6 + r]) * v_Rc[6 + k]));
    quat_gradient(p, v_Rq, v_quat);
    // J = [fx/z, 0, -fx slope_x/z; 0, fy/z, -fy slope_y/z]; a slope that is clamped has no derivative.
    const F sx = p.X * p.inv_z, sy = p.Y * p.inv_z;
    const Mask free_x = (sx >= set1(view.slope_x_min)) & (sx <= set1(view.slope_x_max));
    const Mask free_y = (sy >= set1(view.slope_y_min)) & (sy <= set1(view.slope_y_max));
    const F v_sx = zero_unless(free_x, negate(jx * v_j02)), v_sy = zero_unless(free_y, negate(jy * v_j12));
    const F v_jx = fnma(p.slope_x, v_j02, v_j00), v_jy = fnma(p.slope_y, v_j12, v_j11);
    const F across_x = fma(fx, g.x, v_sx), across_y = fma(fy, g.y, v_sy);  // of x/z and y/z
    v_point[0] = across_x * p.inv_z;
    v_point[1] = across_y * p.inv_z;
    v_point[2] = g.z - p.inv_z * (fma(across_x, sx, across_y * sy) + fma(jx, v_jx, jy * v_jy));
}

// Harmonics of W Gaussians: writes the coefficients' gradients, returns that of the direction.
R2S_INLINE void harmonics_vjp(const Gaussians& in, const Rows& rows, int n, const F (&d)[3],
                              const float (&v_colour)[3][W], const Gradients& out, F (&v_d)[3]) {
    const int used = (in.sh_degree + 1) * (in.sh_degree + 1);
    alignas(64) float basis[16 * W], h[16 * W];
    harmonics_basis(d[0], d[1], d[2], in.sh_degree, basis);
    for (int i = 0; i < n; ++i) {
        const float* sh = in.sh + rows[i] * in.coefficients * 3;
        float* v_sh = out.sh + rows[i] * in.coefficients * 3;
        const float r = v_colour[0][i], g = v_colour[1][i], b = v_colour[2][i];
        for (int k = 0; k < used; ++k) {
            const float w = basis[k * W + i];
            h[k * W + i] = r * sh[3 * k] + g * sh[3 * k + 1] + b * sh[3 * k + 2];
            v_sh[3 * k] += w * r, v_sh[3 * k + 1] += w * g, v_sh[3 * k + 2] += w * b;
        }
    }
    for (int i = n; i < W; ++i)
        for (int k = 0; k < used; ++k) h[k * W + i] = 0.0f;
    harmonics_basis_vjp(d[0], d[1], d[2], in.sh_degree, h, v_d);
}

void clear_rows(const Gaussians& in, const Gradients& out, std::int64_t begin, std::int64_t end) {
    const std::size_t n = static_cast<std::size_t>(end - begin);
    if (out.accumulate) return;
    std::memset(out.means + 3 * begin, 0, n * 3 * sizeof(float));
    std::memset(out.quats + 4 * begin, 0, n * 4 * sizeof(float));
    std::memset(out.scales + 3 * begin, 0, n * 3 * sizeof(float));
    std::memset(out.opacities + begin, 0, n * sizeof(float));
    if (out.means2d_norm) std::memset(out.means2d_norm + begin, 0, n * sizeof(float));
    std::memset(out.sh + 3 * in.coefficients * begin, 0, n * 3 * in.coefficients * sizeof(float));
}

// Adds to column `c` of `rows`.
R2S_INLINE void add_to_column(float* base, const Rows& rows, int n, int stride, int c, F value) {
    alignas(64) float lanes[W];
    store(lanes, value);
    for (int i = 0; i < n; ++i) base[rows[i] * stride + c] += lanes[i];
}

// Up to W footprints of `visible`, from `first` on.
void gaussian_gradient_group(const Gaussians& in, const View& view, const GaussianGradientJob& job, std::int64_t first,
                             std::int64_t visible, const Gradients& out) {
    const int n = visible - first < W ? static_cast<int>(visible - first) : W;
    Rows rows;
    alignas(64) float table[kPairSums][W], v_colour[3][W];
    for (int i = 0; i < W; ++i) {
        const std::int64_t footprint = first + (i < n ? i : n - 1);
        const Footprint& f = job.footprints[footprint];
        rows[i] = f.id;
        float total[kPairSums];
        if (first + i + kAhead < visible) prefetch_pairs(job, first + i + kAhead);
        gather_pairs(job, footprint, total);
        if (i >= n)
            for (float& t : total) t = 0.0f;
        for (int k = 0; k < kPairSums; ++k) table[k][i] = total[k];
        const float colour[3] = {f.r, f.g, f.b};
        for (int c = 0; c < 3; ++c)
            if (!(colour[c] > 0.0f)) table[sum_slot(kWR + c)][i] = 0.0f;  // clamped at 0
    }
    F mean[3];
    Projected p;
    camera_point(in, view, rows, mean, p);
    project_shape(in, view, rows, p);
    ProjectedGradient g;
    gradient_of_sums(p, table, g);
    F v_point[3], v_scales[3], v_quat[4], d[3], v_d[3], v_mean[3];
    projection_vjp(view, p, g, v_point, v_scales, v_quat);
    const F inv_distance = view_direction(view, mean, d);
    for (int c = 0; c < 3; ++c) store(v_colour[c], g.colour[c]);
    harmonics_vjp(in, rows, n, d, v_colour, out, v_d);
    const F along = fma(d[0], v_d[0], fma(d[1], v_d[1], d[2] * v_d[2]));
    for (int c = 0; c < 3; ++c) {
        const F world = fma(set1(view.R[c]), v_point[0], fma(set1(view.R[3 + c]), v_point[1],
                                                            set1(view.R[6 + c]) * v_point[2]));
        v_mean[c] = fma(v_d[c] - d[c] * along, inv_distance, world);
        add_to_column(out.means, rows, n, 3, c, v_mean[c]);
        add_to_column(out.scales, rows, n, 3, c, v_scales[c]);
    }
    for (int c = 0; c < 4; ++c) add_to_column(out.quats, rows, n, 4, c, v_quat[c]);
    const F opacity = gather_column(in.opacities, rows, 1, 0);
    add_to_column(out.opacities, rows, n, 1, 0, g.gp / opacity);
    if (out.means2d_norm) add_to_column(out.means2d_norm, rows, n, 1, 0, sqrt(fma(g.x, g.x, g.y * g.y)));
}

void gaussian_gradient(const Gaussians& in, const View& view, std::int64_t begin, std::int64_t end,
                       std::int64_t visible, const GaussianGradientJob& job, const Gradients& out) {
    clear_rows(in, out, begin, end);  // rows that are seen are written again, while they are in the cache
    for (std::int64_t f = 0; f < visible; f += W)
        gaussian_gradient_group(in, view, job, f, visible, out);
}

}  // namespace
