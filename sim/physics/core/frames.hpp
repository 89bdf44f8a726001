// SPDX-License-Identifier: Apache-2.0
// Frames, velocities and accelerations of the objects that sensors are attached to; forces between bodies.
#pragma once
#include "energy.hpp"
#include "ray.hpp"
#include "solver.hpp"

namespace R2S_ISA {

enum ObjectType { kObjBody = 1, kObjXBody = 2, kObjGeom = 5, kObjSite = 6, kObjCamera = 7 };

template <class P> struct ObjectFrame { int body; Vec3<P> pos; Mat3<P> mat; Quat<P> rot; };

template <class P> ObjectFrame<P> object_frame(const Model<typename P::Scalar>& m, const Work<P>& w, int type, int id) {
  auto at = [&](int body, const P* pos, const P* mat, const typename P::Scalar* local) {
    const Quat<P>& q = q4(w.xquat, body);
    return ObjectFrame<P>{body, reinterpret_cast<const Vec3<P>*>(pos)[id], reinterpret_cast<const Mat3<P>*>(mat)[id], local ? mul(q, quat<P>(local + 4 * id)) : q};
  };
  if (type == kObjBody) return at(id, w.xipos, w.ximat, m.body_iquat);
  if (type == kObjGeom) return at(m.geom_bodyid[id], w.geom_xpos, w.geom_xmat, m.geom_quat);
  if (type == kObjSite) return at(m.site_bodyid[id], w.site_xpos, w.site_xmat, m.site_quat);
  if (type == kObjCamera) return at(m.cam_bodyid[id], w.cam_xpos, w.cam_xmat, m.cam_quat);
  return at(id, w.xpos, w.xmat, nullptr);
}

// A spatial velocity or acceleration of a body, taken at another point.
template <class P> Spatial<P> at_point(const Model<typename P::Scalar>& m, const Work<P>& w, const Spatial<P>& s, int body, const Vec3<P>& point) {
  return {s.ang, s.lin + cross(s.ang, point - v3(w.subtree_com, m.body_rootid[body]))};
}
template <class P> Spatial<P> object_velocity(const Model<typename P::Scalar>& m, const Work<P>& w, const ObjectFrame<P>& f) {
  return at_point(m, w, s6(w.cvel, f.body), f.body, f.pos);
}
// Acceleration of the point itself (gravity as an upward acceleration): the spatial one plus w x v.
template <class P> Spatial<P> object_acceleration(const Model<typename P::Scalar>& m, const Work<P>& w, const ObjectFrame<P>& f) {
  Spatial<P> a = at_point(m, w, w.cacc[f.body], f.body, f.pos);
  const Spatial<P> v = object_velocity(m, w, f);
  a.lin += cross(v.ang, v.lin);
  return a;
}

template <class P> void subtree_velocity(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int b = 0; b < m.nbody; ++b) {
    const Spatial<P> v = at_point(m, w, s6(w.cvel, b), b, v3(w.xipos, b));
    w.subtree_linvel[b] = v.lin * w.body_mass[b];
    const Vec3<P> lw = mul_t(m9(w.ximat, b), v.ang), in = v3(w.body_inertia, b);
    w.subtree_angmom[b] = mul(m9(w.ximat, b), Vec3<P>{lw.x * in.x, lw.y * in.y, lw.z * in.z});
  }
  for (int b = m.nbody - 1; b >= 0; --b) {  // linear momenta, then velocities
    if (b > 0) w.subtree_linvel[m.body_parentid[b]] += w.subtree_linvel[b];
  }
  for (int b = 0; b < m.nbody; ++b) w.subtree_linvel[b] = w.subtree_linvel[b] * (P(1) / max(w.subtree_mass[b], P(kTiny<typename P::Scalar>)));
  for (int b = m.nbody - 1; b >= 0; --b) {
    const Vec3<P> own = at_point(m, w, s6(w.cvel, b), b, v3(w.xipos, b)).lin;
    const Vec3<P> arm = v3(w.xipos, b) - v3(w.subtree_com, b);
    w.subtree_angmom[b] += cross(arm, (own - w.subtree_linvel[b]) * w.body_mass[b]);
    if (b == 0) continue;
    const int p = m.body_parentid[b];
    const Vec3<P> d = v3(w.subtree_com, b) - v3(w.subtree_com, p), dv = w.subtree_linvel[b] - w.subtree_linvel[p];
    w.subtree_angmom[p] += w.subtree_angmom[b] + cross(d, dv * w.subtree_mass[b]);
  }
}

// Force and torque on a body from outside, about the centre of its tree.
template <class P> void push_body(const Model<typename P::Scalar>& m, Work<P>& w, int b, const Vec3<P>& point, const Vec3<P>& force, const Vec3<P>& torque) {
  if (b == 0) return;
  w.cfrc[b].ang -= torque + cross(point - v3(w.subtree_com, m.body_rootid[b]), force);
  w.cfrc[b].lin -= force;
}

template <class P> void push_equalities(const Model<typename P::Scalar>& m, Work<P>& w, const P& inv_h) {
  for (int e = 0; e < m.neq; ++e) {
    const int r = m.eq_rowadr[e];
    if (r < 0 || m.eq_type[e] > kEqWeld) continue;
    const EqFrame<P> f = equality_frame(m, w, e);
    const P* lam = w.eq_lam + r;
    const Vec3<P> force = Vec3<P>{lam[0], lam[1], lam[2]} * inv_h;
    Vec3<P> torque = zero3<P>();
    if (m.eq_type[e] == kEqWeld) {
      const P half = P(typename P::Scalar(0.5) * m.eq_data[kEqData * e + 10]) * inv_h;
      for (int k = 0; k < 3; ++k) {
        Vec3<P> axis = zero3<P>();
        axis[k] = P(1);
        const Quat<P> q = mul(mul(conj(f.rot[1]), Quat<P>{P(0), axis.x, axis.y, axis.z}), f.rot[0]);
        torque[k] = (q.x * lam[3] + q.y * lam[4] + q.z * lam[5]) * half;
      }
    }
    push_body(m, w, f.body[0], f.pos[0], force, torque);
    push_body(m, w, f.body[1], f.pos[1], -force, -torque);
  }
}

// cacc with qacc, and cfrc = the force that each body gets from its parent, contacts and equalities accounted for.
template <class P> void rne_post_constraint(const Model<typename P::Scalar>& m, Work<P>& w) {
  const P inv_h = P(1) / w.h;
  w.cacc[0] = zero6<P>();
  if (!(m.disableflags & kNoGravity)) w.cacc[0].lin = -v3(w.gravity, 0);
  w.cfrc[0] = zero6<P>();
  for (int b = 1; b < m.nbody; ++b) {
    Spatial<P> a = w.cacc[m.body_parentid[b]];
    for (int d = m.body_dofadr[b], e = d + m.body_dofnum[b]; d < e; ++d) a = axpy(w.qacc[d], s6(w.cdof, d), axpy(w.qvel_start[d], s6(w.cdof_dot, d), a));
    w.cacc[b] = a;
    const Inertia<P>& in = i10(w.cinert, b);
    w.cfrc[b] = mul(in, a) + cross_force(s6(w.cvel, b), mul(in, s6(w.cvel, b)));
    push_body(m, w, b, v3(w.xipos, b), s6(w.xfrc_applied, b).ang, s6(w.xfrc_applied, b).lin);
  }
  for (int i = 0; i < w.ncon; ++i) {
    const Contact<P>& c = w.contact[i];
    const P n = masked(c.active, c.lam[0] + c.impact) * inv_h;
    Vec3<P> force = c.n * n, torque = zero3<P>();
    if (c.dim >= 3) force += (c.t1 * masked(c.active, c.lam[1]) + c.t2 * masked(c.active, c.lam[2])) * inv_h;
    if (c.dim >= 4) torque += c.n * (masked(c.active, c.lam[3]) * inv_h);
    if (c.dim >= 6) torque += (c.t1 * masked(c.active, c.lam[4]) + c.t2 * masked(c.active, c.lam[5])) * inv_h;
    push_body(m, w, m.geom_bodyid[c.geom2], c.pos, force, torque);
    push_body(m, w, m.geom_bodyid[c.geom1], c.pos, -force, -torque);
  }
  push_equalities(m, w, inv_h);
  for (int b = m.nbody - 1; b > 0; --b) w.cfrc[m.body_parentid[b]] += w.cfrc[b];
}

}  // namespace R2S_ISA
