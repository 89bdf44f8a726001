# SPDX-License-Identifier: Apache-2.0
"""Primitive shapes as triangles: vertices [V, 3], faces [F, 3] counter-clockwise from outside, unit normals [V, 3]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]

AROUND, ALONG = 48, 24  # facets of a full turn and of a half turn: a circle's chord errs by 0.2% of its radius
ENDLESS = 100.0  # [m] half size of a plane without a size


def ellipsoid(radii: Any) -> Shape:
    """Half axes radii [3]."""
    radii = np.asarray(radii, np.float64)
    polar, azimuth = np.linspace(0, np.pi, ALONG + 1), np.linspace(0, 2 * np.pi, AROUND + 1)
    unit = _revolved(np.sin(polar), np.cos(polar), azimuth)
    normals = unit / radii
    return unit * radii, _grid_faces(ALONG + 1, AROUND + 1), normals / np.linalg.norm(normals, axis=1, keepdims=True)


def capsule(radius: float, half_length: float) -> Shape:
    """Along z, with half spheres beyond +-half_length."""
    polar = np.linspace(0, np.pi / 2, ALONG // 2 + 1)
    polar = np.concatenate([polar, np.pi - polar[::-1]])
    unit = _revolved(np.sin(polar), np.cos(polar), np.linspace(0, 2 * np.pi, AROUND + 1))
    shift = np.repeat(np.where(np.arange(len(polar)) < len(polar) // 2, half_length, -half_length), AROUND + 1)
    vertices = radius * unit
    vertices[:, 2] += shift
    return vertices, _grid_faces(len(polar), AROUND + 1), unit


def cylinder(radius: float, half_length: float) -> Shape:
    """Along z, closed."""
    azimuth = np.linspace(0, 2 * np.pi, AROUND + 1)
    side = _revolved(np.full(2, radius), np.array([half_length, -half_length]), azimuth)
    outward = side * [1, 1, 0] / radius
    parts, normals, faces = [side], [outward], [_grid_faces(2, AROUND + 1)]
    for z in (1.0, -1.0):
        rim = _revolved(np.full(1, radius), np.array([z * half_length]), azimuth)
        parts += [np.vstack([[[0, 0, z * half_length]], rim])]
        normals += [np.tile([0.0, 0.0, z], (len(rim) + 1, 1))]
        around = np.arange(1, AROUND + 1)
        fan = np.stack([np.zeros(AROUND, int), around, around + 1], 1)
        faces.append((fan if z > 0 else fan[:, ::-1]) + sum(map(len, parts[:-1])))
    return np.vstack(parts), np.vstack(faces).astype(np.int32), np.vstack(normals)


def box(half: Any) -> Shape:
    """Half sizes [3]; four vertices a side, so that its edges stay sharp."""
    vertices: list[NDArray[np.float64]] = []
    normals: list[NDArray[np.float64]] = []
    faces: list[list[int]] = []
    for axis in range(3):
        for sign in (1.0, -1.0):
            u, v = np.eye(3)[(axis + 1) % 3], np.eye(3)[(axis + 2) % 3]
            corner = sign * np.eye(3)[axis]
            order = [-u - v, u - v, u + v, -u + v] if sign > 0 else [-u - v, -u + v, u + v, u - v]
            faces += [[4 * len(normals) + k for k in triangle] for triangle in ((0, 1, 2), (0, 2, 3))]
            vertices.append(np.array([corner + o for o in order]))
            normals.append(np.tile(corner, (4, 1)))
    return np.vstack(vertices) * np.asarray(half), np.array(faces, np.int32), np.vstack(normals)


def plane(half_x: float, half_y: float) -> Shape:
    """In z = 0 facing up; a half size of 0 stands for an endless one."""
    x, y = half_x or ENDLESS, half_y or ENDLESS
    vertices = np.array([[-x, -y, 0], [x, -y, 0], [x, y, 0], [-x, y, 0]], np.float64)
    return vertices, np.array([[0, 1, 2], [0, 2, 3]], np.int32), np.tile([0.0, 0.0, 1.0], (4, 1))


def height_field(heights: Any, half_x: float, half_y: float) -> Shape:
    """heights [rows, columns] [m] over [-half_x, half_x] x [-half_y, half_y]: columns run along x, rows along y."""
    rows, columns = heights.shape
    x, y = np.linspace(-half_x, half_x, columns), np.linspace(-half_y, half_y, rows)
    X, Y = np.meshgrid(x, y)
    vertices = np.stack([X, Y, heights], -1)
    slope_y, slope_x = np.gradient(heights, y, x)
    normals = np.stack([-slope_x, -slope_y, np.ones_like(X)], -1)
    normals /= np.linalg.norm(normals, axis=-1, keepdims=True)
    return vertices.reshape(-1, 3), _grid_faces(rows, columns)[:, ::-1].copy(), normals.reshape(-1, 3)


def _revolved(radii: Any, heights: Any, azimuth: Any) -> NDArray[np.float64]:
    """Points of rings [rings * len(azimuth), 3], ring by ring."""
    r, z = np.asarray(radii)[:, None], np.asarray(heights)[:, None]
    ring = np.broadcast_arrays(r * np.cos(azimuth), r * np.sin(azimuth), z)
    return np.stack(ring, -1).reshape(-1, 3)


def _grid_faces(rows: int, columns: int) -> NDArray[np.int32]:
    """Two triangles a cell of a grid of vertices; seen from outside where rows go down and columns go around."""
    k = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = k[:-1, :-1], k[:-1, 1:], k[1:, :-1], k[1:, 1:]
    triangles = np.concatenate([np.stack([a, c, d], -1).reshape(-1, 3), np.stack([a, d, b], -1).reshape(-1, 3)])
    return triangles.astype(np.int32)
