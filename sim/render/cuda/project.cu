// SPDX-License-Identifier: Apache-2.0
// Projection of a template into many views, and the pairs (Gaussian, tile) that it touches there.
//
// `pose`: a thread is one body in one view. `project`: a block is one cluster of 128 Gaussians (one a thread, kept in
// registers) and loops over a group of up to 32 views; pairs are shared out over each warp.
//
// Macros: SH_DEGREE 0..3, ANTIALIASED 0/1, NORMALS 0/1.
#include "intrinsics.cuh"

constexpr int SH_COUNT = (SH_DEGREE + 1) * (SH_DEGREE + 1);
constexpr int WARPS = CLUSTER / 32;
constexpr int POSE_FLOATS = 16;  // 3x4 matrix from the body's frame to the camera's, then the camera's centre in the body's

// poses [views][bodies][16] of viewmats [shared or worlds * cameras][16] and body_poses [worlds][bodies][7].
// Views are numbered world * cameras + camera, from first_view.
extern "C" __global__ void pose(const float* __restrict__ viewmats, const float* __restrict__ body_poses,
                                float* __restrict__ poses, int first_view, int views, int cameras, int bodies,
                                int shared_viewmats) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= views * bodies) return;
    int view = first_view + i / bodies, body = i % bodies;
    int world = view / cameras;
    const float* V = viewmats + 16 * (size_t)(shared_viewmats ? view % cameras : view);
    float R[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1}, t[3] = {0, 0, 0};
    if (body > 0) {
        const float* p = body_poses + 7 * ((size_t)world * bodies + body);
        float norm = 1.0f / sqrtf(p[3] * p[3] + p[4] * p[4] + p[5] * p[5] + p[6] * p[6]);
        float w = p[3] * norm, x = p[4] * norm, y = p[5] * norm, z = p[6] * norm;
        R[0] = 1 - 2 * (y * y + z * z), R[1] = 2 * (x * y - w * z), R[2] = 2 * (x * z + w * y);
        R[3] = 2 * (x * y + w * z), R[4] = 1 - 2 * (x * x + z * z), R[5] = 2 * (y * z - w * x);
        R[6] = 2 * (x * z - w * y), R[7] = 2 * (y * z + w * x), R[8] = 1 - 2 * (x * x + y * y);
        t[0] = p[0], t[1] = p[1], t[2] = p[2];
    }
    float* out = poses + POSE_FLOATS * (size_t)i;
    float M[12];
    for (int r = 0; r < 3; r++) {
        for (int c = 0; c < 3; c++) M[4 * r + c] = V[4 * r] * R[c] + V[4 * r + 1] * R[3 + c] + V[4 * r + 2] * R[6 + c];
        M[4 * r + 3] = V[4 * r] * t[0] + V[4 * r + 1] * t[1] + V[4 * r + 2] * t[2] + V[4 * r + 3];
    }
    for (int k = 0; k < 12; k++) out[k] = M[k];
    for (int c = 0; c < 3; c++) out[12 + c] = -(M[c] * M[3] + M[4 + c] * M[7] + M[8 + c] * M[11]);
    out[15] = 0;
}

struct Lens {
    float fx, fy, cx, cy, width, height, near_z, far_z;
    float low_x, high_x, low_y, high_y;  // clamp of the slopes x/z, y/z in the Jacobian
};

__device__ __forceinline__ Lens lens_of(const float* K, int width, int height, float near_z, float far_z) {
    Lens lens;
    lens.fx = K[0], lens.fy = K[4], lens.cx = K[2], lens.cy = K[5];
    lens.width = width, lens.height = height, lens.near_z = near_z, lens.far_z = far_z;
    float margin_x = FRUSTUM_MARGIN * 0.5f * width / lens.fx, margin_y = FRUSTUM_MARGIN * 0.5f * height / lens.fy;
    lens.low_x = -(lens.cx / lens.fx + margin_x), lens.high_x = (width - lens.cx) / lens.fx + margin_x;
    lens.low_y = -(lens.cy / lens.fy + margin_y), lens.high_y = (height - lens.cy) / lens.fy + margin_y;
    return lens;
}

// Whether a cluster can be seen: sphere of the centres (radius reach) and the largest standard deviation spread. An
// ellipse ends at most 3.33 (f sqrt(1 + slope^2) spread / z + sqrt(0.3)) px from its centre, so multiplied by z > 0 the
// condition to miss one side of the image is linear in the centre, and its extremes over the sphere are known.
__device__ bool sphere_seen(const Lens& lens, const float* M, float4 sphere, float spread) {
    float x = M[0] * sphere.x + M[1] * sphere.y + M[2] * sphere.z + M[3];
    float y = M[4] * sphere.x + M[5] * sphere.y + M[6] * sphere.z + M[7];
    float z = M[8] * sphere.x + M[9] * sphere.y + M[10] * sphere.z + M[11];
    float reach = sphere.w * 1.0001f + 1e-5f;
    if (!(z + reach >= lens.near_z && z - reach <= lens.far_z)) return false;
    float slope_x = fmaxf(fabsf(lens.low_x), fabsf(lens.high_x)), slope_y = fmaxf(fabsf(lens.low_y), fabsf(lens.high_y));
    float grow_x = 3.34f * lens.fx * sqrtf(1 + slope_x * slope_x) * spread;
    float grow_y = 3.34f * lens.fy * sqrtf(1 + slope_y * slope_y) * spread;
    const float pad = 2.0f;  // 3.33 sqrt(0.3) and some rounding [px]
    float left = lens.cx + pad, right = lens.cx - lens.width - pad;
    float top = lens.cy + pad, bottom = lens.cy - lens.height - pad;
    bool misses = lens.fx * x + left * z + reach * sqrtf(lens.fx * lens.fx + left * left) + grow_x < 0 ||
                  lens.fx * x + right * z - reach * sqrtf(lens.fx * lens.fx + right * right) - grow_x > 0 ||
                  lens.fy * y + top * z + reach * sqrtf(lens.fy * lens.fy + top * top) + grow_y < 0 ||
                  lens.fy * y + bottom * z - reach * sqrtf(lens.fy * lens.fy + bottom * bottom) - grow_y > 0;
    return !misses;
}

// Colour seen along (x, y, z), at least 0; basis as in 3DGS files. coefficient(k, channel) reads one of them.
template <class F>
__device__ __forceinline__ void harmonics(float x, float y, float z, F coefficient, float* colour) {
    float norm = rsqrtf(x * x + y * y + z * z);
    x *= norm, y *= norm, z *= norm;
    for (int c = 0; c < 3; c++) {
        float sum = 0.28209479177387814f * coefficient(0, c) + 0.5f;
        if (SH_DEGREE >= 1)
            sum += 0.4886025119029199f * (-y * coefficient(1, c) + z * coefficient(2, c) - x * coefficient(3, c));
        if (SH_DEGREE >= 2)
            sum += 1.0925484305920792f * (x * y * coefficient(4, c) - y * z * coefficient(5, c) - x * z * coefficient(7, c)) +
                   0.31539156525252005f * (3 * z * z - 1) * coefficient(6, c) +
                   0.5462742152960396f * (x * x - y * y) * coefficient(8, c);
        if (SH_DEGREE >= 3)
            sum += -0.5900435899266435f * (y * (3 * x * x - y * y) * coefficient(9, c) + x * (x * x - 3 * y * y) * coefficient(15, c)) +
                   2.890611442640554f * x * y * z * coefficient(10, c) +
                   -0.4570457994644658f * (5 * z * z - 1) * (y * coefficient(11, c) + x * coefficient(13, c)) +
                   0.3731763325901154f * z * (5 * z * z - 3) * coefficient(12, c) +
                   1.445305721320277f * z * (x * x - y * y) * coefficient(14, c);
        colour[c] = fmaxf(sum, 0.0f);
    }
}

__device__ __forceinline__ u32 fixed_point(float colour) {
    return (u32)(fminf(colour, 15.9999f) * COLOUR_STEP + 0.5f);
}

struct Gaussian {
    float x, y, z, opacity;
    float factor[9];  // rotation times standard deviations: covariance = factor factor^T
};

struct Footprint {
    float x, y, l11, l21, l22, log2_opacity, threshold, depth;
    int tile_x, tile_y, tiles_wide, tiles_high;  // 0 x 0 where it is not seen
};

// EWA projection in the Cholesky form of Record. The determinant is a sum of squares (Cauchy-Binet over the 2x2 minors
// of the half-projected factor), so that nothing cancels for thin Gaussians.
__device__ __forceinline__ Footprint footprint(const Gaussian& g, const float* M, const Lens& lens) {
    Footprint f;
    f.tiles_wide = f.tiles_high = 0, f.tile_x = f.tile_y = 0;
    float px = M[0] * g.x + M[1] * g.y + M[2] * g.z + M[3];
    float py = M[4] * g.x + M[5] * g.y + M[6] * g.z + M[7];
    float pz = M[8] * g.x + M[9] * g.y + M[10] * g.z + M[11];
    f.depth = pz, f.x = f.y = f.l11 = f.l21 = f.l22 = f.log2_opacity = f.threshold = 0;
    if (!(pz >= lens.near_z && pz <= lens.far_z) || !(g.opacity >= ALPHA_MIN)) return f;
    float rz = 1.0f / pz;
    float slope_x = clampf(px * rz, lens.low_x, lens.high_x), slope_y = clampf(py * rz, lens.low_y, lens.high_y);
    float jx = lens.fx * rz, jy = lens.fy * rz;
    float h0[3], h1[3], a0[3], a1[3];
    for (int c = 0; c < 3; c++) a0[c] = jx * (M[c] - slope_x * M[8 + c]), a1[c] = jy * (M[4 + c] - slope_y * M[8 + c]);
    for (int c = 0; c < 3; c++) {
        h0[c] = a0[0] * g.factor[c] + a0[1] * g.factor[3 + c] + a0[2] * g.factor[6 + c];
        h1[c] = a1[0] * g.factor[c] + a1[1] * g.factor[3 + c] + a1[2] * g.factor[6 + c];
    }
    float a = h0[0] * h0[0] + h0[1] * h0[1] + h0[2] * h0[2];
    float b = h0[0] * h1[0] + h0[1] * h1[1] + h0[2] * h1[2];
    float c = h1[0] * h1[0] + h1[1] * h1[1] + h1[2] * h1[2];
    float m0 = h0[1] * h1[2] - h0[2] * h1[1], m1 = h0[2] * h1[0] - h0[0] * h1[2], m2 = h0[0] * h1[1] - h0[1] * h1[0];
    float sharp = m0 * m0 + m1 * m1 + m2 * m2;
    float det = sharp + BLUR_PX2 * (a + c) + BLUR_PX2 * BLUR_PX2;
    a += BLUR_PX2, c += BLUR_PX2;
    float opacity = g.opacity;
    if (ANTIALIASED) opacity *= sqrtf(sharp / det);
    f.log2_opacity = log2f(opacity);
    f.threshold = f.log2_opacity + LOG2_255 + CULL_SLACK;
    if (!(f.threshold >= CULL_SLACK * 0.5f) || !(det < 1e30f)) return f;
    f.l11 = sqrtf(HALF_LOG2_E * c / det);
    f.l22 = sqrtf(HALF_LOG2_E / c);
    f.l21 = -b * sqrtf(HALF_LOG2_E / (c * det));
    f.x = lens.fx * px * rz + lens.cx, f.y = lens.fy * py * rz + lens.cy;
    float reach = f.threshold / HALF_LOG2_E, ex = sqrtf(reach * a), ey = sqrtf(reach * c);
    float x0 = fmaxf(ceilf(f.x - ex - 0.5f), 0.0f), x1 = fminf(floorf(f.x + ex - 0.5f), lens.width - 1);
    float y0 = fmaxf(ceilf(f.y - ey - 0.5f), 0.0f), y1 = fminf(floorf(f.y + ey - 0.5f), lens.height - 1);
    if (!(x0 <= x1 && y0 <= y1)) return f;  // no pixel centre within the support
    f.tile_x = (int)x0 / TILE, f.tile_y = (int)y0 / TILE;
    f.tiles_wide = (int)x1 / TILE - f.tile_x + 1, f.tiles_high = (int)y1 / TILE - f.tile_y + 1;
    return f;
}

struct Bins {
    u32* counts;         // [views * tiles]
    u64* pairs;          // [views * tiles][capacity]: depth bits << 32 | Gaussian
    ulonglong2* spill;   // pairs beyond a bin's capacity: (pair, view * tiles + tile)
    u32* spill_count;    // counts on beyond spill_capacity, so that the exact need is known
    u32 capacity, spill_capacity;
};

__device__ __forceinline__ void push(const Bins& bins, u32 bin, u64 pair) {
    u32 at = atomicAdd(bins.counts + bin, 1u);
    if (at < bins.capacity) {
        bins.pairs[(size_t)bin * bins.capacity + at] = pair;
        return;
    }
    u32 s = atomicAdd(bins.spill_count, 1u);
    if (s < bins.spill_capacity) bins.spill[s] = ulonglong2{pair, (u64)bin};
}

// What a lane stages for the whole warp: its Gaussian's footprint, and where its candidates begin.
struct Staged {
    float x[32], y[32], l11[32], l21[32], l22[32], threshold[32], depth[32], per_row[32];
    u32 corner[32], wide[32], start[32];
};

// Every tile of every lane's rectangle, 32 at a time whoever owns them, tested exactly against the ellipse.
__device__ __forceinline__ void emit(const Footprint& f, u32 gaussian, Staged& s, const Bins& bins, u32 first_bin, int tiles_x) {
    int lane = threadIdx.x & 31;
    u32 own = (u32)(f.tiles_wide * f.tiles_high), upto = own;
    for (int d = 1; d < 32; d *= 2) {
        u32 below = __shfl_up_sync(FULL_WARP, upto, d);
        if (lane >= d) upto += below;
    }
    u32 total = __shfl_sync(FULL_WARP, upto, 31);
    if (total == 0) return;
    s.x[lane] = f.x, s.y[lane] = f.y, s.l11[lane] = f.l11, s.l21[lane] = f.l21, s.l22[lane] = f.l22;
    s.threshold[lane] = f.threshold, s.depth[lane] = f.depth;
    s.per_row[lane] = __fdividef(1.0f, (float)(f.tiles_wide > 0 ? f.tiles_wide : 1));
    s.corner[lane] = (u32)f.tile_x | (u32)f.tile_y << 16, s.wide[lane] = f.tiles_wide, s.start[lane] = upto - own;
    __syncwarp();
    u32 first = gaussian - lane;
    for (u32 base = 0; base < total; base += 32) {
        u32 k = base + lane;
        int o = 0;  // the lane that owns candidate k: how many lanes end at or before k
        for (int d = 16; d > 0; d /= 2) {
            u32 end = __shfl_sync(FULL_WARP, upto, o + d - 1);
            if (end <= k) o += d;
        }
        if (k >= total) continue;
        u32 within = k - s.start[o], wide = s.wide[o];
        u32 row = (u32)(((float)within + 0.5f) * s.per_row[o]), column = within - row * wide;
        u32 tile_x = (s.corner[o] & 0xffffu) + column, tile_y = (s.corner[o] >> 16) + row;
        float x0 = tile_x * TILE + 0.5f - s.x[o], y0 = tile_y * TILE + 0.5f - s.y[o];
        float least = least_exponent(s.l11[o], s.l21[o], s.l22[o], x0, x0 + (TILE - 1), y0, y0 + (TILE - 1));
        if (least <= s.threshold[o])
            push(bins, first_bin + tile_y * tiles_x + tile_x, (u64)__float_as_uint(s.depth[o]) << 32 | (first + o));
    }
    __syncwarp();
}

// geometry [G]: mean, opacity; factors [9][G]; colours [K * 3][G]; shortest [3][G]: unit vector, read with NORMALS;
// spheres [clusters]: centre, radius; spreads [clusters]; cluster_body [clusters]: all in the body's frame.
// records, normals [views][stride], at Gaussian - first_cluster * 128. Grid: group of views fastest.
extern "C" __global__ void __launch_bounds__(CLUSTER) project(
    const float4* __restrict__ geometry, const float* __restrict__ factors, const float* __restrict__ colours,
    const float* __restrict__ shortest, const float4* __restrict__ spheres, const float* __restrict__ spreads,
    const int* __restrict__ cluster_body, const float* __restrict__ poses, const float* __restrict__ Ks, int gaussians,
    int first_cluster, int stride, int views, int group, int bodies, int first_view, int cameras, int shared_Ks, int width, int height,
    float near_z, float far_z, Record* __restrict__ records, float4* __restrict__ normals, u32* counts, u64* pairs,
    u32 capacity, ulonglong2* spill, u32* spill_count, u32 spill_capacity) {
    __shared__ Staged staged[WARPS];
    __shared__ u32 seen_views;
#if SH_DEGREE >= 2
    __shared__ float coefficients[SH_COUNT * 3][CLUSTER];
#endif
    int groups = (views + group - 1) / group;
    int first = blockIdx.x % groups * group, cluster = first_cluster + blockIdx.x / groups;
    int body = cluster_body[cluster];
    if (threadIdx.x < 32) {
        int view = first + threadIdx.x;
        bool seen = false;
        if (threadIdx.x < group && view < views) {
            int absolute = first_view + view;
            Lens lens = lens_of(Ks + 9 * (size_t)(shared_Ks ? absolute % cameras : absolute), width, height, near_z, far_z);
            seen = sphere_seen(lens, poses + POSE_FLOATS * ((size_t)view * bodies + body), spheres[cluster], spreads[cluster]);
        }
        u32 mask = __ballot_sync(FULL_WARP, seen);
        if (threadIdx.x == 0) seen_views = mask;
    }
    __syncthreads();
    u32 todo = seen_views;
    if (todo == 0) return;
    u32 index = cluster * CLUSTER + threadIdx.x;
    Gaussian g;
    float4 mean = geometry[index];
    g.x = mean.x, g.y = mean.y, g.z = mean.z, g.opacity = mean.w;
    for (int k = 0; k < 9; k++) g.factor[k] = factors[(size_t)k * gaussians + index];
#if SH_DEGREE >= 2
    for (int k = 0; k < SH_COUNT * 3; k++) coefficients[k][threadIdx.x] = colours[(size_t)k * gaussians + index];
    auto coefficient = [&](int k, int c) { return coefficients[3 * k + c][threadIdx.x]; };
#else
    float own[SH_COUNT * 3];
    for (int k = 0; k < SH_COUNT * 3; k++) own[k] = colours[(size_t)k * gaussians + index];
    auto coefficient = [&](int k, int c) { return own[3 * k + c]; };
#endif
    int tiles_x = (width + TILE - 1) / TILE, tiles_y = (height + TILE - 1) / TILE;
    Bins bins{counts, pairs, spill, spill_count, capacity, spill_capacity};
    for (; todo; todo &= todo - 1) {
        int view = first + __ffs(todo) - 1, absolute = first_view + view;
        Lens lens = lens_of(Ks + 9 * (size_t)(shared_Ks ? absolute % cameras : absolute), width, height, near_z, far_z);
        const float* M = poses + POSE_FLOATS * ((size_t)view * bodies + body);
        Footprint f = footprint(g, M, lens);
        if (f.tiles_wide) {
            float colour[3];
            harmonics(g.x - M[12], g.y - M[13], g.z - M[14], coefficient, colour);
            u32 red = fixed_point(colour[0]), green = fixed_point(colour[1]), blue = fixed_point(colour[2]);
            size_t at = (size_t)view * stride + (index - first_cluster * CLUSTER);
            records[at] = Record{f.x, f.y, f.l11, f.l21, f.l22, f.log2_opacity, red | green << 21, green >> 11 | blue << 10};
#if NORMALS
            float n0 = shortest[index], n1 = shortest[gaussians + index], n2 = shortest[2 * (size_t)gaussians + index];
            float nx = M[0] * n0 + M[1] * n1 + M[2] * n2, ny = M[4] * n0 + M[5] * n1 + M[6] * n2;
            float nz = M[8] * n0 + M[9] * n1 + M[10] * n2;
            float px = M[0] * g.x + M[1] * g.y + M[2] * g.z + M[3], py = M[4] * g.x + M[5] * g.y + M[6] * g.z + M[7];
            float side = nx * px + ny * py + nz * f.depth > 0 ? -1.0f : 1.0f;
            normals[at] = float4{side * nx, side * ny, side * nz, 0.0f};
#endif
        }
        emit(f, index, staged[threadIdx.x / 32], bins, (u32)view * tiles_x * tiles_y, tiles_x);
    }
}
