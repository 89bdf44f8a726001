// SPDX-License-Identifier: Apache-2.0
// Front-to-back blending of one tile. A Gaussian is tested exactly against the tile's sixteen 4x4 blocks at once, and
// blended into the blocks that it reaches, 16 pixels at a time. State stays in the first-level cache.
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

#if defined(_MSC_VER)
#include <intrin.h>
#endif

namespace {

using namespace r2s;

// Geometry of the 4x4 blocks of a tile (lane = block) and of the pixels of a block (lane = pixel).
struct Lattice {
    alignas(64) float block_x[16], block_y[16], pixel_x[16], pixel_y[16];
};
constexpr Lattice make_lattice() {
    Lattice l{};
    for (int i = 0; i < 16; ++i) {
        l.pixel_x[i] = static_cast<float>(i % 4);
        l.pixel_y[i] = static_cast<float>(i / 4);
        l.block_x[i] = 4 * l.pixel_x[i];
        l.block_y[i] = 4 * l.pixel_y[i];
    }
    return l;
}
constexpr Lattice kLattice = make_lattice();

// Offset of pixel i (tile order) in the image, or -1 outside it.
R2S_INLINE std::ptrdiff_t image_offset(int i, int x0, int y0, int width, int height) {
    const int block = i / 16, lane = i % 16;
    const int x = x0 + (block % 4) * 4 + lane % 4, y = y0 + (block / 4) * 4 + lane / 4;
    return x < width && y < height ? static_cast<std::ptrdiff_t>(y) * width + x : -1;
}

// Blocks in which alpha can reach kAlphaMin: the least t^2 + s^2 over the block's rectangle of pixel centres lies on
// the edge nearest in x or on the edge nearest in y. x, y: centre relative to the tile's first pixel centre.
R2S_INLINE unsigned blocks_reached(const Footprint& f, float x, float y) {
    const F zero = set1(0.0f), three = set1(3.0f), u1 = set1(f.u1), u2 = set1(f.u2), u3 = set1(f.u3);
    const F reach = set1((f.log2_opacity - kLog2AlphaMin) * 1.0001f + 1e-5f);
    unsigned mask = 0;
    for (int p = 0; p < kPieces; ++p) {
        const F x_low = load(kLattice.block_x + p * W) - set1(x), x_high = x_low + three;
        const F y_low = load(kLattice.block_y + p * W) - set1(y), y_high = y_low + three;
        const F x_near = max(x_low, min(x_high, zero)), y_near = max(y_low, min(y_high, zero));
        const F y_best = max(y_low, min(y_high, set1(f.ridge_y) * x_near));
        const F x_best = max(x_low, min(x_high, set1(f.ridge_x) * y_near));
        const F t1 = fma(u1, x_near, u2 * y_best), s1 = u3 * y_best;
        const F t2 = fma(u1, x_best, u2 * y_near), s2 = u3 * y_near;
        const F q = min(fma(t1, t1, s1 * s1), fma(t2, t2, s2 * s2));
        mask |= bits(q <= reach) << (p * W);
    }
    return mask;
}

R2S_INLINE int lowest_bit(unsigned mask) {
#if defined(_MSC_VER)
    unsigned long i;
    _BitScanForward(&i, mask);
    return static_cast<int>(i);
#else
    return __builtin_ctz(mask);
#endif
}

// exp2's argument at the pixels of a piece, in Cholesky form; x, y: offset of the block's first pixel centre from the
// Gaussian's.
struct Exponent {
    F t, s, power;
};
R2S_INLINE Exponent exponent_at(const Footprint& f, float x, float y, int piece) {
    const F dx = load(kLattice.pixel_x + piece * W) + set1(x), dy = load(kLattice.pixel_y + piece * W) + set1(y);
    Exponent e;
    e.t = fma(set1(f.u1), dx, set1(f.u2) * dy);
    e.s = set1(f.u3) * dy;
    e.power = fnma(e.s, e.s, fnma(e.t, e.t, set1(f.log2_opacity)));
    return e;
}

struct alignas(64) TileState {
    float T[kTilePixels];  // transmittance; its sign bit says that the pixel is done
    float r[kTilePixels], g[kTilePixels], b[kTilePixels], d[kTilePixels];
    float last[kTilePixels];
};

struct alignas(64) TopState {
    float weight[kTilePixels], place[kTilePixels];
};

R2S_INLINE void begin_tile(const TileJob& job, TileState& state) {
    std::memset(&state, 0, sizeof state);
    const bool whole = job.x0 + kTile <= job.width && job.y0 + kTile <= job.height;
    for (int i = 0; i < kTilePixels; ++i) {
        state.T[i] = whole || image_offset(i, job.x0, job.y0, job.width, job.height) >= 0 ? 1.0f : -1.0f;
        state.last[i] = -1.0f;
    }
}

R2S_INLINE void end_tile(const TileJob& job, const TileState& state) {
    for (int i = 0; i < kTilePixels; ++i) {
        const float T = state.T[i] < 0 ? -state.T[i] : state.T[i];
        job.transmittance[i] = T;
        job.last[i] = state.last[i];
        const std::ptrdiff_t at = image_offset(i, job.x0, job.y0, job.width, job.height);
        if (at < 0) continue;
        job.rgb[3 * at] = state.r[i] + T * job.background[0];
        job.rgb[3 * at + 1] = state.g[i] + T * job.background[1];
        job.rgb[3 * at + 2] = state.b[i] + T * job.background[2];
        job.alpha[at] = 1.0f - T;
        job.depth[at] = T < 1.0f ? state.d[i] / (1.0f - T) : 0.0f;
    }
}

// Blends one Gaussian into one block; returns {lanes that it was blended into, lanes that are not done}.
struct Blended {
    unsigned hit, open;
};
template <bool kWeights>
R2S_INLINE Blended blend_block(const Footprint& f, float x, float y, float place, int first, TileState& state,
                               TopState& top, F& weight_sum, F& weight_max) {
    Blended out{0, 0};
    const F zero = set1(0.0f), alpha_max = set1(kAlphaMax);
    for (int p = 0; p < kPieces; ++p) {
        const int at = first + p * W;
        const F T = load(state.T + at);
        const F alpha = min(exp2(exponent_at(f, x, y, p).power), alpha_max);
        const F weight = alpha * T, next = T - weight;
        const Mask valid = (alpha >= set1(kAlphaMin)) & (T > zero);
        const Mask hit = valid & (next > set1(kTransmittanceMin));
        const Mask stop = and_not(valid, hit);
        const F w = zero_unless(hit, weight);
        const F T_out = select(hit, next, select(stop, negate(T), T));
        store(state.T + at, T_out);
        store(state.r + at, fma(w, set1(f.r), load(state.r + at)));
        store(state.g + at, fma(w, set1(f.g), load(state.g + at)));
        store(state.b + at, fma(w, set1(f.b), load(state.b + at)));
        store(state.d + at, fma(w, set1(f.z), load(state.d + at)));
        store(state.last + at, select(hit, set1(place), load(state.last + at)));
        if (kWeights) {
            weight_sum = weight_sum + w;
            weight_max = max(weight_max, w);
            const F best = load(top.weight + at);
            const Mask better = w > best;
            store(top.weight + at, max(best, w));
            store(top.place + at, select(better, set1(place), load(top.place + at)));
        }
        out.hit |= bits(hit) << (p * W);
        out.open |= bits(T_out > zero) << (p * W);
    }
    return out;
}

R2S_INLINE void store_weights(float* out, F sum, F largest) {
    alignas(64) float sums[W], maxima[W];
    store(sums, sum);
    store(maxima, largest);
    float s = 0, m = 0;
    for (int i = 0; i < W; ++i) {
        s += sums[i];
        m = maxima[i] > m ? maxima[i] : m;
    }
    out[0] = s, out[1] = m;
}

template <bool kWeights>
void rasterize_tile_as(const TileJob& job) {
    TileState state;
    TopState top;
    begin_tile(job, state);
    if (kWeights) {
        std::memset(&top, 0, sizeof top);
        for (int i = 0; i < kTilePixels; ++i) top.place[i] = -1.0f;
    }
    unsigned open = 0;
    for (int i = 0; i < kTilePixels; ++i) open |= static_cast<unsigned>(state.T[i] > 0) << (i / 16);
    for (int e = 0; e < job.count && open; ++e) {
        const Footprint& f = job.footprints[job.entries[e].footprint];
        const float x = f.x - (job.x0 + 0.5f), y = f.y - (job.y0 + 0.5f);
        unsigned todo = blocks_reached(f, x, y) & open, touched = 0;
        F weight_sum = set1(0.0f), weight_max = set1(0.0f);
        for (; todo; todo &= todo - 1) {
            const int block = lowest_bit(todo);
            const Blended result =
                blend_block<kWeights>(f, kLattice.block_x[block] - x, kLattice.block_y[block] - y,
                                      static_cast<float>(e), 16 * block, state, top, weight_sum, weight_max);
            touched |= static_cast<unsigned>(result.hit != 0) << block;
            if (!result.open) open &= ~(1u << block);
        }
        if (touched) job.touched[job.entries[e].pair] = static_cast<std::uint16_t>(touched);
        if (kWeights && touched) store_weights(job.weights + 2 * job.entries[e].pair, weight_sum, weight_max);
    }
    end_tile(job, state);
    if (!kWeights) return;
    for (int i = 0; i < kTilePixels; ++i) {
        const std::ptrdiff_t at = image_offset(i, job.x0, job.y0, job.width, job.height);
        if (at < 0) continue;
        const int place = static_cast<int>(top.place[i]);
        job.top[at] = place < 0 ? -1 : static_cast<std::int32_t>(job.footprints[job.entries[place].footprint].id);
    }
}

void rasterize_tile(const TileJob& job) {
    if (job.weights)
        rasterize_tile_as<true>(job);
    else
        rasterize_tile_as<false>(job);
}

}  // namespace
