// SPDX-License-Identifier: Apache-2.0
// A vector of W floats and a mask of W lanes, for the instruction set that this translation unit is compiled for.
// Everything lives in an unnamed namespace: the same header is compiled for several instruction sets in one library,
// and no function of one of them may be merged with that of another by the linker.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>

#if defined(_MSC_VER)
#include <intrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define R2S_AVX512 1
#include <immintrin.h>
#elif defined(__AVX2__)
#define R2S_AVX2 1
#include <immintrin.h>
#endif

#if defined(_MSC_VER)
#define R2S_INLINE __forceinline
#else
#define R2S_INLINE inline __attribute__((always_inline))
#endif

namespace {

// exp2(r) for r in [-0.5, 0.5]: minimax polynomial, relative error 7.5e-8.
constexpr float kExp2[6] = {1.0000001192092896f,   0.6931469440460205f,   0.24022120237350464f,
                            0.05550713092088699f, 0.009675540961325169f, 0.0013276472454890609f};

#if defined(R2S_AVX512)

constexpr int W = 16;
struct F {
    __m512 v;
};
struct Mask {
    __mmask16 v;
};
R2S_INLINE F set1(float a) { return {_mm512_set1_ps(a)}; }
R2S_INLINE F load(const float* p) { return {_mm512_load_ps(p)}; }
R2S_INLINE F loadu(const float* p) { return {_mm512_loadu_ps(p)}; }
R2S_INLINE void store(float* p, F a) { _mm512_store_ps(p, a.v); }
R2S_INLINE F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
R2S_INLINE F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
R2S_INLINE F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
R2S_INLINE F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
R2S_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
R2S_INLINE F fnma(F a, F b, F c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
R2S_INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
R2S_INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
R2S_INLINE F sqrt(F a) { return {_mm512_sqrt_ps(a.v)}; }
R2S_INLINE F negate(F a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
R2S_INLINE Mask operator>=(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
R2S_INLINE Mask operator>(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
R2S_INLINE Mask operator<=(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
R2S_INLINE Mask operator&(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & b.v)}; }
R2S_INLINE Mask and_not(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & ~b.v)}; }  // a and not b
R2S_INLINE unsigned bits(Mask a) { return a.v; }
R2S_INLINE F select(Mask m, F yes, F no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
R2S_INLINE F zero_unless(Mask m, F a) { return {_mm512_maskz_mov_ps(m.v, a.v)}; }
R2S_INLINE F exp2(F x) {
    __m512 n = _mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    F r = {_mm512_sub_ps(x.v, n)};
    F p = fma(set1(kExp2[5]), r, set1(kExp2[4]));
    for (int i = 3; i >= 0; --i) p = fma(p, r, set1(kExp2[i]));
    return {_mm512_scalef_ps(p.v, n)};
}

#elif defined(R2S_AVX2)

constexpr int W = 8;
struct F {
    __m256 v;
};
struct Mask {
    __m256 v;
};
R2S_INLINE F set1(float a) { return {_mm256_set1_ps(a)}; }
R2S_INLINE F load(const float* p) { return {_mm256_load_ps(p)}; }
R2S_INLINE F loadu(const float* p) { return {_mm256_loadu_ps(p)}; }
R2S_INLINE void store(float* p, F a) { _mm256_store_ps(p, a.v); }
R2S_INLINE F operator+(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
R2S_INLINE F operator-(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
R2S_INLINE F operator*(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
R2S_INLINE F operator/(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
R2S_INLINE F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
R2S_INLINE F fnma(F a, F b, F c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
R2S_INLINE F min(F a, F b) { return {_mm256_min_ps(a.v, b.v)}; }
R2S_INLINE F max(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }
R2S_INLINE F sqrt(F a) { return {_mm256_sqrt_ps(a.v)}; }
R2S_INLINE F negate(F a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
R2S_INLINE Mask operator>=(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
R2S_INLINE Mask operator>(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
R2S_INLINE Mask operator<=(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
R2S_INLINE Mask operator&(Mask a, Mask b) { return {_mm256_and_ps(a.v, b.v)}; }
R2S_INLINE Mask and_not(Mask a, Mask b) { return {_mm256_andnot_ps(b.v, a.v)}; }  // a and not b
R2S_INLINE unsigned bits(Mask a) { return static_cast<unsigned>(_mm256_movemask_ps(a.v)); }
R2S_INLINE F select(Mask m, F yes, F no) { return {_mm256_blendv_ps(no.v, yes.v, m.v)}; }
R2S_INLINE F zero_unless(Mask m, F a) { return {_mm256_and_ps(m.v, a.v)}; }
R2S_INLINE F exp2(F x) {
    __m256 c = _mm256_min_ps(_mm256_max_ps(x.v, _mm256_set1_ps(-126.0f)), _mm256_set1_ps(126.0f));
    __m256i n = _mm256_cvtps_epi32(c);
    F r = {_mm256_sub_ps(c, _mm256_cvtepi32_ps(n))};
    F p = fma(set1(kExp2[5]), r, set1(kExp2[4]));
    for (int i = 3; i >= 0; --i) p = fma(p, r, set1(kExp2[i]));
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.v), _mm256_slli_epi32(n, 23)))};
}

#else  // four floats that the compiler turns into SSE or NEON

constexpr int W = 4;
struct alignas(16) F {
    float v[4];
};
struct alignas(16) Mask {
    std::int32_t v[4];  // 0 or -1
};
#define R2S_LANES for (int i = 0; i < 4; ++i)
R2S_INLINE F set1(float a) { return {{a, a, a, a}}; }
R2S_INLINE F load(const float* p) {
    F r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
R2S_INLINE F loadu(const float* p) { return load(p); }
R2S_INLINE void store(float* p, F a) { std::memcpy(p, a.v, sizeof a.v); }
#define R2S_LANEWISE(NAME, EXPRESSION) \
    R2S_INLINE F NAME(F a, F b) {      \
        F r;                           \
        R2S_LANES r.v[i] = EXPRESSION; \
        return r;                      \
    }
R2S_LANEWISE(operator+, a.v[i] + b.v[i])
R2S_LANEWISE(operator-, a.v[i] - b.v[i])
R2S_LANEWISE(operator*, a.v[i] * b.v[i])
R2S_LANEWISE(operator/, a.v[i] / b.v[i])
R2S_LANEWISE(min, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
R2S_LANEWISE(max, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
#undef R2S_LANEWISE
#define R2S_COMPARE(NAME, OPERATOR)                         \
    R2S_INLINE Mask NAME(F a, F b) {                        \
        Mask r;                                             \
        R2S_LANES r.v[i] = a.v[i] OPERATOR b.v[i] ? -1 : 0; \
        return r;                                           \
    }
R2S_COMPARE(operator>=, >=)
R2S_COMPARE(operator>, >)
R2S_COMPARE(operator<=, <=)
#undef R2S_COMPARE
R2S_INLINE F fma(F a, F b, F c) { return a * b + c; }
R2S_INLINE F fnma(F a, F b, F c) { return c - a * b; }
R2S_INLINE F sqrt(F a) {
    F r;
    R2S_LANES r.v[i] = sqrtf(a.v[i]);
    return r;
}
R2S_INLINE F negate(F a) {
    F r;
    R2S_LANES r.v[i] = -a.v[i];
    return r;
}
R2S_INLINE Mask operator&(Mask a, Mask b) {
    Mask r;
    R2S_LANES r.v[i] = a.v[i] & b.v[i];
    return r;
}
R2S_INLINE Mask and_not(Mask a, Mask b) {  // a and not b
    Mask r;
    R2S_LANES r.v[i] = a.v[i] & ~b.v[i];
    return r;
}
R2S_INLINE unsigned bits(Mask a) {
    unsigned r = 0;
    R2S_LANES r |= static_cast<unsigned>(a.v[i] & 1) << i;
    return r;
}
R2S_INLINE F select(Mask m, F yes, F no) {
    std::int32_t y[4], n[4];
    std::memcpy(y, yes.v, sizeof y);
    std::memcpy(n, no.v, sizeof n);
    R2S_LANES n[i] ^= (n[i] ^ y[i]) & m.v[i];
    F r;
    std::memcpy(r.v, n, sizeof n);
    return r;
}
R2S_INLINE F zero_unless(Mask m, F a) { return select(m, a, set1(0.0f)); }
R2S_INLINE F exp2(F x) {
    F c = min(max(x, set1(-126.0f)), set1(126.0f));
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
    F n;
    std::int32_t shifted[4];
    R2S_LANES {
        n.v[i] = (c.v[i] + magic) - magic;
        shifted[i] = static_cast<std::int32_t>(n.v[i]) * (1 << 23);
    }
    F r = c - n;
    F p = fma(set1(kExp2[5]), r, set1(kExp2[4]));
    for (int i = 3; i >= 0; --i) p = fma(p, r, set1(kExp2[i]));
    std::int32_t b[4];
    std::memcpy(b, p.v, sizeof b);
    R2S_LANES b[i] += shifted[i];
    std::memcpy(p.v, b, sizeof b);
    return p;
}
#undef R2S_LANES

#endif

R2S_INLINE void prefetch(const void* p) {
#if defined(_MSC_VER)
    (void)p;
#else
    __builtin_prefetch(p);
#endif
}
R2S_INLINE int lowest_bit(std::uint64_t mask) {
#if defined(_MSC_VER)
    unsigned long i;
    _BitScanForward64(&i, mask);
    return static_cast<int>(i);
#else
    return __builtin_ctzll(mask);
#endif
}

constexpr int kPieces = 16 / W;  // vectors that make a block of 16 pixels

// Sums of the lanes of 16 vectors, in a fixed order.
#if defined(R2S_AVX512)
R2S_INLINE F add_pairs_128(F a, F b) {
    __m512 low = _mm512_shuffle_f32x4(a.v, b.v, 0x88), high = _mm512_shuffle_f32x4(a.v, b.v, 0xDD);
    return {_mm512_add_ps(low, high)};
}
R2S_INLINE void sum_lanes(const F (&v)[12], float* out) {
    // v[i] -> quarters: after two rounds each 128-bit lane holds four partial sums of one input.
    F q[3];
    for (int i = 0; i < 3; ++i)
        q[i] = add_pairs_128(add_pairs_128(v[4 * i], v[4 * i + 1]), add_pairs_128(v[4 * i + 2], v[4 * i + 3]));
    const F zero = set1(0.0f);
    __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(q[0].v, q[1].v), _mm512_unpackhi_ps(q[0].v, q[1].v));
    __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(q[2].v, zero.v), _mm512_unpackhi_ps(q[2].v, zero.v));
    // a: lane j holds {q0, q1, q0, q1} partial sums of input j, 4 + j; b the same of 8 + j.
    __m512 c = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
    // c lane j = {sum v[j], sum v[4 + j], sum v[8 + j], 0}
    _mm512_store_ps(out, c);
}
constexpr int sum_slot(int i) { return (i % 4) * 4 + i / 4; }  // where the sum of v[i] lies in out[16]
// The entries e of 64 whose mask has bit b, as bit e of the result.
R2S_INLINE std::uint64_t entries_with_bit(const std::uint16_t* masks, int b) {
    const __m512i bit = _mm512_set1_epi16(static_cast<short>(1 << b));
    const std::uint64_t low = _mm512_test_epi16_mask(_mm512_load_si512(masks), bit);
    const std::uint64_t high = _mm512_test_epi16_mask(_mm512_load_si512(masks + 32), bit);
    return high << 32 | low;
}
// The reverse: sets bit b in the masks of these entries.
R2S_INLINE void set_bit_of_entries(std::uint16_t* masks, int b, std::uint64_t entries) {
    const __m512i bit = _mm512_set1_epi16(static_cast<short>(1 << b));
    for (int half = 0; half < 2; ++half, masks += 32, entries >>= 32) {
        const __m512i old = _mm512_load_si512(masks);
        _mm512_store_si512(masks, _mm512_or_si512(old, _mm512_maskz_mov_epi16(static_cast<__mmask32>(entries), bit)));
    }
}
#else
R2S_INLINE std::uint64_t entries_with_bit(const std::uint16_t* masks, int b) {
    std::uint64_t entries = 0;
    for (int e = 0; e < 64; ++e) entries |= static_cast<std::uint64_t>(masks[e] >> b & 1) << e;
    return entries;
}
R2S_INLINE void set_bit_of_entries(std::uint16_t* masks, int b, std::uint64_t entries) {
    for (int e = 0; e < 64; ++e) masks[e] |= static_cast<std::uint16_t>((entries >> e & 1) << b);
}
R2S_INLINE void sum_lanes(const F (&v)[12], float* out) {
    alignas(64) float lanes[12][W];
    for (int i = 0; i < 12; ++i) store(lanes[i], v[i]);
    for (int i = 0; i < 12; ++i) {
        float s[4];
        for (int k = 0; k < 4; ++k) {
            s[k] = lanes[i][k];
            for (int j = k + 4; j < W; j += 4) s[k] += lanes[i][j];
        }
        out[i] = (s[0] + s[2]) + (s[1] + s[3]);
    }
    for (int i = 12; i < 16; ++i) out[i] = 0.0f;
}
constexpr int sum_slot(int i) { return i; }
#endif

}  // namespace
