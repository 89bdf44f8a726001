# SPDX-License-Identifier: Apache-2.0
"""Surface fusion by Open3D, for who has it installed: a second opinion on our own fusion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import BackendError
from real2sim.stages.depth_views import DepthView
from real2sim.stages.tsdf import TRUNCATION

Array = NDArray[np.float64]

BLOCK, FIRST_BLOCKS = 16, 20_000  # voxels along a block's edge; blocks that memory is taken for before more are needed


def fuse_open3d(
    views: Sequence[DepthView], low: Array, high: Array, voxel: float, min_views: int
) -> tuple[Array, NDArray[np.int64]]:
    """Vertices [V, 3] and faces [F, 3] of the surface inside the box low..high [3] that min_views views agree on.

    Raises BackendError where Open3D is not installed.
    """
    try:
        import open3d
    except ImportError as error:
        raise BackendError(
            "mesh.backend: open3d was asked for and is not installed. Install it with `pip install 'real2sim[open3d]'` "
            "(about 1 GB), or use mesh.backend=numpy."
        ) from error
    tensor = open3d.core.Tensor
    grid = open3d.t.geometry.VoxelBlockGrid(
        attr_names=("tsdf", "weight"), attr_dtypes=(open3d.core.float32,) * 2, attr_channels=((1), (1)),
        voxel_size=voxel, block_resolution=BLOCK, block_count=FIRST_BLOCKS,
    )  # fmt: skip
    for view in views:
        depth = _inside(view, low - TRUNCATION * voxel, high + TRUNCATION * voxel)
        if not depth.any():
            continue
        K = view.camera.K - [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]]  # Open3D puts pixel centres at integers
        seen = (tensor(K), tensor(np.ascontiguousarray(view.camera.viewmat)), 1.0, float(depth.max()) + 1.0, TRUNCATION)
        image = open3d.t.geometry.Image(tensor(depth))
        grid.integrate(grid.compute_unique_block_coordinates(image, *seen), image, *seen)
    mesh = grid.extract_triangle_mesh(weight_threshold=min_views - 0.5)
    vertices = mesh.vertex.positions.numpy().astype(np.float64).reshape(-1, 3)
    faces = mesh.triangle.indices.numpy().astype(np.int64).reshape(-1, 3)
    outside = np.flatnonzero(((vertices < low) | (vertices > high)).any(1))
    return vertices, faces[~np.isin(faces, outside).any(1)]


def _inside(view: DepthView, low: Array, high: Array) -> NDArray[np.float32]:
    """The depth image [H, W] with zero where nothing is known or the point lies outside the box."""
    depth = np.nan_to_num(view.depth, nan=0.0).astype(np.float32)
    rows, columns = np.nonzero(depth)
    rays = np.stack([columns + 0.5, rows + 0.5, np.ones(len(rows))], axis=1) @ np.linalg.inv(view.camera.K).T
    T = view.camera.T_world_cam
    points = (rays * depth[rows, columns, None]) @ T[:3, :3].T + T[:3, 3]
    outside = ((points < low) | (points > high)).any(1)
    depth[rows[outside], columns[outside]] = 0
    return depth
