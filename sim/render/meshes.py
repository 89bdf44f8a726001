# SPDX-License-Identifier: Apache-2.0
"""Opaque triangle meshes among Gaussians: drawn by rays, shaded, shadowed, and composited by depth.

A mesh in front at depth d sees the Gaussians before d blended over it, C = sum_{z_i < d} T_i a_i c_i + T(d) c_mesh;
what lies behind it is never blended. Light: one key light from far away that casts shadows, fill lights that do not,
and ambient light; surfaces are matt (Lambert) and shaded in sRGB values, as their colours and the splat's are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real2sim.errors import UsageError
from real2sim.sim.body_meshes import BodyMesh
from real2sim.sim.render.batch import BatchRequest
from real2sim.sim.trace import Hits, Seen, Tracer, pose_matrices

Direction = tuple[float, float, float]
GREY = 0.6  # colour of a mesh without one
SPREAD = ((0.6, 0.0), (-0.3, 0.52), (-0.3, -0.52), (0.0, 0.0))  # shadow rays, in radii of the key light's disc
SHADOW_START = 0.004  # [m], along a shadow ray: nearer surfaces do not shade
SEEN = 0.05  # alpha from which on the splat is a surface that a shadow falls on


@dataclass(frozen=True)
class Lights:
    """Towards the lights, world frame; strengths multiply a surface's colour. softness: radius of the key light's disc
    over its distance; shadow: the share of the key light's part that a shadow takes from the splat, which was captured
    in light of its own."""

    key: Direction = (0.35, 0.25, 0.9)
    key_strength: float = 0.55
    fills: tuple[tuple[Direction, float], ...] = (((-0.7, 0.3, 0.4), 0.18), ((0.2, -0.8, 0.3), 0.12))
    ambient: float = 0.35
    softness: float = 0.06
    shadow: float = 0.45

    def __post_init__(self) -> None:
        directions = [self.key, *(direction for direction, _ in self.fills)]
        if any(not 0 < np.linalg.norm(d) < np.inf for d in directions) or not 0 <= self.shadow <= 1:
            raise UsageError(f"Lights need directions that are not zero and a shadow in 0..1, received {self}.")


@dataclass
class MeshLayer:
    """The meshes alone, [nworld, ncam, H, W]: depth z [m], infinite without a hit; rgb [..., 3]; body int32, -1 without;
    normals [..., 3], camera axes, towards it."""

    depth: Tensor
    rgb: Tensor
    body: Tensor
    normals: Tensor


class Meshes:
    """Meshes that bodies carry, and the light that they are drawn in. One for any number of calls and worlds."""

    def __init__(self, meshes: Sequence[BodyMesh], lights: Lights = Lights()) -> None:
        ordered = sorted(meshes, key=lambda mesh: mesh.body)  # as the tracer joins them
        self.tracer, self.lights = Tracer(ordered), lights
        starts = np.cumsum([0, *[len(mesh.vertices) for mesh in ordered]])
        corners = [mesh.faces + start for mesh, start in zip(ordered, starts[:-1], strict=True)]
        self._corners = torch.tensor(np.concatenate([*corners, np.zeros((0, 3), int)]).astype(np.int64))
        counts = [len(faces) for _, faces in self.tracer.joined]
        self._first = torch.tensor([0, *np.cumsum(counts)[:-1]] if counts else [0])
        columns = [_attributes(mesh) for mesh in ordered]
        self._attributes = torch.tensor(np.concatenate([*columns, np.zeros((0, 8), np.float32)]))
        textured = [i for i, mesh in enumerate(ordered) if mesh.texture is not None]
        self._textures = [torch.tensor(ordered[i].texture).float() / 255 for i in textured]
        which = [np.full(len(m.faces), textured.index(i) if i in textured else -1) for i, m in enumerate(ordered)]
        self._texture_of_face = torch.tensor(np.concatenate([*which, np.zeros(0, int)]).astype(np.int64))

    def layer(self, request: BatchRequest) -> MeshLayer:
        """What every camera of a request sees of the meshes."""
        shape = (request.nworld, request.ncam, request.height, request.width)
        layer = MeshLayer(
            torch.empty(shape), torch.empty(*shape, 3), torch.empty(shape, dtype=torch.int32), torch.empty(*shape, 3)
        )
        for w in range(request.nworld):
            for c in range(request.ncam):
                seen, T = self._seen(request, w, c)
                rays = pixel_rays(request, w, c)
                hits = self.tracer.nearest(seen, rays)
                normals, rgb = self._shaded(seen, hits, rays, T)
                size = shape[2:]
                layer.depth[w, c] = (hits.t[0] * rays[:, 2]).reshape(size)
                layer.body[w, c] = self.tracer.body_of(hits.mesh)[0].reshape(size)
                layer.normals[w, c], layer.rgb[w, c] = normals.reshape(*size, 3), rgb.reshape(*size, 3)
        return layer

    def light_on(self, request: BatchRequest, view: tuple[int, int], depth: Tensor) -> Tensor:
        """The factor [H, W] that the meshes' shadow leaves of surfaces at depth [H, W] z, where that is positive."""
        rows = torch.nonzero(depth.flatten() > 0)[:, 0]
        factor = torch.ones(depth.numel())
        if len(rows) == 0 or not self.tracer.bodies:
            return factor.reshape(depth.shape)
        seen, T = self._seen(request, *view)
        rays = pixel_rays(request, *view)[rows]
        points = rays * (depth.flatten()[rows] / rays[:, 2])[:, None]
        factor[rows] = 1 - self.lights.shadow * self._shadow(seen, points, T)
        return factor.reshape(depth.shape)

    def _seen(self, request: BatchRequest, w: int, c: int) -> tuple[Seen, Tensor]:
        """The meshes from a camera, and T_cam_world [4, 4] float64."""
        viewmat = request.viewmats[w if len(request.viewmats) > 1 else 0, c].double()
        poses = request.body_poses[w : w + 1].clone()
        poses[:, 0] = torch.tensor([0, 0, 0, 1.0, 0, 0, 0])
        return self.tracer.seen_from(torch.linalg.inv(viewmat)[None], pose_matrices(poses)), viewmat

    def _shaded(self, seen: Seen, hits: Hits, rays: Tensor, T: Tensor) -> tuple[Tensor, Tensor]:
        """Normals [n, 3] and rgb [n, 3] of one view's hits; zero without a hit."""
        normals, rgb = torch.zeros_like(rays), torch.zeros_like(rays)
        rows = torch.nonzero(hits.mesh[0] >= 0)[:, 0]
        if len(rows) == 0:
            return normals, rgb
        mesh = hits.mesh[0, rows].long()
        face = self._first[mesh] + hits.face[0, rows]
        uv = hits.uv[0, rows]
        weights = torch.stack([1 - uv.sum(-1), uv[:, 0], uv[:, 1]], -1)
        values = (weights[..., None] * self._attributes[self._corners[face]]).sum(1)
        local = values[:, :3]
        flat = self.tracer.normals(seen, hits)[0, rows]
        smooth = (seen.rotation[0, mesh].mT @ local[..., None])[..., 0]
        length = smooth.norm(dim=-1, keepdim=True)
        n = torch.where(length > 1e-6, smooth / length.clamp(min=1e-6), flat)
        n = torch.where((n * flat).sum(-1, keepdim=True) < 0, -n, n)
        n = torch.where((flat * rays[rows]).sum(-1, keepdim=True) > 0, -n, n)
        points = rays[rows] * hits.t[0, rows, None] + n * 1e-4
        shadow = self._shadow(seen, points, T)
        normals[rows] = n
        rgb[rows] = (self._albedo(values, face) * self._light(n, shadow, T)[:, None]).clamp(0, 1)
        return normals, rgb

    def _light(self, normals: Tensor, shadow: Tensor, T: Tensor) -> Tensor:
        lights = self.lights
        light = lights.ambient + lights.key_strength * (1 - shadow) * _cosine(normals, lights.key, T)
        for direction, strength in lights.fills:
            light = light + strength * _cosine(normals, direction, T)
        return light

    def _albedo(self, values: Tensor, face: Tensor) -> Tensor:
        """Colours [n, 3] from interpolated attributes [n, 8] and textures, bilinear and repeated."""
        colours = values[:, 3:6].clone()
        texture = self._texture_of_face[face]
        for number, image in enumerate(self._textures):
            rows = torch.nonzero(texture == number)[:, 0]
            if len(rows):
                colours[rows] *= _bilinear(image, values[rows, 6:])
        return colours

    def _shadow(self, seen: Seen, points: Tensor, T: Tensor) -> Tensor:
        """Share [n] of the key light that does not reach points [n, 3], camera axes."""
        key = np.asarray(self.lights.key, np.float64)
        key /= np.linalg.norm(key)
        side = np.cross(key, [0.0, 0.0, 1.0] if abs(key[2]) < 0.9 else [1.0, 0.0, 0.0])
        side /= np.linalg.norm(side)
        share = torch.zeros(len(points))
        for a, b in SPREAD if self.lights.softness > 0 else ((0.0, 0.0),):
            towards = key + self.lights.softness * (a * side + b * np.cross(key, side))
            ray = (T[:3, :3] @ torch.tensor(towards / np.linalg.norm(towards))).float().expand(len(points), 3)
            share += self.tracer.blocked(seen, ray, points, t_min=SHADOW_START)[0].float()
        return share / (len(SPREAD) if self.lights.softness > 0 else 1)


def pixel_rays(request: BatchRequest, w: int, c: int) -> Tensor:
    """Unit directions [H * W, 3] through the pixel centres of a view, camera axes."""
    K = request.Ks[w if len(request.Ks) > 1 else 0, c].double()
    v, u = torch.meshgrid(torch.arange(request.height) + 0.5, torch.arange(request.width) + 0.5, indexing="ij")
    x, y = (u.flatten() - K[0, 2]) / K[0, 0], (v.flatten() - K[1, 2]) / K[1, 1]
    rays = torch.stack([x, y, torch.ones_like(x)], -1)
    return (rays / rays.norm(dim=-1, keepdim=True)).float()


def composite(
    images: dict[str, Tensor],
    weight: Tensor | None,
    meshes: Meshes,
    layer: MeshLayer,
    request: BatchRequest,
    view: tuple[int, int],
) -> dict[str, Tensor]:
    """One view with its meshes: images of the Gaussians before the meshes, over black, and what is behind them.

    images: "rgb", "depth", "alpha" and, where asked, "segmentation" and "normals" (sum of weight x normal); weight
    [H, W]: the largest of a Gaussian, for the segmentation.
    """
    w, c = view
    mesh = torch.isfinite(layer.depth[w, c])
    alpha = images["alpha"]
    through = 1 - alpha
    light = meshes.light_on(request, view, torch.where(alpha > SEEN, images["depth"], 0.0))
    behind = torch.where(mesh[..., None], layer.rgb[w, c], request.background[w])
    out = {"rgb": images["rgb"] * light[..., None] + through[..., None] * behind}
    out["alpha"] = torch.where(mesh, 1.0, alpha)
    out["depth"] = torch.where(
        mesh, alpha * images["depth"] + through * layer.depth[w, c].nan_to_num(posinf=0.0), images["depth"]
    )
    if weight is not None:
        out["segmentation"] = torch.where(mesh & (through > weight), layer.body[w, c], images["segmentation"])
    if "normals" in images:
        out["normals"] = images["normals"] + torch.where(mesh, through, 0.0)[..., None] * layer.normals[w, c]
    return out


def _attributes(mesh: BodyMesh) -> np.ndarray:
    """Normal, colour and uv of each vertex, [V, 8] float32; a zero normal stands for a flat face."""
    n = len(mesh.vertices)
    normals = np.zeros((n, 3)) if mesh.normals is None else mesh.normals
    colours = np.full((n, 3), 1.0 if mesh.texture is not None else GREY) if mesh.colours is None else mesh.colours
    uvs = np.zeros((n, 2)) if mesh.uvs is None else mesh.uvs
    return np.concatenate([normals, colours, uvs], 1).astype(np.float32)


def _cosine(normals: Tensor, direction: Any, T: Tensor) -> Tensor:
    """max(0, n . l) for normals [n, 3] in camera axes and a direction in the world."""
    l = np.asarray(direction, np.float64)
    towards = (T[:3, :3] @ torch.tensor(l / np.linalg.norm(l))).float()
    return (normals @ towards).clamp(min=0)


def _bilinear(image: Tensor, uvs: Tensor) -> Tensor:
    """Texels [n, 3] of an image [h, w, 3] at uvs [n, 2]; (0, 0) is the corner of its first texel."""
    h, w = image.shape[:2]
    x, y = uvs[:, 0] * w - 0.5, uvs[:, 1] * h - 0.5
    x0, y0 = torch.floor(x), torch.floor(y)
    a, b = (x - x0)[:, None], (y - y0)[:, None]
    i, j = x0.long(), y0.long()

    def texel(di: int, dj: int) -> Tensor:
        return image[(j + dj) % h, (i + di) % w]

    return (texel(0, 0) * (1 - a) + texel(1, 0) * a) * (1 - b) + (texel(0, 1) * (1 - a) + texel(1, 1) * a) * b
