# SPDX-License-Identifier: Apache-2.0
"""What stands on the support, as convex parts: connected solids above it, each one hull or a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.stages.collision_coacd import decompose
from real2sim.stages.convex import Hull, make_hull
from real2sim.stages.solid import Solid
from real2sim.stages.support import inside_polygon
from real2sim.stages.tsdf import extract_surface

Array = NDArray[np.float64]

CONVEX = 0.8  # a solid that fills this share of its hull is convex enough to be its hull ...
SMALL_HOLLOW = 4e-5  # ... and so is one that leaves less than this of it empty [m3]
MAX_FACES = 4000  # of the mesh that is decomposed; larger solids are sampled more coarsely
MIN_VOXELS = 30
RIM = 0.03  # width of the support's rim, over its size, where low solids are the support's own frayed edge
SMOOTH = 0.5  # sigma of the blur of a solid, in voxels: carving leaves dents that would be cut into slices


@dataclass(frozen=True)
class Thing:
    """A connected solid above the support: closed surface, volume [m3], largest height [m]."""

    vertices: Array
    faces: NDArray[np.int64]
    volume: float
    height: float


def find_things(
    solid: Solid, polygon: Array, clear: float, min_height: float, min_volume: float
) -> tuple[list[Thing], list[str]]:
    """Connected solids over an outline [M, 2], largest first, and notes on what was left out.

    clear: what lies lower than this belongs to the support [m]; min_height [m], min_volume [m3].
    """
    from scipy import ndimage

    index = np.indices(solid.field.shape[:2]).reshape(2, -1).T + 0.5
    over = inside_polygon(solid.low[:2] + solid.voxel * index, polygon).reshape(solid.field.shape[:2])
    z = solid.low[2] + solid.voxel * (np.arange(solid.field.shape[2]) + 0.5)
    inside = (solid.field < 0) & (z > clear) & over[:, :, None]
    labels, _ = ndimage.label(inside, np.ones((3, 3, 3)))
    depth_inside = solid.voxel * ndimage.distance_transform_edt(np.pad(over, 1))[1:-1, 1:-1]
    size = float(np.ptp(polygon, axis=0).max())
    things, dropped = [], 0
    for number, box in enumerate(ndimage.find_objects(labels), start=1):
        mine = labels[box] == number
        height = float(z[box[2]][mine.any((0, 1))].max()) + solid.voxel / 2
        volume = float(mine.sum()) * solid.voxel**3
        on_rim = float(depth_inside[box[:2]][mine.any(2)].max()) < RIM * size and height < 2 * RIM * size
        if on_rim or height < min_height or volume < min_volume or mine.sum() < MIN_VOXELS:
            dropped += 1
            continue
        things.append(_thing(*_cut_out(solid, labels, number, box), solid.voxel, volume, height))
    notes = (
        [f"{dropped} solids lower than {min_height * 1000:.0f} mm, too small or low on the rim were left out"]
        if dropped
        else []
    )
    return sorted((t for t in things if len(t.faces)), key=lambda t: -t.volume), notes


def _cut_out(
    solid: Solid, labels: NDArray[np.int32], number: int, box: tuple[slice, ...]
) -> tuple[NDArray[np.float32], Array]:
    """One component's field, free all around, its base carried down to the support; and its corner [3]."""
    from scipy import ndimage

    start = np.maximum([s.start - 2 for s in box], 0)
    stop = np.minimum([s.stop + 2 for s in box], labels.shape)
    crop = tuple(slice(a, b) for a, b in zip(start, stop))
    mine, field = labels[crop] == number, solid.field[crop]
    field = np.where(mine, field, np.abs(field) + 0.05)
    base = int(np.argmax(mine.any((0, 1))))
    field[:, :, :base] = field[:, :, base : base + 1]
    padded = np.pad(np.pad(field, ((2, 2), (2, 2), (0, 2)), constant_values=1.0), ((0, 0), (0, 0), (2, 0)), mode="edge")
    smooth = ndimage.gaussian_filter(padded, SMOOTH, mode="nearest")
    closed = np.concatenate([np.ones_like(smooth[:, :, :1]), smooth[:, :, 2:]], axis=2)
    low = solid.low + solid.voxel * (start - [2, 2, 1])
    return closed.astype(np.float32), np.asarray(low, np.float64)


def _thing(field: NDArray[np.float32], low: Array, voxel: float, volume: float, height: float) -> Thing:
    """Surface of one padded field; sampled more coarsely until it has few enough triangles."""
    from scipy import ndimage

    for _ in range(4):
        vertices, faces = extract_surface(field, np.ones(field.shape, bool), low, voxel)
        if len(faces) <= MAX_FACES:
            break
        ratio = float(np.clip(np.sqrt(MAX_FACES / len(faces)), 0.5, 0.9))
        count = np.maximum(np.round(np.array(field.shape) * ratio), 4).astype(int)
        grid = np.meshgrid(*[(np.arange(n) + 0.5) / ratio - 0.5 for n in count], indexing="ij")
        field = np.pad(ndimage.map_coordinates(field, grid, order=1, mode="nearest"), 1, constant_values=1.0)
        low, voxel = low - voxel / ratio, voxel / ratio
    return Thing(vertices, faces, volume, height)


def convex_parts(
    things: Sequence[Thing], threshold: float, per_thing: int, max_parts: int, seconds: float, scratch: Path
) -> tuple[list[Hull], list[str]]:
    """Convex parts of all things, at most per_thing of each and max_parts together, and notes.

    A thing whose decomposition takes too long becomes one hull, which a note says.
    """
    parts: list[Hull] = []
    notes: list[str] = []
    for rank, thing in enumerate(things):
        left = max_parts - len(parts)
        if left <= 0:
            notes.append(f"{len(things) - rank} small things were left out: at most {max_parts} parts")
            break
        whole = make_hull(thing.vertices)
        if whole is None:
            continue
        share = max(1, min(left - min(len(things) - rank - 1, left - 1), per_thing))
        if share == 1 or thing.volume > min(CONVEX * whole.volume, whole.volume - SMALL_HOLLOW):
            parts.append(whole)
            continue
        pieces = decompose(thing.vertices, thing.faces, threshold, share, seconds, scratch)
        if pieces is None:
            notes.append(
                f"a thing of {thing.volume * 1e6:.0f} cm3 is one hull: CoACD needs more than {seconds:.0f} s of CPU"
            )
            parts.append(whole)
            continue
        parts += [hull for hull in (make_hull(p) for p in pieces) if hull is not None]
    return parts, notes
