# SPDX-License-Identifier: Apache-2.0
"""Depth of one pixel by sweeping a small patch along its ray and comparing it with neighbouring views.

Collins 1996, "A space-sweep approach to true multi-image matching", with zero-mean normalised cross-correlation and
the patch tilted as the sparse points around it say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.stages.scale_marker_edges import sample_bilinear
from real2sim.stages.sparse import SparsePoints
from real2sim.stages.triangulate import project

Array = NDArray[np.float64]

HALF_PATCH = 6  # px
SPACING_PX = 1.25
STEPS = 160
NEIGHBOURS = 6
NEAR_POINTS = 25
MIN_NCC = 0.6
UNIQUE = 0.05  # the best depth must beat every other peak by this much correlation
PATCH_NOISE_PX = 0.4  # how exactly a matching patch is located in a neighbouring view


def _prior(camera: Camera, pixel: Array, cameras: Sequence[Camera], sparse: SparsePoints) -> tuple[Array, float, float]:
    """Local plane (normal [3] in camera axes), depth range (near, far) from sparse points near the pixel."""
    index = list(cameras).index(camera)
    rows = sparse.obs_camera == index
    if rows.sum() < 8:
        raise ValueError(f"frame {camera.name} has too few sparse points for a depth prior")
    view = camera.viewmat
    local = sparse.xyz[sparse.obs_point[rows]] @ view[:3, :3].T + view[:3, 3]
    order = np.argsort(np.linalg.norm(sparse.obs_xy[rows] - pixel, axis=1))[:NEAR_POINTS]
    near = local[order]
    low, high = np.percentile(near[:, 2], [5, 95])
    close = near[np.abs(near[:, 2] - np.median(near[:, 2])) < 0.2 * np.median(near[:, 2])]
    normal = np.array([0.0, 0.0, -1.0])
    if len(close) >= 8:
        centred = close - np.median(close, axis=0)
        _, size, axes = np.linalg.svd(centred, full_matrices=False)
        if size[2] < 0.15 * size[1]:
            normal = axes[2] * -np.sign(axes[2][2])
    if normal[2] > -0.2:
        normal = np.array([0.0, 0.0, -1.0])
    return normal, float(0.75 * low), float(1.35 * high)


def _neighbours(camera: Camera, point: Array, cameras: Sequence[Camera]) -> list[Camera]:
    """Views of a point [3] whose rays make 2 to 35 degrees with the camera's, nearest to 10 degrees first."""
    ranked = []
    ray = (camera.centre - point) / np.linalg.norm(camera.centre - point)
    for other in cameras:
        if other is camera:
            continue
        pixel = project(other, point[None])[0]
        towards = (other.centre - point) / np.linalg.norm(other.centre - point)
        angle = float(np.degrees(np.arccos(np.clip(ray @ towards, -1, 1))))
        margin = 2 * HALF_PATCH
        inside = margin < pixel[0] < other.width - margin and margin < pixel[1] < other.height - margin
        if inside and 2 < angle < 35:
            ranked.append((abs(angle - 10), other))
    return [other for _, other in sorted(ranked, key=lambda r: r[0])[:NEIGHBOURS]]


def _correlate(a: Array, b: Array) -> Array:
    """Zero-mean normalised cross-correlation of patches a [P] with b [D, P]."""
    a = a - a.mean()
    b = b - b.mean(axis=1, keepdims=True)
    return (b @ a) / np.maximum(np.linalg.norm(a) * np.linalg.norm(b, axis=1), 1e-6)


def sweep_depth(
    camera: Camera,
    pixel: Array,
    cameras: Sequence[Camera],
    sparse: SparsePoints,
    load: Callable[[Camera], NDArray[np.uint8]],
) -> tuple[float, float]:
    """Depth along the optical axis [sfm units] of one pixel [2] and its sigma.

    Raises ValueError with the reason where no depth or more than one depth fits.
    """
    normal, near, far = _prior(camera, pixel, cameras, sparse)
    step = np.arange(-HALF_PATCH, HALF_PATCH + 1) * SPACING_PX
    grid = pixel + np.stack(np.meshgrid(step, step), -1).reshape(-1, 2)
    focal, centre = np.diag(camera.K)[:2], camera.K[:2, 2]
    rays = np.c_[(grid - centre) / focal, np.ones(len(grid))]
    middle = np.array([*((pixel - centre) / focal), 1.0])
    tilt = (normal @ middle) / np.minimum(rays @ normal, -1e-3)
    patch = sample_bilinear(load(camera), grid)
    if patch.std() < 2:
        raise ValueError(
            f"the mark in frame {camera.name} lies on a surface without texture; mark it in a second image"
        )
    depths = 1 / np.linspace(1 / far, 1 / near, STEPS)
    T = camera.T_world_cam
    world = (depths[:, None, None] * (rays * tilt[:, None])) @ T[:3, :3].T + T[:3, 3]
    scores, shift = [], []
    for other in _neighbours(camera, T[:3, :3] @ middle * np.sqrt(near * far) + T[:3, 3], cameras):
        where = project(other, world.reshape(-1, 3)).reshape(STEPS, -1, 2)
        inside = ((where > 1) & (where < [other.width - 1, other.height - 1])).all((1, 2))
        score = np.full(STEPS, -1.0)
        if inside.any():
            score[inside] = _correlate(patch, sample_bilinear(load(other), where[inside]))
        scores.append(score)
        track = np.linalg.norm(np.gradient(where[:, len(grid) // 2], axis=0), axis=1)
        shift.append(np.nan_to_num(track, nan=0.0))
    if len(scores) < 2:
        raise ValueError(
            f"the mark in frame {camera.name} is seen by too few neighbouring views; mark it in a second image"
        )
    return _best_depth(np.array(scores), np.array(shift), depths, camera.name)


def _best_depth(scores: Array, shift: Array, depths: Array, name: str) -> tuple[float, float]:
    """Peak of the mean over the better half of the views of scores [V, D]; shift: pixels per step of depth [V, D]."""
    half = np.sort(scores, axis=0)[-max(2, (len(scores) + 1) // 2) :].mean(0)
    best = int(np.argmax(half[1:-1])) + 1
    if half[best] < MIN_NCC:
        raise ValueError(
            f"no depth of the mark in frame {name} agrees with its neighbours (best correlation {half[best]:.2f})"
        )
    peaks = [
        i for i in range(1, len(half) - 1) if half[i] >= half[i - 1] and half[i] >= half[i + 1] and abs(i - best) > 4
    ]
    if any(half[i] > half[best] - UNIQUE for i in peaks):
        raise ValueError(f"several depths of the mark in frame {name} look alike; mark it in a second image")
    left, mid, right = half[best - 1 : best + 2]
    bend = left - 2 * mid + right
    inverse = 1 / depths
    offset = float(np.clip(0.5 * (left - right) / bend, -1, 1)) if bend < 0 else 0.0
    value = 1 / (inverse[best] + offset * (inverse[best + 1] - inverse[best]))
    per_step = max(float(np.median(shift[:, best])), 1e-6)
    sigma = abs(inverse[1] - inverse[0]) * value**2 * PATCH_NOISE_PX / per_step
    return float(value), float(sigma)
