// SPDX-License-Identifier: Apache-2.0
// Convex shapes for the general narrow phase: support points, and the face, edge or vertex that faces a direction.
// Scalar double code, called lane by lane: branches differ between worlds, and float is too coarse for it.
#pragma once
#include "tendon.hpp"

namespace R2S_ISA {

using S = Pack<double, 1>;
using V = Vec3<S>;
R2S_INLINE V vec(double x, double y, double z) { return {S(x), S(y), S(z)}; }
R2S_INLINE double dotd(const V& a, const V& b) { return dot(a, b).v; }

constexpr int kMaxFeature = 64;       // most vertices of a face that is clipped
constexpr int kCapSides = 8;          // the polygon that stands for a cylinder's cap in clipping
constexpr double kEdgeTilt = 0.05;    // a capsule or cylinder side within this sine of lying flat touches along its length
constexpr double kFaceAlign = 0.9995; // cosine above which the contact normal is taken to be that of a face

template <class T> struct Shape {
  int type;
  double size[3];
  double radius;              // spheres and capsules: a core inflated by this
  V pos;
  Mat3<S> rot;
  const T* vert;              // mesh hulls: vertices, faces, neighbours
  int nvert, nface;
  const int *face_adr, *face_num, *face_vert, *near_adr, *near;
  const T* face_normal;
  V prism[6];                 // height-field cell: three points on top, three below (hfield frame)
};

struct Feature {
  int n = 0, id[kMaxFeature];
  V p[kMaxFeature];
  V normal;                   // outward, for faces
  bool face = false;
};

template <class T> R2S_INLINE V mesh_vertex(const Shape<T>& s, int i) { return vec(s.vert[3 * i], s.vert[3 * i + 1], s.vert[3 * i + 2]); }

constexpr int kPrism = 100;  // Shape::type of a height-field cell

template <class T> int mesh_support(const Shape<T>& s, const V& d, int& hint) {
  int best = hint;
  double top = dotd(mesh_vertex(s, best), d);
  if (s.nvert <= 16) {
    for (int i = 0; i < s.nvert; ++i) {
      const double x = dotd(mesh_vertex(s, i), d);
      if (x > top) { top = x; best = i; }
    }
  } else {
    for (bool climbed = true; climbed;) {
      climbed = false;
      for (const int* n = s.near + s.near_adr[best]; *n >= 0; ++n) {
        const double x = dotd(mesh_vertex(s, *n), d);
        if (x > top) { top = x; best = *n; climbed = true; break; }
      }
    }
  }
  hint = best;
  return best;
}

// Farthest point of the core (without its radius) along d, in the shape's frame.
template <class T> V local_support(const Shape<T>& s, const V& d, int& hint) {
  auto sign = [](double x, double y) { return x >= 0 ? y : -y; };
  switch (s.type) {
    case kCapsule: return vec(0, 0, sign(d.z.v, s.size[1]));
    case kBox: return vec(sign(d.x.v, s.size[0]), sign(d.y.v, s.size[1]), sign(d.z.v, s.size[2]));
    case kCylinder: {
      const double n = std::hypot(d.x.v, d.y.v), k = n > 1e-14 ? s.size[0] / n : 0;
      return vec(d.x.v * k, d.y.v * k, sign(d.z.v, s.size[1]));
    }
    case kEllipsoid: {
      const double a = s.size[0] * d.x.v, b = s.size[1] * d.y.v, c = s.size[2] * d.z.v, n = std::sqrt(a * a + b * b + c * c);
      if (n < 1e-300) return vec(0, 0, s.size[2]);
      return vec(s.size[0] * a / n, s.size[1] * b / n, s.size[2] * c / n);
    }
    case kMesh: return mesh_vertex(s, mesh_support(s, d, hint));
    case kPrism: {
      int best = 0;
      for (int i = 1; i < 6; ++i)
        if (dotd(s.prism[i], d) > dotd(s.prism[best], d)) best = i;
      return s.prism[best];
    }
    default: return vec(0, 0, 0);
  }
}

template <class T> V support(const Shape<T>& s, const V& d, int& hint) { return mul(s.rot, local_support(s, mul_t(s.rot, d), hint)) + s.pos; }

inline void push(Feature& f, const V& p, int id) {
  if (f.n >= kMaxFeature) return;
  f.p[f.n] = p;
  f.id[f.n++] = id;
}

template <class T> void polygon_feature(const Shape<T>& s, const V& d, Feature& f) {
  if (s.type == kBox) {
    const double a[3] = {std::abs(d.x.v), std::abs(d.y.v), std::abs(d.z.v)};
    const int k = a[0] > a[1] ? (a[0] > a[2] ? 0 : 2) : (a[1] > a[2] ? 1 : 2), i = (k + 1) % 3, j = (k + 2) % 3;
    const double sg = d[k].v >= 0 ? 1 : -1;
    f.normal = vec(0, 0, 0);
    f.normal[k] = S(sg);
    f.face = true;
    const double u[4] = {1, -1, -1, 1}, v[4] = {1, 1, -1, -1};
    for (int c = 0; c < 4; ++c) {
      V p;
      p[k] = S(sg * s.size[k]);
      p[i] = S(u[c] * s.size[i]);
      p[j] = S(sg * v[c] * s.size[j]);
      push(f, p, (p.x.v > 0) | (p.y.v > 0) << 1 | (p.z.v > 0) << 2);
    }
  } else if (s.type == kMesh) {
    int best = 0;
    double top = -2;
    for (int i = 0; i < s.nface; ++i) {
      const double x = dotd(vec(s.face_normal[3 * i], s.face_normal[3 * i + 1], s.face_normal[3 * i + 2]), d);
      if (x > top) { top = x; best = i; }
    }
    f.normal = vec(s.face_normal[3 * best], s.face_normal[3 * best + 1], s.face_normal[3 * best + 2]);
    f.face = true;
    for (int i = 0; i < s.face_num[best]; ++i) {
      const int v = s.face_vert[s.face_adr[best] + i];
      push(f, mesh_vertex(s, v), v);
    }
  } else {  // prism: its top triangle, else the nearest vertex
    const V n = normalized(cross(s.prism[1] - s.prism[0], s.prism[2] - s.prism[0]));
    f.normal = n;
    f.face = true;
    for (int i = 0; i < 3; ++i) push(f, s.prism[i], i);
  }
}

// What of the shape faces direction d (world): a face, an edge, or a point; world coordinates, radius not included.
template <class T> void facing(const Shape<T>& s, const V& dworld, Feature& f) {
  const V d = mul_t(s.rot, dworld);
  f.n = 0;
  f.face = false;
  const double flat = std::hypot(d.x.v, d.y.v);
  if (s.type == kBox || s.type == kMesh || s.type == kPrism) {
    polygon_feature(s, d, f);
  } else if (s.type == kCylinder && std::abs(d.z.v) > std::sqrt(0.5)) {
    const double z = d.z.v > 0 ? s.size[1] : -s.size[1];
    for (int i = 0; i < kCapSides; ++i) {
      const double t = (d.z.v > 0 ? i : kCapSides - i) * (6.28318530717958647692 / kCapSides);
      push(f, vec(s.size[0] * std::cos(t), s.size[0] * std::sin(t), z), i + (d.z.v > 0 ? 16 : 0));
    }
    f.face = true;
    f.normal = vec(0, 0, d.z.v > 0 ? 1 : -1);
  } else if ((s.type == kCapsule || s.type == kCylinder) && std::abs(d.z.v) < kEdgeTilt) {
    const double r = s.type == kCylinder ? s.size[0] / flat : 0;
    push(f, vec(d.x.v * r, d.y.v * r, -s.size[1]), 0);
    push(f, vec(d.x.v * r, d.y.v * r, s.size[1]), 1);
  } else {
    int hint = 0;
    push(f, local_support(s, d, hint), s.type == kCapsule ? 2 + (d.z.v > 0) : 4);
  }
  for (int i = 0; i < f.n; ++i) f.p[i] = mul(s.rot, f.p[i]) + s.pos;
  if (f.face) f.normal = mul(s.rot, f.normal);
}

}  // namespace R2S_ISA
