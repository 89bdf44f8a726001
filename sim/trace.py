# SPDX-License-Identifier: Apache-2.0
"""Rays against triangle meshes that bodies carry, posed anew in every world: native code on CPU, Warp on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from real2sim.errors import BackendError, UsageError
from real2sim.sim.body_meshes import BodyMesh
from real2sim.sim.render import _cpu
from real2sim.sim.render.rasterize import default_threads
from real2sim.sim.warp_start import start_warp

Backend = Literal["auto", "native", "warp"]
FAR = 1e10  # [m]


@dataclass
class Hits:
    """The nearest triangle that each ray meets, [Q, n].

    t: distance [m], infinite without a hit; mesh: row of the tracer's hierarchies and face: row of that mesh's faces,
    int32, -1 without a hit; uv [Q, n, 2]: barycentric weights of the face's second and third corner.
    """

    t: Tensor
    mesh: Tensor
    face: Tensor
    uv: Tensor


@dataclass
class Seen:
    """The M meshes as Q query frames see them: x_mesh = rotation x_query + translation, [Q, M, 3, 3] and [Q, M, 3];
    spheres [Q, M, 4]: centres in the query frame and radii. float32, on the tracer's device."""

    rotation: Tensor
    translation: Tensor
    spheres: Tensor


class Tracer:
    """One bounding volume hierarchy for each body that carries meshes, on one device.

    meshes: of any bodies; those of one body are joined. `bodies` [M] names the body of each hierarchy, `joined` holds
    its vertices and faces. backend "auto": native code on the CPU, Warp on CUDA.
    """

    def __init__(
        self, meshes: Sequence[BodyMesh], device: str = "cpu", *, threads: int | None = None, backend: Backend = "auto"
    ) -> None:
        if device != "cpu" and not torch.cuda.is_available():
            raise BackendError(f"Device {device!r} was asked for and PyTorch finds no CUDA device. Use device 'cpu'.")
        self.device, self.threads = device, threads or default_threads()
        self.backend: Backend = backend if backend != "auto" else ("native" if device == "cpu" else "warp")
        if self.backend == "native" and device != "cpu":
            raise UsageError(f"Backend 'native' runs on the CPU, received device {device!r}.")
        self.bodies = sorted({mesh.body for mesh in meshes})
        self.joined = [join([mesh for mesh in meshes if mesh.body == body]) for body in self.bodies]
        self._spheres = torch.tensor(
            [bounding_sphere(vertices) for vertices, _ in self.joined], dtype=torch.float64, device=device
        ).reshape(-1, 4)
        normals = [face_normals(vertices, faces) for vertices, faces in self.joined]
        self._face_normals = torch.tensor(np.concatenate([*normals, np.zeros((1, 3), np.float32)]), device=device)
        if self.backend == "warp":
            start_warp()
            self._bvhs = [_warp_mesh(*mesh, device) for mesh in self.joined]
        else:
            self._bvhs = [_cpu.Bvh(*mesh) for mesh in self.joined]

    def seen_from(self, frames: Tensor, body_poses: Tensor) -> Seen:
        """The meshes in Q query frames.

        frames: T_world_query [Q, 4, 4] float64; body_poses: T_world_body [W, nbody, 4, 4] float64, Q a multiple of W:
        consecutive frames share a world.
        """
        if self.bodies and self.bodies[-1] >= body_poses.shape[1]:
            raise UsageError(
                f"Meshes are carried by bodies up to {self.bodies[-1]}, received poses of {body_poses.shape[1]} bodies."
            )
        T = body_poses[:, self.bodies].repeat_interleave(len(frames) // len(body_poses), 0)
        R_body, t_body = T[..., :3, :3], T[..., :3, 3]
        R_query, t_query = frames[:, None, :3, :3], frames[:, None, :3, 3]
        rotation = R_body.mT @ R_query
        translation = (R_body.mT @ (t_query - t_body)[..., None])[..., 0]
        centre = (rotation.mT @ (self._spheres[:, :3] - translation)[..., None])[..., 0]
        spheres = torch.cat([centre, self._spheres[:, 3:].expand(*centre.shape[:2], 1)], -1)
        return Seen(*(v.float().contiguous() for v in (rotation, translation, spheres)))

    def nearest(
        self,
        seen: Seen,
        directions: Tensor,
        origins: Tensor | None = None,
        *,
        t_min: float = 0.0,
        t_max: float = FAR,
        limits: Tensor | None = None,
    ) -> Hits:
        """The nearest hit of each ray with t in [t_min, t_max].

        directions [n, 3] or [Q, n, 3], unit, query frame; origins alike, by default the frames' own; limits [Q, n]: in
        place of t_max.
        """
        shape = (len(seen.rotation), directions.shape[-2])
        t, uv = (torch.empty(*shape, *more, device=self.device) for more in ((), (2,)))
        mesh, face = (torch.empty(shape, dtype=torch.int32, device=self.device) for _ in range(2))
        self._trace(seen, directions, origins, (t_min, t_max, limits), (mesh, t, face, uv))
        return Hits(t, mesh, face, uv)

    def blocked(
        self,
        seen: Seen,
        directions: Tensor,
        origins: Tensor | None = None,
        *,
        t_min: float = 0.0,
        t_max: float = FAR,
        limits: Tensor | None = None,
    ) -> Tensor:
        """Whether anything is met at all, [Q, n] bool; arguments as in `nearest`."""
        shape = (len(seen.rotation), directions.shape[-2])
        mesh = torch.empty(shape, dtype=torch.int32, device=self.device)
        self._trace(seen, directions, origins, (t_min, t_max, limits), (mesh, None, None, None))
        return mesh >= 0

    def normals(self, seen: Seen, hits: Hits) -> Tensor:
        """Unit normals [Q, n, 3] of the faces that were hit, as wound, query frame; zero without a hit."""
        first = torch.tensor([0, *np.cumsum([len(faces) for _, faces in self.joined])], device=self.device)
        found = hits.mesh >= 0
        mesh = hits.mesh.clamp(min=0).long()
        local = self._face_normals[torch.where(found, first[mesh] + hits.face, 0)]
        rotation = torch.gather(seen.rotation, 1, mesh[..., None, None].expand(*mesh.shape, 3, 3))
        return torch.where(found[..., None], (rotation.mT @ local[..., None])[..., 0], 0.0)

    def body_of(self, mesh: Tensor) -> Tensor:
        """Body ids int32 of the rows in `Hits.mesh`, -1 for none."""
        return torch.tensor([*self.bodies, -1], dtype=torch.int32, device=self.device)[mesh.long()]

    def _trace(
        self,
        seen: Seen,
        directions: Tensor,
        origins: Tensor | None,
        limits: tuple[float, float, Tensor | None],
        out: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    ) -> None:
        rays, starts = (_per_frame(v, self.device) for v in (directions, origins))
        if self.backend == "warp":
            self._trace_warp(seen, rays, starts, limits, out)
            return
        packed = torch.cat([seen.rotation.flatten(2), seen.translation, seen.spheres], -1)
        t_min, t_max, each = limits
        if each is not None:
            each = each.float().contiguous()
        _cpu.trace(self._bvhs, packed, starts, rays, t_min, t_max, each, *out, self.threads)

    def _trace_warp(self, seen: Seen, directions: Any, origins: Any, limits: Any, out: Any) -> None:
        import warp as wp

        from real2sim.sim.trace_kernels import Bodies, trace

        t_min, t_max, each = limits
        mesh, t, face, uv = out
        bodies = Bodies()
        bodies.meshes = wp.array([m.id for m in self._bvhs], dtype=wp.uint64, device=self.device)
        bodies.rotations = wp.from_torch(seen.rotation, dtype=wp.mat33)
        bodies.translations = wp.from_torch(seen.translation, dtype=wp.vec3)
        bodies.spheres = wp.from_torch(seen.spheres, dtype=wp.vec4)
        none = torch.zeros(1, 1, 3, device=self.device)
        if each is None:
            each = torch.full((1, 1), t_max, device=self.device)
        filler = torch.empty(1, 1, device=self.device)
        inputs = [bodies, *(wp.from_torch(none if v is None else v, dtype=wp.vec3) for v in (origins, directions))]
        inputs += [t_min, wp.from_torch(each.float().contiguous()), t is None]
        inputs += [wp.from_torch(filler if t is None else t), wp.from_torch(mesh)]
        inputs += [wp.from_torch(mesh if face is None else face)]
        inputs += [wp.from_torch(none[..., :2].contiguous() if uv is None else uv, dtype=wp.vec2)]
        if self.device == "cpu":
            wp.launch(trace, mesh.shape, inputs=inputs, device="cpu")
            return
        with wp.ScopedStream(wp.stream_from_torch(torch.cuda.current_stream(self.device)), sync_enter=False):
            wp.launch(trace, mesh.shape, inputs=inputs, device=self.device)


def join(meshes: Sequence[BodyMesh]) -> tuple[np.ndarray, np.ndarray]:
    """Vertices [V, 3] float32 and faces [F, 3] int32 of several meshes of one body, one after another."""
    starts = np.cumsum([0, *[len(mesh.vertices) for mesh in meshes]])
    faces = [mesh.faces + start for mesh, start in zip(meshes, starts[:-1], strict=True)]
    return np.concatenate([mesh.vertices for mesh in meshes]), np.concatenate(faces).astype(np.int32)


def face_normals(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Unit normals [F, 3] float32 of triangles, by the right hand; zero for those without an area."""
    a, b, c = (vertices[faces[:, k]].astype(np.float64) for k in range(3))
    across = np.cross(b - a, c - a)
    return (across / np.maximum(np.linalg.norm(across, axis=1, keepdims=True), 1e-300)).astype(np.float32)


def bounding_sphere(vertices: np.ndarray) -> list[float]:
    """Centre and radius of a sphere that holds vertices [V, 3], a little larger than needed."""
    centre = (vertices.min(0) + vertices.max(0)).astype(np.float64) / 2
    radius = np.linalg.norm(vertices - centre, axis=1).max() * (1 + 1e-5) + 1e-6
    return [*centre.tolist(), float(radius)]


def pose_matrices(poses: Any, device: str = "cpu") -> Tensor:
    """T_world_body [..., 4, 4] float64 of poses [..., 7]: position [m] and quaternion wxyz of any norm but zero.

    Raises UsageError for another shape, for values that are not finite, and for zero quaternions.
    """
    p = torch.as_tensor(poses).to(device=device, dtype=torch.float64)
    if p.ndim < 1 or p.shape[-1] != 7:
        raise UsageError(f"Poses are [..., 7], position and quaternion wxyz; received shape {tuple(p.shape)}.")
    norm = p[..., 3:].norm(dim=-1, keepdim=True)
    if not bool(torch.isfinite(p).all() and (norm > 0).all()):
        bad = torch.nonzero(~(torch.isfinite(p).all(-1) & (norm[..., 0] > 0)))[0].tolist()
        raise UsageError(f"Poses need finite values and a quaternion that is not zero; pose {bad} has not.")
    w, x, y, z = (p[..., 3:] / norm).unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), p[..., 0]],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x), p[..., 1]],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y), p[..., 2]],
        [torch.zeros_like(w)] * 3 + [torch.ones_like(w)],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _per_frame(vectors: Tensor | None, device: str) -> Tensor | None:
    """Vectors [n, 3] or [Q, n, 3] as [1 or Q, n, 3] float32."""
    if vectors is None:
        return None
    vectors = vectors.to(device=device, dtype=torch.float32).contiguous()
    return vectors[None] if vectors.ndim == 2 else vectors


def _warp_mesh(vertices: np.ndarray, faces: np.ndarray, device: str) -> Any:
    import warp as wp

    points: Any = wp.array(vertices, dtype=wp.vec3, device=device)
    corners: Any = wp.array(faces.ravel(), dtype=wp.int32, device=device)
    return wp.Mesh(points, corners, bvh_constructor="sah" if device == "cpu" else "lbvh")
