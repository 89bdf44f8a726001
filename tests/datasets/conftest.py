# SPDX-License-Identifier: Apache-2.0
"""A small capture on disk and a scene at full texture, each made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from real2sim.datasets.synthetic import SyntheticConfig, make_scene, write_capture
from real2sim.datasets.synthetic_scene import Scene

SMALL = SyntheticConfig(frames=6, width=160, height=120)


@pytest.fixture(scope="session")
def small() -> SyntheticConfig:
    return SMALL


@pytest.fixture(scope="session")
def small_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OUT of a capture of six frames at 160 x 120. Read only."""
    out = tmp_path_factory.mktemp("synthetic") / "small"
    write_capture(SMALL, out)
    return out


@pytest.fixture(scope="session")
def small_scene() -> Scene:
    """The scene of the small capture."""
    return make_scene(SMALL)


@pytest.fixture(scope="session")
def full_scene() -> Scene:
    """The scene of the default options."""
    return make_scene(SyntheticConfig())
