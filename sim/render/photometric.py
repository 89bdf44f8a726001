# SPDX-License-Identifier: Apache-2.0
"""The training loss of 3DGS on the CPU, (1 - w) mean|x - y| + w (1 - mean SSIM), natively and with its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from real2sim.errors import UsageError
from real2sim.sim.render import _cpu
from real2sim.sim.render.rasterize import default_threads


def photometric_loss_cpu(
    rgb: Tensor, target: Tensor, keep: Tensor | None, ssim_weight: float, *, threads: int | None = None
) -> Tensor:
    """Loss of rgb [H, W, 3] against target [H, W, 3], values in [0, 1]; a scalar, differentiable in rgb.

    keep [H, W] bool: pixels that count, all if None; the others are black in both images before SSIM is taken. SSIM
    (Wang et al. 2004): an 11 px Gaussian window of sigma 1.5 px, zeros outside the image, mean over kept pixels and
    channels. ssim_weight: w in [0, 1]. The number of threads (all processors by default) changes no bit.
    """
    size = tuple(rgb.shape)
    if rgb.ndim != 3 or size[2] != 3 or tuple(target.shape) != size or (keep is not None and keep.shape != size[:2]):
        received = [size, tuple(target.shape), None if keep is None else tuple(keep.shape)]
        raise UsageError(f"The loss needs rgb and target [H, W, 3] and keep [H, W] of one size, received {received}.")
    if not 0 <= ssim_weight <= 1:
        raise UsageError(f"ssim_weight lies in 0 .. 1, received {ssim_weight}.")
    return _PhotometricLoss.apply(rgb, target, keep, ssim_weight, threads or default_threads())  # type: ignore[no-untyped-call]


class _PhotometricLoss(torch.autograd.Function):
    """The gradient is made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, rgb: Tensor, target: Tensor, keep: Tensor | None, ssim_weight: float, threads: int) -> Tensor:
        x, y = (v.detach().float().contiguous() for v in (rgb, target))
        kept = None if keep is None else keep.bool().contiguous()
        gradient = torch.empty_like(x)
        loss = _cpu.photometric(x, y, kept, ssim_weight, gradient, threads)
        ctx.save_for_backward(gradient)
        return torch.tensor(loss, dtype=rgb.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0], None, None, None, None
