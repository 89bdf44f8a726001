# SPDX-License-Identifier: Apache-2.0
"""Rays against MuJoCo's geoms: depth, geom and normal per pixel on the CPU, without OpenGL, for every geom type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera

# Groups that are seen; group 3 and above hold colliders, by MuJoCo's convention and the bundle's.
VISIBLE_GROUPS = (0, 1, 2)
COLLISION_GROUPS = (3,)

Window = tuple[slice, slice]  # rows, columns of an image


@dataclass
class Hits:
    """What the ray through each pixel centre meets first, [H, W] and [H, W, 3].

    depth: z in the camera frame [m], inf without a hit; geom: geom id, -1 without; normal: unit, world frame.
    """

    depth: NDArray[np.float64]
    geom: NDArray[np.int32]
    normal: NDArray[np.float64]


def pixel_directions(
    camera: Camera, offset: tuple[float, float] = (0.0, 0.0), window: Window = (slice(None), slice(None))
) -> NDArray[np.float64]:
    """Ray directions [H, W, 3], world frame, whose camera z is 1: a distance along them is a depth.

    offset: of the sample from the pixel's centre [px]; window: the rows and columns that are asked for.
    """
    u = np.arange(camera.width)[window[1]] + 0.5 + offset[0]
    v = np.arange(camera.height)[window[0]] + 0.5 + offset[1]
    return directions(camera, u[None, :], v[:, None])


def directions(camera: Camera, u: NDArray[Any], v: NDArray[Any]) -> NDArray[np.float64]:
    """Ray directions [..., 3], world frame, whose camera z is 1, through image points u, v [...] [px]."""
    x, y, z = camera.T_world_cam[:3, :3].T
    across, down = (u - camera.K[0, 2]) / camera.K[0, 0], (v - camera.K[1, 2]) / camera.K[1, 1]
    return across[..., None] * x + down[..., None] * y + z


def cast(
    model: Any,
    data: Any,
    camera: Camera,
    *,
    static: bool,
    groups: tuple[int, ...] = VISIBLE_GROUPS,
    offset: tuple[float, float] = (0.0, 0.0),
    where: NDArray[np.bool_] | None = None,
) -> Hits:
    """Cast one ray a pixel against the geoms of `groups`; static geoms only where `static`.

    where: the pixels that are asked for [H, W], all by default. Spheres are intersected here, in the window that each
    covers; all other geoms by mj_multiRay, in the pixels that their bounding spheres cover.
    """
    import mujoco

    shape = (camera.height, camera.width)
    hits = Hits(np.full(shape, np.inf), np.full(shape, -1, np.int32), np.zeros((*shape, 3)))
    where = np.ones(shape, bool) if where is None else where
    others = np.zeros(shape, bool)
    for geom in range(model.ngeom):
        fixed = model.body_weldid[model.geom_bodyid[geom]] == 0
        if (fixed and not static) or model.geom_group[geom] not in groups:
            continue
        radius = model.geom_rbound[geom] or np.inf  # MuJoCo writes 0 for a plane
        window = sphere_window(camera, data.geom_xpos[geom], radius)
        if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_SPHERE:
            _cast_sphere(hits, camera, geom, data.geom_xpos[geom], radius, window, offset, where)
        else:
            others[window] = True
    _cast_others(hits, model, data, camera, static, groups, offset, others & where)
    return hits


def _cast_sphere(
    hits: Hits,
    camera: Camera,
    geom: int,
    centre: NDArray[np.float64],
    radius: float,
    window: Window,
    offset: tuple[float, float],
    where: NDArray[np.bool_],
) -> None:
    """Enter a sphere where it is met before what is there: the smaller positive t with |o + t d - c| = r."""
    rays, start = pixel_directions(camera, offset, window), camera.centre - centre
    a, b, c = (rays * rays).sum(-1), rays @ start, float(start @ start) - radius**2
    square = b * b - a * c
    root = np.sqrt(np.maximum(square, 0))
    t = ((root if c < 0 else -root) - b) / a
    nearer = (square > 0) & (t > 0) & (t < hits.depth[window]) & where[window]
    hits.depth[window][nearer] = t[nearer]
    hits.geom[window][nearer] = geom
    hits.normal[window][nearer] = (start + t[nearer, None] * rays[nearer]) / radius


def _cast_others(
    hits: Hits,
    model: Any,
    data: Any,
    camera: Camera,
    static: bool,
    groups: tuple[int, ...],
    offset: tuple[float, float],
    where: NDArray[np.bool_],
) -> None:
    """Enter what MuJoCo's rays meet before what is there."""
    import mujoco

    rows, columns = np.nonzero(where)
    if len(rows) == 0:
        return
    rays = np.ascontiguousarray(directions(camera, columns + 0.5 + offset[0], rows + 0.5 + offset[1]))
    geom, distance, normal = np.empty(len(rays), np.int32), np.empty(len(rays)), np.zeros(rays.shape)
    mask = np.zeros(6, np.uint8)
    mask[list(groups)] = 1
    mujoco.mj_multiRay(
        model, data, camera.centre, rays.ravel(), mask, static, -1, geom, distance, normal.reshape(-1), len(rays), 1e10
    )
    hit = (geom >= 0) & (distance < hits.depth[rows, columns])
    rows, columns = rows[hit], columns[hit]
    hits.depth[rows, columns], hits.geom[rows, columns] = distance[hit], geom[hit]
    hits.normal[rows, columns] = normal[hit] / np.linalg.norm(normal[hit], axis=-1, keepdims=True)


def sphere_window(camera: Camera, centre: NDArray[np.float64], radius: float) -> Window:
    """Rows and columns that hold the image of a sphere; all of them where the camera is beside or inside it."""
    x, y, z = camera.viewmat[:3, :3] @ centre + camera.viewmat[:3, 3]
    if z < -radius:
        return slice(0, 0), slice(0, 0)
    if z <= radius * (1 + 1e-6):
        return slice(0, camera.height), slice(0, camera.width)
    return (
        _tangents(y, z, radius, camera.K[1, 1], camera.K[1, 2], camera.height),
        _tangents(x, z, radius, camera.K[0, 0], camera.K[0, 2], camera.width),
    )


def _tangents(x: float, z: float, r: float, focal: float, centre: float, size: int) -> slice:
    """Pixels of a sphere's image along one axis, between the two tangent lines through the camera.

    Slopes t with |x - t z| = r sqrt(1 + t^2), where z > r.
    """
    root = r * np.sqrt(x * x + z * z - r * r)
    low, high = (x * z - root) / (z * z - r * r), (x * z + root) / (z * z - r * r)
    edges = np.clip([np.floor(focal * low + centre - 1), np.ceil(focal * high + centre + 1)], 0, size)
    return slice(int(edges[0]), int(edges[1]))


def collision_boxes(model: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """World-frame corners (lows [C, 3], highs [C, 3]) of the boxes around the geoms that collide, at rest."""
    import mujoco

    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    solid = np.flatnonzero(
        (model.geom_contype | model.geom_conaffinity) & (model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE)
    )
    rotations = data.geom_xmat[solid].reshape(-1, 3, 3)
    centre = data.geom_xpos[solid] + np.einsum("gij,gj->gi", rotations, model.geom_aabb[solid, :3])
    half = np.einsum("gij,gj->gi", np.abs(rotations), model.geom_aabb[solid, 3:])
    return centre - half, centre + half
