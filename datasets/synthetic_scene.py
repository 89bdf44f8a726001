# SPDX-License-Identifier: Apache-2.0
"""The known-truth scene: a furnished room, a table, a marker and objects, laid out by a seed.

World frame: origin at the centre of the table's top, x along its long side, z up, metres.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from real2sim.datasets import synthetic_objects as objects
from real2sim.datasets import synthetic_prints as prints
from real2sim.datasets import synthetic_shapes as shapes
from real2sim.datasets import synthetic_textures as textures
from real2sim.datasets.raycast import Ambient, AreaLight, RayCaster, Surface
from real2sim.datasets.synthetic_objects import Element, Part
from real2sim.datasets.synthetic_shapes import Patch, rectangle
from real2sim.datasets.synthetic_textures import Image, hsv, linear
from real2sim.errors import UsageError

Array = NDArray[np.float64]
ROOM, TABLE, TABLE_TOP, MARKER, FIRST_OBJECT = 1, 2, 3, 4, 10  # values in id maps
MOST_OBJECTS = 15
TABLE_SIZE = (1.2, 0.8, 0.032)  # x, y, thickness [m]
TABLE_HEIGHT = 0.74  # m, top above the floor
ROOM_LOW, ROOM_HIGH = np.array([-2.1, -1.9, -TABLE_HEIGHT]), np.array([2.5, 2.3, 1.85])  # m
PAPER = 2e-4  # m, thickness of the marker's sheet
GAP = 0.018  # m, least distance between things on the table
DICTIONARY, MARKER_NUMBER = "DICT_4X4_50", 7


@dataclass(frozen=True)
class Scene:
    """Elements and light. Its ray caster is made on first use and kept; a changed scene is a new one."""

    elements: tuple[Element, ...]
    lights: tuple[AreaLight, ...]
    ambient: Ambient
    marker_size: float

    @cached_property
    def caster(self) -> RayCaster:
        return RayCaster([s for e in self.elements for s in surfaces(e)], self.lights, self.ambient)

    @property
    def objects(self) -> tuple[Element, ...]:
        """What stands on the table."""
        return tuple(e for e in self.elements if e.id >= FIRST_OBJECT)

    def element(self, name: str) -> Element:
        for e in self.elements:
            if e.name == name:
                return e
        raise UsageError(f"The scene has no element {name!r}; it has {', '.join(e.name for e in self.elements)}.")

    def without(self, *names: str) -> Scene:
        """The scene with some elements taken away."""
        gone = {self.element(name).name for name in names}
        return replace(self, elements=tuple(e for e in self.elements if e.name not in gone))

    def moved(self, name: str, T_world_body: Array) -> Scene:
        """The scene with one element at another pose [4, 4]."""
        moved = replace(self.element(name), T_world_body=np.asarray(T_world_body, np.float64))
        return replace(self, elements=tuple(moved if e.name == name else e for e in self.elements))

    @property
    def marker_corners(self) -> Array:
        """The marker's black corners [4, 3], world frame, in OpenCV's order (upper left first, clockwise)."""
        T, h = self.element("marker").T_world_body, self.marker_size / 2
        return np.array([[-h, h, 0], [h, h, 0], [h, -h, 0], [-h, -h, 0]]) @ T[:3, :3].T + T[:3, 3]


def surfaces(element: Element) -> list[Surface]:
    """What the ray caster draws of an element, in the world frame."""
    T = element.T_world_body
    return [Surface(p.patch.moved(T), p.albedo, element.id, p.gloss, p.emission, p.light_texel) for p in element.parts]


def support_polygon() -> Array:
    """The table top's outline [4, 2], world frame, counter-clockwise."""
    a, b = TABLE_SIZE[0] / 2, TABLE_SIZE[1] / 2
    return np.array([[-a, -b], [a, -b], [a, b], [-a, b]])


def build_scene(seed: int, count: int, marker_size: float, texel: float) -> Scene:
    """The seed's scene with `count` objects; texel: size of a texel on objects [m], more on what is farther away."""
    if not 0 <= count <= MOST_OBJECTS:
        raise UsageError(f"objects must be 0 to {MOST_OBJECTS}, received {count}.")
    if not 0.02 <= marker_size <= 0.2:
        raise UsageError(f"marker_size_m must be 0.02 to 0.2, received {marker_size}.")
    marker = _marker(seed, marker_size)
    things = [_object(seed, number, texel) for number in range(count)]
    placed = _laid_out(_stream(seed, "layout"), [marker, *things])
    lights, panels = _lights()
    room = Element("room", ROOM, "room", tuple(_room(_stream(seed, "room"), 6 * texel) + panels), np.eye(4), {})
    elements = (room, *_table(_stream(seed, "table"), texel), *placed)
    return Scene(elements, lights, Ambient((0.44, 0.45, 0.46)), marker_size)


def _stream(seed: int, name: str) -> Generator:
    """A stream of random numbers of its own for each part, so that one more object changes no other."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _object(seed: int, number: int, texel: float) -> Element:
    """The first five are one of each kind; then any."""
    rng = _stream(seed, f"object {number}")
    kind = objects.KINDS[number] if number < len(objects.KINDS) else str(rng.choice(objects.KINDS))
    return objects.make(kind, rng, texel, f"{kind}_{number}", FIRST_OBJECT + number)


def _marker(seed: int, side: float) -> Element:
    picture = prints.marker(DICTIONARY, MARKER_NUMBER)
    sheet = side * 8 / 6  # a quiet zone of one cell on each side of 4 + 2 cells
    patch = rectangle((-sheet / 2, sheet / 2, 0), (sheet, 0, 0), (0, -sheet, 0))
    pose = np.eye(4)
    pose[2, 3] = PAPER
    return Element(
        "marker", MARKER, "sheet", (objects.paint(patch, picture, 0.001),), pose, {"side": side, "sheet": sheet}
    )


def _laid_out(rng: Generator, things: list[Element]) -> list[Element]:
    """Each thing at a place and yaw where it is at least GAP from the others; larger ones choose first.

    Places spread from the middle of the table outwards as things are refused.
    """
    order = sorted(things, key=lambda e: -float(np.abs(e.footprint).max()))
    outlines: list[Array] = []
    poses: dict[str, Array] = {}
    for thing in order:
        for attempt in range(4000):
            reach = min(1.0, 0.5 + attempt / 2000)
            yaw = rng.uniform(-np.pi, np.pi)
            R = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
            at = rng.uniform(-reach, reach, 2) * (np.array(TABLE_SIZE[:2]) / 2 - 0.03)
            outline = thing.footprint @ R.T + at
            inside = np.all(np.abs(outline) < np.array(TABLE_SIZE[:2]) / 2 - 0.02)
            if inside and all(separation(outline, other) >= GAP for other in outlines):
                break
        else:
            raise UsageError(f"No room on the table for {thing.name}: ask for fewer objects or a smaller marker.")
        outlines.append(outline)
        pose = thing.T_world_body.copy()
        pose[:2, :2], pose[:2, 3] = R, at
        poses[thing.name] = pose
    return [replace(thing, T_world_body=poses[thing.name]) for thing in things]


def separation(a: Array, b: Array) -> float:
    """A lower bound of the distance between two convex polygons [N, 2], negative where they overlap: the widest gap
    over the polygons' own edge normals (separating axes)."""
    gap = -np.inf
    for polygon in (a, b):
        edges = np.roll(polygon, -1, 0) - polygon
        normals = np.stack([edges[:, 1], -edges[:, 0]], -1) / np.linalg.norm(edges, axis=1, keepdims=True)
        pa, pb = a @ normals.T, b @ normals.T
        gap = max(gap, float(np.maximum(pb.min(0) - pa.max(0), pa.min(0) - pb.max(0)).max()))
    return gap


def _table(rng: Generator, texel: float) -> tuple[Element, Element]:
    """The top face, which is the support, and all the rest of the table."""
    x, y, thick = TABLE_SIZE
    colour = hsv(rng.uniform(0.07, 0.10), rng.uniform(0.38, 0.5), rng.uniform(0.6, 0.72))
    slab = shapes.box((x, y, thick))
    top_texel = 1.4 * texel

    def board(patch: Patch, lower: float, texel: float = top_texel) -> Part:
        moved = patch.shifted((0, 0, lower))
        return objects.paint(moved, textures.wood(rng, patch.size, texel, colour), texel)

    top = Element("table_top", TABLE_TOP, "rectangle", (board(slab["top"], -thick),), np.eye(4), {"x": x, "y": y})
    rest = [board(slab[side], -thick) for side in ("front", "right", "back", "left")]
    rest.append(board(slab["bottom"], -thick, 10 * texel))
    height = TABLE_HEIGHT - thick
    for sx in (-1, 1):
        for sy in (-1, 1):
            for side, patch in shapes.box((0.055, 0.055, height)).items():
                if side not in ("top", "bottom"):
                    at = [sx * (x / 2 - 0.06), sy * (y / 2 - 0.06), 0]
                    rest.append(board(patch.shifted(at), -TABLE_HEIGHT))
    return top, Element("table", TABLE, "table", tuple(rest), np.eye(4), {"x": x, "y": y, "z": TABLE_HEIGHT})


def _lights() -> tuple[tuple[AreaLight, ...], list[Part]]:
    """A warm lamp under the ceiling and a cool window, and the bright panels that one sees of them."""
    lamp = np.array([-0.95, -1.05, ROOM_HIGH[2] - 0.06]), np.array([0.6, 0, 0]), np.array([0, 0.4, 0])
    window = np.array([ROOM_HIGH[0] - 0.02, 1.3, 1.35]), np.array([0, -1.5, 0]), np.array([0, 0, -1.1])
    lights = (AreaLight(*lamp, (70.0, 66.0, 59.0), samples=36), AreaLight(*window, (7.5, 8.1, 9.0), samples=16))
    panels = []
    for light in lights:
        white = np.ones((4, 4, 3), np.float32)
        panels.append(Part(rectangle(light.corner, light.u, light.v), white, emission=4.0, light_texel=0.2))
    return lights, panels


def _room(rng: Generator, texel: float) -> list[Part]:
    """Walls, floor, ceiling, skirting, rug, posters, a bookcase, a chest of drawers."""
    (x0, y0, z0), (x1, y1, z1) = ROOM_LOW, ROOM_HIGH
    w, d, h = ROOM_HIGH - ROOM_LOW
    wall = hsv(rng.uniform(0.05, 0.2), 0.14, 0.80)
    accent = hsv(rng.uniform(), 0.24, 0.62)
    faces = {
        "north": rectangle((x0, y1, z1), (w, 0, 0), (0, 0, -h)),
        "east": rectangle((x1, y1, z1), (0, -d, 0), (0, 0, -h)),
        "south": rectangle((x1, y0, z1), (-w, 0, 0), (0, 0, -h)),
        "west": rectangle((x0, y0, z1), (0, d, 0), (0, 0, -h)),
    }
    parts = []
    for name, patch in faces.items():
        parts.append(_far(patch, textures.plaster(rng, patch.size, texel, accent if name == "north" else wall)))
    floor = rectangle((x0, y1, z0), (w, 0, 0), (0, -d, 0))
    parts.append(_far(floor, textures.wood(rng, floor.size, texel, hsv(0.08, 0.45, 0.46), plank=0.16), 0.03))
    ceiling = rectangle((x0, y0, z1), (w, 0, 0), (0, d, 0))
    parts.append(_far(ceiling, textures.plaster(rng, ceiling.size, texel, hsv(0.12, 0.04, 0.9))))
    carpet = rectangle((-1.25, 0.95, z0 + 0.008), (2.5, 0, 0), (0, -1.9, 0))
    parts.append(_far(carpet, textures.rug(rng, carpet.size, texel, rng.uniform()), 0.03))
    return parts + _posters(rng, texel) + _furniture(rng, texel)


def _far(patch: Patch, srgb: Image, light_texel: float = 0.06) -> Part:
    return Part(patch, linear(srgb), light_texel=light_texel)


def _posters(rng: Generator, texel: float) -> list[Part]:
    """Framed prints, 1 cm off the walls."""
    (x0, y0, _), (x1, y1, _) = ROOM_LOW, ROOM_HIGH
    parts = []
    for at, right in (
        ((-0.2, y1 - 0.01), (1, 0)),
        ((1.0, y1 - 0.01), (1, 0)),
        ((x1 - 0.01, -0.55), (0, -1)),
        ((0.9, y0 + 0.01), (-1, 0)),
        ((-0.5, y0 + 0.01), (-1, 0)),
        ((x0 + 0.01, -1.2), (0, 1)),
        ((x0 + 0.01, 0.0), (0, 1)),
    ):
        wide, tall = rng.uniform(0.6, 0.85), rng.uniform(0.75, 1.0)
        top = rng.uniform(-0.32, 0.0) + tall
        edge = np.array([*right, 0.0]) * wide
        patch = rectangle((*at, top), edge, (0, 0, -tall))
        parts.append(_far(patch, prints.poster(rng, patch.size, texel)))
    return parts


def _furniture(rng: Generator, texel: float) -> list[Part]:
    """A bookcase on the north wall, a low chest on the west wall, skirting boards."""
    z0 = ROOM_LOW[2]
    parts = []
    for size, centre, colour in (
        ((1.0, 0.30, 1.75), (-1.35, ROOM_HIGH[1] - 0.16), hsv(0.09, 0.45, 0.5)),
        ((0.42, 1.1, 0.62), (ROOM_LOW[0] + 0.22, 1.35), hsv(0.07, 0.4, 0.42)),
    ):
        for side, patch in shapes.box(size).items():
            moved = patch.shifted((*centre, z0))
            if side == "front" and size[2] > 1:
                picture = prints.bookshelf(rng, patch.size, texel)
            else:
                picture = textures.wood(rng, patch.size, texel, colour, plank=0.3)
            parts.append(_far(moved, picture, 0.03))
    for corner, edge in _skirting(z0):
        patch = rectangle(corner, edge, (0, 0, -0.09))
        parts.append(_far(patch, textures.plaster(rng, patch.size, texel, hsv(0.1, 0.08, 0.85))))
    return parts


def _skirting(z0: float) -> list[tuple[tuple[float, float, float], tuple[float, float, float]]]:
    (x0, y0, _), (x1, y1, _) = ROOM_LOW, ROOM_HIGH
    z, off = z0 + 0.09, 0.012
    return [
        ((x0, y1 - off, z), (x1 - x0, 0, 0)),
        ((x1 - off, y1, z), (0, y0 - y1, 0)),
        ((x1, y0 + off, z), (x0 - x1, 0, 0)),
        ((x0 + off, y0, z), (0, y1 - y0, 0)),
    ]
