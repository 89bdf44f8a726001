# SPDX-License-Identifier: Apache-2.0
"""The rest of the scene (floor, walls, furniture) as few convex parts, fitted to the rays of the capture.

The surface is open and seen from one side only, so nothing is decomposed by volume. It is cut into small patches, each
a thin convex hull that grows away from the viewer, and neighbours are merged while that does no harm. Harm is what a
viewer would see: a ray of the capture that hits the hull in front of the surface which it really saw. Where parts must
be saved beyond that, the cheapest merge or the least seen patch goes first.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from real2sim.stages.convex import Hull, enter, make_hull

Array = NDArray[np.float64]
Faces = NDArray[np.int64]

START_PATCHES = 360  # about as many patches are made before merging
FREE_ERROR = 0.004  # a hull that comes this much nearer (over the distance) does no harm
FULL_ERROR = 0.05  # and this much nearer is as bad as a wrong ray can be
FREE_HARM = 0.0001  # merges that harm less than this share of the rays are taken at once
TOO_SMALL = 0.0004  # patches that fewer rays see are dust
HULL_POINTS = 400
FRONTS = (1.0, 0.9, 0.7, 0.5)  # share of a patch's vertices, by height, that its hull may span


@dataclass(frozen=True)
class Rays:
    """Rays that the capture saw: from origins to where they end, both [R, 3]."""

    origins: Array
    ends: Array

    @staticmethod
    def load(path: str) -> Rays:
        with np.load(path) as data:
            return Rays(data["origins"][data["camera"]], data["ends"].astype(np.float64))

    @property
    def directions(self) -> Array:
        return self.ends - self.origins

    def select(self, keep: NDArray[np.bool_]) -> Rays:
        return Rays(self.origins[keep], self.ends[keep])

    def __len__(self) -> int:
        return len(self.ends)


@dataclass
class Patch:
    """points: surface and shell points that span the hull [N, 3]; rays: indices of the rays that end on it."""

    points: Array
    rays: NDArray[np.int64]
    hull: Hull
    harm: float
    alive: bool = True
    neighbours: set[int] = field(default_factory=set)


def harm_of(hull: Hull, rays: Rays, keep_free: Array) -> float:
    """How many rays a hull spoils: 1 for one that it stops 5% or more too early; infinite where it blocks free space.

    keep_free: points [K, 3] that must stay free, just above the support.
    """
    low, high = hull.low, hull.high
    near = keep_free[((keep_free >= low) & (keep_free <= high)).all(1)]
    if len(near) and hull.contains(near).any():
        return float("inf")
    early = 1 - np.minimum(enter(hull, rays.origins, rays.directions, 1 - FREE_ERROR), 1.0)
    return float(np.clip((early - FREE_ERROR) / (FULL_ERROR - FREE_ERROR), 0, 1).sum())


def cut_surface(vertices: Array, faces: Faces, cells: float) -> NDArray[np.int64]:
    """Patch of each face [F]: faces of one cell of a grid with `cells` along the longest side and of one main direction."""
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    normal = np.cross(b - a, c - a)
    axis = np.argmax(np.abs(normal), axis=1)
    facing = 2 * axis + (np.take_along_axis(normal, axis[:, None], 1)[:, 0] > 0)
    edge = float(np.ptp(vertices, axis=0).max()) / cells
    cell = np.floor(((a + b + c) / 3 - vertices.min(0)) / edge).astype(np.int64)
    _, label = np.unique(np.c_[cell, facing], axis=0, return_inverse=True)
    return np.asarray(label.ravel(), np.int64)


def _adjacent(vertices: Array, faces: Faces, label: NDArray[np.int64], reach: float) -> NDArray[np.int64]:
    """Pairs [M, 2] of patches whose surfaces come within reach of each other."""
    from scipy.spatial import cKDTree

    centre = vertices[faces].mean(1)
    _, pick = np.unique(np.c_[label, np.floor(centre / (reach / 2)).astype(np.int64)], axis=0, return_index=True)
    pairs = cKDTree(centre[pick]).query_pairs(reach, output_type="ndarray")
    pairs = np.sort(label[pick][pairs], axis=1)
    return np.asarray(np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0), np.int64)


def _best_front(
    own: Array, normal: Array, mine: NDArray[np.int64], rays: Rays, shell: float, keep_free: Array
) -> Patch | None:
    """The patch over vertices [N, 3], with the foremost ones left out where they are noise: judged by its own rays."""
    height = own @ normal
    best, best_cost = None, np.inf
    for share in FRONTS:
        kept = own[height <= np.quantile(height, share) + shell / 2]
        hull = make_hull(np.concatenate([kept, kept - shell * normal]), shell / 3)
        harm = float("inf") if hull is None else harm_of(hull, rays, keep_free)
        if hull is None or not np.isfinite(harm):
            continue
        late = enter(hull, rays.origins[mine], rays.directions[mine]) - 1
        cost = harm + float(np.clip((late - FREE_ERROR) / (FULL_ERROR - FREE_ERROR), 0, 1).sum())
        if cost < best_cost - 0.5:
            best, best_cost = Patch(hull.vertices, mine, hull, harm), cost
    return best


def make_patches(
    vertices: Array, faces: Faces, label: NDArray[np.int64], rays: Rays, shell: float, keep_free: Array
) -> tuple[list[Patch], NDArray[np.int64]]:
    """Patches with a hull that grows by `shell` against the surface normal [m], and the patch of each label (-1: none)."""
    from scipy.spatial import cKDTree

    a, b, c = (vertices[faces[:, k]] for k in range(3))
    area = np.cross(b - a, c - a)
    count = int(label.max()) + 1
    normal = np.stack([np.bincount(label, area[:, k], minlength=count) for k in range(3)], 1)
    normal = normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    distance, face = cKDTree((a + b + c) / 3).query(rays.ends)
    reach = np.maximum(0.02 * np.linalg.norm(rays.ends - rays.origins, axis=1), 2 * shell)
    owner = np.where(distance < reach, label[face], -1)
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(count + 1))
    patches: list[Patch] = []
    index = np.full(count, -1)
    for k in range(count):
        own = vertices[np.unique(faces[order[starts[k] : starts[k + 1]]])]
        patch = _best_front(own, normal[k], np.flatnonzero(owner == k), rays, shell, keep_free)
        if patch is not None:
            index[k] = len(patches)
            patches.append(patch)
    return patches, index


def merge_patches(
    patches: list[Patch], rays: Rays, pairs: NDArray[np.int64], keep_free: Array, max_parts: int
) -> list[Patch]:
    """Merge neighbouring patches, least harm first, until no harmless merge is left and at most max_parts remain."""
    heap: list[tuple[float, int, int, Hull, float]] = []

    def propose(i: int, j: int) -> None:
        hull = make_hull(np.concatenate([patches[i].points, patches[j].points]))
        if hull is not None:
            harm = harm_of(hull, rays, keep_free)
            if np.isfinite(harm):
                heapq.heappush(heap, (harm - patches[i].harm - patches[j].harm, min(i, j), max(i, j), hull, harm))

    for i, j in pairs:
        patches[i].neighbours.add(int(j))
        patches[j].neighbours.add(int(i))
        propose(int(i), int(j))
    alive = len(patches)
    free = FREE_HARM * len(rays)
    least = [(len(p.rays), k) for k, p in enumerate(patches)]
    heapq.heapify(least)
    while True:
        while heap and not (patches[heap[0][1]].alive and patches[heap[0][2]].alive):
            heapq.heappop(heap)
        while least and not patches[least[0][1]].alive:
            heapq.heappop(least)
        merge = heap[0][0] if heap else float("inf")
        if merge > free and alive <= max_parts:
            return [p for p in patches if p.alive]
        if least and alive > max_parts and least[0][0] < merge and merge > free:
            patches[heapq.heappop(least)[1]].alive = False
            alive -= 1
            continue
        if not heap:
            return [p for p in patches if p.alive]
        _, i, j, hull, harm = heapq.heappop(heap)
        first, second = patches[i], patches[j]
        first.alive = second.alive = False
        joined = Patch(_few(hull), np.r_[first.rays, second.rays], hull, harm)
        joined.neighbours = {n for n in first.neighbours | second.neighbours if patches[n].alive}
        patches.append(joined)
        heapq.heappush(least, (len(joined.rays), len(patches) - 1))
        for n in sorted(joined.neighbours):
            patches[n].neighbours.add(len(patches) - 1)
            propose(n, len(patches) - 1)
        alive -= 1


def _few(hull: Hull) -> Array:
    """The hull's vertices, snapped to a grid of 1/200 of its size where they are many."""
    if len(hull.vertices) <= HULL_POINTS:
        return hull.vertices
    coarse = make_hull(hull.vertices, float((hull.high - hull.low).max()) / 200)
    return hull.vertices if coarse is None else coarse.vertices


def fit_patches(
    vertices: Array, faces: Faces, rays: Rays, shell: float, keep_free: Array, max_parts: int
) -> list[Hull]:
    """Convex parts of an open surface as the capture's rays see it, at most max_parts, the most seen first.

    vertices [V, 3], faces [F, 3] (counter-clockwise from the free side); shell: thickness behind the surface [m];
    keep_free: points [K, 3] that no part may hold.
    """
    if not len(faces) or max_parts < 1:
        return []
    cells = 24.0
    label = cut_surface(vertices, faces, cells)
    while label.max() + 1 > START_PATCHES and cells > 3:
        cells *= 0.85
        label = cut_surface(vertices, faces, cells)
    patches, index = make_patches(vertices, faces, label, rays, shell, keep_free)
    reach = 0.5 * float(np.ptp(vertices, axis=0).max()) / cells
    pairs = index[_adjacent(vertices, faces, label, reach)]
    merged = merge_patches(patches, rays, pairs[(pairs >= 0).all(1)], keep_free, max_parts)
    seen = [p for p in merged if len(p.rays) >= TOO_SMALL * len(rays)]
    return [p.hull for p in sorted(seen, key=lambda p: -len(p.rays))]
