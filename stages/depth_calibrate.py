# SPDX-License-Identifier: Apache-2.0
"""A splat's depth brought onto the sparse points.

Photometric training leaves surfaces blurred along the rays: where texture is weak, translucent layers off by centimetres
explain the photos as well. The sparse points are triangulated to a fraction of a pixel. So each view's depth is
multiplied by a smooth factor that carries it onto the points seen there; between points the factor is interpolated
within the same surface, far from any point it is 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.stages.sparse import SparsePoints

Floats = NDArray[np.float32]
Array = NDArray[np.float64]

STRIDE = 3  # px between places where the factor is computed; it is interpolated between them
REACH = 0.035  # sigma of a point's influence, over the image's long side
SAME_SURFACE = 0.06  # sigma of the log depth difference across which a point still speaks
MAX_FACTOR = 0.2  # log; a depth that is further off is another surface
NEIGHBOURS = 10
PRIOR = 0.15  # weight of the splat's own depth against that of one point on the spot
HUBER = 0.02  # log; beyond it a correction that differs from its neighbours' median loses weight


def observed_depths(camera: Camera, index: int, sparse: SparsePoints, good: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Pixels [N, 2] and depths z [N] of the reliable points that camera number `index` observes."""
    rows = (sparse.obs_camera == index) & good[sparse.obs_point]
    view = camera.viewmat
    z = sparse.xyz[sparse.obs_point[rows]] @ view[2, :3] + view[2, 3]
    return sparse.obs_xy[rows][z > 0], z[z > 0]


def log_corrections(depth: Floats, pixels: Array, z: Array) -> tuple[Array, Array, Array]:
    """Pixels [M, 2], log of the splat's depth there and log of point over splat [M], where the two are one surface."""
    column = np.clip(pixels[:, 0].astype(int), 0, depth.shape[1] - 1)
    row = np.clip(pixels[:, 1].astype(int), 0, depth.shape[0] - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.log(depth[row, column].astype(np.float64))
        ratio = np.log(z) - own
    ok = np.isfinite(ratio) & (np.abs(ratio) < MAX_FACTOR)
    return pixels[ok], own[ok], ratio[ok]


def calibrate(depth: Floats, pixels: Array, z: Array) -> Floats:
    """Depth [H, W] carried onto points at pixels [N, 2] with depths z [N]; zeros and NaN stay what they are."""
    import cv2
    from scipy.spatial import cKDTree

    pixels, own, ratio = log_corrections(depth, pixels, z)
    if len(pixels) < NEIGHBOURS:
        return depth
    height, width = depth.shape
    rows, columns = np.arange(STRIDE // 2, height, STRIDE), np.arange(STRIDE // 2, width, STRIDE)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_depth = np.log(depth[np.ix_(rows, columns)].astype(np.float64)).ravel()
    places = np.stack(np.meshgrid(columns + 0.5, rows + 0.5), -1).reshape(-1, 2)
    distance, near = cKDTree(pixels).query(places, k=NEIGHBOURS)
    weight = np.exp(-((distance / (REACH * max(width, height))) ** 2) / 2)
    weight *= np.exp(-(((log_depth[:, None] - own[near]) / SAME_SURFACE) ** 2) / 2)
    weight = np.where(np.isfinite(weight), weight, 0.0)
    away = np.abs(ratio[near] - np.median(ratio[near], axis=1, keepdims=True))
    weight *= np.minimum(1.0, HUBER / np.maximum(away, 1e-9))
    factor = (weight * ratio[near]).sum(1) / (weight.sum(1) + PRIOR)
    small = factor.reshape(len(rows), len(columns)).astype(np.float32)
    full = cv2.warpAffine(small, np.array([[STRIDE, 0, STRIDE // 2], [0, STRIDE, STRIDE // 2]], np.float64), (width, height),
                          flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)  # fmt: skip
    return np.asarray(depth * np.exp(full), np.float32)


def depth_error(depths: Sequence[Floats], observed: Sequence[tuple[Array, Array]]) -> float:
    """Median of abs(splat depth - point depth) / point depth over all observations; NaN where there are none."""
    errors = [np.abs(np.expm1(-log_corrections(d, p, z)[2])) for d, (p, z) in zip(depths, observed)]
    joined = np.concatenate(errors) if errors else np.zeros(0)
    return float(np.median(joined)) if len(joined) else float("nan")
