# SPDX-License-Identifier: Apache-2.0
"""A budget becomes options that are recorded; a prediction grows with what it is of, and stops a run in time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from real2sim.errors import TransientError, UsageError
from real2sim.flows import predict as module
from real2sim.flows.budget import seconds_of, settings_for
from real2sim.flows.config import resolve
from real2sim.flows.digest import JsonCache
from real2sim.flows.graph import SCENE
from real2sim.flows.predict import foresee, predict

VGA = {"width": 640, "height": 480}
OPTIONS = {"sfm": {"max_image_size": 1600, "max_features": 8192}}


@pytest.mark.parametrize("text,seconds", [("90s", 90), ("10min", 600), ("1.5h", 5400), ("45", 45), (" 2 m ", 120)])
def test_a_budget_is_read_in_the_units_people_write(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5s", "-3min", "1e9h", "nan", "10 days"])
def test_a_budget_that_is_none_is_named(text):
    with pytest.raises(UsageError, match="such as 90s"):
        settings_for(text)


def test_a_budget_sets_known_options_and_a_tighter_one_sets_less(tmp_path):
    cache = JsonCache(tmp_path / "options.json")
    long, tiny = (resolve(SCENE, None, settings_for(text), cache) for text in ("2h", "2min"))
    assert long["splat"].values["budget_s"] == 3600 and tiny["splat"].values["budget_s"] == 60
    assert tiny["sfm"].values["max_image_size"] < long["sfm"].values["max_image_size"]


def test_more_and_larger_frames_need_more():
    few, many = predict([VGA] * 10, 1600, 8192, 2), predict([VGA] * 100, 1600, 8192, 2)
    large = predict([{"width": 12000, "height": 8400}] * 10, 1600, 8192, 2)
    assert all(many.memory[name] >= few.memory[name] for name in few.memory) and many.disk > few.disk
    assert large.memory["ingest"] > 2e9 and large.disk > 2e9


def artifact(folder: Path, count: int) -> Path:
    (folder / "frames.json").write_text(json.dumps({"frames": [VGA] * count}))
    return folder


def test_a_disk_that_is_too_small_stops_the_run_after_ingest(tmp_path, monkeypatch):
    frames = artifact(tmp_path, 40)
    assert "GB of disk" in foresee("ingest", frames, OPTIONS, tmp_path)[0]
    assert foresee("sfm", frames, OPTIONS, tmp_path) == []
    full = shutil._ntuple_diskusage(10**12, 10**12 - 10**8, 10**8)  # type: ignore[attr-defined]
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: full)
    with pytest.raises(TransientError, match="store gc"):
        foresee("ingest", frames, OPTIONS, tmp_path)


def test_too_little_memory_is_said_with_what_to_do(tmp_path, monkeypatch):
    from real2sim.stages import splat_memory

    monkeypatch.setattr(splat_memory, "available_bytes", lambda _: int(0.8e9))
    lines = foresee("ingest", artifact(tmp_path, 100), OPTIONS, tmp_path)
    assert any("memory may not suffice for" in line and "sfm.max_image_size" in line for line in lines)
