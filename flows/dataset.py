# SPDX-License-Identifier: Apache-2.0
"""Build a dataset: each scene in a process of its own, bad captures set apart with their reasons, the rest goes on.

OUT/scenes/<name>/            the run of one capture: bundle, report, summary, dataset.json (how it ended, and of what)
OUT/quarantine/<name>.json    captures that were refused, with the reason; gone once they pass
OUT/index.sqlite              a row a scene        OUT/summary.json, report.html      the whole
A scene that ended with the same capture, options and program before is not run again, whether it was good or refused.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from real2sim.errors import Real2SimError
from real2sim.flows.dataset_plan import Dataset, Scene
from real2sim.flows.digest import write_atomic
from real2sim.flows.locks import exclusive
from real2sim.flows.summary import EXIT_CODES

NOTE = "dataset.json"
TERM_GRACE_S = 15.0
OUTCOMES = {code: outcome for outcome, code in EXIT_CODES.items()}
BACKOFF_S = 5.0


@dataclass(frozen=True)
class Ended:
    """How a scene ended. outcome: as a run's, or "out of time"; reused: it ended so before, and nothing has changed."""

    name: str
    outcome: str
    reason: str
    key: str
    seconds: float
    attempts: int = 1
    reused: bool = False

    @property
    def good(self) -> bool:
        return self.outcome == "good"

    @property
    def final(self) -> bool:
        """Whether running the same again can give nothing else."""
        return self.outcome in ("good", "refused", "misused")


Perform = Callable[[Scene, Dataset], Ended]
Report = Callable[[Ended, int, int], None]


def build(dataset: Dataset, report: Report = lambda *_: None, perform: Perform | None = None) -> list[Ended]:
    """Bring every scene to its end; a row for each, in the order of the dataset. One build of a dataset at a time."""
    from real2sim.datasets.index import update_index
    from real2sim.flows.dataset_report import write_dataset_report

    dataset.out.mkdir(parents=True, exist_ok=True)
    ended: dict[str, Ended] = {}
    with exclusive(dataset.out / ".lock", remove=True), ThreadPoolExecutor(dataset.workers) as pool:
        futures = [pool.submit(perform or bring_to_its_end, scene, dataset) for scene in dataset.scenes]
        try:
            for future in as_completed(futures):
                row = future.result()
                ended[row.name] = row
                report(row, len(ended), len(futures))
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        rows = [ended[scene.name] for scene in dataset.scenes]
        update_index(dataset.out, rows)
        _write_whole(dataset, rows)
        write_dataset_report(dataset.out)
    return rows


def bring_to_its_end(scene: Scene, dataset: Dataset) -> Ended:
    """A scene's end: the earlier one where nothing has changed, else of a run, tried again where that may help."""
    start = time.monotonic()
    try:
        key = scene.key()
    except Real2SimError as error:
        return _note(scene, dataset, Ended(scene.name, "refused", str(error), "", 0.0))
    before = earlier(scene, key)
    if before is not None:
        return before
    outcome, reason, attempt = "", "", 0
    for attempt in range(1, dataset.retries + 2):
        outcome, reason = run_in_a_process(scene, dataset.timeout_s)
        if outcome in ("good", "refused", "misused"):
            break
        time.sleep(BACKOFF_S * attempt if attempt <= dataset.retries else 0)
    ended = Ended(scene.name, outcome, reason, key, round(time.monotonic() - start, 1), attempt)
    return _note(scene, dataset, ended)


def earlier(scene: Scene, key: str) -> Ended | None:
    """How the scene ended before with the same key, where that is final and its bundle is still there."""
    try:
        known = Ended(**json.loads((scene.request.run / NOTE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    if known.key != key or not known.final or (known.good and not (scene.request.run / "bundle/bundle.json").is_file()):
        return None
    return Ended(**{**asdict(known), "reused": True})


def run_in_a_process(scene: Scene, timeout_s: float) -> tuple[str, str]:
    """Run a scene as `real2sim reconstruct` does, in a process that can be stopped; its outcome and reason."""
    run = scene.request.run
    run.mkdir(parents=True, exist_ok=True)
    with (run / "log.txt").open("w") as log:
        process = subprocess.Popen(command(scene), stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _stop(process)
            return "out of time", f"not done after {timeout_s:.0f} s; what is finished is kept. Raise timeout_s."
        except BaseException:
            _stop(process)
            raise
    return OUTCOMES.get(code, "defect"), _reason(run, code)


def command(scene: Scene) -> list[str]:
    """The command line of one scene."""
    r = scene.request
    words = [sys.executable, "-m", "real2sim.cli", "reconstruct", str(r.capture), "--out", str(r.run)]
    words += ["--store", str(r.store)]
    words += ["--config", str(r.config)] if r.config else []
    words += ["--poses", str(r.poses)] if r.poses else []
    words += [w for s in r.settings for w in ("--set", f"{s.stage}.{s.option}={_word(s.value)}")]
    return words + [w for gate in r.allow for w in ("--allow", gate)]


def whole_exit_code(dataset: Dataset, rows: Iterable[Ended]) -> int:
    """0: every scene is good or refused by name, and not more than max_refused; 1: more; 75: some may pass later."""
    all_rows = list(rows)
    if any(not row.final for row in all_rows):
        return EXIT_CODES["try again"]
    refused = sum(not row.good for row in all_rows)
    return 1 if refused > dataset.max_refused * len(all_rows) or refused == len(all_rows) else 0


def _word(value: Any) -> str:
    return "none" if value is None else json.dumps(value) if isinstance(value, list) else str(value)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a scene's process group; a run that is asked to end keeps its checkpoints."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(TERM_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _reason(run: Path, code: int) -> str:
    try:
        summary = json.loads((run / "summary.json").read_text())
        if summary.get("error") and EXIT_CODES.get(summary.get("outcome")) == code:
            return str(summary["error"])
    except (OSError, ValueError):
        pass
    lines = (run / "log.txt").read_text(errors="replace").strip().splitlines()
    return "" if code == 0 else " ".join(lines[-3:]) or f"ended with exit code {code}"


def _note(scene: Scene, dataset: Dataset, ended: Ended) -> Ended:
    """Write how a scene ended beside its run, and into or out of the quarantine."""
    scene.request.run.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(ended), indent=1, ensure_ascii=False)
    write_atomic(scene.request.run / NOTE, text)
    place = dataset.out / "quarantine" / f"{scene.name}.json"
    if ended.good:
        place.unlink(missing_ok=True)
    else:
        place.parent.mkdir(exist_ok=True)
        told = {"capture": str(scene.request.capture), "report": str(scene.request.run / "report.html")}
        write_atomic(place, json.dumps({**told, **asdict(ended)}, indent=1, ensure_ascii=False))
    return ended


def _write_whole(dataset: Dataset, rows: list[Ended]) -> None:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.outcome] = counts.get(row.outcome, 0) + 1
    data = {"name": dataset.name, "scenes": len(rows), "outcomes": counts, "rows": [asdict(r) for r in rows]}
    write_atomic(dataset.out / "summary.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
