# SPDX-License-Identifier: Apache-2.0
"""sfm: frames → reconstruction. Camera poses, intrinsics, sparse points; undistorted images; and whether to believe it.

Writes sparse/0 (COLMAP), images/, masks/, depth/, cameras.json, points.npz, contact.png, cameras.png.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from real2sim.errors import BackendError, CaptureError
from real2sim.stages.contract import Progress, Result, above_zero

if TYPE_CHECKING:
    import pycolmap

    from real2sim.sim.cameras import Camera
    from real2sim.sim.gates import Gate
    from real2sim.stages.sfm_agreement import Agreement
    from real2sim.stages.sfm_database import PairStatistics
    from real2sim.stages.sfm_pairs import Pairing
    from real2sim.stages.sfm_static import Still
    from real2sim.stages.sparse import SparsePoints

VERSION = "2"
MIN_FRAMES = 3
WIDE_RATIO = 0.85  # Lowe's test where the search is widened
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
    min_consistent: float = 0.8
    """Threshold of the gate `consistent`: posed frames that a second reconstruction puts in the same place."""
    min_pairs: float = 0.8
    """Threshold of the gate `pairs`: matched pairs that follow the reconstruction."""
    find_still: bool = True
    """Whether what moves with the camera (a gripper, a time stamp) is looked for and left out."""
    retry: bool = True
    """Whether the search is widened, step by step, where fewer than min_registered of the frames are posed."""

    def __post_init__(self) -> None:
        above_zero(self, "max_features", "max_image_size", "overlap", "similar", "min_matches", "max_error_px")
        above_zero(self, "max_ratio", "min_angle_deg", "max_reprojection_px", "min_parallax_deg")
        if self.heldout_every < 2:
            raise ValueError(
                f"heldout_every must be 2 or more, received {self.heldout_every}: it leaves none to train on."
            )


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Reconstruct the frames of inputs["ingest"]. Raises CaptureError where no camera can be posed."""
    if importlib.util.find_spec("pycolmap") is None:
        raise BackendError("sfm needs pycolmap, which is not installed: pip install 'real2sim[reconstruct]'.")
    from real2sim.stages import sfm_artifact
    from real2sim.stages.sfm_database import quiet_log

    ingest = inputs["ingest"]
    description = json.loads((ingest / "frames.json").read_text())
    frames = description["frames"]
    if len(frames) < MIN_FRAMES:
        raise CaptureError(f"{len(frames)} usable frames; at least {MIN_FRAMES} are needed. Take more photos.")
    with quiet_log(scratch):
        pairing = _match(ingest, description, config, scratch, progress)
        frames, still = _leave_out_still(ingest, description, config, scratch, progress)
        found = _reconstruct(ingest, description, config, scratch, progress)
        sfm_artifact.write_model(found.models[0], out)
        cameras, points = sfm_artifact.write_frames(
            *(found.models[0], frames, description["depth"], config.heldout_every, ingest, out),
            lambda done, total: progress.update(done, total, step="undistorting"),
        )
    _pictures(frames, cameras, points, ingest, out)
    metrics = _metrics(frames, found, cameras, points, pairing) | {"still": [_still_row(s) for s in still]}
    progress.log(f"{len(cameras)} of {len(frames)} frames posed, {len(points.xyz)} points ({found.backend})")
    return Result(metrics, _gates(frames, found, cameras, points, config), found.backend)


@dataclass(frozen=True)
class _Found:
    """Models with the best first and adjusted; how well given poses fit; what ran; and whether to believe it."""

    models: list[pycolmap.Reconstruction]
    backend: str
    statistics: PairStatistics
    pose_fit: dict[str, float] | None = None
    agreement: Agreement | None = None
    attempts: list[dict[str, Any]] = field(default_factory=list)


def _match(
    ingest: Path,
    description: dict[str, Any],
    config: Config,
    scratch: Path,
    progress: Progress,
    faint: bool = False,
) -> Pairing:
    """Fill scratch/database.db with features and verified matches; continues what an interrupted run left there."""
    from real2sim.stages import sfm_database
    from real2sim.stages.sfm_pairs import choose_pairs

    frames, groups = description["frames"], description["groups"]
    database = scratch / "database.db"
    options = sfm_database.FeatureOptions(
        config.max_features, config.max_image_size, config.max_ratio, config.guided_matching, config.min_matches, faint
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


def _wider(ingest: Path, description: dict[str, Any], config: Config, scratch: Path, progress: Progress) -> Path:
    """A database of twice the features, fainter ones among them, matched along epipolar lines too."""
    folder = scratch / "wide"
    folder.mkdir(exist_ok=True)
    wide = replace(config, max_features=2 * config.max_features, guided_matching=True, max_ratio=WIDE_RATIO)
    _match(ingest, description, wide, folder, progress, faint=True)
    _leave_out_still(ingest, description, wide, folder, progress)
    return _matches(folder)


def _matches(scratch: Path) -> Path:
    """The database to reconstruct from: without what moves with the camera, where that was found."""
    moving = scratch / "moving.db"
    return moving if moving.exists() else scratch / "database.db"


def _leave_out_still(
    ingest: Path, description: dict[str, Any], config: Config, scratch: Path, progress: Progress
) -> tuple[list[dict[str, Any]], list[Still]]:
    """Find what moves with the camera; frames with it in their masks, and what was found."""
    from real2sim.stages import sfm_static

    (scratch / "moving.db").unlink(missing_ok=True)
    frames, groups = description["frames"], description["groups"]
    if not config.find_still or description["poses"] is not None:
        return frames, []
    still = sfm_static.find_still(scratch / "database.db", frames, groups)
    if not still:
        return frames, []
    sfm_static.leave_out(scratch / "database.db", still, frames, config.min_matches, scratch)
    for s in still:
        progress.log(
            f"{s.share:.0%} of the picture stays at its pixels in {s.frames} frames of {s.group} while the rest moves:"
            " it moves with the camera (a gripper, a time stamp), or is the room behind a turntable. It is left out."
        )
    return sfm_static.with_masks(frames, still, ingest, scratch), still


def _still_row(still: Still) -> dict[str, Any]:
    return {"group": still.group, "share": still.share, "frames": still.frames}


def _reconstruct(
    ingest: Path, description: dict[str, Any], config: Config, scratch: Path, progress: Progress
) -> _Found:
    """Models with the best first and adjusted, and whether they can be believed."""
    from real2sim.stages import sfm_pycolmap
    from real2sim.stages.sfm_database import read_statistics
    from real2sim.stages.sfm_diagnosis import explain_failure

    frames, database = description["frames"], _matches(scratch)
    poses, images, folder = description["poses"], ingest / "images", scratch / "models"
    principal = ["principal_point"] if config.refine_principal_point else []
    attempts: list[dict[str, Any]] = []
    fixed = poses is not None and not poses.get("tracked") and all(f["K"] is not None for f in frames)
    if fixed:
        models = [sfm_pycolmap.triangulate(database, images, folder, frames)]
        moving = ["poses", "intrinsics", *principal] if config.refine_poses else []
        backend = "pycolmap, given poses" + (" refined" if moving else "")
    else:
        models, database, attempts = _attempts(ingest, description, config, scratch, progress)
        moving = ["poses", "intrinsics", *principal]
        backend = "pycolmap, incremental" + (", aligned to given positions" if poses is not None else "")
    statistics = read_statistics(database)
    if not models or models[0].num_reg_images() < MIN_FRAMES or not models[0].num_points3D():
        raise CaptureError(_failure(explain_failure(statistics, len(frames)), attempts))
    progress.update(0, 1, step="bundle adjustment", registered=models[0].num_reg_images())
    sfm_pycolmap.adjust(models[0], config.max_error_px, config.min_angle_deg, moving)
    supported = sfm_pycolmap.supported_frames(models[0], MIN_OBSERVATIONS)
    if len(supported) < MIN_FRAMES:
        raise CaptureError(_failure(explain_failure(statistics, len(frames)), attempts))
    if moving:
        sfm_pycolmap.keep_frames(models[0], supported)
    agreement = None if fixed else _judge(database, models[0], images, scratch, statistics, config, progress)
    fit = sfm_pycolmap.align_to_poses(models[0], frames) if poses is not None and moving else None
    return _Found(models, backend, statistics, fit, agreement, attempts)


def _attempts(
    ingest: Path, description: dict[str, Any], config: Config, scratch: Path, progress: Progress
) -> tuple[list[pycolmap.Reconstruction], Path, list[dict[str, Any]]]:
    """Models of the best attempt, the database that it used, and a row for each attempt."""
    from real2sim.stages import sfm_attempts

    enough = math.ceil(config.min_registered * len(description["frames"])) if config.retry else 0
    made = sfm_attempts.attempt_until(
        *(enough, _matches(scratch), lambda: _wider(ingest, description, config, scratch, progress)),
        *(ingest / "images", scratch, description["groups"], config.min_matches),
        *(config.refine_principal_point, progress),
    )
    chosen = sfm_attempts.best(made)
    if len(made) > 1:
        progress.log(f"{len(made)} attempts; used: {chosen.what}, {chosen.registered} frames posed")
    return chosen.models, chosen.database, [attempt.row() for attempt in made]


def _judge(
    database: Path,
    model: pycolmap.Reconstruction,
    images: Path,
    scratch: Path,
    statistics: PairStatistics,
    config: Config,
    progress: Progress,
) -> Agreement:
    from real2sim.stages import sfm_attempts

    principal = config.refine_principal_point
    return sfm_attempts.judge(database, model, images, scratch, statistics, principal, config.min_consistent, progress)


def _failure(message: str, attempts: list[dict[str, Any]]) -> str:
    tried = ", ".join(row["attempt"] for row in attempts)
    return f"{message} Tried: {tried}." if len(attempts) > 1 else message


def _gates(
    frames: list[dict[str, Any]], found: _Found, cameras: list[Camera], points: SparsePoints, config: Config
) -> list[Gate]:
    import numpy as np

    from real2sim.stages import sfm_agreement, sfm_quality

    angles = sfm_quality.largest_angles(np.array([c.centre for c in cameras]), points)
    supported = sum(np.bincount(points.obs_camera, minlength=len(cameras)) >= MIN_OBSERVATIONS)
    sizes = [int(m.num_reg_images()) for m in found.models]
    posed = {c.name for c in cameras}
    without = [f["capture_path"] for f in frames if f["name"] not in posed]
    return [
        sfm_quality.registered_gate(int(supported), len(frames), sizes, config.min_registered, without),
        sfm_quality.reprojection_gate(cameras, points, config.max_reprojection_px),
        sfm_quality.parallax_gate(angles, config.min_parallax_deg),
        sfm_agreement.consistent_gate(found.agreement, config.min_consistent),
        sfm_agreement.pairs_gate(found.agreement, config.min_pairs),
    ]


def _metrics(
    frames: list[dict[str, Any]], found: _Found, cameras: list[Camera], points: SparsePoints, pairing: Pairing
) -> dict[str, Any]:
    import numpy as np

    from real2sim.stages import sfm_quality
    from real2sim.stages.sfm_attempts import components
    from real2sim.stages.sfm_diagnosis import frame_rows

    models, statistics = found.models, found.statistics
    places = components(statistics, [Path(f["image"]).name for f in frames])

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
        "pose_fit": found.pose_fit,
        "places": [[Path(name).stem for name in place] for place in places],
        "attempts": found.attempts,
        "agreement": asdict(found.agreement) if found.agreement is not None else None,
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
