// SPDX-License-Identifier: Apache-2.0
// real2sim.sim.physics._core: the engine with NumPy views of its state.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "core/engine_api.hpp"

namespace nb = nanobind;
using Reals = nb::ndarray<double, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<int, nb::c_contig, nb::device::cpu>;

namespace {

enum class Isa { base, v3, v4 };

Isa best_isa() {
#ifdef R2S_X86_DISPATCH
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd"))
    return Isa::v4;
  if (avx2) return Isa::v3;
#endif
  return Isa::base;
}

constexpr int kFew = 2;  // so few worlds are faster one by one

std::unique_ptr<r2s::Engine> make(const r2s::ModelArrays& a, const r2s::EngineOptions& o, int nworld, bool single, const std::string& isa) {
  Isa use = best_isa();
  if (isa == "base") use = Isa::base;
  const bool few = nworld <= kFew;
#ifdef R2S_X86_DISPATCH
  if (isa == "v3" && use == Isa::v4) use = Isa::v3;
  if (use == Isa::v4 && !few) return r2s::make_lanes_v4(a, o, nworld, single);
  if (use != Isa::base) return (few ? r2s::make_scalar_v3 : r2s::make_lanes_v3)(a, o, nworld, single);
  return r2s::make_scalar_base(a, o, nworld, single);
#else
  return (few ? r2s::make_scalar_base : r2s::make_lanes_base)(a, o, nworld, single);
#endif
}

r2s::ModelArrays read_model(nb::dict sizes, nb::dict ints, nb::dict reals) {
  r2s::ModelArrays a;
  for (auto [k, v] : sizes) a.size[nb::cast<std::string>(k)] = nb::cast<int>(v);
  for (auto [k, v] : ints) {
    auto x = nb::cast<Ints>(v);
    a.ints[nb::cast<std::string>(k)].assign(x.data(), x.data() + x.size());
  }
  for (auto [k, v] : reals) {
    auto x = nb::cast<Reals>(v);
    a.reals[nb::cast<std::string>(k)].assign(x.data(), x.data() + x.size());
  }
  return a;
}

// [nworld, n] view of a field, worlds adjacent in memory: strides (1, stride).
struct Handle {
  std::unique_ptr<r2s::Engine> engine;
  int nworld, nv;
  bool single;
};

nb::object field(nb::handle self, const std::string& name) {
  auto& h = nb::cast<Handle&>(self);
  const r2s::FieldView v = h.engine->field(name);
  const size_t shape[2] = {size_t(h.nworld), size_t(v.count)};
  const int64_t strides[2] = {1, v.stride};
  if (h.single) return nb::cast(nb::ndarray<nb::numpy, float>(v.data, 2, shape, self, strides));
  return nb::cast(nb::ndarray<nb::numpy, double>(v.data, 2, shape, self, strides));
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Physics core: kinematics, contacts and the step for blocks of worlds.";
  nb::class_<Handle>(m, "Engine")
      .def("__init__",
           [](Handle* self, nb::dict sizes, nb::dict ints, nb::dict reals, nb::dict options, int nworld, bool single, const std::string& isa) {
             auto num = [&](const char* k) { return nb::cast<double>(options[k]); };
             r2s::EngineOptions o{num("timestep"), num("tolerance"), num("max_velocity"), int(num("iterations")), int(num("rigid")),
                                  int(num("max_contacts")), int(num("nthread"))};
             const r2s::ModelArrays a = read_model(sizes, ints, reals);
             new (self) Handle{make(a, o, nworld, single, isa), nworld, a.size.at("nv"), single};
           })
      .def_prop_ro("lanes", [](Handle& h) { return h.engine->lanes(); })
      .def("field_names", [](Handle& h) { return h.engine->field_names(); })
      .def("field", [](nb::object self, const std::string& name) { return field(self, name); })
      .def("status",
           [](nb::object self) {
             auto& h = nb::cast<Handle&>(self);
             const size_t shape[1] = {size_t(h.nworld)};
             return nb::cast(nb::ndarray<nb::numpy, int>(h.engine->status(), 1, shape, self));
           })
      .def("set_options",
           [](Handle& h, nb::dict options) {
             auto num = [&](const char* k) { return nb::cast<double>(options[k]); };
             h.engine->set_options({num("timestep"), num("tolerance"), num("max_velocity"), int(num("iterations")), int(num("rigid")),
                                    int(num("max_contacts")), int(num("nthread"))});
           })
      .def("step", [](Handle& h, int n) { h.engine->step(n); }, nb::call_guard<nb::gil_scoped_release>())
      .def("forward", [](Handle& h) { h.engine->forward(); }, nb::call_guard<nb::gil_scoped_release>())
      .def("inverse", [](Handle& h, Reals qacc, Reals out) { h.engine->inverse(qacc.data(), out.data()); })
      .def("jacobian", [](Handle& h, int world, int body, Reals point, Reals jp, Reals jr) { h.engine->jacobian(world, body, point.data(), jp.data(), jr.data()); })
      .def("contacts",
           [](Handle& h, int world) {
             nb::list out;
             for (const auto& c : h.engine->contacts(world)) {
               nb::list f, fr, p, mu;
               for (double x : c.force) f.append(x);
               for (double x : c.frame) fr.append(x);
               for (double x : c.pos) p.append(x);
               for (double x : c.friction) mu.append(x);
               out.append(nb::make_tuple(c.geom1, c.geom2, c.dim, c.dist, p, fr, f, mu));
             }
             return out;
           })
      .def("clear_warm_start", [](Handle& h, int world) { h.engine->clear_warm_start(world); })
      .def("cast_rays",
           [](Handle& h, int world, Reals origins, Reals directions, int exclude_body, Reals dist, Ints geom, Reals normal) {
             const int n = int(dist.size());
             std::vector<r2s::RayHit> hits(n);
             h.engine->cast_rays(world, n, origins.data(), directions.data(), exclude_body, hits.data());
             for (int i = 0; i < n; ++i) {
               dist.data()[i] = hits[i].distance;
               geom.data()[i] = hits[i].geom;
               for (int k = 0; k < 3; ++k) normal.data()[3 * i + k] = hits[i].normal[k];
             }
           })
      .def("solve_ik",
           [](Handle& h, Ints sites, Reals targets, Reals posture, Reals options, Ints converged) {
             h.engine->solve_ik(int(sites.size()), sites.data(), targets.data(), posture.data(), options.data(), converged.data());
           })
      .def("set_profile", [](Handle& h, bool on) { h.engine->set_profile(on); })
      .def("phase_seconds", [](Handle& h) { return h.engine->phase_seconds(); })
      .def("last_iterations", [](Handle& h) { return h.engine->last_iterations(); });
}
