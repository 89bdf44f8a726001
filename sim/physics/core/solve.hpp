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

// Sweeps over all large islands of all lanes; an island in which no row changes its velocity by more than the tolerance is
// done and left alone. Returns whether any is not done.
template <class P> bool sweep_islands(const Model<typename P::Scalar>& m, Work<P>& w, int sweeps, typename P::Scalar tolerance) {
  using T = typename P::Scalar;
  constexpr int W = P::width;
  const int units = w.nsrow + w.ncrow;
  bool busy = true;
  for (int sweep = 0; sweep < sweeps && busy; ++sweep) {
    for (int i = 0; i < m.ntree * W; ++i) w.tree_change[i] = T(0);
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
      for (int l = 0; l < W; ++l)
        if (on[l] && !(w.tree_change[(kLarge - w.island[u * W + l]) * W + l] > tolerance)) on.set(l, false);
      busy = busy || any(on);
    }
  }
  return busy;
}

template <class P> void newton_islands(const Model<typename P::Scalar>& m, Work<P>& w, int iterations, typename P::Scalar tolerance) {
  constexpr int W = P::width;
  for (int l = 0; l < W; ++l)
    for (int t = 0; t < m.ntree; ++t)
      if (w.tree_root[t * W + l] == t && w.tree_change[t * W + l] > tolerance) newton_island(m, w, l, t, iterations, double(tolerance));
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
  const bool busy = sweep_islands(m, w, std::min(iterations, kNewtonAfter), tolerance);
  mark([](int island) { return island != -1; });
  if (busy && iterations > kNewtonAfter) newton_islands(m, w, iterations, tolerance);
}

}  // namespace R2S_ISA
