# SPDX-License-Identifier: Apache-2.0
"""Scale from ArUco markers of known size: detected, refined on their edges, triangulated over all views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import UsageError
from real2sim.sim.cameras import Camera
from real2sim.stages.scale_candidate import Candidate
from real2sim.stages.scale_marker_edges import refine_corners
from real2sim.stages.triangulate import project, triangulate_robust

Array = NDArray[np.float64]

DETECT_LONG_SIDE = (1200, 1600)  # the detector works on an image scaled into this range; edges are refined at full size
MIN_SIDE_PX = 14.0
EDGE_BIAS_PX = 0.06  # systematic error of an edge's place that no number of views averages out
MAX_UNSQUARE = 0.04  # spread of the four sides over their mean
MAX_NONPLANAR = 0.04  # distance of the corners from their plane over the side
WITHHELD_EVERY = 4


@dataclass(frozen=True)
class Sighting:
    """One marker in one image: corners [4, 2] in pixels (centres at half-integers), clockwise from its top left."""

    marker: int
    camera: int
    corners: Array


def detect_markers(image: NDArray[np.uint8], dictionary: str) -> list[tuple[int, Array]]:
    """Markers in a grey image [H, W]: (id, refined corners [4, 2]) each, pixel centres at half-integers."""
    import cv2

    code = getattr(cv2.aruco, dictionary, None)
    if code is None or not dictionary.startswith("DICT_"):
        raise UsageError(
            f"marker.dictionary must name a dictionary of OpenCV such as DICT_4X4_50; received {dictionary!r}."
        )
    zoom = float(np.clip(1.0, *(side / max(image.shape) for side in DETECT_LONG_SIDE)))
    how = cv2.INTER_AREA if zoom < 1 else cv2.INTER_CUBIC
    scaled = cv2.resize(image, None, fx=zoom, fy=zoom, interpolation=how) if zoom != 1 else image
    parameters = cv2.aruco.DetectorParameters()
    parameters.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
    detector = cv2.aruco.ArucoDetector(cv2.aruco.getPredefinedDictionary(code), parameters)
    quads, ids, _ = detector.detectMarkers(scaled)
    found = []
    for quad, marker in zip(quads, [] if ids is None else np.ravel(ids)):
        corners = refine_corners(image, (quad.reshape(4, 2).astype(np.float64) + 0.5) / zoom)
        if corners is not None and _sides(corners).min() >= MIN_SIDE_PX:
            found.append((int(marker), corners))
    return found


def find_sightings(folder: Path, cameras: Sequence[Camera], dictionary: str) -> list[Sighting]:
    """All sightings of all markers in the cameras' undistorted images (paths relative to folder)."""
    import cv2

    found = []
    for index, camera in enumerate(cameras):
        image = cv2.imread(str(folder / camera.image), cv2.IMREAD_GRAYSCALE) if camera.image else None
        if image is not None:
            found += [Sighting(m, index, c) for m, c in detect_markers(np.asarray(image, np.uint8), dictionary)]
    return found


def _sides(corners: Array) -> Array:
    return np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)


@dataclass(frozen=True)
class MarkerFit:
    """A triangulated marker: corners [4, 3] in the sfm frame, its mean side and the one-sigma error of that side."""

    corners: Array
    side: float
    sigma: float
    unsquare: float
    nonplanar: float
    reprojection_px: float
    views: int


def fit_marker(sightings: Sequence[Sighting], cameras: Sequence[Camera]) -> MarkerFit | None:
    """Triangulate the four corners over all views; None where fewer than two views agree."""
    used = [cameras[s.camera] for s in sightings]
    pixels = np.array([s.corners for s in sightings])
    result = triangulate_robust(used, pixels)
    if result is None:
        return None
    corners, covariance, inliers = result
    sides = _sides(corners)
    mean = float(sides.mean())
    jacobian = np.zeros((4, 3))
    for i in range(4):
        j = (i + 1) % 4
        direction = (corners[i] - corners[j]) / sides[i] / 4
        jacobian[i] += direction
        jacobian[j] -= direction
    noise = float(sum(jacobian[i] @ covariance[i] @ jacobian[i] for i in range(4)))
    residual = np.concatenate([project(c, corners) - p for c, p, ok in zip(used, pixels, inliers) if ok])
    pixel_side = float(np.median([_sides(p).mean() for p, ok in zip(pixels, inliers) if ok]))
    spread = float(sides.std(ddof=1)) / mean / 2
    sigma = float(np.sqrt(noise / mean**2 + spread**2 + (2 * EDGE_BIAS_PX / pixel_side) ** 2))
    centred = corners - corners.mean(0)
    nonplanar = float(np.abs(centred @ np.linalg.svd(centred)[2][2]).max()) / mean
    rms = float(np.sqrt((residual**2).sum(1).mean()))
    return MarkerFit(corners, mean, sigma, float(np.ptp(sides)) / mean, nonplanar, rms, int(inliers.sum()))


def _withheld_side(sightings: Sequence[Sighting], cameras: Sequence[Camera]) -> tuple[MarkerFit | None, float | None]:
    """The fit to three of four views, and the side measured in the withheld ones alone."""
    held = [s for i, s in enumerate(sightings) if i % WITHHELD_EVERY == WITHHELD_EVERY - 1]
    if len(held) < 2:
        return fit_marker(sightings, cameras), None
    check = fit_marker(held, cameras)
    fit = fit_marker([s for i, s in enumerate(sightings) if i % WITHHELD_EVERY != WITHHELD_EVERY - 1], cameras)
    return fit, check.side if check else None


def scale_from_markers(sightings: Sequence[Sighting], cameras: Sequence[Camera], size_m: float) -> Candidate:
    """Metres per unit from every marker that is seen twice or more; several markers are averaged by their precision."""
    if not size_m > 0:
        raise UsageError(
            f"marker.size_m is the printed side of the black square in metres, above 0; received {size_m}."
        )
    fits: list[tuple[int, MarkerFit, float | None]] = []
    rejected = []
    for marker in sorted({s.marker for s in sightings}):
        fit, check = _withheld_side([s for s in sightings if s.marker == marker], cameras)
        if fit is None:
            rejected.append(f"marker {marker}: no two views agree on it")
        elif fit.unsquare > MAX_UNSQUARE or fit.nonplanar > MAX_NONPLANAR:
            rejected.append(f"marker {marker}: not a square (sides {fit.unsquare:.1%}, plane {fit.nonplanar:.1%})")
        else:
            fits.append((marker, fit, check))
    if not fits:
        return Candidate.unusable("aruco", "; ".join(rejected) or "no marker of this dictionary was seen in two images")
    weights = np.array([1 / fit.sigma**2 for _, fit, _ in fits])
    values = np.array([size_m / fit.side for _, fit, _ in fits])
    value = float((weights * values).sum() / weights.sum())
    scatter = float(values.std() / value) if len(values) > 1 else 0.0
    sigma = max(float(1 / np.sqrt(weights.sum())), scatter)
    checks = [size_m / check for _, _, check in fits if check]
    best_marker, best, _ = max(fits, key=lambda f: f[1].views / f[1].sigma)
    evidence = "; ".join(
        f"marker {m} in {f.views} views, sides equal to {f.unsquare:.2%}, flat to {f.nonplanar:.2%}, "
        f"{f.reprojection_px:.2f} px"
        for m, f, _ in fits
    )
    detail = {"marker": best_marker, "corners_sfm": best.corners.tolist(), "views": best.views, "rejected": rejected}
    return Candidate("aruco", value, sigma, evidence, float(np.mean(checks)) if checks else None, detail)
