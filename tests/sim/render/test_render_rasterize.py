# SPDX-License-Identifier: Apache-2.0
"""The interface over the rasterisers: errors, backends, contributions, and the CUDA peer where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_scene import decided_pixels, psnr, random_scene, trained_like_scene

from real2sim.errors import BackendError, UsageError
from real2sim.sim.cameras import Camera
from real2sim.sim.render.rasterize import available_backend, contributions, rasterize, render, top_gaussian
from real2sim.sim.render.reference import blend_weights, pixel_centres, project
from real2sim.sim.render.splat import Splat

WEIGHT_TOLERANCE = 1e-4  # relative; float32 sums over pixels
GSPLAT_DB = 60.0  # two float32 rasterisers: thresholds fall on either side in some pixels
GSPLAT_GRADIENT = 5e-3


def splat_and_camera() -> tuple[Splat, Camera]:
    scene = trained_like_scene(400, 5)
    logits = torch.logit(scene.opacities.clamp(1e-4, 1 - 1e-4))
    splat = Splat(
        *(v.numpy() for v in (scene.means, scene.quats, scene.scales.log(), logits, scene.sh[:, :1], scene.sh[:, 1:]))
    )
    pose = np.linalg.inv(scene.viewmats[0].numpy())
    return splat, Camera("a", scene.width, scene.height, scene.Ks[0].numpy(), pose)


def reference_weights(splat: Splat, camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Blend weights [P, N] of the reference, in row order, and where the largest is clear [P]."""
    arrays = (splat.means, splat.quats, splat.scales, splat.opacities, splat.sh)
    g = project(
        *(torch.tensor(v).double() for v in arrays), torch.tensor(camera.viewmat), torch.tensor(camera.K),
        camera.width, camera.height, sh_degree=3, near=0.01,
    )  # fmt: skip
    found = blend_weights(g, pixel_centres(camera.width, camera.height, torch.float64))
    weights = np.zeros((len(found), len(splat)))
    weights[:, g.index.numpy()] = found.numpy()
    second, first = np.sort(weights, 1)[:, -2:].T
    return weights, first > second * 1.01


def test_contributions_are_the_references_weights() -> None:
    splat, camera = splat_and_camera()
    weights, _ = reference_weights(splat, camera)
    total, largest = contributions(splat, camera)
    np.testing.assert_allclose(total, weights.sum(0), rtol=WEIGHT_TOLERANCE, atol=0.02)  # atol: an alpha at 1/255
    np.testing.assert_allclose(largest, weights.max(0), rtol=WEIGHT_TOLERANCE, atol=0.005)


def test_contributions_add_up_to_alpha_for_any_thread_count() -> None:
    splat, camera = splat_and_camera()
    alpha = render(splat, camera, backend="cpu")["alpha"]
    for threads in (1, 3):
        total, largest = contributions(splat, camera, threads=threads)
        assert abs(total.sum() / alpha.sum() - 1) < WEIGHT_TOLERANCE
        assert largest.max() <= 0.999 + 1e-6 and (largest <= total + 1e-6).all()
    np.testing.assert_array_equal(contributions(splat, camera, threads=1), contributions(splat, camera, threads=2))


def test_top_gaussian_has_the_largest_weight() -> None:
    splat, camera = splat_and_camera()
    weights, clear = reference_weights(splat, camera)
    top = top_gaussian(splat, camera).reshape(-1)
    blended = weights.max(1) > 0
    assert (top[~blended] == -1).all()
    agree = top == np.where(blended, weights.argmax(1), -1)
    assert agree[clear].mean() > 0.999


def test_render_is_rasterize() -> None:
    splat, camera = splat_and_camera()
    got = render(splat, camera, background=(0.1, 0.2, 0.3), backend="cpu")
    expected = render(splat, camera, background=(0.1, 0.2, 0.3), backend="reference")
    assert got["rgb"].shape == (64, 96, 3) and got["rgb"].dtype == np.float32
    assert psnr(torch.tensor(got["rgb"]), torch.tensor(expected["rgb"])) >= 70


def test_distorted_camera_is_refused() -> None:
    splat, camera = splat_and_camera()
    camera.distortion = [0.1, 0, 0, 0]
    with pytest.raises(UsageError, match="undistort"):
        render(splat, camera)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quats": torch.ones(10, 3)}, r"quats of shape \(10, 4\)"),
        ({"opacities": torch.ones(9)}, r"opacities of shape \(10,\)"),
        ({"sh": torch.ones(10, 9, 3)}, r"sh of shape .* K >= 16"),
        ({"sh_degree": 4}, "sh_degree is 0, 1, 2 or 3"),
        ({"width": 0}, "at least one pixel"),
        ({"background": torch.ones(2)}, "background"),
        ({"viewmats": torch.full((1, 4, 4), float("nan"))}, "finite viewmats"),
        ({"Ks": torch.zeros(1, 3, 3)}, "positive focal"),
        ({"viewmats": torch.eye(4)[None].requires_grad_(True)}, "no gradient of viewmats"),
        ({"backend": "cuda"}, "A backend is"),
        ({"Ks": torch.tensor([[[9.0, 1, 4], [0, 9, 4], [0, 0, 1]]])}, "without skew"),
        ({"means2d_norm": torch.zeros(9)}, r"means2d_norm has shape \(10,\)"),
        ({"means2d_norm": torch.zeros(10), "backend": "reference"}, "by backend 'cpu' only"),
    ],
)
def test_bad_arguments_are_one_error(change: dict, message: str) -> None:
    scene = random_scene(10)
    names = ("means", "quats", "scales", "opacities", "sh", "viewmats", "Ks", "width", "height")
    arguments = {**dict(zip(names, scene.arguments(), strict=True)), "sh_degree": 3, **change}
    with pytest.raises(UsageError, match=message):
        rasterize(**arguments)


def test_auto_says_what_runs_and_why() -> None:
    name, why = available_backend()
    assert name == ("gsplat" if "gsplat runs" in why else "cpu") and why


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_gsplat_without_cuda_is_an_error_that_helps() -> None:
    scene = random_scene(10)
    with pytest.raises(BackendError, match=r"CUDA device.*pip install"):
        rasterize(*scene.arguments(), sh_degree=3, backend="gsplat")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("make", [random_scene, trained_like_scene])
def test_gsplat_draws_the_same_picture_and_gradients(make) -> None:
    scene = make()
    mask = decided_pixels(scene)
    results = {}
    for backend, device in (("cpu", "cpu"), ("gsplat", "cuda")):
        leaves = [v.float().to(device).requires_grad_(True) for v in scene.gaussians]
        rgb, depth, alpha = rasterize(
            *leaves, scene.viewmats.float().to(device), scene.Ks.float().to(device), scene.width, scene.height,
            sh_degree=scene.sh_degree, background=torch.tensor([0.3, 0.1, 0.6], device=device), backend=backend,
        )  # fmt: skip
        (rgb.sum(-1) * mask.to(device) + (depth * 0.1 + alpha) * mask.to(device)).sum().backward()
        results[backend] = [v.detach().cpu() for v in (rgb, depth, alpha)], [v.grad.cpu() for v in leaves]
    (a, ga), (b, gb) = results["cpu"], results["gsplat"]
    assert psnr(a[0], b[0]) >= GSPLAT_DB
    seen = mask & (a[2] > 0.5)
    assert ((b[1] / a[1] - 1).abs()[seen]).max() < 1e-3
    for x, y in zip(ga, gb, strict=True):
        assert float((x - y).norm() / x.norm()) < GSPLAT_GRADIENT


def test_what_lies_beyond_a_depth_limit_is_not_blended():
    """Two flat discs on the axis at 2 m and 3 m: each pixel blends those that are nearer than its own limit."""
    splat = Splat(
        means=np.array([[0, 0, 2.0], [0, 0, 3.0]]),
        quats=np.array([[1.0, 0, 0, 0]] * 2),
        log_scales=np.log([[0.6, 0.6, 0.01]] * 2),
        logit_opacities=np.zeros(2),
        sh0=np.array([[[1.0, 0, 0]], [[0, 1.0, 0]]]),
        shN=np.zeros((2, 0, 3)),
    )
    camera = Camera("axis", 33, 17, np.array([[20.0, 0, 16.5], [0, 20.0, 8.5], [0, 0, 1]]), np.eye(4))
    limit = np.full((17, 33), np.inf)
    limit[:, 11:22], limit[:, 22:] = 2.5, 1.0
    pictures = {backend: render(splat, camera, backend=backend, depth_limit=limit) for backend in ("cpu", "reference")}
    for name, tolerance in {"rgb": 1e-5, "depth": 1e-4, "alpha": 1e-5}.items():  # float32 against float64
        np.testing.assert_allclose(pictures["cpu"][name], pictures["reference"][name], atol=tolerance)
    depth = pictures["cpu"]["depth"]
    assert depth[8, 5] > 2.1 and abs(depth[8, 16] - 2) < 1e-5 and depth[8, 27] == 0
    assert pictures["cpu"]["alpha"][8, 27] == 0
