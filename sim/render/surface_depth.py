# SPDX-License-Identifier: Apache-2.0
"""Depth of a splat's surface, for measuring geometry.

The usual depth of a splat blends the depth of each Gaussian's centre. A flat Gaussian seen at an angle is then as deep
at its near rim as at its far rim, and as near Gaussians hide far ones, tables rise towards the camera by a good part of
their Gaussians' size. Here each Gaussian has the depth of its densest point along the ray, to first order in the image:

    z(r) = z_c - z_c^2 (r - r_c) . (A m) / (m . A m),   m: centre in camera axes, A: inverse covariance, r = (x/z, y/z, 1)

which is exact for a flat Gaussian to first order (Zhang et al. 2024, RaDe-GS, eq. 8). It is rendered as three blended
features, z = c + g_x x + g_y y, by any rasteriser.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import quat_to_matrix

Array = NDArray[np.float64]
Floats = NDArray[np.float32]

NEAR = 0.01
BLUR_PX2 = 0.3  # what the classic projection adds to the variance on screen
MAX_SLOPE = 2.0  # over one sigma on screen a Gaussian's depth changes by at most this many of its largest sigmas
HARMONIC_0 = 0.28209479177387814


def render_surface(splat: Splat, camera: Camera) -> dict[str, Floats]:
    """One view: {"rgb" [H, W, 3], "depth" [H, W] of the surface, "alpha" [H, W]}; depth is 0 where alpha is 0."""
    from real2sim.sim.render.rasterize import render

    picture = render(splat, camera)
    seen, features = plane_features(splat, camera)
    low = features.min(0, initial=np.inf)
    low = np.where(np.isfinite(low), low, 0.0)
    part = splat.select(seen)
    coded = ((features - low - 0.5) / HARMONIC_0).astype(np.float32)
    empty = np.zeros((len(coded), 0, 3), np.float32)
    carrier = Splat(part.means, part.quats, part.log_scales, part.logit_opacities, coded[:, None], empty)
    image = render(carrier, camera)
    alpha = image["alpha"].astype(np.float64)
    c, gx, gy = np.moveaxis(image["rgb"] / np.maximum(alpha, 1e-9)[..., None] + low, -1, 0)
    v, u = np.mgrid[: camera.height, : camera.width] + 0.5
    x, y = (u - camera.K[0, 2]) / camera.K[0, 0], (v - camera.K[1, 2]) / camera.K[1, 1]
    depth = np.where(alpha > 1e-6, c + gx * x + gy * y, 0.0)
    return {"rgb": picture["rgb"], "depth": np.maximum(depth, 0).astype(np.float32), "alpha": picture["alpha"]}


def plane_features(splat: Splat, camera: Camera) -> tuple[NDArray[np.int64], Array]:
    """Gaussians in front of a camera (indices) and c, g_x, g_y of each [M, 3]: its depth is c + g_x x/z + g_y y/z."""
    view = camera.viewmat
    means = splat.means.astype(np.float64) @ view[:3, :3].T + view[:3, 3]
    seen = np.flatnonzero(means[:, 2] > NEAR)
    m, scales = means[seen], splat.scales[seen].astype(np.float64)
    R = view[:3, :3] @ quat_to_matrix(splat.quats[seen])
    local = np.einsum("nji,nj->ni", R, m)  # the centre in the Gaussian's own axes
    weighted = local / np.maximum(scales, 1e-9) ** 2
    Am = np.einsum("nij,nj->ni", R, weighted)
    z = m[:, 2]
    gradient = -(z**2)[:, None] * Am[:, :2] / np.maximum((m * Am).sum(1), 1e-12)[:, None]
    gradient *= _slope_limit(camera, m, R, scales, gradient)[:, None]
    c = z - (gradient * m[:, :2] / z[:, None]).sum(1)
    return seen, np.c_[c, gradient]


def _slope_limit(camera: Camera, m: Array, R: Array, scales: Array, gradient: Array) -> Array:
    """Factor [M] that keeps the depth's change over one sigma on screen below MAX_SLOPE of the largest sigma."""
    z = m[:, 2]
    size = np.linalg.norm(gradient, axis=1)
    g = gradient / np.maximum(size, 1e-12)[:, None]
    row = np.c_[g, -(g * m[:, :2] / z[:, None]).sum(1)] / z[:, None]  # the direction g of the projection's Jacobian
    spread = (np.einsum("nji,nj->ni", R, row) * scales) ** 2
    sigma = np.sqrt(spread.sum(1) + BLUR_PX2 / camera.K[0, 0] ** 2)
    return np.asarray(np.minimum(1.0, MAX_SLOPE * scales.max(1) / np.maximum(size * sigma, 1e-12)), np.float64)
