# SPDX-License-Identifier: Apache-2.0
"""Collision geometry of the whole static scene: the support as a slab, things on it and the rest as convex parts.

Three kinds of geometry need three treatments. The support is a box with its top at z = 0: nothing falls through it and
nothing bumps over it. What stands on it is a carved solid, cut by CoACD. The room around is an open surface seen from
one side; it becomes thin convex patches, fitted to the rays of the capture, so that picture and collider agree.

Writes support.json, part_000.obj ... (convex, world frame, metres), collision.json and preview.png.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import CaptureError
from real2sim.sim.cameras import Camera
from real2sim.stages.collision_objects import convex_parts, find_things
from real2sim.stages.collision_patches import Rays, fit_patches
from real2sim.stages.collision_support import Slab, cover_outline
from real2sim.stages.contract import Progress, Result, above_zero, in_range
from real2sim.stages.convex import Hull, box_hull, enter, write_obj
from real2sim.stages.preview import shade, write_png
from real2sim.stages.solid import Solid
from real2sim.stages.support import inside_polygon

VERSION = "1"

Array = NDArray[np.float64]
Faces = NDArray[np.int64]

MERGE_RAYS = 6000  # of the capture's rays, for merging; all of them judge the result
FREE_GRID = 0.03  # spacing of the points kept free above the support, over its size
UNEVEN = 3.0  # a thing is this many times higher than the unevenness of the support
WITHIN_M = 0.01  # a thing that lies in an object's box but for this much is that object [m]
RIM = 0.03  # the slab's surroundings that belong to the support, over its size


@dataclass(frozen=True)
class Config:
    """How colliders are made. Lengths are metres (relative ones where the scale is unresolved)."""

    thickness_m: float = 0.05
    """Thickness of the support's slab, downwards from z = 0 [m]."""
    clear_m: float = 0.004
    """What rises less than this above the support is part of it [m]."""
    min_height_m: float = 0.006
    """Things on the support lower than this, or than three times the support's own unevenness, are left out [m]."""
    min_volume_cm3: float = 2.0
    """Things of less volume are left out [cm3]."""
    objects: Literal["coacd", "hulls"] = "coacd"
    """How things on the support are made convex: cut by CoACD, or one hull each."""
    concavity: float = 0.08
    """Concavity that CoACD tolerates, relative to the thing's size."""
    max_parts_per_thing: int = 10
    """Largest number of convex parts of one thing on the support."""
    coacd_seconds: float = 40.0
    """CPU time limit for one thing; beyond it the thing becomes one hull [s]."""
    max_parts: int = 64
    """Largest number of convex parts of the whole scene."""
    range_m: float = 0.0
    """How far around the support the scene is made solid [m]; 0: everything that was seen."""
    shell_m: float = 0.01
    """Thickness of the patches of open surfaces, behind the surface [m]."""

    def __post_init__(self) -> None:
        above_zero(self, "thickness_m", "concavity", "max_parts_per_thing", "coacd_seconds", "max_parts", "shell_m")
        in_range(self, 0, float("inf"), "clear_m", "min_height_m", "min_volume_cm3", "range_m")


@dataclass(frozen=True)
class Part:
    """A convex part and what it belongs to."""

    hull: Hull
    role: Literal["support", "object", "background"]


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Make colliders; inputs: mesh, align and, where objects are cut out, objects."""
    import trimesh

    surface = trimesh.load_mesh(inputs["mesh"] / "background.ply", process=False)
    vertices, faces = np.asarray(surface.vertices, np.float64), np.asarray(surface.faces, np.int64)
    rays = Rays.load(str(inputs["mesh"] / "rays.npz"))
    alignment = json.loads((inputs["align"] / "alignment.json").read_text())
    polygon = np.array(alignment["support"]["polygon"]) if alignment["has_support"] else None
    uneven = unevenness(inputs["align"] / "support.npz") if polygon is not None else 0.0
    config = replace(config, min_height_m=max(config.min_height_m, UNEVEN * uneven))
    boxes = object_boxes(inputs["objects"]) if "objects" in inputs else []
    slabs, parts, notes = build_parts(inputs["mesh"], vertices, faces, rays, polygon, config, scratch, progress, boxes)
    if not slabs and not parts:
        raise CaptureError("No collider could be made: the mesh has no surface that several views agree on.")
    support = slabs[0].to_json(config.thickness_m) if slabs else {"kind": "none"}
    (out / "support.json").write_text(json.dumps(support, indent=1))
    rows = []
    for index, part in enumerate(parts):
        name = f"part_{index:03d}.obj"
        write_obj(out / name, part.hull)
        rows.append({"file": name, "volume_m3": part.hull.volume, "role": part.role})
    (out / "collision.json").write_text(json.dumps({"support": support, "parts": rows, "heightfield": None}, indent=1))
    everything = [p.hull for p in parts] + [box_hull(s.half, s.position, s.rotation) for s in slabs[:1]]
    _preview(out / "preview.png", everything, rays)
    metrics: dict[str, Any] = {
        f"{role}_parts": sum(p.role == role for p in parts) for role in ("support", "object", "background")
    }
    metrics |= {"slabs": len(slabs), "parts": len(parts), "hull_vertices": sum(len(p.hull.vertices) for p in parts)}
    metrics["object_volume_cm3"] = sum(p.hull.volume for p in parts if p.role == "object") * 1e6
    metrics |= agreement_with_rays(everything, rays)
    return Result(metrics=metrics, backend=config.objects, notes=notes)


def unevenness(path: Path) -> float:
    """95th percentile of abs(z) of the support points that the alignment withheld [m]: bumps below it are noise."""
    with np.load(path) as data:
        z = np.abs(data["points_check"][:, 2])
    return float(np.percentile(z, 95)) if len(z) else 0.0


def build_parts(
    mesh: Path,
    vertices: Array,
    faces: Faces,
    rays: Rays,
    polygon: Array | None,
    config: Config,
    scratch: Path,
    progress: Progress,
    movable: Sequence[tuple[Array, Array]] = (),
) -> tuple[list[Slab], list[Part], list[str]]:
    """Slabs of the support (the first one is the support itself, the others are parts too), parts, and notes.

    movable: boxes (low, high [3]) of objects that are bodies of their own: what stands there is none of the background.
    """
    if polygon is None:
        rest = _within_range(vertices, faces, np.median(vertices, axis=0), config.range_m)
        hulls = fit_patches(vertices, rest, _few_rays(rays), config.shell_m, np.zeros((0, 3)), config.max_parts)
        return [], [Part(h, "background") for h in hulls], []
    slabs = cover_outline(polygon, config.thickness_m)
    parts = [Part(box_hull(s.half, s.position, s.rotation), "support") for s in slabs[1:]]
    things, notes = find_things(
        Solid.load(mesh / "solid.npz"), polygon, config.clear_m, config.min_height_m, config.min_volume_cm3 * 1e-6
    )
    things = [t for t in things if not any(_is_within(t.vertices, *box) for box in movable)]
    progress.log(f"collision: {len(slabs)} boxes of support, {len(things)} things on it that stay")
    limit = max(1, int(0.6 * (config.max_parts - len(parts))))
    per_thing = config.max_parts_per_thing if config.objects == "coacd" else 1
    hulls, more = convex_parts(things, config.concavity, per_thing, limit, config.coacd_seconds, scratch)
    parts += [Part(h, "object") for h in hulls]
    rest = without_support(vertices, faces, polygon, slabs, config)
    rest = _within_range(vertices, rest, np.zeros(3), config.range_m)
    free = points_kept_free(polygon, hulls)
    left = config.max_parts - len(parts)
    patches = fit_patches(vertices, rest, _few_rays(rays), config.shell_m, free, left)
    return slabs, parts + [Part(h, "background") for h in patches], notes + more


def object_boxes(objects: Path) -> list[tuple[Array, Array]]:
    """Boxes (low, high [3], world frame) around the objects of the stage `objects`."""
    from real2sim.sim.obj import read_vertices
    from real2sim.sim.transforms import quat_to_matrix

    boxes = []
    for row in json.loads((objects / "objects.json").read_text())["objects"]:
        points = read_vertices(objects / row["visual"]) @ quat_to_matrix(row["quat"]).T + row["position"]
        boxes.append((points.min(0), points.max(0)))
    return boxes


def _is_within(points: Array, low: Array, high: Array) -> bool:
    """Whether most of the points [N, 3] lie in a box, a little widened."""
    return bool(((points > low - WITHIN_M) & (points < high + WITHIN_M)).all(1).mean() > 0.5)


def _few_rays(rays: Rays) -> Rays:
    return rays.select(np.arange(len(rays)) % max(1, len(rays) // MERGE_RAYS) == 0)


def _within_range(vertices: Array, faces: Faces, centre: Array, reach: float) -> Faces:
    """Faces [F', 3] within reach of a point; all of them where reach is 0."""
    if reach <= 0:
        return faces
    return faces[np.linalg.norm(vertices[faces].mean(1) - centre, axis=1) <= reach]


def without_support(vertices: Array, faces: Faces, polygon: Array, slabs: Sequence[Slab], config: Config) -> Faces:
    """Faces that are neither the support's nor of the things on it: those have their own parts."""
    centre = vertices[faces].mean(1)
    rim = RIM * float(np.ptp(polygon, axis=0).max())
    over = inside_polygon(centre[:, :2], polygon)
    around = over.copy()
    for slab in slabs:
        around |= slab.covers(centre, rim)
    in_slab = around & (np.abs(centre[:, 2] + config.thickness_m / 2) < config.thickness_m / 2 + 2 * config.clear_m)
    return faces[~(over & (centre[:, 2] > -config.thickness_m)) & ~in_slab]


def points_kept_free(polygon: Array, hulls: Sequence[Hull]) -> Array:
    """Points [K, 3] just above the free support, which no part of the background may hold."""
    size = float(np.ptp(polygon, axis=0).max())
    axes = [np.arange(low, high, FREE_GRID * size) for low, high in zip(polygon.min(0), polygon.max(0))]
    grid = np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)
    grid = grid[inside_polygon(grid, polygon)]
    levels = [np.c_[grid, np.full(len(grid), z * size)] for z in (0.0015, 0.01, 0.03)]
    points = np.concatenate(levels)
    for hull in hulls:
        points = points[~hull.contains(points)]
    return points


def agreement_with_rays(hulls: Sequence[Hull], rays: Rays) -> dict[str, float]:
    """How the colliders answer the capture's own rays: relative depth error, and the share that hits nothing."""
    direction = rays.ends - rays.origins
    first = np.full(len(rays), np.inf)
    for hull in hulls:
        first = np.minimum(first, enter(hull, rays.origins, direction))
    error = np.abs(first - 1)
    return {
        "ray_error_median": float(np.median(error)) if np.isfinite(np.median(error)) else -1.0,
        "rays_within_1_percent": float((error <= 0.01).mean()),
        "rays_within_5_percent": float((error <= 0.05).mean()),
        "rays_missed": float(np.isinf(first).mean()),
    }


def _preview(path: Path, hulls: Sequence[Hull], rays: Rays) -> None:
    """The parts in random colours from two places where the capture's cameras stood."""
    offsets = np.cumsum([0, *[len(h.vertices) for h in hulls]])
    vertices = np.concatenate([h.vertices for h in hulls])
    faces = np.concatenate([h.faces + start for h, start in zip(hulls, offsets)])
    colours = np.repeat(
        np.random.default_rng(4).uniform(0.25, 1.0, (len(hulls), 3)), [len(h.faces) for h in hulls], axis=0
    )
    write_png(path, [shade(vertices, faces, colours, camera) for camera in _viewpoints(rays)])


def _viewpoints(rays: Rays) -> list[Camera]:
    """Two cameras at places of the capture, far apart, that look at the middle of what they saw."""
    places = np.unique(rays.origins, axis=0)
    first = places[int(np.argmax(places[:, 2]))]
    second = places[int(np.argmax(np.linalg.norm(places - first, axis=1)))]
    target = np.median(rays.ends, axis=0)
    return [_looking_at(f"view{i}", eye, target) for i, eye in enumerate((first, second))]


def _looking_at(name: str, eye: Array, target: Array) -> Camera:
    z = (target - eye) / max(float(np.linalg.norm(target - eye)), 1e-9)
    x = np.cross(z, [0.0, 0.0, 1.0])
    x = x / np.linalg.norm(x) if np.linalg.norm(x) > 1e-6 else np.array([1.0, 0.0, 0.0])
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = np.stack([x, np.cross(z, x), z], 1), eye
    K = np.array([[440.0, 0, 320.0], [0, 440.0, 240.0], [0, 0, 1.0]])
    return Camera(name, 640, 480, K, T)
