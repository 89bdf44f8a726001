# SPDX-License-Identifier: Apache-2.0
"""Scale from depth images: sensor depth over reconstructed depth at the sparse observations.

A depth image that is not registered to the colour image is read through a small model of the depth camera, found by
making the ratios agree: pixel = f_d * (x / z + baseline / z) + centre, with one focal ratio, an offset and a baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.stages.scale_candidate import Candidate
from real2sim.stages.sparse import SparsePoints

Array = NDArray[np.float64]

INVALID = (0, 65535)  # what sensors write where they measured nothing
FLAT = 0.04  # relative range of depth within 3x3 pixels: beyond it the pixel is on an edge
MIN_FRAME_POINTS = 12
MIN_FRAMES = 2
SENSOR_SIGMA = 0.01  # calibration of the sensor itself, common to all frames
TRUNCATE = 0.12  # a log ratio further off than this is an outlier and costs no more
BETTER = 0.93  # a model of the depth camera is used where it makes the spread this much smaller
SEARCH_POINTS = 6000
WITHHELD_EVERY = 4


@dataclass(frozen=True)
class DepthModel:
    """How a depth pixel is found: registered, or a depth camera beside the colour camera.

    focal_ratio: depth focal over colour focal; offset_px: shift of the principal point [px] (x, y);
    baseline: x distance of the two cameras [sfm units].
    """

    focal_ratio: float = 1.0
    offset_px: tuple[float, float] = (0.0, 0.0)
    baseline: float = 0.0


@dataclass(frozen=True)
class DepthObservations:
    """Sparse observations in frames that have depth.

    frame: index into images [O]; xy: x/z and y/z of the point in the colour camera [O, 2]; z: [O] sfm units;
    focal: colour focal [px at the depth image's size] [O, 2]; centre: colour principal point there [O, 2];
    images: [F] depth images in metres [H, W], NaN where invalid or on an edge.
    """

    frame: NDArray[np.int64]
    xy: Array
    z: Array
    focal: Array
    centre: Array
    images: list[NDArray[np.float32]]
    names: list[str]

    def select(self, keep: NDArray[np.bool_]) -> DepthObservations:
        rows = (self.frame[keep], self.xy[keep], self.z[keep], self.focal[keep], self.centre[keep])
        return DepthObservations(*rows, self.images, self.names)


def smooth_depth(raw: NDArray[np.uint16], unit_m: float) -> NDArray[np.float32]:
    """Metres [H, W] from a 16-bit depth image: median of 3x3; NaN where a neighbour is invalid or on an edge."""
    import cv2

    valid = ~np.isin(raw, INVALID)
    clean = np.where(valid, raw, 0).astype(np.uint16)
    box = np.ones((3, 3), np.uint8)
    low, high = cv2.erode(clean, box).astype(np.float32), cv2.dilate(clean, box).astype(np.float32)
    middle = cv2.medianBlur(clean, 3).astype(np.float32)
    good = (low > 0) & (high - low <= FLAT * middle)
    return np.where(good, middle * unit_m, np.nan).astype(np.float32)


def observe(
    cameras: Sequence[Camera], sparse: SparsePoints, load: Callable[[Camera], NDArray[np.uint16] | None], unit_m: float
) -> DepthObservations:
    """Gather reliable observations in all frames whose depth image `load` returns."""
    reliable = sparse.reliable()
    parts: list[tuple[Array, ...]] = []
    images: list[NDArray[np.float32]] = []
    names: list[str] = []
    for index, camera in enumerate(cameras):
        raw = load(camera)
        seen = sparse.obs_point[(sparse.obs_camera == index) & reliable[sparse.obs_point]]
        if raw is None or len(seen) < MIN_FRAME_POINTS:
            continue
        view = camera.viewmat
        local = sparse.xyz[seen] @ view[:3, :3].T + view[:3, 3]
        local = local[local[:, 2] > 0]
        zoom = np.array([raw.shape[1] / camera.width, raw.shape[0] / camera.height])
        one = np.ones((len(local), 1))
        frame = np.full(len(local), len(images))
        xy = local[:, :2] / local[:, 2:]
        parts.append((frame, xy, local[:, 2], one * np.diag(camera.K)[:2] * zoom, one * camera.K[:2, 2] * zoom))
        images.append(smooth_depth(raw, unit_m))
        names.append(camera.name)
    if not parts:
        empty = np.zeros((0, 2))
        return DepthObservations(np.zeros(0, np.int64), empty, np.zeros(0), empty, empty, [], [])
    frame, xy, z, focal, centre = (np.concatenate(rows) for rows in zip(*parts))
    return DepthObservations(frame.astype(np.int64), xy, z, focal, centre, images, names)


def sample(obs: DepthObservations, model: DepthModel) -> Array:
    """Sensor depth [m] at each observation [O] through a model of the depth camera; NaN where there is none."""
    shifted = obs.xy + np.c_[model.baseline / obs.z, np.zeros(len(obs.z))]
    pixel = np.floor(obs.focal * model.focal_ratio * shifted + obs.centre + np.asarray(model.offset_px)).astype(int)
    depth = np.full(len(obs.z), np.nan)
    shapes = np.array([image.shape for image in obs.images]).reshape(-1, 2)
    height, width = shapes[obs.frame].T
    inside = (pixel >= 0).all(1) & (pixel[:, 0] < width) & (pixel[:, 1] < height)
    order = np.argsort(obs.frame, kind="stable")
    starts = np.searchsorted(obs.frame[order], np.arange(len(obs.images) + 1))
    for k, image in enumerate(obs.images):
        rows = order[starts[k] : starts[k + 1]]
        rows = rows[inside[rows]]
        depth[rows] = image[pixel[rows, 1], pixel[rows, 0]]
    return depth


def spread(obs: DepthObservations, model: DepthModel) -> float:
    """Mean truncated distance of the log ratios from their median: what the right model makes small."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(sample(obs, model) / obs.z)
    ratio = ratio[np.isfinite(ratio)]
    if len(ratio) < 0.2 * len(obs.z) or len(ratio) < MIN_FRAME_POINTS:
        return TRUNCATE
    return float(np.minimum(np.abs(ratio - np.median(ratio)), TRUNCATE).mean())


def search_model(obs: DepthObservations) -> DepthModel:
    """The depth camera model of least spread: a grid over focal ratio and offset, then pattern search on all four."""
    rng = np.random.default_rng(0)
    keep = np.zeros(len(obs.z), bool)
    keep[rng.permutation(len(obs.z))[:SEARCH_POINTS]] = True
    few = obs.select(keep)
    width = obs.images[0].shape[1]
    shifts = np.linspace(-0.05, 0.05, 7) * width
    grid = [DepthModel(f, (x, y)) for f in np.linspace(0.8, 1.25, 16) for x in shifts for y in shifts]
    best = min(grid, key=lambda m: spread(few, m))
    state = np.array([best.focal_ratio, *best.offset_px, 0.0])
    step = np.array([0.02, 0.012 * width, 0.012 * width, 0.02 * float(np.median(obs.z))])
    cost = spread(few, best)
    for _ in range(7):
        for axis in (0, 1, 2, 3, 0, 1, 2, 3):
            for sign in (1, -1):
                trial = state.copy()
                trial[axis] += sign * step[axis]
                value = spread(few, _model(trial))
                if value < cost:
                    state, cost = trial, value
        step *= 0.6
    return _model(state)


def _model(state: Array) -> DepthModel:
    return DepthModel(float(state[0]), (float(state[1]), float(state[2])), float(state[3]))


def _frame_ratios(obs: DepthObservations, model: DepthModel) -> Array:
    """Median of sensor depth over reconstructed depth, in each frame that has enough of them [F']."""
    ratio = sample(obs, model) / obs.z
    medians = []
    for k in range(len(obs.images)):
        values = ratio[(obs.frame == k) & np.isfinite(ratio)]
        if len(values) >= MIN_FRAME_POINTS:
            medians.append(float(np.median(values)))
    return np.array(medians)


def scale_from_depth(
    registered: DepthObservations | None, separate: DepthObservations | None, mode: Literal["auto", "yes", "no"]
) -> Candidate:
    """Metres per unit from depth images.

    registered: observations with depth undistorted like the colour image; separate: with depth as recorded;
    mode "auto" searches a model of the depth camera and keeps it only where it explains the ratios clearly better.
    """
    options: list[tuple[str, DepthObservations, DepthModel, float]] = []
    if registered is not None and registered.images and mode != "no":
        options.append(("registered to colour", registered, DepthModel(), spread(registered, DepthModel())))
    if separate is not None and separate.images and mode != "yes":
        model = search_model(separate)
        offset = f"({model.offset_px[0]:+.1f}, {model.offset_px[1]:+.1f}) px"
        label = f"not registered: depth focal = {model.focal_ratio:.3f} x colour focal, offset {offset}"
        options.append((label, separate, model, spread(separate, model)))
    if not options:
        return Candidate.unusable("depth", "no registered frame has both a depth image and enough sparse points")
    best = options[-1] if len(options) == 1 or options[1][3] < BETTER * options[0][3] else options[0]
    label, obs, model, width = best
    ratios = _frame_ratios(obs, model)
    if len(ratios) < MIN_FRAMES:
        return Candidate.unusable(
            "depth", f"{len(ratios)} frames with {MIN_FRAME_POINTS} usable depths; {MIN_FRAMES} needed"
        )
    held = np.arange(len(ratios)) % WITHHELD_EVERY == WITHHELD_EVERY - 1
    fit = ratios[~held]
    value = float(np.median(fit))
    scatter = 1.4826 * float(np.median(np.abs(fit / value - 1)))
    sigma = float(np.hypot(1.2533 * scatter / np.sqrt(len(fit)), SENSOR_SIGMA))
    evidence = f"{len(ratios)} frames agree within {scatter:.2%}; {label}; mean spread of one point {width:.2%}"
    detail = {
        "focal_ratio": model.focal_ratio,
        "offset_px": list(model.offset_px),
        "baseline_m": model.baseline * value,
        "spread": {name: cost for name, _, _, cost in options},
        "frames": len(ratios),
    }
    return Candidate(
        "depth", value, sigma, evidence, float(np.median(ratios[held])) if held.sum() >= MIN_FRAMES else None, detail
    )
