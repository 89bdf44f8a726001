# SPDX-License-Identifier: Apache-2.0
"""A bundle in MuJoCo: what loads, what stands still, what falls, and what is seen in front of what."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from made_scene import BOX_AT, BOX_HALF, FOCAL, HEIGHT, WIDTH, world_cameras

import real2sim
from real2sim.errors import BackendError, BundleError, UsageError
from real2sim.sim import film
from real2sim.sim.cameras import Camera
from real2sim.sim.drop import drop_video, scatter
from real2sim.sim.film import find_ffmpeg
from real2sim.sim.median_depth import median_depth
from real2sim.sim.mjcf import usable_inertia
from real2sim.sim.obj import read_vertices, write_obj
from real2sim.sim.raycast import COLLISION_GROUPS, cast
from real2sim.sim.render.rasterize import render
from real2sim.sim.render.splat import Splat
from real2sim.sim.scene import Scene, load
from real2sim.sim.support import clearance, footprint, free_spots, polygon_area, polygon_centroid
from real2sim.sim.views import hemisphere, look_at

SINK_M = 0.001  # MuJoCo's soft contacts let a resting sphere sink by a fraction of a millimetre
RAY_TOLERANCE = 1e-6  # [m]: ray casting is exact up to float64 rounding and MuJoCo's float32 meshes
BLEND_TOLERANCE = 2e-4  # float32 blending in two passes instead of one, and the end of a pixel at 1e-4 transmittance
MEDIAN_STEP_M = 0.005  # bisection stops at 0.2% of a metre, and half of the opacity lies a little elsewhere with haze
RADIUS = 0.03


def with_sphere(bundle: Path, position: Any, radius: float = RADIUS) -> Scene:
    """The bundle with one red sphere."""

    def add(spec: Any) -> None:
        body = spec.worldbody.add_body(name="ball", pos=position)
        body.add_freejoint()
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[radius, 0, 0], rgba=[1, 0, 0, 1], condim=6)

    return load(bundle, edit=add)


def side_camera(eye: Any = (0.12, -0.9, 0.1), target: Any = (0.12, 0.06, 0.1)) -> Camera:
    K = np.array([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]])
    return Camera("side", WIDTH, HEIGHT, K, look_at(eye, target))


def test_scene_xml_loads_in_plain_mujoco(made_bundle: Path) -> None:
    model = mujoco.MjModel.from_xml_path(str(made_bundle / "scene.xml"))
    assert model.opt.gravity.tolist() == [0, 0, -9.81] and model.opt.timestep == 0.002
    assert model.nv == 0
    assert model.geom_type[model.geom("support").id] == mujoco.mjtGeom.mjGEOM_BOX
    seen = model.geom("visual").id
    assert model.geom_contype[seen] == model.geom_conaffinity[seen] == 0
    solid = model.geom("collision_0").id
    assert model.geom_contype[solid] == 1 and model.geom_friction[solid, 0] == pytest.approx(0.6)
    camera = world_cameras()[3]
    fovy = 2 * np.degrees(np.arctan(HEIGHT / 2 / FOCAL))
    assert model.camera(camera.name).fovy[0] == pytest.approx(fovy, abs=1e-4)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    facing = -data.camera(camera.name).xmat.reshape(3, 3)[:, 2]
    assert facing == pytest.approx(camera.T_world_cam[:3, 2], abs=1e-6)


def test_front_door_loads_and_steps(made_bundle: Path) -> None:
    scene = real2sim.load(str(made_bundle))
    scene.step(5)
    assert scene.data.time == pytest.approx(0.01)
    scene.reset()
    assert scene.data.time == 0


@pytest.mark.parametrize(("xy", "height"), [((-0.2, -0.1), 0.0), (BOX_AT, 2 * BOX_HALF[2])])
def test_sphere_comes_to_rest_on_table_and_on_box(made_bundle: Path, xy: Any, height: float) -> None:
    scene = with_sphere(made_bundle, [*xy, height + RADIUS + 0.05])
    scene.step(1000)
    assert scene.data.body("ball").xpos[2] == pytest.approx(height + RADIUS, abs=SINK_M)
    assert np.abs(scene.data.qvel).max() < 0.001


def test_collider_depth_is_that_of_the_plane(made_bundle: Path) -> None:
    scene, view = load(made_bundle), world_cameras()[0]
    hits = cast(scene.model, scene.data, view, static=True, groups=COLLISION_GROUPS)
    on_table = hits.geom == scene.model.geom("support").id
    rays = view.T_world_cam[:3, :3] @ np.linalg.inv(view.K) @ np.array([40.5, 60.5, 1.0])
    assert on_table[60, 40]
    assert hits.depth[60, 40] == pytest.approx(-view.centre[2] / rays[2], abs=RAY_TOLERANCE)
    assert hits.normal[60, 40] == pytest.approx([0, 0, 1], abs=RAY_TOLERANCE)


def test_ray_window_loses_no_pixel_of_a_sphere_at_the_edge(made_bundle: Path) -> None:
    view = side_camera()
    for position in ([0.33, -0.3, 0.3], [0.12, -0.85, 0.1], [0.12, -0.9, 0.1], [0.12, -1.2, 0.1]):
        scene = with_sphere(made_bundle, position)
        hits = cast(scene.model, scene.data, view, static=False)
        rays = np.stack(np.meshgrid(np.arange(WIDTH) + 0.5, np.arange(HEIGHT) + 0.5), -1)
        rays = (rays - [WIDTH / 2, HEIGHT / 2]) / FOCAL
        rays = np.concatenate([rays, np.ones((HEIGHT, WIDTH, 1))], -1)
        centre = view.viewmat[:3, :3] @ position + view.viewmat[:3, 3]
        b, c = rays @ centre, centre @ centre - RADIUS**2
        root = b**2 - (rays**2).sum(-1) * c
        ahead = b + np.sqrt(np.maximum(root, 0)) > 0
        assert np.array_equal(hits.geom >= 0, (root > 0) & ahead)


def test_sphere_behind_the_box_is_hidden_and_in_front_is_seen(made_bundle: Path) -> None:
    view = side_camera()
    front = with_sphere(made_bundle, [BOX_AT[0], -0.1, 0.1]).render(view)
    behind = with_sphere(made_bundle, [BOX_AT[0], 0.25, 0.1]).render(view)
    row, column = HEIGHT // 2, WIDTH // 2
    assert front["rgb"][row, column, 0] > 0.35 > 2 * front["rgb"][row, column, 2]
    assert front["depth"][row, column] == pytest.approx(0.9 - 0.1 - RADIUS, abs=0.001)
    assert behind["rgb"][row, column, 2] > 0.4
    assert behind["depth"][row, column] == pytest.approx(0.9 + BOX_AT[1] - BOX_HALF[1], abs=0.01)


def test_segmentation_names_bodies(made_bundle: Path) -> None:
    scene = with_sphere(made_bundle, [BOX_AT[0], -0.1, 0.1])
    bodies = scene.render(side_camera(), ("segmentation",))["segmentation"]
    assert bodies[HEIGHT // 2, WIDTH // 2] == scene.model.body("ball").id
    assert bodies[HEIGHT // 2 + 20, WIDTH // 2] == scene.model.body("background").id
    assert bodies[0, 0] == -1


def test_half_transparent_splat_before_a_sphere_lets_it_shine_through(made_bundle: Path) -> None:
    """Oracle: the Gaussians nearer than the sphere rendered alone, and the sphere through what they leave."""
    scene, view = with_sphere(made_bundle, [BOX_AT[0], BOX_AT[1], 0.12], radius=0.02), side_camera()
    scene.background.logit_opacities[:] = -1.0
    shown = scene.render(view)
    hits = cast(scene.model, scene.data, view, static=False)
    row, column = HEIGHT // 2 - 3, WIDTH // 2
    depth = hits.depth[row, column]
    assert np.isfinite(depth)
    z = scene.splat.means @ view.viewmat[2, :3] + view.viewmat[2, 3]
    front = render(scene.splat.select(z < depth), view)
    alpha = front["alpha"][row, column]
    assert 0.2 < alpha < 0.95
    opaque = (shown["rgb"][row, column] - front["rgb"][row, column]) / (1 - alpha)  # the red ball, in the scene's light
    assert opaque[0] > 0.3 and opaque[1:] == pytest.approx(0, abs=4 * BLEND_TOLERANCE)
    metres = alpha * front["depth"][row, column] + (1 - alpha) * depth
    assert shown["depth"][row, column] == pytest.approx(metres, abs=BLEND_TOLERANCE)


def test_many_worlds_are_drawn_as_each_alone(made_bundle: Path) -> None:
    scene, view = with_sphere(made_bundle, [BOX_AT[0], -0.1, 0.1]), side_camera()
    states = []
    for x in (-0.1, 0.0, 0.15):
        scene.data.qpos[0] = BOX_AT[0] + x
        mujoco.mj_forward(scene.model, scene.data)
        states.append((scene.data.xpos.copy(), scene.data.xquat.copy(), scene.render(view)))
    xpos, xquat = (np.stack([state[k] for state in states]) for k in (0, 1))
    images = scene.render_worlds([view, "00003"], ("rgb", "segmentation"), xpos, xquat, "float32")
    assert images["rgb"].shape == (3, 2, HEIGHT, WIDTH, 3)
    for world, (_, _, alone) in enumerate(states):
        assert np.array_equal(images["rgb"][world, 0].numpy(), alone["rgb"])
        assert np.array_equal(images["segmentation"][world, 0].numpy(), alone["segmentation"])


def test_worlds_of_the_batch_are_drawn_in_their_present_state(made_bundle: Path) -> None:
    def add(spec: Any) -> None:
        body = spec.worldbody.add_body(name="ball", pos=[BOX_AT[0], -0.1, 0.1])
        body.add_freejoint()
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[RADIUS, 0, 0], rgba=[1, 0, 0, 1], condim=6)

    scene = load(made_bundle, nworld=2, edit=add)
    assert scene.batch is not None
    scene.batch.qpos[1, 1] = 5.0  # far behind everything
    depth = scene.render_worlds([side_camera()], ("depth",))["depth"][:, 0, HEIGHT // 2, WIDTH // 2]
    assert float(depth[0]) == pytest.approx(0.9 - 0.1 - RADIUS, abs=0.001)
    assert float(depth[1]) == pytest.approx(0.9 + BOX_AT[1] - BOX_HALF[1], abs=0.01)


def test_empty_scene_renders_the_splat_alone(made_bundle: Path) -> None:
    scene = load(made_bundle)
    shown, alone = scene.render("00003"), render(scene.splat, world_cameras()[3])
    assert np.abs(shown["rgb"] - alone["rgb"]).max() < BLEND_TOLERANCE
    assert set(scene.render(2, ("depth",))) == {"depth"}


def test_wrong_requests_are_refused_with_what_would_be_right(made_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nworld=1"):
        load(made_bundle, nworld=4, engine="mujoco")
    scene = load(made_bundle)
    for camera in ("nobody", 99):
        with pytest.raises(UsageError, match="00000"):
            scene.render(camera)
    with pytest.raises(UsageError, match="segmentation"):
        scene.render(0, ("colour",))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="MJCF"):
        load(made_bundle, robot=tmp_path / "no_robot.xml")


def test_robot_is_attached_and_driven(made_bundle: Path, tmp_path: Path) -> None:
    robot = tmp_path / "arm.xml"
    robot.write_text(
        '<mujoco model="arm"><worldbody><body name="link" pos="0 0 0.2"><joint name="hinge" axis="0 1 0"/>'
        '<geom type="capsule" fromto="0 0 0 0 0 0.2" size="0.02"/></body></worldbody>'
        '<actuator><motor name="m" joint="hinge"/></actuator></mujoco>'
    )
    scene = load(made_bundle, robot=robot)
    scene.ctrl[:] = 1.0
    scene.step(50)
    assert scene.data.joint("arm/hinge").qpos[0] > 0.01


@pytest.mark.parametrize(
    ("scale", "inertia"), [((1, 1, 1), "convex"), ((1e-4, 1e-4, 1e-4), "shell"), ((1, 1, 0), None)]
)
def test_meshes_that_mujoco_refuses_are_found_before_it_does(tmp_path: Path, scale: Any, inertia: str | None) -> None:
    corners = np.array([[x, y, z] for x in (0, 0.1) for y in (0, 0.1) for z in (0, 0.1)]) * scale
    faces = [
        [0, 1, 3],
        [0, 3, 2],
        [4, 6, 7],
        [4, 7, 5],
        [0, 4, 5],
        [0, 5, 1],
        [2, 3, 7],
        [2, 7, 6],
        [0, 2, 6],
        [0, 6, 4],
        [1, 5, 7],
        [1, 7, 3],
    ]
    lines = [f"v {x:.12g} {y:.12g} {z:.12g}" for x, y, z in corners] + [
        "f {} {} {}".format(*np.add(f, 1)) for f in faces
    ]
    path = tmp_path / "part.obj"
    path.write_text("\n".join(lines))
    found, why = usable_inertia(path, collides=True)
    assert found == inertia and bool(why) == (inertia != "convex")


def test_obj_round_trip_and_its_error(tmp_path: Path) -> None:
    points = np.array([[0, 0, 0], [1, 0, 0.000001], [0, -2, 3.5]])
    write_obj(tmp_path / "m.obj", points, [[0, 1, 2]], np.full((3, 3), 0.5))
    assert (read_vertices(tmp_path / "m.obj") == points).all()
    assert "v 1.000000 0.000000 0.000001 0.500 0.500 0.500" in (tmp_path / "m.obj").read_text()
    (tmp_path / "m.obj").write_text("v 1 2 x\n")
    with pytest.raises(BundleError, match="line 1"):
        read_vertices(tmp_path / "m.obj")


def test_polygon_measures_against_an_l_shape() -> None:
    shape = [[0, 0], [2, 0], [2, 1], [1, 1], [1, 2], [0, 2]]
    assert polygon_area(shape) == pytest.approx(3)
    assert polygon_centroid(shape) == pytest.approx([5 / 6, 5 / 6])
    assert clearance([[0.5, 0.5], [1.5, 1.5], [0.5, 1.75], [3, 0.5]], shape) == pytest.approx([0.5, -0.5, 0.25, -1])


def test_footprint_is_cut_at_the_support() -> None:
    pyramid = [[-1, -1, -1], [1, -1, -1], [1, 1, -1], [-1, 1, -1], [0, 0, 1]]
    outline = footprint(pyramid, above=0.0)
    assert outline is not None and polygon_area(outline) == pytest.approx(1)
    assert footprint(pyramid, above=2.0) is None


def test_free_spots_keep_clear_of_edges_obstacles_and_each_other() -> None:
    table, obstacle = [[0, 0], [1, 0], [1, 0.6], [0, 0.6]], np.array([[0.4, 0.2], [0.7, 0.2], [0.7, 0.5], [0.4, 0.5]])
    spots = free_spots(table, [obstacle], 0.02)
    assert len(spots) == 12
    assert (clearance(spots, table) >= 0.02).all() and (clearance(spots, obstacle) <= -0.02).all()
    gaps = np.linalg.norm(spots[:, None] - spots[None], axis=-1) + np.eye(12)
    assert gaps.min() > 0.04
    assert len(free_spots(table, [np.asarray(table, float)], 0.02)) == 0


def test_check_cameras_stay_where_the_capture_looked_from() -> None:
    captured = [c for c in world_cameras() if c.centre[0] > 0.3]  # one side only
    support = {"polygon": [[-0.4, -0.3], [0.4, -0.3], [0.4, 0.3], [-0.4, 0.3]], "height": 0.0}
    views = hemisphere(captured, support, 64, 80)
    assert len(views) == 64
    directions = np.stack([v.centre / np.linalg.norm(v.centre) for v in views])
    seen = np.stack([c.centre / np.linalg.norm(c.centre) for c in captured])
    assert (directions @ seen.T).max(1).min() >= np.cos(np.radians(20.01))
    assert (directions[:, 2] > 0).all()


def test_drop_film_has_its_frames_and_says_where_spheres_ended(made_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "film" / "drop.mp4"
    summary = drop_video(made_bundle, 6, out, seconds=0.5, width=64, height=48)
    written = json.loads((out.parent / "summary.json").read_text())
    assert written["spheres"] == 6 and written["frames"] == summary.frames == 12
    assert sum(written[k] for k in ("on_support", "on_objects", "fell_off", "moving")) == 6
    command = [find_ffmpeg(), "-i", str(out), "-map", "0:v", "-f", "null", "-"]
    told = subprocess.run(command, capture_output=True, text=True).stderr
    assert "64x48" in told and "frame=   12" in told
    assert not list(out.parent.glob(".*partial*"))


def test_spheres_start_apart_and_above_everything(made_bundle: Path) -> None:
    from real2sim.sim.bundle import read_bundle

    balls = scatter(read_bundle(made_bundle), 50, seed=3)
    centres, radii = np.stack([b.start for b in balls]), np.array([b.radius for b in balls])
    gaps = np.linalg.norm(centres[:, None] - centres[None], axis=-1) - radii[:, None] - radii[None] + np.eye(50)
    assert gaps.min() > 0
    assert (centres[:, 2] - radii > 2 * BOX_HALF[2]).all()
    assert len({b.radius for b in balls}) == 50


def test_film_without_ffmpeg_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, made_bundle: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(film.shutil, "which", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)
    with pytest.raises(BackendError, match="pip install"):
        drop_video(made_bundle, 1, tmp_path / "x.mp4")


@pytest.mark.parametrize("wrong", [{"count": 0}, {"seconds": 0.0}, {"width": 101}, {"height": 2}])
def test_film_that_cannot_be_is_refused(made_bundle: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="film"):
        drop_video(made_bundle, **{"count": 1, "out": tmp_path / "x.mp4", **wrong})


def test_median_depth_is_not_moved_by_haze(made_bundle: Path) -> None:
    """A faint veil near the camera pulls the mean depth by centimetres and leaves the median where it was."""
    splat, view = load(made_bundle).splat, world_cameras()[0]
    clear, alpha = median_depth(splat, view)
    veil = splat.select(np.arange(1))
    veil.means[0] = view.centre + 0.3 * view.T_world_cam[:3, 2]
    veil.log_scales[:], veil.logit_opacities[:] = np.log(0.5), np.log(0.08 / 0.92)
    hazy = Splat(**{k: np.concatenate([getattr(splat, k), getattr(veil, k)]) for k in Splat.__dataclass_fields__})
    opaque = alpha > 0.95
    moved = render(splat, view)["depth"][opaque] - render(hazy, view)["depth"][opaque]
    assert np.median(moved) > 0.03
    again, _ = median_depth(hazy, view)
    assert np.median(np.abs(again[opaque] - clear[opaque])) < MEDIAN_STEP_M
    assert np.median(np.abs(clear[opaque] - render(splat, view)["depth"][opaque])) < 0.01


PLACE = [-0.2, -0.1, 0.08]
ENGINES_APART_M = 1e-3  # both sink into soft contacts by fractions of a millimetre


def test_both_engines_let_a_sphere_rest_at_the_same_place(made_bundle: Path) -> None:
    def add(spec: Any) -> None:
        body = spec.worldbody.add_body(name="ball", pos=PLACE)
        body.add_freejoint()
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[RADIUS, 0, 0], condim=6)

    ours, theirs = load(made_bundle, edit=add), load(made_bundle, edit=add, engine="mujoco")
    assert ours.batch is not None and theirs.batch is None
    for scene in (ours, theirs):
        scene.step(1000)
    assert ours.data.body("ball").xpos == pytest.approx(theirs.data.body("ball").xpos, abs=ENGINES_APART_M)


def test_many_worlds_are_stepped_by_the_core_only(made_bundle: Path) -> None:
    def add(spec: Any) -> None:
        body = spec.worldbody.add_body(name="ball", pos=PLACE)
        body.add_freejoint()
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[RADIUS, 0, 0])

    scene = load(made_bundle, nworld=3, edit=add)
    assert scene.batch is not None
    scene.batch.qpos[2, 2] += 0.1
    scene.step(10)
    heights = []
    for world in range(3):
        scene.show(world)
        heights.append(float(scene.data.body("ball").xpos[2]))
    assert heights[0] == heights[1] and heights[2] == pytest.approx(heights[0] + 0.1, abs=1e-12)
    with pytest.raises(UsageError, match="MuJoCo steps one world"):
        load(made_bundle, nworld=3, engine="mujoco")
    with pytest.raises(UsageError, match="got 'bullet'"):
        load(made_bundle, engine="bullet")  # type: ignore[arg-type]
