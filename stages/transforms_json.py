# SPDX-License-Identifier: Apache-2.0
"""Known poses from a file: transforms.json (nerfstudio, instant-ngp) or lists of T_world_cam. OpenCV axes come out.

Read are
  {"frames": [{"file_path", "transform_matrix"}], "fl_x", …}   OpenGL axes (x right, y up, z backward), camera to world;
                                                               intrinsics for all or in each frame
  {"frames": [{"image", "T_world_cam"}]}                       OpenCV axes, camera to world
  {"cameras": {name: {"K", "T_world_cam"}}}                    the same with intrinsics
  {"T_world_cam": [T, …]}                                      the same for every frame of one video, in order
"metric": true, or a "convention" that names metres, says that the unit of length is the metre.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import CaptureError
from real2sim.stages.image_names import match_names

OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
FISHEYE = ("k4",)
UNREAD = ("mask_path", "depth_file_path")
ROTATION_TOLERANCE = 1e-3  # files are written with few digits


@dataclass(frozen=True)
class KnownPose:
    """T_world_cam [4, 4], OpenCV axes; K [3, 3] px for images of `size` (width, height); distortion k1 k2 p1 p2."""

    T_world_cam: NDArray[np.float64]
    K: NDArray[np.float64] | None = None
    distortion: tuple[float, ...] = ()
    size: tuple[int, int] | None = None

    def intrinsics_at(self, width: int, height: int) -> NDArray[np.float64] | None:
        """K for images of another size with the same aspect; ValueError where the aspect differs."""
        if self.K is None or self.size is None:
            return self.K
        sx, sy = width / self.size[0], height / self.size[1]
        if abs(sx / sy - 1) > 0.01:
            raise ValueError(
                f"the poses' file is for {self.size[0]}x{self.size[1]} px, the image has {width}x{height} px"
            )
        return np.diag([sx, sy, 1.0]) @ self.K


@dataclass(frozen=True)
class PoseFile:
    """poses by the name that the file gives them; metric: the unit is the metre, None where the file does not say;
    video: poses of one video's frames, in order; unread: fields of its frames that are there and are not read."""

    path: Path
    poses: dict[str, KnownPose]
    metric: bool | None
    video: list[KnownPose]
    unread: tuple[str, ...] = ()

    def match(self, images: Sequence[str]) -> dict[str, KnownPose]:
        """Poses of images by path, path without suffix, unique name or stem; of "video.mp4#12" by its frame number."""
        of_videos = [image for image in images if "#" in image and self.video]
        if len({image.rpartition("#")[0] for image in of_videos}) > 1:
            raise CaptureError(f"{self.path}: holds poses of one video's frames, and the capture has several videos.")
        numbers = {image: int(image.rpartition("#")[2]) for image in of_videos}
        found = {image: self.video[k] for image, k in numbers.items() if k < len(self.video)}
        return found | {image: self.poses[name] for image, name in match_names(images, self.poses).items()}


def read_poses(path: Path) -> PoseFile:
    """Read a file of poses; raises CaptureError naming the file, the frame and the field."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path}: not a readable JSON file of poses ({error}).") from error
    if not isinstance(data, dict):
        raise CaptureError(f'{path}: expected an object with "frames", "cameras" or "T_world_cam".')
    try:
        poses = dict(_named(data))
        video = [KnownPose(_pose(T)) for T in data["T_world_cam"]] if "T_world_cam" in data else []
    except _Wrong as error:
        raise CaptureError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CaptureError(f"{path}: a frame lacks a field or has a wrong one ({error!r}).") from error
    if not poses and not video:
        raise CaptureError(f'{path}: holds no poses. Expected "frames", "cameras" or "T_world_cam".')
    unread = [field for field in UNREAD if any(field in row for row in data.get("frames") or [])]
    return PoseFile(path, poses, _metric(data), video, tuple(unread))


class _Wrong(Exception):
    pass


def _named(data: dict[str, Any]) -> Iterator[tuple[str, KnownPose]]:
    for name, row in (data.get("cameras") or {}).items():
        yield name, KnownPose(_pose(row["T_world_cam"]), np.asarray(row["K"], np.float64) if "K" in row else None)
    for row in data.get("frames") or []:
        if "T_world_cam" in row:
            K = np.asarray(row["K"], np.float64) if row.get("K") is not None else None
            yield row["image"], KnownPose(_pose(row["T_world_cam"]), K)
        else:
            merged = {**data, **row}
            T = _pose(row["transform_matrix"]) @ OPENCV_FROM_OPENGL
            yield row["file_path"], KnownPose(T, *_intrinsics(merged))


def _intrinsics(row: dict[str, Any]) -> tuple[NDArray[np.float64] | None, tuple[float, ...], tuple[int, int] | None]:
    """K, distortion and size from nerfstudio's or instant-ngp's fields of one frame."""
    if "FISHEYE" in str(row.get("camera_model", "")) or any(row.get(k) for k in FISHEYE):
        raise _Wrong("fisheye cameras are not read; undistort the images first, or use a perspective camera model.")
    size = (int(row["w"]), int(row["h"])) if "w" in row and "h" in row else None
    distortion = tuple(float(row.get(k, 0.0)) for k in ("k1", "k2", "p1", "p2"))
    if row.get("k3"):
        raise _Wrong(f"k3 = {row['k3']} is not read; the model is OPENCV with k1 k2 p1 p2.")
    if "fl_x" in row:
        fx = float(row["fl_x"])
        fy = float(row.get("fl_y", fx))
    elif "camera_angle_x" in row and size is not None:
        fx = fy = 0.5 * size[0] / math.tan(0.5 * float(row["camera_angle_x"]))
    else:
        return None, (), size
    if "cx" not in row and size is None:
        raise _Wrong("fl_x without cx, cy or w, h: the principal point is unknown. Add w and h.")
    cx = float(row["cx"]) if "cx" in row else size[0] / 2  # type: ignore[index]
    cy = float(row["cy"]) if "cy" in row else size[1] / 2  # type: ignore[index]
    K = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])
    return K, (distortion if any(distortion) else ()), size


def _pose(matrix: Any) -> NDArray[np.float64]:
    """A rigid 4x4; raises _Wrong. Rotations are made orthonormal to the last digit."""
    T = np.asarray(matrix, np.float64)
    if T.shape == (3, 4):
        T = np.vstack([T, [0, 0, 0, 1.0]])
    if T.shape != (4, 4) or not np.isfinite(T).all():
        raise _Wrong(f"a pose must be a finite 4x4 matrix, received shape {T.shape}.")
    R = T[:3, :3]
    if np.abs(R @ R.T - np.eye(3)).max() > ROTATION_TOLERANCE or np.linalg.det(R) < 0:
        raise _Wrong("a pose must hold a rotation without scale or mirror; remove the scale from its matrix.")
    U, _, Vt = np.linalg.svd(R)
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = U @ Vt, T[:3, 3]
    return out


def _metric(data: dict[str, Any]) -> bool | None:
    if isinstance(data.get("metric"), bool):
        return data["metric"]
    return True if re.search(r"\bmet(re|er)s?\b", str(data.get("convention", ""))) else None
