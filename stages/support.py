# SPDX-License-Identifier: Apache-2.0
"""The support: which plane the things stand on, where it ends, and whether unseen evidence agrees with it.

Lengths are in the working unit (metres, or the nominal unit where the scale is unresolved), axes are the sfm frame's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.stages.depth_views import DepthView
from real2sim.stages.plane import Plane, angle_deg, local_normals, plane_axes, refine_plane, search_plane
from real2sim.stages.sparse import SparsePoints

Array = NDArray[np.float64]

MAX_PLANES = 8
MIN_SHARE = 0.03  # of what the cameras look at; less is not a support
SOLID_POWER = 5  # a level of box tops with the table seen between them is solid to 80%: it must lose clearly
MIN_CAMERAS_ABOVE = 0.9
BLOCK = 0.08  # edge of a withheld block, over the viewing distance
WITHHELD_OF = 3  # one block in three is withheld
DEPTH_POINTS = 60_000
GOOD_DEPTH = 0.01  # relative error of the splat's depth up to which it says as much as the sparse points
NORMAL_VOXEL = 0.015  # edge of the voxels that normals are computed from, over the viewing distance
CELL = 0.02  # edge of a cell in which depths are averaged by their median, over the viewing distance
MIN_CELL_POINTS = 4
OUTLINE_SLACK = 1.6  # cells by which the simplified outline may differ from the drawn one
MIN_KIND_POINTS = 40  # fewer sparse points (or depth cells) on the plane do not tell their own precision


@dataclass(frozen=True)
class Evidence:
    """Points that may lie on a support.

    points [N, 3]; normals of the surface around each, of any sign [N, 3]; weights: how much the cameras look at each,
    sums to 1 [N]; withheld: kept from every fit [N];
    dense: from the splat's depth, else sparse [N]; distance: median camera-to-scene distance.
    """

    points: Array
    normals: Array
    weights: Array
    withheld: NDArray[np.bool_]
    dense: NDArray[np.bool_]
    distance: float

    def select(self, keep: NDArray[np.bool_]) -> Evidence:
        rows = {name: getattr(self, name)[keep] for name in ("points", "normals", "weights", "withheld", "dense")}
        return Evidence(**rows, distance=self.distance)

    @property
    def tolerance(self) -> float:
        """Distance to a plane that counts as on it in the search."""
        return 0.008 * self.distance


def block_withheld(points: Array, edge: float) -> NDArray[np.bool_]:
    """Which points [N, 3] lie in withheld blocks of space: a fixed hash of the block's index."""
    i, j, k = np.floor(points / edge).astype(np.int64).T
    return np.asarray((i * 73856093 ^ j * 19349663 ^ k * 83492791) % WITHHELD_OF == 0)


def centrality(pixels: Array, camera: Camera) -> Array:
    """Weight [N] of pixels [N, 2] by nearness to the image's centre: what is photographed is in the middle."""
    size = np.array([camera.width, camera.height])
    return np.asarray(np.exp(-(((pixels / size - 0.5) / 0.3) ** 2).sum(1) / 2), np.float64)


def gather_evidence(
    cameras: Sequence[Camera],
    sparse: SparsePoints,
    views: Sequence[DepthView],
    scale: float,
    max_error_px: float = 1.0,
    depth_error: float = 0.0,
) -> Evidence:
    """Reliable sparse points and depth points of the splat, in the working unit (scale times the sfm frame's).

    A point weighs as it is near the images' centre and near the cameras. The dense points together weigh as much as
    the sparse ones, or less where the splat's depth is off by more than GOOD_DEPTH (depth_error: relative, median).
    """
    good = sparse.reliable(max_error_px)
    centres = np.array([c.centre for c in cameras])
    range_of = np.linalg.norm(sparse.xyz[sparse.obs_point] - centres[sparse.obs_camera], axis=1)
    weight = np.zeros(len(sparse.xyz))
    for index, camera in enumerate(cameras):
        rows = sparse.obs_camera == index
        np.add.at(weight, sparse.obs_point[rows], centrality(sparse.obs_xy[rows], camera) / range_of[rows])
    parts, weights = [sparse.xyz[good]], [weight[good] / max(weight[good].sum(), 1e-12)]
    total = sum(int(np.isfinite(v.depth).sum()) for v in views)
    stride = max(1, int(np.sqrt(total / DEPTH_POINTS)))
    dense, central = [], []
    for view in views:
        points, pixels = view.points(stride)
        dense.append(points)
        central.append(centrality(pixels, view.camera) / np.linalg.norm(points - view.camera.centre, axis=1))
    if sum(map(len, dense)):
        share = min(1.0, (GOOD_DEPTH / max(depth_error, 1e-9)) ** 2)
        parts.append(np.concatenate(dense))
        weights.append(share * np.concatenate(central) / np.concatenate(central).sum())
    points = scale * np.concatenate(parts)
    distance = scale * float(np.median(range_of))
    is_dense = np.arange(len(points)) >= int(good.sum())
    w = np.concatenate(weights)
    normals = local_normals(points, NORMAL_VOXEL * distance)
    return Evidence(points, normals, w / w.sum(), block_withheld(points, BLOCK * distance), is_dense, distance)


def camera_up(cameras: Sequence[Camera]) -> tuple[Array, float, float]:
    """Up [3] as the camera was held, its uncertainty [deg], and the angle from it at which a support is believed [deg].

    A camera held level has its x axis horizontal whatever its pitch: with enough turning between the views, up is the
    direction that all x axes avoid. With little turning only the mean of the cameras' own up is left.
    """
    mean_up = -np.mean([c.T_world_cam[:3, 1] for c in cameras], axis=0)
    mean_up /= max(float(np.linalg.norm(mean_up)), 1e-12)
    x = np.array([c.T_world_cam[:3, 0] for c in cameras])
    values, axes = np.linalg.eigh(x.T @ x / len(x))
    roll = float(np.degrees(np.sqrt(max(values[0], 0.0))))
    if values[1] > 0.03 and values[1] > 4 * values[0]:
        up = axes[:, 0] * (np.sign(axes[:, 0] @ mean_up) or 1.0)
        if angle_deg(up, mean_up) < 75:
            return up, max(roll / np.sqrt(len(x)) * 2, 0.5), 40.0
    return mean_up, 20.0, 60.0


def focus_point(cameras: Sequence[Camera], scale: float) -> Array | None:
    """Where the optical axes meet [3]; None where they do not (a walk through a room)."""
    centres = scale * np.array([c.centre for c in cameras])
    axes = np.array([c.T_world_cam[:3, 2] for c in cameras])
    P = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    A = P.sum(0)
    if np.linalg.cond(A) > 1e3:
        return None
    focus = np.linalg.solve(A, (P @ centres[:, :, None]).sum(0)[:, 0])
    off = np.linalg.norm((P @ (focus - centres)[:, :, None])[:, :, 0], axis=1)
    ahead = ((focus - centres) * axes).sum(1)
    if (ahead > 0).mean() < 0.9 or np.median(off) > 0.25 * np.median(np.abs(ahead)):
        return None
    return np.asarray(focus, np.float64)


def find_planes(
    evidence: Evidence, cameras: Sequence[Camera], scale: float, up: Array, max_angle_deg: float
) -> list[tuple[Plane, dict[str, Any]]]:
    """Planes that could be the support, best first, each with how it was scored. Withheld points take no part.

    score = share of what the cameras look at x cos^2 of the angle to up x nearness of the point all cameras look at
    x solidity^5.
    """
    centres = scale * np.array([c.centre for c in cameras])
    focus = focus_point(cameras, scale)
    rest = evidence.select(~evidence.withheld)
    total = float(rest.weights.sum())
    found = []
    for index in range(MAX_PLANES):
        reach = 0.3 * evidence.distance
        hit = search_plane(
            rest.points, rest.normals, rest.weights, rest.tolerance, reach, up, max_angle_deg, seed=index
        )
        if hit is None or hit[1] < MIN_SHARE * total:
            break
        plane, weight = hit
        above = float((plane.height(centres) > rest.tolerance).mean())
        angle = angle_deg(plane.normal, up)
        nearness = 1.0
        if focus is not None:
            nearness = 0.1 + 0.9 * float(
                np.exp(-((plane.height(focus[None])[0] / (0.15 * evidence.distance)) ** 2) / 2)
            )
        solid = solidity(rest, plane)
        score = weight / total * np.cos(np.radians(angle)) ** 2 * nearness * solid**SOLID_POWER
        facts = {"share": weight / total, "angle_to_camera_up_deg": angle, "cameras_above": above}
        facts |= {
            "nearness": nearness,
            "solidity": solid,
            "score": float(score),
            "eligible": above >= MIN_CAMERAS_ABOVE,
        }
        found.append((plane, facts))
        taken = np.abs(plane.height(rest.points)) < 1.5 * rest.tolerance
        rest = replace(rest, weights=np.where(taken, 0.0, rest.weights))
    return sorted(found, key=lambda f: (not f[1]["eligible"], -f[1]["score"]))


def solidity(evidence: Evidence, plane: Plane) -> float:
    """Share of what is seen over the plane's main region that does not lie behind it: one sees through no support."""
    import cv2
    from scipy import ndimage

    height = plane.height(evidence.points)
    on = (np.abs(height) < evidence.tolerance) & (evidence.weights > 0)
    x, y = plane_axes(plane.normal)
    local = np.stack([evidence.points @ x, evidence.points @ y], 1)
    if on.sum() < 4:
        return 0.0
    cell = np.floor((local[on] - local[on].min(0)) / (0.06 * evidence.distance)).astype(int)
    count = np.zeros(cell.max(0) + 1)
    np.add.at(count, (cell[:, 0], cell[:, 1]), evidence.weights[on])
    labels, n = ndimage.label(count > 0, np.ones((3, 3)))
    main = int(np.argmax(ndimage.sum_labels(count, labels, np.arange(1, n + 1)))) + 1
    hull = cv2.convexHull(local[on][labels[cell[:, 0], cell[:, 1]] == main].astype(np.float32)).reshape(-1, 2)
    over = inside_polygon(local, hull.astype(np.float64))
    below = over & (height < -2 * evidence.tolerance)
    return 1.0 - float(evidence.weights[below].sum() / max(evidence.weights[over].sum(), 1e-12))


def merge_dense(evidence: Evidence, plane: Plane) -> Evidence:
    """Dense points near a plane replaced by the median of each cell on it: noise of single pixels averages out."""
    x, y = plane_axes(plane.normal)
    edge = CELL * evidence.distance
    near = evidence.dense & (np.abs(plane.height(evidence.points)) < 2 * evidence.tolerance)
    parts = [evidence.select(~evidence.dense)]
    for withheld in (False, True):
        chosen = evidence.select(near & (evidence.withheld == withheld))
        if not len(chosen.points):
            continue
        local = np.stack([chosen.points @ x, chosen.points @ y, plane.height(chosen.points)], 1)
        _, group = np.unique(np.floor(local[:, :2] / edge).astype(np.int64), axis=0, return_inverse=True)
        order = np.lexsort((local[:, 2], group.ravel()))
        starts = np.flatnonzero(np.r_[True, np.diff(group.ravel()[order]) > 0, True])
        count = np.diff(starts)
        middle = local[order][starts[:-1] + count // 2, 2]
        mean = np.add.reduceat(local[order], starts[:-1])[:, :2] / count[:, None]
        weight = np.add.reduceat(chosen.weights[order], starts[:-1])
        full = count >= MIN_CELL_POINTS
        points = mean[full, :1] * x + mean[full, 1:] * y + (middle[full, None] + plane.offset) * plane.normal
        ones = np.ones(int(full.sum()), bool)
        normals = np.tile(plane.normal, (len(points), 1))
        parts.append(Evidence(points, normals, weight[full], ones & withheld, ones, evidence.distance))
    fields = {
        f: np.concatenate([getattr(p, f) for p in parts]) for f in ("points", "normals", "weights", "withheld", "dense")
    }
    return Evidence(**fields, distance=evidence.distance)


def fit_support(evidence: Evidence, plane: Plane) -> tuple[Plane, float, float]:
    """Refine a plane on merged evidence that is not withheld: the plane, its sigma, and the sigma of its angle [deg].

    Sparse points and depth cells weigh as the precision that their scatter about the plane shows, kind by kind.
    """
    used = evidence.select(~evidence.withheld)
    refined, sigma = plane, used.tolerance
    for _ in range(2):
        weights = precision_weights(used, refined)
        refined, sigma = refine_plane(used.points, weights, refined, 1.5 * used.tolerance)
    inliers = used.points[np.abs(refined.height(used.points)) < 3 * sigma]
    if len(inliers) < 6:
        return refined, sigma, 90.0
    spread = np.sqrt(np.linalg.eigvalsh(np.cov(inliers.T))[1])
    return refined, sigma, float(np.degrees(sigma / (max(spread, 1e-9) * np.sqrt(len(inliers)))))


def precision_weights(evidence: Evidence, plane: Plane) -> Array:
    """Weights [N]: each kind shares 1 / its squared scatter about the plane, equal within the kind."""
    height = np.abs(plane.height(evidence.points))
    weights = np.zeros(len(height))
    for kind in (False, True):
        near = (evidence.dense == kind) & (height < 1.5 * evidence.tolerance)
        if near.sum() >= MIN_KIND_POINTS or not (evidence.dense != kind).any():
            scatter = max(float(np.median(height[near])) if near.any() else 1.0, 0.02 * evidence.tolerance)
            weights[evidence.dense == kind] = 1.0 / (scatter**2 * max(int(near.sum()), 1))
    return weights if weights.any() else np.ones(len(height))


def support_mask(local: Array, weights: Array, cell: float) -> tuple[NDArray[np.uint8], Array]:
    """Occupancy of the connected support around points [N, 2] on the plane: mask [H, W] and the corner of cell (0, 0).

    Gaps of a few cells are closed, holes are filled (things stand there), thin tails are cut.
    """
    import cv2
    from scipy import ndimage

    low = local.min(0) - 8 * cell
    index = np.floor((local - low) / cell).astype(int)
    shape = index.max(0) + 9
    count = np.zeros((shape[1], shape[0]), np.float32)
    np.add.at(count, (index[:, 1], index[:, 0]), weights)
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (7, 7))
    mask = cv2.morphologyEx((count > 0).astype(np.uint8), cv2.MORPH_CLOSE, disc)
    mask = cv2.morphologyEx(mask, cv2.MORPH_OPEN, disc)
    labels, n = ndimage.label(mask)
    if n == 0:
        return np.asarray(mask, np.uint8), low
    mass = ndimage.sum_labels(count, labels, np.arange(1, n + 1))
    mask = ndimage.binary_fill_holes(labels == int(np.argmax(mass)) + 1)
    return np.asarray(mask, np.uint8), low


def support_polygon(local: Array, weights: Array, cell: float) -> Array | None:
    """Outline [M, 2], counter-clockwise, of the main support region of points [N, 2] on the plane."""
    import cv2

    if len(local) < 8:
        return None
    mask, low = support_mask(local, weights, cell)
    contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    if not contours:
        return None
    outline = (
        cv2.approxPolyDP(max(contours, key=cv2.contourArea), OUTLINE_SLACK, True).reshape(-1, 2).astype(np.float64)
    )
    if len(outline) < 3:
        return None
    polygon = (outline + 0.5) * cell + low
    return polygon if signed_area(polygon) > 0 else polygon[::-1]


def signed_area(polygon: Array) -> float:
    """Area of a polygon [M, 2], positive where it runs counter-clockwise."""
    x, y = polygon.T
    return float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum() / 2)


def polygon_centroid(polygon: Array) -> Array:
    """Centre of area [2] of a simple polygon [M, 2]."""
    following = np.roll(polygon, -1, axis=0)
    cross = polygon[:, 0] * following[:, 1] - following[:, 0] * polygon[:, 1]
    return np.asarray(((polygon + following) * cross[:, None]).sum(0) / (3 * cross.sum()), np.float64)


def inside_polygon(points: Array, polygon: Array) -> NDArray[np.bool_]:
    """Which points [N, 2] lie inside a polygon [M, 2] (even-odd rule)."""
    inside = np.zeros(len(points), bool)
    for (x0, y0), (x1, y1) in zip(polygon, np.roll(polygon, -1, axis=0)):
        crosses = (points[:, 1] < y0) != (points[:, 1] < y1)
        if y0 != y1:
            inside ^= crosses & (points[:, 0] < x0 + (points[:, 1] - y0) * (x1 - x0) / (y1 - y0))
    return inside
