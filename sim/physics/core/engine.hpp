// SPDX-License-Identifier: Apache-2.0
// The engine: worlds in blocks of W, blocks over threads.
#pragma once
#include <cstdio>

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
#define R2S_X(name, n) load_field<P>(s_.name, n, s_.stride, first, w.name);
    R2S_STATE_INPUTS(R2S_X)
    R2S_STATE_PARAMS(R2S_X)
#undef R2S_X
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

  void forward_block(int block, Work<P>& w) {
    load(block, w);
    position_stage(m_, w);
    velocity_stage(m_, w);
    actuation(m_, w);
    smooth_force(m_, w);
    factor(m_, w, static_cast<const P*>(nullptr));
    for (int i = 0; i < m_.nv; ++i) w.qacc[i] = w.qfrc_smooth[i];
    solve_m(m_, w, w.qacc);
    energy(m_, w);
    store_outputs(block, w, true);
  }

  void step_block(int block, Work<P>& w) { forward_block(block, w); }

  Arena arena_;
  r2s::Pool pool_;
  r2s::EngineOptions options_;
  Model<T> m_;
  Capacity cap_;
  State<P> s_;
  std::vector<Work<P>> works_;
};

}  // namespace R2S_ISA
