# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels, run on the host, against the float64 reference and against themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from emulated_kernels import COMPILER, KERNELS, emulated_renderer
from random_scene import psnr, random_scene, trained_like_scene
from scipy.spatial.transform import Rotation

from real2sim.sim.render.batch import CONSTANTS_KEPT, OUTPUTS, Appearance, BatchCameras, BatchRenderer
from real2sim.sim.render.batch_cuda import CudaBackend, Room, Tuning
from real2sim.sim.render.batch_reference import render_batch_reference
from real2sim.sim.render.splat import Splat

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the kernels are compiled for the host by g++")

EXACT_DB = 90.0  # float32 kernels against float64; the requirement is 75
FAST_DB = 60.0  # packed half against exact
DEPTH = 1e-4  # relative, where alpha > 0.5
UNDECIDED = 2e-4  # share of pixels in which float32 may fall on the other side of a threshold
SMALL = Tuning(views_at_once=2, sort_max=256, bin_capacity=32, view_group=3)


def splat_of(scene) -> Splat:
    opacities = scene.opacities.numpy().clip(1e-6, 1 - 1e-6)
    sh = scene.sh.numpy()
    logits = np.log(opacities / (1 - opacities))
    return Splat(scene.means.numpy(), scene.quats.numpy(), np.log(scene.scales.numpy()), logits, sh[:, :1], sh[:, 1:])


def moving_scene(count: int = 500, *, nworld: int = 3, ncam: int = 2, sh_degree: int = 1, seed: int = 0):
    """Half of the Gaussians ride on three bodies; every world has its own poses and cameras."""
    rng = np.random.default_rng(seed)
    scene = random_scene(count, seed, width=53, height=39, views=nworld * ncam, sh_degree=sh_degree)
    template = splat_of(scene)
    body_ids = rng.integers(0, 4, count) * rng.integers(0, 2, count)
    template.means[body_ids > 0] *= 0.3
    template.log_scales[body_ids > 0] -= 0.7
    poses = np.zeros((nworld, 4, 7))
    poses[..., :3] = rng.normal(0, 0.6, (nworld, 4, 3)) + [0, 0, 2.5]
    poses[..., 3:] = rng.normal(0, 1, (nworld, 4, 4))
    shape = (nworld, ncam)
    cameras = BatchCameras(
        scene.viewmats.reshape(*shape, 4, 4), scene.Ks.reshape(*shape, 3, 3), scene.width, scene.height
    )
    return template, body_ids.astype(np.int32), poses, cameras


def fixed(cameras: BatchCameras) -> BatchCameras:
    """The first world's cameras for all."""
    return BatchCameras(cameras.viewmats[0], cameras.Ks[0], cameras.width, cameras.height)


def compare(out, reference, *, outputs=OUTPUTS) -> None:
    assert psnr(out["rgb"], reference["rgb"]) > EXACT_DB
    if "alpha" in outputs:
        assert psnr(out["alpha"], reference["alpha"]) > EXACT_DB
    solid = reference["alpha"] > 0.5
    if "depth" in outputs:
        relative = (out["depth"] - reference["depth"]).abs() / reference["depth"].clamp(min=1e-9)
        assert (relative[solid] > DEPTH).double().mean() < UNDECIDED
        assert bool((out["depth"][reference["alpha"] == 0] == 0).all())
    if "segmentation" in outputs:
        assert (out["segmentation"] != reference["segmentation"]).double().mean() < 1e-3
    if "normals" in outputs:
        assert ((out["normals"] * reference["normals"]).sum(-1)[solid] < 0.999).double().mean() < UNDECIDED


def drawn(renderer: BatchRenderer, poses, cameras, outputs=OUTPUTS, dtype="float32", **options):
    request = renderer._request(
        poses, cameras, outputs, dtype, options.get("background", (0.2, 0.4, 0.1)), options.get("appearance")
    )
    return renderer.backend.render(request), request


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_moving_bodies_and_cameras_as_the_reference_sees_them(mode) -> None:
    template, body_ids, poses, cameras = moving_scene()
    renderer = emulated_renderer(template, body_ids, rasterize_mode=mode)
    out, request = drawn(renderer, poses, cameras, appearance=Appearance([1.2, 0.7, 1], [1, 0.9, 0.8], [0, 1, -0.5]))
    compare(out, render_batch_reference(template, body_ids, request, mode))


def test_a_trained_scene_of_degree_3_exact_and_fast() -> None:
    scene = trained_like_scene()
    template, body_ids = splat_of(scene), np.zeros(len(scene.means), np.int32)
    cameras = BatchCameras(scene.viewmats, scene.Ks, scene.width, scene.height)
    poses = np.zeros((1, 1, 7))
    exact, request = drawn(emulated_renderer(template, body_ids), poses, cameras)
    compare(exact, render_batch_reference(template, body_ids, request))
    fast, _ = drawn(emulated_renderer(template, body_ids, precision="fast"), poses, cameras)
    assert psnr(fast["rgb"], exact["rgb"]) > FAST_DB


def test_long_lists_small_chunks_and_lack_of_room_change_no_bit() -> None:
    template, body_ids, poses, cameras = moving_scene(1000, nworld=3, ncam=1)
    whole, _ = drawn(emulated_renderer(template, body_ids), poses, cameras)
    renderer = emulated_renderer(template, body_ids, tuning=SMALL)
    backend = renderer.backend
    assert isinstance(backend, CudaBackend)
    backend._rooms[cameras.width, cameras.height] = Room(spill=10, long=20)
    small, _ = drawn(renderer, poses, cameras)
    assert backend._rooms[cameras.width, cameras.height].spill > 100  # it did lack room
    for name in OUTPUTS:
        assert torch.equal(whole[name], small[name]), name


def test_lists_beyond_what_shared_memory_sorts() -> None:
    rng = np.random.default_rng(3)
    n = 3500
    template = Splat(
        rng.normal(0, 0.3, (n, 3)) + [0, 0, 3], rng.normal(0, 1, (n, 4)), np.full((n, 3), -3.0),
        np.full(n, -3.0), rng.normal(0, 1, (n, 1, 3)), np.zeros((n, 0, 3)),
    )  # fmt: skip
    cameras = BatchCameras(np.eye(4)[None], np.array([[[20.0, 0, 8], [0, 20, 8], [0, 0, 1]]]), 16, 16)
    body_ids = np.zeros(n, np.int32)
    out, request = drawn(emulated_renderer(template, body_ids), np.zeros((1, 1, 7)), cameras)
    compare(out, render_batch_reference(template, body_ids, request))


def test_order_of_threads_and_repetition_change_no_bit() -> None:
    template, body_ids, poses, cameras = moving_scene(400, nworld=2, ncam=1)
    renderer = emulated_renderer(template, body_ids)
    once, _ = drawn(renderer, poses, cameras)
    KERNELS.reversed = True
    try:
        again, _ = drawn(renderer, poses, cameras)
    finally:
        KERNELS.reversed = False
    for name in OUTPUTS:
        assert torch.equal(once[name], again[name]), name


def test_permuting_worlds_changes_no_bit() -> None:
    template, body_ids, poses, cameras = moving_scene(300, nworld=4, ncam=1)
    renderer = emulated_renderer(template, body_ids)
    out, _ = drawn(renderer, poses, cameras)
    order = [2, 0, 3, 1]
    other = BatchCameras(cameras.viewmats[order], cameras.Ks[order], cameras.width, cameras.height)
    permuted, _ = drawn(renderer, poses[order], other)
    for name in OUTPUTS:
        assert torch.equal(out[name][order], permuted[name]), name


def test_permuting_gaussians_stays_exact() -> None:
    template, body_ids, poses, cameras = moving_scene(nworld=1)
    order = np.random.default_rng(5).permutation(len(template))
    out, _ = drawn(emulated_renderer(template, body_ids), poses, cameras)
    permuted, _ = drawn(emulated_renderer(template.select(order), body_ids[order]), poses, cameras)
    assert psnr(out["rgb"], permuted["rgb"]) > EXACT_DB


@pytest.mark.parametrize(("precision", "tuning"), [("exact", SMALL), ("fast", Tuning())])
def test_the_fixed_layer_changes_no_bit(precision, tuning) -> None:
    template, body_ids, poses, cameras = moving_scene(600, nworld=4, ncam=1)
    template.log_scales[body_ids > 0] -= 1.0  # so that some tiles hold nothing that moves
    poses[..., :3] *= [1.5, 1.5, 1]
    still = fixed(cameras)
    renderer = emulated_renderer(template, body_ids, precision=precision, tuning=tuning)
    layered, request = drawn(renderer, poses, still)
    assert renderer.backend._layer is not None
    every_world = BatchCameras(np.stack([still.viewmats] * 4), np.stack([still.Ks] * 4), still.width, still.height)
    whole, _ = drawn(renderer, poses, every_world)
    assert renderer.backend._layer is None
    for name in OUTPUTS:
        assert torch.equal(layered[name], whole[name]), name
    if precision == "exact":
        compare(layered, render_batch_reference(template, body_ids, request))


def test_the_fixed_layer_is_made_again_when_cameras_move() -> None:
    template, body_ids, poses, cameras = moving_scene(300, nworld=4, ncam=1)
    renderer = emulated_renderer(template, body_ids)
    for world in (0, 1, 0):
        still = BatchCameras(cameras.viewmats[world], cameras.Ks[world], cameras.width, cameras.height)
        out, request = drawn(renderer, poses, still)
        assert renderer.backend._layer is not None
        compare(out, render_batch_reference(template, body_ids, request))
    for _ in range(2):  # a single world: from the second call on
        drawn(renderer, poses[:1], BatchCameras(cameras.viewmats[2], cameras.Ks[2], cameras.width, cameras.height))
    assert renderer.backend._layer is not None


def ball(centre, count: int, seed: int, colour: float) -> Splat:
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 0.05, (count, 3)) + centre
    return Splat(
        means, rng.normal(0, 1, (count, 4)), np.full((count, 3), -3.2), np.full(count, 4.0),
        np.full((count, 1, 3), colour), np.zeros((count, 0, 3)),
    )  # fmt: skip


def test_a_cup_behind_a_fixed_box_is_hidden_and_in_front_it_is_seen() -> None:
    box, cup = ball([0, 0, 2], 300, 0, -1.5), ball([0, 0, 0], 100, 1, 1.5)
    names = Splat.__dataclass_fields__
    template = Splat(**{n: np.concatenate([getattr(box, n), getattr(cup, n)]) for n in names})
    body_ids = np.repeat([0, 1], [300, 100]).astype(np.int32)
    poses = np.zeros((4, 2, 7))
    poses[:, 1] = [[0, 0, 3, 1, 0, 0, 0], [0, 0, 1.2, 1, 0, 0, 0], [0, 0, 4, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0]]
    cameras = BatchCameras(np.eye(4)[None], np.array([[[40.0, 0, 16], [0, 40, 16], [0, 0, 1]]]), 32, 32)
    out, _ = drawn(emulated_renderer(template, body_ids), poses, cameras)
    assert out["segmentation"][:, 0, 16, 16].tolist() == [0, 1, 0, 1]
    assert out["rgb"][0, 0, 16, 16].max() < 0.2 and out["rgb"][1, 0, 16, 16].min() > 0.8


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_a_plane_at_4_metres_reads_4_metres(precision) -> None:
    x, y = np.meshgrid(np.linspace(-1, 1, 25), np.linspace(-1, 1, 25))
    n = x.size
    template = Splat(
        np.stack([x.ravel(), y.ravel(), np.full(n, 4.0)], 1), np.tile([1.0, 0, 0, 0], (n, 1)),
        np.tile(np.log([0.1, 0.1, 0.001]), (n, 1)), np.zeros(n), np.zeros((n, 1, 3)), np.zeros((n, 0, 3)),
    )  # fmt: skip
    cameras = BatchCameras(np.eye(4)[None], np.array([[[60.0, 0, 16], [0, 60, 16], [0, 0, 1]]]), 32, 32)
    out, _ = drawn(
        emulated_renderer(template, np.zeros(n, np.int32), precision=precision), np.zeros((1, 1, 7)), cameras
    )
    seen = out["alpha"] > 0.3
    assert bool(seen[0, 0, 16, 16])
    assert (out["depth"][seen] - 4).abs().max() < 1e-5
    assert bool((out["normals"][seen][:, 2] < -0.999).all())


@pytest.mark.parametrize("sh_degree", [1, 2, 3])
def test_a_turned_body_shows_what_a_turned_camera_shows(sh_degree) -> None:
    scene = random_scene(200, 2, width=40, height=40, sh_degree=sh_degree)
    template = splat_of(scene)
    template.means[:] = template.means * 0.3 - [0, 0, 0.8]
    turn = Rotation.from_euler("y", 90, degrees=True)
    K = np.array([[[40.0, 0, 20], [0, 40, 20], [0, 0, 1]]])
    body_ids = np.ones(len(template), np.int32)
    renderer = emulated_renderer(template, body_ids)
    pose = np.zeros((1, 2, 7))
    pose[0, 1] = [0, 0, 3, *np.roll(turn.as_quat(), 1)]
    turned, _ = drawn(renderer, pose, BatchCameras(np.eye(4)[None], K, 40, 40))
    upright = np.zeros((1, 2, 7))
    upright[0, 1, 3] = 1
    view = np.eye(4)
    view[:3, :3], view[:3, 3] = turn.as_matrix(), [0, 0, 3]
    other, _ = drawn(renderer, upright, BatchCameras(view[None], K, 40, 40))
    assert psnr(turned["rgb"], other["rgb"]) > EXACT_DB


def test_poison_is_never_drawn() -> None:
    template, body_ids, poses, cameras = moving_scene(300, nworld=1, ncam=1)
    clean = np.ones(300, bool)
    clean[:30] = False
    template.means[0:6] = np.nan
    template.quats[6:12] = 0
    template.log_scales[12:18] = np.inf
    template.logit_opacities[18:24] = np.nan
    template.sh0[24:30] = np.inf
    out, _ = drawn(emulated_renderer(template, body_ids), poses, cameras)
    without, _ = drawn(emulated_renderer(template.select(clean), body_ids[clean]), poses, cameras)
    for name in OUTPUTS:
        assert torch.equal(out[name], without[name]), name


def test_integer_and_half_outputs_are_the_rounded_float_ones() -> None:
    for width in (53, 52):
        template, body_ids, poses, cameras = moving_scene(300, nworld=2)
        cameras = BatchCameras(cameras.viewmats, cameras.Ks, width, cameras.height)
        renderer = emulated_renderer(template, body_ids)
        full, _ = drawn(renderer, poses, cameras)
        half, _ = drawn(renderer, poses, cameras, dtype="float16")
        byte, _ = drawn(renderer, poses, cameras, dtype="uint8")
        for name in ("rgb", "alpha", "depth", "normals"):
            assert torch.equal(half[name], full[name].half()), name
        assert torch.equal(byte["rgb"], (full["rgb"].clamp(0, 1) * 255 + 0.5).to(torch.uint8))
        assert torch.equal(byte["depth"], full["depth"])


def test_an_empty_template_is_the_background() -> None:
    template, body_ids, poses, cameras = moving_scene(10, nworld=1, ncam=1)
    none = np.zeros(10, bool)
    out, _ = drawn(emulated_renderer(template.select(none), body_ids[none]), poses, cameras)
    assert bool((out["rgb"] == torch.tensor([0.2, 0.4, 0.1])).all()) and bool((out["segmentation"] == -1).all())


def test_numbers_of_a_call_are_moved_to_the_device_once() -> None:
    template = splat_of(random_scene(30, seed=0))
    renderer = emulated_renderer(template, np.zeros(30, np.int32))
    first = renderer._tensor((0.2, 0.4, 0.1), "background")
    assert renderer._tensor((0.2, 0.4, 0.1), "background") is first
    assert renderer._tensor((0.2, 0.4, 0.3), "background") is not first


def test_a_tuple_of_tensors_is_read_in_every_call() -> None:
    template = splat_of(random_scene(30, seed=0))
    renderer = emulated_renderer(template, np.zeros(30, np.int32))
    grey = torch.tensor(0.2)
    renderer._tensor((grey, grey, grey), "background")
    grey.fill_(0.9)
    assert renderer._tensor((grey, grey, grey), "background").tolist() == pytest.approx([0.9, 0.9, 0.9])


def test_numbers_that_change_in_every_call_do_not_pile_up() -> None:
    template = splat_of(random_scene(30, seed=0))
    renderer = emulated_renderer(template, np.zeros(30, np.int32))
    first = renderer._tensor(0.5, "exposure")
    for exposure in np.random.default_rng(0).normal(size=2 * CONSTANTS_KEPT):
        assert float(renderer._tensor(exposure, "exposure")) == pytest.approx(exposure)
    assert len(renderer._constants) == CONSTANTS_KEPT
    assert renderer._tensor(0.5, "exposure") is first
