# SPDX-License-Identifier: Apache-2.0
"""A template ordered for the GPU: clusters of 128 Gaussians of one body that are neighbours in space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.render.reference import ALPHA_MIN
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import quat_to_matrix

CLUSTER = 128  # as in cuda/intrinsics.cuh
MORTON_BITS = 21  # a coordinate, three of which fit 63 bits


@dataclass(frozen=True)
class Clusters:
    """G = 128 x clusters Gaussians, those of body 0 first, each in the frame of its body; the last of a body's clusters
    is filled up with opacity 0.

    geometry: centre [m] and opacity, [G, 4]; factors: rotation times standard deviations, so that the covariance is
    factor factor^T, [9, G]; colours: harmonics coefficients, [K * 3, G]; shortest: unit vector of the shortest axis,
    [3, G]; spheres: centre and radius [m] of a cluster's centres, [C, 4]; spreads: its largest standard deviation [m],
    [C]; bodies [C]; static: how many clusters belong to body 0; sh_degree.
    """

    geometry: NDArray[np.float32]
    factors: NDArray[np.float32]
    colours: NDArray[np.float32]
    shortest: NDArray[np.float32]
    spheres: NDArray[np.float32]
    spreads: NDArray[np.float32]
    bodies: NDArray[np.int32]
    static: int
    sh_degree: int

    @property
    def gaussians(self) -> int:
        return len(self.geometry)


def drawable(splat: Splat) -> NDArray[np.bool_]:
    """Gaussians that can be seen at all: finite values, a quaternion that is a rotation, opacity of at least 1/255."""
    with np.errstate(all="ignore"):
        values = [
            splat.means,
            splat.quats,
            splat.scales,
            splat.opacities[:, None],
            splat.sh.reshape(len(splat), 3 * splat.sh.shape[1]),
        ]
        finite = np.logical_and.reduce([np.isfinite(v).all(axis=1) for v in values])
        norm = np.linalg.norm(splat.quats.astype(np.float64), axis=1)
        return finite & (norm > 0) & np.isfinite(norm) & (splat.opacities >= ALPHA_MIN)


def make_clusters(template: Splat, body_ids: NDArray[np.int32]) -> Clusters:
    """Drop what cannot be seen, order by body and Morton code, and fill up to whole clusters."""
    seen = drawable(template)
    splat, bodies = template.select(seen), body_ids[seen]
    order = np.lexsort((morton_codes(splat.means), bodies))
    places = _places(bodies[order])
    count = int(places[-1]) // CLUSTER * CLUSTER + CLUSTER if len(places) else 0

    def spread_out(values: NDArray[np.float32]) -> NDArray[np.float32]:
        filled = np.zeros((count, *values.shape[1:]), np.float32)
        filled[places] = values[order]
        return filled

    rotations = quat_to_matrix(splat.quats.astype(np.float64))
    factors = (rotations * splat.scales[:, None, :]).astype(np.float32)
    shortest = np.take_along_axis(rotations, splat.scales.argmin(1)[:, None, None], 2)[..., 0].astype(np.float32)
    geometry = spread_out(np.concatenate([splat.means, splat.opacities[:, None]], 1))
    cluster_bodies = np.zeros(count // CLUSTER, np.int32)
    cluster_bodies[places // CLUSTER] = bodies[order]
    spheres = _spheres(geometry)
    spreads = spread_out(splat.scales.max(1)).reshape(-1, CLUSTER).max(1, initial=0)
    return Clusters(
        geometry=geometry,
        factors=np.ascontiguousarray(spread_out(factors.reshape(-1, 9)).T),
        colours=np.ascontiguousarray(spread_out(splat.sh.reshape(len(splat), 3 * splat.sh.shape[1])).T),
        shortest=np.ascontiguousarray(spread_out(shortest).T),
        spheres=spheres,
        spreads=spreads.astype(np.float32),
        bodies=cluster_bodies,
        static=int((cluster_bodies == 0).sum()),
        sh_degree=template.sh_degree,
    )


def morton_codes(points: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Z-order codes [N] of points [N, 3] over their bounding box."""
    if not len(points):
        return np.zeros(0, np.uint64)
    low = points.min(0).astype(np.float64)
    extent = max(float((points.max(0) - low).max()), 1e-30)
    cells = ((points - low) / extent * (2**MORTON_BITS - 1)).astype(np.uint64)
    code = np.zeros(len(points), np.uint64)
    for axis in range(3):
        code |= _every_third_bit(cells[:, axis]) << np.uint64(axis)
    return code


def _every_third_bit(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Bits of a 21-bit number moved apart, to every third place."""
    for shift, mask in (
        (32, 0x1F00000000FFFF),
        (16, 0x1F0000FF0000FF),
        (8, 0x100F00F00F00F00F),
        (4, 0x10C30C30C30C30C3),
        (2, 0x1249249249249249),
    ):
        x = (x | x << np.uint64(shift)) & np.uint64(mask)
    return x


def _places(bodies: NDArray[np.int32]) -> NDArray[np.int64]:
    """Places [N] of Gaussians that are ordered by body, so that no cluster is of two bodies."""
    _, starts, counts = np.unique(bodies, return_index=True, return_counts=True)
    rounded = -(-counts // CLUSTER) * CLUSTER
    firsts = np.concatenate([[0], np.cumsum(rounded)[:-1]]) if len(counts) else np.zeros(0, int)
    return np.repeat(firsts - starts, counts) + np.arange(len(bodies))


def _spheres(geometry: NDArray[np.float32]) -> NDArray[np.float32]:
    """Centre and radius [C, 4] around the centres of each cluster's real Gaussians."""
    boxes = geometry.reshape(-1, CLUSTER, 4).astype(np.float64)
    real = boxes[..., 3:] > 0
    low = np.where(real, boxes[..., :3], np.inf).min(1, initial=np.inf)
    high = np.where(real, boxes[..., :3], -np.inf).max(1, initial=-np.inf)
    centre = ((low + high) / 2).astype(np.float32)
    distance = np.where(real[..., 0], np.linalg.norm(boxes[..., :3] - centre[:, None], axis=-1), 0)
    return np.concatenate([centre, distance.max(1, initial=0)[:, None]], 1).astype(np.float32)
