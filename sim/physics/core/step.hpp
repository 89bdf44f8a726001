// SPDX-License-Identifier: Apache-2.0
// One step of W worlds. step() reads as the equation of motion
//   M (v+ - v) = J_e' lam_e + J_n' lam_n + h (tau - c)
// with implicit damping and servo terms in M, equalities eliminated, contacts, limits and friction loss as an MCP.
#pragma once
#include "actuation.hpp"

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

template <class P> void energy(const Model<typename P::Scalar>& m, Work<P>& w) {
  using T = typename P::Scalar;
  P pot(0), kin(0);
  if (!(m.disableflags & kNoGravity))
    for (int b = 1; b < m.nbody; ++b) pot -= w.body_mass[b] * dot(v3(w.gravity, 0), v3(w.xipos, b));
  if (!(m.disableflags & kNoSpring)) {
    for (int j = 0; j < m.njnt; ++j) {
      if (m.jnt_stiffness[j] == 0) continue;
      const P k = P(T(0.5) * m.jnt_stiffness[j]);
      int q = m.jnt_qposadr[j];
      if (m.jnt_type[j] == kFree) {
        const Vec3<P> d = v3(w.qpos + q, 0) - vec3<P>(m.qpos_spring + q);
        pot += k * dot(d, d);
        q += 3;
      }
      if (m.jnt_type[j] == kFree || m.jnt_type[j] == kBall) {
        const Vec3<P> d = rotation_vector(mul(conj(quat<P>(m.qpos_spring + q)), normalized(q4(w.qpos + q, 0))));
        pot += k * dot(d, d);
      } else {
        const P d = w.qpos[q] - P(m.qpos_spring[q]);
        pot += k * d * d;
      }
    }
    for (int t = 0; t < m.ntendon; ++t) {
      const P lo = P(m.tendon_lengthspring[2 * t]), hi = P(m.tendon_lengthspring[2 * t + 1]), len = w.ten_length[t];
      const P d = select(len > hi, hi - len, masked(len < lo, lo - len));
      pot += P(T(0.5) * m.tendon_stiffness[t]) * d * d;
    }
  }
  mul_m(m, w, w.qvel, w.scratch);
  for (int i = 0; i < m.nv; ++i) kin = fma(w.qvel[i], w.scratch[i], kin);
  w.energy[0] = pot;
  w.energy[1] = kin * P(T(0.5));
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
