# SPDX-License-Identifier: Apache-2.0
"""How far a thing can reach at most, from the solid that depth carved: exact on what faces up, generous on sides.

Fused depth is exact where cameras see a surface face on, and cameras look down on tables. At silhouettes, where depth is
not trusted, the carved solid lost some millimetres; there the outlines decide.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from real2sim.stages.solid import TRUNCATION, Solid

Array = NDArray[np.float64]

SIDE_SLACK, TOP_SLACK = 0.005, 0.0005  # by how much sides and tops may lie outside the carved solid [m]


def solid_bound(solid: Solid, low: Array, high: Array, voxel: float) -> NDArray[np.float32]:
    """Signed distance [X, Y, Z] [m] of the bound at voxel centres of the box low..high [3]; negative inside.

    The lowest voxels of the solid are the support's; below them a thing goes straight down to z = 0.
    """
    from scipy import ndimage

    metres = solid.field * TRUNCATION * solid.voxel
    base = min(int(np.ceil(0.004 / solid.voxel)), metres.shape[2] - 1)
    metres[:, :, :base] = metres[:, :, base : base + 1]
    slope = np.stack(np.gradient(ndimage.gaussian_filter(metres, 1.0), solid.voxel), -1)
    up = np.clip(slope[..., 2] / np.maximum(np.linalg.norm(slope, axis=-1), 1e-3), 0, 1)
    metres = metres - (SIDE_SLACK + (TOP_SLACK - SIDE_SLACK) * up**2)
    shape = np.maximum(np.ceil((high - low) / voxel).astype(int), 2)
    points = low + voxel * (np.indices(tuple(shape)).reshape(3, -1).T + 0.5)
    grid = ((points - solid.low) / solid.voxel - 0.5).T
    bound = ndimage.map_coordinates(metres, grid, order=1, mode="nearest")
    return np.asarray(bound.reshape(tuple(shape)), np.float32)
