// SPDX-License-Identifier: Apache-2.0
// MJCF's sensors. Readings are those of the state at the start of the step, and of the accelerations and forces during it.
#pragma once
#include "contact_sensor.hpp"

namespace R2S_ISA {

enum SensorType { kTouch = 0, kAccelerometer, kVelocimeter, kGyro, kForce, kTorque, kMagnetometer, kRangefinder, kCamProjection, kJointPos, kJointVel,
                  kTendonPos, kTendonVel, kActuatorPos, kActuatorVel, kActuatorFrc, kJointActFrc, kTendonActFrc, kBallQuat, kBallAngVel, kJointLimitPos,
                  kJointLimitVel, kJointLimitFrc, kTendonLimitPos, kTendonLimitVel, kTendonLimitFrc, kFramePos, kFrameQuat, kFrameXAxis, kFrameYAxis,
                  kFrameZAxis, kFrameLinVel, kFrameAngVel, kFrameLinAcc, kFrameAngAcc, kSubtreeCom, kSubtreeLinVel, kSubtreeAngMom, kInsideSite, kGeomDist,
                  kGeomNormal, kGeomFromTo, kContactSensor, kEPotential, kEKinetic, kClock };

template <class P> R2S_INLINE void put(P* out, const Vec3<P>& v) { out[0] = v.x; out[1] = v.y; out[2] = v.z; }
template <class P> R2S_INLINE void put(P* out, const Quat<P>& q) { out[0] = q.w; out[1] = q.x; out[2] = q.y; out[3] = q.z; }

template <class P> void frame_sensor(const Model<typename P::Scalar>& m, Work<P>& w, int i, P* out) {
  const int type = m.sensor_type[i], ref = m.sensor_refid[i];
  const ObjectFrame<P> f = object_frame(m, w, m.sensor_objtype[i], m.sensor_objid[i]);
  const ObjectFrame<P> r = ref >= 0 ? object_frame(m, w, m.sensor_reftype[i], ref) : f;
  auto local = [&](const Vec3<P>& v) { return ref >= 0 ? mul_t(r.mat, v) : v; };
  if (type == kFramePos) put(out, ref >= 0 ? mul_t(r.mat, f.pos - r.pos) : f.pos);
  if (type == kFrameQuat) put(out, ref >= 0 ? mul(conj(r.rot), f.rot) : f.rot);
  if (type >= kFrameXAxis && type <= kFrameZAxis) put(out, local(f.mat.col(type - kFrameXAxis)));
  if (type == kFrameLinVel || type == kFrameAngVel) {
    Spatial<P> v = object_velocity(m, w, f);
    if (ref >= 0) {
      const Spatial<P> vr = object_velocity(m, w, r);
      v = {v.ang - vr.ang, v.lin - vr.lin - cross(vr.ang, f.pos - r.pos)};
    }
    put(out, local(type == kFrameLinVel ? v.lin : v.ang));
  }
  if (type == kFrameLinAcc) put(out, object_acceleration(m, w, f).lin);
  if (type == kFrameAngAcc) put(out, object_acceleration(m, w, f).ang);
}

template <class P> void site_sensor(const Model<typename P::Scalar>& m, Work<P>& w, int i, P* out) {
  const int type = m.sensor_type[i], site = m.sensor_objid[i];
  const ObjectFrame<P> f = object_frame(m, w, kObjSite, site);
  switch (type) {
    case kVelocimeter: put(out, mul_t(f.mat, object_velocity(m, w, f).lin)); break;
    case kGyro: put(out, mul_t(f.mat, object_velocity(m, w, f).ang)); break;
    case kAccelerometer: put(out, mul_t(f.mat, object_acceleration(m, w, f).lin)); break;
    case kMagnetometer: put(out, mul_t(f.mat, vec3<P>(m.magnetic))); break;
    case kForce: put(out, mul_t(f.mat, w.cfrc[f.body].lin)); break;
    case kTorque: {
      const Spatial<P>& c = w.cfrc[f.body];
      put(out, mul_t(f.mat, c.ang - cross(f.pos - v3(w.subtree_com, m.body_rootid[f.body]), c.lin)));
      break;
    }
    case kTouch: out[0] = touch(m, w, site); break;
    case kRangefinder:
      for (int l = 0; l < P::width; ++l) {
        V o, d;
        for (int k = 0; k < 3; ++k) {
          o[k] = S(double(f.pos[k][l]));
          d[k] = S(double(f.mat.m[3 * k + 2][l]));
        }
        out[0].set(l, typename P::Scalar(ray_scene(m, w, l, o, d, f.body).t));
      }
      break;
    default: break;
  }
}

// dist - margin, velocity or force of an active limit; 0 where it is not active. The lower side comes first, as in MuJoCo.
template <class P> P limit_sensor(const Model<typename P::Scalar>& m, const Work<P>& w, int type, int id) {
  using T = typename P::Scalar;
  const bool tendon = type >= kTendonLimitPos;
  const int what = tendon ? type - kTendonLimitPos : type - kJointLimitPos, first = tendon ? 2 * m.njnt + m.nv + 3 * id : 2 * id;
  P out(0);
  typename P::M done(false);
  for (int k = 0; k < w.nsrow; ++k) {
    const ScalarRow<P>& r = w.srow[k];
    if (r.id != first && r.id != first + 1) continue;
    const P value = what == 0 ? r.err : what == 1 ? r.u : r.lam / w.h;
    out = select(r.active & !done, value, out);
    done = done | r.active;
  }
  (void)T(0);
  return out;
}

template <class P> void value_sensor(const Model<typename P::Scalar>& m, Work<P>& w, int i, P* out) {
  const int type = m.sensor_type[i], id = m.sensor_objid[i];
  switch (type) {
    case kJointPos: out[0] = w.qpos[m.jnt_qposadr[id]]; break;
    case kJointVel: out[0] = w.qvel_start[m.jnt_dofadr[id]]; break;
    case kTendonPos: out[0] = w.ten_length[id]; break;
    case kTendonVel: out[0] = w.ten_velocity[id]; break;
    case kActuatorPos: out[0] = w.actuator_length[id]; break;
    case kActuatorVel: out[0] = w.actuator_velocity[id]; break;
    case kActuatorFrc: out[0] = w.actuator_force[id]; break;
    case kJointActFrc: out[0] = w.qfrc_actuator[m.jnt_dofadr[id]]; break;
    case kTendonActFrc:
      out[0] = P(0);
      for (int a = 0; a < m.nactuator; ++a)
        if (m.actuator_trntype[a] == kTrnTendon && m.actuator_trnid[2 * a] == id) out[0] += w.actuator_force[a];
      break;
    case kBallQuat: put(out, normalized(q4(w.qpos + m.jnt_qposadr[id], 0))); break;
    case kBallAngVel: put(out, v3(w.qvel_start + m.jnt_dofadr[id], 0)); break;
    case kSubtreeCom: put(out, v3(w.subtree_com, id)); break;
    case kSubtreeLinVel: put(out, w.subtree_linvel[id]); break;
    case kSubtreeAngMom: put(out, w.subtree_angmom[id]); break;
    case kContactSensor: contact_sensor(m, w, i, out); break;
    case kEPotential: out[0] = w.energy[0]; break;
    case kEKinetic: out[0] = w.energy[1]; break;
    case kClock: out[0] = w.time[0]; break;
    default: out[0] = limit_sensor(m, w, type, id); break;
  }
}

template <class P> void cut_off(const Model<typename P::Scalar>& m, int i, P* out) {
  const P c = P(m.sensor_cutoff[i]);
  constexpr int kReal = 0, kPositive = 1;  // mjtDataType
  if (!(m.sensor_cutoff[i] > 0) || m.sensor_type[i] == kContactSensor) return;
  for (int k = 0; k < m.sensor_dim[i]; ++k) {
    if (m.sensor_datatype[i] == kReal) out[k] = clamp(out[k], -c, c);
    if (m.sensor_datatype[i] == kPositive) out[k] = min(out[k], c);
  }
}

template <class P> void sensors(const Model<typename P::Scalar>& m, Work<P>& w) {
  if (m.nsensor == 0 || (m.disableflags & kNoSensor)) return;
  bool forces = false, subtree = false;
  for (int i = 0; i < m.nsensor; ++i) {
    const int t = m.sensor_type[i];
    forces = forces || t == kAccelerometer || t == kForce || t == kTorque || t == kFrameLinAcc || t == kFrameAngAcc;
    subtree = subtree || t == kSubtreeLinVel || t == kSubtreeAngMom;
    if (t == kEPotential || t == kEKinetic) energy(m, w);
  }
  if (forces) rne_post_constraint(m, w);
  if (subtree) subtree_velocity(m, w);
  for (int i = 0; i < m.nsensor; ++i) {
    P* out = w.sensordata + m.sensor_adr[i];
    const int t = m.sensor_type[i];
    if (t <= kRangefinder) site_sensor(m, w, i, out);
    else if (t >= kFramePos && t <= kFrameAngAcc) frame_sensor(m, w, i, out);
    else value_sensor(m, w, i, out);
    cut_off(m, i, out);
  }
}

}  // namespace R2S_ISA
