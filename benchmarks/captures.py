# SPDX-License-Identifier: Apache-2.0
"""Captures of a folder through ingest and SfM with default options, against the poses that come with them.

Each sub-folder is a capture; its `gt_poses.json`, where there is one, is read here only and never given to a stage.
`python -m benchmarks.captures FOLDER [--only NAME] [--size PX] [--json FILE]`; --size caps the size at which features
are found, for a quicker look.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.first_stages import Ending, run_first_stages, write_rows
from real2sim.sim.cameras import read_cameras
from real2sim.sim.transforms import umeyama
from real2sim.stages.transforms_json import read_poses

TRUTH = "gt_poses.json"


def capture_of(folder: Path) -> Path:
    """What a person would give: the folder without its notes and truth, or its one video."""
    videos = [p for p in folder.iterdir() if p.suffix.lower() in (".mp4", ".mov")]
    return videos[0] if len(videos) == 1 and not (folder / "images").exists() else folder


def against_truth(folder: Path, sfm: Path, ingest: Path) -> dict[str, float] | None:
    """Medians of position [m] and rotation [degrees] errors after the best similarity, and its scale."""
    if not (folder / TRUTH).is_file() or not (sfm / "cameras.json").is_file():
        return None
    rows = json.loads((ingest / "frames.json").read_text())["frames"]
    paths = {row["name"]: row["capture_path"] for row in rows}
    cameras = read_cameras(sfm / "cameras.json")
    true = read_poses(folder / TRUTH).match([paths[c.name] for c in cameras])
    pairs = [(c.T_world_cam, true[paths[c.name]].T_world_cam) for c in cameras if paths[c.name] in true]
    x, y = (np.array([p[k][:3, 3] for p in pairs]) for k in (0, 1))
    fit = umeyama(x, y)
    turns = [t[:3, :3].T @ fit.rotation @ e[:3, :3] for e, t in pairs]
    angles = [np.degrees(np.arccos(np.clip((np.trace(R) - 1) / 2, -1, 1))) for R in turns]
    distances = np.linalg.norm(fit.apply(x) - y, axis=1)
    return {
        "poses": len(pairs),
        "position_median_m": float(np.median(distances)),
        "rotation_median_deg": float(np.median(angles)),
        "rotation_max_deg": float(np.max(angles)),
        "scale": float(fit.scale),
    }


def row(name: str, ending: Ending, truth: Mapping[str, float] | None) -> dict[str, Any]:
    """One line of the table."""
    sfm, ingest = ending.metrics.get("sfm", {}), ending.metrics.get("ingest", {})
    return {
        "capture": name,
        "outcome": ending.outcome,
        "by": ending.by,
        "said": ending.said,
        "images": ingest.get("images"),
        "frames": ingest.get("frames"),
        "registered": sfm.get("registered"),
        "reprojection_px": sfm.get("reprojection_px"),
        "parallax_deg": sfm.get("parallax_deg"),
        "truth": truth,
        "seconds": round(ending.seconds, 1),
        "log": ending.log,
    }


def show(line: Mapping[str, Any]) -> None:
    """Print one row for people."""
    truth = line["truth"]
    errors = (
        f"{truth['position_median_m'] * 100:.1f} cm {truth['rotation_median_deg']:.2f} deg" if truth else "no truth"
    )
    print(
        f"{line['capture']:24} {line['outcome']:8} {','.join(line['by']):24}"
        f" {line['registered'] or 0}/{line['frames'] or 0} of {line['images'] or 0}  {errors}  {line['seconds']:.0f} s",
        flush=True,
    )
    if line["said"]:
        print(f"    {line['said'][:400]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", help="name of a capture; repeatable")
    parser.add_argument("--size", type=int, help="long side at which features are found [px]")
    parser.add_argument("--features", type=int, help="features per image, at most")
    parser.add_argument("--json", type=Path, help="write the rows here")
    asked = parser.parse_args()
    sfm = {"max_image_size": asked.size, "max_features": asked.features}
    options = {"sfm": {k: v for k, v in sfm.items() if v}}
    rows = []
    for folder in sorted(p for p in asked.folder.iterdir() if p.is_dir()):
        if asked.only and folder.name not in asked.only:
            continue
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}-") as work:
            ending = run_first_stages(capture_of(folder), Path(work), options, stages=("ingest", "sfm"))
            rows.append(row(folder.name, ending, against_truth(folder, Path(work) / "sfm", Path(work) / "ingest")))
        show(rows[-1])
        write_rows(asked.json, rows)


if __name__ == "__main__":
    main()
