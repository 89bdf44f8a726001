# SPDX-License-Identifier: Apache-2.0
"""A top-down picture of sparse points and cameras. Up is guessed from the cameras, for the picture only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from real2sim.sim.cameras import Camera
from real2sim.sim.transforms import rotation_between

SIZE, MARGIN, SMOOTH = 720, 30, 2  # px, px, oversampling
KEEP = (2.0, 98.0)  # percentiles of points that decide what is shown
LOOK_LENGTH = 0.05  # of the picture; a camera's line of sight
PAPER, PATH, HELDOUT, FIRST = (255, 255, 255), (21, 101, 192), (239, 108, 0), (46, 125, 50)


def write_camera_plot(path: Path, cameras: Sequence[Camera], xyz: NDArray[np.float64], rgb: NDArray[np.uint8]) -> None:
    """Draw points [P, 3] in their colours and cameras in order (held-out ones orange, the first one green) to a PNG."""
    level = rotation_between(-np.mean([c.T_world_cam[:3, 1] for c in cameras], axis=0), [0, 0, 1])
    centres = (np.array([c.centre for c in cameras]) @ level.T)[:, :2]
    looks = (np.array([c.T_world_cam[:3, 2] for c in cameras]) @ level.T)[:, :2]
    ground = (xyz @ level.T)[:, :2]
    low, high = _window(centres, ground)
    scale = (SIZE - 2 * MARGIN) * SMOOTH / max(high - low)

    def to_pixels(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        flipped = (xy - (low + high) / 2) * [1, -1]
        return flipped * scale + SIZE * SMOOTH / 2

    picture = Image.new("RGB", (SIZE * SMOOTH, SIZE * SMOOTH), PAPER)
    draw = ImageDraw.Draw(picture)
    for (x, y), colour in zip(to_pixels(ground), rgb):
        draw.rectangle((x - 1, y - 1, x + 1, y + 1), fill=tuple(int(v) for v in colour))
    spots = to_pixels(centres)
    draw.line([tuple(p) for p in spots], fill=PATH, width=1)
    for k, (camera, (x, y), look) in enumerate(zip(cameras, spots, looks)):
        colour = FIRST if k == 0 else HELDOUT if camera.heldout else PATH
        length = LOOK_LENGTH * SIZE * SMOOTH
        draw.line((x, y, x + look[0] * length, y - look[1] * length), fill=colour, width=2)
        draw.ellipse((x - 6, y - 6, x + 6, y + 6), fill=colour)
    picture.resize((SIZE, SIZE), Image.Resampling.LANCZOS).save(path, "PNG")


def _window(centres: NDArray[np.float64], ground: NDArray[np.float64]) -> tuple[NDArray, NDArray]:
    """Lower and upper corner [2] around all cameras and most points."""
    low, high = centres.min(0), centres.max(0)
    if len(ground):
        inner = np.percentile(ground, KEEP, axis=0)
        low, high = np.minimum(low, inner[0]), np.maximum(high, inner[1])
    return low, np.maximum(high, low + 1e-9)
