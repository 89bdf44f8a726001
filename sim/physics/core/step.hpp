// SPDX-License-Identifier: Apache-2.0
// One step of W worlds. step() reads as the equation of motion
//   M (v+ - v) = J_e' lam_e + J_n' lam_n + h (tau - c)
// with implicit damping and servo terms in M, equalities eliminated, contacts, limits and friction loss as an MCP.
#pragma once
#include "sensor.hpp"

namespace R2S_ISA {

template <class P> void position_stage(const Model<typename P::Scalar>& m, Work<P>& w) {
  kinematics(m, w);
  com_pos(m, w);
  camera_frames(m, w);
  tendons(m, w);
  crb_inertia(m, w);
  transmission(m, w);
}

template <class P> void velocity_stage(const Model<typename P::Scalar>& m, Work<P>& w) {
  com_vel(m, w);
  tendon_velocity(m, w);
  actuator_velocity(m, w);
  rne(m, w, static_cast<const P*>(nullptr), w.qfrc_bias);
  passive(m, w);
}

// tau - c: everything but constraints.
template <class P> void smooth_force(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int i = 0; i < m.nv; ++i) w.qfrc_smooth[i] = w.qfrc_passive[i] + w.qfrc_actuator[i] + w.qfrc_applied[i] - w.qfrc_bias[i];
  for (int b = 1; b < m.nbody; ++b) {
    const Spatial<P>& f = s6(w.xfrc_applied, b);
    P size(0);
    for (int k = 0; k < 3; ++k) size += abs(f.ang[k]) + abs(f.lin[k]);
    if (any(size > 0)) apply_wrench(m, w, b, v3(w.xipos, b), f.ang, f.lin, w.qfrc_smooth);  // MuJoCo's order: force, torque
  }
}

// Additions to M's diagonal that make dampers, springs and servos of single dofs implicit: h b, h^2 k / 4 (energy of a
// spring is kept), h kv + h^2 kp. Tendons and other servos are directly solved rows instead.
template <class P> void implicit_terms(const Model<typename P::Scalar>& m, Work<P>& w) {
  using T = typename P::Scalar;
  const bool damper = !(m.disableflags & kNoDamper), spring = !(m.disableflags & kNoSpring);
  for (int d = 0; d < m.nv; ++d) {
    w.implicit[d] = damper ? w.h * w.dof_damping[d] : P(0);
    if (spring) w.implicit[d] += w.h * w.h * P(T(0.25) * m.jnt_stiffness[m.dof_jntid[d]]);
    w.dv[d] = w.h * w.qfrc_smooth[d];
    if (w.continuous) w.implicit[d] = P(0);
  }
  if (w.continuous) return;
  for (int i = 0; i < m.nactuator; ++i) {
    const int adr = m.moment_rowadr[i], n = m.moment_rownnz[i], type = m.actuator_trntype[i];
    for (int k = adr; k < adr + n; ++k) {
      const int d = m.moment_colind[k];
      w.dv[d] = fma(w.h * w.actuator_moment[k], w.gain_shift[i], w.dv[d]);
      if (n == 1 && (type == kTrnJoint || type == kTrnJointInParent)) w.implicit[d] += w.actuator_moment[k] * w.actuator_moment[k] * w.gain_stiff[i];
    }
  }
}

// Everything before the sweeps: factor of M, rows, impacts, the unconstrained velocity, equalities, warm start.
template <class P> void prepare_constraints(const Model<typename P::Scalar>& m, const State<P>& s, int block, Work<P>& w) {
  implicit_terms(m, w);
  factor(m, w, w.implicit);
  for (int k = 0; k < m.nv; ++k) w.w[k] = whiten_velocity(m, w, w.qvel, k);
  w.npattern = w.nvalue = 0;
  prepare_equalities(m, w);
  scalar_rows(m, w);
  contact_rows(m, w);
  impacts(w);
  solve_lt(m, w, w.dv);
  for (int k = 0; k < m.nv; ++k) {
    w.w[k] = fma(w.Dsqrt[k], w.dv[k], w.w[k]);
    w.scratch[k] = w.w[k];
  }
  apply_equalities(m, w);
  warm_start(m, s, block, w);
}

// v+, qacc and the constraint force from the solved whitened velocity.
template <class P> void finish_velocity(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int k = 0; k < m.nv; ++k) w.scratch[k] = (w.w[k] - w.scratch[k]) / w.Dsqrt[k];
  for (int k = 0; k < m.nv; ++k) w.qfrc_constraint[k] = P(0);
  for (int k = 0; k < m.nv; ++k) {  // L' D^1/2 (change of w) / h
    const int adr = m.M_rowadr[k], last = m.M_rownnz[k] - 1;
    for (int a = 0; a < last; ++a) {
      P& f = w.qfrc_constraint[m.M_colind[adr + a]];
      f = fma(w.L[adr + a], w.scratch[k], f);
    }
    w.qfrc_constraint[k] += w.scratch[k];
  }
  for (int g = 0; g < m.ngroup; ++g)  // impulses of the equalities, from C lam = zeta - u+
    for (int r = 0; r < m.group_rownum[g]; ++r) {
      const int row = m.group_rowadr[g] + r, nd = m.group_dofnum[g];
      P u = w.eq_zeta[row];
      for (int d = 0; d < nd; ++d) u = fma(-w.E[m.group_Eadr[g] + r * nd + d], w.w[m.group_dof[m.group_dofadr[g] + d]], u);
      w.eq_lam[row] = u / w.eq_c[row];
    }
  const P inv_h = P(1) / w.h;
  for (int k = 0; k < m.nv; ++k) {
    w.qfrc_constraint[k] = w.qfrc_constraint[k] * inv_h;
    w.dv[k] = w.w[k] * w.Dsqrt[k];
  }
  solve_l(m, w, w.dv);
  for (int k = 0; k < m.nv; ++k) {
    w.qacc[k] = (w.dv[k] - w.qvel[k]) * inv_h;
    w.qvel[k] = w.dv[k];
  }
}

// q+ = q + h v+
template <class P> void integrate(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int j = 0; j < m.njnt; ++j) {
    int q = m.jnt_qposadr[j], d = m.jnt_dofadr[j];
    const int type = m.jnt_type[j];
    if (type == kFree) {
      for (int k = 0; k < 3; ++k) w.qpos[q + k] = fma(w.h, w.qvel[d + k], w.qpos[q + k]);
      q += 3;
      d += 3;
    }
    if (type == kFree || type == kBall) q4(w.qpos + q, 0) = integrate(normalized(q4(w.qpos + q, 0)), v3(w.qvel + d, 0), w.h);
    else w.qpos[q] = fma(w.h, w.qvel[d], w.qpos[q]);
  }
  for (int i = 0; i < m.nactuator; ++i)
    if (m.actuator_actnum[i]) w.act[m.actuator_actadr[i] + m.actuator_actnum[i] - 1] = next_activation(m, w, i);
  w.time[0] += w.h;
}

}  // namespace R2S_ISA
