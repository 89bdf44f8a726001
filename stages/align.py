# SPDX-License-Identifier: Apache-2.0
"""Where the world is: up from the support plane, scale as measured, origin at the support's centre.

Each degree of freedom that can be measured is measured, none is left to an optimiser: tilt and height come from the
plane, scale from the scale stage, yaw is free or the marker's. The result is judged on blocks of space that the fit
never saw, with a plane found there independently: a small residual of the fit itself proves nothing.

Writes alignment.json (T_world_sfm, sources, support polygon) and support.npz (points_fit, points_check, world frame).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import CaptureError
from real2sim.sim.cameras import Camera, read_cameras
from real2sim.sim.gates import Gate
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import Similarity
from real2sim.stages.align_check import check_gates
from real2sim.stages.contract import Progress, Result, above_zero, in_range
from real2sim.stages.depth_views import DepthView, render_views
from real2sim.stages.plane import Plane, angle_deg, plane_axes
from real2sim.stages.sparse import SparsePoints
from real2sim.stages.support import (
    Evidence,
    camera_up,
    find_planes,
    fit_support,
    gather_evidence,
    inside_polygon,
    merge_dense,
    polygon_centroid,
    support_polygon,
)

VERSION = "1"
OUTLINE_CELL = 0.008  # edge of a cell in which the outline is drawn, over the viewing distance

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Config:
    """How the support is found and how far the alignment may be off."""

    max_level_deg: float = 0.5
    """Threshold of gate `level` [deg]."""
    max_support_m: float = 0.005
    """Threshold of gate `support`: 95th percentile of abs(z) of withheld support points [m]."""
    render_long_side: int = 640
    """Largest side of the depth images that are rendered from the splat [px]."""
    max_error_px: float = 1.0
    """Sparse points with a larger reprojection error take no part [px]."""

    def __post_init__(self) -> None:
        above_zero(self, "max_level_deg", "max_support_m", "max_error_px")
        in_range(self, 32, 8192, "render_long_side")


@dataclass(frozen=True)
class Support:
    """The chosen plane: its frame and outline in the working unit."""

    plane: Plane
    axes: Array  # [3, 3] rows: x, y, up in sfm axes
    origin: Array  # [3]
    polygon: Array  # [M, 2] around the origin
    sigma: float
    angle_sigma_deg: float
    evidence: Evidence  # merged


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Align the reconstruction with gravity and its support; inputs: sfm, scale, splat."""
    cameras = read_cameras(inputs["sfm"] / "cameras.json")
    sparse = SparsePoints.load(inputs["sfm"] / "points.npz")
    scale = json.loads((inputs["scale"] / "scale.json").read_text())
    splat = Splat.load(inputs["splat"] / "splat.ply")
    views, error = render_views(splat, cameras, sparse, config.render_long_side, progress)
    progress.log(f"align: the splat's own depth is off by {error:.2%} at the sparse points (median)")
    result = align(cameras, sparse, views, scale, config, out, progress, error)
    result.metrics["splat_depth_error"] = error
    return result


def align(
    cameras: Sequence[Camera],
    sparse: SparsePoints,
    views: Sequence[DepthView],
    scale: Mapping[str, Any],
    config: Config,
    out: Path,
    progress: Progress,
    depth_error: float = 0.0,
) -> Result:
    """Find the support, write the artifact and judge it; cameras, sparse and views in the sfm frame.

    depth_error: median relative error of the splat's own depth, which decides how much the views weigh.
    """
    resolved = scale["metres_per_unit"] is not None
    factor = float(scale["metres_per_unit"] if resolved else scale["nominal_metres_per_unit"])
    evidence = gather_evidence(cameras, sparse, views, factor, config.max_error_px, depth_error)
    if len(evidence.points) < 50:
        raise CaptureError(
            f"Only {len(evidence.points)} reliable points: photograph a scene with more texture and overlap."
        )
    up, up_sigma, max_angle, up_from = _up_prior(cameras, scale)
    planes = find_planes(evidence, cameras, factor, up, max_angle)
    progress.log(f"{len(planes)} planes could be a support; up so far from {up_from} (± {up_sigma:.1f} deg)")
    support = next(filter(None, (_delimit(evidence, p) for p, f in planes if f["eligible"])), None)
    if support is None:
        return _without_support(evidence, factor, scale, (up, up_sigma, up_from), planes, out)
    axes, yaw = _yaw(support, scale.get("marker"), cameras, factor)
    turn = axes @ support.axes.T
    T = Similarity(factor, axes, -axes @ support.origin)
    polygon = support.polygon @ turn[:2, :2].T
    gates, points_check, facts = check_gates(evidence, T, polygon, axes @ up, max_angle, config, resolved)
    used = support.evidence.select(~support.evidence.withheld)
    fit = used.points[np.abs(support.plane.height(used.points)) < 3 * support.sigma] @ axes.T + T.translation
    np.savez(out / "support.npz", points_fit=fit, points_check=points_check)
    sigma_deg = float(np.hypot(support.angle_sigma_deg, gates[0].value or 0.0))
    sources = {
        "gravity": {
            "from": "support_plane",
            "uncertainty_deg": sigma_deg,
            "angle_to_prior_deg": angle_deg(axes[2], up),
        },
        "scale": {"from": scale["from"], "relative_uncertainty": scale["relative_uncertainty"]},
        "yaw": yaw,
        "origin": {"from": "support_centre"},
    }
    _write(out, T, sources, polygon)
    facts |= {
        "fit_points": len(fit),
        "fit_sigma_m": support.sigma,
        "up_prior": up_from,
        "planes": [f for _, f in planes],
    }
    facts |= {"polygon_points": len(polygon), "viewing_distance_m": evidence.distance, "scale_resolved": resolved}
    return Result(
        metrics={"sources": sources, **facts}, gates=gates, backend="support_plane", notes=_tilt_note(up_from, up, axes)
    )


def _tilt_note(up_from: str, up: Array, axes: Array) -> list[str]:
    tilt = angle_deg(axes[2], up)
    if up_from == "poses" and tilt > 5:
        return [
            f"The support is tilted {tilt:.1f} deg against the gravity that came with the poses; the support decides."
        ]
    return []


def _up_prior(cameras: Sequence[Camera], scale: Mapping[str, Any]) -> tuple[Array, float, float, str]:
    """Up [3], its sigma [deg], how far a support may be from it [deg], and where it comes from."""
    gravity = scale.get("gravity")
    if gravity:
        return np.asarray(gravity["up_sfm"], np.float64), 1.0, 20.0, str(gravity["from"])
    return *camera_up(cameras), "camera_up"


def _delimit(evidence: Evidence, plane: Plane) -> Support | None:
    """Refine a plane and find the support's outline on it; None where nothing connected is left.

    The second fit takes only what lies within the outline of the first: a wall or a floor far away that happens to
    cross the plane's height is not the support, and its lever arm would tilt it.
    """
    merged = merge_dense(evidence, plane)
    refined, sigma, angle_sigma = fit_support(merged, plane)
    outline = _outline(evidence, refined)
    if outline is None:
        return None
    on_plane = np.stack([merged.points @ v for v in plane_axes(refined.normal)], 1)
    merged = merged.select(inside_polygon(on_plane, outline))
    refined, sigma, angle_sigma = fit_support(merged, refined)
    outline = _outline(evidence, refined)
    if outline is None:
        return None
    x, y = plane_axes(refined.normal)
    centre = polygon_centroid(outline)
    origin = centre[0] * x + centre[1] * y + refined.offset * refined.normal
    axes = np.stack([x, y, refined.normal])
    return Support(refined, axes, origin, outline - centre, sigma, angle_sigma, merged)


def _outline(evidence: Evidence, plane: Plane) -> Array | None:
    """Outline [M, 2] of the connected support on a plane, in the plane's axes."""
    near = np.abs(plane.height(evidence.points)) < 1.5 * evidence.tolerance
    local = np.stack([evidence.points[near] @ v for v in plane_axes(plane.normal)], 1)
    return support_polygon(local, evidence.weights[near], OUTLINE_CELL * evidence.distance)


def _yaw(
    support: Support, marker: Mapping[str, Any] | None, cameras: Sequence[Camera], factor: float
) -> tuple[Array, dict[str, Any]]:
    """World axes in sfm axes [3, 3] and what fixed the yaw: the marker's first side, else the outline's long side."""
    import cv2

    up = support.axes[2]
    if marker is not None:
        corners = factor * np.asarray(marker["corners_sfm"], np.float64)
        if np.abs(support.plane.height(corners)).max() < 0.3 * np.linalg.norm(corners[1] - corners[0]):
            x = corners[1] - corners[0]
            x -= (x @ up) * up
            x /= np.linalg.norm(x)
            return np.stack([x, np.cross(up, x), up]), {
                "from": "aruco",
                "convention": "x along the marker's first side",
            }
    box = cv2.boxPoints(cv2.minAreaRect(support.polygon.astype(np.float32))).astype(np.float64)
    sides = np.array([box[1] - box[0], box[2] - box[1]])
    side = sides[int(np.argmax(np.linalg.norm(sides, axis=1)))]
    x = (side / np.linalg.norm(side)) @ support.axes[:2]
    behind = factor * np.mean([c.centre for c in cameras], axis=0) - support.origin
    if np.cross(up, x) @ behind > 0:  # most cameras stand at negative y
        x = -x
    return np.stack([x, np.cross(up, x), up]), {"from": "free", "convention": "x along the long side of the support"}


def _without_support(
    evidence: Evidence,
    factor: float,
    scale: Mapping[str, Any],
    prior: tuple[Array, float, str],
    planes: list[tuple[Plane, dict[str, Any]]],
    out: Path,
) -> Result:
    """A wall, a facade: up from the prior, origin in the middle of what is seen; level and support do not apply."""
    up, sigma, up_from = prior
    x, y = plane_axes(up)
    axes = np.stack([x, y, up])
    centre = np.median(evidence.points, axis=0)
    T = Similarity(factor, axes, -axes @ centre)
    sources = {
        "gravity": {"from": up_from, "uncertainty_deg": sigma},
        "scale": {"from": scale["from"], "relative_uncertainty": scale["relative_uncertainty"]},
        "yaw": {"from": "free"},
        "origin": {"from": "scene_centre"},
    }
    _write(out, T, sources, None)
    np.savez(out / "support.npz", points_fit=np.zeros((0, 3)), points_check=np.zeros((0, 3)))
    why = "no plane that the cameras look down on and that is roughly level; a wall is not a support"
    gates = [Gate.not_applicable("level", why), Gate.not_applicable("support", why)]
    metrics = {"sources": sources, "planes": [f for _, f in planes], "viewing_distance_m": evidence.distance}
    note = f"No support: up is taken from {up_from}, uncertain by {sigma:.1f} deg."
    return Result(metrics=metrics, gates=gates, backend=up_from, notes=[note])


def _write(out: Path, T: Similarity, sources: Mapping[str, Any], polygon: Array | None) -> None:
    support = None if polygon is None else {"polygon": np.round(polygon, 6).tolist(), "height": 0.0}
    report = {"T_world_sfm": T.to_json(), "sources": sources, "has_support": polygon is not None, "support": support}
    (out / "alignment.json").write_text(json.dumps(report, indent=1))
