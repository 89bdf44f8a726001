# SPDX-License-Identifier: Apache-2.0
"""Alignment against scenes of known gravity, and claims that look fine and must fail."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from analytic_scene import (
    ROOM,
    TABLE,
    THINGS,
    Box,
    Scene,
    look_at,
    moved_views,
    orbit,
    random_similarity,
    sparse_cloud,
    truth_views,
)

from real2sim.sim.cameras import Camera
from real2sim.sim.transforms import Similarity, rotation_between
from real2sim.stages import align
from real2sim.stages.align_check import check_gates
from real2sim.stages.contract import Progress, Result
from real2sim.stages.plane import Plane, angle_deg, local_normals, refine_plane, search_plane
from real2sim.stages.sparse import SparsePoints
from real2sim.stages.support import (
    block_withheld,
    camera_up,
    gather_evidence,
    inside_polygon,
    polygon_centroid,
    signed_area,
)

UNITS_PER_METRE = 2.7
GRAVITY_DEG = 0.2  # what the project promises on known truth
SUPPORT_M = 0.003
Z = np.array([0.0, 0.0, 1.0])


class Setup:
    """A scene as the stage sees it: in a tilted frame of another scale."""

    def __init__(
        self, scene: Scene, cameras: list[Camera], noise: float = 0.002, outliers: float = 0.0, points: int = 1500
    ):
        self.T = random_similarity(scale=UNITS_PER_METRE)
        cloud = sparse_cloud(scene, cameras, points, 0.4)
        xyz = self.T.apply(cloud["xyz"])
        if outliers:
            rng = np.random.default_rng(5)
            wild = rng.random(len(xyz)) < outliers
            xyz[wild] += rng.normal(0, 0.5, (int(wild.sum()), 3))
        self.sparse = SparsePoints(**{**cloud, "xyz": xyz})
        self.cameras = [c.transformed(self.T) for c in cameras]
        self.views = moved_views(truth_views(scene, cameras, noise, outliers), self.T)
        self.scale = {
            "metres_per_unit": 1 / UNITS_PER_METRE, "relative_uncertainty": 0.003, "from": "aruco",
            "nominal_metres_per_unit": 0.3, "marker": None,
        }  # fmt: skip

    def run(self, out: Path, **scale) -> tuple[Result, dict]:
        out.mkdir(exist_ok=True)
        settings = {**self.scale, **scale}
        result = align.align(self.cameras, self.sparse, self.views, settings, align.Config(), out, Progress())
        return result, json.loads((out / "alignment.json").read_text())

    def world_from_truth(self, report: dict) -> Similarity:
        return Similarity.from_json(report["T_world_sfm"]) @ self.T


def _support_error(W: Similarity) -> float:
    """95th percentile of abs(z) of the true table top in the world of the alignment."""
    grid = np.stack(np.meshgrid(np.linspace(-0.6, 0.6, 20), np.linspace(-0.4, 0.4, 20)), -1).reshape(-1, 2)
    return float(np.percentile(np.abs(W.apply(np.c_[grid, np.zeros(len(grid))])[:, 2]), 95))


@pytest.fixture(scope="module")
def plain() -> Setup:
    return Setup(Scene(), orbit(14, 128, 96))


@pytest.fixture(scope="module")
def aligned(plain, tmp_path_factory) -> tuple[Result, dict]:
    return plain.run(tmp_path_factory.mktemp("align"))


def test_gravity_height_and_scale_are_those_of_the_table(plain, aligned) -> None:
    result, report = aligned
    W = plain.world_from_truth(report)
    assert angle_deg(W.rotation[:, 2], Z) < GRAVITY_DEG
    assert _support_error(W) < SUPPORT_M
    assert W.scale == pytest.approx(1.0, rel=1e-9)
    assert all(g.passed for g in result.gates) and [g.name for g in result.gates] == ["level", "support"]
    assert report["sources"]["gravity"]["from"] == "support_plane" and report["has_support"]


def test_outline_is_the_table_counter_clockwise_with_origin_at_its_centre(plain, aligned) -> None:
    _, report = aligned
    polygon = np.array(report["support"]["polygon"])
    assert signed_area(polygon) == pytest.approx(1.2 * 0.8, rel=0.08)
    assert np.ptp(polygon, axis=0) == pytest.approx([1.2, 0.8], abs=0.05)  # the long side along x
    assert np.linalg.norm(plain.world_from_truth(report).apply(np.zeros(3))[:2]) < 0.03
    assert np.linalg.norm(polygon_centroid(polygon)) < 1e-3


def test_check_points_are_not_fit_points(aligned, plain, tmp_path) -> None:
    plain.run(tmp_path)
    data = np.load(tmp_path / "support.npz")
    assert len(data["points_fit"]) > 200 and len(data["points_check"]) > 100
    assert not set(map(tuple, data["points_fit"].round(9))) & set(map(tuple, data["points_check"].round(9)))


def test_the_same_inputs_give_the_same_bytes(plain, tmp_path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    plain.run(first)
    plain.run(second)
    for name in ("alignment.json", "support.npz"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_depth_noise_is_averaged_out(noise, tmp_path) -> None:
    setup = Setup(Scene(), orbit(12, 128, 96), noise)
    _, report = setup.run(tmp_path)
    W = setup.world_from_truth(report)
    assert angle_deg(W.rotation[:, 2], Z) < GRAVITY_DEG and _support_error(W) < SUPPORT_M


def test_forty_percent_outliers_do_not_tilt_the_world(tmp_path) -> None:
    setup = Setup(Scene(), orbit(12, 128, 96), 0.002, outliers=0.4)
    _, report = setup.run(tmp_path)
    W = setup.world_from_truth(report)
    assert angle_deg(W.rotation[:, 2], Z) < GRAVITY_DEG and _support_error(W) < SUPPORT_M


def test_a_table_half_covered_by_clutter_is_found(tmp_path) -> None:
    rng = np.random.default_rng(2)
    boxes = []
    for i in range(6):  # 6 boxes of 0.28 x 0.28 m on 0.96 m2
        x, y = -0.56 + 0.4 * (i % 3) + rng.uniform(0, 0.06), -0.36 + 0.4 * (i // 3)
        boxes.append(Box((x, y, 0.0), (x + 0.28, y + 0.28, float(rng.uniform(0.03, 0.2)))))
    setup = Setup(Scene([ROOM, TABLE, *boxes]), orbit(14))
    _, report = setup.run(tmp_path)
    W = setup.world_from_truth(report)
    assert angle_deg(W.rotation[:, 2], Z) < GRAVITY_DEG and _support_error(W) < SUPPORT_M


def test_the_floor_is_the_support_where_there_is_no_table(tmp_path) -> None:
    floor = Box((-2.5, -2.5, 0.0), (2.5, 2.5, 2.5))
    setup = Setup(Scene([floor, *THINGS]), orbit(12, 128, 96))
    _, report = setup.run(tmp_path)
    assert abs(setup.world_from_truth(report).apply(np.zeros(3))[2]) < SUPPORT_M


def test_a_wall_is_never_taken_for_the_floor(tmp_path) -> None:
    wall = Box((-3.0, 1.0, -3.0), (3.0, 1.2, 3.0))
    relief = [Box((x, 0.9, z), (x + 0.3, 1.0, z + 0.3)) for x in (-0.8, 0.0, 0.6) for z in (-0.4, 0.3)]
    K = orbit(1, 128, 96)[0].K
    cameras = [
        Camera(f"{i:05d}", 128, 96, K, look_at(np.array([x, -1.0, 0.1 * (i % 3)]), np.array([0.3 * x, 1.0, 0.2])))
        for i, x in enumerate(np.linspace(-1.2, 1.2, 11))
    ]
    setup = Setup(Scene([wall, *relief]), cameras)
    result, report = setup.run(tmp_path)
    assert not report["has_support"] and report["support"] is None
    assert all(g.passed and g.evidence.startswith("not applicable") for g in result.gates)
    assert report["sources"]["gravity"]["from"] == "camera_up"
    error = angle_deg(setup.world_from_truth(report).rotation[:, 2], Z)
    assert error < max(3 * report["sources"]["gravity"]["uncertainty_deg"], 1.0)
    given = {"from": "poses", "up_sfm": (setup.T.rotation @ Z).tolist()}
    _, report = setup.run(tmp_path, gravity=given)
    assert report["sources"]["gravity"]["from"] == "poses"
    assert angle_deg(setup.world_from_truth(report).rotation[:, 2], Z) < 1e-6


def test_yaw_is_the_markers_where_it_lies_on_the_support(plain, tmp_path) -> None:
    yaw = np.radians(33)
    side = 0.1 * np.array([[0, 0, 0], [np.cos(yaw), np.sin(yaw), 0], [np.cos(yaw) + 0, np.sin(yaw) - 1, 0], [0, -1, 0]])
    _, report = plain.run(tmp_path, marker={"id": 1, "corners_sfm": plain.T.apply(side).tolist()})
    assert report["sources"]["yaw"]["from"] == "aruco"
    x = plain.world_from_truth(report).rotation @ [np.cos(yaw), np.sin(yaw), 0]
    assert angle_deg(x, np.array([1.0, 0, 0])) < 0.1


def test_an_unresolved_scale_is_judged_relative_to_the_viewing_distance(plain, tmp_path) -> None:
    result, report = plain.run(tmp_path, metres_per_unit=None, relative_uncertainty=None, **{"from": "unresolved"})
    assert report["sources"]["scale"]["from"] == "unresolved"
    assert report["T_world_sfm"]["scale"] == pytest.approx(0.3)
    assert "unresolved" in result.gates[1].evidence and result.gates[1].unit == "x viewing distance"


def _claim(plain: Setup, report: dict, wrong: Similarity) -> list:
    """Gates of a claimed alignment that is wrong by a transform of the world."""
    T = Similarity.from_json(report["T_world_sfm"])
    evidence = gather_evidence(plain.cameras, plain.sparse, plain.views, T.scale)
    claimed = wrong @ T
    up = claimed.rotation @ camera_up(plain.cameras)[0]
    polygon = np.array(report["support"]["polygon"])
    return check_gates(evidence, claimed, polygon, up, 60.0, align.Config(), True)[0]


def test_a_tilt_of_28_degrees_fails_although_its_own_residual_is_small(plain, aligned) -> None:
    tilted = Similarity(1.0, rotation_between(Z, [0, np.sin(np.radians(28)), np.cos(np.radians(28))]), np.zeros(3))
    level, support = _claim(plain, aligned[1], tilted)
    assert not level.passed and level.value == pytest.approx(28, abs=0.5)
    assert not support.passed


def test_a_tilt_of_one_degree_fails_and_the_true_alignment_passes(plain, aligned) -> None:
    tilted = Similarity(1.0, rotation_between(Z, [np.sin(np.radians(1)), 0, np.cos(np.radians(1))]), np.zeros(3))
    assert not _claim(plain, aligned[1], tilted)[0].passed
    assert all(g.passed for g in _claim(plain, aligned[1], Similarity.identity()))


@pytest.mark.parametrize("height", [0.02, -0.02])
def test_a_support_at_a_wrong_height_fails(plain, aligned, height) -> None:
    lifted = Similarity(1.0, np.eye(3), np.array([0, 0, height]))
    _, support = _claim(plain, aligned[1], lifted)
    assert not support.passed and support.value > 0.9 * abs(height)


def test_a_claim_where_nothing_was_reconstructed_fails(plain, aligned) -> None:
    elsewhere = Similarity(1.0, np.eye(3), np.array([40.0, 0, 0]))
    assert not any(g.passed for g in _claim(plain, aligned[1], elsewhere))


def test_camera_up_is_that_of_level_cameras_at_any_pitch() -> None:
    up, sigma, _ = camera_up(orbit(12, 128, 96))
    assert angle_deg(up, Z) < 1.0 and sigma <= 1.0
    pitched = [
        Camera("a", 4, 4, np.eye(3), look_at(np.array([x, -1.0, 1.0]), np.array([x, 0, 0]))) for x in (0, 0.1, 0.2)
    ]
    up, sigma, _ = camera_up(pitched)  # all look the same way: only their own tilted up is known
    assert angle_deg(up, Z) == pytest.approx(45, abs=0.1) and sigma >= 20


def test_plane_search_and_refinement_recover_an_exact_plane() -> None:
    rng = np.random.default_rng(0)
    normal = np.array([0.1, -0.2, 1.0]) / np.linalg.norm([0.1, -0.2, 1.0])
    flat = rng.uniform(-1, 1, (600, 3))
    flat -= ((flat @ normal - 0.3)[:, None]) * normal
    points = np.r_[flat, rng.uniform(-1, 1, (400, 3))]
    weights = np.full(len(points), 1 / len(points))
    plane, weight = search_plane(points, local_normals(points, 0.1), weights, 0.01, 0.5, Z, 60)
    assert angle_deg(plane.normal, normal) < 0.3 and weight > 0.5
    exact, _ = refine_plane(points, weights, plane, 0.01)
    assert angle_deg(exact.normal, normal) < 0.05 and exact.offset == pytest.approx(0.3, abs=1e-3)
    assert search_plane(flat, local_normals(flat, 0.1), weights[:600], 0.01, 0.5, np.array([1.0, 0, 0]), 30) is None


def test_polygon_functions_on_a_square() -> None:
    square = np.array([[0, 0], [2, 0], [2, 2], [0, 2.0]])
    assert signed_area(square) == 4 and polygon_centroid(square) == pytest.approx([1, 1])
    assert inside_polygon(np.array([[1, 1], [3, 1], [-0.1, 0.5]]), square).tolist() == [True, False, False]


def test_a_third_of_space_is_withheld_in_blocks() -> None:
    points = np.random.default_rng(0).uniform(-5, 5, (20000, 3))
    assert block_withheld(points, 0.4).mean() == pytest.approx(1 / 3, abs=0.05)
    assert len(set(block_withheld(np.full((9, 3), 0.1) + np.arange(9)[:, None] * 1e-4, 0.4))) == 1


def test_a_plane_height_is_signed() -> None:
    assert Plane(Z, 0.5).height(np.array([[0, 0, 1.0]])) == pytest.approx([0.5])
