// SPDX-License-Identifier: Apache-2.0
// Large islands where sweeps converge slowly (stacks, shelves, long chains of contacts): Newton steps in whitened dof space,
// one island of one lane at a time. With rows that stick free and the others held,
//   (I + E' C_e^-1 E + J_F' D^-1 J_F) dw = J_H' dlam_H - J_F' D^-1 r_F,   dlam_F = -D^-1 (r_F + J_F dw),   D = C + proximal term,
// is positive definite however redundant the contacts are; an envelope Cholesky factor over the island's trees solves it.
#pragma once
#include "dense.hpp"

namespace R2S_ISA {

constexpr double kNewtonProximal = 1e-6;  // relative to a row's J M^-1 J': what a step leaves of a redundant row's error
constexpr int kNewtonAfter = 4;           // sweeps before the first Newton step of an island: they find which contacts hold
constexpr int kNewtonTrees = 3, kNewtonAfterFew = 50;  // the same in islands of fewer trees, in which sweeps do well
constexpr int kNewtonTries = 3;           // steps in a row that may fail to reduce the error while contacts open and close
constexpr int kNewtonPause = 32;          // most sweeps between Newton steps, after steps that failed

// Room of one thread. Envelope row i holds columns first[i] .. i at H[at[i]].
struct Newton {
  double *H, *x, *w_free, *w_saved, *lam_saved, *step, *residual, *weight;
  int *first, *local, *dof, *unit, *rowadr;
  std::size_t* at;
  std::size_t max_fill;
  int ndof, nunit, nrow;
  R2S_INLINE double& entry(int i, int j) { return H[at[i] + std::size_t(j - first[i])]; }
};

// The units and dofs of an island (its root tree) in a lane, and where each unit's rows begin.
template <class P> void gather_island(const Model<typename P::Scalar>& m, const Work<P>& w, int l, int root, Newton& q) {
  q.nunit = q.ndof = q.nrow = 0;
  for (int u = 0; u < w.nsrow + w.ncrow; ++u) {
    if (w.island[u * P::width + l] != kLarge - root) continue;
    q.rowadr[q.nunit] = q.nrow;
    q.unit[q.nunit++] = u;
    q.nrow += unit_view(w, u).dim;
  }
  for (int t = 0; t < m.ntree; ++t) {
    if (w.tree_root[t * P::width + l] != root) continue;
    for (int i = 0; i < m.tree_dofnum[t]; ++i) {
      q.local[m.tree_dofadr[t] + i] = q.ndof;
      q.dof[q.ndof++] = m.tree_dofadr[t] + i;
    }
  }
}

// Envelope of the matrix; false where it is larger than the room.
template <class P> bool shape_envelope(const Model<typename P::Scalar>& m, const Work<P>& w, Newton& q) {
  for (int i = 0; i < q.ndof; ++i) q.first[i] = i;
  auto reach = [&](const int* dofs, int n) {
    int low = q.ndof;
    for (int i = 0; i < n; ++i) low = std::min(low, q.local[dofs[i]]);
    for (int i = 0; i < n; ++i) q.first[q.local[dofs[i]]] = std::min(q.first[q.local[dofs[i]]], low);
  };
  for (int k = 0; k < q.nunit; ++k) {
    const UnitView<P> v = unit_view(w, q.unit[k]);
    reach(v.jp, v.num);
  }
  for (int i = 0; i < q.ndof; ++i) {
    const int g = m.tree_group[m.dof_treeid[q.dof[i]]];
    if (g >= 0 && m.dof_groupslot[q.dof[i]] == 0) reach(m.group_dof + m.group_dofadr[g], m.group_dofnum[g]);
  }
  std::size_t fill = 0;
  for (int i = 0; i < q.ndof; ++i) {
    q.at[i] = fill;
    fill += std::size_t(i - q.first[i] + 1);
  }
  return fill <= q.max_fill;
}

// H += weight J J', J a row over dofs.
template <class P> void add_outer(Newton& q, int l, const int* dofs, const P* J, int n, double weight) {
  for (int i = 0; i < n; ++i) {
    const double a = weight * double(J[i][l]);
    const int li = q.local[dofs[i]];
    if (a == 0) continue;
    for (int j = 0; j < n; ++j) {
      const int lj = q.local[dofs[j]];
      if (lj <= li) q.entry(li, lj) += a * double(J[j][l]);
    }
  }
}

// H = L L' in place, the diagonal inverted. False where H is not positive definite in double precision.
inline bool factor_envelope(Newton& q) {
  for (int i = 0; i < q.ndof; ++i) {
    double* ri = q.H + q.at[i] - q.first[i];
    for (int j = q.first[i]; j <= i; ++j) {
      const double* rj = q.H + q.at[j] - q.first[j];
      double s = ri[j];
      for (int k = std::max(q.first[i], q.first[j]); k < j; ++k) s -= ri[k] * rj[k];
      if (j < i) { ri[j] = s * rj[j]; continue; }
      if (!(s > 0)) return false;
      ri[i] = 1 / std::sqrt(s);
    }
  }
  return true;
}

inline void solve_envelope(const Newton& q, double* x) {
  for (int i = 0; i < q.ndof; ++i) {
    const double* r = q.H + q.at[i] - q.first[i];
    double s = x[i];
    for (int j = q.first[i]; j < i; ++j) s -= r[j] * x[j];
    x[i] = s * r[i];
  }
  for (int i = q.ndof - 1; i >= 0; --i) {
    const double* r = q.H + q.at[i] - q.first[i];
    x[i] *= r[i];
    for (int j = q.first[i]; j < i; ++j) x[j] -= r[j] * x[i];
  }
}

// Residual u + C lam - zeta of each row, its diagonal, and what Newton does with it: weight > 0: free, 1 / D; 0: held, and
// step is its change.
template <class P> void classify(const Work<P>& w, int l, Newton& q) {
  for (int k = 0; k < q.nunit; ++k) {
    const int u = q.unit[k], r0 = q.rowadr[k];
    const UnitView<P> v = unit_view(w, u);
    double *res = q.residual + r0, *weight = q.weight + r0, *step = q.step + r0;
    for (int a = 0; a < v.dim; ++a) {
      double s = 0;
      for (int i = 0; i < v.num; ++i) s += double(v.J[a * v.num + i][l]) * double(w.w[v.jp[i]][l]);
      res[a] = s;
    }
    auto hold = [&](int a, double change) { weight[a] = 0; step[a] = change; };
    if (u < w.nsrow) {
      const ScalarRow<P>& r = w.srow[u];
      const double lam = double(r.lam[l]), d = std::max(double(r.diag[l] + r.c[l]), 1e-300);
      res[0] += double(r.c[l]) * lam - double(r.zeta[l]);
      weight[0] = 1 / (double(r.c[l]) + kNewtonProximal * d);
      const double z = lam - res[0] / d, lo = double(r.lo[l]), hi = double(r.hi[l]);
      if (z <= lo) hold(0, lo - lam);
      else if (z >= hi) hold(0, hi - lam);
      continue;
    }
    const ContactRow<P>& r = w.crow[u - w.nsrow];
    const Contact<P>& c = w.contact[r.slot];
    auto lam = [&](int a) { return double(c.lam[a][l]); };
    auto diag = [&](int a) { return double(r.a[a][l]); };
    res[0] += double(r.c[l]) * lam(0) - double(r.zeta[l]);
    for (int a = 0; a < v.dim; ++a) weight[a] = 1 / (kNewtonProximal * diag(a) + (a == 0 ? double(r.c[l]) : 0.0));
    if (lam(0) - res[0] / (diag(0) + double(r.c[l])) <= 0) {
      for (int a = 0; a < v.dim; ++a) hold(a, -lam(a));
      continue;
    }
    auto disc = [&](int a, double mu1, double mu2) {
      mu1 = std::max(mu1, kFrictionFloor);
      mu2 = std::max(mu2, kFrictionFloor);
      const double top = std::max(mu1 * mu1 * diag(a), mu2 * mu2 * diag(a + 1));
      const double z1 = lam(a) / mu1 - mu1 * res[a] / top, z2 = lam(a + 1) / mu2 - mu2 * res[a + 1] / top, len = std::hypot(z1, z2), limit = lam(0);
      if (len <= limit) return;
      hold(a, mu1 * z1 * limit / len - lam(a));
      hold(a + 1, mu2 * z2 * limit / len - lam(a + 1));
    };
    if (v.dim >= 3) disc(1, double(c.friction[0][l]), double(c.friction[1][l]));
    if (v.dim >= 4) {
      const double z = lam(3) - res[3] / diag(3), bound = double(c.friction[2][l]) * lam(0);
      if (std::abs(z) > bound) hold(3, (z > 0 ? bound : -bound) - lam(3));
    }
    if (v.dim >= 6) disc(4, double(c.friction[3][l]), double(c.friction[4][l]));
  }
}

// Changes of all impulses, into q.step. False where the system could not be factored.
template <class P> bool newton_step(const Model<typename P::Scalar>& m, const Work<P>& w, int l, Newton& q) {
  classify(w, l, q);
  std::fill(q.H, q.H + q.at[q.ndof - 1] + std::size_t(q.ndof - q.first[q.ndof - 1]), 0.0);
  std::fill(q.x, q.x + q.ndof, 0.0);
  for (int i = 0; i < q.ndof; ++i) {
    q.entry(i, i) = 1;
    const int g = m.tree_group[m.dof_treeid[q.dof[i]]];
    if (g < 0 || m.dof_groupslot[q.dof[i]] != 0) continue;
    for (int r = 0; r < m.group_rownum[g]; ++r)
      add_outer(q, l, m.group_dof + m.group_dofadr[g], w.E + m.group_Eadr[g] + r * m.group_dofnum[g], m.group_dofnum[g], 1 / double(w.eq_c[m.group_rowadr[g] + r][l]));
  }
  for (int k = 0; k < q.nunit; ++k) {
    const UnitView<P> v = unit_view(w, q.unit[k]);
    for (int a = 0; a < v.dim; ++a) {
      const int row = q.rowadr[k] + a;
      const double push = q.weight[row] > 0 ? -q.weight[row] * q.residual[row] : q.step[row];
      for (int i = 0; i < v.num; ++i) q.x[q.local[v.jp[i]]] += push * double(v.J[a * v.num + i][l]);
      if (q.weight[row] > 0) add_outer(q, l, v.jp, v.J + a * v.num, v.num, q.weight[row]);
    }
  }
  if (!factor_envelope(q)) return false;
  solve_envelope(q, q.x);
  for (int k = 0; k < q.nunit; ++k) {
    const UnitView<P> v = unit_view(w, q.unit[k]);
    for (int a = 0; a < v.dim; ++a) {
      const int row = q.rowadr[k] + a;
      if (q.weight[row] == 0) continue;
      double s = q.residual[row];
      for (int i = 0; i < v.num; ++i) s += double(v.J[a * v.num + i][l]) * q.x[q.local[v.jp[i]]];
      q.step[row] = -q.weight[row] * s;
    }
  }
  return true;
}

// lam + step, back inside the bounds; w from all impulses anew, so that no rounding of a step that overshot stays in it.
template <class P> void newton_apply(Work<P>& w, int l, Newton& q) {
  using T = typename P::Scalar;
  std::copy(q.w_free, q.w_free + q.ndof, q.x);
  for (int k = 0; k < q.nunit; ++k) {
    const int u = q.unit[k];
    const UnitView<P> v = unit_view(w, u);
    double now[kMaxDim];
    P* lam = u < w.nsrow ? &w.srow[u].lam : w.contact[w.crow[u - w.nsrow].slot].lam;
    for (int a = 0; a < v.dim; ++a) now[a] = double(lam[a][l]) + q.step[q.rowadr[k] + a];
    if (u < w.nsrow) {
      now[0] = std::clamp(now[0], double(w.srow[u].lo[l]), double(w.srow[u].hi[l]));
    } else {
      const Contact<P>& c = w.contact[w.crow[u - w.nsrow].slot];
      now[0] = std::max(now[0], 0.0);
      auto disc = [&](int a, double mu1, double mu2) {
        const double len = std::hypot(now[a] / std::max(mu1, kFrictionFloor), now[a + 1] / std::max(mu2, kFrictionFloor));
        if (len <= now[0]) return;
        now[a] *= now[0] / len;
        now[a + 1] *= now[0] / len;
      };
      if (v.dim >= 3) disc(1, double(c.friction[0][l]), double(c.friction[1][l]));
      if (v.dim >= 4) now[3] = std::clamp(now[3], -double(c.friction[2][l]) * now[0], double(c.friction[2][l]) * now[0]);
      if (v.dim >= 6) disc(4, double(c.friction[3][l]), double(c.friction[4][l]));
    }
    for (int a = 0; a < v.dim; ++a) {
      lam[a].set(l, T(now[a]));
      for (int i = 0; i < v.bnum; ++i) q.x[q.local[v.bp[i]]] += double(v.B[a * v.bnum + i][l]) * double(lam[a][l]);
    }
  }
  for (int i = 0; i < q.ndof; ++i) w.w[q.dof[i]].set(l, T(q.x[i]));
}

// The velocity without the island's impulses, in q.w_free.
template <class P> void newton_free(const Work<P>& w, int l, Newton& q) {
  for (int i = 0; i < q.ndof; ++i) q.w_free[i] = double(w.w[q.dof[i]][l]);
  for (int k = 0; k < q.nunit; ++k) {
    const int u = q.unit[k];
    const UnitView<P> v = unit_view(w, u);
    const P* lam = u < w.nsrow ? &w.srow[u].lam : w.contact[w.crow[u - w.nsrow].slot].lam;
    for (int a = 0; a < v.dim; ++a)
      for (int i = 0; i < v.bnum; ++i) q.w_free[q.local[v.bp[i]]] -= double(v.B[a * v.bnum + i][l]) * double(lam[a][l]);
  }
}

template <class P> void newton_save(const Work<P>& w, int l, Newton& q) {
  for (int i = 0; i < q.ndof; ++i) q.w_saved[i] = double(w.w[q.dof[i]][l]);
  for (int k = 0; k < q.nunit; ++k) {
    const int u = q.unit[k];
    const P* lam = u < w.nsrow ? &w.srow[u].lam : w.contact[w.crow[u - w.nsrow].slot].lam;
    for (int a = 0, n = unit_view(w, u).dim; a < n; ++a) q.lam_saved[q.rowadr[k] + a] = double(lam[a][l]);
  }
}

template <class P> void newton_restore(Work<P>& w, int l, const Newton& q) {
  using T = typename P::Scalar;
  for (int i = 0; i < q.ndof; ++i) w.w[q.dof[i]].set(l, T(q.w_saved[i]));
  for (int k = 0; k < q.nunit; ++k) {
    const int u = q.unit[k];
    P* lam = u < w.nsrow ? &w.srow[u].lam : w.contact[w.crow[u - w.nsrow].slot].lam;
    for (int a = 0, n = unit_view(w, u).dim; a < n; ++a) lam[a].set(l, T(q.lam_saved[q.rowadr[k] + a]));
  }
}

// One sweep over the gathered island in one lane; the largest change of a row's velocity.
template <class P> double sweep_island(Work<P>& w, int l, const Newton& q, bool forward) {
  typename P::M only(false);
  only.set(l, true);
  double change = 0;
  for (int k = 0; k < q.nunit; ++k) {
    const int u = q.unit[forward ? k : q.nunit - 1 - k];
    change = std::max(change, double((u < w.nsrow ? solve_scalar(w, w.srow[u], only) : solve_contact(w, w.crow[u - w.nsrow], only))[l]));
  }
  return change;
}

// The rest of an island's iterations: a Newton step, a sweep that projects and judges it, back where it did not help.
template <class P> void newton_island(const Model<typename P::Scalar>& m, Work<P>& w, int l, int root, int iterations, double tolerance) {
  Newton& q = *w.newton;
  gather_island(m, w, l, root, q);
  const bool fits = shape_envelope(m, w, q);
  double best = double(w.tree_change[root * P::width + l]), change = best;
  int wait = 0, pause = 1, tries = 0;
  newton_save(w, l, q);
  newton_free(w, l, q);
  for (int i = w.tree_sweeps[root * P::width + l]; i < iterations; ++i) {
    const bool tried = fits && wait-- <= 0 && newton_step(m, w, l, q);
    if (tried) newton_apply(w, l, q);
    change = sweep_island(w, l, q, i % 2 == 0);
    ++w.sweeps;
    if (change <= tolerance) return;
    if (change < best) {
      best = change;
      tries = 0;
      if (tried) pause = 1;
      newton_save(w, l, q);
    } else if (tried && ++tries >= kNewtonTries) {
      newton_restore(w, l, q);
      tries = 0;
      wait = pause;
      pause = std::min(2 * pause, kNewtonPause);
    }
  }
  if (change > best) newton_restore(w, l, q);
}

}  // namespace R2S_ISA
