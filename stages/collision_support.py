# SPDX-License-Identifier: Apache-2.0
"""The support as boxes: one slab where its outline fills a rectangle, more where a rectangle would stick out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.transforms import matrix_to_quat
from real2sim.stages.support import inside_polygon, signed_area

Array = NDArray[np.float64]

FULL = 0.88  # an outline that fills this share of its rectangle is taken for the rectangle
COVERED = 0.97  # boxes are added until they cover this share of the outline
MAX_BOXES = 8
TAIL = 0.01  # share of the outline that may stick out of its rectangle on each side
CELLS = 64


@dataclass(frozen=True)
class Slab:
    """A box with its top at z = 0: half extents [3], centre [3], rotation about z [3, 3]."""

    half: Array
    position: Array
    rotation: Array

    def to_json(self, thickness: float) -> dict[str, Any]:
        return {
            "kind": "slab",
            "size": self.half.tolist(),
            "pos": self.position.tolist(),
            "quat": matrix_to_quat(self.rotation).tolist(),
            "thickness_m": thickness,
        }

    def covers(self, points: Array, margin: float = 0.0) -> NDArray[np.bool_]:
        """Which points [N, 3] lie over the box's footprint, grown by margin."""
        local = (points - self.position) @ self.rotation
        return np.asarray((np.abs(local[:, :2]) <= self.half[:2] + margin).all(1))


def _slab(low: Array, high: Array, axes: Array, thickness: float) -> Slab:
    """The box over the rectangle low..high [2] in axes [2, 2] (columns: its x and y in the world)."""
    rotation = np.eye(3)
    rotation[:2, :2] = axes
    middle = axes @ ((low + high) / 2)
    half = np.r_[(high - low) / 2, thickness / 2]
    return Slab(half, np.r_[middle, -thickness / 2], rotation)


def rectangle_axes(polygon: Array) -> Array:
    """Axes [2, 2] (columns) of the rectangle of least area around an outline [M, 2], x nearest to the world's x."""
    import cv2

    (_, _), (_, _), angle = cv2.minAreaRect(polygon.astype(np.float32))
    turn = np.radians((angle + 45.0) % 90.0 - 45.0)
    return np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])


def _without_tails(local: Array) -> tuple[Array, Array]:
    """Corners of the rectangle that an outline [M, 2] would fill if narrow spikes of it were cut; exact for rectangles."""
    low, high = local.min(0), local.max(0)
    grid = np.stack(np.meshgrid(*[np.linspace(a, b, 200) for a, b in zip(low, high)]), -1).reshape(-1, 2)
    inside = grid[inside_polygon(grid, local)]
    a, b = np.percentile(inside, [100 * TAIL, 100 * (1 - TAIL)], axis=0)
    rim = (b - a) * TAIL / (1 - 2 * TAIL)
    return np.maximum(a - rim, low), np.minimum(b + rim, high)


def cover_outline(polygon: Array, thickness: float) -> list[Slab]:
    """Boxes under an outline [M, 2], the largest first, all with their top at z = 0 and of one orientation."""
    axes = rectangle_axes(polygon)
    local = polygon @ axes
    low, high = _without_tails(local)
    if abs(signed_area(polygon)) >= FULL * float(np.prod(high - low)):
        return [_slab(low, high, axes, thickness)]
    low, high = local.min(0), local.max(0)
    step = (high - low) / CELLS
    centres = low + step * (np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS), indexing="ij"), -1) + 0.5)
    allowed = inside_polygon(centres.reshape(-1, 2), local).reshape(CELLS, CELLS)
    missing = allowed.copy()
    slabs: list[Slab] = []
    while len(slabs) < MAX_BOXES and missing.sum() > (1 - COVERED) * allowed.sum():
        i0, i1, j0, j1 = _largest_rectangle(allowed, missing)
        slabs.append(_slab(low + step * [i0, j0], low + step * [i1, j1], axes, thickness))
        missing[i0:i1, j0:j1] = False
    return slabs


def _largest_rectangle(allowed: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Rows i0:i1 and columns j0:j1 of the rectangle of allowed cells that holds most wanted ones."""
    total = np.zeros((allowed.shape[0] + 1, allowed.shape[1] + 1), int)
    total[1:, 1:] = wanted.cumsum(0).cumsum(1)
    best, rectangle = -1, (0, 1, 0, 1)
    for i0 in range(allowed.shape[0]):
        column = np.ones(allowed.shape[1], bool)
        for i1 in range(i0 + 1, allowed.shape[0] + 1):
            column = column & allowed[i1 - 1]
            if not column.any():
                break
            edges = np.diff(np.r_[0, column.astype(int), 0])
            starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
            gain = total[i1, ends] - total[i0, ends] - total[i1, starts] + total[i0, starts]
            k = int(np.argmax(gain))
            if gain[k] > best:
                best, rectangle = int(gain[k]), (i0, i1, int(starts[k]), int(ends[k]))
    return rectangle
