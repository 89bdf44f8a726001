// SPDX-License-Identifier: Apache-2.0
// Vectors, quaternions (wxyz), rotation matrices and spatial vectors (rotation first) on packs.
#pragma once
#include "pack.hpp"

namespace R2S_ISA {

template <class P> struct Vec3 {
  P x, y, z;
  R2S_INLINE P& operator[](int i) { return (&x)[i]; }
  R2S_INLINE const P& operator[](int i) const { return (&x)[i]; }
};
template <class P> struct Quat { P w, x, y, z; };
template <class P> struct Mat3 {  // row major
  P m[9];
  R2S_INLINE Vec3<P> col(int j) const { return {m[j], m[3 + j], m[6 + j]}; }
  R2S_INLINE Vec3<P> row(int i) const { return {m[3 * i], m[3 * i + 1], m[3 * i + 2]}; }
};
template <class P> struct Spatial { Vec3<P> ang, lin; };  // motion (w, v) or force (torque, force)
// Rotational inertia about the origin (xx yy zz xy xz yz), first moment, mass: MuJoCo's ten numbers of cinert.
template <class P> struct Inertia { P xx, yy, zz, xy, xz, yz; Vec3<P> mc; P mass; };

#define R2S_T template <class P> R2S_INLINE
R2S_T Vec3<P> vec3(const typename P::Scalar* p) { return {P(p[0]), P(p[1]), P(p[2])}; }
R2S_T Quat<P> quat(const typename P::Scalar* p) { return {P(p[0]), P(p[1]), P(p[2]), P(p[3])}; }
R2S_T Vec3<P> zero3() { return {P(0), P(0), P(0)}; }
R2S_T Vec3<P> operator+(const Vec3<P>& a, const Vec3<P>& b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
R2S_T Vec3<P> operator-(const Vec3<P>& a, const Vec3<P>& b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
R2S_T Vec3<P> operator-(const Vec3<P>& a) { return {-a.x, -a.y, -a.z}; }
R2S_T Vec3<P> operator*(const Vec3<P>& a, const P& s) { return {a.x * s, a.y * s, a.z * s}; }
R2S_T Vec3<P>& operator+=(Vec3<P>& a, const Vec3<P>& b) { a = a + b; return a; }
R2S_T Vec3<P>& operator-=(Vec3<P>& a, const Vec3<P>& b) { a = a - b; return a; }
R2S_T Vec3<P> axpy(const P& s, const Vec3<P>& a, const Vec3<P>& b) { return {fma(s, a.x, b.x), fma(s, a.y, b.y), fma(s, a.z, b.z)}; }
R2S_T P dot(const Vec3<P>& a, const Vec3<P>& b) { return fma(a.x, b.x, fma(a.y, b.y, a.z * b.z)); }
R2S_T Vec3<P> cross(const Vec3<P>& a, const Vec3<P>& b) {
  return {fma(a.y, b.z, -(a.z * b.y)), fma(a.z, b.x, -(a.x * b.z)), fma(a.x, b.y, -(a.y * b.x))};
}
R2S_T P norm(const Vec3<P>& a) { return sqrt(dot(a, a)); }
R2S_T Vec3<P> select(const typename P::M& m, const Vec3<P>& a, const Vec3<P>& b) {
  return {select(m, a.x, b.x), select(m, a.y, b.y), select(m, a.z, b.z)};
}
// Unit vector along a; the x axis where a vanishes.
R2S_T Vec3<P> normalized(const Vec3<P>& a) {
  P n = norm(a);
  typename P::M ok = n > kTiny<typename P::Scalar>;
  P inv = P(1) / select(ok, n, P(1));
  return select(ok, a * inv, Vec3<P>{P(1), P(0), P(0)});
}
R2S_T Vec3<P> mul(const Mat3<P>& r, const Vec3<P>& a) {
  return {fma(r.m[0], a.x, fma(r.m[1], a.y, r.m[2] * a.z)), fma(r.m[3], a.x, fma(r.m[4], a.y, r.m[5] * a.z)),
          fma(r.m[6], a.x, fma(r.m[7], a.y, r.m[8] * a.z))};
}
R2S_T Vec3<P> mul_t(const Mat3<P>& r, const Vec3<P>& a) {
  return {fma(r.m[0], a.x, fma(r.m[3], a.y, r.m[6] * a.z)), fma(r.m[1], a.x, fma(r.m[4], a.y, r.m[7] * a.z)),
          fma(r.m[2], a.x, fma(r.m[5], a.y, r.m[8] * a.z))};
}
R2S_T Quat<P> mul(const Quat<P>& a, const Quat<P>& b) {
  return {fma(a.w, b.w, -fma(a.x, b.x, fma(a.y, b.y, a.z * b.z))), fma(a.w, b.x, fma(a.x, b.w, fma(a.y, b.z, -(a.z * b.y)))),
          fma(a.w, b.y, fma(a.y, b.w, fma(a.z, b.x, -(a.x * b.z)))), fma(a.w, b.z, fma(a.z, b.w, fma(a.x, b.y, -(a.y * b.x))))};
}
R2S_T Quat<P> conj(const Quat<P>& a) { return {a.w, -a.x, -a.y, -a.z}; }
R2S_T Quat<P> normalized(const Quat<P>& a) {
  P n = sqrt(fma(a.w, a.w, fma(a.x, a.x, fma(a.y, a.y, a.z * a.z))));
  typename P::M ok = n > kTiny<typename P::Scalar>;
  P inv = P(1) / select(ok, n, P(1));
  return {select(ok, a.w * inv, P(1)), masked(ok, a.x * inv), masked(ok, a.y * inv), masked(ok, a.z * inv)};
}
R2S_T Mat3<P> to_mat(const Quat<P>& q) {
  P xx = q.x * q.x, yy = q.y * q.y, zz = q.z * q.z, ww = q.w * q.w;
  P xy = q.x * q.y, xz = q.x * q.z, yz = q.y * q.z, wx = q.w * q.x, wy = q.w * q.y, wz = q.w * q.z;
  return {{ww + xx - yy - zz, P(2) * (xy - wz), P(2) * (xz + wy), P(2) * (xy + wz), ww - xx + yy - zz, P(2) * (yz - wx),
           P(2) * (xz - wy), P(2) * (yz + wx), ww - xx - yy + zz}};
}
R2S_T Vec3<P> rotate(const Quat<P>& q, const Vec3<P>& a) {
  Vec3<P> u{q.x, q.y, q.z};
  Vec3<P> t = cross(u, a) * P(2);
  return axpy(q.w, t, a) + cross(u, t);
}
R2S_T Quat<P> axis_angle(const Vec3<P>& axis, const P& angle) {
  P h = angle * P(typename P::Scalar(0.5)), s = sin(h);
  return {cos(h), axis.x * s, axis.y * s, axis.z * s};
}
// Rotation vector of a unit quaternion, angle in (-pi, pi].
R2S_T Vec3<P> rotation_vector(const Quat<P>& q) {
  using T = typename P::Scalar;
  Vec3<P> u{q.x, q.y, q.z};
  P s = norm(u);
  P angle = P(2) * atan2(s, q.w);
  angle = select(angle > T(3.14159265358979323846), angle - P(T(6.28318530717958647692)), angle);
  typename P::M ok = s > kTiny<T>;
  return u * select(ok, angle / select(ok, s, P(1)), P(2));
}
R2S_T Quat<P> integrate(const Quat<P>& q, const Vec3<P>& w, const P& h) {
  P n = norm(w);
  return normalized(mul(q, axis_angle(normalized(w), n * h)));
}
R2S_T Spatial<P> operator+(const Spatial<P>& a, const Spatial<P>& b) { return {a.ang + b.ang, a.lin + b.lin}; }
R2S_T Spatial<P>& operator+=(Spatial<P>& a, const Spatial<P>& b) { a = a + b; return a; }
R2S_T Spatial<P> operator*(const Spatial<P>& a, const P& s) { return {a.ang * s, a.lin * s}; }
R2S_T Spatial<P> axpy(const P& s, const Spatial<P>& a, const Spatial<P>& b) { return {axpy(s, a.ang, b.ang), axpy(s, a.lin, b.lin)}; }
R2S_T P dot(const Spatial<P>& a, const Spatial<P>& b) { return dot(a.ang, b.ang) + dot(a.lin, b.lin); }
R2S_T Spatial<P> zero6() { return {zero3<P>(), zero3<P>()}; }
R2S_T Spatial<P> cross_motion(const Spatial<P>& v, const Spatial<P>& u) {
  return {cross(v.ang, u.ang), cross(v.ang, u.lin) + cross(v.lin, u.ang)};
}
R2S_T Spatial<P> cross_force(const Spatial<P>& v, const Spatial<P>& f) {
  return {cross(v.ang, f.ang) + cross(v.lin, f.lin), cross(v.ang, f.lin)};
}
R2S_T Spatial<P> mul(const Inertia<P>& i, const Spatial<P>& v) {
  Vec3<P> iw{fma(i.xx, v.ang.x, fma(i.xy, v.ang.y, i.xz * v.ang.z)), fma(i.xy, v.ang.x, fma(i.yy, v.ang.y, i.yz * v.ang.z)),
             fma(i.xz, v.ang.x, fma(i.yz, v.ang.y, i.zz * v.ang.z))};
  return {iw + cross(i.mc, v.lin), v.lin * i.mass - cross(i.mc, v.ang)};
}
R2S_T Inertia<P> operator+(const Inertia<P>& a, const Inertia<P>& b) {
  return {a.xx + b.xx, a.yy + b.yy, a.zz + b.zz, a.xy + b.xy, a.xz + b.xz, a.yz + b.yz, a.mc + b.mc, a.mass + b.mass};
}
// Inertia of a body of principal moments d in the axes of r, displaced by c from the reference point.
R2S_T Inertia<P> displaced_inertia(const Mat3<P>& r, const Vec3<P>& d, const Vec3<P>& c, const P& mass) {
  auto rot = [&](int i, int j) { return fma(r.m[3 * i] * d.x, r.m[3 * j], fma(r.m[3 * i + 1] * d.y, r.m[3 * j + 1], r.m[3 * i + 2] * d.z * r.m[3 * j + 2])); };
  return {fma(mass, c.y * c.y + c.z * c.z, rot(0, 0)), fma(mass, c.x * c.x + c.z * c.z, rot(1, 1)), fma(mass, c.x * c.x + c.y * c.y, rot(2, 2)),
          rot(0, 1) - mass * c.x * c.y, rot(0, 2) - mass * c.x * c.z, rot(1, 2) - mass * c.y * c.z, c * mass, mass};
}
// Two unit tangents to the unit vector n, right-handed (n, t1, t2), as MuJoCo chooses them.
R2S_T void tangents(const Vec3<P>& n, Vec3<P>& t1, Vec3<P>& t2) {
  using T = typename P::Scalar;
  typename P::M steep = (n.y > T(-0.5)) & (n.y < T(0.5));
  Vec3<P> g{P(0), masked(steep, P(1)), select(steep, P(0), P(1))};
  t1 = normalized(axpy(-dot(n, g), n, g));
  t2 = cross(n, t1);
}
#undef R2S_T

}  // namespace R2S_ISA
