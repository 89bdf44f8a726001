# SPDX-License-Identifier: Apache-2.0
"""Scale: every source against a scene of known size, and wrong results that the gate must refuse."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from analytic_scene import (
    Scene,
    look_at,
    orbit,
    photograph,
    random_similarity,
    sparse_cloud,
    write_sfm,
)

from real2sim.errors import UsageError
from real2sim.sim.cameras import Camera, read_cameras, write_cameras
from real2sim.sim.transforms import Similarity
from real2sim.stages import scale
from real2sim.stages.contract import Progress
from real2sim.stages.scale_candidate import Candidate, choose, conflicts, scale_gate
from real2sim.stages.scale_depth import DepthModel, observe, scale_from_depth
from real2sim.stages.scale_length import scale_from_lengths
from real2sim.stages.scale_marker import Sighting, detect_markers, scale_from_markers
from real2sim.stages.scale_poses import scale_from_poses
from real2sim.stages.sparse import SparsePoints

UNITS_PER_METRE = 2.7  # of the test's sfm frame
TRUE = 1 / UNITS_PER_METRE
SIZE = 0.14  # printed side of the marker [m]
MARKER_TOLERANCE = 0.004  # the project promises 0.5% on its known-truth capture; the stage has that and some margin
CORNER_TOLERANCE_PX = 0.12  # mean error of a refined corner in a supersampled 8-bit picture
DEPTH_TOLERANCE = 0.004
LENGTH_TOLERANCE = 0.01


@pytest.fixture(scope="module")
def T() -> Similarity:
    return random_similarity(scale=UNITS_PER_METRE)


@pytest.fixture(scope="module")
def marker_views() -> tuple[list[Camera], list[np.ndarray]]:
    cameras = orbit(12, 400, 300)
    return cameras, [photograph(Scene(), c, marker_size=SIZE) for c in cameras]


def _marker_corners(size: float) -> np.ndarray:
    h = size / 2
    return np.array([[-h, h, 0], [h, h, 0], [h, -h, 0], [-h, -h, 0]]) + [0, -0.2, 0]


def _project(camera: Camera, points: np.ndarray) -> np.ndarray:
    local = (points - camera.centre) @ camera.T_world_cam[:3, :3]
    return local[:, :2] / local[:, 2:] * np.diag(camera.K)[:2] + camera.K[:2, 2]


def test_marker_corners_are_found_at_half_integer_pixel_centres(marker_views) -> None:
    errors, bias = [], []
    for camera, image in zip(*marker_views):
        for _, corners in detect_markers(image, "DICT_4X4_50"):
            difference = corners - _project(camera, _marker_corners(SIZE))
            errors.append(np.linalg.norm(difference, axis=1))
            bias.append(difference)
    assert len(errors) >= 8
    assert np.mean(errors) < CORNER_TOLERANCE_PX
    # An OpenCV pixel read as a half-integer one would shift everything by (0.5, 0.5).
    assert np.abs(np.concatenate(bias).mean(0)).max() < 0.05


def _sightings(cameras: list[Camera], images: list[np.ndarray]) -> list[Sighting]:
    return [Sighting(m, i, c) for i, image in enumerate(images) for m, c in detect_markers(image, "DICT_4X4_50")]


def test_marker_gives_the_true_scale_within_its_uncertainty(marker_views, T) -> None:
    cameras, images = marker_views
    found = scale_from_markers(_sightings(cameras, images), [c.transformed(T) for c in cameras], SIZE)
    assert found.metres_per_unit == pytest.approx(TRUE, rel=MARKER_TOLERANCE)
    assert found.check == pytest.approx(TRUE, rel=2 * MARKER_TOLERANCE)
    assert abs(found.metres_per_unit / TRUE - 1) < 3 * found.relative_uncertainty < 0.03
    assert np.allclose(found.detail["corners_sfm"], T.apply(_marker_corners(SIZE)), atol=3e-3 * UNITS_PER_METRE)


def test_marker_survives_misread_views(marker_views, T) -> None:
    cameras, images = marker_views
    sightings = _sightings(cameras, images)
    wrong = [Sighting(s.marker, s.camera, s.corners + 40.0) if i % 4 == 1 else s for i, s in enumerate(sightings)]
    found = scale_from_markers(wrong, [c.transformed(T) for c in cameras], SIZE)
    assert found.metres_per_unit == pytest.approx(TRUE, rel=2 * MARKER_TOLERANCE)


def test_a_marker_that_is_not_square_is_refused(marker_views, T) -> None:
    cameras, _ = marker_views
    stretched = _marker_corners(SIZE) * [1.3, 1, 1]
    sightings = [Sighting(3, i, _project(c, stretched)) for i, c in enumerate(cameras)]
    found = scale_from_markers(sightings, [c.transformed(T) for c in cameras], SIZE)
    assert found.metres_per_unit is None and "not a square" in found.evidence


def test_unknown_dictionary_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="DICT_4X4_50"):
        detect_markers(np.zeros((50, 50), np.uint8), "4x4")


def _given(cameras: list[Camera], noise: float) -> dict[str, list]:
    rng = np.random.default_rng(1)
    given = {}
    for c in cameras:
        pose = c.T_world_cam.copy()
        pose[:3, 3] += rng.normal(0, noise, 3)
        given[c.name] = pose.tolist()
    return given


def test_metric_poses_give_scale_and_the_frame(T) -> None:
    cameras = orbit(24)
    given = _given(cameras, 0.003)
    given["00003"] = np.eye(4).tolist()  # one wrong pose
    found, T_given_sfm = scale_from_poses([c.transformed(T) for c in cameras], given)
    assert abs(found.metres_per_unit / TRUE - 1) < 3 * found.relative_uncertainty < 0.01
    assert np.allclose(T_given_sfm.rotation @ T.rotation, np.eye(3), atol=0.01)


def test_poses_of_another_path_are_refused(T) -> None:
    cameras = orbit(24)
    shuffled = dict(zip([c.name for c in cameras], list(_given(cameras[::-1], 0.0).values())[7:] * 2))
    found, frame = scale_from_poses([c.transformed(T) for c in cameras], shuffled)
    assert found.metres_per_unit is None and frame is None


def _depth_setup(T, depth_camera) -> tuple:
    """Observations, with depth images of a second camera: depth_camera(colour camera) -> depth camera."""
    scene, cameras = Scene(), orbit(10, 320, 240)
    cloud = sparse_cloud(scene, cameras, 3000, 0.3)
    sparse = SparsePoints(**{**cloud, "xyz": T.apply(cloud["xyz"])})
    rng = np.random.default_rng(0)
    images = {}
    for c in cameras:
        depth = scene.depth(depth_camera(c))[0] * 1000 + rng.normal(0, 4, (c.height, c.width))
        raw = np.round(depth).astype(np.uint16)
        raw[rng.random(raw.shape) < 0.02] = 65535
        raw[:20] = 0
        images[c.name] = raw
    return observe([c.transformed(T) for c in cameras], sparse, lambda c: images.get(c.name), 0.001)


def test_registered_depth_gives_the_scale(T) -> None:
    obs = _depth_setup(T, lambda c: c)
    found = scale_from_depth(obs, obs, "auto")
    assert found.metres_per_unit == pytest.approx(TRUE, rel=DEPTH_TOLERANCE)
    assert "registered to colour" in found.evidence and "not registered" not in found.evidence


def _kinect(c: Camera) -> Camera:
    K = c.K.copy()
    K[0, 0] = K[1, 1] = c.K[0, 0] * 1.114
    pose = c.T_world_cam.copy()
    pose[:3, 3] -= 0.025 * pose[:3, 0]
    return Camera(c.name, c.width, c.height, K, pose)


def test_depth_of_another_camera_is_recognised(T) -> None:
    obs = _depth_setup(T, _kinect)
    naive = scale_from_depth(obs, None, "yes")
    found = scale_from_depth(obs, obs, "auto")
    assert "not registered" in found.evidence
    assert found.detail["focal_ratio"] == pytest.approx(1.114, abs=0.03)
    assert found.metres_per_unit == pytest.approx(TRUE, rel=DEPTH_TOLERANCE)
    assert found.detail["spread"][next(k for k in found.detail["spread"] if k.startswith("not"))] < 0.6 * next(
        iter(naive.detail["spread"].values())
    )


def test_no_depth_is_said() -> None:
    assert "no registered frame" in scale_from_depth(None, None, "auto").evidence


@pytest.fixture(scope="module")
def length_setup(T):
    scene, cameras = Scene(), orbit(16, 320, 240)
    images = {c.name: photograph(scene, c) for c in cameras}
    cloud = sparse_cloud(scene, cameras, 4000, 0.3)
    sparse = SparsePoints(**{**cloud, "xyz": T.apply(cloud["xyz"])})
    return cameras, [c.transformed(T) for c in cameras], sparse, images


def _length(setup, views: int) -> Candidate:
    cameras, moved, sparse, images = setup
    ends = np.array([[-0.05, 0.3, 0.0], [0.45, 0.2, 0.0]])  # on the table, in plain view of the frames used
    marks = [{c.name: _project(c, e[None])[0].tolist() for c in cameras[5 : 5 + views]} for e in ends]
    entry = {"length_m": float(np.linalg.norm(ends[0] - ends[1])), "points": marks}
    names = {c.name for c in cameras}
    return scale_from_lengths([entry], moved, sparse, names, lambda _, p: p, lambda c: images[c.name], 1.0)[0]


def test_known_length_in_two_images_is_triangulated(length_setup) -> None:
    found = _length(length_setup, 3)
    assert "triangulated" in found.evidence
    assert found.metres_per_unit == pytest.approx(TRUE, rel=LENGTH_TOLERANCE)


def test_known_length_in_one_image_is_swept(length_setup) -> None:
    found = _length(length_setup, 1)
    assert "plane sweep" in found.evidence
    assert found.metres_per_unit == pytest.approx(TRUE, rel=LENGTH_TOLERANCE)
    assert abs(found.metres_per_unit / TRUE - 1) < 3 * found.relative_uncertainty


def test_marks_on_different_things_are_refused(length_setup) -> None:
    cameras, moved, sparse, images = length_setup
    marks = [{"00005": [100, 100], "00007": [200, 200]}, {"00005": [150, 100]}]
    names = {c.name for c in cameras}
    entry = {"length_m": 0.2, "points": marks}
    found = scale_from_lengths([entry], moved, sparse, names, lambda _, p: p, lambda c: images[c.name], 1.0)[0]
    assert found.metres_per_unit is None and "miss each other" in found.evidence


def test_a_length_of_an_unknown_frame_is_a_usage_error(length_setup) -> None:
    _, moved, sparse, _ = length_setup
    entry = {"length_m": 0.2, "points": [{"nope": [1, 2]}, {"00001": [1, 2]}]}
    with pytest.raises(UsageError, match="nope"):
        scale_from_lengths([entry], moved, sparse, {"00001"}, lambda _, p: p, lambda c: None, 1.0)


def test_a_collapsed_scale_fails_although_its_source_is_sure_of_itself() -> None:
    """A scale of 0.22 of the truth with a fine residual: the withheld evidence and the other source contradict it."""
    collapsed = Candidate("poses", 0.22 * TRUE, 0.002, "rms 3.7 mm", check=TRUE)
    gate = scale_gate(collapsed, [collapsed], 0.02)
    assert not gate.passed and "withheld" in gate.evidence
    marker = Candidate("aruco", TRUE, 0.004, "marker")
    gate = scale_gate(collapsed, [Candidate("poses", 0.22 * TRUE, 0.002, ""), marker], 0.02)
    assert not gate.passed and "aruco says" in gate.evidence


def test_sources_that_agree_within_their_errors_pass() -> None:
    a, b = Candidate("aruco", 1.0, 0.004, "a", check=1.002), Candidate("depth", 1.025, 0.006, "b")
    assert scale_gate(a, [a, b], 0.02).passed
    assert conflicts(1.0, 0.004, [Candidate("depth", 1.08, 0.04, "unsure")]) == []


def test_an_imprecise_source_gives_way_to_a_precise_one() -> None:
    a, b = Candidate("aruco", 1.0, 0.05, "far away"), Candidate("depth", 1.01, 0.006, "b")
    assert choose([a, b], 0.02) is b
    assert choose([a], 0.02) is a and not scale_gate(a, [a], 0.02).passed


def _write_capture(tmp: Path, T: Similarity, frames: dict) -> dict[str, Path]:
    scene, cameras = Scene(), orbit(8)
    write_sfm(tmp / "sfm", cameras, sparse_cloud(scene, cameras, 800, 0.3), T)
    (tmp / "ingest").mkdir()
    rows = [{"name": c.name, "T_world_cam": c.T_world_cam.tolist()} for c in cameras]
    (tmp / "ingest" / "frames.json").write_text(json.dumps({"frames": rows, **frames}))
    (tmp / "ingest" / "measures.json").write_text("{}")
    (tmp / "out").mkdir()
    return {"ingest": tmp / "ingest", "sfm": tmp / "sfm"}


def test_stage_without_any_source_is_unresolved_with_a_nominal_scale(tmp_path, T) -> None:
    inputs = _write_capture(tmp_path, T, {})
    result = scale.run(inputs, scale.Config(), tmp_path / "out", tmp_path, Progress())
    report = json.loads((tmp_path / "out" / "scale.json").read_text())
    assert report["from"] == "unresolved" and report["metres_per_unit"] is None
    assert not result.gates[0].passed and "marker" in result.gates[0].advice
    cloud = np.load(tmp_path / "sfm" / "points.npz")
    centres = np.array([c.centre for c in read_cameras(tmp_path / "sfm" / "cameras.json")])
    distance = np.linalg.norm(cloud["xyz"][cloud["obs_point"]] - centres[cloud["obs_camera"]], axis=1)
    assert np.median(distance) * report["nominal_metres_per_unit"] == pytest.approx(1.0)


def test_stage_with_metric_poses_passes_and_carries_gravity(tmp_path, T) -> None:
    inputs = _write_capture(
        tmp_path, T, {"poses": {"metric": True, "source": "transforms.json"}, "gravity": [0, 0, -9.81]}
    )
    result = scale.run(inputs, scale.Config(), tmp_path / "out", tmp_path, Progress())
    assert result.gates[0].passed and result.backend == "poses"
    assert result.metrics["metres_per_unit"] == pytest.approx(TRUE, rel=1e-6)
    assert np.allclose(result.metrics["gravity"]["up_sfm"], T.rotation @ [0, 0, 1], atol=1e-6)


def test_stage_finds_the_marker_in_undistorted_images(tmp_path, T) -> None:
    inputs = _write_capture(tmp_path, T, {"marker": {"dictionary": "DICT_4X4_50", "size_m": 0.12}})
    cameras = orbit(8, 320, 240)
    (tmp_path / "sfm" / "images").mkdir()
    for c in cameras:
        c.image = f"images/{c.name}.png"
        cv2.imwrite(str(tmp_path / "sfm" / c.image), photograph(Scene(), c, marker_size=0.12))
    write_cameras(tmp_path / "sfm" / "cameras.json", [c.transformed(T) for c in cameras], "sfm")
    result = scale.run(inputs, scale.Config(), tmp_path / "out", tmp_path, Progress())
    assert result.backend == "aruco"
    assert result.metrics["metres_per_unit"] == pytest.approx(TRUE, rel=2 * MARKER_TOLERANCE)
    assert len(result.metrics["marker"]["corners_sfm"]) == 4


def test_depth_model_is_identity_by_default() -> None:
    assert DepthModel() == DepthModel(1.0, (0.0, 0.0), 0.0)
    assert look_at(np.array([1.0, 0, 1]), np.zeros(3))[2, 1] < 0  # the camera's y axis points down
