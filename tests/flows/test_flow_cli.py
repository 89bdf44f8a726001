# SPDX-License-Identifier: Apache-2.0
"""What the command line shows of a run, and its exit codes, on the fake graph."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fakes
import pytest
from typer.testing import CliRunner

from real2sim.cli import app

PATIENCE_S = 30.0


@pytest.fixture
def run(scene, monkeypatch):
    """Run `real2sim COMMAND` on the fake graph; returns (exit code, everything printed)."""
    monkeypatch.setattr("real2sim.flows.graph.SCENE", fakes.GRAPH)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, list(arguments))
        return result.exit_code, result.stdout + result.stderr

    return invoke


@pytest.fixture
def reconstruct(run, scene):
    return lambda *options: run("reconstruct", str(scene.capture), "--out", str(scene.run), *options)


def test_a_good_run_shows_each_stage_each_gate_and_the_bundle(reconstruct, scene):
    code, text = reconstruct()
    assert code == 0
    assert [line.split()[1] for line in text.splitlines() if line.startswith("✓")] == [
        s.name for s in fakes.GRAPH.stages
    ]
    assert "● enough" in text
    assert "8 ≥ 1" in text
    assert "Good after" in text
    assert str(scene.run / "bundle") in text


def test_a_second_run_shows_that_all_is_cached(reconstruct):
    reconstruct()
    assert reconstruct()[1].count("cached") == len(fakes.GRAPH.stages)


def test_a_refusal_shows_value_threshold_and_advice(reconstruct):
    code, text = reconstruct("--set", "words.at_least=99")
    assert code == 1
    assert "✗ enough" in text
    assert "8 < 99" in text
    assert "Write more." in text
    assert "Refused at words" in text


def test_an_allowed_failure_is_shown_as_such(reconstruct):
    code, text = reconstruct("--set", "words.at_least=99", "--allow", "enough")
    assert code == 0
    assert "(allowed)" in text
    assert "Failed but allowed, and so recorded: enough" in text


@pytest.mark.parametrize(("mode", "code"), [("capture", 1), ("backend", 2), ("defect", 70), ("memory", 75)])
def test_each_kind_of_failure_has_its_exit_code_and_no_traceback(reconstruct, mode, code):
    got, text = reconstruct("--set", f"words.mode={mode}")
    assert got == code
    assert "Traceback" not in text
    assert "✗ words" in text


def test_status_why_names_what_a_setting_would_change(reconstruct, run, scene):
    reconstruct()
    code, text = run("status", str(scene.run), "--why", "--set", "words.scale=3")
    assert code == 0
    assert "option words.scale: 1.0 → 3.0" in text


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_says_how_to_go_on(reconstruct, scene, how, code):
    def interrupt() -> None:
        end = time.monotonic() + PATIENCE_S
        while not list(scene.store.root.glob("scratch/words/*/tick")) and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), how)

    threading.Thread(target=interrupt).start()
    got, text = reconstruct("--set", "words.ticks=600")
    assert got == code
    assert "run the same command again to go on" in " ".join(text.split())


def test_native_code_that_never_returns_is_cut_off(tmp_path):
    """A blocking call that Python signal handlers cannot interrupt ends with the grace, not with the call."""
    code = (
        "import ctypes\n"
        "from real2sim import interrupt\n"
        "interrupt.GRACE_S = 0.3\n"
        "sleep = ctypes.CDLL(None).sleep\n"
        "with interrupt.interruptible(lambda: print('cut off', flush=True)):\n"
        "    print('ready', flush=True)\n"
        "    try:\n"
        "        sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert process.stdout.read() == "cut off\n"


def test_a_library_that_takes_sigterm_for_itself_loses_it_at_the_next_report(tmp_path):
    """glog, inside pycolmap, does so with sigaction, unseen by Python."""
    code = (
        "import ctypes, os, signal\n"
        "from rich.console import Console\n"
        "from real2sim import interrupt\n"
        "from real2sim.console import ConsoleObserver\n"
        "with interrupt.interruptible(lambda: None):\n"
        "    ctypes.CDLL(None).signal(signal.SIGTERM, None)\n"
        "    ConsoleObserver(Console(quiet=True)).log('working')\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except KeyboardInterrupt:\n"
        "        print('unwound')\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (told.returncode, told.stdout) == (0, "unwound\n")


def test_drawing_on_a_terminal_takes_the_bar_away_again(scene):
    from io import StringIO

    from rich.console import Console

    from real2sim.console import ConsoleObserver
    from real2sim.flows.reconstruct import reconstruct

    screen = StringIO()
    observer = ConsoleObserver(Console(file=screen, force_terminal=True, width=120))
    reconstruct(scene.request("words.ticks=3"), fakes.GRAPH, observer, report=scene._report)
    assert observer._progress is None
    assert "✓" in screen.getvalue()
    assert Path(scene.run / "bundle").exists()
