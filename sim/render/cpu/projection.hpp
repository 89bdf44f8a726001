// SPDX-License-Identifier: Apache-2.0
// EWA projection of W Gaussians at a time (Zwicker et al. 2001, eqs. 26-30; 3DGS section 4), forward.
#pragma once

#include "harmonics.hpp"
#include "kernels.hpp"

namespace {

using namespace r2s;

// W rows of the input, any of them: a group of fewer Gaussians repeats its last row.
using Rows = std::int64_t[W];

// Column `c` of `rows` of a dense array.
R2S_INLINE F gather_column(const float* base, const Rows& rows, int stride, int c) {
    alignas(64) float lanes[W];
    for (int i = 0; i < W; ++i) lanes[i] = base[rows[i] * stride + c];
    return load(lanes);
}

// What projection and its gradient share, for W Gaussians. Matrices are row-major.
struct Projected {
    F X, Y, Z;        // centre in the camera
    F q[4], inv_norm; // unit quaternion, 1 / norm
    F Rq[9];          // rotation of the Gaussian
    F Rc[9];          // the same in the camera
    F s[3];           // scales
    F inv_z, slope_x, slope_y;  // clamped slopes of the Jacobian
    F A[2][3];        // J Rc
    F m[2][3];        // J Rc S: covariance = m m^T + blur
    F cxx, cxy, cyy, det;
    F kept;           // det(m m^T) / det
    F u1, u2, u3;
    Mask regular;     // finite, not degenerate
};

R2S_INLINE void rotation_of_quat(const F (&q)[4], F (&R)[9]) {
    const F one = set1(1.0f), two = set1(2.0f);
    const F w = q[0], x = q[1], y = q[2], z = q[3];
    R[0] = fnma(two, fma(y, y, z * z), one);
    R[1] = two * fma(x, y, negate(w * z));
    R[2] = two * fma(x, z, w * y);
    R[3] = two * fma(x, y, w * z);
    R[4] = fnma(two, fma(x, x, z * z), one);
    R[5] = two * fma(y, z, negate(w * x));
    R[6] = two * fma(x, z, negate(w * y));
    R[7] = two * fma(y, z, w * x);
    R[8] = fnma(two, fma(x, x, y * y), one);
}

R2S_INLINE void camera_point(const Gaussians& in, const View& view, const Rows& rows, F (&mean)[3], Projected& p) {
    for (int c = 0; c < 3; ++c) mean[c] = gather_column(in.means, rows, 3, c);
    F* out[3] = {&p.X, &p.Y, &p.Z};
    for (int r = 0; r < 3; ++r) {
        const float* R = view.R + 3 * r;
        *out[r] = fma(set1(R[0]), mean[0], fma(set1(R[1]), mean[1], fma(set1(R[2]), mean[2], set1(view.t[r]))));
    }
}

R2S_INLINE void project_shape(const Gaussians& in, const View& view, const Rows& rows, Projected& p) {
    const F zero = set1(0.0f), one = set1(1.0f);
    F norm2 = zero;
    for (int c = 0; c < 4; ++c) {
        p.q[c] = gather_column(in.quats, rows, 4, c);
        norm2 = fma(p.q[c], p.q[c], norm2);
    }
    p.inv_norm = one / sqrt(norm2);
    for (int c = 0; c < 4; ++c) p.q[c] = p.q[c] * p.inv_norm;
    rotation_of_quat(p.q, p.Rq);
    for (int r = 0; r < 3; ++r)
        for (int k = 0; k < 3; ++k)
            p.Rc[3 * r + k] = fma(set1(view.R[3 * r]), p.Rq[k],
                                  fma(set1(view.R[3 * r + 1]), p.Rq[3 + k], set1(view.R[3 * r + 2]) * p.Rq[6 + k]));
    p.inv_z = one / p.Z;
    p.slope_x = min(max(p.X * p.inv_z, set1(view.slope_x_min)), set1(view.slope_x_max));
    p.slope_y = min(max(p.Y * p.inv_z, set1(view.slope_y_min)), set1(view.slope_y_max));
    const F jx = set1(view.fx) * p.inv_z, jy = set1(view.fy) * p.inv_z;
    for (int k = 0; k < 3; ++k) {
        p.s[k] = gather_column(in.scales, rows, 3, k);
        p.A[0][k] = jx * fnma(p.slope_x, p.Rc[6 + k], p.Rc[k]);
        p.A[1][k] = jy * fnma(p.slope_y, p.Rc[6 + k], p.Rc[3 + k]);
        for (int i = 0; i < 2; ++i) p.m[i][k] = p.A[i][k] * p.s[k];
    }
    const F blur = set1(kBlur);
    const F sxx = fma(p.m[0][0], p.m[0][0], fma(p.m[0][1], p.m[0][1], p.m[0][2] * p.m[0][2]));
    const F syy = fma(p.m[1][0], p.m[1][0], fma(p.m[1][1], p.m[1][1], p.m[1][2] * p.m[1][2]));
    p.cxy = fma(p.m[0][0], p.m[1][0], fma(p.m[0][1], p.m[1][1], p.m[0][2] * p.m[1][2]));
    p.cxx = sxx + blur;
    p.cyy = syy + blur;
    // det(m m^T) is the squared cross product of the rows (Lagrange), which does not cancel as sxx syy - sxy^2 does.
    const F k0 = p.m[0][1] * p.m[1][2] - p.m[0][2] * p.m[1][1];
    const F k1 = p.m[0][2] * p.m[1][0] - p.m[0][0] * p.m[1][2];
    const F k2 = p.m[0][0] * p.m[1][1] - p.m[0][1] * p.m[1][0];
    const F cross2 = fma(k0, k0, fma(k1, k1, k2 * k2));
    p.det = cross2 + blur * (sxx + syy + blur);
    p.kept = cross2 / p.det;
    const F k = set1(0.5f / kLn2);
    p.u1 = sqrt(k * p.cyy / p.det);
    p.u2 = negate(p.u1 * p.cxy / p.cyy);
    p.u3 = sqrt(k / p.cyy);
    const F huge = set1(1e37f);
    p.regular = (norm2 > zero) & (norm2 <= huge) & (p.det <= huge) & (p.cxx <= huge) & (p.cyy <= huge);
}

// Unit direction from the camera to the Gaussian, and 1 / distance.
R2S_INLINE F view_direction(const View& view, const F (&mean)[3], F (&d)[3]) {
    for (int c = 0; c < 3; ++c) d[c] = mean[c] - set1(view.centre[c]);
    const F inv = set1(1.0f) / sqrt(fma(d[0], d[0], fma(d[1], d[1], d[2] * d[2])));
    for (int c = 0; c < 3; ++c) d[c] = d[c] * inv;
    return inv;
}

// Harmonics of one Gaussian plus 0.5, before the clamp at 0; basis: column of a [16][W] table.
R2S_INLINE void evaluate_colour(const float* sh, const float* basis, int used, float (&colour)[3]) {
    float r = 0.5f, g = 0.5f, b = 0.5f;
    for (int k = 0; k < used; ++k) {
        const float w = basis[k * W];
        r += w * sh[3 * k], g += w * sh[3 * k + 1], b += w * sh[3 * k + 2];
    }
    colour[0] = r, colour[1] = g, colour[2] = b;
}

R2S_INLINE bool finite3(const float (&v)[3]) {
    const float limit = 1e30f;
    return v[0] > -limit && v[0] < limit && v[1] > -limit && v[1] < limit && v[2] > -limit && v[2] < limit;
}

std::int64_t project_rows(const Gaussians& in, const View& view, std::int64_t begin, std::int64_t end, Footprint* out) {
    const int used = (in.sh_degree + 1) * (in.sh_degree + 1);
    std::int64_t count = 0;
    for (std::int64_t row = begin; row < end; row += W) {
        const int n = end - row < W ? static_cast<int>(end - row) : W;
        Rows rows;
        for (int i = 0; i < W; ++i) rows[i] = row + (i < n ? i : n - 1);
        F mean[3];
        Projected p;
        camera_point(in, view, rows, mean, p);
        const F opacity = gather_column(in.opacities, rows, 1, 0);
        Mask visible = (p.Z >= set1(view.near_z)) & (p.Z <= set1(view.far_z)) & (opacity >= set1(kAlphaMin)) &
                       (opacity <= set1(1e30f));
        if (!bits(visible)) continue;
        project_shape(in, view, rows, p);
        alignas(64) float log2_opacity[W];
        store(log2_opacity, view.antialiased ? opacity * sqrt(p.kept) : opacity);
        for (int i = 0; i < W; ++i) log2_opacity[i] = ::log2f(log2_opacity[i] > 1e-30f ? log2_opacity[i] : 1e-30f);
        // alpha >= kAlphaMin inside d^T conic d <= reach; a little is added for rounding.
        const F reach = max(set1(2.0f * kLn2) * (load(log2_opacity) - set1(kLog2AlphaMin)), set1(0.0f)) * set1(1.0001f);
        const F rx = sqrt(reach * p.cxx) + set1(1e-3f), ry = sqrt(reach * p.cyy) + set1(1e-3f);
        const F x = fma(set1(view.fx) * p.inv_z, p.X, set1(view.cx)), y = fma(set1(view.fy) * p.inv_z, p.Y, set1(view.cy));
        visible = visible & p.regular & (x + rx >= set1(0.5f)) & (x - rx <= set1(view.width - 0.5f)) &
                  (y + ry >= set1(0.5f)) & (y - ry <= set1(view.height - 0.5f));
        unsigned lanes = bits(visible) & ((1u << n) - 1u);
        if (!lanes) continue;
        F d[3];
        view_direction(view, mean, d);
        alignas(64) float basis[16 * W];
        harmonics_basis(d[0], d[1], d[2], in.sh_degree, basis);
        alignas(64) float columns[10][W];
        const F ridge_x = negate(p.u2 / p.u1), ridge_y = negate(p.u1 * p.u2 / fma(p.u2, p.u2, p.u3 * p.u3));
        const F values[10] = {x, y, p.u1, p.u2, p.u3, p.Z, ridge_x, ridge_y, rx, ry};
        for (int c = 0; c < 10; ++c) store(columns[c], values[c]);
        for (int i = 0; i < n; ++i) {
            if (!(lanes >> i & 1u)) continue;
            float colour[3];
            evaluate_colour(in.sh + (row + i) * in.coefficients * 3, basis + i, used, colour);
            if (!finite3(colour)) continue;
            Footprint& f = out[count++];
            f.x = columns[0][i], f.y = columns[1][i];
            f.u1 = columns[2][i], f.u2 = columns[3][i], f.u3 = columns[4][i];
            f.log2_opacity = log2_opacity[i];
            f.r = colour[0] > 0 ? colour[0] : 0.0f;
            f.g = colour[1] > 0 ? colour[1] : 0.0f;
            f.b = colour[2] > 0 ? colour[2] : 0.0f;
            f.z = columns[5][i];
            f.ridge_x = columns[6][i], f.ridge_y = columns[7][i];
            f.rx = columns[8][i], f.ry = columns[9][i];
            f.id = static_cast<std::uint32_t>(row + i);
            f.pad = 0;
        }
    }
    return count;
}

}  // namespace
