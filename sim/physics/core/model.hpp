// SPDX-License-Identifier: Apache-2.0
// The compiled model as the step reads it: plain arrays shared by all worlds, MuJoCo's names and meanings. Arrays marked
// (own) are derived in model.py. The lists below are also what the bindings fill, by name.
#pragma once

namespace R2S_ISA {

#define R2S_MODEL_SIZES(X)                                                                                   \
  X(nq) X(nv) X(nu) X(na) X(nbody) X(njnt) X(ngeom) X(nsite) X(ncam) X(nmocap) X(nM) X(ntree) X(neq) X(ntendon)      \
  X(nwrap) X(nactuator) X(nsensor) X(nsensordata) X(npair) X(nmesh) X(nhfield) X(nJten) X(nmoment) X(ngroup) X(nE) X(nW) X(dynamic_pairs)        \
  X(nstaticpair) X(neqrow) X(ngroupdof) X(disableflags) X(fluid) X(nneighbour)

#define R2S_MODEL_INTS(X)                                                                                    \
  X(body_parentid) X(body_rootid) X(body_weldid) X(body_mocapid) X(body_jntnum) X(body_jntadr) X(body_dofnum)        \
  X(body_dofadr) X(body_treeid) X(body_lastdof) X(jnt_type) X(jnt_qposadr) X(jnt_dofadr) X(jnt_bodyid) X(jnt_limited) \
  X(jnt_actfrclimited) X(jnt_actgravcomp) X(dof_bodyid) X(dof_jntid) X(dof_parentid) X(dof_treeid) X(M_rowadr)        \
  X(M_rownnz) X(M_colind) X(tree_dofadr) X(tree_dofnum) X(geom_type) X(geom_contype) X(geom_conaffinity)              \
  X(geom_condim) X(geom_bodyid) X(geom_dataid) X(geom_priority) X(site_bodyid) X(site_type) X(cam_bodyid) X(cam_mode)    \
  X(cam_targetbodyid) X(pair_dim) X(pair_geom1) X(pair_geom2) X(static_geom1) X(static_geom2) X(static_pairid)        \
  X(exclude_adr) X(exclude_body) X(eq_type) X(eq_obj1id) X(eq_obj2id) X(eq_objtype) X(eq_rowadr) X(eq_group)          \
  X(tree_group) X(group_dofadr) X(group_dofnum) X(group_dof) X(dof_groupslot) X(group_rowadr) X(group_rownum) X(group_Eadr) X(group_Wadr)  \
  X(row_kind) X(row_id) X(row_sub) X(tendon_type) X(tendon_adr) X(tendon_num) X(tendon_limited) X(ten_J_rownnz)       \
  X(ten_J_rowadr) X(ten_J_colind) X(tendon_actfrclimited) X(tendon_implicit) X(wrap_type) X(wrap_objid)               \
  X(actuator_trntype) X(actuator_dyntype) X(actuator_gaintype) X(actuator_biastype) X(actuator_trnid)                 \
  X(actuator_ctrladr) X(actuator_actadr) X(actuator_actnum) X(actuator_actlimited) X(actuator_actearly)               \
  X(actuator_forcelimited) X(actuator_ctrllimited) X(actuator_disabled) X(moment_rownnz) X(moment_rowadr)             \
  X(moment_colind) X(sensor_type) X(sensor_datatype) X(sensor_needstage) X(sensor_objtype) X(sensor_objid)            \
  X(sensor_reftype) X(sensor_refid) X(sensor_intprm) X(sensor_dim) X(sensor_adr) X(mesh_vertadr) X(mesh_vertnum)      \
  X(mesh_faceadr) X(mesh_facenum) X(face_vertadr) X(face_vertnum) X(face_vert) X(neighbour_adr) X(neighbour)          \
  X(mesh_triadr) X(mesh_trinum) X(mesh_tri) X(mesh_trivertadr) X(hfield_nrow) X(hfield_ncol) X(hfield_adr)            \
  X(geom_group) X(geom_visible)

#define R2S_MODEL_REALS(X)                                                                                   \
  X(qpos0) X(qpos_spring) X(body_pos) X(body_quat) X(body_iquat) X(body_gravcomp) X(body_invweight0) X(jnt_solref) X(jnt_solimp) X(jnt_pos) \
  X(jnt_axis) X(jnt_stiffness) X(jnt_range) X(jnt_actfrcrange) X(jnt_margin) X(dof_frictionloss) X(dof_armature)      \
  X(dof_solref) X(dof_solimp) X(geom_solmix) X(geom_solref) X(geom_solimp) X(geom_size) X(geom_rbound) X(geom_aabb)   \
  X(geom_pos) X(geom_quat) X(geom_margin) X(geom_gap) X(site_pos) X(site_quat) X(site_size) X(cam_pos) X(cam_quat)    \
  X(cam_poscom0) X(cam_pos0) X(cam_mat0) X(cam_fovy) X(cam_prm) X(pair_solref) X(pair_solimp) X(pair_margin) X(pair_gap) \
  X(pair_friction) X(eq_solref) X(eq_solimp) X(eq_data) X(tendon_solref_lim) X(tendon_solimp_lim) X(tendon_range)     \
  X(tendon_actfrcrange) X(tendon_margin) X(tendon_stiffness) X(tendon_damping) X(tendon_frictionloss)                 \
  X(tendon_lengthspring) X(tendon_length0) X(wrap_prm) X(actuator_dynprm) X(actuator_actrange) X(actuator_forcerange) \
  X(actuator_ctrlrange) X(actuator_gear) X(sensor_cutoff) X(mesh_vert) X(face_normal) X(mesh_trivert) X(hfield_size)  \
  X(hfield_data) X(medium) X(magnetic)

template <class T> struct Model {
#define R2S_X(name) int name;
  R2S_MODEL_SIZES(R2S_X)
#undef R2S_X
#define R2S_X(name) const int* name;
  R2S_MODEL_INTS(R2S_X)
#undef R2S_X
#define R2S_X(name) const T* name;
  R2S_MODEL_REALS(R2S_X)
#undef R2S_X
};

enum JointType { kFree = 0, kBall, kSlide, kHinge };
enum GeomType { kPlane = 0, kHField, kSphere, kCapsule, kEllipsoid, kCylinder, kBox, kMesh };
enum WrapType { kWrapNone = 0, kWrapJoint, kWrapPulley, kWrapSite, kWrapSphere, kWrapCylinder };
enum TransmissionType { kTrnJoint = 0, kTrnJointInParent, kTrnSliderCrank, kTrnTendon, kTrnSite };
enum DynType { kDynNone = 0, kDynIntegrator, kDynFilter, kDynFilterExact };
enum GainType { kGainFixed = 0, kGainAffine };
enum BiasType { kBiasNone = 0, kBiasAffine };
enum EqType { kEqConnect = 0, kEqWeld, kEqJoint, kEqTendon };
enum RowKind { kRowEquality = 0, kRowTendon, kRowActuator };  // a tendon's or servo's implicit term is a compliant row too
enum DisableBit { kNoConstraint = 1, kNoEquality = 2, kNoFrictionLoss = 4, kNoLimit = 8, kNoContact = 16, kNoSpring = 32,
                  kNoDamper = 64, kNoGravity = 128, kNoClampCtrl = 256, kNoWarmStart = 512, kNoFilterParent = 1024,
                  kNoActuation = 2048, kNoRefSafe = 4096, kNoSensor = 8192 };

}  // namespace R2S_ISA
