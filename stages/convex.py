# SPDX-License-Identifier: Apache-2.0
"""Convex hulls as vertices, triangles and half-spaces, and rays through them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

POINTS_AT_ONCE = 8_192  # that are tested against all half-spaces: with 10,000 of them, 0.7 GB
MIN_RELATIVE_THICKNESS = 1e-4  # of the hull's extent: flatter ones are not solids


@dataclass(frozen=True)
class Hull:
    """vertices [V, 3]; faces [F, 3], counter-clockwise from outside; half-spaces normals @ x <= offsets; volume."""

    vertices: Array
    faces: NDArray[np.int64]
    normals: Array
    offsets: Array
    volume: float

    @property
    def low(self) -> Array:
        return np.asarray(self.vertices.min(0), np.float64)

    @property
    def high(self) -> Array:
        return np.asarray(self.vertices.max(0), np.float64)

    def contains(self, points: Array, margin: float = 0.0) -> NDArray[np.bool_]:
        """Which points [N, 3] lie inside, at least margin from the surface."""
        inside = np.empty(len(points), bool)
        for start in range(0, len(points), POINTS_AT_ONCE):
            some = slice(start, start + POINTS_AT_ONCE)
            inside[some] = (points[some] @ self.normals.T <= self.offsets - margin).all(1)
        return inside


def make_hull(points: Array, grid: float = 0.0) -> Hull | None:
    """Convex hull of points [N, 3], snapped to a grid where one is given; None where they span no volume."""
    from scipy.spatial import ConvexHull, QhullError

    if grid > 0:
        points = np.unique(np.round(points / grid), axis=0) * grid
    if len(points) < 4:
        return None
    try:
        hull = ConvexHull(points)
    except QhullError:
        return None
    extent = float(np.ptp(points, axis=0).max())
    if hull.volume < MIN_RELATIVE_THICKNESS * extent * hull.area / 2:
        return None
    used, index = np.unique(hull.simplices, return_inverse=True)
    vertices, faces = points[used], index.reshape(-1, 3).astype(np.int64)
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    inward = (np.cross(b - a, c - a) * hull.equations[:, :3]).sum(1) < 0
    faces[inward] = faces[inward][:, ::-1]
    planes = np.unique(np.round(hull.equations, 10), axis=0)  # triangles of one flat side share a half-space
    return Hull(vertices, faces, planes[:, :3], -planes[:, 3], float(hull.volume))


def box_hull(half: Array, position: Array, rotation: Array) -> Hull:
    """The box of half extents [3] at a pose."""
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * half
    hull = make_hull(corners @ rotation.T + position)
    assert hull is not None, "a box of positive size is a solid"
    return hull


def enter(hull: Hull, origins: Array, directions: Array, limit: float = np.inf) -> Array:
    """Ray parameter [R] where each ray enters the hull; inf where it misses; 0 where it starts inside.

    Rays origins + t * directions, both [R, 3]. Hits that the hull's bounding box puts at `limit` or later may be
    reported as misses.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = (hull.low - origins) / directions, (hull.high - origins) / directions
    start, end = np.minimum(a, b).max(1), np.maximum(a, b).min(1)
    near = np.flatnonzero((start <= end) & (end >= 0) & (start < limit))
    result = np.full(len(origins), np.inf)
    speed = directions[near] @ hull.normals.T
    gap = hull.offsets - origins[near] @ hull.normals.T
    with np.errstate(divide="ignore", invalid="ignore"):
        t = gap / speed
    low = np.where(speed < 0, t, -np.inf).max(1)
    high = np.where(speed > 0, t, np.inf).min(1)
    outside = ((speed == 0) & (gap < 0)).any(1)
    hit = (low <= high) & (high >= 0) & ~outside
    result[near] = np.where(hit, np.maximum(low, 0.0), np.inf)
    return result


def write_obj(path: Path, hull: Hull) -> None:
    """A hull as a Wavefront OBJ file."""
    lines = [f"v {x:.6f} {y:.6f} {z:.6f}" for x, y, z in hull.vertices]
    lines += [f"f {i} {j} {k}" for i, j, k in hull.faces + 1]
    path.write_text("\n".join(lines) + "\n")
