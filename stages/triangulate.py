# SPDX-License-Identifier: Apache-2.0
"""Points from their pixels in several posed pinhole cameras."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera

Array = NDArray[np.float64]

AGREE_PX = 3.0  # a view belongs to a point when it sees it within this distance of its projection
LOSS_PX = 0.5  # where the soft-L1 loss turns from square to linear
MIN_NOISE_PX = 0.03
PAIRS = 60


def project(camera: Camera, points: Array) -> Array:
    """Pixels [N, 2] of points [N, 3]; NaN behind the camera."""
    view = camera.viewmat
    local = points @ view[:3, :3].T + view[:3, 3]
    z = np.where(local[:, 2:] > 1e-9, local[:, 2:], np.nan)
    return (local[:, :2] / z) * np.diag(camera.K)[:2] + camera.K[:2, 2]


def pixel_rays(camera: Camera, pixels: Array) -> Array:
    """Directions [N, 3] with depth 1 along the optical axis, rotated into the world, of pixels [N, 2]."""
    local = np.c_[(pixels - camera.K[:2, 2]) / np.diag(camera.K)[:2], np.ones(len(pixels))]
    return np.asarray(local @ camera.T_world_cam[:3, :3].T, np.float64)


def closest_points(cameras: Sequence[Camera], pixels: Array) -> Array:
    """Points [N, 3] nearest in the least-squares sense to the rays of pixels [C, N, 2]."""
    A = np.zeros((pixels.shape[1], 3, 3))
    b = np.zeros((pixels.shape[1], 3))
    for camera, xy in zip(cameras, pixels):
        ray = pixel_rays(camera, xy)
        ray /= np.linalg.norm(ray, axis=1, keepdims=True)
        P = np.eye(3) - ray[:, :, None] * ray[:, None, :]
        A += P
        b += P @ camera.centre
    return np.asarray(np.linalg.solve(A + 1e-12 * np.eye(3), b[:, :, None])[:, :, 0], np.float64)


def _errors(cameras: Sequence[Camera], pixels: Array, points: Array) -> Array:
    """Largest distance [C] in pixels between a view's marks and the projections of the points."""
    distance = np.array([np.linalg.norm(project(c, points) - p, axis=1).max() for c, p in zip(cameras, pixels)])
    return np.where(np.isfinite(distance), distance, np.inf)


def _consensus(cameras: Sequence[Camera], pixels: Array) -> NDArray[np.bool_]:
    """Views [C] that agree with the pair of views with most support."""
    pairs = [(i, j) for i in range(len(cameras)) for j in range(i)]
    order = np.random.default_rng(0).permutation(len(pairs))[:PAIRS]
    best, best_score = np.zeros(len(cameras), bool), (0, 0.0)
    for k in order:
        i, j = pairs[k]
        errors = _errors(cameras, pixels, closest_points([cameras[i], cameras[j]], pixels[[i, j]]))
        inliers = errors < AGREE_PX
        score = (int(inliers.sum()), -float(errors[inliers].sum()))
        if score > best_score:
            best, best_score = inliers, score
    return best


def refine_points(cameras: Sequence[Camera], pixels: Array, points: Array) -> tuple[Array, Array]:
    """Points [N, 3] of least soft-L1 reprojection error and their covariances [N, 3, 3]."""
    from scipy.optimize import least_squares

    def residual(x: Array) -> Array:
        moved = x.reshape(-1, 3)
        return np.concatenate([(project(c, moved) - p).ravel() for c, p in zip(cameras, pixels)])

    fit = least_squares(residual, points.ravel(), loss="soft_l1", f_scale=LOSS_PX, x_scale="jac")
    residuals = residual(fit.x)
    freedom = max(residuals.size - points.size, 1)
    noise = max(float((residuals**2).sum()) / freedom, MIN_NOISE_PX**2)
    covariance = np.linalg.pinv(fit.jac.T @ fit.jac) * noise
    blocks = np.array([covariance[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] for i in range(len(points))])
    return fit.x.reshape(-1, 3), blocks


def triangulate_robust(cameras: Sequence[Camera], pixels: Array) -> tuple[Array, Array, NDArray[np.bool_]] | None:
    """Points seen together, with wrong views among them.

    pixels: the same N marks in C views, [C, N, 2]. Returns points [N, 3], covariances [N, 3, 3] and the views
    used [C]; None where no two views agree.
    """
    if len(cameras) < 2:
        return None
    inliers = _consensus(cameras, pixels)
    for _ in range(2):
        if inliers.sum() < 2:
            return None
        used = [c for c, ok in zip(cameras, inliers) if ok]
        points, covariance = refine_points(used, pixels[inliers], closest_points(used, pixels[inliers]))
        again = _errors(cameras, pixels, points) < AGREE_PX
        if (again == inliers).all():
            break
        inliers = again
    return (points, covariance, inliers) if inliers.sum() >= 2 else None
