# SPDX-License-Identifier: Apache-2.0
"""Captures of phone apps on ARKit: Record3D's folder (metadata.json + rgb/) and Polycam's raw export (keyframes/).

ARKit's world has y up and metres; its cameras have OpenGL axes. Its tracker drifts, so the poses give scale and gravity.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from real2sim.errors import CaptureError
from real2sim.sim.transforms import quat_to_matrix
from real2sim.stages.image_names import match_names
from real2sim.stages.known_poses import OPENCV_FROM_OPENGL, KnownPose, PoseFile, WrongPose, rigid_pose

DOWN = (0.0, -1.0, 0.0)  # in ARKit's world
RECORD3D = ("metadata.json", "metadata")
POLYCAM = "keyframes"
_WRONG = (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError, AttributeError)


def find_record3d(capture: Path) -> Path | None:
    """The metadata file of a Record3D export."""
    for name in RECORD3D:
        path = capture / name
        if path.is_file() and b'"poses"' in path.read_bytes():
            return path
    return None


def read_record3d(path: Path, photos: Sequence[str]) -> PoseFile:
    """Poses of photos numbered as the metadata's poses are: pose k is of the photo whose stem is k.

    metadata: {"poses": [[qx, qy, qz, qw, x, y, z], …], "K": column-major, "w", "h"}.
    """
    try:
        data = json.loads(path.read_text())
        rows = np.asarray(data["poses"], np.float64)
        if rows.ndim != 2 or rows.shape[1] != 7 or not np.isfinite(rows).all():
            raise WrongPose(f"poses must be finite rows of seven numbers, received shape {rows.shape}.")
        K = np.asarray(data["K"], np.float64).reshape(3, 3).T
        size = (int(data["w"]), int(data["h"]))
        poses = {}
        for photo in photos:
            number = Path(photo).stem
            if number.isdecimal() and int(number) < len(rows):
                x, y, z, w, *t = rows[int(number)]
                T = np.eye(4)
                T[:3, :3], T[:3, 3] = quat_to_matrix([w, x, y, z]), t
                poses[photo] = KnownPose(rigid_pose(T) @ OPENCV_FROM_OPENGL, K, (), size)
    except WrongPose as error:
        raise CaptureError(f"{path}: {error}") from error
    except _WRONG as error:
        raise CaptureError(f"{path}: not a readable Record3D metadata file ({error!r}). Export it again.") from error
    if not poses:
        raise CaptureError(f"{path}: no photo is named by a number of its poses, such as rgb/0.jpg. Export it again.")
    return PoseFile(path, poses, metric=True, tracked=True, gravity=DOWN)


def find_polycam(capture: Path) -> Path | None:
    """The folder of cameras of a Polycam raw export: those that its own loop closure corrected, where there are any."""
    for name in ("corrected_cameras", "cameras"):
        folder = capture / POLYCAM / name
        if folder.is_dir() and any(folder.glob("*.json")):
            return folder
    return None


def read_polycam(folder: Path, photos: Sequence[str]) -> PoseFile:
    """Poses of keyframes/images (or corrected_images) from one JSON file each: t_00 … t_23, fx, fy, cx, cy, size."""
    poses, files = {}, {path.stem: path for path in sorted(folder.glob("*.json"))}
    images = "corrected_images" if folder.name == "corrected_cameras" else "images"
    ours = [p for p in photos if p.startswith(f"{POLYCAM}/{images}/")]
    for photo, stem in match_names(ours, files).items():
        path = files[stem]
        try:
            poses[photo] = _polycam_pose(json.loads(path.read_text()))
        except WrongPose as error:
            raise CaptureError(f"{path}: {error}") from error
        except _WRONG as error:
            raise CaptureError(f"{path}: not a readable Polycam camera ({error!r}). Export it again.") from error
    if not poses:
        raise CaptureError(
            f"{folder}: no photo in {POLYCAM}/{images}/ is named as one of its cameras. Export it again."
        )
    return PoseFile(folder, poses, metric=True, tracked=True, gravity=DOWN)


def _polycam_pose(row: dict[str, Any]) -> KnownPose:
    T = rigid_pose([[float(row[f"t_{i}{j}"]) for j in range(4)] for i in range(3)]) @ OPENCV_FROM_OPENGL
    fx, fy, cx, cy = (float(row[name]) for name in ("fx", "fy", "cx", "cy"))
    if not (fx > 0 and fy > 0 and np.isfinite([fx, fy, cx, cy]).all()):
        raise WrongPose(f"a focal length must be positive and finite, received {fx}, {fy}.")
    K = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])
    return KnownPose(T, K, (), (int(row["width"]), int(row["height"])))
