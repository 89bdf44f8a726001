# SPDX-License-Identifier: Apache-2.0
"""The oracle of the rasterisers: every Gaussian against every pixel, in float64 and differentiable by autograd.

Model: EWA splatting (Zwicker et al. 2001) as in 3DGS (Kerbl et al. 2023), with the constants of gsplat's classic
mode. It is slow by design: no tiles, no bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from real2sim.sim.render.harmonics import harmonics_basis

BLUR_PX2 = 0.3  # variance of the low-pass filter [px^2]
ALPHA_MAX = 0.999
ALPHA_MIN = 1 / 255
TRANSMITTANCE_MIN = 1e-4  # a Gaussian that would bring a pixel to this or below ends the pixel and is not blended
FRUSTUM_MARGIN = 0.3  # the Jacobian is taken at most this share of the half field of view outside the image
FAR = 1e10
PIXELS_AT_ONCE = 2048  # bounds the memory of the dense pixel x Gaussian arrays


@dataclass
class Projection:
    """V visible Gaussians in one image, nearest first. index: row in the input, [V]; means2d [px], [V, 2];
    conics: inverse 2D covariance [1/px^2], [V, 2, 2]; depths: z in the camera [V]; colours [V, 3]; opacities [V]."""

    index: Tensor
    means2d: Tensor
    conics: Tensor
    depths: Tensor
    colours: Tensor
    opacities: Tensor


def quats_to_matrices(quats: Tensor) -> Tensor:
    """Rotation matrices [N, 3, 3] of quaternions wxyz [N, 4] of any norm but zero."""
    w, x, y, z = torch.unbind(quats / quats.norm(dim=-1, keepdim=True), -1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def projection_jacobian(points: Tensor, K: Tensor, width: int, height: int) -> Tensor:
    """d(pixel)/d(camera point) [N, 2, 3] at points [N, 3], clamped to the widened frustum."""
    x, y, z = points.unbind(-1)
    fx, fy, cx, cy = K[0, 0], K[1, 1], K[0, 2], K[1, 2]
    margin_x, margin_y = FRUSTUM_MARGIN * 0.5 * width / fx, FRUSTUM_MARGIN * 0.5 * height / fy
    slope_x = torch.clamp(x / z, -(cx / fx + margin_x), (width - cx) / fx + margin_x)
    slope_y = torch.clamp(y / z, -(cy / fy + margin_y), (height - cy) / fy + margin_y)
    zero = torch.zeros_like(z)
    return torch.stack(
        [torch.stack([fx / z, zero, -fx * slope_x / z], -1), torch.stack([zero, fy / z, -fy * slope_y / z], -1)], -2
    )


def harmonics_colours(sh: Tensor, directions: Tensor, sh_degree: int) -> Tensor:
    """Colours [N, 3], at least 0, of coefficients [N, K, 3] seen along directions [N, 3] (camera to Gaussian)."""
    d = directions / directions.norm(dim=-1, keepdim=True)
    basis = torch.stack(harmonics_basis(*d.unbind(-1), sh_degree), -1)
    return torch.clamp((basis[..., None] * sh[:, : basis.shape[-1]]).sum(-2) + 0.5, min=0)


def project(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh: Tensor,
    viewmat: Tensor,
    K: Tensor,
    width: int,
    height: int,
    *,
    sh_degree: int,
    near: float,
    far: float = FAR,
    antialiased: bool = False,
) -> Projection:
    """Project Gaussians (activated values) into one camera; those with values that are not finite are left out.

    antialiased: opacities are scaled by sqrt(det S / det (S + BLUR_PX2 I)) (Yu et al., Mip-Splatting, 2024, eq. 9).
    """
    R, t = viewmat[:3, :3], viewmat[:3, 3]
    used = sh[:, : (sh_degree + 1) ** 2].flatten(1)
    rows = torch.cat([means, quats, scales, opacities[:, None], used], 1).detach()
    z = (means @ R.T + t)[:, 2]
    keep = rows.isfinite().all(1) & (quats.norm(dim=-1) > 0) & (z >= near) & (z <= far) & (opacities >= ALPHA_MIN)
    index = torch.nonzero(keep)[:, 0]
    index = index[torch.sort(z[index], stable=True).indices]
    means, quats, scales, opacities, sh = (v[index] for v in (means, quats, scales, opacities, sh))
    points = means @ R.T + t
    J = projection_jacobian(points, K, width, height)
    half = J @ R @ (quats_to_matrices(quats) * scales[:, None, :])
    sharp = half @ half.transpose(-1, -2)
    covariance = sharp + BLUR_PX2 * torch.eye(2, dtype=means.dtype, device=means.device)
    if antialiased:
        opacities = opacities * torch.sqrt(torch.clamp(torch.linalg.det(sharp) / torch.linalg.det(covariance), min=0))
    return Projection(
        index=index,
        means2d=points[:, :2] / points[:, 2:] * K.diagonal()[:2] + K[:2, 2],
        conics=torch.linalg.inv(covariance),
        depths=points[:, 2],
        colours=harmonics_colours(sh, means + R.T @ t, sh_degree),
        opacities=opacities,
    )


def pixel_centres(width: int, height: int, dtype: torch.dtype) -> Tensor:
    """Pixel centres [H * W, 2], row by row: the centre of the first pixel is (0.5, 0.5)."""
    y, x = torch.meshgrid(
        torch.arange(height, dtype=dtype) + 0.5, torch.arange(width, dtype=dtype) + 0.5, indexing="ij"
    )
    return torch.stack([x.flatten(), y.flatten()], -1)


def exponents(gaussians: Projection, pixels: Tensor) -> Tensor:
    """Half the squared Mahalanobis distance [P, V] of pixel centres [P, 2] from the projected Gaussians."""
    dx, dy = (pixels[:, None, :] - gaussians.means2d).unbind(-1)
    conics = gaussians.conics
    return 0.5 * (conics[:, 0, 0] * dx * dx + conics[:, 1, 1] * dy * dy) + conics[:, 0, 1] * dx * dy


def blend_weights(gaussians: Projection, pixels: Tensor, limits: Tensor | None = None) -> Tensor:
    """Weights [P, V] of front-to-back alpha blending at pixel centres [P, 2], of what is nearer than limits [P]."""
    alpha = torch.clamp(gaussians.opacities * torch.exp(-exponents(gaussians, pixels)), max=ALPHA_MAX)
    alpha = torch.where(alpha >= ALPHA_MIN, alpha, 0.0)
    if limits is not None:
        alpha = torch.where(gaussians.depths < limits[:, None], alpha, 0.0)
    alpha = torch.where(torch.cumprod(1 - alpha.detach(), -1) > TRANSMITTANCE_MIN, alpha, 0.0)
    through = torch.cumprod(1 - alpha, -1)
    return alpha * torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], -1)


def rasterize_reference(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh: Tensor,
    viewmat: Tensor,
    K: Tensor,
    width: int,
    height: int,
    *,
    sh_degree: int,
    background: Tensor | None = None,
    near: float = 0.01,
    depth_limit: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One camera: rgb [H, W, 3], depth [H, W] = sum(w z) / sum(w) (0 where nothing is blended), alpha [H, W].

    depth_limit [H, W]: z from which on nothing is blended. Shapes and activation as in `rasterize`; every input is
    taken to float64 first, and so are the outputs.
    """
    means, quats, scales, opacities, sh, viewmat, K = (
        v.double() for v in (means, quats, scales, opacities, sh, viewmat, K)
    )
    gaussians = project(means, quats, scales, opacities, sh, viewmat, K, width, height, sh_degree=sh_degree, near=near)
    values = torch.cat([gaussians.colours, gaussians.depths[:, None], torch.ones_like(gaussians.depths)[:, None]], 1)
    chunks = pixel_centres(width, height, means.dtype).split(PIXELS_AT_ONCE)
    limit = torch.full((height, width), torch.inf) if depth_limit is None else depth_limit
    limits = limit.to(means).flatten().split(PIXELS_AT_ONCE)
    sums = torch.cat([blend_weights(gaussians, p, limit) @ values for p, limit in zip(chunks, limits, strict=True)])
    sums = sums.reshape(height, width, 5)
    rgb, alpha = sums[..., :3], sums[..., 4]
    depth = torch.where(alpha > 0, sums[..., 3] / torch.where(alpha > 0, alpha, 1.0), 0.0)
    if background is not None:
        rgb = rgb + (1 - alpha)[..., None] * background.double()
    return rgb, depth, alpha
