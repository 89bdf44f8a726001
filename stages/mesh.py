# SPDX-License-Identifier: Apache-2.0
"""The scene's surface: depth rendered from the splat in every camera, fused, and extracted as a triangle mesh.

Two resolutions: fine around the support, coarse for the room behind it. Beside the surface, the space above the
support is carved (solid.npz), because things that can be collided with need an inside.

Writes background.ply (world frame, metres, vertex colours), solid.npz, rays.npz and preview.png.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import CaptureError
from real2sim.sim.cameras import read_cameras
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import Similarity
from real2sim.stages.contract import Progress, Result, in_range
from real2sim.stages.depth_views import DepthView, project_depth, render_views
from real2sim.stages.preview import overview_cameras, shade, write_png
from real2sim.stages.solid import Solid, carve
from real2sim.stages.sparse import SparsePoints
from real2sim.stages.support import inside_polygon
from real2sim.stages.tsdf import dense, extract_surface, fuse
from real2sim.stages.tsdf_open3d import fuse_open3d

VERSION = "1"

Array = NDArray[np.float64]
Faces = NDArray[np.int64]

MAX_CELLS = 24_000_000  # of one dense grid: 4 + 1 bytes each, twice for a moment
FINE_CELLS, COARSE_CELLS, SOLID_CELLS = 256, 160, 320  # along the longest side, where the voxel is automatic
MIN_COMPONENT = 10.0  # a component smaller than a square of this many voxels is dust
RAYS = 24_000  # of all views together, kept for the collision stage
VISIBLE = 0.03  # a view sees a vertex when its depth agrees within this ratio


@dataclass(frozen=True)
class Config:
    """How the surface is fused."""

    backend: Literal["numpy", "open3d"] = "numpy"
    """Who fuses the surface; open3d must be installed."""
    voxel_m: float = 0.0
    """Edge of a voxel around the support [m]; 0: the region's longest side / 256."""
    render_long_side: int = 640
    """Largest side of the depth images that are rendered from the splat [px]."""
    margin: float = 0.12
    """How far the fine region reaches beyond the support, over the support's longest side."""

    def __post_init__(self) -> None:
        in_range(self, 0, float("inf"), "voxel_m", "margin")
        in_range(self, 32, 8192, "render_long_side")


@dataclass(frozen=True)
class Region:
    """An axis-aligned box in the world and its voxel [m]."""

    low: Array
    high: Array
    voxel: float


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Fuse the splat's depth; inputs: sfm, splat, align."""
    cameras = read_cameras(inputs["sfm"] / "cameras.json")
    alignment = json.loads((inputs["align"] / "alignment.json").read_text())
    T = Similarity.from_json(alignment["T_world_sfm"])
    splat = Splat.load(inputs["splat"] / "splat.ply")
    sparse = SparsePoints.load(inputs["sfm"] / "points.npz")
    views, error = render_views(splat, cameras, sparse, config.render_long_side, progress)
    polygon = np.array(alignment["support"]["polygon"]) if alignment["has_support"] else None
    result = build(to_world(views, T), polygon, config, out, progress)
    result.metrics["splat_depth_error"] = error
    return result


def to_world(views: Sequence[DepthView], T_world_sfm: Similarity) -> list[DepthView]:
    """The same views with cameras and depth in metres of the world frame."""
    return [
        DepthView(v.camera.transformed(T_world_sfm), (v.depth * T_world_sfm.scale).astype(np.float32), v.rgb)
        for v in views
    ]


def build(views: Sequence[DepthView], polygon: Array | None, config: Config, out: Path, progress: Progress) -> Result:
    """Fuse views of the world frame, write the artifact; polygon: the support's outline [M, 2] or None."""
    points = np.concatenate([v.points(3)[0] for v in views])
    if len(points) < 1000:
        raise CaptureError(
            f"The splat shows a surface in only {len(points)} sampled pixels: train it longer or photograph more views."
        )
    near, far = choose_regions(points, polygon, config)
    progress.log(f"mesh: {config.backend}, voxels of {near.voxel * 1000:.1f} mm near and {far.voxel * 1000:.0f} mm far")
    parts = []
    for region, min_views in ((near, 2), (far, 1)):
        vertices, faces = _surface(views, region, config.backend, min_views)
        parts.append(drop_dust(vertices, faces, (MIN_COMPONENT * region.voxel) ** 2))
    vertices, faces = join(parts[0], parts[1], near, far)
    if not len(faces):
        raise CaptureError("No surface could be fused: no two views of the splat agree on where anything is.")
    colours = colour_vertices(views, vertices)
    _write_ply(out / "background.ply", vertices, faces, colours)
    write_rays(out / "rays.npz", views)
    solid = carve_above(views, points, polygon)
    if solid is not None:
        solid.save(out / "solid.npz")
    cameras = overview_cameras([v.camera for v in views], np.median(points, axis=0) if polygon is None else np.zeros(3))
    write_png(out / "preview.png", [shade(vertices, faces, colours[faces].mean(1), c) for c in cameras])
    metrics = _metrics(vertices, faces, near, far, solid)
    return Result(metrics=metrics, backend=config.backend)


def _metrics(vertices: Array, faces: Faces, near: Region, far: Region, solid: Solid | None) -> dict[str, Any]:
    edges = np.sort(faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    _, uses = np.unique(edges, axis=0, return_counts=True)
    return {
        "vertices": len(vertices),
        "triangles": len(faces),
        "watertight": bool((uses == 2).all()),
        "voxel_m": near.voxel,
        "far_voxel_m": far.voxel,
        "solid_voxel_m": solid.voxel if solid else None,
        "near_box_m": [near.low.tolist(), near.high.tolist()],
        "far_box_m": [far.low.tolist(), far.high.tolist()],
    }


def _capped(low: Array, high: Array, voxel: float) -> float:
    """The voxel, or a larger one where the box would hold too many."""
    return max(voxel, float(np.prod(high - low) / MAX_CELLS) ** (1 / 3))


def choose_regions(points: Array, polygon: Array | None, config: Config) -> tuple[Region, Region]:
    """The fine box around the support (or the middle of the scene) and the coarse box around everything seen [m]."""
    far_low, far_high = np.percentile(points, [0.3, 99.7], axis=0)
    if polygon is None:
        low, high = np.percentile(points, [5, 95], axis=0)
    else:
        size = float(np.ptp(polygon, axis=0).max())
        margin = config.margin * size
        top = _top_of_things(points, polygon, size)
        low = np.r_[polygon.min(0) - margin, -0.12 * size]
        high = np.r_[polygon.max(0) + margin, top + 0.05 * size]
    rim = 0.05 * float((far_high - far_low).max())  # a surface needs room on both sides
    far_low, far_high = np.minimum(far_low - rim, low), np.maximum(far_high + rim, high)
    voxel = _capped(low, high, config.voxel_m or float((high - low).max()) / FINE_CELLS)
    coarse = max(3 * voxel, float((far_high - far_low).max()) / COARSE_CELLS)
    return Region(low, high, voxel), Region(far_low, far_high, _capped(far_low, far_high, coarse))


def _top_of_things(points: Array, polygon: Array, size: float) -> float:
    """Height [m] of what stands on the support, at most its size."""
    above = inside_polygon(points[:, :2], polygon) & (points[:, 2] > 0.01 * size)
    return float(np.clip(np.percentile(points[above, 2], 99.5), 0.05 * size, size)) if above.sum() > 20 else 0.1 * size


def carve_above(views: Sequence[DepthView], points: Array, polygon: Array | None) -> Solid | None:
    """The solid above the support's outline; None without a support."""
    if polygon is None:
        return None
    size = float(np.ptp(polygon, axis=0).max())
    low = np.r_[polygon.min(0), 0.0]
    high = np.r_[polygon.max(0), _top_of_things(points, polygon, size) + 0.03 * size]
    return carve(views, low, high, _capped(low, high, size / SOLID_CELLS))


def _surface(views: Sequence[DepthView], region: Region, backend: str, min_views: int) -> tuple[Array, Faces]:
    if backend == "open3d":
        return fuse_open3d(views, region.low, region.high, region.voxel, min_views)
    volume = fuse(views, region.low, region.high, region.voxel)
    return extract_surface(*dense(volume, min_views), volume.low, volume.voxel)


def drop_dust(vertices: Array, faces: Faces, min_area: float) -> tuple[Array, Faces]:
    """Without connected components of less area than min_area [m2]; unused vertices go too."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    if not len(faces):
        return vertices, faces
    links = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]]])
    graph = coo_matrix((np.ones(len(links), bool), (links[:, 0], links[:, 1])), shape=(len(vertices),) * 2)
    _, label = connected_components(graph, directed=False)
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2
    kept = faces[np.bincount(label[faces[:, 0]], area, minlength=label.max() + 1)[label[faces[:, 0]]] >= min_area]
    used, index = np.unique(kept, return_inverse=True)
    return vertices[used], index.reshape(-1, 3)


def join(fine: tuple[Array, Faces], coarse: tuple[Array, Faces], near: Region, far: Region) -> tuple[Array, Faces]:
    """The fine mesh, and the coarse one where its triangles lie outside the fine box."""
    vertices, faces = coarse
    centre = vertices[faces].mean(1) if len(faces) else np.zeros((0, 3))
    inset = min(far.voxel, 0.1 * float((near.high - near.low).min()))
    faces = faces[~((centre > near.low + inset) & (centre < near.high - inset)).all(1)]
    used, index = np.unique(faces, return_inverse=True)
    joined = np.concatenate([fine[1], index.reshape(-1, 3) + len(fine[0])])
    return np.concatenate([fine[0], vertices[used]]), joined


def colour_vertices(views: Sequence[DepthView], vertices: Array) -> Array:
    """Colours [V, 3] (0 to 1): mean over the views that see each vertex; grey where none does."""
    total, count = np.zeros((len(vertices), 3)), np.zeros(len(vertices))
    points = vertices.astype(np.float32)
    for view in views:
        z, pixel = project_depth(view, points)
        depth = np.where(pixel >= 0, view.depth.ravel()[pixel], np.nan)
        seen = np.flatnonzero(np.abs(depth - z) < VISIBLE * z)
        total[seen] += view.rgb.reshape(-1, 3)[pixel[seen]]
        count[seen] += 1
    return np.asarray(np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], 0.5), np.float64)


def write_rays(path: Path, views: Sequence[DepthView]) -> None:
    """A sample of the views' trusted rays, against which colliders are fitted: origins [C, 3], camera [R], ends [R, 3]."""
    ends, camera = [], []
    for index, view in enumerate(views):
        stride = max(1, round(np.sqrt(view.depth.size * len(views) / RAYS)))
        points, _ = view.points(stride)
        ends.append(points)
        camera.append(np.full(len(points), index))
    origins = np.array([v.camera.centre for v in views])
    np.savez(path, origins=origins, camera=np.concatenate(camera), ends=np.concatenate(ends))


def _write_ply(path: Path, vertices: Array, faces: Faces, colours: Array) -> None:
    import trimesh

    rgba = np.c_[np.clip(colours * 255, 0, 255).round(), np.full(len(colours), 255)].astype(np.uint8)
    trimesh.Trimesh(vertices, faces, vertex_colors=rgba, process=False).export(path)
