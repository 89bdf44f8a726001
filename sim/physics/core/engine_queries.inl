// SPDX-License-Identifier: Apache-2.0
// Members of EngineOf that answer questions between steps.
  // qfrc = M qacc + bias - passive - constraint-free applied forces are not included, as in Newton-Euler.
  void inverse(const double* qacc, double* qfrc) override {
    for (int block = 0; block < s_.nblock; ++block) {
      Work<P>& w = works_[0];
      load(block, w);
      position_stage(m_, w);
      velocity_stage(m_, w);
      for (int l = 0; l < W && block * W + l < s_.nworld; ++l)
        for (int i = 0; i < m_.nv; ++i) w.qacc[i].set(l, T(qacc[std::size_t(block * W + l) * m_.nv + i]));
      rne(m_, w, w.qacc, w.dv);
      mul_armature(w);
      for (int l = 0; l < W && block * W + l < s_.nworld; ++l)
        for (int i = 0; i < m_.nv; ++i) qfrc[std::size_t(block * W + l) * m_.nv + i] = double((w.dv[i] - w.qfrc_passive[i])[l]);
    }
  }

  void jacobian(int world, int body, const double* point, double* jacp, double* jacr) override {
    Work<P>& w = works_[0];
    const int block = world / W, l = world % W;
    load(block, w);
    kinematics(m_, w);
    com_pos(m_, w);
    const Vec3<P> at{P(T(point[0])), P(T(point[1])), P(T(point[2]))};
    for (int i = 0; i < 3 * m_.nv; ++i) jacp[i] = jacr[i] = 0;
    for (int d = m_.body_lastdof[body]; d >= 0; d = m_.dof_parentid[d]) {
      const Vec3<P> jp = jac_point(m_, w, d, at), jr = s6(w.cdof, d).ang;
      for (int k = 0; k < 3; ++k) {
        jacp[k * m_.nv + d] = double(jp[k][l]);
        jacr[k * m_.nv + d] = double(jr[k][l]);
      }
    }
  }

  std::vector<r2s::ContactRecord> contacts(int world) override {
    std::vector<r2s::ContactRecord> out;
    const int block = world / W, l = world % W;
    const Contact<P>* c = s_.contact + std::size_t(block) * cap_.contacts;
    const double inv_h = 1 / options_.timestep;
    for (int i = 0; i < s_.ncon[block]; ++i) {
      if (!c[i].present[l]) continue;
      r2s::ContactRecord r{};
      r.world = world;
      r.geom1 = c[i].geom1;
      r.geom2 = c[i].geom2;
      r.dim = c[i].dim;
      r.dist = double(c[i].dist[l]);
      for (int k = 0; k < 3; ++k) {
        r.pos[k] = double(c[i].pos[k][l]);
        r.frame[k] = double(c[i].n[k][l]);
        r.frame[3 + k] = double(c[i].t1[k][l]);
        r.frame[6 + k] = double(c[i].t2[k][l]);
      }
      for (int k = 0; k < c[i].dim; ++k) r.force[k] = c[i].active[l] ? double(c[i].lam[k][l]) * inv_h : 0;
      if (c[i].active[l]) r.force[0] += double(c[i].impact[l]) * inv_h;
      for (int k = 0; k < 5; ++k) r.friction[k] = double(c[i].friction[k][l]);
      out.push_back(r);
    }
    return out;
  }

  // Forget the impulses of one world (after a reset: they belong to another state).
  void clear_warm_start(int world) override {
    const int block = world / W, l = world % W;
    Contact<P>* c = s_.contact + std::size_t(block) * cap_.contacts;
    for (int i = 0; i < s_.ncon[block]; ++i) {
      c[i].active.set(l, false);
      c[i].present.set(l, false);
    }
    for (int i = 0; i < cap_.scalar_rows; ++i) s_.row_lam[std::size_t(block) * cap_.scalar_rows + i].set(l, T(0));
  }

  std::vector<double> phase_seconds() override { return {phase_, phase_ + kPhases}; }
  void set_profile(bool on) override { profile_ = on; std::fill(phase_, phase_ + kPhases, 0.0); }
  double last_iterations() override { return double(works_[0].sweeps); }
  void solve_ik(int nsite, const int* sites, const double* targets, const double* posture, const double* options, int* converged) override {
    const IkOptions o{int(options[0]), options[1], options[2], options[3], options[4], options[5], options[6]};
    const int rows = 6 * nsite;
    std::vector<P*> J(pool_.size()), A(pool_.size());
    Arena scratch;
    P* rest = scratch.take<P>(m_.nq);
    for (int i = 0; i < m_.nq; ++i) rest[i] = P(T(posture[i]));
    for (int t = 0; t < pool_.size(); ++t) {
      J[t] = scratch.take<P>(std::size_t(rows) * m_.nv);
      A[t] = scratch.take<P>(rows * rows);
    }
    pool_.run(s_.nblock, [&](int block, int thread) {
      Work<P>& w = works_[thread];
      load(block, w);
      P goal[7 * kMaxIkSites];
      for (int i = 0; i < 7 * nsite; ++i)
        for (int l = 0; l < W; ++l) goal[i].set(l, T(targets[std::size_t(std::min(block * W + l, s_.nworld - 1)) * 7 * nsite + i]));
      const auto done = R2S_ISA::solve_ik(m_, w, sites, nsite, goal, rest, o, J[thread], A[thread]);
      store_field<P>(s_.qpos, m_.nq, s_.stride, block * W, w.qpos, w.live, whole(w));
      for (int l = 0; l < W && block * W + l < s_.nworld; ++l) converged[block * W + l] = done[l];
    });
  }
  void cast_rays(int world, int n, const double* origins, const double* directions, int exclude_body, r2s::RayHit* hits) override {
    Work<P>& w = works_[0];
    load(world / W, w);
    kinematics(m_, w);
    for (int i = 0; i < n; ++i) {
      const SceneHit h = ray_scene(m_, w, world % W, vec(origins[3 * i], origins[3 * i + 1], origins[3 * i + 2]),
                                   vec(directions[3 * i], directions[3 * i + 1], directions[3 * i + 2]), exclude_body);
      hits[i] = {h.t, h.geom, {h.normal.x.v, h.normal.y.v, h.normal.z.v}};
    }
  }
