# SPDX-License-Identifier: Apache-2.0
"""The native CPU rasteriser against the float64 reference: pictures, gradients, determinism, bad values, sizes."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import pytest
import torch
from random_scene import Scene, decided_pixels, psnr, random_scene, trained_like_scene

from real2sim.errors import TransientError, UsageError
from real2sim.sim.render import _cpu
from real2sim.sim.render.rasterize import rasterize
from real2sim.sim.render.reference import blend_weights, pixel_centres, project

PSNR_DB = 75.0  # root mean square error below 2e-4, a twentieth of an 8-bit step
DEPTH_RELATIVE = 1e-4
GRADIENT_RELATIVE = 2e-4  # norm of the error / norm; float32 sums over pixels against float64
SCENES = {
    "random": lambda: random_scene(300, 0),
    "random, degree 1": lambda: random_scene(300, 1, sh_degree=1),
    "trained-like": lambda: trained_like_scene(),
    "close up": lambda: close_up(),
}


def close_up() -> Scene:
    """Every Gaussian larger than the image, half of them needles."""
    scene = random_scene(60, 3, width=70, height=50)
    scene.scales[:] = torch.exp(torch.linspace(-1, 1, 60, dtype=torch.float64))[:, None]
    scene.scales[::2, 0] *= 0.003
    scene.opacities *= 0.3
    return scene


def images_and_gradients(scene: Scene, backend: str, upstream: list[torch.Tensor], **options) -> tuple:
    dtype = torch.float64 if backend == "reference" else torch.float32
    leaves = [v.detach().clone().to(dtype).requires_grad_(True) for v in scene.gaussians]
    background = torch.tensor([0.3, 0.1, 0.6], dtype=dtype, requires_grad=True)
    images = rasterize(
        *leaves, scene.viewmats, scene.Ks, scene.width, scene.height,
        sh_degree=scene.sh_degree, background=background, backend=backend, **options,
    )  # fmt: skip
    sum((image * v.to(dtype)).sum() for image, v in zip(images, upstream, strict=True)).backward()
    return [i.detach() for i in images], [v.grad for v in (*leaves, background)]


def upstream_gradients(scene: Scene, mask: torch.Tensor) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    shape = (len(scene.viewmats), scene.height, scene.width)
    rgb, depth, alpha = (torch.randn(*shape, k, generator=generator, dtype=torch.float64) for k in (3, 1, 1))
    return [rgb * mask[..., None], 0.3 * depth[..., 0] * mask, alpha[..., 0] * mask]


def digest(tensors: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


@functools.cache
def compared(name: str) -> tuple:
    """The decided pixels of a scene, and (images, gradients) of the reference and of the native rasteriser."""
    scene = SCENES[name]()
    mask = decided_pixels(scene)
    upstream = upstream_gradients(scene, mask)
    return mask, *(images_and_gradients(scene, backend, upstream) for backend in ("reference", "cpu"))


@pytest.mark.parametrize("name", SCENES)
def test_picture_is_the_references(name: str) -> None:
    mask, (expected, _), (got, _) = compared(name)
    assert mask.float().mean() > 0.9
    assert psnr(expected[0], got[0]) >= PSNR_DB
    seen = (expected[2] > 0.5) & mask
    assert seen.float().mean() > 0.1
    assert ((got[1].double() / expected[1] - 1).abs()[seen]).max() < DEPTH_RELATIVE
    assert (got[2].double() - expected[2]).abs()[mask].max() < DEPTH_RELATIVE


@pytest.mark.parametrize("name", SCENES)
def test_gradients_are_the_references(name: str) -> None:
    _, (_, expected), (_, got) = compared(name)
    for label, a, b in zip(("means", "quats", "scales", "opacities", "sh", "background"), expected, got, strict=True):
        error = float((b.double() - a).norm() / a.norm())
        assert error < GRADIENT_RELATIVE, f"{label}: {error:.2e}"


@pytest.mark.parametrize("part", [0, 1, 2])
def test_each_output_alone_has_the_references_gradients(part: int) -> None:
    scene = random_scene(150, 5)
    upstream = upstream_gradients(scene, decided_pixels(scene))
    only = [v if i == part else torch.zeros_like(v) for i, v in enumerate(upstream)]
    _, expected = images_and_gradients(scene, "reference", only)
    leaves = [v.float().requires_grad_(True) for v in scene.gaussians]
    image = rasterize(
        *leaves,
        scene.viewmats,
        scene.Ks,
        scene.width,
        scene.height,
        sh_degree=3,
        background=torch.tensor([0.3, 0.1, 0.6]),
    )[part]
    (image * upstream[part]).sum().backward()
    for a, leaf in zip(expected, leaves):
        assert float((leaf.grad.double() - a).norm()) <= GRADIENT_RELATIVE * float(a.norm())


def test_several_cameras_add_their_gradients() -> None:
    scene = random_scene(200, 4, views=3)
    upstream = upstream_gradients(scene, decided_pixels(scene))
    _, expected = images_and_gradients(scene, "reference", upstream)
    got_images, got = images_and_gradients(scene, "cpu", upstream)
    assert got_images[0].shape == (3, 47, 61, 3)
    for a, b in zip(expected, got, strict=True):
        assert float((b.double() - a).norm() / a.norm()) < GRADIENT_RELATIVE


@pytest.mark.parametrize("isa", _cpu.instruction_sets())
def test_every_instruction_set_draws_the_references_picture_and_gradients(isa: str, monkeypatch) -> None:
    forward = _cpu.forward
    monkeypatch.setattr(_cpu, "forward", lambda *a, **k: forward(*a, **k, isa=isa))
    scene = trained_like_scene(300, 2)
    upstream = upstream_gradients(scene, decided_pixels(scene))
    expected_images, expected = images_and_gradients(scene, "reference", upstream)
    got_images, got = images_and_gradients(scene, "cpu", upstream)
    assert psnr(expected_images[0], got_images[0]) >= PSNR_DB
    for a, b in zip(expected, got, strict=True):
        assert float((b.double() - a).norm() / a.norm()) < GRADIENT_RELATIVE


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    scene = trained_like_scene(2000, 1, width=150, height=90)
    upstream = upstream_gradients(scene, torch.ones(1, 90, 150))
    digests = set()
    for threads in (1, 2, 3, 1, 7):
        images, gradients = images_and_gradients(scene, "cpu", upstream, threads=threads)
        digests.add(digest([*images, *gradients]))
    assert len(digests) == 1


def test_equal_depths_are_drawn_in_row_order() -> None:
    scene = random_scene(50, 8)
    scene.viewmats[0] = torch.eye(4)
    scene.means[:, 2] = 2.0
    expected, _ = images_and_gradients(scene, "reference", upstream_gradients(scene, torch.ones(1, 47, 61)))
    got, _ = images_and_gradients(scene, "cpu", upstream_gradients(scene, torch.ones(1, 47, 61)))
    assert psnr(expected[0], got[0]) >= 50


def test_projected_gradient_norm_is_the_references() -> None:
    scene = random_scene(100, 6)
    weights = decided_pixels(scene)[0].flatten().double()
    leaves = [v.clone().requires_grad_(True) for v in scene.gaussians]
    g = project(*leaves, scene.viewmats[0], scene.Ks[0], scene.width, scene.height, sh_degree=3, near=0.01)
    g.means2d.retain_grad()
    rgb = blend_weights(g, pixel_centres(scene.width, scene.height, torch.float64)) @ g.colours
    (rgb * weights[:, None]).sum().backward()
    expected = torch.zeros(100, dtype=torch.float64)
    expected[g.index] = g.means2d.grad.norm(dim=1)
    norm = torch.zeros(100)
    leaves = [v.float().requires_grad_(True) for v in scene.gaussians]
    image = rasterize(*leaves, *scene.arguments()[5:], sh_degree=3, means2d_norm=norm)[0]
    (image[0].reshape(-1, 3) * weights[:, None]).sum().backward()
    assert float((norm - expected).norm() / expected.norm()) < GRADIENT_RELATIVE


POISON = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


@pytest.mark.parametrize("value", POISON.values(), ids=POISON)
@pytest.mark.parametrize("field", ["means", "quats", "scales", "opacities", "sh"])
def test_poisoned_gaussian_is_left_out(field: str, value: float) -> None:
    scene = random_scene(80, 9)
    upstream = upstream_gradients(scene, torch.ones(1, 47, 61))
    clean = Scene(**{**scene.__dict__, **{k: torch.cat([v[:33], v[34:]]) for k, v in rows(scene).items()}})
    getattr(scene, field)[33].view(-1)[0] = value
    expected, expected_gradients = images_and_gradients(clean, "cpu", upstream)
    got, gradients = images_and_gradients(scene, "cpu", upstream)
    assert digest(got) == digest(expected)
    for a, b in zip(expected_gradients[:5], gradients[:5], strict=True):
        torch.testing.assert_close(torch.cat([b[:33], b[34:]]), a)
        assert not b[33].any()
    reference, _ = images_and_gradients(scene, "reference", upstream)
    assert psnr(reference[0], got[0]) > 50


def rows(scene: Scene) -> dict[str, torch.Tensor]:
    return {k: getattr(scene, k) for k in ("means", "quats", "scales", "opacities", "sh")}


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e3, 1e9, 1e19, 1e30, 3e38])
def test_extreme_scales_and_opacities_stay_finite(scale: float) -> None:
    scene = random_scene(80, 10)
    scene.scales[::3, 1] = scale
    scene.opacities[::5] = torch.tensor([0.0, 1.0, -1.0, 50.0] * 4)
    images, gradients = images_and_gradients(scene, "cpu", upstream_gradients(scene, torch.ones(1, 47, 61)))
    assert all(torch.isfinite(v).all() for v in (*images, *gradients))


def test_zero_quaternions_are_left_out() -> None:
    scene = random_scene(80, 11)
    scene.quats[:40] = 0
    images, gradients = images_and_gradients(scene, "cpu", upstream_gradients(scene, torch.ones(1, 47, 61)))
    assert all(torch.isfinite(v).all() for v in (*images, *gradients))
    assert not gradients[1][:40].any() and gradients[1][40:].any()


@pytest.mark.parametrize(("width", "height"), [(1, 1), (17, 33), (16, 16), (1, 40), (7680, 3), (3, 4320)])
def test_any_image_size(width: int, height: int) -> None:
    scene = random_scene(60, 12, width=width, height=height)
    scene.Ks[:, :2] = torch.tensor([[30.0, 0, width / 2], [0, 30, height / 2]], dtype=torch.float64)
    upstream = upstream_gradients(scene, torch.ones(1, height, width))
    expected, expected_gradients = images_and_gradients(scene, "reference", upstream)
    got, gradients = images_and_gradients(scene, "cpu", upstream, threads=2)
    assert psnr(expected[0], got[0]) >= 60  # a threshold crossed in one pixel weighs more in few pixels
    for a, b in zip(expected_gradients, gradients, strict=True):
        assert float((b.double() - a).norm()) <= 0.02 * float(a.norm()) + 1e-6


@pytest.mark.parametrize("count", [0, 1])
def test_few_gaussians(count: int) -> None:
    scene = random_scene(count, 13)
    images, gradients = images_and_gradients(scene, "cpu", upstream_gradients(scene, torch.ones(1, 47, 61)))
    assert [tuple(g.shape) for g in gradients[:3]] == [(count, 3), (count, 4), (count, 3)]
    if not count:
        np.testing.assert_array_equal(images[0][0, 0, 0], np.array([0.3, 0.1, 0.6], np.float32))
        assert not images[1].any() and not images[2].any()


def test_gaussians_before_the_near_plane_are_not_drawn() -> None:
    scene = random_scene(200, 14)
    z = (scene.means @ scene.viewmats[0, :3, :3].T + scene.viewmats[0, :3, 3])[:, 2]
    near = float(z.sort().values[99:101].mean())  # between two Gaussians
    beyond = Scene(**{**scene.__dict__, **{k: v[z >= near] for k, v in rows(scene).items()}})
    a = rasterize(*scene.arguments(), sh_degree=3, near=near)
    b = rasterize(*beyond.arguments(), sh_degree=3)
    assert digest(list(a)) == digest(list(b))


@pytest.mark.parametrize(
    ("raised", "expected"), [(ValueError("too many"), UsageError), (MemoryError(), TransientError)]
)
def test_native_failures_are_the_packages_errors(raised: Exception, expected: type, monkeypatch) -> None:
    def fail(*_args, **_options):
        raise raised

    monkeypatch.setattr(_cpu, "forward", fail)
    with pytest.raises(expected, match=r"CPU rasteriser"):
        rasterize(*random_scene(5).arguments(), sh_degree=3)
