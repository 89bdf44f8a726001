# SPDX-License-Identifier: Apache-2.0
"""gc keeps what runs refer to and removes the rest; verify finds what du counts; doctor tries things."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from real2sim.cli import app
from real2sim.errors import UsageError
from real2sim.flows import doctor
from real2sim.flows.store_care import artifacts, collect, find_store, orphans, usage, verify


def age(path: Path, days: float = 3) -> None:
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def stages(scene) -> list[str]:
    return sorted(stage for stage, _, _ in artifacts(scene.store))


def test_gc_keeps_what_the_last_run_had_and_removes_older_results(scene):
    scene.go()
    before = set(artifacts(scene.store))
    scene.go("words.ticks=2")
    for _, _, path in artifacts(scene.store):
        age(path)
    assert sum(row.unused for row in usage(scene.store)) == len(set(artifacts(scene.store))) - len(before)
    dry = collect(scene.store, dry_run=True)
    assert dry.removed and len(list(artifacts(scene.store))) > len(before)
    done = collect(scene.store)
    assert done.removed == dry.removed and done.size > 0
    assert sum(row.unused for row in usage(scene.store)) == 0
    scene.ran()
    assert scene.go("words.ticks=2").exit_code == 0 and scene.ran() == []


def test_gc_keeps_what_is_young_and_what_is_being_computed(scene):
    scene.go()
    stage, key, path = next(iter(artifacts(scene.store)))
    shutil.rmtree(scene.store.root / "refs")
    assert collect(scene.store).removed == []
    age(path)
    with scene.store.lock(stage, key, waiting=lambda _: None):
        assert collect(scene.store).removed == []
    assert [p for p, _ in collect(scene.store).removed] == [path]


def test_gc_forgets_runs_whose_folder_is_gone(scene):
    scene.go()
    for _, _, path in artifacts(scene.store):
        age(path)
    assert collect(scene.store).removed == []
    shutil.rmtree(scene.run)
    done = collect(scene.store)
    assert len(done.forgotten_runs) == 1 and stages(scene) == []
    assert orphans(scene.store) == [] and not any(scene.store.root.glob("locks/*/*"))


def test_verify_hashes_anew_and_names_the_damaged_file(scene):
    scene.go()
    assert verify(scene.store, lambda *_: None) == []
    path = scene.artifacts("words")[0] / "part" / "words.txt"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    damage = verify(scene.store, lambda *_: None)
    assert len(damage) == 1 and "words.txt" in damage[0]


def test_store_commands_find_the_store_of_a_run_and_report(scene):
    scene.go()
    assert find_store(scene.run).root == find_store(scene.run.parent).root == scene.store.root
    with pytest.raises(UsageError, match="neither a store"):
        find_store(scene.capture)
    runner = CliRunner()
    rows = json.loads(runner.invoke(app, ["store", "du", str(scene.run), "--json"]).stdout)
    assert {row["stage"] for row in rows} == set(stages(scene))
    assert runner.invoke(app, ["store", "verify", str(scene.run)]).exit_code == 0
    assert "0 folders" in runner.invoke(app, ["store", "gc", str(scene.run), "--dry-run"]).stdout
    assert runner.invoke(app, ["store", "du", str(scene.capture)]).exit_code == 2


def test_doctor_tells_a_lack_from_a_defect_and_what_to_do(tmp_path, monkeypatch):
    def broken(_: Path) -> str:
        raise RuntimeError("no such device")

    def absent(_: Path) -> str:
        raise doctor._Absent("not installed")

    probes = (
        doctor._Probe("a", True, lambda _: "fine", "never said"),
        doctor._Probe("b", False, absent, "install it"),
        doctor._Probe("c", True, broken, "repair it"),
    )
    monkeypatch.setattr(doctor, "PROBES", probes)
    found = list(doctor.diagnose(tmp_path))
    assert [(f.state, f.good, f.advice) for f in found] == [
        ("works", True, ""), ("absent", True, "install it"), ("broken", False, "repair it")
    ]  # fmt: skip
    assert CliRunner().invoke(app, ["doctor", str(tmp_path)]).exit_code == 1


def test_doctor_draws_a_gaussian_and_matches_images_here(tmp_path):
    by_name = {p.name: p for p in doctor.PROBES}
    for name in ("sfm", "rasteriser, CPU", "simulator", "disk", "machine"):
        assert by_name[name].run(tmp_path)
