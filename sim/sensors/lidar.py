# SPDX-License-Identifier: Apache-2.0
"""LiDAR and height scans against meshes posed per world, and against splats; batched, on CPU and CUDA.

A robot's own links are meshes like all others, so they block its rays; what is nearer than `min_range` (the sensor's
housing) does not. Every world has a seed of its own: a world's scan does not depend on which others are scanned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real2sim.errors import UsageError
from real2sim.sim.sensors.noise import normal, uniform, world_seeds
from real2sim.sim.trace import Tracer, pose_matrices


@dataclass(frozen=True)
class RangeNoise:
    """How measured ranges differ from true ones.

    sigma_m: standard deviation [m]; relative: of it per metre of range; dropout: share of returns lost at random;
    falloff: the received power of a matt surface goes with cos(incidence) / range^2, so that a surface seen at an angle
    is lost beyond max_range * sqrt(cos(incidence)).
    """

    sigma_m: float = 0.0
    relative: float = 0.0
    dropout: float = 0.0
    falloff: bool = False

    def __post_init__(self) -> None:
        if not (self.sigma_m >= 0 and self.relative >= 0 and 0 <= self.dropout <= 1):
            raise UsageError(f"Noise needs sigma_m >= 0, relative >= 0 and dropout in 0..1, received {self}.")

    @property
    def random(self) -> bool:
        """Whether a scan needs random numbers."""
        return self.sigma_m > 0 or self.relative > 0 or self.dropout > 0


@dataclass
class Scan:
    """ranges [nworld, nray] float32 [m], infinite without a return; bodies [nworld, nray] int32: what was met, -1
    without a return; directions [nray, 3], sensor frame."""

    ranges: Tensor
    bodies: Tensor
    directions: Tensor

    def points(self) -> Tensor:
        """Points [nworld, nray, 3] in the sensor frame, NaN without a return."""
        ranges = torch.where(torch.isfinite(self.ranges), self.ranges, torch.nan)
        return ranges[..., None] * self.directions


class Lidar:
    """A LiDAR on a body. tracer: the meshes that it sees; body and mount: where it sits, `mount` [7] T_body_sensor."""

    def __init__(
        self,
        tracer: Tracer,
        body: int = 0,
        mount: Sequence[float] = (0, 0, 0, 1, 0, 0, 0),
        *,
        min_range: float = 0.1,
        max_range: float = 100.0,
        noise: RangeNoise = RangeNoise(),
    ) -> None:
        if not 0 <= min_range < max_range:
            raise UsageError(f"A LiDAR needs 0 <= min_range < max_range, received {min_range} and {max_range} m.")
        self.tracer, self.body, self.noise = tracer, body, noise
        self.min_range, self.max_range = float(min_range), float(max_range)
        self._mount = pose_matrices(mount, tracer.device)

    def poses(self, body_poses: Any) -> Tensor:
        """T_world_sensor [nworld, 4, 4] float64 for body_poses [nworld, nbody, 7]."""
        return self._mounted(pose_matrices(body_poses, self.tracer.device))

    def scan(
        self, body_poses: Any, directions: Any, *, seeds: Any = None, splat: tuple[Any, Any] | None = None
    ) -> Scan:
        """One scan of every world.

        body_poses [nworld, nbody, 7] m and wxyz; directions [nray, 3] unit, sensor frame (see `lidar_patterns`);
        seeds [nworld] unsigned 32-bit: of the noise, needed where there is some; give new ones for each scan. splat:
        ranges [nworld, nray] m, infinite where nothing is, and bodies [nworld, nray], of a splat along the same rays;
        the nearer counts.
        """
        tracer = self.tracer
        matrices = pose_matrices(body_poses, tracer.device)
        if matrices.ndim != 4:
            raise UsageError(f"body_poses is [nworld, nbody, 7], received {tuple(torch.as_tensor(body_poses).shape)}.")
        rays = _unit_directions(directions).to(tracer.device)
        seen = tracer.seen_from(self._mounted(matrices), matrices)
        hits = tracer.nearest(seen, rays, t_min=self.min_range, t_max=self.max_range)
        ranges, bodies = hits.t, tracer.body_of(hits.mesh)
        cosine = (tracer.normals(seen, hits) * rays).sum(-1).abs() if self.noise.falloff else torch.ones_like(ranges)
        if splat is not None:
            ranges, bodies, cosine = _nearer(ranges, bodies, cosine, splat)
        ranges = self._measured(ranges, cosine, seeds)
        return Scan(ranges, torch.where(torch.isfinite(ranges), bodies, -1), rays)

    def _mounted(self, matrices: Tensor) -> Tensor:
        if not 0 <= self.body < matrices.shape[1]:
            raise UsageError(f"The LiDAR sits on body {self.body}, received poses of {matrices.shape[1]} bodies.")
        return matrices[:, self.body] @ self._mount

    def _measured(self, ranges: Tensor, cosine: Tensor, seeds: Any) -> Tensor:
        """True ranges [nworld, nray] as they are measured: noise, weak and lost returns; infinite where none is left."""
        noise, (nworld, nray) = self.noise, ranges.shape
        lost = torch.isinf(ranges)
        if noise.falloff:
            lost |= ranges > self.max_range * cosine.sqrt()
        if noise.random:
            keys = world_seeds(seeds, nworld, ranges.device)
            sigma = noise.sigma_m + noise.relative * ranges
            ranges = torch.where(lost, ranges, ranges + sigma * normal(keys, nray))
            lost |= uniform(keys, nray) < noise.dropout
        lost |= (ranges < self.min_range) | (ranges > self.max_range)
        return torch.where(lost, torch.inf, ranges)


class HeightScan:
    """Heights of the ground on a grid around a body that turns with the body's heading and stays level.

    size [m] along x and y; spacing [m]; above [m]: rays start so far above the body; bodies of the tracer's meshes that
    should not count (the robot's own links) belong into another tracer.
    """

    def __init__(
        self,
        tracer: Tracer,
        body: int,
        size: tuple[float, float] = (1.6, 1.0),
        spacing: float = 0.1,
        *,
        above: float = 2.0,
        reach: float = 100.0,
    ) -> None:
        if not (min(size) >= 0 and spacing > 0 and reach > 0):
            raise UsageError(f"A height scan needs a size, a spacing and a reach, received {size}, {spacing}, {reach}.")
        x, y = (np.arange(round(s / spacing) + 1) * spacing - round(s / spacing) * spacing / 2 for s in size)
        self.grid = np.stack(np.meshgrid(x, y, indexing="ij"), -1)  # [nx, ny, 2]
        self.tracer, self.body, self.above, self.reach = tracer, body, above, reach

    def scan(self, body_poses: Any) -> Tensor:
        """Heights relative to the body's origin [nworld, nx, ny] float32 [m], NaN where no ray meets anything."""
        tracer = self.tracer
        matrices = pose_matrices(body_poses, tracer.device)
        if matrices.ndim != 4 or not 0 <= self.body < matrices.shape[1]:
            raise UsageError(f"body_poses is [nworld, nbody > {self.body}, 7], received {tuple(matrices.shape[:-2])}.")
        frames = heading_frames(matrices[:, self.body])
        count = self.grid[..., 0].size
        starts = torch.tensor(np.concatenate([self.grid.reshape(-1, 2), np.full((count, 1), self.above)], 1))
        down = torch.tensor([0.0, 0.0, -1.0]).expand(count, 3)
        hits = tracer.nearest(tracer.seen_from(frames, matrices), down, starts, t_max=self.reach)
        heights = torch.where(torch.isfinite(hits.t), self.above - hits.t, torch.nan)
        return heights.reshape(len(frames), *self.grid.shape[:2])


def heading_frames(poses: Tensor) -> Tensor:
    """Level frames [n, 4, 4] at poses [n, 4, 4] whose x points where the pose's x does, seen from above."""
    forward = poses[:, :2, 0]
    upright = forward.norm(dim=-1, keepdim=True) > 1e-6
    c, s = torch.where(
        upright, forward / forward.norm(dim=-1, keepdim=True).clamp(min=1e-12), forward.new_tensor([1, 0])
    ).T
    frames = torch.eye(4, dtype=poses.dtype, device=poses.device).repeat(len(poses), 1, 1)
    frames[:, 0, 0], frames[:, 0, 1], frames[:, 1, 0], frames[:, 1, 1] = c, -s, s, c
    frames[:, :3, 3] = poses[:, :3, 3]
    return frames


def _unit_directions(directions: Any) -> Tensor:
    """Directions [nray, 3] as float32, of length 1."""
    rays = np.asarray(directions, np.float64)
    if rays.ndim != 2 or rays.shape[1] != 3 or len(rays) == 0:
        raise UsageError(f"directions is [nray, 3], received {rays.shape}.")
    norm = np.linalg.norm(rays, axis=1)
    if not np.isfinite(norm).all() or np.abs(norm - 1).max() > 1e-4:
        raise UsageError(f"directions have length 1, received lengths {norm.min():.6g} to {norm.max():.6g}.")
    return torch.tensor(rays / norm[:, None], dtype=torch.float32)


def _nearer(ranges: Tensor, bodies: Tensor, cosine: Tensor, splat: tuple[Any, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The nearer of two returns; a splat's incidence is not known and counts as head-on."""
    other, whose = (torch.as_tensor(v).to(ranges.device) for v in splat)
    if other.shape != ranges.shape or whose.shape != ranges.shape:
        shapes = f"{tuple(other.shape)} and {tuple(whose.shape)}"
        raise UsageError(f"splat needs ranges and bodies of shape {tuple(ranges.shape)}, received {shapes}.")
    first = other < ranges
    return (
        torch.where(first, other.float(), ranges),
        torch.where(first, whose.int(), bodies),
        torch.where(first, torch.ones_like(cosine), cosine),
    )
