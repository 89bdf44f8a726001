// SPDX-License-Identifier: Apache-2.0
// What the hot loops read and write, and the table of their entry points, one table per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace r2s {

constexpr int kTile = 16;                    // pixels on a side of a tile; a tile is 4 x 4 blocks of 4 x 4 pixels
constexpr int kTilePixels = kTile * kTile;   // stored block by block, row by row within a block
constexpr float kBlur = 0.3f;                // variance of the low-pass filter [px^2]
constexpr float kAlphaMax = 0.999f;
constexpr float kAlphaMin = 1.0f / 255.0f;
constexpr float kLog2AlphaMin = -7.994353436858858f;  // log2(1 / 255)
constexpr float kTransmittanceMin = 1e-4f;
constexpr float kFrustumMargin = 0.3f;
constexpr double kFar = 1e10;
constexpr float kLn2 = 0.6931471805599453f;
constexpr int kPairSums = 16;  // floats per (Gaussian, tile) pair in the backward pass: one cache line

// Gaussians as activated values; all arrays are dense and row-major.
struct Gaussians {
    const float* means;      // [n, 3]
    const float* quats;      // [n, 4] wxyz
    const float* scales;     // [n, 3]
    const float* opacities;  // [n]
    const float* sh;         // [n, coefficients, 3]
    std::int64_t n;
    int coefficients;
    int sh_degree;
};

struct View {
    float R[9], t[3];  // world to camera
    float centre[3];   // of the camera, in the world
    float fx, fy, cx, cy, near_z, far_z;
    float slope_x_min, slope_x_max, slope_y_min, slope_y_max;  // of the widened frustum
    float background[3];
    int width, height;
    bool antialiased;  // opacities are scaled by what the low-pass filter takes (Mip-Splatting, Yu et al. 2024, eq. 9)
};

// One visible Gaussian as the raster loops read it: one cache line.
// alpha = min(kAlphaMax, exp2(log2_opacity - t^2 - s^2)) with t = u1 dx + u2 dy, s = u3 dy: the Cholesky form of the
// conic, in which nothing cancels for long thin Gaussians.
struct alignas(64) Footprint {
    float x, y;          // centre [px]
    float u1, u2, u3;    // [1 / px]
    float log2_opacity;
    float r, g, b;       // colour towards this camera
    float z;             // depth in the camera
    float ridge_x;       // d(dx) / d(dy) of the ellipse's ridge at fixed dy: -u2 / u1
    float ridge_y;       // d(dy) / d(dx) at fixed dx: -u1 u2 / (u2^2 + u3^2)
    float rx, ry;        // half extents of the box outside which alpha < kAlphaMin [px]
    std::uint32_t id;    // row in the input
    std::uint32_t pad;
};

// One Gaussian in the depth-sorted list of a tile.
struct Entry {
    std::uint32_t footprint;  // row in the footprints
    std::uint32_t pair;       // row in the arrays of pairs, which are grouped by Gaussian
};

struct TileJob {
    const Footprint* footprints;
    const Entry* entries;
    int count;
    int x0, y0, width, height;  // of the tile's first pixel, and of the image
    float background[3];
    // Images, row-major [H, W, ...].
    float* rgb;
    float* depth;
    float* alpha;
    const float* limit;  // [H, W] depth from which on nothing is blended; null: no limit
    std::int32_t* top;  // row of the Gaussian of the largest weight, -1 where there is none; null unless asked for
    float* top_weight;  // that weight; may be null
    // State that the backward pass needs, tile-ordered: [kTilePixels] floats of this tile.
    float* transmittance;
    float* last;  // place of the last blended entry in the tile's list, -1 where there is none
    // Per pair.
    std::uint16_t* touched;  // blocks in which the pair contributes
    float* weights;          // [pairs, 2] sum and largest of the blend weights; null unless asked for
};

struct TileGradientJob {
    const Footprint* footprints;
    const Entry* entries;
    int count;
    int x0, y0, width, height;
    float background[3];
    const float* transmittance;
    const float* last;
    const std::uint16_t* touched;
    const float* depth;                        // [H, W], the output of the forward pass
    const float *v_rgb, *v_depth, *v_alpha;    // upstream gradients, row-major; v_depth and v_alpha may be null
    float* pair_sums;                          // [pairs, kPairSums]
};

// Gradients with respect to the inputs, dense; added to where `accumulate`.
struct Gradients {
    float *means, *quats, *scales, *opacities, *sh;
    float* means2d_norm;  // [n] norm of the gradient of the projected centre [1 / px]; may be null
    bool accumulate;
};

struct GaussianGradientJob {
    const Footprint* footprints;   // those of the rows below, in ascending row order
    const std::uint32_t* pair_begin;  // first pair of each footprint
    const std::uint32_t* pair_count;
    const std::uint16_t* touched;
    const float* pair_sums;
};

constexpr int kPadding = 16;   // zeros before and after a row of a map, more than the window's reach of 15 values
constexpr int kColumns = 128;  // values of a row that are worked on together

// Loss of image x against y, [height, width, 3]; keep [height, width] may be null.
struct PhotometricJob {
    const float *x, *y;
    const std::uint8_t* keep;
    int width, height;
    int length;                  // values in a row, rounded up to 16
    float l1_scale, ssim_scale;  // of the sums of |x - y| and of SSIM in the loss
    float* maps[3];              // derivatives of the summed SSIM by blur(x), blur(x y), blur(x x): [height, stride()]
    float* gradient;             // [height, width, 3]
    double *l1_sums, *ssim_sums; // [height, columns()]
    int stride() const { return length + 2 * kPadding; }
    int columns() const { return (length + kColumns - 1) / kColumns; }
};

constexpr int kBvhWidth = 16;  // children of a node, and triangles that a leaf has room for
constexpr int kBvhDepth = 64;  // no tree is deeper

struct alignas(64) BvhNode {
    float bounds[2][3][kBvhWidth];   // low and high corners; an empty box where there is no child
    std::int32_t child[kBvhWidth];   // a node, or ~leaf
};

struct alignas(64) BvhLeaf {
    float corner[3][kBvhWidth], edge1[3][kBvhWidth], edge2[3][kBvhWidth];  // zero where there is no triangle
    std::int32_t face[kBvhWidth];
};

struct BvhView {
    const BvhNode* nodes;  // the first is the root
    const BvhLeaf* leaves;
};

// A mesh as a query frame sees it: x_mesh = rotation x_query + translation; its bounding sphere in the query frame.
struct MeshSeen {
    float rotation[9], translation[3], sphere[4];
};

struct RayHit {
    float t, u, v;
    std::int32_t face;
};

// frames x rays rays, ray by ray within a frame. Directions have length 1; origins may be null: the frames' own.
struct RayJob {
    const BvhView* bvhs;   // [meshes]
    const MeshSeen* seen;  // [frames, meshes]
    int meshes;
    std::int64_t rays;
    const float *origins, *directions;  // [rays, 3], or [frames, rays, 3] where they differ between frames
    bool origins_per_frame, directions_per_frame;
    float t_min, t_max;
    const float* limits;   // [frames, rays] in place of t_max; may be null
    // Nearest hit: [frames, rays]. t is infinite and mesh and face -1 without one. With t null, mesh is that of any hit.
    float* t;
    std::int32_t *mesh, *face;
    float* uv;  // [frames, rays, 2] barycentric
};

struct Kernels {
    const char* name;
    // Projects rows [begin, end) and writes the visible ones in row order; returns their number.
    std::int64_t (*project)(const Gaussians&, const View&, std::int64_t begin, std::int64_t end, Footprint* out);
    void (*rasterize_tile)(const TileJob&);
    void (*rasterize_tile_gradient)(const TileGradientJob&);
    // Gathers the pairs of `visible` footprints that lie in rows [begin, end) and writes the rows' gradients.
    void (*gaussian_gradient)(const Gaussians&, const View&, std::int64_t begin, std::int64_t end, std::int64_t visible,
                              const GaussianGradientJob&, const Gradients&);
    // Rows [begin, end) of a column of the loss: SSIM and its derivatives first, then L1 and the gradient.
    void (*photometric_ssim)(const PhotometricJob&, int begin, int end, int column);
    void (*photometric_gradient)(const PhotometricJob&, int begin, int end, int column);
    void (*trace_rays)(const RayJob&, std::int64_t begin, std::int64_t end);
};

}  // namespace r2s
