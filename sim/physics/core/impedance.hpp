// SPDX-License-Identifier: Apache-2.0
// solref and solimp as a compliance and a bias: u+ = zeta - C lam (eq. 3), implicit in the constraint's spring and damper.
#pragma once
#include "whiten.hpp"

namespace R2S_ISA {

// MuJoCo's impedance at distance |r| from the constraint surface.
template <class P> P impedance(const P* solimp, const P& r) {
  using T = typename P::Scalar;
  const T lo = T(0.0001), hi = T(0.9999);
  const P d0 = clamp(solimp[0], P(lo), P(hi)), dw = clamp(solimp[1], P(lo), P(hi)), width = max(solimp[2], P(kTiny<T>));
  const P mid = clamp(solimp[3], P(lo), P(hi)), power = max(solimp[4], P(1));
  const P x = min(abs(r) / width, P(1));
  P y = x;
  if (any(power != 1)) {
    const auto low = x <= mid;
    const P a = pow(x / mid, power) * mid, b = P(1) - pow((P(1) - x) / (P(1) - mid), power) * (P(1) - mid);
    y = select(power == P(1), x, select(low, a, b));
  }
  return select(solimp[2] <= P(kTiny<T>), (d0 + dw) * P(T(0.5)), d0 + y * (dw - d0));
}

constexpr double kRigidRecovery = 0.2;  // share of a rigid constraint's position error that one step removes
constexpr double kRigidSlop = 1e-5;     // [m, rad] penetration at which rigid contacts rest, so that they stay in touch
constexpr double kRigidContactShare = 1e-5;  // compliance of rigid contacts, relative to A: redundant contacts share their load
constexpr double kRigidShare = 1e-9;    // compliance of rigid equalities, relative to A: keeps W + C invertible

// Velocity that brings a rigid unilateral constraint to its slop: at once from above, by shares from below.
template <class P> P rigid_target(const Work<P>& w, const P& err) {
  using T = typename P::Scalar;
  const P gap = err + P(T(kRigidSlop));
  return -gap * select(gap < P(0), P(T(kRigidRecovery)), P(1)) / w.h;
}

template <class P> struct Spring { P k, b, imp; };

// Stiffness and damping per unit of constraint-space mass, from either form of solref.
template <class P> Spring<P> spring(const Model<typename P::Scalar>& m, const Work<P>& w, const P* solref, const P* solimp, const P& r) {
  using T = typename P::Scalar;
  const P dmax = clamp(solimp[1], P(T(0.0001)), P(T(0.9999)));
  const auto standard = solref[0] > 0;
  P tc = solref[0];
  if (!(m.disableflags & kNoRefSafe)) tc = max(tc, w.h * P(2));
  tc = select(standard, tc, P(1));
  const P dr = select(standard, max(solref[1], P(kTiny<T>)), P(1));
  Spring<P> s;
  s.k = select(standard, P(1) / max(dmax * dmax * tc * tc * dr * dr, P(kTiny<T>)), -solref[0] / (dmax * dmax));
  s.b = select(standard, P(2) / max(dmax * tc, P(kTiny<T>)), -solref[1] / dmax);
  s.imp = impedance(solimp, r);
  return s;
}

// zeta and C of a row at position error r and velocity u, with A = J M^-1 J'.
template <class P> void compliance(const Model<typename P::Scalar>& m, const Work<P>& w, const P* solref, const P* solimp, const P& r, const P& width_r,
                                   const P& u, const P& a, P& zeta, P& c) {
  const Spring<P> s = spring(m, w, solref, solimp, width_r);
  const P hk = w.h * s.k * s.imp;
  const P inv = P(1) / (P(1) + w.h * s.b + w.h * hk);
  zeta = (u - hk * r) * inv;
  c = (P(1) - s.imp) / s.imp * a * inv;
}

}  // namespace R2S_ISA
