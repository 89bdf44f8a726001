// SPDX-License-Identifier: Apache-2.0
// The gradient of one tile, back to front: transmittance is divided out again, and what lies behind is summed up
// (3DGS, appendix A). Each pair's sums over its pixels are written to its own row, so nothing is added atomically.
#pragma once

#include "raster.hpp"

namespace {

// Sums of a pair over its pixels. gp = dL/dalpha * alpha where alpha is not clamped, w = blend weight, v_* upstream.
enum PairSum { kGp, kGpT, kGpS, kGpTT, kGpTS, kGpSS, kWR, kWG, kWB, kWZ, kPairSumCount };

struct alignas(64) GradientState {
    float T[kTilePixels];       // transmittance behind the entry in hand
    float behind[kTilePixels];  // sum over what lies behind of weight * (value . v), with the background
    float last[kTilePixels];
    float v_r[kTilePixels], v_g[kTilePixels], v_b[kTilePixels], v_z[kTilePixels];
};

R2S_INLINE void begin_tile_gradient(const TileGradientJob& job, GradientState& state) {
    for (int i = 0; i < kTilePixels; ++i) {
        const std::ptrdiff_t at = image_offset(i, job.x0, job.y0, job.width, job.height);
        const float T = job.transmittance[i], alpha = 1.0f - T;
        float v[3] = {0, 0, 0}, v_z = 0, v_alpha = 0;
        if (at >= 0) {
            for (int c = 0; c < 3; ++c) v[c] = job.v_rgb[3 * at + c];
            if (job.v_alpha) v_alpha = job.v_alpha[at];
            if (job.v_depth && alpha > 0) {  // depth = sum(w z) / alpha
                v_z = job.v_depth[at] / alpha;
                v_alpha -= v_z * job.depth[at];
            }
        }
        state.T[i] = T;
        state.last[i] = job.last[i];
        state.v_r[i] = v[0], state.v_g[i] = v[1], state.v_b[i] = v[2], state.v_z[i] = v_z;
        state.behind[i] =
            T * (v[0] * job.background[0] + v[1] * job.background[1] + v[2] * job.background[2] - v_alpha);
    }
}

R2S_INLINE void block_gradient(const Footprint& f, float x, float y, float place, int first, GradientState& state,
                               F (&sum)[12]) {
    const F one = set1(1.0f), alpha_max = set1(kAlphaMax);
    for (int p = 0; p < kPieces; ++p) {
        const int at = first + p * W;
        const Exponent e = exponent_at(f, x, y, p);
        const F raw = exp2(e.power), alpha = min(raw, alpha_max);
        const Mask hit = (alpha >= set1(kAlphaMin)) & (load(state.last + at) >= set1(place));
        const F T_behind = load(state.T + at), behind = load(state.behind + at);
        const F inverse = one / (one - alpha);
        const F T = T_behind * inverse;
        const F w = zero_unless(hit, alpha * T);
        const F v_r = load(state.v_r + at), v_g = load(state.v_g + at);
        const F v_b = load(state.v_b + at), v_z = load(state.v_z + at);
        const F value = fma(set1(f.r), v_r, fma(set1(f.g), v_g, fma(set1(f.b), v_b, set1(f.z) * v_z)));
        const F v_alpha = fnma(behind, inverse, T * value);
        store(state.T + at, select(hit, T, T_behind));
        store(state.behind + at, fma(w, value, behind));
        const F gp = zero_unless(hit & (raw <= alpha_max), v_alpha * alpha);
        const F gt = gp * e.t, gs = gp * e.s;
        sum[kGp] = sum[kGp] + gp;
        sum[kGpT] = sum[kGpT] + gt;
        sum[kGpS] = sum[kGpS] + gs;
        sum[kGpTT] = fma(gt, e.t, sum[kGpTT]);
        sum[kGpTS] = fma(gt, e.s, sum[kGpTS]);
        sum[kGpSS] = fma(gs, e.s, sum[kGpSS]);
        sum[kWR] = fma(w, v_r, sum[kWR]);
        sum[kWG] = fma(w, v_g, sum[kWG]);
        sum[kWB] = fma(w, v_b, sum[kWB]);
        sum[kWZ] = fma(w, v_z, sum[kWZ]);
    }
}

void rasterize_tile_gradient(const TileGradientJob& job) {
    GradientState state;
    begin_tile_gradient(job, state);
    for (int e = job.count - 1; e >= 0; --e) {
        const Entry entry = job.entries[e];
        unsigned todo = job.touched[entry.pair];
        if (!todo) continue;
        const Footprint& f = job.footprints[entry.footprint];
        const float x = f.x - (job.x0 + 0.5f), y = f.y - (job.y0 + 0.5f);
        F sum[12];
        for (F& s : sum) s = set1(0.0f);
        for (; todo; todo &= todo - 1) {
            const int block = lowest_bit(todo);
            block_gradient(f, kLattice.block_x[block] - x, kLattice.block_y[block] - y, static_cast<float>(e),
                           16 * block, state, sum);
        }
        sum_lanes(sum, job.pair_sums + static_cast<std::size_t>(entry.pair) * kPairSums);
    }
}

}  // namespace
