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

WINDOW_PX = 11  # side of the Gaussian window and its sigma, Wang et al. 2004
WINDOW_SIGMA_PX = 1.5
C1, C2 = 0.01**2, 0.03**2  # stabilisers of SSIM for values in [0, 1]


def _window() -> np.ndarray:
    x = np.arange(WINDOW_PX) - WINDOW_PX // 2
    g = np.exp(-0.5 * (x / WINDOW_SIGMA_PX) ** 2)
    return g / g.sum()


def blur(maps: Tensor) -> Tensor:
    """Gaussian-window average of maps [H, W, M] with zeros outside, which makes it its own adjoint.

    OpenCV's separable filter on the CPU (8 ms for 15 maps of 640x480 where torch's convolutions need 80-400 ms),
    a depthwise convolution on CUDA.
    """
    if maps.is_cuda:
        taps = torch.as_tensor(_window(), dtype=maps.dtype, device=maps.device)
        count = maps.shape[-1]
        x = maps.permute(2, 0, 1)[None]
        pad = WINDOW_PX // 2
        x = torch.nn.functional.conv2d(x, taps.expand(count, 1, 1, -1), padding=(0, pad), groups=count)
        x = torch.nn.functional.conv2d(x, taps[:, None].expand(count, 1, -1, 1), padding=(pad, 0), groups=count)
        return x[0].permute(1, 2, 0)
    g = _window()
    out = cv2.sepFilter2D(np.ascontiguousarray(maps.numpy()), -1, g, g, borderType=cv2.BORDER_CONSTANT)
    return torch.from_numpy(out.reshape(maps.shape))


def _ssim_terms(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """SSIM map [H, W, 3] of x against y, and its partial derivatives by blur(x), blur(x y), blur(x x)."""
    mx, my, xx, yy, xy = blur(x), blur(y), blur(x * x), blur(y * y), blur(x * y)
    a1, a2 = 2 * mx * my + C1, 2 * (xy - mx * my) + C2
    b1, b2 = mx * mx + my * my + C1, xx - mx * mx + yy - my * my + C2
    inverse = 1 / (b1 * b2)
    ssim = a1 * a2 * inverse
    by_mean = 2 * my * (a2 - a1) * inverse + 2 * mx * ssim * (1 / b2 - 1 / b1)
    return ssim, by_mean, 2 * a1 * inverse, -ssim / b2


class _PhotometricLoss(torch.autograd.Function):
    """(1 - weight) mean|x - y| + weight (1 - mean SSIM(x, y)); the gradient is made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, rgb: Tensor, target: Tensor, keep: Tensor | None, weight: float) -> Tensor:
        x, y = (rgb, target) if keep is None else (rgb * keep[..., None], target * keep[..., None])
        share = 1.0 / (x.numel() if keep is None else 3 * int(keep.sum()))
        difference = x - y
        loss = (1 - weight) * share * difference.abs().sum()
        gradient = (1 - weight) * share * difference.sign()
        if weight > 0:
            ssim, by_mean, by_xy, by_xx = _ssim_terms(x, y)
            if keep is not None:
                ssim, by_mean, by_xy, by_xx = (m * keep[..., None] for m in (ssim, by_mean, by_xy, by_xx))
            loss = loss + weight * (1 - share * ssim.sum())
            gradient -= weight * share * (blur(by_mean) + y * blur(by_xy) + 2 * x * blur(by_xx))
        if keep is not None:
            gradient = gradient * keep[..., None]
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0], None, None, None


def photometric_loss(rgb: Tensor, target: Tensor, keep: Tensor | None, ssim_weight: float) -> Tensor:
    """Training loss of Kerbl et al. 2023, (1 - w) L1 + w (1 - SSIM), as a scalar tensor.

    rgb, target: [H, W, 3] in [0, 1]; keep: [H, W] bool, False where the photo says nothing (None: all say something).
    """
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
    edge = WINDOW_PX // 2
    inner = (slice(edge, -edge), slice(edge, -edge))
    values = _ssim_terms(x, y)[0][inner]
    return float((values if keep is None else values[keep[inner]]).mean())
