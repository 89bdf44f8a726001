# SPDX-License-Identifier: Apache-2.0
"""3D Gaussian splatting as Markov chain Monte Carlo (Kheradmand et al. 2024): relocation, growth and noise.

Gaussians are samples; nothing is split, cloned or pruned by heuristics. Dead ones move onto live ones such that the
picture does not change (eq. 9), new ones arrive the same way, and noise lets the transparent ones explore.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from real2sim.sim.render.reference import quats_to_matrices
from real2sim.stages.splat_gaussians import Parameters

DEAD_OPACITY = 0.005  # below this a Gaussian is relocated
MAX_COPIES = 51  # of one Gaussian at one time
NOISE_STEEPNESS = 100.0  # of the sigmoid that leaves opaque Gaussians in place


@lru_cache(maxsize=1)
def _binomials() -> Tensor:
    """C(N, j) [MAX_COPIES + 1, MAX_COPIES + 1] in float64."""
    rows = [[float(math.comb(n, j)) for j in range(MAX_COPIES + 1)] for n in range(MAX_COPIES + 1)]
    return torch.tensor(rows, dtype=torch.float64)


def split_opacity_and_scale(opacities: Tensor, copies: Tensor) -> tuple[Tensor, Tensor]:
    """Opacities and factors on the scales that let `copies` equal Gaussians in one place look like one (eq. 9).

    opacities [M] in (0, 1) and copies [M] >= 1 of what was there: o' = 1 - (1 - o)^(1/N), and the factor is
    o / sum_{i=1..N} sum_{k<i} C(i-1, k) (-1)^k o'^(k+1) / sqrt(k+1), whose inner sums over i add up to C(N, k+1).
    """
    n = copies.clamp(1, MAX_COPIES)
    o = opacities.double().clamp(1e-6, 1 - 1e-6)
    shared = 1 - (1 - o) ** (1 / n)
    j = torch.arange(1, MAX_COPIES + 1, device=o.device, dtype=torch.float64)
    sign = 1 - 2 * ((j - 1) % 2)
    terms = _binomials().to(o.device)[n.long()][:, 1:] * sign * shared[:, None] ** j / j.sqrt()
    return shared.to(opacities.dtype), (o / terms.sum(1)).to(opacities.dtype)


def _share(parameters: Parameters, sources: Tensor) -> None:
    """Give each source the opacity and size of one of its copies; sources [M] may repeat, once per new copy."""
    unique, counts = sources.unique(return_counts=True)
    opacities = torch.sigmoid(parameters["logit_opacities"][unique])
    shared, factor = split_opacity_and_scale(opacities, counts + 1)
    shared = shared.clamp(DEAD_OPACITY, 1 - 1e-6)
    parameters["logit_opacities"][unique] = torch.logit(shared)
    parameters["log_scales"][unique] += factor.log()[:, None]


@torch.no_grad()
def relocate(parameters: Parameters, moments: list[Parameters], generator: torch.Generator) -> int:
    """Move the dead Gaussians onto live ones, drawn by opacity; returns how many moved.

    moments: the optimiser's running averages, shaped like the parameters; zero for whatever changed.
    """
    opacities = torch.sigmoid(parameters["logit_opacities"])
    dead = (opacities <= DEAD_OPACITY).nonzero()[:, 0]
    if len(dead) == 0 or len(dead) == len(opacities):
        return 0
    weights = torch.where(opacities > DEAD_OPACITY, opacities, 0)
    sources = torch.multinomial(weights, len(dead), replacement=True, generator=generator)
    _share(parameters, sources)
    for field, values in parameters.items():
        values[dead] = values[sources]
        for moment in moments:
            moment[field][sources] = 0
            moment[field][dead] = 0
    return len(dead)


@torch.no_grad()
def grow(
    parameters: Parameters, moments: list[Parameters], count: int, generator: torch.Generator
) -> tuple[Parameters, list[Parameters]]:
    """Add count Gaussians on top of live ones, drawn by opacity; returns the longer parameters and moments."""
    weights = torch.sigmoid(parameters["logit_opacities"])
    sources = torch.multinomial(weights, count, replacement=True, generator=generator)
    _share(parameters, sources)
    longer = {field: torch.cat([values, values[sources]]) for field, values in parameters.items()}
    for moment in moments:
        for field in moment:
            moment[field][sources] = 0
    padded = [{f: torch.cat([v, torch.zeros_like(v[sources])]) for f, v in moment.items()} for moment in moments]
    return longer, padded


@torch.no_grad()
def add_noise(parameters: Parameters, amount: float, generator: torch.Generator) -> None:
    """Perturb the centres by N(0, amount^2) shaped by each covariance, where the opacity is near zero (eq. 8)."""
    opacities = torch.sigmoid(parameters["logit_opacities"])
    free = torch.sigmoid(-NOISE_STEEPNESS * (opacities - DEAD_OPACITY))
    moving = (free > 1e-3).nonzero()[:, 0]
    if len(moving) == 0:
        return
    noise = torch.randn((len(moving), 3), generator=generator, device=opacities.device)
    axes = quats_to_matrices(parameters["quats"][moving])
    variances = torch.exp(2 * parameters["log_scales"][moving])
    along = torch.einsum("nji,nj->ni", axes, noise) * variances
    parameters["means"][moving] += amount * free[moving, None] * torch.einsum("nij,nj->ni", axes, along)
