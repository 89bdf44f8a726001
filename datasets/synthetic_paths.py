# SPDX-License-Identifier: Apache-2.0
"""How the photographer moves: camera poses T_world_cam [4, 4] around the known-truth table (its top is z = 0)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
PathName = Literal["orbits", "arc", "walk", "rotation", "flyby"]
TARGET = np.array([0.0, 0.0, 0.04])  # m, what the photographer looks at


def camera_poses(path: PathName, frames: int, rng: Generator) -> list[Array]:
    """Poses of `frames` photos along a path."""
    if path == "orbits":
        return _orbits(frames, rng)
    if path == "arc":
        return _arc(frames, rng)
    if path == "walk":
        return _walk(frames, rng)
    if path == "rotation":
        return _rotation(frames, rng)
    return _flyby(frames, rng)


def look_at(eye: ArrayLike, target: ArrayLike, roll: float = 0.0) -> Array:
    """T_world_cam [4, 4] of a camera at `eye` that looks at `target`, upright but for `roll` [rad] about its axis."""
    eye = np.asarray(eye, np.float64)
    forward = np.asarray(target, np.float64) - eye
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0, 0, 1])
    right /= np.linalg.norm(right)
    down = np.cross(forward, right)
    c, s = np.cos(roll), np.sin(roll)
    T = np.eye(4)
    T[:3, :3] = np.stack([c * right + s * down, c * down - s * right, forward], 1)
    T[:3, 3] = eye
    return T


def _spherical(azimuth: float, elevation: float, radius: float) -> Array:
    level = radius * np.cos(elevation)
    return TARGET + np.array([level * np.cos(azimuth), level * np.sin(azimuth), radius * np.sin(elevation)])


def _hand(rng: Generator, eye: Array, target: Array, amount: float = 1.0) -> Array:
    """A pose as a hand holds it: 1 cm off, looking 2.5 cm beside the target, rolled by 1.5 degrees (one sigma)."""
    eye = eye + amount * rng.normal(0, 0.01, 3)
    return look_at(eye, target + amount * rng.normal(0, 0.025, 3), amount * rng.normal(0, np.radians(1.5)))


def _orbits(frames: int, rng: Generator) -> list[Array]:
    """Three rings, low and far to high and near, each continuing where the last one ended."""
    rings = ((24.0, 0.98), (40.0, 0.88), (58.0, 0.76))  # elevation [deg], radius [m]
    start = rng.uniform(0, 2 * np.pi)
    poses = []
    for ring, share in enumerate(np.array_split(np.arange(frames), len(rings))):
        elevation, radius = np.radians(rings[ring][0]), rings[ring][1]
        for k in range(len(share)):
            azimuth = start + 2 * np.pi * (k + ring / 3) / len(share)
            poses.append(_hand(rng, _spherical(azimuth, elevation, radius), TARGET))
    return poses


def _arc(frames: int, rng: Generator) -> list[Array]:
    """A third of a turn at one height that rises and falls a little."""
    start = rng.uniform(0, 2 * np.pi)
    poses = []
    for t in np.linspace(0, 1, frames):
        elevation = np.radians(34 + 6 * np.sin(2 * np.pi * t))
        poses.append(_hand(rng, _spherical(start + t * 2 * np.pi / 3, elevation, 0.9), TARGET))
    return poses


def _walk(frames: int, rng: Generator) -> list[Array]:
    """A person with a phone goes two thirds of the way round: steps bob, the gaze wanders over the table."""
    start, phases = rng.uniform(0, 2 * np.pi), rng.uniform(0, 2 * np.pi, 6)
    poses = []
    for t in np.linspace(0, 1, frames):
        sway = np.sin(2 * np.pi * np.array([1.3, 2.1, 14.0, 1.7, 2.6, 9.0]) * t + phases)
        elevation = np.radians(36 + 9 * sway[0])
        eye = _spherical(start + t * 4 * np.pi / 3, elevation, 0.88 + 0.09 * sway[1])
        eye[2] += 0.012 * sway[2]
        target = TARGET + np.array([0.13 * sway[3], 0.10 * sway[4], 0.01 * sway[5]])
        poses.append(_hand(rng, eye, target, 0.3))
    return poses


def _rotation(frames: int, rng: Generator) -> list[Array]:
    """The camera turns about its own centre: no parallax, so nothing can be measured."""
    azimuth = rng.uniform(0, 2 * np.pi)
    eye = _spherical(azimuth, np.radians(32), 0.95)
    poses = []
    for k, angle in enumerate(np.radians(np.linspace(-28, 28, frames))):
        c, s = np.cos(angle), np.sin(angle)
        ahead = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ (TARGET - eye)
        poses.append(look_at(eye, eye + ahead + [0, 0, 0.12 * (k % 3 - 1)]))
    return poses


def _flyby(frames: int, rng: Generator) -> list[Array]:
    """A straight pass beside the table; the camera turns half as much as would keep the target in the middle."""
    side = rng.choice([-1.0, 1.0])
    poses = []
    for t in np.linspace(-1, 1, frames):
        poses.append(_hand(rng, np.array([0.65 * t, 0.9 * side, 0.5]), TARGET + np.array([0.35 * t, 0, 0]), 0.5))
    return poses
