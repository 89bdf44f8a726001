// SPDX-License-Identifier: Apache-2.0
// Rays against geoms: the nearest hit in front of the origin, MuJoCo's rules (planes from above only, meshes by triangle).
#pragma once
#include "shape.hpp"

namespace R2S_ISA {

struct Hit { double t = -1; V normal = {S(0), S(0), S(0)}; };  // t < 0: none; normal in the geom's frame

inline void nearer(Hit& best, double t, const V& n) {
  if (t >= 0 && (best.t < 0 || t < best.t)) best = {t, n};
}

// Roots of a t^2 + 2 b t + c = 0, or none.
inline int roots(double a, double b, double c, double* x) {
  const double det = b * b - a * c;
  if (a < 1e-15 || det < 0) return 0;
  const double s = std::sqrt(det);
  x[0] = (-b - s) / a;
  x[1] = (-b + s) / a;
  return 2;
}

inline void ray_sphere(const V& o, const V& d, const V& c, double r, double zlo, double zhi, Hit& best) {
  const V p = o - c;
  double x[2];
  for (int i = 0, n = roots(dotd(d, d), dotd(d, p), dotd(p, p) - r * r, x); i < n; ++i) {
    const V at = o + d * S(x[i]);
    if (at.z.v >= zlo && at.z.v <= zhi) nearer(best, x[i], (at - c) * S(1 / r));
  }
}

inline void ray_tube(const V& o, const V& d, double r, double half, Hit& best) {
  double x[2];
  for (int i = 0, n = roots(d.x.v * d.x.v + d.y.v * d.y.v, d.x.v * o.x.v + d.y.v * o.y.v, o.x.v * o.x.v + o.y.v * o.y.v - r * r, x); i < n; ++i) {
    const V at = o + d * S(x[i]);
    if (std::abs(at.z.v) <= half) nearer(best, x[i], vec(at.x.v / r, at.y.v / r, 0));
  }
}

inline void ray_triangle(const V& o, const V& d, const V& a, const V& b, const V& c, Hit& best) {
  const V e1 = b - a, e2 = c - a, p = cross(d, e2);
  const double det = dotd(e1, p);
  if (std::abs(det) < 1e-18) return;
  const V s = o - a, q = cross(s, e1);
  const double u = dotd(s, p) / det, v = dotd(d, q) / det;
  if (u < 0 || v < 0 || u + v > 1) return;
  nearer(best, dotd(e2, q) / det, normalized(cross(e1, e2)));
}

inline void ray_box(const V& o, const V& d, const double* size, Hit& best) {
  for (int k = 0; k < 3; ++k) {
    if (std::abs(d[k].v) < 1e-15) continue;
    for (double side : {-1.0, 1.0}) {
      const double t = (side * size[k] - o[k].v) / d[k].v;
      const V at = o + d * S(t);
      const int i = (k + 1) % 3, j = (k + 2) % 3;
      if (std::abs(at[i].v) > size[i] || std::abs(at[j].v) > size[j]) continue;
      V n = vec(0, 0, 0);
      n[k] = S(side);
      nearer(best, t, n);
    }
  }
}

// The walls of a height field, from its zero level up to the interpolated rim, and the box below that level.
template <class T> void ray_hfield_solid(const Model<T>& m, int h, const V& o, const V& d, Hit& best) {
  const int nr = m.hfield_nrow[h], nc = m.hfield_ncol[h];
  const T *size = m.hfield_size + 4 * h, *data = m.hfield_data + m.hfield_adr[h];
  const double base[3] = {double(size[0]), double(size[1]), 0.5 * double(size[3])};
  ray_box(o + vec(0, 0, base[2]), d, base, best);
  for (int k = 0; k < 2; ++k) {
    if (std::abs(d[k].v) < 1e-15) continue;
    const int along = 1 - k, n = along == 0 ? nc : nr;
    for (double side : {-1.0, 1.0}) {
      const double t = (side * size[k] - o[k].v) / d[k].v;
      const V at = o + d * S(t);
      const double cell = (at[along].v + size[along]) * (n - 1) / (2.0 * size[along]);
      if (cell < 0 || cell > n - 1 || at.z.v < 0) continue;
      const int i = std::min(n - 2, int(cell)), rim = side < 0 ? 0 : (k == 0 ? nc : nr) - 1;
      auto height = [&](int j) { return double(k == 0 ? data[j * nc + rim] : data[rim * nc + j]) * size[2]; };
      if (at.z.v > height(i) + (cell - i) * (height(i + 1) - height(i))) continue;
      V normal = vec(0, 0, 0);
      normal[k] = S(side);
      nearer(best, t, normal);
    }
  }
}

template <class T> void ray_hfield(const Model<T>& m, int h, const V& o, const V& d, Hit& best) {
  ray_hfield_solid(m, h, o, d, best);
  const int nr = m.hfield_nrow[h], nc = m.hfield_ncol[h];
  const T *size = m.hfield_size + 4 * h, *data = m.hfield_data + m.hfield_adr[h];
  const double dx = 2.0 * size[0] / (nc - 1), dy = 2.0 * size[1] / (nr - 1);
  double t0 = 0, t1 = 1e30;  // part of the ray over the field
  for (int k = 0; k < 2; ++k) {
    if (std::abs(d[k].v) < 1e-15) {
      if (std::abs(o[k].v) > size[k]) return;
      continue;
    }
    double a = (-double(size[k]) - o[k].v) / d[k].v, b = (double(size[k]) - o[k].v) / d[k].v;
    if (a > b) std::swap(a, b);
    t0 = std::fmax(t0, a);
    t1 = std::fmin(t1, b);
  }
  if (t0 > t1) return;
  auto at = [&](int r, int c) { return vec(c * dx - size[0], r * dy - size[1], double(data[r * nc + c]) * size[2]); };
  auto column = [&](double x) { return int(std::floor((x + size[0]) / dx)); };
  const V from = o + d * S(t0), to = o + d * S(t1 > 1e29 ? t0 : t1);
  // one cell more to each side: a ray along an edge belongs to both cells
  const int r0 = std::max(0, int(std::floor((std::fmin(from.y.v, to.y.v) + size[1]) / dy)) - 1), r1 = std::min(nr - 2, int(std::floor((std::fmax(from.y.v, to.y.v) + size[1]) / dy)) + 1);
  for (int r = r0; r <= r1; ++r) {  // the cells of a row of the grid that the ray crosses
    double ta = t0, tb = t1 > 1e29 ? t0 : t1;
    if (std::abs(d.y.v) > 1e-15) {
      double a = (r * dy - size[1] - o.y.v) / d.y.v, b = ((r + 1) * dy - size[1] - o.y.v) / d.y.v;
      if (a > b) std::swap(a, b);
      ta = std::clamp(a, ta, tb);
      tb = std::clamp(b, ta, tb);
    }
    const int ca = column(o.x.v + d.x.v * ta), cb = column(o.x.v + d.x.v * tb);
    for (int c = std::max(0, std::min(ca, cb) - 1), last = std::min(nc - 2, std::max(ca, cb) + 1); c <= last; ++c) {
      ray_triangle(o, d, at(r, c), at(r, c + 1), at(r + 1, c + 1), best);
      ray_triangle(o, d, at(r, c), at(r + 1, c + 1), at(r + 1, c), best);
    }
  }
}

// Origin and direction in the geom's frame.
template <class T> Hit ray_local(const Model<T>& m, int type, const T* gsize, int dataid, const V& o, const V& d) {
  Hit best;
  const double size[3] = {double(gsize[0]), double(gsize[1]), double(gsize[2])};
  switch (type) {
    case kPlane: {
      if (d.z.v > -1e-15) break;
      const double t = -o.z.v / d.z.v;
      const V at = o + d * S(t);
      if ((size[0] <= 0 || std::abs(at.x.v) <= size[0]) && (size[1] <= 0 || std::abs(at.y.v) <= size[1])) nearer(best, t, vec(0, 0, 1));
      break;
    }
    case kSphere: ray_sphere(o, d, vec(0, 0, 0), size[0], -1e300, 1e300, best); break;
    case kCapsule:
      ray_tube(o, d, size[0], size[1], best);
      ray_sphere(o, d, vec(0, 0, size[1]), size[0], size[1], 1e300, best);
      ray_sphere(o, d, vec(0, 0, -size[1]), size[0], -1e300, -size[1], best);
      break;
    case kEllipsoid: {
      const V so = vec(o.x.v / size[0], o.y.v / size[1], o.z.v / size[2]), sd = vec(d.x.v / size[0], d.y.v / size[1], d.z.v / size[2]);
      ray_sphere(so, sd, vec(0, 0, 0), 1, -1e300, 1e300, best);
      best.normal = normalized(vec(best.normal.x.v / size[0], best.normal.y.v / size[1], best.normal.z.v / size[2]));
      break;
    }
    case kCylinder:
      ray_tube(o, d, size[0], size[1], best);
      if (std::abs(d.z.v) > 1e-15)
        for (double side : {-1.0, 1.0}) {
          const double t = (side * size[1] - o.z.v) / d.z.v;
          const V at = o + d * S(t);
          if (at.x.v * at.x.v + at.y.v * at.y.v <= size[0] * size[0]) nearer(best, t, vec(0, 0, side));
        }
      break;
    case kBox: ray_box(o, d, size, best); break;
    case kMesh: {
      const T* v = m.mesh_trivert + 3 * m.mesh_trivertadr[dataid];
      auto at = [&](int i) { return vec(v[3 * i], v[3 * i + 1], v[3 * i + 2]); };
      for (int f = m.mesh_triadr[dataid], e = f + m.mesh_trinum[dataid]; f < e; ++f)
        ray_triangle(o, d, at(m.mesh_tri[3 * f]), at(m.mesh_tri[3 * f + 1]), at(m.mesh_tri[3 * f + 2]), best);
      break;
    }
    case kHField: ray_hfield(m, dataid, o, d, best); break;
    default: break;
  }
  return best;
}

struct SceneHit { double t = -1; int geom = -1; V normal = {S(0), S(0), S(0)}; };

// Nearest geom along d from o in lane l; geoms of exclude_body and invisible ones are passed through.
template <class P> SceneHit ray_scene(const Model<typename P::Scalar>& m, const Work<P>& w, int l, const V& o, const V& d, int exclude_body) {
  SceneHit best;
  const double len = norm(d).v;
  if (len < 1e-300) return best;
  for (int g = 0; g < m.ngeom; ++g) {
    if (m.geom_bodyid[g] == exclude_body || !m.geom_visible[g]) continue;
    V c, lo;
    Mat3<S> rot;
    for (int k = 0; k < 3; ++k) c[k] = S(double(v3(w.geom_xpos, g)[k][l]));
    const V to = c - o;
    const double r = double(m.geom_rbound[g]), along = dotd(to, d) / len;
    if (r > 0 && (along < -r || dotd(to, to) - along * along > r * r || (best.t >= 0 && along - r > best.t * len))) continue;
    for (int k = 0; k < 9; ++k) rot.m[k] = S(double(m9(w.geom_xmat, g).m[k][l]));
    lo = mul_t(rot, o - c);
    const Hit h = ray_local(m, m.geom_type[g], m.geom_size + 3 * g, m.geom_dataid[g], lo, mul_t(rot, d));
    if (h.t >= 0 && (best.t < 0 || h.t < best.t)) best = {h.t, g, mul(rot, h.normal)};
  }
  return best;
}

}  // namespace R2S_ISA
