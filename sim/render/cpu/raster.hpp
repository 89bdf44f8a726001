// SPDX-License-Identifier: Apache-2.0
// Front-to-back blending of one tile, 64 entries of its list at a time: first each entry is tested exactly against the
// tile's sixteen 4x4 blocks at once, then each block blends the entries that reach it with its pixels in registers.
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace {

using namespace r2s;

constexpr int kBatch = 64;
constexpr int kAhead = 8;  // entries between the prefetch of a footprint and its use

// First pixel of each block of a tile (lane = block), and every pixel in tile order.
struct Lattice {
    alignas(64) float block_x[16], block_y[16], pixel_x[kTilePixels], pixel_y[kTilePixels];
};
constexpr Lattice make_lattice() {
    Lattice l{};
    for (int i = 0; i < 16; ++i) {
        l.block_x[i] = static_cast<float>(i % 4 * 4);
        l.block_y[i] = static_cast<float>(i / 4 * 4);
    }
    for (int i = 0; i < kTilePixels; ++i) {
        l.pixel_x[i] = l.block_x[i / 16] + static_cast<float>(i % 4);
        l.pixel_y[i] = l.block_y[i / 16] + static_cast<float>(i % 16 / 4);
    }
    return l;
}
constexpr Lattice kLattice = make_lattice();

// The part of a tile that lies in the image, one row of four pixels of a block at a time.
template <typename Work>
R2S_INLINE void for_each_quad(int x0, int y0, int width, int height, const Work& work) {
    for (int quad = 0; quad < kTilePixels / 4; ++quad) {
        const int block = quad / 4, x = x0 + block % 4 * 4, y = y0 + block / 4 * 4 + quad % 4;
        if (x >= width || y >= height) continue;
        work(block, quad % 4 * 4, static_cast<std::ptrdiff_t>(y) * width + x, width - x < 4 ? width - x : 4);
    }
}

// Blocks in which alpha can reach kAlphaMin: the least t^2 + s^2 over the block's rectangle of pixel centres lies on
// the edge nearest in x or on the edge nearest in y. f.x, f.y: relative to the tile's first pixel centre.
R2S_INLINE unsigned blocks_reached(const Footprint& f) {
    const F zero = set1(0.0f), three = set1(3.0f), u1 = set1(f.u1), u2 = set1(f.u2), u3 = set1(f.u3);
    const F reach = set1((f.log2_opacity - kLog2AlphaMin) * 1.0001f + 1e-5f);
    unsigned mask = 0;
    for (int p = 0; p < kPieces; ++p) {
        const F x_low = load(kLattice.block_x + p * W) - set1(f.x), x_high = x_low + three;
        const F y_low = load(kLattice.block_y + p * W) - set1(f.y), y_high = y_low + three;
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

// exp2's argument at W pixels from `pixel` on, in Cholesky form; x, y: centre relative to the tile's first pixel
// centre. The backward pass repeats the forward pass bit for bit.
struct Exponent {
    F t, s, power;
};
R2S_INLINE Exponent exponent_at(const Footprint& f, float x, float y, int pixel) {
    const F dx = load(kLattice.pixel_x + pixel) - set1(x), dy = load(kLattice.pixel_y + pixel) - set1(y);
    Exponent e;
    e.t = fma(set1(f.u1), dx, set1(f.u2) * dy);
    e.s = set1(f.u3) * dy;
    e.power = fnma(e.s, e.s, fnma(e.t, e.t, set1(f.log2_opacity)));
    return e;
}

struct alignas(64) BlockState {
    float T[16];  // transmittance; its sign bit says that the pixel is done
    float r[16], g[16], b[16], d[16];
    float limit[16];  // depth from which on nothing is blended
    float last[16];
    float top_weight[16], top_place[16];
};

struct TileState {
    BlockState blocks[16];
    Footprint batch[kBatch];  // centres relative to the tile's first pixel centre
    alignas(64) std::uint16_t reached[kBatch], touched[kBatch];
    float weight_sum[kBatch], weight_max[kBatch];
    unsigned open;  // blocks with a pixel that is not done
};

R2S_INLINE void begin_tile(const TileJob& job, TileState& state) {
    std::memset(state.blocks, 0, sizeof state.blocks);
    for (BlockState& block : state.blocks)
        for (int i = 0; i < 16; ++i) block.T[i] = -1.0f, block.last[i] = -1.0f, block.top_place[i] = -1.0f;
    state.open = 0;
    for_each_quad(job.x0, job.y0, job.width, job.height, [&](int block, int lane, std::ptrdiff_t at, int n) {
        for (int i = 0; i < n; ++i) {
            state.blocks[block].T[lane + i] = 1.0f;
            if (job.limit) state.blocks[block].limit[lane + i] = job.limit[at + i];
        }
        state.open |= 1u << block;
    });
}

// Fetches entries [first, first + n) and finds which blocks they reach.
R2S_INLINE void load_batch(const TileJob& job, int first, int n, TileState& state) {
    const float x = job.x0 + 0.5f, y = job.y0 + 0.5f;
    for (int i = 0; i < n; ++i) {
        if (first + i + kAhead < job.count) prefetch(job.footprints + job.entries[first + i + kAhead].footprint);
        Footprint& f = state.batch[i];
        f = job.footprints[job.entries[first + i].footprint];
        f.x -= x, f.y -= y;
        state.reached[i] = static_cast<std::uint16_t>(blocks_reached(f) & state.open);
    }
    for (int i = n; i < kBatch; ++i) state.reached[i] = 0;
    std::memset(state.touched, 0, sizeof state.touched);
}

R2S_INLINE void add_weights(F w, float& sum, float& largest) {
    alignas(64) float lanes[W];
    store(lanes, w);
    for (int i = 0; i < W; ++i) {
        sum += lanes[i];
        largest = lanes[i] > largest ? lanes[i] : largest;
    }
}

// Blends `entries` of the batch into one piece of a block. Returns those that were blended; `open` tells whether a
// pixel is left that is not done.
template <bool kWeights, bool kTop, bool kLimit>
R2S_INLINE std::uint64_t blend_piece(TileState& state, int block, int piece, std::uint64_t entries, int first,
                                     bool& open) {
    BlockState& s = state.blocks[block];
    const int at = piece * W;
    const F zero = set1(0.0f), alpha_max = set1(kAlphaMax), alpha_min = set1(kAlphaMin), T_min = set1(kTransmittanceMin);
    F T = load(s.T + at), r = load(s.r + at), g = load(s.g + at), b = load(s.b + at), d = load(s.d + at);
    F last = load(s.last + at), top_weight = load(s.top_weight + at), top_place = load(s.top_place + at);
    Mask live = T > zero;
    T = max(T, negate(T));
    std::uint64_t hits = 0;
    for (; entries; entries &= entries - 1) {
        const int i = lowest_bit(entries);
        const Footprint& f = state.batch[i];
        const F alpha = min(exp2(exponent_at(f, f.x, f.y, 16 * block + at).power), alpha_max);
        const F weight = alpha * T, next = T - weight;
        const Mask valid = (alpha >= alpha_min) & live;
        Mask hit = valid & (next > T_min);
        if (kLimit) hit = hit & (load(s.limit + at) > set1(f.z));  // the list is in depth order: the pixel is done
        const F w = zero_unless(hit, weight), place = set1(static_cast<float>(first + i));
        T = select(hit, next, T);
        r = fma(w, set1(f.r), r), g = fma(w, set1(f.g), g), b = fma(w, set1(f.b), b), d = fma(w, set1(f.z), d);
        last = select(hit, place, last);
        hits |= static_cast<std::uint64_t>(bits(hit) != 0) << i;
        if (kWeights) add_weights(w, state.weight_sum[i], state.weight_max[i]);
        if (kTop) {
            top_place = select(w > top_weight, place, top_place);
            top_weight = max(top_weight, w);
        }
        live = and_not(live, and_not(valid, hit));
        if (!bits(live)) break;
    }
    open = bits(live) != 0;
    store(s.T + at, select(live, T, negate(T)));
    store(s.r + at, r), store(s.g + at, g), store(s.b + at, b), store(s.d + at, d);
    store(s.last + at, last);
    if (kTop) store(s.top_weight + at, top_weight), store(s.top_place + at, top_place);
    return hits;
}

template <bool kWeights, bool kTop, bool kLimit>
R2S_INLINE void blend_batch(TileState& state, int first) {
    for (unsigned todo = state.open; todo; todo &= todo - 1) {
        const int block = lowest_bit(todo);
        const std::uint64_t entries = entries_with_bit(state.reached, block);
        if (!entries) continue;
        std::uint64_t hits = 0;
        bool open = false;
        for (int piece = 0; piece < kPieces; ++piece) {
            bool piece_open;
            hits |= blend_piece<kWeights, kTop, kLimit>(state, block, piece, entries, first, piece_open);
            open |= piece_open;
        }
        set_bit_of_entries(state.touched, block, hits);
        if (!open) state.open &= ~(1u << block);
    }
}

R2S_INLINE void end_tile(const TileJob& job, TileState& state) {
    const F one = set1(1.0f), zero = set1(0.0f);
    for (int i = 0; i < kTilePixels; i += W) {
        BlockState& s = state.blocks[i / 16];
        const int at = i % 16;
        F T = load(s.T + at);
        T = max(T, negate(T));
        const F alpha = one - T;
        store(job.transmittance + i, T);
        store(job.last + i, load(s.last + at));
        store(s.T + at, alpha);
        store(s.d + at, zero_unless(alpha > zero, load(s.d + at) / max(alpha, set1(1e-30f))));
        store(s.r + at, fma(T, set1(job.background[0]), load(s.r + at)));
        store(s.g + at, fma(T, set1(job.background[1]), load(s.g + at)));
        store(s.b + at, fma(T, set1(job.background[2]), load(s.b + at)));
    }
    for_each_quad(job.x0, job.y0, job.width, job.height, [&](int block, int lane, std::ptrdiff_t at, int n) {
        const BlockState& s = state.blocks[block];
        float* rgb = job.rgb + 3 * at;
        for (int i = 0; i < n; ++i) {
            rgb[3 * i] = s.r[lane + i], rgb[3 * i + 1] = s.g[lane + i], rgb[3 * i + 2] = s.b[lane + i];
            job.alpha[at + i] = s.T[lane + i];
            job.depth[at + i] = s.d[lane + i];
            if (!job.top) continue;
            const int place = static_cast<int>(s.top_place[lane + i]);
            if (job.top_weight) job.top_weight[at + i] = s.top_weight[lane + i];
            job.top[at + i] = place < 0 ? -1 : static_cast<std::int32_t>(job.footprints[job.entries[place].footprint].id);
        }
    });
}

template <bool kWeights, bool kTop, bool kLimit>
void rasterize_tile_as(const TileJob& job) {
    TileState state;
    begin_tile(job, state);
    int first = 0;
    for (; first < job.count && state.open; first += kBatch) {
        const int n = job.count - first < kBatch ? job.count - first : kBatch;
        load_batch(job, first, n, state);
        if (kWeights) {
            std::memset(state.weight_sum, 0, sizeof state.weight_sum);
            std::memset(state.weight_max, 0, sizeof state.weight_max);
        }
        blend_batch<kWeights, kTop, kLimit>(state, first);
        for (int i = 0; i < n; ++i) {
            const std::uint32_t pair = job.entries[first + i].pair;
            job.touched[pair] = state.touched[i];
            if (kWeights) job.weights[2 * pair] = state.weight_sum[i], job.weights[2 * pair + 1] = state.weight_max[i];
        }
    }
    for (; first < job.count; ++first) job.touched[job.entries[first].pair] = 0;
    end_tile(job, state);
}

void rasterize_tile(const TileJob& job) {
    if (job.weights)
        rasterize_tile_as<true, true, false>(job);
    else if (job.top && job.limit)
        rasterize_tile_as<false, true, true>(job);
    else if (job.top)
        rasterize_tile_as<false, true, false>(job);
    else if (job.limit)
        rasterize_tile_as<false, false, true>(job);
    else
        rasterize_tile_as<false, false, false>(job);
}

}  // namespace
