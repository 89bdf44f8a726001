# SPDX-License-Identifier: Apache-2.0
"""Known poses from a file: transforms.json (nerfstudio, instant-ngp) or lists of T_world_cam. OpenCV axes come out.

Read are
  {"frames": [{"file_path", "transform_matrix"}], "fl_x", …}   OpenGL axes (x right, y up, z backward), camera to world;
                                                               intrinsics for all or in each frame
  {"frames": [{"image", "T_world_cam"}]}                       OpenCV axes, camera to world
  {"cameras": {name: {"K", "T_world_cam"}}}                    the same with intrinsics
  {"T_world_cam": [T, …]}                                      the same for every frame of one video, in order
"mask_path" and "depth_file_path" of a frame name its mask (black = ignore) and its depth map.
"metric": true, or a "convention" that names metres, says that the unit of length is the metre.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import CaptureError
from real2sim.stages.known_poses import OPENCV_FROM_OPENGL, KnownPose, PoseFile, WrongPose, rigid_pose

FISHEYE = ("k4",)
MAX_BYTES = 256 * 2**20  # a million frames


def read_poses(path: Path) -> PoseFile:
    """Read a file of poses; raises CaptureError naming the file, the frame and the field."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes, at most {MAX_BYTES} are read")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: not a readable JSON file of poses ({error}).") from error
    if not isinstance(data, dict):
        raise CaptureError(f'{path}: expected an object with "frames", "cameras" or "T_world_cam".')
    try:
        poses = dict(_named(data))
        video = [KnownPose(rigid_pose(T)) for T in data["T_world_cam"]] if "T_world_cam" in data else []
    except WrongPose as error:
        raise CaptureError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CaptureError(f"{path}: a frame lacks a field or has a wrong one ({error!r}).") from error
    if not poses and not video:
        raise CaptureError(f'{path}: holds no poses. Expected "frames", "cameras" or "T_world_cam".')
    masks, depths = (_files(data, key) for key in ("mask_path", "depth_file_path"))
    return PoseFile(path, poses, _metric(data), video, masks, depths)


def _files(data: dict[str, Any], key: str) -> dict[str, str]:
    """Files that frames name under a key, by the frame's own name."""
    rows = data.get("frames") or []
    return {str(row["file_path"]): str(row[key]) for row in rows if row.get(key) and "file_path" in row}


def _named(data: dict[str, Any]) -> Iterator[tuple[str, KnownPose]]:
    for name, row in (data.get("cameras") or {}).items():
        yield name, KnownPose(rigid_pose(row["T_world_cam"]), np.asarray(row["K"], np.float64) if "K" in row else None)
    for row in data.get("frames") or []:
        if "T_world_cam" in row:
            K = np.asarray(row["K"], np.float64) if row.get("K") is not None else None
            yield row["image"], KnownPose(rigid_pose(row["T_world_cam"]), K)
        else:
            merged = {**data, **row}
            T = rigid_pose(row["transform_matrix"]) @ OPENCV_FROM_OPENGL
            yield row["file_path"], KnownPose(T, *_intrinsics(merged))


def _intrinsics(row: dict[str, Any]) -> tuple[NDArray[np.float64] | None, tuple[float, ...], tuple[int, int] | None]:
    """K, distortion and size from nerfstudio's or instant-ngp's fields of one frame."""
    if "FISHEYE" in str(row.get("camera_model", "")) or any(row.get(k) for k in FISHEYE):
        raise WrongPose("fisheye cameras are not read; undistort the images first, or use a perspective camera model.")
    size = (int(row["w"]), int(row["h"])) if "w" in row and "h" in row else None
    distortion = tuple(float(row.get(k, 0.0)) for k in ("k1", "k2", "p1", "p2"))
    if row.get("k3"):
        raise WrongPose(f"k3 = {row['k3']} is not read; the model is OPENCV with k1 k2 p1 p2.")
    if "fl_x" in row:
        fx = float(row["fl_x"])
        fy = float(row.get("fl_y", fx))
    elif "camera_angle_x" in row and size is not None:
        fx = fy = 0.5 * size[0] / math.tan(0.5 * float(row["camera_angle_x"]))
    else:
        return None, (), size
    if "cx" not in row and size is None:
        raise WrongPose("fl_x without cx, cy or w, h: the principal point is unknown. Add w and h.")
    cx = float(row["cx"]) if "cx" in row else size[0] / 2  # type: ignore[index]
    cy = float(row["cy"]) if "cy" in row else size[1] / 2  # type: ignore[index]
    K = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])
    return K, (distortion if any(distortion) else ()), size


def _metric(data: dict[str, Any]) -> bool | None:
    if isinstance(data.get("metric"), bool):
        return data["metric"]
    return True if re.search(r"\bmet(re|er)s?\b", str(data.get("convention", ""))) else None
