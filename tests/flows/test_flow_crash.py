# SPDX-License-Identifier: Apache-2.0
"""Nothing lost: killed processes, two at once, damaged artifacts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import pytest

from real2sim.flows import locks
from real2sim.flows.rundir import Request
from real2sim.flows.status import status
from real2sim.flows.store import Store

SLOW = ("words.ticks=30",)  # 1.5 s of work, a checkpoint every 0.05 s
PATIENCE_S = 30.0  # for a process to start on a loaded machine


def wait_for(condition) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def ticks(scene) -> int:
    files = list(scene.store.root.glob("scratch/words/*/tick"))
    return int(files[0].read_text()) if files else 0


def stop_midway(scene, how: signal.Signals) -> int:
    """Start a run, stop it while words works; returns its exit code."""
    process = scene.start(*SLOW)
    wait_for(lambda: ticks(scene) >= 3)
    process.send_signal(how)
    return process.wait(PATIENCE_S)


def leftovers(scene) -> list[Path]:
    root = scene.store.root
    return [*root.glob("tmp/*"), *root.glob("scratch/*/*"), *scene.run.glob(".*"), *root.glob(".*")]


def test_a_killed_run_goes_on_from_its_checkpoint_and_ends_as_an_undisturbed_one(scene, tmp_path):
    assert stop_midway(scene, signal.SIGKILL) == -signal.SIGKILL
    assert scene.artifacts("words") == []
    assert not (scene.run / "bundle").exists()
    row = status(Request.read(scene.run), fakes.GRAPH)[1]
    assert (row.state, row.why) == ("missing", ("it was begun and goes on from its checkpoint",))
    assert scene.go(*SLOW).exit_code == 0
    assert scene.ran() == ["letters", "words", "words", "shape", "page"]
    manifest = json.loads((scene.artifacts("words")[0] / "manifest.json").read_text())
    assert manifest["metrics"]["resumed_at"] >= 3
    assert leftovers(scene) == []
    other = type(scene)(tmp_path / "other")
    (tmp_path / "other").mkdir()
    os.rename(scene.capture, other.capture)
    other.go(*SLOW)
    pages = [s.run / "bundle" / "text" / "all.txt" for s in (scene, other)]
    assert pages[0].read_bytes() == pages[1].read_bytes()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_checkpoints_and_earlier_results(scene, how):
    scene.go()
    before = (scene.run / "summary.json").read_text()
    scene.ran()
    assert stop_midway(scene, how) != 0
    assert (scene.run / "summary.json").read_text() == before
    assert (scene.run / "bundle").exists()
    assert ticks(scene) >= 3
    assert "interrupted" in scene.store.read_ref(scene.request().name, "words")["failed"]["error"]
    assert list(scene.store.root.glob("tmp/*")) == []  # an interrupted process cleans up after itself
    scene.go(*SLOW)
    assert scene.ran() == ["words", "words", "page"]


def test_kills_at_any_moment_never_leave_a_half_artifact(scene):
    """Kill at moments spread over a whole run, then let one run through."""
    start = time.monotonic()
    scene.start("words.ticks=2").wait()
    whole = time.monotonic() - start
    for path in scene.store.root.glob("objects/*/*/*"):
        path.rename(path.with_name("gone"))  # out of sight, so that all is computed again
    for share in (0.55, 0.65, 0.75, 0.85, 0.95):
        process = scene.start("words.ticks=2")
        time.sleep(whole * share)
        process.kill()
        process.wait()
        for artifact in scene.store.root.glob("objects/*/*/*"):
            if artifact.name != "gone":
                assert (artifact / "manifest.json").exists()
    assert scene.go("words.ticks=2").exit_code == 0
    assert leftovers(scene) == []


def test_two_processes_compute_each_key_once(scene):
    processes = [scene.start("words.ticks=8") for _ in range(2)]
    assert [p.wait(PATIENCE_S) for p in processes] == [0, 0]
    assert sorted(scene.ran()) == ["letters", "page", "shape", "words"]
    assert leftovers(scene) == []


def test_the_survivor_computes_what_a_killed_process_had_begun(scene):
    first = scene.start(*SLOW)
    wait_for(lambda: ticks(scene) >= 2)
    second = scene.start(*SLOW)
    time.sleep(0.3)
    first.kill()
    first.wait()
    assert second.wait(PATIENCE_S) == 0
    assert scene.ran() == ["letters", "words", "words", "shape", "page"]


def missing_file(artifact: Path) -> None:
    (artifact / "part" / "words.txt").unlink()


def flipped_byte(artifact: Path) -> None:
    path = artifact / "part" / "words.txt"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    stat = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def added_file(artifact: Path) -> None:
    (artifact / "more.txt").write_text("more")


def truncated_manifest(artifact: Path) -> None:
    path = artifact / "manifest.json"
    path.write_text(path.read_text()[:100])


def missing_manifest(artifact: Path) -> None:
    (artifact / "manifest.json").unlink()


def foreign_manifest(artifact: Path) -> None:
    path = artifact / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": "0"}))


def other_digest(artifact: Path) -> None:
    path = artifact / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "digest": "0" * 64}))


@pytest.mark.parametrize(
    "damage",
    [missing_file, flipped_byte, added_file, truncated_manifest, missing_manifest, foreign_manifest, other_digest],
)
def test_a_damaged_artifact_is_found_and_built_again(scene, damage):
    scene.go()
    scene.ran()
    artifact = scene.artifacts("words")[0]
    good = (artifact / "part" / "words.txt").read_bytes()
    damage(artifact)
    assert scene.go().exit_code == 0
    assert scene.ran() == ["words"]
    assert any("damaged" in line for line in scene.listener.lines)
    assert (artifact / "part" / "words.txt").read_bytes() == good
    assert leftovers(scene) == []


def test_a_store_that_cannot_be_written_serves_what_it_has(scene):
    scene.go()
    scene.ran()
    for name in ("tmp", "locks", "scratch"):
        folder = scene.store.root / name
        folder.rename(folder.with_suffix(".hidden"))
        folder.write_text("a file where a folder should be: nothing can be written below it, even by root")
    assert scene.go().exit_code == 0
    assert scene.ran() == []


def test_a_lock_is_dropped_with_its_holder_and_not_kept_by_its_children(tmp_path):
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from real2sim.flows import locks\n"
        "with locks.exclusive(Path(sys.argv[1])):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(60)\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    path = tmp_path / "lock"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        assert locks.holder(path) == f"process {process.pid} on {os.uname().nodename}"
        process.kill()
        process.wait()
        assert locks.holder(path) is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_sweeping_spares_what_a_living_process_builds(tmp_path):
    store = Store(tmp_path)
    with store.draft() as draft:
        dead = tmp_path / "tmp" / "dead"
        dead.mkdir()
        (tmp_path / "tmp" / "killed").mkdir()
        (tmp_path / "tmp" / "killed.lock").touch()
        Store(tmp_path).sweep()
        assert sorted(p.name for p in (tmp_path / "tmp").iterdir()) == [draft.name, f"{draft.name}.lock"]
    assert list((tmp_path / "tmp").iterdir()) == []
