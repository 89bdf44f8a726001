# SPDX-License-Identifier: Apache-2.0
"""Surface depth against planes made of Gaussians: exact where the depth of centres is biased."""

from __future__ import annotations

import numpy as np
import pytest

from real2sim.sim.cameras import Camera
from real2sim.sim.render.rasterize import render
from real2sim.sim.render.splat import Splat
from real2sim.sim.render.surface_depth import plane_features, render_surface

SIGMA = 0.03  # of the discs that make the plane [m]
PLANE_M = 0.0015  # first-order error and blur of the projection, at 1 m and 150 px focal length


def _plane(normal_z: float = 1.0) -> Splat:
    """A level plane z = 0 of opaque discs on a jittered grid."""
    rng = np.random.default_rng(0)
    xy = np.stack(np.meshgrid(np.arange(-1.2, 1.2, 0.03), np.arange(-1.2, 1.2, 0.03)), -1).reshape(-1, 2)
    xy += rng.uniform(-0.01, 0.01, xy.shape)
    n = len(xy)
    means = np.c_[xy, np.zeros(n)]
    scales = np.tile(np.log([SIGMA, SIGMA, 0.0005]), (n, 1))
    quats = np.tile([1.0, 0, 0, 0], (n, 1))
    return Splat(means, quats, scales, np.full(n, 2.0), np.zeros((n, 1, 3)), np.zeros((n, 0, 3)))


def _camera(elevation_deg: float, distance: float = 1.0) -> Camera:
    a = np.radians(elevation_deg)
    eye = distance * np.array([np.cos(a), 0, np.sin(a)])
    z = -eye / distance
    x = np.array([0.0, 1.0, 0.0])
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = np.stack([x, np.cross(z, x), z], 1), eye
    return Camera("c", 120, 90, np.array([[150.0, 0, 60], [0, 150.0, 45], [0, 0, 1]]), T)


def _height(camera: Camera, depth: np.ndarray) -> np.ndarray:
    """World z of the middle of the depth image."""
    v, u = np.mgrid[20:70, 25:95] + 0.5
    rays = np.stack([(u - 60) / 150, (v - 45) / 150, np.ones_like(u)], -1) @ camera.T_world_cam[:3, :3].T
    return camera.centre[2] + depth[20:70, 25:95] * rays[..., 2]


@pytest.mark.parametrize("elevation", [25, 45, 80])
def test_a_plane_of_discs_is_flat_and_where_it_is(elevation) -> None:
    camera = _camera(elevation)
    height = _height(camera, render_surface(_plane(), camera)["depth"])
    assert abs(np.median(height)) < PLANE_M and np.percentile(np.abs(height), 95) < 3 * PLANE_M


def test_the_depth_of_centres_is_biased_there() -> None:
    camera = _camera(25)
    assert np.median(_height(camera, render(_plane(), camera)["depth"])) > 5 * PLANE_M


def test_a_small_round_gaussian_has_the_depth_of_its_centre() -> None:
    ball = Splat(
        np.array([[0.0, 0, 0]]), np.array([[1.0, 0, 0, 0]]), np.log(np.full((1, 3), 0.01)), np.array([3.0]),
        np.zeros((1, 1, 3)), np.zeros((1, 0, 3)),
    )  # fmt: skip
    camera = _camera(40)
    image = render_surface(ball, camera)
    assert image["depth"][image["alpha"] > 0.5] == pytest.approx(1.0, abs=1e-3)
    assert (image["depth"][image["alpha"] == 0] == 0).all()


def test_edge_on_discs_keep_a_bounded_depth() -> None:
    camera = _camera(0.0)
    _, features = plane_features(_plane(), camera)
    assert np.isfinite(features).all()
    depth = render_surface(_plane(), camera)["depth"]
    assert np.isfinite(depth).all() and depth.max() < 3.0


def test_gaussians_behind_the_camera_take_no_part() -> None:
    seen, _ = plane_features(_plane(), _camera(45, distance=0.3))
    assert len(seen) < len(_plane())
