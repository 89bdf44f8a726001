# SPDX-License-Identifier: Apache-2.0
"""The support region, a polygon in a horizontal plane, and the places on it that no collision part covers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def polygon_area(polygon: Any) -> float:
    """Signed area [m^2] of [P, 2], positive counter-clockwise (shoelace)."""
    x, y = np.asarray(polygon, np.float64).T
    return float(0.5 * (x * np.roll(y, -1) - y * np.roll(x, -1)).sum())


def polygon_centroid(polygon: Any) -> Array:
    """Centre of area [2]; the mean of the corners where the area is nil."""
    corners = np.asarray(polygon, np.float64)
    area = polygon_area(corners)
    if abs(area) < 1e-12:
        return corners.mean(0)
    following = np.roll(corners, -1, 0)
    cross = corners[:, 0] * following[:, 1] - corners[:, 1] * following[:, 0]
    return ((corners + following) * cross[:, None]).sum(0) / (6 * area)


def inside_polygon(points: Any, polygon: Any) -> NDArray[np.bool_]:
    """Which points [..., 2] lie inside a simple polygon [P, 2] (crossings of a ray along +x)."""
    points, corners = np.asarray(points, np.float64), np.asarray(polygon, np.float64)
    inside = np.zeros(points.shape[:-1], bool)
    x, y = points[..., 0], points[..., 1]
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, 0)):
        if ay == by:
            continue
        crosses = (ay > y) != (by > y)
        inside ^= crosses & (x < ax + (y - ay) * (bx - ax) / (by - ay))
    return inside


def edge_distance(points: Any, polygon: Any) -> Array:
    """Distance [...] of points [..., 2] to the outline of a polygon [P, 2], inside or out [m]."""
    points, corners = np.asarray(points, np.float64), np.asarray(polygon, np.float64)
    nearest = np.full(points.shape[:-1], np.inf)
    for a, b in zip(corners, np.roll(corners, -1, 0)):
        edge = b - a
        along = np.clip((points - a) @ edge / max(float(edge @ edge), 1e-30), 0, 1)
        nearest = np.minimum(nearest, np.linalg.norm(points - a - along[..., None] * edge, axis=-1))
    return nearest


def clearance(points: Any, polygon: Any) -> Array:
    """Signed distance [...] to the outline of a polygon: positive inside, negative outside [m]."""
    return np.where(inside_polygon(points, polygon), 1, -1) * edge_distance(points, polygon)


def footprint(vertices: Any, above: float) -> Array | None:
    """Convex outline [P, 2], counter-clockwise, of what a part has above z = `above`; None where it has nothing there.

    vertices: of a convex part [V, 3], world frame. Edges that cross the plane are cut at it.
    """
    from scipy.spatial import ConvexHull, QhullError

    vertices = np.asarray(vertices, np.float64)
    high = vertices[:, 2] > above
    if not high.any():
        return None
    top, low = vertices[high], vertices[~high]
    # All pairs instead of the mesh's edges: a superset of the crossings with the same convex hull.
    t = (above - low[:, None, 2]) / (top[None, :, 2] - low[:, None, 2])
    cuts = (low[:, None] + t[..., None] * (top[None] - low[:, None])).reshape(-1, 3)
    outline = np.concatenate([top, cuts])[:, :2]
    try:
        return outline[ConvexHull(outline).vertices]
    except (QhullError, ValueError):
        return None


def free_spots(polygon: Any, obstacles: list[Array], radius: float, *, margin: float = 0.005, most: int = 12) -> Array:
    """Up to `most` places [S, 2] where a sphere fits on the support without touching an obstacle, spread far apart.

    polygon [P, 2], obstacles: convex outlines [P, 2], radius and margin in m. Spheres keep 2 radii and the margin
    between each other, one radius and the margin to the edges. Deterministic: farthest-point order on a grid.
    """
    corners = np.asarray(polygon, np.float64)
    low, high = corners.min(0), corners.max(0)
    step = max(radius / 2, float((high - low).max()) / 200)
    grid = np.stack(np.meshgrid(*(np.arange(a + step / 2, b, step) for a, b in zip(low, high))), -1).reshape(-1, 2)
    room = clearance(grid, corners) - radius - margin
    for outline in obstacles:
        room = np.minimum(room, -clearance(grid, outline) - radius - margin)
    grid = grid[room > 0]
    if len(grid) == 0:
        return np.zeros((0, 2))
    chosen = [int(np.argmax(room[room > 0]))]
    nearest = np.full(len(grid), np.inf)
    while len(chosen) < most:
        nearest = np.minimum(nearest, np.linalg.norm(grid - grid[chosen[-1]], axis=-1))
        if nearest.max() < 2 * radius + margin:
            break
        chosen.append(int(np.argmax(nearest)))
    return grid[chosen]
