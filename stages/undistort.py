# SPDX-License-Identifier: Apache-2.0
"""Undistorted pinhole images, masks and depth maps of a reconstruction, with the observations in their pixels.

Every undistorted pixel has a source pixel: images are cropped, never padded. Intrinsics are those of the bundle
adjustment; only the pinhole part that the undistorted image is given is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2  # before pycolmap: the other order makes later PNG writing abort
import numpy as np
import pycolmap
from numpy.typing import NDArray

from real2sim.errors import Real2SimError
from real2sim.stages.photos import encode_png

ROUND_TRIP_TOLERANCE = 0.01  # px; COLMAP inverts distortion by Newton steps down to far less


@dataclass(frozen=True)
class Pinhole:
    """The undistorted camera of one COLMAP camera, and where its pixels come from.

    K [3, 3]; source: (x, y) [H, W, 2] float32 in the distorted image, OpenCV's pixel centres at integers;
    None where nothing has to be resampled.
    """

    camera: pycolmap.Camera
    K: NDArray[np.float64]
    width: int
    height: int
    source: NDArray[np.float32] | None

    def points(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Distorted pixels [N, 2] in the undistorted image [N, 2]."""
        if not len(xy):
            return np.zeros((0, 2))
        rays = np.asarray(self.camera.cam_from_img(xy))
        return rays * self.K[[0, 1], [0, 1]] + self.K[:2, 2]


def pinhole_of(camera: pycolmap.Camera) -> Pinhole:
    """The pinhole camera of a COLMAP camera, checked by mapping a grid of pixels there and back."""
    options = pycolmap.UndistortCameraOptions()
    options.blank_pixels = 0.0
    flat = camera if camera.is_undistorted() else pycolmap.undistort_camera(options, camera)
    K = np.asarray(flat.calibration_matrix(), np.float64)
    pinhole = Pinhole(camera, K, flat.width, flat.height, None if camera.is_undistorted() else _source(camera, flat, K))
    _check(pinhole)
    return pinhole


def write_image(pinhole: Pinhole, source: Path, target: Path) -> None:
    """Undistort an image, cubic; PNG."""
    rgb = cv2.imread(str(source), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    target.write_bytes(encode_png(_resample(pinhole, rgb, cv2.INTER_CUBIC)))


def write_map(pinhole: Pinhole, source: Path, target: Path) -> None:
    """Undistort a mask or a depth map: the nearest value, never a mixture; PNG."""
    stored = cv2.imread(str(source), cv2.IMREAD_UNCHANGED)
    target.write_bytes(encode_png(_resample(pinhole, stored, cv2.INTER_NEAREST)))


def _resample(pinhole: Pinhole, array: Any, interpolation: int) -> NDArray:
    if pinhole.source is None:
        return array
    x, y = pinhole.source[..., 0], pinhole.source[..., 1]
    return cv2.remap(array, x, y, interpolation, borderMode=cv2.BORDER_REPLICATE)


def _source(camera: pycolmap.Camera, flat: pycolmap.Camera, K: NDArray[np.float64]) -> NDArray[np.float32]:
    u, v = np.meshgrid(np.arange(flat.width) + 0.5, np.arange(flat.height) + 0.5)
    rays = np.stack([(u - K[0, 2]) / K[0, 0], (v - K[1, 2]) / K[1, 1], np.ones_like(u)], -1).reshape(-1, 3)
    distorted = np.asarray(camera.img_from_cam(rays))
    return (distorted.reshape(flat.height, flat.width, 2) - 0.5).astype(np.float32)


def _check(pinhole: Pinhole) -> None:
    """The undistorted camera must be a pinhole whose pixels map to the distorted image and back."""
    u, v = np.meshgrid(np.linspace(0.5, pinhole.width - 0.5, 9), np.linspace(0.5, pinhole.height - 0.5, 9))
    pixels = np.stack([u, v], -1).reshape(-1, 2)
    rays = np.c_[(pixels - pinhole.K[:2, 2]) / pinhole.K[[0, 1], [0, 1]], np.ones(len(pixels))]
    back = pinhole.points(np.asarray(pinhole.camera.img_from_cam(rays)))
    worst = float(np.abs(back - pixels).max())
    if not worst <= ROUND_TRIP_TOLERANCE:
        raise Real2SimError(
            f"camera {pinhole.camera.camera_id} ({pinhole.camera.model_name} {pinhole.camera.params_to_string()}): its"
            f" distortion cannot be undone (off by {worst:.2f} px). Try ingest.camera_model=SIMPLE_RADIAL."
        )
