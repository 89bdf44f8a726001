# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several folders of tests share. Made once a session; tests that change a bundle copy it first."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def made_artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundle stage's inputs for the made-up table."""
    from made_scene import write_artifacts

    return write_artifacts(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="session")
def made_run(made_artifacts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of the bundle stage: bundle/ and pictures/."""
    from made_scene import run_bundle_stage

    out = tmp_path_factory.mktemp("bundled")
    run_bundle_stage(made_artifacts, out)
    return out


@pytest.fixture(scope="session")
def made_bundle(made_run: Path) -> Path:
    """A finished bundle. Read only."""
    return made_run / "bundle"
