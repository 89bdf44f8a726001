// SPDX-License-Identifier: Apache-2.0
// What the bindings see of the core: one abstract engine, whatever the scalar type, lane count and instruction set.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace r2s {

// The model by field name, as model.py hands it over.
struct ModelArrays {
  std::map<std::string, int> size;
  std::map<std::string, std::vector<int>> ints;
  std::map<std::string, std::vector<double>> reals;
};

struct EngineOptions {
  double timestep, tolerance, max_velocity;
  int iterations, rigid, max_contacts, nthread;
};

struct FieldView {
  void* data;
  int count;     // numbers a world
  int stride;    // elements from one number to the next; worlds are adjacent
};

// One contact of one world, as the contact query reports it.
struct ContactRecord {
  int world, geom1, geom2, dim;
  double dist, pos[3], frame[9], force[6], friction[5];
};

struct RayHit { double distance; int geom; double normal[3]; };

class Engine {
 public:
  virtual ~Engine() = default;
  virtual int lanes() const = 0;
  virtual std::vector<std::string> field_names() const = 0;
  virtual FieldView field(const std::string& name) = 0;
  virtual int* status() = 0;
  virtual void set_options(const EngineOptions& o) = 0;
  virtual void step(int n) = 0;
  virtual void forward() = 0;
  virtual void inverse(const double* qacc, double* qfrc) = 0;                 // [nworld][nv] row major
  virtual void jacobian(int world, int body, const double* point, double* jacp, double* jacr) = 0;  // [3][nv] row major
  virtual std::vector<ContactRecord> contacts(int world) = 0;
  virtual void clear_warm_start(int world) = 0;
  virtual std::vector<double> phase_seconds() = 0;                            // profile: time by phase
  virtual void set_profile(bool on) = 0;
  virtual double last_iterations() = 0;                                       // mean sweeps in the last step
  // targets [nworld][nsite][7], posture [nq]; qpos of the state is the guess and the result; converged [nworld].
  virtual void solve_ik(int nsite, const int* sites, const double* targets, const double* posture, const double* options, int* converged) = 0;
  virtual void cast_rays(int world, int n, const double* origins, const double* directions, int exclude_body, RayHit* hits) = 0;
};

using Factory = std::unique_ptr<Engine>(const ModelArrays&, const EngineOptions&, int nworld, bool single);
Factory make_scalar_base, make_lanes_base, make_scalar_v3, make_lanes_v3, make_lanes_v4;  // instruction sets: see CMakeLists.txt

}  // namespace r2s
