# SPDX-License-Identifier: Apache-2.0
"""A small scene whose true splat is known, photographed by the rasteriser and laid down as an sfm artifact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from real2sim.sim.cameras import Camera, write_cameras
from real2sim.sim.render.rasterize import render
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import Similarity
from real2sim.stages.contract import Progress

WIDTH, HEIGHT, FRAMES, HELDOUT_EVERY = 64, 48, 12, 4
SPARSE_POINTS = 150
VISIBLE_WITHIN = 0.1  # of the rendered surface, in units of the scene's radius
POINT_NOISE = 0.01  # of the sparse points, in units of the scene's radius


def true_splat(seed: int = 0) -> Splat:
    """500 coloured opaque Gaussians: a ball on a wall that fills the view from every side."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=(500, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    radius = np.where(np.arange(500) < 200, 0.6, 5.0)[:, None]
    count = len(direction)
    return Splat(
        means=direction * radius,
        quats=rng.normal(size=(count, 4)),
        log_scales=np.log(np.where(radius < 1, 0.09, 0.75) * rng.uniform(0.7, 1.3, (count, 3))),
        logit_opacities=np.full(count, 3.0),
        sh0=rng.uniform(-1.2, 1.2, (count, 1, 3)),
        shN=np.zeros((count, 0, 3)),
    )


def orbit() -> list[Camera]:
    """Cameras on a circle around the ball, looking at it; every HELDOUT_EVERY-th is held out."""
    cameras = []
    for i in range(FRAMES):
        angle = 2 * np.pi * i / FRAMES
        centre = np.array([2 * np.cos(angle), 2 * np.sin(angle), 0.5 + 0.3 * np.sin(3 * angle)])
        z = -centre / np.linalg.norm(centre)
        x = np.cross(z, [0, 0, 1.0])
        x /= np.linalg.norm(x)
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = np.stack([x, np.cross(z, x), z], 1), centre
        K = np.array([[55.0, 0, WIDTH / 2], [0, 55.0, HEIGHT / 2], [0, 0, 1]])
        cameras.append(
            Camera(f"{i:05d}", WIDTH, HEIGHT, K, T, image=f"images/{i:05d}.png", heldout=i % HELDOUT_EVERY == 1)
        )
    return cameras


def write_sfm(folder: Path, T_sfm_world: Similarity | None = None, gains: np.ndarray | None = None) -> Path:
    """The artifact of the stage sfm: photos of the true splat, cameras and noisy sparse points in the sfm frame.

    gains [FRAMES] multiply the photos, as a drifting exposure does.
    """
    T = T_sfm_world or Similarity.identity()
    splat, cameras = true_splat(), orbit()
    (folder / "images").mkdir(parents=True)
    for i, camera in enumerate(cameras):
        rgb = render(splat, camera, backend="cpu")["rgb"] * (1 if gains is None else gains[i])
        cv2.imwrite(str(folder / str(camera.image)), np.round(np.clip(rgb, 0, 1)[..., ::-1] * 255).astype(np.uint8))
    write_cameras(folder / "cameras.json", [c.transformed(T) for c in cameras], "sfm")
    _write_points(folder / "points.npz", splat, cameras, T)
    return folder


def _write_points(path: Path, splat: Splat, cameras: list[Camera], T_sfm_world: Similarity) -> None:
    """Points on the surface that the true splat shows, observed where no other surface is in front of them."""
    rng = np.random.default_rng(1)
    pictures = [render(splat, camera, backend="cpu") for camera in cameras]
    which, columns, rows = (rng.integers(0, n, SPARSE_POINTS) for n in (len(cameras), WIDTH, HEIGHT))
    xyz, rgb = np.zeros((SPARSE_POINTS, 3)), np.zeros((SPARSE_POINTS, 3), np.uint8)
    for i, (camera, column, row) in enumerate(zip(which, columns, rows)):
        ray = np.linalg.inv(cameras[camera].K) @ [column + 0.5, row + 0.5, 1.0]
        point = cameras[camera].T_world_cam @ [*(ray * pictures[camera]["depth"][row, column]), 1.0]
        xyz[i] = point[:3] + rng.normal(0, POINT_NOISE, 3)
        rgb[i] = np.clip(255 * pictures[camera]["rgb"][row, column], 0, 255)
    seen = []
    for index, (camera, picture) in enumerate(zip(cameras, pictures)):
        in_camera = xyz @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
        uvw = in_camera @ camera.K.T
        uv = uvw[:, :2] / uvw[:, 2:]
        inside = (uvw[:, 2] > 0) & (uv > 0).all(1) & (uv < [WIDTH, HEIGHT]).all(1)
        column, row = np.where(inside[:, None], uv, 0).astype(int).T
        visible = inside & (np.abs(in_camera[:, 2] - picture["depth"][row, column]) < VISIBLE_WITHIN)
        seen += [(point, index, *uv[point]) for point in np.flatnonzero(visible)]
    observations = np.array(seen)
    np.savez(
        path, xyz=T_sfm_world.apply(xyz), rgb=rgb, error=np.zeros(SPARSE_POINTS),
        track_length=np.bincount(observations[:, 0].astype(int), minlength=SPARSE_POINTS),
        obs_point=observations[:, 0].astype(int), obs_camera=observations[:, 1].astype(int), obs_xy=observations[:, 2:],
    )  # fmt: skip


def read_png(path: Path) -> np.ndarray:
    """A picture [H, W, 3], blue first."""
    picture = cv2.imread(str(path))
    assert picture is not None, path
    return picture


def with_mask(folder: Path, name: str, region: tuple[slice, slice]) -> None:
    """Mask a region of one frame of an sfm artifact."""
    from real2sim.sim.cameras import read_cameras

    (folder / "masks").mkdir(exist_ok=True)
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[region] = 255
    cv2.imwrite(str(folder / "masks" / f"{name}.png"), mask)
    cameras = read_cameras(folder / "cameras.json")
    masked = [replace(c, mask=f"masks/{name}.png") if c.name == name else c for c in cameras]
    write_cameras(folder / "cameras.json", masked, "sfm")


def repaint(folder: Path, name: str, region: tuple[slice, slice]) -> None:
    """Fill a region of one photo of an sfm artifact with noise."""
    path = folder / "images" / f"{name}.png"
    photo = read_png(path)
    photo[region] = np.random.default_rng(5).integers(0, 256, photo[region].shape)
    cv2.imwrite(str(path), photo)


class Recorder(Progress):
    """Keeps what a stage reports."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.updates: list[dict[str, float]] = []

    def update(self, done: float, total: float, **fields: float) -> None:
        self.updates.append({"done": done, "total": total, **fields})

    def log(self, message: str) -> None:
        self.lines.append(message)


class Interrupter(Recorder):
    """Raises an exception when training is past a share, as Ctrl-C or a crash would."""

    def __init__(self, share: float, error: type[BaseException]):
        super().__init__()
        self._share, self._error = share, error

    def update(self, done: float, total: float, **fields: float) -> None:
        super().update(done, total, **fields)
        if done / total >= self._share:
            raise self._error
