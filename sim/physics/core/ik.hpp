// SPDX-License-Identifier: Apache-2.0
// Inverse kinematics by damped least squares, W worlds at once: several site targets, joint limits, and a posture that is
// approached in the null space.
#pragma once
#include "kinematics.hpp"

namespace R2S_ISA {

constexpr int kMaxIkSites = 4;

struct IkOptions {
  int iterations;
  double damping, position_tolerance, rotation_tolerance, rotation_weight, posture, max_step;  // [1], [m], [rad], [m/rad], [1], [rad]
};

// Cholesky solve of the n x n system A x = b in place, A symmetric positive definite, rows of length n.
template <class P> void cholesky_solve(P* A, P* b, int n) {
  using T = typename P::Scalar;
  for (int i = 0; i < n; ++i)
    for (int j = 0; j <= i; ++j) {
      P s = A[i * n + j];
      for (int k = 0; k < j; ++k) s = fma(-A[i * n + k], A[j * n + k], s);
      A[i * n + j] = i == j ? P(1) / sqrt(max(s, P(kTiny<T>))) : s * A[j * n + j];
    }
  for (int i = 0; i < n; ++i) {
    P s = b[i];
    for (int k = 0; k < i; ++k) s = fma(-A[i * n + k], b[k], s);
    b[i] = s * A[i * n + i];
  }
  for (int i = n - 1; i >= 0; --i) {
    P s = b[i];
    for (int k = i + 1; k < n; ++k) s = fma(-A[k * n + i], b[k], s);
    b[i] = s * A[i * n + i];
  }
}

// J dq for the posture's projection, and dq += J' y.
template <class P> void add_transposed(const P* J, int rows, int nv, const P* y, P* dq) {
  for (int d = 0; d < nv; ++d)
    for (int r = 0; r < rows; ++r) dq[d] = fma(J[r * nv + d], y[r], dq[d]);
}

// Errors e and Jacobian rows of all targets (position, then rotation scaled by its weight); lanes within tolerance.
template <class P> typename P::M ik_rows(const Model<typename P::Scalar>& m, const Work<P>& w, const int* sites, int nsite, const P* targets,
                                         const IkOptions& o, P* J, P* e) {
  using T = typename P::Scalar;
  typename P::M done(true);
  const P weight = P(T(o.rotation_weight));
  for (int s = 0; s < nsite; ++s) {
    const int body = m.site_bodyid[sites[s]];
    const P* t = targets + 7 * s;
    const Vec3<P> pos = v3(w.site_xpos, sites[s]), ep = Vec3<P>{t[0], t[1], t[2]} - pos;
    const Quat<P> rot = mul(q4(w.xquat, body), quat<P>(m.site_quat + 4 * sites[s]));
    const Vec3<P> er = rotation_vector(mul(normalized(Quat<P>{t[3], t[4], t[5], t[6]}), conj(rot)));
    done = done & (norm(ep) < P(T(o.position_tolerance)));
    if (o.rotation_weight > 0) done = done & (norm(er) < P(T(o.rotation_tolerance)));
    for (int k = 0; k < 3; ++k) {
      e[6 * s + k] = ep[k];
      e[6 * s + 3 + k] = er[k] * weight;
    }
    for (int i = 0; i < 6 * m.nv; ++i) J[6 * s * m.nv + i] = P(0);
    for (int d = m.body_lastdof[body]; d >= 0; d = m.dof_parentid[d]) {
      const Vec3<P> jp = jac_point(m, w, d, pos), jr = s6(w.cdof, d).ang * weight;
      for (int k = 0; k < 3; ++k) {
        J[(6 * s + k) * m.nv + d] = jp[k];
        J[(6 * s + 3 + k) * m.nv + d] = jr[k];
      }
    }
  }
  return done;
}

// One damped step dq = J' (J J' + lambda^2)^-1 e, and the posture's pull with its part in the range of J' taken out.
template <class P> void ik_step(const Model<typename P::Scalar>& m, const Work<P>& w, int rows, const IkOptions& o, const P* posture, const P* J, const P* e,
                                P* A, P* y, P* dq) {
  using T = typename P::Scalar;
  P err(0);
  for (int r = 0; r < rows; ++r) err = fma(e[r], e[r], err);
  const P lambda2 = P(T(o.damping)) * err + P(T(o.damping * 1e-6));  // damping fades with the error: steps end as Gauss-Newton's
  for (int d = 0; d < m.nv; ++d) dq[d] = P(0);
  if (o.posture > 0)
    for (int j = 0; j < m.njnt; ++j)
      if (m.jnt_type[j] >= kSlide) dq[m.jnt_dofadr[j]] = (posture[m.jnt_qposadr[j]] - w.qpos[m.jnt_qposadr[j]]) * P(T(o.posture));
  for (int i = 0; i < rows; ++i) {
    y[i] = e[i];
    for (int d = 0; d < m.nv; ++d) y[i] = fma(-J[i * m.nv + d], dq[d], y[i]);
    for (int j = 0; j <= i; ++j) {
      P s = i == j ? lambda2 : P(0);
      for (int d = 0; d < m.nv; ++d) s = fma(J[i * m.nv + d], J[j * m.nv + d], s);
      A[i * rows + j] = s;
    }
  }
  cholesky_solve(A, y, rows);
  add_transposed(J, rows, m.nv, y, dq);
}

// Move qpos along dq in the lanes that go, no dof by more than the largest step, scalar joints within their limits.
template <class P> void ik_move(const Model<typename P::Scalar>& m, Work<P>& w, const IkOptions& o, const P* dq, const typename P::M& go) {
  using T = typename P::Scalar;
  P largest(T(o.max_step));
  for (int d = 0; d < m.nv; ++d) largest = max(largest, abs(dq[d]));
  const P scale = P(T(o.max_step)) / largest;
  for (int j = 0; j < m.njnt; ++j) {
    const int q = m.jnt_qposadr[j], d = m.jnt_dofadr[j];
    if (m.jnt_type[j] < kSlide) continue;  // floating bases and ball joints are held
    P next = fma(dq[d], scale, w.qpos[q]);
    if (m.jnt_limited[j]) next = clamp(next, P(m.jnt_range[2 * j]), P(m.jnt_range[2 * j + 1]));
    w.qpos[q] = select(go, next, w.qpos[q]);
  }
}

// Frames that the targets need, no more: bodies, then the sites that are asked for.
template <class P> void ik_kinematics(const Model<typename P::Scalar>& m, Work<P>& w, const int* sites, int nsite) {
  v3(w.xpos, 0) = zero3<P>();
  q4(w.xquat, 0) = {P(1), P(0), P(0), P(0)};
  m9(w.xmat, 0) = to_mat(q4(w.xquat, 0));
  for (int b = 1; b < m.nbody; ++b) body_frame(m, w, b);
  for (int b = 0; b < m.nbody; ++b) v3(w.subtree_com, b) = zero3<P>();  // any common reference point serves a Jacobian
  for (int j = 0; j < m.njnt; ++j) dof_axes(m, w, j);
  for (int s = 0; s < nsite; ++s)
    attach(w, m.site_bodyid[sites[s]], vec3<P>(m.site_pos + 3 * sites[s]), quat<P>(m.site_quat + 4 * sites[s]), v3(w.site_xpos, sites[s]), m9(w.site_xmat, sites[s]));
}

// Solves in place on w.qpos; returns the lanes that converged.
template <class P> typename P::M solve_ik(const Model<typename P::Scalar>& m, Work<P>& w, const int* sites, int nsite, const P* targets, const P* posture,
                                          const IkOptions& o, P* J, P* A) {
  P e[6 * kMaxIkSites], y[6 * kMaxIkSites];
  typename P::M done(false);
  for (int it = 0; it <= o.iterations; ++it) {
    ik_kinematics(m, w, sites, nsite);
    done = ik_rows(m, w, sites, nsite, targets, o, J, e);
    const auto go = w.live & !done;
    if (!any(go) || it == o.iterations) break;
    ik_step(m, w, 6 * nsite, o, posture, J, e, A, y, w.dv);
    ik_move(m, w, o, w.dv, go);
  }
  return done;
}

}  // namespace R2S_ISA
