# SPDX-License-Identifier: Apache-2.0
"""The native training loss against a float64 one that autograd differentiates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from real2sim.errors import UsageError
from real2sim.sim.render import _cpu
from real2sim.sim.render.photometric import photometric_loss_cpu

LOSS_TOLERANCE = 1e-6  # float32 sums
GRADIENT_RELATIVE = 1e-5  # norm of the error / norm
SIZES = [(37, 53), (1, 1), (4, 7), (11, 43), (120, 90), (2, 200)]  # less than a window, more than a patch


def reference_loss(x: Tensor, y: Tensor, keep: Tensor | None, weight: float) -> Tensor:
    """(1 - w) mean|x - y| + w (1 - mean SSIM) in float64, by the definition of SSIM (Wang et al. 2004)."""
    taps = torch.exp(-0.5 * ((torch.arange(11, dtype=torch.float64) - 5) / 1.5) ** 2)
    window = torch.outer(taps, taps) / taps.sum() ** 2
    mask = torch.ones(x.shape[:2], dtype=torch.float64) if keep is None else keep.double()
    x, y = x * mask[..., None], y * mask[..., None]

    def blur(image: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(image.permute(2, 0, 1)[:, None], window[None, None], padding=5)[:, 0]

    mx, my = blur(x), blur(y)
    vx, vy, cov = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
    ssim = ((2 * mx * my + 1e-4) * (2 * cov + 9e-4)) / ((mx * mx + my * my + 1e-4) * (vx + vy + 9e-4))
    count = 3 * mask.sum()
    return (1 - weight) * (x - y).abs().sum() / count + weight * (1 - (ssim * mask).sum() / count)


def images(height: int, width: int, masked: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(height * 1000 + width)
    x = torch.rand(height, width, 3, generator=generator)
    y = (x + 0.2 * torch.randn(height, width, 3, generator=generator)).clamp(0, 1)
    return x, y, torch.rand(height, width, generator=generator) > 0.3 if masked else None


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("size", SIZES)
def test_loss_and_gradient_are_the_definitions(size: tuple[int, int], weight: float, masked: bool) -> None:
    x, y, keep = images(*size, masked)
    if keep is not None:
        keep[0, 0] = True
    exact = x.double().requires_grad_(True)
    expected = reference_loss(exact, y.double(), keep, weight)
    (expected_gradient,) = torch.autograd.grad(expected, exact)
    native = x.clone().requires_grad_(True)
    got = photometric_loss_cpu(native, y, keep, weight)
    (gradient,) = torch.autograd.grad(3 * got, native)
    assert abs(float(got.detach()) - float(expected.detach())) < LOSS_TOLERANCE
    error = (gradient.double() / 3 - expected_gradient).norm()
    assert float(error) <= GRADIENT_RELATIVE * float(expected_gradient.norm()) + 1e-9


@pytest.mark.parametrize("isa", _cpu.instruction_sets())
def test_every_instruction_set_gives_the_same_loss(isa: str) -> None:
    x, y, keep = images(61, 83, True)
    exact = x.double().requires_grad_(True)
    expected = reference_loss(exact, y.double(), keep, 0.3)
    (expected_gradient,) = torch.autograd.grad(expected, exact)
    gradient = torch.empty_like(x)
    assert abs(_cpu.photometric(x, y, keep, 0.3, gradient, 1, isa) - float(expected.detach())) < LOSS_TOLERANCE
    assert float((gradient - expected_gradient).norm() / expected_gradient.norm()) < GRADIENT_RELATIVE


def test_number_of_threads_changes_no_bit() -> None:
    x, y, keep = images(230, 150, True)
    results = []
    for threads in (1, 2, 3):
        gradient = torch.empty_like(x)
        results.append((_cpu.photometric(x, y, keep, 0.2, gradient, threads), gradient))
    assert all(loss == results[0][0] and torch.equal(g, results[0][1]) for loss, g in results)


def test_what_the_mask_excludes_has_no_say() -> None:
    x, y, keep = images(40, 50, True)
    assert keep is not None
    other = torch.where(keep[..., None], x, 1 - x)
    assert float(photometric_loss_cpu(x, y, keep, 0.2)) == float(photometric_loss_cpu(other, y, keep, 0.2))


def test_sizes_that_differ_are_one_error() -> None:
    x, y, _ = images(4, 7, False)
    with pytest.raises(UsageError, match="of one size"):
        photometric_loss_cpu(x, y[:3], None, 0.2)
    with pytest.raises(UsageError, match="of one size"):
        photometric_loss_cpu(x, y, torch.ones(3, 7, dtype=torch.bool), 0.2)
    with pytest.raises(UsageError, match="ssim_weight"):
        photometric_loss_cpu(x, y, None, 1.5)
