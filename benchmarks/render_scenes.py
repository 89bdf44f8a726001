# SPDX-License-Identifier: Apache-2.0
"""What the renderer's benchmark draws: templates from files, 20 bodies cut out of them, cameras inside the room."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from real2sim.sim.render.clusters import drawable, morton_codes
from real2sim.sim.render.splat import Splat

BODIES, MOVING_SHARE, FOCAL = 20, 0.1, 450.0  # focal length [px] at 640 px


@dataclass
class Case:
    """A template cut into bodies and Morton-ordered; centres [BODIES + 1, 3]: where each body stood (row 0 is zero)."""

    name: str
    template: Splat
    body_ids: NDArray[np.int32]
    centres: NDArray[np.float64]

    @property
    def moving(self) -> int:
        return int((self.body_ids > 0).sum())


def load_room(path: Path) -> Splat:
    """A stored room (npz: means quats logscales opac sh0 sh1_x64), degree 1; opac is the activated opacity."""
    stored = np.load(path)
    opacity = stored["opac"].astype(np.float64).clip(1e-6, 1 - 1e-6)
    return Splat(
        stored["means"],
        stored["quats"].astype(np.float32),
        stored["logscales"].astype(np.float32),
        np.log(opacity / (1 - opacity)),
        stored["sh0"].astype(np.float32)[:, None],
        stored["sh1_x64"].astype(np.float32) / 64,
    )


def load_capture(path: Path) -> Splat:
    """A splat of a real capture: PLY, or its arrays by name in an npz."""
    return Splat(**np.load(path)) if path.suffix == ".npz" else Splat.load(path)


def with_degree(splat: Splat, degree: int) -> Splat:
    """Harmonics cut, or padded with small seeded coefficients, to a degree."""
    count = (degree + 1) ** 2 - 1
    noise = np.random.default_rng(0).normal(0, 0.02, (len(splat), count, 3)).astype(np.float32)
    kept = min(count, splat.shN.shape[1])
    noise[:, :kept] = splat.shN[:, :kept]
    return Splat(splat.means, splat.quats, splat.log_scales, splat.logit_opacities, splat.sh0, noise)


def cut_bodies(name: str, splat: Splat, seed: int = 0, around: NDArray[np.float64] | None = None) -> Case:
    """A tenth of the Gaussians rides on 20 bodies: the neighbours of seeds all over the scene, or near one point."""
    splat = splat.select(drawable(splat))
    rng = np.random.default_rng(seed)
    body_ids = np.zeros(len(splat), np.int32)
    centres = np.zeros((BODIES + 1, 3))
    each = int(len(splat) * MOVING_SHARE / BODIES)
    for body in range(1, BODIES + 1):
        free = np.nonzero(body_ids == 0)[0]
        target = splat.means[rng.choice(free)] if around is None else around
        near = free[np.argpartition(((splat.means[free] - target) ** 2).sum(1), each)[:each]]
        body_ids[near] = body
        centres[body] = splat.means[near].mean(0)
    means = splat.means - centres[body_ids].astype(np.float32)
    splat = Splat(means, splat.quats, splat.log_scales, splat.logit_opacities, splat.sh0, splat.shN)
    order = np.lexsort((morton_codes(splat.means), body_ids))
    return Case(name, splat.select(order), body_ids[order], centres)


def body_poses(case: Case, nworld: int, reach: float, seed: int = 1) -> NDArray[np.float32]:
    """[nworld, BODIES + 1, 7]: each body near where it stood, turned at random."""
    rng = np.random.default_rng(seed)
    poses = np.zeros((nworld, BODIES + 1, 7), np.float32)
    poses[..., :3] = case.centres + rng.uniform(-reach, reach, (nworld, BODIES + 1, 3))
    quats = np.array([1.0, 0, 0, 0]) + rng.normal(0, 0.3, (nworld, BODIES + 1, 4))
    poses[..., 3:] = quats / np.linalg.norm(quats, axis=-1, keepdims=True)
    return poses


def room_cameras(splat: Splat, count: int, seed: int = 2) -> NDArray[np.float32]:
    """viewmats [count, 4, 4] inside the middle of the scene, z up, looking about level."""
    rng = np.random.default_rng(seed)
    low, high = np.quantile(splat.means, [0.1, 0.9], axis=0)
    eye = low + (high - low) * rng.uniform(0.3, 0.7, (count, 3))
    yaw, pitch = rng.uniform(0, 2 * np.pi, count), rng.uniform(-0.4, 0.15, count)
    z = np.stack([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)], 1)
    x = np.stack([np.sin(yaw), -np.cos(yaw), np.zeros(count)], 1)
    rotation = np.stack([x, np.cross(z, x), z], 1)
    viewmats = np.tile(np.eye(4, dtype=np.float32), (count, 1, 1))
    viewmats[:, :3, :3] = rotation
    viewmats[:, :3, 3] = -np.einsum("nij,nj->ni", rotation, eye)
    return viewmats


def intrinsics(width: int, height: int) -> NDArray[np.float32]:
    """K [3, 3] of the benchmark's camera at a size."""
    f = FOCAL * width / 640
    return np.array([[f, 0, width / 2], [0, f, height / 2], [0, 0, 1]], np.float32)


class Posed:
    """The Gaussians of many worlds for a rasteriser without bodies: the template with its moving tail posed."""

    def __init__(self, case: Case, device: str) -> None:
        t = case.template
        order = np.argsort(case.body_ids, kind="stable")
        self.means, self.quats, self.scales, self.opacities, self.sh = (
            torch.as_tensor(v[order]).to(device) for v in (t.means, t.quats, t.scales, t.opacities, t.sh)
        )
        self.bodies = torch.as_tensor(case.body_ids[order].astype(np.int64)).to(device)
        self.static = int((case.body_ids == 0).sum())
        self.colours = (self.sh[:, 0] * 0.28209479177387814 + 0.5).clamp(min=0)

    def world(self, poses: Any) -> tuple[Any, Any]:
        """means [B, N, 3], quats [B, N, 4] of body_poses [B, nbody, 7]."""
        mine = poses[:, self.bodies[self.static :]]
        p, q = mine[..., :3], mine[..., 3:]
        m = self.means[self.static :].expand(len(poses), -1, -1)
        uv = torch.linalg.cross(q[..., 1:], m)
        moved = m + 2 * (q[..., :1] * uv + torch.linalg.cross(q[..., 1:], uv)) + p
        w, v = self.quats[self.static :, :1], self.quats[self.static :, 1:]
        turned = torch.cat(
            [q[..., :1] * w - (q[..., 1:] * v).sum(-1, keepdim=True),
             q[..., :1] * v + w * q[..., 1:] + torch.linalg.cross(q[..., 1:], v.expand_as(q[..., 1:]))], -1)  # fmt: skip
        fixed = [x[: self.static].expand(len(poses), -1, -1) for x in (self.means, self.quats)]
        return torch.cat([fixed[0], moved], 1), torch.cat([fixed[1], turned], 1)


def cameras_around(splat: Splat, count: int, seed: int = 3) -> NDArray[np.float32]:
    """viewmats [count, 4, 4] that look at the middle of a capture from outside of its densest part."""
    rng = np.random.default_rng(seed)
    middle = np.median(splat.means, axis=0)
    radius = 1.5 * np.quantile(np.linalg.norm(splat.means - middle, axis=1), 0.5)
    directions = rng.normal(size=(count, 3))
    directions[:, 2] = np.abs(directions[:, 2]) * 0.5
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    viewmats = np.tile(np.eye(4, dtype=np.float32), (count, 1, 1))
    for V, d in zip(viewmats, directions, strict=True):
        x = np.cross(-d, [0, 0, 1.0])
        x /= np.linalg.norm(x)
        V[:3, :3] = np.stack([x, np.cross(-d, x), -d])
        V[:3, 3] = -V[:3, :3] @ (middle + radius * d)
    return viewmats
