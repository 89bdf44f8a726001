# SPDX-License-Identifier: Apache-2.0
"""From radiance to a photo file: lens shading, exposure, sensor noise, sRGB, JPEG with EXIF, video."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image as Pictures
from PIL.TiffImagePlugin import IFDRational

from real2sim.errors import BackendError

Image = NDArray[np.float32]
READ_NOISE, SHOT_NOISE = 0.0012, 0.00012  # sigma at black; variance per linear value: a phone in a lit room
SENSOR_WIDTH_MM = 5.6
MAKE, MODEL = "real2sim", "known-truth camera"
ORIENTATIONS = {
    1: None,
    3: Pictures.Transpose.ROTATE_180,
    6: Pictures.Transpose.ROTATE_90,
    8: Pictures.Transpose.ROTATE_270,
}


def srgb(linear: Image) -> Image:
    """sRGB values in 0..1 of linear light (IEC 61966-2-1)."""
    v = np.clip(linear, 0, 1)
    return np.where(v <= 0.0031308, 12.92 * v, 1.055 * np.power(v, 1 / 2.4) - 0.055).astype(np.float32)


def shading(width: int, height: int, vignetting: float) -> Image:
    """Lens shading [H, W, 1]: 1 in the middle, 1 - vignetting in the corners."""
    x = (np.arange(width, dtype=np.float32) + 0.5) / width * 2 - 1
    y = (np.arange(height, dtype=np.float32) + 0.5) / height * 2 - 1
    r2 = (x[None] ** 2 * width**2 + y[:, None] ** 2 * height**2) / (width**2 + height**2)
    return (1 - vignetting * r2)[..., None].astype(np.float32)


def expose(radiance: Image, exposure: float, noise: float, rng: Generator) -> NDArray[np.uint8]:
    """An 8-bit sRGB photo of linear radiance [H, W, 3]; noise: 1 is a good phone, 0 none."""
    light = np.minimum(radiance * np.float32(exposure), 1.5)
    if noise > 0:
        sigma = noise * np.sqrt(READ_NOISE**2 + SHOT_NOISE * np.maximum(light, 0))
        light = light + sigma * rng.standard_normal(light.shape, np.float32)
    return (srgb(light) * 255).round().astype(np.uint8)


def exposure_curve(frames: int, drift: float, rng: Generator) -> NDArray[np.float64]:
    """Exposure factors [frames]: slow and smooth, within 1 +- drift."""
    t = np.linspace(0, 2 * np.pi, frames)
    a, b = rng.uniform(0, 2 * np.pi, 2)
    return 1 + drift * (0.65 * np.sin(1.3 * t + a) + 0.35 * np.sin(3.1 * t + b))


def save_photo(path: Path, pixels: NDArray[np.uint8], fx: float, number: int, orientation: int = 1) -> None:
    """Write a JPEG [H, W, 3] whose EXIF tells the lens and, where orientation is not 1, how to turn it upright."""
    picture = Pictures.fromarray(pixels)
    turn = ORIENTATIONS[orientation]
    stored = picture if turn is None else picture.transpose(turn)
    picture_diagonal = float(np.hypot(*picture.size))
    exif = Pictures.Exif()
    exif[0x010F], exif[0x0110], exif[0x0112] = MAKE, MODEL, orientation
    stamp = f"2024:05:04 10:{number // 60 % 60:02d}:{number % 60:02d}"
    exif[0x0132] = stamp
    details = exif.get_ifd(0x8769)
    details[0x9003] = stamp
    details[0x829A] = IFDRational(1, 60)
    details[0x8827] = 100
    details[0x920A] = IFDRational(round(1000 * fx / max(picture.size) * SENSOR_WIDTH_MM), 1000)
    details[0xA405] = round(fx * 43.267 / picture_diagonal)  # of the diagonal of 36 x 24 mm (CIPA DCG-001)
    details[0xA002], details[0xA003] = stored.size
    stored.save(path, "JPEG", quality=95, exif=exif)


def save_video(path: Path, frames: Iterable[NDArray[np.uint8]], width: int, height: int, fps: int) -> None:
    """Write an H.264 video; the same frames give the same bytes."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise BackendError(
            "A video needs imageio-ffmpeg: pip install 'real2sim[video]', or leave --video out."
        ) from error
    exact = ["-fflags", "+bitexact", "-flags:v", "+bitexact", "-threads", "1", "-crf", "16"]
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=fps, codec="libx264", macro_block_size=2, output_params=exact, quality=None
    )
    writer.send(None)
    for frame in frames:
        writer.send(np.ascontiguousarray(frame))
    writer.close()
