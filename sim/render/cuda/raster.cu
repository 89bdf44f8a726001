// SPDX-License-Identifier: Apache-2.0
// Blending. A block is one tile of 16x16 px in one view; it sorts the tile's pairs, each warp then blends an 8x8
// sub-tile, two neighbouring pixels a lane, from the Gaussians that it finds to touch it.
//
// Macros: FAST (blend in packed half: 1 with exponents in float32, 2 with all in half), SORT_MAX (longest list sorted
// here), UNROLL, BLOCKS_PER_SM, RGB DEPTH ALPHA SEGMENTATION NORMALS, OUTPUT_BITS 8/16/32, LAYER: 0 draw everything,
// 1 store the fixed layer of fixed cameras, 2 draw over that layer.
#include "intrinsics.cuh"

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;
constexpr int SLOT_BITS = 11;
constexpr int STAGE_WORDS = NORMALS ? 4 : 3;  // of 16 bytes
constexpr int STAGING = WARPS * STAGE_WORDS * 32;
static_assert(SORT_MAX <= 1 << SLOT_BITS, "a slot of the list fits its bits of the key");

// Lists of pairs in bins, long ones elsewhere, and the records that they point to.
struct Lists {
    const u32* counts;
    const u64* pairs;
    const u32* offsets;
    const u64* long_pairs;
    const Record* records;
    const float4* normals;
    u32 capacity;
    int stride, first;  // records of a view, and the Gaussian of the first
};

struct Pixel {
    float r, g, b, alpha, depth;
    int body;
    float nx, ny, nz;
};

struct Images {
    void* rgb;
    void* alpha;
    void* depth;
    int* segmentation;
    void* normals;
};

struct Layer {
    float4* colour;   // r g b alpha [cameras * H * W]
    float* depth;
    int* body;
    float4* normal;
};

__device__ __forceinline__ float unit(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }

// Three channels of two neighbouring pixels.
__device__ __forceinline__ void store_three(void* image, size_t pixel, bool two, const float* p, const float* q) {
    float v[6] = {p[0], p[1], p[2], q[0], q[1], q[2]};
    bool wide = two && pixel % 2 == 0;
    int n = two ? 6 : 3;
#if OUTPUT_BITS == 8
    u32 c[6];
    for (int k = 0; k < 6; k++) c[k] = (u32)(unit(v[k]) * 255.0f + 0.5f);
    if (wide) {
        u16* to = (u16*)((u8*)image + pixel * 3);
        for (int k = 0; k < 3; k++) to[k] = (u16)(c[2 * k] | c[2 * k + 1] << 8);
    } else {
        u8* to = (u8*)image + pixel * 3;
        for (int k = 0; k < 6; k++)
            if (k < n) to[k] = (u8)c[k];
    }
#elif OUTPUT_BITS == 16
    u32 c[3];
    for (int k = 0; k < 3; k++) c[k] = h2_pack(v[2 * k], v[2 * k + 1]);
    if (wide) {
        u32* to = (u32*)((u16*)image + pixel * 3);
        for (int k = 0; k < 3; k++) to[k] = c[k];
    } else {
        u16* to = (u16*)image + pixel * 3;
        for (int k = 0; k < 6; k++)
            if (k < n) to[k] = (u16)(k % 2 ? c[k / 2] >> 16 : c[k / 2]);
    }
#else
    float* to = (float*)image + pixel * 3;
    if (wide) {
        for (int k = 0; k < 3; k++) ((float2*)to)[k] = float2{v[2 * k], v[2 * k + 1]};
    } else {
        for (int k = 0; k < 6; k++)
            if (k < n) to[k] = v[k];
    }
#endif
}

__device__ __forceinline__ void store_alpha(void* image, size_t pixel, float alpha) {
#if OUTPUT_BITS == 8
    ((u8*)image)[pixel] = (u8)(unit(alpha) * 255.0f + 0.5f);
#elif OUTPUT_BITS == 16
    ((u16*)image)[pixel] = (u16)h2_pack(alpha, 0.0f);
#else
    ((float*)image)[pixel] = alpha;
#endif
}

__device__ __forceinline__ void store_depth(void* image, size_t pixel, float depth) {
#if OUTPUT_BITS == 16
    ((u16*)image)[pixel] = (u16)h2_pack(depth, 0.0f);
#else
    ((float*)image)[pixel] = depth;
#endif
}

// Background and the world's gain, then the images; pixel: of the whole batch.
__device__ __forceinline__ void store(const Images& images, size_t pixel, bool two, const Pixel* p, const float* background,
                                      const float* gain) {
#if RGB
    float c[2][3];
    for (int i = 0; i < 2; i++) {
        float through = 1 - p[i].alpha;
        c[i][0] = (p[i].r + through * background[0]) * gain[0];
        c[i][1] = (p[i].g + through * background[1]) * gain[1];
        c[i][2] = (p[i].b + through * background[2]) * gain[2];
    }
    store_three(images.rgb, pixel, two, c[0], c[1]);
#endif
#if NORMALS
    float n[2][3];
    for (int i = 0; i < 2; i++) {
        float square = p[i].nx * p[i].nx + p[i].ny * p[i].ny + p[i].nz * p[i].nz;
        float scale = square > 0 ? 1.0f / sqrtf(square) : 0.0f;
        n[i][0] = p[i].nx * scale, n[i][1] = p[i].ny * scale, n[i][2] = p[i].nz * scale;
        if (OUTPUT_BITS == 8)
            for (int c = 0; c < 3; c++) n[i][c] = 0.5f * n[i][c] + 0.5f;
    }
    store_three(images.normals, pixel, two, n[0], n[1]);
#endif
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 1 && !two) break;
        if (ALPHA) store_alpha(images.alpha, pixel + i, p[i].alpha);
        if (DEPTH) store_depth(images.depth, pixel + i, p[i].depth);
        if (SEGMENTATION) images.segmentation[pixel + i] = p[i].body;
    }
}

__device__ __forceinline__ void keep(const Layer& layer, size_t pixel, const Pixel& p) {
    layer.colour[pixel] = float4{p.r, p.g, p.b, p.alpha};
    if (DEPTH) layer.depth[pixel] = p.depth;
    if (SEGMENTATION) layer.body[pixel] = p.body;
    if (NORMALS) layer.normal[pixel] = float4{p.nx, p.ny, p.nz, 0.0f};
}

__device__ __forceinline__ Pixel kept(const Layer& layer, size_t pixel) {
    float4 c = layer.colour[pixel];
    Pixel p{c.x, c.y, c.z, c.w, 0.0f, -1, 0.0f, 0.0f, 0.0f};
    if (DEPTH) p.depth = layer.depth[pixel];
    if (SEGMENTATION) p.body = layer.body[pixel];
    if (NORMALS) {
        float4 n = layer.normal[pixel];
        p.nx = n.x, p.ny = n.y, p.nz = n.z;
    }
    return p;
}

__device__ __forceinline__ u32 exchange(u32 key, u32 other, bool keep_less) {
    u32 less = key < other ? key : other, more = key < other ? other : key;
    return keep_less ? less : more;
}

// Bitonic network over THREADS * E keys, thread t holding places t E to t E + E - 1; words: shared, THREADS * E.
template <int E>
__device__ __forceinline__ void sort_keys(u32 (&key)[E], u32* words) {
    int t = threadIdx.x;
    // size: of the runs that a round makes; written in threads where it is at least E
#pragma unroll
    for (int size = 2; size < E; size *= 2)
#pragma unroll
        for (int stride = size / 2; stride > 0; stride /= 2)
#pragma unroll
            for (int e = 0; e < E; e++)
                if (!(e & stride)) {
                    u32 a = key[e], b = key[e | stride];
                    bool ascending = (e & size) == 0;
                    key[e] = exchange(a, b, ascending), key[e | stride] = exchange(a, b, !ascending);
                }
    for (int size = E > 1 ? 1 : 2; size <= THREADS; size *= 2) {
        bool ascending = (t & size) == 0;
        if (size == THREADS) ascending = true;
        for (int stride = size / 2; stride >= 32; stride /= 2) {
            __syncthreads();
#pragma unroll
            for (int e = 0; e < E; e++) words[e * THREADS + t] = key[e];
            __syncthreads();
            bool less = ((t & stride) == 0) == ascending;
#pragma unroll
            for (int e = 0; e < E; e++) key[e] = exchange(key[e], words[e * THREADS + (t ^ stride)], less);
        }
        for (int stride = size / 2 < 16 ? size / 2 : 16; stride > 0; stride /= 2) {
            bool less = ((t & stride) == 0) == ascending;
#pragma unroll
            for (int e = 0; e < E; e++) key[e] = exchange(key[e], __shfl_xor_sync(FULL_WARP, key[e], stride), less);
        }
#pragma unroll
        for (int stride = E / 2; stride > 0; stride /= 2)
#pragma unroll
            for (int e = 0; e < E; e++)
                if (!(e & stride)) {
                    u32 a = key[e], b = key[e | stride];
                    key[e] = exchange(a, b, ascending), key[e | stride] = exchange(a, b, !ascending);
                }
    }
}

__device__ __forceinline__ u32 block_least(u32 value, u32* words) {
    value = __reduce_min_sync(FULL_WARP, value);
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = value;
    __syncthreads();
    u32 least = words[0];
    for (int w = 1; w < WARPS; w++) least = words[w] < least ? words[w] : least;
    __syncthreads();
    return least;
}

// Whole 64-bit keys in shared memory: places beyond n would hold infinity and never take part.
__device__ void sort_in_place(u64* list, u32 n) {
    for (u32 size = 2; size / 2 < n; size *= 2)
        for (u32 stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (u32 k = threadIdx.x; k < (n + 1) / 2 + stride; k += THREADS) {
                u32 a = k / stride * stride * 2 + k % stride, b = stride == size / 2 ? (a ^ (size - 1)) : a + stride;
                if (b < n && list[a] > list[b]) {
                    u64 x = list[a];
                    list[a] = list[b], list[b] = x;
                }
            }
        }
    __syncthreads();
}

// Sorts list[0..n), n <= THREADS * E, by (depth, Gaussian): keys of 21 bits of depth within the tile and the slot, then
// whole keys where two neighbours of equal leading bits came out in the wrong order.
template <int E>
__device__ __forceinline__ void sort_list(u64* list, u32 n, u32* words, u32 nearest, u32 farthest) {
    int t = threadIdx.x;
    int bits = 32 - __clz(farthest - nearest), shift = bits > 32 - SLOT_BITS ? bits - (32 - SLOT_BITS) : 0;
    u32 key[E];
#pragma unroll
    for (int e = 0; e < E; e++) {
        u32 slot = e * THREADS + t;
        key[e] = slot < n ? (((u32)(list[slot] >> 32) - nearest) >> shift) << SLOT_BITS | slot : 0xffffffffu;
    }
    sort_keys<E>(key, words);
    u64 pair[E];
#pragma unroll
    for (int e = 0; e < E; e++) pair[e] = t * E + e < n ? list[key[e] & ((1 << SLOT_BITS) - 1)] : 0;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < E; e++)
        if (t * E + e < n) list[t * E + e] = pair[e];
    __syncthreads();
    bool wrong = false;
    for (u32 i = t; i + 1 < n; i += THREADS) wrong |= list[i] > list[i + 1];
    if (__syncthreads_or(wrong)) sort_in_place(list, n);
}

__device__ __forceinline__ const u64* list_of(const Lists& lists, u32 bin, u32 count) {
    return count > lists.capacity ? lists.long_pairs + lists.offsets[bin] : lists.pairs + (size_t)bin * lists.capacity;
}

// The blended sums of a lane's two pixels.
struct Sums {
    float r[2], g[2], b[2], zw[2], nx[2], ny[2], nz[2];
#if FAST
    u32 through, most;  // halves: transmittance, 0 once the pixel has ended; largest weight
    float alpha[2];
#else
    float through[2], most[2];  // transmittance, its negative once the pixel has ended
#endif
    u32 who[2];
};

__device__ __forceinline__ void begin(Sums& s, bool first_inside, bool second_inside) {
    for (int i = 0; i < 2; i++) {
        s.r[i] = s.g[i] = s.b[i] = s.zw[i] = s.nx[i] = s.ny[i] = s.nz[i] = 0;
        s.who[i] = NO_PLACE;
    }
#if FAST
    s.through = h2_pack(first_inside ? 1.0f : 0.0f, second_inside ? 1.0f : 0.0f), s.most = 0;
    s.alpha[0] = s.alpha[1] = 0;
#else
    s.through[0] = first_inside ? 1.0f : -1.0f, s.through[1] = second_inside ? 1.0f : -1.0f;
    s.most[0] = s.most[1] = 0;
#endif
}

__device__ __forceinline__ bool ended(const Sums& s) {
#if FAST
    return s.through == 0;
#else
    return s.through[0] < 0 && s.through[1] < 0;
#endif
}

constexpr float ORIGIN = FAST == 2 ? 3.5f : 0.0f;  // of a sub-tile's offsets [px]: its middle, where halves are finest

// A survivor in shared memory, relative to the sub-tile's origin: u = u0 + l11 i + l21 j, v = v0 + l22 j.
__device__ __forceinline__ void stage(uint4 (*to)[32], int slot, const Record& g, float x0, float y0, float z, u32 who,
                                      const float4* normal) {
    float dx = x0 - g.x, dy = y0 - g.y;
    float red = (float)(g.colour_low & 0x1fffffu) / COLOUR_STEP;
    float green = (float)(g.colour_low >> 21 | (g.colour_high & 0x3ffu) << 11) / COLOUR_STEP;
    float blue = (float)(g.colour_high >> 10) / COLOUR_STEP;
#if FAST == 2
    to[0][slot] = uint4{h2_pack(g.l11, g.l21), h2_pack(g.l22, fminf(g.log2_opacity, LOG2_ALPHA_MAX)),
                        h2_pack(g.l11 * dx + g.l21 * dy, g.l22 * dy), h2_pack(red, green)};
    to[1][slot] = uint4{h2_pack(blue, z), who, 0u, 0u};
#elif FAST
    to[0][slot] = uint4{__float_as_uint(g.l11 * dx + g.l21 * dy), __float_as_uint(g.l22 * dy), __float_as_uint(g.l11),
                        __float_as_uint(g.l21)};
    to[1][slot] = uint4{__float_as_uint(g.l22), __float_as_uint(fminf(g.log2_opacity, LOG2_ALPHA_MAX)), h2_pack(red, green),
                        h2_pack(blue, z)};
    if (SEGMENTATION) to[2][slot].z = who;
#else
    to[0][slot] = uint4{__float_as_uint(g.l11 * dx + g.l21 * dy), __float_as_uint(g.l22 * dy), __float_as_uint(g.l11),
                        __float_as_uint(g.l21)};
    to[1][slot] = uint4{__float_as_uint(g.l22), __float_as_uint(g.log2_opacity), __float_as_uint(red), __float_as_uint(green)};
    to[2][slot] = uint4{__float_as_uint(blue), __float_as_uint(z), who, 0u};
#endif
#if NORMALS
    to[3][slot] = uint4{__float_as_uint(normal->x), __float_as_uint(normal->y), __float_as_uint(normal->z), 0u};
#endif
}

// Blends the first `count` staged Gaussians, in order; column, row: of the lane's first pixel in the sub-tile.
__device__ __forceinline__ void blend(Sums& s, const uint4 (*from)[32], int count, float column, float row) {
#if FAST
    const u32 least = h2_pack(ALPHA_MIN, ALPHA_MIN);
    const u32 spent = h2_pack(TRANSMITTANCE_MIN, TRANSMITTANCE_MIN);
    u32 red = 0, green = 0, blue = 0, deep = 0, sum = 0;
    const u32 columns = h2_pack(column, column + 1), rows = h2_pack(row, row);
#endif
#pragma unroll UNROLL
    for (int j = 0; j < count; j++) {
#if FAST == 2
        uint4 p = from[0][j];
        u32 colour_low = p.w, colour_high = from[1][j].x;
        u32 v = h2_fma(h2_lows(p.y), rows, h2_highs(p.z));
        u32 u = h2_fma(h2_lows(p.x), columns, h2_fma(h2_highs(p.x), rows, h2_lows(p.z)));
        u32 alpha = h2_ex2(h2_fnma(u, u, h2_fnma(v, v, h2_highs(p.y))));
#else
        uint4 p = from[0][j], q = from[1][j];
        float l11 = __uint_as_float(p.z);
        float u = __uint_as_float(p.x) + __uint_as_float(p.w) * row + l11 * column, v = __uint_as_float(p.y) + __uint_as_float(q.x) * row;
        float top = __uint_as_float(q.y) - v * v, u1 = u + l11;
        float e0 = top - u * u, e1 = top - u1 * u1;
#endif
#if FAST == 1
        u32 colour_low = q.z, colour_high = q.w, alpha = h2_pack(ex2(e0), ex2(e1));
#endif
#if FAST
        alpha &= h2_ge(alpha, least);
        u32 weight = h2_mul(alpha, s.through), rest = h2_sub(s.through, weight), goes_on = h2_gt(rest, spent);
        weight &= goes_on;
        s.through = rest & goes_on;
        sum = h2_add(sum, weight);
        red = h2_fma(weight, h2_lows(colour_low), red), green = h2_fma(weight, h2_highs(colour_low), green);
        blue = h2_fma(weight, h2_lows(colour_high), blue);
        if (DEPTH) deep = h2_fma(weight, h2_highs(colour_high), deep);
#if SEGMENTATION
        u32 more = h2_gt(weight, s.most), who = FAST == 2 ? from[1][j].y : from[2][j].z;
        s.most = h2_max(weight, s.most);
        if (more & 0xffffu) s.who[0] = who;
        if (more >> 16) s.who[1] = who;
#endif
#if NORMALS
        float w[2] = {h2_low(weight), h2_high(weight)};
#endif
#else
        uint4 o = from[2][j];
        float e[2] = {e0, e1}, w[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float alpha = fminf(ex2(e[i]), ALPHA_MAX);
            alpha = alpha >= ALPHA_MIN ? alpha : 0.0f;
            float weight = alpha * s.through[i], rest = s.through[i] - weight;
            bool goes_on = rest > TRANSMITTANCE_MIN;
            w[i] = goes_on ? weight : 0.0f;
            s.through[i] = goes_on ? rest : -fabsf(s.through[i]);
            s.r[i] += w[i] * __uint_as_float(q.z), s.g[i] += w[i] * __uint_as_float(q.w), s.b[i] += w[i] * __uint_as_float(o.x);
            if (DEPTH) s.zw[i] += w[i] * __uint_as_float(o.y);
            if (SEGMENTATION && w[i] > s.most[i]) s.most[i] = w[i], s.who[i] = o.z;
        }
#endif
#if NORMALS
        uint4 n = from[3][j];
        for (int i = 0; i < 2; i++) {
            s.nx[i] += w[i] * __uint_as_float(n.x), s.ny[i] += w[i] * __uint_as_float(n.y);
            s.nz[i] += w[i] * __uint_as_float(n.z);
        }
#endif
    }
#if FAST
    s.r[0] += h2_low(red), s.r[1] += h2_high(red), s.g[0] += h2_low(green), s.g[1] += h2_high(green);
    s.b[0] += h2_low(blue), s.b[1] += h2_high(blue), s.alpha[0] += h2_low(sum), s.alpha[1] += h2_high(sum);
    s.zw[0] += h2_low(deep), s.zw[1] += h2_high(deep);
#endif
}

// In FAST, depths were staged as shares of [nearest, nearest + range].
__device__ __forceinline__ Pixel finish(const Sums& s, int i, const int* cluster_body, float nearest, float range) {
    Pixel p;
    p.r = s.r[i], p.g = s.g[i], p.b = s.b[i];
#if FAST
    p.alpha = s.alpha[i];
    p.depth = p.alpha > 0 ? nearest + range * (s.zw[i] / p.alpha) : 0.0f;
#else
    p.alpha = 1 - fabsf(s.through[i]);
    p.depth = p.alpha > 0 ? s.zw[i] / p.alpha : 0.0f;
#endif
    p.body = s.who[i] == NO_PLACE ? -1 : cluster_body[s.who[i] / CLUSTER];
    p.nx = s.nx[i], p.ny = s.ny[i], p.nz = s.nz[i];
    return p;
}

struct Fetched {
    Record record;
    u64 pair;
    const float4* normal;
};

__device__ __forceinline__ Fetched fetch(const u64* list, u32 i, u32 n, const Lists& moving, const Lists& fixed, int view, int camera) {
    Fetched f;
    f.pair = i < n ? list[i] : ~0ull;
    f.normal = nullptr;
    f.record.log2_opacity = -1e4f;  // never survives
    if (i < n) {
        u32 g = (u32)f.pair;
        bool cached = LAYER == 2 && (int)g < moving.first;
        size_t at = cached ? (size_t)camera * fixed.stride + g : (size_t)view * moving.stride + (g - moving.first);
        const float4* from = (const float4*)((cached ? fixed.records : moving.records) + at);
        float4 a = from[0], b = from[1];
        f.record = Record{a.x, a.y, a.z, a.w, b.x, b.y, __float_as_uint(b.z), __float_as_uint(b.w)};
        if (NORMALS) f.normal = (cached ? fixed.normals : moving.normals) + at;
    }
    return f;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) raster(
    const u32* __restrict__ counts, const u64* __restrict__ pairs, const u32* __restrict__ offsets,
    const u64* __restrict__ long_pairs, const Record* __restrict__ records, const float4* __restrict__ record_normals,
    u32 capacity, int stride, int first, const u32* __restrict__ static_counts, const u64* __restrict__ static_pairs,
    const u32* __restrict__ static_offsets, const u64* __restrict__ static_long, const Record* __restrict__ static_records,
    const float4* __restrict__ static_normals, u32 static_capacity, int static_stride, float4* layer_colour,
    float* layer_depth, int* layer_body, float4* layer_normal, const int* __restrict__ cluster_body,
    const float* __restrict__ backgrounds, const float* __restrict__ gains, int first_view, int cameras, int width,
    int height, void* rgb, void* alpha, void* depth, int* segmentation, void* normals) {
    __shared__ u64 sorted[SORT_MAX];
    __shared__ uint4 staging[STAGING > SORT_MAX / 4 ? STAGING : SORT_MAX / 4];
    Lists moving{counts, pairs, offsets, long_pairs, records, record_normals, capacity, stride, first};
    Lists fixed{static_counts, static_pairs, static_offsets, static_long, static_records, static_normals, static_capacity, static_stride, 0};
    Images images{rgb, alpha, depth, segmentation, normals};
    Layer layer{layer_colour, layer_depth, layer_body, layer_normal};
    int tiles_x = (width + TILE - 1) / TILE, tiles = tiles_x * ((height + TILE - 1) / TILE);
    int tile = blockIdx.x % tiles, view = blockIdx.x / tiles, camera = (first_view + view) % cameras;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int x0 = tile % tiles_x * TILE + warp % 2 * SUBTILE, y0 = tile / tiles_x * TILE + warp / 2 * SUBTILE;
    int x = x0 + lane % 4 * 2, y = y0 + lane / 4;
    bool inside = x < width && y < height, both = x + 1 < width && inside;
    const float* background = backgrounds + 3 * (size_t)((first_view + view) / cameras);
    const float* gain = gains + 3 * (size_t)((first_view + view) / cameras);
    size_t pixel = (size_t)y * width + x, image = (size_t)width * height;
    u32 bin = (u32)(view * tiles + tile), n_moving = counts[bin], n = n_moving, n_fixed = 0;
#if LAYER == 2
    u32 fixed_bin = (u32)(camera * tiles + tile);
    if (n_moving == 0) {
        if (!inside) return;
        Pixel p[2] = {kept(layer, camera * image + pixel), kept(layer, camera * image + pixel + (both ? 1 : 0))};
        store(images, (first_view + view) * image + pixel, both, p, background, gain);
        return;
    }
    n_fixed = static_counts[fixed_bin];
    n += n_fixed;
#endif
    const u64* list = sorted;
    float nearest = 0, range = 0;
    if (n > SORT_MAX || n_moving > capacity) {
        if (offsets[bin] == NO_PLACE) n = 0;  // there was no room: the chunk is drawn again
        list = long_pairs + (n ? offsets[bin] : 0u);
        if (n) nearest = __uint_as_float((u32)(list[0] >> 32)), range = __uint_as_float((u32)(list[n - 1] >> 32)) - nearest;
    } else if (n) {
        u32* words = (u32*)staging;
        u32 low = NO_PLACE, not_high = NO_PLACE;
        const u64* from = pairs + (size_t)bin * capacity;
#if LAYER == 2
        const u64* under = list_of(fixed, fixed_bin, n_fixed);
#endif
        for (u32 k = threadIdx.x; k < n; k += THREADS) {
#if LAYER == 2
            u64 pair = k < n_moving ? from[k] : under[k - n_moving];
#else
            u64 pair = from[k];
#endif
            u32 z = (u32)(pair >> 32);
            sorted[k] = pair, low = z < low ? z : low, not_high = ~z < not_high ? ~z : not_high;
        }
        low = block_least(low, words), not_high = block_least(not_high, words);
        u32 high = ~not_high;
        nearest = __uint_as_float(low), range = __uint_as_float(high) - nearest;
        if (n <= THREADS) sort_list<1>(sorted, n, words, low, high);
        else if (n <= THREADS * 2) sort_list<2>(sorted, n, words, low, high);
        else if (SORT_MAX >= THREADS * 4 && n <= THREADS * 4) sort_list<4>(sorted, n, words, low, high);
#if SORT_MAX > 512
        else if (n <= THREADS * 8) sort_list<8>(sorted, n, words, low, high);
#endif
#if SORT_MAX > 1024
        else sort_list<16>(sorted, n, words, low, high);
#endif
        __syncthreads();
    }
    if (x0 >= width || y0 >= height) return;
    uint4(*mine)[32] = (uint4(*)[32])(staging + warp * STAGE_WORDS * 32);
    float corner_x = x0 + 0.5f, corner_y = y0 + 0.5f;
    float column = (float)(lane % 4 * 2) - ORIGIN, row = (float)(lane / 4) - ORIGIN;
    float per_range = range > 0 ? 1.0f / range : 0.0f;
    Sums sums;
    begin(sums, inside, both);
    Fetched next = fetch(list, lane, n, moving, fixed, view, camera);
    for (u32 base = 0; base < n; base += 32) {
        Fetched now = next;
        next = fetch(list, base + 32 + lane, n, moving, fixed, view, camera);
        const Record& g = now.record;
        float left = corner_x - g.x, top = corner_y - g.y;
        bool hit = base + lane < n && least_exponent(g.l11, g.l21, g.l22, left, left + (SUBTILE - 1), top, top + (SUBTILE - 1)) <=
                                          g.log2_opacity + LOG2_255 + CULL_SLACK;
        u32 hits = __ballot_sync(FULL_WARP, hit);
        if (hit) {
            float z = __uint_as_float((u32)(now.pair >> 32));
            stage(mine, __popc(hits & ((1u << lane) - 1)), g, corner_x + ORIGIN, corner_y + ORIGIN, FAST ? (z - nearest) * per_range : z,
                  (u32)now.pair, now.normal);
        }
        __syncwarp();
        blend(sums, mine, __popc(hits), column, row);
        __syncwarp();
        if (__all_sync(FULL_WARP, ended(sums))) break;
    }
    if (!inside) return;
    Pixel p[2] = {finish(sums, 0, cluster_body, nearest, range), finish(sums, 1, cluster_body, nearest, range)};
#if LAYER == 1
    keep(layer, camera * image + pixel, p[0]);
    if (both) keep(layer, camera * image + pixel + 1, p[1]);
#else
    store(images, (first_view + view) * image + pixel, both, p, background, gain);
#endif
}
