# SPDX-License-Identifier: Apache-2.0
"""A bundle with a movable object: it loads with a free joint, rests, and takes its Gaussians along when it moves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mujoco
import numpy as np
import pytest
from made_scene import BOX_AT, BOX_HALF, T_WORLD_SFM, box_mesh, run_bundle_stage, world_splat

from real2sim.sim.bundle import read_bundle
from real2sim.sim.obj import write_obj
from real2sim.sim.render.rasterize import render
from real2sim.sim.render.splat import concatenate
from real2sim.sim.scene import load
from real2sim.sim.transforms import Similarity, quat_to_matrix

POSITION_TOLERANCE = 1e-5  # [m]: float32 means went to the reconstruction's frame and back
RGB_TOLERANCE = 2e-3  # the same Gaussians, turned in single precision twice
QUAT = [np.cos(0.2), 0.0, 0.0, np.sin(0.2)]  # of the body's frame: the pose must not be the identity
MOVED = Similarity(1.0, quat_to_matrix([np.cos(0.5), 0, 0, np.sin(0.5)]), np.array([-0.15, -0.1, 0.02]))


@pytest.fixture(scope="module")
def movable(made_artifacts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up table's bundle with its box as a body of its own."""
    root = tmp_path_factory.mktemp("movable")
    inputs = {**made_artifacts, **{name: root / name for name in ("objects", "background", "collision")}}
    shutil.copytree(made_artifacts["collision"], inputs["collision"])
    found = json.loads((inputs["collision"] / "collision.json").read_text())
    (inputs["collision"] / "collision.json").write_text(json.dumps({**found, "parts": []}))
    (inputs["objects"] / "1").mkdir(parents=True)
    inputs["background"].mkdir()
    vertices, faces = box_mesh(np.array([0, 0, BOX_HALF[2]]), BOX_HALF)
    vertices = vertices @ quat_to_matrix(QUAT)  # of the body's axes
    for name in ("visual", "collision_0"):
        write_obj(inputs["objects"] / "1" / f"{name}.obj", vertices, faces, np.full((8, 3), 0.5))
    (inputs["objects"] / "objects.json").write_text(json.dumps({"objects": [row()]}))
    splat = world_splat()
    box = splat.means[:, 2] > 1e-6
    for name, part in (("background", ~box), ("object_1", box)):
        splat.select(part).transformed(T_WORLD_SFM.inverse()).save(inputs["background"] / f"{name}.ply")
    masks = [{"name": "00000", "iou": {"1": 0.95}}]
    (inputs["background"] / "heldout.json").write_text(json.dumps({"masks": masks}))
    out = root / "out"
    out.mkdir()
    run_bundle_stage(inputs, out)
    return out / "bundle"


def row() -> dict[str, object]:
    mass = 0.5
    a, b, c = 2 * BOX_HALF
    inertia = mass / 12 * np.diag([b * b + c * c, a * a + c * c, a * a + b * b])
    R = quat_to_matrix(QUAT)
    one = {"value": mass, "low": 0.2, "high": 1.0, "source": "assumed"}
    return {
        "id": 1, "label": "object_1", "score": 0.95, "views": 16, "note": "", "position": [*BOX_AT, 0.0], "quat": QUAT,
        "visual": "1/visual.obj", "collision": ["1/collision_0.obj"], "mass": one, "density": one,
        "com": [0, 0, BOX_HALF[2]], "inertia": (R.T @ inertia @ R).tolist(), "friction": {**one, "value": 0.5},
        "restitution": {**one, "value": 0.1}, "volume_m3": float(8 * BOX_HALF.prod()), "convex_iou": 1.0,
        "watertight": True, "colour": [0.3, 0.4, 0.6], "guessed": ["underside"],
    }  # fmt: skip


def test_object_is_a_body_of_its_own_that_passes_its_gates(movable: Path) -> None:
    bundle = read_bundle(movable)
    assert [asset["name"] for asset in bundle.movable] == ["object_1"]
    assert (movable / "objects" / "object_1.jpg").is_file()
    gates = {gate.name: gate for gate in bundle.gates}
    for name in ("loads", "drop", "rerender", "masks", "watertight", "convex", "settle", "fall", "shake"):
        assert gates[name].passed and gates[name].value is not None, gates[name]


def test_bundle_gives_all_gaussians_where_they_start(movable: Path) -> None:
    splat, truth = read_bundle(movable).splat(), world_splat()
    assert len(splat) == len(truth)
    assert np.abs(splat.means - truth.means).max() < POSITION_TOLERANCE


def test_moved_object_takes_its_gaussians_and_their_harmonics_along(movable: Path) -> None:
    scene = load(movable)
    camera, body = scene.camera(3), scene.model.body("object_1").id
    pose = MOVED @ scene.pose(body)
    scene.data.qpos[:3], scene.data.qpos[3:7] = pose.translation, Similarity.to_json(pose)["rotation"]
    mujoco.mj_forward(scene.model, scene.data)
    whole = world_splat()
    box = whole.means[:, 2] > 1e-6
    expected = render(concatenate([whole.select(~box), whole.select(box).transformed(MOVED)]), camera)["rgb"]
    got = scene.render(camera)
    assert np.abs(got["rgb"] - expected).mean() < RGB_TOLERANCE
    alone = render(whole.select(box).transformed(MOVED), camera)["alpha"] > 0.9
    assert (got["segmentation"][alone] == body).mean() > 0.95
    assert (got["segmentation"][~alone] != body).mean() > 0.98


def test_object_rests_where_the_capture_saw_it(movable: Path) -> None:
    scene = load(movable)
    before = scene.data.qpos.copy()
    scene.step(500)
    assert np.linalg.norm(scene.data.qpos[:3] - before[:3]) < 0.001
