# SPDX-License-Identifier: Apache-2.0
"""Tables that are hard on purpose: what they show, as options of a capture and a change of its scene."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from real2sim.datasets import synthetic_objects as objects
from real2sim.datasets.synthetic_scene import FIRST_OBJECT, Scene
from real2sim.datasets.synthetic_shapes import box

TEXEL = 0.0008  # [m]
Change = Callable[[Scene], Scene]


def at(x: float, y: float, yaw: float = 0.0) -> np.ndarray:
    """A pose [4, 4] on the table."""
    T = np.eye(4)
    T[:2, :2] = [[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]]
    T[:2, 3] = x, y
    return T


def only(scene: Scene, *things: objects.Element) -> Scene:
    """The scene's room, table and marker with these things."""
    kept = tuple(e for e in scene.elements if e.id < FIRST_OBJECT)
    numbered = tuple(replace(thing, id=FIRST_OBJECT + n) for n, thing in enumerate(things))
    return replace(scene, elements=(*kept, *numbered))


def thing(kind: str, pose: np.ndarray, name: str, seed: int = 5) -> objects.Element:
    made = objects.make(kind, np.random.default_rng(seed), TEXEL, name, FIRST_OBJECT)
    return replace(made, T_world_body=pose)


def touching(scene: Scene) -> Scene:
    """Two equal boxes, side against side."""
    first = thing("box", at(0.12, 0.02), "box_0")
    return only(scene, first, thing("box", at(0.12, 0.02 + first.size["y"]), "box_1"))


def behind(scene: Scene) -> Scene:
    """A can close behind a box, seen from an arc of views."""
    first = thing("box", at(0.1, 0.0), "box_0")
    return only(scene, first, thing("can", at(0.1, 0.5 * first.size["y"] + 0.06), "can_1"))


def glossy(scene: Scene) -> Scene:
    """A ball that mirrors the lamps."""
    ball = thing("ball", at(0.1, 0.0), "ball_0")
    return only(scene, replace(ball, parts=tuple(replace(p, gloss=1.0) for p in ball.parts)))


def thin(scene: Scene) -> Scene:
    """A booklet, 9 mm thick."""
    book = thing("book", at(0.05, 0.05, 0.4), "book_0")
    size = (book.size["x"], book.size["y"], 0.009)
    parts = tuple(replace(part, patch=patch) for part, patch in zip(book.parts, box(size).values()))
    return only(scene, replace(book, parts=parts, size=dict(zip("xyz", size))))


def mug(scene: Scene) -> Scene:
    return only(scene, thing("mug", at(0.08, 0.02, 0.7), "mug_0"))


def at_the_edge(scene: Scene) -> Scene:
    """A box at the table's corner, which many frames cut off."""
    return only(scene, thing("box", at(0.52, 0.32, 0.3), "box_0"), thing("can", at(0.0, 0.05), "can_1"))


ADVERSARIAL: dict[str, tuple[dict[str, Any], Change]] = {
    "two touching boxes": ({"seed": 3}, touching),
    "can behind a box": ({"seed": 4, "path": "arc"}, behind),
    "glossy ball": ({"seed": 5}, glossy),
    "thin book": ({"seed": 6}, thin),
    "open handle": ({"seed": 7}, mug),
    "at the frame's edge": ({"seed": 8}, at_the_edge),
    "no object": ({"seed": 9, "objects": 0}, lambda scene: scene),
    "15 objects": ({"seed": 10, "objects": 15}, lambda scene: scene),
}
