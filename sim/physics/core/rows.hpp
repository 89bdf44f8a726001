// SPDX-License-Identifier: Apache-2.0
// Inequality rows: limits and friction loss of joints and tendons, and contacts.
#pragma once
#include "equality.hpp"

namespace R2S_ISA {

constexpr double kBlockFloor = 1e-6;     // relative lift of a contact block's diagonal
constexpr double kImpactSteps = 10;      // a spring whose half period is shorter than this many steps acts as an impact

template <class P> R2S_INLINE bool room(const Work<P>& w, int pattern, int value) {
  return w.npattern + pattern <= w.max_pattern && w.nvalue + value <= w.max_value;
}

// A row from (dof, value) entries: pattern closed under ancestors, whitened, projected, its diagonal.
template <class P> bool add_scalar_row(const Model<typename P::Scalar>& m, Work<P>& w, int id, const int* dofs, const P* values, int n, const typename P::M& on) {
  int* pattern = w.pattern + w.npattern;
  int count = 0;
  if (!room(w, m.nv, m.nv)) return false;
  count = chain_union(m, dofs[n - 1], -1, pattern);
  for (int i = 0; i < n - 1; ++i) {  // merge the chains of the other dofs
    for (int d = dofs[i]; d >= 0; d = m.dof_parentid[d]) {
      int* at = std::lower_bound(pattern, pattern + count, d);
      if (at < pattern + count && *at == d) break;
      std::move_backward(at, pattern + count, pattern + count + 1);
      *at = d;
      ++count;
    }
  }
  ScalarRow<P>& r = w.srow[w.nsrow];
  r.adr = w.npattern;
  r.num = count;
  r.id = id;
  P* J = w.value + w.nvalue;
  for (int i = 0; i < count; ++i) J[i] = P(0);
  for (int i = 0; i < n; ++i) J[std::lower_bound(pattern, pattern + count, dofs[i]) - pattern] = masked(on, values[i]);
  whiten(m, w, pattern, count, J);
  r.active = on;
  r.vadr = w.nvalue;
  w.npattern += count;
  w.nvalue += count;
  if (!project(m, w, r.adr, r.num, 1, r.vadr, r.badr, r.bnum, r.bvadr)) return false;
  r.diag = P(0);
  for (int i = 0; i < r.num; ++i) {
    int k = i;
    if (r.bvadr != r.vadr)
      for (k = 0; w.pattern[r.badr + k] != pattern[i];) ++k;
    r.diag = fma(J[i], w.value[r.bvadr + k], r.diag);
  }
  ++w.nsrow;
  return true;
}

template <class P> void limit_row(const Model<typename P::Scalar>& m, Work<P>& w, int id, const int* dofs, const P* values, int n, const P& dist,
                                  const typename P::Scalar* ref, const typename P::Scalar* imp, typename P::Scalar margin) {
  using T = typename P::Scalar;
  const auto on = (dist < P(margin)) & w.live;
  if (!any(on)) return;
  if (!add_scalar_row(m, w, id, dofs, values, n, on)) { w.overflow = true; return; }
  ScalarRow<P>& r = w.srow[w.nsrow - 1];
  P solref[2], solimp[5];
  for (int k = 0; k < 2; ++k) solref[k] = P(ref[k]);
  for (int k = 0; k < 5; ++k) solimp[k] = P(imp[k]);
  const P err = r.err = dist - P(margin), u = r.u = row_dot(w.pattern + r.adr, w.value + r.vadr, r.num, w.w);
  if (w.rigid) {
    r.zeta = rigid_target(w, err);
    r.c = P(0);
  } else {
    compliance(m, w, solref, solimp, err, err, u, r.diag, r.zeta, r.c);
  }
  r.lo = P(0);
  r.hi = P(T(1e30));
}

template <class P> void friction_row(const Model<typename P::Scalar>& m, Work<P>& w, int id, const int* dofs, const P* values, int n, typename P::Scalar loss) {
  if (!add_scalar_row(m, w, id, dofs, values, n, w.live)) { w.overflow = true; return; }
  ScalarRow<P>& r = w.srow[w.nsrow - 1];
  r.zeta = r.c = P(0);
  r.hi = w.h * P(loss);
  r.lo = -r.hi;
}

template <class P> void joint_rows(const Model<typename P::Scalar>& m, Work<P>& w) {
  for (int j = 0; j < m.njnt; ++j) {
    if (!m.jnt_limited[j]) continue;
    const int d = m.jnt_dofadr[j], q = m.jnt_qposadr[j];
    const auto *range = m.jnt_range + 2 * j, *ref = m.jnt_solref + 2 * j, *imp = m.jnt_solimp + 5 * j;
    if (m.jnt_type[j] == kBall) {
      const Vec3<P> angle = rotation_vector(normalized(q4(w.qpos + q, 0)));
      const Vec3<P> axis = normalized(angle);
      const int dofs[3] = {d, d + 1, d + 2};
      const P values[3] = {-axis.x, -axis.y, -axis.z};
      limit_row(m, w, 2 * j, dofs, values, 3, P(std::max(range[0], range[1])) - norm(angle), ref, imp, m.jnt_margin[j]);
    } else {
      for (int side = 0; side < 2; ++side) {
        const P value = P(side ? -1 : 1), dist = side ? P(range[1]) - w.qpos[q] : w.qpos[q] - P(range[0]);
        limit_row(m, w, 2 * j + side, &d, &value, 1, dist, ref, imp, m.jnt_margin[j]);
      }
    }
  }
}

template <class P> void tendon_rows(const Model<typename P::Scalar>& m, Work<P>& w, bool limits, bool loss) {
  const int base = 2 * m.njnt + m.nv;
  for (int t = 0; t < m.ntendon; ++t) {
    const int *dofs = m.ten_J_colind + m.ten_J_rowadr[t], n = m.ten_J_rownnz[t];
    P* J = w.ten_J + m.ten_J_rowadr[t];
    if (n == 0) continue;
    if (limits && m.tendon_limited[t]) {
      const auto *range = m.tendon_range + 2 * t, *ref = m.tendon_solref_lim + 2 * t, *imp = m.tendon_solimp_lim + 5 * t;
      limit_row(m, w, base + 3 * t, dofs, J, n, w.ten_length[t] - P(range[0]), ref, imp, m.tendon_margin[t]);
      for (int i = 0; i < n; ++i) J[i] = -J[i];
      limit_row(m, w, base + 3 * t + 1, dofs, J, n, P(range[1]) - w.ten_length[t], ref, imp, m.tendon_margin[t]);
      for (int i = 0; i < n; ++i) J[i] = -J[i];
    }
    if (loss && m.tendon_frictionloss[t] > 0) friction_row(m, w, base + 3 * t + 2, dofs, J, n, m.tendon_frictionloss[t]);
  }
}

template <class P> void scalar_rows(const Model<typename P::Scalar>& m, Work<P>& w) {
  w.nsrow = 0;
  if (m.disableflags & kNoConstraint) return;
  const bool limits = !(m.disableflags & kNoLimit), loss = !(m.disableflags & kNoFrictionLoss);
  if (loss)
    for (int d = 0; d < m.nv; ++d) {
      const P one(1);
      if (m.dof_frictionloss[d] > 0) friction_row(m, w, 2 * m.njnt + d, &d, &one, 1, m.dof_frictionloss[d]);
    }
  if (limits) joint_rows(m, w);
  tendon_rows(m, w, limits, loss);
}

// Whitened Jacobian rows of a contact: normal, tangents, torsion, rolling.
template <class P> bool contact_jacobian(const Model<typename P::Scalar>& m, Work<P>& w, const Contact<P>& c, ContactRow<P>& r) {
  using T = typename P::Scalar;
  const int b1 = m.geom_bodyid[c.geom1], b2 = m.geom_bodyid[c.geom2];
  if (!room(w, m.nv < 256 ? m.nv : 256, kMaxDim * (m.nv < 256 ? m.nv : 256))) return false;
  int* pattern = w.pattern + w.npattern;
  r.adr = w.npattern;
  r.num = chain_union(m, m.body_lastdof[b1], m.body_lastdof[b2], pattern);
  r.dim = c.dim;
  r.vadr = w.nvalue;
  P* J = w.value + r.vadr;
  const int n = r.num;
  for (int i = 0; i < n * c.dim; ++i) J[i] = P(0);
  relative_dofs(m, b2, b1, [&](int d, T sign) {
    const int i = int(std::lower_bound(pattern, pattern + n, d) - pattern);
    const Vec3<P> lin = jac_point(m, w, d, c.pos) * P(sign), ang = s6(w.cdof, d).ang * P(sign);
    J[i] = masked(c.active, dot(c.n, lin));
    if (c.dim >= 3) {
      J[n + i] = masked(c.active, dot(c.t1, lin));
      J[2 * n + i] = masked(c.active, dot(c.t2, lin));
    }
    if (c.dim >= 4) J[3 * n + i] = masked(c.active, dot(c.n, ang));
    if (c.dim >= 6) {
      J[4 * n + i] = masked(c.active, dot(c.t1, ang));
      J[5 * n + i] = masked(c.active, dot(c.t2, ang));
    }
  });
  for (int k = 0; k < c.dim; ++k) whiten(m, w, pattern, n, J + k * n);
  w.npattern += n;
  w.nvalue += n * c.dim;
  return project(m, w, r.adr, n, c.dim, r.vadr, r.badr, r.bnum, r.bvadr);
}

// J_i . B_k over a row's two patterns.
template <class P> P coupling(const Work<P>& w, const ContactRow<P>& r, int i, int k) {
  const int *jp = w.pattern + r.adr, *bp = w.pattern + r.badr;
  const P *J = w.value + r.vadr + i * r.num, *B = w.value + r.bvadr + k * r.bnum;
  P s(0);
  if (r.vadr == r.bvadr) {
    for (int a = 0; a < r.num; ++a) s = fma(J[a], B[a], s);
    return s;
  }
  for (int a = 0; a < r.num; ++a) {
    int b = 0;
    while (bp[b] != jp[a]) ++b;
    s = fma(J[a], B[b], s);
  }
  return s;
}

// Coefficient of restitution of a direct-form spring that is too stiff for the step to resolve; 0 elsewhere.
template <class P> P restitution(const Model<typename P::Scalar>& m, const Work<P>& w, const Contact<P>& c) {
  using T = typename P::Scalar;
  const auto direct = c.solref[0] <= P(0);
  if (!any(direct & c.active)) return P(0);
  const Spring<P> s = spring(m, w, c.solref, c.solimp, c.dist - c.margin);
  const P root = sqrt(max(s.k, P(kTiny<T>))), ratio = s.b / (root * P(2));
  const T pi = T(3.14159265358979323846);
  const auto sharp = direct & (P(pi) < root * w.h * P(T(kImpactSteps))) & (ratio < P(1));
  const P e = exp(P(-pi) * ratio / sqrt(max(P(1) - ratio * ratio, P(kTiny<T>))));
  return masked(sharp & c.active, e);
}

// Inverse of the block (normal, tangents); a floor on the diagonal keeps points that move too few dofs invertible.
template <class P> void invert_block(ContactRow<P>& r) {
  using T = typename P::Scalar;
  const P lift = P(T(1) + T(kBlockFloor)), a = (r.a[0] + r.c) * lift, d = r.a[1] * lift, f = r.a[2] * lift, b = r.a01, c = r.a02, e = r.a12;
  const P c00 = d * f - e * e, c01 = c * e - b * f, c02 = b * e - c * d;
  const P inv = P(1) / max(a * c00 + b * c01 + c * c02, P(kTiny<T>) * a * d * f);
  r.inverse[0] = c00 * inv;
  r.inverse[1] = c01 * inv;
  r.inverse[2] = c02 * inv;
  r.inverse[3] = (a * f - c * c) * inv;
  r.inverse[4] = (b * c - a * e) * inv;
  r.inverse[5] = (a * d - b * b) * inv;
}

template <class P> void contact_row(const Model<typename P::Scalar>& m, Work<P>& w, int slot, ContactRow<P>& r) {
  using T = typename P::Scalar;
  Contact<P>& c = w.contact[slot];
  r.slot = slot;
  r.active = c.active;
  for (int k = 0; k < c.dim; ++k) r.a[k] = select(c.active, max(coupling(w, r, k, k), P(kTiny<T>)), P(1));
  r.restitution = restitution(m, w, c);
  const P err = c.dist - c.margin, u = row_dot(w.pattern + r.adr, w.value + r.vadr, r.num, w.w);
  const auto bounce = r.restitution > 0;
  // MuJoCo's scale of the compliance: the bodies' mean inverse masses, so that loads sink in as deep as there
  const P scale = P(m.body_invweight0[2 * m.geom_bodyid[c.geom1]] + m.body_invweight0[2 * m.geom_bodyid[c.geom2]]);
  compliance(m, w, c.solref, c.solimp, err, err, u, scale, r.zeta, r.c);
  const P rigid_zeta = masked(!bounce, rigid_target(w, err));
  const auto hard = w.rigid ? c.active : bounce;
  r.zeta = masked(c.active, select(hard, rigid_zeta, r.zeta));
  r.c = masked(c.active, select(hard, masked(!bounce, r.a[0] * P(T(kRigidContactShare))), r.c));
  if (c.dim < 3) return;
  r.a01 = coupling(w, r, 0, 1);
  r.a02 = coupling(w, r, 0, 2);
  r.a12 = coupling(w, r, 1, 2);
  invert_block(r);
  auto largest = [](const P& a, const P& b, const P& ab) {  // largest eigenvalue of [[a, ab], [ab, b]]
    const P mean = (a + b) * P(T(0.5)), half = (a - b) * P(T(0.5));
    return mean + sqrt(fma(half, half, ab * ab));
  };
  const P m1 = c.friction[0], m2 = c.friction[1];
  r.step = P(1) / max(largest(m1 * m1 * r.a[1], m2 * m2 * r.a[2], m1 * m2 * r.a12), P(kTiny<T>));
  if (c.dim < 6) return;
  r.a45 = coupling(w, r, 4, 5);
  const P r1 = c.friction[3], r2 = c.friction[4];
  r.step_roll = P(1) / max(largest(r1 * r1 * r.a[4], r2 * r2 * r.a[5], r1 * r2 * r.a45), P(kTiny<T>));
}

template <class P> void contact_rows(const Model<typename P::Scalar>& m, Work<P>& w) {
  w.ncrow = 0;
  for (int i = 0; i < w.ncon; ++i) {
    Contact<P>& c = w.contact[i];
    if (!any(c.active)) continue;
    if (m.body_lastdof[m.geom_bodyid[c.geom1]] < 0 && m.body_lastdof[m.geom_bodyid[c.geom2]] < 0) continue;
    ContactRow<P>& r = w.crow[w.ncrow];
    if (!contact_jacobian(m, w, c, r)) { w.overflow = true; return; }
    contact_row(m, w, i, r);
    ++w.ncrow;
  }
}

}  // namespace R2S_ISA
