# SPDX-License-Identifier: Apache-2.0
"""The things that stand on the table: box, can, mug, ball, book. Size, print and colour come from the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from real2sim.datasets import synthetic_prints as prints
from real2sim.datasets import synthetic_shapes as shapes
from real2sim.datasets import synthetic_textures as textures
from real2sim.datasets.synthetic_shapes import MassProperties, Patch
from real2sim.datasets.synthetic_textures import Image, hsv

Array = NDArray[np.float64]
KINDS = ("box", "can", "mug", "ball", "book")
LIGHT_CELLS = 4.0  # texels per cell in which light is computed: shadows are softer than print


@dataclass(frozen=True)
class Part:
    """A painted patch in the body frame. albedo: linear light [h, w, 3]; the rest as in `raycast.Surface`."""

    patch: Patch
    albedo: Image
    gloss: float = 0.0
    emission: float = 0.0
    light_texel: float = 0.004


@dataclass(frozen=True)
class Element:
    """A rigid thing in the scene.

    id: its value in id maps; kind: its shape's name; size: the shape's numbers [m]; T_world_body [4, 4]: origin at the
    centre of its base, z up; density [kg/m3], None for what never moves; closed: whether its patches bound a volume.
    """

    name: str
    id: int
    kind: str
    parts: tuple[Part, ...]
    T_world_body: Array
    size: dict[str, float]
    density: float | None = None

    @cached_property
    def mesh(self) -> tuple[Array, NDArray[np.int64]]:
        """Vertices [V, 3] (body frame) and faces [F, 3]."""
        return shapes.merged_mesh(part.patch for part in self.parts)

    @cached_property
    def mass(self) -> MassProperties:
        if self.density is None:
            raise ValueError(f"{self.name} is fixed and has no density")
        return shapes.mass_properties(*self.mesh, self.density)

    @cached_property
    def footprint(self) -> Array:
        """Convex outline [N, 2] seen from above, body frame, counter-clockwise."""
        from scipy.spatial import ConvexHull

        flat = self.mesh[0][:, :2]
        return flat[ConvexHull(flat).vertices]


def make(kind: str, rng: Generator, texel: float, name: str, number: int) -> Element:
    """An object of one of KINDS at the world's origin."""
    builders: dict[str, Callable[[Generator, float], tuple[dict[str, Part], dict[str, float], float]]] = {
        "box": _box,
        "can": _can,
        "mug": _mug,
        "ball": _ball,
        "book": _book,
    }
    parts, size, density = builders[kind](rng, texel)
    return Element(name, number, kind, tuple(parts.values()), np.eye(4), size, density)


def paint(patch: Patch, srgb: Image, texel: float, gloss: float = 0.0) -> Part:
    return Part(patch, textures.linear(srgb), gloss, 0.0, LIGHT_CELLS * texel)


def _box(rng: Generator, texel: float) -> tuple[dict[str, Part], dict[str, float], float]:
    """A filled carton."""
    x, y, z = rng.uniform(0.075, 0.115), rng.uniform(0.05, 0.075), rng.uniform(0.105, 0.16)
    hue, words = rng.uniform(), prints.print_words(rng, prints.BRANDS, prints.GOODS)
    parts = {}
    for side, patch in shapes.box((x, y, z)).items():
        if side in ("front", "back"):
            picture = prints.carton(rng, patch.size, texel, hue, words)
        elif side in ("left", "right"):
            picture = prints.carton_side(rng, patch.size, texel, hue, words)
        elif side == "top":
            picture = prints.book_spine(rng, patch.size, texel, hue, words)
        else:
            picture = textures.plain(rng, patch.size, texel, hsv(hue, 0.4, 0.5))
        parts[side] = paint(patch, picture, texel)
    return parts, {"x": x, "y": y, "z": z}, 320.0


def _can(rng: Generator, texel: float) -> tuple[dict[str, Part], dict[str, float], float]:
    """A full tin."""
    radius, height = rng.uniform(0.032, 0.040), rng.uniform(0.09, 0.125)
    hue, words = rng.uniform(), prints.print_words(rng, prints.BRANDS, prints.GOODS)
    shape = shapes.cylinder(radius, height)
    parts = {
        "top": paint(shape["top"], prints.can_lid(rng, shape["top"].size, texel), texel),
        "side": paint(shape["side"], prints.can_label(rng, shape["side"].size, texel, hue, words), texel),
        "bottom": paint(shape["bottom"], prints.can_lid(rng, shape["bottom"].size, texel), texel),
    }
    return parts, {"radius": radius, "height": height}, 1020.0


def _mug(rng: Generator, texel: float) -> tuple[dict[str, Part], dict[str, float], float]:
    """Glazed pottery, open at the top, with a handle that a finger goes through."""
    size = shapes.MugSize(rng.uniform(0.039, 0.045), rng.uniform(0.085, 0.10))
    hue = rng.uniform()
    glaze = hsv(hue, 0.5, 0.55)
    parts = {}
    for name, patch in shapes.mug(size).items():
        if name == "side":
            picture = prints.mug_side(rng, patch.size, texel, hue)
        else:
            colour = hsv(0.11, 0.14, 0.86) if name in ("inside", "floor") else glaze
            picture = textures.plain(rng, patch.size, texel, colour, 0.03)
        parts[name] = paint(patch, picture, texel, gloss=0.5)
    numbers = {k: float(v) for k, v in size.__dict__.items()}
    return parts, numbers, 2300.0


def _ball(rng: Generator, texel: float) -> tuple[dict[str, Part], dict[str, float], float]:
    """A hard foam play ball with a slight shine; its poles lie on their sides."""
    radius = rng.uniform(0.033, 0.043)
    patch = shapes.ball(radius)["surface"]
    h, w = textures.texels(patch.size, texel)
    theta, phi = np.meshgrid((np.arange(w) + 0.5) / w * 2 * np.pi, (np.arange(h) + 0.5) / h * np.pi)
    sphere = np.stack([np.sin(phi) * np.cos(theta), np.sin(phi) * np.sin(theta), np.cos(phi)], -1)
    tilt = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    picture = textures.ball_skin(rng, radius * sphere @ tilt, radius, rng.uniform())
    return {"surface": paint(patch, picture, texel, gloss=0.6)}, {"radius": radius}, 280.0


def _book(rng: Generator, texel: float) -> tuple[dict[str, Part], dict[str, float], float]:
    """A book that lies flat, its spine to -y."""
    x, y, z = rng.uniform(0.18, 0.23), rng.uniform(0.125, 0.155), rng.uniform(0.02, 0.036)
    hue, words = rng.uniform(), prints.print_words(rng, prints.TITLES, prints.AUTHORS)
    parts = {}
    for side, patch in shapes.box((x, y, z)).items():
        if side == "top":
            picture = prints.book_cover(rng, patch.size, texel, hue, words)
        elif side == "front":
            picture = prints.book_spine(rng, patch.size, texel, hue, words)
        elif side == "bottom":
            picture = textures.plain(rng, patch.size, texel, hsv(hue, 0.4, 0.5))
        else:
            picture = prints.book_pages(rng, patch.size, texel, hue)
        parts[side] = paint(patch, picture, texel)
    return parts, {"x": x, "y": y, "z": z}, 700.0
