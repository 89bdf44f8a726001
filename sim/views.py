# SPDX-License-Identifier: Apache-2.0
"""Cameras that look at the scene from near where the capture looked: for films, for checks, for pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.sim.support import inside_polygon, polygon_centroid

Array = NDArray[np.float64]
UP = np.array([0.0, 0.0, 1.0])


def look_at(eye: Any, target: Any) -> Array:
    """Pose T_world_cam [4, 4], OpenCV axes, at `eye` [3] looking at `target` [3] with the horizon level."""
    eye = np.asarray(eye, np.float64)
    forward = np.asarray(target, np.float64) - eye
    forward /= np.linalg.norm(forward)
    side = np.cross(forward, UP)
    right = side / np.linalg.norm(side) if np.linalg.norm(side) > 1e-6 else np.array([1.0, 0.0, 0.0])
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(forward, right), forward], -1)
    pose[:3, 3] = eye
    return pose


def view_centre(cameras: list[Camera], support: dict[str, Any] | None) -> Array:
    """What the capture looks at [3]: the support's centre, or the point nearest to all optical axes (least squares)."""
    if support is not None:
        return np.array([*polygon_centroid(support["polygon"]), support["height"]])
    A, b = 1e-9 * np.eye(3), np.zeros(3)
    for camera in cameras:
        axis = camera.T_world_cam[:3, 2]
        across = np.eye(3) - np.outer(axis, axis)
        A, b = A + across, b + across @ camera.centre
    return np.asarray(np.linalg.solve(A, b), np.float64)


def fitted(camera: Camera, width: int, height: int) -> Camera:
    """The camera at another size: scaled, and cropped about its centre where the aspect ratio differs."""
    scale = max(width / camera.width, height / camera.height)
    K = np.diag([scale, scale, 1.0]) @ camera.K
    K[:2, 2] -= (np.array([scale * camera.width, scale * camera.height]) - [width, height]) / 2
    return Camera(camera.name, width, height, K, camera.T_world_cam)


def best_camera(cameras: list[Camera], support: dict[str, Any] | None) -> Camera:
    """The camera that shows most of the scene: the support in the picture, seen from about 35 degrees above."""
    centre = view_centre(cameras, support)

    def score(camera: Camera) -> float:
        towards = camera.centre - centre
        elevation = np.degrees(np.arcsin(np.clip(towards[2] / np.linalg.norm(towards), -1, 1)))
        return share_in_view(camera, support) - abs(elevation - 35) / 90

    return max(cameras, key=score)


def share_in_view(camera: Camera, support: dict[str, Any] | None) -> float:
    """Share of the support's area that projects into the camera's image; 0 without a support."""
    if support is None:
        return 0.0
    corners = np.asarray(support["polygon"], np.float64)
    axes = [np.linspace(low, high, 24) for low, high in zip(corners.min(0), corners.max(0))]
    grid = np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)
    grid = grid[inside_polygon(grid, corners)]
    points = np.column_stack([grid, np.full(len(grid), support["height"])])
    local = points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    pixels = local @ camera.K.T
    with np.errstate(divide="ignore", invalid="ignore"):
        u, v = pixels[:, 0] / pixels[:, 2], pixels[:, 1] / pixels[:, 2]
    seen = (local[:, 2] > 0) & (u >= 0) & (u < camera.width) & (v >= 0) & (v < camera.height)
    return float(seen.mean()) if len(seen) else 0.0


def orbit_view(camera: Camera, centre: Array, degrees: float) -> Camera:
    """The camera carried around the vertical axis through `centre` by an angle."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]])
    pose = camera.T_world_cam.copy()
    pose[:3, :3] = turn @ pose[:3, :3]
    pose[:3, 3] = centre + turn @ (pose[:3, 3] - centre)
    return Camera(camera.name, camera.width, camera.height, camera.K, pose)


def hemisphere(
    cameras: list[Camera], support: dict[str, Any] | None, count: int, width: int, *, within_deg: float = 20.0
) -> list[Camera]:
    """`count` new cameras spread over the directions from which the capture saw the scene, looking at its centre.

    Directions of a Fibonacci lattice are kept where a capture camera lies within `within_deg` of them (above the
    support, where there is one); each stands as far from the centre as the nearest such camera. width: of the images
    [px], with the capture's median field of view and shape. A view that nothing was ever seen from proves nothing.
    """
    centre = view_centre(cameras, support)
    offsets = np.stack([camera.centre - centre for camera in cameras])
    ranges = np.linalg.norm(offsets, axis=-1)
    lattice = fibonacci_sphere(8192)
    cosines = lattice @ (offsets / ranges[:, None]).T
    seen = cosines.max(1) >= np.cos(np.radians(within_deg))
    if support is not None:
        seen &= lattice[:, 2] > np.sin(np.radians(10.0))
    candidates = np.flatnonzero(seen)
    if len(candidates) == 0:
        return []
    picked = candidates[np.linspace(0, len(candidates) - 1, count).round().astype(int)]
    middle = cameras[len(cameras) // 2]
    height = max(1, round(width * middle.height / middle.width))
    focal = float(np.median([camera.K[0, 0] / camera.width for camera in cameras])) * width
    K = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    return [
        Camera(f"check_{i:02d}", width, height, K, look_at(centre + ranges[cosines[k].argmax()] * lattice[k], centre))
        for i, k in enumerate(picked)
    ]


def fibonacci_sphere(count: int) -> Array:
    """Unit vectors [count, 3], evenly spread, from the top down."""
    k = np.arange(count) + 0.5
    z, angle = 1 - 2 * k / count, np.pi * (1 + 5**0.5) * k
    radius = np.sqrt(1 - z * z)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), z], -1)
