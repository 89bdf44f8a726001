# SPDX-License-Identifier: Apache-2.0
"""Shapes of the known-truth scene, built from rectangular patches of surface, and their mass properties.

A patch is a grid of points: columns run along u (to the right as seen from outside), rows along v (downwards), so an
image painted on it reads the right way round. Body frame: origin at the centre of the base, z up, metres.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Patch:
    """A piece of surface. points, normals (outward, unit): [rows + 1, columns + 1, 3]; size: width along u, height
    along v [m], which decides how many texels it gets."""

    points: Array
    normals: Array
    size: tuple[float, float]

    def moved(self, T: Array) -> Patch:
        """The patch after the rigid transform T [4, 4]."""
        R = T[:3, :3].T
        return Patch(self.points @ R + T[:3, 3], self.normals @ R, self.size)

    def shifted(self, offset: ArrayLike) -> Patch:
        """The patch moved by `offset` [3]."""
        return Patch(self.points + np.asarray(offset, np.float64), self.normals, self.size)

    def mesh(self) -> tuple[Array, NDArray[np.int64]]:
        """Vertices [V, 3] in grid order and counter-clockwise faces [F, 3] without those of zero area."""
        rows, columns = self.points.shape[:2]
        index = np.arange(rows * columns).reshape(rows, columns)
        a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
        faces = np.concatenate([np.stack([a, b, c], -1).reshape(-1, 3), np.stack([a, c, d], -1).reshape(-1, 3)])
        vertices = self.points.reshape(-1, 3)
        p, q, r = (vertices[faces[:, k]] for k in range(3))
        area = np.linalg.norm(np.cross(q - p, r - p), axis=1)
        return vertices, faces[area > 1e-14]


Shape = dict[str, Patch]


def rectangle(corner: ArrayLike, right: ArrayLike, down: ArrayLike) -> Patch:
    """A flat rectangle from its upper left corner [3] and its two edges [3]; it faces down x right."""
    origin, u, v = (np.asarray(x, np.float64) for x in (corner, right, down))
    points = np.stack([np.stack([origin, origin + u]), np.stack([origin + v, origin + u + v])])
    normal = np.cross(v, u)
    normals = np.broadcast_to(normal / np.linalg.norm(normal), points.shape).copy()
    return Patch(points, normals, (float(np.linalg.norm(u)), float(np.linalg.norm(v))))


def box(size: Sequence[float]) -> Shape:
    """A box of full extents (x, y, z); `front` looks to -y."""
    x, y, z = size
    a, b = x / 2, y / 2
    return {
        "front": rectangle((-a, -b, z), (x, 0, 0), (0, 0, -z)),
        "right": rectangle((a, -b, z), (0, y, 0), (0, 0, -z)),
        "back": rectangle((a, b, z), (-x, 0, 0), (0, 0, -z)),
        "left": rectangle((-a, b, z), (0, -y, 0), (0, 0, -z)),
        "top": rectangle((-a, b, z), (x, 0, 0), (0, -y, 0)),
        "bottom": rectangle((-a, -b, 0), (x, 0, 0), (0, y, 0)),
    }


def revolve(start: tuple[float, float], end: tuple[float, float], segments: int) -> Patch:
    """The surface that the segment from (r, z) `start` to `end` sweeps round z; it faces the segment's left side."""
    theta = np.linspace(0, 2 * np.pi, segments + 1)
    theta[-1] = 0.0  # the seam closes exactly
    ring = np.stack([np.cos(theta), np.sin(theta), np.zeros_like(theta)], -1)
    (r0, z0), (r1, z1) = start, end
    length = float(np.hypot(r1 - r0, z1 - z0))
    points = np.stack([r * ring + [0, 0, z] for r, z in (start, end)])
    normal = (-(z1 - z0) / length) * ring + [0, 0, (r1 - r0) / length]
    return Patch(points, np.stack([normal, normal]), (2 * np.pi * max(r0, r1), length))


def cylinder(radius: float, height: float, segments: int = 96) -> Shape:
    return {
        "top": revolve((0, height), (radius, height), segments),
        "side": revolve((radius, height), (radius, 0), segments),
        "bottom": revolve((radius, 0), (0, 0), segments),
    }


def ball(radius: float, segments: int = 96) -> Shape:
    """A sphere that rests on z = 0."""
    theta, phi = np.linspace(0, 2 * np.pi, segments + 1), np.linspace(0, np.pi, segments // 2 + 1)
    theta[-1] = 0.0
    sin = np.sin(phi)
    sin[-1] = 0.0
    normals = np.stack(
        [np.outer(sin, np.cos(theta)), np.outer(sin, np.sin(theta)), np.outer(np.cos(phi), np.ones_like(theta))], -1
    )
    return {"surface": Patch(radius * normals + [0, 0, radius], normals, (2 * np.pi * radius, np.pi * radius))}


@dataclass(frozen=True)
class MugSize:
    """radius, height: outside [m]; wall, base: thickness [m]; reach: how far the handle stands out [m]; span: height
    between the handle's two roots [m]; tube: radius of the handle's tube [m]."""

    radius: float
    height: float
    wall: float = 0.004
    base: float = 0.005
    reach: float = 0.030
    span: float = 0.050
    tube: float = 0.0055


def mug(size: MugSize, segments: int = 96) -> Shape:
    """An open cup with a handle towards +x: half an ellipse of tube, whose ends lie exactly on the cup's wall."""
    inner, lip = size.radius - size.wall, size.wall / 2
    shape = {
        "floor": revolve((0, size.base), (inner, size.base), segments),
        "inside": revolve((inner, size.base), (inner, size.height - lip), segments),
    }
    angles = np.linspace(np.pi, 0, 7)
    rim = [(size.radius - lip + lip * np.cos(a), size.height - lip + lip * np.sin(a)) for a in angles]
    for k, (a, b) in enumerate(itertools.pairwise(rim)):
        shape[f"rim{k}"] = revolve(a, b, segments)
    shape["side"] = revolve((size.radius, size.height - lip), (size.radius, 0), segments)
    shape["bottom"] = revolve((size.radius, 0), (0, 0), segments)
    return shape | _handle(size)


def handle_centre(size: MugSize) -> Array:
    """A point [3] in the middle of the handle's hole, body frame."""
    return np.array([size.radius + 0.4 * size.reach, 0.0, size.height / 2])


def _handle(size: MugSize, rings: int = 40, around: int = 24) -> Shape:
    """Tube and its two caps. The end rings are moved along x onto the wall, so cup and handle share no volume."""
    angle = np.linspace(np.pi / 2, -np.pi / 2, rings + 1)
    a, b = size.reach, size.span / 2
    zero = np.zeros_like(angle)
    centre = np.stack([size.radius + a * np.cos(angle), zero, size.height / 2 + b * np.sin(angle)], -1)
    across = np.stack([b * np.cos(angle), zero, a * np.sin(angle)], -1)
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    phi = np.linspace(0, 2 * np.pi, around + 1)
    phi[-1] = 0.0
    # Rows run along the tube from the upper root; columns turn so that rows x columns faces outwards.
    normals = np.cos(phi)[None, :, None] * across[:, None] + np.sin(phi)[None, :, None] * np.array([0.0, 1.0, 0.0])
    points = centre[:, None] + size.tube * normals
    for row in (0, -1):
        points[row, :, 0] = np.sqrt(size.radius**2 - points[row, :, 1] ** 2)
    length = float(np.linalg.norm(np.diff(centre, axis=0), axis=1).sum())
    tube = Patch(points, normals, (2 * np.pi * size.tube, length))
    into = np.broadcast_to([-1.0, 0.0, 0.0], (2, around + 1, 3)).copy()
    caps = {}
    for name, row, order in (("upper", 0, 1), ("lower", -1, -1)):
        middle = np.array([size.radius, 0.0, centre[row, 2]])
        ring = np.stack([np.broadcast_to(middle, (around + 1, 3)), points[row]])[::order]
        caps[f"handle_{name}"] = Patch(ring, into, (2 * np.pi * size.tube, size.tube))
    return {"handle": tube} | caps


def merged_mesh(patches: Iterable[Patch], tolerance: float = 1e-7) -> tuple[Array, NDArray[np.int64]]:
    """One mesh of several patches: vertices closer than `tolerance` [m] are one; no zero-area faces."""
    vertices, faces, count = [], [], 0
    for patch in patches:
        v, f = patch.mesh()
        vertices.append(v)
        faces.append(f + count)
        count += len(v)
    points, index = np.concatenate(vertices), np.concatenate(faces)
    _, first, inverse = np.unique(np.round(points / tolerance), axis=0, return_index=True, return_inverse=True)
    index = inverse.reshape(-1)[index]
    keep = (index[:, 0] != index[:, 1]) & (index[:, 1] != index[:, 2]) & (index[:, 2] != index[:, 0])
    used, index = np.unique(index[keep], return_inverse=True)
    return points[first][used], index.reshape(-1, 3)


@dataclass(frozen=True)
class MassProperties:
    """volume [m3], mass [kg], com [3] and inertia [3, 3] about com [kg m2], both in the body frame."""

    volume: float
    mass: float
    com: Array
    inertia: Array


def mass_properties(vertices: Array, faces: NDArray[np.int64], density: float) -> MassProperties:
    """Exact integrals over the volume that closed, outward faces bound; density [kg/m3].

    Sum over the signed tetrahedra (origin, a, b, c): second moments by Tonon 2004.
    """
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    volume = np.einsum("fi,fi->f", a, np.cross(b, c)) / 6
    total = float(volume.sum())
    centre = (volume[:, None] * (a + b + c)).sum(0) / (4 * total)
    corners = np.stack([a, b, c], 1)
    s = corners.sum(1)
    moment = np.einsum("f,fki,fkj->ij", volume, corners, corners) + np.einsum("f,fi,fj->ij", volume, s, s)
    moment = density * (moment / 20 - total * np.outer(centre, centre))
    return MassProperties(total, density * total, centre, np.trace(moment) * np.eye(3) - moment)
