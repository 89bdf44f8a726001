# SPDX-License-Identifier: Apache-2.0
"""Camera poses that came with a capture, whatever wrote them: T_world_cam with OpenCV axes, by image name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import CaptureError
from real2sim.stages.image_names import match_names

OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
ROTATION_TOLERANCE = 1e-3  # files are written with few digits


class WrongPose(Exception):
    """One row of a file of poses cannot be read; the message says why."""


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
    """Poses as one tool wrote them.

    poses: by the name that the file gives the image; metric: the unit is the metre, None where the file does not say;
    video: poses of one video's frames, in order; masks, depths: files by the same names, relative to the file's folder,
    masks black where pixels are to be ignored; tracked: from a tracker (a phone's, an RGB-D camera's), which drifts, so
    that structure from motion finds its own poses and takes scale and gravity from these; gravity: down, [x, y, z].
    """

    path: Path
    poses: dict[str, KnownPose]
    metric: bool | None
    video: list[KnownPose] = field(default_factory=list)
    masks: dict[str, str] = field(default_factory=dict)
    depths: dict[str, str] = field(default_factory=dict)
    tracked: bool = False
    gravity: tuple[float, float, float] | None = None

    def match(self, images: Sequence[str]) -> dict[str, KnownPose]:
        """Poses of images by path, path without suffix, unique name or stem; of "video.mp4#12" by its frame number."""
        of_videos = [image for image in images if "#" in image and self.video]
        if len({image.rpartition("#")[0] for image in of_videos}) > 1:
            raise CaptureError(f"{self.path}: holds poses of one video's frames, and the capture has several videos.")
        numbers = {image: int(image.rpartition("#")[2]) for image in of_videos}
        found = {image: self.video[k] for image, k in numbers.items() if k < len(self.video)}
        return found | {image: self.poses[name] for image, name in match_names(images, self.poses).items()}


def rigid_pose(matrix: Any) -> NDArray[np.float64]:
    """A rigid 4x4; raises WrongPose. Rotations are made orthonormal to the last digit."""
    T = np.asarray(matrix, np.float64)
    if T.shape == (3, 4):
        T = np.vstack([T, [0, 0, 0, 1.0]])
    if T.shape != (4, 4) or not np.isfinite(T).all():
        raise WrongPose(f"a pose must be a finite 4x4 matrix, received shape {T.shape}.")
    R = T[:3, :3]
    if np.abs(R @ R.T - np.eye(3)).max() > ROTATION_TOLERANCE or np.linalg.det(R) < 0:
        raise WrongPose("a pose must hold a rotation without scale or mirror; remove the scale from its matrix.")
    U, _, Vt = np.linalg.svd(R)
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = U @ Vt, T[:3, 3]
    return out
