# SPDX-License-Identifier: Apache-2.0
"""COLMAP's mapper through pycolmap: poses from matches, or points from given poses; and a last bundle adjustment."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2  # noqa: F401  before pycolmap: the other order makes later PNG writing abort
import numpy as np
import pycolmap
from numpy.typing import NDArray

from real2sim.sim.transforms import umeyama
from real2sim.stages.contract import Progress
from real2sim.stages.sfm_database import SEED

MAX_MODELS = 20
MIN_MODEL_SIZE = 3  # images
LOOSE_START = (50, 8.0)  # matches and degrees of the first pair; COLMAP's own are 100 and 16
LOOSE_POSE = 20  # matches that give a pose; COLMAP's own are 30
FINAL_ROUNDS = 3  # of bundle adjustment and filtering


def map_incrementally(
    database: Path,
    images: Path,
    models: Path,
    refine_principal_point: bool,
    progress: Progress,
    *,
    loose: bool = False,
    start: int | None = None,
    seed: int = SEED,
    only_first: bool = False,
) -> list[pycolmap.Reconstruction]:
    """All models that the incremental mapper finds (Schönberger and Frahm 2016), most images first.

    loose: begin and go on with fewer and closer views; start: id of the image to begin with; only_first: one model.
    """
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir()
    options = pipeline_options()
    options.ba_refine_principal_point = refine_principal_point
    options.random_seed = options.mapper.random_seed = options.triangulation.random_seed = seed
    options.multiple_models = not only_first
    if start is not None:
        options.init_image_id1 = start
    if loose:
        options.mapper.init_min_num_inliers, options.mapper.init_min_tri_angle = LOOSE_START
        options.mapper.abs_pose_min_num_inliers = LOOSE_POSE
    db = pycolmap.Database.open(database)
    total, seen = db.num_images(), [1]
    db.close()

    def registered() -> None:
        seen[0] += 1
        progress.update(min(seen[0], total), total, step="mapping", registered=seen[0])

    found = pycolmap.incremental_mapping(
        database, images, models, options, initial_image_pair_callback=registered, next_image_callback=registered
    )
    return best_first(found)


def best_first(models: Mapping[int, pycolmap.Reconstruction]) -> list[pycolmap.Reconstruction]:
    """Models by registered images, then points, then the order in which they were found."""
    order = sorted(models, key=lambda i: (-models[i].num_reg_images(), -models[i].num_points3D(), i))
    return [models[i] for i in order]


def pipeline_options() -> pycolmap.IncrementalPipelineOptions:
    """Options under which the same database gives the same model: seeded, and one thread in the solver."""
    options = pycolmap.IncrementalPipelineOptions()
    options.random_seed = options.mapper.random_seed = options.triangulation.random_seed = SEED
    options.num_threads = options.mapper.num_threads = 1
    options.max_num_models = MAX_MODELS
    options.min_model_size = MIN_MODEL_SIZE
    return options


def triangulate(
    database: Path, images: Path, models: Path, frames: Sequence[dict[str, Any]]
) -> pycolmap.Reconstruction:
    """Points from matches under given poses and intrinsics, both kept as they are."""
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir()
    posed = pycolmap.Reconstruction()
    db = pycolmap.Database.open(database)
    for camera in db.read_all_cameras():
        posed.add_camera(camera)
    for rig in db.read_all_rigs():
        posed.add_rig(rig)
    poses = {Path(f["image"]).name: np.asarray(f["T_world_cam"]) for f in frames}
    rows = {image.image_id: image for image in db.read_all_images()}
    for frame in db.read_all_frames():
        image = rows[frame.frame_id]
        frame.rig_from_world = _cam_from_world(poses[image.name])
        posed.add_frame(frame)
        posed.add_image(image)
        posed.register_frame(frame.frame_id)
    db.close()
    return pycolmap.triangulate_points(posed, database, images, models, options=pipeline_options())


def adjust(model: pycolmap.Reconstruction, max_error_px: float, min_angle_deg: float, refine: Sequence[str]) -> None:
    """Last bundle adjustment with a robust loss, alternated with dropping observations over max_error_px, in place.

    refine: which of "poses", "intrinsics", "principal_point" move; points always do.
    """
    options = pycolmap.BundleAdjustmentOptions()
    options.print_summary = False
    options.refine_rig_from_world = "poses" in refine
    options.refine_focal_length = options.refine_extra_params = "intrinsics" in refine
    options.refine_principal_point = "principal_point" in refine
    options.ceres.loss_function_type = pycolmap.LossFunctionType.SOFT_L1
    options.ceres.loss_function_scale = 1.0
    options.ceres.solver_options.num_threads = 1
    options.ceres.solver_options.max_num_iterations = 100
    options.ceres.solver_options.function_tolerance = 1e-8
    moving = pycolmap.BundleAdjustmentConfig()
    for image_id in model.reg_image_ids():
        moving.add_image(image_id)
    moving.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    for _ in range(FINAL_ROUNDS):
        pycolmap.create_default_bundle_adjuster(options, moving, model).solve()
        dropped = pycolmap.ObservationManager(model).filter_all_points3D(max_error_px, min_angle_deg)
        if not dropped:
            break
    model.update_point_3d_errors()


def supported_frames(model: pycolmap.Reconstruction, min_points: int) -> set[int]:
    """Ids of COLMAP frames whose images see enough points for their pose to mean something."""
    images = [model.image(i) for i in model.reg_image_ids()]
    return {image.frame_id for image in images if image.num_points3D >= min_points}


def keep_frames(model: pycolmap.Reconstruction, frame_ids: set[int]) -> None:
    """Take all other frames' poses and observations out of a model, in place."""
    for frame_id in sorted(set(model.reg_frame_ids()) - frame_ids):
        model.deregister_frame(frame_id)
    model.update_point_3d_errors()


def align_to_poses(model: pycolmap.Reconstruction, frames: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Move a model into the frame of given camera centres by a similarity, in place; what is left over.

    Centres alone fix the similarity where they are not on a line (Umeyama 1991).
    """
    given = {Path(f["image"]).name: np.asarray(f["T_world_cam"]) for f in frames if f["T_world_cam"] is not None}
    images = [image for image in registered_images(model) if image.name in given]
    centres = np.array([image.projection_center() for image in images])
    target = np.array([given[image.name][:3, 3] for image in images])
    fit = umeyama(centres, target)
    model.transform(pycolmap.Sim3d(fit.scale, pycolmap.Rotation3d(fit.rotation), fit.translation))
    residual = np.linalg.norm(fit.apply(centres) - target, axis=1)
    return {
        "images": len(images),
        "scale": fit.scale,
        "position_rmse": float(np.sqrt((residual**2).mean())),
        "position_median": float(np.median(residual)),
        "rotation_median_deg": float(np.median(_rotation_errors(images, given))),
    }


def registered_images(model: pycolmap.Reconstruction) -> list[pycolmap.Image]:
    """Images with a pose, by name."""
    return sorted((model.image(i) for i in model.reg_image_ids()), key=lambda image: image.name)


def pose_of(image: pycolmap.Image) -> NDArray[np.float64]:
    """T_world_cam [4, 4] of a registered image."""
    T = np.eye(4)
    T[:3] = image.cam_from_world().inverse().matrix()
    return T


def _cam_from_world(T_world_cam: NDArray[np.float64]) -> pycolmap.Rigid3d:
    R = T_world_cam[:3, :3].T
    return pycolmap.Rigid3d(pycolmap.Rotation3d(R), -R @ T_world_cam[:3, 3])


def _rotation_errors(images: Sequence[pycolmap.Image], given: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Angles [deg] between given and found rotations; the model is already in the given frame."""
    relative = [given[image.name][:3, :3].T @ pose_of(image)[:3, :3] for image in images]
    return np.degrees([np.arccos(np.clip((np.trace(R) - 1) / 2, -1, 1)) for R in relative])
