// SPDX-License-Identifier: Apache-2.0
// A small island on its own matrix A = J M^-1 J': projected Gauss-Seidel sweeps find which rows are active, Newton steps on
// those rows (sliding friction tied to its normal impulse) then converge at once, where sweeps alone would creep.
// Each lane's rows are packed by themselves; lanes with fewer rows carry empty ones, which change nothing.
#pragma once
#include "island.hpp"

namespace R2S_ISA {

constexpr double kProximal = 1e-9;   // relative weight that keeps Newton steps defined where contacts are redundant
constexpr int kLongestPause = 16;    // most sweeps between Newton steps, after steps that failed

// Rows of the packed system: scalars [0, ns), then contacts of w.contact_dim rows each.
template <class P> struct Dense {
  int ns, nk, dim, n;
  P *A, *K, *b, *lam, *saved, *rhs, *c, *lo, *hi;
  P (*mu)[5];       // by contact
  P* step; P* step_roll;
  typename P::M* on;      // by row
  R2S_INLINE P velocity(int i) const {
    P s = b[i];
    const P* row = A + i * n;
    for (int j = 0; j < n; ++j) s = fma(row[j], lam[j], s);
    return s;
  }
};

template <class P> R2S_INLINE P largest_eigenvalue(const P& a, const P& b, const P& ab) {
  using T = typename P::Scalar;
  const P mean = (a + b) * P(T(0.5)), half = (a - b) * P(T(0.5));
  return mean + sqrt(fma(half, half, ab * ab));
}

// Packed index of each unit in each lane for this round, and the sizes.
template <class P> void pack_units(Work<P>& w, int round, Dense<P>& q) {
  constexpr int W = P::width;
  const int units = w.nsrow + w.ncrow;
  q.ns = q.nk = 0;
  for (int l = 0; l < W; ++l) {
    int ns = 0, nk = 0;
    for (int u = 0; u < units; ++u) {
      int& at = w.packed[u * W + l];
      at = w.island[u * W + l] != round ? -1 : u < w.nsrow ? ns++ : nk++;
    }
    q.ns = std::max(q.ns, ns);
    q.nk = std::max(q.nk, nk);
  }
  q.dim = w.contact_dim;
  q.n = q.ns + q.dim * q.nk;
}

template <class P> void fill(Work<P>& w, Dense<P>& q) {
  constexpr int W = P::width;
  using T = typename P::Scalar;
  const int units = w.nsrow + w.ncrow, n = q.n;
  for (int i = 0; i < n * n; ++i) q.A[i] = P(0);
  for (int i = 0; i < n; ++i) {
    q.A[i * n + i] = P(1);
    q.b[i] = q.lam[i] = q.c[i] = q.lo[i] = q.hi[i] = P(0);
    q.on[i] = typename P::M(false);
  }
  for (int k = 0; k < q.nk; ++k)
    for (P& x : q.mu[k]) x = P(1);
  auto row_of = [&](int u, int l) { return u < w.nsrow ? w.packed[u * W + l] : q.ns + q.dim * w.packed[u * W + l]; };
  P* spread = w.spread;  // B of one unit over all dofs
  for (int u = 0; u < units; ++u) {
    bool here = false;
    for (int l = 0; l < W; ++l) here = here || w.packed[u * W + l] >= 0;
    if (!here) continue;
    const UnitView<P> v = unit_view(w, u);
    for (int i = 0; i < v.bnum; ++i)
      for (int a = 0; a < v.dim; ++a) spread[kMaxDim * v.bp[i] + a] = v.B[a * v.bnum + i];
    for (int t = 0; t < units; ++t) {
      bool uniform = true;  // every lane that has both units has them in the same rows
      int any_lane = -1;
      typename P::M lanes(false);
      for (int l = 0; l < W; ++l) {
        if (w.packed[u * W + l] < 0 || w.packed[t * W + l] < 0) continue;
        lanes.set(l, true);
        if (any_lane < 0) any_lane = l;
        uniform = uniform && w.packed[u * W + l] == w.packed[u * W + any_lane] && w.packed[t * W + l] == w.packed[t * W + any_lane];
      }
      if (any_lane < 0) continue;
      const UnitView<P> y = unit_view(w, t);
      for (int e = 0; e < y.dim; ++e)
        for (int a = 0; a < v.dim; ++a) {
          P s(0);
          for (int i = 0; i < y.num; ++i) s = fma(y.J[e * y.num + i], spread[kMaxDim * y.jp[i] + a], s);
          if (uniform) {
            P& x = q.A[(row_of(t, any_lane) + e) * n + row_of(u, any_lane) + a];
            x = select(lanes, s, x);
          } else
            for (int l = 0; l < W; ++l)
              if (w.packed[u * W + l] >= 0 && w.packed[t * W + l] >= 0) q.A[(row_of(t, l) + e) * n + row_of(u, l) + a].set(l, s[l]);
        }
    }
    for (int i = 0; i < v.bnum; ++i)
      for (int a = 0; a < v.dim; ++a) spread[kMaxDim * v.bp[i] + a] = P(0);
    for (int a = 0; a < v.dim; ++a) {
      P free = row_dot(v.jp, v.J + a * v.num, v.num, w.w);
      const bool scalar = u < w.nsrow;
      const ScalarRow<P>* sr = scalar ? w.srow + u : nullptr;
      const ContactRow<P>* cr = scalar ? nullptr : w.crow + (u - w.nsrow);
      if (a == 0) free -= scalar ? sr->zeta : cr->zeta;
      for (int l = 0; l < W; ++l) {
        if (w.packed[u * W + l] < 0) continue;
        const int i = row_of(u, l) + a;
        q.b[i].set(l, free[l]);
        q.on[i].set(l, true);
        if (a == 0) q.c[i].set(l, scalar ? sr->c[l] : cr->c[l]);
        q.lam[i].set(l, scalar ? sr->lam[l] : w.contact[cr->slot].lam[a][l]);
        if (scalar) { q.lo[i].set(l, sr->lo[l]); q.hi[i].set(l, sr->hi[l]); }
        else if (a == 0)
          for (int f = 0; f < 5; ++f) q.mu[w.packed[u * W + l]][f].set(l, std::max(w.contact[cr->slot].friction[f][l], T(kFrictionFloor)));
      }
    }
  }
  for (int i = 0; i < n; ++i) {
    P& d = q.A[i * n + i];
    d = select(q.on[i], max(d, P(kTiny<T>)) + q.c[i], P(1));
  }
  for (int k = 0; k < q.nk; ++k) {
    const int r = q.ns + q.dim * k;
    auto a = [&](int i, int j) -> const P& { return q.A[(r + i) * n + r + j]; };
    if (q.dim >= 3) q.step[k] = P(1) / max(largest_eigenvalue(q.mu[k][0] * q.mu[k][0] * a(1, 1), q.mu[k][1] * q.mu[k][1] * a(2, 2), q.mu[k][0] * q.mu[k][1] * a(1, 2)), P(kTiny<T>));
    if (q.dim >= 6) q.step_roll[k] = P(1) / max(largest_eigenvalue(q.mu[k][3] * q.mu[k][3] * a(4, 4), q.mu[k][4] * q.mu[k][4] * a(5, 5), q.mu[k][3] * q.mu[k][4] * a(4, 5)), P(kTiny<T>));
  }
}

// Two friction rows at r on the ellipse (mu1, mu2) * limit: stick, or a projected gradient step.
template <class P> P dense_disc(Dense<P>& q, int r, const P& m1, const P& m2, const P& step, const P& limit, const typename P::M& go) {
  using T = typename P::Scalar;
  const P a = q.A[r * q.n + r], d = q.A[(r + 1) * q.n + r + 1], e = q.A[r * q.n + r + 1], u1 = q.velocity(r), u2 = q.velocity(r + 1);
  const P det = max(a * d - e * e, P(T(1e-9)) * a * d);
  const P s1 = (q.lam[r] - (d * u1 - e * u2) / det) / m1, s2 = (q.lam[r + 1] - (a * u2 - e * u1) / det) / m2;
  const auto stick = fma(s1, s1, s2 * s2) <= limit * limit;
  const P g1 = q.lam[r] / m1 - step * m1 * u1, g2 = q.lam[r + 1] / m2 - step * m2 * u2, len = sqrt(fma(g1, g1, g2 * g2));
  const P shrink = select(len > limit, limit / select(len > P(0), len, P(1)), P(1));
  const P d1 = masked(go & q.on[r], select(stick, s1, g1 * shrink) * m1 - q.lam[r]), d2 = masked(go & q.on[r], select(stick, s2, g2 * shrink) * m2 - q.lam[r + 1]);
  q.lam[r] += d1;
  q.lam[r + 1] += d2;
  return max(abs(d1) * a, abs(d2) * d);
}

template <class P> P dense_sweep(Dense<P>& q, const typename P::M& go) {
  P change(0);
  auto bounded = [&](int i, const P& lo, const P& hi) {
    const P a = q.A[i * q.n + i];
    const P d = masked(go & q.on[i], clamp(q.lam[i] - q.velocity(i) / a, lo, hi) - q.lam[i]);
    q.lam[i] += d;
    change = max(change, abs(d) * a);
  };
  for (int i = 0; i < q.ns; ++i) bounded(i, q.lo[i], q.hi[i]);
  for (int k = 0; k < q.nk; ++k) {
    const int r = q.ns + q.dim * k;
    bounded(r, P(0), P(typename P::Scalar(1e30)));
    if (q.dim >= 3) change = max(change, dense_disc(q, r + 1, q.mu[k][0], q.mu[k][1], q.step[k], q.lam[r], go));
    if (q.dim >= 4) bounded(r + 3, -q.mu[k][2] * q.lam[r], q.mu[k][2] * q.lam[r]);
    if (q.dim >= 6) change = max(change, dense_disc(q, r + 4, q.mu[k][3], q.mu[k][4], q.step_roll[k], q.lam[r], go));
  }
  return change;
}

// Row i of the Newton system becomes: delta_i = value.
template <class P> R2S_INLINE void hold(Dense<P>& q, int i, const typename P::M& where, const P& value) {
  P* row = q.K + i * q.n;
  for (int j = 0; j < q.n; ++j) row[j] = select(where, P(i == j ? 1 : 0), row[j]);
  q.rhs[i] = select(where, value, q.rhs[i]);
}

// Two friction rows at i beyond their disc: the derivative of lam = projection(lam - step * mu u) on the ellipse, whose
// radius is the normal impulse at r. Scaled by mu, z is the point that is projected, n its direction.
template <class P> void slide_rows(Dense<P>& q, int i, int r, const P& m1, const P& m2, const P& step, const typename P::M& open) {
  const P u1 = -q.rhs[i], u2 = -q.rhs[i + 1], l1 = q.lam[i] / m1, l2 = q.lam[i + 1] / m2;
  const P z1 = l1 - step * m1 * u1, z2 = l2 - step * m2 * u2, len = sqrt(fma(z1, z1, z2 * z2)), limit = max(q.lam[r], P(0));
  const auto slides = (!open) & (len > limit) & q.on[i];
  if (!any(slides)) return;
  const P inv = P(1) / select(len > P(0), len, P(1)), n1 = z1 * inv, n2 = z2 * inv, shrink = limit * inv;
  const P t11 = shrink * (P(1) - n1 * n1), t12 = -shrink * n1 * n2, t22 = shrink * (P(1) - n2 * n2);
  P *a = q.K + i * q.n, *b = a + q.n;
  for (int j = 0; j < q.n; ++j) {
    const P x = step * m1 * a[j], y = step * m2 * b[j];
    const P ra = t11 * x + t12 * y, rb = t12 * x + t22 * y;
    a[j] = select(slides, ra, a[j]);
    b[j] = select(slides, rb, b[j]);
  }
  a[i] += masked(slides, (P(1) - t11) / m1);
  a[i + 1] -= masked(slides, t12 / m2);
  b[i] -= masked(slides, t12 / m1);
  b[i + 1] += masked(slides, (P(1) - t22) / m2);
  a[r] -= masked(slides, n1);
  b[r] -= masked(slides, n2);
  q.rhs[i] = select(slides, shrink * z1 - l1, q.rhs[i]);
  q.rhs[i + 1] = select(slides, shrink * z2 - l2, q.rhs[i + 1]);
}

// Semi-smooth Newton on lam = projection(lam - u / a): rows inside their bounds solve u = 0, the others take their bound.
template <class P> void newton_system(Dense<P>& q) {
  using T = typename P::Scalar;
  const int n = q.n;
  for (int i = 0; i < n; ++i) {
    q.rhs[i] = -q.velocity(i);
    for (int j = 0; j < n; ++j) q.K[i * n + j] = q.A[i * n + j];
    q.K[i * n + i] = q.K[i * n + i] * P(T(1 + kProximal));
  }
  for (int i = 0; i < q.ns; ++i) {
    const P z = q.lam[i] + q.rhs[i] / q.A[i * n + i];
    hold(q, i, z <= q.lo[i], q.lo[i] - q.lam[i]);
    hold(q, i, z >= q.hi[i], q.hi[i] - q.lam[i]);
  }
  for (int k = 0; k < q.nk; ++k) {
    const int r = q.ns + q.dim * k;
    const auto open = q.lam[r] + q.rhs[r] / q.A[r * n + r] <= P(0);
    if (q.dim >= 3) slide_rows(q, r + 1, r, q.mu[k][0], q.mu[k][1], q.step[k], open);
    if (q.dim >= 4) {
      const P z = q.lam[r + 3] + q.rhs[r + 3] / q.A[(r + 3) * n + r + 3], bound = q.mu[k][2] * max(q.lam[r], P(0));
      const auto slides = (!open) & ((z > bound) | (z < -bound)) & q.on[r + 3];
      const P side = select(z < P(0), -q.mu[k][2], q.mu[k][2]);
      hold(q, r + 3, slides, side * q.lam[r] - q.lam[r + 3]);
      P& tie = q.K[(r + 3) * n + r];
      tie = select(slides, -side, tie);
    }
    if (q.dim >= 6) slide_rows(q, r + 4, r, q.mu[k][3], q.mu[k][4], q.step_roll[k], open);
    for (int a = 0; a < q.dim; ++a) hold(q, r + a, open, -q.lam[r + a]);
  }
  for (int i = 0; i < n; ++i) hold(q, i, !q.on[i], P(0));
}

// rhs <- K^-1 rhs by Gaussian elimination; lanes with a bad pivot get no step.
template <class P> typename P::M eliminate(Dense<P>& q) {
  using T = typename P::Scalar;
  const int n = q.n;
  typename P::M good(true);
  for (int k = 0; k < n; ++k) {
    const P piv = q.K[k * n + k];
    const auto ok = abs(piv) > P(kTiny<T>) * max(q.A[k * n + k], P(kTiny<T>));
    good = good & ok;
    const P inv = P(1) / select(ok, piv, P(1));
    q.K[k * n + k] = inv;
    for (int i = k + 1; i < n; ++i) {
      const P f = q.K[i * n + k] * inv;
      if (!any(f != 0)) continue;
      for (int j = k + 1; j < n; ++j) q.K[i * n + j] = fma(-f, q.K[k * n + j], q.K[i * n + j]);
      q.rhs[i] = fma(-f, q.rhs[k], q.rhs[i]);
    }
  }
  for (int i = n - 1; i >= 0; --i) {
    P s = q.rhs[i];
    for (int j = i + 1; j < n; ++j) s = fma(-q.K[i * n + j], q.rhs[j], s);
    q.rhs[i] = s * q.K[i * n + i];
  }
  return good;
}

// lam + step, back inside the bounds; lanes that take no step keep every bit.
template <class P> void take_step(Dense<P>& q, const typename P::M& go) {
  for (int i = 0; i < q.n; ++i) q.lam[i] += masked(go & q.on[i], q.rhs[i]);
  for (int i = 0; i < q.ns; ++i) q.lam[i] = select(go & q.on[i], clamp(q.lam[i], q.lo[i], q.hi[i]), q.lam[i]);
  for (int k = 0; k < q.nk; ++k) {
    const int r = q.ns + q.dim * k;
    q.lam[r] = select(go, max(q.lam[r], P(0)), q.lam[r]);
    auto disc = [&](int i, const P& m1, const P& m2) {
      const P s1 = q.lam[i] / m1, s2 = q.lam[i + 1] / m2, len = sqrt(fma(s1, s1, s2 * s2));
      const P shrink = select(go & (len > q.lam[r]), q.lam[r] / select(len > P(0), len, P(1)), P(1));
      q.lam[i] = q.lam[i] * shrink;
      q.lam[i + 1] = q.lam[i + 1] * shrink;
    };
    if (q.dim >= 3) disc(r + 1, q.mu[k][0], q.mu[k][1]);
    if (q.dim >= 4) q.lam[r + 3] = select(go, clamp(q.lam[r + 3], -q.mu[k][2] * q.lam[r], q.mu[k][2] * q.lam[r]), q.lam[r + 3]);
    if (q.dim >= 6) disc(r + 4, q.mu[k][3], q.mu[k][4]);
  }
}

template <class P> void solve_island(Work<P>& w, int round, int iterations, typename P::Scalar tolerance) {
  constexpr int W = P::width;
  using T = typename P::Scalar;
  Dense<P>& q = *w.dense;
  pack_units(w, round, q);
  if (q.n == 0) return;
  fill(w, q);
  typename P::M go(false), tried(false);
  for (int i = 0; i < q.n; ++i) go = go | q.on[i];
  P last(1e30), wait(0), pause(2);  // sweeps until the next Newton step, and after the next that fails
  for (int sweep = 0; sweep < iterations; ++sweep) {
    P change = dense_sweep(q, go);
    ++w.sweeps;
    const auto failed = tried & (change >= last);
    if (any(failed)) {  // back to where the step was taken from, and sweep on from there
      for (int i = 0; i < q.n; ++i) q.lam[i] = select(failed, q.saved[i], q.lam[i]);
      wait = select(failed, pause, wait);
      pause = select(failed, min(pause * P(2), P(T(kLongestPause))), pause);
      change = select(failed, last, change);
    }
    go = go & (change > P(tolerance));
    if (!any(go)) break;
    last = change;
    const auto now = go & (wait <= P(0));
    wait -= P(1);
    tried = typename P::M(false);
    if (!any(now)) continue;
    for (int i = 0; i < q.n; ++i) q.saved[i] = q.lam[i];
    newton_system(q);
    tried = now & eliminate(q);
    take_step(q, tried);
  }
  const int units = w.nsrow + w.ncrow;
  for (int u = 0; u < units; ++u)
    for (int l = 0; l < W; ++l) {
      const int at = w.packed[u * W + l];
      if (at < 0) continue;
      if (u < w.nsrow) { w.srow[u].lam.set(l, q.lam[at][l]); continue; }
      const ContactRow<P>& r = w.crow[u - w.nsrow];
      for (int a = 0; a < r.dim; ++a) w.contact[r.slot].lam[a].set(l, q.lam[q.ns + q.dim * at + a][l]);
    }
}
}  // namespace R2S_ISA
