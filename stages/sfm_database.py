# SPDX-License-Identifier: Apache-2.0
"""COLMAP's database: cameras and images as ingest grouped them, SIFT features, verified matches. Resumable.

Ids follow the order of the frames and RANSAC is seeded, so that the database's content does not depend on threads.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2  # before pycolmap: the other order makes later PNG writing abort
import numpy as np
import pycolmap
from numpy.typing import NDArray

from real2sim.stages.contract import Progress

FEATURE_CHUNK, PAIR_CHUNK = 8, 120  # images, pairs between two reports of progress
SEED = 0
FAINT = 3.0  # how much fainter features are taken where the usual ones do not suffice
_KIND = pycolmap.TwoViewGeometryConfiguration
_FOLLOWS_HOMOGRAPHY = (_KIND.PLANAR, _KIND.PANORAMIC, _KIND.PLANAR_OR_PANORAMIC)


@dataclass(frozen=True)
class FeatureOptions:
    """max_image_size: long side at which features are found [px]; max_ratio: Lowe's test; faint: of low contrast too."""

    max_features: int
    max_image_size: int
    max_ratio: float
    guided: bool
    min_matches: int
    faint: bool = False


def threads() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def quiet_log(folder: Path) -> Iterator[Path]:
    """Send pycolmap's log to files colmap.* in a folder instead of the terminal."""
    log = pycolmap.logging
    before = (log.alsologtostderr, log.logtostderr, log.stderrthreshold)
    # glog names a file by second and process, and cannot open one that is there: each level and each call has its own.
    for level in (log.INFO, log.WARNING, log.ERROR):
        log.set_log_destination(level, str(folder / f"colmap.{time.monotonic_ns()}.{level.name}."))
    log.alsologtostderr, log.logtostderr, log.stderrthreshold = False, False, log.FATAL.value
    try:
        yield folder
    finally:
        log.alsologtostderr, log.logtostderr, log.stderrthreshold = before


def group_camera(group: dict[str, Any], camera_id: int) -> pycolmap.Camera:
    """The COLMAP camera of a group: its prior, or its given intrinsics."""
    model, size = group["model"], (group["width"], group["height"])
    camera = pycolmap.Camera.create_from_model_name(camera_id, model, group["focal_px"], *size)
    camera.has_prior_focal_length = group["focal_source"] != "default"
    if group["K"] is not None:
        K = np.asarray(group["K"])
        distortion = (list(group["distortion"]) + [0.0] * 4)[:4]
        pinhole = [K[0, 0], K[1, 1], K[0, 2], K[1, 2]]
        camera.params = pinhole + (distortion if model == "OPENCV" else [])
    return camera


def write_images(database: Path, frames: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> None:
    """Write cameras, rigs, images, frames: image and frame ids are 1, 2, … in the order of the frames."""
    camera_ids = {group["id"]: i for i, group in enumerate(groups, 1)}
    db = pycolmap.Database.open(database)
    try:
        if db.num_images() == len(frames):
            return
        db.clear_all_tables()
        for group in groups:
            camera = group_camera(group, camera_ids[group["id"]])
            db.write_camera(camera, use_camera_id=True)
            rig = pycolmap.Rig()
            rig.rig_id = camera.camera_id
            rig.add_ref_sensor(camera.sensor_id)
            db.write_rig(rig, use_rig_id=True)
        for i, row in enumerate(frames, 1):
            name, camera_id = Path(row["image"]).name, camera_ids[row["group"]]
            image = pycolmap.Image(name=name, camera_id=camera_id, image_id=i)
            db.write_image(image, use_image_id=True)
            frame = pycolmap.Frame()
            frame.frame_id, frame.rig_id = i, camera_id
            frame.add_data_id(image.data_id)
            db.write_frame(frame, use_frame_id=True)
    finally:
        db.close()


def extract(
    database: Path,
    images: Path,
    frames: Sequence[dict[str, Any]],
    groups: Sequence[dict[str, Any]],
    masks: Path | None,
    options: FeatureOptions,
    progress: Progress,
) -> None:
    """SIFT features (Lowe 2004) of every image that has none yet; masked pixels give none."""
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.num_threads = threads()
    extraction.max_image_size = options.max_image_size
    extraction.sift.max_num_features = options.max_features
    if options.faint:
        extraction.sift.peak_threshold /= FAINT
    done = 0
    for camera_id, group in enumerate(groups, 1):
        reader = pycolmap.ImageReaderOptions()
        reader.camera_model, reader.existing_camera_id = group["model"], camera_id
        if masks is not None:
            reader.mask_path = masks
        names = [Path(f["image"]).name for f in frames if f["group"] == group["id"]]
        for start in range(0, len(names), FEATURE_CHUNK):
            chunk = names[start : start + FEATURE_CHUNK]
            pycolmap.extract_features(
                *(database, images, chunk),
                reader_options=reader,
                extraction_options=extraction,
                device=pycolmap.Device.cpu,
            )
            done += len(chunk)
            progress.update(done, len(frames), step="features")


def match(
    database: Path, pairs: Sequence[tuple[str, str]], scratch: Path, options: FeatureOptions, progress: Progress
) -> None:
    """Match and verify pairs of image names; pairs that are in the database already are not matched again."""
    matching = pycolmap.FeatureMatchingOptions()
    matching.num_threads = threads()
    matching.guided_matching = options.guided
    matching.sift.max_ratio = options.max_ratio
    verification = pycolmap.TwoViewGeometryOptions()
    verification.min_num_inliers = options.min_matches
    verification.ransac.random_seed = SEED
    pairing = pycolmap.ImportedPairingOptions()
    pairing.match_list_path = scratch / "pairs.txt"
    for start in range(0, len(pairs), PAIR_CHUNK):
        chunk = pairs[start : start + PAIR_CHUNK]
        pairing.match_list_path.write_text("".join(f"{a} {b}\n" for a, b in chunk))
        pycolmap.match_image_pairs(database, matching, pairing, verification, device=pycolmap.Device.cpu)
        progress.update(start + len(chunk), len(pairs), step="matching")


def verify_again(
    database: Path,
    pairs_file: Path,
    min_matches: int,
    keep: Callable[[int, int, NDArray[Any]], NDArray[np.bool_]] | None = None,
) -> None:
    """Verify the pairs of a database anew; keep(a, b, matches [M, 2]) says which matches stay."""
    db = pycolmap.Database.open(database)
    try:
        names, lines = {image.image_id: image.name for image in db.read_all_images()}, []
        for pair_id, stored in zip(*db.read_all_matches()):
            (a, b), matches = pycolmap.pair_id_to_image_pair(pair_id), np.asarray(stored)
            if not len(matches):
                continue
            if keep is not None:
                db.delete_matches(a, b)
                db.write_matches(a, b, matches[keep(a, b, matches)])
            db.delete_two_view_geometry(a, b)
            lines.append(f"{names[a]} {names[b]}\n")
    finally:
        db.close()
    pairs_file.write_text("".join(lines))
    verification = pycolmap.TwoViewGeometryOptions()
    verification.min_num_inliers = min_matches
    verification.ransac.random_seed = SEED
    pycolmap.verify_matches(database, pairs_file, verification)


def read_descriptors(database: Path) -> dict[str, NDArray[np.uint8]]:
    """SIFT descriptors [N, 128] by image name."""
    db = pycolmap.Database.open(database)
    try:
        return {i.name: np.asarray(db.read_descriptors(i.image_id).data) for i in db.read_all_images()}
    finally:
        db.close()


@dataclass(frozen=True)
class PairStatistics:
    """What was matched. keypoints, sizes (width, height) [px] by image name; by pair of names (a, b): verified inliers,
    and the homography [3, 3] from pixels of a to pixels of b that most of them follow, where there is one."""

    keypoints: dict[str, int]
    sizes: dict[str, tuple[int, int]]
    inliers: dict[tuple[str, str], int]
    homographies: dict[tuple[str, str], NDArray[np.float64]]


def read_statistics(database: Path) -> PairStatistics:
    """Keypoints and verified pairs of a database."""
    db = pycolmap.Database.open(database)
    try:
        names = {i.image_id: i.name for i in db.read_all_images()}
        keypoints = {name: db.num_keypoints_for_image(i) for i, name in names.items()}
        cameras = {camera.camera_id: (camera.width, camera.height) for camera in db.read_all_cameras()}
        sizes = {i.name: cameras[i.camera_id] for i in db.read_all_images()}
        inliers, homographies = {}, {}
        for pair_id, geometry in zip(*db.read_two_view_geometries()):
            a, b = (names[i] for i in pycolmap.pair_id_to_image_pair(pair_id))
            if len(geometry.inlier_matches):
                inliers[a, b] = len(geometry.inlier_matches)
                if geometry.config in _FOLLOWS_HOMOGRAPHY:
                    homographies[a, b] = np.asarray(geometry.H, np.float64)
        return PairStatistics(keypoints, sizes, inliers, homographies)
    finally:
        db.close()


def write_colmap_masks(frames: Sequence[dict[str, Any]], ingest: Path, folder: Path) -> Path | None:
    """COLMAP's masks (black = ignore, named IMAGE.png) of ours (white = ignore); None where no frame has one."""
    if not any(f["mask"] for f in frames):
        return None
    folder.mkdir(exist_ok=True)
    for f in frames:
        shape = (f["height"], f["width"])
        keep = np.full(shape, 255, np.uint8)
        if f["mask"]:
            keep -= np.asarray(cv2.imread(str(ingest / f["mask"]), cv2.IMREAD_GRAYSCALE), np.uint8)
        cv2.imwrite(str(folder / f"{Path(f['image']).name}.png"), keep)
    return folder


def valid_database(database: Path, stamp: Path, key: dict[str, Any]) -> bool:
    """Whether a database left by an interrupted run was made with the same key; else it is removed."""
    try:
        if database.is_file() and json.loads(stamp.read_text()) == key:
            return True
    except (OSError, ValueError):
        pass
    for leftover in (database, *database.parent.glob(database.name + "-*")):
        leftover.unlink(missing_ok=True)
    stamp.write_text(json.dumps(key))
    return False
