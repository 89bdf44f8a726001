// SPDX-License-Identifier: Apache-2.0
// Members of EngineOf that answer questions between steps.
  void inverse(const double*, double*) override {}
  void jacobian(int, int, const double*, double*, double*) override {}
  std::vector<r2s::ContactRecord> contacts(int) override { return {}; }
  void clear_warm_start(int) override {}
  std::vector<double> phase_seconds() override { return {}; }
  void set_profile(bool) override {}
  double last_iterations() override { return 0; }
  void cast_rays(int, int, const double*, const double*, int, r2s::RayHit*) override {}
