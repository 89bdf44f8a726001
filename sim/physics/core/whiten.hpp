// SPDX-License-Identifier: Apache-2.0
// Rows of constraint Jacobians in whitened coordinates. With M = L' D L, velocities are w = D^1/2 L v and a row J becomes
// D^-1/2 L^-T J': its entries are only ancestors of the dofs that the row touches, A = J M^-1 J' is a plain dot product,
// and an impulse changes w by the same row. Rows that touch directly solved trees get a second, projected row B (eq. 5).
#pragma once
#include "collide.hpp"

namespace R2S_ISA {

template <class P> R2S_INLINE P whiten_velocity(const Model<typename P::Scalar>& m, const Work<P>& w, const P* v, int k) {
  const int adr = m.M_rowadr[k], last = m.M_rownnz[k] - 1;
  P s = v[k];
  for (int a = 0; a < last; ++a) s = fma(w.L[adr + a], v[m.M_colind[adr + a]], s);
  return s / w.Dsqrt[k];
}

// Rising list of the ancestors of two dofs (-1: none), both included.
template <class T> int chain_union(const Model<T>& m, int a, int b, int* out) {
  int n = 0;
  while (a >= 0 || b >= 0) {
    const int d = std::max(a, b);
    out[n++] = d;
    if (a == d) a = m.dof_parentid[a];
    if (b == d) b = m.dof_parentid[b];
  }
  std::reverse(out, out + n);
  return n;
}

// row <- D^-1/2 L^-T row on an ancestor-closed rising pattern.
template <class P> void whiten(const Model<typename P::Scalar>& m, const Work<P>& w, const int* pattern, int n, P* row) {
  for (int i = n - 1; i >= 0; --i) {
    const int k = pattern[i], adr = m.M_rowadr[k], last = m.M_rownnz[k] - 1;
    int p = i;
    for (int a = last - 1; a >= 0; --a) {
      const int anc = m.M_colind[adr + a];
      do --p; while (pattern[p] != anc);
      row[p] = fma(-w.L[adr + a], row[i], row[p]);
    }
    row[i] = row[i] * w.Dsqrt[k];
  }
}

// Solve with a group's factor (W_ee + C_e) = F F': x <- (F F')^-1 x.
template <class P> void group_solve(const P* F, int n, P* x) {
  for (int i = 0; i < n; ++i) {
    P s = x[i];
    for (int k = 0; k < i; ++k) s = fma(-F[i * n + k], x[k], s);
    x[i] = s * F[i * n + i];  // the diagonal holds reciprocals
  }
  for (int i = n - 1; i >= 0; --i) {
    P s = x[i];
    for (int k = i + 1; k < n; ++k) s = fma(-F[k * n + i], x[k], s);
    x[i] = s * F[i * n + i];
  }
}

// B rows of whitened rows J on pattern: B = J - E' (W + C)^-1 E J in each directly solved group that the pattern meets.
// Returns the offset of B's pattern and sets its length; values follow in w.value. False where there is no room.
template <class P> bool project(const Model<typename P::Scalar>& m, Work<P>& w, int adr, int num, int dim, int vadr, int& badr, int& bnum, int& bvadr) {
  int groups[8], ng = 0;
  const int* pattern = w.pattern + adr;
  for (int i = 0; i < num; ++i) {
    const int g = m.tree_group[m.dof_treeid[pattern[i]]];
    if (g < 0) continue;
    bool known = false;
    for (int k = 0; k < ng; ++k) known = known || groups[k] == g;
    if (!known && ng < 8) groups[ng++] = g;
  }
  badr = adr;
  bnum = num;
  bvadr = vadr;
  if (ng == 0) return true;
  int count = 0;
  for (int k = 0; k < ng; ++k) count += m.group_dofnum[groups[k]];
  for (int i = 0; i < num; ++i) count += m.tree_group[m.dof_treeid[pattern[i]]] < 0;
  if (w.npattern + count > w.max_pattern || w.nvalue + count * dim > w.max_value) return false;
  badr = w.npattern;
  bnum = count;
  bvadr = w.nvalue;
  w.npattern += count;
  w.nvalue += count * dim;
  int* bp = w.pattern + badr;
  int at = 0;
  for (int k = 0; k < ng; ++k)
    for (int i = 0; i < m.group_dofnum[groups[k]]; ++i) bp[at++] = m.group_dof[m.group_dofadr[groups[k]] + i];
  const int grouped = at;
  for (int i = 0; i < num; ++i)
    if (m.tree_group[m.dof_treeid[pattern[i]]] < 0) bp[at++] = pattern[i];
  for (int r = 0; r < dim; ++r) {
    const P* J = w.value + vadr + r * num;
    P* B = w.value + bvadr + r * count;
    for (int i = 0; i < count; ++i) B[i] = P(0);
    int loose = grouped;
    for (int i = 0; i < num; ++i) {
      const int g = m.tree_group[m.dof_treeid[pattern[i]]];
      if (g < 0) { B[loose++] = J[i]; continue; }
      int base = 0;
      for (int k = 0; groups[k] != g; ++k) base += m.group_dofnum[groups[k]];
      B[base + m.dof_groupslot[pattern[i]]] = J[i];
    }
    int base = 0;
    for (int k = 0; k < ng; ++k) {
      const int g = groups[k], nd = m.group_dofnum[g], nr = m.group_rownum[g];
      const P* E = w.E + m.group_Eadr[g];
      P* z = w.eq_scratch;
      for (int i = 0; i < nr; ++i) {
        P s(0);
        for (int d = 0; d < nd; ++d) s = fma(E[i * nd + d], B[base + d], s);
        z[i] = s;
      }
      group_solve(w.Efactor + m.group_Wadr[g], nr, z);
      for (int i = 0; i < nr; ++i)
        for (int d = 0; d < nd; ++d) B[base + d] = fma(-E[i * nd + d], z[i], B[base + d]);
      base += nd;
    }
  }
  return true;
}

template <class P> R2S_INLINE P row_dot(const int* pattern, const P* row, int n, const P* x) {
  P s(0);
  for (int i = 0; i < n; ++i) s = fma(row[i], x[pattern[i]], s);
  return s;
}

}  // namespace R2S_ISA
