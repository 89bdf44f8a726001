# SPDX-License-Identifier: Apache-2.0
"""Degraded captures of a scene with known truth: each must end right, or in the named refusal, and never in between.

`python -m benchmarks.degraded [--only WORDS] [--kind F3] [--json FILE] [--docs FILE]` makes the base captures once,
damages a copy for each case, runs ingest, sfm and scale on it, and compares with the truth. --docs writes the table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.degraded_cases import BASES, CASES, Case
from benchmarks.first_stages import Ending, run_first_stages, write_rows
from real2sim.datasets.synthetic import write_capture
from real2sim.datasets.truth import PoseErrors, pose_errors, read_truth
from real2sim.flows.digest import sha256_json
from real2sim.sim.cameras import read_cameras

POSITION = 0.02  # of the diameter of the true centres; a frame that is misplaced gives more than 0.1
ROTATION_DEG = 1.5  # at 400 px a pixel is 0.13 deg; a frame that is turned wrongly gives more than 10
SCALE = 0.03  # relative; the gate asks for an uncertainty of 0.02


def base_capture(name: str, folder: Path) -> Path:
    """The folder with capture/ and truth/ of a base, made once for the same options."""
    config = BASES[name]
    made = folder / f"{name}-{sha256_json(asdict(config))[:10]}"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_capture(config, made)
    return made


def run_case(case: Case, bases: Path, work: Path) -> dict[str, Any]:
    """Damage, run, judge: one row of the table."""
    start = time.process_time()
    base, config = base_capture(case.base, bases), BASES[case.base]
    made = time.process_time() - start
    capture = work / "capture"
    shutil.copytree(base / "capture", capture)
    before = sorted(p.name for p in capture.glob("*.jpg"))
    case.change(capture, config)
    ending = run_first_stages(capture, work / "run", case.options, case.stages)
    errors = truth_errors(base, work / "run", before)
    scale = scale_error(work / "run", errors)
    return {
        "case": case.name,
        "kind": case.kind,
        "wanted": case.wanted,
        "outcome": ending.outcome,
        "by": ending.by,
        "ends_as_wanted": judge(case, ending, errors, scale),
        "position": errors.position_error_rel if errors else None,
        "rotation_deg": errors.rotation_error_deg if errors else None,
        "posed": errors.registered if errors else 0,
        "scale_error": scale,
        "said": ending.said,
        "log": ending.log,
        "gates": {g["name"]: g["value"] for g in ending.gates},
        "attempts": ending.metrics.get("sfm", {}).get("attempts"),
        "seconds": round(time.process_time() - start - made, 1),
    }


def judge(case: Case, ending: Ending, errors: PoseErrors | None, scale: float | None) -> bool:
    """Whether a case ended as it must: a good ending within the bounds, or a refusal by a named gate or stage."""
    told = ending.said + "\n" + "\n".join(ending.log)
    if ending.outcome == "defect" or case.says.casefold() not in told.casefold():
        return False
    if ending.outcome == "refused":
        return case.wanted != "right" and any(name in case.by for name in ending.by)
    if case.wanted == "refused" or errors is None:
        return False
    right = errors.position_error_rel <= POSITION and errors.rotation_error_deg <= ROTATION_DEG
    return right and (scale is None or abs(scale) <= SCALE)


def truth_errors(base: Path, run: Path, before: Sequence[str]) -> PoseErrors | None:
    """Errors of the posed cameras; photos keep their order under every change, so that they are known by it."""
    if not (run / "sfm" / "cameras.json").is_file():
        return None
    truth = read_truth(base)
    rows = {r["name"]: r["capture_path"] for r in json.loads((run / "ingest" / "frames.json").read_text())["frames"]}
    pairs = [(camera, true_name(rows[camera.name], before)) for camera in read_cameras(run / "sfm" / "cameras.json")]
    pairs = [(c, truth.name_of.get(name, name)) for c, name in pairs]
    known = [(c, truth.cameras[name]) for c, name in pairs if name in truth.cameras]
    if len(known) < 3:
        return None
    return pose_errors([c for c, _ in known], [t for _, t in known], list(truth.cameras.values()))


def true_name(path: str, before: Sequence[str]) -> str:
    """The true frame of a photo that may have been renamed, moved into a folder, copied or converted."""
    folder, _, file = path.rpartition("/")
    stem = file.split(".")[0].split("_copy")[0].split()[-1]
    if stem.startswith("img"):
        half = -(-len(before) // 2)
        return before[int(stem[3:]) + (half if folder == "right" else 0)].split(".")[0]
    return path if "#" in path else stem


def scale_error(run: Path, errors: PoseErrors | None) -> float | None:
    """Relative error of the metre, positive where things come out too large, where scale was resolved."""
    file = run / "scale" / "scale.json"
    if errors is None or not file.is_file():
        return None
    metres = json.loads(file.read_text())["metres_per_unit"]
    return metres / errors.T_true_est.scale - 1 if metres else None


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: case, outcome, seconds."""
    lines = ["| kind | case | how it ended | CPU s |", "|---|---|---|---|"]
    for r in rows:
        figures = f"{r['posed']} posed, {100 * r['position']:.2f}%, {r['rotation_deg']:.2f}°" if r["position"] else ""
        end = f"right: {figures}" if r["outcome"] == "good" else f"{r['outcome']} by {', '.join(r['by'])}"
        mark = "" if r["ends_as_wanted"] else " **not as wanted**"
        lines.append(f"| {r['kind']} | {r['case']} | {end}{mark} | {r['seconds']:.0f} |")
    return "\n".join(lines) + "\n"


def chosen(only: str | None, kind: str | None) -> list[Case]:
    cases = [c for c in CASES if (not only or only in c.name) and (not kind or c.kind == kind)]
    if not cases:
        sys.exit(f"No case has {only or kind!r} in its name or kind.")
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="cases whose name holds these words")
    parser.add_argument("--kind", help="F1 to F11")
    parser.add_argument("--bases", type=Path, default=Path(tempfile.gettempdir()) / "real2sim-degraded")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--docs", type=Path, help="write the table here, as markdown")
    asked = parser.parse_args()
    rows = []
    for case in chosen(asked.only, asked.kind):
        with tempfile.TemporaryDirectory(prefix="degraded-") as work:
            rows.append(run_case(case, asked.bases, Path(work)))
        print(table(rows).splitlines()[-1], flush=True)
        write_rows(asked.json, rows)
    wrong = [r["case"] for r in rows if not r["ends_as_wanted"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} end as they must; {sum(r['seconds'] for r in rows):.0f} CPU s")
    if asked.docs:
        asked.docs.parent.mkdir(parents=True, exist_ok=True)
        asked.docs.write_text(HEAD + table(rows))
    sys.exit(1 if wrong else 0)


HEAD = """# Degraded captures

What `python -m benchmarks.degraded --docs docs/degraded.md` found: small captures of a scene whose truth is known, each
damaged as people's captures are, through ingest, sfm and scale with default options. A case ends *right* where camera
positions are within 2% of their diameter, rotations within 1.5° and the metre within 3% of the truth (percentages and
angles in the table are those errors), and otherwise in a refusal that names the gate or stage. Kinds: F1 partial success
reported as success, F2 conventions at a border, F3 a free gauge fixed in silence, F4 hidden resize, F5 unbounded memory,
F6 files that are not whole, F10 capability assumed, F11 masks too tight or too many.

"""


if __name__ == "__main__":
    main()
