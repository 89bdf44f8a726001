# SPDX-License-Identifier: Apache-2.0
"""RealityCapture's "Internal/External camera parameters" CSV as known poses.

Columns: #name, x, y, alt, heading, pitch, roll [degrees], f [mm on 36 mm film], px, py (principal point from the middle,
in units of f's film), k1 … k4, t1, t2. The camera with all angles zero looks down with north up.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import CaptureError
from real2sim.stages.image_names import match_names
from real2sim.stages.known_poses import OPENCV_FROM_OPENGL, KnownPose, PoseFile, WrongPose

FILM_MM = 36.0
COLUMNS = ("x", "y", "alt", "heading", "pitch", "roll")
HIGHER = ("k3", "k4")  # with these the lens is left to structure from motion


def is_realitycapture(path: Path) -> bool:
    """Whether a CSV begins with the export's columns."""
    try:
        with path.open("rb") as file:
            first = file.readline(2000).decode("utf-8-sig", "replace").lower()
    except OSError:
        return False
    return first.startswith("#name") and all(column in first for column in COLUMNS)


def read_realitycapture(path: Path, sizes: Mapping[str, tuple[int, int]]) -> PoseFile:
    """Poses of a CSV. sizes: (width, height) of the capture's photos by path, from which intrinsics in pixels come.

    Raises CaptureError naming the row.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text)))
        by_name = {row["#name"]: row for row in rows}
        of = {name: image for image, name in match_names(sizes, by_name).items()}
        poses = {name: _pose(row, sizes.get(of.get(name, ""))) for name, row in by_name.items()}
    except WrongPose as error:
        raise CaptureError(f"{path}: {error}") from error
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"{path}: not a readable RealityCapture CSV ({error!r}). Export it again.") from error
    if not poses:
        raise CaptureError(f"{path}: the CSV holds no camera. Export it again, or remove it.")
    return PoseFile(path, poses, metric=None)


def rotation(heading: float, pitch: float, roll: float) -> NDArray[np.float64]:
    """R_world_camera [3, 3], OpenGL axes, of angles [rad]: Rz(-heading) Rx(pitch) Ry(roll)."""
    (ch, sh), (cp, sp), (cr, sr) = ((np.cos(a), np.sin(a)) for a in (-heading, pitch, roll))
    Rz = np.array([[ch, -sh, 0], [sh, ch, 0], [0, 0, 1]])
    Rx = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
    Ry = np.array([[cr, 0, sr], [0, 1, 0], [-sr, 0, cr]])
    return np.asarray(Rz @ Rx @ Ry, np.float64)


def _pose(row: Mapping[str, Any], size: tuple[int, int] | None) -> KnownPose:
    x, y, z, *angles = (float(row[column]) for column in COLUMNS)
    if not np.isfinite([x, y, z, *angles]).all():
        raise WrongPose(f"{row['#name']}: a pose must be finite.")
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = rotation(*np.radians(angles)), (x, y, z)
    T = T @ OPENCV_FROM_OPENGL
    if size is None or not row.get("f") or any(abs(float(row.get(k) or 0)) > 1e-9 for k in HIGHER):
        return KnownPose(T)
    width, height = size
    unit = max(size) / FILM_MM
    focal, px, py = (float(row.get(k) or 0) * unit for k in ("f", "px", "py"))
    K = np.array([[focal, 0, width / 2 + px], [0, focal, height / 2 + py], [0, 0, 1.0]])
    distortion = tuple(float(row.get(k) or 0) for k in ("k1", "k2", "t1", "t2"))
    return KnownPose(T, K, distortion if any(distortion) else (), size)
