# SPDX-License-Identifier: Apache-2.0
"""Scale of the reconstruction in metres, from whatever the capture offers, with its uncertainty.

Sources in order of trust: metric poses, an ArUco marker, depth images, known lengths. Every source that is present is
measured and listed; two that contradict each other fail the gate, whichever of them is right.

Writes scale.json: metres_per_unit and relative_uncertainty (null where unresolved), from, evidence,
nominal_metres_per_unit (the median distance of camera and scene becomes 1 m), candidates, marker (corners in the sfm
frame), gravity (up in the sfm frame, where the capture's poses came with gravity).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import CaptureError, Real2SimError
from real2sim.sim.cameras import Camera, read_cameras
from real2sim.sim.transforms import Similarity
from real2sim.stages.contract import Progress, Result, above_zero
from real2sim.stages.scale_candidate import Candidate, choose, scale_gate
from real2sim.stages.scale_depth import observe, scale_from_depth
from real2sim.stages.scale_length import scale_from_lengths
from real2sim.stages.scale_marker import find_sightings, scale_from_markers
from real2sim.stages.scale_poses import scale_from_poses
from real2sim.stages.sparse import SparsePoints

VERSION = "1"


@dataclass(frozen=True)
class Config:
    """How the scale is found and judged."""

    max_relative_uncertainty: float = 0.02
    """Threshold of gate `scale`: one sigma over the value."""
    mark_error_px: float = 1.5
    """How exactly a person marks the ends of a known length [px]."""

    def __post_init__(self) -> None:
        above_zero(self, "max_relative_uncertainty", "mark_error_px")


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Measure the scale from every source in the capture; inputs: ingest, sfm."""
    cameras = read_cameras(inputs["sfm"] / "cameras.json")
    sparse = SparsePoints.load(inputs["sfm"] / "points.npz")
    frames = {**_read(inputs["ingest"] / "frames.json"), **_read(inputs["ingest"] / "measures.json")}
    nominal = nominal_scale(cameras, sparse)
    candidates, up = find_candidates(inputs, frames, cameras, sparse, config)
    for c in candidates:
        value = (
            "not usable"
            if c.metres_per_unit is None
            else f"{c.metres_per_unit:.5g} m per unit ± {c.relative_uncertainty:.2%}"
        )
        progress.log(f"scale from {c.source}: {value} ({c.evidence})")
    chosen = choose(candidates, config.max_relative_uncertainty)
    gate = scale_gate(chosen, candidates, config.max_relative_uncertainty)
    marker = next((c.detail for c in candidates if c.source == "aruco" and "corners_sfm" in c.detail), None)
    report = {
        "metres_per_unit": chosen.metres_per_unit if chosen else None,
        "relative_uncertainty": chosen.relative_uncertainty if chosen else None,
        "from": chosen.source if chosen else "unresolved",
        "evidence": chosen.evidence if chosen else gate.evidence,
        "nominal_metres_per_unit": nominal,
        "candidates": [c.to_json() for c in candidates],
        "marker": {"id": marker["marker"], "corners_sfm": marker["corners_sfm"]} if marker else None,
        "gravity": None if up is None else {"from": "poses", "up_sfm": [float(v) for v in up]},
    }
    (out / "scale.json").write_text(json.dumps(report, indent=1))
    notes = (
        []
        if chosen
        else ["No source of scale: lengths are relative, the median camera-to-scene distance counts as 1 m."]
    )
    return Result(metrics=report, gates=[gate], backend=report["from"], notes=notes)


def nominal_scale(cameras: Sequence[Camera], sparse: SparsePoints) -> float:
    """Metres per unit that make the median distance of a camera and the points it sees 1 m."""
    if len(sparse.obs_point) == 0:
        raise CaptureError("The reconstruction has no points: photograph a scene with more texture and overlap.")
    centres = np.array([c.centre for c in cameras])
    distance = np.linalg.norm(sparse.xyz[sparse.obs_point] - centres[sparse.obs_camera], axis=1)
    return float(1 / np.median(distance))


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise Real2SimError(f"{path}: cannot be read ({error}). Run the ingest stage again.") from error


def find_candidates(
    inputs: Mapping[str, Path],
    frames: Mapping[str, Any],
    cameras: Sequence[Camera],
    sparse: SparsePoints,
    config: Config,
) -> tuple[list[Candidate], NDArray[np.float64] | None]:
    """All candidates, and the up direction [3] in the sfm frame where the given poses know gravity."""
    found: list[Candidate] = []
    up = None
    if frames.get("poses"):
        given = {f["name"]: f.get("T_world_cam") for f in frames["frames"]}
        candidate, T_given_sfm = scale_from_poses(cameras, given)
        if frames["poses"].get("metric"):
            found.append(candidate)
        up = _up_from_gravity(frames.get("gravity"), T_given_sfm)
    if frames.get("marker"):
        sightings = find_sightings(inputs["sfm"], cameras, frames["marker"].get("dictionary", "DICT_4X4_50"))
        found.append(scale_from_markers(sightings, cameras, float(frames["marker"]["size_m"])))
    if frames.get("depth"):
        found.append(_depth_candidate(inputs, frames, cameras, sparse))
    if frames.get("known_lengths"):
        names = {f["name"] for f in frames["frames"]}
        undistort = pixel_undistorter(inputs["sfm"], cameras)
        load = _grey_loader(inputs["sfm"])
        entries = frames["known_lengths"]
        found += scale_from_lengths(entries, cameras, sparse, names, undistort, load, config.mark_error_px)
    return found, up


def _up_from_gravity(gravity: Any, T_given_sfm: Similarity | None) -> NDArray[np.float64] | None:
    """Up [3] in the sfm frame from gravity [3] in the frame of the given poses."""
    if gravity is None or T_given_sfm is None:
        return None
    up = -T_given_sfm.rotation.T @ np.asarray(gravity, np.float64)
    return up / np.linalg.norm(up)


def _depth_candidate(
    inputs: Mapping[str, Path], frames: Mapping[str, Any], cameras: Sequence[Camera], sparse: SparsePoints
) -> Candidate:
    import cv2

    recorded = {f["name"]: f.get("depth") for f in frames["frames"]}
    unit = float(frames["depth"].get("unit_m", 0.001))

    def read(path: Path) -> NDArray[np.uint16]:
        image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if image is None or image.dtype != np.uint16 or image.ndim != 2:
            raise Real2SimError(
                f"{path}: a depth image is a 16-bit grey PNG; received {None if image is None else image.dtype}."
            )
        return np.asarray(image, np.uint16)

    def undistorted(camera: Camera) -> NDArray[np.uint16] | None:
        return read(inputs["sfm"] / camera.depth) if camera.depth else None

    def as_recorded(camera: Camera) -> NDArray[np.uint16] | None:
        path = recorded.get(camera.name)
        return read(inputs["ingest"] / path) if path else None

    modes: dict[Any, Literal["auto", "yes", "no"]] = {True: "yes", False: "no"}
    mode = modes.get(frames["depth"].get("registered", "auto"), "auto")
    registered = observe(cameras, sparse, undistorted, unit) if mode != "no" else None
    separate = observe(cameras, sparse, as_recorded, unit) if mode != "yes" else None
    return scale_from_depth(registered, separate, mode)


def _grey_loader(folder: Path) -> Callable[[Camera], NDArray[np.uint8]]:
    """camera -> its undistorted grey image, each read once."""
    import cv2

    cache: dict[str, NDArray[np.uint8]] = {}

    def load(camera: Camera) -> NDArray[np.uint8]:
        if camera.name not in cache:
            path = folder / str(camera.image)
            image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
            if image is None:
                raise Real2SimError(f"{path}: cannot be read as an image. Run the sfm stage again.")
            cache[camera.name] = np.asarray(image, np.uint8)
        return cache[camera.name]

    return load


def pixel_undistorter(
    sfm: Path, cameras: Sequence[Camera]
) -> Callable[[str, NDArray[np.float64]], NDArray[np.float64]]:
    """(frame, pixel [2] of the ingested image) -> pixel [2] of its undistorted image, through the COLMAP camera."""
    import cv2  # noqa: F401  OpenCV before pycolmap: the other order breaks PNG writing
    import pycolmap

    reconstruction = pycolmap.Reconstruction(str(sfm / "sparse" / "0"))
    models = {
        Path(image.name).stem: reconstruction.cameras[image.camera_id] for image in reconstruction.images.values()
    }
    by_name = {c.name: c for c in cameras}

    def undistort(name: str, pixel: NDArray[np.float64]) -> NDArray[np.float64]:
        camera = by_name[name]
        x = np.asarray(models[name].cam_from_img(np.asarray(pixel, np.float64)))
        return x * np.diag(camera.K)[:2] + camera.K[:2, 2]

    return undistort
