# SPDX-License-Identifier: Apache-2.0
"""Whether a reconstruction can be believed: a second one from another start, and the matched pairs of images.

A count of posed images and a small error prove nothing: a set in which something moved with the camera can be posed in
full, at a pixel's error, with rotations wrong by half a turn. Both checks here use what the fit did not: where the
mapper began, and pairs' own epipolar geometry.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2  # noqa: F401  before pycolmap: the other order makes later PNG writing abort
import numpy as np
import pycolmap
from numpy.typing import NDArray

from real2sim.sim.gates import Gate
from real2sim.stages.sfm_database import PairStatistics
from real2sim.stages.sfm_pycolmap import pose_of, registered_images

Array = NDArray[np.float64]
SAME_ANGLE_DEG = 3.0
START_SHARE = 0.5
COMPARABLE = 0.5  # a second reconstruction of a smaller share of the frames found no footing and says nothing
SAME_PLACE = 0.03  # of the diameter of the camera centres
MIN_PAIR = 30  # verified matches of a pair that can contradict a model; fewer come about by repeated patterns
EPIPOLAR_PX = 4.0  # of a match from its epipolar line, as in the verification of pairs
PAIR_SHARE = 0.5  # of a pair's matches that must follow the model


@dataclass(frozen=True)
class Agreement:
    """same: share of the frames posed in both that a second reconstruction puts in the same place, None where none
    posed COMPARABLE of the frames; posed_again: how many it posed;
    pairs: matched pairs of posed frames that could contradict the model; following: those that do not."""

    same: float | None
    posed_again: int
    rotation_deg: float
    pairs: int
    following: int
    against: list[tuple[str, str]]


def compare_models(first: pycolmap.Reconstruction, second: pycolmap.Reconstruction) -> tuple[float, float]:
    """Share of the images in both that the second has in the same place up to a similarity; median angle [deg].

    The rotation is that of the camera with which most others agree, averaged over them (chordal mean); scale and
    translation are medians over the same cameras.
    """
    ours = {image.name: pose_of(image) for image in registered_images(first)}
    theirs = {image.name: pose_of(image) for image in registered_images(second)}
    names = sorted(ours.keys() & theirs.keys())
    if len(names) < 3:
        return 0.0, 180.0
    a, b = (np.stack([poses[name] for name in names]) for poses in (ours, theirs))
    diameter = float(np.linalg.norm(a[:, None, :3, 3] - a[None, :, :3, 3], axis=-1).max())
    relative = a[:, :3, :3] @ b[:, :3, :3].transpose(0, 2, 1)
    close = np.stack([_angles(relative, R) < SAME_ANGLE_DEG for R in relative])
    turned_alike = close[close.sum(1).argmax()]
    R = _mean_rotation(relative[turned_alike])
    angle = _angles(relative, R)
    x, y = b[:, :3, 3] @ R.T, a[:, :3, 3]
    mx, my = np.median(x[turned_alike], 0), np.median(y[turned_alike], 0)
    spread = np.median(np.linalg.norm(x[turned_alike] - mx, axis=1))
    scale = float(np.median(np.linalg.norm(y[turned_alike] - my, axis=1)) / max(float(spread), 1e-12))
    away = np.linalg.norm(scale * (x - mx) + my - y, axis=1)
    same = (angle < SAME_ANGLE_DEG) & (away < SAME_PLACE * diameter)
    return float(same.mean()), float(np.median(angle))


def other_starts(statistics: PairStatistics, ids: dict[str, int], posed: set[str], count: int) -> list[int]:
    """Image ids from which to begin again: well matched, and far from where the mapper begins by itself.

    It begins at the image with the most matches. Well matched are those with START_SHARE of its matches; far is sharing
    a small part of their matches with it and with the starts chosen before.
    """
    degree: dict[str, int] = dict.fromkeys(sorted(posed), 0)
    shared: dict[tuple[str, str], int] = {}
    for (a, b), n in statistics.inliers.items():
        if a in degree and b in degree:
            degree[a] += n
            degree[b] += n
            shared[a, b] = shared[b, a] = n
    if not degree:
        return []
    chosen = [max(degree, key=lambda name: degree[name])]
    well = [name for name in degree if degree[name] >= START_SHARE * degree[chosen[0]]]
    while len(chosen) <= count and len(chosen) < len(well):
        rest = [name for name in well if name not in chosen]
        chosen.append(min(rest, key=lambda n: sum(shared.get((n, c), 0) for c in chosen) / degree[n]))
    return [ids[name] for name in chosen[1:]]


def pairs_that_follow(database: Path, model: pycolmap.Reconstruction) -> tuple[int, list[tuple[str, str]]]:
    """How many strong pairs of posed images there are, and those whose matches contradict the model's geometry."""
    images = {image.image_id: image for image in registered_images(model)}
    db = pycolmap.Database.open(database)
    try:
        pairs = [
            (pycolmap.pair_id_to_image_pair(pair_id), np.asarray(geometry.inlier_matches))
            for pair_id, geometry in zip(*db.read_two_view_geometries())
        ]
        strong = [(p, m) for p, m in pairs if len(m) >= MIN_PAIR and all(i in images for i in p)]
        rays = {i: _rays(model, images[i], db) for i in sorted({i for p, _ in strong for i in p})}
    finally:
        db.close()
    against = []
    for (a, b), matches in strong:
        distance = _epipolar(images[a], images[b], rays[a][matches[:, 0]], rays[b][matches[:, 1]])
        focal = model.camera(images[b].camera_id).mean_focal_length()
        if (distance * focal < EPIPOLAR_PX).mean() < PAIR_SHARE:
            against.append((images[a].name, images[b].name))
    return len(strong), against


def consistent_gate(agreement: Agreement | None, minimum: float) -> Gate:
    """Frames that a second reconstruction from another start puts in the same place, over frames posed in both."""
    if agreement is None:
        return Gate.not_applicable("consistent", "the poses were given")
    if agreement.same is None:
        return Gate.not_applicable(
            "consistent", f"no other start posed {COMPARABLE:.0%} of the frames (at most {agreement.posed_again})"
        )
    return Gate.measure(
        "consistent",
        agreement.same,
        minimum,
        bound="min",
        evidence=f"of {agreement.posed_again} frames that a second reconstruction from another start posed, in the same"
        f" place (within {SAME_ANGLE_DEG:.0f} deg and {SAME_PLACE:.0%} of the path's size)",
        advice="Two reconstructions of the same photos differ, so neither is to be believed. Something moves with the"
        " camera or between photos (mask it: masks/), parts of the scene look alike, or the photos overlap too little.",
    )


def pairs_gate(agreement: Agreement | None, minimum: float) -> Gate:
    """Strong matched pairs whose own geometry follows the model, over all strong matched pairs."""
    if agreement is None or agreement.pairs == 0:
        return Gate.not_applicable("pairs", "the poses were given" if agreement is None else "no pair is strong enough")
    named = "; ".join(f"{Path(a).stem} and {Path(b).stem}" for a, b in agreement.against[:5])
    return Gate.measure(
        "pairs",
        agreement.following / agreement.pairs,
        minimum,
        bound="min",
        evidence=f"{agreement.following} of {agreement.pairs} matched pairs follow the reconstruction"
        + (f"; not {named}" if named else ""),
        advice="Matched photos contradict the reconstruction: two things move differently (an object on a turntable"
        " and the room), or places look alike. Mask what moves (masks/), or photograph one place at a time.",
    )


def _mean_rotation(relative: Array) -> Array:
    U, _, Vt = np.linalg.svd(relative.sum(0))
    return np.asarray(U @ np.diag([1, 1, np.sign(np.linalg.det(U @ Vt))]) @ Vt, np.float64)


def _angles(a: Array, b: Array) -> Array:
    chord = np.linalg.norm(a - b, axis=(1, 2)) / np.sqrt(8)
    return np.asarray(np.degrees(2 * np.arcsin(np.minimum(1, chord))), np.float64)


def _rays(model: pycolmap.Reconstruction, image: pycolmap.Image, db: pycolmap.Database) -> Array:
    """Homogeneous undistorted coordinates [N, 3] of an image's keypoints."""
    xy = np.asarray(db.read_keypoints(image.image_id), np.float64)[:, :2]
    return np.c_[np.asarray(model.camera(image.camera_id).cam_from_img(xy)).reshape(-1, 2), np.ones(len(xy))]


def _epipolar(a: pycolmap.Image, b: pycolmap.Image, xa: Array, xb: Array) -> Array:
    """Sampson distances [N] in normalised coordinates of matches under the poses of two images."""
    relative = (b.cam_from_world() * a.cam_from_world().inverse()).matrix()
    R, t = relative[:, :3], relative[:, 3]
    length = np.linalg.norm(t)
    if length < 1e-12:
        return np.full(len(xa), np.inf)
    t = t / length
    E = np.array([[0, -t[2], t[1]], [t[2], 0, -t[0]], [-t[1], t[0], 0]]) @ R
    la, lb = xb @ E, xa @ E.T
    scale = np.sqrt(la[:, 0] ** 2 + la[:, 1] ** 2 + lb[:, 0] ** 2 + lb[:, 1] ** 2)
    return np.asarray(np.abs((xb * lb).sum(1)) / np.maximum(scale, 1e-12), np.float64)
