# SPDX-License-Identifier: Apache-2.0
"""Splat: shapes, PLY files good and bad, similarity transforms with their spherical harmonics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from plyfile import PlyData, PlyElement
from scipy.spatial.transform import Rotation

from real2sim.errors import Real2SimError
from real2sim.sim.cameras import Camera
from real2sim.sim.render.harmonics import harmonics_basis, rotate_harmonics
from real2sim.sim.render.rasterize import render
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import Similarity

SH_TOLERANCE = 1e-6  # the fit is exact to rounding of float64; the contract asks for 1e-6
SAME_PICTURE = 2e-4  # float32 rounding of a splat stored in another frame, on colours in 0..1


def make_splat(count: int = 40, degree: int = 3, seed: int = 0) -> Splat:
    rng = np.random.default_rng(seed)
    return Splat(
        means=rng.normal(0, 0.5, (count, 3)) + np.array([0, 0, 3]),
        quats=rng.normal(0, 1, (count, 4)),
        log_scales=rng.normal(-2, 0.5, (count, 3)),
        logit_opacities=rng.normal(0, 2, count),
        sh0=rng.normal(0, 0.5, (count, 1, 3)),
        shN=rng.normal(0, 0.2, (count, (degree + 1) ** 2 - 1, 3)),
    )


def rewrite(path: Path, change) -> Path:
    """The same PLY with its vertex table changed."""
    data = change(PlyData.read(path)["vertex"].data)
    PlyData([PlyElement.describe(data, "vertex")]).write(path)
    return path


def without(data: np.ndarray, name: str) -> np.ndarray:
    names = [n for n in data.dtype.names if n != name]
    out = np.empty(len(data), [(n, data.dtype[n]) for n in names])
    for n in names:
        out[n] = data[n]
    return out


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_ply_round_trip_is_exact(tmp_path: Path, degree: int) -> None:
    splat = make_splat(degree=degree)
    splat.save(tmp_path / "a.ply")
    back = Splat.load(tmp_path / "a.ply")
    assert back.sh_degree == degree
    for name in Splat.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(back, name), getattr(splat, name), err_msg=name)


def test_ply_holds_the_rest_coefficients_channel_major(tmp_path: Path) -> None:
    splat = make_splat(degree=2)
    splat.save(tmp_path / "a.ply")
    vertex = PlyData.read(tmp_path / "a.ply")["vertex"]
    for k in range(8):
        for channel in range(3):
            np.testing.assert_array_equal(vertex[f"f_rest_{channel * 8 + k}"], splat.shN[:, k, channel])


def test_ply_reads_text_doubles_and_extra_properties(tmp_path: Path) -> None:
    splat = make_splat(count=3, degree=1)
    splat.save(tmp_path / "a.ply")
    data = PlyData.read(tmp_path / "a.ply")["vertex"].data
    wide = np.empty(len(data), [("label", "u1"), *((n, "f8") for n in data.dtype.names)])
    for name in data.dtype.names:
        wide[name] = data[name]
    PlyData([PlyElement.describe(wide, "vertex")], text=True).write(tmp_path / "b.ply")
    np.testing.assert_array_equal(Splat.load(tmp_path / "b.ply").shN, splat.shN)


def test_empty_splat_round_trips(tmp_path: Path) -> None:
    make_splat(count=0).save(tmp_path / "a.ply")
    assert len(Splat.load(tmp_path / "a.ply")) == 0


@pytest.mark.parametrize("name", ["x", "opacity", "scale_1", "rot_3", "f_dc_2"])
def test_missing_property_is_named(tmp_path: Path, name: str) -> None:
    make_splat().save(tmp_path / "a.ply")
    rewrite(tmp_path / "a.ply", lambda data: without(data, name))
    with pytest.raises(Real2SimError, match=rf"a\.ply.*'{name}'"):
        Splat.load(tmp_path / "a.ply")


@pytest.mark.parametrize("name", ["f_rest_44", "f_rest_7"])
def test_incomplete_harmonics_are_named(tmp_path: Path, name: str) -> None:
    make_splat().save(tmp_path / "a.ply")
    rewrite(tmp_path / "a.ply", lambda data: without(data, name))
    with pytest.raises(Real2SimError, match=r"a\.ply.*f_rest_"):
        Splat.load(tmp_path / "a.ply")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_value_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    splat = make_splat()
    splat.log_scales[7, 2] = value
    splat.save(tmp_path / "a.ply")
    with pytest.raises(Real2SimError, match=r"'scale_2' must be finite.*row 7"):
        Splat.load(tmp_path / "a.ply")


@pytest.mark.parametrize("keep", [0, 2, 30, 400, -1])
def test_truncated_file_is_one_error(tmp_path: Path, keep: int) -> None:
    make_splat().save(tmp_path / "a.ply")
    data = (tmp_path / "a.ply").read_bytes()
    (tmp_path / "a.ply").write_bytes(data[:keep])
    with pytest.raises(Real2SimError, match=r"a\.ply"):
        Splat.load(tmp_path / "a.ply")


def test_bytes_that_are_no_ply_are_one_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    make_splat(count=5).save(tmp_path / "good.ply")
    good = (tmp_path / "good.ply").read_bytes()
    for trial in range(60):
        damaged = bytearray(good)
        for at in rng.integers(0, 900, 4):  # in the header
            damaged[at] = rng.integers(0, 256)
        (tmp_path / "a.ply").write_bytes(bytes(damaged) if trial else rng.bytes(500))
        try:
            assert np.isfinite(Splat.load(tmp_path / "a.ply").means).all()
        except Real2SimError as error:  # any other exception fails the test
            assert "a.ply" in str(error)


def test_missing_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(Real2SimError, match="no such file"):
        Splat.load(tmp_path / "a.ply")


def test_wrong_shapes_are_named() -> None:
    splat = make_splat()
    with pytest.raises(Real2SimError, match=r"quats of shape \(40, 4\), received \(40, 3\)"):
        Splat(splat.means, splat.means, splat.log_scales, splat.logit_opacities, splat.sh0, splat.shN)
    with pytest.raises(Real2SimError, match="1, 4, 9 or 16"):
        Splat(splat.means, splat.quats, splat.log_scales, splat.logit_opacities, splat.sh0, splat.shN[:, :5])


def test_select_takes_masks_and_indices() -> None:
    splat = make_splat()
    mask = np.arange(40) % 3 == 0
    np.testing.assert_array_equal(splat.select(mask).shN, splat.shN[mask])
    np.testing.assert_array_equal(splat.select(np.array([5, 1])).means, splat.means[[5, 1]])


def test_basis_is_orthonormal_on_the_sphere() -> None:
    x, w = np.polynomial.legendre.leggauss(8)
    phi = (np.arange(16) + 0.5) * 2 * np.pi / 16
    z, azimuth = np.repeat(x, 16), np.tile(phi, 8)
    r = np.sqrt(1 - z * z)
    basis = np.stack(harmonics_basis(r * np.cos(azimuth), r * np.sin(azimuth), z, 3))
    gram = (basis * np.repeat(w, 16) * 2 * np.pi / 16) @ basis.T
    np.testing.assert_allclose(gram, np.eye(16), atol=1e-12)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_colour_towards_a_turned_direction_is_the_old_colour(degree: int) -> None:
    rng = np.random.default_rng(degree)
    sh = rng.normal(0, 1, (5, (degree + 1) ** 2, 3))
    for R in [*Rotation.random(10, random_state=rng).as_matrix(), np.diag([1.0, -1, -1]), np.eye(3)]:
        d = rng.normal(0, 1, (50, 3))
        d /= np.linalg.norm(d, axis=1, keepdims=True)
        before = np.einsum("kd,nkc->dnc", np.stack(harmonics_basis(*d.T, degree)), sh)
        after = np.einsum("kd,nkc->dnc", np.stack(harmonics_basis(*(d @ R.T).T, degree)), rotate_harmonics(sh, R))
        np.testing.assert_allclose(after, before, atol=SH_TOLERANCE)


def test_moved_splat_and_moved_camera_give_the_same_picture() -> None:
    splat = make_splat(count=80)
    T = Similarity(0.37, Rotation.from_rotvec([0.7, -1.9, 0.4]).as_matrix(), np.array([3.0, -2.0, 0.5]))
    camera = Camera("a", 64, 48, np.array([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]]), np.eye(4))
    before = render(splat, camera, backend="cpu")
    after = render(splat.transformed(T), camera.transformed(T), backend="cpu")
    assert before["alpha"].max() > 0.9
    assert np.percentile(np.abs(after["rgb"] - before["rgb"]), 99.5) < SAME_PICTURE
    seen = before["alpha"] > 0.5
    assert np.percentile(np.abs(after["depth"][seen] / before["depth"][seen] / T.scale - 1), 99.5) < SAME_PICTURE
