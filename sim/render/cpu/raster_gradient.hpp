// SPDX-License-Identifier: Apache-2.0
// The gradient of one tile, back to front: transmittance is divided out again, and what lies behind is summed up
// (3DGS, appendix A). Each pair's sums over its pixels are written to its own row, so nothing is added atomically.
#pragma once

#include "raster.hpp"

namespace {

// Sums of a pair over its pixels. gp = dL/dalpha * alpha where alpha is not clamped, w = blend weight, v_* upstream.
enum PairSum { kGp, kGpT, kGpS, kGpTT, kGpTS, kGpSS, kWR, kWG, kWB, kWZ, kPairSumCount };

struct alignas(64) BlockGradientState {
    float T[16];       // transmittance behind the entry in hand
    float behind[16];  // sum over what lies behind of weight * (value . v), with the background
    float last[16];
    float v_r[16], v_g[16], v_b[16], v_z[16];
};

struct GradientState {
    BlockGradientState blocks[16];
};

R2S_INLINE void begin_tile_gradient(const TileGradientJob& job, GradientState& state) {
    std::memset(&state, 0, sizeof state);
    float v_alpha[kTilePixels] = {};
    for_each_quad(job.x0, job.y0, job.width, job.height, [&](int block, int lane, std::ptrdiff_t at, int n) {
        BlockGradientState& s = state.blocks[block];
        for (int i = 0; i < n; ++i) {
            const float* v = job.v_rgb + 3 * (at + i);
            s.v_r[lane + i] = v[0], s.v_g[lane + i] = v[1], s.v_b[lane + i] = v[2];
            float& v_a = v_alpha[16 * block + lane + i];
            if (job.v_alpha) v_a = job.v_alpha[at + i];
            const float alpha = 1.0f - job.transmittance[16 * block + lane + i];
            if (!job.v_depth || !(alpha > 0)) continue;
            s.v_z[lane + i] = job.v_depth[at + i] / alpha;  // depth = sum(w z) / alpha
            v_a -= s.v_z[lane + i] * job.depth[at + i];
        }
    });
    const float* background = job.background;
    for (int i = 0; i < kTilePixels; ++i) {
        BlockGradientState& s = state.blocks[i / 16];
        const int lane = i % 16;
        s.T[lane] = job.transmittance[i];
        s.last[lane] = job.last[i];
        s.behind[lane] = s.T[lane] * (s.v_r[lane] * background[0] + s.v_g[lane] * background[1] +
                                      s.v_b[lane] * background[2] - v_alpha[i]);
    }
}

// x, y: centre relative to the tile's first pixel centre.
R2S_INLINE void block_gradient(const Footprint& f, float x, float y, float place, int block, BlockGradientState& s,
                               F (&sum)[12]) {
    const F one = set1(1.0f), alpha_max = set1(kAlphaMax);
    for (int at = 0; at < 16; at += W) {
        const Exponent e = exponent_at(f, x, y, 16 * block + at);
        const F raw = exp2(e.power), alpha = min(raw, alpha_max);
        const Mask hit = (alpha >= set1(kAlphaMin)) & (load(s.last + at) >= set1(place));
        const F T_behind = load(s.T + at), behind = load(s.behind + at);
        const F inverse = one / (one - alpha);
        const F T = T_behind * inverse;
        const F w = zero_unless(hit, alpha * T);
        const F v_r = load(s.v_r + at), v_g = load(s.v_g + at), v_b = load(s.v_b + at), v_z = load(s.v_z + at);
        const F value = fma(set1(f.r), v_r, fma(set1(f.g), v_g, fma(set1(f.b), v_b, set1(f.z) * v_z)));
        const F v_alpha = fnma(behind, inverse, T * value);
        store(s.T + at, select(hit, T, T_behind));
        store(s.behind + at, fma(w, value, behind));
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
        if (e >= kAhead) {
            prefetch(job.footprints + job.entries[e - kAhead].footprint);
            prefetch(job.touched + job.entries[e - kAhead].pair);
        }
        unsigned todo = job.touched[entry.pair];
        if (!todo) continue;
        const Footprint& f = job.footprints[entry.footprint];
        const float x = f.x - (job.x0 + 0.5f), y = f.y - (job.y0 + 0.5f);
        F sum[12];
        for (F& s : sum) s = set1(0.0f);
        for (; todo; todo &= todo - 1) {
            const int block = lowest_bit(todo);
            block_gradient(f, x, y, static_cast<float>(e), block, state.blocks[block], sum);
        }
        sum_lanes(sum, job.pair_sums + static_cast<std::size_t>(entry.pair) * kPairSums);
    }
}

}  // namespace
