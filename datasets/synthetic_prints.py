# SPDX-License-Identifier: Apache-2.0
"""Printed matter of the known-truth scene: cartons, can labels, book covers, posters, mug decoration, the marker.

Drawn with Pillow at twice the texel density and reduced by area, so that print has clean, band-limited edges. Colours
are sRGB in 0..1; every function returns float32 [h, w, 3] for a patch of `size` (width, height) [m] at `texel` [m].
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from PIL import Image as Pictures
from PIL import ImageDraw, ImageFont

from real2sim.datasets.synthetic_textures import Image, Size, grid, hsv, mottle, noise, plain, texels, tinted

FINER = 2  # drawing pixels per texel
BRANDS = ("NORDA", "Casa Verde", "Mill & Oak", "SOLE", "Atlas", "Blue Heron", "Tamarin", "KOLO", "Fjell", "Marisol")
GOODS = ("rolled oats", "green tea", "plum tomatoes", "dark roast", "sea salt", "wild rice", "cocoa", "chick peas")
TITLES = ("THE LONG SHORE", "Fields of Glass", "A Short Atlas", "Night Trains", "ON BALANCE", "SALT", "Low Tide")
AUTHORS = ("M. Okafor", "Ines Valdez", "T. Lindqvist", "R. Banerjee", "Ana Kowalska", "J. Moreau")
SPINES = (0.0, 0.03, 0.08, 0.10, 0.13, 0.30, 0.55, 0.60, 0.62)  # hues of cloth and leather
PROSE = ("slowly", "roasted", "small batches", "since", "nineteen", "keep cool", "and dry", "before", "see base", "net")


class Sheet:
    """A drawing whose coordinates are metres on the patch, y down."""

    def __init__(self, size: Size, texel: float, ground: Image):
        h, w = texels(size, texel)
        self.size, self._shape = size, (h, w)
        self._scale = FINER * w / size[0], FINER * h / size[1]
        pixels = np.broadcast_to(np.asarray(ground, np.float32), (h, w, 3))
        fine = cv2.resize(pixels, (FINER * w, FINER * h), interpolation=cv2.INTER_LINEAR)
        self._image = Pictures.fromarray((np.clip(fine, 0, 1) * 255).round().astype(np.uint8))
        self._draw = ImageDraw.Draw(self._image)

    def _at(self, points: ArrayLike) -> list[tuple[float, float]]:
        return [(x * self._scale[0], y * self._scale[1]) for x, y in np.asarray(points, float)]

    def polygon(self, points: ArrayLike, colour: Image) -> None:
        self._draw.polygon(self._at(points), fill=_bytes(colour))

    def rectangle(self, x: float, y: float, width: float, height: float, colour: Image) -> None:
        self.polygon([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], colour)

    def disc(self, x: float, y: float, radius: float, colour: Image, ry: float | None = None) -> None:
        (x0, y0), (x1, y1) = self._at([(x - radius, y - (ry or radius)), (x + radius, y + (ry or radius))])
        self._draw.ellipse([x0, y0, x1, y1], fill=_bytes(colour))

    def text(self, x: float, y: float, height: float, words: str, colour: Image, fit: float | None = None) -> None:
        """Words centred at (x, y), `height` [m] tall, made smaller where they are wider than `fit` [m]."""
        pixels = max(4.0, height * self._scale[1])
        font = ImageFont.load_default(pixels)
        if fit is not None and font.getlength(words) > fit * self._scale[0]:
            font = ImageFont.load_default(max(4.0, pixels * fit * self._scale[0] / font.getlength(words)))
        self._draw.text(self._at([(x, y)])[0], words, fill=_bytes(colour), font=font, anchor="mm")

    def finish(self) -> Image:
        h, w = self._shape
        fine = np.asarray(self._image, np.float32) / 255
        return np.asarray(cv2.resize(fine, (w, h), interpolation=cv2.INTER_AREA), np.float32)


def _bytes(colour: Image) -> tuple[int, int, int]:
    r, g, b = (round(float(c) * 255) for c in np.clip(colour, 0, 1))
    return r, g, b


def _paragraph(rng: Generator, sheet: Sheet, x: float, y: float, width: float, lines: int, ink: Image) -> None:
    """Small print, 4.5 mm a line."""
    for line in range(lines):
        words = " ".join(rng.choice(PROSE, 6))
        sheet.text(x, y + 0.0055 * line, 0.0045, words, ink, width)


def _bars(rng: Generator, sheet: Sheet, x: float, y: float, width: float, height: float) -> None:
    sheet.rectangle(x, y, width, height, hsv(0, 0, 0.95))
    at = x + 0.08 * width
    while at < x + 0.9 * width:
        bar = rng.choice([0.0012, 0.002, 0.003])
        sheet.rectangle(at, y + 0.1 * height, bar, 0.8 * height, hsv(0, 0, 0.1))
        at += bar + rng.choice([0.0012, 0.002, 0.003])


def _emblem(rng: Generator, sheet: Sheet, x: float, y: float, radius: float, hue: float) -> None:
    """A badge: discs in discs, petals round them."""
    petals = int(rng.integers(5, 10))
    for k in range(petals):
        a = 2 * np.pi * k / petals
        sheet.disc(x + 0.72 * radius * np.cos(a), y + 0.72 * radius * np.sin(a), 0.3 * radius, hsv(hue, 0.6, 0.75))
    sheet.disc(x, y, 0.72 * radius, hsv(hue + 0.08, 0.25, 0.92))
    sheet.disc(x, y, 0.55 * radius, hsv(hue + 0.45, 0.55, 0.45))
    a = rng.uniform(0, 2 * np.pi)
    corners = [(x + 0.45 * radius * np.cos(a + t), y + 0.45 * radius * np.sin(a + t)) for t in (0, 2.1, 4.2)]
    sheet.polygon(corners, hsv(hue + 0.1, 0.5, 0.9))


def carton(rng: Generator, size: Size, texel: float, hue: float, words: tuple[str, str]) -> Image:
    """The front of a carton: brand, what is in it, an emblem, small print."""
    w, h = size
    sheet = Sheet(size, texel, plain(rng, size, texel, hsv(hue, 0.62, 0.62)))
    cream, dark = hsv(0.12, 0.12, 0.94), hsv(hue, 0.7, 0.22)
    sheet.polygon([(0, 0.42 * h), (w, 0.30 * h), (w, 0.80 * h), (0, 0.88 * h)], cream)
    sheet.polygon([(0, 0.88 * h), (w, 0.80 * h), (w, 0.83 * h), (0, 0.91 * h)], hsv(hue + 0.5, 0.6, 0.6))
    sheet.text(w / 2, 0.14 * h, 0.17 * h, words[0], cream, 0.86 * w)
    sheet.text(w / 2, 0.26 * h, 0.07 * h, words[1], hsv(hue + 0.5, 0.3, 0.95), 0.8 * w)
    _emblem(rng, sheet, 0.36 * w, 0.60 * h, 0.26 * min(w, h), hue + rng.uniform(0.3, 0.6))
    _paragraph(rng, sheet, 0.78 * w, 0.55 * h, 0.34 * w, 4, dark)
    sheet.text(0.78 * w, 0.73 * h, 0.05 * h, f"{rng.integers(2, 10)}50 g", dark, 0.3 * w)
    return tinted(sheet.finish(), 0.03 * mottle(rng, size, texel, (0.012, 0.005)))


def carton_side(rng: Generator, size: Size, texel: float, hue: float, words: tuple[str, str]) -> Image:
    """A narrow side: table of contents, bar code, small print."""
    w, h = size
    sheet = Sheet(size, texel, plain(rng, size, texel, hsv(hue, 0.55, 0.55)))
    cream, dark = hsv(0.12, 0.1, 0.92), hsv(hue, 0.7, 0.2)
    sheet.text(w / 2, 0.09 * h, 0.09 * h, words[0], cream, 0.85 * w)
    sheet.rectangle(0.1 * w, 0.18 * h, 0.8 * w, 0.38 * h, cream)
    rows = max(3, int(0.36 * h / 0.010))
    for k in range(rows):
        y = (0.18 + 0.38 * (k + 0.5) / rows) * h
        sheet.text(0.36 * w, y, 0.0065, str(rng.choice(PROSE)), dark, 0.45 * w)
        sheet.text(0.74 * w, y, 0.0065, f"{rng.uniform(0, 40):.1f}", dark, 0.25 * w)
        sheet.rectangle(0.12 * w, y + 0.19 * h / rows, 0.76 * w, 0.0008, dark)
    _bars(rng, sheet, 0.14 * w, 0.64 * h, 0.72 * w, min(0.03, 0.16 * h))
    _paragraph(rng, sheet, w / 2, 0.86 * h, 0.8 * w, 2, cream)
    return tinted(sheet.finish(), 0.03 * mottle(rng, size, texel, (0.012, 0.005)))


def can_label(rng: Generator, size: Size, texel: float, hue: float, words: tuple[str, str]) -> Image:
    """A label that goes round a can: two fronts, a bar code and small print between them, bare metal at the rims."""
    w, h = size
    sheet = Sheet(size, texel, plain(rng, size, texel, hsv(hue, 0.68, 0.58)))
    cream, dark = hsv(0.12, 0.14, 0.95), hsv(hue + 0.02, 0.75, 0.2)
    for k in range(24):
        x, y = w * (k + 0.5) / 24, 0.16 * h
        sheet.polygon(
            [(x, y - 0.03 * h), (x + w / 60, y), (x, y + 0.03 * h), (x - w / 60, y)], hsv(hue + 0.12, 0.5, 0.85)
        )
    sheet.rectangle(0, 0.80 * h, w, 0.10 * h, hsv(hue + 0.48, 0.55, 0.42))
    for x in (0.25 * w, 0.75 * w):
        sheet.disc(x, 0.48 * h, 0.20 * w, cream, 0.25 * h)
        sheet.disc(x, 0.48 * h, 0.185 * w, hsv(hue + 0.1, 0.3, 0.86), 0.225 * h)
        sheet.text(x, 0.41 * h, 0.17 * h, words[0], dark, 0.32 * w)
        sheet.text(x, 0.56 * h, 0.085 * h, words[1], dark, 0.28 * w)
        _emblem(rng, sheet, x, 0.80 * h, 0.09 * h, hue + 0.3)
    _bars(rng, sheet, 0.44 * w, 0.26 * h, 0.12 * w, 0.2 * h)
    _paragraph(rng, sheet, 0.5 * w, 0.54 * h, 0.14 * w, 4, cream)
    _paragraph(rng, sheet, 0.985 * w, 0.3 * h, 0.2 * w, 8, cream)
    metal = hsv(0.6, 0.04, 0.74)
    sheet.rectangle(0, 0, w, 0.045 * h, metal)
    sheet.rectangle(0, 0.955 * h, w, 0.045 * h, metal)
    return tinted(sheet.finish(), 0.03 * mottle(rng, size, texel, (0.012, 0.005)))


def can_lid(rng: Generator, size: Size, texel: float) -> Image:
    """Brushed metal with rings; v runs along the radius."""
    x, y = grid(size, texel)
    at = y / size[1]
    rings = 0.35 * np.exp(-(((at - 0.93) / 0.025) ** 2)) + 0.2 * np.exp(-(((at - 0.7) / 0.02) ** 2))
    rings = rings + 0.12 * np.exp(-(((at - 0.45) / 0.03) ** 2))
    sheen = 0.10 * np.cos(4 * np.pi * x / size[0]) * (at > 0.1)
    return tinted(
        hsv(0.6, 0.04, 0.68), (sheen - rings + 0.03 * mottle(rng, size, texel, (0.02, 0.006))).astype(np.float32)
    )


def mug_side(rng: Generator, size: Size, texel: float, hue: float) -> Image:
    """Glazed pottery: two tones that meet in a wavy line, leaves, dots, speckles in the glaze."""
    w, h = size
    x, y = grid(size, texel)
    edge = 0.40 * h + 0.03 * h * np.sin(2 * np.pi * 5 * x / w) + 0.02 * h * np.sin(2 * np.pi * 11 * x / w + 1)
    upper, lower = hsv(hue, 0.5, 0.55), hsv(0.11, 0.16, 0.88)
    ground = np.where((y < edge)[..., None], upper, lower)
    sheet = Sheet(size, texel, ground.astype(np.float32))
    for k in range(9):
        cx, cy, turn = w * (k + 0.5) / 9, 0.68 * h, rng.uniform(-0.5, 0.5)
        _leaf(sheet, cx, cy, 0.19 * h, turn, hsv(hue + 0.05, 0.6, 0.38))
        _leaf(sheet, cx + 0.035 * w, cy + 0.05 * h, 0.11 * h, turn + 1.1, hsv(hue + 0.4, 0.55, 0.6))
        sheet.disc(cx - 0.03 * w, cy - 0.12 * h, 0.028 * h, hsv(hue + 0.5, 0.6, 0.7))
    for k in range(18):
        sheet.disc(w * (k + 0.5) / 18, 0.2 * h, 0.022 * h, hsv(0.11, 0.14, 0.9))
    speckles = np.clip(mottle(rng, size, texel, (0.006, 0.004)) - 1.3, 0, 1)
    return tinted(sheet.finish(), 0.03 * mottle(rng, size, texel, (0.02, 0.008)) - 0.35 * speckles)


def _leaf(sheet: Sheet, x: float, y: float, length: float, turn: float, colour: Image) -> None:
    t = np.linspace(0, np.pi, 12)
    along, across = np.cos(t) * length / 2, np.sin(t) * length / 6
    shape = np.concatenate([np.stack([across, along], -1), np.stack([-across, along], -1)[::-1]])
    c, s = np.cos(turn), np.sin(turn)
    sheet.polygon(shape @ np.array([[c, s], [-s, c]]) + [x, y], colour)


def book_cover(rng: Generator, size: Size, texel: float, hue: float, words: tuple[str, str]) -> Image:
    """A cover for a patch whose u runs along the spine: title, author, hills under a sun."""
    w, h = size
    sheet = Sheet(size, texel, plain(rng, size, texel, hsv(hue, 0.4, 0.72)))
    sheet.disc(rng.uniform(0.6, 0.8) * w, 0.45 * h, 0.17 * h, hsv(hue + 0.45, 0.5, 0.92))
    x = np.linspace(0, w, 60)
    for k in range(4):
        level = (0.52 + 0.12 * k) * h
        ridge = level + 0.05 * h * np.sin(x / w * rng.uniform(5, 14) + rng.uniform(0, 6))
        ridge += 0.02 * h * np.sin(x / w * rng.uniform(20, 40) + rng.uniform(0, 6))
        points = [*zip(x, ridge), (w, h), (0, h)]
        sheet.polygon(points, hsv(hue + 0.04 * k, 0.55, 0.62 - 0.13 * k))
    sheet.text(0.42 * w, 0.20 * h, 0.16 * h, words[0], hsv(0.12, 0.1, 0.96), 0.7 * w)
    sheet.text(0.42 * w, 0.36 * h, 0.08 * h, words[1], hsv(hue + 0.45, 0.25, 0.95), 0.5 * w)
    sheet.text(0.8 * w, 0.92 * h, 0.05 * h, "second edition", hsv(0.12, 0.1, 0.9), 0.3 * w)
    return tinted(sheet.finish(), 0.05 * mottle(rng, size, texel, (0.03, 0.01, 0.005)))


def book_spine(rng: Generator, size: Size, texel: float, hue: float, words: tuple[str, str]) -> Image:
    w, h = size
    sheet = Sheet(size, texel, plain(rng, size, texel, hsv(hue + 0.03, 0.5, 0.5)))
    for x in (0.06, 0.09, 0.91, 0.94):
        sheet.rectangle(x * w, 0, 0.008 * w, h, hsv(hue + 0.45, 0.4, 0.9))
    sheet.text(0.42 * w, h / 2, 0.55 * h, words[0], hsv(0.12, 0.1, 0.95), 0.5 * w)
    sheet.text(0.8 * w, h / 2, 0.4 * h, words[1], hsv(hue + 0.45, 0.25, 0.92), 0.18 * w)
    return sheet.finish()


def book_pages(rng: Generator, size: Size, texel: float, hue: float) -> Image:
    """Edges of pages between the two boards of a cover."""
    _, y = grid(size, texel)
    leaves = 0.07 * noise(rng, size, texel, (0.06, 0.0025)) + 0.04 * noise(rng, size, texel, (0.015, 0.004))
    pages = tinted(hsv(0.11, 0.2, 0.85), leaves)
    pages[np.minimum(y, size[1] - y) < 0.0028] = hsv(hue, 0.5, 0.45)
    return pages


def poster(rng: Generator, size: Size, texel: float) -> Image:
    """A framed print: big soft shapes, a title; its detail is of several centimetres, for it hangs far away."""
    w, h = size
    hue = rng.uniform()
    sheet = Sheet(size, texel, tinted(hsv(hue, 0.18, 0.86), 0.05 * mottle(rng, size, texel, (0.2, 0.07))))
    for _ in range(int(rng.integers(7, 12))):
        colour = hsv(hue + rng.choice([0.0, 0.08, 0.45, 0.55]), rng.uniform(0.3, 0.65), rng.uniform(0.3, 0.85))
        x, y, r = rng.uniform(0.1, 0.9) * w, rng.uniform(0.1, 0.75) * h, rng.uniform(0.06, 0.2) * min(w, h)
        if rng.uniform() < 0.5:
            sheet.disc(x, y, r, colour)
        else:
            a = rng.uniform(0, 2 * np.pi) + np.sort(rng.uniform(0, 2 * np.pi, 4))
            sheet.polygon(np.stack([x + 1.4 * r * np.cos(a), y + 1.4 * r * np.sin(a)], -1), colour)
    for x, y in rng.uniform((0.08 * w, 0.08 * h), (0.92 * w, 0.8 * h), (40, 2)):
        sheet.disc(x, y, rng.uniform(0.008, 0.018), hsv(hue + rng.choice([0.1, 0.5]), 0.5, rng.uniform(0.2, 0.95)))
    sheet.text(w / 2, 0.9 * h, 0.09 * h, str(rng.choice(BRANDS)), hsv(hue, 0.5, 0.2), 0.7 * w)
    frame, edge = 0.03, hsv(0.08, 0.4, rng.uniform(0.15, 0.5))
    for x, y, wide, tall in ((0, 0, w, frame), (0, h - frame, w, frame), (0, 0, frame, h), (w - frame, 0, frame, h)):
        sheet.rectangle(x, y, wide, tall, edge)
    return sheet.finish()


def bookshelf(rng: Generator, size: Size, texel: float) -> Image:
    """The front of a bookcase: boards, and rows of spines of different height and colour."""
    w, h = size
    board = 0.03
    sheet = Sheet(size, texel, np.asarray(hsv(0.08, 0.4, 0.16)))
    wooden = hsv(0.09, 0.45, 0.5)
    shelves = max(1, round(h / 0.36))
    pitch = (h - board) / shelves
    for k in range(shelves):
        bottom, x = (k + 1) * pitch, board
        while x < w - board - 0.03:
            if rng.uniform() < 0.06:
                x += rng.uniform(0.04, 0.14)
                continue
            wide = min(rng.uniform(0.025, 0.06), w - board - x)
            tall = rng.uniform(0.6, 0.9) * (pitch - board)
            hue, value = rng.choice(SPINES) + rng.normal(0, 0.015), rng.uniform(0.2, 0.75)
            sheet.rectangle(x, bottom - tall, wide, tall, hsv(hue, rng.uniform(0.1, 0.5), value))
            sheet.rectangle(x, bottom - 0.85 * tall, wide, 0.1 * tall, hsv(hue + 0.5, 0.3, 0.85 - 0.5 * value))
            sheet.rectangle(
                x + 0.3 * wide, bottom - 0.65 * tall, 0.4 * wide, 0.4 * tall, hsv(hue, 0.2, 1.0 - 0.6 * value)
            )
            sheet.rectangle(x + wide - 0.003, bottom - tall, 0.003, tall, hsv(hue, 0.5, 0.12))
            x += wide
    for k in range(shelves + 1):
        sheet.rectangle(0, k * pitch, w, board, wooden)
    for x in (0.0, w - board):
        sheet.rectangle(x, 0, board, h, wooden)
    return tinted(sheet.finish(), 0.05 * mottle(rng, size, texel, (0.08, 0.03)))


def marker(dictionary: str, number: int) -> Image:
    """An ArUco marker on a white sheet with a quiet zone one cell wide; every cell is 24 texels, so edges are exact."""
    book = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, dictionary))
    bits = cv2.aruco.generateImageMarker(book, number, book.markerSize + 2)
    cells = np.pad(bits, 1, constant_values=255).repeat(24, 0).repeat(24, 1)
    return np.where(cells[..., None] == 0, hsv(0.6, 0.05, 0.10), hsv(0.12, 0.02, 0.93)).astype(np.float32)


def print_words(rng: Generator, first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, str]:
    return str(rng.choice(first)), str(rng.choice(second))
