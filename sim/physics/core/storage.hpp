// SPDX-License-Identifier: Apache-2.0
// Memory, all of it taken before the first step: the model's arrays, the state of all worlds, one workspace a thread.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "engine_api.hpp"
#include "solve.hpp"

namespace R2S_ISA {

constexpr std::size_t kAlign = 64;   // a cache line, and the widest vector
constexpr std::size_t kNewtonFill = 1 << 19;  // most numbers in the factor of a large island: above, sweeps only
constexpr int kMaxPairPoints = 512;  // most convex-feature vertices a narrow phase handles

// Zeroed, aligned arrays that live as long as the arena.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (void* p : blocks_) ::operator delete(p, std::align_val_t(kAlign));
  }
  template <class X> X* take(std::size_t n) {
    const std::size_t bytes = std::max<std::size_t>(n, 1) * sizeof(X);
    void* p = ::operator new(bytes, std::align_val_t(kAlign));
    blocks_.push_back(p);
    std::memset(p, 0, bytes);
    return static_cast<X*>(p);
  }

 private:
  std::vector<void*> blocks_;
};

template <class T> void load_model(const r2s::ModelArrays& a, Arena& arena, Model<T>& m) {
#define R2S_X(name) m.name = a.size.at(#name);
  R2S_MODEL_SIZES(R2S_X)
#undef R2S_X
#define R2S_X(name)                                           \
  {                                                           \
    const auto& v = a.ints.at(#name);                         \
    int* p = arena.take<int>(v.size());                       \
    std::copy(v.begin(), v.end(), p);                         \
    m.name = p;                                               \
  }
  R2S_MODEL_INTS(R2S_X)
#undef R2S_X
#define R2S_X(name)                                           \
  {                                                           \
    const auto& v = a.reals.at(#name);                        \
    T* p = arena.take<T>(v.size());                           \
    for (std::size_t i = 0; i < v.size(); ++i) p[i] = T(v[i]); \
    m.name = p;                                               \
  }
  R2S_MODEL_REALS(R2S_X)
#undef R2S_X
}

struct Capacity {
  int contacts, scalar_rows, values, pattern, pairs;
};

// Rows of limits and friction loss: two limits and one friction a dof, the same a tendon.
template <class T> int scalar_slots(const Model<T>& m) { return 2 * m.njnt + m.nv + 3 * m.ntendon; }

template <class T> Capacity capacity(const Model<T>& m, int max_contacts) {
  int chain = 1, tree = 0, group = 0;
  for (int i = 0; i < m.nv; ++i) chain = std::max(chain, m.M_rownnz[i]);
  for (int i = 0; i < m.ntree; ++i) tree = std::max(tree, m.tree_dofnum[i]);
  for (int i = 0; i < m.ngroup; ++i) group = std::max(group, m.group_dofnum[i]);
  int tendon = 0;
  for (int i = 0; i < m.ntendon; ++i) tendon = std::max(tendon, m.ten_J_rownnz[i]);
  const int reach = std::min(m.nv, 2 * chain), coupled = group ? std::min(m.nv, 2 * std::max(group, chain)) : 0;
  const int slots = scalar_slots(m);
  const int treespan = std::min(m.nv, std::max(chain, tendon * chain));
  Capacity c;
  c.contacts = max_contacts;
  c.scalar_rows = slots;
  c.values = max_contacts * kMaxDim * (reach + coupled) + slots * (treespan + coupled) + (kMaxDim + 1) * m.nv;
  c.pattern = max_contacts * (reach + coupled) + slots * (treespan + coupled) + 2 * m.nv;
  c.pairs = std::max(m.nstaticpair, 16 * m.ngeom) + 64;
  return c;
}

template <class P> void take_newton(const Model<typename P::Scalar>& m, const Capacity& c, int dim, Arena& a, Work<P>& w) {
  w.newton = a.take<Newton>(1);
  Newton& q = *w.newton;
  const int units = c.scalar_rows + c.contacts, rows = c.scalar_rows + dim * c.contacts;
  q.max_fill = std::min<std::size_t>(std::size_t(m.nv) * (m.nv + 1) / 2, kNewtonFill);
  q.H = a.take<double>(q.max_fill);
  for (double** p : {&q.x, &q.w_free, &q.w_saved}) *p = a.take<double>(m.nv);
  for (double** p : {&q.lam_saved, &q.step, &q.residual, &q.weight}) *p = a.take<double>(rows);
  for (int** p : {&q.first, &q.local, &q.dof}) *p = a.take<int>(m.nv);
  for (int** p : {&q.unit, &q.rowadr}) *p = a.take<int>(units);
  q.at = a.take<std::size_t>(m.nv);
}

template <class P> void take_work(const Model<typename P::Scalar>& m, const Capacity& c, Arena& a, Work<P>& w) {
  using T = typename P::Scalar;
#define R2S_X(name, n) w.name = a.take<P>(n);
  R2S_STATE_ALL(R2S_X)
#undef R2S_X
  w.xiquat = a.take<Quat<P>>(m.nbody);
  w.crb = a.take<Inertia<P>>(m.nbody);
  w.cacc = a.take<Spatial<P>>(m.nbody);
  w.cfrc = a.take<Spatial<P>>(m.nbody);
  w.subtree_linvel = a.take<Vec3<P>>(m.nbody);
  w.subtree_angmom = a.take<Vec3<P>>(m.nbody);
  w.subtree_mass = a.take<P>(m.nbody);
  w.L = a.take<P>(m.nM);
  for (P** p : {&w.Dinv, &w.Dsqrt, &w.implicit, &w.qvel_start, &w.qfrc_spring, &w.qfrc_damper, &w.qfrc_gravcomp, &w.qfrc_fluid, &w.dv, &w.w, &w.scratch, &w.scratch2})
    *p = a.take<P>(m.nv + kMaxDim);
  w.gain_stiff = a.take<P>(m.nactuator);
  w.gain_shift = a.take<P>(m.nactuator);
  w.contact = a.take<Contact<P>>(c.contacts);
  w.crow = a.take<ContactRow<P>>(c.contacts);
  w.srow = a.take<ScalarRow<P>>(c.scalar_rows);
  w.max_contacts = c.contacts;
  w.max_scalar_rows = c.scalar_rows;
  w.pattern = a.take<int>(c.pattern);
  w.value = a.take<P>(c.values);
  w.max_value = c.values;
  w.max_pattern = c.pattern;
  w.E = a.take<P>(m.nE);
  w.Efactor = a.take<P>(m.nW);
  for (P** p : {&w.eq_zeta, &w.eq_c, &w.eq_lam, &w.eq_scratch}) *p = a.take<P>(m.neqrow);
  w.limit_force = a.take<P>(c.scalar_rows);
  w.pairs = a.take<int>(c.pairs);
  w.max_pairs = c.pairs;
  w.aabb = a.take<T>(6 * m.ngeom);
  w.unit_box = a.take<T>(6 * m.ngeom);
  w.order = a.take<int>(m.ngeom);
  w.unit = a.take<int>(m.ngeom + 1);
  const int units = c.scalar_rows + c.contacts, rows = 2 * (kDenseRows + kMaxDim);  // lanes differ in what fills their rows
  w.island = a.take<int>(std::size_t(units) * P::width);
  w.packed = a.take<int>(std::size_t(units) * P::width);
  for (int** p : {&w.tree_parent, &w.tree_number, &w.tree_rows}) *p = a.take<int>(m.ntree);
  w.tree_root = a.take<int>(std::size_t(m.ntree) * P::width);
  w.tree_sweeps = a.take<int>(std::size_t(m.ntree) * P::width);
  w.tree_change = a.take<T>(std::size_t(m.ntree) * P::width);
  w.contact_dim = 1;
  for (int i = 0; i < m.ngeom; ++i) w.contact_dim = std::max(w.contact_dim, m.geom_condim[i]);
  for (int i = 0; i < m.npair; ++i) w.contact_dim = std::max(w.contact_dim, m.pair_dim[i]);
  w.spread = a.take<P>(std::size_t(kMaxDim) * m.nv);
  w.dense = a.take<Dense<P>>(1);
  Dense<P>& q = *w.dense;
  q.A = a.take<P>(rows * rows);
  q.K = a.take<P>(rows * rows);
  for (P** p : {&q.b, &q.lam, &q.saved, &q.rhs, &q.c, &q.lo, &q.hi, &q.step, &q.step_roll}) *p = a.take<P>(rows);
  q.mu = reinterpret_cast<P(*)[5]>(a.take<P>(5 * rows));
  q.on = a.take<typename P::M>(rows);
  take_newton(m, c, w.contact_dim, a, w);
  w.hit1 = a.take<int>(c.pairs);
  w.hit2 = a.take<int>(c.pairs);
}

template <class P> void take_state(const Model<typename P::Scalar>& m, const Capacity& c, int nworld, Arena& a, State<P>& s) {
  using T = typename P::Scalar;
  constexpr int W = P::width;
  s.nworld = nworld;
  s.nblock = (nworld + W - 1) / W;
  s.stride = s.nblock * W;
  if (s.nblock > 1 && (s.stride * sizeof(T)) % 4096 == 0) s.stride += int(kAlign / sizeof(T));  // power-of-two strides share cache sets
#define R2S_X(name, n) s.name = a.take<T>(std::size_t(n) * s.stride);
  R2S_STATE_ALL(R2S_X)
#undef R2S_X
  s.status = a.take<int>(s.stride);
  s.contact = a.take<Contact<P>>(std::size_t(c.contacts) * s.nblock);
  s.ncon = a.take<int>(s.nblock);
  s.row_lam = a.take<P>(std::size_t(c.scalar_rows) * s.nblock);
  s.eq_lam = a.take<P>(std::size_t(m.neqrow) * s.nblock);
}

template <class P> R2S_INLINE void load_field(const typename P::Scalar* src, int n, int stride, int first, P* dst) {
  for (int i = 0; i < n; ++i) dst[i] = P::load(src + std::size_t(i) * stride + first);
}
// Lanes that are not live keep what they had.
template <class P> R2S_INLINE void store_field(typename P::Scalar* dst, int n, int stride, int first, const P* src, const typename P::M& live, bool whole) {
  for (int i = 0; i < n; ++i) {
    auto* p = dst + std::size_t(i) * stride + first;
    (whole ? src[i] : select(live, src[i], P::load(p))).store(p);
  }
}

}  // namespace R2S_ISA
