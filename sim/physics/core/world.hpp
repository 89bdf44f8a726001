// SPDX-License-Identifier: Apache-2.0
// The data dictionary. State: what lives between steps, one array a field, [n][nworld] with the world innermost, seen by
// Python as [nworld, n] without a copy. Work: what one block of W worlds needs during a step, owned by a thread.
#pragma once
#include "model.hpp"
#include "vec.hpp"

namespace R2S_ISA {

// name, numbers a world. Inputs are read by the step; parameters are per-world copies of the model's numbers.
#define R2S_STATE_INPUTS(X)                                                                                  \
  X(time, 1) X(qpos, m.nq) X(qvel, m.nv) X(act, m.na) X(ctrl, m.nu) X(qfrc_applied, m.nv) X(xfrc_applied, 6 * m.nbody)  \
  X(mocap_pos, 3 * m.nmocap) X(mocap_quat, 4 * m.nmocap) X(eq_active, m.neq)
#define R2S_STATE_PARAMS(X)                                                                                  \
  X(gravity, 3) X(body_mass, m.nbody) X(body_inertia, 3 * m.nbody) X(body_ipos, 3 * m.nbody) X(geom_friction, 3 * m.ngeom) \
  X(dof_damping, m.nv) X(actuator_gainprm, 3 * m.nactuator) X(actuator_biasprm, 3 * m.nactuator)
// Written by every step.
#define R2S_STATE_LIGHT(X)                                                                                   \
  X(qacc, m.nv) X(xpos, 3 * m.nbody) X(xquat, 4 * m.nbody) X(sensordata, m.nsensordata) X(actuator_force, m.nactuator)  \
  X(qfrc_constraint, m.nv)
// Written by forward().
#define R2S_STATE_FULL(X)                                                                                    \
  X(xmat, 9 * m.nbody) X(xipos, 3 * m.nbody) X(ximat, 9 * m.nbody) X(xanchor, 3 * m.njnt) X(xaxis, 3 * m.njnt)        \
  X(geom_xpos, 3 * m.ngeom) X(geom_xmat, 9 * m.ngeom) X(site_xpos, 3 * m.nsite) X(site_xmat, 9 * m.nsite)             \
  X(cam_xpos, 3 * m.ncam) X(cam_xmat, 9 * m.ncam) X(subtree_com, 3 * m.nbody) X(cdof, 6 * m.nv) X(cdof_dot, 6 * m.nv) \
  X(cinert, 10 * m.nbody) X(cvel, 6 * m.nbody) X(M, m.nM) X(qfrc_bias, m.nv) X(qfrc_passive, m.nv) X(qfrc_actuator, m.nv) \
  X(qfrc_smooth, m.nv) X(actuator_length, m.nactuator) X(actuator_velocity, m.nactuator) X(actuator_moment, m.nmoment) \
  X(ten_length, m.ntendon) X(ten_velocity, m.ntendon) X(ten_J, m.nJten) X(act_dot, m.na) X(energy, 2)

#define R2S_STATE_ALL(X) R2S_STATE_INPUTS(X) R2S_STATE_PARAMS(X) R2S_STATE_LIGHT(X) R2S_STATE_FULL(X)

struct Options {
  double timestep = 0.002;
  int iterations = 100;      // sweeps of the contact solver at most
  double tolerance = 1e-8;   // stop when no row changes its velocity by more [m/s or rad/s]
  double max_velocity = 1e6; // beyond: the world has diverged
  int rigid = 0;             // 1: contacts and limits without compliance
  int max_contacts = 0;      // contact slots a block of worlds
};

constexpr int kManifold = 4;      // contact points kept a geom pair
constexpr int kMaxDim = 6;        // rows of a contact: normal, two tangents, torsion, two rolling
enum Status { kOk = 0, kDiverged = 1, kContactOverflow = 2 };

// A contact slot of a block: one geom pair and point number; each lane has its own numbers and may be without contact.
template <class P> struct Contact {
  int geom1, geom2, pairid, dim;
  int feature[P::width];      // which features touch, per lane; equal features in successive steps share their impulse
  typename P::M active;       // lanes in contact (and not in the gap)
  typename P::M present;      // lanes where the pair was found at all, the gap included
  P dist, margin;
  Vec3<P> pos, n, t1, t2;     // point, frame; n from geom1 to geom2
  P friction[5];
  P lam[kMaxDim];             // impulse in the frame [N s]
  P impact;                   // impulse of impacts in this step, not in lam
  P solref[2], solimp[5];
};

// A scalar row: joint or tendon limit, or friction loss.
template <class P> struct ScalarRow {
  int adr, num, vadr;         // J: pattern, length, values in the row store
  int badr, bnum, bvadr;      // B, the projected row; the same memory as J where nothing is solved directly
  int id;                     // limit or friction slot, for warm start
  P lo, hi;                   // bounds of the impulse
  P err, u;                   // position error and velocity of a limit at the start
  P zeta, c, diag, lam;       // u+ = zeta - c lam, J M^-1 J'
  typename P::M active;
};

template <class P> struct ContactRow {
  int slot, dim, adr, num, vadr, badr, bnum, bvadr;   // values: [dim][num]
  P zeta, c;
  P a[kMaxDim];               // diagonal of J M^-1 J'
  P a01, a02, a12, a45;       // off-diagonals of the blocks (normal, tangents) and (rolling)
  P inverse[6];               // of the block (normal, tangents) with the compliance: 00 01 02 11 12 22
  P step, step_roll;          // 1 / their largest eigenvalues, in units of mu
  P restitution;
  typename P::M active;
};

template <class P> struct State {
  using T = typename P::Scalar;
  int nworld, stride, nblock;
  T* field[128];              // in the order of R2S_STATE_ALL
#define R2S_X(name, n) T* name;
  R2S_STATE_ALL(R2S_X)
#undef R2S_X
  int* status;                // [stride]
  Contact<P>* contact;        // [nblock][max_contacts]
  int* ncon;                  // [nblock]
  P* row_lam;                 // [nblock][nscalar] impulses of limits and friction loss, for warm start
  P* eq_lam;                  // [nblock][neqrow]
};

template <class P> struct Dense;
struct Newton;

template <class P> struct Work {
  using T = typename P::Scalar;
  P h;
#define R2S_X(name, n) P* name;
  R2S_STATE_ALL(R2S_X)
#undef R2S_X
  Quat<P>* xiquat;            // inertial frames
  Inertia<P>* crb;
  Spatial<P>*cacc, *cfrc;
  Vec3<P>*subtree_linvel, *subtree_angmom;
  P* subtree_mass;
  P *L, *Dinv, *Dsqrt;        // factor of M + implicit terms: L' D L on M's pattern; 1/D, 1/sqrt(D)
  P* implicit;                // additions to M's diagonal
  P* qvel_start;              // velocity before the step
  P *qfrc_spring, *qfrc_damper, *qfrc_gravcomp, *qfrc_fluid, *dv, *w, *scratch, *scratch2;
  P* gain_stiff;              // implicit servo weights by actuator: h kv + h^2 kp, then -h kp
  P* gain_shift;
  // constraints
  Contact<P>* contact; int ncon; int max_contacts; bool overflow;
  ContactRow<P>* crow; int ncrow;
  ScalarRow<P>* srow; int nsrow, max_scalar_rows;
  bool rigid, continuous;     // continuous: no implicit terms, so that qacc is that of continuous time
  P impact_speed; int sweeps;
  int* pattern; P* value; int nvalue, max_value, npattern, max_pattern;
  P *E, *Efactor, *eq_zeta, *eq_c, *eq_lam, *eq_scratch, *limit_force;
  int *pairs, npairs, max_pairs; T *aabb, *unit_box; int *order, *unit;
  int *hit1, *hit2, nhit;
  typename P::M live;
  // islands
  int *island, *packed, *tree_parent, *tree_number, *tree_rows, *tree_root;
  int* tree_sweeps;           // sweeps of an island before Newton steps, by island and lane
  int contact_dim;            // rows of a contact in the dense solver: the largest condim of the model
  bool any_large;
  P* spread;
  Dense<P>* dense;
  Newton* newton;
  T* tree_change;             // largest change of a row's velocity in the last sweep, by island and lane
};

template <class P> R2S_INLINE Vec3<P>& v3(P* a, int i) { return reinterpret_cast<Vec3<P>*>(a)[i]; }
template <class P> R2S_INLINE Quat<P>& q4(P* a, int i) { return reinterpret_cast<Quat<P>*>(a)[i]; }
template <class P> R2S_INLINE Mat3<P>& m9(P* a, int i) { return reinterpret_cast<Mat3<P>*>(a)[i]; }
template <class P> R2S_INLINE Spatial<P>& s6(P* a, int i) { return reinterpret_cast<Spatial<P>*>(a)[i]; }
template <class P> R2S_INLINE Inertia<P>& i10(P* a, int i) { return reinterpret_cast<Inertia<P>*>(a)[i]; }

}  // namespace R2S_ISA
