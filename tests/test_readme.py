# SPDX-License-Identifier: Apache-2.0
"""The README's own blocks, each run as it is printed, in the order of the page, on the run of its first command."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
VIEWER_PORT = 8080
SETUP_BLOCKS = 2  # the first two install the package: CI runs them as they are
CHECK = [str(Path(sys.executable).parent / "real2sim"), "check"]


def blocks() -> list[tuple[str, str]]:
    """The language and text of each fenced block after the set-up."""
    found = re.findall(r"^```(sh|python)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    return found[SETUP_BLOCKS:]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The repository, after the README's first command."""
    root = README.parent
    if not (root / "runs" / "demo" / "bundle").exists():
        pytest.skip("runs/demo is not there: run the README's first command for this test")
    return root


def run(language: str, text: str, folder: Path) -> str:
    """Run a block in a folder, as the environment of this interpreter does; returns what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["bash", "-euo", "pipefail", "-c", text] if language == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def serve(text: str, folder: Path) -> None:
    """Run a block that serves until Ctrl-C: its page answers, then Ctrl-C ends it as documented."""
    command = [str(Path(sys.executable).parent / "real2sim"), *text.split()[1:]]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address = f"http://127.0.0.1:{VIEWER_PORT}"
        for _ in range(300):
            try:
                assert urllib.request.urlopen(address, timeout=5).status == 200
                break
            except OSError:
                assert server.poll() is None, server.communicate()[0]
                time.sleep(0.2)
        server.send_signal(signal.SIGINT)
        told = server.communicate(timeout=30)[0]
        assert server.returncode == 130 and address in told, told
    finally:
        server.kill()


def test_readme_blocks_run_in_order(folder):
    shutil.rmtree(folder / "runs" / "desk7", ignore_errors=True)
    for language, text in blocks():
        if text.startswith("real2sim view"):
            serve(text, folder)
        else:
            run(language, text, folder)
    summary = json.loads((folder / "runs" / "my_table" / "summary.json").read_text())
    assert summary["outcome"] == "good" and summary["frames"] == summary["registered"] == 40
    assert (folder / "runs" / "drop.mp4").stat().st_size > 10_000
    assert (folder / "runs" / "desk7" / "capture" / "capture.yaml").exists()


def test_second_run_computes_nothing(folder):
    command = "real2sim reconstruct runs/demo/synthetic/capture --out runs/my_table --marker-size 0.08"
    for _ in range(2):
        run("sh", command, folder)
    summary = json.loads((folder / "runs" / "my_table" / "summary.json").read_text())
    assert summary["outcome"] == "good" and all(stage["cached"] for stage in summary["stages"])


def test_moved_bundle_still_passes_and_a_tampered_byte_is_found(folder, tmp_path):
    moved = Path(shutil.copytree(folder / "runs" / "demo" / "bundle", tmp_path / "elsewhere"))
    run("sh", f"real2sim check {moved}", folder)
    splat = moved / "assets" / "background" / "splat.ply"
    content = bytearray(splat.read_bytes())
    content[-1] ^= 1
    splat.write_bytes(content)
    done = subprocess.run([*CHECK, str(moved)], capture_output=True, text=True)
    assert done.returncode == 2 and "splat.ply" in done.stderr
