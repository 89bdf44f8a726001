# SPDX-License-Identifier: Apache-2.0
"""What is solid above the support: space carved by every view that sees through it.

A depth view knows where nothing is: all along its rays up to the surface. What stands on the support is the rest:
closed, watertight, with its hidden base down to the support, while the hole of a handle stays open because some view
looks through it. The open shells of surface fusion have none of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import Real2SimError
from real2sim.stages.depth_views import DepthView, project_depth

Floats = NDArray[np.float32]
Array = NDArray[np.float64]

TRUNCATION = 3.0  # in voxels
MIN_BEHIND = 2  # a hidden voxel is solid when this many views have a surface in front of it
CHUNK = 400_000
QUANTUM = 127


@dataclass
class Solid:
    """Signed distance [X, Y, Z] over the truncation, negative inside, at voxel centres low + voxel * (index + 0.5)."""

    low: Array
    voxel: float
    field: Floats

    def save(self, path: Path) -> None:
        coded = np.round(self.field * QUANTUM).astype(np.int8)
        np.savez_compressed(path, low=self.low, voxel=self.voxel, field=coded)

    @staticmethod
    def load(path: Path) -> Solid:
        try:
            with np.load(path) as data:
                return Solid(data["low"], float(data["voxel"]), data["field"].astype(np.float32) / QUANTUM)
        except (OSError, KeyError, ValueError) as error:
            raise Real2SimError(
                f"{path}: not a solid of the mesh stage ({error}). Run the mesh stage again."
            ) from error


def columns_with_things(
    views: Sequence[DepthView], low: Array, shape: NDArray[np.int64], voxel: float
) -> NDArray[np.bool_]:
    """Columns [X, Y] near which a view sees a point inside the box: elsewhere nothing needs carving."""
    from scipy import ndimage

    hit = np.zeros(tuple(shape[:2]), bool)
    high = low + voxel * shape
    for view in views:
        points, _ = view.points()
        points = points[((points > low) & (points < high)).all(1)]
        index = np.floor((points[:, :2] - low[:2]) / voxel).astype(int)
        hit[index[:, 0], index[:, 1]] = True
    filled = ndimage.binary_closing(np.pad(hit, 8), np.ones((3, 3)), iterations=6)[8:-8, 8:-8]
    return np.asarray(ndimage.binary_dilation(ndimage.binary_fill_holes(filled | hit), iterations=4))


def carve(views: Sequence[DepthView], low: Array, high: Array, voxel: float) -> Solid:
    """Carve the box low..high [3] (z from just above the support); views in the same frame and unit."""
    low = np.asarray(low, np.float64)
    shape = np.maximum(np.ceil((np.asarray(high) - low) / voxel).astype(np.int64), 2)
    field = np.ones(tuple(shape), np.float32)
    columns = np.argwhere(columns_with_things(views, low, shape, voxel))
    if not len(columns):
        return Solid(low, voxel, field)
    levels = np.arange(shape[2])
    per_part = max(1, CHUNK // int(shape[2]))
    for part in np.array_split(columns, max(1, len(columns) // per_part)):
        index = np.c_[np.repeat(part, len(levels), axis=0), np.tile(levels, len(part))]
        points = (low + voxel * (index + 0.5)).astype(np.float32)
        field[index[:, 0], index[:, 1], index[:, 2]] = _vote(views, points, np.float32(TRUNCATION * voxel))
    return Solid(low, voxel, field)


def _vote(views: Sequence[DepthView], points: Floats, truncation: np.float32) -> Floats:
    """Signed distance over the truncation [N] of points [N, 3]: mean over views that see past or at them, else hidden."""
    total, count, behind = (np.zeros(len(points), np.float32) for _ in range(3))
    for view in views:
        depth = view.depth.ravel()
        z, pixel = project_depth(view, points)
        signed = np.where(pixel >= 0, depth[pixel], np.nan) - z
        use = signed > -truncation
        total += np.where(use, np.minimum(signed / truncation, 1), 0)
        count += use
        behind += signed <= -truncation
    seen = total / np.maximum(count, 1)
    hidden = np.where(behind >= MIN_BEHIND, np.float32(-1), np.float32(1))
    return np.asarray(np.where(count > 0, seen, hidden), np.float32)
