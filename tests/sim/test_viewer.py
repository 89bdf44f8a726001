# SPDX-License-Identifier: Apache-2.0
"""The viewer: the shapes that it draws are MuJoCo's, what moves moves, and a taken port is one clear error."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import mujoco
import numpy as np
import pytest
import trimesh

from real2sim.errors import UsageError
from real2sim.sim.render.splat import Splat
from real2sim.sim.viewer import CAMERAS, COLLIDERS, SUPPORT, VISUAL, Viewer, covariances, geom_mesh, open_viewer

pytest.importorskip("viser")

POLYGON_LOSS = 0.03  # inscribed polyhedra of round shapes lose so much of the volume
GEOMS = {
    "box": ("box", "0.1 0.2 0.3", 8 * 0.1 * 0.2 * 0.3),
    "sphere": ("sphere", "0.2", 4 / 3 * np.pi * 0.2**3),
    "capsule": ("capsule", "0.1 0.3", np.pi * 0.01 * 0.6 + 4 / 3 * np.pi * 0.001),
    "cylinder": ("cylinder", "0.1 0.3", np.pi * 0.01 * 0.6),
    "ellipsoid": ("ellipsoid", "0.1 0.2 0.3", 4 / 3 * np.pi * 0.006),
}


@pytest.fixture(scope="module")
def viewer(made_bundle: Path) -> Iterator[Viewer]:
    viewer = open_viewer(made_bundle, drop=3, port=free_port())
    yield viewer
    viewer.server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("kind, size, volume", GEOMS.values(), ids=GEOMS)
def test_a_geom_is_drawn_with_its_volume_about_its_centre(kind: str, size: str, volume: float) -> None:
    xml = f'<mujoco><worldbody><body><freejoint/><geom type="{kind}" size="{size}"/></body></worldbody></mujoco>'
    mesh = trimesh.Trimesh(*geom_mesh(mujoco.MjModel.from_xml_string(xml), 0))
    assert mesh.is_watertight
    assert volume * (1 - POLYGON_LOSS) < mesh.volume < volume * (1 + 1e-9)
    np.testing.assert_allclose(mesh.center_mass, 0, atol=1e-9)


def test_a_height_field_is_drawn_where_rays_hit_it() -> None:
    heights = " ".join(str(h) for h in np.random.default_rng(0).uniform(0, 1, 12))
    xml = (
        f'<mujoco><asset><hfield name="h" nrow="3" ncol="4" elevation="{heights}" size="0.3 0.2 0.5 0.1"/></asset>'
        '<worldbody><geom type="hfield" hfield="h"/></worldbody></mujoco>'
    )
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    vertices, _ = geom_mesh(model, 0)
    inner = vertices[(np.abs(vertices[:, 0]) < 0.29) & (np.abs(vertices[:, 1]) < 0.19)]
    for x, y, z in inner:
        fall = mujoco.mj_ray(model, data, [x, y, 2.0], [0, 0, -1.0], None, True, -1, None)
        assert z == pytest.approx(2 - fall, abs=1e-6)


def test_covariances_have_the_squared_scales_as_eigenvalues() -> None:
    rng = np.random.default_rng(1)
    scales = rng.normal(size=(20, 3)).astype(np.float32)
    splat = Splat(rng.normal(size=(20, 3)), rng.normal(size=(20, 4)), scales, np.zeros(20),
                  np.zeros((20, 1, 3)), np.zeros((20, 0, 3)))  # fmt: skip
    expected = np.sort(np.exp(2 * scales), axis=1)
    np.testing.assert_allclose(np.linalg.eigvalsh(covariances(splat)), expected, rtol=1e-3, atol=1e-5)


def test_layers_hold_what_the_bundle_holds_and_spheres_fall(viewer: Viewer) -> None:
    model = viewer.scene.model
    drawn = {name: len(handles) for name, handles in viewer._layers.items()}
    assert drawn[CAMERAS] == len(viewer.scene.cameras)
    assert drawn[COLLIDERS] == int((model.geom_group == 3).sum()) > 0
    assert drawn[VISUAL] == 1 and drawn[SUPPORT] == 1
    ball = model.body("ball_0").id
    start = float(viewer._bodies[ball].position[2])
    for _ in range(6):
        viewer.advance()
    fallen = start - float(viewer._bodies[ball].position[2])
    assert fallen == pytest.approx(0.5 * 9.81 * viewer.scene.data.time**2, rel=0.05)
    viewer.reset()
    assert viewer._bodies[ball].position[2] == pytest.approx(start)


def test_a_taken_port_is_one_clear_error(made_bundle: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--port {port}"):
            open_viewer(made_bundle, port=port)


@pytest.mark.parametrize("port", [-1, 0, 99999])
def test_a_port_that_is_none_is_one_clear_error(made_bundle: Path, port: int) -> None:
    with pytest.raises(UsageError, match="a port is 1 to 65535"):
        open_viewer(made_bundle, port=port)
