// SPDX-License-Identifier: Apache-2.0
// Rays against the triangles of meshes that are seen from query frames: one ray at a time, 16 boxes or triangles at once.
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace {

using namespace r2s;

constexpr int kStack = kBvhWidth * kBvhDepth;  // waiting nodes of one ray
constexpr float kEdge = 1e-6f;      // barycentric slack, so that no ray slips between two triangles
constexpr float kSlab = 1.00001f;   // what rounding may take from a box's far side

struct Ray {
    float o[3], d[3], inv[3], o_inv[3];
    int negative[3];
};

R2S_INLINE Ray make_ray(const float (&o)[3], const float (&d)[3]) {
    Ray ray;
    for (int k = 0; k < 3; ++k) {
        ray.o[k] = o[k], ray.d[k] = d[k];
        const float tiny = 1e-18f;
        const float safe = d[k] > tiny || d[k] < -tiny ? d[k] : (d[k] < 0 ? -tiny : tiny);
        ray.inv[k] = 1.0f / safe;
        ray.o_inv[k] = o[k] * ray.inv[k];
        ray.negative[k] = safe < 0;
    }
    return ray;
}

// Children whose box the ray enters before t_max; entry [16] receives where.
R2S_INLINE unsigned boxes_entered(const BvhNode& node, const Ray& ray, float t_max, float* entry) {
    unsigned mask = 0;
    for (int p = 0; p < kPieces; ++p) {
        F near = set1(0.0f), far = set1(t_max);
        for (int k = 0; k < 3; ++k) {
            const F inv = set1(ray.inv[k]), shift = set1(ray.o_inv[k]);
            near = max(near, load(node.bounds[ray.negative[k]][k] + p * W) * inv - shift);
            far = min(far, (load(node.bounds[1 - ray.negative[k]][k] + p * W) * inv - shift) * set1(kSlab));
        }
        store(entry + p * W, near);
        mask |= bits(near <= far) << (p * W);
    }
    return mask;
}

// Moeller and Trumbore 1997, both sides of a triangle; takes the nearest of the leaf into `hit`.
R2S_INLINE bool triangles_met(const BvhLeaf& leaf, const Ray& ray, RayHit& hit) {
    bool found = false;
    const F dx = set1(ray.d[0]), dy = set1(ray.d[1]), dz = set1(ray.d[2]);
    for (int p = 0; p < kPieces; ++p) {
        const int at = p * W;
        const F ax = load(leaf.edge1[0] + at), ay = load(leaf.edge1[1] + at), az = load(leaf.edge1[2] + at);
        const F bx = load(leaf.edge2[0] + at), by = load(leaf.edge2[1] + at), bz = load(leaf.edge2[2] + at);
        const F sx = set1(ray.o[0]) - load(leaf.corner[0] + at), sy = set1(ray.o[1]) - load(leaf.corner[1] + at),
                sz = set1(ray.o[2]) - load(leaf.corner[2] + at);
        const F px = dy * bz - dz * by, py = dz * bx - dx * bz, pz = dx * by - dy * bx;
        const F det = fma(ax, px, fma(ay, py, az * pz)), inv = set1(1.0f) / det;
        const F u = fma(sx, px, fma(sy, py, sz * pz)) * inv;
        const F qx = sy * az - sz * ay, qy = sz * ax - sx * az, qz = sx * ay - sy * ax;
        const F v = fma(dx, qx, fma(dy, qy, dz * qz)) * inv;
        const F t = fma(bx, qx, fma(by, qy, bz * qz)) * inv;
        const F slack = set1(-kEdge);
        // An empty lane has det = 0, so that u is NaN or infinite and fails.
        const Mask met = (u >= slack) & (v >= slack) & (u + v <= set1(1.0f + kEdge)) & (t >= set1(0.0f)) &
                         (set1(hit.t) > t);
        unsigned lanes = bits(met);
        if (!lanes) continue;
        alignas(64) float ts[W], us[W], vs[W];
        store(ts, t), store(us, u), store(vs, v);
        for (; lanes; lanes &= lanes - 1) {
            const int i = lowest_bit(lanes);
            if (!(ts[i] < hit.t)) continue;
            hit.t = ts[i], hit.u = us[i], hit.v = vs[i], hit.face = leaf.face[at + i];
            found = true;
        }
    }
    return found;
}

// The nearest triangle before hit.t, or any one; returns whether there is one.
template <bool kAny>
R2S_INLINE bool trace_mesh(const BvhView& bvh, const Ray& ray, RayHit& hit) {
    struct Waiting {
        float entry;
        std::int32_t child;
    } stack[kStack];
    int depth = 0;
    bool found = false;
    std::int32_t at = 0;
    for (;;) {
        if (at < 0) {
            found |= triangles_met(bvh.leaves[~at], ray, hit);
            if (kAny && found) return true;
        } else {
            alignas(64) float entry[kBvhWidth];
            const BvhNode& node = bvh.nodes[at];
            unsigned mask = boxes_entered(node, ray, hit.t, entry);
            const int base = depth;
            for (; mask; mask &= mask - 1) {  // insertion sort, the nearest last
                const int i = lowest_bit(mask);
                int k = depth++;
                for (; k > base && stack[k - 1].entry < entry[i]; --k) stack[k] = stack[k - 1];
                stack[k] = {entry[i], node.child[i]};
            }
        }
        do {
            if (depth == 0) return found;
            --depth;
        } while (stack[depth].entry > hit.t);
        at = stack[depth].child;
    }
}

R2S_INLINE bool sphere_reached(const float* sphere, const float* o, const float* d, float t_max) {
    const float x = sphere[0] - o[0], y = sphere[1] - o[1], z = sphere[2] - o[2], r = sphere[3];
    const float along = x * d[0] + y * d[1] + z * d[2];
    const float aside = x * x + y * y + z * z - along * along;
    return aside <= r * r * 1.0001f + 1e-12f && along + r >= 0 && along - r <= t_max;
}

template <bool kAny>
R2S_INLINE void trace_ray(const RayJob& job, std::int64_t i) {
    const std::int64_t row = i / job.rays, column = i % job.rays;
    const float* d = job.directions + 3 * (job.directions_per_frame ? i : column);
    float start[3] = {0, 0, 0};
    if (job.origins) std::memcpy(start, job.origins + 3 * (job.origins_per_frame ? i : column), sizeof start);
    for (int k = 0; k < 3; ++k) start[k] += job.t_min * d[k];
    RayHit hit{job.limits ? job.limits[i] - job.t_min : job.t_max - job.t_min, 0, 0, -1};
    int mesh = -1;
    for (int m = 0; m < job.meshes; ++m) {
        const MeshSeen& seen = job.seen[row * job.meshes + m];
        if (!sphere_reached(seen.sphere, start, d, hit.t)) continue;
        float o[3], turned[3];
        for (int r = 0; r < 3; ++r) {
            const float* R = seen.rotation + 3 * r;
            o[r] = R[0] * start[0] + R[1] * start[1] + R[2] * start[2] + seen.translation[r];
            turned[r] = R[0] * d[0] + R[1] * d[1] + R[2] * d[2];
        }
        if (trace_mesh<kAny>(job.bvhs[m], make_ray(o, turned), hit)) {
            mesh = m;
            if (kAny) break;
        }
    }
    job.mesh[i] = mesh;
    if (kAny) return;
    job.t[i] = mesh < 0 ? HUGE_VALF : hit.t + job.t_min;
    job.face[i] = mesh < 0 ? -1 : hit.face;
    job.uv[2 * i] = hit.u, job.uv[2 * i + 1] = hit.v;
}

void trace_rays(const RayJob& job, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
        if (job.t)
            trace_ray<false>(job, i);
        else
            trace_ray<true>(job, i);
    }
}

}  // namespace
