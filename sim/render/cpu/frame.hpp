// SPDX-License-Identifier: Apache-2.0
// One image of one camera: the forward pass, and what it keeps for the backward pass.
#pragma once

#include <memory>
#include <vector>

#include "buffer.hpp"
#include "kernels.hpp"
#include "team.hpp"

namespace r2s {

// The best table that this processor runs, or the one of that name; null if there is none.
const Kernels* find_kernels(const char* name);
std::vector<const Kernels*> usable_kernels();

struct Images {
    float* rgb;    // [H, W, 3]
    float* depth;  // [H, W]
    float* alpha;  // [H, W]
    const float* limit;  // [H, W] depth from which on nothing is blended; null: no limit
    std::int32_t* top;   // [H, W] row of the Gaussian of the largest weight, or -1; null unless asked for
    float* top_weight;   // [H, W]; null unless asked for
    float* normals;      // [H, W, 3] sum of weight x normal in the camera's axes; null unless asked for
};

// Consecutive rows of the input that one body carries, and the camera as that body's frame sees it.
struct Carried {
    std::int64_t begin, end;
    View view;
};

// Outputs of `Frame::forward` that pruning asks for.
struct Contributions {
    float* sum;      // [n] blend weight summed over the image
    float* largest;  // [n]
};

// Buffers of one image; they are handed from image to image, so that their memory is mapped once.
struct Workspace {
    Buffer<Footprint> footprints;              // those of each chunk of rows begin where the chunk's rows do
    Buffer<std::uint64_t> keys, keys_out;      // depth bits above, place in the footprints below
    Buffer<std::uint32_t> pair_begin, pair_count;  // beside the footprints
    Buffer<Entry> entries;                     // grouped by tile, nearest first
    Buffer<std::uint16_t> touched;             // per pair
    Buffer<float> transmittance, last;         // tile order
    Buffer<float> weights;                     // per pair, [2]
    Buffer<float> pair_sums;                   // per pair, [kPairSums]
    std::vector<std::size_t> tile_begin;       // [tiles + 1]
    struct Part {                              // a share of the Gaussians, in depth order, and its pairs
        Buffer<std::uint32_t> tiles;
        std::vector<std::uint32_t> histogram;  // pairs per tile, then the place of the next one
        std::size_t pairs, first_pair;
    };
    std::vector<Part> parts;
};

class Frame {
public:
    Frame(const Gaussians& gaussians, const View& view, int threads, const Kernels& kernels);
    // Gaussians in the frames of bodies, at least one; rows that nothing carries are not drawn.
    Frame(const Gaussians& gaussians, const std::vector<Carried>& bodies, int threads, const Kernels& kernels);
    ~Frame();

    void forward(const Images& images, const Contributions* contributions);
    void backward(const Gaussians& gaussians, const float* depth, const float* v_rgb, const float* v_depth,
                  const float* v_alpha, const Gradients& gradients);

    std::int64_t visible() const { return visible_; }
    std::size_t pairs() const { return pairs_; }
    std::int64_t count() const { return gaussians_.n; }
    const View& view() const { return view_; }

private:
    void project(Team& team);
    void sort_by_depth();
    void pair_with_tiles(Team& team);
    void find_pairs(std::int64_t begin, std::int64_t end, Workspace::Part& part);
    void number_pairs();
    void place_pairs(std::int64_t begin, std::int64_t end, Workspace::Part& part);
    void rasterize(Team& team, const Images& images, bool weights);
    void colour_by_normals(Team& team);
    void gather_weights(Team& team, const Contributions& contributions);

    Gaussians gaussians_;
    std::vector<Carried> bodies_;
    View view_;  // of the first body: image size and background are those of all
    int threads_;
    const Kernels& kernels_;
    std::unique_ptr<Workspace> work_;
    int tiles_x_, tiles_y_;
    std::int64_t visible_ = 0;
    std::size_t pairs_ = 0;
    std::atomic<std::size_t> found_{0};      // pairs so far, by all parts
    struct Chunk {  // rows of one body that are projected together; their footprints begin where they do
        std::int64_t begin, end, visible;
        std::size_t body;
    };
    std::vector<Chunk> chunks_;
};

}  // namespace r2s
