// SPDX-License-Identifier: Apache-2.0
// What the kernels share: the model's constants, the projected record, and packed half arithmetic in PTX, so that no
// header of the toolkit is needed. A host build defines REAL2SIM_EMULATED and brings its own versions of the latter.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 FULL_WARP = 0xffffffffu;
constexpr int TILE = 16;      // [px], one block
constexpr int SUBTILE = 8;    // [px], one warp
constexpr int CLUSTER = 128;  // Gaussians of one body, neighbours in space: one block of `project`
constexpr float BLUR_PX2 = 0.3f;
constexpr float ALPHA_MAX = 0.999f;
constexpr float LOG2_ALPHA_MAX = -0.001443417f;
constexpr float ALPHA_MIN = 1.0f / 255.0f;
constexpr float LOG2_255 = 7.99435343685886f;
constexpr float HALF_LOG2_E = 0.72134752044448f;  // exp(-m / 2) = 2^(-HALF_LOG2_E m)
constexpr float TRANSMITTANCE_MIN = 1e-4f;
constexpr float FRUSTUM_MARGIN = 0.3f;
constexpr float CULL_SLACK = 1e-3f;        // on the exponent: the culls keep what rounding could bring over 1/255
constexpr float COLOUR_STEP = 131072.0f;   // colours are stored as 21-bit fixed point in [0, 16)

constexpr u32 NO_PLACE = 0xffffffffu;      // offset of a long list that found no room

// One Gaussian in one view. alpha(d) = 2^(log2_opacity - u^2 - v^2), u = l11 dx + l21 dy, v = l22 dy, d = pixel - (x, y).
struct alignas(16) Record {
    float x, y, l11, l21;
    float l22, log2_opacity;
    u32 colour_low, colour_high;  // red 21 | green low 11;  green high 10 | blue 21
};

#ifndef REAL2SIM_EMULATED
__device__ __forceinline__ float ex2(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ u32 h2_pack(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(low), "f"(high));
    return r;
}
__device__ __forceinline__ float h2_low(u32 a) {
    float r;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(r) : "r"(a));
    return r;
}
__device__ __forceinline__ float h2_high(u32 a) {
    float r;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(r) : "r"(a));
    return r;
}
__device__ __forceinline__ u32 h2_lows(u32 a) {
    u32 r;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(r) : "r"(a));
    return r;
}
__device__ __forceinline__ u32 h2_highs(u32 a) {
    u32 r;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(r) : "r"(a));
    return r;
}
__device__ __forceinline__ u32 h2_fma(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
// c - a b
__device__ __forceinline__ u32 h2_fnma(u32 a, u32 b, u32 c) {
    u32 r;
    asm("{.reg .b32 n; neg.f16x2 n, %1; fma.rn.f16x2 %0, n, %2, %3;}" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
__device__ __forceinline__ u32 h2_mul(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 h2_add(u32 a, u32 b) {
    u32 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 h2_sub(u32 a, u32 b) {
    u32 r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 h2_min(u32 a, u32 b) {
    u32 r;
    asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 h2_max(u32 a, u32 b) {
    u32 r;
    asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 h2_ex2(u32 a) {
    u32 r;
    asm("ex2.approx.f16x2 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}
// 0xffff in each half where a >= b, a > b
__device__ __forceinline__ u32 h2_ge(u32 a, u32 b) {
    u32 r;
    asm("set.ge.u32.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ u32 h2_gt(u32 a, u32 b) {
    u32 r;
    asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
#endif

__device__ __forceinline__ float clampf(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

// Smallest u^2 + v^2 over the box [x0, x1] x [y0, y1] of offsets from the Gaussian's centre. The least of a convex
// quadratic over a box lies on an edge that faces the centre: each of the two is minimised along its own direction.
__device__ __forceinline__ float least_exponent(float l11, float l21, float l22, float x0, float x1, float y0, float y1) {
    float ex = clampf(0.0f, x0, x1), ey = clampf(0.0f, y0, y1);
    float dy = clampf(__fdividef(-l11 * l21 * ex, l21 * l21 + l22 * l22), y0, y1);
    float dx = clampf(__fdividef(-l21 * ey, l11), x0, x1);
    float u1 = l11 * ex + l21 * dy, v1 = l22 * dy;
    float u2 = l11 * dx + l21 * ey, v2 = l22 * ey;
    return fminf(u1 * u1 + v1 * v1, u2 * u2 + v2 * v2);
}
