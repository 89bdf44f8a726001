// SPDX-License-Identifier: Apache-2.0
// Shortest path of a tendon around a sphere or an infinite cylinder (MuJoCo's rules: outside, on a chosen side, or inside).
// Branches differ from world to world, so this is scalar code, called lane by lane.
#pragma once
#include "vec.hpp"

namespace R2S_ISA {

template <class T> struct WrapResult { T length; Pack<T, 1> point[6]; };  // length < 0: the straight line is free

template <class T> bool segments_cross(const T* p1, const T* p2, const T* p3, const T* p4) {
  const T det = (p4[1] - p3[1]) * (p2[0] - p1[0]) - (p4[0] - p3[0]) * (p2[1] - p1[1]);
  if (std::abs(det) < kTiny<T>) return false;
  const T a = ((p4[0] - p3[0]) * (p1[1] - p3[1]) - (p4[1] - p3[1]) * (p1[0] - p3[0])) / det;
  const T b = ((p2[0] - p1[0]) * (p1[1] - p3[1]) - (p2[1] - p1[1]) * (p1[0] - p3[0])) / det;
  return a >= 0 && a <= 1 && b >= 0 && b <= 1;
}

template <class T> T arc_length(const T* p0, const T* p1, bool second, T radius) {
  const T n0 = std::hypot(p0[0], p0[1]), n1 = std::hypot(p1[0], p1[1]);
  const T c = std::fmin(T(1), std::fmax(T(-1), (p0[0] * p1[0] + p0[1] * p1[1]) / (n0 * n1)));
  T angle = std::acos(c);
  const T side = p0[1] * p1[0] - p0[0] * p1[1];
  if ((side > 0 && second) || (side < 0 && !second)) angle = T(6.28318530717958647692) - angle;
  return radius * angle;
}

// Tangent points on a circle about the origin from the ends d; -1 where the segment misses it.
template <class T> T wrap_circle(T* pnt, const T* d, const T* side, T rad) {
  const T sq0 = d[0] * d[0] + d[1] * d[1], sq1 = d[2] * d[2] + d[3] * d[3], sqr = rad * rad;
  const T dif[2] = {d[2] - d[0], d[3] - d[1]};
  const T dd = dif[0] * dif[0] + dif[1] * dif[1];
  if (sq0 < sqr || sq1 < sqr || dd < kTiny<T>) return -1;
  const T a = std::fmin(T(1), std::fmax(T(0), -(dif[0] * d[0] + dif[1] * d[1]) / dd));
  const T near[2] = {d[0] + a * dif[0], d[1] + a * dif[1]};
  if (near[0] * near[0] + near[1] * near[1] > sqr && (!side || near[0] * side[0] + near[1] * side[1] >= 0)) return -1;
  const T r0 = std::sqrt(sq0 - sqr), r1 = std::sqrt(sq1 - sqr);
  T sol[2][4], good[2];
  for (int i = 0; i < 2; ++i) {
    const T s = i == 0 ? 1 : -1;
    sol[i][0] = (d[0] * sqr + s * rad * d[1] * r0) / sq0;
    sol[i][1] = (d[1] * sqr - s * rad * d[0] * r0) / sq0;
    sol[i][2] = (d[2] * sqr - s * rad * d[3] * r1) / sq1;
    sol[i][3] = (d[3] * sqr + s * rad * d[2] * r1) / sq1;
    if (side) {
      const T mx = sol[i][0] + sol[i][2], my = sol[i][1] + sol[i][3], n = std::fmax(std::hypot(mx, my), kTiny<T>);
      good[i] = (mx * side[0] + my * side[1]) / n;
    } else {
      const T x = sol[i][0] - sol[i][2], y = sol[i][1] - sol[i][3];
      good[i] = -(x * x + y * y);
    }
    if (segments_cross(d, sol[i], d + 2, sol[i] + 2)) good[i] = -10000;
  }
  const int best = good[0] > good[1] ? 0 : 1;
  for (int k = 0; k < 4; ++k) pnt[k] = sol[best][k];
  if (segments_cross(d, pnt, d + 2, pnt + 2)) return -1;
  return arc_length(pnt, pnt + 2, best == 1, rad);
}

// The tendon runs through the circle's inside: one touching point, by Newton's method; -1 where it is free.
template <class T> T wrap_inside(T* pnt, const T* d, T rad) {
  const T len0 = std::hypot(d[0], d[1]), len1 = std::hypot(d[2], d[3]);
  const T dif[2] = {d[2] - d[0], d[3] - d[1]};
  const T dd = dif[0] * dif[0] + dif[1] * dif[1];
  if (len0 <= rad || len1 <= rad || rad < kTiny<T>) return -1;
  if (dd > kTiny<T>) {
    const T a = -(dif[0] * d[0] + dif[1] * d[1]) / dd;
    if (a > 0 && a < 1 && std::hypot(d[0] + a * dif[0], d[1] + a * dif[1]) <= rad) return -1;
  }
  const T mx = d[0] + d[2], my = d[1] + d[3], mn = std::fmax(std::hypot(mx, my), kTiny<T>);
  pnt[0] = pnt[2] = rad * mx / mn;
  pnt[1] = pnt[3] = rad * my / mn;
  const T A = rad / len0, B = rad / len1, cos_g = (len0 * len0 + len1 * len1 - dd) / (2 * len0 * len1);
  if (cos_g < -1 + kTiny<T>) return -1;
  if (cos_g > 1 - kTiny<T>) return 0;
  const T G = std::acos(cos_g), tol = T(1e-6);
  T z = T(1) - T(1e-7);
  auto f = [&](T x) { return std::asin(A * x) + std::asin(B * x) - 2 * std::asin(x) + G; };
  auto root = [](T x) { return std::fmax(kTiny<T>, std::sqrt(std::fmax(T(0), x))); };
  T fz = f(z);
  if (fz > 0) return 0;
  int iter = 0;
  for (; iter < 20 && std::abs(fz) > tol; ++iter) {
    const T df = A / root(1 - z * z * A * A) + B / root(1 - z * z * B * B) - 2 / root(1 - z * z);
    if (df > -kTiny<T>) return 0;
    const T next = z - fz / df;
    if (next > z) return 0;
    z = next;
    fz = f(z);
    if (fz > tol) return 0;
  }
  if (iter >= 20) return 0;
  const bool first = d[0] * d[3] - d[1] * d[2] > 0;
  const T* from = first ? d : d + 2;
  const T n = first ? len0 : len1, ang = std::asin(z) - std::asin((first ? A : B) * z);
  pnt[0] = pnt[2] = rad * (std::cos(ang) * from[0] - std::sin(ang) * from[1]) / n;
  pnt[1] = pnt[3] = rad * (std::sin(ang) * from[0] + std::cos(ang) * from[1]) / n;
  return 0;
}

// Path from x0 to x1 around a sphere or cylinder (axis z) at pos, rot; side: a site that the path must pass by, or null.
template <class T> T wrap_geom(const Vec3<Pack<T, 1>>& x0, const Vec3<Pack<T, 1>>& x1, const Vec3<Pack<T, 1>>& pos, const Mat3<Pack<T, 1>>& rot,
                               T radius, bool sphere, const Vec3<Pack<T, 1>>* side, Vec3<Pack<T, 1>>* out) {
  using S = Pack<T, 1>;
  const Vec3<S> p0 = mul_t(rot, x0 - pos), p1 = mul_t(rot, x1 - pos);
  if (radius <= 0 || norm(p0).v < kTiny<T> || norm(p1).v < kTiny<T>) return -1;
  Vec3<S> a0{S(1), S(0), S(0)}, a1{S(0), S(1), S(0)};
  if (sphere) {
    a0 = normalized(p0);
    Vec3<S> nrm = cross(p0, p1);
    if (norm(nrm).v < kTiny<T>) {  // ends and centre on one line: any plane through it
      const T ax = std::abs(a0.x.v), ay = std::abs(a0.y.v), az = std::abs(a0.z.v);
      Vec3<S> e = zero3<S>();
      e[ax < ay ? (ax < az ? 0 : 2) : (ay < az ? 1 : 2)] = S(1);
      nrm = cross(a0, e);
    }
    a1 = normalized(cross(normalized(nrm), a0));
  }
  const T d[4] = {dot(p0, a0).v, dot(p0, a1).v, dot(p1, a0).v, dot(p1, a1).v};
  T sd[2], pnt[4], len;
  bool inside = false;
  if (side) {
    const Vec3<S> s = mul_t(rot, *side - pos);
    inside = norm(s).v < radius;
    const T sx = dot(s, a0).v, sy = dot(s, a1).v, n = std::fmax(std::hypot(sx, sy), kTiny<T>);
    sd[0] = sx / n * radius;
    sd[1] = sy / n * radius;
  }
  len = inside ? wrap_inside(pnt, d, radius) : wrap_circle(pnt, d, side ? sd : nullptr, radius);
  if (len < 0) return -1;
  Vec3<S> r0 = a0 * S(pnt[0]) + a1 * S(pnt[1]), r1 = a0 * S(pnt[2]) + a1 * S(pnt[3]);
  if (!sphere) {
    const T l0 = std::hypot(p0.x.v - r0.x.v, p0.y.v - r0.y.v), l1 = std::hypot(p1.x.v - r1.x.v, p1.y.v - r1.y.v);
    const T dz = p1.z.v - p0.z.v, total = l0 + len + l1;
    r0.z = S(p0.z.v + dz * l0 / total);
    r1.z = S(p0.z.v + dz * (l0 + len) / total);
    len = std::hypot(len, r1.z.v - r0.z.v);
  }
  out[0] = mul(rot, r0) + pos;
  out[1] = mul(rot, r1) + pos;
  return len;
}

}  // namespace R2S_ISA
