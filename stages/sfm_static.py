# SPDX-License-Identifier: Apache-2.0
"""What moves with the camera: a gripper, a strap, a time stamp, or the room behind a turntable.

Such content matches itself at the same pixels in every frame, fits one rigid motion perfectly (none at all), and can
outvote the scene: all frames are then posed with a small error, and wrongly. It is found where matches between frames
stay at their pixels while matches elsewhere in the same frames move, and is left out of matching and of training.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2  # before pycolmap: the other order makes later PNG writing abort
import numpy as np
import pycolmap
from numpy.typing import NDArray

from real2sim.stages.sfm_database import verify_again

CELLS = 40  # along the long side of an image
STILL, MOVED = 0.004, 0.012  # of the long side: 2.6 and 7.7 px at 640; between them a match says nothing
MIN_MATCHES = 6  # of a cell and its neighbours, before it can be judged
MIN_FRAMES = 0.3  # share of a camera's frames that must show a still thing: it is there all the time
STILL_SHARE = 0.7  # of a cell's matches that stay: what moves with the camera
MOVED_SHARE = 0.3  # of a cell's matches that stay, at most: the scene
MIN_SCENE = 0.1  # of the judged cells; with less the camera hardly moved, and nothing can be told apart


@dataclass(frozen=True)
class Still:
    """cells: [rows, columns] bool of one group's images; share: of the image's area; frames: images that show it."""

    group: str
    size: tuple[int, int]
    cells: NDArray[np.bool_]
    frames: int

    @property
    def share(self) -> float:
        return float(self.mask().mean())

    def mask(self) -> NDArray[np.bool_]:
        """[H, W], True where content moves with the camera."""
        width, height = self.size
        side = max(self.size) / CELLS
        rows = np.minimum((np.arange(height) / side).astype(int), self.cells.shape[0] - 1)
        columns = np.minimum((np.arange(width) / side).astype(int), self.cells.shape[1] - 1)
        return self.cells[rows[:, None], columns[None]]

    def holds(self, xy: NDArray[Any]) -> NDArray[np.bool_]:
        """Which pixels [N, 2] lie in it."""
        row, column = _cell(xy, self.size)
        return self.cells[row, column]


def find_still(database: Path, frames: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> list[Still]:
    """What moves with the camera in each group of frames; empty where nothing does, or where it cannot be told."""
    group_of = {i: f["group"] for i, f in enumerate(frames, 1)}  # image ids follow the order of the frames
    db = pycolmap.Database.open(database)
    try:
        points = {i: np.asarray(db.read_keypoints(i), np.float32)[:, :2] for i in group_of}
        pairs = [(pycolmap.pair_id_to_image_pair(p), np.asarray(m)) for p, m in zip(*db.read_all_matches())]
    finally:
        db.close()
    found = []
    for group in groups:
        ids = [i for i, g in group_of.items() if g == group["id"]]
        ours = [(pair, m) for pair, m in pairs if len(m) and all(group_of.get(i) == group["id"] for i in pair)]
        still = _find_in_group(group, len(ids), ours, points) if len(ids) > 2 else None
        if still is not None:
            found.append(still)
    return found


def _find_in_group(
    group: dict[str, Any],
    count: int,
    pairs: Sequence[tuple[tuple[int, int], NDArray[Any]]],
    points: dict[int, NDArray[np.float32]],
) -> Still | None:
    size = (int(group["width"]), int(group["height"]))
    shape = _shape(size)
    stayed, moved = np.zeros(shape), np.zeros(shape)
    shown: dict[int, NDArray[np.bool_]] = {}
    for (a, b), matches in pairs:
        xa, xb = points[a][matches[:, 0]], points[b][matches[:, 1]]
        distance = np.linalg.norm(xb - xa, axis=1) / max(size)
        still = distance < STILL
        np.add.at(stayed, _cell(xa[still], size), 1)
        for xy in (xa, xb):  # a scene point leaves its cell in one image and enters another in the other
            np.add.at(moved, _cell(xy[distance > MOVED], size), 0.5)
        for i, xy in ((a, xa[still]), (b, xb[still])):
            shown.setdefault(i, np.zeros(shape, bool))[_cell(xy, size)] = True
    stayed, moved = _with_neighbours(stayed), _with_neighbours(moved)
    judged = stayed + moved >= MIN_MATCHES
    ratio = stayed / np.maximum(stayed + moved, 1)
    in_frames = sum((_with_neighbours(s.astype(float)) > 0 for s in shown.values()), np.zeros(shape, int))
    cells = judged & (ratio > STILL_SHARE) & (in_frames >= max(3, MIN_FRAMES * count))
    scene = judged & (ratio < MOVED_SHARE)
    if not cells.any() or scene.sum() < max(3, MIN_SCENE * judged.sum()):
        return None
    grown = cv2.dilate(cells.astype(np.uint8), np.ones((3, 3), np.uint8)).astype(bool) & ~(scene & ~cells)
    frames = sum(bool((s & cells).any()) for s in shown.values())
    return Still(group["id"], size, grown, frames)


def leave_out(
    database: Path, still: Sequence[Still], frames: Sequence[dict[str, Any]], min_matches: int, scratch: Path
) -> Path:
    """A copy of the database without matches on what moves with the camera, its pairs verified again."""
    copy = scratch / "moving.db"
    for leftover in scratch.glob(copy.name + "*"):
        leftover.unlink()
    shutil.copyfile(database, copy)
    by_group = {s.group: s for s in still}
    of = {i: by_group.get(f["group"]) for i, f in enumerate(frames, 1)}
    db = pycolmap.Database.open(copy)
    outside = {i: ~s.holds(np.asarray(db.read_keypoints(i))[:, :2]) if s else None for i, s in of.items()}
    db.close()

    def keep(a: int, b: int, matches: NDArray[Any]) -> NDArray[np.bool_]:
        kept = np.ones(len(matches), bool)
        for i, column in ((a, 0), (b, 1)):
            outer = outside[i]
            if outer is not None:
                kept &= outer[matches[:, column]]
        return kept

    verify_again(copy, scratch / "moving.txt", min_matches, keep)
    return copy


def with_masks(
    frames: Sequence[dict[str, Any]], still: Sequence[Still], ingest: Path, scratch: Path
) -> list[dict[str, Any]]:
    """The frames with what moves with the camera added to their masks (white = ignore)."""
    folder = scratch / "still"
    folder.mkdir(exist_ok=True)
    by_group, rows = {s.group: s for s in still}, []
    for f in frames:
        found = by_group.get(f["group"])
        if found is None:
            rows.append(f)
            continue
        mask = found.mask().astype(np.uint8) * 255
        if f["mask"]:
            mask = np.maximum(mask, np.asarray(cv2.imread(str(ingest / f["mask"]), cv2.IMREAD_GRAYSCALE), np.uint8))
        path = folder / f"{f['name']}.png"
        cv2.imwrite(str(path), mask)
        rows.append({**f, "mask": str(path)})
    return rows


def _shape(size: tuple[int, int]) -> tuple[int, int]:
    side = max(size) / CELLS
    return int(np.ceil(size[1] / side)), int(np.ceil(size[0] / side))


def _cell(xy: NDArray[Any], size: tuple[int, int]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    rows, columns = _shape(size)
    at = np.floor(np.asarray(xy).reshape(-1, 2) / (max(size) / CELLS)).astype(np.intp)
    return np.clip(at[:, 1], 0, rows - 1), np.clip(at[:, 0], 0, columns - 1)


def _with_neighbours(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(cv2.boxFilter(counts, -1, (3, 3), normalize=False, borderType=cv2.BORDER_CONSTANT), np.float64)
