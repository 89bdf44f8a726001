# SPDX-License-Identifier: Apache-2.0
"""Why a frame has no pose, and why nothing could be reconstructed, in words and with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.stages.sfm_database import PairStatistics
from real2sim.stages.sparse import SparsePoints

FEW_KEYPOINTS = 300  # per image; a textured VGA photo gives over 1000
MOST = 0.5
FOCAL_RATIOS = np.geomspace(0.4, 3.0, 30)  # focal length over the long side
ROTATION_TOLERANCE = 0.03  # of singular values; half a pixel of noise on a VGA photo gives less than 0.01


def explain_failure(statistics: PairStatistics, frames: int) -> str:
    """Message of a CaptureError for a capture of which no camera could be posed."""
    keypoints = float(np.median(list(statistics.keypoints.values())))
    pairs = len(statistics.inliers)
    head = f"No camera could be posed from {frames} frames"
    if keypoints < FEW_KEYPOINTS:
        return (
            f"{head}: a median of {keypoints:.0f} features per image, so the scene has too little texture or the photos"
            " are too blurred or dark. Put printed paper, a cloth or other textured things around, and light it well."
        )
    if pairs < frames - 1:
        return (
            f"{head}: only {pairs} pairs of images match, fewer than would connect them. Neighbouring photos must"
            " overlap by two thirds: take more photos, in smaller steps."
        )
    turning = rotating_pairs(statistics)
    if mostly_turning(statistics):
        return (
            f"{head}: in {turning} of {pairs} matched pairs the camera only turned on the spot, which shows no depth."
            " Step sideways between photos: walk around the scene, do not pan."
        )
    return (
        f"{head}: {pairs} pairs match, yet no two views agree on a scene seen from two places. Step sideways between"
        " photos, keep everything still while you take them, and do not zoom."
    )


def mostly_turning(statistics: PairStatistics) -> bool:
    """Whether in most matched pairs the camera only turned on the spot."""
    return rotating_pairs(statistics) > MOST * len(statistics.inliers)


def rotating_pairs(statistics: PairStatistics) -> int:
    """Pairs whose motion is a rotation about the camera's centre, under the focal length that explains most of them.

    Then H = K_b R K_a^-1, so K_b^-1 H K_a has three equal singular values (Hartley and Zisserman 2004, section 8.4).
    """
    if not statistics.homographies:
        return 0
    return max(
        sum(
            _is_rotation(H, statistics.sizes[a], statistics.sizes[b], ratio)
            for (a, b), H in statistics.homographies.items()
        )
        for ratio in FOCAL_RATIOS
    )


def _is_rotation(H: NDArray[np.float64], size_a: tuple[int, int], size_b: tuple[int, int], ratio: float) -> bool:
    singular = np.linalg.svd(np.linalg.inv(_pinhole(size_b, ratio)) @ H @ _pinhole(size_a, ratio), compute_uv=False)
    return bool(singular[0] - singular[2] <= ROTATION_TOLERANCE * singular[1])


def _pinhole(size: tuple[int, int], ratio: float) -> NDArray[np.float64]:
    focal = ratio * max(size)
    return np.array([[focal, 0, size[0] / 2], [0, focal, size[1] / 2], [0, 0, 1]])


def frame_rows(
    frames: Sequence[dict[str, Any]],
    cameras: Sequence[Camera],
    points: SparsePoints,
    errors: NDArray[np.float64],
    statistics: PairStatistics,
    other_models: Sequence[Sequence[str]],
) -> list[dict[str, Any]]:
    """One row per frame used: registered or not and why, points seen, mean error [px], matches with posed frames."""
    index = {c.name: k for k, c in enumerate(cameras)}
    observed = np.bincount(points.obs_camera, minlength=len(cameras))
    summed = np.bincount(points.obs_camera, weights=errors, minlength=len(cameras))
    best = _best_matches(statistics, set(index))
    rows = []
    for f in frames:
        name, k = f["name"], index.get(f["name"])
        row = {"name": name, "capture_path": f["capture_path"], "registered": k is not None, "reason": None}
        if k is not None:
            row |= {"points": int(observed[k]), "error_px": float(summed[k] / max(1, observed[k]))}
        else:
            row["reason"] = _reason(name, statistics.keypoints[Path(f["image"]).name], best.get(name, 0), other_models)
        rows.append(row)
    return rows


def _best_matches(statistics: PairStatistics, posed: set[str]) -> dict[str, int]:
    """Most verified matches of each frame with a posed one."""
    best: dict[str, int] = {}
    for (a, b), inliers in statistics.inliers.items():
        for one, other in ((Path(a).stem, Path(b).stem), (Path(b).stem, Path(a).stem)):
            if other in posed:
                best[one] = max(best.get(one, 0), inliers)
    return best


def _reason(name: str, keypoints: int, best: int, other_models: Sequence[Sequence[str]]) -> str:
    for model in other_models:
        if name in model:
            return f"it belongs to a separate model of {len(model)} frames that shares too little with the chosen one"
    if keypoints < FEW_KEYPOINTS:
        return f"it has {keypoints} features only: too little texture, or too blurred or dark"
    if best == 0:
        return "it matches no posed frame: too little overlap, or another place"
    return f"its best match with a posed frame has {best} points, too few or too contradictory for a pose"
