// SPDX-License-Identifier: Apache-2.0
// A bounding volume hierarchy of triangles, 16 children to a node and up to 16 triangles to a leaf: one or two vectors.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace r2s {

class Bvh {
public:
    // vertices [n, 3], faces [f, 3]; binned surface area heuristic (Wald 2007), then nodes are widened.
    Bvh(const float* vertices, const std::int32_t* faces, std::int64_t count);

    BvhView view() const { return {nodes_.data(), leaves_.data()}; }

private:
    std::vector<BvhNode> nodes_;
    std::vector<BvhLeaf> leaves_;
};

}  // namespace r2s
