# SPDX-License-Identifier: Apache-2.0
"""sfm: frames → reconstruction. Camera poses, intrinsics, sparse points; undistorted images; and whether to believe it.

Writes sparse/0 (COLMAP), images/, masks/, depth/, cameras.json, points.npz, contact.png, cameras.png.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from real2sim.errors import BackendError, CaptureError
from real2sim.stages.contract import Progress, Result

if TYPE_CHECKING:
    import pycolmap

    from real2sim.sim.cameras import Camera
    from real2sim.sim.gates import Gate
    from real2sim.stages.sfm_database import PairStatistics
    from real2sim.stages.sfm_pairs import Pairing
    from real2sim.stages.sparse import SparsePoints

VERSION = "1"
MIN_FRAMES = 3
MIN_OBSERVATIONS = 15  # points that a frame must see for its pose to count as supported


@dataclass(frozen=True)
class Config:
    """Options of sfm."""

    max_features: int = 8192
    """SIFT features per image, at most."""
    max_image_size: int = 1600
    """Long side at which features are found; larger images are shrunk for that only [px]."""
    matching: Literal["auto", "exhaustive", "sequential", "similar"] = "auto"
    """Pairs to match: all, neighbours in order, look-alikes; auto: all up to exhaustive_limit images."""
    exhaustive_limit: int = 80
    """Images up to which auto matches all pairs."""
    overlap: int = 15
    """Neighbours on one side that each image of an ordered sequence is matched with."""
    similar: int = 10
    """Look-alikes that each image is matched with, which closes loops."""
    max_ratio: float = 0.8
    """Lowe's ratio test."""
    guided_matching: bool = False
    """Match again along the epipolar lines that were found."""
    min_matches: int = 15
    """Verified matches that a pair of images needs."""
    refine_principal_point: bool = False
    """Whether bundle adjustment moves the principal point."""
    refine_poses: bool = False
    """Whether bundle adjustment moves given poses; their frame and scale stay."""
    max_error_px: float = 2.0
    """Observations farther than this from their projected point are dropped at the end [px]."""
    min_angle_deg: float = 1.5
    """Points under whose rays no angle is larger are dropped [degrees]."""
    heldout_every: int = 8
    """Each such registered frame in name order is held out from splat training."""
    min_registered: float = 0.8
    """Threshold of the gate `registered`: frames with a pose over frames used."""
    max_reprojection_px: float = 1.5
    """Threshold of the gate `reprojection`: mean error at a long side of 1280 px [px]."""
    min_parallax_deg: float = 4.0
    """Threshold of the gate `parallax`: median over points of the largest triangulation angle [degrees]."""

    def __post_init__(self) -> None:
        for name in (
            "max_features",
            "max_image_size",
            "overlap",
            "similar",
            "min_matches",
            "max_ratio",
            "max_error_px",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, received {getattr(self, name)}.")
        if self.heldout_every < 2:
            raise ValueError(
                f"heldout_every must be 2 or more, received {self.heldout_every}: it leaves none to train on."
            )


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Reconstruct the frames of inputs["ingest"]. Raises CaptureError where no camera can be posed."""
    if importlib.util.find_spec("pycolmap") is None:
        raise BackendError("sfm needs pycolmap, which is not installed: pip install 'real2sim[reconstruct]'.")
    from real2sim.stages import sfm_artifact
    from real2sim.stages.sfm_database import quiet_log, read_statistics

    ingest = inputs["ingest"]
    description = json.loads((ingest / "frames.json").read_text())
    frames = description["frames"]
    if len(frames) < MIN_FRAMES:
        raise CaptureError(f"{len(frames)} usable frames; at least {MIN_FRAMES} are needed. Take more photos.")
    with quiet_log(scratch):
        pairing = _match(ingest, description, config, scratch, progress)
        statistics = read_statistics(scratch / "database.db")
        models, pose_fit, backend = _reconstruct(ingest, description, config, scratch, statistics, progress)
        model = models[0]
        sfm_artifact.write_model(model, out)
        cameras, points = sfm_artifact.write_frames(
            *(model, frames, description["depth"], config.heldout_every, ingest, out),
            lambda done, total: progress.update(done, total, step="undistorting"),
        )
    _pictures(frames, cameras, points, ingest, out)
    metrics = _metrics(frames, models, cameras, points, statistics, pairing, pose_fit)
    progress.log(f"{len(cameras)} of {len(frames)} frames posed, {len(points.xyz)} points ({backend})")
    return Result(metrics, _gates(frames, models, cameras, points, config), backend)


def _match(ingest: Path, description: dict[str, Any], config: Config, scratch: Path, progress: Progress) -> Pairing:
    """Fill scratch/database.db with features and verified matches; continues what an interrupted run left there."""
    from real2sim.stages import sfm_database
    from real2sim.stages.sfm_pairs import choose_pairs

    frames, groups = description["frames"], description["groups"]
    database = scratch / "database.db"
    options = sfm_database.FeatureOptions(
        config.max_features, config.max_image_size, config.max_ratio, config.guided_matching, config.min_matches
    )
    key = {"version": VERSION, "options": asdict(options), "frames": frames, "groups": groups}
    if sfm_database.valid_database(database, scratch / "database.json", key):
        progress.log("continuing with the features and matches of an interrupted run")
    sfm_database.write_images(database, frames, groups)
    masks = sfm_database.write_colmap_masks(frames, ingest, scratch / "masks")
    sfm_database.extract(database, ingest / "images", frames, groups, masks, options, progress)
    names = [Path(f["image"]).name for f in frames]
    pairing = choose_pairs(
        *(names, description["ordered"], config.matching, config.exhaustive_limit, config.overlap, config.similar),
        lambda: sfm_database.read_descriptors(database),
    )
    progress.log(f"matching {pairing.how}")
    sfm_database.match(database, pairing.pairs, scratch, options, progress)
    return pairing


def _reconstruct(
    ingest: Path,
    description: dict[str, Any],
    config: Config,
    scratch: Path,
    statistics: PairStatistics,
    progress: Progress,
) -> tuple[list[pycolmap.Reconstruction], dict[str, float] | None, str]:
    """Models with the best first and adjusted, how well given poses fit, and what ran."""
    from real2sim.stages import sfm_pycolmap
    from real2sim.stages.sfm_diagnosis import explain_failure

    frames = description["frames"]
    database, images, folder = scratch / "database.db", ingest / "images", scratch / "models"
    posed = description["poses"] is not None
    principal = ["principal_point"] if config.refine_principal_point else []
    if posed and not description["poses"].get("tracked") and all(f["K"] is not None for f in frames):
        model = sfm_pycolmap.triangulate(database, images, folder, frames)
        moving = ["poses", "intrinsics", *principal] if config.refine_poses else []
        models, backend = [model], "pycolmap, given poses" + (" refined" if moving else "")
    else:
        models = sfm_pycolmap.map_incrementally(database, images, folder, config.refine_principal_point, progress)
        moving = ["poses", "intrinsics", *principal]
        backend = "pycolmap, incremental" + (", aligned to given positions" if posed else "")
    if not models or models[0].num_reg_images() < MIN_FRAMES or not models[0].num_points3D():
        raise CaptureError(explain_failure(statistics, len(frames)))
    progress.update(0, 1, step="bundle adjustment", registered=models[0].num_reg_images())
    sfm_pycolmap.adjust(models[0], config.max_error_px, config.min_angle_deg, moving)
    supported = sfm_pycolmap.supported_frames(models[0], MIN_OBSERVATIONS)
    if len(supported) < MIN_FRAMES:
        raise CaptureError(explain_failure(statistics, len(frames)))
    if moving:
        sfm_pycolmap.keep_frames(models[0], supported)
    fit = sfm_pycolmap.align_to_poses(models[0], frames) if posed and moving else None
    return models, fit, backend


def _gates(
    frames: list[dict[str, Any]],
    models: list[pycolmap.Reconstruction],
    cameras: list[Camera],
    points: SparsePoints,
    config: Config,
) -> list[Gate]:
    import numpy as np

    from real2sim.stages import sfm_quality

    angles = sfm_quality.largest_angles(np.array([c.centre for c in cameras]), points)
    supported = sum(np.bincount(points.obs_camera, minlength=len(cameras)) >= MIN_OBSERVATIONS)
    sizes = [int(m.num_reg_images()) for m in models]
    posed = {c.name for c in cameras}
    without = [f["capture_path"] for f in frames if f["name"] not in posed]
    return [
        sfm_quality.registered_gate(int(supported), len(frames), sizes, config.min_registered, without),
        sfm_quality.reprojection_gate(cameras, points, config.max_reprojection_px),
        sfm_quality.parallax_gate(angles, config.min_parallax_deg),
    ]


def _metrics(
    frames: list[dict[str, Any]],
    models: list[pycolmap.Reconstruction],
    cameras: list[Camera],
    points: SparsePoints,
    statistics: PairStatistics,
    pairing: Pairing,
    pose_fit: dict[str, float] | None,
) -> dict[str, Any]:
    import numpy as np

    from real2sim.stages import sfm_quality
    from real2sim.stages.sfm_diagnosis import frame_rows

    errors = sfm_quality.reprojection_errors(cameras, points)
    angles = sfm_quality.largest_angles(np.array([c.centre for c in cameras]), points)
    others = [sorted(Path(i.name).stem for i in map(m.image, m.reg_image_ids())) for m in models[1:]]
    return {
        "frames_used": len(frames),
        "registered": len(cameras),
        "models": [{"images": int(m.num_reg_images()), "points": int(m.num_points3D())} for m in models],
        "points": len(points.xyz),
        "observations": len(points.obs_point),
        "reprojection_px": float(errors.mean()),
        "track_length": float(points.track_length.mean()),
        "parallax_deg": float(np.median(angles)),
        "angles": sfm_quality.angle_histogram(angles),
        "pairs": {"matched": len(pairing.pairs), "verified": len(statistics.inliers), "how": pairing.how},
        "cameras": [_camera_row(models[0].cameras[i]) for i in sorted(models[0].cameras)],
        "frames": frame_rows(frames, cameras, points, errors, statistics, others),
        "pose_fit": pose_fit,
    }


def _camera_row(camera: pycolmap.Camera) -> dict[str, Any]:
    return {
        "id": int(camera.camera_id),
        "model": camera.model_name,
        "width": int(camera.width),
        "height": int(camera.height),
        "params": [float(v) for v in camera.params],
    }


def _pictures(
    frames: list[dict[str, Any]], cameras: list[Camera], points: SparsePoints, ingest: Path, out: Path
) -> None:
    from real2sim.stages.camera_plot import write_camera_plot
    from real2sim.stages.sfm_artifact import write_sheet

    write_sheet(frames, {c.name for c in cameras}, ingest, out)
    write_camera_plot(out / "cameras.png", cameras, points.xyz, points.rgb)
