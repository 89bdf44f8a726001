// SPDX-License-Identifier: Apache-2.0
// The engine: worlds in blocks of W, blocks over threads.
#pragma once
#include <chrono>

#include "ik.hpp"
#include "pool.hpp"
#include "step.hpp"
#include "storage.hpp"

namespace R2S_ISA {

template <class P> class EngineOf final : public r2s::Engine {
  using T = typename P::Scalar;
  static constexpr int W = P::width;

 public:
  EngineOf(const r2s::ModelArrays& a, const r2s::EngineOptions& o, int nworld) : pool_(o.nthread), options_(o) {
    load_model(a, arena_, m_);
    cap_ = capacity(m_, o.max_contacts);
    take_state(m_, cap_, nworld, arena_, s_);
    works_.resize(pool_.size());
    for (auto& w : works_) take_work(m_, cap_, arena_, w);
  }

  int lanes() const override { return W; }
  std::vector<std::string> field_names() const override {
    std::vector<std::string> names;
#define R2S_X(name, n) names.push_back(#name);
    R2S_STATE_ALL(R2S_X)
#undef R2S_X
    return names;
  }
  r2s::FieldView field(const std::string& want) override {
    const auto& m = m_;
#define R2S_X(name, n) if (want == #name) return {s_.name, n, s_.stride};
    R2S_STATE_ALL(R2S_X)
#undef R2S_X
    throw std::out_of_range("no field " + want);
  }
  int* status() override { return s_.status; }
  void set_options(const r2s::EngineOptions& o) override { options_ = o; }

  void step(int n) override {
    pool_.run(s_.nblock, [&](int block, int thread) {
      if (profile_) mark_ = std::chrono::steady_clock::now();
      for (int i = 0; i < n; ++i) step_block(block, works_[thread]);
    });
  }
  void forward() override {
    pool_.run(s_.nblock, [&](int block, int thread) { forward_block(block, works_[thread]); });
  }

#include "engine_queries.inl"

 private:
  void load(int block, Work<P>& w) {
    const auto& m = m_;
    const int first = block * W;
    w.h = P(T(options_.timestep));
    w.rigid = options_.rigid != 0;
    w.impact_speed = P(T(options_.timestep)) * norm(v3(w.gravity, 0)) * P(2);  // slower approaches rest, they do not bounce
#define R2S_X(name, n) load_field<P>(s_.name, n, s_.stride, first, w.name);
    R2S_STATE_INPUTS(R2S_X)
    R2S_STATE_PARAMS(R2S_X)
#undef R2S_X
    for (int i = 0; i < m.nv; ++i) w.qvel_start[i] = w.qvel[i];
    for (int l = 0; l < W; ++l) w.live.set(l, first + l < s_.nworld && !(s_.status[first + l] & kDiverged));
  }
  bool whole(const Work<P>& w) const { return all(w.live); }

  void store_outputs(int block, Work<P>& w, bool full) {
    const auto& m = m_;
    const int first = block * W;
    const bool every = whole(w);
#define R2S_X(name, n) store_field<P>(s_.name, n, s_.stride, first, w.name, w.live, every);
    R2S_STATE_LIGHT(R2S_X)
    if (full) { R2S_STATE_FULL(R2S_X) }
#undef R2S_X
  }

  // Everything up to the new velocity, the accelerations and the sensors.
  void advance(int block, Work<P>& w) {
    load(block, w);
    clock(0);
    position_stage(m_, w);
    clock(1);
    velocity_stage(m_, w);
    actuation(m_, w);
    smooth_force(m_, w);
    clock(2);
    collide(m_, w);
    clock(3);
    prepare_constraints(m_, s_, block, w);
    clock(4);
    solve_constraints(m_, w, options_.iterations, T(options_.tolerance));
    clock(5);
    finish_velocity(m_, w);
    sensors(m_, w);
  }

  void forward_block(int block, Work<P>& w) {
    w.continuous = true;
    advance(block, w);
    energy(m_, w);
    store_impulses(s_, block, w);
    store_outputs(block, w, true);
  }

  void step_block(int block, Work<P>& w) {
    w.continuous = false;
    advance(block, w);
    integrate(m_, w);
    store_impulses(s_, block, w);
    check(block, w);
    store_outputs(block, w, false);
    store_state(block, w);
    clock(6);
  }

  // Worlds whose state is no longer finite, or too fast, are frozen as they were before the step.
  void check(int block, Work<P>& w) {
    P worst(0);
    for (int i = 0; i < m_.nv; ++i) worst = worst + abs(w.qvel[i]);
    for (int i = 0; i < m_.nq; ++i) worst = worst + abs(w.qpos[i]) * P(0);
    const auto sound = worst < P(T(options_.max_velocity));
    for (int l = 0; l < W; ++l) {
      if (!w.live[l]) continue;
      int& st = s_.status[block * W + l];
      if (!sound[l]) st |= kDiverged;
      if (w.overflow) st |= kContactOverflow;
    }
    w.live = w.live & sound;
  }

  void store_state(int block, Work<P>& w) {
    const auto& m = m_;
    const int first = block * W;
    const bool every = whole(w);
    store_field<P>(s_.time, 1, s_.stride, first, w.time, w.live, every);
    store_field<P>(s_.qpos, m.nq, s_.stride, first, w.qpos, w.live, every);
    store_field<P>(s_.qvel, m.nv, s_.stride, first, w.qvel, w.live, every);
    store_field<P>(s_.act, m.na, s_.stride, first, w.act, w.live, every);
  }

  static constexpr int kPhases = 7;  // load, positions, velocities and forces, collision, rows, solver, rest

  // Adds the time since the last call to a phase (one thread, while profiling).
  void clock(int phase) {
    if (!profile_) return;
    const auto now = std::chrono::steady_clock::now();
    phase_[phase] += std::chrono::duration<double>(now - mark_).count();
    mark_ = now;
  }
  void mul_armature(Work<P>& w) {
    for (int i = 0; i < m_.nv; ++i) w.dv[i] = fma(w.qacc[i], P(m_.dof_armature[i]), w.dv[i]);
  }

  Arena arena_;
  bool profile_ = false;
  double phase_[kPhases] = {};
  std::chrono::steady_clock::time_point mark_;
  r2s::Pool pool_;
  r2s::EngineOptions options_;
  Model<T> m_;
  Capacity cap_;
  State<P> s_;
  std::vector<Work<P>> works_;
};

}  // namespace R2S_ISA
