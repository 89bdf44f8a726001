# SPDX-License-Identifier: Apache-2.0
"""The reference rasteriser against closed forms and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from random_scene import decided_pixels, random_scene

from real2sim.sim.render.rasterize import rasterize
from real2sim.sim.render.reference import rasterize_reference

EXACT = 1e-12  # float64 rounding


def one_gaussian(opacity: float = 0.5, scale: float = 0.1, z: float = 4.0) -> tuple[torch.Tensor, ...]:
    values = ([[0, 0, z]], [[1, 0, 0, 0]], [[scale] * 3], [opacity], [[[0.3, 0.6, -0.9]]])
    return tuple(torch.tensor(v, dtype=torch.float64) for v in values)


CENTRED = torch.tensor([[100.0, 0, 20.5], [0, 100, 10.5], [0, 0, 1]], dtype=torch.float64)
EYE = torch.eye(4, dtype=torch.float64)


def test_one_gaussian_is_its_closed_form() -> None:
    rgb, depth, alpha = rasterize_reference(*one_gaussian(), EYE, CENTRED, 41, 21, sh_degree=0)
    variance = (100 * 0.1 / 4) ** 2 + 0.3
    for x, y in ((20, 10), (22, 10), (20, 13), (25, 8)):
        expected = 0.5 * math.exp(-((x - 20) ** 2 + (y - 10) ** 2) / (2 * variance))
        if expected < 1 / 255:
            assert alpha[y, x] == 0
            continue
        assert abs(alpha[y, x] - expected) < 1e-4  # off the axis the true covariance is not quite round
        colour = np.maximum(0.28209479177387814 * np.array([0.3, 0.6, -0.9]) + 0.5, 0)
        np.testing.assert_allclose(rgb[y, x], colour * float(alpha[y, x]), atol=EXACT)
        assert abs(depth[y, x] - 4) < EXACT
    assert abs(alpha[10, 20] - 0.5) < EXACT


def test_nearer_gaussian_is_blended_first_whatever_the_order() -> None:
    near, far = one_gaussian(0.6, z=2.0), one_gaussian(0.8, z=3.0)
    for order in ((near, far), (far, near)):
        both = [torch.cat(v) for v in zip(*order, strict=True)]
        _, depth, alpha = rasterize_reference(*both, EYE, CENTRED, 41, 21, sh_degree=0)
        weights = np.array([0.6, 0.4 * 0.8])
        assert abs(alpha[10, 20] - weights.sum()) < EXACT
        assert abs(depth[10, 20] - weights @ [2, 3] / weights.sum()) < EXACT


def test_pixel_ends_before_its_transmittance_is_spent() -> None:
    layers = [torch.cat([v] * 3) for v in one_gaussian(0.995)]
    layers[0][:, 2] = torch.tensor([2.0, 3, 4])
    _, _, alpha = rasterize_reference(*layers, EYE, CENTRED, 41, 21, sh_degree=0)
    # The second layer would leave 0.005 ** 2 < 1e-4, so it is not blended.
    assert abs(alpha[10, 20] - 0.995) < EXACT


def test_opaque_gaussian_is_clamped() -> None:
    _, _, alpha = rasterize_reference(*one_gaussian(1.0), EYE, CENTRED, 41, 21, sh_degree=0)
    assert abs(alpha[10, 20] - 0.999) < EXACT


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_depth_is_metric_at_half_alpha(backend: str) -> None:
    """A half-transparent surface at 4 m reads 4.000 m, not 2."""
    gaussians = [v.float() for v in one_gaussian(0.5, scale=0.5)]
    _, depth, alpha = rasterize(*gaussians, EYE[None], CENTRED[None], 41, 21, sh_degree=0, backend=backend)
    assert abs(float(alpha[0, 10, 20]) - 0.5) < 1e-6
    assert abs(float(depth[0, 10, 20]) - 4) < 1e-5
    assert float((depth[alpha > 0] - 4).abs().max()) < 1e-5


@pytest.mark.parametrize("seed", [1, 2])
def test_gradients_are_finite_differences(seed: int) -> None:
    scene = random_scene(12, seed, width=16, height=12)
    mask = decided_pixels(scene)[0]
    assert mask.float().mean() > 0.9
    background = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)

    def images(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *gaussians, b, V = inputs
        rgb, depth, alpha = rasterize_reference(*gaussians, V, scene.Ks[0], 16, 12, sh_degree=3, background=b)
        return rgb[mask], depth[mask], alpha[mask]

    inputs = [v.clone().requires_grad_(True) for v in (*scene.gaussians, background, scene.viewmats[0])]
    assert torch.autograd.gradcheck(images, inputs, eps=1e-7, atol=1e-5, rtol=1e-4, fast_mode=True)
