# SPDX-License-Identifier: Apache-2.0
"""The command line: fast to start, exit codes as documented, every error one message."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from real2sim import __version__
from real2sim.cli import app

LOADED_MACHINE = 2.0  # how much slower a busy test machine may be than the bounds that users are promised
HELP_S, IMPORT_S = 0.5, 0.3


def best_of_three(*command: str) -> float:
    """Processor seconds of the fastest of three runs, so that what else runs meanwhile hardly counts."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def said(result) -> str:
    return " ".join((result.stdout + result.stderr).split())


def test_help_comes_at_once():
    assert best_of_three("-m", "real2sim.cli", "--help") < HELP_S * LOADED_MACHINE


def test_the_package_imports_at_once():
    assert best_of_three("-c", "import real2sim") < IMPORT_S * LOADED_MACHINE


def test_starting_loads_nothing_heavy():
    code = "import real2sim.cli, sys; print([m for m in ('numpy', 'torch', 'prefect', 'yaml') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_version():
    assert run("--version").stdout.strip() == f"real2sim {__version__}"


@pytest.mark.parametrize("command", ["synth", "reconstruct", "demo", "check", "sim", "status"])
def test_every_command_has_help_with_exit_codes(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Exit codes: 0 good; 1" in said(result)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(b"not a photo")
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "splta.steps=3"], "Did you mean 'splat'"),
        (["--set", "splat.stesp=3"], "Did you mean 'steps'"),
        (["--set", "splat.steps=many"], "expected a whole number"),
        (["--allow", "scael"], "Did you mean 'scale'"),
        (["--config", "nowhere"], "quick"),
        (["--poses", "nowhere.json"], "nothing is there"),
    ],
)
def test_a_wrong_option_is_code_2_and_names_the_nearest(capture, tmp_path, options, message):
    result = run("reconstruct", str(capture), "--out", str(tmp_path / "run"), *options)
    assert result.exit_code == 2
    assert message in said(result)
    assert not (tmp_path / "run").exists()


def test_a_capture_that_is_not_there_is_code_2(tmp_path):
    result = run("reconstruct", str(tmp_path / "nothing"), "--out", str(tmp_path / "run"))
    assert (result.exit_code, "nothing is there" in said(result)) == (2, True)


def test_a_capture_without_a_usable_photo_is_refused_with_summary_and_report(capture, tmp_path):
    result = run("reconstruct", str(capture), "--out", str(tmp_path / "run"))
    assert result.exit_code == 1, said(result)
    assert "Refused at ingest" in said(result)
    assert (tmp_path / "run" / "summary.json").exists()
    assert (tmp_path / "run" / "report.html").exists()
    assert not (tmp_path / "run" / "bundle").exists()
    again = run("status", str(tmp_path / "run"), "--why")
    assert again.exit_code == 0
    assert "failed" in said(again)


def test_status_of_a_folder_that_is_no_run_is_code_2(tmp_path):
    result = run("status", str(tmp_path))
    assert (result.exit_code, "not a run folder" in said(result)) == (2, True)


def test_check_of_a_folder_that_is_no_bundle_is_code_2(tmp_path):
    result = run("check", str(tmp_path))
    assert (result.exit_code, "not a bundle" in said(result)) == (2, True)


def test_a_film_never_replaces_a_runs_summary(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    result = run("sim", str(tmp_path / "bundle"), "--out", str(tmp_path / "film.mp4"))
    assert (result.exit_code, "a folder of its own" in said(result)) == (2, True)


def test_mjcf_check_says_what_a_file_uses_and_what_is_refused(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.xml", tmp_path / "bad.xml"
    good.write_text('<mujoco><worldbody><body><freejoint/><geom size=".1"/></body></worldbody></mujoco>')
    bad.write_text(
        '<mujoco><worldbody><flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1" dim="2"/>'
        "</worldbody></mujoco>"
    )
    fine = CliRunner().invoke(app, ["mjcf", "check", str(good)])
    assert fine.exit_code == 0 and "1 bodies" in fine.output
    refused = CliRunner().invoke(app, ["mjcf", "check", str(good), str(bad)])
    assert refused.exit_code == 1 and "refused" in refused.output
    assert CliRunner().invoke(app, ["mjcf", "check", str(tmp_path / "none.xml")]).exit_code != 0
