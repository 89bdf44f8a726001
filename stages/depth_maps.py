# SPDX-License-Identifier: Apache-2.0
"""Depth maps and masks of a capture: read, checked, brought to one unit, size and meaning."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from real2sim.stages.photos import Rejected, upright

INVALID_16_BIT = 65535  # many recorders write it for "no depth"
MASK_THRESHOLD = 127  # white = ignore
ASPECT_TOLERANCE = 0.02


def read_depth_mm(path: Path, unit_m: float) -> NDArray[np.uint16]:
    """Depth [mm], [H, W], 0 = none, of a 16-bit or float file whose step is `unit_m` metres; raises Rejected."""
    stored = _read(path)
    if stored.ndim != 2 or stored.dtype == np.uint8:
        raise Rejected(
            f"{path.name} is {stored.dtype} with shape {stored.shape}; a depth map has one 16-bit or float channel"
        )
    with np.errstate(invalid="ignore"):
        mm = stored.astype(np.float64) * (unit_m * 1000)
        valid = np.isfinite(mm) & (mm > 0) & (mm < INVALID_16_BIT)
    if stored.dtype == np.uint16:
        valid &= stored != INVALID_16_BIT
    return np.where(valid, np.round(np.where(valid, mm, 0)), 0).astype(np.uint16)


def read_mask(path: Path) -> NDArray[np.uint8]:
    """Mask [H, W] of 0 and 255, 255 = ignore; raises Rejected."""
    stored = _read(path)
    if stored.ndim == 3:
        stored = stored[:, :, : min(3, stored.shape[2])].max(2)
    top = 65535 if stored.dtype == np.uint16 else 255
    return np.where(stored.astype(np.float64) * (255 / top) > MASK_THRESHOLD, 255, 0).astype(np.uint8)


def to_image(array: NDArray, stored_size: tuple[int, int], orientation: int, name: str) -> NDArray:
    """Turn a map as its image was turned and bring it to the image's size, without mixing values; raises Rejected.

    stored_size: (width, height) of the image before turning. A map may be smaller or larger at the same aspect.
    """
    width, height = stored_size
    turned_size = (width, height) if orientation <= 4 else (height, width)
    if _same_aspect(array, stored_size):
        array = upright(array, orientation)
    elif not _same_aspect(array, turned_size):
        raise Rejected(
            f"{name} is {array.shape[1]}x{array.shape[0]} px and the image {width}x{height}; the aspects differ"
        )
    if (array.shape[1], array.shape[0]) == turned_size:
        return array
    return cv2.resize(array, turned_size, interpolation=cv2.INTER_NEAREST_EXACT)


def _same_aspect(array: NDArray, size: tuple[int, int]) -> bool:
    return abs(array.shape[1] * size[1] / (array.shape[0] * size[0]) - 1) < ASPECT_TOLERANCE


def _read(path: Path) -> NDArray:
    try:
        data = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise Rejected(f"{path.name} cannot be read ({error.strerror or error})") from error
    try:
        array = cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if len(data) else None
    except cv2.error as error:
        raise Rejected(f"{path.name} cannot be decoded; its header promises what no picture holds") from error
    if array is None:
        raise Rejected(f"{path.name} cannot be decoded; the file is empty or damaged")
    return array
