// SPDX-License-Identifier: Apache-2.0
// Python: `Bvh` of a triangle mesh, and `trace` of rays against meshes that query frames see.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "bvh.hpp"
#include "frame.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr std::int64_t kRayChunk = 1024;

template <typename T, typename... Options>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu, Options...>;
using Vectors = Array<const float, nb::shape<-1, -1, 3>>;  // [1 or frames, rays, 3]
template <typename T>
using PerRay = Array<T, nb::shape<-1, -1>>;

void require(bool condition, const char* rule) {
    if (!condition) throw nb::value_error(rule);
}

void make_bvh(r2s::Bvh* self, const Array<const float, nb::shape<-1, 3>>& vertices,
              const Array<const std::int32_t, nb::shape<-1, 3>>& faces) {
    const auto n = static_cast<std::int64_t>(vertices.shape(0)), count = static_cast<std::int64_t>(faces.shape(0));
    require(count > 0 && count < (1ll << 31), "a mesh has between 1 and 2^31 faces");
    for (std::int64_t i = 0; i < 3 * n; ++i) require(std::isfinite(vertices.data()[i]), "vertices must be finite");
    for (std::int64_t i = 0; i < 3 * count; ++i)
        require(faces.data()[i] >= 0 && faces.data()[i] < n, "faces must name vertices");
    nb::gil_scoped_release release;
    new (self) r2s::Bvh(vertices.data(), faces.data(), count);
}

void trace(const std::vector<const r2s::Bvh*>& bvhs, const Array<const float, nb::shape<-1, -1, 16>>& seen,
           const std::optional<Vectors>& origins, const Vectors& directions, float t_min, float t_max,
           const std::optional<PerRay<const float>>& limits, const PerRay<std::int32_t>& mesh,
           const std::optional<PerRay<float>>& t, const std::optional<PerRay<std::int32_t>>& face,
           const std::optional<Array<float, nb::shape<-1, -1, 2>>>& uv, int threads, const std::string& isa) {
    const std::size_t frames = mesh.shape(0), rays = mesh.shape(1);
    auto fits = [&](const auto& a) { return a.shape(0) == frames && a.shape(1) == rays; };
    auto shared = [&](const Vectors& a) { return a.shape(0) == 1 && a.shape(1) == rays; };
    require(seen.shape(0) == frames && seen.shape(1) == bvhs.size(), "seen is frames x meshes x 16");
    require(fits(directions) || shared(directions), "directions are (frames or 1) x rays x 3");
    require(!origins || fits(*origins) || shared(*origins), "origins are (frames or 1) x rays x 3");
    require(!limits || fits(*limits), "limits are frames x rays");
    require(t.has_value() == face.has_value() && t.has_value() == uv.has_value(), "t, face and uv come together");
    require(!t || (fits(*t) && fits(*face) && fits(*uv)), "outputs are frames x rays");
    require(threads >= 1, "threads is at least 1");
    const r2s::Kernels* kernels = r2s::find_kernels(isa.c_str());
    require(kernels != nullptr, "this processor does not run that instruction set");
    std::vector<r2s::BvhView> views;
    for (const r2s::Bvh* bvh : bvhs) views.push_back(bvh->view());
    static_assert(sizeof(r2s::MeshSeen) == 16 * sizeof(float));
    r2s::RayJob job{};
    job.bvhs = views.data();
    job.seen = reinterpret_cast<const r2s::MeshSeen*>(seen.data());
    job.meshes = static_cast<int>(bvhs.size());
    job.rays = static_cast<std::int64_t>(rays);
    job.origins = origins ? origins->data() : nullptr;
    job.directions = directions.data();
    job.origins_per_frame = origins && !shared(*origins);
    job.directions_per_frame = !shared(directions);
    job.t_min = t_min, job.t_max = t_max;
    job.limits = limits ? limits->data() : nullptr;
    job.mesh = mesh.data();
    if (t) job.t = t->data(), job.face = face->data(), job.uv = uv->data();
    const auto count = static_cast<std::int64_t>(frames * rays);
    nb::gil_scoped_release release;
    r2s::Team team(static_cast<int>(std::min<std::int64_t>(threads, count / kRayChunk + 1)));
    team.for_each((count + kRayChunk - 1) / kRayChunk, [&](std::int64_t c) {
        kernels->trace_rays(job, c * kRayChunk, std::min(count, (c + 1) * kRayChunk));
    });
}

}  // namespace

void bind_rays(nb::module_& m) {
    nb::class_<r2s::Bvh>(m, "Bvh").def("__init__", &make_bvh, "vertices"_a, "faces"_a);
    m.def("trace", &trace, "bvhs"_a, "seen"_a, "origins"_a.none(), "directions"_a, "t_min"_a, "t_max"_a,
          "limits"_a.none(), "mesh"_a, "t"_a.none(), "face"_a.none(), "uv"_a.none(), "threads"_a, "isa"_a = "");
}
