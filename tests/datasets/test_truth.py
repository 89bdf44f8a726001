# SPDX-License-Identifier: Apache-2.0
"""evaluate() on the truth itself and on bundles that are wrong by a known amount."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from real2sim.datasets.synthetic import SyntheticConfig, make_cameras
from real2sim.datasets.synthetic_scene import Scene
from real2sim.datasets.truth import Surface, Truth, evaluate, pose_errors, read_truth, visible_support
from real2sim.errors import Real2SimError
from real2sim.sim.cameras import Camera, write_cameras
from real2sim.sim.transforms import Similarity, quat_to_matrix

EXACT = 1e-6  # float64 algebra, and JSON's decimal numbers
CARPET = 2e-3  # m: Gaussians blend over a pixel, which is 6 mm wide here
DEPTH = 2e-4  # m: float32 rays and depth steps of 0.1 mm


def tilt(degrees: float) -> np.ndarray:
    half = np.radians(degrees) / 2
    return quat_to_matrix([np.cos(half), np.sin(half), 0, 0])


def write_bundle(folder: Path, cameras: list[Camera], *, capture_path: bool = True) -> Path:
    """The only file that evaluate reads where a surface is given."""
    folder.mkdir(exist_ok=True)
    write_cameras(folder / "cameras.json", cameras, "world")
    if capture_path:
        data = json.loads((folder / "cameras.json").read_text())
        for row in data["cameras"]:
            row["capture_path"] = f"IMG_{int(row['name']) + 1:04d}.jpg"
        (folder / "cameras.json").write_text(json.dumps(data))
    return folder


@pytest.fixture(scope="module")
def truth(small_capture: Path) -> Truth:
    return read_truth(small_capture)


@pytest.fixture
def estimate(truth: Truth) -> Callable[[Similarity], list[Camera]]:
    """The true cameras, undistorted and named as frames are, in another frame."""

    def make(T_bundle_true: Similarity) -> list[Camera]:
        return [
            dataclasses.replace(c, name=f"{k:05d}", distortion=[], image=None, depth=None).transformed(T_bundle_true)
            for k, c in enumerate(truth.cameras.values())
        ]

    return make


@pytest.fixture
def shown(small_scene: Scene) -> Callable[..., Surface]:
    """What a perfect splat would show from a camera of the bundle's frame."""

    def make(T_bundle_true: Similarity, bump: float = 0.0) -> Surface:
        def surface(camera: Camera) -> tuple[np.ndarray, np.ndarray]:
            depth = small_scene.caster.geometry(camera.transformed(T_bundle_true.inverse()))[0] * T_bundle_true.scale
            return depth * (1 + bump), np.ones_like(depth)

        return surface

    return make


def test_the_truth_has_no_errors(
    truth: Truth, estimate: Callable, shown: Callable, tmp_path: Path, small_capture: Path
) -> None:
    same = Similarity.identity()
    found = evaluate(write_bundle(tmp_path / "b", estimate(same)), small_capture / "truth", surface=shown(same))
    assert list(found) == [
        "frames",
        "registered",
        "position_error_rel",
        "rotation_error_deg",
        "scale_error",
        "gravity_error_deg",
        "support_error_m",
        "support_splat_error_m",
    ]
    assert found["frames"] == found["registered"] == len(truth.cameras)
    for key in ("position_error_rel", "rotation_error_deg", "scale_error", "gravity_error_deg"):
        assert found[key] == pytest.approx(0, abs=EXACT), key
    assert found["support_error_m"] < DEPTH


def test_another_yaw_and_origin_are_no_error(
    estimate: Callable, shown: Callable, tmp_path: Path, small_capture: Path
) -> None:
    T = Similarity(1.0, quat_to_matrix([0.6, 0, 0, 0.8]), np.array([0.4, -2.0, 0.0]))
    found = evaluate(write_bundle(tmp_path / "b", estimate(T)), small_capture, surface=shown(T))
    assert found["position_error_rel"] < EXACT and found["gravity_error_deg"] < EXACT
    assert found["scale_error"] < EXACT and found["support_splat_error_m"] < DEPTH


@pytest.mark.parametrize("scale", [1.01, 0.98])
def test_a_wrong_scale_is_a_scale_error_only(
    scale: float, estimate: Callable, shown: Callable, tmp_path: Path, small_capture: Path
) -> None:
    T = Similarity(scale, np.eye(3), np.zeros(3))
    found = evaluate(write_bundle(tmp_path / "b", estimate(T)), small_capture, surface=shown(T))
    assert found["scale_error"] == pytest.approx(abs(scale - 1), abs=EXACT)
    assert found["position_error_rel"] < EXACT and found["gravity_error_deg"] < EXACT
    assert found["support_splat_error_m"] < DEPTH, "a plane through z = 0 stays there"


def test_a_tilt_is_a_gravity_error_and_lifts_the_support(
    truth: Truth, estimate: Callable, shown: Callable, tmp_path: Path, small_capture: Path
) -> None:
    T = Similarity(1.0, tilt(0.5), np.zeros(3))
    found = evaluate(write_bundle(tmp_path / "b", estimate(T)), small_capture, surface=shown(T))
    seen = np.concatenate([T.apply(visible_support(truth, name)) for name in truth.cameras])
    assert found["gravity_error_deg"] == pytest.approx(0.5, abs=EXACT)
    assert found["rotation_error_deg"] < EXACT
    assert found["support_splat_error_m"] == pytest.approx(np.percentile(np.abs(seen[:, 2]), 95), abs=3 * DEPTH)


def test_a_support_off_the_plane_counts_in_the_bundles_own_metres(
    estimate: Callable, shown: Callable, tmp_path: Path, small_capture: Path
) -> None:
    T = Similarity(1.0, np.eye(3), np.array([0, 0, 0.01]))
    found = evaluate(write_bundle(tmp_path / "b", estimate(T)), small_capture, surface=shown(T))
    assert found["support_splat_error_m"] == pytest.approx(0.01, abs=DEPTH)
    assert found["position_error_rel"] < EXACT


def test_a_surface_that_floats_is_found_though_the_plane_is_right(
    truth: Truth, estimate: Callable, shown: Callable, tmp_path: Path, small_capture: Path
) -> None:
    """Depth short by 1%: points rise by 1% of the camera's height, which is the same for all of a frame."""
    same = Similarity.identity()
    found = evaluate(write_bundle(tmp_path / "b", estimate(same)), small_capture, surface=shown(same, bump=-0.01))
    heights = [np.full(len(visible_support(truth, name)), c.centre[2]) for name, c in truth.cameras.items()]
    assert found["support_splat_error_m"] == pytest.approx(
        0.01 * np.percentile(np.concatenate(heights), 95), abs=2 * DEPTH
    )


def test_a_hole_in_the_support_counts_as_the_cameras_height(
    truth: Truth, estimate: Callable, tmp_path: Path, small_capture: Path
) -> None:
    bundle = write_bundle(tmp_path / "b", estimate(Similarity.identity()))
    found = evaluate(
        bundle, small_capture, surface=lambda c: (np.ones((c.height, c.width)), np.zeros((c.height, c.width)))
    )
    highest = max(c.centre[2] for c in truth.cameras.values())
    assert 0.3 < found["support_splat_error_m"] <= highest


def test_one_camera_out_of_place_is_a_position_error(truth: Truth) -> None:
    true = list(truth.cameras.values())
    moved = [dataclasses.replace(c, T_world_cam=c.T_world_cam.copy()) for c in true]
    moved[2].T_world_cam[:3, 3] += [0.0, 0.0, 0.02]
    centres = np.stack([c.centre for c in true])
    diameter = max(np.linalg.norm(a - b) for a in centres for b in centres)
    worst = 0.02 / np.sqrt(len(true)) / diameter
    found = pose_errors(moved, true, true).position_error_rel
    assert 0.3 * worst < found < worst, "the fit takes up a part of it, never more than all"


def test_one_camera_turned_is_a_rotation_error(truth: Truth) -> None:
    true = list(truth.cameras.values())
    turned = [dataclasses.replace(c, T_world_cam=c.T_world_cam.copy()) for c in true]
    turned[0].T_world_cam[:3, :3] = turned[0].T_world_cam[:3, :3] @ tilt(1.0)
    n = len(true)
    expected = np.sqrt(((1 - 1 / n) ** 2 + (n - 1) / n**2) / n)  # the common rotation takes up 1/n of it
    found = pose_errors(turned, true, true)
    assert found.rotation_error_deg == pytest.approx(expected, rel=1e-3)
    assert found.position_error_rel < EXACT


def test_cameras_on_a_line_still_tell_which_way_is_up() -> None:
    true = make_cameras(SyntheticConfig(path="flyby", frames=9))
    for k, camera in enumerate(true):
        camera.T_world_cam[:3, 3] = [0.1 * k, -0.9, 0.5]
    T = Similarity(1.3, tilt(2.0), np.array([1.0, 2.0, 3.0]))
    found = pose_errors([c.transformed(T) for c in true], true, true)
    up = found.T_true_est.rotation @ [0, 0, 1.0]
    assert np.degrees(np.arccos(up[2])) == pytest.approx(2.0, abs=EXACT)


def test_frames_that_are_missing_are_counted(
    estimate: Callable, shown: Callable, tmp_path: Path, small_capture: Path
) -> None:
    same = Similarity.identity()
    found = evaluate(write_bundle(tmp_path / "b", estimate(same)[:4]), small_capture, surface=shown(same))
    assert (found["frames"], found["registered"]) == (6, 4)


def test_a_mapping_says_which_photo_a_camera_is(
    truth: Truth, estimate: Callable, shown: Callable, tmp_path: Path, small_capture: Path
) -> None:
    same = Similarity.identity()
    bundle = write_bundle(tmp_path / "b", estimate(same), capture_path=False)
    paths = {f"{k:05d}": f"{name}.jpg" for k, name in enumerate(truth.cameras)}
    found = evaluate(bundle, small_capture, capture_paths=paths, surface=shown(same))
    assert found["position_error_rel"] < EXACT
    with pytest.raises(Real2SimError, match="made from None"):
        evaluate(bundle, small_capture, surface=shown(same))


def test_what_cannot_be_judged_is_said(truth: Truth, tmp_path: Path) -> None:
    true = list(truth.cameras.values())
    with pytest.raises(Real2SimError, match="needs 3 posed frames, received 2"):
        pose_errors(true[:2], true[:2], true)
    still = [dataclasses.replace(c, T_world_cam=true[0].T_world_cam) for c in true]
    with pytest.raises(Real2SimError, match="stand at one place"):
        pose_errors(still, still, still)
    with pytest.raises(Real2SimError, match=r"no readable truth\.json"):
        read_truth(tmp_path)


@pytest.mark.parametrize("height", [0.0, 0.01])
def test_by_default_the_bundles_own_splat_is_judged(
    height: float, estimate: Callable, tmp_path: Path, small_capture: Path
) -> None:
    """A carpet of flat Gaussians 4 mm apart on the table."""
    from real2sim.sim.render.splat import Splat

    x, y = (
        v.ravel().astype(np.float32) for v in np.meshgrid(np.arange(-0.62, 0.62, 0.004), np.arange(-0.42, 0.42, 0.004))
    )
    n = len(x)
    carpet = Splat(
        means=np.stack([x, y, np.full(n, height, np.float32)], -1),
        quats=np.tile(np.array([1, 0, 0, 0], np.float32), (n, 1)),
        log_scales=np.tile(np.log(np.array([0.003, 0.003, 0.0003], np.float32)), (n, 1)),
        logit_opacities=np.full(n, 3, np.float32),
        sh0=np.zeros((n, 1, 3), np.float32),
        shN=np.zeros((n, 0, 3), np.float32),
    )
    bundle = write_bundle(tmp_path / "b", estimate(Similarity.identity()))
    carpet.save(bundle / "splat.ply")
    (bundle / "bundle.json").write_text(
        json.dumps({"assets": [{"name": "background", "static": True, "splat": "splat.ply"}]})
    )
    assert evaluate(bundle, small_capture)["support_splat_error_m"] == pytest.approx(height, abs=CARPET)
