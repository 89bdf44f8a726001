# SPDX-License-Identifier: Apache-2.0
"""A dataset: bad captures are set apart and named, the rest goes on, and nothing is run twice."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from real2sim.cli import app
from real2sim.datasets.index import manifest, read_index
from real2sim.errors import UsageError
from real2sim.flows import dataset as flow
from real2sim.flows.dataset import build, command, whole_exit_code
from real2sim.flows.dataset_plan import Scene, read_dataset

# Stands for `real2sim reconstruct`: ends as the capture's only file says, and counts how often it ran.
RUNNER = """
import json, sys, time
from pathlib import Path
capture, run = Path(sys.argv[1]), Path(sys.argv[2])
said = (capture / "a.txt").read_text()
with (run.parent.parent / "ran.txt").open("a") as f: f.write(run.name + "\\n")
if said == "slow": time.sleep(60)
if said == "dies": print("killed by nobody knows what"); sys.exit(70)
gate = {"name": "registered", "value": 0.1, "threshold": 0.8, "passed": said == "good"}
summary = {"outcome": said, "error": None if said == "good" else "Gate registered failed: 1 of 9 frames.",
           "frames": 9, "registered": 9 if said == "good" else 1, "psnr_heldout": 25.0, "gates": [gate],
           "failed_gates": [] if said == "good" else ["registered"], "seconds_computed": 3.0}
(run / "summary.json").write_text(json.dumps(summary))
if said == "good":
    (run / "bundle").mkdir(exist_ok=True)
    asset = {"name": "background"}
    licence = {"component": "x", "licence": "MIT", "commercial": True}
    alignment = {"support": {}, "sources": {"scale": {"from": "aruco"}}}
    (run / "bundle" / "bundle.json").write_text(json.dumps({"digest": "d" + run.name, "assets": [asset],
        "licences": [licence], "files": {}, "allowed": [], "alignment": alignment}))
sys.exit({"good": 0, "refused": 1, "try again": 75}[said])
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Captures that end in different ways, and a YAML that names them."""
    for name, said in (("a", "good"), ("b", "refused"), ("c", "good"), ("d", "dies"), ("e", "good")):
        (tmp_path / "captures" / name).mkdir(parents=True)
        (tmp_path / "captures" / name / "a.txt").write_text(said)
    write(tmp_path, captures=["captures/*", {"path": "captures/gone", "name": "gone"}], workers=2)
    (tmp_path / "runner.py").write_text(RUNNER)
    monkeypatch.setattr(flow, "BACKOFF_S", 0.0)

    def run(scene: Scene) -> list[str]:
        return [sys.executable, str(tmp_path / "runner.py"), str(scene.request.capture), str(scene.request.run)]

    monkeypatch.setattr(flow, "command", run)
    return tmp_path


def write(place: Path, **fields) -> None:
    (place / "set.yaml").write_text(yaml.safe_dump({"name": "desks", "out": "out", **fields}))


def ran(place: Path) -> list[str]:
    path = place / "out" / "ran.txt"
    names = sorted(path.read_text().split()) if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def test_bad_captures_are_set_apart_with_their_reasons_and_the_rest_goes_on(place):
    dataset = read_dataset(place / "set.yaml")
    rows = {row.name: row for row in build(dataset)}
    assert [name for name, row in rows.items() if row.good] == ["a", "c", "e"]
    assert rows["b"].outcome == "refused" and "1 of 9 frames" in rows["b"].reason
    assert rows["d"].outcome == "defect" and "nobody knows" in rows["d"].reason and rows["d"].attempts == 2
    assert rows["gone"].outcome == "misused" or "nothing is there" in rows["gone"].reason
    assert sorted(p.stem for p in (place / "out" / "quarantine").glob("*")) == ["b", "d", "gone"]
    assert whole_exit_code(dataset, rows.values()) == 75  # a defect may pass; nobody knows
    page = (place / "out" / "report.html").read_text()
    assert "6 scenes: 1 defect, 3 good, 2 refused" in page and "1 of 9 frames" in page


def test_a_second_build_runs_only_what_changed_or_may_pass(place):
    dataset = read_dataset(place / "set.yaml")
    build(dataset)
    assert ran(place) == ["a", "b", "c", "d", "d", "e"]
    rows = build(dataset)
    assert ran(place) == ["d", "d"] and all(row.reused for row in rows if row.name in "abce")
    (place / "captures" / "b" / "a.txt").write_text("good")
    build(dataset)
    assert ran(place) == ["b", "d", "d"]
    assert not (place / "out" / "quarantine" / "b.json").exists()
    (place / "out" / "scenes" / "c" / "bundle" / "bundle.json").unlink()
    build(dataset)
    assert ran(place) == ["c", "d", "d"]


def test_a_scene_that_takes_too_long_is_stopped(place):
    (place / "captures" / "d" / "a.txt").write_text("slow")
    write(place, captures=["captures/d"], timeout_s=1.5, retries=0)
    (row,) = build(read_dataset(place / "set.yaml"))
    assert row.outcome == "out of time" and row.seconds < 20


def test_the_index_is_filtered_by_conditions_and_exported(place):
    write(place, captures=["captures/a", "captures/b"])
    dataset = read_dataset(place / "set.yaml")
    assert whole_exit_code(dataset, build(dataset)) == 0
    assert [row["name"] for row in read_index(dataset.out, "psnr_heldout > 20 AND commercial")] == ["a"]
    (line,) = manifest(dataset.out)
    assert json.loads(line) | {"licences": 0} == {
        "name": "a", "path": "scenes/a/bundle", "digest": "da", "scale_from": "aruco", "support": 1, "commercial": 1,
        "licences": 0, "frames": 9, "registered": 9, "psnr_heldout": 25.0, "ssim_heldout": None, "gaussians": None,
        "peak_memory_gb": None,
    }  # fmt: skip
    with pytest.raises(UsageError, match="Columns: name, path"):
        read_index(dataset.out, "colour = 3")
    with pytest.raises(UsageError):
        read_index(dataset.out, "1; DROP TABLE scenes")
    assert len(read_index(dataset.out)) == 2


def test_dataset_commands_report_and_export(place):
    write(place, captures=["captures/a", "captures/b"])
    runner, out = CliRunner(), str(place / "out")
    assert runner.invoke(app, ["dataset", "build", str(place / "set.yaml")]).exit_code == 0
    assert "refused" in runner.invoke(app, ["dataset", "report", out]).stdout
    assert json.loads(runner.invoke(app, ["dataset", "export", out]).stdout)["name"] == "a"
    assert runner.invoke(app, ["dataset", "export", out, "--where", "nonsense"]).exit_code == 2


def test_options_reach_the_command_line_of_a_scene(tmp_path):
    (tmp_path / "x").mkdir()
    row = {"path": "x", "options": {"splat.steps": 300, "align.up": None}, "allow": ["scale"], "poses": "p.json"}
    write(tmp_path, captures=[row], config="quick")
    (scene,) = read_dataset(tmp_path / "set.yaml").scenes
    words = command(scene)
    assert words[3:7] == ["reconstruct", str(tmp_path / "x"), "--out", str(tmp_path / "out" / "scenes" / "x")]
    for pair in (("--set", "splat.steps=300"), ("--set", "align.up=none"), ("--allow", "scale")):
        assert pair in itertools.pairwise(words)
    assert words[words.index("--poses") + 1] == str(tmp_path / "p.json") and "--config" in words


@pytest.mark.parametrize("fields,words", [
    ({"captures": "x"}, "must be a list"), ({"captures": ["none/*"]}, "matches nothing"), ({}, "captures is missing"),
    ({"captures": ["x"], "worker": 2}, "Did you mean 'workers'"), ({"captures": [{"path": "x", "nam": 1}]}, "name"),
    ({"captures": ["x", "y/x"]}, "two captures are named 'x'"), ({"captures": ["x"], "workers": 0}, "1 or more"),
    ({"captures": [{"path": "x", "options": {"steps": 1}}]}, "stage.option"),
])  # fmt: skip
def test_a_wrong_yaml_names_the_field(tmp_path, fields, words):
    write(tmp_path, **fields)
    with pytest.raises(UsageError, match=words.replace(".", r"\.")):
        read_dataset(tmp_path / "set.yaml")


def test_the_real_command_runs_in_a_scenes_folder(tmp_path: Path) -> None:
    capture = tmp_path / "captures" / "words"
    capture.mkdir(parents=True)
    (capture / "a.txt").write_text("no photo")
    write(tmp_path, captures=["captures/words"])
    row = build(read_dataset(tmp_path / "set.yaml"))[0]
    assert row.outcome == "refused" and "photo" in row.reason, row
