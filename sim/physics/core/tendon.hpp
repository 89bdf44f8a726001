// SPDX-License-Identifier: Apache-2.0
// Lengths and Jacobians of fixed and spatial tendons.
#pragma once
#include "velocity.hpp"
#include "wrap.hpp"

namespace R2S_ISA {

template <class P> R2S_INLINE Vec3<Pack<typename P::Scalar, 1>> lane(const Vec3<P>& a, int l) { return {a.x[l], a.y[l], a.z[l]}; }
template <class P> R2S_INLINE Mat3<Pack<typename P::Scalar, 1>> lane(const Mat3<P>& a, int l) {
  Mat3<Pack<typename P::Scalar, 1>> r;
  for (int k = 0; k < 9; ++k) r.m[k].v = a.m[k][l];
  return r;
}
template <class P> R2S_INLINE void set_lane(Vec3<P>& a, int l, const Vec3<Pack<typename P::Scalar, 1>>& s) {
  a.x.set(l, s.x.v);
  a.y.set(l, s.y.v);
  a.z.set(l, s.z.v);
}

// J += scale * direction . velocity of a point fixed to body.
template <class P> void add_point_row(const Model<typename P::Scalar>& m, Work<P>& w, int tendon, int body, const Vec3<P>& point, const Vec3<P>& dir,
                                      const P& scale) {
  const int adr = m.ten_J_rowadr[tendon], n = m.ten_J_rownnz[tendon];
  for (int d = m.body_lastdof[body]; d >= 0; d = m.dof_parentid[d])
    for (int k = 0; k < n; ++k)
      if (m.ten_J_colind[adr + k] == d) w.ten_J[adr + k] = fma(scale, dot(dir, jac_point(m, w, d, point)), w.ten_J[adr + k]);
}

// A straight piece between points fixed to two bodies.
template <class P> void add_segment(const Model<typename P::Scalar>& m, Work<P>& w, int t, int b0, const Vec3<P>& p0, int b1, const Vec3<P>& p1,
                                    const typename P::M& on, typename P::Scalar divisor) {
  using T = typename P::Scalar;
  const Vec3<P> dif = p1 - p0;
  const P len = norm(dif), scale = P(T(1) / divisor);
  w.ten_length[t] += masked(on, len * scale);
  if (b0 == b1) return;
  const Vec3<P> dir = normalized(dif);
  add_point_row(m, w, t, b1, p1, dir, masked(on, scale));
  add_point_row(m, w, t, b0, p0, dir, masked(on, -scale));
}

template <class P> void add_wrapped(const Model<typename P::Scalar>& m, Work<P>& w, int t, int entry, typename P::Scalar divisor) {
  using T = typename P::Scalar;
  using S = Pack<T, 1>;
  const int s0 = m.wrap_objid[entry], g = m.wrap_objid[entry + 1], s1 = m.wrap_objid[entry + 2], side = int(m.wrap_prm[entry + 1]);
  const Vec3<P>&x0 = v3(w.site_xpos, s0), &x1 = v3(w.site_xpos, s1);
  typename P::M wraps(false);
  P length(0);
  Vec3<P> q0 = x0, q1 = x1;
  for (int l = 0; l < P::width; ++l) {
    Vec3<S> out[2], side_pos;
    if (side >= 0) side_pos = lane(v3(w.site_xpos, side), l);
    const T len = wrap_geom<T>(lane(x0, l), lane(x1, l), lane(v3(w.geom_xpos, g), l), lane(m9(w.geom_xmat, g), l), m.geom_size[3 * g],
                               m.wrap_type[entry + 1] == kWrapSphere, side >= 0 ? &side_pos : nullptr, out);
    if (len < 0) continue;
    wraps.set(l, true);
    length.set(l, len / divisor);
    set_lane(q0, l, out[0]);
    set_lane(q1, l, out[1]);
  }
  const int b0 = m.site_bodyid[s0], b1 = m.site_bodyid[s1], bg = m.geom_bodyid[g];
  w.ten_length[t] += length;
  add_segment(m, w, t, b0, x0, b1, x1, !wraps, divisor);
  add_segment(m, w, t, b0, x0, bg, q0, wraps, divisor);
  add_segment(m, w, t, bg, q1, b1, x1, wraps, divisor);
}

template <class P> void tendons(const Model<typename P::Scalar>& m, Work<P>& w) {
  using T = typename P::Scalar;
  for (int i = 0; i < m.nJten; ++i) w.ten_J[i] = P(0);
  for (int t = 0; t < m.ntendon; ++t) {
    w.ten_length[t] = P(0);
    T divisor = 1;
    for (int e = m.tendon_adr[t], end = e + m.tendon_num[t]; e < end;) {
      if (m.wrap_type[e] == kWrapJoint) {
        const int j = m.wrap_objid[e];
        w.ten_length[t] = fma(m.wrap_prm[e], w.qpos[m.jnt_qposadr[j]], w.ten_length[t]);
        for (int k = m.ten_J_rowadr[t], ke = k + m.ten_J_rownnz[t]; k < ke; ++k)
          if (m.ten_J_colind[k] == m.jnt_dofadr[j]) w.ten_J[k] += P(m.wrap_prm[e]);
        ++e;
        continue;
      }
      if (m.wrap_type[e] == kWrapPulley) divisor = m.wrap_prm[e];
      if (m.wrap_type[e] == kWrapPulley || e + 1 >= end || m.wrap_type[e + 1] == kWrapPulley) {
        ++e;
        continue;
      }
      const bool straight = m.wrap_type[e + 1] == kWrapSite;
      if (straight) {
        const int a = m.wrap_objid[e], b = m.wrap_objid[e + 1];
        add_segment(m, w, t, m.site_bodyid[a], v3(w.site_xpos, a), m.site_bodyid[b], v3(w.site_xpos, b), typename P::M(true), divisor);
      } else {
        add_wrapped(m, w, t, e, divisor);
      }
      e += straight ? 1 : 2;
    }
  }
}

template <class P> void tendon_velocity(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int t = 0; t < m.ntendon; ++t) {
    w.ten_velocity[t] = P(0);
    for (int k = m.ten_J_rowadr[t], e = k + m.ten_J_rownnz[t]; k < e; ++k)
      w.ten_velocity[t] = fma(w.ten_J[k], w.qvel[m.ten_J_colind[k]], w.ten_velocity[t]);
  }
}

}  // namespace R2S_ISA
