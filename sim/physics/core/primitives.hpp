// SPDX-License-Identifier: Apache-2.0
// Narrow phase in lanes, for the pairs whose control flow is the same in every world: planes, spheres, capsules.
#pragma once
#include "manifold.hpp"

namespace R2S_ISA {

template <class P> struct PairPoints {
  int n = 0;                      // slots used, in any lane
  P dist[kManifold];
  Vec3<P> pos[kManifold], normal[kManifold];
  int id[kManifold][P::width];
  typename P::M on[kManifold];
  void point(int k, const typename P::M& m, const P& d, const Vec3<P>& p, const Vec3<P>& nrm, int feature) {
    on[k] = m;
    dist[k] = d;
    pos[k] = p;
    normal[k] = nrm;
    for (int l = 0; l < P::width; ++l) id[k][l] = feature;
    if (k >= n) n = k + 1;
  }
};

template <class P> struct GeomView { Vec3<P> pos; const Mat3<P>& rot; const typename P::Scalar* size; };

template <class P> R2S_INLINE void plane_point(PairPoints<P>& o, int k, const Vec3<P>& n, const Vec3<P>& origin, const Vec3<P>& p, const P& radius,
                                               const P& margin, const typename P::M& on, int id) {
  using T = typename P::Scalar;
  const P d = dot(n, p - origin) - radius;
  o.point(k, on & (d < margin), d, axpy(-(radius + d * P(T(0.5))), n, p), n, id);
}

template <class P> void plane_sphere(const GeomView<P>& a, const GeomView<P>& b, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  plane_point(o, 0, a.rot.col(2), a.pos, b.pos, P(b.size[0]), margin, on, 0);
}

template <class P> void plane_capsule(const GeomView<P>& a, const GeomView<P>& b, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  const Vec3<P> n = a.rot.col(2), half = b.rot.col(2) * P(b.size[1]);
  plane_point(o, 0, n, a.pos, b.pos + half, P(b.size[0]), margin, on, 0);
  plane_point(o, 1, n, a.pos, b.pos - half, P(b.size[0]), margin, on, 1);
}

// Of each of the four diagonals, the lower corner.
template <class P> void plane_box(const GeomView<P>& a, const GeomView<P>& b, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  const Vec3<P> n = a.rot.col(2), x = b.rot.col(0) * P(b.size[0]), y = b.rot.col(1) * P(b.size[1]), z = b.rot.col(2) * P(b.size[2]);
  const Vec3<P> diagonal[4] = {x + y + z, x + y - z, x - y + z, x - y - z};
  for (int k = 0; k < 4; ++k) {
    const auto up = dot(n, diagonal[k]) > 0;
    const Vec3<P> c = select(up, -diagonal[k], diagonal[k]);
    plane_point(o, k, n, a.pos, b.pos + c, P(0), margin, on, k);
    for (int l = 0; l < P::width; ++l) o.id[k][l] = k + (up[l] ? 4 : 0);
  }
}

// Lying: both ends of the lowest line. Tilted: the lowest rim point, a triangle under the cap. Standing: four rim points.
template <class P> void plane_cylinder(const GeomView<P>& a, const GeomView<P>& b, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  using T = typename P::Scalar;
  const Vec3<P> n = a.rot.col(2);
  Vec3<P> axis = b.rot.col(2);
  axis = select(dot(n, axis) > 0, -axis, axis);
  const P prj = dot(n, axis), radius = P(b.size[0]), half = P(b.size[1]);
  const Vec3<P> down = axis * prj - n;
  const P len = norm(down);
  const auto standing = len < T(kEdgeTilt);
  const Vec3<P> rim = down * (radius / select(standing, P(1), len)), along = axis * half;
  const Vec3<P> side = cross(axis, rim) * P(T(0.86602540378443864676));
  const Vec3<P> x = b.rot.col(0) * radius, y = b.rot.col(1) * radius;
  const Vec3<P> tilted[4] = {along + rim, rim - along, along + side - rim * P(T(0.5)), along - side - rim * P(T(0.5))};
  const Vec3<P> upright[4] = {along + x, along - x, along + y, along - y};
  for (int k = 0; k < 4; ++k) {
    plane_point(o, k, n, a.pos, b.pos + select(standing, upright[k], tilted[k]), P(0), margin, on, k);
    for (int l = 0; l < P::width; ++l) o.id[k][l] = k + (standing[l] ? 4 : 0);
  }
}

template <class P> void plane_ellipsoid(const GeomView<P>& a, const GeomView<P>& b, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  const Vec3<P> n = a.rot.col(2), d = mul_t(b.rot, n), size = vec3<P>(b.size);
  const Vec3<P> sd{size.x * d.x, size.y * d.y, size.z * d.z};
  const P inv = P(-1) / norm(sd);
  const Vec3<P> p{size.x * sd.x * inv, size.y * sd.y * inv, size.z * sd.z * inv};
  plane_point(o, 0, n, a.pos, b.pos + mul(b.rot, p), P(0), margin, on, 0);
}

template <class P> void sphere_point(PairPoints<P>& o, int k, const Vec3<P>& a, const P& ra, const Vec3<P>& b, const P& rb, const P& margin,
                                     const typename P::M& on, int id) {
  using T = typename P::Scalar;
  const Vec3<P> dif = b - a;
  const P len = norm(dif), d = len - ra - rb;
  const Vec3<P> n = normalized(dif);
  o.point(k, on & (d < margin), d, axpy(ra + d * P(T(0.5)), n, a), n, id);
}

template <class P> void sphere_sphere(const GeomView<P>& a, const GeomView<P>& b, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  sphere_point(o, 0, a.pos, P(a.size[0]), b.pos, P(b.size[0]), margin, on, 0);
}

template <class P> void sphere_capsule(const GeomView<P>& a, const GeomView<P>& b, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  const Vec3<P> axis = b.rot.col(2);
  const P t = clamp(dot(a.pos - b.pos, axis), P(-b.size[1]), P(b.size[1]));
  sphere_point(o, 0, a.pos, P(a.size[0]), axpy(t, axis, b.pos), P(b.size[0]), margin, on, 0);
}

// Closest points of two segments; nearly parallel ones touch at both ends of their overlap.
template <class P> void capsule_capsule(const GeomView<P>& a, const GeomView<P>& b, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  using T = typename P::Scalar;
  const Vec3<P> u = a.rot.col(2), w = b.rot.col(2), r = b.pos - a.pos;
  const P la = P(a.size[1]), lb = P(b.size[1]), uw = dot(u, w), ru = dot(r, u), rw = dot(r, w), den = P(1) - uw * uw;
  const auto parallel = den < T(kEdgeTilt * kEdgeTilt);
  P s = clamp((ru - uw * rw) / select(parallel, P(1), den), -la, la);
  P t = clamp(s * uw - rw, -lb, lb);
  s = clamp(fma(t, uw, ru), -la, la);
  const P e0 = clamp(fma(-lb, uw, ru), -la, la), e1 = clamp(fma(lb, uw, ru), -la, la);  // the ends of b seen from a
  const P lo = min(e0, e1), hi = max(e0, e1);
  const auto twice = parallel & (hi - lo > T(1e-6));
  const P s0 = select(twice, lo, s), t0 = select(twice, clamp(lo * uw - rw, -lb, lb), t);
  sphere_point(o, 0, axpy(s0, u, a.pos), P(a.size[0]), axpy(t0, w, b.pos), P(b.size[0]), margin, on, 0);
  if (any(twice & on)) sphere_point(o, 1, axpy(hi, u, a.pos), P(a.size[0]), axpy(clamp(hi * uw - rw, -lb, lb), w, b.pos), P(b.size[0]), margin, on & twice, 1);
}

template <class P> void sphere_box(const GeomView<P>& a, const GeomView<P>& b, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  using T = typename P::Scalar;
  const Vec3<P> c = mul_t(b.rot, a.pos - b.pos), size = vec3<P>(b.size);
  Vec3<P> q;
  for (int k = 0; k < 3; ++k) q[k] = clamp(c[k], -size[k], size[k]);
  const Vec3<P> out = c - q;
  const P len = norm(out);
  const auto inside = len < T(1e-12);
  P depth = P(T(1e30));
  Vec3<P> nin = zero3<P>();
  for (int k = 0; k < 3; ++k) {  // centre inside: the nearest face
    const P room = size[k] - abs(c[k]);
    const auto nearer = room < depth;
    Vec3<P> e = zero3<P>();
    e[k] = select(c[k] < 0, P(-1), P(1));
    nin = select(nearer, e, nin);
    depth = min(depth, room);
  }
  const Vec3<P> n = select(inside, nin, normalized(out));
  const P radius = P(a.size[0]), d = select(inside, -depth, len) - radius;
  const Vec3<P> local = axpy(-(radius + d * P(T(0.5))), n, c);
  o.point(0, on & (d < margin), d, mul(b.rot, local) + b.pos, -mul(b.rot, n), 0);
}

// True where the pair has a lane-parallel routine.
template <class P> bool collide_lanes(int t1, int t2, const GeomView<P>& a, const GeomView<P>& b, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  if (t1 == kPlane) {
    if (t2 == kSphere) plane_sphere(a, b, margin, on, o);
    else if (t2 == kCapsule) plane_capsule(a, b, margin, on, o);
    else if (t2 == kBox) plane_box(a, b, margin, on, o);
    else if (t2 == kCylinder) plane_cylinder(a, b, margin, on, o);
    else if (t2 == kEllipsoid) plane_ellipsoid(a, b, margin, on, o);
    else return false;
    return true;
  }
  if (t1 == kSphere && t2 == kSphere) sphere_sphere(a, b, margin, on, o);
  else if (t1 == kSphere && t2 == kCapsule) sphere_capsule(a, b, margin, on, o);
  else if (t1 == kSphere && t2 == kBox) sphere_box(a, b, margin, on, o);
  else if (t1 == kCapsule && t2 == kCapsule) capsule_capsule(a, b, margin, on, o);
  else return false;
  return true;
}

}  // namespace R2S_ISA
