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


def fuse_open3d(views: Sequence[DepthView], low: Array, high: Array, voxel: float) -> tuple[Array, NDArray[np.int64]]:
    """Vertices [V, 3] and faces [F, 3] of the surface inside the box low..high [3].

    Raises BackendError where Open3D is not installed.
    """
    try:
        import open3d
    except ImportError as error:
        raise BackendError(
            "mesh.backend: open3d was asked for and is not installed. Install it with `pip install 'real2sim[open3d]'` "
            "(about 1 GB), or use mesh.backend=numpy."
        ) from error
    volume = open3d.pipelines.integration.ScalableTSDFVolume(
        voxel_length=voxel,
        sdf_trunc=TRUNCATION * voxel,
        color_type=open3d.pipelines.integration.TSDFVolumeColorType.NoColor,
    )
    for view in views:
        camera = view.camera
        depth = np.nan_to_num(view.depth, nan=0.0).astype(np.float32)
        image = open3d.geometry.RGBDImage.create_from_color_and_depth(
            open3d.geometry.Image(np.zeros((*depth.shape, 3), np.uint8)),
            open3d.geometry.Image(depth),
            depth_scale=1.0,
            depth_trunc=float(depth.max(initial=0.0)) + 1.0,
            convert_rgb_to_intensity=False,
        )
        K = camera.K  # Open3D puts pixel centres at integers
        intrinsic = open3d.camera.PinholeCameraIntrinsic(
            camera.width, camera.height, K[0, 0], K[1, 1], K[0, 2] - 0.5, K[1, 2] - 0.5
        )
        volume.integrate(image, intrinsic, camera.viewmat)
    mesh = volume.extract_triangle_mesh()
    vertices = np.asarray(mesh.vertices, np.float64).reshape(-1, 3)
    faces = np.asarray(mesh.triangles, np.int64).reshape(-1, 3)
    outside = np.flatnonzero(((vertices < low) | (vertices > high)).any(1))
    return vertices, faces[~np.isin(faces, outside).any(1)]
