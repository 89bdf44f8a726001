# SPDX-License-Identifier: Apache-2.0
"""Relocation, growth and noise: what is moved must not change the picture."""

import math

import numpy as np
import pytest
import torch

from real2sim.stages.splat_gaussians import from_points
from real2sim.stages.splat_mcmc import DEAD_OPACITY, add_noise, grow, relocate, split_opacity_and_scale

FLOAT32_TOLERANCE = 1e-4  # of quantities made in float64 and stored in float32


def _gaussians(opacities: list[float]) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    count = len(opacities)
    gaussians = from_points(rng.normal(size=(count, 3)), rng.uniform(size=(count, 3)), opacity=0.5, sh_degree=1)
    gaussians["logit_opacities"] = torch.logit(torch.tensor(opacities))
    return gaussians


def _moments(gaussians: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{k: torch.ones_like(v) for k, v in gaussians.items()} for _ in range(2)]


@pytest.mark.parametrize("copies", [1, 2, 5, 20])
@pytest.mark.parametrize("opacity", [0.05, 0.6, 0.98])
def test_copies_in_one_place_look_like_the_one_that_was_there(copies, opacity):
    """Same opacity at the centre, same light blocked along a line: the two conditions behind eq. 9."""
    shared, factor = split_opacity_and_scale(torch.tensor([opacity]).double(), torch.tensor([copies]))
    x = np.linspace(-12, 12, 40001)
    bell = 1 - (1 - float(shared) * np.exp(-0.5 * (x / float(factor)) ** 2)) ** copies
    assert bell.max() == pytest.approx(opacity, rel=1e-6)
    assert np.trapezoid(bell, x) == pytest.approx(opacity * math.sqrt(2 * math.pi), rel=1e-6)


def test_relocation_revives_the_dead_and_keeps_the_count():
    gaussians = _gaussians([0.9, 0.001, 0.7, 0.002, 0.8])
    moments = _moments(gaussians)
    untouched = {k: v.clone() for k, v in gaussians.items()}
    assert relocate(gaussians, moments, torch.Generator().manual_seed(0)) == 2
    opacities = gaussians["logit_opacities"].sigmoid()
    assert len(opacities) == 5 and (opacities > DEAD_OPACITY).all()
    for dead in (1, 3):
        assert any(torch.equal(gaussians["means"][dead], untouched["means"][live]) for live in (0, 2, 4))
        assert (moments[0]["means"][dead] == 0).all() and (moments[1]["sh0"][dead] == 0).all()


def test_growth_shares_opacity_between_source_and_copy():
    gaussians = _gaussians([0.6])
    longer, moments = grow(gaussians, _moments(gaussians), 3, torch.Generator().manual_seed(0))
    assert all(len(v) == 4 for v in longer.values()) and all(len(v) == 4 for m in moments for v in m.values())
    through = (1 - longer["logit_opacities"].sigmoid()).prod()
    assert float(through) == pytest.approx(0.4, abs=FLOAT32_TOLERANCE)


def test_noise_moves_transparent_gaussians_only():
    gaussians = _gaussians([0.9, 0.5, 0.004])
    before = gaussians["means"].clone()
    add_noise(gaussians, 1.0, torch.Generator().manual_seed(0))
    moved = (gaussians["means"] != before).any(1)
    assert moved.tolist() == [False, False, True]


def test_noise_has_the_shape_of_the_covariance():
    count = 4000
    gaussians = _gaussians([0.0001] * count)
    gaussians["means"].zero_()
    gaussians["log_scales"][:] = torch.log(torch.tensor([0.5, 0.1, 0.02]))
    half = math.sqrt(0.5)
    gaussians["quats"][:] = torch.tensor([half, 0, 0, half])  # a quarter turn about z: long axis along y
    add_noise(gaussians, 1.0, torch.Generator().manual_seed(0))
    free = 1 / (1 + math.exp(100 * (0.0001 - DEAD_OPACITY)))
    expected = free * torch.tensor([0.1, 0.5, 0.02]) ** 2
    sampling = 4 / math.sqrt(2 * count)  # four standard errors of a standard deviation
    assert torch.allclose(gaussians["means"].std(0), expected, rtol=sampling)
