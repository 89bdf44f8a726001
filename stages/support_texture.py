# SPDX-License-Identifier: Apache-2.0
"""The support seen straight from above, as if nothing stood on it: what views saw behind things, and inpainting for the
rest. One picture of the plane serves all views, so what is filled in agrees between them by construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.sim.raycast import pixel_directions
from real2sim.stages.silhouettes import Ids
from real2sim.stages.support import inside_polygon

Array = NDArray[np.float64]

HALO_PX = 3  # around a mask, whose pixels mix two colours, at a long side of 640
INPAINT_RADIUS = 5  # of Telea's method, in cells


@dataclass(frozen=True)
class Texture:
    """rgb [H, W, 3] (0 to 1) of the plane z = 0 at x, y = low + cell * (column, row) + cell / 2; seen [H, W]: by a photo."""

    low: Array
    cell: float
    rgb: NDArray[np.float32]
    seen: NDArray[np.bool_]

    def at(self, xy: Array) -> NDArray[np.float32]:
        """Colours [..., 3] at points [..., 2] of the plane, the nearest at the border where they lie outside."""
        index = np.floor((xy - self.low) / self.cell).astype(int)
        row = np.clip(index[..., 1], 0, self.rgb.shape[0] - 1)
        return self.rgb[row, np.clip(index[..., 0], 0, self.rgb.shape[1] - 1)]


def widened(ids: Ids) -> NDArray[np.bool_]:
    """Pixels of any instance and the halo around them [H, W]."""
    import cv2

    width = 2 * max(1, round(HALO_PX * max(ids.shape) / 640)) + 1
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (width, width))
    return np.asarray(cv2.dilate((ids > 0).astype(np.uint8), disc) > 0)


def support_texture(
    photos: Sequence[NDArray[np.uint8]], cameras: Sequence[Camera], hidden: Sequence[NDArray[np.bool_]], polygon: Array,
    cell: float, closed: NDArray[np.bool_] | None = None,
) -> Texture:  # fmt: skip
    """Mean of the photos over the support's box, weighted by how steeply and closely each looks at it; holes inpainted.

    photos RGB; cameras world frame; hidden [H, W] per photo: pixels that do not show the support; polygon [M, 2];
    closed [H, W]: cells that no photo shows truly, such as contact shadows (see `grid`).
    """
    import cv2

    low, points = grid(polygon, cell)
    flat = np.c_[points.reshape(-1, 2), np.zeros(points[..., 0].size)]
    total, weight = np.zeros((len(flat), 3)), np.zeros(len(flat))
    for photo, camera, mask in zip(photos, cameras, hidden):
        local = (flat - camera.centre) @ camera.T_world_cam[:3, :3]
        z = np.maximum(local[:, 2], 1e-6)
        uv = (local[:, :2] / z[:, None] * np.diag(camera.K)[:2] + camera.K[:2, 2] - 0.5).astype(np.float32)
        inside = (local[:, 2] > 1e-6) & (uv >= 0).all(1) & (uv < [camera.width - 1, camera.height - 1]).all(1)
        rows = np.flatnonzero(inside)
        pixel = np.round(uv[rows]).astype(int)
        rows = rows[~mask[pixel[:, 1], pixel[:, 0]]]
        colour = _bilinear(photo, uv[rows])
        away = camera.centre - flat[rows]
        distance = np.linalg.norm(away, axis=1)
        w = (away[:, 2] / distance) ** 2 / distance**2
        total[rows] += w[:, None] * colour
        weight[rows] += w
    shape = points.shape[:2]
    seen = (weight > 0).reshape(shape) & (True if closed is None else ~closed)
    rgb = (total / np.maximum(weight, 1e-12)[:, None]).reshape(*shape, 3)
    over = inside_polygon(points.reshape(-1, 2), polygon).reshape(shape)
    hole = (over & ~seen).astype(np.uint8)
    coded = np.clip(np.round(rgb), 0, 255).astype(np.uint8)
    filled = cv2.inpaint(coded, hole, INPAINT_RADIUS, cv2.INPAINT_TELEA) if hole.any() else coded
    return Texture(low, cell, (np.asarray(filled) / 255).astype(np.float32), seen)


def _bilinear(photo: NDArray[np.uint8], uv: NDArray[np.float32]) -> Array:
    column, row = np.floor(uv).astype(int).T
    fx, fy = (uv - np.floor(uv)).T[..., None]
    upper = photo[row, column] * (1 - fx) + photo[row, column + 1] * fx
    lower = photo[row + 1, column] * (1 - fx) + photo[row + 1, column + 1] * fx
    return np.asarray(upper * (1 - fy) + lower * fy, np.float64)


def grid(polygon: Array, cell: float) -> tuple[Array, Array]:
    """Corner [2] and cell centres [H, W, 2] of the box around a polygon."""
    low = polygon.min(0)
    count = np.maximum(np.ceil(np.ptp(polygon, axis=0) / cell).astype(int), 1)
    x, y = (low[k] + cell * (np.arange(count[k]) + 0.5) for k in (0, 1))
    return low, np.stack(np.meshgrid(x, y), -1)


def emptied(
    photo: NDArray[np.uint8], camera: Camera, hidden: NDArray[np.bool_], texture: Texture, polygon: Array
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """A photo [H, W, 3] (0 to 1) with the support in place of hidden pixels, and which pixels now show the background.

    A hidden pixel whose ray passes over the support's edge shows what lies behind, which only other photos know.
    """
    rgb, known = (photo / 255).astype(np.float32), ~hidden
    rays = pixel_directions(camera)[hidden]
    with np.errstate(divide="ignore"):
        t = -camera.centre[2] / np.minimum(rays[:, 2], -1e-9)
    xy = camera.centre[:2] + rays[:, :2] * t[:, None]
    on = inside_polygon(xy, polygon)
    colours = rgb[hidden]
    colours[on] = texture.at(xy[on])
    rgb[hidden], known[hidden] = colours, on
    return rgb, known
