// SPDX-License-Identifier: Apache-2.0
// The whole of eq. (7): small islands on dense matrices, large ones by sweeps in lanes, then by Newton steps.
#pragma once
#include "newton.hpp"

namespace R2S_ISA {

template <class P> void push_units(Work<P>& w, bool large) {
  constexpr int W = P::width;
  for (int u = 0; u < w.nsrow + w.ncrow; ++u) {
    typename P::M on(false);
    for (int l = 0; l < W; ++l) on.set(l, large ? w.island[u * W + l] <= kLarge : w.island[u * W + l] >= 0);
    if (!any(on)) continue;
    const UnitView<P> v = unit_view(w, u);
    for (int a = 0; a < v.dim; ++a)
      push_row(w, v.bp, v.B + a * v.bnum, v.bnum, masked(on, u < w.nsrow ? w.srow[u].lam : w.contact[w.crow[u - w.nsrow].slot].lam[a]));
  }
}

// Sweeps that each large island gets before Newton steps.
template <class P> void plan_sweeps(const Model<typename P::Scalar>& m, Work<P>& w, int iterations) {
  constexpr int W = P::width;
  for (int l = 0; l < W; ++l) {
    for (int t = 0; t < m.ntree; ++t) w.tree_sweeps[t * W + l] = 0;
    for (int t = 0; t < m.ntree; ++t) ++w.tree_sweeps[w.tree_root[t * W + l] * W + l];
    for (int t = 0; t < m.ntree; ++t) {
      int& sweeps = w.tree_sweeps[t * W + l];  // so far the trees of the island
      sweeps = std::min(iterations, sweeps < kNewtonTrees ? kNewtonAfterFew : kNewtonAfter);
    }
  }
}

// Sweeps over all large islands of all lanes. An island leaves when no row changes its velocity by more than the tolerance,
// or when it has had its sweeps.
template <class P> void sweep_islands(const Model<typename P::Scalar>& m, Work<P>& w, typename P::Scalar tolerance) {
  using T = typename P::Scalar;
  constexpr int W = P::width;
  const int units = w.nsrow + w.ncrow;
  bool busy = true;
  for (int sweep = 0; busy; ++sweep) {
    for (int i = 0; i < m.ntree * W; ++i)
      if (w.tree_sweeps[i] > sweep) w.tree_change[i] = T(0);
    for (int i = 0; i < units; ++i) {
      const int u = sweep % 2 == 0 ? i : units - 1 - i;
      auto& on = u < w.nsrow ? w.srow[u].active : w.crow[u - w.nsrow].active;
      if (!any(on)) continue;
      const P change = u < w.nsrow ? solve_scalar(w, w.srow[u], on) : solve_contact(w, w.crow[u - w.nsrow], on);
      for (int l = 0; l < W; ++l) {
        if (!on[l]) continue;
        T& most = w.tree_change[(kLarge - w.island[u * W + l]) * W + l];
        most = std::max(most, change[l]);
      }
    }
    ++w.sweeps;
    busy = false;
    for (int u = 0; u < units; ++u) {
      auto& on = u < w.nsrow ? w.srow[u].active : w.crow[u - w.nsrow].active;
      for (int l = 0; l < W; ++l) {
        if (!on[l]) continue;
        const int at = (kLarge - w.island[u * W + l]) * W + l;
        if (!(w.tree_change[at] > tolerance) || sweep + 1 >= w.tree_sweeps[at]) on.set(l, false);
      }
      busy = busy || any(on);
    }
  }
}

template <class P> void newton_islands(const Model<typename P::Scalar>& m, Work<P>& w, int iterations, typename P::Scalar tolerance) {
  constexpr int W = P::width;
  for (int l = 0; l < W; ++l)
    for (int t = 0; t < m.ntree; ++t)
      if (w.tree_change[t * W + l] > tolerance) newton_island(m, w, l, t, iterations, double(tolerance));
}

// Units of small islands are put to rest for the sweeps, units of large ones for the dense solves.
template <class P> void solve_constraints(const Model<typename P::Scalar>& m, Work<P>& w, int iterations, typename P::Scalar tolerance) {
  constexpr int W = P::width;
  w.sweeps = 0;
  const int units = w.nsrow + w.ncrow;
  if (units == 0) return;
  const int rounds = find_islands(m, w);
  for (int round = 0; round < rounds; ++round) solve_island(w, round, iterations, tolerance);
  push_units(w, false);
  if (!w.any_large) return;
  push_units(w, true);
  auto mark = [&](auto in) {
    for (int u = 0; u < units; ++u) {
      auto& on = u < w.nsrow ? w.srow[u].active : w.crow[u - w.nsrow].active;
      for (int l = 0; l < W; ++l) on.set(l, in(w.island[u * W + l]));
    }
  };
  mark([](int island) { return island <= kLarge; });
  for (int i = 0; i < m.ntree * W; ++i) w.tree_change[i] = typename P::Scalar(0);
  plan_sweeps(m, w, iterations);
  sweep_islands(m, w, tolerance);
  mark([](int island) { return island != -1; });
  newton_islands(m, w, iterations, tolerance);
}

}  // namespace R2S_ISA
