// SPDX-License-Identifier: Apache-2.0
// Constraint islands, found for each lane by itself (what a world does must not depend on its neighbours): trees joined by
// the rows that are active in that lane.
#pragma once
#include "solver.hpp"

namespace R2S_ISA {

constexpr int kLarge = -2;
constexpr int kDenseRows = 24;  // islands up to this many rows are solved on their own dense matrix

// A unit is a scalar row (index below nsrow) or a contact (nsrow + its index).
template <class P> struct UnitView { const int *jp, *bp; const P *J, *B; int num, bnum, dim; const typename P::M* active; };

template <class P> UnitView<P> unit_view(const Work<P>& w, int u) {
  if (u < w.nsrow) {
    const ScalarRow<P>& r = w.srow[u];
    return {w.pattern + r.adr, w.pattern + r.badr, w.value + r.vadr, w.value + r.bvadr, r.num, r.bnum, 1, &r.active};
  }
  const ContactRow<P>& r = w.crow[u - w.nsrow];
  return {w.pattern + r.adr, w.pattern + r.badr, w.value + r.vadr, w.value + r.bvadr, r.num, r.bnum, r.dim, &r.active};
}

inline int find_root(int* parent, int t) {
  while (parent[t] != t) t = parent[t] = parent[parent[t]];
  return t;
}

// w.island[unit][lane]: number of the unit's island in the lane, -1 where it is not active; kLarge - root in large islands.
// w.tree_root[tree][lane]: the island's first tree, or the tree itself.
// Returns the largest number of small islands in a lane.
template <class P> int find_islands(const Model<typename P::Scalar>& m, Work<P>& w) {
  constexpr int W = P::width;
  const int units = w.nsrow + w.ncrow;
  int rounds = 0;
  w.any_large = false;
  for (int l = 0; l < W; ++l) {
    int* parent = w.tree_parent;
    for (int t = 0; t < m.ntree; ++t) parent[t] = t;
    for (int u = 0; u < units; ++u) {
      const UnitView<P> v = unit_view(w, u);
      if (!(*v.active)[l] || v.bnum == 0) continue;
      const int first = find_root(parent, m.dof_treeid[v.bp[0]]);
      for (int i = 1; i < v.bnum; ++i) {
        const int a = find_root(parent, m.dof_treeid[v.bp[i]]), b = find_root(parent, first);
        if (a != b) parent[std::max(a, b)] = std::min(a, b);
      }
    }
    int count = 0;
    for (int t = 0; t < m.ntree; ++t) { w.tree_number[t] = -1; w.tree_rows[t] = 0; }
    for (int u = 0; u < units; ++u) {
      const UnitView<P> v = unit_view(w, u);
      if (!(*v.active)[l] || v.bnum == 0) { w.island[u * W + l] = -1; continue; }
      const int root = find_root(parent, m.dof_treeid[v.bp[0]]);
      w.tree_rows[root] += u < w.nsrow ? 1 : w.contact_dim;
      w.island[u * W + l] = root;
    }
    for (int u = 0; u < units; ++u) {
      int& k = w.island[u * W + l];
      if (k < 0) continue;
      const int root = k;
      if (w.tree_rows[root] > kDenseRows) { k = kLarge - root; w.any_large = true; continue; }
      if (w.tree_number[root] < 0) w.tree_number[root] = count++;
      k = w.tree_number[root];
    }
    for (int t = 0; t < m.ntree; ++t) w.tree_root[t * W + l] = find_root(parent, t);
    rounds = std::max(rounds, count);
  }
  return rounds;
}

}  // namespace R2S_ISA
