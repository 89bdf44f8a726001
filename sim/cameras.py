# SPDX-License-Identifier: Apache-2.0
"""Pinhole cameras and their file. OpenCV axes (x right, y down, z forward), pixel centres at half-integers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import Real2SimError
from real2sim.sim.transforms import Similarity


@dataclass
class Camera:
    """One posed camera.

    K [3, 3] in pixels; T_world_cam [4, 4] camera to the file's frame; distortion: OpenCV's k1 k2 p1 p2 [k3 ...],
    empty where the image is undistorted. Files are relative to the folder of the JSON file.
    """

    name: str
    width: int
    height: int
    K: NDArray[np.float64]
    T_world_cam: NDArray[np.float64]
    distortion: list[float] = field(default_factory=list)
    image: str | None = None
    mask: str | None = None
    depth: str | None = None
    heldout: bool = False

    @property
    def viewmat(self) -> NDArray[np.float64]:
        """World to camera [4, 4]."""
        R, t = self.T_world_cam[:3, :3], self.T_world_cam[:3, 3]
        out = np.eye(4)
        out[:3, :3], out[:3, 3] = R.T, -R.T @ t
        return out

    @property
    def centre(self) -> NDArray[np.float64]:
        return self.T_world_cam[:3, 3]

    def transformed(self, T_a_world: Similarity) -> Camera:
        """The same camera in another frame."""
        return Camera(**{**self.__dict__, "T_world_cam": T_a_world.apply_pose(self.T_world_cam)})

    def resized(self, width: int, height: int) -> Camera:
        """The same view at another size; K is scaled with pixel centres at half-integers."""
        sx, sy = width / self.width, height / self.height
        K = np.diag([sx, sy, 1.0]) @ self.K
        return Camera(**{**self.__dict__, "width": width, "height": height, "K": K})


def write_cameras(path: Path, cameras: list[Camera], frame: str) -> None:
    """Write cameras.json; `frame` names the frame of the poses ("sfm" or "world")."""
    rows: list[dict[str, Any]] = []
    for c in cameras:
        rows.append({**c.__dict__, "K": np.asarray(c.K).tolist(), "T_world_cam": np.asarray(c.T_world_cam).tolist()})
    path.write_text(json.dumps({"frame": frame, "convention": "opencv", "cameras": rows}, indent=1))


def read_cameras(path: Path) -> list[Camera]:
    """Read cameras.json; raises Real2SimError naming the file and the field that is wrong."""
    try:
        rows = json.loads(Path(path).read_text())["cameras"]
        known = set(Camera.__dataclass_fields__)
        cameras = [Camera(**{k: v for k, v in row.items() if k in known}) for row in rows]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Real2SimError(f"{path}: not a camera file ({error}). Expected {{'cameras': [...]}}.") from error
    for c in cameras:
        c.K, c.T_world_cam = np.asarray(c.K, np.float64), np.asarray(c.T_world_cam, np.float64)
        if c.K.shape != (3, 3) or c.T_world_cam.shape != (4, 4) or not np.isfinite(c.T_world_cam).all():
            raise Real2SimError(f"{path}: camera {c.name!r} needs a 3x3 K and a finite 4x4 T_world_cam.")
    return cameras
