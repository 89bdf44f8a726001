# SPDX-License-Identifier: Apache-2.0
"""Pictures inside a page: thumbnails, comparisons and plots as data URIs and SVG."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from real2sim.sim.cameras import Camera
from real2sim.sim.transforms import rotation_between

Array = NDArray[np.float64]
MAP_WIDTH, MAP_HEIGHT = 460, 340


def data_uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def picture_uri(image: Image.Image, *, quality: int = 80) -> str:
    """An image as a JPEG data URI."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=quality, optimize=True)
    return data_uri(buffer.getvalue(), "jpeg")


def file_uri(path: Path, *, width: int = 480) -> str | None:
    """A picture file, no wider than `width`, as a data URI; None where there is none. Animations stay as they are."""
    if not path.is_file():
        return None
    if path.suffix == ".webp":
        return data_uri(path.read_bytes(), "webp")
    return picture_uri(thumbnail(path, width))


def thumbnail(path: Path, width: int) -> Image.Image:
    """An image file no wider than `width` [px], and no taller than 1.5 times that."""
    with Image.open(path) as image:
        image.draft("RGB", (2 * width, 2 * width))
        small = image.convert("RGB") if image.mode != "I;16" else image.convert("L")
    small.thumbnail((width, round(1.5 * width)), Image.Resampling.LANCZOS)
    return small


def difference(photo: Image.Image, rendering: Image.Image) -> Image.Image:
    """abs(photo - rendering), mean over channels, black to yellow: full at a quarter of the range."""
    a = np.asarray(photo.convert("RGB"), np.float64) / 255
    b = np.asarray(rendering.convert("RGB").resize(photo.size), np.float64) / 255
    share = np.clip(np.abs(a - b).mean(-1) * 4, 0, 1)[..., None]
    ramp = np.array([[0.05, 0.06, 0.12], [0.45, 0.12, 0.42], [0.93, 0.42, 0.25], [0.99, 0.93, 0.6]])
    position = share[..., 0] * (len(ramp) - 1)
    low = np.minimum(position.astype(int), len(ramp) - 2)
    rgb = ramp[low] + (ramp[low + 1] - ramp[low]) * (position - low)[..., None]
    return Image.fromarray((rgb * 255).astype(np.uint8))


def curve_svg(steps: list[float], values: list[float], unit: str, width: int = 460, height: int = 180) -> str:
    """A line through (step, value) as SVG, with its first, best and last value written on it."""
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    low, high = float(y.min()), float(y.max())
    span = max(high - low, 1e-9)
    px = 44 + (x - x[0]) / max(float(x[-1] - x[0]), 1e-9) * (width - 60)
    py = height - 30 - (y - low) / span * (height - 56)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(px, py))
    labels = [(low, height - 30), (high, 26)]
    grid = "".join(
        f'<line class="grid" x1="44" x2="{width - 16}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text class="tick" x="38" y="{at + 4:.1f}" text-anchor="end">{value:.1f}</text>'
        for value, at in labels
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{unit} over training">{grid}'
        f'<polyline class="curve" points="{points}"/>'
        f'<circle class="dot" cx="{px[-1]:.1f}" cy="{py[-1]:.1f}" r="4"/>'
        f'<text class="tick" x="44" y="{height - 8}">step 0</text>'
        f'<text class="tick" x="{width - 16}" y="{height - 8}" text-anchor="end">{x[-1]:.0f}</text>'
        f'<text class="end" x="{px[-1]:.1f}" y="{py[-1] - 10:.1f}" text-anchor="end">{y[-1]:.1f} {unit}</text></svg>'
    )


def camera_maps(cameras: list[Camera], points: Array, colours: Array, *, level: bool) -> list[dict[str, str]]:
    """The cameras and the sparse points from above and from the side, as SVG: [{"title", "svg"}].

    points [P, 3], colours [P, 3] in 0..255, in the cameras' frame. level: whether that frame's z is up; otherwise the
    mean upward direction of the cameras stands in for it.
    """
    turn = np.eye(3)
    if not level:
        turn = rotation_between(-np.mean([c.T_world_cam[:3, 1] for c in cameras], axis=0), [0, 0, 1])
    centres = np.stack([c.centre for c in cameras]) @ turn.T
    axes = np.stack([c.T_world_cam[:3, 2] for c in cameras]) @ turn.T
    cloud = points @ turn.T
    views = [
        ("From above", np.array([[1.0, 0, 0], [0, -1.0, 0]])),
        ("From the side", np.array([[1.0, 0, 0], [0, 0, -1.0]])),
    ]
    heldout = [c.heldout for c in cameras]
    return [
        {"title": title, "svg": _map_svg(centres @ P.T, axes @ P.T, heldout, cloud @ P.T, colours)}
        for title, P in views
    ]


def _map_svg(centres: Array, axes: Array, heldout: list[bool], cloud: Array, colours: Array) -> str:
    """One projection: points as a picture, cameras as dots with a line in the direction of view."""
    near = cloud
    if len(cloud):
        low, high = np.quantile(cloud, [0.03, 0.97], axis=0)
        near = cloud[((cloud >= low) & (cloud <= high)).all(1)]
    corners = np.concatenate([centres, near])
    low, high = corners.min(0), corners.max(0)
    scale = 0.88 * float(np.min([MAP_WIDTH, MAP_HEIGHT] / np.maximum(high - low, 1e-9)))
    offset = np.array([MAP_WIDTH, MAP_HEIGHT]) / 2 - scale * (low + high) / 2
    pixels = np.rint(cloud * scale + offset).astype(int)
    inside = ((pixels >= 0) & (pixels < [MAP_WIDTH, MAP_HEIGHT])).all(1)
    canvas = np.zeros((MAP_HEIGHT, MAP_WIDTH, 4), np.uint8)
    canvas[pixels[inside, 1], pixels[inside, 0], :3] = colours[inside]
    canvas[pixels[inside, 1], pixels[inside, 0], 3] = 255
    buffer = io.BytesIO()
    Image.fromarray(canvas).save(buffer, "PNG", optimize=True)
    marks = []
    for (x, y), (dx, dy), held in zip(centres * scale + offset, 14 * axes, heldout):
        marks.append(
            f'<g class="{"held" if held else "cam"}"><path d="M{x:.1f} {y:.1f}l{dx:.1f} {dy:.1f}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/></g>'
        )
    return (
        f'<svg viewBox="0 0 {MAP_WIDTH} {MAP_HEIGHT}" role="img" aria-label="map of the cameras">'
        f'<image width="{MAP_WIDTH}" height="{MAP_HEIGHT}" href="{data_uri(buffer.getvalue(), "png")}"/>'
        f"{''.join(marks)}</svg>"
    )


def sample(items: list[Any], most: int) -> list[Any]:
    """At most `most` of the items, evenly spread, in order."""
    if len(items) <= most:
        return items
    return [items[i] for i in np.linspace(0, len(items) - 1, most).round().astype(int)]
