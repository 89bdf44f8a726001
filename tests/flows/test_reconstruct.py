# SPDX-License-Identifier: Apache-2.0
"""One scene: what runs again and what does not, and what a run leaves behind."""

from __future__ import annotations

import json
import shutil

import fakes
import pytest

from real2sim.errors import BackendError, UsageError
from real2sim.flows.config import Options
from real2sim.flows.graph import SCENE, Task
from real2sim.flows.observer import Observer
from real2sim.flows.reconstruct import reconstruct
from real2sim.flows.rundir import Request
from real2sim.flows.store import Store

ALL = ["letters", "words", "shape", "page"]


def summary_of(scene):
    return json.loads((scene.run / "summary.json").read_text())


def test_a_second_run_computes_nothing_and_leaves_the_bundle_alone(scene):
    assert scene.go().exit_code == 0
    assert scene.ran() == ALL
    before = (scene.run / "bundle" / "page.json").stat()
    summary = scene.go()
    assert scene.ran() == []
    assert all(row["cached"] for row in summary.stages)
    assert (scene.run / "bundle" / "page.json").stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("setting", "again"),
    [
        ("page.readable=yes", []),
        ("shape.width=5", ["shape", "page"]),
        ("words.scale=2", ["words", "page"]),
        ("letters.upper=true", ["letters", "words", "shape", "page"]),
    ],
)
def test_an_option_runs_its_dependents_again_and_nothing_else(scene, setting, again):
    scene.go()
    scene.ran()
    scene.go(setting)
    # upper case letters give the same number of words and lines: words and shape read letters, so both look again
    assert scene.ran() == again


def test_a_change_that_leaves_the_output_as_it_was_stops_there(scene):
    scene.go()
    scene.ran()
    (scene.capture / "a.txt").write_text("the mug is red! ")  # letters drops punctuation
    summary = scene.go()
    # the page records the capture's digest and the keys, so it is the one other stage that changes
    assert scene.ran() == ["letters", "page"]
    assert [row["cached"] for row in summary.stages] == [False, True, True, False]


def test_the_summary_takes_each_figure_from_the_last_stage_that_has_it(scene):
    assert scene.go("words.mode=capture").frames == len("the mug is red it has a handle")
    assert scene.go().frames == 8  # words


def test_going_back_to_an_earlier_option_is_a_hit(scene):
    scene.go()
    scene.go("words.scale=2")
    scene.ran()
    scene.go()
    assert scene.ran() == []


def test_moving_and_touching_a_capture_changes_no_key(scene):
    scene.go()
    scene.ran()
    moved = scene.capture.rename(scene.root / "elsewhere")
    moved.rename(scene.capture)
    shutil.copytree(scene.capture, moved)
    shutil.rmtree(scene.capture)
    shutil.copytree(moved, scene.capture)
    scene.go()
    assert scene.ran() == []


def test_renaming_a_file_of_the_capture_is_a_change(scene):
    scene.go()
    scene.ran()
    (scene.capture / "a.txt").rename(scene.capture / "z.txt")
    scene.go()
    assert "letters" in scene.ran()


def test_a_run_inside_the_capture_is_no_part_of_it(scene):
    inside = scene.capture / "runs" / "desk"
    request = Request(scene.capture, inside, scene.capture / "runs" / "store")
    first, second = (reconstruct(request, fakes.GRAPH, Observer(), report=scene._report) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.capture_digest == second.capture_digest


def test_poses_count_by_their_content(scene, tmp_path):
    poses = tmp_path / "poses.txt"
    poses.write_text(" one")
    scene.go(poses=poses)
    scene.ran()
    poses.write_text(" two")
    scene.go(poses=poses)
    assert "letters" in scene.ran()
    assert "two" in (scene.run / "bundle" / "text" / "all.txt").read_text()


def test_a_failed_gate_stops_the_run_and_leaves_report_and_summary_but_no_bundle(scene):
    summary = scene.go("words.at_least=99")
    assert scene.ran() == ["letters", "words"]
    assert summary.exit_code == 1
    data = summary_of(scene)
    assert (data["outcome"], data["stopped_at"], data["failed_gates"]) == ("refused", "words", ["enough"])
    assert data["bundle"] is None
    assert "Write more." in data["error"]
    assert scene.reports == [{"outcome": "refused", "stages": ["letters", "words"], "title": "desk"}]
    assert (scene.run / "report.html").exists()
    assert not (scene.run / "bundle").exists()


def test_a_failed_gate_of_the_last_stage_gives_no_bundle(scene):
    assert scene.go("page.readable=no").exit_code == 1
    assert not (scene.run / "bundle").exists()


def test_an_allowed_gate_is_recorded_in_summary_and_bundle(scene):
    assert scene.go("words.at_least=99", allow=("enough",)).exit_code == 0
    assert summary_of(scene)["allowed"] == ["enough"]
    page = json.loads((scene.run / "bundle" / "page.json").read_text())
    assert page["allowed"] == ["enough"]
    gates = [gate for stage in page["stages"] for gate in stage["gates"]]
    assert [(g["name"], g["passed"]) for g in gates] == [("enough", False)]
    assert "enough allowed" in scene.listener.lines


def test_a_refused_run_sets_an_earlier_bundle_aside_and_a_good_one_takes_its_place_again(scene):
    scene.go()
    kept = (scene.run / "bundle" / "page.json").read_text()
    scene.go("words.at_least=99")
    assert not (scene.run / "bundle").exists()
    assert (scene.run / "bundle.previous" / "page.json").read_text() == kept
    scene.go()
    assert (scene.run / "bundle" / "page.json").read_text() == kept
    assert not (scene.run / "bundle.previous").exists()


def test_a_bundle_changed_by_hand_is_made_good_again(scene):
    scene.go()
    page = scene.run / "bundle" / "page.json"
    kept = page.read_text()
    page.write_text(kept.replace("7", "8"))
    scene.go()
    assert page.read_text() == kept
    assert not list(scene.run.glob(".bundle-*"))


@pytest.mark.parametrize(
    ("mode", "outcome", "code", "words"),
    [
        ("capture", "refused", 1, "no verbs"),
        ("backend", "misused", 2, "no device"),
        ("memory", "try again", 75, "Out of memory"),
        ("disk", "try again", 75, "no space left"),
        ("defect", "defect", 70, "defect of real2sim"),
        ("manifest", "defect", 70, "the store writes this file"),
        ("link", "defect", 70, "holds no links"),
    ],
)
def test_every_failure_ends_with_its_code_a_summary_and_a_report(scene, mode, outcome, code, words):
    scene.go()
    summary = scene.go(f"words.mode={mode}")
    assert (summary.outcome, summary.exit_code, summary.stopped_at) == (outcome, code, "words")
    assert words in summary_of(scene)["error"]
    assert scene.reports[-1]["outcome"] == outcome
    assert not (scene.run / "bundle").exists()
    assert (scene.run / "traceback.txt").exists() == (outcome == "defect")
    assert list((scene.store.root / "tmp").iterdir()) == []


def test_a_failure_is_not_remembered_as_a_result(scene):
    scene.go("words.mode=capture")
    scene.go("words.mode=capture")
    assert scene.ran().count("words") == 2


def test_not_a_number_in_a_metric_loses_no_work(scene):
    assert scene.go("words.mode=nan").exit_code == 0
    manifest = json.loads((scene.artifacts("words")[0] / "manifest.json").read_text())
    assert manifest["metrics"]["odd"] is None


def test_a_manifest_says_how_the_artifact_was_made(scene):
    scene.go("words.scale=2")
    manifest = json.loads((scene.artifacts("words")[0] / "manifest.json").read_text())
    letters = json.loads((scene.artifacts("letters")[0] / "manifest.json").read_text())
    assert manifest["config"]["scale"] == 2.0
    assert manifest["inputs"] == {"letters": letters["digest"]}
    assert manifest["files"][0][0] == "part/words.txt"
    assert set(manifest["tools"]) == {"numpy"}
    assert {"fakes", "fakes.words", "real2sim.stages.contract"} <= set(manifest["sources"])
    assert letters["log"] == ["backend auto: plain"]
    assert letters["peak_memory_gb"] > 0


def test_a_capture_that_changes_while_it_is_read_is_not_stored(scene, monkeypatch):
    import fakes.letters

    original = fakes.letters.run

    def write_meanwhile(inputs, *rest):
        result = original(inputs, *rest)
        (inputs["capture"] / "a.txt").write_text("another text")
        return result

    monkeypatch.setattr(fakes.letters, "run", write_meanwhile)
    summary = scene.go()
    assert summary.exit_code == 75
    assert "changed while stage letters read it" in summary.error
    assert scene.artifacts("letters") == []


def test_a_report_that_cannot_be_written_ends_the_run_with_a_summary(scene, monkeypatch):
    def broken(*_):
        raise BackendError("Writing report.html needs jinja2.")

    monkeypatch.setattr(scene, "_report", broken)
    assert scene.go().exit_code == 2
    assert summary_of(scene)["error"] == "Writing report.html needs jinja2."
    assert not (scene.run / "bundle").exists()


def test_the_report_is_in_the_bundle_and_is_drawn_again_only_when_it_tells_something_else(scene):
    scene.go()
    assert (scene.run / "bundle" / "report.html").read_text() == (scene.run / "report.html").read_text()
    scene.go()
    assert len(scene.reports) == 1
    scene.go("words.scale=2")
    assert len(scene.reports) == 2


def test_a_report_that_was_cut_off_is_drawn_again(scene):
    scene.go()
    scene.go("words.scale=2")
    (scene.run / "report.html").write_text("<h1>de")
    scene.go("words.scale=2")
    assert (scene.run / "report.html").read_text() == "<h1>desk</h1>"


def test_the_capture_itself_is_never_written_into(scene):
    with pytest.raises(UsageError, match="this is the capture"):
        reconstruct(Request(scene.capture, scene.capture, scene.store.root), fakes.GRAPH, Observer())


def test_an_unknown_gate_is_refused_before_anything_runs(scene):
    with pytest.raises(UsageError, match="Did you mean 'enough'"):
        scene.go(allow=("enouhg",))
    assert not scene.run.exists()


def test_an_empty_or_missing_capture_is_refused_before_anything_runs(scene):
    shutil.rmtree(scene.capture)
    with pytest.raises(UsageError, match="nothing is there"):
        scene.go()
    scene.capture.mkdir()
    with pytest.raises(UsageError, match="no files"):
        scene.go()


def test_a_full_disk_while_the_results_are_written_is_said_and_loses_no_stage(scene, monkeypatch):
    from real2sim.flows import rundir

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(rundir, "_copy", full)
        summary = scene.go()
    assert (summary.outcome, summary.bundle) == ("try again", None)
    assert "no space left" in summary_of(scene)["error"]
    scene.ran()
    assert scene.go().exit_code == 0
    assert scene.ran() == []
    assert not list(scene.run.glob(".bundle-*"))


def test_a_folder_with_a_persons_files_is_not_taken_for_a_run(scene):
    (scene.run / "bundle").mkdir(parents=True)
    (scene.run / "bundle" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds bundle, which no run has made"):
        scene.go()
    assert (scene.run / "bundle" / "thesis.txt").read_text() == "mine"


def test_a_run_folder_that_is_a_file_is_one_clear_error(scene):
    scene.run.parent.mkdir(parents=True, exist_ok=True)
    scene.run.write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        scene.go()


def test_an_earlier_run_inside_the_capture_is_no_part_of_it_either(scene):
    scene.go()
    digest = scene.go().capture_digest
    earlier = scene.capture / "earlier"
    earlier.mkdir()
    (earlier / "run.json").write_text("{}")
    (earlier / "frame.txt").write_text("x")
    assert scene.go().capture_digest == digest


def test_a_corrected_length_poses_no_camera_again(tmp_path):
    store, options = Store(tmp_path), Options("1", {}, dict)
    sfm = next(stage for stage in SCENE.stages if stage.name == "sfm")

    def recipe(frames: str, measures: str) -> dict:
        with store.draft() as draft:
            (draft / "frames.json").write_text(frames)
            (draft / "measures.json").write_text(measures)
            made = store.publish(draft, {"stage": "ingest", "frames": frames, "measures": measures}, {})
        return Task(sfm, options, {"ingest": made}).recipe

    assert recipe("1", "0.1 m") == recipe("1", "0.2 m") != recipe("2", "0.2 m")
