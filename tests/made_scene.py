# SPDX-License-Identifier: Apache-2.0
"""A made-up table with a box on it, as the artifacts that the bundle stage reads: every number is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from real2sim.sim.bundle import bundle_digest
from real2sim.sim.cameras import Camera, write_cameras
from real2sim.sim.gates import Gate
from real2sim.sim.obj import write_obj
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import Similarity, matrix_to_quat
from real2sim.sim.views import look_at
from real2sim.stages.contract import Progress, Result

TABLE = np.array([0.4, 0.3])  # half width and depth [m]
BOX_HALF, BOX_AT = np.array([0.06, 0.05, 0.075]), np.array([0.12, 0.06])
WIDTH, HEIGHT, FOCAL = 160, 120, 150.0
NOISE = 0.02  # of the photos, standard deviation
T_WORLD_SFM = Similarity(
    0.37, np.array([[0.36, 0.48, -0.8], [-0.8, 0.6, 0.0], [0.48, 0.64, 0.6]]), np.array([0.3, -0.2, 0.9])
)
POLYGON = [[-0.4, -0.3], [0.4, -0.3], [0.4, 0.3], [-0.4, 0.3]]


@dataclass(frozen=True)
class Patch:
    """A flat grid of Gaussians: centre [3], half axes u and v [3]."""

    centre: np.ndarray
    u: np.ndarray
    v: np.ndarray


def patches() -> list[Patch]:
    """The table top and the five visible faces of the box."""
    x, y, z = np.eye(3)
    bx, by, bz = BOX_HALF
    middle = np.array([*BOX_AT, bz])
    return [
        Patch(np.zeros(3), TABLE[0] * x, TABLE[1] * y),
        Patch(middle + bz * z, bx * x, by * y),
        *(Patch(middle + side * bx * x, by * y * side, bz * z) for side in (1, -1)),
        *(Patch(middle + side * by * y, -bx * x * side, bz * z) for side in (1, -1)),
    ]


def world_splat(spacing: float = 0.012) -> Splat:
    """Gaussians of the scene, world frame, with harmonics of degree 1 so that a wrong rotation shows."""
    rng = np.random.default_rng(0)
    means, quats, colours = [], [], []
    for k, patch in enumerate(patches()):
        half = [np.linalg.norm(patch.u), np.linalg.norm(patch.v)]
        steps = [np.arange(-h + spacing / 2, h, spacing) / h for h in half]
        a, b = (g.ravel()[:, None] for g in np.meshgrid(*steps))
        # Off the grid, so that no two Gaussians are equally far from a camera and their order is certain.
        a, b = (g + rng.uniform(-0.2, 0.2, g.shape) * spacing / h for g, h in zip((a, b), half))
        means.append(patch.centre + a * patch.u + b * patch.v)
        R = np.stack([patch.u / half[0], patch.v / half[1], np.cross(patch.u / half[0], patch.v / half[1])], -1)
        quats.append(np.tile(matrix_to_quat(R), (len(a), 1)))
        checks = (np.floor(means[-1] / 0.05).sum(-1) % 2)[:, None]
        base = np.array([[0.5, 0.35, 0.25]]) if k == 0 else np.array([[0.2, 0.4, 0.65]])
        colours.append(base + 0.2 * checks)
    mean, colour = np.concatenate(means), np.concatenate(colours)
    n = len(mean)
    shN = np.zeros((n, 3, 3))
    shN[:, 2, 0], shN[:, 0, 2] = 0.15, 0.15
    return Splat(
        means=mean,
        quats=np.concatenate(quats),
        log_scales=np.tile(np.log([0.7 * spacing, 0.7 * spacing, 0.02 * spacing]), (n, 1)),
        logit_opacities=np.full(n, 4.0),
        sh0=((colour - 0.5) / 0.28209479)[:, None],
        shN=shN,
    )


def world_cameras(count: int = 16) -> list[Camera]:
    K = np.array([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]])
    cameras = []
    for i in range(count):
        angle, elevation = 2 * np.pi * i / count, np.radians(30 if i % 2 else 50)
        eye = 0.9 * np.array([np.cos(angle) * np.cos(elevation), np.sin(angle) * np.cos(elevation), np.sin(elevation)])
        cameras.append(Camera(f"{i:05d}", WIDTH, HEIGHT, K, look_at(eye, [0, 0, 0.02]), heldout=i % 8 == 0))
    return cameras


def write_photo(path: Path, camera: Camera, splat: Splat, seed: int) -> None:
    from PIL import Image

    from real2sim.sim.render.rasterize import render

    rng = np.random.default_rng(seed)
    rgb = render(splat, camera)["rgb"] + rng.normal(0, NOISE, (camera.height, camera.width, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((np.clip(rgb, 0, 1) * 255 + 0.5).astype(np.uint8)).save(path)


def box_mesh(centre: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    quads = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
    faces = [[q[0], q[i], q[i + 1]] for q in quads for i in (1, 2)]
    return centre + corners * half, np.array(faces)


def write_mesh(path: Path) -> None:
    from plyfile import PlyData, PlyElement

    top = np.array([[x, y, 0] for x, y in POLYGON])
    box, faces = box_mesh(np.array([*BOX_AT, BOX_HALF[2]]), BOX_HALF)
    xyz = np.concatenate([top, box])
    vertex = np.zeros(len(xyz), [(a, "f4") for a in "xyz"] + [(c, "u1") for c in ("red", "green", "blue")])
    for k, axis in enumerate("xyz"):
        vertex[axis] = xyz[:, k]
    vertex["red"], vertex["green"], vertex["blue"] = 140, 110, 90
    triangles = np.concatenate([[[0, 1, 2], [0, 2, 3]], faces + 4])
    face = np.array([(t.tolist(),) for t in triangles], [("vertex_indices", "i4", (3,))])
    PlyData([PlyElement.describe(vertex, "vertex"), PlyElement.describe(face, "face")]).write(str(path))


def write_artifacts(root: Path) -> dict[str, Path]:
    """Write all artifacts under root; returns the inputs of the bundle stage."""
    names = ("ingest", "sfm", "scale", "splat", "align", "mesh", "collision", "prune")
    inputs = {name: root / name for name in names}
    for path in inputs.values():
        path.mkdir(parents=True)
    splat, cameras = world_splat(), world_cameras()
    to_sfm = T_WORLD_SFM.inverse()
    for i, camera in enumerate(cameras):
        camera.image = f"images/{camera.name}.png"
        write_photo(inputs["sfm"] / camera.image, camera, splat, seed=i)
        write_photo(inputs["ingest"] / camera.image, camera, splat, seed=i)
    write_cameras(inputs["sfm"] / "cameras.json", [c.transformed(to_sfm) for c in cameras], "sfm")
    np.savez(
        inputs["sfm"] / "points.npz",
        xyz=to_sfm.apply(splat.means[::7]),
        rgb=np.full((len(splat.means[::7]), 3), 128, np.uint8),
    )
    moved = splat.transformed(to_sfm)
    moved.save(inputs["splat"] / "splat.ply")
    moved.save(inputs["prune"] / "splat.ply")
    _write_ingest(inputs["ingest"], cameras)
    _write_rest(inputs)
    _write_geometry(inputs)
    provenance = root / "provenance.json"
    gate = Gate.measure("registered", 1.0, 0.8, bound="min", evidence="16 of 16 frames", advice="")
    stage = {
        "stage": "sfm",
        "key": "0" * 64,
        "version": "1",
        "backend": "pycolmap",
        "config": {},
        "gates": [gate.to_json()],
    }
    provenance.write_text(
        json.dumps({"name": "made table", "capture_digest": "c" * 64, "allowed": [], "stages": [stage]})
    )
    return {**inputs, "provenance": provenance}


def _write_ingest(ingest: Path, cameras: list[Camera]) -> None:
    frames = [
        {"name": c.name, "image": c.image, "capture_path": f"photos/IMG_{c.name}.jpg", "source": "photos",
         "width": WIDTH, "height": HEIGHT, "group": "g0", "mask": None, "depth": None, "sharpness": 1.0}
        for c in cameras
    ]  # fmt: skip
    ledger = [{"path": f["capture_path"], "status": "used", "reason": None, "frame": f["name"]} for f in frames]
    ledger.append({"path": "photos/<b>blurred</b>.jpg", "status": "rejected", "reason": "blurred", "frame": None})
    groups = [{"id": "g0", "source": "photos", "width": WIDTH, "height": HEIGHT, "model": "SIMPLE_RADIAL",
               "focal_px": FOCAL, "focal_source": "exif"}]  # fmt: skip
    text = json.dumps({"frames": frames, "groups": groups, "ledger": ledger, "depth": None, "marker": None})
    (ingest / "frames.json").write_text(text)


def _write_rest(inputs: dict[str, Path]) -> None:
    scale = {"metres_per_unit": 0.37, "relative_uncertainty": 0.003, "from": "aruco", "evidence": "a 5 cm marker",
             "nominal_metres_per_unit": 0.4, "candidates": [], "marker": None}  # fmt: skip
    (inputs["scale"] / "scale.json").write_text(json.dumps(scale))
    sources = {"gravity": {"from": "support_plane", "uncertainty_deg": 0.1},
               "scale": {"from": "aruco", "relative_uncertainty": 0.003}, "yaw": {"from": "free"},
               "origin": {"from": "support_centre"}}  # fmt: skip
    support = {"polygon": POLYGON, "height": 0.0}
    alignment = {"T_world_sfm": T_WORLD_SFM.to_json(), "sources": sources, "has_support": True, "support": support}
    (inputs["align"] / "alignment.json").write_text(json.dumps(alignment))
    heldout = {"frames": [{"name": "00000", "psnr": 34.0, "ssim": 0.9}], "psnr": 34.0, "ssim": 0.9}
    (inputs["splat"] / "heldout.json").write_text(json.dumps(heldout))
    rows = [
        {"step": s, "loss": 1 / (1 + s), "psnr": 20 + s / 100, "gaussians": 4000, "seconds": s / 10}
        for s in range(0, 1000, 100)
    ]
    (inputs["splat"] / "history.json").write_text(json.dumps(rows))


def _write_geometry(inputs: dict[str, Path]) -> None:
    write_mesh(inputs["mesh"] / "background.ply")
    slab = {"kind": "slab", "size": [*TABLE, 0.02], "pos": [0, 0, -0.02], "quat": [1, 0, 0, 0], "thickness_m": 0.04}
    write_obj(inputs["collision"] / "part_000.obj", *box_mesh(np.array([*BOX_AT, BOX_HALF[2]]), BOX_HALF))
    (inputs["collision"] / "support.json").write_text(json.dumps(slab))
    parts = [{"file": "part_000.obj", "volume_m3": float(8 * BOX_HALF.prod())}]
    (inputs["collision"] / "collision.json").write_text(
        json.dumps({"support": slab, "parts": parts, "heightfield": None})
    )


def run_bundle_stage(inputs: dict[str, Path], out: Path, **options: Any) -> Result:
    """The bundle stage with few cameras, so that it takes seconds."""
    from real2sim.stages import bundle

    config = bundle.Config(**{"agreement_cameras": 8, "agreement_width": 160, **options})
    return bundle.run(inputs, config, out, out / "scratch", Progress())


def reindex(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change bundle.json and make it consistent again: hashes of what is there, digest."""
    data = json.loads((root / "bundle.json").read_text())
    for name in data["files"]:
        content = (root / name).read_bytes()
        data["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    change(data)
    data["digest"] = bundle_digest(data)
    (root / "bundle.json").write_text(json.dumps(data))
