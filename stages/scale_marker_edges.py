# SPDX-License-Identifier: Apache-2.0
"""A marker's corners as the intersections of lines fitted to its four edges."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STEP_PX = 0.25  # spacing of the samples across an edge
MIN_REACH_PX, MAX_REACH_PX = 1.5, 6.0
REACH_OF_SIDE = 0.11  # the black border is one sixth of the side (4x4 codes) or thinner: the profile stays inside it
MAX_SHIFT_OF_SIDE = 0.1
MIN_CONTRAST = 0.03  # light between the two sides of the edge, where white is 1


def sample_bilinear(image: NDArray[Any], xy: Array) -> Array:
    """Grey values at pixels xy [..., 2], centres at half-integers; clamped at the border."""
    x = np.clip(xy[..., 0] - 0.5, 0, image.shape[1] - 1.001)
    y = np.clip(xy[..., 1] - 0.5, 0, image.shape[0] - 1.001)
    x0, y0 = x.astype(int), y.astype(int)
    fx, fy = x - x0, y - y0
    top = image[y0, x0] * (1 - fx) + image[y0, x0 + 1] * fx
    return top * (1 - fy) + (image[y0 + 1, x0] * (1 - fx) + image[y0 + 1, x0 + 1] * fx) * fy


def linear_light(grey: NDArray[np.uint8]) -> Array:
    """Light, 0 to 1, of grey values 0 to 255 in the sRGB encoding.

    Blur mixes light, not its encoding: the middle of an encoded edge lies in the dark side, and a marker would look
    smaller than it is.
    """
    code = np.arange(256) / 255
    return np.asarray(np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)[grey], np.float64)


def _edge_points(light: Array, start: Array, end: Array, opposite: Array) -> Array:
    """Places on the edge from start to end [2] where brightness steps, [M, 2]: centroid of the gradient across it.

    opposite: middle of the opposite edge [2]; how far away it looks tells how thick border and margin look.
    """
    along = end - start
    length = float(np.linalg.norm(along))
    normal = np.array([-along[1], along[0]]) / length
    reach = float(np.clip(REACH_OF_SIDE * abs((opposite - start) @ normal), MIN_REACH_PX, MAX_REACH_PX))
    offsets = np.arange(-reach, reach + STEP_PX / 2, STEP_PX)
    t = np.linspace(0.12, 0.88, int(np.clip(length, 8, 120)))
    base = start + t[:, None] * along
    profile = sample_bilinear(light, base[:, None] + offsets[None, :, None] * normal)
    gradient = np.abs(np.diff(profile, axis=1))
    gradient[gradient < 0.2 * gradient.max(axis=1, keepdims=True)] = 0
    middle = (offsets[1:] + offsets[:-1]) / 2
    centre = (gradient * middle).sum(1) / np.maximum(gradient.sum(1), 1e-9)
    good = np.abs(profile[:, 0] - profile[:, -1]) > MIN_CONTRAST
    return base[good] + centre[good, None] * normal


def _fit_line(points: Array) -> Array | None:
    """Line [3] (a x + b y = c, unit normal) through points [M, 2], with outlying points weighted down."""
    if len(points) < 4:
        return None
    weights = np.ones(len(points))
    for _ in range(5):
        centre = (weights[:, None] * points).sum(0) / weights.sum()
        normal = np.linalg.eigh(((points - centre) * weights[:, None]).T @ (points - centre))[1][:, 0]
        residual = np.abs((points - centre) @ normal)
        weights = 1 / (1 + (residual / max(2 * float(np.median(residual)), 0.02)) ** 2) ** 2
    return np.array([*normal, normal @ centre])


def refine_corners(image: NDArray[np.uint8], corners: Array) -> Array | None:
    """Corners [4, 2] of a dark square in a grey image from lines on its edges; None where the edges are not clear."""
    current = np.asarray(corners, np.float64)
    light = linear_light(image)
    for _ in range(3):
        a, b, c, d = (np.roll(current, -k, axis=0) for k in range(4))
        lines = [_fit_line(_edge_points(light, a[i], b[i], (c[i] + d[i]) / 2)) for i in range(4)]
        if any(line is None for line in lines):
            return None
        refined = np.empty((4, 2))
        for i in range(4):
            pair = np.array([lines[i - 1], lines[i]], np.float64)
            if abs(np.linalg.det(pair[:, :2])) < 0.05:
                return None
            refined[i] = np.linalg.solve(pair[:, :2], pair[:, 2])
        current = refined
    side = np.linalg.norm(np.roll(corners, -1, 0) - corners, axis=1).mean()
    shift = np.linalg.norm(current - corners, axis=1).max()
    return current if shift <= max(1.5, MAX_SHIFT_OF_SIDE * side) else None
