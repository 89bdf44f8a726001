# SPDX-License-Identifier: Apache-2.0
"""The reconstruction's sparse points and their observations, as written in sfm/points.npz."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import Real2SimError


@dataclass(frozen=True)
class SparsePoints:
    """Triangulated points and where they were seen.

    xyz: positions, [P, 3], sfm frame; rgb: [P, 3] uint8; error: mean reprojection error [px], [P];
    track_length: [P]; obs_point, obs_camera: [O] indices into the points and into cameras.json;
    obs_xy: undistorted pixels, [O, 2], pixel centres at half-integers.
    """

    xyz: NDArray[np.float64]
    rgb: NDArray[np.uint8]
    error: NDArray[np.float64]
    track_length: NDArray[np.int64]
    obs_point: NDArray[np.int64]
    obs_camera: NDArray[np.int64]
    obs_xy: NDArray[np.float64]

    @staticmethod
    def load(path: Path) -> SparsePoints:
        """Read points.npz; raises Real2SimError naming the file and what it lacks."""
        try:
            with np.load(path) as data:
                return SparsePoints(
                    np.asarray(data["xyz"], np.float64).reshape(-1, 3),
                    np.asarray(data["rgb"], np.uint8).reshape(-1, 3),
                    np.asarray(data["error"], np.float64),
                    np.asarray(data["track_length"], np.int64),
                    np.asarray(data["obs_point"], np.int64),
                    np.asarray(data["obs_camera"], np.int64),
                    np.asarray(data["obs_xy"], np.float64).reshape(-1, 2),
                )
        except (OSError, KeyError, ValueError) as error:
            raise Real2SimError(f"{path}: not a file of sparse points ({error}). Run the sfm stage again.") from error

    def seen_by(self, cameras: list[int]) -> SparsePoints:
        """The same points with the observations of these cameras only; obs_camera then counts within `cameras`."""
        position = np.full(max(*cameras, int(self.obs_camera.max(initial=0))) + 1, -1)
        position[cameras] = np.arange(len(cameras))
        camera = position[self.obs_camera]
        seen = camera >= 0
        return replace(self, obs_point=self.obs_point[seen], obs_camera=camera[seen], obs_xy=self.obs_xy[seen])

    def reliable(self, max_error_px: float = 1.0, min_track: int = 3) -> NDArray[np.bool_]:
        """Which points [P] have a small reprojection error and enough views to be trusted."""
        return (self.error <= max_error_px) & (self.track_length >= min_track)
