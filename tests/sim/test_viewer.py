# SPDX-License-Identifier: Apache-2.0
"""The viewer: the shapes that it draws are MuJoCo's, what moves moves, and a taken port is one clear error."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from real2sim.errors import UsageError
from real2sim.sim.render.splat import Splat
from real2sim.sim.viewer import CAMERAS, COLLIDERS, SUPPORT, VISUAL, Viewer, covariances, open_viewer

pytest.importorskip("viser")


@pytest.fixture(scope="module")
def viewer(made_bundle: Path) -> Iterator[Viewer]:
    viewer = open_viewer(made_bundle, drop=3, port=free_port())
    yield viewer
    viewer.server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
