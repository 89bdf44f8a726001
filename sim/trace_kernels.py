# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# ruff: noqa: UP018, RUF046
"""Warp kernels that follow rays to the nearest triangle of meshes posed per world: what CUDA devices run.

(Warp reads this file in its own typed language: int(-1) declares a variable.) They do what the native code in
render/cpu/rays.hpp does. Rays live in a query frame (of a sensor, a camera, a body). Every row of `Bodies` says where
the meshes are seen from one such frame; a ray is culled against a mesh's bounding sphere there, then taken into the
mesh's own frame.
"""

from __future__ import annotations

import warp as wp


@wp.struct
class Bodies:
    """M meshes as seen from Q query frames."""

    meshes: wp.array(dtype=wp.uint64)  # [M]
    rotations: wp.array2d(dtype=wp.mat33)  # [Q, M] query frame to mesh frame
    translations: wp.array2d(dtype=wp.vec3)
    spheres: wp.array2d(dtype=wp.vec4)  # [Q, M] centre in the query frame, radius


@wp.func
def reaches(sphere: wp.vec4, origin: wp.vec3, direction: wp.vec3, t_max: float) -> bool:
    """Whether a ray of unit direction meets a sphere before t_max."""
    to = wp.vec3(sphere[0], sphere[1], sphere[2]) - origin
    r = sphere[3]
    along = wp.dot(to, direction)
    aside = wp.dot(to, to) - along * along
    return aside <= r * r * 1.0001 + 1.0e-12 and along + r >= 0.0 and along - r <= t_max


@wp.kernel
def trace(
    bodies: Bodies,
    origins: wp.array2d(dtype=wp.vec3),
    directions: wp.array2d(dtype=wp.vec3),
    t_min: float,
    limits: wp.array2d(dtype=float),
    any_hit: bool,
    t: wp.array2d(dtype=float),
    mesh: wp.array2d(dtype=wp.int32),
    face: wp.array2d(dtype=wp.int32),
    uv: wp.array2d(dtype=wp.vec2),
) -> None:
    """One thread a ray. origins, directions [Q or 1, n]; limits [Q or 1, n or 1]: t_max of each ray."""
    row, column = wp.tid()
    d = directions[wp.min(row, directions.shape[0] - 1), column]
    start = origins[wp.min(row, origins.shape[0] - 1), wp.min(column, origins.shape[1] - 1)] + t_min * d
    best = limits[wp.min(row, limits.shape[0] - 1), wp.min(column, limits.shape[1] - 1)] - t_min
    which = int(-1)
    hit_face = int(-1)
    weights = wp.vec2(0.0, 0.0)
    for m in range(bodies.meshes.shape[0]):
        if (which < 0 or not any_hit) and reaches(bodies.spheres[row, m], start, d, best):
            R = bodies.rotations[row, m]
            query = wp.mesh_query_ray(bodies.meshes[m], R * start + bodies.translations[row, m], R * d, best)
            if query.result:
                best = query.t
                which = m
                hit_face = query.face
                # Warp weighs the first two corners; ours weigh the second and the third.
                weights = wp.vec2(query.v, 1.0 - query.u - query.v)
    mesh[row, column] = which
    if not any_hit:
        face[row, column] = hit_face
        uv[row, column] = weights
        t[row, column] = wp.inf
        if which >= 0:
            t[row, column] = best + t_min
