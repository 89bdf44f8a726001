# SPDX-License-Identifier: Apache-2.0
"""The batch renderer on the CPU: the native rasteriser, one view at a time on each thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real2sim.errors import TransientError, UsageError
from real2sim.sim.render import _cpu
from real2sim.sim.render.batch import NOTHING, BatchRequest, Output, Plan, RasterizeMode
from real2sim.sim.render.meshes import MeshLayer, composite
from real2sim.sim.render.rasterize import default_threads
from real2sim.sim.render.splat import Splat

BYTES_PER_GAUSSIAN = 64 + 16 + 8  # footprint, keys, places of pairs
BYTES_PER_PAIR, PAIRS_PER_GAUSSIAN = 10, 8  # of lists and touched blocks; about as many tiles does a Gaussian reach


class CpuBackend:
    """One template in memory, its Gaussians ordered by body; see `BatchRenderer` for what is drawn."""

    def __init__(self, template: Splat, body_ids: NDArray[np.int32], rasterize_mode: RasterizeMode) -> None:
        order = np.argsort(body_ids, kind="stable")
        sorted_ids = body_ids[order]
        self._bodies, first = np.unique(sorted_ids, return_index=True)
        ends = np.append(first, len(sorted_ids))
        self._rows = np.stack([ends[:-1], ends[1:]], 1).astype(np.int64)
        self._body_of_row = torch.as_tensor(np.append(sorted_ids, NOTHING).astype(np.int32))  # -1 finds the last
        part = template.select(order)
        self._gaussians = (part.means, part.quats, part.scales, part.opacities, part.sh)
        self._sh_degree, self._antialiased = template.sh_degree, rasterize_mode == "antialiased"

    def plan(
        self, nworld: int, ncam: int, width: int, height: int, outputs: tuple[Output, ...], dtype: torch.dtype
    ) -> Plan:
        views, pixels = nworld * ncam, width * height
        at_once = min(views, default_threads())
        count = len(self._gaussians[0])
        one = count * (BYTES_PER_GAUSSIAN + PAIRS_PER_GAUSSIAN * BYTES_PER_PAIR) + pixels * 4 * 12
        images = sum(_bytes_per_pixel(name, dtype) for name in outputs) * pixels * views
        return Plan(nworld, views, at_once, at_once * one, images, None)

    def render(self, request: BatchRequest) -> dict[str, Tensor]:
        if bool(request.Ks[..., 0, 1].any()):
            raise UsageError("Batch cameras have no skew, received a K whose [0, 1] is not zero.")
        shape = (request.nworld, request.ncam, request.height, request.width)
        out = {
            name: torch.empty(*shape, *_channels(name), dtype=_dtype(name, request.dtype)) for name in request.outputs
        }
        layer = None if request.meshes is None else request.meshes.layer(request)
        matrices = self._matrices(request)
        threads, views = default_threads(), request.nworld * request.ncam

        def draw(view: int, threads: int) -> None:
            w, c = divmod(view, request.ncam)
            images = self._view(request, w, c, matrices, layer, threads)
            for name, image in out.items():
                image[w, c] = _encoded(name, images, request.dtype)

        _spread(draw, views, threads)
        return out

    def _matrices(self, request: BatchRequest) -> NDArray[np.float64]:
        """T_cam_body [nworld, ncam, bodies, 4, 4]; NaN for a pose that is not one."""
        poses = request.body_poses.double().numpy()[:, self._bodies]
        with np.errstate(invalid="ignore", divide="ignore"):
            w, x, y, z = np.moveaxis(poses[..., 3:] / np.linalg.norm(poses[..., 3:], axis=-1, keepdims=True), -1, 0)
        T = np.zeros((*poses.shape[:2], 4, 4))
        T[..., 0, :3] = np.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], -1)
        T[..., 1, :3] = np.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], -1)
        T[..., 2, :3] = np.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1)
        T[..., :3, 3], T[..., 3, 3] = poses[..., :3], 1
        T[:, self._bodies == 0] = np.eye(4)
        with np.errstate(invalid="ignore"):
            product = request.viewmats.double().numpy()[:, :, None] @ T[:, None]
        return np.ascontiguousarray(product)

    def _view(
        self,
        request: BatchRequest,
        w: int,
        c: int,
        matrices: NDArray[np.float64],
        layer: MeshLayer | None,
        threads: int,
    ) -> dict[str, Tensor]:
        """One view's images in float32, in no order of the template that matters."""
        size = (request.height, request.width)
        wanted, segmented = request.outputs, "segmentation" in request.outputs
        images = {"rgb": torch.empty(*size, 3), "depth": torch.empty(size), "alpha": torch.empty(size)}
        top = torch.empty(size, dtype=torch.int32) if segmented else None
        weight = torch.empty(size) if segmented and layer is not None else None
        normals = torch.empty(*size, 3) if "normals" in wanted else None
        K = request.Ks[w if len(request.Ks) > 1 else 0, c].double().numpy()
        background = [0.0, 0.0, 0.0] if layer is not None else request.background[w].tolist()
        try:
            _cpu.forward_posed(
                *(*self._gaussians, self._sh_degree, self._rows, matrices[w, c], K, request.near, request.far),
                *(self._antialiased, background, images["rgb"], images["depth"], images["alpha"], top, weight, normals),
                None if layer is None else layer.depth[w, c],
                threads,
            )
        except ValueError as error:
            raise UsageError(f"World {w}, camera {c} cannot be drawn: {error}") from error
        except MemoryError as error:
            raise TransientError(
                "The CPU renderer ran out of memory: draw smaller images or fewer Gaussians."
            ) from error
        if top is not None:
            images["segmentation"] = self._body_of_row[top.long()]
        if normals is not None:
            images["normals"] = normals
        if layer is not None and request.meshes is not None:
            images = composite(images, weight, request.meshes, layer, request, (w, c))
        if normals is not None:
            length = images["normals"].norm(dim=-1, keepdim=True)
            images["normals"] = torch.where(length > 0, images["normals"] / length.clamp(min=1e-30), 0.0)
        images["rgb"] = images["rgb"] * request.gain[w]
        return images


def _spread(draw: Callable[[int, int], None], views: int, threads: int) -> None:
    """Draw all views: several at once on a thread each, or one after another on all threads."""
    if views < threads or threads == 1:
        for view in range(views):
            draw(view, threads)
        return
    with ThreadPoolExecutor(threads) as pool:  # the native code runs without the GIL
        list(pool.map(draw, range(views), [1] * views))


def _channels(name: Output) -> tuple[int, ...]:
    return (3,) if name in ("rgb", "normals") else ()


def _dtype(name: Output, dtype: torch.dtype) -> torch.dtype:
    if name == "segmentation":
        return torch.int32
    if name == "depth":
        return torch.float16 if dtype == torch.float16 else torch.float32
    return dtype


def _bytes_per_pixel(name: Output, dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=_dtype(name, dtype)).element_size() * (3 if _channels(name) else 1)


def _encoded(name: Output, images: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """An image in the type that was asked for: uint8 holds 0..1, and -1..1 of normals, as 0..255."""
    image = images[name]
    if dtype != torch.uint8 or name in ("depth", "segmentation"):
        return image
    if name == "normals":
        image = image * 0.5 + 0.5
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)
