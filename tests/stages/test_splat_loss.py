# SPDX-License-Identifier: Apache-2.0
"""The training loss and the metrics, against finite differences, against another implementation, and under masks."""

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from real2sim.stages.splat_loss import photometric_loss, photometric_loss_torch, psnr, ssim

SSIM_TOLERANCE = 1e-5  # float32 windows against the other implementation's
LOSS_TOLERANCE = 1e-4  # relative, of float32 sums over windows
SSIM_WEIGHT = 0.2


@pytest.fixture
def pictures() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two unlike pictures in float64 and a mask that keeps two thirds."""
    torch.manual_seed(3)
    rgb, target = torch.rand(18, 21, 3).double(), torch.rand(18, 21, 3).double()
    return rgb, (target + rgb) / 2, torch.rand(18, 21) > 1 / 3


@pytest.mark.parametrize("masked", [False, True])
def test_gradient_equals_finite_differences(pictures, masked):
    rgb, target, keep = pictures
    rgb.requires_grad_(True)
    mask = keep if masked else None
    assert torch.autograd.gradcheck(lambda x: photometric_loss_torch(x, target, mask, SSIM_WEIGHT), rgb)


@pytest.mark.parametrize("masked", [False, True])
def test_native_and_torch_losses_agree(pictures, masked):
    rgb, target, keep = pictures
    mask = keep if masked else None
    results = []
    for loss_of in (photometric_loss, photometric_loss_torch):
        x = rgb.float().requires_grad_(True)
        loss = loss_of(x, target.float(), mask, SSIM_WEIGHT)
        loss.backward()
        results.append((float(loss.detach()), x.grad))
    (native, native_slope), (torch_, torch_slope) = results
    assert native == pytest.approx(torch_, rel=LOSS_TOLERANCE)
    assert torch.allclose(native_slope, torch_slope, atol=LOSS_TOLERANCE * float(torch_slope.abs().max()))


def test_equal_pictures_have_no_loss(pictures):
    rgb, _, keep = pictures
    assert float(photometric_loss(rgb, rgb, keep, SSIM_WEIGHT)) == pytest.approx(0, abs=LOSS_TOLERANCE)
    assert ssim(rgb, rgb) == pytest.approx(1)


def test_ssim_agrees_with_another_implementation():
    rng = np.random.default_rng(0)
    a = rng.uniform(size=(40, 50, 3)).astype(np.float32)
    b = np.clip(a + rng.normal(0, 0.1, a.shape), 0, 1).astype(np.float32)
    expected = structural_similarity(
        a, b, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0, channel_axis=-1
    )
    assert ssim(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(float(expected), abs=SSIM_TOLERANCE)


def test_psnr_of_a_known_error():
    target = torch.full((4, 4, 3), 0.5)
    assert psnr(target + 0.1, target) == pytest.approx(20, abs=1e-4)


def test_masked_pixels_have_no_say(pictures):
    rgb, target, keep = pictures
    other_rgb, other_target = rgb.clone(), target.clone()
    other_rgb[~keep] = 0.9
    other_target[~keep] = torch.rand_like(other_target[~keep])
    for compare in (
        lambda x, y: float(photometric_loss(x, y, keep, SSIM_WEIGHT)),
        lambda x, y: psnr(x, y, keep),
        lambda x, y: ssim(x, y, keep),
    ):
        assert compare(rgb, target) == compare(other_rgb, other_target)
    rgb.requires_grad_(True)
    photometric_loss(rgb, target, keep, SSIM_WEIGHT).backward()
    assert rgb.grad is not None
    assert (rgb.grad[~keep] == 0).all() and (rgb.grad[keep] != 0).any()
