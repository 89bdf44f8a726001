# SPDX-License-Identifier: Apache-2.0
"""preflight says what is wrong with a capture before the time is spent, and nothing of a good one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import degraded_changes as ch
from real2sim.cli import app
from real2sim.datasets.synthetic import SyntheticConfig, write_capture
from real2sim.stages import ingest
from real2sim.stages.contract import Progress
from real2sim.stages.preflight import Preflight, look

ARC = SyntheticConfig(frames=10, path="arc", width=320, height=240, supersample=2)
ROTATION = SyntheticConfig(frames=8, path="rotation", width=320, height=240, supersample=2)


@pytest.fixture(scope="module")
def arc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arc")
    write_capture(ARC, folder / "made")
    return folder / "made" / "capture"


def changed(capture: Path, folder: Path, change: ch.Change) -> Preflight:
    import shutil

    copy = Path(shutil.copytree(capture, folder / "capture"))
    change(copy, ARC)
    return look(copy, ingest.Config(), folder / "look", Progress())


def bad(found: Preflight) -> set[str]:
    return {remark.about for remark in found.remarks if remark.level == "bad"}


def test_a_good_capture_gets_no_advice(arc: Path, tmp_path: Path) -> None:
    found = changed(arc, tmp_path, lambda *_: None)
    assert found.hopeful and found.frames == found.sampled == 10
    assert all(remark.level == "good" and not remark.advice for remark in found.remarks)
    assert Path(found.strip).is_file()


def test_turning_on_the_spot_is_named(tmp_path: Path) -> None:
    write_capture(ROTATION, tmp_path / "made")
    found = look(tmp_path / "made" / "capture", ingest.Config(), tmp_path / "look", Progress())
    assert not found.hopeful and found.remarks[0].about == "parallax" and "sideways" in found.remarks[0].advice


def test_two_places_and_loose_frames_are_named(arc: Path, tmp_path: Path) -> None:
    found = changed(arc, tmp_path, ch.edit(ch.elsewhere, every=2))
    assert bad(found) & {"places", "overlap"}


def test_a_flat_scene_and_uneven_light_are_named(arc: Path, tmp_path: Path) -> None:
    flat = ch.several(ch.edit(ch.blur(21)), ch.edit(ch.light(lambda k: 1.0 if k % 2 else 0.1)))
    found = changed(arc, tmp_path, flat)
    assert "texture" in bad(found)
    assert any(remark.about == "light" and remark.level == "look" for remark in found.remarks)


def test_a_gripper_is_seen(arc: Path, tmp_path: Path) -> None:
    found = changed(arc, tmp_path, ch.edit(ch.overlay(0.7, 0.3, 1, 0.7)))
    assert any(remark.about == "moves with the camera" for remark in found.remarks)


def test_the_command_tells_a_program_too(arc: Path) -> None:
    result = CliRunner().invoke(app, ["preflight", str(arc), "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == 0 and told["hopeful"] and told["memory"]["sfm"] > 0 and told["disk"] > 0
