# SPDX-License-Identifier: Apache-2.0
"""What a reconstruction is worth: angles, errors, and why a frame has no pose. Numbers only; nothing of COLMAP."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.sim.gates import Gate
from real2sim.stages.sparse import SparsePoints

NAMED = 5  # frames without a pose that a gate names
REFERENCE_LONG_SIDE = 1280  # px; errors are compared at this size
ANGLE_EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 180.0)  # degrees


def reprojection_errors(cameras: Sequence[Camera], points: SparsePoints) -> NDArray[np.float64]:
    """Distance [px] of each observation from its projected point, [O]; infinite behind the camera."""
    errors = np.full(len(points.obs_point), np.inf)
    for k, camera in enumerate(cameras):
        seen = points.obs_camera == k
        local = points.xyz[points.obs_point[seen]] @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
        projected = local @ camera.K.T
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.linalg.norm(projected[:, :2] / projected[:, 2:] - points.obs_xy[seen], axis=1)
        errors[seen] = np.where(local[:, 2] > 0, distance, np.inf)
    return errors


def largest_angles(centres: NDArray[np.float64], points: SparsePoints) -> NDArray[np.float64]:
    """Largest angle [deg] between two rays to each point, [P], over the camera centres [C, 3] that see it."""
    rays = points.xyz[points.obs_point] - centres[points.obs_camera]
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    order = np.argsort(points.obs_point, kind="stable")
    starts = np.searchsorted(points.obs_point[order], np.arange(len(points.xyz) + 1))
    angles = np.zeros(len(points.xyz))
    for p, (start, end) in enumerate(itertools.pairwise(starts)):
        if end - start > 1:
            seen = rays[order[start:end]]
            angles[p] = np.degrees(np.arccos(np.clip((seen @ seen.T).min(), -1, 1)))
    return angles


def registered_gate(
    registered: int, frames: int, models: Sequence[int], minimum: float, without: Sequence[str] = ()
) -> Gate:
    """Frames with a supported pose over frames used.

    models: images of every model found, the chosen one first; without: frames that have no pose.
    """
    others = f"; further models of {', '.join(map(str, models[1:]))} images are not used" if len(models) > 1 else ""
    if without:
        more = f" and {len(without) - NAMED} more" if len(without) > NAMED else ""
        others += f"; without a pose: {', '.join(without[:NAMED])}{more}"
    return Gate.measure(
        "registered",
        registered / frames,
        minimum,
        bound="min",
        evidence=f"{registered} of {frames} frames have a pose that points support{others}",
        advice="Add photos that overlap by two thirds with those that have no pose, or remove these from the capture.",
    )


def reprojection_gate(cameras: Sequence[Camera], points: SparsePoints, maximum: float) -> Gate:
    """Mean distance of observations from their projected points, at a long side of 1280 px."""
    long_sides = np.array([max(c.width, c.height) for c in cameras])
    errors = reprojection_errors(cameras, points) * (REFERENCE_LONG_SIDE / long_sides[points.obs_camera])
    return Gate.measure(
        "reprojection",
        float(errors.mean()) if len(errors) else np.inf,
        maximum,
        bound="max",
        evidence=f"mean over {len(errors)} observations of {len(points.xyz)} points, at a long side of 1280 px",
        advice="Photos of one lens at one zoom, without blur and without moving things, fit better; mask what moves.",
        unit="px",
    )


def parallax_gate(angles: NDArray[np.float64], minimum: float) -> Gate:
    """Median over points of the largest angle under which two cameras see one point."""
    return Gate.measure(
        "parallax",
        float(np.median(angles)) if len(angles) else 0.0,
        minimum,
        bound="min",
        evidence=f"median over {len(angles)} points of the largest angle between two of their rays",
        advice="The camera mostly turned on the spot, or moved too little: step sideways between photos.",
        unit="deg",
    )


def angle_histogram(angles: NDArray[np.float64]) -> dict[str, list[float]]:
    """Counts of points by their largest angle."""
    counts, _ = np.histogram(angles, ANGLE_EDGES)
    return {"edges_deg": list(ANGLE_EDGES), "points": [int(n) for n in counts]}
