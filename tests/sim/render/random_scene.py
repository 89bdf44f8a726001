# SPDX-License-Identifier: Apache-2.0
"""Scenes for the rasterisers' tests: Gaussians in front of one or more cameras, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from real2sim.sim.render.reference import (
    ALPHA_MAX,
    ALPHA_MIN,
    TRANSMITTANCE_MIN,
    exponents,
    pixel_centres,
    project,
)

UNDECIDED = 1e-4  # relative distance to a threshold within which float32 may fall on the other side of it


@dataclass
class Scene:
    means: Tensor
    quats: Tensor
    scales: Tensor
    opacities: Tensor
    sh: Tensor
    viewmats: Tensor
    Ks: Tensor
    width: int
    height: int
    sh_degree: int

    @property
    def gaussians(self) -> tuple[Tensor, ...]:
        return self.means, self.quats, self.scales, self.opacities, self.sh

    def arguments(self, dtype: torch.dtype = torch.float32) -> tuple:
        return (*(v.to(dtype) for v in self.gaussians), self.viewmats, self.Ks, self.width, self.height)


def cameras(count: int, width: int, height: int, seed: int) -> tuple[Tensor, Tensor]:
    """viewmats [C, 4, 4] near the origin that look along +z, and off-centre Ks [C, 3, 3]."""
    rng = np.random.default_rng(seed)
    viewmats, Ks = np.tile(np.eye(4), (count, 1, 1)), np.tile(np.eye(3), (count, 1, 1))
    for V, K in zip(viewmats, Ks, strict=True):
        V[:3, :3] = Rotation.from_rotvec(rng.normal(0, 0.15, 3)).as_matrix()
        V[:3, 3] = rng.normal(0, 0.1, 3)
        K[:2] = [[0.8 * width, 0, 0.5 * width + 1.3], [0, 0.9 * width, 0.5 * height - 0.7]]
    return torch.tensor(viewmats), torch.tensor(Ks)


def random_scene(
    count: int = 300, seed: int = 0, *, width: int = 61, height: int = 47, views: int = 1, sh_degree: int = 3
) -> Scene:
    """Blobs of all sizes and shapes, some behind the camera or outside the image."""
    rng = np.random.default_rng(seed)
    viewmats, Ks = cameras(views, width, height, seed)
    arrays = (
        rng.normal(0, 1, (count, 3)) * [0.9, 0.9, 1.2] + [0, 0, 2.8],
        rng.normal(0, 1, (count, 4)),
        np.exp(rng.normal(-2.5, 0.8, (count, 3))),
        rng.uniform(0.002, 1, count),
        rng.normal(0, 0.3, (count, (sh_degree + 1) ** 2, 3)),
    )
    return Scene(*(torch.tensor(a) for a in arrays), viewmats, Ks, width, height, sh_degree)


def trained_like_scene(count: int = 600, seed: int = 0, *, width: int = 96, height: int = 64) -> Scene:
    """Thin opaque discs and needles on the walls of a corridor, as training leaves them; colours mostly diffuse."""
    rng = np.random.default_rng(seed)
    viewmats, Ks = cameras(1, width, height, seed)
    wall = rng.integers(0, 5, count)
    means = rng.uniform([-1, -1, 0.3], [1, 1, 5], (count, 3))
    normals = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]], float)[wall]
    axis = np.array([0, 0, 1, 1, 2])[wall]
    means[np.arange(count), axis] = np.array([-1, 1, -1, 1, 5.0])[wall]
    turn = Rotation.from_rotvec(normals * rng.uniform(0, np.pi, (count, 1)))
    lay = Rotation.concatenate([Rotation.align_vectors([n], [[0, 0, 1]])[0] for n in normals])
    quats = np.roll((turn * lay).as_quat(), 1, axis=1)
    scales = np.exp(np.stack([rng.normal(-2.2, 0.7, count), rng.normal(-3.2, 0.9, count), np.full(count, -7.5)], 1))
    opacities = 1 / (1 + np.exp(-rng.normal(2, 2.5, count)))
    sh = rng.normal(0, 0.05, (count, 16, 3))
    sh[:, 0] = rng.normal(0, 1, (count, 3))
    return Scene(*(torch.tensor(a) for a in (means, quats, scales, opacities, sh)), viewmats, Ks, width, height, 3)


def decided_pixels(scene: Scene) -> Tensor:
    """Pixels [C, H, W] in which no Gaussian lies within rounding of a threshold: there the model is continuous."""
    masks = []
    pixels = pixel_centres(scene.width, scene.height, torch.float64)
    for V, K in zip(scene.viewmats, scene.Ks, strict=True):
        g = project(*scene.gaussians, V, K, scene.width, scene.height, sh_degree=scene.sh_degree, near=0.01)
        alpha = g.opacities * torch.exp(-exponents(g, pixels))
        through = torch.cumprod(1 - torch.where(alpha >= ALPHA_MIN, alpha.clamp(max=ALPHA_MAX), 0.0), -1)
        unsure = torch.zeros(len(pixels), dtype=torch.bool)
        for value, threshold in ((alpha, ALPHA_MIN), (alpha, ALPHA_MAX), (through, TRANSMITTANCE_MIN)):
            unsure |= ((value / threshold - 1).abs() < UNDECIDED).any(-1)
        masks.append(~unsure.reshape(scene.height, scene.width))
    return torch.stack(masks)


def psnr(a: Tensor, b: Tensor) -> float:
    """Peak signal-to-noise ratio [dB] of images in 0..1."""
    return float(-10 * torch.log10(torch.mean((a.double() - b.double()) ** 2) + 1e-30))
