# SPDX-License-Identifier: Apache-2.0
"""What a render is compared with a photo by: PSNR, SSIM, and the training loss with its gradient in closed form.

Pixels that a mask excludes are black in both before anything is compared, so that what the photo shows there has no
say, not even through a window that overlaps it; averages run over the pixels that are kept.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from real2sim.sim.render.photometric import photometric_loss_cpu

WINDOW_PX = 11  # side of the Gaussian window and its sigma, Wang et al. 2004
WINDOW_SIGMA_PX = 1.5
REACH = WINDOW_PX // 2
C1, C2 = 0.01**2, 0.03**2  # stabilisers of SSIM for values in [0, 1]


def _window() -> np.ndarray:
    x = np.arange(WINDOW_PX) - WINDOW_PX // 2
    g = np.exp(-0.5 * (x / WINDOW_SIGMA_PX) ** 2)
    return g / g.sum()


def blur(maps: Tensor) -> Tensor:
    """Gaussian-window average of maps [H, W, M] with zeros outside, which makes it its own adjoint.

    OpenCV's separable filter on the CPU (1 ms for 3 maps of 640x480, where torch's convolutions need 16 or more), a
    depthwise convolution on CUDA.
    """
    if maps.is_cuda:
        taps = torch.as_tensor(_window(), dtype=maps.dtype, device=maps.device)
        count = maps.shape[-1]
        x = maps.permute(2, 0, 1)[None]
        pad = WINDOW_PX // 2
        x = torch.nn.functional.conv2d(x, taps.expand(count, 1, 1, -1), padding=(0, pad), groups=count)
        x = torch.nn.functional.conv2d(x, taps[:, None].expand(count, 1, -1, 1), padding=(pad, 0), groups=count)
        return x[0].permute(1, 2, 0).contiguous()
    g = _window()
    out = cv2.sepFilter2D(np.ascontiguousarray(maps.numpy()), -1, g, g, borderType=cv2.BORDER_CONSTANT)
    return torch.from_numpy(out.reshape(maps.shape))


def _ssim_terms(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """SSIM map [H, W, 3] of x against y, and its derivatives by blur(x), blur(x y) and, negated, blur(x x).

    In place where it can be: on a CPU, mapping fresh memory costs as much as the arithmetic.
    """
    mx, my, a2, b2 = blur(x), blur(y), blur(x * y), blur(x * x)
    mx_my, mx_mx, my_my = mx * my, mx * mx, my * my
    a2.sub_(mx_my).mul_(2).add_(C2)
    b2.add_(blur(y * y)).sub_(mx_mx).sub_(my_my).add_(C2)
    a1 = mx_my.mul_(2).add_(C1)
    b1 = mx_mx.add_(my_my).add_(C1)
    inverse = (b1 * b2).reciprocal_()
    ssim = (a1 * a2).mul_(inverse)
    by_mean = (a2 - a1).mul_(my).add_((b1 - b2).mul_(ssim).mul_(mx)).mul_(inverse).mul_(2)
    return ssim, by_mean, a1.mul_(inverse).mul_(2), b2.reciprocal_().mul_(ssim)


class _PhotometricLoss(torch.autograd.Function):
    """(1 - weight) mean|x - y| + weight (1 - mean SSIM(x, y)); the gradient is made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, rgb: Tensor, target: Tensor, keep: Tensor | None, weight: float) -> Tensor:
        kept = None if keep is None else keep[..., None]
        x, y = (rgb, target) if kept is None else (rgb * kept, target * kept)
        share = 1.0 / (x.numel() if keep is None else 3 * int(keep.sum()))
        difference = x - y
        loss = (1 - weight) * share * difference.abs().sum()
        gradient = difference.sign_().mul_((1 - weight) * share)
        if weight > 0:
            ssim_map, *partials = _ssim_terms(x, y)
            if kept is not None:
                ssim_map, *partials = (m * kept for m in (ssim_map, *partials))
            loss = loss + weight * (1 - share * ssim_map.sum())
            by_mean, by_xy, minus_by_xx = (blur(m) for m in partials)
            slope = by_mean.add_(by_xy.mul_(y)).sub_(minus_by_xx.mul_(x).mul_(2))
            gradient.sub_(slope, alpha=weight * share)
        ctx.save_for_backward(gradient if kept is None else gradient.mul_(kept))
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0], None, None, None


def photometric_loss(rgb: Tensor, target: Tensor, keep: Tensor | None, ssim_weight: float) -> Tensor:
    """Training loss of Kerbl et al. 2023, (1 - w) L1 + w (1 - SSIM), as a scalar tensor.

    rgb, target: [H, W, 3] in [0, 1]; keep: [H, W] bool, False where the photo says nothing (None: all say something).
    The native loss on the CPU, torch's operators on CUDA.
    """
    if rgb.is_cuda:
        return photometric_loss_torch(rgb, target, keep, ssim_weight)
    return photometric_loss_cpu(rgb, target, keep, ssim_weight)


def photometric_loss_torch(rgb: Tensor, target: Tensor, keep: Tensor | None, ssim_weight: float) -> Tensor:
    """The same by torch's operators, for any device and floating type."""
    return _PhotometricLoss.apply(rgb, target, keep, ssim_weight)  # type: ignore[no-untyped-call]


def psnr(rgb: Tensor, target: Tensor, keep: Tensor | None = None) -> float:
    """Peak signal-to-noise ratio [dB] over the kept pixels; rgb is clipped to [0, 1] as a display would."""
    squared = (rgb.clamp(0, 1) - target) ** 2
    mse = float((squared if keep is None else squared[keep]).mean())
    return -10 * float(np.log10(max(mse, 1e-10)))


def ssim(rgb: Tensor, target: Tensor, keep: Tensor | None = None) -> float:
    """Mean structural similarity (Wang et al. 2004) over the kept pixels whose window lies inside the image."""
    x, y = rgb.clamp(0, 1), target
    if keep is not None:
        x, y = x * keep[..., None], y * keep[..., None]
    inner = (slice(REACH, -REACH), slice(REACH, -REACH))
    values = _ssim_terms(x, y)[0][inner]
    return float((values if keep is None else values[keep[inner]]).mean())
