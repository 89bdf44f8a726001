# SPDX-License-Identifier: Apache-2.0
"""EXIF: the orientation and what is known of the lens, from a block that may be damaged; and the focal prior."""

from __future__ import annotations

import math
import struct
import warnings
from dataclasses import dataclass
from typing import Any

from PIL import Image

FULL_FRAME_DIAGONAL = math.hypot(36, 24)  # mm; equivalent focal lengths compare diagonals (CIPA DCG-001)
PHONE_FOCAL_MM = (2.0, 7.5)  # real focal lengths of phones' main cameras
PHONE_EQUIVALENT_MM = 27.0  # the equivalent focal length of nearly every phone's main camera is 24 to 30 mm
PLAUSIBLE_RATIO = (0.35, 8.0)  # focal length over the long side: a 12 mm to a 290 mm lens on full frame
ASPECT_TOLERANCE = 0.02  # a resized photo keeps its aspect; beyond rounding it was cropped
UNIT_MM = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}  # FocalPlaneResolutionUnit: inch, cm, mm, µm
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    struct.error,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    AttributeError,
)


@dataclass(frozen=True)
class Lens:
    """What a file says of its camera. plane_width_mm: the sensor's long side [mm]; size: of the full photo [px]."""

    make: str = ""
    model: str = ""
    focal_mm: float | None = None
    focal35_mm: float | None = None
    plane_width_mm: float | None = None
    size: tuple[int, int] | None = None


def read_exif(block: bytes) -> tuple[int, Lens]:
    """Orientation 1..8 and lens of an EXIF block; (1, Lens()) where there is none or it is damaged."""
    exif = Image.Exif()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of each damaged tag and leaves it out
            exif.load(block)
            orientation, detail = exif.get(0x0112, 1), exif.get_ifd(0x8769)
        width, height = _number(detail.get(0xA002)), _number(detail.get(0xA003))
        size = (int(width), int(height)) if width and height else None
        lens = Lens(
            _text(exif.get(0x010F)),
            _text(exif.get(0x0110)),
            _number(detail.get(0x920A)),
            _number(detail.get(0xA405)),
            _plane_width(detail, size),
            size,
        )
    except _DAMAGE:
        return 1, Lens()
    return (orientation if orientation in range(1, 9) else 1), lens


def focal_prior(lens: Lens, width: int, height: int, default_ratio: float) -> tuple[float, str]:
    """Focal length [px] of an upright photo, and where it is from: "exif_35mm", "exif" or "default".

    An EXIF focal length is dropped where the photo's aspect says that it was cropped, or where it is implausible.
    """
    long_side = max(width, height)
    for focal, source in _from_exif(lens, width, height):
        if PLAUSIBLE_RATIO[0] <= focal / long_side <= PLAUSIBLE_RATIO[1]:
            return focal, source
    return default_ratio * long_side, "default"


def _from_exif(lens: Lens, width: int, height: int) -> list[tuple[float, str]]:
    if lens.size is not None and abs(_aspect(*lens.size) / _aspect(width, height) - 1) > ASPECT_TOLERANCE:
        return []
    diagonal, found = math.hypot(width, height), []
    if lens.focal35_mm:
        found.append((lens.focal35_mm / FULL_FRAME_DIAGONAL * diagonal, "exif_35mm"))
    if lens.focal_mm and lens.plane_width_mm:
        found.append((lens.focal_mm / lens.plane_width_mm * max(width, height), "exif"))
    if lens.focal_mm and PHONE_FOCAL_MM[0] <= lens.focal_mm <= PHONE_FOCAL_MM[1]:
        found.append((PHONE_EQUIVALENT_MM / FULL_FRAME_DIAGONAL * diagonal, "exif"))
    return found


def _aspect(width: int, height: int) -> float:
    return max(width, height) / max(1, min(width, height))


def _plane_width(detail: Any, size: tuple[int, int] | None) -> float | None:
    """Width [mm] of the sensor's long side, from its resolution and the photo's full size."""
    resolution, unit = _number(detail.get(0xA20E)), UNIT_MM.get(detail.get(0xA210, 2))
    return max(size) / resolution * unit if size and resolution and unit else None


def _number(value: Any) -> float | None:
    """A positive finite number, or None."""
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return number if math.isfinite(number) and number > 0 else None


def _text(value: Any) -> str:
    return value.replace("\0", "").strip() if isinstance(value, str) else ""
