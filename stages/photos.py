# SPDX-License-Identifier: Apache-2.0
"""Photos: decode, turn upright once, drop metadata, measure. One that cannot be used raises Rejected with a reason."""

from __future__ import annotations

import hashlib
import io
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from real2sim.stages.capture_layout import can_read_heif
from real2sim.stages.exif import Lens, read_exif
from real2sim.stages.jpeg import strip_metadata

MEASURE_LONG_SIDE = 1024  # px; sharpness is measured at this size, so that captures of different cameras compare
THUMBNAIL_SIZE = (64, 48)  # px; enough to tell a second shot of the same view from a new view
JPEG_QUALITY = 97
JPEG_START, TIFF_STARTS = b"\xff\xd8", (b"II*\0", b"MM\0*")
MAX_PIXELS = 200_000_000
BLANK_CONTRAST = 2.0  # grey levels, standard deviation; a lens cap has about 1
OPAQUE = 128
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, struct.error)


if can_read_heif():
    import pi_heif

    pi_heif.register_heif_opener()


class Rejected(Exception):
    """One image cannot be used; the message completes "rejected, because …"."""


@dataclass(frozen=True)
class Photo:
    """One upright photo.

    pixels: sRGB [H, W, 3] uint8; coded: the file to keep, and its suffix; stored_size: (width, height) before turning;
    transparent: [H, W] bool where an alpha channel says "nothing here", or None.
    """

    pixels: NDArray[np.uint8]
    coded: bytes
    suffix: str
    stored_size: tuple[int, int]
    orientation: int
    lens: Lens
    transparent: NDArray[np.bool_] | None


@dataclass(frozen=True)
class Measures:
    """sharpness: variance of the Laplacian [levels²]; exposure: mean grey in [0, 1]; thumbnail [48, 64] float32."""

    sharpness: float
    exposure: float
    contrast: float
    thumbnail: NDArray[np.float32]
    digest: str


def read_photo(path: Path, min_side: int) -> Photo:
    """Decode a photo of any supported kind; raises Rejected."""
    data = _bytes(path)
    array, exif_bytes, lossless_jpeg = _decode(data)
    if min(array.shape[:2]) < min_side:
        raise Rejected(f"it is {array.shape[1]}x{array.shape[0]} px; the shorter side must be at least {min_side} px")
    orientation, lens = read_exif(exif_bytes)
    rgb, transparent = _to_rgb(upright(array, orientation))
    coded = _coded(data, rgb, keep=lossless_jpeg and orientation == 1)
    suffix = ".jpg" if coded[:2] == JPEG_START else ".png"
    return Photo(rgb, coded, suffix, (array.shape[1], array.shape[0]), orientation, lens, transparent)


def upright(array: NDArray, orientation: int) -> NDArray:
    """Turn stored pixels [H, W, ...] upright, as the EXIF orientation 1..8 says (EXIF 2.3, table 4.6.4)."""
    turned = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
        8: lambda a: np.rot90(a, 1),
    }[orientation](array)
    return np.ascontiguousarray(turned)


def measure(rgb: NDArray[np.uint8]) -> Measures:
    """Sharpness, exposure, contrast, thumbnail and content digest of upright pixels [H, W, 3]."""
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    scale = MEASURE_LONG_SIDE / max(grey.shape)
    small = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else grey
    digest = hashlib.sha256(repr(rgb.shape).encode() + rgb.tobytes()).hexdigest()
    return Measures(
        sharpness=float(cv2.Laplacian(small, cv2.CV_64F).var()),
        exposure=float(grey.mean()) / 255,
        contrast=float(grey.std()),
        thumbnail=cv2.resize(grey, THUMBNAIL_SIZE, interpolation=cv2.INTER_AREA).astype(np.float32),
        digest=digest,
    )


def encode_jpeg(rgb: NDArray[np.uint8]) -> bytes:
    """JPEG without chroma subsampling and without metadata."""
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


def encode_png(array: NDArray) -> bytes:
    """PNG of [H, W] uint8 or uint16, or [H, W, 3] uint8."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


def _coded(data: bytes, rgb: NDArray[np.uint8], keep: bool) -> bytes:
    """The file to keep: the same coded pixels where asked; else coded again, JPEG as JPEG and the rest as PNG."""
    if keep:
        try:
            return strip_metadata(data)
        except ValueError:  # Pillow reads files with junk between segments; their pixels are coded again
            return encode_jpeg(rgb)
    return encode_jpeg(rgb) if data[:2] == JPEG_START else encode_png(rgb)


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Rejected(f"it cannot be read ({error.strerror or error})") from error
    if not data:
        raise Rejected("the file is empty (0 bytes); copy it again from the camera")
    return data


def _decode(data: bytes) -> tuple[NDArray, bytes, bool]:
    """Stored pixels as an array, the EXIF block, and whether it is a plain RGB JPEG whose coded pixels can be kept."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise Rejected(
                        f"it has {image.width}x{image.height} px; the limit is {MAX_PIXELS // 10**6} megapixels"
                    )
                exif = image.info.get("exif") or image.getexif().tobytes()
                plain_jpeg = image.format in ("JPEG", "MPO") and image.mode == "RGB"
                if image.mode in ("RGB", "RGBA", "L", "LA"):
                    return np.asarray(image), exif, plain_jpeg
                if image.mode.startswith("I") or image.mode == "F":
                    return _with_opencv(data), exif, False
                wanted = "RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB"
                return np.asarray(image.convert(wanted)), exif, False
    except UnidentifiedImageError as error:
        if data[:4] in TIFF_STARTS:  # Pillow reads TIFFs of one 16-bit channel only
            return _with_opencv(data), b"", False
        raise Rejected("it is not a readable image; JPEG, PNG and TIFF are read") from error
    except Image.DecompressionBombError as error:
        raise Rejected(f"it is too large to decode safely ({error})") from error
    except _DAMAGE as error:
        raise Rejected(f"it cannot be decoded ({error}); the file is damaged or was not copied to its end") from error


def _with_opencv(data: bytes) -> NDArray:
    """Pixels of deep images (16 bits, float), in RGB order; raises Rejected where OpenCV cannot read them either."""
    try:
        array = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise Rejected("it cannot be decoded; its header promises what no picture holds") from error
    if array is None:
        raise Rejected("it cannot be decoded; the file is damaged or of a rare kind of TIFF")
    if array.ndim == 3:
        array = array[:, :, ([2, 1, 0, 3] if array.shape[2] == 4 else [2, 1, 0])]
    return array


def _to_rgb(array: NDArray) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None]:
    """8-bit RGB [H, W, 3], and where alpha says "nothing here", of grey or colour pixels of 8 or 16 bits or float."""
    eight = _to_8_bit(array)
    if eight.ndim == 2:
        return np.repeat(eight[:, :, None], 3, 2), None
    colour, alpha = (eight[:, :, :-1], eight[:, :, -1]) if eight.shape[2] in (2, 4) else (eight, None)
    rgb = np.repeat(colour, 3, 2) if colour.shape[2] == 1 else np.ascontiguousarray(colour)
    if alpha is None or alpha.min() >= OPAQUE:
        return rgb, None
    if alpha.max() < OPAQUE:
        raise Rejected("every pixel of it is transparent")
    return rgb, alpha < OPAQUE


def _to_8_bit(array: NDArray) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) * 255 // 65535).astype(np.uint8)
    if array.dtype.kind == "f" and np.isfinite(array).all():
        return np.round(np.clip(array, 0, 1) * 255).astype(np.uint8)
    raise Rejected(f"its pixels are {array.dtype}; 8-bit, 16-bit and finite float pixels in [0, 1] are read")


def readable(path: Path) -> bool:
    """Whether Pillow can show the image."""
    try:
        with Image.open(path) as image:
            image.load()
    except (*_DAMAGE, Image.DecompressionBombError):
        return False
    return True
