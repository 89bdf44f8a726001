# SPDX-License-Identifier: Apache-2.0
"""LiDAR and height scans against MuJoCo's rays and analytic rooms; noise by its statistics; patterns by their geometry."""

from __future__ import annotations

import itertools

import mujoco
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from real2sim.errors import UsageError
from real2sim.sim import tessellate
from real2sim.sim.body_meshes import BodyMesh, model_meshes
from real2sim.sim.render import _cpu
from real2sim.sim.sensors import lidar_patterns as patterns
from real2sim.sim.sensors.lidar import HeightScan, Lidar, RangeNoise
from real2sim.sim.trace import Tracer, pose_matrices

RANGE_M = 2e-5  # float32 rays over a few metres
EDGE_SHARE = 0.002  # rays that graze an edge, where float32 and float64 may disagree about what is hit
CHORD_M = 0.0022  # facets of a sphere of 0.5 m lie at most r (1 - cos(pi / 48)) inside it, in each of two directions
WORLD = np.array([[0, 0, 0, 1, 0, 0, 0.0]])

MODEL = """
<mujoco>
  <asset><mesh name="wedge" vertex="-.2 -.2 0 .2 -.2 0 0 .2 0 0 0 .3"/></asset>
  <worldbody>
    <geom type="box" size="3 3 .1" pos="0 0 -.1"/>
    <geom type="box" size=".1 3 1" pos="2.5 0 1"/>
    <body name="base" pos="0 0 .5"><freejoint/><geom type="box" size=".2 .1 .05"/>
      <body name="arm" pos=".2 0 .2"><joint axis="0 1 0"/><geom type="box" size=".3 .02 .02"/></body></body>
    <body name="thing" pos="1 .5 .3"><freejoint/><geom type="mesh" mesh="wedge"/></body>
    <body name="other" pos="-1 .5 .3"><freejoint/><geom type="box" size=".2 .3 .1" euler="20 10 5"/></body>
  </worldbody>
</mujoco>
"""


def posed(model, seed: int) -> mujoco.MjData:
    data, rng = mujoco.MjData(model), np.random.default_rng(seed)
    data.qpos[:] += rng.uniform(-0.3, 0.3, model.nq)
    mujoco.mj_forward(model, data)
    return data


def poses(data) -> np.ndarray:
    return np.concatenate([data.xpos, data.xquat], 1)


def room(half: float = 2.0) -> BodyMesh:
    vertices, faces, normals = tessellate.box([half, half, half])
    return BodyMesh(0, vertices, faces, normals)


def sphere_at(body: int, radius: float = 0.5) -> BodyMesh:
    return BodyMesh(body, *tessellate.ellipsoid([radius] * 3))


@pytest.fixture(scope="module")
def directions() -> np.ndarray:
    return patterns.rotating(np.linspace(-30, 40, 24), 90)


def test_ranges_are_mujocos_in_every_world(directions) -> None:
    model = mujoco.MjModel.from_xml_string(MODEL)
    states = [posed(model, seed) for seed in range(4)]
    mount = [0.05, 0.02, 0.1, 0.9, 0.1, -0.2, 0.3]
    base = model.body("base").id
    lidar = Lidar(Tracer(model_meshes(model)), base, mount, min_range=0.0, max_range=50.0)
    scan = lidar.scan(np.stack([poses(d) for d in states]), directions)
    for world, data in enumerate(states):
        R = data.xmat[base].reshape(3, 3) @ Rotation.from_quat(np.roll(mount[3:], -1)).as_matrix()
        origin = data.xpos[base] + data.xmat[base].reshape(3, 3) @ mount[:3]
        n = len(directions)
        geom, expected = np.empty(n, np.int32), np.empty(n)
        rays = (directions @ R.T).ravel()
        mujoco.mj_multiRay(model, data, origin, rays, None, True, -1, geom, expected, None, n, 50.0)
        body = np.where(geom >= 0, model.geom_bodyid[geom], -1)
        expected[geom < 0] = np.inf
        got, who = scan.ranges[world].numpy(), scan.bodies[world].numpy()
        same = (who == body) & (np.isclose(got, expected, atol=RANGE_M) | (np.isinf(got) & np.isinf(expected)))
        assert same.mean() > 1 - EDGE_SHARE
        assert {base, model.body("arm").id} & set(who.tolist())  # the robot sees itself


def test_room_is_met_where_its_walls_are(directions) -> None:
    scan = Lidar(Tracer([room()])).scan(WORLD[None], directions)
    np.testing.assert_allclose(scan.ranges[0].numpy(), 2 / np.abs(directions).max(1), atol=RANGE_M)
    assert float(scan.points()[0].abs().amax(1).sub(2).abs().max()) < RANGE_M


def test_primitives_are_closed_and_face_outwards() -> None:
    shapes = {
        "box": (tessellate.box([0.3, 0.2, 0.1]), 8 * 0.3 * 0.2 * 0.1),
        "ellipsoid": (tessellate.ellipsoid([0.3, 0.2, 0.1]), 4 / 3 * np.pi * 0.3 * 0.2 * 0.1),
        "capsule": (tessellate.capsule(0.1, 0.3), np.pi * 0.01 * 0.6 + 4 / 3 * np.pi * 0.001),
        "cylinder": (tessellate.cylinder(0.1, 0.3), np.pi * 0.01 * 0.6),
    }
    for name, ((vertices, faces, normals), volume) in shapes.items():
        a, b, c = (vertices[faces[:, k]] for k in range(3))
        across = np.cross(b - a, c - a)
        assert np.einsum("ni,ni->", a, np.cross(b, c)) / 6 == pytest.approx(volume, rel=0.01), name
        flat = np.linalg.norm(across, axis=1) < 1e-12
        assert ((across * normals[faces].mean(1)).sum(1)[~flat] > 0).all(), name


def test_moving_sphere_is_met_where_it_is_in_each_world(directions) -> None:
    centres = np.array([[1.5, 0, 0], [0, 1.2, 0.3], [-1, -1, 0.2]])
    batch = np.tile(WORLD, (3, 2, 1))
    batch[:, 1, :3] = centres
    scan = Lidar(Tracer([sphere_at(1)])).scan(batch, directions)
    along = centres @ directions.T
    inside = along**2 - ((centres**2).sum(1) - 0.25)[:, None]
    root = np.sqrt(np.maximum(inside, 0))
    clear = (inside > 0.02) & (along > 0)  # off the outline
    error = scan.ranges.numpy()[clear] - (along - root)[clear]
    assert np.abs(error * (root[clear] / 0.5)).max() < CHORD_M  # along the normal
    assert np.isinf(scan.ranges.numpy()[inside < 0]).all()


def test_what_is_nearer_than_the_minimum_range_does_not_block() -> None:
    ahead = patterns.solid_state(3, 3, 1, 1)
    batch = np.tile(WORLD, (1, 2, 1))
    tracer = Tracer([sphere_at(1, 0.05), room()])
    assert float(Lidar(tracer, 1, min_range=0.0).scan(batch, ahead).ranges.max()) < 0.051
    assert float(Lidar(tracer, 1, min_range=0.1).scan(batch, ahead).ranges.min()) > 1.99


@pytest.mark.parametrize("isa", _cpu.instruction_sets())
def test_every_instruction_set_meets_the_same_triangles(isa: str, directions, monkeypatch) -> None:
    model = mujoco.MjModel.from_xml_string(MODEL)
    batch = poses(posed(model, 3))[None]
    expected = Lidar(Tracer(model_meshes(model)), 1).scan(batch, directions)
    trace = _cpu.trace
    monkeypatch.setattr(_cpu, "trace", lambda *a: trace(*a, isa))
    got = Lidar(Tracer(model_meshes(model)), 1).scan(batch, directions)
    agree = (got.bodies == expected.bodies) & torch.isclose(got.ranges, expected.ranges, atol=RANGE_M)
    assert agree.float().mean() > 1 - EDGE_SHARE


def test_warp_meets_what_the_native_code_meets(directions) -> None:
    pytest.importorskip("warp")
    model = mujoco.MjModel.from_xml_string(MODEL)
    batch = pose_matrices(np.stack([poses(posed(model, seed)) for seed in range(2)]))
    rays = torch.tensor(directions, dtype=torch.float32)
    native, warp = (Tracer(model_meshes(model), backend=backend) for backend in ("native", "warp"))
    seen = native.seen_from(batch[:, 1], batch)
    a, b = (tracer.nearest(seen, rays, t_min=0.13, t_max=20.0) for tracer in (native, warp))
    agree = (a.mesh == b.mesh) & (a.face == b.face) & torch.isclose(a.t, b.t, atol=RANGE_M)
    assert agree.float().mean() > 1 - EDGE_SHARE
    assert (a.uv - b.uv)[agree].abs().max() < 1e-3
    limits = torch.full(a.t.shape, 1.5)
    blocked = [tracer.blocked(seen, rays, t_min=0.13, limits=limits) for tracer in (native, warp)]
    assert torch.equal(*blocked) and torch.equal(blocked[0], a.t <= 1.5)


def test_many_random_triangles_are_met_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    centres, n = rng.uniform(-3, 3, (3000, 1, 3)), 400
    vertices = (centres + rng.normal(0, 0.3, (3000, 3, 3))).reshape(-1, 3).astype(np.float32)
    rays = rng.normal(size=(n, 3))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    tracer = Tracer([BodyMesh(0, vertices, np.arange(9000).reshape(-1, 3))])
    pose = pose_matrices(WORLD[None])
    t = tracer.nearest(tracer.seen_from(pose[:, 0], pose), torch.tensor(rays)).t[0].numpy()
    a, b, c = vertices.reshape(-1, 3, 3).astype(np.float64).transpose(1, 0, 2)
    solved = np.linalg.solve(
        np.stack(np.broadcast_arrays((b - a)[None], (c - a)[None], -rays[:, None]), -1),
        np.broadcast_to(-a[None, ..., None], (n, 3000, 3, 1)),
    )[..., 0]
    inside = (solved[..., 0] >= 0) & (solved[..., 1] >= 0) & (solved[..., :2].sum(-1) <= 1) & (solved[..., 2] > 0)
    expected = np.where(inside, solved[..., 2], np.inf).min(1)
    assert np.isclose(t, expected, atol=1e-4).mean() > 1 - EDGE_SHARE


def test_degenerate_meshes_are_built() -> None:
    same = BodyMesh(0, np.zeros((3, 3)), np.tile([0, 1, 2], (5000, 1)))
    line = np.stack([2.0 ** np.arange(-60, 60, 0.05), np.ones(2400), np.ones(2400)], 1)
    thin = BodyMesh(0, line, np.stack([np.arange(2398), np.arange(1, 2399), np.arange(2, 2400)], 1))
    for mesh in (same, thin):
        assert np.isinf(Lidar(Tracer([mesh])).scan(WORLD[None], patterns.rotating([0, 30], 40)).ranges.numpy()).all()


def test_worlds_do_not_depend_on_each_other(directions) -> None:
    model = mujoco.MjModel.from_xml_string(MODEL)
    batch = np.stack([poses(posed(model, seed)) for seed in range(5)])
    lidar = Lidar(Tracer(model_meshes(model), threads=2), 1, noise=RangeNoise(0.01, 0.001, 0.1))
    seeds = np.arange(5) + 7
    whole = lidar.scan(batch, directions, seeds=seeds)
    order = np.array([3, 0, 4])
    part = lidar.scan(batch[order], directions, seeds=seeds[order])
    assert torch.equal(part.ranges, whole.ranges[order]) and torch.equal(part.bodies, whole.bodies[order])


def test_noise_and_drop_outs_have_their_statistics() -> None:
    rays = patterns.solid_state(200, 100, 40, 30)
    true = 2 / np.abs(rays).max(1)
    lidar = Lidar(Tracer([room()]), noise=RangeNoise(0.01, 0.002, 0.2))
    batch = np.tile(WORLD, (2, 1, 1))
    first, second = (lidar.scan(batch, rays, seeds=s).ranges.numpy() for s in ([1, 2], [3, 2]))
    assert np.isinf(first).mean() == pytest.approx(0.2, abs=0.01)
    error = ((first - true) / (0.01 + 0.002 * true))[np.isfinite(first)]
    assert abs(error.mean()) < 0.03 and error.std() == pytest.approx(1, abs=0.02)
    assert np.array_equal(first[1], second[1]) and not np.array_equal(first[0], second[0])
    assert not np.array_equal(first[0], first[1])


def test_surfaces_at_an_angle_are_lost_earlier() -> None:
    rays = patterns.solid_state(400, 1, 120, 1)
    lidar = Lidar(Tracer([room()]), max_range=2.5, noise=RangeNoise(falloff=True))
    seen = np.isfinite(lidar.scan(WORLD[None], rays).ranges[0].numpy())
    cosine = np.abs(rays).max(1)
    expected = 2 / cosine <= 2.5 * np.sqrt(cosine)
    assert (seen == expected).mean() > 0.99 and not seen.all()


def test_nearer_of_mesh_and_splat_counts() -> None:
    rays = patterns.solid_state(4, 1, 10, 1)
    splat = (torch.tensor([[1.0, 5.0, np.inf, 1.5]]), torch.tensor([[3, 3, 3, 4]]))
    scan = Lidar(Tracer([room()])).scan(WORLD[None], rays, splat=splat)
    assert scan.bodies[0].tolist() == [3, 0, 0, 4]
    assert scan.ranges[0, [0, 3]].tolist() == [1.0, 1.5]


def test_rotating_pattern_fires_its_lasers_at_each_azimuth() -> None:
    rays = patterns.rotating([-10, 0, 15], 4)
    assert rays.shape == (12, 3)
    np.testing.assert_allclose(np.degrees(np.arcsin(rays[:3, 2])), [-10, 0, 15], atol=1e-9)
    np.testing.assert_allclose(rays[4], [0, 1, 0], atol=1e-12)


def test_raster_fills_its_window() -> None:
    rays = patterns.solid_state(40, 20, 80, 30, centre_deg=(10, -5))
    azimuth, elevation = np.degrees(np.arctan2(rays[:, 1], rays[:, 0])), np.degrees(np.arcsin(rays[:, 2]))
    assert azimuth.max() == pytest.approx(49) and azimuth.min() == pytest.approx(-29)
    assert elevation[0] == pytest.approx(9.25) and elevation[-1] == pytest.approx(-19.25)


def test_rosette_stays_in_its_field_and_never_repeats() -> None:
    rosette = patterns.Rosette()
    seen, shares = set(), []
    for k in range(4):
        rays = rosette.directions(0.1 * k, 10_000)
        angle = np.degrees(np.arccos(rays[:, 0]))
        assert angle.max() <= 19.2 + 1e-9 and angle.max() > 19.0
        cells = np.round(np.degrees(rays[:, 1:]) * 2).astype(int)
        seen |= {tuple(c) for c in cells}
        shares.append(len(seen))
    assert all(later > 1.1 * earlier for earlier, later in itertools.pairwise(shares))


def test_height_scan_reads_the_ground_under_a_tilted_body() -> None:
    x, y = np.meshgrid(np.linspace(-3, 3, 61), np.linspace(-3, 3, 61))
    vertices, faces, _ = tessellate.height_field(0.1 * x - 0.2 * y, 3.0, 3.0)
    tracer = Tracer([BodyMesh(0, vertices, faces)])
    yaw, where = 0.7, np.array([0.4, -0.3, 0.8])
    turn = Rotation.from_euler("ZYX", [yaw, 0.3, -0.2])
    body = np.concatenate([where, np.roll(turn.as_quat(), 1)])
    scan = HeightScan(tracer, 1, (1.0, 0.6), 0.2)
    heights = scan.scan(np.stack([WORLD[0], body])[None])[0].numpy()
    assert heights.shape == (6, 4)
    c, s = np.cos(yaw), np.sin(yaw)
    spots = scan.grid @ np.array([[c, s], [-s, c]]) + where[:2]
    np.testing.assert_allclose(heights, 0.1 * spots[..., 0] - 0.2 * spots[..., 1] - where[2], atol=RANGE_M)


def test_height_scan_tells_where_there_is_no_ground() -> None:
    tracer = Tracer([BodyMesh(0, *tessellate.plane(0.25, 5.0))])
    heights = HeightScan(tracer, 0, (2.0, 0.0), 0.5).scan(WORLD[None])[0, :, 0]
    assert torch.isnan(heights).tolist() == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lidar, batch: lidar.scan(batch[0], patterns.rotating([0], 3)), "nworld, nbody, 7"),
        (lambda lidar, batch: lidar.scan(batch * np.nan, patterns.rotating([0], 3)), "finite"),
        (lambda lidar, batch: lidar.scan(np.zeros((1, 1, 7)), patterns.rotating([0], 3)), "quaternion"),
        (lambda lidar, batch: lidar.scan(batch, np.ones((3, 3))), "length 1"),
        (lambda lidar, batch: Lidar(lidar.tracer, 4).scan(batch, patterns.rotating([0], 3)), "body 4"),
        (lambda lidar, batch: Lidar(lidar.tracer, noise=RangeNoise(0.1)).scan(batch, patterns.rotating([0])), "seeds"),
        (lambda lidar, batch: Lidar(Tracer([sphere_at(3)])).scan(batch, patterns.rotating([0])), "bodies up to 3"),
        (lambda lidar, batch: RangeNoise(dropout=2), "dropout"),
        (lambda lidar, batch: patterns.solid_state(0, 1, 10, 10), "raster"),
    ],
)
def test_wrong_arguments_are_told(change, message) -> None:
    with pytest.raises(UsageError, match=message):
        change(Lidar(Tracer([room()])), WORLD[None])
