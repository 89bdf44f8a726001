// SPDX-License-Identifier: Apache-2.0
// The mixed complementarity problem of eq. (7) by projected Gauss-Seidel on the whitened velocity: prepare, warm-start,
// solve, store. Friction is a true cone: the tangential impulse of a contact is projected on the disc (ellipse) of radius
// mu times the present normal impulse; torsion and rolling likewise.
#pragma once
#include "rows.hpp"

namespace R2S_ISA {

constexpr double kFrictionFloor = 1e-10;  // a friction coefficient below is this: keeps scaled impulses finite
constexpr double kSamePlace = 0.01;       // [m] contact points of a pair closer than this may be one point with new features
constexpr int kLocalRounds = 4;            // of normal and friction within a sliding contact, a sweep
constexpr int kImpactsPerContact = 64;    // impacts a step and contact at most; then the rest is plastic

template <class P> R2S_INLINE void push_row(Work<P>& w, const int* pattern, const P* row, int n, const P& d) {
  for (int i = 0; i < n; ++i) {
    P& x = w.w[pattern[i]];
    x = fma(row[i], d, x);
  }
}

template <class P> R2S_INLINE P contact_velocity(const Work<P>& w, const ContactRow<P>& r, int k) {
  return row_dot(w.pattern + r.adr, w.value + r.vadr + k * r.num, r.num, w.w);
}
template <class P> R2S_INLINE void contact_push(Work<P>& w, const ContactRow<P>& r, int k, const P& d) {
  push_row(w, w.pattern + r.badr, w.value + r.bvadr + k * r.bnum, r.bnum, d);
}

// Impulse of an old contact, in the frame of the new one.
template <class P> void inherit(const Contact<P>& o, Contact<P>& c, const typename P::M& match) {
  if (!any(match)) return;
  c.lam[0] = select(match, o.lam[0], c.lam[0]);
  if (c.dim < 3 || o.dim != c.dim) return;
  const Vec3<P> tangent = o.t1 * o.lam[1] + o.t2 * o.lam[2];
  c.lam[1] = select(match, dot(c.t1, tangent), c.lam[1]);
  c.lam[2] = select(match, dot(c.t2, tangent), c.lam[2]);
  if (c.dim >= 4) c.lam[3] = select(match, o.lam[3], c.lam[3]);
  if (c.dim < 6) return;
  const Vec3<P> roll = o.t1 * o.lam[4] + o.t2 * o.lam[5];
  c.lam[4] = select(match, dot(c.t1, roll), c.lam[4]);
  c.lam[5] = select(match, dot(c.t2, roll), c.lam[5]);
}

// Impulses of the last step, found again by pair and feature, and expressed in the present frame.
template <class P> void warm_start_contacts(const State<P>& s, int block, Work<P>& w) {
  const Contact<P>* old = s.contact + std::size_t(block) * w.max_contacts;
  const int nold = s.ncon[block];
  int from = 0;
  for (int i = 0; i < w.ncon; ++i) {
    Contact<P>& c = w.contact[i];
    auto same = [&](int k) { return old[k].geom1 == c.geom1 && old[k].geom2 == c.geom2 && old[k].pairid == c.pairid; };
    if (i == 0 || w.contact[i - 1].geom1 != c.geom1 || w.contact[i - 1].geom2 != c.geom2 || w.contact[i - 1].pairid != c.pairid) {
      int k = from, steps = 0;  // both lists are in the same order of pairs, so the search goes on where it stopped
      while (steps < nold && !same(k % nold)) { ++k; ++steps; }
      if (steps < nold) from = k % nold;
      else continue;
    }
    typename P::M found(false);
    for (int k = from; k < nold && same(k); ++k) {
      typename P::M match(false);
      for (int l = 0; l < P::width; ++l) match.set(l, c.active[l] && old[k].active[l] && c.feature[l] == old[k].feature[l]);
      found = found | match;
      inherit(old[k], c, match);
    }
    if (all(found | !c.active)) continue;
    for (int l = 0; l < P::width; ++l) {  // a point whose features changed: the nearest point of the last step
      if (found[l] || !c.active[l]) continue;
      int best = -1;
      double nearest = kSamePlace * kSamePlace;
      for (int k = from; k < nold && same(k); ++k) {
        if (!old[k].active[l]) continue;
        double d2 = 0;
        for (int a = 0; a < 3; ++a) d2 += double(c.pos[a][l] - old[k].pos[a][l]) * double(c.pos[a][l] - old[k].pos[a][l]);
        if (d2 < nearest) { nearest = d2; best = k; }
      }
      if (best < 0) continue;
      typename P::M only(false);
      only.set(l, true);
      inherit(old[best], c, only);
    }
  }
}

template <class P> void warm_start(const Model<typename P::Scalar>& m, const State<P>& s, int block, Work<P>& w) {
  const bool cold = m.disableflags & kNoWarmStart;
  if (!cold) warm_start_contacts(s, block, w);
  const P* old = s.row_lam + std::size_t(block) * w.max_scalar_rows;
  for (int i = 0; i < w.nsrow; ++i) {
    ScalarRow<P>& r = w.srow[i];
    r.lam = cold ? P(0) : masked(r.active, clamp(old[r.id], r.lo, r.hi));
  }
}

// One row: lam <- clamp(lam - w_i / (A + C)). Returns the change of the row's velocity.
template <class P> P solve_scalar(Work<P>& w, ScalarRow<P>& r, const typename P::M& go) {
  const int* jp = w.pattern + r.adr;
  const P u = row_dot(jp, w.value + r.vadr, r.num, w.w);
  const P next = clamp(r.lam - (u + r.c * r.lam - r.zeta) / max(r.diag + r.c, P(kTiny<typename P::Scalar>)), r.lo, r.hi);
  const P d = masked(go & r.active, next - r.lam);
  r.lam += d;
  push_row(w, w.pattern + r.badr, w.value + r.bvadr, r.bnum, d);
  return abs(d) * r.diag;
}

// Two friction rows k, k+1 on the ellipse of half axes mu1, mu2 times limit: stick where that is inside, else one
// projected gradient step, whose fixed point opposes the sliding velocity exactly.
template <class P> P solve_disc(Work<P>& w, const ContactRow<P>& r, P* lam, int k, const P& mu1, const P& mu2, const P& a12, const P& step, const P& limit,
                                const typename P::M& go) {
  using T = typename P::Scalar;
  const P u1 = contact_velocity(w, r, k), u2 = contact_velocity(w, r, k + 1);
  const P m1 = max(mu1, P(T(kFrictionFloor))), m2 = max(mu2, P(T(kFrictionFloor)));
  const P det = max(r.a[k] * r.a[k + 1] - a12 * a12, P(T(1e-9)) * r.a[k] * r.a[k + 1]);
  P s1 = (lam[k] - (r.a[k + 1] * u1 - a12 * u2) / det) / m1, s2 = (lam[k + 1] - (r.a[k] * u2 - a12 * u1) / det) / m2;
  const auto stick = fma(s1, s1, s2 * s2) <= limit * limit;
  const P g1 = lam[k] / m1 - step * m1 * u1, g2 = lam[k + 1] / m2 - step * m2 * u2;
  const P len = sqrt(fma(g1, g1, g2 * g2));
  const P shrink = select(len > limit, limit / select(len > P(0), len, P(1)), P(1));
  const P d1 = masked(go, select(stick, s1, g1 * shrink) * m1 - lam[k]), d2 = masked(go, select(stick, s2, g2 * shrink) * m2 - lam[k + 1]);
  lam[k] += d1;
  lam[k + 1] += d2;
  contact_push(w, r, k, d1);
  contact_push(w, r, k + 1, d2);
  return max(abs(d1) * r.a[k], abs(d2) * r.a[k + 1]);
}

// Normal and tangents of one contact together, on its own 3x3 block: the sticking solution where that lies in the cone,
// else a few rounds of normal, then disc. Only the final change goes to w.
template <class P> P solve_point(Work<P>& w, const ContactRow<P>& r, Contact<P>& c, const typename P::M& go) {
  using T = typename P::Scalar;
  const P u0 = contact_velocity(w, r, 0) + r.c * c.lam[0] - r.zeta, u1 = contact_velocity(w, r, 1), u2 = contact_velocity(w, r, 2);
  const P m1 = max(c.friction[0], P(T(kFrictionFloor))), m2 = max(c.friction[1], P(T(kFrictionFloor)));
  const P* v = r.inverse;
  const P n0 = c.lam[0] - fma(v[0], u0, fma(v[1], u1, v[2] * u2));
  const P n1 = c.lam[1] - fma(v[1], u0, fma(v[3], u1, v[4] * u2));
  const P n2 = c.lam[2] - fma(v[2], u0, fma(v[4], u1, v[5] * u2));
  const P s1 = n1 / m1, s2 = n2 / m2;
  const auto stick = (n0 >= P(0)) & (fma(s1, s1, s2 * s2) <= n0 * n0);
  P l0 = n0, l1 = n1, l2 = n2;
  if (!all(stick | !go)) {
    P d0(0), t1 = c.lam[1], t2 = c.lam[2], z0 = c.lam[0];
    for (int round = 0; round < kLocalRounds; ++round) {
      const P e1 = t1 - c.lam[1], e2 = t2 - c.lam[2];
      const P vn = u0 + (r.a[0] + r.c) * d0 + r.a01 * e1 + r.a02 * e2;
      z0 = max(z0 - vn / (r.a[0] + r.c), P(0));
      d0 = z0 - c.lam[0];
      const P g1 = t1 / m1 - r.step * m1 * (u1 + r.a01 * d0 + r.a[1] * e1 + r.a12 * e2);
      const P g2 = t2 / m2 - r.step * m2 * (u2 + r.a02 * d0 + r.a12 * e1 + r.a[2] * e2);
      const P len = sqrt(fma(g1, g1, g2 * g2));
      const P shrink = select(len > z0, z0 / select(len > P(0), len, P(1)), P(1));
      t1 = g1 * shrink * m1;
      t2 = g2 * shrink * m2;
    }
    l0 = select(stick, l0, z0);
    l1 = select(stick, l1, t1);
    l2 = select(stick, l2, t2);
  }
  const P d0 = masked(go, l0 - c.lam[0]), d1 = masked(go, l1 - c.lam[1]), d2 = masked(go, l2 - c.lam[2]);
  c.lam[0] += d0;
  c.lam[1] += d1;
  c.lam[2] += d2;
  const int* bp = w.pattern + r.badr;
  const P* B = w.value + r.bvadr;
  for (int i = 0; i < r.bnum; ++i) {
    P& x = w.w[bp[i]];
    x = fma(B[i], d0, fma(B[r.bnum + i], d1, fma(B[2 * r.bnum + i], d2, x)));
  }
  return max(abs(d0) * r.a[0], max(abs(d1) * r.a[1], abs(d2) * r.a[2]));
}

template <class P> P solve_normal(Work<P>& w, const ContactRow<P>& r, Contact<P>& c, const typename P::M& go) {
  const P u = contact_velocity(w, r, 0);
  const P next = max(c.lam[0] - (u + r.c * c.lam[0] - r.zeta) / (r.a[0] + r.c), P(0));
  const P d = masked(go, next - c.lam[0]);
  c.lam[0] += d;
  contact_push(w, r, 0, d);
  return abs(d) * r.a[0];
}

template <class P> P solve_torsion(Work<P>& w, const ContactRow<P>& r, Contact<P>& c, const typename P::M& go) {
  const P bound = c.friction[2] * c.lam[0];
  const P d = masked(go, clamp(c.lam[3] - contact_velocity(w, r, 3) / r.a[3], -bound, bound) - c.lam[3]);
  c.lam[3] += d;
  contact_push(w, r, 3, d);
  return abs(d) * r.a[3];
}

template <class P> P solve_contact(Work<P>& w, const ContactRow<P>& r, const typename P::M& want) {
  Contact<P>& c = w.contact[r.slot];
  const auto go = want & r.active;
  if (!any(go)) return P(0);
  if (r.dim < 3) return solve_normal(w, r, c, go);
  P change = solve_point(w, r, c, go);
  if (r.dim >= 4) change = max(change, solve_torsion(w, r, c, go));
  if (r.dim >= 6) change = max(change, solve_disc(w, r, c.lam, 4, c.friction[3], c.friction[4], r.a45, r.step_roll, c.lam[0], go));
  return change;
}

// Impacts of stiff direct-form contacts, one after the other, the fastest approach first: each is u+ = -e u-, so energy
// never grows, and momentum travels through a row of touching bodies ball by ball.
template <class P> void impacts(Work<P>& w) {
  using T = typename P::Scalar;
  bool present = false;
  for (int i = 0; i < w.ncrow; ++i) present = present || any(w.crow[i].restitution > 0);
  if (!present) return;
  const P rest = w.impact_speed;
  for (int l = 0; l < P::width; ++l) {
    typename P::M only(false);
    only.set(l, true);
    for (int n = 0; n < kImpactsPerContact * w.ncrow; ++n) {
      int best = -1;
      T fastest = -rest[l];
      for (int i = 0; i < w.ncrow; ++i) {
        const ContactRow<P>& r = w.crow[i];
        if (!(r.restitution[l] > 0)) continue;
        const T u = contact_velocity(w, r, 0)[l];
        if (u < fastest) { fastest = u; best = i; }
      }
      if (best < 0) break;
      ContactRow<P>& r = w.crow[best];
      const P d = masked(only, P(-fastest) * (P(1) + r.restitution) / r.a[0]);
      contact_push(w, r, 0, d);
      w.contact[r.slot].impact = w.contact[r.slot].impact + d;
    }
  }
}

template <class P> void store_impulses(State<P>& s, int block, Work<P>& w) {
  Contact<P>* out = s.contact + std::size_t(block) * w.max_contacts;
  for (int i = 0; i < w.ncon; ++i) out[i] = w.contact[i];
  s.ncon[block] = w.ncon;
  P* rows = s.row_lam + std::size_t(block) * w.max_scalar_rows;
  for (int i = 0; i < w.max_scalar_rows; ++i) rows[i] = P(0);
  for (int i = 0; i < w.nsrow; ++i) rows[w.srow[i].id] = w.srow[i].lam;
}

}  // namespace R2S_ISA
