// SPDX-License-Identifier: Apache-2.0
// One scalar for each of W worlds. All physics is written on Pack<T, W>: W worlds advance in SIMD lanes, W = 1 is plain
// scalar code. Every operation is elementwise and exactly rounded, so a world's numbers do not depend on W or its lane.
// Contraction is off in the build (-ffp-contract=off); fused multiply-adds are written out with fma().
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

namespace R2S_ISA {

#if defined(__GNUC__)
#define R2S_INLINE inline __attribute__((always_inline))
#else
#define R2S_INLINE __forceinline
#endif

template <class T> using IntOf = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;

#if defined(__GNUC__) && !defined(R2S_PORTABLE_LANES)
template <class T, int W> struct LaneType { typedef T type __attribute__((vector_size(sizeof(T) * W))); };
#else
// Lanes for compilers without vector extensions: the same operators, one element at a time.
template <class T, int W> struct Lanes {
  T x[W];
  R2S_INLINE T& operator[](int i) { return x[i]; }
  R2S_INLINE const T& operator[](int i) const { return x[i]; }
  template <class F> R2S_INLINE static Lanes make(F f) { Lanes r; for (int i = 0; i < W; ++i) r.x[i] = T(f(i)); return r; }
  R2S_INLINE friend Lanes operator+(const Lanes& a, const Lanes& b) { return make([&](int i) { return a.x[i] + b.x[i]; }); }
  R2S_INLINE friend Lanes operator-(const Lanes& a, const Lanes& b) { return make([&](int i) { return a.x[i] - b.x[i]; }); }
  R2S_INLINE friend Lanes operator*(const Lanes& a, const Lanes& b) { return make([&](int i) { return a.x[i] * b.x[i]; }); }
  R2S_INLINE friend Lanes operator/(const Lanes& a, const Lanes& b) { return make([&](int i) { return a.x[i] / b.x[i]; }); }
  R2S_INLINE friend Lanes operator-(const Lanes& a) { return make([&](int i) { return -a.x[i]; }); }
  R2S_INLINE friend Lanes operator&(const Lanes& a, const Lanes& b) { return make([&](int i) { return a.x[i] & b.x[i]; }); }
  R2S_INLINE friend Lanes operator|(const Lanes& a, const Lanes& b) { return make([&](int i) { return a.x[i] | b.x[i]; }); }
  R2S_INLINE friend Lanes operator~(const Lanes& a) { return make([&](int i) { return ~a.x[i]; }); }
};
template <class T, int W> struct LaneType { using type = Lanes<T, W>; };
#endif

// A truth value a lane: all bits set or none.
template <class T, int W> struct Mask {
  using I = IntOf<T>;
  typename LaneType<I, W>::type v;
  Mask() = default;
  R2S_INLINE explicit Mask(bool b) { for (int i = 0; i < W; ++i) v[i] = b ? I(-1) : I(0); }
  R2S_INLINE bool operator[](int i) const { return v[i] != 0; }
  R2S_INLINE void set(int i, bool b) { v[i] = b ? I(-1) : I(0); }
};
template <class T> struct Mask<T, 1> {
  bool v;
  Mask() = default;
  R2S_INLINE explicit Mask(bool b) : v(b) {}
  R2S_INLINE bool operator[](int) const { return v; }
  R2S_INLINE void set(int, bool b) { v = b; }
};
template <class T, int W> R2S_INLINE Mask<T, W> operator&(Mask<T, W> a, Mask<T, W> b) { a.v = a.v & b.v; return a; }
template <class T, int W> R2S_INLINE Mask<T, W> operator|(Mask<T, W> a, Mask<T, W> b) { a.v = a.v | b.v; return a; }
template <class T, int W> R2S_INLINE Mask<T, W> operator!(Mask<T, W> a) {
  if constexpr (W == 1) a.v = !a.v; else a.v = ~a.v;
  return a;
}
template <class T, int W> R2S_INLINE bool any(const Mask<T, W>& m) {
  if constexpr (W == 1) return m.v;
#if defined(__AVX512F__) && !defined(R2S_PORTABLE_LANES)
  else if constexpr (sizeof(T) == 8 && W == 8) return _mm512_test_epi64_mask((__m512i)m.v, (__m512i)m.v) != 0;
  else if constexpr (sizeof(T) == 4 && W == 16) return _mm512_test_epi32_mask((__m512i)m.v, (__m512i)m.v) != 0;
#endif
  else { IntOf<T> r = 0; for (int i = 0; i < W; ++i) r |= m.v[i]; return r != 0; }
}
template <class T, int W> R2S_INLINE bool all(const Mask<T, W>& m) { return !any(!m); }

template <class T, int W> struct Pack {
  using Scalar = T;
  using M = Mask<T, W>;
  static constexpr int width = W;
  typename LaneType<T, W>::type v;
  Pack() = default;
  R2S_INLINE Pack(T s) { for (int i = 0; i < W; ++i) v[i] = s; }
  R2S_INLINE T operator[](int i) const { return v[i]; }
  R2S_INLINE void set(int i, T s) { v[i] = s; }
  R2S_INLINE static Pack load(const T* p) { Pack r; std::memcpy(&r.v, p, sizeof(T) * W); return r; }
  R2S_INLINE void store(T* p) const { std::memcpy(p, &v, sizeof(T) * W); }
};
template <class T> struct Pack<T, 1> {
  using Scalar = T;
  using M = Mask<T, 1>;
  static constexpr int width = 1;
  T v;
  Pack() = default;
  R2S_INLINE Pack(T s) : v(s) {}
  R2S_INLINE T operator[](int) const { return v; }
  R2S_INLINE void set(int, T s) { v = s; }
  R2S_INLINE static Pack load(const T* p) { return Pack(*p); }
  R2S_INLINE void store(T* p) const { *p = v; }
};

#define R2S_TP template <class T, int W> R2S_INLINE
#define R2S_P Pack<T, W>
#define R2S_BINARY(op)                                                                                      \
  R2S_TP R2S_P operator op(R2S_P a, const R2S_P& b) { a.v = a.v op b.v; return a; }                         \
  R2S_TP R2S_P operator op(const R2S_P& a, std::type_identity_t<T> b) { return a op R2S_P(b); }             \
  R2S_TP R2S_P operator op(std::type_identity_t<T> a, const R2S_P& b) { return R2S_P(a) op b; }             \
  R2S_TP R2S_P& operator op##=(R2S_P& a, const R2S_P& b) { a.v = a.v op b.v; return a; }
R2S_BINARY(+)
R2S_BINARY(-)
R2S_BINARY(*)
R2S_BINARY(/)
#undef R2S_BINARY
R2S_TP R2S_P operator-(R2S_P a) { a.v = -a.v; return a; }

#if defined(__GNUC__) && !defined(R2S_PORTABLE_LANES)
#define R2S_COMPARE(op)                                                                                     \
  R2S_TP Mask<T, W> operator op(const R2S_P& a, const R2S_P& b) {                                           \
    Mask<T, W> m;                                                                                           \
    m.v = a.v op b.v;                                                                                       \
    return m;                                                                                               \
  }                                                                                                         \
  R2S_TP Mask<T, W> operator op(const R2S_P& a, std::type_identity_t<T> b) { return a op R2S_P(b); }
#else
#define R2S_COMPARE(op)                                                                                     \
  R2S_TP Mask<T, W> operator op(const R2S_P& a, const R2S_P& b) {                                           \
    Mask<T, W> m;                                                                                           \
    for (int i = 0; i < W; ++i) m.set(i, a[i] op b[i]);                                                     \
    return m;                                                                                               \
  }                                                                                                         \
  R2S_TP Mask<T, W> operator op(const R2S_P& a, std::type_identity_t<T> b) { return a op R2S_P(b); }
#endif
R2S_COMPARE(<)
R2S_COMPARE(>)
R2S_COMPARE(<=)
R2S_COMPARE(>=)
R2S_COMPARE(==)
R2S_COMPARE(!=)
#undef R2S_COMPARE

R2S_TP R2S_P select(const Mask<T, W>& m, const R2S_P& a, const R2S_P& b) {
  if constexpr (W == 1) return m.v ? a : b;
  else {
    R2S_P r;
#if defined(__GNUC__) && !defined(R2S_PORTABLE_LANES)
    r.v = m.v ? a.v : b.v;
#else
    for (int i = 0; i < W; ++i) r.set(i, m[i] ? a[i] : b[i]);
#endif
    return r;
  }
}
// b where m, exactly zero elsewhere (also where b is not finite).
R2S_TP R2S_P masked(const Mask<T, W>& m, const R2S_P& b) { return select(m, b, R2S_P(T(0))); }
R2S_TP R2S_P min(const R2S_P& a, const R2S_P& b) { return select(b < a, b, a); }
R2S_TP R2S_P max(const R2S_P& a, const R2S_P& b) { return select(a < b, b, a); }
R2S_TP R2S_P abs(const R2S_P& a) { return select(a < R2S_P(T(0)), -a, a); }
R2S_TP R2S_P clamp(const R2S_P& a, const R2S_P& lo, const R2S_P& hi) { return min(max(a, lo), hi); }
R2S_TP R2S_P sqrt(const R2S_P& a) {
  R2S_P r;
  if constexpr (W == 1) r.v = std::sqrt(a.v);
#if defined(__AVX512F__) && !defined(R2S_PORTABLE_LANES)
  else if constexpr (std::is_same_v<T, double> && W == 8) r.v = (decltype(r.v))_mm512_sqrt_pd((__m512d)a.v);
  else if constexpr (std::is_same_v<T, float> && W == 16) r.v = (decltype(r.v))_mm512_sqrt_ps((__m512)a.v);
#endif
  else for (int i = 0; i < W; ++i) r.v[i] = std::sqrt(a.v[i]);
  return r;
}
// a * b + c, rounded once where the instruction set has it, twice elsewhere; the same in every lane and for every W.
R2S_TP R2S_P fma(const R2S_P& a, const R2S_P& b, const R2S_P& c) {
#if defined(__FMA__) || defined(__AVX512F__)
  R2S_P r;
  if constexpr (W == 1) r.v = std::is_same_v<T, double> ? T(__builtin_fma(a.v, b.v, c.v)) : T(__builtin_fmaf(a.v, b.v, c.v));
#if defined(__AVX512F__) && !defined(R2S_PORTABLE_LANES)
  else if constexpr (std::is_same_v<T, double> && W == 8)
    r.v = (decltype(r.v))_mm512_fmadd_pd((__m512d)a.v, (__m512d)b.v, (__m512d)c.v);
  else if constexpr (std::is_same_v<T, float> && W == 16)
    r.v = (decltype(r.v))_mm512_fmadd_ps((__m512)a.v, (__m512)b.v, (__m512)c.v);
#endif
  else
    for (int i = 0; i < W; ++i) r.v[i] = std::is_same_v<T, double> ? T(__builtin_fma(a.v[i], b.v[i], c.v[i])) : T(__builtin_fmaf(a.v[i], b.v[i], c.v[i]));
  return r;
#else
  return a * b + c;
#endif
}
R2S_TP R2S_P fma(std::type_identity_t<T> a, const R2S_P& b, const R2S_P& c) { return fma(R2S_P(a), b, c); }
// A scalar function in every lane.
template <class T, int W, class F> R2S_INLINE R2S_P lanewise(const R2S_P& a, F f) {
  R2S_P r;
  for (int i = 0; i < W; ++i) r.set(i, f(a[i]));
  return r;
}
R2S_TP R2S_P sin(const R2S_P& a) { return lanewise(a, [](T x) { return std::sin(x); }); }
R2S_TP R2S_P cos(const R2S_P& a) { return lanewise(a, [](T x) { return std::cos(x); }); }
R2S_TP R2S_P exp(const R2S_P& a) { return lanewise(a, [](T x) { return std::exp(x); }); }
R2S_TP R2S_P atan2(const R2S_P& y, const R2S_P& x) {
  R2S_P r;
  for (int i = 0; i < W; ++i) r.set(i, std::atan2(y[i], x[i]));
  return r;
}
R2S_TP R2S_P pow(const R2S_P& a, const R2S_P& b) {
  R2S_P r;
  for (int i = 0; i < W; ++i) r.set(i, std::pow(a[i], b[i]));
  return r;
}
#undef R2S_TP
#undef R2S_P

template <class T> inline constexpr T kTiny = std::is_same_v<T, double> ? T(1e-15) : T(1e-12);  // below: a zero divisor

}  // namespace R2S_ISA
