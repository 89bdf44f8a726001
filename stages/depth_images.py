# SPDX-License-Identifier: Apache-2.0
"""The depth images of a capture beside its reconstruction: read, matched with the sparse points, and sampled.

A sensor measures along every pixel what triangulation knows at a few: training keeps to both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import Real2SimError
from real2sim.sim.cameras import Camera
from real2sim.stages.scale_depth import DepthObservations, choose_camera, frame_ratio, observe
from real2sim.stages.sparse import SparsePoints

Array = NDArray[np.float64]
Observed = tuple[DepthObservations | None, DepthObservations | None, Literal["auto", "yes", "no"]]

SAMPLES = 3000  # depth pixels of one frame that training keeps to


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


def depth_samples(
    ingest: Path, sfm: Path, cameras: Sequence[Camera], sparse: SparsePoints
) -> dict[str, tuple[Array, Array]]:
    """Per camera name, places [P, 2] in the photo (shares of width and height) and depths z [P] in sfm units.

    cameras: all of the sfm artifact, in its order. Each frame's sensor is brought to the reconstruction's unit by its
    own sparse points; a frame that has too few of them is left out. Empty where the capture has no depth images.
    """
    frames = read_frames(ingest)
    if not frames.get("depth"):
        return {}
    choice = choose_camera(*observed_depth(ingest, sfm, frames, cameras, sparse))
    if choice is None:
        return {}
    obs, model = choice.observations, choice.model
    found = {}
    for k, name in enumerate(obs.names):
        ratio = frame_ratio(obs, model, k)
        if ratio is None:
            continue
        image, (fx, fy), centre = obs.images[k], *_intrinsics(obs, k)
        stride = max(1, int(np.sqrt(image.size / SAMPLES)))
        v, u = np.mgrid[stride // 2 : image.shape[0] : stride, stride // 2 : image.shape[1] : stride]
        z = image[v, u].astype(np.float64) / ratio
        x = (u + 0.5 - centre[0] - model.offset_px[0]) / (model.focal_ratio * fx) - model.baseline / z
        y = (v + 0.5 - centre[1] - model.offset_px[1]) / (model.focal_ratio * fy)
        places = np.stack([fx * x + centre[0], fy * y + centre[1]], -1) / [image.shape[1], image.shape[0]]
        usable = np.isfinite(z) & (places >= 0).all(-1) & (places < 1).all(-1)
        found[name] = (places[usable], z[usable])
    return found


def _intrinsics(obs: DepthObservations, k: int) -> tuple[Array, Array]:
    """Colour focal [2] and principal point [2] at the size of depth image k."""
    row = int(np.flatnonzero(obs.frame == k)[0])
    return obs.focal[row], obs.centre[row]
