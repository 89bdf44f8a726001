// SPDX-License-Identifier: Apache-2.0
#include "bvh.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace r2s {

namespace {

constexpr int kBins = 16;
constexpr int kLeafSize = 8;  // triangles below which nothing is split: as fast as 16, with tighter boxes
constexpr int kSteepest = 32;  // depth from which on nodes are halved by count: 32 + log2(2^31 / 8) < kBvhDepth
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Box {
    float low[3] = {kInfinity, kInfinity, kInfinity}, high[3] = {-kInfinity, -kInfinity, -kInfinity};
    void add(const Box& b) {
        for (int k = 0; k < 3; ++k) low[k] = std::min(low[k], b.low[k]), high[k] = std::max(high[k], b.high[k]);
    }
    void add(const float* p) {
        for (int k = 0; k < 3; ++k) low[k] = std::min(low[k], p[k]), high[k] = std::max(high[k], p[k]);
    }
    float area() const {
        const float x = high[0] - low[0], y = high[1] - low[1], z = high[2] - low[2];
        return x < 0 ? 0.0f : x * y + y * z + z * x;
    }
};

struct Triangle {
    Box box;
    float centre[3];
    std::int32_t face;
};

// A node of the binary tree: a leaf where left is negative.
struct Binary {
    Box box;
    std::int32_t left = -1, right = -1;
    std::int64_t begin, end;
};

class Builder {
public:
    Builder(const float* vertices, const std::int32_t* faces, std::int64_t count) : triangles_(count) {
        for (std::int64_t i = 0; i < count; ++i) {
            Triangle& t = triangles_[i];
            for (int k = 0; k < 3; ++k) t.box.add(vertices + 3 * static_cast<std::int64_t>(faces[3 * i + k]));
            for (int k = 0; k < 3; ++k) t.centre[k] = 0.5f * (t.box.low[k] + t.box.high[k]);
            t.face = static_cast<std::int32_t>(i);
        }
        tree_.reserve(2 * count / kLeafSize + 2);
        tree_.push_back({});
        fill(0, 0, count);
        std::vector<std::pair<std::int32_t, int>> todo{{0, 0}};
        while (!todo.empty()) {
            const auto [at, depth] = todo.back();
            todo.pop_back();
            const std::int64_t begin = tree_[at].begin, end = tree_[at].end;
            if (end - begin <= kLeafSize) continue;
            const std::int64_t middle = depth < kSteepest ? split(begin, end) : begin + (end - begin) / 2;
            const auto left = static_cast<std::int32_t>(tree_.size());
            tree_.push_back({});
            tree_.push_back({});
            tree_[at].left = left, tree_[at].right = left + 1;
            fill(left, begin, middle);
            fill(left + 1, middle, end);
            todo.emplace_back(left, depth + 1);
            todo.emplace_back(left + 1, depth + 1);
        }
    }

    const std::vector<Triangle>& triangles() const { return triangles_; }
    const Binary& operator[](std::int32_t i) const { return tree_[i]; }

private:
    void fill(std::int32_t at, std::int64_t begin, std::int64_t end) {
        Binary& node = tree_[at];
        node.begin = begin, node.end = end;
        for (std::int64_t i = begin; i < end; ++i) node.box.add(triangles_[i].box);
    }

    // Reorders [begin, end) about the cheapest plane between bins of centres; halves it where all centres coincide.
    std::int64_t split(std::int64_t begin, std::int64_t end) {
        Box centres;
        for (std::int64_t i = begin; i < end; ++i) centres.add(triangles_[i].centre);
        float best = kInfinity;
        int best_axis = -1, best_bin = 0;
        for (int axis = 0; axis < 3; ++axis) {
            const float extent = centres.high[axis] - centres.low[axis];
            if (!(extent > 0)) continue;
            const float scale = kBins / extent;
            Box bins[kBins];
            std::int64_t counts[kBins] = {};
            for (std::int64_t i = begin; i < end; ++i) {
                const int b = bin(triangles_[i], axis, centres.low[axis], scale);
                bins[b].add(triangles_[i].box);
                ++counts[b];
            }
            float right_cost[kBins];
            Box box;
            std::int64_t count = 0;
            for (int b = kBins - 1; b > 0; --b) {
                box.add(bins[b]), count += counts[b];
                right_cost[b] = box.area() * static_cast<float>(count);
            }
            box = Box{}, count = 0;
            for (int b = 0; b + 1 < kBins; ++b) {
                box.add(bins[b]), count += counts[b];
                const float cost = box.area() * static_cast<float>(count) + right_cost[b + 1];
                if (count > 0 && count < end - begin && cost < best) best = cost, best_axis = axis, best_bin = b;
            }
        }
        auto first = triangles_.begin() + begin, last = triangles_.begin() + end;
        if (best_axis < 0) return begin + (end - begin) / 2;
        const float low = centres.low[best_axis], scale = kBins / (centres.high[best_axis] - low);
        return std::partition(first, last,
                              [&](const Triangle& t) { return bin(t, best_axis, low, scale) <= best_bin; }) -
               triangles_.begin();
    }

    static int bin(const Triangle& t, int axis, float low, float scale) {
        return std::clamp(static_cast<int>((t.centre[axis] - low) * scale), 0, kBins - 1);
    }

    std::vector<Triangle> triangles_;
    std::vector<Binary> tree_;
};

BvhLeaf leaf_of(const Builder& builder, const Binary& node, const float* vertices, const std::int32_t* faces) {
    BvhLeaf leaf{};
    int lane = 0;
    for (std::int64_t i = node.begin; i < node.end; ++i, ++lane) {
        const std::int32_t face = builder.triangles()[i].face;
        const float* p[3];
        for (int k = 0; k < 3; ++k) p[k] = vertices + 3 * static_cast<std::int64_t>(faces[3 * std::int64_t{face} + k]);
        for (int k = 0; k < 3; ++k) {
            leaf.corner[k][lane] = p[0][k];
            leaf.edge1[k][lane] = p[1][k] - p[0][k];
            leaf.edge2[k][lane] = p[2][k] - p[0][k];
        }
        leaf.face[lane] = face;
    }
    return leaf;
}

// Up to 16 nodes of the binary tree that stand for `root`'s children: the largest one is opened again and again.
std::vector<std::int32_t> children_of(const Builder& builder, std::int32_t root) {
    std::vector<std::int32_t> children{root};
    while (children.size() < kBvhWidth) {
        int largest = -1;
        for (int i = 0; i < static_cast<int>(children.size()); ++i)
            if (builder[children[i]].left >= 0 &&
                (largest < 0 || builder[children[i]].box.area() > builder[children[largest]].box.area()))
                largest = i;
        if (largest < 0) break;
        const Binary& opened = builder[children[largest]];
        children[largest] = opened.left;
        children.push_back(opened.right);
    }
    return children;
}

}  // namespace

Bvh::Bvh(const float* vertices, const std::int32_t* faces, std::int64_t count) {
    const Builder builder(vertices, faces, count);
    struct Todo {
        std::int32_t root;
        std::size_t node;
    };
    nodes_.emplace_back();
    std::vector<Todo> todo{{0, 0}};
    while (!todo.empty()) {
        const Todo job = todo.back();
        todo.pop_back();
        const std::vector<std::int32_t> children = children_of(builder, job.root);
        BvhNode node{};
        for (int lane = 0; lane < kBvhWidth; ++lane) {
            const bool used = lane < static_cast<int>(children.size());
            const Box box = used ? builder[children[lane]].box : Box{};
            for (int k = 0; k < 3; ++k) node.bounds[0][k][lane] = box.low[k], node.bounds[1][k][lane] = box.high[k];
            if (!used) continue;
            const Binary& child = builder[children[lane]];
            if (child.left < 0) {
                node.child[lane] = ~static_cast<std::int32_t>(leaves_.size());
                leaves_.push_back(leaf_of(builder, child, vertices, faces));
            } else {
                node.child[lane] = static_cast<std::int32_t>(nodes_.size());
                todo.push_back({children[lane], nodes_.size()});
                nodes_.emplace_back();
            }
        }
        nodes_[job.node] = node;
    }
}

}  // namespace r2s
