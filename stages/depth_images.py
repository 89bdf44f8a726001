# SPDX-License-Identifier: Apache-2.0
"""The depth images of a capture beside its reconstruction, matched with the sparse points."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import Real2SimError
from real2sim.sim.cameras import Camera
from real2sim.stages.scale_depth import DepthObservations, observe
from real2sim.stages.sparse import SparsePoints

Array = NDArray[np.float64]
Observed = tuple[DepthObservations | None, DepthObservations | None, Literal["auto", "yes", "no"]]


def read_frames(ingest: Path) -> dict[str, Any]:
    """frames.json of an ingest artifact."""
    path = ingest / "frames.json"
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise Real2SimError(f"{path}: not a list of frames ({error}). Run the ingest stage again.") from error


def observed_depth(
    ingest: Path, sfm: Path, frames: Mapping[str, Any], cameras: Sequence[Camera], sparse: SparsePoints
) -> Observed:
    """Sparse observations with depth registered to colour, and with depth as recorded, and which of them may be right."""
    recorded = {f["name"]: f.get("depth") for f in frames["frames"]}
    unit = float(frames["depth"].get("unit_m", 0.001))

    def undistorted(camera: Camera) -> NDArray[np.uint16] | None:
        return _read(sfm / camera.depth) if camera.depth else None

    def as_recorded(camera: Camera) -> NDArray[np.uint16] | None:
        path = recorded.get(camera.name)
        return _read(ingest / path) if path else None

    modes: dict[Any, Literal["auto", "yes", "no"]] = {True: "yes", False: "no"}
    mode = modes.get(frames["depth"].get("registered", "auto"), "auto")
    registered = observe(cameras, sparse, undistorted, unit) if mode != "no" else None
    separate = observe(cameras, sparse, as_recorded, unit) if mode != "yes" else None
    return registered, separate, mode


def _read(path: Path) -> NDArray[np.uint16]:
    import cv2

    image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    if image is None or image.dtype != np.uint16 or image.ndim != 2:
        raise Real2SimError(
            f"{path}: a depth image is a 16-bit grey PNG; received {None if image is None else image.dtype}."
        )
    return np.asarray(image, np.uint16)
