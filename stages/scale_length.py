# SPDX-License-Identifier: Apache-2.0
"""Scale from a known length between two points that a person marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import UsageError
from real2sim.sim.cameras import Camera
from real2sim.stages.plane_sweep import sweep_depth
from real2sim.stages.scale_candidate import Candidate
from real2sim.stages.sparse import SparsePoints
from real2sim.stages.triangulate import closest_points, pixel_rays, project, refine_points

Array = NDArray[np.float64]
LoadGrey = Callable[[Camera], NDArray[np.uint8]]

MAX_MARK_ERROR_PX = 8.0  # views that disagree by more were marked on different things


def _check_entry(entry: Mapping[str, Any], names: set[str]) -> float:
    """The length [m] of one entry; raises UsageError naming what is wrong with it."""
    length = entry.get("length_m")
    if not isinstance(length, int | float) or not length > 0:
        raise UsageError(f"known_lengths: length_m must be metres above 0; received {length!r}.")
    points = entry.get("points", [])
    if len(points) != 2 or not all(isinstance(p, Mapping) and p for p in points):
        raise UsageError("known_lengths: points must be two marks, each {frame: [x, y], …} in at least one frame.")
    unknown = sorted({name for p in points for name in p} - names)
    if unknown:
        raise UsageError(f"known_lengths: frame {unknown[0]!r} is not among the capture's frames.")
    return float(length)


def _from_views(cameras: Sequence[Camera], pixels: Array, mark_px: float) -> tuple[Array, Array]:
    """One point [3] and its covariance [3, 3] from marks [C, 2] in two or more images."""
    marks = pixels[:, None, :]
    point, covariance = refine_points(cameras, marks, closest_points(cameras, marks))
    error = max(float(np.linalg.norm(project(c, point)[0] - p)) for c, p in zip(cameras, pixels))
    if not error <= MAX_MARK_ERROR_PX:
        raise ValueError(f"marks of one point in {len(cameras)} images miss each other by {error:.1f} px")
    return point[0], covariance[0] * max(1.0, (mark_px / max(error, 1e-3)) ** 2)


def _from_one_view(
    camera: Camera, pixel: Array, cameras: Sequence[Camera], sparse: SparsePoints, load: LoadGrey, mark_px: float
) -> tuple[Array, Array]:
    """One point [3] and its covariance [3, 3] from a mark [2] in one image, its depth by a plane sweep."""
    depth, depth_sigma = sweep_depth(camera, pixel, cameras, sparse, load)
    ray = pixel_rays(camera, pixel[None])[0]
    across = camera.T_world_cam[:3, :2] * (depth * mark_px / np.diag(camera.K)[:2])
    return camera.centre + depth * ray, across @ across.T + np.outer(ray, ray) * depth_sigma**2


def _measure(
    marks: Sequence[Mapping[str, Any]],
    by_name: Mapping[str, Camera],
    undistort: Callable[[str, Array], Array],
    sweep: tuple[Sequence[Camera], SparsePoints, LoadGrey],
    mark_px: float,
) -> tuple[float, float, str]:
    """Distance of two marked points [sfm units], its sigma, and how it was found; raises ValueError with the reason."""
    places, how = [], []
    for mark in marks:
        names = [name for name in mark if name in by_name]
        if not names:
            raise ValueError("none of the marked frames was registered")
        pixels = np.array([undistort(name, np.asarray(mark[name], np.float64)) for name in names])
        views = [by_name[name] for name in names]
        if len(names) >= 2:
            places.append(_from_views(views, pixels, mark_px))
            how.append(f"triangulated in {len(names)} images")
        else:
            places.append(_from_one_view(views[0], pixels[0], *sweep, mark_px))
            how.append("plane sweep from one image")
    (a, cov_a), (b, cov_b) = places
    distance = float(np.linalg.norm(a - b))
    if distance <= 0:
        raise ValueError("the two points coincide")
    direction = (a - b) / distance
    return distance, float(np.sqrt(direction @ (cov_a + cov_b) @ direction)), " and ".join(how)


def scale_from_lengths(
    entries: Sequence[Mapping[str, Any]],
    cameras: Sequence[Camera],
    sparse: SparsePoints,
    frame_names: set[str],
    undistort: Callable[[str, Array], Array],
    load: LoadGrey,
    mark_px: float,
) -> list[Candidate]:
    """One candidate for each known length.

    entries: {"length_m", "points": [{frame: [x, y]}, {frame: [x, y]}]} in the ingested images' pixels;
    undistort: (frame, xy [2]) -> undistorted pixel [2]; load: camera -> grey undistorted image; mark_px: how exactly
    a person marks a point [px].
    """
    by_name = {c.name: c for c in cameras}
    found = []
    for entry in entries:
        length = _check_entry(entry, frame_names)
        try:
            distance, sigma, how = _measure(entry["points"], by_name, undistort, (cameras, sparse, load), mark_px)
        except ValueError as error:
            found.append(Candidate.unusable("known_length", f"{length} m: {error}"))
            continue
        evidence = f"{length} m spans {distance:.4g} units ± {sigma / distance:.2%}, {how}"
        found.append(Candidate("known_length", length / distance, sigma / distance, evidence))
    return found
