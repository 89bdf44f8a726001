// SPDX-License-Identifier: Apache-2.0
// Which geoms may touch (broad phase), where they touch (narrow phase), and the contact slots of the block.
#pragma once
#include "primitives.hpp"

namespace R2S_ISA {

constexpr double kRigidReach = 1e-3;  // [m] rigid contacts exist this early; they push only when the gap would close

template <class P> Shape<typename P::Scalar> make_shape(const Model<typename P::Scalar>& m, const Work<P>& w, int g, int l) {
  using T = typename P::Scalar;
  Shape<T> s{};
  s.type = m.geom_type[g];
  for (int k = 0; k < 3; ++k) {
    s.size[k] = m.geom_size[3 * g + k];
    s.pos[k] = S(double(v3(w.geom_xpos, g)[k][l]));
  }
  for (int k = 0; k < 9; ++k) s.rot.m[k] = S(double(m9(w.geom_xmat, g).m[k][l]));
  s.radius = s.type == kSphere || s.type == kCapsule ? s.size[0] : 0;
  if (s.type == kMesh) {
    const int d = m.geom_dataid[g], f = m.mesh_faceadr[d];
    s.vert = m.mesh_vert + 3 * m.mesh_vertadr[d];
    s.nvert = m.mesh_vertnum[d];
    s.nface = m.mesh_facenum[d];
    s.face_adr = m.face_vertadr + f;
    s.face_num = m.face_vertnum + f;
    s.face_vert = m.face_vert;
    s.face_normal = m.face_normal + 3 * f;
    s.near_adr = m.neighbour_adr + m.mesh_vertadr[d];
    s.near = m.neighbour;
  }
  return s;
}

template <class T> void plane_mesh(const Shape<T>& plane, const Shape<T>& mesh, double margin, PointList& out) {
  const V n = plane.rot.col(2), local = mul_t(mesh.rot, n);
  const double level = dotd(n, plane.pos) - dotd(n, mesh.pos);
  for (int i = 0; i < mesh.nvert; ++i) {
    const V v = mesh_vertex(mesh, i);
    const double d = dotd(local, v) - level;
    if (d < margin) out.add({d, mul(mesh.rot, v) + mesh.pos - n * S(0.5 * d), n, i});
  }
}

template <class T> void convex_pair(const Shape<T>& a, const Shape<T>& b, double margin, PointList& out) {
  const Separation sep = separation(a, b);
  if (sep.valid) manifold(a, b, sep, margin, out);
}

// A height field as the triangular prisms under its cells that reach into the other geom's bounds.
template <class T> void hfield_pair(const Model<T>& m, int hgeom, const Shape<T>& field, const Shape<T>& geom, double margin, PointList& out) {
  const int h = m.geom_dataid[hgeom], nr = m.hfield_nrow[h], nc = m.hfield_ncol[h];
  const T *size = m.hfield_size + 4 * h, *data = m.hfield_data + m.hfield_adr[h];
  double lo[3], hi[3];
  for (int k = 0; k < 3; ++k) {
    int hint = 0;
    const V e = field.rot.col(k);
    hi[k] = dotd(mul_t(field.rot, support(geom, e, hint) - field.pos), vec(k == 0, k == 1, k == 2)) + geom.radius + margin;
    lo[k] = dotd(mul_t(field.rot, support(geom, -e, hint) - field.pos), vec(k == 0, k == 1, k == 2)) - geom.radius - margin;
  }
  const double dx = 2.0 * size[0] / (nc - 1), dy = 2.0 * size[1] / (nr - 1);
  const int c0 = std::max(0, int(std::floor((lo[0] + size[0]) / dx))), c1 = std::min(nc - 2, int(std::floor((hi[0] + size[0]) / dx)));
  const int r0 = std::max(0, int(std::floor((lo[1] + size[1]) / dy))), r1 = std::min(nr - 2, int(std::floor((hi[1] + size[1]) / dy)));
  Shape<T> cell{};
  cell.type = kPrism;
  cell.rot = field.rot;
  cell.pos = field.pos;
  for (int r = r0; r <= r1; ++r)
    for (int q = c0; q <= c1; ++q)
      for (int half = 0; half < 2; ++half) {
        const int ij[2][3][2] = {{{r, q}, {r, q + 1}, {r + 1, q + 1}}, {{r, q}, {r + 1, q + 1}, {r + 1, q}}};
        double top = -1e300;
        for (int i = 0; i < 3; ++i) {
          const int rr = ij[half][i][0], qq = ij[half][i][1];
          const double z = double(data[rr * nc + qq]) * size[2];
          top = std::fmax(top, z);
          cell.prism[i] = vec(qq * dx - size[0], rr * dy - size[1], z);
          cell.prism[i + 3] = vec(qq * dx - size[0], rr * dy - size[1], -double(size[3]));
        }
        if (top < lo[2]) continue;
        PointList part;
        convex_pair(cell, geom, margin, part);
        const V up = mul(field.rot, normalized(cross(cell.prism[1] - cell.prism[0], cell.prism[2] - cell.prism[0])));
        for (int i = 0; i < part.n; ++i) {
          if (dotd(part.p[i].n, up) < 0.2) continue;  // a wall between two cells is no surface
          bool twin = false;
          for (int k = 0; k < out.n; ++k) twin = twin || norm(out.p[k].pos - part.p[i].pos).v < 1e-5;
          if (twin) continue;
          part.p[i].id = mix(part.p[i].id, 2 * (r * nc + q) + half);
          out.add(part.p[i]);
        }
      }
}

template <class P> void collide_scalar(const Model<typename P::Scalar>& m, const Work<P>& w, int g1, int g2, int l, double margin, PointList& out) {
  using T = typename P::Scalar;
  const Shape<T> a = make_shape(m, w, g1, l), b = make_shape(m, w, g2, l);
  if (a.type == kPlane) plane_mesh(a, b, margin, out);
  else if (a.type == kHField) hfield_pair(m, g1, a, b, margin, out);
  else if (a.type == kBox && b.type == kBox) box_box(a, b, margin, out);
  else convex_pair(a, b, margin, out);
  reduce(out, kManifold);
}

template <class P> void narrow_phase(const Model<typename P::Scalar>& m, Work<P>& w, int g1, int g2, const P& margin, const typename P::M& on, PairPoints<P>& o) {
  using T = typename P::Scalar;
  const GeomView<P> a{v3(w.geom_xpos, g1), m9(w.geom_xmat, g1), m.geom_size + 3 * g1}, b{v3(w.geom_xpos, g2), m9(w.geom_xmat, g2), m.geom_size + 3 * g2};
  if (collide_lanes(m.geom_type[g1], m.geom_type[g2], a, b, margin, on, o)) return;
  for (int k = 0; k < kManifold; ++k) o.point(k, typename P::M(false), P(0), zero3<P>(), Vec3<P>{P(0), P(0), P(1)}, 0);
  o.n = 0;
  for (int l = 0; l < P::width; ++l) {
    if (!on[l]) continue;
    PointList list;
    collide_scalar(m, w, g1, g2, l, double(margin[l]), list);
    for (int k = 0; k < list.n && k < kManifold; ++k) {
      const Point& p = list.p[k];
      o.dist[k].set(l, T(p.dist));
      for (int i = 0; i < 3; ++i) {
        o.pos[k][i].set(l, T(p.pos[i].v));
        o.normal[k][i].set(l, T(p.n[i].v));
      }
      o.id[k][l] = p.id;
      o.on[k].set(l, true);
      if (k >= o.n) o.n = k + 1;
    }
  }
}

// Lanes in which the bounds of two geoms come within margin.
template <class P> typename P::M bounds_touch(const Model<typename P::Scalar>& m, const Work<P>& w, int g1, int g2, const P& margin) {
  const Vec3<P> c2 = v3(w.geom_xpos, g2);
  const P r2 = P(m.geom_rbound[g2]);
  if (m.geom_type[g1] == kPlane) return dot(m9(w.geom_xmat, g1).col(2), c2 - v3(w.geom_xpos, g1)) - r2 < margin;
  const Vec3<P> d = c2 - v3(w.geom_xpos, g1);
  const P reach = r2 + P(m.geom_rbound[g1]) + margin;
  return dot(d, d) < reach * reach;
}

// Lanes in which no face axis of the geoms' oriented bounding boxes parts them by margin.
template <class P> typename P::M boxes_touch(const Model<typename P::Scalar>& m, const Work<P>& w, int g1, int g2, const P& margin) {
  const Mat3<P>&ra = m9(w.geom_xmat, g1), &rb = m9(w.geom_xmat, g2);
  const auto *a = m.geom_aabb + 6 * g1, *b = m.geom_aabb + 6 * g2;
  const Vec3<P> d = mul(rb, vec3<P>(b)) + v3(w.geom_xpos, g2) - mul(ra, vec3<P>(a)) - v3(w.geom_xpos, g1);
  typename P::M touch(true);
  for (int i = 0; i < 3; ++i) {
    P sa = P(a[3 + i]) + margin, sb = P(b[3 + i]) + margin;
    for (int j = 0; j < 3; ++j) {
      sa = fma(abs(dot(ra.col(i), rb.col(j))), P(b[3 + j]), sa);
      sb = fma(abs(dot(ra.col(j), rb.col(i))), P(a[3 + j]), sb);
    }
    touch = touch & (abs(dot(d, ra.col(i))) <= sa) & (abs(dot(d, rb.col(i))) <= sb);
  }
  return touch;
}

// solref, solimp, friction of a pair: MuJoCo's mixing rules.
template <class P> void mix_parameters(const Model<typename P::Scalar>& m, const Work<P>& w, Contact<P>& c) {
  using T = typename P::Scalar;
  const int g1 = c.geom1, g2 = c.geom2, k = c.pairid;
  if (k >= 0) {
    c.dim = m.pair_dim[k];
    for (int i = 0; i < 2; ++i) c.solref[i] = P(m.pair_solref[2 * k + i]);
    for (int i = 0; i < 5; ++i) c.solimp[i] = P(m.pair_solimp[5 * k + i]);
    for (int i = 0; i < 5; ++i) c.friction[i] = P(m.pair_friction[5 * k + i]);
    return;
  }
  T mixing = T(0.5);
  const int p1 = m.geom_priority[g1], p2 = m.geom_priority[g2];
  if (p1 != p2) {
    mixing = p1 > p2 ? T(1) : T(0);
    c.dim = m.geom_condim[p1 > p2 ? g1 : g2];
  } else {
    c.dim = std::max(m.geom_condim[g1], m.geom_condim[g2]);
    const T s1 = m.geom_solmix[g1], s2 = m.geom_solmix[g2], tiny = kTiny<T>;
    if (s1 >= tiny && s2 >= tiny) mixing = s1 / (s1 + s2);
    else if (s1 < tiny && s2 < tiny) mixing = T(0.5);
    else mixing = s1 < tiny ? T(0) : T(1);
  }
  const T *r1 = m.geom_solref + 2 * g1, *r2 = m.geom_solref + 2 * g2;
  for (int i = 0; i < 2; ++i) {
    const bool standard = r1[0] > 0 && r2[0] > 0;
    c.solref[i] = P(p1 != p2 ? (p1 > p2 ? r1[i] : r2[i]) : standard ? mixing * r1[i] + (1 - mixing) * r2[i] : std::fmin(r1[i], r2[i]));
  }
  for (int i = 0; i < 5; ++i) c.solimp[i] = P(mixing * m.geom_solimp[5 * g1 + i] + (1 - mixing) * m.geom_solimp[5 * g2 + i]);
  P f[3];
  for (int i = 0; i < 3; ++i) {
    const P f1 = w.geom_friction[3 * g1 + i], f2 = w.geom_friction[3 * g2 + i];
    f[i] = p1 != p2 ? (p1 > p2 ? f1 : f2) : max(f1, f2);
  }
  c.friction[0] = c.friction[1] = f[0];
  c.friction[2] = f[1];
  c.friction[3] = c.friction[4] = f[2];
}

template <class P> void test_pair(const Model<typename P::Scalar>& m, Work<P>& w, int g1, int g2, int pairid) {
  const P margin = P(pairid >= 0 ? m.pair_margin[pairid] : m.geom_margin[g1] + m.geom_margin[g2]);
  const P early = P(w.rigid ? typename P::Scalar(kRigidReach) : typename P::Scalar(0));
  const P reach = early + margin + P(pairid >= 0 ? m.pair_gap[pairid] : m.geom_gap[g1] + m.geom_gap[g2]);
  typename P::M on = bounds_touch(m, w, g1, g2, reach) & w.live;
  if (!any(on)) return;
  if (m.geom_type[g1] != kPlane && m.geom_type[g2] >= kCapsule) {
    on = on & boxes_touch(m, w, g1, g2, reach);
    if (!any(on)) return;
  }
  PairPoints<P> o;
  narrow_phase(m, w, g1, g2, reach, on, o);
  for (int k = 0; k < o.n; ++k) {
    if (!any(o.on[k])) continue;
    if (w.ncon >= w.max_contacts) {
      w.overflow = true;
      return;
    }
    Contact<P>& c = w.contact[w.ncon++];
    c.geom1 = g1;
    c.geom2 = g2;
    c.pairid = pairid;
    for (int l = 0; l < P::width; ++l) c.feature[l] = o.on[k][l] ? o.id[k][l] : -1;
    c.present = o.on[k];
    c.dist = o.dist[k];
    c.margin = margin;
    c.active = o.on[k] & (c.dist < margin + early);
    c.pos = o.pos[k];
    c.n = o.normal[k];
    tangents(c.n, c.t1, c.t2);
    mix_parameters(m, w, c);
    for (P& x : c.lam) x = P(0);
    c.impact = P(0);
  }
}

template <class T> bool may_collide(const Model<T>& m, int g1, int g2) {
  if (!((m.geom_contype[g1] & m.geom_conaffinity[g2]) | (m.geom_contype[g2] & m.geom_conaffinity[g1]))) return false;
  if (m.geom_type[g1] <= kHField && m.geom_type[g2] <= kHField) return false;
  const int b1 = std::min(m.geom_bodyid[g1], m.geom_bodyid[g2]), b2 = std::max(m.geom_bodyid[g1], m.geom_bodyid[g2]);
  const int w1 = m.body_weldid[b1], w2 = m.body_weldid[b2];
  if (w1 == w2) return false;
  if (!(m.disableflags & kNoFilterParent) && w1 && w2 && (m.body_weldid[m.body_parentid[w1]] == w2 || m.body_weldid[m.body_parentid[w2]] == w1)) return false;
  for (int i = m.exclude_adr[b1]; i < m.exclude_adr[b1 + 1]; ++i)
    if (m.exclude_body[i] == b2) return false;
  for (int i = 0; i < m.npair; ++i)
    if ((m.pair_geom1[i] == g1 && m.pair_geom2[i] == g2) || (m.pair_geom1[i] == g2 && m.pair_geom2[i] == g1)) return false;
  return true;
}

// Bounds of a geom over all lanes: a world's neighbours may add candidates, never contacts.
template <class P> void block_bounds(const Model<typename P::Scalar>& m, Work<P>& w, int g) {
  using T = typename P::Scalar;
  T* box = w.aabb + 6 * g;
  for (int k = 0; k < 3; ++k) {
    const P& c = v3(w.geom_xpos, g)[k];
    P reach(m.geom_rbound[g]);
    if (m.geom_type[g] != kPlane) {  // the oriented box's extent along axis k, about its centre
      const Mat3<P>& r = m9(w.geom_xmat, g);
      const T* a = m.geom_aabb + 6 * g;
      reach = min(reach, abs(r.m[3 * k]) * P(std::abs(a[0]) + a[3]) + abs(r.m[3 * k + 1]) * P(std::abs(a[1]) + a[4]) + abs(r.m[3 * k + 2]) * P(std::abs(a[2]) + a[5]));
    }
    const T pad = m.geom_margin[g] + m.geom_gap[g];
    T lo = T(1e30), hi = T(-1e30);
    for (int l = 0; l < P::width; ++l) {
      if (!w.live[l]) continue;
      lo = std::min(lo, c[l] - reach[l]);
      hi = std::max(hi, c[l] + reach[l]);
    }
    const bool unbounded = m.geom_type[g] == kPlane;
    box[k] = unbounded ? T(-1e30) : lo - pad;
    box[3 + k] = unbounded ? T(1e30) : hi + pad;
  }
}

// Candidate pair of geoms whose bounds overlap.
template <class P> void candidate(const Model<typename P::Scalar>& m, Work<P>& w, int g, int h) {
  const auto *a = w.aabb + 6 * g, *b = w.aabb + 6 * h;
  if (a[0] > b[3] || b[0] > a[3] || a[1] > b[4] || b[1] > a[4] || a[2] > b[5] || b[2] > a[5]) return;
  if (!may_collide(m, std::min(g, h), std::max(g, h))) return;
  if (w.npairs >= w.max_pairs) {
    w.overflow = true;
    return;
  }
  w.pairs[w.npairs++] = std::min(g, h) * m.ngeom + std::max(g, h);
}

// Units of the sweep: the geoms of a tree, which are adjacent, or one static geom; first geoms in w.unit, bounds in w.unit_box.
template <class P> int sweep_units(const Model<typename P::Scalar>& m, Work<P>& w) {
  int n = 0, last = -1;
  for (int g = 0; g < m.ngeom; ++g) {
    block_bounds(m, w, g);
    const int tree = m.body_treeid[m.geom_bodyid[g]];
    const auto* box = w.aabb + 6 * g;
    if (tree < 0 || tree != last) {
      w.unit[n] = g;
      std::copy(box, box + 6, w.unit_box + 6 * n++);
    } else {
      auto* all = w.unit_box + 6 * (n - 1);
      for (int k = 0; k < 3; ++k) {
        all[k] = std::min(all[k], box[k]);
        all[3 + k] = std::max(all[3 + k], box[3 + k]);
      }
    }
    last = tree;
  }
  w.unit[n] = m.ngeom;
  return n;
}

// Sweep and prune of trees along x, then of their geoms: pairs in rising (first geom, second geom), whatever the order.
template <class P> void sweep(const Model<typename P::Scalar>& m, Work<P>& w) {
  const int n = sweep_units(m, w);
  if (w.order[0] == w.order[n - 1])
    for (int u = 0; u < n; ++u) w.order[u] = u;
  for (int i = 1; i < n; ++i) {  // nearly sorted from the last step
    const int u = w.order[i];
    int j = i - 1;
    for (; j >= 0 && w.unit_box[6 * w.order[j]] > w.unit_box[6 * u]; --j) w.order[j + 1] = w.order[j];
    w.order[j + 1] = u;
  }
  w.npairs = 0;
  for (int i = 0; i < n; ++i) {
    const int u = w.order[i];
    const auto* a = w.unit_box + 6 * u;
    for (int g = w.unit[u]; g < w.unit[u + 1]; ++g)
      for (int h = g + 1; h < w.unit[u + 1]; ++h) candidate(m, w, g, h);
    for (int j = i + 1; j < n && w.unit_box[6 * w.order[j]] <= a[3]; ++j) {
      const int v = w.order[j];
      const auto* b = w.unit_box + 6 * v;
      if (a[1] > b[4] || b[1] > a[4] || a[2] > b[5] || b[2] > a[5]) continue;
      for (int g = w.unit[u]; g < w.unit[u + 1]; ++g)
        for (int h = w.unit[v]; h < w.unit[v + 1]; ++h) candidate(m, w, g, h);
    }
  }
  std::sort(w.pairs, w.pairs + w.npairs);
}

template <class P> void collide(const Model<typename P::Scalar>& m, Work<P>& w) {
  w.ncon = 0;
  w.overflow = false;
  if (m.disableflags & (kNoContact | kNoConstraint)) return;
  for (int i = 0; i < m.nstaticpair; ++i) test_pair(m, w, m.static_geom1[i], m.static_geom2[i], m.static_pairid[i]);
  if (!m.dynamic_pairs || m.ngeom == 0) return;
  sweep(m, w);
  for (int i = 0; i < w.npairs; ++i) {
    int g1 = w.pairs[i] / m.ngeom, g2 = w.pairs[i] % m.ngeom;
    if (m.geom_type[g1] > m.geom_type[g2]) std::swap(g1, g2);
    test_pair(m, w, g1, g2, -1);
  }
}

}  // namespace R2S_ISA
