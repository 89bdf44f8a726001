# SPDX-License-Identifier: Apache-2.0
"""objects: each instance as a rigid body: closed mesh, convex parts, mass, friction, and a pose on which it rests.

The mesh is carved from the instance's masks and from depth; what nobody saw, its underside, is closed at the support and
said to be guessed. The body frame has its origin at the centre of the base, z up, x along the longer side of the
footprint. An instance that makes no sound body (its parts disagree with its mesh, it does not rest) stays part of the
background, and the notes say so: a thing that cannot be picked up is still a thing to collide with.

Writes objects.json and <id>/visual.obj, <id>/collision_<k>.obj (body frame, m).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import read_cameras
from real2sim.sim.mjcf import FreeBody, Mesh
from real2sim.sim.obj import write_obj
from real2sim.sim.rest import rests
from real2sim.sim.transforms import Similarity, matrix_to_quat
from real2sim.stages.collision_coacd import decompose
from real2sim.stages.contract import Progress, Result, above_zero, in_range
from real2sim.stages.convex import Hull, make_hull
from real2sim.stages.convex import write_obj as write_hull
from real2sim.stages.instances import Instance, Instances, read_instances
from real2sim.stages.object_card import Card, read_cards
from real2sim.stages.segment import read_photo
from real2sim.stages.silhouettes import Silhouette, Surface, carve, draw_instances, surface_of
from real2sim.stages.solid import Solid
from real2sim.stages.solid_bound import solid_bound

VERSION = "1"

Array = NDArray[np.float64]

MARGIN = 0.01  # around the first solid [m]
VISIBLE_M = 0.006  # a photo shows a vertex whose depth agrees within this [m]


@dataclass(frozen=True)
class Config:
    """How instances become bodies. Lengths are metres."""

    cells: int = 56
    """Voxels along the longest side of an instance."""
    convex_iou: float = 0.9
    """Least agreement in volume of the convex parts with the mesh, intersection over union."""
    concavity: float = 0.03
    """Concavity that CoACD tolerates, relative to the thing's size, where one hull is not enough."""
    max_parts: int = 24
    """Most convex parts of one object."""
    coacd_seconds: float = 40.0
    """CPU time limit for one object [s]."""
    settle_m: float = 0.002
    """How far an object may move in 2 s under gravity [m]."""
    settle_deg: float = 1.0
    """How far it may turn [deg]."""

    def __post_init__(self) -> None:
        above_zero(self, "concavity", "max_parts", "coacd_seconds", "settle_m", "settle_deg")
        in_range(self, 8, 256, "cells")
        in_range(self, 0, 1, "convex_iou")


@dataclass(frozen=True)
class Body:
    """One object's geometry in its body frame: surface, voxel centres inside the mesh's box and which are solid, parts."""

    T_world_body: Array
    surface: Surface
    colours: Array
    parts: list[Hull]
    convex_iou: float


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Make bodies; inputs: capture (for objects.yaml), sfm, align, mesh, segment."""
    T_world_sfm = Similarity.from_json(json.loads((inputs["align"] / "alignment.json").read_text())["T_world_sfm"])
    cameras = [c.transformed(T_world_sfm) for c in read_cameras(inputs["sfm"] / "cameras.json")]
    found = read_instances(inputs["segment"], cameras)
    cards = read_cards(inputs["capture"])
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    if found.rows:
        solid = Solid.load(inputs["mesh"] / "solid.npz")
        photos = [read_photo(inputs["sfm"], c) for c in cameras]
        views = found.silhouettes()
        for i, instance in enumerate(found.rows):
            body = make_body(instance, found, views, photos, solid, config, scratch)
            row, why = _asset(instance, body, cards.get(instance.label, Card()), config, out)
            rows += [row] if row else []
            notes += [f"{instance.label} stays part of the background: {why}"] if why else []
            progress.update(i + 1, len(found.rows), objects=len(rows))
    (out / "objects.json").write_text(json.dumps({"objects": rows}, indent=1))
    notes += [f"objects.yaml describes {name}, which was not found" for name in cards.keys() - _labels(found)]
    metrics = {"objects": len(rows), "parts": sum(len(row["collision"]) for row in rows)}
    return Result(metrics, [], "carve+coacd" if rows else "none", notes)


def _labels(found: Instances) -> set[str]:
    return {row.label for row in found.rows}


def make_body(
    instance: Instance, found: Instances, views: Sequence[Silhouette], photos: Sequence[NDArray[np.uint8]],
    solid: Solid, config: Config, scratch: Path,
) -> Body:  # fmt: skip
    """Mesh, frame and convex parts of one instance."""
    first = found.surfaces[instance.id][0]
    low, high = first.min(0) - MARGIN, first.max(0) + MARGIN
    low[2] = 0.0
    voxel = max(0.001, float((high - low).max()) / config.cells)
    field = carve(instance.id, views, low, solid_bound(solid, low, high, voxel), voxel)
    field = main_piece(field)
    vertices, faces = surface_of(field, low, voxel)
    vertices[:, 2] = np.maximum(vertices[:, 2], 0.0)
    T = body_frame(vertices)
    inside = low + voxel * (np.indices(field.shape).reshape(3, -1).T + 0.5)
    parts, agreement = convex_parts(to_body(vertices, T), faces, to_body(inside, T), field.ravel() < 0, config, scratch)
    colours = photo_colours((vertices, faces), instance.id, views, photos)
    return Body(T, (to_body(vertices, T), faces), colours, parts, agreement)


def main_piece(field: NDArray[np.float32]) -> NDArray[np.float32]:
    """A carved field [X, Y, Z] with its largest solid piece only."""
    from scipy import ndimage

    labels, count = ndimage.label(field < 0)
    if count < 2:
        return field
    sizes = ndimage.sum_labels(field < 0, labels, np.arange(1, count + 1))
    largest = 1 + int(np.argmax(sizes))
    return np.where((field < 0) & (labels != largest), np.float32(1), field)


def body_frame(vertices: Array) -> Array:
    """T_world_body [4, 4]: origin at the centre of the footprint's smallest rectangle, on the support; x its longer side."""
    import cv2

    (x, y), (width, height), angle = cv2.minAreaRect(vertices[:, :2].astype(np.float32))
    turn = np.radians(angle if width >= height else angle + 90.0)
    turn = (turn + np.pi / 2) % np.pi - np.pi / 2  # of two equal ways round, the smaller turn
    c, s = np.cos(turn), np.sin(turn)
    T = np.eye(4)
    T[:2, :2], T[:2, 3] = [[c, -s], [s, c]], (x, y)
    return T


def to_body(points: Array, T_world_body: Array) -> Array:
    """Points [N, 3] of the world in a body's frame."""
    return np.asarray((points - T_world_body[:3, 3]) @ T_world_body[:3, :3], np.float64)


def convex_parts(
    vertices: Array, faces: NDArray[np.int64], points: Array, solid: NDArray[np.bool_], config: Config, scratch: Path
) -> tuple[list[Hull], float]:
    """Convex parts of a mesh and how they agree with it: one hull where that is enough, else CoACD's.

    points [N, 3] with solid [N] sample the volume evenly.
    """
    whole = make_hull(vertices)
    best: tuple[list[Hull], float] = ([], 0.0)
    if whole is not None:
        best = [whole], volumetric_iou([whole], points, solid)
    if best[1] < config.convex_iou:
        pieces = decompose(vertices, faces, config.concavity, config.max_parts, config.coacd_seconds, scratch)
        hulls = [hull for hull in (make_hull(p) for p in pieces or []) if hull is not None]
        agreement = volumetric_iou(hulls, points, solid)
        if agreement > best[1]:
            best = hulls, agreement
    return best


def volumetric_iou(hulls: Sequence[Hull], points: Array, solid: NDArray[np.bool_]) -> float:
    """Intersection over union of the hulls' union and a solid sampled at points [N, 3]."""
    filled = np.zeros(len(points), bool)
    for hull in hulls:
        filled |= hull.contains(points)
    return float((filled & solid).sum() / max((filled | solid).sum(), 1))


def photo_colours(
    surface: Surface, number: int, views: Sequence[Silhouette], photos: Sequence[NDArray[np.uint8]]
) -> Array:
    """Colours [V, 3] (0 to 1) of vertices (world frame): mean over the photos that show them as this instance.

    A vertex that no photo shows, such as one of the underside, takes the mean colour of the others.
    """
    vertices, _ = surface
    total, count = np.zeros((len(vertices), 3)), np.zeros(len(vertices))
    for view, photo in zip(views, photos):
        camera = view.camera
        drawn = draw_instances([surface], camera)
        local = (vertices - camera.centre) @ camera.T_world_cam[:3, :3]
        z = np.maximum(local[:, 2], 1e-6)
        uv = np.floor(local[:, :2] / z[:, None] * np.diag(camera.K)[:2] + camera.K[:2, 2]).astype(int)
        rows = np.flatnonzero((uv >= 0).all(1) & (uv < [camera.width, camera.height]).all(1) & (local[:, 2] > 0))
        column, row = uv[rows].T
        shown = (view.ids[row, column] == number) & (np.abs(drawn.depth[row, column] - z[rows]) < VISIBLE_M)
        total[rows[shown]] += photo[row[shown], column[shown]] / 255
        count[rows[shown]] += 1
    seen = count > 0
    mean = total[seen].sum(0) / max(count.sum(), 1)
    return np.where(seen[:, None], total / np.maximum(count, 1)[:, None], mean)


def _asset(
    instance: Instance, body: Body, card: Card, config: Config, out: Path
) -> tuple[dict[str, Any] | None, str | None]:
    """Write one object's files; returns its row of objects.json, or why it is no sound body."""
    import trimesh

    mesh = trimesh.Trimesh(body.surface[0], body.surface[1], process=True)
    if not mesh.is_watertight or mesh.volume <= 0:
        return None, "its mesh is not closed"
    if body.convex_iou < config.convex_iou:
        return (
            None,
            f"its convex parts agree with its mesh only by {body.convex_iou:.2f} (at least {config.convex_iou})",
        )
    mass, density = card.mass_of(float(mesh.volume))
    mesh.density = mass["value"] / float(mesh.volume)
    folder = out / str(instance.id)
    folder.mkdir()
    write_obj(folder / "visual.obj", *body.surface, body.colours)
    files = [f"{instance.id}/collision_{k}.obj" for k in range(len(body.parts))]
    for file, hull in zip(files, body.parts):
        write_hull(out / file, hull)
    row = {
        **asdict(instance),
        "position": body.T_world_body[:3, 3].tolist(),
        "quat": matrix_to_quat(body.T_world_body[:3, :3]).tolist(),
        "visual": f"{instance.id}/visual.obj",
        "collision": files,
        "mass": mass,
        "density": density,
        "com": np.asarray(mesh.center_mass).tolist(),
        "inertia": np.asarray(mesh.moment_inertia).tolist(),
        "friction": card.friction,
        "restitution": card.restitution,
        "volume_m3": float(mesh.volume),
        "convex_iou": body.convex_iou,
        "watertight": True,
        "colour": body.colours.mean(0).tolist(),
        "guessed": ["underside: closed flat at the support, no photo shows it"],
    }
    moved, turned = rests([free_body(row, instance.label, out)])[0]
    if moved > config.settle_m or turned > config.settle_deg:
        return None, f"it does not rest: in 2 s it moves {moved * 1000:.1f} mm and turns {turned:.1f} deg"
    return row, None


def free_body(row: Mapping[str, Any], name: str, folder: Path) -> FreeBody:
    """An object's row of objects.json as a body of the simulator, its files in `folder`."""
    return FreeBody(
        name=name,
        position=row["position"],
        quat=row["quat"],
        mass=row["mass"]["value"],
        com=row["com"],
        inertia=row["inertia"],
        friction=row["friction"]["value"],
        parts=[Mesh(f"{name}_collision_{k}", str(folder / file), "convex") for k, file in enumerate(row["collision"])],
        visual=Mesh(f"{name}_visual", str(folder / row["visual"]), "shell"),
        colour=row["colour"],
    )
