// SPDX-License-Identifier: Apache-2.0
// Velocities of bodies, recursive Newton-Euler, passive forces.
#pragma once
#include "inertia.hpp"

namespace R2S_ISA {

template <class P> void com_vel(const Model<typename P::Scalar>& m, Work<P>& w) {
  s6(w.cvel, 0) = zero6<P>();
  for (int b = 1; b < m.nbody; ++b) {
    Spatial<P> v = s6(w.cvel, m.body_parentid[b]);
    for (int j = m.body_jntadr[b]; j < m.body_jntadr[b] + m.body_jntnum[b]; ++j) {
      int d = m.jnt_dofadr[j];
      const int type = m.jnt_type[j];
      if (type == kFree)
        for (int k = 0; k < 3; ++k, ++d) {
          s6(w.cdof_dot, d) = zero6<P>();
          v = axpy(w.qvel[d], s6(w.cdof, d), v);
        }
      const int n = type == kFree || type == kBall ? 3 : 1;
      for (int k = 0; k < n; ++k) s6(w.cdof_dot, d + k) = cross_motion(v, s6(w.cdof, d + k));
      for (int k = 0; k < n; ++k) v = axpy(w.qvel[d + k], s6(w.cdof, d + k), v);
    }
    s6(w.cvel, b) = v;
  }
}

// Newton-Euler: out = M qacc (where given) + bias; cacc is left behind, without external forces.
template <class P> void rne(const Model<typename P::Scalar>& m, Work<P>& w, const P* qacc, P* out) {
  w.cacc[0] = zero6<P>();
  if (!(m.disableflags & kNoGravity)) w.cacc[0].lin = -v3(w.gravity, 0);
  w.cfrc[0] = zero6<P>();
  for (int b = 1; b < m.nbody; ++b) {
    Spatial<P> a = w.cacc[m.body_parentid[b]];
    for (int d = m.body_dofadr[b], e = d + m.body_dofnum[b]; d < e; ++d) {
      a = axpy(w.qvel[d], s6(w.cdof_dot, d), a);
      if (qacc) a = axpy(qacc[d], s6(w.cdof, d), a);
    }
    w.cacc[b] = a;
    const Inertia<P>& inertia = i10(w.cinert, b);
    w.cfrc[b] = mul(inertia, a) + cross_force(s6(w.cvel, b), mul(inertia, s6(w.cvel, b)));
  }
  for (int b = m.nbody - 1; b > 0; --b) w.cfrc[m.body_parentid[b]] += w.cfrc[b];
  for (int d = 0; d < m.nv; ++d) out[d] = dot(s6(w.cdof, d), w.cfrc[m.dof_bodyid[d]]);
}

// Generalized force of a wrench (force, torque about point) on a body: out += J' wrench.
template <class P> void apply_wrench(const Model<typename P::Scalar>& m, const Work<P>& w, int body, const Vec3<P>& point, const Vec3<P>& force,
                                     const Vec3<P>& torque, P* out) {
  const Vec3<P> moment = torque + cross(point - v3(w.subtree_com, m.body_rootid[body]), force);
  for (int d = m.body_lastdof[body]; d >= 0; d = m.dof_parentid[d]) {
    const Spatial<P>& c = s6(w.cdof, d);
    out[d] += dot(c.ang, moment) + dot(c.lin, force);
  }
}

template <class P> void joint_springs(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int j = 0; j < m.njnt; ++j) {
    if (m.jnt_stiffness[j] == 0) continue;
    const P k = P(m.jnt_stiffness[j]);
    int q = m.jnt_qposadr[j], d = m.jnt_dofadr[j];
    if (m.jnt_type[j] == kFree) {
      for (int i = 0; i < 3; ++i) w.qfrc_spring[d + i] -= k * (w.qpos[q + i] - P(m.qpos_spring[q + i]));
      q += 3;
      d += 3;
    }
    if (m.jnt_type[j] == kFree || m.jnt_type[j] == kBall) {
      const Vec3<P> dif = rotation_vector(mul(conj(quat<P>(m.qpos_spring + q)), normalized(q4(w.qpos + q, 0))));
      for (int i = 0; i < 3; ++i) w.qfrc_spring[d + i] -= k * dif[i];
    } else {
      w.qfrc_spring[d] -= k * (w.qpos[q] - P(m.qpos_spring[q]));
    }
  }
}

template <class P> void tendon_passive(const Model<typename P::Scalar>& m, Work<P>& w, bool spring, bool damper) {
  for (int t = 0; t < m.ntendon; ++t) {
    const P k = P(spring ? m.tendon_stiffness[t] : 0), b = P(damper ? m.tendon_damping[t] : 0);
    const P lo = P(m.tendon_lengthspring[2 * t]), hi = P(m.tendon_lengthspring[2 * t + 1]), len = w.ten_length[t];
    const P fs = k * select(len > hi, hi - len, masked(len < lo, lo - len)), fd = -b * w.ten_velocity[t];
    for (int i = m.ten_J_rowadr[t], e = i + m.ten_J_rownnz[t]; i < e; ++i) {
      const int d = m.ten_J_colind[i];
      w.qfrc_spring[d] = fma(w.ten_J[i], fs, w.qfrc_spring[d]);
      w.qfrc_damper[d] = fma(w.ten_J[i], fd, w.qfrc_damper[d]);
    }
  }
}

// Drag of the medium on each body's box of equal inertia (MuJoCo's inertia-box model).
template <class P> void fluid_forces(const Model<typename P::Scalar>& m, Work<P>& w) {
  using T = typename P::Scalar;
  const T density = m.medium[0], viscosity = m.medium[1], pi = T(3.14159265358979323846);
  for (int b = 1; b < m.nbody; ++b) {
    const Vec3<P> in = v3(w.body_inertia, b);
    const P mass = w.body_mass[b];
    auto heavy = mass > kTiny<T>;
    const P k = P(6) / select(heavy, mass, P(1));
    Vec3<P> box{sqrt(max(P(kTiny<T>), in.y + in.z - in.x) * k), sqrt(max(P(kTiny<T>), in.x + in.z - in.y) * k),
                sqrt(max(P(kTiny<T>), in.x + in.y - in.z) * k)};
    const Mat3<P>& rot = m9(w.ximat, b);
    const Spatial<P>& cv = s6(w.cvel, b);
    const Vec3<P> vel = cv.lin + cross(cv.ang, v3(w.xipos, b) - v3(w.subtree_com, m.body_rootid[b])) - vec3<P>(m.medium + 2);
    const Vec3<P> lw = mul_t(rot, cv.ang), lv = mul_t(rot, vel);
    Vec3<P> torque = zero3<P>(), force = zero3<P>();
    if (viscosity > 0) {
      const P diam = (box.x + box.y + box.z) * P(T(1) / T(3));
      torque = lw * (-P(pi * viscosity) * diam * diam * diam);
      force = lv * (-P(T(3) * pi * viscosity) * diam);
    }
    if (density > 0) {
      const P c = P(T(-0.5) * density), r = P(density / T(-64));
      force += Vec3<P>{c * box.y * box.z * abs(lv.x) * lv.x, c * box.x * box.z * abs(lv.y) * lv.y, c * box.x * box.y * abs(lv.z) * lv.z};
      auto p4 = [](const P& a) { return a * a * a * a; };
      torque += Vec3<P>{r * box.x * (p4(box.y) + p4(box.z)) * abs(lw.x) * lw.x, r * box.y * (p4(box.x) + p4(box.z)) * abs(lw.y) * lw.y,
                        r * box.z * (p4(box.x) + p4(box.y)) * abs(lw.z) * lw.z};
    }
    const Vec3<P> wf = mul(rot, force), wt = mul(rot, torque);
    apply_wrench(m, w, b, v3(w.xipos, b), select(heavy, wf, zero3<P>()), select(heavy, wt, zero3<P>()), w.qfrc_fluid);
  }
}

template <class P> void passive(const Model<typename P::Scalar>& m, Work<P>& w) {
  const bool spring = !(m.disableflags & kNoSpring), damper = !(m.disableflags & kNoDamper);
  for (int i = 0; i < m.nv; ++i) {
    w.qfrc_spring[i] = w.qfrc_gravcomp[i] = w.qfrc_fluid[i] = P(0);
    w.qfrc_damper[i] = damper ? -w.dof_damping[i] * w.qvel[i] : P(0);
  }
  if (spring) joint_springs(m, w);
  tendon_passive(m, w, spring, damper);
  if (!(m.disableflags & kNoGravity))
    for (int b = 1; b < m.nbody; ++b)
      if (m.body_gravcomp[b] != 0)
        apply_wrench(m, w, b, v3(w.xipos, b), v3(w.gravity, 0) * (-P(m.body_gravcomp[b]) * w.body_mass[b]), zero3<P>(), w.qfrc_gravcomp);
  if (m.fluid) fluid_forces(m, w);
  for (int i = 0; i < m.nv; ++i) {
    const P g = m.jnt_actgravcomp[m.dof_jntid[i]] ? P(0) : w.qfrc_gravcomp[i];
    w.qfrc_passive[i] = w.qfrc_spring[i] + w.qfrc_damper[i] + g + w.qfrc_fluid[i];
  }
}

}  // namespace R2S_ISA
