# SPDX-License-Identifier: Apache-2.0
"""segment: the things that stand on the support, with a mask in every photo and one identity across all of them.

Without weights the splat itself says where things are: space above the support that no view sees through, in connected
pieces. Each piece is drawn into the photos, its outline moved to the photo's edges, the solid carved again from all
outlines, and once more drawn and refined: what one photo gets wrong the others outvote.

Writes instances.json, masks/, solids/ (stages/instances.py) and preview.png.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera, read_cameras
from real2sim.sim.transforms import Similarity
from real2sim.stages.collision import unevenness
from real2sim.stages.collision_objects import find_things
from real2sim.stages.contract import Progress, Result, above_zero, in_range
from real2sim.stages.instances import MOST, Instance, Instances, paint, write_instances
from real2sim.stages.preview import write_png
from real2sim.stages.silhouettes import Silhouette, Surface, carve, draw_instances, iou, refine, surface_of
from real2sim.stages.solid import Solid
from real2sim.stages.solid_bound import solid_bound

VERSION = "1"

Array = NDArray[np.float64]

BANDS_PX = (5, 3)  # how far an outline may move on the photo, first and second time, at a long side of 640
MARGIN = 0.012  # around a piece, in which its outline may have to grow [m]
PREVIEWS = 3
UNEVEN = 3.0  # a thing is this many times higher than the unevenness of the support


@dataclass(frozen=True)
class Config:
    """How things are found. Lengths are metres."""

    backend: Literal["auto", "geometric", "none"] = "auto"
    """Who finds the things; auto: geometric. none: the whole scene stays one rigid piece."""
    min_height_m: float = 0.012
    """Things on the support lower than this, or than three times the support's own unevenness, stay part of it [m]."""
    min_volume_cm3: float = 8.0
    """Things of less volume stay part of the background [cm3]."""
    max_size_m: float = 0.5
    """Things that are longer than this are furniture and stay part of the background [m]."""
    min_views: int = 4
    """Photos that must show a thing."""
    min_score: float = 0.75
    """Least agreement of a thing's masks with its solid, mean intersection over union, over the photos that show it."""
    max_instances: int = 32
    """Most things; the largest count."""

    def __post_init__(self) -> None:
        above_zero(self, "min_height_m", "min_volume_cm3", "max_size_m", "min_views", "max_instances")
        in_range(self, 0, 1, "min_score")


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Find instances; inputs: sfm, align, mesh."""
    alignment = json.loads((inputs["align"] / "alignment.json").read_text())
    T_world_sfm = Similarity.from_json(alignment["T_world_sfm"])
    cameras = [c.transformed(T_world_sfm) for c in read_cameras(inputs["sfm"] / "cameras.json")]
    if config.backend == "none" or not alignment["has_support"]:
        why = (
            "segment.backend is none" if config.backend == "none" else "the scene has no support for things to stand on"
        )
        progress.log(f"segment: no objects: {why}")
        write_instances(out, Instances([], cameras, [], {}), "none")
        return Result({"instances": 0}, [], "none", [f"No objects: {why}."])
    progress.log("segment: geometric (what stands on the support, from the splat's depth; needs no weights)")
    photos = [read_photo(inputs["sfm"], camera) for camera in cameras]
    solid = Solid.load(inputs["mesh"] / "solid.npz")
    height = max(config.min_height_m, UNEVEN * unevenness(inputs["align"] / "support.npz"))
    polygon = np.array(alignment["support"]["polygon"])
    things, notes = find_things(solid, polygon, 0.004, height, config.min_volume_cm3 * 1e-6)
    surfaces = [(t.vertices, t.faces) for t in things if np.ptp(t.vertices, axis=0).max() <= config.max_size_m]
    if len(surfaces) < len(things):
        notes.append(
            f"{len(things) - len(surfaces)} things longer than {config.max_size_m} m stay part of the background"
        )
    views, surfaces = match(surfaces[: min(MOST, config.max_instances)], solid, cameras, photos, progress)
    found, more = judge(views, surfaces, config)
    write_instances(out, found, "geometric")
    if found.rows:
        write_png(out / "preview.png", _previews(found, photos))
    metrics = {"instances": len(found.rows), "rows": [row.__dict__ for row in found.rows]}
    return Result(metrics, [], "geometric", [*notes, *more])


def read_photo(sfm: Path, camera: Camera) -> NDArray[np.uint8]:
    """A camera's photo, RGB [H, W, 3]."""
    import cv2

    return np.asarray(cv2.imread(str(sfm / str(camera.image)), cv2.IMREAD_COLOR_RGB), np.uint8)


def match(
    surfaces: list[Surface], solid: Solid, cameras: Sequence[Camera], photos: Sequence[NDArray[np.uint8]],
    progress: Progress,
) -> tuple[list[Silhouette], list[Surface]]:  # fmt: skip
    """Refined silhouettes of surfaces (world frame) in all photos, and the surfaces carved from them."""
    views: list[Silhouette] = []
    for turn, band in enumerate(BANDS_PX):
        views = []
        for i, (camera, photo) in enumerate(zip(cameras, photos)):
            width = max(2, round(band * max(camera.width, camera.height) / 640))
            views.append(refine(photo, draw_instances(surfaces, camera), width))
            progress.update(turn * len(cameras) + i + 1, len(BANDS_PX) * len(cameras), step="outlines")
        surfaces = [recarve(n, surface, solid, views) for n, surface in enumerate(surfaces, start=1)]
    return views, surfaces


def recarve(number: int, surface: Surface, solid: Solid, views: Sequence[Silhouette]) -> Surface:
    """The surface of an instance carved from its silhouettes, within its piece of the solid and a margin."""
    low, high = surface[0].min(0) - MARGIN, surface[0].max(0) + MARGIN
    low[2] = 0.0
    voxel = max(0.0015, float((high - low).max()) / 48)
    bound = solid_bound(solid, low, high, voxel)
    carved = surface_of(carve(number, views, low, bound, voxel), low, voxel)
    return carved if len(carved[1]) else surface


def judge(views: Sequence[Silhouette], surfaces: list[Surface], config: Config) -> tuple[Instances, list[str]]:
    """Keep the instances whose masks agree with their solid in enough photos, numbered from 1 by size."""
    drawn = [draw_instances(surfaces, view.camera) for view in views]
    rows: list[Instance] = []
    kept: dict[int, Surface] = {}
    notes: list[str] = []
    renumber = np.zeros(256, np.uint8)
    for number, surface in enumerate(surfaces, start=1):
        pairs = [(v.ids == number, d.ids == number) for v, d in zip(views, drawn)]
        scores = [iou(a, b) for a, b in pairs if b.sum() >= 60]
        score = float(np.mean(scores)) if scores else 0.0
        if len(scores) < config.min_views or score < config.min_score:
            centre = surface[0].mean(0).round(2).tolist()
            notes.append(
                f"a thing at {centre} m stays part of the background: masks agree {score:.2f} in {len(scores)}"
            )
            continue
        new = len(rows) + 1
        renumber[number], kept[new] = new, surface
        rows.append(Instance(new, f"object_{new}", round(score, 4), len(scores)))
    ids = [renumber[view.ids] for view in views]
    return Instances(rows, [view.camera for view in views], ids, kept), notes


def _previews(found: Instances, photos: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    chosen = np.linspace(0, len(photos) - 1, min(PREVIEWS, len(photos))).astype(int)
    return [paint(photos[i], found.ids[i]) for i in chosen]
