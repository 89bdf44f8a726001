# SPDX-License-Identifier: Apache-2.0
"""The movable objects of a bundle: assets/<label>/ with splat, meshes and asset.json in the body frame, and a thumbnail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from real2sim.sim.cameras import Camera
from real2sim.sim.mjcf import FreeBody
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import Similarity, quat_to_matrix
from real2sim.stages.objects import free_body

THUMBNAIL, FIELD = 256, 1.15  # [px]; the picture's width over the object's
FACTS = ("label", "score", "views", "mass", "density", "com", "inertia", "friction", "restitution", "volume_m3",
         "convex_iou", "watertight", "guessed")  # fmt: skip


def load_parts(inputs: Mapping[str, Path]) -> tuple[list[Splat], list[dict[str, Any]]]:
    """The background's splat and each object's (sfm frame), and the objects' rows; without objects prune's splat."""
    if "background" not in inputs or "objects" not in inputs:
        return [Splat.load(inputs["prune"] / "splat.ply")], []
    rows = json.loads((inputs["objects"] / "objects.json").read_text())["objects"]
    files = ["background.ply", *(f"object_{row['id']}.ply" for row in rows)]
    return [Splat.load(inputs["background"] / file) for file in files], rows


def write_object(row: Mapping[str, Any], splat_world: Splat, inputs: Mapping[str, Path], root: Path) -> FreeBody:
    """Write assets/<label>/ and objects/<label>.png; returns the body for scene.xml, files relative to root."""
    from real2sim.sim.render.rasterize import render
    from real2sim.stages.bundle_pictures import save_jpeg

    label, folder = row["label"], root / "assets" / row["label"]
    folder.mkdir(parents=True)
    T_world_body = Similarity(1.0, quat_to_matrix(row["quat"]), np.asarray(row["position"], np.float64))
    splat = splat_world.transformed(T_world_body.inverse())
    splat.save(folder / "splat.ply")
    shutil.copyfile(inputs["objects"] / row["visual"], folder / "visual.obj")
    files = [f"assets/{label}/collision_{k}.obj" for k in range(len(row["collision"]))]
    for source, target in zip(row["collision"], files):
        shutil.copyfile(inputs["objects"] / source, root / target)
    moved = {**row, "visual": f"assets/{label}/visual.obj", "collision": files}
    facts = {key: row[key] for key in FACTS} | {
        "name": label,
        "static": False,
        "mask_iou": _mask_iou(inputs, row["id"]),
    }
    (folder / "asset.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (root / "objects").mkdir(exist_ok=True)
    picture = render(splat, portrait(splat), background=(1, 1, 1))["rgb"]
    save_jpeg(root / "objects" / f"{label}.jpg", picture)
    return free_body(moved, label, Path())


def _mask_iou(inputs: Mapping[str, Path], number: int) -> float | None:
    """Mean agreement of an object's rendered masks with the photos' on held-out frames; None where none shows it."""
    from real2sim.stages.lift import mean_iou

    return mean_iou(json.loads((inputs["background"] / "heldout.json").read_text())["masks"], number)


def portrait(splat: Splat) -> Camera:
    """A camera that looks down on an object (body frame) from one side and holds all of it."""
    low, high = np.percentile(splat.means, [1, 99], axis=0)
    centre, size = (low + high) / 2, float(np.linalg.norm(high - low))
    z = np.array([-0.55, 0.6, -0.58])
    z /= np.linalg.norm(z)
    x = np.cross(z, [0.0, 0.0, 1.0])
    x /= np.linalg.norm(x)
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = np.stack([x, np.cross(z, x), z], 1), centre - 3 * size * z
    focal = 3 * THUMBNAIL / FIELD
    K = np.array([[focal, 0, THUMBNAIL / 2], [0, focal, THUMBNAIL / 2], [0, 0, 1]])
    return Camera("portrait", THUMBNAIL, THUMBNAIL, K, T)


def object_entry(body: FreeBody) -> dict[str, Any]:
    """An object's row among the bundle's assets."""
    folder = f"assets/{body.name}"
    return {
        "name": body.name,
        "static": False,
        "position": [float(v) for v in body.position],
        "quat": [float(v) for v in body.quat],
        "splat": f"{folder}/splat.ply",
        "mesh": body.visual.file,
        "collision": [mesh.file for mesh in body.parts],
        "asset": f"{folder}/asset.json",
    }
