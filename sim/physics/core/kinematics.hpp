// SPDX-License-Identifier: Apache-2.0
// Positions: frames of bodies, geoms, sites, cameras; centres of mass; motion axes of dofs. MuJoCo's quantities.
#pragma once
#include "world.hpp"

namespace R2S_ISA {

template <class P> void joint_frame(const Model<typename P::Scalar>& m, Work<P>& w, int j, Vec3<P>& pos, Quat<P>& rot) {
  using T = typename P::Scalar;
  const int qa = m.jnt_qposadr[j];
  const Vec3<P> axis = vec3<P>(m.jnt_axis + 3 * j), anchor = vec3<P>(m.jnt_pos + 3 * j);
  v3(w.xanchor, j) = rotate(rot, anchor) + pos;
  v3(w.xaxis, j) = rotate(rot, axis);
  if (m.jnt_type[j] == kSlide) {
    pos = axpy(w.qpos[qa] - P(m.qpos0[qa]), v3(w.xaxis, j), pos);
    return;
  }
  const Quat<P> turn = m.jnt_type[j] == kBall ? normalized(*reinterpret_cast<Quat<P>*>(w.qpos + qa))
                                              : axis_angle(axis, w.qpos[qa] - P(m.qpos0[qa]));
  rot = mul(rot, turn);
  if (m.jnt_pos[3 * j] != T(0) || m.jnt_pos[3 * j + 1] != T(0) || m.jnt_pos[3 * j + 2] != T(0))
    pos = v3(w.xanchor, j) - rotate(rot, anchor);
}

template <class P> void body_frame(const Model<typename P::Scalar>& m, Work<P>& w, int b) {
  const int j0 = m.body_jntadr[b], nj = m.body_jntnum[b], parent = m.body_parentid[b];
  Vec3<P> pos;
  Quat<P> rot;
  if (nj == 1 && m.jnt_type[j0] == kFree) {
    const int qa = m.jnt_qposadr[j0];
    pos = v3(w.qpos + qa, 0);
    rot = normalized(q4(w.qpos + qa + 3, 0));
    v3(w.xanchor, j0) = pos;
    v3(w.xaxis, j0) = vec3<P>(m.jnt_axis + 3 * j0);
  } else {
    const bool mocap = m.body_mocapid[b] >= 0;
    const Vec3<P> lpos = mocap ? v3(w.mocap_pos, m.body_mocapid[b]) : vec3<P>(m.body_pos + 3 * b);
    const Quat<P> lrot = mocap ? normalized(q4(w.mocap_quat, m.body_mocapid[b])) : quat<P>(m.body_quat + 4 * b);
    pos = parent ? mul(m9(w.xmat, parent), lpos) + v3(w.xpos, parent) : lpos;
    rot = parent ? mul(q4(w.xquat, parent), lrot) : lrot;
    for (int j = j0; j < j0 + nj; ++j) joint_frame(m, w, j, pos, rot);
  }
  rot = normalized(rot);
  v3(w.xpos, b) = pos;
  q4(w.xquat, b) = rot;
  m9(w.xmat, b) = to_mat(rot);
}

template <class P> void attach(const Work<P>& w, int b, const Vec3<P>& lpos, const Quat<P>& lrot, Vec3<P>& pos, Mat3<P>& mat) {
  pos = mul(m9(w.xmat, b), lpos) + v3(w.xpos, b);
  mat = to_mat(mul(q4(w.xquat, b), lrot));
}

template <class P> void camera_frames(const Model<typename P::Scalar>& m, Work<P>& w) {
  using T = typename P::Scalar;
  for (int c = 0; c < m.ncam; ++c) {
    const int b = m.cam_bodyid[c], mode = m.cam_mode[c];
    Vec3<P>& pos = v3(w.cam_xpos, c);
    Mat3<P>& mat = m9(w.cam_xmat, c);
    attach(w, b, vec3<P>(m.cam_pos + 3 * c), quat<P>(m.cam_quat + 4 * c), pos, mat);
    if (mode == 0) continue;  // fixed to its body
    if (mode == 1 || mode == 2) {  // track the body or its subtree's centre, orientation of qpos0
      for (int k = 0; k < 9; ++k) mat.m[k] = P(m.cam_mat0[9 * c + k]);
      pos = mode == 1 ? v3(w.xpos, b) + vec3<P>(m.cam_pos0 + 3 * c) : v3(w.subtree_com, b) + vec3<P>(m.cam_poscom0 + 3 * c);
      continue;
    }
    const int t = m.cam_targetbodyid[c];  // look at a body or its subtree's centre
    if (t < 0) continue;
    const Vec3<P> target = mode == 3 ? v3(w.xpos, t) : v3(w.subtree_com, t);
    const Vec3<P> z = normalized(pos - target), up{P(0), P(0), P(1)};
    const Vec3<P> x = normalized(cross(up, z)), y = cross(z, x);
    mat = {{x.x, y.x, z.x, x.y, y.y, z.y, x.z, y.z, z.z}};
    (void)T(0);
  }
}

template <class P> void kinematics(const Model<typename P::Scalar>& m, Work<P>& w) {
  v3(w.xpos, 0) = zero3<P>();
  q4(w.xquat, 0) = {P(1), P(0), P(0), P(0)};
  m9(w.xmat, 0) = to_mat(q4(w.xquat, 0));
  for (int b = 1; b < m.nbody; ++b) body_frame(m, w, b);
  for (int b = 0; b < m.nbody; ++b) attach(w, b, v3(w.body_ipos, b), quat<P>(m.body_iquat + 4 * b), v3(w.xipos, b), m9(w.ximat, b));
  for (int g = 0; g < m.ngeom; ++g)
    attach(w, m.geom_bodyid[g], vec3<P>(m.geom_pos + 3 * g), quat<P>(m.geom_quat + 4 * g), v3(w.geom_xpos, g), m9(w.geom_xmat, g));
  for (int s = 0; s < m.nsite; ++s)
    attach(w, m.site_bodyid[s], vec3<P>(m.site_pos + 3 * s), quat<P>(m.site_quat + 4 * s), v3(w.site_xpos, s), m9(w.site_xmat, s));
}

template <class P> void dof_axes(const Model<typename P::Scalar>& m, Work<P>& w, int j) {
  const int b = m.jnt_bodyid[j], d = m.jnt_dofadr[j];
  const Vec3<P> offset = v3(w.subtree_com, m.body_rootid[b]) - v3(w.xanchor, j);
  auto turn = [&](int i, const Vec3<P>& axis) { s6(w.cdof, i) = {axis, cross(axis, offset)}; };
  const int type = m.jnt_type[j];
  if (type == kHinge) turn(d, v3(w.xaxis, j));
  if (type == kSlide) s6(w.cdof, d) = {zero3<P>(), v3(w.xaxis, j)};
  if (type == kFree)
    for (int k = 0; k < 3; ++k) {
      s6(w.cdof, d + k) = zero6<P>();
      s6(w.cdof, d + k).lin[k] = P(1);
    }
  if (type == kFree || type == kBall)
    for (int k = 0; k < 3; ++k) turn(d + (type == kFree ? 3 : 0) + k, m9(w.xmat, b).col(k));
}

// Centres of mass of subtrees, and everything expressed about the centre of mass of the tree.
template <class P> void com_pos(const Model<typename P::Scalar>& m, Work<P>& w) {
  using T = typename P::Scalar;
  for (int b = 0; b < m.nbody; ++b) {
    w.subtree_mass[b] = w.body_mass[b];
    v3(w.subtree_com, b) = v3(w.xipos, b) * w.body_mass[b];
  }
  for (int b = m.nbody - 1; b > 0; --b) {
    const int p = m.body_parentid[b];
    v3(w.subtree_com, p) += v3(w.subtree_com, b);
    w.subtree_mass[p] += w.subtree_mass[b];
  }
  for (int b = 0; b < m.nbody; ++b) {
    auto massive = w.subtree_mass[b] > kTiny<T>;
    Vec3<P> com = v3(w.subtree_com, b) * (P(1) / select(massive, w.subtree_mass[b], P(1)));
    v3(w.subtree_com, b) = select(massive, com, v3(w.xipos, b));
  }
  i10(w.cinert, 0) = {P(0), P(0), P(0), P(0), P(0), P(0), zero3<P>(), P(0)};
  for (int b = 1; b < m.nbody; ++b)
    i10(w.cinert, b) = displaced_inertia(m9(w.ximat, b), v3(w.body_inertia, b), v3(w.xipos, b) - v3(w.subtree_com, m.body_rootid[b]), w.body_mass[b]);
  for (int j = 0; j < m.njnt; ++j) dof_axes(m, w, j);
}

// Jacobian column of dof d at a point of its tree: velocity of the point, angular velocity.
template <class P> R2S_INLINE Vec3<P> jac_point(const Model<typename P::Scalar>& m, const Work<P>& w, int d, const Vec3<P>& point) {
  const Spatial<P>& c = s6(w.cdof, d);
  return c.lin + cross(c.ang, point - v3(w.subtree_com, m.body_rootid[m.dof_bodyid[d]]));
}

}  // namespace R2S_ISA
