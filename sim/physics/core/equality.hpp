// SPDX-License-Identifier: Apache-2.0
// Directly solved rows: equalities, and implicit terms of tendons and servos. A group's rows are dense over its dofs;
// W_ee + C_e is factored once a step, and the group is eliminated (eqs. 5, 6).
#pragma once
#include "impedance.hpp"

namespace R2S_ISA {

constexpr int kEqData = 12;  // numbers an equality in eq_data

template <class P> struct EqFrame { int body[2]; Vec3<P> pos[2]; Quat<P> rot[2]; };

template <class P> EqFrame<P> equality_frame(const Model<typename P::Scalar>& m, const Work<P>& w, int e) {
  constexpr int kSite = 6;  // mjOBJ_SITE
  EqFrame<P> f;
  const bool sites = m.eq_objtype[e] == kSite, weld = m.eq_type[e] == kEqWeld;
  for (int k = 0; k < 2; ++k) {
    const int id = k == 0 ? m.eq_obj1id[e] : m.eq_obj2id[e];
    f.body[k] = sites ? m.site_bodyid[id] : id;
    if (sites) {
      f.pos[k] = v3(w.site_xpos, id);
      f.rot[k] = normalized(mul(q4(w.xquat, f.body[k]), quat<P>(m.site_quat + 4 * id)));
    } else {
      f.pos[k] = mul(m9(w.xmat, id), vec3<P>(m.eq_data + kEqData * e + 3 * (weld ? 1 - k : k))) + v3(w.xpos, id);
      f.rot[k] = q4(w.xquat, id);
    }
  }
  if (weld && !sites) f.rot[0] = mul(f.rot[0], quat<P>(m.eq_data + kEqData * e + 6));
  return f;
}

// Calls f(dof, sign) for the dofs of two bodies that move them against each other: +1 first, -1 second.
template <class T, class F> void relative_dofs(const Model<T>& m, int b1, int b2, F f) {
  int a = m.body_lastdof[b1], b = m.body_lastdof[b2];
  while (a != b) {
    if (a > b) { f(a, T(1)); a = m.dof_parentid[a]; }
    else { f(b, T(-1)); b = m.dof_parentid[b]; }
  }
}

// Position error and dense Jacobian rows (not yet whitened) of equality e, written at row r0 of group g.
template <class P> void equality_rows(const Model<typename P::Scalar>& m, Work<P>& w, int e, int g, int r0) {
  using T = typename P::Scalar;
  const int nd = m.group_dofnum[g];
  P* E = w.E + m.group_Eadr[g] + (r0 - m.group_rowadr[g]) * nd;
  P* pos = w.eq_zeta + r0;
  const T* data = m.eq_data + kEqData * e;
  if (m.eq_type[e] == kEqConnect || m.eq_type[e] == kEqWeld) {
    const EqFrame<P> f = equality_frame(m, w, e);
    for (int k = 0; k < 3; ++k) pos[k] = f.pos[0][k] - f.pos[1][k];
    const bool weld = m.eq_type[e] == kEqWeld;
    const P scale = P(weld ? data[10] : T(0));
    const Quat<P> back = conj(f.rot[1]), turn = mul(back, f.rot[0]);
    if (weld) { pos[3] = turn.x * scale; pos[4] = turn.y * scale; pos[5] = turn.z * scale; }
    auto column = [&](int d, T sign) {
      const int s = m.dof_groupslot[d];
      const Vec3<P> jp = jac_point(m, w, d, sign > 0 ? f.pos[0] : f.pos[1]) * P(sign);
      for (int k = 0; k < 3; ++k) E[k * nd + s] = jp[k];
      if (!weld) return;
      const Vec3<P> a = s6(w.cdof, d).ang * P(sign);
      const Quat<P> q = mul(mul(back, Quat<P>{P(0), a.x, a.y, a.z}), f.rot[0]);
      const P half = scale * P(T(0.5));
      E[3 * nd + s] = q.x * half;
      E[4 * nd + s] = q.y * half;
      E[5 * nd + s] = q.z * half;
    };
    relative_dofs(m, f.body[0], f.body[1], column);
    // dofs common to both bodies move the two anchors differently where these are apart
    int a = m.body_lastdof[f.body[0]], b = m.body_lastdof[f.body[1]];
    while (a != b) (a > b ? a : b) = m.dof_parentid[a > b ? a : b];
    for (; a >= 0; a = m.dof_parentid[a]) {
      const Vec3<P> jp = cross(s6(w.cdof, a).ang, f.pos[0] - f.pos[1]);
      for (int k = 0; k < 3; ++k) E[k * nd + m.dof_groupslot[a]] = jp[k];
    }
    return;
  }
  const bool tendon = m.eq_type[e] == kEqTendon;
  const int i1 = m.eq_obj1id[e], i2 = m.eq_obj2id[e];
  auto value = [&](int i) { return tendon ? w.ten_length[i] - P(m.tendon_length0[i]) : w.qpos[m.jnt_qposadr[i]] - P(m.qpos0[m.jnt_qposadr[i]]); };
  auto add = [&](int i, const P& s) {
    if (!tendon) { P& x = E[m.dof_groupslot[m.jnt_dofadr[i]]]; x = x + s; return; }
    for (int k = m.ten_J_rowadr[i], end = k + m.ten_J_rownnz[i]; k < end; ++k) {
      P& x = E[m.dof_groupslot[m.ten_J_colind[k]]];
      x = fma(s, w.ten_J[k], x);
    }
  };
  pos[0] = value(i1) - P(data[0]);
  add(i1, P(1));
  if (i2 < 0) return;
  const P x = value(i2);
  pos[0] -= x * (P(data[1]) + x * (P(data[2]) + x * (P(data[3]) + x * P(data[4]))));
  add(i2, -(P(data[1]) + x * (P(2 * data[2]) + x * (P(3 * data[3]) + x * P(4 * data[4])))));
}

// A tendon's or servo's implicit weight as a row of compliance 1/weight whose target is the present velocity.
template <class P> typename P::M implicit_row(const Model<typename P::Scalar>& m, Work<P>& w, int r, int g, P& c) {
  using T = typename P::Scalar;
  P* E = w.E + m.group_Eadr[g] + (r - m.group_rowadr[g]) * m.group_dofnum[g];
  const int id = m.row_id[r];
  P weight;
  if (m.row_kind[r] == kRowTendon) {
    const bool damper = !(m.disableflags & kNoDamper), springs = !(m.disableflags & kNoSpring);
    const auto stretched = (w.ten_length[id] > P(m.tendon_lengthspring[2 * id + 1])) | (w.ten_length[id] < P(m.tendon_lengthspring[2 * id]));
    weight = w.h * P(damper ? m.tendon_damping[id] : T(0)) + masked(stretched, w.h * w.h * P(springs ? T(0.25) * m.tendon_stiffness[id] : T(0)));
    for (int k = m.ten_J_rowadr[id], e = k + m.ten_J_rownnz[id]; k < e; ++k) E[m.dof_groupslot[m.ten_J_colind[k]]] = w.ten_J[k];
  } else {
    weight = w.gain_stiff[id];
    for (int k = m.moment_rowadr[id], e = k + m.moment_rownnz[id]; k < e; ++k) E[m.dof_groupslot[m.moment_colind[k]]] = w.actuator_moment[k];
  }
  const auto on = (weight > kTiny<T>) & typename P::M(!w.continuous);
  c = P(1) / select(on, weight, P(1));
  return on;
}

template <class P> void whiten_group(const Model<typename P::Scalar>& m, Work<P>& w, int g) {
  const int nd = m.group_dofnum[g], nr = m.group_rownum[g];
  const int* dof = m.group_dof + m.group_dofadr[g];
  for (int r = 0; r < nr; ++r) {
    P* row = w.E + m.group_Eadr[g] + r * nd;
    for (int i = nd - 1; i >= 0; --i) {
      const int k = dof[i], adr = m.M_rowadr[k], last = m.M_rownnz[k] - 1;
      for (int a = 0; a < last; ++a) {
        P& y = row[m.dof_groupslot[m.M_colind[adr + a]]];
        y = fma(-w.L[adr + a], row[i], y);
      }
      row[i] = row[i] * w.Dsqrt[k];
    }
  }
}

template <class P> void factor_group(const Model<typename P::Scalar>& m, Work<P>& w, int g) {
  using T = typename P::Scalar;
  const int nd = m.group_dofnum[g], n = m.group_rownum[g], r0 = m.group_rowadr[g];
  const P* E = w.E + m.group_Eadr[g];
  P* F = w.Efactor + m.group_Wadr[g];
  for (int i = 0; i < n; ++i)
    for (int j = 0; j <= i; ++j) {
      P s = i == j ? w.eq_c[r0 + i] : P(0);
      for (int d = 0; d < nd; ++d) s = fma(E[i * nd + d], E[j * nd + d], s);
      for (int k = 0; k < j; ++k) s = fma(-F[i * n + k], F[j * n + k], s);
      F[i * n + j] = i == j ? P(1) / sqrt(max(s, P(kTiny<T>))) : s * F[j * n + j];
    }
}

// E, zeta, C and the factor of every group. w.w must hold the whitened velocity at the start of the step.
template <class P> void prepare_equalities(const Model<typename P::Scalar>& m, Work<P>& w) {
  using T = typename P::Scalar;
  for (int i = 0; i < m.nE; ++i) w.E[i] = P(0);
  const bool off = m.disableflags & (kNoConstraint | kNoEquality);
  for (int g = 0; g < m.ngroup; ++g) {
    const int r0 = m.group_rowadr[g], nr = m.group_rownum[g], nd = m.group_dofnum[g];
    for (int r = r0; r < r0 + nr; ++r) {
      if (m.row_kind[r] == kRowEquality && m.row_sub[r] == 0) equality_rows(m, w, m.row_id[r], g, r);
    }
    typename P::M on_row(false);
    for (int r = r0; r < r0 + nr; ++r) {
      P* row = w.E + m.group_Eadr[g] + (r - r0) * nd;
      if (m.row_kind[r] == kRowEquality) on_row = off ? typename P::M(false) : w.eq_active[m.row_id[r]] != 0;
      else on_row = implicit_row(m, w, r, g, w.eq_c[r]);
      on_row = on_row & w.live;
      for (int d = 0; d < nd; ++d) row[d] = masked(on_row, row[d]);
    }
    whiten_group(m, w, g);
    const int* dof = m.group_dof + m.group_dofadr[g];
    for (int r = r0; r < r0 + nr; ++r) {
      const P* row = w.E + m.group_Eadr[g] + (r - r0) * nd;
      P u(0), a(0);
      for (int d = 0; d < nd; ++d) {
        u = fma(row[d], w.w[dof[d]], u);
        a = fma(row[d], row[d], a);
      }
      const auto on = a > 0;
      if (m.row_kind[r] == kRowEquality) {
        const int e = m.row_id[r], first = r - m.row_sub[r], dim = m.eq_type[e] == kEqConnect ? 3 : m.eq_type[e] == kEqWeld ? 6 : 1;
        if (m.row_sub[r] == 0) {  // one impedance for the block, from the size of its error
          P size(0);
          for (int k = 0; k < dim; ++k) size = fma(w.eq_zeta[first + k], w.eq_zeta[first + k], size);
          w.scratch2[0] = sqrt(size);
        }
        P solref[2], solimp[5];
        for (int k = 0; k < 2; ++k) solref[k] = P(m.eq_solref[2 * e + k]);
        for (int k = 0; k < 5; ++k) solimp[k] = P(m.eq_solimp[5 * e + k]);
        const P r_err = w.eq_zeta[r];
        compliance(m, w, solref, solimp, r_err, w.scratch2[0], u, a, w.eq_zeta[r], w.eq_c[r]);
        if (w.rigid) {
          w.eq_zeta[r] = r_err * P(T(-kRigidRecovery)) / w.h;
          w.eq_c[r] = a * P(T(kRigidShare));
        }
      } else {
        w.eq_zeta[r] = u;
      }
      w.eq_zeta[r] = masked(on, w.eq_zeta[r]);
      w.eq_c[r] = select(on, w.eq_c[r], P(1));
    }
    factor_group(m, w, g);
  }
}

// lam_e = (W + C)^-1 (zeta - E w), from the present w.
template <class P> void equality_impulse(const Model<typename P::Scalar>& m, Work<P>& w, int g, P* lam) {
  const int nr = m.group_rownum[g], nd = m.group_dofnum[g], r0 = m.group_rowadr[g];
  const int* dof = m.group_dof + m.group_dofadr[g];
  for (int r = 0; r < nr; ++r) {
    P s = w.eq_zeta[r0 + r];
    for (int d = 0; d < nd; ++d) s = fma(-w.E[m.group_Eadr[g] + r * nd + d], w.w[dof[d]], s);
    lam[r] = s;
  }
  group_solve(w.Efactor + m.group_Wadr[g], nr, lam);
}

template <class P> void apply_equalities(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int g = 0; g < m.ngroup; ++g) {
    const int nr = m.group_rownum[g], nd = m.group_dofnum[g];
    const int* dof = m.group_dof + m.group_dofadr[g];
    P* lam = w.eq_lam + m.group_rowadr[g];
    equality_impulse(m, w, g, lam);
    for (int r = 0; r < nr; ++r)
      for (int d = 0; d < nd; ++d) w.w[dof[d]] = fma(w.E[m.group_Eadr[g] + r * nd + d], lam[r], w.w[dof[d]]);
  }
}

}  // namespace R2S_ISA
