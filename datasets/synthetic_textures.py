# SPDX-License-Identifier: Apache-2.0
"""Procedural textures of the known-truth scene: materials (wood, plaster, cloth) and noise.

Every function returns sRGB values in 0..1, float32 [h, w, 3], for a patch of `size` (width, height) [m] at `texel` [m].
Detail is band-limited: its wavelengths are metres of surface, chosen so that a camera 1 m away sees 2 to 10 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

Image = NDArray[np.float32]
Size = tuple[float, float]


def texels(size: Size, texel: float) -> tuple[int, int]:
    """(rows, columns) of a patch's texture."""
    return max(4, round(size[1] / texel)), max(4, round(size[0] / texel))


def linear(srgb: ArrayLike) -> Image:
    """Linear light of sRGB values in 0..1 (IEC 61966-2-1)."""
    v = np.clip(np.asarray(srgb, np.float32), 0, 1)
    return np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4).astype(np.float32)


def hsv(hue: float, saturation: float, value: float) -> Image:
    """sRGB colour [3] of hue, saturation, value in 0..1."""
    k = (np.array([5.0, 3.0, 1.0]) + (hue % 1.0) * 6) % 6
    return (value - value * saturation * np.clip(np.minimum(k, 4 - k), 0, 1)).astype(np.float32)


def noise(rng: Generator, size: Size, texel: float, wavelength: tuple[float, float]) -> Image:
    """Smooth noise [h, w] of unit variance (about) whose grid has `wavelength` (along u, along v) [m]."""
    h, w = texels(size, texel)
    step = [max(1, round(length / texel)) for length in wavelength]
    cells = (h // step[1] + 4, w // step[0] + 4)
    grid = rng.normal(size=cells).astype(np.float32)
    full = cv2.resize(grid, (cells[1] * step[0], cells[0] * step[1]), interpolation=cv2.INTER_CUBIC)
    return full[step[1] : step[1] + h, step[0] : step[0] + w] * 1.25


def mottle(rng: Generator, size: Size, texel: float, octaves: Sequence[float], falloff: float = 0.8) -> Image:
    """Isotropic noise [h, w] over several wavelengths [m], longest first, each weaker by `falloff`; unit variance."""
    weights = falloff ** np.arange(len(octaves))
    total = sum(k * noise(rng, size, texel, (length, length)) for k, length in zip(weights, octaves))
    return np.asarray(total / np.sqrt((weights**2).sum()), np.float32)


def grid(size: Size, texel: float) -> tuple[Image, Image]:
    """Surface coordinates (x to the right, y down) [m] of texel centres, [h, w] each."""
    h, w = texels(size, texel)
    x = (np.arange(w, dtype=np.float32) + 0.5) * np.float32(size[0] / w)
    y = (np.arange(h, dtype=np.float32) + 0.5) * np.float32(size[1] / h)
    return tuple(np.meshgrid(x, y))  # type: ignore[return-value]


def tinted(colour: ArrayLike, brightness: Image) -> Image:
    """A colour [3] (or image) times 1 + brightness [h, w]."""
    return np.clip(np.asarray(colour, np.float32) * (1 + brightness[..., None]), 0, 1).astype(np.float32)


def plain(rng: Generator, size: Size, texel: float, colour: ArrayLike, contrast: float = 0.035) -> Image:
    """Painted or printed surface: one colour with a little mottle of 4 to 25 mm."""
    return tinted(colour, contrast * mottle(rng, size, texel, (0.025, 0.01, 0.004)))


def plaster(rng: Generator, size: Size, texel: float, colour: ArrayLike) -> Image:
    """A rolled and somewhat worn wall: clouds, roller marks, small dents."""
    clouds = mottle(rng, size, texel, (0.5, 0.2, 0.08, 0.035), 0.8)
    dents = np.clip(mottle(rng, size, texel, (0.06, 0.03)) - 1.45, 0, 0.8)
    return tinted(colour, 0.04 * clouds - 0.10 * dents)


def wood(rng: Generator, size: Size, texel: float, colour: ArrayLike, plank: float = 0.13) -> Image:
    """Oiled planks along u, `plank` [m] wide: growth rings, pores, knots, a dark joint between planks."""
    x, y = grid(size, texel)
    across = y + 0.006 * noise(rng, size, texel, (0.22, 0.05))
    board = np.floor(y / plank).astype(int)
    shade = rng.normal(0, 0.07, board.max() + 1)[board]
    shift = rng.uniform(0, 1, board.max() + 1)[board]
    knots = _knots(rng, size, x, y)
    rings = np.sin(2 * np.pi * (across / 0.021 + 6 * shift + 0.9 * noise(rng, size, texel, (0.3, 0.03)) + 2.2 * knots))
    streaks = noise(rng, size, texel, (0.12, 0.008))
    pores = np.clip(noise(rng, size, texel, (0.035, 0.006)) - 1.2, 0, 1.0)
    flecks = np.clip(noise(rng, size, texel, (0.023, 0.0085)) - 1.2, 0, 0.9)
    joint = np.exp(-(((y / plank - np.round(y / plank)) * plank / 0.0024) ** 2))
    joint[np.minimum(y, size[1] - y) < plank / 3] = 0
    brightness = shade + 0.045 * rings + 0.025 * streaks - 0.10 * pores - 0.21 * flecks - 0.4 * knots - 0.45 * joint
    warmth = np.array([1, 0.8, 0.5], np.float32) ** np.minimum(brightness, 0.3)[..., None]  # dark wood is redder
    return np.clip(tinted(colour, brightness.astype(np.float32)) / warmth, 0, 1).astype(np.float32)


def _knots(rng: Generator, size: Size, x: Image, y: Image) -> Image:
    """0..1 [h, w]: thirty-five dark spots a square metre, most of them small, longer along the grain."""
    out = np.zeros_like(x)
    for _ in range(rng.poisson(35 * size[0] * size[1])):
        radius = 0.0025 + 0.006 * rng.uniform() ** 2
        cx, cy, long = rng.uniform(0, size[0]), rng.uniform(0, size[1]), rng.uniform(1.3, 2.4)
        columns = slice(*np.searchsorted(x[0], [cx - 3 * long * radius, cx + 3 * long * radius]))
        rows = slice(*np.searchsorted(y[:, 0], [cy - 3 * radius, cy + 3 * radius]))
        dx, dy = (x[rows, columns] - cx) / (long * radius), (y[rows, columns] - cy) / radius
        out[rows, columns] = np.maximum(out[rows, columns], np.exp(-(dx**2 + dy**2)))
    return out


def rug(rng: Generator, size: Size, texel: float, hue: float) -> Image:
    """A woven rug: border bands, rows of diamonds, yarn."""
    x, y = grid(size, texel)
    edge = np.minimum(np.minimum(x, size[0] - x), np.minimum(y, size[1] - y))
    cell = 0.22
    diamond = np.abs(x / cell % 1 - 0.5) + np.abs(y / cell % 1 - 0.5)
    colours = np.stack(
        [hsv(hue, 0.3, 0.42), hsv(hue + 0.07, 0.2, 0.66), hsv(hue + 0.5, 0.2, 0.32), hsv(0.1, 0.12, 0.72)]
    )
    index = np.where(diamond < 0.18, 1, np.where(diamond < 0.33, 2, 0))
    index = np.where(edge < 0.16, np.where(np.abs(edge - 0.09) < 0.03, 3, 2), index)
    return tinted(colours[index], 0.12 * mottle(rng, size, texel, (0.1, 0.03, 0.014)))


def ball_skin(rng: Generator, points: NDArray[np.float64], radius: float, hue: float) -> Image:
    """A printed play ball: panels that meet at its axis, spots, mottle. points [h, w, 3]: on the sphere, about its
    centre [m]; the pattern is made in space, so that it neither stretches nor has a seam."""
    p = points / radius
    panels = 6
    angle = (np.arctan2(p[..., 1], p[..., 0]) / (2 * np.pi) % 1.0) * panels
    colours = np.stack(
        [hsv(hue + k / 3 + 0.02 * (k % 2), 0.62, 0.78) if k % 2 else hsv(0.12, 0.08, 0.88) for k in range(panels)]
    )
    skin = colours[np.floor(angle).astype(int) % panels]
    skin[np.abs(p[..., 2]) > 0.94] = hsv(hue + 0.5, 0.5, 0.35)
    for _ in range(90):
        centre = rng.normal(size=3)
        centre /= np.linalg.norm(centre)
        skin[p @ centre > np.cos(rng.uniform(0.05, 0.11))] = hsv(rng.uniform(), 0.55, rng.uniform(0.25, 0.8))
    return tinted(skin, 0.06 * _noise3(rng, points, (0.02, 0.008, 0.004)))


def _noise3(rng: Generator, points: NDArray[np.float64], octaves: Sequence[float]) -> Image:
    """Smooth noise [h, w] at points in space [h, w, 3], of unit variance (about)."""
    from scipy.ndimage import map_coordinates

    total = np.zeros(points.shape[:2])
    for length in octaves:
        lattice = rng.normal(size=(24, 24, 24))
        at = np.moveaxis(points / length, -1, 0)
        total += map_coordinates(lattice, at, order=2, mode="grid-wrap")
    return np.asarray(total / np.sqrt(len(octaves)) * 1.4, np.float32)
