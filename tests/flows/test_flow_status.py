# SPDX-License-Identifier: Apache-2.0
"""`status` names what makes a stage stale."""

from __future__ import annotations

import re
import shutil
import signal
import time
from dataclasses import replace

import fakes
import pytest

from real2sim.errors import UsageError
from real2sim.flows.config import parse_setting
from real2sim.flows.rundir import Request
from real2sim.flows.status import status

PATIENCE_S = 30.0


def states(scene, *settings: str) -> dict[str, str]:
    return {row.stage: row.state for row in rows(scene, *settings)}


def rows(scene, *settings: str):
    request = Request.read(scene.run)
    more = tuple(map(parse_setting, settings))
    return status(replace(request, settings=request.settings + more), fakes.GRAPH)


def why(scene, stage: str, *settings: str) -> str:
    return "\n".join(next(row.why for row in rows(scene, *settings) if row.stage == stage))


def test_all_is_fresh_after_a_run_and_asking_changes_nothing(scene):
    scene.go()
    scene.ran()
    assert set(states(scene).values()) == {"fresh"}
    assert scene.ran() == []


def test_an_option_is_named_with_both_values(scene):
    scene.go()
    assert "option words.scale: 1.0 → 2.0" in why(scene, "words", "words.scale=2")
    assert states(scene, "words.scale=2") == {"letters": "fresh", "words": "stale", "shape": "fresh", "page": "stale"}
    assert "words" in why(scene, "page", "words.scale=2")


def test_changed_added_and_removed_files_are_named(scene):
    scene.go()
    (scene.capture / "a.txt").write_text("other")
    (scene.capture / "c.txt").write_text("new")
    (scene.capture / "notes" / "b.txt").unlink()
    reasons = why(scene, "letters")
    assert "capture file a.txt changed" in reasons
    assert "capture file c.txt was added" in reasons
    assert "capture file notes/b.txt was removed" in reasons


def test_many_changed_files_are_counted(scene):
    scene.go()
    for i in range(9):
        (scene.capture / f"n{i}.txt").write_text("x")
    assert "and 4 more capture files" in why(scene, "letters")


def test_poses_that_were_added_are_named(scene, tmp_path):
    scene.go()
    poses = tmp_path / "poses.txt"
    poses.write_text("p")
    request = replace(Request.read(scene.run), poses=poses)
    assert "poses file poses.txt was added" in status(request, fakes.GRAPH)[0].why


def test_a_new_version_and_a_changed_source_are_named(scene, monkeypatch):
    import fakes.shape

    from real2sim.flows import graph

    scene.go()
    monkeypatch.setattr(fakes.shape, "VERSION", "2")
    (scene.store.root / "options.json").unlink()  # it holds versions by source, and no source changed
    assert "version of shape: 1 → 2" in why(scene, "shape")
    monkeypatch.setattr(graph, "source_digests", lambda module: {module: "0"})
    assert "source of fakes.words changed" in why(scene, "words") or states(scene)["letters"] == "stale"
    assert "source of fakes.letters changed" in why(scene, "letters")


def test_a_new_tool_version_is_named(scene, monkeypatch):
    from real2sim.flows import graph

    scene.go()
    old = graph.tool_version("numpy")
    monkeypatch.setattr(graph, "tool_version", lambda tool: "99")
    assert f"version of numpy: {old} → 99" in why(scene, "words")


def test_a_failed_stage_says_why_and_the_ones_behind_it_are_missing(scene):
    scene.go("words.mode=capture")
    assert states(scene) == {"letters": "fresh", "words": "failed", "shape": "missing", "page": "missing"}
    assert "no verbs" in why(scene, "words")


def test_a_failed_gate_is_said_of_a_fresh_stage(scene):
    scene.go("words.at_least=99")
    assert states(scene)["words"] == "fresh"
    assert "gate enough failed" in why(scene, "words")


def test_a_damaged_artifact_is_stale_and_named(scene):
    scene.go()
    (scene.artifacts("shape")[0] / "shape.txt").write_text("oh")
    assert states(scene)["shape"] == "stale"
    assert "'shape.txt' has changed" in why(scene, "shape")


def test_an_artifact_that_is_gone_is_said(scene):
    scene.go()
    shutil.rmtree(scene.artifacts("shape")[0])
    assert "no longer in the store" in why(scene, "shape")


def test_other_allowed_gates_make_the_result_stale(scene):
    scene.go()
    request = replace(Request.read(scene.run), allow=("enough",))
    row = status(request, fakes.GRAPH)[-1]
    assert (row.stage, row.state) == ("page", "stale")
    assert "allowed gates" in row.why[0]


def test_a_running_stage_names_its_process(scene):
    process = scene.start("words.ticks=200")
    try:
        end = time.monotonic() + PATIENCE_S
        while not list(scene.store.root.glob("scratch/words/*/tick")):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert states(scene)["words"] == "running"
        assert f"process {process.pid}" in why(scene, "words")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_capture_that_is_gone_is_said(scene):
    scene.go()
    shutil.rmtree(scene.capture)
    assert set(states(scene).values()) == {"missing"}
    assert "nothing is there" in why(scene, "letters")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not a run folder"):
        Request.read(tmp_path)


def test_a_moved_run_and_its_store_are_found_again(scene):
    scene.go()
    moved = scene.root / "elsewhere"
    scene.run.parent.rename(moved)
    assert Request.read(moved / "desk").store == moved / ".real2sim"


def test_a_running_stage_says_who_computes_it_and_how_far_it_is(scene):
    process = scene.start("words.ticks=60")
    try:
        end = time.monotonic() + 30
        while "%" not in (why := " ".join(status(scene.request("words.ticks=60"), fakes.GRAPH)[1].why)):
            assert time.monotonic() < end and process.poll() is None, why
            time.sleep(0.05)
        assert re.search(rf"process {process.pid} on \S+, \d+% computes it", why)
    finally:
        process.kill()
        process.wait()
