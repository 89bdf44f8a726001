// SPDX-License-Identifier: Apache-2.0
// From a separating direction to a manifold: clip the facing features against each other, keep at most four points.
#pragma once
#include "gjk.hpp"
#include "model.hpp"

namespace R2S_ISA {

constexpr int kMaxPoints = 2 * kMaxFeature;

constexpr double kClipSlack = 1e-5;  // [m] flush edges keep their vertices, and so their identity, from step to step

constexpr double kFaceTie = 5e-4;     // cosine: two faces as parallel as this count as equal, and the first geom's is the reference

struct Point { double dist; V pos, n; int id; };  // n from the first geom to the second

struct PointList {
  int n = 0;
  Point p[kMaxPoints];
  void add(const Point& q) { if (n < kMaxPoints) p[n++] = q; }
};

inline int mix(int a, int b) { return int((unsigned(a) * 2654435761u) ^ (unsigned(b) * 40503u + 0x9e3779b9u)); }

// Sutherland-Hodgman: the part of f (polygon or segment) behind the plane n . x <= d.
inline void clip(Feature& f, const V& n, double d, int plane) {
  Feature out;
  const bool closed = f.n > 2;
  d += kClipSlack * norm(n).v;
  for (int i = 0; i < f.n; ++i) {
    const int j = (i + 1) % f.n;
    const double di = dotd(n, f.p[i]) - d, dj = dotd(n, f.p[j]) - d;
    if (di <= 0) push(out, f.p[i], f.id[i]);
    if ((closed || i == 0) && f.n > 1 && ((di < 0 && dj > 0) || (di > 0 && dj < 0)))
      push(out, f.p[i] + (f.p[j] - f.p[i]) * S(di / (di - dj)), mix(di < 0 ? f.id[j] : f.id[i], plane + 1000));
  }
  f.n = out.n;
  for (int i = 0; i < out.n; ++i) { f.p[i] = out.p[i]; f.id[i] = out.id[i]; }
}

// Points of the incident feature below the reference face. sign: 1 where the reference belongs to the first geom.
inline void clip_to_face(const Feature& ref, Feature inc, double sign, double ref_radius, double inc_radius, double margin, PointList& out) {
  for (int i = 0; i < ref.n && inc.n > 0; ++i) {
    const V& a = ref.p[i];
    const V side = cross(ref.p[(i + 1) % ref.n] - a, ref.normal);
    clip(inc, side, dotd(side, a), i);
  }
  const double level = dotd(ref.normal, ref.p[0]) + ref_radius;
  for (int i = 0; i < inc.n; ++i) {
    const double d = dotd(ref.normal, inc.p[i]) - inc_radius - level;
    if (d > margin) continue;
    const V mid = inc.p[i] - ref.normal * S(inc_radius + 0.5 * d);
    out.add({d, mid, ref.normal * S(sign), mix(inc.id[i], sign > 0 ? 1 : 2)});
  }
}

// Two nearly parallel edges: the ends of their overlap. False where they do not run along each other.
inline bool edge_edge(const Feature& a, const Feature& b, const V& n, double ra, double rb, double margin, PointList& out) {
  const V u = a.p[1] - a.p[0], w = b.p[1] - b.p[0];
  const double lu = norm(u).v, lw = norm(w).v;
  if (lu < 1e-12 || lw < 1e-12 || norm(cross(u, w)).v > kEdgeTilt * lu * lw) return false;
  double t0 = dotd(b.p[0] - a.p[0], u) / (lu * lu), t1 = dotd(b.p[1] - a.p[0], u) / (lu * lu);
  const double s0 = t0, s1 = t1;
  if (t0 > t1) std::swap(t0, t1);
  t0 = std::fmax(t0, 0.0);
  t1 = std::fmin(t1, 1.0);
  if (t1 - t0 < 1e-6) return false;
  int k = 0;
  for (double t : {t0, t1}) {
    const V pa = a.p[0] + u * S(t), pb = b.p[0] + w * S((t - s0) / (s1 - s0));
    const double d = dotd(n, pb - pa) - ra - rb;
    if (d <= margin) out.add({d, pa + n * S(ra + 0.5 * d), n, 40 + k});
    ++k;
  }
  return out.n > 0;
}

// Manifold of two shapes from their separation (normal from a to b, distance of the surfaces).
template <class T> void manifold(const Shape<T>& a, const Shape<T>& b, const Separation& sep, double margin, PointList& out) {
  const double dist = sep.dist - a.radius - b.radius;
  if (dist > margin) return;
  Feature fa, fb;
  facing(a, sep.normal, fa);
  facing(b, -sep.normal, fb);
  const double ca = fa.face ? dotd(fa.normal, sep.normal) : -1, cb = fb.face ? -dotd(fb.normal, sep.normal) : -1;
  if (ca > kFaceAlign && fb.n > 1 && ca >= cb - kFaceTie) clip_to_face(fa, fb, 1, a.radius, b.radius, margin, out);
  else if (cb > kFaceAlign && fa.n > 1) clip_to_face(fb, fa, -1, b.radius, a.radius, margin, out);
  else if (fa.n == 2 && fb.n == 2) edge_edge(fa, fb, sep.normal, a.radius, b.radius, margin, out);
  if (out.n > 0) return;
  V n = sep.normal;
  const V pa = sep.a + n * S(a.radius), pb = sep.b - n * S(b.radius);
  out.add({dist, (pa + pb) * S(0.5), n, 7});
}

// Keep four points: the deepest, the farthest from it, and the ones that span most area to either side.
inline void reduce(PointList& l, int keep) {
  if (l.n <= keep) return;
  int pick[kManifold] = {0, 0, 0, 0};
  for (int i = 1; i < l.n; ++i)
    if (l.p[i].dist < l.p[pick[0]].dist - 1e-9) pick[0] = i;
  const V n = l.p[pick[0]].n;
  auto at = [&](int i) -> const V& { return l.p[i].pos; };
  double far = -1;
  for (int i = 0; i < l.n; ++i) {
    const V d = at(i) - at(pick[0]);
    if (dotd(d, d) > far + 1e-12) { far = dotd(d, d); pick[1] = i; }
  }
  const V line = cross(n, at(pick[1]) - at(pick[0]));
  double hi = 0, lo = 0;
  int nk = 2, ih = -1, il = -1;
  for (int i = 0; i < l.n; ++i) {
    const double s = dotd(line, at(i) - at(pick[0]));
    if (s > hi + 1e-12) { hi = s; ih = i; }
    if (s < lo - 1e-12) { lo = s; il = i; }
  }
  if (ih >= 0) pick[nk++] = ih;
  if (il >= 0) pick[nk++] = il;
  Point q[kManifold];
  for (int i = 0; i < nk; ++i) q[i] = l.p[pick[i]];
  for (int i = 0; i < nk; ++i) l.p[i] = q[i];
  l.n = nk;
}

// Separating axis of two boxes; an edge pair must beat the faces clearly, so that resting boxes keep their faces.
template <class T> void box_box(const Shape<T>& a, const Shape<T>& b, double margin, PointList& out) {
  const V d = b.pos - a.pos;
  double best_face = -1e300, best_edge = -1e300;
  V face_n = vec(0, 0, 1), edge_n = vec(0, 0, 1);
  int ei = -1, ej = -1;
  auto extent = [](const Shape<T>& s, const V& n) {
    double e = 0;
    for (int k = 0; k < 3; ++k) e += s.size[k] * std::abs(dotd(s.rot.col(k), n));
    return e;
  };
  auto gap = [&](const V& n) { return std::abs(dotd(d, n)) - extent(a, n) - extent(b, n); };
  auto oriented = [&](const V& n) { return dotd(d, n) < 0 ? -n : n; };
  for (int k = 0; k < 6; ++k) {
    const V n = k < 3 ? a.rot.col(k) : b.rot.col(k - 3);
    const double g = gap(n);
    if (g > margin) return;
    if (g > best_face + 1e-9) { best_face = g; face_n = oriented(n); }
  }
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) {
      V n = cross(a.rot.col(i), b.rot.col(j));
      const double l = norm(n).v;
      if (l < 1e-3) continue;
      n = n * S(1 / l);
      const double g = gap(n);
      if (g > margin) return;
      if (g > best_edge + 1e-9) { best_edge = g; edge_n = oriented(n); ei = i; ej = j; }
    }
  constexpr double kEdgePreference = 1e-4;  // [m]
  if (best_edge > best_face + kEdgePreference + 0.02 * std::abs(best_face)) {
    V pa = a.pos, pb = b.pos;
    for (int k = 0; k < 3; ++k) {
      if (k != ei) pa += a.rot.col(k) * S(dotd(a.rot.col(k), edge_n) > 0 ? a.size[k] : -a.size[k]);
      if (k != ej) pb += b.rot.col(k) * S(dotd(b.rot.col(k), edge_n) < 0 ? b.size[k] : -b.size[k]);
    }
    const V u = a.rot.col(ei), w = b.rot.col(ej), r = pb - pa;
    const double uw = dotd(u, w), den = 1 - uw * uw, ru = dotd(r, u), rw = dotd(r, w);
    pa += u * S((ru - uw * rw) / den);
    pb += w * S((uw * ru - rw) / den);
    out.add({best_edge, (pa + pb) * S(0.5), edge_n, 100 + 3 * ei + ej});
    return;
  }
  Feature fa, fb;
  facing(a, face_n, fa);
  facing(b, -face_n, fb);
  if (dotd(fa.normal, face_n) >= -dotd(fb.normal, face_n) - kFaceTie) clip_to_face(fa, fb, 1, 0, 0, margin, out);
  else clip_to_face(fb, fa, -1, 0, 0, margin, out);
}

}  // namespace R2S_ISA
