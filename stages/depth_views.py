# SPDX-License-Identifier: Apache-2.0
"""Depth of a splat in the capture's cameras, with what cannot be trusted taken out.

The depth of a splat is a mean over Gaussians: at silhouettes it lies between two surfaces, on grazing views it is
stretched, and where few Gaussians are it floats. So a depth is kept only where alpha is high, the surface is locally
smooth and not grazing, and other views put the surface at the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.sim.render.splat import Splat
from real2sim.stages.contract import Progress
from real2sim.stages.depth_calibrate import calibrate, depth_error, observed_depths
from real2sim.stages.sparse import SparsePoints

Floats = NDArray[np.float32]
Array = NDArray[np.float64]

MIN_ALPHA = 0.9
MAX_PIXELS = 8_000_000
MAX_BEND = 0.02  # second difference of inverse depth times depth: zero on every plane, large at an edge
MIN_FACING = 0.12  # cosine of the angle between the surface normal and the ray
AGREE = 0.015  # two views agree when their depths differ by less than this ratio
NEIGHBOURS = 6


@dataclass
class DepthView:
    """One view: camera, its depth along the optical axis [H, W], NaN where not trusted, and rgb [H, W, 3]."""

    camera: Camera
    depth: Floats
    rgb: Floats

    def points(self, stride: int = 1) -> tuple[Array, Array]:
        """Trusted points [N, 3] in the camera's frame of reference, and their pixels [N, 2]."""
        v, u = np.mgrid[stride // 2 : self.camera.height : stride, stride // 2 : self.camera.width : stride]
        d = self.depth[v, u].ravel()
        keep = np.isfinite(d)
        pixels = np.stack([u.ravel()[keep] + 0.5, v.ravel()[keep] + 0.5], 1)
        return back_project(self.camera, pixels, d[keep]), pixels


def back_project(camera: Camera, pixels: Array, depth: NDArray[np.floating]) -> Array:
    """Points [N, 3] of pixels [N, 2] at depths [N] along the optical axis."""
    xy = (pixels - camera.K[:2, 2]) / np.diag(camera.K)[:2]
    local = np.c_[xy, np.ones(len(xy))] * np.asarray(depth, np.float64)[:, None]
    return np.asarray(local @ camera.T_world_cam[:3, :3].T + camera.T_world_cam[:3, 3], np.float64)


def render_views(
    splat: Splat, cameras: Sequence[Camera], sparse: SparsePoints, long_side: int, progress: Progress
) -> tuple[list[DepthView], float]:
    """Render a splat in every camera (at most long_side pixels) and keep the depth that can be trusted.

    splat, cameras (all those of the reconstruction, in its order) and sparse share one frame; the depth has its unit.
    All views together have at most MAX_PIXELS. Returns the views, calibrated on the sparse points, and the median
    relative error of the splat's own depth at the points.
    """
    from real2sim.sim.render.surface_depth import render_surface

    images: list[tuple[Camera, Floats, Floats, Floats]] = []
    observed: list[tuple[Array, Array]] = []
    good = sparse.reliable()
    for index, camera in enumerate(cameras):
        few = np.sqrt(MAX_PIXELS / (len(cameras) * camera.width * camera.height))
        zoom = min(1.0, long_side / max(camera.width, camera.height), few)
        small = camera.resized(round(camera.width * zoom), round(camera.height * zoom)) if zoom < 1 else camera
        image = render_surface(splat, small)
        images.append((small, image["depth"], image["alpha"], image["rgb"]))
        pixels, z = observed_depths(camera, index, sparse, good)
        observed.append((pixels * [small.width / camera.width, small.height / camera.height], z))
        progress.update(index + 1, len(cameras), step="depth")
    views = []
    for (camera, depth, alpha, rgb), (pixels, z) in zip(images, observed):
        views.append(DepthView(camera, clean_depth(camera, calibrate(depth, pixels, z), alpha), rgb))
    return keep_consistent(views), depth_error([d for _, d, _, _ in images], observed)


def clean_depth(camera: Camera, depth: Floats, alpha: Floats, min_alpha: float = MIN_ALPHA) -> Floats:
    """Depth [H, W] without transparent, uneven and grazing pixels (NaN there), smoothed by a 3x3 median."""
    import cv2

    solid = (alpha > min_alpha) & np.isfinite(depth) & (depth > 0)
    filled = np.where(solid, depth, 0).astype(np.float32)
    smooth = np.asarray(cv2.medianBlur(filled, 3), np.float32)
    inverse = np.where(smooth > 0, 1 / np.maximum(smooth, 1e-6), 0).astype(np.float32)
    bend = np.maximum(
        np.abs(cv2.filter2D(inverse, -1, np.array([[1.0, -2.0, 1.0]], np.float32))),
        np.abs(cv2.filter2D(inverse, -1, np.array([[1.0], [-2.0], [1.0]], np.float32))),
    )
    edge = (bend * smooth > MAX_BEND) | ~solid
    edge = cv2.dilate(edge.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    good = ~edge & (facing(camera, smooth) > MIN_FACING)
    return np.where(good, smooth, np.nan).astype(np.float32)


def normals_from_depth(camera: Camera, depth: Floats) -> Array:
    """Surface normals [H, W, 3] in camera axes, towards the camera, by central differences."""
    v, u = np.mgrid[: camera.height, : camera.width] + 0.5
    rays = np.stack([(u - camera.K[0, 2]) / camera.K[0, 0], (v - camera.K[1, 2]) / camera.K[1, 1], np.ones_like(u)], -1)
    points = rays * np.asarray(depth, np.float64)[..., None]
    normal = np.cross(np.gradient(points, axis=0), np.gradient(points, axis=1))
    normal /= np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-12)
    return np.asarray(normal, np.float64)


def facing(camera: Camera, depth: Floats) -> Array:
    """Cosine [H, W] between the surface normal and the direction to the camera."""
    v, u = np.mgrid[: camera.height, : camera.width] + 0.5
    rays = np.stack([(u - camera.K[0, 2]) / camera.K[0, 0], (v - camera.K[1, 2]) / camera.K[1, 1], np.ones_like(u)], -1)
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    return np.asarray(-(normals_from_depth(camera, depth) * rays).sum(-1), np.float64)


def project_depth(view: DepthView, points: Floats) -> tuple[Floats, NDArray[np.int32]]:
    """Depth z [N] of points [N, 3] in a view and the flat index of the pixel they fall on [N], -1 outside."""
    camera = view.camera
    P = (camera.K @ camera.viewmat[:3]).astype(np.float32)
    x, y, z = P[:, :3] @ points.T + P[:, 3:]
    scale = 1 / np.maximum(z, np.float32(1e-6))
    u, v = x * scale, y * scale
    inside = (z > 1e-6) & (u >= 0) & (v >= 0) & (u < camera.width) & (v < camera.height)
    index = np.where(inside, v.astype(np.int32) * np.int32(camera.width) + u.astype(np.int32), np.int32(-1))
    return z, index


def _neighbours(views: Sequence[DepthView]) -> list[NDArray[np.int64]]:
    """For each view the others that look at the same place from elsewhere, by distance of position and direction."""
    centres = np.array([v.camera.centre for v in views])
    axes = np.array([v.camera.T_world_cam[:3, 2] for v in views])
    reach = [float(np.nanmedian(v.depth)) if np.isfinite(v.depth).any() else 1.0 for v in views]
    chosen = []
    for i in range(len(views)):
        shift = np.linalg.norm(centres - centres[i], axis=1) / max(reach[i], 1e-9)
        turn = np.arccos(np.clip(axes @ axes[i], -1, 1))
        cost = np.abs(shift - 0.25) + 0.5 * turn + np.where(shift < 0.03, 10.0, 0.0)
        cost[i] = np.inf
        chosen.append(np.argsort(cost, kind="stable")[: min(NEIGHBOURS, len(views) - 1)])
    return chosen


def keep_consistent(views: Sequence[DepthView]) -> list[DepthView]:
    """Drop depths that neighbouring views contradict.

    A neighbour agrees when it has a surface at the same place, contradicts when it sees through that place, and says
    nothing when something hides it. Kept: what nobody contradicts, and what two confirm and fewer contradict.
    """
    kept = []
    for view, others in zip(views, _neighbours(views)):
        points, pixels = view.points()
        single = points.astype(np.float32)
        agree, deny = np.zeros(len(points), np.int8), np.zeros(len(points), np.int8)
        for j in others:
            z, pixel = project_depth(views[j], single)
            seen = np.where(pixel >= 0, views[j].depth.ravel()[pixel], np.float32(np.nan))
            agree += np.abs(seen - z) < AGREE * z
            deny += seen > (1 + AGREE) * z
        depth = np.full_like(view.depth, np.nan)
        ok = pixels[(deny == 0) | ((agree >= 2) & (agree > deny))].astype(int)
        depth[ok[:, 1], ok[:, 0]] = view.depth[ok[:, 1], ok[:, 0]]
        kept.append(DepthView(view.camera, depth, view.rgb))
    return kept
