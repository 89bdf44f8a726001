// SPDX-License-Identifier: Apache-2.0
// Distance (Gilbert-Johnson-Keerthi) and penetration depth (expanding polytope) of two convex cores.
#pragma once
#include "shape.hpp"

namespace R2S_ISA {

constexpr int kGjkSteps = 64, kEpaSteps = 96, kEpaVertices = kEpaSteps + 4, kEpaFaces = 4 * kEpaSteps;
constexpr double kGjkRelative = 1e-12;  // stop when the support gains less than this share of the squared distance
constexpr double kEpaTolerance = 1e-9;  // [m] stop when the polytope's nearest face is this close to the surface

struct MinkowskiPoint { V w, a; };  // a - b, and the point of the first shape

struct Separation {
  double dist;       // between cores; negative: depth
  V normal, a, b;    // unit, from the first to the second; witness points on the cores
  bool valid;
};

template <class T> struct Minkowski {
  const Shape<T>&a, &b;
  int hint_a = 0, hint_b = 0;
  MinkowskiPoint operator()(const V& d) {
    MinkowskiPoint p;
    p.a = support(a, d, hint_a);
    p.w = p.a - support(b, -d, hint_b);
    return p;
  }
};

struct Simplex {
  MinkowskiPoint p[4];
  double lam[4];
  int n = 0;
  void keep(std::initializer_list<int> idx, std::initializer_list<double> weight) {
    MinkowskiPoint q[4];
    int k = 0;
    for (int i : idx) q[k++] = p[i];
    for (int i = 0; i < k; ++i) p[i] = q[i];
    k = 0;
    for (double x : weight) lam[k++] = x;
    n = k;
  }
};

inline void closest_segment(Simplex& s) {
  const V ab = s.p[1].w - s.p[0].w;
  const double t = -dotd(s.p[0].w, ab), d = dotd(ab, ab);
  if (t <= 0 || d <= 0) s.keep({0}, {1});
  else if (t >= d) s.keep({1}, {1});
  else { s.lam[1] = t / d; s.lam[0] = 1 - s.lam[1]; }
}

inline void closest_triangle(Simplex& s) {
  const V &a = s.p[0].w, &b = s.p[1].w, &c = s.p[2].w;
  const V ab = b - a, ac = c - a;
  const double d1 = -dotd(ab, a), d2 = -dotd(ac, a), d3 = -dotd(ab, b), d4 = -dotd(ac, b), d5 = -dotd(ab, c), d6 = -dotd(ac, c);
  if (d1 <= 0 && d2 <= 0) return s.keep({0}, {1});
  if (d3 >= 0 && d4 <= d3) return s.keep({1}, {1});
  const double vc = d1 * d4 - d3 * d2;
  if (vc <= 0 && d1 >= 0 && d3 <= 0) { const double v = d1 / (d1 - d3); return s.keep({0, 1}, {1 - v, v}); }
  if (d6 >= 0 && d5 <= d6) return s.keep({2}, {1});
  const double vb = d5 * d2 - d1 * d6;
  if (vb <= 0 && d2 >= 0 && d6 <= 0) { const double v = d2 / (d2 - d6); return s.keep({0, 2}, {1 - v, v}); }
  const double va = d3 * d6 - d5 * d4;
  if (va <= 0 && d4 - d3 >= 0 && d5 - d6 >= 0) {
    const double v = (d4 - d3) / ((d4 - d3) + (d5 - d6));
    return s.keep({1, 2}, {1 - v, v});
  }
  const double sum = va + vb + vc;
  if (sum <= 0) return s.keep({0, 1}, {0.5, 0.5});
  s.lam[0] = va / sum;
  s.lam[1] = vb / sum;
  s.lam[2] = vc / sum;
}

// True where the origin is inside the tetrahedron.
inline bool closest_tetrahedron(Simplex& s) {
  static constexpr int face[4][4] = {{0, 1, 2, 3}, {0, 2, 3, 1}, {0, 3, 1, 2}, {1, 3, 2, 0}};
  double best = 1e300;
  Simplex keep;
  bool outside = false;
  for (const auto& f : face) {
    const V n = cross(s.p[f[1]].w - s.p[f[0]].w, s.p[f[2]].w - s.p[f[0]].w);
    const double side = dotd(n, s.p[f[3]].w - s.p[f[0]].w), origin = -dotd(n, s.p[f[0]].w);
    if (side * origin > 0) continue;  // same side as the fourth vertex
    outside = true;
    Simplex t;
    t.n = 3;
    for (int i = 0; i < 3; ++i) t.p[i] = s.p[f[i]];
    closest_triangle(t);
    V c = zero3<S>();
    for (int i = 0; i < t.n; ++i) c += t.p[i].w * S(t.lam[i]);
    if (dotd(c, c) < best) { best = dotd(c, c); keep = t; }
  }
  if (!outside) return true;
  s = keep;
  return false;
}

struct EpaFace { int v[3]; V n; double d; bool gone; };

template <class T> struct Polytope {
  MinkowskiPoint vert[kEpaVertices];
  EpaFace face[kEpaFaces];
  int nv = 0, nf = 0;
  bool add(int a, int b, int c) {
    if (nf >= kEpaFaces) return false;
    EpaFace& f = face[nf++];
    f = {{a, b, c}, cross(vert[b].w - vert[a].w, vert[c].w - vert[a].w), 0, false};
    const double n = norm(f.n).v;
    if (n < 1e-18) { f.d = 1e300; f.n = zero3<S>(); return true; }  // a sliver is never the nearest face
    f.n = f.n * S(1 / n);
    f.d = dotd(f.n, vert[a].w);
    return true;
  }
};

// Fill up the simplex that holds the origin to a tetrahedron; false where the difference is flat.
template <class T> bool enclose(Minkowski<T>& mink, Simplex& s) {
  static const double axes[6][3] = {{1, 0, 0}, {-1, 0, 0}, {0, 1, 0}, {0, -1, 0}, {0, 0, 1}, {0, 0, -1}};
  if (s.n == 1)
    for (const auto& e : axes) {
      s.p[1] = mink(vec(e[0], e[1], e[2]));
      if (norm(s.p[1].w - s.p[0].w).v > 1e-9) { s.n = 2; break; }
    }
  if (s.n == 2) {
    const V d = s.p[1].w - s.p[0].w;
    for (const auto& e : axes) {
      const V n = cross(d, vec(e[0], e[1], e[2]));
      if (norm(n).v < 1e-9 * norm(d).v) continue;
      s.p[2] = mink(n);
      if (norm(cross(d, s.p[2].w - s.p[0].w)).v > 1e-12) { s.n = 3; break; }
    }
  }
  if (s.n == 3) {
    const V n = cross(s.p[1].w - s.p[0].w, s.p[2].w - s.p[0].w);
    for (double sign : {1.0, -1.0}) {
      s.p[3] = mink(n * S(sign));
      if (std::abs(dotd(n, s.p[3].w - s.p[0].w)) > 1e-15) { s.n = 4; break; }
    }
  }
  return s.n == 4;
}

template <class T> Separation expand(Minkowski<T>& mink, Simplex& s) {
  Separation out{0, vec(0, 0, 1), s.p[0].a, s.p[0].a, false};
  if (!enclose(mink, s)) return out;
  Polytope<T> poly;
  for (int i = 0; i < 4; ++i) poly.vert[poly.nv++] = s.p[i];
  const V n = cross(s.p[1].w - s.p[0].w, s.p[2].w - s.p[0].w);
  if (dotd(n, s.p[3].w - s.p[0].w) > 0) std::swap(poly.vert[1], poly.vert[2]);
  poly.add(0, 1, 2);
  poly.add(0, 3, 1);
  poly.add(0, 2, 3);
  poly.add(1, 3, 2);
  int best = 0;
  for (int iter = 0; iter < kEpaSteps; ++iter) {
    best = -1;
    for (int i = 0; i < poly.nf; ++i)
      if (!poly.face[i].gone && (best < 0 || poly.face[i].d < poly.face[best].d)) best = i;
    if (best < 0 || poly.face[best].d > 1e299) return out;
    const EpaFace f = poly.face[best];
    const MinkowskiPoint p = mink(f.n);
    if (dotd(p.w, f.n) - f.d < kEpaTolerance || poly.nv >= kEpaVertices) break;
    const int v = poly.nv;
    int edge[2 * kEpaFaces], ne = 0;  // the horizon: edges seen once among the faces that p sees
    for (int i = 0; i < poly.nf; ++i) {
      EpaFace& g = poly.face[i];
      if (g.gone || (i != best && dotd(g.n, p.w - poly.vert[g.v[0]].w) <= 1e-12)) continue;
      g.gone = true;
      for (int k = 0; k < 3; ++k) {
        const int a = g.v[k], b = g.v[(k + 1) % 3];
        int found = -1;
        for (int e = 0; e < ne; ++e)
          if (edge[2 * e] == b && edge[2 * e + 1] == a) found = e;
        if (found >= 0) { --ne; edge[2 * found] = edge[2 * ne]; edge[2 * found + 1] = edge[2 * ne + 1]; }
        else if (ne < kEpaFaces) { edge[2 * ne] = a; edge[2 * ne + 1] = b; ++ne; }
      }
    }
    poly.vert[poly.nv++] = p;
    int live = 0;  // close up the list, so that its room is enough
    for (int i = 0; i < poly.nf; ++i)
      if (!poly.face[i].gone) poly.face[live++] = poly.face[i];
    poly.nf = live;
    bool room = true;
    for (int e = 0; e < ne; ++e) room = poly.add(edge[2 * e], edge[2 * e + 1], v) && room;
    if (!room) return out;
  }
  if (best < 0) return out;
  best = 0;
  for (int i = 0; i < poly.nf; ++i)
    if (poly.face[i].d < poly.face[best].d) best = i;
  const EpaFace& f = poly.face[best];
  Simplex t;
  t.n = 3;
  for (int i = 0; i < 3; ++i) { t.p[i] = poly.vert[f.v[i]]; t.p[i].w = t.p[i].w - f.n * S(f.d); }
  closest_triangle(t);
  V a = zero3<S>();
  for (int i = 0; i < t.n; ++i) a += t.p[i].a * S(t.lam[i]);
  out.valid = true;
  out.dist = -f.d;
  out.normal = f.n;  // moving b by depth along n parts them
  out.a = a;
  out.b = a - f.n * S(f.d);
  return out;
}

template <class T> Separation separation(const Shape<T>& a, const Shape<T>& b) {
  Minkowski<T> mink{a, b};
  Simplex s;
  V v = a.pos - b.pos;
  if (dotd(v, v) < 1e-20) v = vec(1, 0, 0);
  s.p[0] = mink(-v);
  s.lam[0] = 1;
  s.n = 1;
  v = s.p[0].w;
  const double reach = 1 + dotd(a.pos - b.pos, a.pos - b.pos);
  for (int iter = 0; iter < kGjkSteps; ++iter) {
    const double vv = dotd(v, v);
    if (vv < 1e-20 * reach) return expand(mink, s);
    const MinkowskiPoint p = mink(-v);
    if (vv - dotd(v, p.w) <= kGjkRelative * vv) break;
    bool seen = false;
    for (int i = 0; i < s.n; ++i) seen = seen || dotd(p.w - s.p[i].w, p.w - s.p[i].w) < 1e-24;
    if (seen) break;
    s.p[s.n++] = p;
    if (s.n == 2) closest_segment(s);
    else if (s.n == 3) closest_triangle(s);
    else if (closest_tetrahedron(s)) return expand(mink, s);
    V next = zero3<S>();
    for (int i = 0; i < s.n; ++i) next += s.p[i].w * S(s.lam[i]);
    if (dotd(next, next) >= vv) break;
    v = next;
  }
  Separation out;
  out.a = zero3<S>();
  for (int i = 0; i < s.n; ++i) out.a += s.p[i].a * S(s.lam[i]);
  out.b = out.a - v;
  out.dist = norm(v).v;
  out.normal = -v * S(1 / std::fmax(out.dist, 1e-300));
  out.valid = true;
  return out;
}

}  // namespace R2S_ISA
