# SPDX-License-Identifier: Apache-2.0
"""The Gaussians as the optimiser holds them, where they start, and the way to and from a stored splat."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import Similarity
from real2sim.stages.sparse import SparsePoints
from real2sim.stages.splat_views import Views

SH_C0 = 0.28209479177387814  # the constant spherical harmonic, 1 / (2 sqrt(pi))
FIELDS = ("means", "quats", "log_scales", "logit_opacities", "sh0", "shN")
SEED_NEIGHBOURS = 4  # observed points whose depths a seed pixel interpolates
SCALE_NEIGHBOURS = 3  # nearest centres whose distance sets a first size, Kerbl et al. 2023
FAR_SCALE = 0.1  # largest first size, in viewing distances

Parameters = dict[str, Tensor]


def first_gaussians(
    points: SparsePoints,
    views: Views,
    T_train_sfm: Similarity,
    *,
    count: int,
    opacity: float,
    sh_degree: int,
    seed: int,
) -> Parameters:
    """Gaussians to start from, in the training frame: the sparse points, and seeds between them up to count.

    views are the training photos; their cameras (training frame) are those that points.obs_camera counts. A seed is a
    random pixel of one of them, at a depth interpolated from the points observed around it and with the pixel's colour:
    where a surface has no texture, or a background no points, this is the best guess there is.
    """
    rng = np.random.default_rng(seed)
    means, colours = T_train_sfm.apply(points.xyz), points.rgb / 255.0
    extra = max(0, count - len(means))
    seeded = [_seeds(points, means, views, i, extra // len(views) + 1, rng) for i in range(len(views))]
    means = np.concatenate([means, *(s[0] for s in seeded)])
    colours = np.concatenate([colours, *(s[1] for s in seeded)])
    if len(means) > count:
        chosen = np.sort(rng.choice(len(means), count, replace=False))
        means, colours = means[chosen], colours[chosen]
    return from_points(means, colours, opacity=opacity, sh_degree=sh_degree)


def _seeds(
    points: SparsePoints, means: NDArray[np.float64], views: Views, index: int, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centres [count, 3] and colours [count, 3] at random pixels of one photo (all, or none where it saw no points)."""
    camera = views.cameras[index]
    seen = points.obs_camera == index
    xyz_cam = means[points.obs_point[seen]] @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    front = xyz_cam[:, 2] > 0
    if front.sum() < SEED_NEIGHBOURS:
        return np.empty((0, 3)), np.empty((0, 3))
    projected = xyz_cam[front] @ camera.K.T
    xy, log_depth = projected[:, :2] / projected[:, 2:], np.log(projected[:, 2])
    pixels = rng.uniform((0, 0), (camera.width, camera.height), (count, 2))
    distance, nearest = cKDTree(xy).query(pixels, SEED_NEIGHBOURS)
    weight = 1 / (distance**2 + 1)
    depth = np.exp((weight * log_depth[nearest]).sum(1) / weight.sum(1))
    rays = np.concatenate([pixels, np.ones((count, 1))], 1) @ np.linalg.inv(camera.K).T
    centres = (rays * depth[:, None]) @ camera.T_world_cam[:3, :3].T + camera.T_world_cam[:3, 3]
    photo = views.at(index)
    column, row = pixels.astype(int).T
    kept = np.ones(count, bool) if photo.keep is None else photo.keep.cpu().numpy()[row, column]
    return centres[kept], photo.target.cpu().numpy()[row, column][kept].astype(np.float64)


def from_points(
    means: NDArray[np.float64], colours: NDArray[np.float64], *, opacity: float, sh_degree: int
) -> Parameters:
    """Round Gaussians at means [N, 3] with colours [N, 3] in [0, 1], as large as the spacing of their neighbours."""
    count = len(means)
    distance, _ = cKDTree(means).query(means, SCALE_NEIGHBOURS + 1)
    scale = np.clip(np.sqrt((distance[:, 1:] ** 2).mean(1)), 1e-4, FAR_SCALE)
    quats = np.zeros((count, 4))
    quats[:, 0] = 1
    arrays = {
        "means": means,
        "quats": quats,
        "log_scales": np.repeat(np.log(scale)[:, None], 3, 1),
        "logit_opacities": np.full(count, np.log(opacity / (1 - opacity))),
        "sh0": (colours[:, None] - 0.5) / SH_C0,
        "shN": np.zeros((count, (sh_degree + 1) ** 2 - 1, 3)),
    }
    return {k: torch.from_numpy(np.ascontiguousarray(v, np.float32)) for k, v in arrays.items()}


def to_splat(parameters: Mapping[str, Tensor], T_train_sfm: Similarity) -> Splat:
    """The splat in the sfm frame, quaternions normalised."""
    arrays = {k: parameters[k].detach().cpu().numpy().astype(np.float32) for k in FIELDS}
    arrays["quats"] = arrays["quats"] / np.linalg.norm(arrays["quats"], axis=1, keepdims=True)
    return Splat(**arrays).transformed(T_train_sfm.inverse())


def from_splat(splat: Splat, T_train_sfm: Similarity) -> Parameters:
    """What the optimiser holds, of a splat in the sfm frame."""
    moved = splat.transformed(T_train_sfm)
    return {k: torch.from_numpy(np.ascontiguousarray(getattr(moved, k), np.float32)) for k in FIELDS}
