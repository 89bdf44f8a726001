# SPDX-License-Identifier: Apache-2.0
"""Where a LiDAR looks: unit ray directions [n, 3] in the sensor's frame, x forward, y left, z up, in firing order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import UsageError

Array = NDArray[np.float64]


def rotating(elevations_deg: Sequence[float], columns: int = 1024) -> Array:
    """A column of lasers that spins about z: `columns` azimuths, all lasers at each. One turn is one scan."""
    if columns < 1 or len(elevations_deg) < 1:
        raise UsageError(f"A rotating LiDAR needs lasers and columns, received {len(elevations_deg)} and {columns}.")
    azimuth = np.repeat(np.arange(columns) * (2 * np.pi / columns), len(elevations_deg))
    return _unit(azimuth, np.tile(np.radians(elevations_deg), columns))


def solid_state(
    columns: int, rows: int, horizontal_deg: float, vertical_deg: float, *, centre_deg: tuple[float, float] = (0, 0)
) -> Array:
    """A raster over a window of azimuth and elevation, left to right within a row, from the top row down."""
    if min(columns, rows) < 1 or not (0 < horizontal_deg <= 360 and 0 < vertical_deg <= 180):
        raise UsageError(
            "A raster needs columns and rows, at most 360 by 180 degrees; "
            f"received {columns} x {rows} over {horizontal_deg} x {vertical_deg} degrees."
        )
    left = (0.5 - (np.arange(columns) + 0.5) / columns) * horizontal_deg + centre_deg[0]
    up = (0.5 - (np.arange(rows) + 0.5) / rows) * vertical_deg + centre_deg[1]
    azimuth, elevation = np.meshgrid(np.radians(left), np.radians(up))
    return _unit(azimuth.ravel(), elevation.ravel())


@dataclass(frozen=True)
class Rosette:
    """Two rotating wedge prisms bend one beam about x: a flower that never closes, so scans differ and coverage grows.

    The deflections of the prisms add (paraxial optics). Defaults are those of the Livox Mid-40: 38.4 degrees across,
    100,000 points/s, prisms at 7,294 and -4,664 turns a minute (Liu, Yuan and Zhang 2021, "Low-cost retina-like robotic
    lidars based on incommensurable scanning").
    """

    field_deg: float = 38.4
    rate_hz: float = 100_000.0
    turns_per_minute: tuple[float, float] = (7294.0, -4664.0)

    def directions(self, start_s: float, count: int) -> Array:
        """The rays fired from `start_s` on."""
        if count < 1 or not 0 < self.field_deg < 180 or self.rate_hz <= 0:
            raise UsageError(f"A rosette needs rays, a field under 180 degrees and a rate: {count} rays of {self}.")
        t = start_s + np.arange(count) / self.rate_hz
        a, b = (2 * np.pi * turns / 60 * t for turns in self.turns_per_minute)
        bend = np.radians(self.field_deg) / 4
        left, up = bend * (np.cos(a) + np.cos(b)), bend * (np.sin(a) + np.sin(b))
        angle = np.hypot(left, up)
        across = np.sinc(angle / np.pi)
        return np.stack([np.cos(angle), left * across, up * across], -1)


def _unit(azimuth: Array, elevation: Array) -> Array:
    return np.stack([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)], -1)
