# SPDX-License-Identifier: Apache-2.0
"""Masks of things in photos and the solids that agree with them: drawn, refined on the photo, carved from silhouettes.

An id map is an image [H, W] uint8: the number of the instance that is visible in each pixel, 0 for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.stages.preview import z_buffer
from real2sim.stages.tsdf import extract_surface

Array = NDArray[np.float64]
Faces = NDArray[np.int64]
Ids = NDArray[np.uint8]
Surface = tuple[Array, Faces]  # vertices [V, 3], faces [F, 3]

MIN_PIXELS = 60  # a mask of fewer pixels says nothing about a shape
CONTEXT = 4.0  # width of the surroundings that teach the colours of the background, over the band's
TRUNCATION = 4.0  # of a carved field, in voxels
REACH_PX = 40  # distances to an outline are told up to here [px]
HIDES = 0.02  # a thing hides what is this much behind it [m]


@dataclass(frozen=True)
class Silhouette:
    """What one photo says of the instances: its camera (world frame), its id map, and the depth [H, W] of the drawn
    solids (inf where none is), which tells what hides what."""

    camera: Camera
    ids: Ids
    depth: NDArray[np.float32]


def draw_instances(surfaces: Sequence[Surface], camera: Camera) -> Silhouette:
    """The id map of closed surfaces, numbered from 1 in order, as a camera sees them."""
    if not surfaces:
        empty = np.zeros((camera.height, camera.width), np.uint8)
        return Silhouette(camera, empty, np.full(empty.shape, np.inf, np.float32))
    starts = np.cumsum([0, *[len(v) for v, _ in surfaces]])
    vertices = np.concatenate([v for v, _ in surfaces])
    faces = np.concatenate([f + s for (_, f), s in zip(surfaces, starts)])
    owner = np.repeat(np.arange(1, len(surfaces) + 1), [len(f) for _, f in surfaces]).astype(np.uint8)
    depth, hit = z_buffer(vertices, faces, camera)
    return Silhouette(camera, np.where(hit >= 0, owner[hit], 0).astype(np.uint8), depth)


def refine(photo: NDArray[np.uint8], drawn: Silhouette, band: int) -> Silhouette:
    """The same silhouette with outlines moved to the photo's edges, by at most `band` pixels.

    photo: [H, W, 3] uint8. GrabCut (Rother et al. 2004) decides the pixels of the band only; colours of the object come
    from its inside, those of the background from its surroundings.
    """
    ids = np.zeros_like(drawn.ids)
    for number in np.unique(drawn.ids[drawn.ids > 0]):
        window, mask = _cut(photo, drawn.ids, int(number), band)
        part = ids[window]
        part[mask & (part == 0)] = number
    return Silhouette(drawn.camera, ids, drawn.depth)


def _cut(photo: NDArray[np.uint8], ids: Ids, number: int, band: int) -> tuple[tuple[slice, slice], NDArray[np.bool_]]:
    """One instance's refined mask inside the window that holds it and its surroundings."""
    import cv2

    rows, columns = np.nonzero(ids == number)
    reach = int(CONTEXT * band)
    window = (
        slice(max(int(rows.min()) - reach, 0), int(rows.max()) + reach),
        slice(max(int(columns.min()) - reach, 0), int(columns.max()) + reach),
    )
    mine = (ids[window] == number).astype(np.uint8)
    if mine.sum() < MIN_PIXELS:
        return window, mine > 0
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * band + 1, 2 * band + 1))
    core = cv2.erode(mine, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (band + 1, band + 1)))
    near = cv2.dilate(mine, disc)
    label = np.where(near > 0, np.where(mine > 0, cv2.GC_PR_FGD, cv2.GC_PR_BGD), cv2.GC_BGD).astype(np.uint8)
    label[core > 0] = cv2.GC_FGD
    label[(ids[window] > 0) & (mine == 0)] = cv2.GC_BGD
    if not (label == cv2.GC_FGD).any():
        return window, mine > 0
    crop, no_rectangle = np.ascontiguousarray(photo[window]), cast(Any, None)
    foreground, background = crop[label == cv2.GC_FGD], crop[label == cv2.GC_BGD]
    models = np.zeros((1, 65)), np.zeros((1, 65))
    if min(len(foreground), len(background)) < MIN_PIXELS:
        return window, mine > 0
    # Colours are learnt where it is certain whose they are: in the band, the background would learn the object's.
    cv2.setRNGSeed(0)
    known = np.concatenate([foreground, background])[:, None]
    whose = np.full((len(known), 1), cv2.GC_BGD, np.uint8)
    whose[: len(foreground)] = cv2.GC_FGD
    cv2.grabCut(known, whose, no_rectangle, *models, 1, cv2.GC_INIT_WITH_MASK)
    cv2.grabCut(crop, label, no_rectangle, *models, 1, cv2.GC_EVAL_FREEZE_MODEL)
    return window, _largest((label == cv2.GC_FGD) | (label == cv2.GC_PR_FGD))


def _largest(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pieces of a mask that are at least a quarter of its largest: an occluder may cut a thing in two."""
    from scipy import ndimage

    labels, count = ndimage.label(mask)
    if count < 2:
        return mask
    area = ndimage.sum_labels(mask, labels, np.arange(1, count + 1))
    return np.asarray(np.isin(labels, 1 + np.flatnonzero(area >= 0.25 * area.max())))


def carve(
    number: int, views: Sequence[Silhouette], low: Array, bound: NDArray[np.float32], voxel: float, agree: float = 0.9
) -> NDArray[np.float32]:
    """Signed distance to an instance's visual hull [X, Y, Z] over the truncation, negative inside (Laurentini 1994).

    low: corner of its box [3] (world frame, m); bound [X, Y, Z]: signed distance [m] of a solid that holds it, which
    limits the result. A voxel is as far outside as the share `agree` of the views that could see it say at most: single
    wrong masks neither cut nor grow the solid. A view says nothing where a thing in front hides the voxel or where it
    leaves the picture.
    """
    reach = TRUNCATION * voxel
    field = np.clip(bound / reach, -1, 1).ravel().astype(np.float32)
    rows = np.flatnonzero(field < 1)
    index = np.stack(np.unravel_index(rows, bound.shape), 1)
    points = (low + voxel * (index + 0.5)).astype(np.float32)
    said = [_distances(points, number, view) for view in views if (view.ids == number).sum() >= MIN_PIXELS]
    if not said or not len(rows):
        return np.ones(bound.shape, np.float32)
    table = np.sort(np.stack(said), axis=0)  # nan, where a view says nothing, comes last
    known = np.isfinite(table).sum(0)
    rank = np.clip(np.floor(agree * (known - 1)).astype(int), 0, None)
    hull = np.where(known > 0, table[rank, np.arange(len(points))], np.inf) / reach
    field[rows] = np.maximum(field[rows], np.clip(hull, -1, 1))
    return field.reshape(bound.shape)


def _signed_pixels(mine: NDArray[np.bool_]) -> tuple[NDArray[np.float32], tuple[int, int]]:
    """Signed distance [px] to the outline of a mask in the window around it, positive outside, and the window's corner."""
    from scipy import ndimage

    rows, columns = np.nonzero(mine)
    top, left = max(int(rows.min()) - REACH_PX, 0), max(int(columns.min()) - REACH_PX, 0)
    crop = mine[top : int(rows.max()) + REACH_PX, left : int(columns.max()) + REACH_PX]
    out, within = ndimage.distance_transform_edt(~crop), ndimage.distance_transform_edt(crop)
    return np.where(crop, 0.5 - within, out - 0.5).astype(np.float32), (top, left)


def _distances(points: NDArray[np.float32], number: int, view: Silhouette) -> NDArray[np.float32]:
    """Distance [N] [m] of points to the cone of one silhouette, positive outside; nan where the view cannot tell."""
    camera = view.camera
    pixels, (top, left) = _signed_pixels(view.ids == number)
    local = points @ camera.viewmat[:3, :3].T.astype(np.float32) + camera.viewmat[:3, 3].astype(np.float32)
    z = np.maximum(local[:, 2], np.float32(1e-6))
    u = local[:, 0] / z * np.float32(camera.K[0, 0]) + np.float32(camera.K[0, 2] - 0.5)
    v = local[:, 1] / z * np.float32(camera.K[1, 1]) + np.float32(camera.K[1, 2] - 0.5)
    shown = (local[:, 2] > 1e-6) & (u >= 0) & (v >= 0) & (u < camera.width - 1) & (v < camera.height - 1)
    x, y = np.where(shown, u - left, -1), np.where(shown, v - top, -1)
    close = (x >= 0) & (y >= 0) & (x < pixels.shape[1] - 1) & (y < pixels.shape[0] - 1)
    column, row = np.where(close, x, 0).astype(np.int64), np.where(close, y, 0).astype(np.int64)
    fx, fy = x - column, y - row
    upper = pixels[row, column] * (1 - fx) + pixels[row, column + 1] * fx
    lower = pixels[row + 1, column] * (1 - fx) + pixels[row + 1, column + 1] * fx
    distance = np.where(close, upper * (1 - fy) + lower * fy, REACH_PX) * z / np.float32(camera.K[0, 0])
    at = np.where(shown, v, 0).astype(np.int64), np.where(shown, u, 0).astype(np.int64)
    hidden = (view.ids[at] != number) & (view.ids[at] > 0) & (view.depth[at] < z - HIDES)
    return np.where(shown & ~hidden, distance, np.nan).astype(np.float32)


def surface_of(field: NDArray[np.float32], low: Array, voxel: float) -> Surface:
    """The closed surface of a carved field; what reaches the box's side is closed there."""
    padded = np.pad(field, 1, constant_values=1.0)
    return extract_surface(padded, np.ones(padded.shape, bool), low - voxel, voxel)


def iou(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    """Intersection over union of two masks; 1 where both are empty."""
    union = int((a | b).sum())
    return float((a & b).sum()) / union if union else 1.0
