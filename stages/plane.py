# SPDX-License-Identifier: Apache-2.0
"""Planes in noisy points: search by RANSAC among local triples, refinement by reweighted least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

HYPOTHESES = 1000
SEEDS = 250
SCORED_POINTS = 8000
FLAT_DEG = 25.0  # a point belongs to a plane where the surface around it is turned by less
TILT_DEG = 3.0  # how well the mean of the local normals on a plane agrees with the plane
TUKEY = 4.0  # residuals beyond this many robust sigmas get no weight


@dataclass(frozen=True)
class Plane:
    """Points x with normal @ x = offset; normal is a unit vector that points to the free side."""

    normal: Array
    offset: float

    def height(self, points: Array) -> Array:
        """Signed distance [N] of points [N, 3]."""
        return np.asarray(points @ self.normal - self.offset, np.float64)


def angle_deg(a: Array, b: Array) -> float:
    """Angle between two directions [3]."""
    return float(np.degrees(np.arctan2(np.linalg.norm(np.cross(a, b)), a @ b)))


def weighted_median(values: Array, weights: Array) -> float:
    """The value [N] below which half of the weight [N] lies."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][int(np.searchsorted(total, total[-1] / 2))])


def refine_plane(points: Array, weights: Array, start: Plane, band: float) -> tuple[Plane, float]:
    """Tukey-weighted total least squares from a start; only points within `band` take part.

    points [N, 3]; weights [N]. Returns the plane and the robust sigma of the distances to it.
    """
    plane, sigma = start, band
    for _ in range(15):
        distance = plane.height(points)
        near = np.abs(distance) < band
        if near.sum() < 3:
            return plane, sigma
        sigma = max(1.4826 * weighted_median(np.abs(distance[near]), weights[near]), 1e-6 * band)
        ratio = distance / (TUKEY * sigma)
        w = weights * np.where(near & (np.abs(ratio) < 1), (1 - ratio**2) ** 2, 0.0)
        if np.count_nonzero(w) < 3:
            return plane, sigma
        centre = (w[:, None] * points).sum(0) / w.sum()
        normal = np.linalg.eigh(((points - centre) * w[:, None]).T @ (points - centre))[1][:, 0]
        normal *= np.sign(normal @ start.normal) or 1.0
        moved = Plane(normal, float(normal @ centre))
        if angle_deg(moved.normal, plane.normal) < 1e-5 and abs(moved.offset - plane.offset) < 1e-9:
            return moved, sigma
        plane = moved
    return plane, sigma


def _local_triples(points: Array, reach: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Index triples [M, 3] of points within reach of each other."""
    from scipy.spatial import cKDTree

    tree = cKDTree(points)
    seeds = rng.choice(len(points), min(SEEDS, len(points)), replace=False)
    triples = []
    for seed, near in zip(seeds, tree.query_ball_point(points[seeds], reach)):
        if len(near) >= 3:
            picks = rng.integers(0, len(near), (max(1, HYPOTHESES // len(seeds)), 2))
            triples.append(np.c_[np.full(len(picks), seed), np.asarray(near)[picks]])
    return np.concatenate(triples) if triples else np.zeros((0, 3), np.int64)


def local_normals(points: Array, edge: float) -> Array:
    """Unsigned surface normals [N, 3] of a cloud [N, 3] from the 12 nearest of its means in voxels of an edge."""
    from scipy.spatial import cKDTree

    _, group = np.unique(np.floor(points / edge).astype(np.int64), axis=0, return_inverse=True)
    group = group.ravel()
    count = np.bincount(group)
    means = np.stack([np.bincount(group, points[:, k]) for k in range(3)], 1) / count[:, None]
    if len(means) < 4:
        return np.zeros_like(points)
    _, near = cKDTree(means).query(means, k=min(12, len(means)))
    patch = means[near] - means[near].mean(1, keepdims=True)
    return np.asarray(np.linalg.eigh(np.swapaxes(patch, 1, 2) @ patch)[1][group, :, 0], np.float64)


def _score(points: Array, normals: Array, weights: Array, planes: Array, offsets: Array, tolerance: float) -> Array:
    """Truncated quadratic score [M] of hypotheses (Torr, Zisserman 2000) times the agreement of the surface's own tilt.

    A tilted plane can graze many steps of a level scene; the surface on them is then level all the same.
    """
    near = np.maximum(1 - ((points @ planes.T - offsets) / tolerance) ** 2, 0)
    cosine = normals @ planes.T
    near *= (np.abs(cosine) > np.cos(np.radians(FLAT_DEG))) * weights[:, None]
    mean = (near * np.sign(cosine)).T @ normals
    mean /= np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
    tilt = np.degrees(np.arccos(np.clip((mean * planes).sum(1), -1, 1)))
    return np.asarray(near.sum(0) * np.exp(-((tilt / TILT_DEG) ** 2) / 2), np.float64)


def search_plane(
    points: Array,
    normals: Array,
    weights: Array,
    tolerance: float,
    reach: float,
    up: Array,
    max_angle_deg: float,
    seed: int = 0,
) -> tuple[Plane, float] | None:
    """The plane of most weight within `tolerance` whose normal is within an angle of `up` (Fischler, Bolles 1981).

    points [N, 3]; normals of the surface there, of any sign [N, 3]: a point on a surface that only crosses the plane
    does not count; weights [N]; reach: extent of the triples that make hypotheses. Returns the plane and its
    score; None where no hypothesis qualifies.
    """
    flat = (np.abs(normals @ up) > np.cos(np.radians(min(max_angle_deg + FLAT_DEG, 80.0)))) & (weights > 0)
    points, normals, weights = points[flat], normals[flat], weights[flat]
    if len(points) < 3:
        return None
    rng = np.random.default_rng(seed)
    a, b, c = (points[i] for i in _local_triples(points, reach, rng).T)
    normal = np.cross(b - a, c - a)
    size = np.linalg.norm(normal, axis=1)
    good = size > 1e-4 * reach**2
    normal = normal[good] / size[good, None]
    normal *= np.where(normal @ up < 0, -1.0, 1.0)[:, None]
    cone = normal @ up >= np.cos(np.radians(max_angle_deg))
    normal, origin = normal[cone], a[good][cone]
    if not len(normal):
        return None
    pick = rng.permutation(len(points))[:SCORED_POINTS]
    offset = (normal * origin).sum(1)
    score = np.concatenate(
        [
            _score(points[pick], normals[pick], weights[pick], normal[rows], offset[rows], tolerance)
            for rows in np.array_split(np.arange(len(normal)), max(1, len(normal) // 256))
        ]
    )
    best = int(np.argmax(score))
    plane, _ = refine_plane(points, weights, Plane(normal[best], float(offset[best])), 2 * tolerance)
    if angle_deg(plane.normal, up) > max_angle_deg:
        plane = Plane(normal[best], float(offset[best]))
    return plane, float(_score(points, normals, weights, plane.normal[None], np.array([plane.offset]), tolerance)[0])


def plane_axes(normal: Array) -> tuple[Array, Array]:
    """Two unit vectors that make a right-handed frame (x, y, normal)."""
    helper = np.eye(3)[int(np.argmin(np.abs(normal)))]
    x = np.cross(helper, normal)
    x /= np.linalg.norm(x)
    return x, np.cross(normal, x)
