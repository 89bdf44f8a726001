# SPDX-License-Identifier: Apache-2.0
"""Random kills over whole runs of a small capture: nothing lost, nothing computed twice, nothing left behind.

`python -m benchmarks.crash [--kills 200] [--processes 1] [--json FILE]` makes an 8-frame capture of 160x120, runs it
once undisturbed, then again and again in a new store with SIGKILL at random moments, until the run ends by itself; and
so on until the kills are spent. Asserted for each such life: the bundle's digest equals the undisturbed one's; each
stage was finished once, whatever was killed; after `gc` nothing is left that belongs to no run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.degraded_changes import poses_file
from benchmarks.first_stages import write_rows
from real2sim.datasets.synthetic import SyntheticConfig, write_capture
from real2sim.flows.graph import SCENE
from real2sim.flows.store import Store
from real2sim.flows.store_care import collect, orphans

CAPTURE = SyntheticConfig(frames=8, width=160, height=120, path="arc", supersample=2)
SETTINGS = ("splat.steps=80", "splat.checkpoint_s=0.5", "prune.refit_steps=0", "collision.objects=hulls",
            "mesh.voxel_m=0.02", "mesh.render_long_side=160")  # fmt: skip
FINISHED = re.compile(r"✓ (\w+)\s+([\d.]+) s")


@dataclass
class Life:
    """One store from nothing to a bundle. finished: how often each stage was computed to its end; stages: digests."""

    kills: int = 0
    killed_at: list[float] = field(default_factory=list)
    finished: dict[str, int] = field(default_factory=dict)
    digest: str | None = None
    stages: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def wrong(self, undisturbed: Life) -> list[str]:
        faults = [f"{stage} computed {n} times" for stage, n in self.finished.items() if n > 1]
        if self.digest != undisturbed.digest:
            first = next((s for s, d in self.stages.items() if undisturbed.stages.get(s) != d), "none")
            faults.append(f"the bundle's digest differs, first at the stage {first}")
        return faults + [f"left behind: {path}" for path in self.left]


def command(capture: Path, run: Path) -> list[str]:
    allow = [word for gate in SCENE.gates for word in ("--allow", gate)]
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    return [sys.executable, "-m", "real2sim.cli", "reconstruct", str(capture), "--out", str(run), *options, *allow]


def start(capture: Path, run: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(command(capture, run), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def read(process: subprocess.Popen[str], life: Life) -> str:
    said, _ = process.communicate()
    for stage, _seconds in FINISHED.findall(said):
        life.finished[stage] = life.finished.get(stage, 0) + 1
    return said


def live(capture: Path, folder: Path, kills: int, whole: float, rng: np.random.Generator, processes: int) -> Life:
    """Run until it ends by itself, killed up to `kills` times before at moments spread over a whole run's length."""
    life, begun, run = Life(), time.monotonic(), folder / "run"
    while True:
        started = [start(capture, run) for _ in range(processes)]
        if life.kills < kills:
            moment = float(rng.uniform(0.3, whole))
            try:
                started[0].wait(moment)
            except subprocess.TimeoutExpired:
                started[0].send_signal(signal.SIGKILL)
                life.kills += 1
                life.killed_at.append(round(moment, 2))
        said = [read(process, life) for process in started]
        if any(process.returncode not in (0, -signal.SIGKILL) for process in started):
            sys.exit(f"A run ended with {[p.returncode for p in started]}:\n" + "\n".join(said))
        if started[0].returncode == 0:
            break
    store = Store(folder / ".real2sim")
    collect(store, min_age_s=0)
    life.left = [str(p) for p in (*orphans(store), *run.glob(".*"), *store.root.glob("locks/*/*"))]
    life.digest = str(json.loads((run / "bundle" / "bundle.json").read_text())["digest"])
    summary = json.loads((run / "summary.json").read_text())
    life.stages = {row["stage"]: row["digest"] for row in summary["stages"]}
    life.seconds = round(time.monotonic() - begun, 1)
    return life


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--most-in-a-life", type=int, default=10, help="kills before a run is let through")
    parser.add_argument("--processes", type=int, default=1, help="that work on the same run at once; one is killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write one row a life here")
    asked = parser.parse_args()
    rng, rows = np.random.default_rng(asked.seed), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="crash-") as name:
        work = Path(name)
        write_capture(CAPTURE, work / "made")
        capture = work / "made" / "capture"
        poses_file()(capture, CAPTURE)
        undisturbed = live(capture, work / "undisturbed", 0, 0.0, rng, 1)
        print(f"undisturbed: {undisturbed.seconds:.1f} s, {undisturbed.digest}", flush=True)
        kills = bad = 0
        whole = undisturbed.seconds
        while kills < asked.kills:
            folder, most = work / "life", min(asked.most_in_a_life, asked.kills - kills)
            life = live(capture, folder, most, whole, rng, asked.processes)
            if not life.kills:
                whole = min(whole, life.seconds)  # the first run may have been slow
            faults = life.wrong(undisturbed)
            kills, bad = kills + life.kills, bad + bool(faults)
            rows.append({**asdict(life), "faults": faults})
            print(
                f"{kills} kills; this life {life.kills}, {life.seconds:.0f} s; {faults or 'as undisturbed'}", flush=True
            )
            write_rows(asked.json, rows)
            shutil.rmtree(folder)
    print(f"{kills} kills in {len(rows)} lives, {bad} with a fault")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
