# SPDX-License-Identifier: Apache-2.0
"""Objects of known-truth tabletops: found, cut out, completed, put back; against the truth of each.

`python -m benchmarks.objects [--quick] [--seeds 10] [--only WORDS] [--folder DIR] [--json FILE]`. Three difficulties from
true poses at 320x240, adversarial tables likewise, and the whole path (own poses, 640x480) once for each difficulty.
Each scene is a run of the product's own graph with every gate allowed, so that what is bad is measured and not hidden.
With --folder the runs are kept, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.degraded_changes import poses_file
from benchmarks.first_stages import write_rows
from benchmarks.objects_scenes import ADVERSARIAL
from real2sim.datasets.synthetic import SyntheticConfig, make_scene, render_truth, write_capture
from real2sim.datasets.synthetic_scene import GAP, TABLE_SIZE, Scene, separation
from real2sim.datasets.truth import Truth, matched_cameras, read_truth
from real2sim.datasets.truth_objects import Comparison, Found, compare_objects
from real2sim.flows.config import parse_setting
from real2sim.flows.graph import SCENE
from real2sim.flows.observer import Observer
from real2sim.flows.reconstruct import reconstruct
from real2sim.flows.rundir import Request
from real2sim.flows.store import Store
from real2sim.sim.bundle import Bundle, body_pose, read_bundle
from real2sim.sim.cameras import Camera
from real2sim.sim.render.rasterize import render
from real2sim.sim.render.splat import concatenate
from real2sim.sim.transforms import Similarity

BASE = SyntheticConfig(frames=40, width=320, height=240, distortion=())
LEVELS: dict[str, SyntheticConfig] = {
    "easy": replace(BASE, noise=0.5, exposure_drift=0.0),
    "medium": replace(BASE, noise=1.0, exposure_drift=0.03, motion_blur_px=0.5),
    "hard": replace(BASE, noise=2.0, exposure_drift=0.1, motion_blur_px=1.0, vignetting=0.3),
}
FROM_SEGMENT = ("segment", "objects", "collision", "lift", "background", "bundle")
HELD_OUT = 8  # every eighth frame was never trained on
MOVE = 0.10  # [m] that the mug is moved by

# figure of a scene -> (bar, whether it must be at least that, unit, what it is)
BARS: dict[str, tuple[float, bool, str, str]] = {
    "count_error": (0, False, "", "things found or movable that are none, and true ones that are not movable"),
    "mask_iou": (0.9, True, "", "masks against true id maps, worst object"),
    "centre_m": (0.003, False, "m", "centre of volume, worst object"),
    "turn_deg": (2.0, False, "deg", "orientation of the box"),
    "chamfer_m": (0.003, False, "m", "surface, visible side, worst object"),
    "volume_rel": (0.10, False, "", "volume, worst object"),
    "settle_m": (0.002, False, "m", "movement in 2 s under gravity, worst object"),
    "settle_ok": (1, True, "", "gate settle (2 mm and 1 deg)"),
    "emptied_db": (28.0, True, "dB", "emptied background against the true empty scene, full frame, held-out views"),
    "moved_db": (26.0, True, "dB", "scene with the mug moved by 10 cm against the true one, held-out views"),
}


@dataclass(frozen=True)
class Table:
    """One scene of the benchmark. own_poses: the whole path at 640x480, its poses from structure from motion."""

    name: str
    config: SyntheticConfig
    scene: Scene | None = None
    own_poses: bool = False


def tables(seeds: int, quick: bool) -> list[Table]:
    """What is run, the cheapest first."""
    levels = {"easy": LEVELS["easy"]} if quick else LEVELS
    found = [Table(f"{level} {seed}", replace(c, seed=seed)) for seed in range(seeds) for level, c in levels.items()]
    for name, (config, change) in ADVERSARIAL.items():
        if not quick or name == "two touching boxes":
            changed = replace(BASE, **config)
            found.append(Table(name, changed, change(make_scene(changed))))
    if not quick:
        for level, config in LEVELS.items():
            whole = replace(config, width=640, height=480, distortion=(-0.05,), seed=100)
            found.append(Table(f"{level}, whole path", whole, own_poses=True))
    return found


def run_table(table: Table, folder: Path) -> dict[str, Any]:
    """Make the capture, run the graph, measure: the row of one scene."""
    made, run = folder / "made", folder / "run"
    if not made.exists():
        write_capture(table.config, made, scene=table.scene)
        if not table.own_poses:
            poses_file()(made / "capture", table.config)
    settings = () if table.own_poses else (parse_setting("sfm.max_features=4096"),)
    request = Request(made / "capture", run, folder / "store", None, settings, SCENE.gates)
    start = time.process_time()
    summary = reconstruct(request, SCENE, Observer())
    row: dict[str, Any] = {"table": table.name, "outcome": summary.outcome, "said": summary.error}
    row["cpu_seconds"] = round(time.process_time() - start, 1)
    if summary.bundle is None:
        return row
    stages = {s["stage"]: s for s in summary.to_json()["stages"]}
    row["segment_to_bundle_s"] = round(sum(stages[name]["seconds"] for name in FROM_SEGMENT), 1)
    scene, truth = table.scene or make_scene(table.config), read_truth(made)
    masks = artifact(folder / "store", stages["segment"]) / "masks"
    compared = compare_objects(run / "bundle", truth, masks if not table.own_poses else None)
    row |= compared.to_json() | figures(compared, run / "bundle", scene, truth)
    row["pruning"] = artifact_metrics(folder / "store", stages["prune"])
    return row


def artifact(store: Path, stage: Mapping[str, Any]) -> Path:
    found = Store(store).find(stage["stage"], stage["key"], lambda why: None)
    if found is None:
        raise FileNotFoundError(f"{store}: holds no artifact of {stage['stage']}")
    return found.path


def artifact_metrics(store: Path, stage: Mapping[str, Any]) -> dict[str, Any]:
    manifest = json.loads((artifact(store, stage) / "manifest.json").read_text())
    return {k: v for k, v in manifest["metrics"].items() if isinstance(v, int | float)}


def figures(compared: Comparison, bundle: Path, scene: Scene, truth: Truth) -> dict[str, Any]:
    """One number for each bar; the worst object counts."""
    read = read_bundle(bundle)
    gates = {gate.name: gate for gate in read.gates}
    there = [o for o in compared.objects if o.asset is not None]
    boxes = [o.turn for o in there if o.shape == "box" and o.turn is not None]
    missing = len(compared.objects) - len(there)
    settle = gates["settle"]
    return {
        "count_error": missing + len(compared.extra),
        "missing": [o.name for o in compared.objects if o.asset is None],
        "mask_iou": worst(there, "mask_iou", least=True),
        "centre_m": worst(there, "centre"),
        "turn_deg": max(boxes) if boxes else None,
        "chamfer_m": worst(there, "chamfer"),
        "volume_rel": worst(there, "volume"),
        "settle_m": settle.value,
        "settle_ok": int(settle.passed),
        **pictures(read, compared, scene, truth),
    }


def worst(objects: Sequence[Found], name: str, least: bool = False) -> float | None:
    values = [abs(v) for o in objects if (v := getattr(o, name)) is not None]
    return (min(values) if least else max(values)) if values else None


def pictures(read: Bundle, compared: Comparison, scene: Scene, truth: Truth) -> dict[str, float | None]:
    """PSNR of the emptied scene (whole frame; inside the objects' true masks) and of the one with the mug moved."""
    cameras = matched_cameras(read.root / "cameras.json", truth)
    unseen = [cameras[name] for name in sorted(cameras, key=lambda n: cameras[n].name)][::HELD_OUT]
    true = [replace_distortion(camera.transformed(compared.T_true_est)) for camera in unseen]
    names = [e.name for e in scene.objects]
    empty, background = scene.without(*names), read.background_splat()
    whole, holes = [], []
    for camera, at in zip(unseen, true):
        error = (render(background, camera)["rgb"] - render_truth(empty, at).rgb) ** 2
        hidden = np.isin(render_truth(scene, at, supersample=1).ids, [e.id for e in scene.objects])
        whole.append(psnr(error))
        if hidden.any():
            holes.append(psnr(error[hidden]))
    return {"emptied_db": mean(whole), "holes_db": mean(holes), "moved_db": moved(read, compared, scene, unseen, true)}


def moved(
    read: Bundle, compared: Comparison, scene: Scene, unseen: Sequence[Camera], true: Sequence[Camera]
) -> float | None:
    """PSNR with the mug moved; None where there is no mug, or it is not movable in the bundle, or has no room."""
    mug = next((o for o in compared.objects if o.shape == "mug" and o.asset), None)
    step = room(scene, mug.name) if mug else None
    if mug is None or step is None:
        return None
    pose = scene.element(mug.name).T_world_body.copy()
    pose[:3, 3] += step
    there = scene.moved(mug.name, pose)
    shift = compared.T_true_est.rotation.T @ step / compared.T_true_est.scale
    parts, splats = [read.background_splat()], read.object_splats()
    for asset in read.movable:
        T = body_pose(asset)
        if asset["name"] == mug.asset:
            T = Similarity(1.0, T.rotation, T.translation + shift)
        parts.append(splats[asset["name"]].transformed(T))
    splat = concatenate(parts)
    errors = [(render(splat, c)["rgb"] - render_truth(there, at).rgb) ** 2 for c, at in zip(unseen, true)]
    return mean([psnr(e) for e in errors])


def room(scene: Scene, name: str) -> np.ndarray | None:
    """A step [3] of MOVE over the table after which the element still stands clear of the others."""

    def outline(element: Any) -> np.ndarray:
        T = element.T_world_body
        return element.footprint @ T[:2, :2].T + T[:2, 3]

    mine = outline(scene.element(name))
    others = [outline(e) for e in scene.objects if e.name != name]
    for angle in np.arange(0, 2 * np.pi, np.pi / 8):
        step = MOVE * np.array([np.cos(angle), np.sin(angle), 0.0])
        at = mine + step[:2]
        on_table = bool(np.all(np.abs(at) < np.array(TABLE_SIZE[:2]) / 2))
        if on_table and all(separation(at, other) > GAP for other in others):
            return step
    return None


def replace_distortion(camera: Camera) -> Camera:
    """The camera that an undistorted frame was taken with."""
    return Camera(**{**camera.__dict__, "distortion": []})


def psnr(squared: np.ndarray) -> float:
    return float(-10 * np.log10(max(float(np.mean(squared)), 1e-12)))


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def results(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The benchmark's figures: for each difficulty and bar the share of scenes that meet it, and the quartiles."""
    told = []
    for level in LEVELS:
        chosen = [r for r in rows if r["table"].startswith(f"{level} ")]
        for name, (bar, at_least, unit, what) in BARS.items():
            values = [r[name] for r in chosen if r.get(name) is not None]
            met = sum(v >= bar if at_least else v <= bar for v in values)
            if chosen:
                how = f"{what}; {level}, {met} of {len(chosen)} scenes meet it"
                quartiles = [round(float(q), 5) for q in np.percentile(values, (0, 25, 50, 75, 100))] if values else []
                needed = 0.9 * len(chosen) if level == "easy" else 0.5 * len(chosen)
                told.append({
                    "name": f"{level}.{name}", "value": quartiles[2] if values else None, "unit": unit, "bar": bar,
                    "direction": "up" if at_least else "down", "peer": None, "ratio": None,
                    "met": None if level == "hard" else met >= needed, "how": how, "quartiles": quartiles,
                })  # fmt: skip
    return told


def show(row: Mapping[str, Any]) -> None:
    def said(name: str) -> str:
        value = row.get(name)
        bar, at_least, unit, _ = BARS[name]
        if value is None:
            return f"{name} -"
        mark = "" if (value >= bar if at_least else value <= bar) else "*"
        shown = f"{value * 1000:.2f} mm" if unit == "m" else f"{value:.3g} {unit}".strip()
        return f"{name} {shown}{mark}"

    print(f"{row['table']:22} {row['outcome']:8} " + ", ".join(said(name) for name in BARS), flush=True)
    print(f"    not movable: {row.get('missing')}, more: {row.get('extra')}, holes {row.get('holes_db')} dB,"
          f" segment to bundle {row.get('segment_to_bundle_s')} s, in all {row['cpu_seconds']} CPU s")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="easy only, two seeds, one adversarial table")
    parser.add_argument("--seeds", type=int, help="scenes of each difficulty (10; quick: 2)")
    parser.add_argument("--only", help="tables whose name holds these words")
    parser.add_argument("--folder", type=Path, help="keep the runs here, and go on from them")
    parser.add_argument("--json", type=Path, help="write figures and rows here")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="objects-") as scratch:
        place = asked.folder or Path(scratch)
        for table in tables(asked.seeds or (2 if asked.quick else 10), asked.quick):
            if asked.only and asked.only not in table.name:
                continue
            rows.append(run_table(table, place / table.name.replace(" ", "_").replace(",", "")))
            show(rows[-1])
            write_rows(
                asked.json, [*results(rows), {"rows": rows, "config": {k: asdict(c) for k, c in LEVELS.items()}}]
            )
    for line in results(rows):
        print(f"{line['name']:22} {line['value']} {line['unit']} (bar {line['bar']}) {line['how']} {line['quartiles']}")


if __name__ == "__main__":
    main()
