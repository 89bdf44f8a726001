# SPDX-License-Identifier: Apache-2.0
"""A small ray caster for textured patches, on Warp's mesh queries (CPU, no GL context).

Light is baked: soft shadows and ambient occlusion do not depend on the view, so they are computed once per texel and
multiplied into the texture. A photo then costs one ray per sample and one filtered fetch; glossy patches send a second
ray. Textures are mip-mapped (Williams 1983), so that what is smaller than a sample fades out instead of aliasing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cv2
import numpy as np
import warp as wp
from numpy.typing import NDArray

from real2sim.datasets import raycast_kernels as kernels
from real2sim.datasets.raycast_kernels import Lens, Tables
from real2sim.datasets.synthetic_shapes import Patch
from real2sim.sim.cameras import Camera
from real2sim.sim.warp_start import start_warp

Image = NDArray[np.float32]


@dataclass(frozen=True)
class Surface:
    """One patch in the world frame as it is drawn.

    albedo [h, w, 3] linear; gloss: 0 matt .. 1 glazed; emission: radiance per albedo; light_texel: size [m] of a cell
    in which light is computed; id: what the id map shows.
    """

    patch: Patch
    albedo: Image
    id: int
    gloss: float = 0.0
    emission: float = 0.0
    light_texel: float = 0.004


@dataclass(frozen=True)
class AreaLight:
    """A rectangle that shines. corner, u, v [m] as in `rectangle`; radiance [3]; samples: rays per texel."""

    corner: NDArray[np.float64]
    u: NDArray[np.float64]
    v: NDArray[np.float64]
    radiance: tuple[float, float, float]
    samples: int = 32


@dataclass(frozen=True)
class Ambient:
    """Light from everywhere that is blocked by what is nearer than `reach` [m]."""

    radiance: tuple[float, float, float]
    reach: float = 0.5
    samples: int = 20


class RayCaster:
    """Surfaces with their light baked in. Thread-safe: a photo changes nothing here."""

    def __init__(self, surfaces: Sequence[Surface], lights: Sequence[AreaLight], ambient: Ambient, seed: int = 0):
        start_warp()
        self._mesh, self._tables = _build_mesh(surfaces)
        cells = [_light_cells(s) for s in surfaces]
        light = self._bake(cells, lights, ambient, seed)
        levels = [_mip_levels(_lit(s, part)) for s, part in zip(surfaces, light)]
        _fill_textures(self._tables, surfaces, levels)

    def _bake(
        self,
        cells: Sequence[tuple[Image, Image]],
        lights: Sequence[AreaLight],
        ambient: Ambient,
        seed: int,
    ) -> list[Image]:
        """Irradiance / pi [h, w, 3] of every patch's light cells."""
        points, normals = (_array(np.concatenate([c[k].reshape(-1, 3) for c in cells]), wp.vec3) for k in (0, 1))
        tasks = [(kernels.ambient_kernel, [ambient.reach, ambient.samples, seed], ambient.radiance)]
        for number, light in enumerate(lights):
            frame = [wp.vec3(*map(float, x)) for x in (light.corner, light.u, light.v)]
            side = max(1, round(light.samples**0.5))
            tasks.append((kernels.light_kernel, [*frame, side, seed + 1 + number], light.radiance))

        def measure(task: tuple[wp.Kernel, list, tuple[float, float, float]]) -> Image:
            kernel, inputs, colour = task
            out = wp.zeros(len(points), dtype=wp.float32, device="cpu")
            wp.launch(kernel, len(points), inputs=[self._mesh.id, points, normals, *inputs, out], device="cpu")
            return out.numpy()[:, None] * np.asarray(colour, np.float32)

        with ThreadPoolExecutor() as pool:  # Warp runs a CPU kernel on the calling thread and without the GIL
            total = sum(pool.map(measure, tasks))
        ends = np.cumsum([p.shape[0] * p.shape[1] for p, _ in cells])
        parts = np.split(np.asarray(total, np.float32), ends[:-1])
        return [part.reshape(p.shape) for part, (p, _) in zip(parts, cells)]

    def photo(self, camera: Camera, poses: Sequence[NDArray[np.float64]] | None = None, side: int = 3) -> Image:
        """Linear radiance [H, W, 3] from side x side samples a pixel.

        poses: side * side poses T_world_cam [4, 4] during the exposure; without them the camera stands still.
        """
        if poses is None:
            poses = [camera.T_world_cam] * side**2
        if len(poses) != side**2:
            raise ValueError(f"a photo of {side} x {side} samples needs {side**2} poses, received {len(poses)}")
        out = wp.zeros(camera.width * camera.height, dtype=wp.vec3, device="cpu")
        inputs = [self._tables, _lens(camera), _array(np.stack(poses), wp.mat44), camera.width, side, out]
        wp.launch(kernels.photo_kernel, camera.width * camera.height, inputs=inputs, device="cpu")
        return out.numpy().reshape(camera.height, camera.width, 3)

    def geometry(self, camera: Camera) -> tuple[Image, NDArray[np.uint8]]:
        """Depth along the optical axis [m] and ids, [H, W], at pixel centres; 0 where nothing is."""
        count = camera.width * camera.height
        depth, ids = (wp.zeros(count, dtype=kind, device="cpu") for kind in (wp.float32, wp.int32))
        pose = wp.mat44(camera.T_world_cam.astype(np.float32))
        inputs = [self._tables, _lens(camera), pose, camera.width, depth, ids]
        wp.launch(kernels.geometry_kernel, count, inputs=inputs, device="cpu")
        shape = (camera.height, camera.width)
        return depth.numpy().reshape(shape), ids.numpy().reshape(shape).astype(np.uint8)


def _array(values: NDArray, dtype: type) -> wp.array:
    kind = np.int32 if dtype is wp.int32 else np.float32
    return wp.array(np.ascontiguousarray(values, kind), dtype=dtype, device="cpu")


def _lens(camera: Camera) -> Lens:
    k1, k2, *rest = [*camera.distortion, 0.0, 0.0][: max(2, len(camera.distortion))]
    if any(rest):
        raise ValueError(f"{camera.name}: only radial k1, k2 are drawn; received distortion {camera.distortion}")
    lens = Lens()
    lens.fx, lens.fy, lens.cx, lens.cy = (float(camera.K[i]) for i in ((0, 0), (1, 1), (0, 2), (1, 2)))
    lens.k1, lens.k2 = float(k1), float(k2)
    return lens


def _build_mesh(surfaces: Sequence[Surface]) -> tuple[wp.Mesh, Tables]:
    vertices, faces, uvs, normals, owner, count = [], [], [], [], [], 0
    for number, surface in enumerate(surfaces):
        v, f = surface.patch.mesh()
        rows, columns = surface.patch.points.shape[:2]
        u, w = np.meshgrid(np.linspace(0, 1, columns), np.linspace(0, 1, rows))
        vertices.append(v)
        faces.append(f + count)
        uvs.append(np.stack([u, w], -1).reshape(-1, 2))
        normals.append(surface.patch.normals.reshape(-1, 3))
        owner.append(np.full(len(f), number))
        count += len(v)
    t = Tables()
    t.corners = _array(np.concatenate(faces).ravel(), wp.int32)
    mesh = wp.Mesh(_array(np.concatenate(vertices), wp.vec3), t.corners, bvh_constructor="sah")
    t.mesh, t.face_patch = mesh.id, _array(np.concatenate(owner), wp.int32)
    t.uvs, t.normals = _array(np.concatenate(uvs), wp.vec2), _array(np.concatenate(normals), wp.vec3)
    return mesh, t


def _light_cells(surface: Surface) -> tuple[Image, Image]:
    """Centres and normals [h, w, 3] of the cells in which light is computed."""
    patch = surface.patch
    w, h = (max(2, round(length / surface.light_texel)) for length in patch.size)
    rows, columns = patch.points.shape[:2]
    x = ((np.arange(w) + 0.5) / w * (columns - 1)).astype(np.float32)
    y = ((np.arange(h) + 0.5) / h * (rows - 1)).astype(np.float32)
    grid = np.meshgrid(x, y)
    points, normals = (_bilinear(values, *grid) for values in (patch.points, patch.normals))
    return points, normals / np.linalg.norm(normals, axis=-1, keepdims=True)


def _bilinear(values: NDArray, x: Image, y: Image) -> Image:
    x0 = np.clip(x.astype(int), 0, values.shape[1] - 2)
    y0 = np.clip(y.astype(int), 0, values.shape[0] - 2)
    ax, ay = (x - x0)[..., None], (y - y0)[..., None]
    top = values[y0, x0] * (1 - ax) + values[y0, x0 + 1] * ax
    low = values[y0 + 1, x0] * (1 - ax) + values[y0 + 1, x0 + 1] * ax
    return (top * (1 - ay) + low * ay).astype(np.float32)


def _lit(surface: Surface, light: Image) -> Image:
    """Radiance [h, w, 3]: albedo x light, smoothed over the grain that few light samples leave, plus emission."""
    smooth = cv2.GaussianBlur(light, (5, 5), 0.9, borderType=cv2.BORDER_REPLICATE)
    h, w = surface.albedo.shape[:2]
    return surface.albedo * (cv2.resize(smooth, (w, h), interpolation=cv2.INTER_LINEAR) + surface.emission)


def _mip_levels(image: Image) -> list[Image]:
    levels = [image]
    while max(levels[-1].shape[:2]) > 1:
        h, w = levels[-1].shape[:2]
        half = cv2.resize(levels[-1], (max(w // 2, 1), max(h // 2, 1)), interpolation=cv2.INTER_AREA)
        levels.append(np.asarray(half, np.float32))
    return levels


def _fill_textures(t: Tables, surfaces: Sequence[Surface], levels: Sequence[list[Image]]) -> None:
    sizes = [sum(level.shape[0] * level.shape[1] for level in stack) for stack in levels]
    t.offset = _array(np.concatenate([[0], np.cumsum(sizes)[:-1]]), wp.int32)
    t.texels = _array(np.concatenate([level.reshape(-1, 3) for stack in levels for level in stack]), wp.vec3)
    t.width = _array(np.array([stack[0].shape[1] for stack in levels]), wp.int32)
    t.height = _array(np.array([stack[0].shape[0] for stack in levels]), wp.int32)
    t.levels = _array(np.array([len(stack) for stack in levels]), wp.int32)
    texel = [np.sqrt(np.prod(s.patch.size) / np.prod(s.albedo.shape[:2])) for s in surfaces]
    t.texel_size = _array(np.array(texel), wp.float32)
    t.gloss = _array(np.array([s.gloss for s in surfaces]), wp.float32)
    t.id = _array(np.array([s.id for s in surfaces]), wp.int32)
