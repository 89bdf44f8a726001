# SPDX-License-Identifier: Apache-2.0
"""sfm on captures with known truth: right poses, right points, and named refusals where there can be none."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from real2sim.datasets.synthetic import SyntheticConfig, write_capture
from real2sim.errors import CaptureError
from real2sim.sim.cameras import Camera, read_cameras
from real2sim.sim.transforms import Similarity, quat_to_matrix, umeyama
from real2sim.stages import ingest, sfm
from real2sim.stages.contract import Progress, Result
from real2sim.stages.sfm_database import PairStatistics, group_camera
from real2sim.stages.sfm_diagnosis import explain_failure, rotating_pairs
from real2sim.stages.sfm_pairs import choose_pairs, most_similar, neighbours_in_order, vlad
from real2sim.stages.sfm_pycolmap import best_first
from real2sim.stages.sfm_quality import (
    largest_angles,
    parallax_gate,
    registered_gate,
    reprojection_errors,
    reprojection_gate,
)
from real2sim.stages.sparse import SparsePoints
from real2sim.stages.undistort import pinhole_of, write_image, write_map

CAPTURE = SyntheticConfig(frames=12, width=320, height=240, supersample=2, depth=True)
POSITION_TOLERANCE = 0.002  # of the diameter of the true centres; measured 0.0009 at this size
FOCAL_TOLERANCE = 0.01  # measured 0.003
POINT_TOLERANCE = 0.004  # m, median distance of points from the table's top under true poses; a pixel is 3 mm there
EXACT = 1e-9


def run_ingest(capture: Path, folder: Path, poses: Path | None = None, **options: Any) -> Path:
    out, scratch = folder / "ingest", folder / "ingest.scratch"
    for path in (out, scratch):
        path.mkdir(parents=True)
    inputs = {"capture": capture} | ({"poses": poses} if poses else {})
    ingest.run(inputs, ingest.Config(**options), out, scratch, Progress())
    return out


def run_sfm(frames: Path, folder: Path, progress: Progress | None = None, **options: Any) -> tuple[Result, Path]:
    out, scratch = folder / "sfm", folder / "sfm.scratch"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    scratch.mkdir(exist_ok=True)
    return sfm.run({"ingest": frames}, sfm.Config(**options), out, scratch, progress or Progress()), out


def digests(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture with its truth."""
    folder = tmp_path_factory.mktemp("made") / "capture"
    write_capture(CAPTURE, folder)
    return folder


@pytest.fixture(scope="module")
def frames(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its frames."""
    return run_ingest(made / "capture", tmp_path_factory.mktemp("frames"))


@pytest.fixture(scope="module")
def reconstruction(frames: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Its reconstruction."""
    return run_sfm(frames, tmp_path_factory.mktemp("reconstruction"))


def true_cameras(made: Path, frames: Path) -> dict[str, Camera]:
    """True cameras by frame name."""
    truth = {c.name: c for c in read_cameras(made / "truth" / "cameras.json")}
    rows = json.loads((frames / "frames.json").read_text())["frames"]
    return {f["name"]: truth[Path(f["capture_path"]).stem] for f in rows}


def load_points(folder: Path) -> SparsePoints:
    with np.load(folder / "points.npz") as data:
        return SparsePoints(**data)


def fit_to_truth(cameras: Sequence[Camera], truth: dict[str, Camera]) -> tuple[Similarity, float]:
    """The similarity to the true centres, and its RMSE over their diameter."""
    found = np.array([c.centre for c in cameras])
    true = np.array([truth[c.name].centre for c in cameras])
    fit = umeyama(found, true)
    diameter = np.linalg.norm(true[:, None] - true[None], axis=2).max()
    return fit, float(np.sqrt(((fit.apply(found) - true) ** 2).sum(1).mean()) / diameter)


def test_poses_and_focal_length_agree_with_the_truth(
    made: Path, frames: Path, reconstruction: tuple[Result, Path]
) -> None:
    result, out = reconstruction
    cameras, truth = read_cameras(out / "cameras.json"), true_cameras(made, frames)
    assert len(cameras) == CAPTURE.frames == result.metrics["registered"]
    _, error = fit_to_truth(cameras, truth)
    assert error < POSITION_TOLERANCE
    focal = next(iter(truth.values())).K[0, 0]
    assert result.metrics["cameras"][0]["params"][0] == pytest.approx(focal, rel=FOCAL_TOLERANCE)
    assert all(gate.passed for gate in result.gates)
    assert [gate.name for gate in result.gates] == ["registered", "reprojection", "parallax", "consistent", "pairs"]


def test_undistorted_pictures_show_points_where_the_pinhole_puts_them(
    made: Path, frames: Path, reconstruction: tuple[Result, Path]
) -> None:
    _, out = reconstruction
    cameras, truth = read_cameras(out / "cameras.json"), true_cameras(made, frames)
    fit, _ = fit_to_truth(cameras, truth)
    corners = np.array(json.loads((made / "truth" / "truth.json").read_text())["marker"]["corners"])
    detector = cv2.aruco.ArucoDetector(cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_4X4_50))
    errors = []
    for camera in cameras:
        assert camera.distortion == []
        image = cv2.imread(str(out / str(camera.image)))
        assert image is not None and image.shape[:2] == (camera.height, camera.width)
        found, _, _ = detector.detectMarkers(image)
        if len(found) != 1:
            continue
        local = fit.inverse().apply(corners) @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
        projected = local @ camera.K.T
        errors.append(np.abs(projected[:, :2] / projected[:, 2:] - (found[0].reshape(4, 2) + 0.5)).mean())
    assert len(errors) >= 3
    assert np.median(errors) < 1.0  # px; the detector finds corners to about half a pixel


def test_observations_lie_on_projected_points(reconstruction: tuple[Result, Path]) -> None:
    result, out = reconstruction
    cameras, points = read_cameras(out / "cameras.json"), load_points(out)
    errors = reprojection_errors(cameras, points)
    assert errors.max() < 1.2 * sfm.Config().max_error_px  # dropped above, but for the last adjustment's motion
    assert errors.mean() == pytest.approx(result.metrics["reprojection_px"], abs=EXACT)
    assert np.array_equal(np.bincount(points.obs_point), points.track_length)
    assert points.rgb.std() > 5


def test_every_frame_is_listed_and_every_eighth_held_out(reconstruction: tuple[Result, Path]) -> None:
    result, out = reconstruction
    cameras = read_cameras(out / "cameras.json")
    assert [row["name"] for row in result.metrics["frames"]] == [f"{k:05d}" for k in range(CAPTURE.frames)]
    assert [k for k, c in enumerate(cameras) if c.heldout] == [0, 8]
    for picture in ("contact.png", "cameras.png"):
        with Image.open(out / picture) as image:
            assert min(image.size) > 100


def test_depth_is_carried_along_without_mixing_values(frames: Path, reconstruction: tuple[Result, Path]) -> None:
    _, out = reconstruction
    for camera in read_cameras(out / "cameras.json"):
        before = np.asarray(Image.open(frames / f"depth/{camera.name}.png"))
        after = np.asarray(Image.open(out / str(camera.depth)))
        assert after.shape == (camera.height, camera.width) and after.dtype == np.uint16
        assert np.isin(after, before).all()
    assert json.loads((out / "depth.json").read_text())["registered"] == "auto"


class Interrupted(Exception):
    pass


class StopAt(Progress):
    """Progress that stops the run at a step."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.lines: list[str] = []

    def update(self, done: float, total: float, **fields: Any) -> None:
        if fields.get("step") == self.step and done >= total:
            raise Interrupted

    def log(self, message: str) -> None:
        self.lines.append(message)


def test_an_interrupted_run_continues_to_the_same_bytes_and_says_nothing_on_the_terminal(
    frames: Path, reconstruction: tuple[Result, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Interrupted):
        run_sfm(frames, tmp_path, StopAt("matching"))
    progress = StopAt("never")
    result, out = run_sfm(frames, tmp_path, progress)
    assert any("interrupted run" in line for line in progress.lines)
    assert digests(out) == digests(reconstruction[1])
    assert result.metrics == reconstruction[0].metrics
    assert capfd.readouterr() == ("", "")


def test_features_of_other_options_are_not_taken_over(frames: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run_sfm(frames, tmp_path, StopAt("features"), max_features=200)
    progress = StopAt("features")
    with pytest.raises(Interrupted):
        run_sfm(frames, tmp_path, progress, max_features=300)
    assert not progress.lines


def with_poses(made: Path, tmp_path: Path, keep_intrinsics: bool, shuffle: bool = False) -> Path:
    """Frames of the made capture with its true poses given."""
    truth = read_cameras(made / "truth" / "cameras.json")
    poses = [c.T_world_cam.tolist() for c in truth]
    if shuffle:
        poses = poses[5:] + poses[:5]
    flip = np.diag([1.0, -1, -1, 1])
    rows = [
        {"file_path": f"{c.name}.jpg", "transform_matrix": (np.array(T) @ flip).tolist()} for c, T in zip(truth, poses)
    ]
    data: dict[str, Any] = {"frames": rows, "metric": True}
    if keep_intrinsics:
        K = truth[0].K
        data |= {"fl_x": K[0, 0], "fl_y": K[1, 1], "cx": K[0, 2], "cy": K[1, 2], "w": 320, "h": 240, "k1": -0.05}
    (tmp_path / "transforms.json").write_text(json.dumps(data))
    return run_ingest(made / "capture", tmp_path, tmp_path / "transforms.json")


def test_given_poses_stay_and_points_are_triangulated_in_their_frame(made: Path, tmp_path: Path) -> None:
    frames = with_poses(made, tmp_path, keep_intrinsics=True)
    result, out = run_sfm(frames, tmp_path)
    truth = true_cameras(made, frames)
    for camera in read_cameras(out / "cameras.json"):
        assert np.abs(camera.T_world_cam - truth[camera.name].T_world_cam).max() < EXACT
    xyz = load_points(out).xyz
    on_table = (np.abs(xyz[:, 0]) < 0.5) & (np.abs(xyz[:, 1]) < 0.3) & (np.abs(xyz[:, 2]) < 0.03)
    assert on_table.sum() > 50 and np.median(np.abs(xyz[on_table, 2])) < POINT_TOLERANCE
    assert all(gate.passed for gate in result.gates) and "given poses" in result.backend


def test_given_poses_without_intrinsics_fix_the_frame_and_scale(made: Path, tmp_path: Path) -> None:
    frames = with_poses(made, tmp_path, keep_intrinsics=False)
    result, out = run_sfm(frames, tmp_path)
    truth = true_cameras(made, frames)
    cameras = read_cameras(out / "cameras.json")
    worst = max(float(np.linalg.norm(c.centre - truth[c.name].centre)) for c in cameras)
    assert worst < 0.01  # m, of a path 1.8 m wide
    assert result.metrics["pose_fit"]["position_rmse"] < 0.005


def test_given_poses_of_other_images_fail_a_gate_or_are_refused(made: Path, tmp_path: Path) -> None:
    frames = with_poses(made, tmp_path, keep_intrinsics=True, shuffle=True)
    try:
        result, _ = run_sfm(frames, tmp_path)
    except CaptureError:
        return
    assert not all(gate.passed for gate in result.gates)


def test_turning_on_the_spot_is_named_with_advice(tmp_path: Path) -> None:
    write_capture(replace(CAPTURE, path="rotation", frames=8, depth=False), tmp_path / "made")
    frames = run_ingest(tmp_path / "made" / "capture", tmp_path)
    with pytest.raises(CaptureError, match=r"only turned on the spot.*Step sideways"):
        run_sfm(frames, tmp_path)


def plain_capture(folder: Path, pictures: Sequence[NDArray[np.uint8]]) -> Path:
    folder.mkdir()
    for k, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(folder / f"{k}.png")
    return folder


def test_a_scene_without_texture_is_named_with_advice(tmp_path: Path) -> None:
    ramp = np.tile(np.linspace(0, 200, 320)[None, :, None], (240, 1, 3))
    capture = plain_capture(tmp_path / "c", [(ramp + 10 * k).astype(np.uint8) for k in range(4)])
    with pytest.raises(CaptureError, match="too little texture"):
        run_sfm(run_ingest(capture, tmp_path), tmp_path)


def test_photos_of_unrelated_things_are_named_with_advice(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 255, (60, 80, 3), np.uint8) for _ in range(4)]
    pictures = [np.asarray(cv2.resize(n, (320, 240), interpolation=cv2.INTER_CUBIC), np.uint8) for n in noise]
    with pytest.raises(CaptureError, match="must overlap by two thirds"):
        run_sfm(run_ingest(plain_capture(tmp_path / "c", pictures), tmp_path), tmp_path)


def test_two_frames_are_too_few(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 255, (80, 100, 3), np.uint8) for _ in range(2)]
    with pytest.raises(CaptureError, match="2 usable frames; at least 3"):
        run_sfm(run_ingest(plain_capture(tmp_path / "c", pictures), tmp_path), tmp_path)


def test_masked_pixels_give_no_points(made: Path, tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    shutil.copytree(made / "capture", capture)
    mask = np.zeros((CAPTURE.height, CAPTURE.width), np.uint8)
    mask[:, :100] = 255
    (capture / "masks").mkdir()
    for photo in capture.glob("*.jpg"):
        Image.fromarray(mask).save(capture / "masks" / f"{photo.stem}.png")
    _, out = run_sfm(run_ingest(capture, tmp_path), tmp_path)
    cameras, points = read_cameras(out / "cameras.json"), load_points(out)
    assert len(points.obs_xy) > 200
    for k, camera in enumerate(cameras):
        ignored = np.asarray(Image.open(out / str(camera.mask)))
        assert set(np.unique(ignored)) == {0, 255}
        x, y = np.floor(points.obs_xy[points.obs_camera == k]).astype(int).T
        inside = (x >= 0) & (y >= 0) & (x < camera.width) & (y < camera.height)
        assert not ignored[y[inside], x[inside]].any()


# Gates fed with wrong results


class FakeModel:
    def __init__(self, images: int, points: int) -> None:
        self.images, self.points = images, points

    def num_reg_images(self) -> int:
        return self.images

    def num_points3D(self) -> int:
        return self.points


def test_the_model_with_most_images_is_chosen_whatever_its_number() -> None:
    models: Any = {0: FakeModel(3, 900), 1: FakeModel(57, 4000), 2: FakeModel(57, 5000)}
    assert [m.num_points3D() for m in best_first(models)] == [5000, 4000, 900]


def test_three_of_sixty_frames_posed_fails_the_gate_and_lists_the_models() -> None:
    gate = registered_gate(3, 60, [3, 2], 0.8)
    assert not gate.passed and gate.value == pytest.approx(0.05)
    assert "3 of 60" in gate.evidence and "of 2 images" in gate.evidence and gate.advice
    named = registered_gate(48, 60, [48], 0.8, [f"{k}.jpg" for k in range(12)])
    assert named.passed and "0.jpg, 1.jpg" in named.evidence and "and 7 more" in named.evidence


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="heldout_every must be 2 or more, received 1"):
        sfm.Config(heldout_every=1)
    with pytest.raises(ValueError, match="max_features must be above 0, received 0"):
        sfm.Config(max_features=0)
    with pytest.raises(ValueError, match="marker_size_m must be above 0"):
        ingest.Config(marker_size_m=-0.05)


def ring(radius: float, count: int = 8) -> list[Camera]:
    """Cameras on a ring of a given radius at height 0 that look up at (0, 0, 5) and a plate of points there."""
    K = np.array([[500.0, 0, 320], [0, 500.0, 240], [0, 0, 1]])
    cameras = []
    for k in range(count):
        T = np.eye(4)
        T[:3, 3] = [radius * np.cos(k), radius * np.sin(k), 0]
        cameras.append(Camera(f"{k:05d}", 640, 480, K, T))
    return cameras


def seen_by_all(cameras: Sequence[Camera], noise_px: float = 0.0) -> SparsePoints:
    rng = np.random.default_rng(0)
    xyz = np.c_[rng.uniform(-1, 1, (100, 2)), np.full(100, 5.0)]
    rows = []
    for camera in cameras:
        local = xyz @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
        projected = local @ camera.K.T
        rows.append(projected[:, :2] / projected[:, 2:] + rng.normal(0, noise_px, (100, 2)))
    points = np.tile(np.arange(100), len(cameras))
    seen = np.repeat(np.arange(len(cameras)), 100)
    track = np.full(100, len(cameras))
    return SparsePoints(xyz, np.zeros((100, 3), np.uint8), np.zeros(100), track, points, seen, np.concatenate(rows))


def test_the_largest_angle_is_that_of_the_widest_pair() -> None:
    cameras = ring(0.0, 3)
    cameras[1].T_world_cam[:3, 3] = [5, 0, 5]
    cameras[2].T_world_cam[:3, 3] = [1, 0, 0]
    points = SparsePoints(
        np.array([[0.0, 0, 5]]),
        np.zeros((1, 3), np.uint8),
        np.zeros(1),
        np.array([3]),
        np.zeros(3, int),
        np.arange(3),
        np.zeros((3, 2)),
    )
    assert largest_angles(np.array([c.centre for c in cameras]), points) == pytest.approx([90.0])


@pytest.mark.parametrize(("radius", "passed"), [(0.0, False), (0.1, False), (0.5, True)])
def test_cameras_that_hardly_move_fail_the_parallax_gate(radius: float, passed: bool) -> None:
    cameras = ring(radius)
    angles = largest_angles(np.array([c.centre for c in cameras]), seen_by_all(cameras))
    gate = parallax_gate(angles, 4.0)
    assert gate.passed is passed and (passed or "step sideways" in str(gate.advice))


def test_reprojection_is_compared_at_1280_px_and_wrong_poses_fail() -> None:
    cameras = ring(0.5)
    points = seen_by_all(cameras, noise_px=0.5)
    gate = reprojection_gate(cameras, points, 1.5)
    expected = 0.5 * np.sqrt(np.pi / 2) * 2  # mean of a Rayleigh distribution, at twice the size
    assert gate.passed and gate.value == pytest.approx(expected, rel=0.1)
    turned = quat_to_matrix([1, 0, 0.02, 0])
    for camera in cameras:
        camera.T_world_cam[:3, :3] = turned
    assert not reprojection_gate(cameras, points, 1.5).passed
    cameras[0].T_world_cam[:3, 3] = [0, 0, 10]  # points behind it
    assert not reprojection_gate(cameras, points, 1e9).passed


def homography(T_world_cam: NDArray[np.float64], K: NDArray[np.float64], depth: float = 2.0) -> NDArray[np.float64]:
    """From pixels of a camera at the origin to those of another, for the plane z = depth."""
    R = T_world_cam[:3, :3].T
    t = -R @ T_world_cam[:3, 3]
    return K @ (R + np.outer(t, [0, 0, 1]) / depth) @ np.linalg.inv(K)


def test_rotations_are_told_from_motion_before_a_plane_whatever_the_focal_length() -> None:
    K = np.array([[410.0, 0, 320], [0, 410.0, 240], [0, 0, 1]])
    still, moved = {}, {}
    for k in range(1, 7):
        T = np.eye(4)
        T[:3, :3] = quat_to_matrix([1, 0.02 * k, 0.05 * k, 0.01])
        still["a", str(k)] = homography(T, K) * 3.0
        T[:3, 3] = [0.1 * k, 0.05, 0]
        moved["a", str(k)] = homography(T, K)
    sizes = {name: (640, 480) for name in "a123456"}
    keypoints, inliers = dict.fromkeys(sizes, 2000), dict.fromkeys(still, 100)
    assert rotating_pairs(PairStatistics(keypoints, sizes, inliers, still)) == 6
    assert rotating_pairs(PairStatistics(keypoints, sizes, inliers, moved)) <= 1
    assert "turned on the spot" in explain_failure(PairStatistics(keypoints, sizes, inliers, still), 6)
    assert "turned on the spot" not in explain_failure(PairStatistics(keypoints, sizes, inliers, moved), 6)


# Pairs


def test_neighbours_in_order_reach_far_ones_by_powers_of_two() -> None:
    pairs = neighbours_in_order(40, 3)
    assert {(0, 1), (0, 2), (0, 3), (0, 4), (0, 8), (0, 16), (24, 39 + 1)} - pairs == {(24, 40)}
    assert (0, 5) not in pairs and all(0 <= i < j < 40 for i, j in pairs)


def test_look_alikes_are_images_of_the_same_place() -> None:
    rng = np.random.default_rng(1)
    places = rng.integers(0, 255, (4, 150, 128))
    descriptors = [np.clip(places[k % 4] + rng.normal(0, 8, (150, 128)), 0, 255).astype(np.uint8) for k in range(12)]
    pairs = most_similar(vlad(descriptors), 2)
    assert pairs == {(i, j) for i in range(12) for j in range(i + 1, 12) if i % 4 == j % 4}


def test_few_images_are_matched_exhaustively_and_long_sequences_are_not() -> None:
    names = [f"{k:05d}.png" for k in range(100)]
    descriptors = {name: np.random.default_rng(k).integers(0, 255, (40, 128), np.uint8) for k, name in enumerate(names)}
    few = choose_pairs(names[:10], True, "auto", 80, 15, 5, lambda: descriptors)
    assert len(few.pairs) == 45
    many = choose_pairs(names, True, "auto", 80, 15, 5, lambda: descriptors)
    assert 1400 < len(many.pairs) < 2500 and (names[0], names[15]) in many.pairs
    unordered = choose_pairs(names, False, "auto", 80, 15, 5, lambda: descriptors)
    assert 250 <= len(unordered.pairs) <= 500


# Undistortion


def distorted_group(model: str, K: Any, distortion: list[float]) -> dict[str, Any]:
    group = {"model": model, "width": 320, "height": 240, "focal_px": 300.0, "focal_source": "given"}
    return group | {"K": K, "distortion": distortion}


def test_undistortion_agrees_with_opencv(tmp_path: Path) -> None:
    K, distortion = [[300.0, 0, 161], [0, 305.0, 118], [0, 0, 1]], [-0.12, 0.02, 0.001, -0.002]
    pinhole = pinhole_of(group_camera(distorted_group("OPENCV", K, distortion), 1))
    rng = np.random.default_rng(0)
    pixels = rng.uniform([20, 20], [300, 220], (50, 2))
    shifted = np.array(K) - [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]]  # OpenCV's pixel centres are at integers
    rays = cv2.undistortPoints((pixels - 0.5)[:, None], shifted, np.array(distortion))[:, 0]
    expected = rays * pinhole.K[[0, 1], [0, 1]] + pinhole.K[:2, 2]
    assert np.abs(pinhole.points(pixels) - expected).max() < 1e-3  # px; OpenCV iterates to about this
    assert pinhole.K[0, 1] == 0 and pinhole.K[2].tolist() == [0, 0, 1]


def test_maps_are_undistorted_with_their_image_by_nearest_values(tmp_path: Path) -> None:
    group = distorted_group("OPENCV", [[300.0, 0, 160], [0, 300.0, 120], [0, 0, 1]], [-0.1, 0, 0, 0])
    pinhole = pinhole_of(group_camera(group, 1))
    blocks = np.kron(np.arange(12).reshape(3, 4), np.ones((80, 80))).astype(np.uint8)
    Image.fromarray(np.repeat(blocks[:, :, None] * 20, 3, 2)).save(tmp_path / "image.png")
    Image.fromarray(blocks.astype(np.uint16) * 1000).save(tmp_path / "depth.png")
    write_image(pinhole, tmp_path / "image.png", tmp_path / "i.png")
    write_map(pinhole, tmp_path / "depth.png", tmp_path / "d.png")
    image, depth = np.asarray(Image.open(tmp_path / "i.png")), np.asarray(Image.open(tmp_path / "d.png"))
    assert image.shape == (pinhole.height, pinhole.width, 3) and depth.shape == image.shape[:2]
    assert set(np.unique(depth)) <= set(range(0, 12000, 1000))
    flat = cv2.dilate(cv2.absdiff(image[:, :, 0], cv2.blur(image[:, :, 0], (5, 5))), np.ones((3, 3))) == 0
    assert np.array_equal(image[flat, 0] // 20, depth[flat] // 1000) and flat.mean() > 0.5


def test_a_pinhole_image_is_not_resampled(tmp_path: Path) -> None:
    pinhole = pinhole_of(group_camera(distorted_group("PINHOLE", [[300.0, 0, 160], [0, 300.0, 120], [0, 0, 1]], []), 1))
    pixels = np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    write_image(pinhole, tmp_path / "a.png", tmp_path / "b.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "b.png")), pixels)


def disturbed(model: Any, turn_deg: float, every: int) -> Any:
    """A copy of a model in which every n-th camera is turned about its own vertical axis."""
    import pycolmap

    copy = pycolmap.Reconstruction(model)
    c, s = np.cos(np.radians(turn_deg)), np.sin(np.radians(turn_deg))
    turn = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])), np.zeros(3))
    for k, image_id in enumerate(copy.reg_image_ids()):
        if k % every == 0:
            frame = copy.frame(copy.image(image_id).frame_id)
            frame.rig_from_world = turn * frame.rig_from_world
    return copy


def test_a_model_agrees_with_itself_under_any_similarity_and_not_with_a_wrong_one(
    reconstruction: tuple[Result, Path],
) -> None:
    import pycolmap

    from real2sim.stages.sfm_agreement import compare_models

    model = pycolmap.Reconstruction(str(reconstruction[1] / "sparse" / "0"))
    moved = pycolmap.Reconstruction(model)
    moved.transform(pycolmap.Sim3d(3.0, pycolmap.Rotation3d(quat_to_matrix([0.5, 0.5, -0.5, 0.5])), [1.0, 2.0, 3.0]))
    share, angle = compare_models(model, moved)
    assert share == 1.0 and angle < 1e-3
    assert compare_models(model, disturbed(moved, 90, 2))[0] <= 0.5
    assert compare_models(model, disturbed(moved, 90, 4))[0] == pytest.approx(0.75)


def test_matched_pairs_contradict_cameras_that_are_turned(reconstruction: tuple[Result, Path]) -> None:
    import pycolmap

    from real2sim.stages.sfm_agreement import Agreement, consistent_gate, pairs_gate, pairs_that_follow

    out = reconstruction[1]
    model = pycolmap.Reconstruction(str(out / "sparse" / "0"))
    database = out.parent / "sfm.scratch" / "database.db"
    count, against = pairs_that_follow(database, model)
    assert count > 10 and against == []
    wrong_count, against = pairs_that_follow(database, disturbed(model, 178, 2))
    assert wrong_count == count and len(against) > count / 4
    told = Agreement(0.25, 8, 120.0, count, count - len(against), against)
    gates = [consistent_gate(told, 0.8), pairs_gate(told, 0.8)]
    assert not any(gate.passed for gate in gates) and all("Mask" in g.advice or "mask" in g.advice for g in gates)
    assert consistent_gate(None, 0.8).passed and pairs_gate(None, 0.8).evidence.startswith("not applicable")


def test_wider_attempts_are_listed_where_the_usual_search_poses_too_few(frames: Path, tmp_path: Path) -> None:
    result, _ = run_sfm(frames, tmp_path, max_features=60, max_image_size=120)
    tried = [row["attempt"] for row in result.metrics["attempts"]]
    assert tried[:2] == ["the usual search", "a looser start"] and len(tried) > 2
    registered = [row["registered"] for row in result.metrics["attempts"]]
    assert result.metrics["registered"] <= max(registered) and max(registered) > registered[0]


def test_components_are_groups_that_no_pair_connects() -> None:
    from real2sim.stages.sfm_attempts import components

    names = list("abcdef")
    pairs = {("a", "b"): 50, ("b", "c"): 20, ("e", "f"): 90}
    statistics = PairStatistics(dict.fromkeys(names, 100), {}, pairs, {})
    assert components(statistics, names) == [["a", "b", "c"], ["e", "f"], ["d"]]
