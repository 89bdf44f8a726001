# SPDX-License-Identifier: Apache-2.0
"""Differentiable rasterisation of 3D Gaussians: one interface over the CPU, gsplat and reference rasterisers.

All three follow the classic mode of 3DGS (Kerbl et al. 2023): 0.3 px^2 low-pass filter, alpha at most 0.999, alphas
below 1/255 skipped, a pixel ends before its transmittance reaches 1e-4.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real2sim.errors import BackendError, TransientError, UsageError
from real2sim.sim.cameras import Camera
from real2sim.sim.render import _cpu
from real2sim.sim.render.reference import rasterize_reference
from real2sim.sim.render.splat import Splat

Backend = Literal["auto", "cpu", "gsplat", "reference"]
GSPLAT_HOW_TO = "Install it beside a CUDA build of PyTorch (pip install 'real2sim[gpu]') or use backend 'cpu'."


def rasterize(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    *,
    sh_degree: int,
    background: Tensor | None = None,
    near: float = 0.01,
    backend: Backend = "cpu",
    threads: int | None = None,
    means2d_norm: Tensor | None = None,
    depth_limit: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Render N Gaussians into C cameras; differentiable in all Gaussian arguments and the background.

    means [N, 3]; quats [N, 4] wxyz, any norm but zero; scales [N, 3] and opacities [N], activated; sh [N, K, 3], of
    which the first (sh_degree + 1)^2 coefficients are used; viewmats [C, 4, 4] world to camera (OpenCV axes); Ks
    [C, 3, 3] px, without skew; background [3] or [C, 3], black if None; near [unit of the means].
    Returns rgb [C, H, W, 3]; depth [C, H, W] = sum(w z) / sum(w), 0 where nothing is blended; alpha [C, H, W].
    A Gaussian with a value that is not finite, or a zero quaternion, is not drawn and gets a zero gradient ("cpu"
    and "reference"). threads and means2d_norm concern "cpu" only: threads is all processors by default and changes no
    bit of the result; means2d_norm [N] receives, in the backward pass, the norm of the gradient of the projected
    centre [1/px], summed over cameras. depth_limit [C, H, W] ("cpu" and "reference"): z from which on nothing is
    blended, infinite where there is no limit: what stands in front of an opaque surface. Gradients of viewmats exist
    with "gsplat" and "reference".
    """
    _check_shapes(means, quats, scales, opacities, sh, viewmats, Ks, width, height, sh_degree, background)
    if backend == "auto":
        backend = available_backend()[0]
    if background is None:
        background = torch.zeros(3, dtype=means.dtype, device=means.device)
    backgrounds = background.expand(len(viewmats), 3)
    gaussians = (means, quats, scales, opacities, sh)
    _check_options(len(means), (len(viewmats), height, width), backend, means2d_norm, depth_limit)
    if backend == "cpu":
        options = (width, height, sh_degree, near, threads, means2d_norm, depth_limit)
        return _rasterize_cpu(gaussians, viewmats, Ks, backgrounds, options)
    if backend == "gsplat":
        return _rasterize_gsplat(gaussians, viewmats, Ks, backgrounds, width, height, sh_degree, near)
    if backend == "reference":
        return _rasterize_reference(
            gaussians, viewmats, Ks, backgrounds, depth_limit, (width, height), sh_degree=sh_degree, near=near
        )
    raise UsageError(f"A backend is 'auto', 'cpu', 'gsplat' or 'reference', received {backend!r}.")


def render(
    splat: Splat,
    camera: Camera,
    *,
    background: Sequence[float] = (0, 0, 0),
    backend: Backend = "auto",
    depth_limit: NDArray[Any] | None = None,
) -> dict[str, NDArray[np.float32]]:
    """One view without gradients: {"rgb" [H, W, 3], "depth" [H, W], "alpha" [H, W]}, float32 numpy.

    depth_limit [H, W]: as in `rasterize`; backend "auto" is then "cpu".
    """
    if backend == "auto":
        backend = "cpu" if depth_limit is not None else available_backend()[0]
    device = "cuda" if backend == "gsplat" else "cpu"
    means, quats, scales, opacities, sh = (torch.as_tensor(v, device=device) for v in _activated(splat))
    viewmats, Ks = (v.to(device) for v in _camera_tensors(camera))
    colour = torch.tensor(background, dtype=torch.float32, device=device)
    with torch.no_grad():
        images = rasterize(
            *(means, quats, scales, opacities, sh, viewmats, Ks),
            camera.width,
            camera.height,
            sh_degree=splat.sh_degree,
            background=colour,
            backend=backend,
            depth_limit=None if depth_limit is None else torch.as_tensor(depth_limit, dtype=torch.float32)[None],
        )
    return {k: v[0].float().cpu().numpy() for k, v in zip(("rgb", "depth", "alpha"), images, strict=True)}


def contributions(
    splat: Splat, camera: Camera, *, threads: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What each Gaussian adds to a view: its blend weight summed over the image [N], and its largest weight [N]."""
    total, largest, _ = _contributions(splat, camera, threads)
    return total, largest


def top_gaussian(splat: Splat, camera: Camera, *, threads: int | None = None) -> NDArray[np.int32]:
    """Per pixel, the row of the Gaussian with the largest blend weight [H, W]; -1 where nothing is blended."""
    return _contributions(splat, camera, threads)[2]


@functools.cache
def available_backend() -> tuple[Literal["cpu", "gsplat"], str]:
    """The fastest backend that renders one Gaussian here, and why: found by doing it."""
    try:
        _render_one_gaussian()
    except BackendError as error:
        return "cpu", str(error)
    return "gsplat", f"gsplat runs on {torch.cuda.get_device_name()}"


def default_threads() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_shapes(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    sh_degree: int,
    background: Tensor | None,
) -> None:
    n, c = len(means), len(viewmats)
    shapes = {
        "means": (means, (n, 3)),
        "quats": (quats, (n, 4)),
        "scales": (scales, (n, 3)),
        "opacities": (opacities, (n,)),
        "viewmats": (viewmats, (c, 4, 4)),
        "Ks": (Ks, (c, 3, 3)),
    }
    for name, (tensor, shape) in shapes.items():
        if tuple(tensor.shape) != shape:
            raise UsageError(f"rasterize needs {name} of shape {shape}, received {tuple(tensor.shape)}.")
    if not 0 <= sh_degree <= 3:
        raise UsageError(f"sh_degree is 0, 1, 2 or 3, received {sh_degree}.")
    if sh.ndim != 3 or sh.shape[0] != n or sh.shape[1] < (sh_degree + 1) ** 2 or sh.shape[2] != 3:
        raise UsageError(
            f"rasterize needs sh of shape ({n}, K, 3) with K >= {(sh_degree + 1) ** 2} for degree {sh_degree}, "
            f"received {tuple(sh.shape)}."
        )
    if width < 1 or height < 1:
        raise UsageError(f"An image has at least one pixel, received {width} x {height}.")
    if background is not None and tuple(background.shape) not in {(3,), (c, 3)}:
        raise UsageError(f"background has shape (3,) or ({c}, 3), received {tuple(background.shape)}.")


def _check_options(
    count: int,
    shape: tuple[int, int, int],
    backend: Backend,
    means2d_norm: Tensor | None,
    depth_limit: Tensor | None,
) -> None:
    if means2d_norm is not None and backend != "cpu":
        raise UsageError(f"means2d_norm is filled by backend 'cpu' only, received backend {backend!r}.")
    if means2d_norm is not None and tuple(means2d_norm.shape) != (count,):
        raise UsageError(f"means2d_norm has shape {(count,)}, received {tuple(means2d_norm.shape)}.")
    if depth_limit is not None and backend == "gsplat":
        raise UsageError("depth_limit needs backend 'cpu' or 'reference': gsplat has none.")
    if depth_limit is not None and tuple(depth_limit.shape) != shape:
        raise UsageError(f"depth_limit has shape {shape}, received {tuple(depth_limit.shape)}.")


def _rasterize_reference(
    gaussians: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    viewmats: Tensor,
    Ks: Tensor,
    backgrounds: Tensor,
    depth_limit: Tensor | None,
    size: tuple[int, int],
    *,
    sh_degree: int,
    near: float,
) -> tuple[Tensor, Tensor, Tensor]:
    limits = [None] * len(viewmats) if depth_limit is None else list(depth_limit)
    images = [
        rasterize_reference(*gaussians, V, K, *size, sh_degree=sh_degree, background=b, near=near, depth_limit=limit)
        for V, K, b, limit in zip(viewmats, Ks, backgrounds, limits, strict=True)
    ]
    rgb, depth, alpha = zip(*images, strict=True)
    return torch.stack(rgb), torch.stack(depth), torch.stack(alpha)


def _rasterize_cpu(
    gaussians: tuple[Tensor, ...], viewmats: Tensor, Ks: Tensor, backgrounds: Tensor, options: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    for tensor in (*gaussians, viewmats, Ks, backgrounds):
        if tensor.device.type != "cpu":
            raise UsageError(f"Backend 'cpu' needs tensors on the CPU, received one on {tensor.device}.")
    if viewmats.requires_grad or Ks.requires_grad:
        raise UsageError("Backend 'cpu' has no gradient of viewmats and Ks: use 'reference' or 'gsplat', or detach.")
    if not bool(torch.isfinite(viewmats).all() and torch.isfinite(Ks).all()):
        raise UsageError("rasterize needs finite viewmats and Ks: a camera pose or intrinsic is NaN or infinite.")
    if not bool((Ks[:, (0, 1), (0, 1)] > 0).all()):
        raise UsageError(f"rasterize needs positive focal lengths, received {Ks[:, (0, 1), (0, 1)].tolist()}.")
    if bool(Ks[:, 0, 1].any()):
        raise UsageError(f"rasterize needs Ks without skew, received {Ks[:, 0, 1].tolist()} at [0, 1].")
    return _CpuRasterize.apply(*(v.float() for v in gaussians), backgrounds.float(), viewmats, Ks, options)


def _forward_cpu(*args: Any, **outputs: Any) -> Any:
    """The native forward pass, with the package's errors."""
    try:
        return _cpu.forward(*args, **outputs)
    except ValueError as error:
        raise UsageError(f"The CPU rasteriser cannot draw this: {error}") from error
    except MemoryError as error:
        raise TransientError(
            "The CPU rasteriser ran out of memory: render a smaller image or fewer Gaussians."
        ) from error


class _CpuRasterize(torch.autograd.Function):
    """The native rasteriser; one frame a camera is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        gaussians = tuple(v.detach().contiguous() for v in args[:5])
        backgrounds, viewmats, Ks, options = args[5:]
        width, height, sh_degree, near, threads, means2d_norm, depth_limit = options
        rgb = torch.empty(len(viewmats), height, width, 3)
        depth, alpha = torch.empty(rgb.shape[:3]), torch.empty(rgb.shape[:3])
        frames = []
        for c in range(len(viewmats)):
            frame = _forward_cpu(
                *gaussians,
                sh_degree,
                viewmats[c].detach().double().contiguous(),
                Ks[c].detach().double().contiguous(),
                near,
                backgrounds[c].tolist(),
                rgb[c],
                depth[c],
                alpha[c],
                threads or default_threads(),
                depth_limit=None if depth_limit is None else depth_limit[c].float().contiguous(),
            )
            frames.append(frame)
        ctx.set_materialize_grads(False)
        if any(ctx.needs_input_grad):
            ctx.frames, ctx.sh_degree, ctx.means2d_norm = frames, sh_degree, means2d_norm
            ctx.save_for_backward(*gaussians, depth, alpha)
        return rgb, depth, alpha

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        *gaussians, depth, alpha = ctx.saved_tensors
        v_rgb, v_depth, v_alpha = (None if v is None else v.float().contiguous() for v in upstream)
        if v_rgb is None:
            v_rgb = torch.zeros(*depth.shape, 3)
        gradients = [torch.empty_like(v) if len(ctx.frames) else torch.zeros_like(v) for v in gaussians]
        norm = None if ctx.means2d_norm is None else torch.zeros(len(gaussians[0]))
        for c, frame in enumerate(ctx.frames):
            frame.backward(
                *gaussians,
                ctx.sh_degree,
                depth[c],
                v_rgb[c],
                None if v_depth is None else v_depth[c],
                None if v_alpha is None else v_alpha[c],
                *gradients,
                norm,
                accumulate=c > 0,
            )
        if norm is not None:
            ctx.means2d_norm.copy_(norm)
        v_background = None
        if ctx.needs_input_grad[5]:
            v_background = ((1 - alpha)[..., None] * v_rgb).sum((1, 2))
        return (*gradients, v_background, None, None, None)


def _rasterize_gsplat(
    gaussians: tuple[Tensor, ...],
    viewmats: Tensor,
    Ks: Tensor,
    backgrounds: Tensor,
    width: int,
    height: int,
    sh_degree: int,
    near: float,
) -> tuple[Tensor, Tensor, Tensor]:
    rasterization = _import_gsplat()
    if gaussians[0].device.type != "cuda":
        raise UsageError(f"Backend 'gsplat' needs tensors on a CUDA device, received one on {gaussians[0].device}.")
    colours, alphas, _ = rasterization(
        *gaussians,
        viewmats,
        Ks,
        width,
        height,
        near_plane=near,
        sh_degree=sh_degree,
        packed=False,
        backgrounds=backgrounds,
        render_mode="RGB+D",
        rasterize_mode="classic",
    )
    alpha = alphas[..., 0]
    depth = torch.where(alpha > 0, colours[..., 3] / torch.where(alpha > 0, alpha, 1.0), 0.0)
    return colours[..., :3], depth, alpha


def _import_gsplat() -> Any:
    if not torch.cuda.is_available():
        raise BackendError(f"Backend 'gsplat' needs a CUDA device, and PyTorch finds none. {GSPLAT_HOW_TO}")
    try:
        from gsplat import rasterization
    except ImportError as error:
        raise BackendError(f"Backend 'gsplat' needs the package gsplat ({error}). {GSPLAT_HOW_TO}") from error
    return rasterization


def _render_one_gaussian() -> None:
    """Raise BackendError unless gsplat draws one Gaussian (its kernels may still have to be compiled)."""
    _import_gsplat()
    one = Splat(
        *(np.array(v, np.float32) for v in ([[0, 0, 2]], [[1, 0, 0, 0]], [[-2] * 3], [2], [[[1] * 3]])), _no_sh()
    )
    camera = Camera("probe", 8, 8, np.array([[8.0, 0, 4], [0, 8, 4], [0, 0, 1]]), np.eye(4))
    try:
        alpha = render(one, camera, backend="gsplat")["alpha"]
    except Exception as error:  # whatever the driver, the compiler or the extension raises
        raise BackendError(f"Backend 'gsplat' cannot render here ({error}). {GSPLAT_HOW_TO}") from error
    if not alpha[4, 4] > 0.5:
        raise BackendError(f"Backend 'gsplat' draws one Gaussian wrongly (alpha {alpha[4, 4]}). {GSPLAT_HOW_TO}")


def _no_sh() -> NDArray[np.float32]:
    return np.zeros((1, 0, 3), np.float32)


def _activated(splat: Splat) -> tuple[NDArray[np.float32], ...]:
    return splat.means, splat.quats, splat.scales, splat.opacities, splat.sh


def _camera_tensors(camera: Camera) -> tuple[Tensor, Tensor]:
    """viewmats [1, 4, 4] and Ks [1, 3, 3], float32."""
    if any(camera.distortion):
        raise UsageError(f"Camera {camera.name!r} has distortion {camera.distortion}: undistort its image first.")
    as_tensor = functools.partial(torch.as_tensor, dtype=torch.float32)
    return as_tensor(camera.viewmat)[None], as_tensor(camera.K)[None]


def _contributions(
    splat: Splat, camera: Camera, threads: int | None
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
    size = (camera.height, camera.width)
    total, largest = np.empty(len(splat), np.float32), np.empty(len(splat), np.float32)
    top = np.empty(size, np.int32)
    viewmats, Ks = _camera_tensors(camera)
    _forward_cpu(
        *_activated(splat),
        splat.sh_degree,
        viewmats[0].double(),
        Ks[0].double(),
        0.01,
        [0.0, 0.0, 0.0],
        np.empty((*size, 3), np.float32),
        np.empty(size, np.float32),
        np.empty(size, np.float32),
        threads or default_threads(),
        weight_sum=total,
        weight_max=largest,
        top=top,
    )
    return total, largest, top
