// SPDX-License-Identifier: Apache-2.0
// Composite-rigid-body inertia on the tree's pattern, its factorisation M = L' D L, and solves with the factor.
// Row i of the pattern: the ancestors of dof i in rising order, then i.
#pragma once
#include "kinematics.hpp"

namespace R2S_ISA {

template <class P> void crb_inertia(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int b = 0; b < m.nbody; ++b) w.crb[b] = i10(w.cinert, b);
  for (int b = m.nbody - 1; b > 0; --b)
    if (m.body_parentid[b] > 0) w.crb[m.body_parentid[b]] = w.crb[m.body_parentid[b]] + w.crb[b];
  for (int i = 0; i < m.nv; ++i) {
    const Spatial<P> f = mul(w.crb[m.dof_bodyid[i]], s6(w.cdof, i));
    const int adr = m.M_rowadr[i], n = m.M_rownnz[i];
    for (int k = 0; k < n; ++k) w.M[adr + k] = dot(s6(w.cdof, m.M_colind[adr + k]), f);
    w.M[adr + n - 1] += P(m.dof_armature[i]);
  }
}

// L, 1/D and 1/sqrt(D) of M + diag(add).
template <class P> void factor(const Model<typename P::Scalar>& m, Work<P>& w, const P* add) {
  using T = typename P::Scalar;
  for (int i = 0; i < m.nM; ++i) w.L[i] = w.M[i];
  for (int k = m.nv - 1; k >= 0; --k) {
    const int adr = m.M_rowadr[k], last = m.M_rownnz[k] - 1;
    const P d = max(w.L[adr + last] + (add ? add[k] : P(0)), P(kTiny<T>));
    w.Dinv[k] = P(1) / d;
    w.Dsqrt[k] = sqrt(w.Dinv[k]);
    for (int a = last - 1; a >= 0; --a) {
      const P f = w.L[adr + a] * w.Dinv[k];
      P* row = w.L + m.M_rowadr[m.M_colind[adr + a]];
      for (int b = 0; b <= a; ++b) row[b] = fma(-f, w.L[adr + b], row[b]);
      w.L[adr + a] = f;
    }
  }
}

// x <- L^-T x, all dofs (leaves to root).
template <class P> void solve_lt(const Model<typename P::Scalar>& m, const Work<P>& w, P* x) {
  for (int k = m.nv - 1; k >= 0; --k) {
    const int adr = m.M_rowadr[k], last = m.M_rownnz[k] - 1;
    for (int a = 0; a < last; ++a) {
      P& y = x[m.M_colind[adr + a]];
      y = fma(-w.L[adr + a], x[k], y);
    }
  }
}

// x <- L^-1 x, all dofs (root to leaves).
template <class P> void solve_l(const Model<typename P::Scalar>& m, const Work<P>& w, P* x) {
  for (int k = 0; k < m.nv; ++k) {
    const int adr = m.M_rowadr[k], last = m.M_rownnz[k] - 1;
    P s = x[k];
    for (int a = 0; a < last; ++a) s = fma(-w.L[adr + a], x[m.M_colind[adr + a]], s);
    x[k] = s;
  }
}

// x <- (L' D L)^-1 x
template <class P> void solve_m(const Model<typename P::Scalar>& m, const Work<P>& w, P* x) {
  solve_lt(m, w, x);
  for (int i = 0; i < m.nv; ++i) x[i] = x[i] * w.Dinv[i];
  solve_l(m, w, x);
}

// y = M x with the unfactored inertia.
template <class P> void mul_m(const Model<typename P::Scalar>& m, const Work<P>& w, const P* x, P* y) {
  for (int i = 0; i < m.nv; ++i) y[i] = P(0);
  for (int i = 0; i < m.nv; ++i) {
    const int adr = m.M_rowadr[i], last = m.M_rownnz[i] - 1;
    for (int a = 0; a < last; ++a) {
      const int j = m.M_colind[adr + a];
      y[i] = fma(w.M[adr + a], x[j], y[i]);
      y[j] = fma(w.M[adr + a], x[i], y[j]);
    }
    y[i] = fma(w.M[adr + last], x[i], y[i]);
  }
}

}  // namespace R2S_ISA
