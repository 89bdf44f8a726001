// SPDX-License-Identifier: Apache-2.0
// Potential energy (gravity, springs) and kinetic energy.
#pragma once
#include "actuation.hpp"

namespace R2S_ISA {

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
  mul_m(m, w, w.qvel_start, w.scratch);
  for (int i = 0; i < m.nv; ++i) kin = fma(w.qvel_start[i], w.scratch[i], kin);
  w.energy[0] = pot;
  w.energy[1] = kin * P(T(0.5));
}

}  // namespace R2S_ISA
