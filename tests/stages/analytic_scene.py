# SPDX-License-Identifier: Apache-2.0
"""A scene of analytic shapes (room, table, things on it), seen by exact pinhole cameras: the oracle of geometry tests.

World frame: metres, z up, the table's top at z = 0.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera, write_cameras
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import Similarity

Array = NDArray[np.float64]
MARKER_ID = 7


@dataclass(frozen=True)
class Box:
    low: tuple[float, float, float]
    high: tuple[float, float, float]

    def hit(self, origin: Array, rays: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            a, b = (np.array(self.low) - origin) / rays, (np.array(self.high) - origin) / rays
        near, far = np.minimum(a, b).max(-1), np.maximum(a, b).min(-1)
        inside = near < 1e-9
        t = np.where(inside, far, near)
        return np.where((far > np.maximum(near, 0)) & (t > 0), t, np.inf)


@dataclass(frozen=True)
class Sphere:
    centre: tuple[float, float, float]
    radius: float

    def hit(self, origin: Array, rays: Array) -> Array:
        o = origin - np.array(self.centre)
        a, b, c = (rays**2).sum(-1), rays @ o, o @ o - self.radius**2
        root = b * b - a * c
        t = (-b - np.sqrt(np.maximum(root, 0))) / a
        return np.where((root > 0) & (t > 0), t, np.inf)


@dataclass(frozen=True)
class Cylinder:
    """Upright, solid."""

    centre: tuple[float, float]
    radius: float
    low: float
    high: float

    def hit(self, origin: Array, rays: Array) -> Array:
        o, d = origin[:2] - np.array(self.centre), rays[..., :2]
        a, b, c = (d**2).sum(-1), d @ o, o @ o - self.radius**2
        root = b * b - a * c
        t = (-b - np.sqrt(np.maximum(root, 0))) / np.maximum(a, 1e-12)
        z = origin[2] + t * rays[..., 2]
        side = np.where((root > 0) & (t > 0) & (z > self.low) & (z < self.high), t, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            cap = (self.high - origin[2]) / rays[..., 2]
        r = ((o + cap[..., None] * d) ** 2).sum(-1)
        return np.minimum(side, np.where((cap > 0) & (r < self.radius**2), cap, np.inf))


ROOM = Box((-2.5, -2.5, -0.75), (2.5, 2.5, 1.8))
TABLE = Box((-0.6, -0.4, -0.04), (0.6, 0.4, 0.0))
THINGS = [
    Box((-0.35, -0.15, 0.0), (-0.15, 0.05, 0.12)),
    Sphere((0.1, 0.2, 0.06), 0.06),
    Cylinder((0.3, -0.15), 0.04, 0.0, 0.15),
]


@dataclass
class Scene:
    shapes: list = field(default_factory=lambda: [ROOM, TABLE, *THINGS])

    def distance(self, origin: Array, rays: Array) -> tuple[Array, NDArray[np.int64]]:
        """Ray parameter of the first hit and the shape that is hit."""
        hits = np.stack([s.hit(origin, rays) for s in self.shapes])
        first = hits.argmin(0)
        return hits.min(0), first

    def depth(self, camera: Camera) -> tuple[Array, NDArray[np.int64]]:
        """Depth along the optical axis [H, W] and the index of the shape [H, W]."""
        return self.distance(camera.centre, rays_of(camera))


def rays_of(camera: Camera) -> Array:
    """World directions [H, W, 3] of depth 1 along the optical axis."""
    v, u = np.mgrid[: camera.height, : camera.width] + 0.5
    local = np.stack(
        [(u - camera.K[0, 2]) / camera.K[0, 0], (v - camera.K[1, 2]) / camera.K[1, 1], np.ones_like(u)], -1
    )
    return local @ camera.T_world_cam[:3, :3].T


def look_at(eye: Array, target: Array) -> Array:
    z = (target - eye) / np.linalg.norm(target - eye)
    x = np.cross(z, [0.0, 0.0, 1.0])
    x /= np.linalg.norm(x)
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = np.stack([x, np.cross(z, x), z], 1), eye
    return T


def orbit(
    count: int = 24, width: int = 160, height: int = 120, radius: float = 1.1, target=(0.0, 0.0, 0.03)
) -> list[Camera]:
    """Cameras around the table at two heights in turn, all looking at it."""
    f = 0.9 * width
    K = np.array([[f, 0, width / 2], [0, f, height / 2], [0, 0, 1.0]])
    cameras = []
    for i in range(count):
        angle = 2 * np.pi * i / count + 0.1
        high = i % 2
        eye = np.array([radius * np.cos(angle), radius * np.sin(angle), 0.45 + 0.45 * high])
        cameras.append(Camera(f"{i:05d}", width, height, K, look_at(eye, np.array(target)), heldout=i % 8 == 7))
    return cameras


def random_similarity(seed: int = 3, scale: float = 2.7) -> Similarity:
    """T_sfm_world with a tilted, shifted frame."""
    rng = np.random.default_rng(seed)
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    if np.linalg.det(q) < 0:
        q[:, 0] *= -1
    return Similarity(scale, q, rng.normal(size=3))


def sparse_cloud(scene: Scene, cameras: list[Camera], count: int, noise_px: float, seed: int = 0) -> dict[str, Array]:
    """Points on the surfaces with tracks over all cameras that see them, in the world frame; noise in pixels."""
    rng = np.random.default_rng(seed)
    points = []
    for camera in cameras:
        depth, _ = scene.depth(camera)
        n = count // len(cameras)
        v, u = rng.integers(0, camera.height, n), rng.integers(0, camera.width, n)
        points.append(camera.centre + depth[v, u, None] * rays_of(camera)[v, u])
    xyz = np.concatenate(points)
    rows = []
    for index, camera in enumerate(cameras):
        local = (xyz - camera.centre) @ camera.T_world_cam[:3, :3]
        uv = local[:, :2] / local[:, 2:] * np.diag(camera.K)[:2] + camera.K[:2, 2]
        inside = (local[:, 2] > 0) & (uv >= 0).all(1) & (uv < [camera.width, camera.height]).all(1)
        direction = xyz - camera.centre
        t, _ = scene.distance(camera.centre, direction)
        seen = np.flatnonzero(inside & (t > 1 - 1e-3) & (rng.random(len(xyz)) < 0.5))
        rows.append(np.c_[seen, np.full(len(seen), index), uv[seen] + rng.normal(0, noise_px, (len(seen), 2))])
    obs = np.concatenate(rows)
    track = np.bincount(obs[:, 0].astype(int), minlength=len(xyz))
    sigma = (
        noise_px / cameras[0].K[0, 0] * np.linalg.norm(xyz - cameras[0].centre, axis=1) / np.sqrt(np.maximum(track, 1))
    )
    noisy = xyz + rng.normal(size=xyz.shape) * 1.5 * sigma[:, None]
    return {
        "xyz": noisy, "rgb": np.full((len(xyz), 3), 128, np.uint8), "error": np.full(len(xyz), max(noise_px, 1e-3)),
        "track_length": track, "obs_point": obs[:, 0].astype(int), "obs_camera": obs[:, 1].astype(int), "obs_xy": obs[:, 2:],
    }  # fmt: skip


def write_sfm(folder: Path, cameras: list[Camera], cloud: dict[str, Array], T_sfm_world: Similarity) -> None:
    """An sfm artifact (cameras.json, points.npz) in another frame."""
    folder.mkdir(parents=True, exist_ok=True)
    write_cameras(folder / "cameras.json", [c.transformed(T_sfm_world) for c in cameras], "sfm")
    np.savez(folder / "points.npz", **{**cloud, "xyz": T_sfm_world.apply(cloud["xyz"])})


def truth_splat(scene: Scene, cameras: list[Camera], stride: int = 2, depth_noise: float = 0.0, seed: int = 0) -> Splat:
    """Opaque flat Gaussians on the true surfaces, one per sampled pixel, in the world frame."""
    rng = np.random.default_rng(seed)
    means, quats, scales, colours = [], [], [], []
    for camera in cameras:
        depth, shape = scene.depth(camera)
        rays = rays_of(camera)
        points = camera.centre + depth[..., None] * rays
        du, dv = np.gradient(points, axis=1), np.gradient(points, axis=0)
        normal = np.cross(du, dv)
        normal /= np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-12)
        pick = (slice(stride // 2, None, stride), slice(stride // 2, None, stride))
        p = points[pick].reshape(-1, 3) + rng.normal(0, 1, (points[pick].size // 3, 1)) * depth_noise * rays[
            pick
        ].reshape(-1, 3)
        n = normal[pick].reshape(-1, 3)
        size = 0.6 * stride * depth[pick].ravel() / camera.K[0, 0]
        means.append(p)
        quats.append(_quats_to(n))
        scales.append(np.stack([size, size, 0.02 * size], 1))
        colours.append(0.2 + 0.6 * (shape[pick].ravel()[:, None] * np.array([0.37, 0.61, 0.83]) % 1))
    m, count = np.concatenate(means), sum(map(len, means))
    sh0 = (np.concatenate(colours) - 0.5) / 0.28209479177387814
    return Splat(
        m.astype(np.float32), np.concatenate(quats).astype(np.float32), np.log(np.concatenate(scales)).astype(np.float32),
        np.full(count, 4.0, np.float32), sh0[:, None].astype(np.float32), np.zeros((count, 0, 3), np.float32),
    )  # fmt: skip


def _quats_to(normals: Array) -> Array:
    """Quaternions wxyz [N, 4] of rotations that take z to each normal."""
    w = 1 + normals[:, 2]
    q = np.stack([w, -normals[:, 1], normals[:, 0], np.zeros(len(normals))], 1)
    q[w < 1e-6] = [0, 1, 0, 0]
    return q / np.linalg.norm(q, axis=1, keepdims=True)


def marker_texture(cells: int = 6, pixels: int = 600) -> NDArray[np.uint8]:
    """The printed marker with one cell of white margin on each side; the black square spans pixels * 6 / 8."""
    import cv2

    inner = pixels * cells // (cells + 2)
    border = (pixels - inner) // 2
    dictionary = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_4X4_50)
    sheet = np.full((pixels, pixels), 255, np.uint8)
    sheet[border : border + inner, border : border + inner] = cv2.aruco.generateImageMarker(
        dictionary, MARKER_ID, inner
    )
    return sheet


def photograph(
    scene: Scene, camera: Camera, marker_size: float = 0.0, marker_xy=(0.0, -0.2), supersample: int = 2
) -> NDArray[np.uint8]:
    """Grey picture [H, W] with a band-limited texture on every surface and, where asked, a marker on the table."""
    big = camera.resized(camera.width * supersample, camera.height * supersample)
    depth, shape = scene.depth(big)
    p = big.centre + depth[..., None] * rays_of(big)
    rng = np.random.default_rng(11)
    grey = np.full(depth.shape, 128.0)
    for frequency in (30.0, 60.0, 110.0):
        for _ in range(2):
            k = rng.normal(size=3)
            k *= frequency / np.linalg.norm(k)
            grey += 14 * np.sin(p @ k + rng.uniform(0, 6) + shape)
    if marker_size:
        sheet = marker_texture()
        span = marker_size * 8 / 6
        uv = (p[..., :2] - np.array(marker_xy)) / span + 0.5
        on = (shape == 1) & (np.abs(p[..., 2]) < 1e-6) & (uv >= 0).all(-1) & (uv < 1).all(-1)
        pix = np.floor(uv[on] * len(sheet)).astype(int)
        grey[on] = 30 + sheet[len(sheet) - 1 - pix[:, 1], pix[:, 0]] * (190 / 255)
    small = grey.reshape(camera.height, supersample, camera.width, supersample).mean((1, 3))
    light = np.clip(small / 255, 0, 1)
    return np.round(255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)).astype(
        np.uint8
    )


def truth_views(scene: Scene, cameras: list[Camera], noise: float = 0.0, outliers: float = 0.0, seed: int = 0):
    """Depth views of the true surfaces with relative noise and a share of wild depths, in the world frame."""
    from real2sim.stages.depth_views import DepthView, clean_depth, keep_consistent

    rng = np.random.default_rng(seed)
    views = []
    for camera in cameras:
        depth, shape = scene.depth(camera)
        depth = depth * (1 + rng.normal(0, noise, depth.shape))
        clean = clean_depth(camera, depth.astype(np.float32), np.ones_like(depth, np.float32))
        wild = rng.random(depth.shape) < outliers
        clean[wild] *= rng.uniform(0.5, 1.5, int(wild.sum()))
        rgb = np.repeat((0.2 + 0.1 * shape)[..., None], 3, -1).astype(np.float32)
        views.append(DepthView(camera, clean, rgb))
    return views if outliers else keep_consistent(views)


def moved_views(views, T: Similarity):
    """The same views in another frame, depth scaled with it."""
    from real2sim.stages.depth_views import DepthView

    return [DepthView(v.camera.transformed(T), (v.depth * T.scale).astype(np.float32), v.rgb) for v in views]


@functools.cache
def table_mesh(folder: str) -> list[Camera]:
    """Run the mesh stage's fusion on true depth of the table scene once per folder; returns the cameras."""
    from real2sim.stages import mesh
    from real2sim.stages.contract import Progress

    cameras = orbit(20, 200, 150)
    Path(folder).mkdir(parents=True, exist_ok=True)
    config = mesh.Config(voxel_m=0.008)
    outline = np.array([[-0.6, -0.4], [0.6, -0.4], [0.6, 0.4], [-0.6, 0.4]])
    mesh.build(truth_views(Scene(), cameras, 0.001), outline, config, Path(folder), Progress())
    return cameras
