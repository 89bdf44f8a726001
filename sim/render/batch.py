# SPDX-License-Identifier: Apache-2.0
"""Many worlds that share one template of Gaussians, posed by their bodies and drawn in one call.

A template's Gaussians are given in the frames of the bodies that carry them, so a world is only its body poses and
its cameras: memory grows with worlds x bodies, not with worlds x Gaussians. Colours are evaluated in the body's frame,
where the harmonics are constant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real2sim.errors import BackendError, UsageError
from real2sim.sim.render.splat import Splat

if TYPE_CHECKING:
    from real2sim.sim.render.meshes import Meshes

Output = Literal["rgb", "depth", "alpha", "segmentation", "normals"]
OutputType = Literal["uint8", "float16", "float32"]
Precision = Literal["exact", "fast"]
RasterizeMode = Literal["classic", "antialiased"]
CONSTANTS_KEPT = 256  # numbers of calls that stay on the device
NOTHING = -1  # the segmentation where nothing is blended
OUTPUTS: tuple[Output, ...] = get_args(Output)
DTYPES = {"uint8": torch.uint8, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class BatchCameras:
    """Pinhole cameras of a batch, OpenCV axes.

    viewmats: T_cam_world [nworld, ncam, 4, 4], or fixed [ncam, 4, 4] for all worlds; Ks [nworld, ncam, 3, 3] or
    [ncam, 3, 3], without skew, [px]; torch or numpy. Gaussians whose centre lies outside near <= z <= far [m] are left
    out.
    """

    viewmats: Any
    Ks: Any
    width: int
    height: int
    near: float = 0.01
    far: float = 1e10


@dataclass(frozen=True)
class Appearance:
    """How a world's camera answers: rgb is multiplied by gain * tint * 2^exposure, background included.

    gain [nworld] or a number; tint [nworld, 3] or [3]; exposure [stops], [nworld] or a number.
    """

    gain: Any = 1.0
    tint: Any = (1.0, 1.0, 1.0)
    exposure: Any = 0.0


@dataclass(frozen=True)
class BatchRequest:
    """One checked call, all tensors float32 on the renderer's device: what a backend receives.

    body_poses [nworld, nbody, 7]: position [m] and quaternion wxyz in the world; row 0 is the world itself, not read.
    viewmats [1 or nworld, ncam, 4, 4] and Ks [1 or nworld, ncam, 3, 3]: the first axis is 1 where all worlds share
    them. background [nworld, 3]; gain [nworld, 3]: the factor on rgb. meshes: opaque ones among the Gaussians, or None.
    """

    body_poses: Tensor
    viewmats: Tensor
    Ks: Tensor
    width: int
    height: int
    near: float
    far: float
    outputs: tuple[Output, ...]
    dtype: torch.dtype
    background: Tensor
    gain: Tensor
    meshes: Meshes | None = None

    @property
    def nworld(self) -> int:
        return self.body_poses.shape[0]

    @property
    def ncam(self) -> int:
        return self.viewmats.shape[1]


@dataclass(frozen=True)
class Plan:
    """What a call of nworld worlds takes: views drawn at once, working memory and images [bytes]."""

    nworld: int
    views: int
    views_at_once: int
    workspace_bytes: int
    image_bytes: int
    free_bytes: int | None

    def __str__(self) -> str:
        def mib(size: int) -> str:
            return f"{size / 2**20:,.0f} MiB"

        free = "" if self.free_bytes is None else f"; {mib(self.free_bytes)} are free"
        return (
            f"{self.nworld} worlds: {self.views} views, {self.views_at_once} at once; working memory "
            f"{mib(self.workspace_bytes)}, images {mib(self.image_bytes)}{free}"
        )


class BatchBackend(Protocol):
    """A device's rasteriser of one template. `render` returns the asked outputs, each [nworld, ncam, H, W, ...]."""

    def render(self, request: BatchRequest) -> dict[str, Tensor]: ...

    def plan(
        self, nworld: int, ncam: int, width: int, height: int, outputs: tuple[Output, ...], dtype: torch.dtype
    ) -> Plan: ...


class BatchRenderer:
    """Draws nworld copies of a template, each with its own body poses and cameras.

    template: Gaussians, each in the frame of its body; body_ids [N]: that body, 0 = the world. device: "cuda", a CUDA
    device, or "cpu". precision: "exact" blends in float32, "fast" in packed half (CUDA only). rasterize_mode as in
    gsplat: "antialiased" scales opacities by the low-pass filter's loss. Gaussians with a value that is not finite or
    a zero quaternion are never drawn.
    """

    def __init__(
        self,
        template: Splat,
        body_ids: NDArray[Any] | Tensor,
        device: str | torch.device = "cuda",
        *,
        precision: Precision = "exact",
        rasterize_mode: RasterizeMode = "classic",
    ) -> None:
        if precision not in get_args(Precision):
            raise UsageError(f"A precision is 'exact' or 'fast', received {precision!r}.")
        if rasterize_mode not in get_args(RasterizeMode):
            raise UsageError(f"A rasterize mode is 'classic' or 'antialiased', received {rasterize_mode!r}.")
        self.device = torch.device(device)
        self.body_ids = _checked_body_ids(body_ids, len(template))
        self.nbody = int(self.body_ids.max(initial=0)) + 1
        self._constants: dict[Any, Tensor] = {}
        self.backend = _backend(template, self.body_ids, self.device, precision, rasterize_mode)

    def render(
        self,
        body_poses: NDArray[Any] | Tensor,
        cameras: BatchCameras,
        outputs: Sequence[Output] = ("rgb",),
        dtype: OutputType = "uint8",
        background: Any = (0.0, 0.0, 0.0),
        appearance: Appearance | None = None,
        meshes: Meshes | None = None,
    ) -> dict[str, Tensor]:
        """Draw every camera of every world.

        body_poses [nworld, nbody, 7]: position [m] and quaternion wxyz of every body in its world; row 0 is the world
        itself and is not read. background: linear rgb [3] or [nworld, 3]. Returns tensors on the renderer's device,
        [nworld, ncam, H, W, ...]: "rgb" [..., 3], "alpha" and "normals" [..., 3] of `dtype` (uint8: 0..1 to 0..255,
        normals from -1..1); "depth": mean z = sum(w z) / sum(w) [m], 0 where nothing is blended, float16 if dtype is
        that, else float32; "segmentation" int32: the body of the Gaussian with the largest weight, -1 where nothing is
        blended. meshes: triangle meshes on the same bodies, drawn among the Gaussians by depth, with their shadow on them
        (device "cpu"). Normals are unit vectors in the camera's axes, towards it, along each Gaussian's shortest axis; 0
        where nothing is blended.
        """
        if meshes is not None and self.device.type != "cpu":
            raise BackendError(f"Meshes among the Gaussians are drawn on the CPU, received device {self.device}.")
        request = self._request(body_poses, cameras, outputs, dtype, background, appearance)
        return self.backend.render(replace(request, meshes=meshes))

    def plan(
        self,
        nworld: int,
        *,
        ncam: int = 1,
        width: int = 640,
        height: int = 480,
        outputs: Sequence[Output] = ("rgb",),
        dtype: OutputType = "uint8",
    ) -> Plan:
        """Print and return how nworld worlds are drawn: views at once and the memory that this takes."""
        for name, value in (("nworld", nworld), ("ncam", ncam), ("width", width), ("height", height)):
            if value < 1:
                raise UsageError(f"{name} is at least 1, received {value}.")
        plan = self.backend.plan(nworld, ncam, width, height, _checked_outputs(outputs), _checked_dtype(dtype))
        sys.stdout.write(f"{plan}\n")
        return plan

    def _request(
        self,
        body_poses: NDArray[Any] | Tensor,
        cameras: BatchCameras,
        outputs: Sequence[Output],
        dtype: OutputType,
        background: Any,
        appearance: Appearance | None,
    ) -> BatchRequest:
        poses = self._tensor(body_poses, "body_poses")
        if poses.ndim != 3 or poses.shape[0] < 1 or poses.shape[1] < self.nbody or poses.shape[2] != 7:
            raise UsageError(
                f"body_poses has shape [nworld, nbody >= {self.nbody}, 7] (position, quaternion wxyz), received "
                f"{list(poses.shape)}."
            )
        if cameras.width < 1 or cameras.height < 1 or not 0 < cameras.near < cameras.far:
            raise UsageError(
                f"A camera has a size of at least 1 x 1 px and 0 < near < far, received {cameras.width} x "
                f"{cameras.height}, near {cameras.near}, far {cameras.far}."
            )
        nworld = len(poses)
        viewmats = _per_world(self._tensor(cameras.viewmats, "viewmats"), "viewmats", (4, 4), nworld)
        Ks = _per_world(self._tensor(cameras.Ks, "Ks"), "Ks", (3, 3), nworld)
        if Ks.shape[1] != viewmats.shape[1]:
            raise UsageError(f"viewmats has {viewmats.shape[1]} cameras and Ks {Ks.shape[1]}: give one K for each.")
        return BatchRequest(
            body_poses=poses,
            viewmats=viewmats,
            Ks=Ks,
            width=int(cameras.width),
            height=int(cameras.height),
            near=float(cameras.near),
            far=float(cameras.far),
            outputs=_checked_outputs(outputs),
            dtype=_checked_dtype(dtype),
            background=self._broadcast(background, "background", nworld),
            gain=self._gain(appearance or Appearance(), nworld),
        )

    def _tensor(self, values: Any, name: str) -> Tensor:
        """Values as contiguous float32 on the device; those that come from the host must be finite.

        Numbers, and tuples of them, are kept on the device: a CUDA graph cannot copy them while it is captured. The
        first CONSTANTS_KEPT stay for good, because a graph reads them where they are.
        """
        numbers = values if isinstance(values, tuple) else (values,)
        constant = all(isinstance(number, int | float) for number in numbers)
        if constant and values in self._constants:
            return self._constants[values]
        tensor = torch.as_tensor(values)
        if tensor.device.type == "cpu" and not bool(torch.isfinite(tensor).all()):
            where = torch.nonzero(~torch.isfinite(tensor))[0].tolist()
            raise UsageError(f"{name} must be finite, received {float(tensor[tuple(where)])} at {where}.")
        moved = tensor.to(self.device, torch.float32).contiguous()
        if constant and len(self._constants) < CONSTANTS_KEPT:
            self._constants[values] = moved
        return moved

    def _broadcast(self, values: Any, name: str, nworld: int) -> Tensor:
        """Colours [nworld, 3] of [3] or [nworld, 3]."""
        tensor = self._tensor(values, name)
        if tensor.shape not in ((3,), (1, 3), (nworld, 3)):
            raise UsageError(f"{name} has shape [3] or [nworld, 3] = [{nworld}, 3], received {list(tensor.shape)}.")
        return tensor.expand(nworld, 3).contiguous()

    def _gain(self, appearance: Appearance, nworld: int) -> Tensor:
        factors = self._broadcast(appearance.tint, "tint", nworld)
        for name, values in (("gain", appearance.gain), ("exposure", appearance.exposure)):
            tensor = self._tensor(values, name)
            if tensor.shape not in ((), (1,), (nworld,)):
                raise UsageError(f"{name} is a number or has shape [{nworld}], received {list(tensor.shape)}.")
            column = tensor.expand(nworld)[:, None]
            factors = factors * (column if name == "gain" else torch.exp2(column))
        return factors.contiguous()


def _checked_body_ids(body_ids: NDArray[Any] | Tensor, count: int) -> NDArray[np.int32]:
    ids = body_ids.detach().cpu().numpy() if isinstance(body_ids, Tensor) else np.asarray(body_ids)
    if ids.shape != (count,) or ids.dtype.kind not in "iu":
        raise UsageError(
            f"body_ids holds one integer for each of the template's {count} Gaussians, received {ids.dtype} of shape "
            f"{list(ids.shape)}."
        )
    if count and ids.min() < 0:
        raise UsageError(f"A body id is 0 (the world) or more, received {ids.min()} at {int(ids.argmin())}.")
    return ids.astype(np.int32)


def _checked_outputs(outputs: Sequence[Output]) -> tuple[Output, ...]:
    wanted = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    unknown = [name for name in wanted if name not in OUTPUTS]
    if unknown or not wanted:
        raise UsageError(f"Outputs are some of {', '.join(OUTPUTS)}, received {list(wanted)}.")
    return tuple(name for name in OUTPUTS if name in wanted)


def _checked_dtype(dtype: OutputType) -> torch.dtype:
    if dtype not in DTYPES:
        raise UsageError(f"dtype is one of {', '.join(DTYPES)}, received {dtype!r}.")
    return DTYPES[dtype]


def _per_world(tensor: Tensor, name: str, last: tuple[int, int], nworld: int) -> Tensor:
    """[1 or nworld, ncam, *last] of [ncam, *last] or [nworld, ncam, *last]."""
    if tensor.ndim == 3:
        tensor = tensor[None]
    if tensor.ndim != 4 or tensor.shape[0] not in (1, nworld) or tensor.shape[1] < 1 or tensor.shape[2:] != last:
        raise UsageError(
            f"{name} has shape [ncam, {last[0]}, {last[1]}], or [{nworld}, ncam, {last[0]}, {last[1]}] for as many "
            f"worlds as body_poses, received {list(tensor.shape)}."
        )
    return tensor.contiguous()


def _backend(
    template: Splat, body_ids: NDArray[np.int32], device: torch.device, precision: Precision, mode: RasterizeMode
) -> BatchBackend:
    if device.type == "cuda":
        from real2sim.sim.render.batch_cuda import CudaBackend
        from real2sim.sim.render.cuda_program import kernels_for

        return CudaBackend(template, body_ids, device, kernels_for(device), precision, mode)
    if device.type == "cpu":
        from real2sim.sim.render.batch_cpu import CpuBackend

        if precision != "exact":
            raise BackendError("precision 'fast' blends in packed half, which only CUDA has. Use 'exact' on the CPU.")
        return CpuBackend(template, body_ids, mode)
    raise UsageError(f"A device is 'cuda' or 'cpu', received {device}.")
