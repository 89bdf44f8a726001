// SPDX-License-Identifier: Apache-2.0
// Actuators: transmissions (length, moment), activation dynamics, force = gain * input + bias, limits.
#pragma once
#include "tendon.hpp"

namespace R2S_ISA {

template <class P> void joint_transmission(const Model<typename P::Scalar>& m, Work<P>& w, int i) {
  using T = typename P::Scalar;
  const int j = m.actuator_trnid[2 * i], q = m.jnt_qposadr[j], adr = m.moment_rowadr[i], type = m.jnt_type[j];
  const T* gear = m.actuator_gear + 6 * i;
  if (type == kHinge || type == kSlide) {
    w.actuator_length[i] = w.qpos[q] * P(gear[0]);
    w.actuator_moment[adr] = P(gear[0]);
    return;
  }
  const bool parent = m.actuator_trntype[i] == kTrnJointInParent, ball = type == kBall;
  const Quat<P> rot = normalized(q4(w.qpos + q + (ball ? 0 : 3), 0));
  Vec3<P> axis = vec3<P>(gear + (ball ? 0 : 3));
  if (parent) axis = rotate(conj(rot), axis);
  w.actuator_length[i] = ball ? dot(axis, rotation_vector(rot)) : P(0);
  if (!ball)
    for (int k = 0; k < 3; ++k) w.actuator_moment[adr + k] = P(gear[k]);
  for (int k = 0; k < 3; ++k) w.actuator_moment[adr + (ball ? 0 : 3) + k] = axis[k];
}

template <class P> void site_transmission(const Model<typename P::Scalar>& m, Work<P>& w, int i) {
  using T = typename P::Scalar;
  const int s = m.actuator_trnid[2 * i], r = m.actuator_trnid[2 * i + 1], adr = m.moment_rowadr[i], n = m.moment_rownnz[i];
  const T* gear = m.actuator_gear + 6 * i;
  const Mat3<P>& frame = m9(w.site_xmat, r >= 0 ? r : s);
  const Vec3<P> g = vec3<P>(gear), gr = vec3<P>(gear + 3), force = mul(frame, g), torque = mul(frame, gr);
  for (int k = 0; k < n; ++k) w.actuator_moment[adr + k] = P(0);
  auto add = [&](int site, const P& sign) {
    for (int d = m.body_lastdof[m.site_bodyid[site]]; d >= 0; d = m.dof_parentid[d])
      for (int k = 0; k < n; ++k)
        if (m.moment_colind[adr + k] == d)
          w.actuator_moment[adr + k] += sign * (dot(force, jac_point(m, w, d, v3(w.site_xpos, site))) + dot(torque, s6(w.cdof, d).ang));
  };
  add(s, P(1));
  w.actuator_length[i] = P(0);
  if (r < 0) return;
  add(r, P(-1));
  auto site_quat = [&](int site) { return normalized(mul(q4(w.xquat, m.site_bodyid[site]), quat<P>(m.site_quat + 4 * site))); };
  const Vec3<P> apart = mul_t(frame, v3(w.site_xpos, s) - v3(w.site_xpos, r));
  P len = dot(g, apart);
  if (gear[3] != 0 || gear[4] != 0 || gear[5] != 0) len += dot(gr, rotation_vector(mul(conj(site_quat(r)), site_quat(s))));
  w.actuator_length[i] = len;
}

template <class P> void transmission(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int i = 0; i < m.nactuator; ++i) {
    const int type = m.actuator_trntype[i];
    if (type == kTrnJoint || type == kTrnJointInParent) joint_transmission(m, w, i);
    if (type == kTrnSite) site_transmission(m, w, i);
    if (type == kTrnTendon) {
      const int t = m.actuator_trnid[2 * i];
      const P gear = P(m.actuator_gear[6 * i]);
      w.actuator_length[i] = w.ten_length[t] * gear;
      for (int k = 0; k < m.moment_rownnz[i]; ++k) w.actuator_moment[m.moment_rowadr[i] + k] = w.ten_J[m.ten_J_rowadr[t] + k] * gear;
    }
  }
}

template <class P> void actuator_velocity(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int i = 0; i < m.nactuator; ++i) {
    P v(0);
    for (int k = m.moment_rowadr[i], e = k + m.moment_rownnz[i]; k < e; ++k) v = fma(w.actuator_moment[k], w.qvel[m.moment_colind[k]], v);
    w.actuator_velocity[i] = v;
  }
}

// Activation after one step, from act_dot.
template <class P> P next_activation(const Model<typename P::Scalar>& m, const Work<P>& w, int i) {
  using T = typename P::Scalar;
  const int a = m.actuator_actadr[i] + m.actuator_actnum[i] - 1;
  P act = w.act[a];
  if (m.actuator_dyntype[i] == kDynFilterExact) {
    const T tau = std::fmax(kTiny<T>, m.actuator_dynprm[10 * i]);
    act = fma(w.act_dot[a] * P(tau), P(1) - exp(w.h * P(T(-1) / tau)), act);
  } else {
    act = fma(w.act_dot[a], w.h, act);
  }
  if (m.actuator_actlimited[i]) act = clamp(act, P(m.actuator_actrange[2 * i]), P(m.actuator_actrange[2 * i + 1]));
  return act;
}

template <class P> void activation_dot(const Model<typename P::Scalar>& m, Work<P>& w, int i, const P& ctrl) {
  using T = typename P::Scalar;
  if (m.actuator_actnum[i] == 0) return;
  const int a = m.actuator_actadr[i] + m.actuator_actnum[i] - 1;
  const T tau = std::fmax(kTiny<T>, m.actuator_dynprm[10 * i]);
  w.act_dot[a] = m.actuator_dyntype[i] == kDynIntegrator ? ctrl : (ctrl - w.act[a]) * P(T(1) / tau);
}

// Force of actuator i, and what of it the step treats implicitly: its slopes in length and velocity.
template <class P> void actuator_force(const Model<typename P::Scalar>& m, Work<P>& w, int i) {
  const P len = w.actuator_length[i], vel = w.actuator_velocity[i];
  const int c = m.actuator_ctrladr[i];
  P input = w.ctrl[c];
  if (m.actuator_ctrllimited[c] && !(m.disableflags & kNoClampCtrl)) input = clamp(input, P(m.actuator_ctrlrange[2 * c]), P(m.actuator_ctrlrange[2 * c + 1]));
  activation_dot(m, w, i, input);
  if (m.actuator_actnum[i]) input = m.actuator_actearly[i] ? next_activation(m, w, i) : w.act[m.actuator_actadr[i] + m.actuator_actnum[i] - 1];
  const P *g = w.actuator_gainprm + 3 * i, *b = w.actuator_biasprm + 3 * i;
  P gain = g[0], force, kp(0), kv(0);
  if (m.actuator_gaintype[i] == kGainAffine) {
    gain += g[1] * len + g[2] * vel;
    kp = -g[1] * input;
    kv = -g[2] * input;
  }
  force = gain * input;
  if (m.actuator_biastype[i] == kBiasAffine) {
    force += b[0] + b[1] * len + b[2] * vel;
    kp -= b[1];
    kv -= b[2];
  }
  typename P::M free(true);
  if (m.actuator_forcelimited[i]) {
    const P lo = P(m.actuator_forcerange[2 * i]), hi = P(m.actuator_forcerange[2 * i + 1]);
    free = (force > lo) & (force < hi);
    force = clamp(force, lo, hi);
  }
  if (m.actuator_disabled[i]) force = kp = kv = P(0);
  w.actuator_force[i] = force;
  kp = masked(free, max(kp, P(0)));
  kv = masked(free, max(kv, P(0)));
  w.gain_stiff[i] = w.h * kv + w.h * w.h * kp;
  w.gain_shift[i] = -w.h * kp * vel;
}

// Total force of the actuators on each tendon kept within tendon_actfrcrange, by scaling.
template <class P> void clamp_tendon_force(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int t = 0; t < m.ntendon; ++t) {
    if (!m.tendon_actfrclimited[t]) continue;
    P total(0);
    for (int i = 0; i < m.nactuator; ++i)
      if (m.actuator_trntype[i] == kTrnTendon && m.actuator_trnid[2 * i] == t) total += w.actuator_force[i];
    const P bounded = clamp(total, P(m.tendon_actfrcrange[2 * t]), P(m.tendon_actfrcrange[2 * t + 1]));
    const auto over = bounded != total;
    const P scale = select(over, bounded / select(over, total, P(1)), P(1));
    for (int i = 0; i < m.nactuator; ++i)
      if (m.actuator_trntype[i] == kTrnTendon && m.actuator_trnid[2 * i] == t) w.actuator_force[i] = w.actuator_force[i] * scale;
  }
}

template <class P> void actuation(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int d = 0; d < m.nv; ++d) w.qfrc_actuator[d] = P(0);
  for (int a = 0; a < m.na; ++a) w.act_dot[a] = P(0);
  const bool off = m.disableflags & kNoActuation;
  for (int i = 0; i < m.nactuator; ++i) {
    if (off) w.actuator_force[i] = w.gain_stiff[i] = w.gain_shift[i] = P(0);
    else actuator_force(m, w, i);
  }
  clamp_tendon_force(m, w);
  for (int i = 0; i < m.nactuator; ++i)
    for (int k = m.moment_rowadr[i], e = k + m.moment_rownnz[i]; k < e; ++k) {
      P& f = w.qfrc_actuator[m.moment_colind[k]];
      f = fma(w.actuator_moment[k], w.actuator_force[i], f);
    }
  for (int j = 0; j < m.njnt; ++j) {
    const int d = m.jnt_dofadr[j], n = m.jnt_type[j] == kFree ? 6 : m.jnt_type[j] == kBall ? 3 : 1;
    if (m.jnt_actgravcomp[j])
      for (int k = 0; k < n; ++k) w.qfrc_actuator[d + k] += w.qfrc_gravcomp[d + k];
    if (m.jnt_actfrclimited[j] && n == 1) w.qfrc_actuator[d] = clamp(w.qfrc_actuator[d], P(m.jnt_actfrcrange[2 * j]), P(m.jnt_actfrcrange[2 * j + 1]));
  }
}

}  // namespace R2S_ISA
