# SPDX-License-Identifier: Apache-2.0
"""The batch renderer on the CPU against the float64 reference, and against what must be true of any renderer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_scene import psnr, random_scene, trained_like_scene
from scipy.spatial.transform import Rotation

from real2sim.errors import BackendError, UsageError
from real2sim.sim import tessellate
from real2sim.sim.body_meshes import BodyMesh
from real2sim.sim.render import _cpu, batch_cpu
from real2sim.sim.render.batch import OUTPUTS, Appearance, BatchCameras, BatchRenderer
from real2sim.sim.render.batch_reference import render_batch_reference
from real2sim.sim.render.meshes import Lights, Meshes
from real2sim.sim.render.splat import Splat

EXACT_DB = 75.0  # root mean square error below 2e-4
ERROR = 1e-3  # of a pixel in 0..1, but for those in which float32 falls on the other side of a threshold
DEPTH_RELATIVE = 1e-4
UNDECIDED = 1e-3  # share of such pixels
K = [[40.0, 0, 16], [0, 40, 12], [0, 0, 1]]
STILL = np.array([0, 0, 0, 1, 0, 0, 0.0])
WIDTH, HEIGHT = 32, 24
FLAT = Lights(key=(0, 0, -1), key_strength=0, fills=(), ambient=1.0, softness=0)


def splat_of(scene) -> Splat:
    opacities = scene.opacities.numpy().clip(1e-6, 1 - 1e-6)
    sh = scene.sh.numpy()
    logits = np.log(opacities / (1 - opacities))
    return Splat(scene.means.numpy(), scene.quats.numpy(), np.log(scene.scales.numpy()), logits, sh[:, :1], sh[:, 1:])


def ridden_scene(nworld: int = 3, ncam: int = 1, sh_degree: int = 3, seed: int = 0):
    """500 Gaussians, half of them on three bodies that lie elsewhere in every world."""
    rng = np.random.default_rng(seed)
    scene = random_scene(500, seed, width=53, height=39, views=nworld * ncam, sh_degree=sh_degree)
    template, ids = splat_of(scene), rng.integers(0, 4, 500) * rng.integers(0, 2, 500)
    template.means[ids > 0] *= 0.3
    template.log_scales[ids > 0] -= 0.7
    poses = rng.normal(0, 0.6, (nworld, 4, 7)) + [0, 0, 2.5, 0, 0, 0, 0]
    cameras = BatchCameras(
        scene.viewmats.reshape(nworld, ncam, 4, 4), scene.Ks.reshape(nworld, ncam, 3, 3), scene.width, scene.height
    )
    return template, ids.astype(np.int32), poses, cameras


def disc(z: float, rgb, *, opacity: float = 0.9, size: float = 5.0, at=(0.0, 0.0)) -> Splat:
    """One flat Gaussian across the view axis; size: its standard deviation [m]."""
    sh0 = (np.array(rgb) - 0.5) / 0.28209479177387814
    logit = np.log(opacity / (1 - opacity))
    scales = np.log([[size, size, 1e-4]])
    return Splat([[*at, z]], [[1, 0, 0, 0]], scales, [logit], [[sh0]], np.zeros((1, 0, 3)))


def together(*splats: Splat) -> Splat:
    return Splat(**{n: np.concatenate([getattr(s, n) for s in splats]) for n in Splat.__dataclass_fields__})


def draw(template: Splat, ids, poses, cameras: BatchCameras | None = None, outputs=OUTPUTS, **options):
    cameras = cameras or BatchCameras(np.eye(4)[None], np.array([K]), WIDTH, HEIGHT)
    options.setdefault("dtype", "float32")
    return BatchRenderer(template, np.asarray(ids, np.int32), "cpu").render(poses, cameras, outputs, **options)


def assert_close(out, reference) -> None:
    for name in ("rgb", "alpha"):
        assert psnr(out[name], reference[name]) >= EXACT_DB
        assert ((out[name] - reference[name]).abs() > ERROR).double().mean() < UNDECIDED
    solid = reference["alpha"] > 0.5
    relative = (out["depth"] / reference["depth"] - 1).abs()[solid]
    assert (relative > DEPTH_RELATIVE).double().mean() < UNDECIDED
    assert (out["segmentation"] != reference["segmentation"]).double().mean() < UNDECIDED
    assert ((out["normals"] * reference["normals"]).sum(-1)[solid] < 0.999).double().mean() < UNDECIDED


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
@pytest.mark.parametrize("sh_degree", [0, 3])
def test_posed_bodies_are_the_references(mode, sh_degree) -> None:
    template, ids, poses, cameras = ridden_scene(sh_degree=sh_degree, seed=sh_degree)
    renderer = BatchRenderer(template, ids, "cpu", rasterize_mode=mode)
    look = Appearance([1.2, 0.7, 1], [1, 0.9, 0.8], [0, 1, -0.5])
    background = [[0.2, 0.4, 0.1], [0, 0, 0], [1, 1, 1]]
    request = renderer._request(poses, cameras, OUTPUTS, "float32", background, look)
    assert_close(renderer.backend.render(request), render_batch_reference(template, ids, request, mode))


@pytest.mark.parametrize("isa", _cpu.instruction_sets())
def test_trained_like_scene_is_the_references_with_every_instruction_set(isa, monkeypatch) -> None:
    scene = trained_like_scene(400, 3)
    template, ids = splat_of(scene), np.zeros(400, np.int32)
    forward = _cpu.forward_posed
    monkeypatch.setattr(_cpu, "forward_posed", lambda *a: forward(*a, isa))
    renderer = BatchRenderer(template, ids, "cpu")
    cameras = BatchCameras(scene.viewmats, scene.Ks, scene.width, scene.height)
    request = renderer._request(STILL[None, None], cameras, OUTPUTS, "float32", (0, 0, 0), None)
    assert_close(renderer.backend.render(request), render_batch_reference(template, ids, request))


def test_plane_at_four_metres_reads_four_metres() -> None:
    out = draw(disc(4.0, (1, 0, 0), opacity=0.5, size=50.0), [0], STILL[None, None])
    assert float((out["depth"] - 4).abs().max()) < 1e-5
    assert float((out["alpha"] - 0.5).abs().max()) < 1e-3
    assert out["segmentation"].unique().tolist() == [0]
    np.testing.assert_allclose(out["normals"][0, 0, 12, 16].numpy(), [0, 0, -1], atol=1e-6)


@pytest.mark.parametrize("sh_degree", [1, 2, 3])
def test_body_turned_one_way_looks_like_camera_turned_the_other(sh_degree) -> None:
    scene = random_scene(200, 4, sh_degree=sh_degree)
    template = splat_of(scene)
    template.means[:] *= 0.3
    turn = Rotation.from_euler("y", 90, degrees=True)
    view = np.eye(4)
    view[2, 3] = 3.0
    turned = view.copy()
    turned[:3, :3] = turn.as_matrix()
    body = np.concatenate([np.zeros(3), np.roll(turn.as_quat(), 1)])
    Ks = np.array([K])
    a = draw(template, np.ones(200), np.stack([STILL, body])[None], BatchCameras(view[None], Ks, WIDTH, HEIGHT))
    b = draw(template, np.ones(200), np.tile(STILL, (1, 2, 1)), BatchCameras(turned[None], Ks, WIDTH, HEIGHT))
    assert psnr(a["rgb"], b["rgb"]) > EXACT_DB


def test_cup_is_hidden_behind_the_box_and_seen_before_it() -> None:
    box, cup = disc(2.0, (0, 0, 1), opacity=0.998), disc(0.0, (1, 0, 0), opacity=0.998)
    poses = np.tile(STILL, (2, 2, 1))
    poses[:, 1, 2] = [3.0, 1.0]
    out = draw(together(box, cup), [0, 1], poses)
    centre = out["rgb"][:, 0, 12, 16]
    assert centre[0, 2] > 0.99 and centre[1, 0] > 0.99
    assert out["segmentation"][:, 0, 12, 16].tolist() == [0, 1]


def test_permuted_worlds_are_the_same_bits_and_permuted_gaussians_the_same_picture() -> None:
    template, ids, poses, cameras = ridden_scene()
    whole = draw(template, ids, poses, cameras)
    order = np.array([2, 0])
    part_cameras = BatchCameras(cameras.viewmats[order], cameras.Ks[order], cameras.width, cameras.height)
    part = draw(template, ids, poses[order], part_cameras)
    assert all(torch.equal(part[name], whole[name][order]) for name in OUTPUTS)
    mixed = np.random.default_rng(0).permutation(len(ids))
    assert psnr(draw(template.select(mixed), ids[mixed], poses, cameras)["rgb"], whole["rgb"]) >= EXACT_DB


def test_number_of_threads_changes_no_bit(monkeypatch) -> None:
    template, ids, poses, cameras = ridden_scene()
    images = []
    for threads in (1, 3, 9):
        monkeypatch.setattr(batch_cpu, "default_threads", lambda threads=threads: threads)
        images.append(draw(template, ids, poses, cameras))
    assert all(torch.equal(images[0][name], other[name]) for other in images[1:] for name in OUTPUTS)


def test_types_round_what_float32_holds() -> None:
    template, ids, poses, cameras = ridden_scene(1, 1)
    fine, half, bytes_ = (draw(template, ids, poses, cameras, dtype=d) for d in ("float32", "float16", "uint8"))
    assert torch.equal(bytes_["rgb"], (fine["rgb"].clamp(0, 1) * 255).round().to(torch.uint8))
    assert torch.equal(bytes_["normals"], ((fine["normals"] * 0.5 + 0.5) * 255).round().to(torch.uint8))
    assert torch.equal(half["depth"], fine["depth"].half()) and bytes_["depth"].dtype == torch.float32


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("field", ["means", "quats", "log_scales", "logit_opacities", "sh0"])
def test_poisoned_gaussian_is_left_out(field, value) -> None:
    template, ids, poses, cameras = ridden_scene(1, 1)
    clean = draw(template.select(np.arange(500) != 7), ids[np.arange(500) != 7], poses, cameras)
    getattr(template, field)[7] = value
    out = draw(template, ids, poses, cameras)
    if (field, value) == ("logit_opacities", np.inf):
        assert all(torch.isfinite(v).all() for v in out.values())  # an opacity of 1
    else:
        assert all(torch.equal(out[name], clean[name]) for name in OUTPUTS)


def test_body_without_a_pose_is_not_drawn() -> None:
    template, ids, poses, cameras = ridden_scene(1, 1)
    poses[0, 2, 3:] = 0
    out = draw(template, ids, poses, cameras)
    expected = draw(template.select(ids != 2), ids[ids != 2], poses, cameras)
    assert all(torch.equal(out[name], expected[name]) for name in OUTPUTS)


def test_near_and_far_bound_the_centres() -> None:
    both = together(disc(1.0, (1, 0, 0)), disc(3.0, (0, 1, 0)))
    for near, far, seen in ((0.5, 2.0, 1.0), (2.0, 4.0, 3.0)):
        cameras = BatchCameras(np.eye(4)[None], np.array([K]), WIDTH, HEIGHT, near, far)
        assert float(draw(both, [0, 0], STILL[None, None], cameras)["depth"][0, 0, 12, 16]) == pytest.approx(seen)


def test_wrong_requests_are_told() -> None:
    plane = disc(2.0, (1, 0, 0))
    skewed = np.array(K)
    skewed[0, 1] = 1
    with pytest.raises(UsageError, match="skew"):
        draw(plane, [0], STILL[None, None], BatchCameras(np.eye(4)[None], skewed[None], WIDTH, HEIGHT))
    with pytest.raises(UsageError, match="finite"):
        draw(plane, [0], np.full((1, 1, 7), np.nan))
    with pytest.raises(UsageError, match="focal"):
        draw(plane, [0], STILL[None, None], BatchCameras(np.eye(4)[None], -np.array([K]), WIDTH, HEIGHT))
    with pytest.raises(BackendError, match="fast"):
        BatchRenderer(plane, np.zeros(1, np.int32), "cpu", precision="fast")


def test_plan_says_what_a_call_takes(capsys) -> None:
    renderer = BatchRenderer(disc(2.0, (1, 0, 0)), np.zeros(1, np.int32), "cpu")
    plan = renderer.plan(10, ncam=2, width=8, height=4, outputs=("rgb", "depth"))
    assert plan.views == 20 and plan.image_bytes == 20 * 32 * (3 + 4)
    assert "20 views" in capsys.readouterr().out


def box_mesh(body: int, half: float = 0.3, colours=(1.0, 0, 0)) -> BodyMesh:
    vertices, faces, normals = tessellate.box([half] * 3)
    return BodyMesh(body, vertices, faces, normals, np.tile(colours, (len(vertices), 1)))


def test_mesh_is_drawn_among_gaussians_by_depth() -> None:
    """A half transparent plane before a red cube before a blue plane: each is weighed by what lets it through."""
    planes = together(disc(1.0, (0, 1, 0), opacity=0.5, size=50.0), disc(4.0, (0, 0, 1), opacity=0.998, size=50.0))
    poses = np.tile(STILL, (1, 2, 1))
    poses[0, 1, 2] = 2.3
    out = draw(planes, [0, 0], poses, meshes=Meshes([box_mesh(1)], FLAT), background=(1, 1, 1))
    rgb, depth, who = (out[name][0, 0] for name in ("rgb", "depth", "segmentation"))
    np.testing.assert_allclose(rgb[12, 16].numpy(), [0.5, 0.5, 0], atol=2e-3)
    assert float(depth[12, 16]) == pytest.approx(0.5 * 1 + 0.5 * 2.0, abs=2e-3)
    assert who[0, 0] == 0 and float(out["alpha"][0, 0, 12, 16]) == 1
    np.testing.assert_allclose(rgb[0, 0].numpy(), [0.001, 0.5, 0.5], atol=3e-3)
    poses[0, 1, 2] = 0.6
    near = draw(planes, [0, 0], poses, meshes=Meshes([box_mesh(1)], FLAT))
    assert near["segmentation"][0, 0, 12, 16] == 1
    np.testing.assert_allclose(near["rgb"][0, 0, 12, 16].numpy(), [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(near["normals"][0, 0, 12, 16].numpy(), [0, 0, -1], atol=1e-6)


def test_mesh_behind_an_opaque_plane_is_hidden_and_its_outline_is_the_rays() -> None:
    poses = np.tile(STILL, (2, 2, 1))
    poses[:, 1, 2] = [2.3, 9.0]
    out = draw(disc(4.0, (0, 0, 1), opacity=0.998, size=50.0), [0], poses, meshes=Meshes([box_mesh(1)], FLAT))
    x, y = (np.arange(n) + 0.5 - c for n, c in ((WIDTH, 16), (HEIGHT, 12)))
    expected = (np.abs(x / 40 * 2) <= 0.3)[None] & (np.abs(y / 40 * 2) <= 0.3)[:, None]
    np.testing.assert_array_equal(out["segmentation"][0, 0].numpy() == 1, expected)
    assert not (out["segmentation"][1] == 1).any()


def test_shading_is_lamberts_and_shadows_fall_where_the_light_is_blocked() -> None:
    lights = Lights(key=(0, 0, -1), key_strength=0.6, fills=(((0, 0, -1), 0.1),), ambient=0.2, softness=0, shadow=0.5)
    floor = disc(4.0, (0.8, 0.8, 0.8), opacity=0.998, size=50.0)
    poses = np.tile(STILL, (1, 2, 1))
    poses[0, 1, 2] = 2.3
    tilted = poses.copy()
    tilted[0, 1, 3:] = np.roll(Rotation.from_euler("y", 40, degrees=True).as_quat(), 1)
    for pose, cosine in ((poses, 1.0), (tilted, np.cos(np.radians(40)))):
        out = draw(floor, [0], pose, meshes=Meshes([box_mesh(1)], lights))
        red = float(out["rgb"][0, 0, 12, 14, 0])
        assert red == pytest.approx(0.2 + 0.7 * cosine, abs=0.01)
    slanted = Lights(key=(0.5, 0, -1), key_strength=0.6, ambient=0.2, softness=0, shadow=0.5)
    lit, shaded = (draw(floor, [0], poses, meshes=m) for m in (None, Meshes([box_mesh(1)], slanted)))
    ratio = (shaded["rgb"] / lit["rgb"])[0, 0, 12, :, 0].numpy()
    x = 4 * (np.arange(WIDTH) + 0.5 - 16) / 40  # on the floor
    floor_seen = shaded["segmentation"][0, 0, 12].numpy() == 0
    dark = (x >= -0.3 - 2 * 0.5) & (x <= 0.3 - 1.4 * 0.5)  # between the cube's far upper and near lower edges
    np.testing.assert_allclose(ratio[floor_seen], np.where(dark, 0.5, 1.0)[floor_seen], atol=0.01)
    assert (dark & floor_seen).sum() > 3


def test_texture_lies_where_its_coordinates_say() -> None:
    vertices, faces, normals = tessellate.plane(1.0, 1.0)
    uvs = (vertices[:, :2] + 1) / 2
    texture = np.zeros((2, 2, 3), np.uint8)
    texture[0, 0], texture[0, 1], texture[1, 0] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    sheet = BodyMesh(0, vertices + [0, 0, 2], faces, normals, uvs=uvs, texture=texture)
    empty = disc(1.0, (0, 0, 0)).select(np.zeros(1, bool))
    rgb = draw(empty, [], STILL[None, None], meshes=Meshes([sheet], FLAT))["rgb"][0, 0]
    for (x, y), colour in {(-0.25, -0.25): [1, 0, 0], (0.25, -0.25): [0, 1, 0], (-0.25, 0.25): [0, 0, 1]}.items():
        got = rgb[int(12 + 40 * y), int(16 + 40 * x)]
        np.testing.assert_allclose(got.numpy(), colour, atol=0.35)
        assert int(got.argmax()) == int(np.argmax(colour))
