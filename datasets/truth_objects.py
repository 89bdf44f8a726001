# SPDX-License-Identifier: Apache-2.0
"""A bundle's movable objects compared with those of a known-truth capture: place, shape, volume, masks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.datasets.truth import Truth, matched_cameras, pose_errors, rotation_angle
from real2sim.sim.bundle import Bundle, body_pose, read_bundle
from real2sim.sim.cameras import Camera
from real2sim.sim.transforms import Similarity

Array = NDArray[np.float64]
REACH = 0.06  # [m] between the centres of a true object and of one that is taken for it
SAMPLES = 20_000  # points on each surface; neighbours on a mug are then 1.5 mm apart
SEEN_M = 0.003  # a true point is visible where the true depth map agrees within this [m]
FOOT_M = 0.003  # points of a found surface below this are its closed underside, which no photo shows


@dataclass
class Found:
    """One true object and what the bundle has of it. Lengths in metres, angles in degrees; None: not measured.

    centre: distance of the centres of volume; turn: angle to the nearest of the shape's own symmetries (boxes and books
    only); chamfer: mean of the mean distances visible true surface -> found surface and found surface above its foot ->
    true surface; volume: relative error, positive where too large; mask_iou: mean over the frames in which at least
    0.1% of the pixels show it, of the masks that the scene was cut by.
    """

    name: str
    shape: str
    asset: str | None = None
    centre: float | None = None
    turn: float | None = None
    chamfer: float | None = None
    volume: float | None = None
    mask_iou: float | None = None


@dataclass
class Comparison:
    """objects: a row for each true object; extra: movable assets that are none of them; T_true_est: bundle -> truth."""

    objects: list[Found]
    extra: list[str]
    T_true_est: Similarity

    def to_json(self) -> dict[str, Any]:
        return {"objects": [asdict(o) for o in self.objects], "extra": self.extra}


def compare_objects(bundle: Path, truth: Truth, masks: Path | None = None) -> Comparison:
    """Match the bundle's movable assets with the true objects and measure each pair.

    masks: the folder `masks/` of the segment artifact, id maps by camera name, whose ids end the assets' names.
    """
    import trimesh
    from scipy.optimize import linear_sum_assignment

    read = read_bundle(bundle)
    cameras = matched_cameras(read.root / "cameras.json", truth)
    names = sorted(cameras)
    T = pose_errors([cameras[n] for n in names], [truth.cameras[n] for n in names], list(truth.cameras.values()))
    rows = json.loads((truth.folder / "objects.json").read_text())["objects"]
    solids = {a["name"]: _asset_mesh(read, a, T.T_true_est) for a in read.movable}
    true = [trimesh.load_mesh(truth.folder / r["mesh"]).apply_transform(np.array(r["T_world_body"])) for r in rows]
    centres = np.array([np.array(r["T_world_body"]) @ [*r["com"], 1.0] for r in rows]).reshape(-1, 4)[:, :3]
    there = np.array([m.center_mass for m in solids.values()]).reshape(-1, 3)
    apart = np.linalg.norm(centres[:, None] - there[None], axis=-1)
    pairs = [(i, j) for i, j in zip(*linear_sum_assignment(np.minimum(apart, 1e3))) if apart[i, j] < REACH]
    found = [Found(r["name"], r["shape"]) for r in rows]
    assets = list(solids)
    for i, j in pairs:
        row, mesh = found[i], solids[assets[j]]
        row.asset, row.centre = assets[j], float(apart[i, j])
        row.volume = float(mesh.volume / rows[i]["volume"] - 1)
        row.chamfer = chamfer(mesh, true[i], truth)
        if rows[i]["shape"] in ("box", "book"):
            R = T.T_true_est.rotation @ body_pose(read.movable[j]).rotation
            row.turn = turned(R, np.array(rows[i]["T_world_body"])[:3, :3])
        if masks is not None:
            row.mask_iou = mask_iou(masks, int(assets[j].rpartition("_")[2]), rows[i]["id"], cameras, truth)
    taken = {assets[j] for _, j in pairs}
    return Comparison(found, [name for name in assets if name not in taken], T.T_true_est)


def _asset_mesh(bundle: Bundle, asset: dict[str, Any], T_true_est: Similarity) -> Any:
    import trimesh

    mesh = trimesh.load_mesh(bundle.path(asset["mesh"]))
    mesh.vertices = T_true_est.apply(body_pose(asset).apply(np.asarray(mesh.vertices, np.float64)))
    return mesh


def turned(R: Array, true: Array) -> float:
    """Angle [deg] between two orientations of a cuboid that stands, over its four yaws of 90 degrees."""
    quarter = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    turns = [np.linalg.matrix_power(quarter, k) for k in range(4)]
    return float(np.degrees(min(rotation_angle(R @ q, true) for q in turns)))


def chamfer(found: Any, true: Any, truth: Truth) -> float:
    """The distance of two surfaces [m], see `Found`."""
    import trimesh
    from scipy.spatial import cKDTree

    on_true, _ = trimesh.sample.sample_surface(true, SAMPLES, seed=0)
    on_found, _ = trimesh.sample.sample_surface(found, SAMPLES, seed=1)
    seen = visible(on_true, truth)
    above = on_found[on_found[:, 2] > on_found[:, 2].min() + FOOT_M]
    if not seen.any() or not len(above):
        return float("inf")
    there = cKDTree(on_found).query(on_true[seen])[0].mean()
    back = cKDTree(on_true).query(above)[0].mean()
    return float((there + back) / 2)


def visible(points: Array, truth: Truth) -> NDArray[np.bool_]:
    """Which points [N, 3] of the true scene at least one frame shows; frames without lens distortion."""
    seen = np.zeros(len(points), bool)
    for name, camera in truth.cameras.items():
        local = (points - camera.centre) @ camera.T_world_cam[:3, :3]
        uv = (local @ camera.K.T)[:, :2] / np.maximum(local[:, 2:], 1e-9)
        column, row = np.floor(uv).astype(int).T
        inside = (local[:, 2] > 0) & (column >= 0) & (row >= 0) & (column < camera.width) & (row < camera.height)
        depth = truth.depth(name)
        seen[inside] |= np.abs(depth[row[inside], column[inside]] - local[inside, 2]) < SEEN_M
    return seen


def mask_iou(folder: Path, number: int, true_id: int, cameras: dict[str, Camera], truth: Truth) -> float | None:
    """Mean over frames of the intersection over union of an instance's masks with the true id maps, of equal size."""
    import cv2

    values = []
    for name, camera in cameras.items():
        true = truth.ids(name) == true_id
        mask = cv2.imread(str(folder / f"{camera.name}.png"), cv2.IMREAD_UNCHANGED)
        if mask is None or mask.shape != true.shape:
            return None
        if true.mean() > 0.001:
            values.append(float((true & (mask == number)).sum() / (true | (mask == number)).sum()))
    return float(np.mean(values)) if values else None
