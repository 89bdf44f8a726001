# SPDX-License-Identifier: Apache-2.0
"""Truncated signed distance from depth views, in blocks near the surfaces (Curless, Levoy 1996; Niessner et al. 2013).

A voxel averages d - z over the views (d: depth seen in its pixel, z: its own depth), cut at the truncation distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real2sim.stages.depth_views import DepthView, facing, project_depth

Floats = NDArray[np.float32]
Array = NDArray[np.float64]

BLOCK = 8  # voxels along an edge of a block
TRUNCATION = 4.0  # in voxels
CHUNK_BLOCKS = 2048


@dataclass
class Volume:
    """Blocks of voxels.

    low: corner of voxel (0, 0, 0) [3]; voxel: edge length; shape: voxels of the whole box (3);
    blocks: block indices [B, 3]; distance: signed distance over the truncation [B, 8, 8, 8]; views: how many views
    saw the voxel in front of or near a surface [B, 8, 8, 8].
    """

    low: Array
    voxel: float
    shape: tuple[int, int, int]
    blocks: NDArray[np.int64]
    distance: Floats
    views: Floats


def _block_shape(low: Array, high: Array, voxel: float) -> NDArray[np.int64]:
    return np.maximum(np.ceil((high - low) / (voxel * BLOCK)).astype(np.int64), 1)


def allocate(views: Sequence[DepthView], low: Array, high: Array, voxel: float) -> NDArray[np.int64]:
    """Indices [B, 3] of the blocks within the truncation distance of a point that a view sees in the box."""
    count = _block_shape(low, high, voxel)
    edge = voxel * BLOCK
    reach = TRUNCATION * voxel
    offsets = np.stack(np.meshgrid(*[[-reach, reach]] * 3, indexing="ij"), -1).reshape(-1, 3)
    taken = np.zeros(tuple(count), bool)
    for view in views:
        points, _ = view.points()
        points = points[((points > low - reach) & (points < high + reach)).all(1)]
        cells = np.floor((points - low + reach) / (edge / 4)).astype(np.int64)
        span = cells.max(0, initial=0) + 1
        code = np.unique(np.ravel_multi_index((cells[:, 0], cells[:, 1], cells[:, 2]), tuple(span)))
        centres = (np.stack(np.unravel_index(code, tuple(span)), 1) + 0.5) * (edge / 4) - reach
        for offset in offsets:
            index = np.floor((centres + offset) / edge).astype(np.int64)
            index = index[((index >= 0) & (index < count)).all(1)]
            taken[index[:, 0], index[:, 1], index[:, 2]] = True
    return np.argwhere(taken)


def _block_voxels(blocks: NDArray[np.int64], low: Array, voxel: float) -> Floats:
    """Centres of the voxels of blocks, [b, 512, 3]."""
    inner = np.stack(np.meshgrid(*[np.arange(BLOCK)] * 3, indexing="ij"), -1).reshape(-1, 3)
    return (low + voxel * (blocks[:, None] * BLOCK + inner + 0.5)).astype(np.float32)


def _blocks_in_view(view: DepthView, centres: Array, radius: float) -> NDArray[np.bool_]:
    """Which blocks, as spheres around centres [B, 3], can fall into the image."""
    local = (centres - view.camera.centre) @ view.camera.T_world_cam[:3, :3]
    z = np.maximum(local[:, 2], 1e-6)
    uv = local[:, :2] / z[:, None] * np.diag(view.camera.K)[:2] + view.camera.K[:2, 2]
    margin = radius / z * view.camera.K[0, 0] * 1.5
    size = np.array([view.camera.width, view.camera.height])
    near = ((uv > -margin[:, None]) & (uv < size + margin[:, None])).all(1)
    deepest = float(np.nanmax(view.depth)) if np.isfinite(view.depth).any() else 0.0
    return (local[:, 2] > -radius) & near & (local[:, 2] - radius < deepest)


def fuse(views: Sequence[DepthView], low: Array, high: Array, voxel: float) -> Volume:
    """Fuse the views' depth inside the box low..high [3]; views in the box's frame and unit.

    A view weighs as the cosine of its angle to the surface: grazing views know the depth least.
    """
    low = np.asarray(low, np.float64)
    blocks = allocate(views, low, np.asarray(high, np.float64), voxel)
    shape = tuple(int(n) for n in _block_shape(low, np.asarray(high, np.float64), voxel) * BLOCK)
    total = np.zeros((len(blocks), BLOCK**3), np.float32)
    weight = np.zeros_like(total)
    count = np.zeros_like(total)
    centres = low + voxel * BLOCK * (blocks + 0.5)
    truncation = np.float32(TRUNCATION * voxel)
    for view in views:
        depth = view.depth.ravel()
        cosine = np.clip(facing(view.camera, view.depth), 0.1, 1.0).astype(np.float32).ravel()
        rows = np.flatnonzero(_blocks_in_view(view, centres, voxel * BLOCK * 0.87))
        for part in np.array_split(rows, max(1, len(rows) // CHUNK_BLOCKS)):
            voxels = _block_voxels(blocks[part], low, voxel).reshape(-1, 3)
            z, pixel = project_depth(view, voxels)
            signed = np.where(pixel >= 0, depth[pixel], np.nan) - z
            use = signed > -truncation  # NaN compares false
            w = np.where(use, np.nan_to_num(cosine[pixel], nan=0.1), 0).reshape(len(part), BLOCK**3)
            value = np.where(use, np.minimum(signed / truncation, 1), 0).reshape(len(part), BLOCK**3)
            total[part] += w * value
            weight[part] += w
            count[part] += w > 0
    distance = np.where(weight > 0, total / np.maximum(weight, 1e-9), 1).astype(np.float32)
    return Volume(low, voxel, (shape[0], shape[1], shape[2]), blocks, distance, count)


def dense(volume: Volume, min_views: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Signed distance [X, Y, Z] over the truncation and which voxels min_views or more know [X, Y, Z]."""
    shape = np.array(volume.shape) // BLOCK
    field = np.ones((*shape, BLOCK, BLOCK, BLOCK), np.float32)
    known = np.zeros(field.shape, bool)
    i, j, k = volume.blocks.T
    field[i, j, k] = volume.distance.reshape(-1, BLOCK, BLOCK, BLOCK)
    known[i, j, k] = volume.views.reshape(-1, BLOCK, BLOCK, BLOCK) >= min_views
    field = field.transpose(0, 3, 1, 4, 2, 5).reshape(volume.shape)
    return field, known.transpose(0, 3, 1, 4, 2, 5).reshape(volume.shape)


def extract_surface(
    field: Floats, known: NDArray[np.bool_], low: Array, voxel: float
) -> tuple[Array, NDArray[np.int64]]:
    """Vertices [V, 3] and faces [F, 3] of the zero level inside cells whose eight corners are known.

    field, known: [X, Y, Z] at voxel centres. Faces turn counter-clockwise seen from the positive (free) side.
    """
    from skimage.measure import marching_cubes

    cell = known[:-1, :-1, :-1].copy()
    for i, j, k in np.ndindex(2, 2, 2):
        cell &= known[i : i + cell.shape[0], j : j + cell.shape[1], k : k + cell.shape[2]]
    mask = np.zeros_like(known)
    mask[1:, 1:, 1:] = cell  # the mask of the last corner decides over a cell
    sign = field < 0
    if not (mask.any() and sign[known].any() and not sign[known].all()):
        return np.zeros((0, 3)), np.zeros((0, 3), np.int64)
    try:
        vertices, faces, _, _ = marching_cubes(
            field, 0.0, mask=mask, gradient_direction="descent", allow_degenerate=False
        )
    except (RuntimeError, ValueError):  # no cell crosses zero
        return np.zeros((0, 3)), np.zeros((0, 3), np.int64)
    return low + voxel * (vertices.astype(np.float64) + 0.5), faces.astype(np.int64)
