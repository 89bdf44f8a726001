# SPDX-License-Identifier: Apache-2.0
"""Scale (and gravity) from camera poses that came with the capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.sim.transforms import Similarity, umeyama
from real2sim.stages.scale_candidate import Candidate

MIN_CAMERAS = 4
TRIALS = 200
MAX_MISFIT = 0.1  # of the cameras' own spread: beyond it the given poses and the reconstruction are different paths
FLOOR = 1e-3  # no tracker is better than this; also keeps sigma above zero where the reconstruction adopted the poses
WITHHELD_EVERY = 4


def _pairs(cameras: Sequence[Camera], given: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Camera centres [N, 3] in the sfm frame and in the frame of the given poses."""
    names = [c for c in cameras if given.get(c.name) is not None]
    ours = np.array([c.centre for c in names]).reshape(-1, 3)
    theirs = np.array([np.asarray(given[c.name], np.float64)[:3, 3] for c in names]).reshape(-1, 3)
    return ours, theirs


def robust_similarity(source: NDArray[np.float64], target: NDArray[np.float64]) -> tuple[Similarity, NDArray[np.bool_]]:
    """T_target_source of corresponding points [N, 3] with wrong ones among them: least median of squares, then refit.

    Returns the similarity and which points agree with it. Rousseeuw 1984.
    """
    rng = np.random.default_rng(0)
    best, best_cost = umeyama(source, target), np.inf
    for _ in range(TRIALS):
        pick = rng.choice(len(source), 3, replace=False)
        if np.linalg.matrix_rank(source[pick] - source[pick[0]], tol=1e-9) < 2:
            continue
        model = umeyama(source[pick], target[pick])
        cost = float(np.median(np.linalg.norm(model.apply(source) - target, axis=1)))
        if cost < best_cost:
            best, best_cost = model, cost
    spread = float(np.linalg.norm(target - target.mean(0), axis=1).mean())
    for _ in range(3):
        residual = np.linalg.norm(best.apply(source) - target, axis=1)
        keep = residual <= max(3 * 1.4826 * np.median(residual), 1e-6 * spread)
        best = umeyama(source[keep], target[keep])
    return best, keep


def scale_from_poses(cameras: Sequence[Camera], given: Mapping[str, Any]) -> tuple[Candidate, Similarity | None]:
    """Compare camera centres with metric ones.

    cameras: of the sfm frame; given: T_world_cam [4, 4] in metres or None, by frame name.
    Returns the candidate and T_given_sfm, None where the paths do not agree.
    """
    ours, theirs = _pairs(cameras, given)
    if len(ours) < MIN_CAMERAS:
        return Candidate.unusable(
            "poses", f"{len(ours)} registered cameras have given poses; {MIN_CAMERAS} needed"
        ), None
    withheld = np.arange(len(ours)) % WITHHELD_EVERY == WITHHELD_EVERY - 1
    if withheld.sum() < MIN_CAMERAS:
        withheld[:] = False
    spread = float(np.sqrt(((ours - ours.mean(0)) ** 2).sum(1).mean()))
    if spread < 1e-9:
        return Candidate.unusable("poses", "all registered cameras stand on one spot"), None
    model, keep = robust_similarity(ours[~withheld], theirs[~withheld])
    residual = np.linalg.norm(model.apply(ours[~withheld]) - theirs[~withheld], axis=1)[keep]
    rms = float(np.sqrt((residual**2).mean()))
    misfit = rms / (model.scale * spread)
    if misfit > MAX_MISFIT or keep.mean() < 0.5:
        why = f"given poses and reconstruction differ by {rms:.3f} m rms over {keep.sum()} of {len(keep)} cameras"
        return Candidate.unusable("poses", why), None
    sigma = float(np.hypot(misfit / np.sqrt(max(int(keep.sum()) - 2, 1)), FLOOR))
    check = robust_similarity(ours[withheld], theirs[withheld])[0].scale if withheld.any() else None
    evidence = f"{int(keep.sum())} of {len(keep)} camera centres agree with the given poses to {rms * 1000:.1f} mm rms"
    return Candidate("poses", model.scale, sigma, evidence, check, {"rms_m": rms, "cameras": int(keep.sum())}), model
