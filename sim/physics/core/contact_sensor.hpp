// SPDX-License-Identifier: Apache-2.0
// Sensors that read contacts: touch, and MJCF's contact sensor.
#pragma once
#include "frames.hpp"

namespace R2S_ISA {

// Whether a ray from a contact point meets the volume of a site (MuJoCo's test for touch).
template <class P> bool ray_meets_site(const Model<typename P::Scalar>& m, const Work<P>& w, int site, int l, const V& point, const V& dir) {
  V c;
  Mat3<S> rot;
  for (int k = 0; k < 3; ++k) c[k] = S(double(v3(w.site_xpos, site)[k][l]));
  for (int k = 0; k < 9; ++k) rot.m[k] = S(double(m9(w.site_xmat, site).m[k][l]));
  return ray_local(m, m.site_type[site], m.site_size + 3 * site, -1, mul_t(rot, point - c), mul_t(rot, dir)).t >= 0;
}

template <class P> V lane_vec(const Vec3<P>& a, int l) { return vec(double(a.x[l]), double(a.y[l]), double(a.z[l])); }

template <class P> P touch(const Model<typename P::Scalar>& m, const Work<P>& w, int site) {
  P sum(0);
  const int body = m.site_bodyid[site];
  for (int i = 0; i < w.ncon; ++i) {
    const Contact<P>& c = w.contact[i];
    const int b1 = m.geom_bodyid[c.geom1], b2 = m.geom_bodyid[c.geom2];
    if (b1 != body && b2 != body) continue;
    const P force = masked(c.active, c.lam[0] + c.impact) / w.h;
    for (int l = 0; l < P::width; ++l) {
      if (!(force[l] > 0)) continue;
      const V n = lane_vec(c.n, l);
      if (ray_meets_site(m, w, site, l, lane_vec(c.pos, l), b2 == body ? -n : n)) sum.set(l, sum[l] + force[l]);
    }
  }
  return sum;
}

constexpr int kSensorInts = 3;  // numbers a sensor in sensor_intprm

enum ContactField { kFound = 0, kConForce, kConTorque, kConDist, kConPos, kConNormal, kConTangent, kConFields };

// 1: geom1 is of the first object and geom2 of the second; -1: the other way round; 0: no match.
template <class T> bool belongs(const Model<T>& m, int geom, int type, int id) {
  if (id < 0 || type < 0) return true;
  if (type == kObjGeom) return geom == id;
  int b = m.geom_bodyid[geom];
  if (type == kObjBody) return b == id;
  if (type == kObjXBody) {
    while (b > 0 && b != id) b = m.body_parentid[b];
    return b == id;
  }
  return true;
}

template <class P> int contact_match(const Model<typename P::Scalar>& m, const Work<P>& w, int i, const Contact<P>& c, int l) {
  const int type1 = m.sensor_objtype[i], id1 = m.sensor_objid[i], type2 = m.sensor_reftype[i], id2 = m.sensor_refid[i];
  if (type1 == kObjSite) {
    V p;
    Mat3<S> rot;
    for (int k = 0; k < 3; ++k) p[k] = S(double((c.pos[k] - v3(w.site_xpos, id1)[k])[l]));
    for (int k = 0; k < 9; ++k) rot.m[k] = S(double(m9(w.site_xmat, id1).m[k][l]));
    const V q = mul_t(rot, p);
    const auto* s = m.site_size + 3 * id1;
    const double x = q.x.v, y = q.y.v, z = q.z.v, r2 = x * x + y * y;
    bool in = false;
    if (m.site_type[id1] == kSphere) in = r2 + z * z <= double(s[0] * s[0]);
    if (m.site_type[id1] == kCylinder) in = r2 <= double(s[0] * s[0]) && std::abs(z) <= s[1];
    if (m.site_type[id1] == kBox) in = std::abs(x) <= s[0] && std::abs(y) <= s[1] && std::abs(z) <= s[2];
    if (m.site_type[id1] == kEllipsoid) in = x * x / (s[0] * s[0]) + y * y / (s[1] * s[1]) + z * z / (s[2] * s[2]) <= 1;
    if (m.site_type[id1] == kCapsule) { const double e = std::fmax(0.0, std::abs(z) - s[1]); in = r2 + e * e <= double(s[0] * s[0]); }
    if (!in) return 0;
    if (id2 < 0) return 1;
    return belongs(m, c.geom2, type2, id2) ? 1 : belongs(m, c.geom1, type2, id2) ? -1 : 0;
  }
  if (belongs(m, c.geom1, type1, id1) && belongs(m, c.geom2, type2, id2)) return 1;
  if (belongs(m, c.geom2, type1, id1) && belongs(m, c.geom1, type2, id2)) return -1;
  return 0;
}

template <class P> void net_contact(const Model<typename P::Scalar>& m, Work<P>& w, int i, int l, const int* match, const int* sign, int n, P* out);

// One world's matches, ordered by the sensor's reduction, written slot by slot.
template <class P> void contact_sensor(const Model<typename P::Scalar>& m, Work<P>& w, int i, P* out) {
  using T = typename P::Scalar;
  constexpr int kWidth[kConFields] = {1, 3, 3, 1, 3, 3, 3}, kMost = 256;
  const int *prm = m.sensor_intprm + kSensorInts * i, spec = prm[0], reduce = prm[1];
  int size = 0;
  for (int f = 0; f < kConFields; ++f) size += (spec >> f & 1) * kWidth[f];
  const int slots = size ? m.sensor_dim[i] / size : 0;
  for (int k = 0; k < m.sensor_dim[i]; ++k) out[k] = P(0);
  for (int l = 0; l < P::width; ++l) {
    int match[kMost], sign[kMost], n = 0;
    for (int k = 0; k < w.ncon && n < kMost; ++k) {
      const int s = w.contact[k].active[l] ? contact_match(m, w, i, w.contact[k], l) : 0;
      if (s) { match[n] = k; sign[n++] = s; }
    }
    auto force = [&](int k) {
      const Contact<P>& c = w.contact[match[k]];
      double f = double(c.lam[0][l] + c.impact[l]);
      f *= f;
      for (int a = 1; a < std::min(c.dim, 3); ++a) f += double(c.lam[a][l]) * double(c.lam[a][l]);
      return f;
    };
    auto before = [&](int a, int b) { return reduce == 1 ? w.contact[match[a]].dist[l] < w.contact[match[b]].dist[l] : force(a) > force(b); };
    if (reduce == 1 || reduce == 2)
      for (int a = 1; a < n; ++a)
        for (int b = a; b > 0 && before(b, b - 1); --b) { std::swap(match[b], match[b - 1]); std::swap(sign[b], sign[b - 1]); }
    if (reduce == 3) { net_contact(m, w, i, l, match, sign, n, out); continue; }
    for (int k = 0; k < n && k < slots; ++k) {
      const Contact<P>& c = w.contact[match[k]];
      const T s = T(sign[k]), inv_h = T(1) / w.h[l];
      T v[kConFields][3] = {};
      v[kFound][0] = T(n);
      v[kConForce][0] = (c.lam[0][l] + c.impact[l]) * inv_h;
      for (int a = 1; a < 3; ++a) v[kConForce][a] = c.dim >= 3 ? c.lam[a][l] * inv_h * (a == 2 ? s : T(1)) : T(0);
      for (int a = 0; a < 3; ++a) v[kConTorque][a] = 3 + a < c.dim ? c.lam[3 + a][l] * inv_h * (a == 2 ? s : T(1)) : T(0);
      v[kConDist][0] = c.dist[l];
      for (int a = 0; a < 3; ++a) {
        v[kConPos][a] = c.pos[a][l];
        v[kConNormal][a] = s * c.n[a][l];
        v[kConTangent][a] = s * c.t1[a][l];
      }
      P* to = out + k * size;
      for (int f = 0; f < kConFields; ++f)
        for (int a = 0; a < (spec >> f & 1) * kWidth[f]; ++a) (to++)->set(l, v[f][a]);
    }
  }
}

// Reduction "netforce": the sum of the matched wrenches at their force-weighted centre, in the world frame.
template <class P> void net_contact(const Model<typename P::Scalar>& m, Work<P>& w, int i, int l, const int* match, const int* sign, int n, P* out) {
  using T = typename P::Scalar;
  constexpr int kWidth[kConFields] = {1, 3, 3, 1, 3, 3, 3};
  if (n == 0) return;
  V force = vec(0, 0, 0), centre = vec(0, 0, 0), torque = vec(0, 0, 0);
  double total = 0;
  for (int pass = 0; pass < 2; ++pass)
    for (int k = 0; k < n; ++k) {
      const Contact<P>& c = w.contact[match[k]];
      const double h = double(w.h[l]), s = sign[k];
      auto lam = [&](int a) { return a < c.dim ? (double(c.lam[a][l]) + (a == 0 ? double(c.impact[l]) : 0.0)) / h : 0.0; };
      const V nn = lane_vec(c.n, l), t1 = lane_vec(c.t1, l), t2 = lane_vec(c.t2, l), p = lane_vec(c.pos, l);
      const V f = (nn * S(lam(0)) + t1 * S(lam(1)) + t2 * S(lam(2))) * S(s);
      if (pass == 0) {
        force += f;
        centre += p * S(norm(f).v);
        total += norm(f).v;
      } else {
        torque += (nn * S(lam(3)) + t1 * S(lam(4)) + t2 * S(lam(5))) * S(s) + cross(p - centre, f);
      }
      if (pass == 0 && k == n - 1) centre = total > 0 ? centre * S(1 / total) : p;
    }
  T v[kConFields][3] = {};
  v[kFound][0] = T(n);
  for (int a = 0; a < 3; ++a) {
    v[kConForce][a] = T(force[a].v);
    v[kConTorque][a] = T(torque[a].v);
    v[kConPos][a] = T(centre[a].v);
  }
  v[kConNormal][0] = v[kConTangent][1] = T(1);
  const int spec = m.sensor_intprm[kSensorInts * i];
  for (int f = 0; f < kConFields; ++f)
    for (int a = 0; a < (spec >> f & 1) * kWidth[f]; ++a) (out++)->set(l, v[f][a]);
}

}  // namespace R2S_ISA
