// SPDX-License-Identifier: Apache-2.0
// Python module: `Frame` renders one camera into given arrays and differentiates it. Shapes are checked here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <optional>
#include <string>

#include "frame.hpp"
#include "photometric.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T, typename... Options>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu, Options...>;
using Points = Array<const float, nb::shape<-1, 3>>;
using Quats = Array<const float, nb::shape<-1, 4>>;
using Values = Array<const float, nb::shape<-1>>;
using Harmonics = Array<const float, nb::shape<-1, -1, 3>>;
using Image = Array<float, nb::shape<-1, -1>>;
using Colours = Array<float, nb::shape<-1, -1, 3>>;
using ImageIn = Array<const float, nb::shape<-1, -1>>;
using ColoursIn = Array<const float, nb::shape<-1, -1, 3>>;

void require(bool condition, const char* rule) {
    if (!condition) throw nb::value_error(rule);
}

r2s::Gaussians gaussians_of(const Points& means, const Quats& quats, const Points& scales, const Values& opacities,
                            const Harmonics& sh, int sh_degree) {
    const std::size_t n = means.shape(0);
    require(quats.shape(0) == n && scales.shape(0) == n && opacities.shape(0) == n && sh.shape(0) == n,
            "means, quats, scales, opacities and sh need one number of rows");
    require(n < (1ull << 31), "at most 2^31 Gaussians");
    require(sh_degree >= 0 && sh_degree <= 3, "sh_degree is 0, 1, 2 or 3");
    require(static_cast<int>(sh.shape(1)) >= (sh_degree + 1) * (sh_degree + 1), "sh has too few coefficients");
    return {means.data(), quats.data(), scales.data(), opacities.data(), sh.data(), static_cast<std::int64_t>(n),
            static_cast<int>(sh.shape(1)), sh_degree};
}

r2s::View view_of(const double* M, const Array<const double, nb::shape<3, 3>>& K, int width, int height, double near_z,
                  double far_z, const std::vector<float>& background) {
    require(width > 0 && height > 0 && width <= 65536 && height <= 65536, "width and height lie in 1 .. 65536");
    require(background.size() == 3, "background is three numbers");
    const double* k = K.data();
    for (int i = 0; i < 16; ++i) require(std::isfinite(M[i]), "the view matrix must be finite");
    for (int i = 0; i < 9; ++i) require(std::isfinite(k[i]), "K must be finite");
    require(k[0] > 0 && k[4] > 0, "focal lengths must be positive");
    require(near_z > 0 && far_z >= near_z, "near must be positive and far beyond it");
    r2s::View v{};
    for (int r = 0; r < 3; ++r) {
        for (int c = 0; c < 3; ++c) v.R[3 * r + c] = static_cast<float>(M[4 * r + c]);
        v.t[r] = static_cast<float>(M[4 * r + 3]);
        double centre = 0;
        for (int c = 0; c < 3; ++c) centre -= M[4 * c + r] * M[4 * c + 3];
        v.centre[r] = static_cast<float>(centre);
        v.background[r] = background[r];
    }
    const double fx = k[0], fy = k[4], cx = k[2], cy = k[5];
    const double margin_x = r2s::kFrustumMargin * 0.5 * width / fx, margin_y = r2s::kFrustumMargin * 0.5 * height / fy;
    v.fx = static_cast<float>(fx), v.fy = static_cast<float>(fy);
    v.cx = static_cast<float>(cx), v.cy = static_cast<float>(cy);
    v.near_z = static_cast<float>(near_z);
    v.far_z = static_cast<float>(far_z);
    v.antialiased = false;
    v.slope_x_min = static_cast<float>(-(cx / fx + margin_x));
    v.slope_x_max = static_cast<float>((width - cx) / fx + margin_x);
    v.slope_y_min = static_cast<float>(-(cy / fy + margin_y));
    v.slope_y_max = static_cast<float>((height - cy) / fy + margin_y);
    v.width = width, v.height = height;
    return v;
}

template <typename Shape>
void require_size(const Shape& image, const r2s::View& view) {
    require(static_cast<int>(image.shape(0)) == view.height && static_cast<int>(image.shape(1)) == view.width,
            "images must be height x width");
}

template <typename Optional>
auto pointer(const Optional& array) -> decltype(array->data()) {
    return array ? array->data() : nullptr;
}

std::unique_ptr<r2s::Frame> forward(const Points& means, const Quats& quats, const Points& scales,
                                    const Values& opacities, const Harmonics& sh, int sh_degree,
                                    const Array<const double, nb::shape<4, 4>>& viewmat,
                                    const Array<const double, nb::shape<3, 3>>& K, double near_z,
                                    const std::vector<float>& background, const Colours& rgb, const Image& depth,
                                    const Image& alpha, int threads, const std::string& isa,
                                    const std::optional<Array<float, nb::shape<-1>>>& weight_sum,
                                    const std::optional<Array<float, nb::shape<-1>>>& weight_max,
                                    const std::optional<Array<std::int32_t, nb::shape<-1, -1>>>& top,
                                    const std::optional<ImageIn>& depth_limit) {
    const r2s::Gaussians gaussians = gaussians_of(means, quats, scales, opacities, sh, sh_degree);
    const r2s::View view = view_of(viewmat.data(), K, static_cast<int>(rgb.shape(1)), static_cast<int>(rgb.shape(0)), near_z,
                                   r2s::kFar, background);
    require_size(depth, view);
    require_size(alpha, view);
    require(threads >= 1, "threads is at least 1");
    const r2s::Kernels* kernels = r2s::find_kernels(isa.c_str());
    require(kernels != nullptr, "this processor does not run that instruction set");
    std::optional<r2s::Contributions> contributions;
    if (weight_sum && weight_max && top) {
        require(static_cast<std::int64_t>(weight_sum->shape(0)) == gaussians.n &&
                    static_cast<std::int64_t>(weight_max->shape(0)) == gaussians.n,
                "weights need a value per Gaussian");
        require_size(*top, view);
        contributions = r2s::Contributions{weight_sum->data(), weight_max->data()};
    }
    if (depth_limit) {
        require_size(*depth_limit, view);
        require(!contributions, "weights are not counted under a depth limit");
    }
    nb::gil_scoped_release release;
    auto frame = std::make_unique<r2s::Frame>(gaussians, view, threads, *kernels);
    frame->forward({rgb.data(), depth.data(), alpha.data(), pointer(depth_limit), pointer(top), nullptr, nullptr},
                   contributions ? &*contributions : nullptr);
    return frame;
}

// One view of Gaussians that bodies carry. body_rows [bodies, 2]: first row and the one after the last of each body;
// viewmats [bodies, 4, 4]: body frame to camera; a body whose matrix is not finite is not drawn.
void forward_posed(const Points& means, const Quats& quats, const Points& scales, const Values& opacities,
                   const Harmonics& sh, int sh_degree, const Array<const std::int64_t, nb::shape<-1, 2>>& body_rows,
                   const Array<const double, nb::shape<-1, 4, 4>>& viewmats,
                   const Array<const double, nb::shape<3, 3>>& K, double near_z, double far_z, bool antialiased,
                   const std::vector<float>& background, const Colours& rgb, const Image& depth, const Image& alpha,
                   const std::optional<Array<std::int32_t, nb::shape<-1, -1>>>& top,
                   const std::optional<Image>& top_weight, const std::optional<Colours>& normals,
                   const std::optional<ImageIn>& depth_limit, int threads, const std::string& isa) {
    const r2s::Gaussians gaussians = gaussians_of(means, quats, scales, opacities, sh, sh_degree);
    require(viewmats.shape(0) == body_rows.shape(0), "one view matrix a body is needed");
    const int width = static_cast<int>(rgb.shape(1)), height = static_cast<int>(rgb.shape(0));
    std::vector<r2s::Carried> bodies;
    const double identity[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    bodies.push_back({0, 0, view_of(identity, K, width, height, near_z, far_z, background)});
    for (std::size_t b = 0; b < body_rows.shape(0); ++b) {
        const std::int64_t begin = body_rows.data()[2 * b], end = body_rows.data()[2 * b + 1];
        require(0 <= begin && begin <= end && end <= gaussians.n, "body_rows must lie within the Gaussians");
        const double* M = viewmats.data() + 16 * b;
        bool finite = true;
        for (int i = 0; i < 16; ++i) finite &= std::isfinite(M[i]);
        if (!finite) continue;
        bodies.push_back({begin, end, view_of(M, K, width, height, near_z, far_z, background)});
        bodies.back().view.antialiased = antialiased;
    }
    const r2s::View& view = bodies.front().view;
    require_size(depth, view);
    require_size(alpha, view);
    if (top) require_size(*top, view);
    require(!top_weight || top, "top_weight comes with top");
    if (top_weight) require_size(*top_weight, view);
    if (normals) require_size(*normals, view);
    if (depth_limit) require_size(*depth_limit, view);
    require(threads >= 1, "threads is at least 1");
    const r2s::Kernels* kernels = r2s::find_kernels(isa.c_str());
    require(kernels != nullptr, "this processor does not run that instruction set");
    nb::gil_scoped_release release;
    r2s::Frame(gaussians, bodies, threads, *kernels)
        .forward({rgb.data(), depth.data(), alpha.data(), pointer(depth_limit), pointer(top), pointer(top_weight),
                  pointer(normals)},
                 nullptr);
}

void backward(r2s::Frame& frame, const Points& means, const Quats& quats, const Points& scales,
              const Values& opacities, const Harmonics& sh, int sh_degree, const ImageIn& depth, const ColoursIn& v_rgb,
              const std::optional<ImageIn>& v_depth, const std::optional<ImageIn>& v_alpha,
              const Array<float, nb::shape<-1, 3>>& v_means, const Array<float, nb::shape<-1, 4>>& v_quats,
              const Array<float, nb::shape<-1, 3>>& v_scales, const Array<float, nb::shape<-1>>& v_opacities,
              const Array<float, nb::shape<-1, -1, 3>>& v_sh,
              const std::optional<Array<float, nb::shape<-1>>>& means2d_norm, bool accumulate) {
    const r2s::Gaussians gaussians = gaussians_of(means, quats, scales, opacities, sh, sh_degree);
    const std::size_t n = means.shape(0);
    require(gaussians.n == frame.count(), "the Gaussians of the forward pass are needed");
    require_size(depth, frame.view());
    require_size(v_rgb, frame.view());
    if (v_depth) require_size(*v_depth, frame.view());
    if (v_alpha) require_size(*v_alpha, frame.view());
    require(v_means.shape(0) == n && v_quats.shape(0) == n && v_scales.shape(0) == n && v_opacities.shape(0) == n &&
                v_sh.shape(0) == n && v_sh.shape(1) == sh.shape(1) && (!means2d_norm || means2d_norm->shape(0) == n),
            "gradients need the shapes of their inputs");
    const r2s::Gradients gradients{v_means.data(), v_quats.data(),        v_scales.data(), v_opacities.data(),
                                   v_sh.data(),    pointer(means2d_norm), accumulate};
    nb::gil_scoped_release release;
    frame.backward(gaussians, depth.data(), v_rgb.data(), pointer(v_depth), pointer(v_alpha), gradients);
}

double photometric(const ColoursIn& rgb, const ColoursIn& target,
                   const std::optional<Array<const bool, nb::shape<-1, -1>>>& keep, double ssim_weight,
                   const Colours& gradient, int threads, const std::string& isa) {
    const std::size_t height = rgb.shape(0), width = rgb.shape(1);
    require(target.shape(0) == height && target.shape(1) == width && gradient.shape(0) == height &&
                gradient.shape(1) == width && (!keep || (keep->shape(0) == height && keep->shape(1) == width)),
            "rgb, target, keep and gradient need one height and width");
    require(height > 0 && width > 0 && height <= 65536 && width <= 65536, "width and height lie in 1 .. 65536");
    require(ssim_weight >= 0 && ssim_weight <= 1, "ssim_weight lies in 0 .. 1");
    require(threads >= 1, "threads is at least 1");
    const r2s::Kernels* kernels = r2s::find_kernels(isa.c_str());
    require(kernels != nullptr, "this processor does not run that instruction set");
    const auto* kept = reinterpret_cast<const std::uint8_t*>(pointer(keep));
    nb::gil_scoped_release release;
    return r2s::photometric(*kernels, rgb.data(), target.data(), kept, static_cast<int>(width),
                            static_cast<int>(height), ssim_weight, gradient.data(), threads);
}

}  // namespace

void bind_rays(nb::module_& m);

NB_MODULE(_cpu, m) {
    nb::set_leak_warnings(false);  // a graph that lives until the interpreter ends keeps its frames
    m.doc() = "CPU rasteriser of 3D Gaussians: see sim/render/rasterize.py for the interface.";
    nb::class_<r2s::Frame>(m, "Frame")
        .def_prop_ro("visible", &r2s::Frame::visible)
        .def_prop_ro("pairs", &r2s::Frame::pairs)
        .def("backward", &backward, "means"_a, "quats"_a, "scales"_a, "opacities"_a, "sh"_a, "sh_degree"_a, "depth"_a,
             "v_rgb"_a, "v_depth"_a.none(), "v_alpha"_a.none(), "v_means"_a, "v_quats"_a, "v_scales"_a, "v_opacities"_a,
             "v_sh"_a, "means2d_norm"_a.none() = nb::none(), "accumulate"_a = false);
    m.def("forward", &forward, "means"_a, "quats"_a, "scales"_a, "opacities"_a, "sh"_a, "sh_degree"_a, "viewmat"_a,
          "K"_a, "near"_a, "background"_a, "rgb"_a, "depth"_a, "alpha"_a, "threads"_a, "isa"_a = "",
          "weight_sum"_a.none() = nb::none(), "weight_max"_a.none() = nb::none(), "top"_a.none() = nb::none(),
          "depth_limit"_a.none() = nb::none());
    m.def("forward_posed", &forward_posed, "means"_a, "quats"_a, "scales"_a, "opacities"_a, "sh"_a, "sh_degree"_a,
          "body_rows"_a, "viewmats"_a, "K"_a, "near"_a, "far"_a, "antialiased"_a, "background"_a, "rgb"_a, "depth"_a,
          "alpha"_a, "top"_a.none(), "top_weight"_a.none(), "normals"_a.none(), "depth_limit"_a.none(), "threads"_a,
          "isa"_a = "");
    m.def("photometric", &photometric, "rgb"_a, "target"_a, "keep"_a.none(), "ssim_weight"_a, "gradient"_a, "threads"_a,
          "isa"_a = "");
    bind_rays(m);
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const r2s::Kernels* table : r2s::usable_kernels()) names.emplace_back(table->name);
        return names;
    });
}
