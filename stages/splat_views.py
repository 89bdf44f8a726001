# SPDX-License-Identifier: Apache-2.0
"""The photos and cameras that a splat is trained on and judged by, held as bytes, at a few sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real2sim.errors import CaptureError
from real2sim.sim.cameras import Camera, read_cameras
from real2sim.sim.transforms import Similarity
from real2sim.stages.sparse import SparsePoints

MIN_TRAINING_VIEWS = 3  # two views cannot outvote a wrong depth
MIN_POINTS = 16  # fewer sparse points give no idea of depth
MIN_ANCHOR_VIEWS = 3  # of a sparse point whose depth training keeps to: two rays meet anywhere along an edge


@dataclass(frozen=True)
class Anchors:
    """Sparse points that one photo saw: places [P, 2] as shares of width and height, depths [P] along its axis."""

    places: NDArray[np.float64]
    depths: NDArray[np.float32]

    def at(self, width: int, height: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [P], columns [P] and depths [P] in a picture of that size."""
        column, row = np.floor(self.places * [width, height]).astype(np.int64).T
        r, c, depths = (torch.from_numpy(np.ascontiguousarray(v)).to(device) for v in (row, column, self.depths))
        return r, c, depths


def depth_anchors(points: SparsePoints, cameras: list[Camera], T_cameras_sfm: Similarity) -> list[Anchors]:
    """Per camera, where it saw which depth; cameras: those that points.obs_camera counts, in any frame."""
    views = np.bincount(points.obs_point, minlength=len(points.xyz))
    xyz = T_cameras_sfm.apply(points.xyz)
    found = []
    for index, camera in enumerate(cameras):
        rows = (points.obs_camera == index) & (views[points.obs_point] >= MIN_ANCHOR_VIEWS)
        depth = xyz[points.obs_point[rows]] @ camera.viewmat[2, :3] + camera.viewmat[2, 3]
        places = points.obs_xy[rows] / [camera.width, camera.height]
        usable = (depth > 0) & (places >= 0).all(1) & (places < 1).all(1)
        found.append(Anchors(places[usable], depth[usable].astype(np.float32)))
    return found


@dataclass(frozen=True)
class View:
    """One photo at one size: target [H, W, 3] float in [0, 1], keep [H, W] bool or None, viewmat [4, 4], K [3, 3]."""

    target: Tensor
    keep: Tensor | None
    viewmat: Tensor
    K: Tensor
    anchors: tuple[Tensor, Tensor, Tensor] | None = None  # rows, columns, depths of sparse points

    @property
    def size(self) -> tuple[int, int]:
        """Width and height [px]."""
        return self.target.shape[1], self.target.shape[0]


@dataclass(frozen=True)
class _Photo:
    image: Tensor  # [H, W, 3] uint8
    keep: Tensor | None  # [H, W] bool
    camera: Camera  # of this size


class Views:
    """Photos with their cameras; level 0 is the training size, each next one half of it."""

    def __init__(
        self, cameras: list[Camera], levels: list[list[_Photo]], device: str, anchors: list[Anchors] | None = None
    ):
        self.cameras = cameras
        self._anchors = anchors
        self._levels = levels
        self._device = device

    def __len__(self) -> int:
        return len(self.cameras)

    @property
    def pixels(self) -> int:
        """Pixels of the largest photo at the training size."""
        return max(p.camera.width * p.camera.height for p in self._levels[0])

    def shown(self) -> list[int]:
        """Indices of the photos that are not masked as a whole, at any level."""
        hidden = {i for photos in self._levels for i, p in enumerate(photos) if p.keep is not None and not p.keep.any()}
        return [i for i in range(len(self)) if i not in hidden]

    def at(self, index: int, level: int = 0) -> View:
        photo = self._levels[level][index]
        image = photo.image.to(self._device)
        keep = None if photo.keep is None else photo.keep.to(self._device)
        viewmat = torch.as_tensor(photo.camera.viewmat, dtype=torch.float32, device=self._device)
        K = torch.as_tensor(photo.camera.K, dtype=torch.float32, device=self._device)
        height, width = image.shape[:2]
        anchors = None if self._anchors is None else self._anchors[index].at(width, height, self._device)
        return View(image.float() / 255, keep, viewmat, K, anchors)


def read_points(sfm: Path) -> SparsePoints:
    """points.npz of an sfm artifact; raises CaptureError when there are too few points to start from."""
    points = SparsePoints.load(sfm / "points.npz")
    if len(points.xyz) < MIN_POINTS:
        raise CaptureError(
            f"{sfm / 'points.npz'}: training needs at least {MIN_POINTS} sparse points, there are {len(points.xyz)}. "
            "Take photos that overlap more, of surfaces with visible texture."
        )
    return points


def training_cameras(sfm: Path) -> tuple[list[int], list[int], list[Camera]]:
    """Indices of the training cameras, indices of the held-out ones, and all cameras (sfm frame).

    Raises CaptureError when fewer than MIN_TRAINING_VIEWS are left for training.
    """
    cameras = read_cameras(sfm / "cameras.json")
    train = [i for i, c in enumerate(cameras) if not c.heldout]
    heldout = [i for i, c in enumerate(cameras) if c.heldout]
    if len(train) < MIN_TRAINING_VIEWS:
        raise CaptureError(
            f"{sfm / 'cameras.json'}: training needs at least {MIN_TRAINING_VIEWS} posed frames that are not held out, "
            f"there are {len(train)} (and {len(heldout)} held out). Take more photos, with more overlap."
        )
    for camera in cameras:
        if camera.distortion and any(camera.distortion):
            raise CaptureError(
                f"{sfm / 'cameras.json'}: camera {camera.name!r} is distorted ({camera.distortion}); training needs "
                "undistorted images. Run the sfm stage again."
            )
    return train, heldout, cameras


def normalisation(cameras: list[Camera], points: SparsePoints) -> Similarity:
    """T_train_sfm: the mean camera centre at the origin, and a median viewing distance of 1.

    The viewing distance and not the cameras' extent is the unit, because a step of the optimiser in units of viewing
    distance is a number of pixels, whether the cameras circle an object or stand side by side.
    """
    centre = np.mean([c.centre for c in cameras], 0)
    observers = np.stack([c.centre for c in cameras])[points.obs_camera]
    scale = 1 / float(np.median(np.linalg.norm(points.xyz[points.obs_point] - observers, axis=1)))
    return Similarity(scale, np.eye(3), -scale * centre)


def training_size(camera: Camera, factor: float) -> Camera:
    """The camera at the size it is trained at: both sides divided by factor."""
    if factor <= 1:
        return camera
    return camera.resized(max(1, round(camera.width / factor)), max(1, round(camera.height / factor)))


def load_views(
    sfm: Path,
    cameras: list[Camera],
    *,
    factor: float,
    levels: int,
    device: str,
    anchors: list[Anchors] | None = None,
) -> Views:
    """Read the photos of cameras (any frame), reduced by factor, and levels - 1 successive halves of them."""
    photos: list[list[_Photo]] = [[] for _ in range(levels)]
    for source in cameras:
        image, keep = _read(sfm, source)
        camera = training_size(source, factor)
        for level in range(levels):
            reduced = training_size(camera, 2.0**level)
            photos[level].append(_resized(image, keep, reduced))
    return Views([p.camera for p in photos[0]], photos, device, anchors)


def _read(sfm: Path, camera: Camera) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None]:
    if camera.image is None:
        raise CaptureError(f"{sfm / 'cameras.json'}: camera {camera.name!r} names no image. Run the sfm stage again.")
    image = _decode(sfm / camera.image, cv2.IMREAD_COLOR, camera)
    keep = None if camera.mask is None else _decode(sfm / camera.mask, cv2.IMREAD_GRAYSCALE, camera) < 128
    if keep is not None and keep.all():
        keep = None
    return np.ascontiguousarray(image[..., ::-1]), keep


def _decode(path: Path, mode: int, camera: Camera) -> NDArray[np.uint8]:
    pixels = cv2.imread(str(path), mode | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None:
        raise CaptureError(f"{path}: not a readable image, though camera {camera.name!r} names it.")
    if pixels.shape[:2] != (camera.height, camera.width):
        raise CaptureError(
            f"{path}: is {pixels.shape[1]}x{pixels.shape[0]}, its camera {camera.width}x{camera.height}; "
            "they must agree. Run the sfm stage again."
        )
    return np.asarray(pixels, np.uint8)


def _resized(image: NDArray[np.uint8], keep: NDArray[np.bool_] | None, camera: Camera) -> _Photo:
    """A photo at the camera's size by area average; a reduced pixel is kept where all its sources are."""
    size = (camera.width, camera.height)
    if size != (image.shape[1], image.shape[0]):
        image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
        if keep is not None:
            keep = cv2.resize(keep.astype(np.float32), size, interpolation=cv2.INTER_AREA) > 0.999
    return _Photo(torch.from_numpy(image), None if keep is None else torch.from_numpy(keep), camera)
