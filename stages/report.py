# SPDX-License-Identifier: Apache-2.0
"""report.html: one self-contained page about a run, for as many stages as there are.

What a page says comes from the artifacts' own files where they have it, else from the manifests. Every text that came
from outside (file names, reasons, evidence) is escaped by the template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from real2sim.errors import BackendError
from real2sim.sim.cameras import Camera, read_cameras
from real2sim.sim.gates import Gate
from real2sim.sim.transforms import Similarity
from real2sim.stages import report_pictures as pictures

TITLES = {
    "registered": "Photos found their place",
    "reprojection": "Points land where they were seen",
    "parallax": "Views from different sides",
    "consistent": "A second start finds the same",
    "pairs": "Matched photos agree",
    "scale": "Metres are metres",
    "heldout": "Unseen photos are predicted",
    "level": "Up is up",
    "support": "The support is flat",
    "agreement": "Picture and collider agree",
    "loads": "The simulator takes it",
    "drop": "Spheres come to rest",
    "rerender": "Nothing moved on the way",
    "masks": "Objects end where they should",
    "watertight": "Objects are closed",
    "convex": "Objects collide as they look",
    "settle": "Objects stay where they were",
    "fall": "Dropped objects come to rest",
    "shake": "Objects stay on a tilted support",
}
SHARES = {"registered", "scale", "agreement"}  # gates whose value is a share, shown in percent
DECIDED = {"good": "passed", "refused": "refused", "misused": "stopped", "try again": "stopped", "defect": "stopped"}
THUMBNAILS, THUMBNAIL_WIDTH = 60, 150
LEDGER_ROWS = 300
COMPARED, COMPARED_WIDTH = 3, 400


def write_report(
    path: Path,
    *,
    title: str,
    manifests: Sequence[Mapping[str, Any]],
    artifacts: Mapping[str, Path],
    gates: Sequence[Gate],
    summary: Mapping[str, Any],
) -> None:
    """Write the page.

    manifests: of the stages that ran, in order; artifacts: their folders by stage name; gates: all that were measured;
    summary: what summary.json holds (`outcome`, `error`, `allowed`, …), of which any field may be missing.
    """
    template, decision = _template(), verdict(summary, gates)
    html = template.render(
        title=title,
        verdict=decision,
        loadable="bundle" in artifacts and decision["state"] in ("passed", "waived"),
        facts=facts(summary, artifacts),
        gates=[gate_card(gate, summary.get("allowed") or []) for gate in gates],
        capture=capture_section(artifacts, manifests),
        reconstruction=reconstruction_section(artifacts),
        quality=quality_section(artifacts),
        shape=shape_section(artifacts),
        scale=scale_section(artifacts),
        stages=stage_rows(manifests, summary),
        licences=licences(artifacts),
        digest=_read_json(artifacts, "bundle", "bundle/bundle.json").get("digest"),
    )
    path.write_text(html, encoding="utf-8")


def _template() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise BackendError(
            "Writing report.html needs jinja2. Install it with `pip install 'real2sim[report]'`."
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template("report.html.j2")


def _read_json(artifacts: Mapping[str, Path], stage: str, name: str) -> dict[str, Any]:
    """A JSON file of an artifact; empty where the stage did not run or wrote no such file."""
    if stage not in artifacts or not (artifacts[stage] / name).is_file():
        return {}
    return dict(json.loads((artifacts[stage] / name).read_text(encoding="utf-8")))


def verdict(summary: Mapping[str, Any], gates: Sequence[Gate]) -> dict[str, Any]:
    """The headline: {"state", "headline", "reasons" [{"title", "evidence", "advice"}], "error"}."""
    allowed = set(summary.get("allowed") or [])
    failed = [gate for gate in gates if not gate.passed]
    stopping = [gate for gate in failed if gate.name not in allowed]
    outcome = str(summary.get("outcome") or ("refused" if stopping else "good"))
    state = DECIDED.get(outcome, "stopped")
    headlines = {
        "passed": "Ready to simulate" if not failed else "Ready to simulate, with checks waived",
        "refused": "Refused",
        "stopped": "Stopped before the end",
    }
    shown = stopping if state != "passed" else failed
    return {
        "state": state if not (state == "passed" and failed) else "waived",
        "headline": headlines[state],
        "reasons": [{"title": TITLES.get(g.name, g.name), "evidence": g.evidence, "advice": g.advice} for g in shown],
        "error": None if stopping else summary.get("error"),
        "stopped_at": summary.get("stopped_at"),
    }


def facts(summary: Mapping[str, Any], artifacts: Mapping[str, Path]) -> list[tuple[str, str]]:
    """The few numbers under the headline, as (value, label)."""
    rows: list[tuple[str, str]] = []
    frames = _read_json(artifacts, "ingest", "frames.json").get("frames", [])
    if frames:
        cameras = _cameras(artifacts)
        rows.append(
            (
                f"{len(cameras)} / {len(frames)}" if cameras else str(len(frames)),
                "frames placed" if cameras else "frames",
            )
        )
    psnr = summary.get("psnr_heldout")
    if psnr is not None:
        rows.append((f"{psnr:.1f} dB", "PSNR on unseen photos"))
    scale = _read_json(artifacts, "scale", "scale.json")
    if scale.get("metres_per_unit") is not None:
        rows.append((_percent(scale.get("relative_uncertainty")), f"scale uncertainty, from {scale['from']}"))
    if summary.get("gaussians"):
        rows.append((f"{summary['gaussians']:,}", "Gaussians"))
    if summary.get("seconds_computed"):
        rows.append((duration(summary["seconds_computed"]), "computing time"))
    files = _read_json(artifacts, "bundle", "bundle/bundle.json").get("files", {})
    if files:
        rows.append((f"{sum(f['size'] for f in files.values()) / 1e6:.1f} MB", "bundle"))
    return rows


def gate_card(gate: Gate, allowed: Sequence[str]) -> dict[str, Any]:
    """A gate for the page: its state, its value and threshold as text, and where the value lies on a 0..2x bar."""
    state = "passed" if gate.passed else "waived" if gate.name in allowed else "failed"
    if gate.passed and gate.value is None and gate.evidence.startswith("not applicable"):
        state = "skipped"
    position = None
    if gate.value is not None and gate.threshold:
        position = float(np.clip(gate.value / gate.threshold / 2, 0.01, 1)) * 100
    at_least = gate.value is not None and gate.threshold is not None and gate.passed == (gate.value >= gate.threshold)
    return {
        "name": gate.name,
        "title": TITLES.get(gate.name, gate.name),
        "state": state,
        "value": _value_text(gate, gate.value),
        "threshold": _value_text(gate, gate.threshold),
        "bound": "at least" if at_least else "at most",
        "position": position,
        "evidence": gate.evidence,
        "advice": gate.advice,
    }


def _value_text(gate: Gate, value: float | None) -> str | None:
    if value is None:
        return None
    if gate.threshold and abs(value) < abs(gate.threshold) / 1000:
        value = 0.0  # rounding noise says nothing
    if gate.name in SHARES:
        return _percent(value)
    if gate.unit == "m":
        return f"{value * 1000:.3g} mm"
    return f"{value:.3g} {gate.unit}".strip()


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value * 100:.3g}%"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _cameras(artifacts: Mapping[str, Path]) -> list[Camera]:
    path = artifacts["sfm"] / "cameras.json" if "sfm" in artifacts else None
    return read_cameras(path) if path is not None and path.is_file() else []


def capture_section(artifacts: Mapping[str, Path], manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Contact sheet, sources, and the ledger of what was rejected and why."""
    data = _read_json(artifacts, "ingest", "frames.json")
    if not data:
        return None
    cameras = {camera.name: camera for camera in _cameras(artifacts)}
    shown = pictures.sample(data["frames"], THUMBNAILS)
    sheet = []
    for frame in shown:
        state = "unseen" if cameras and frame["name"] not in cameras else "train"
        if frame["name"] in cameras and cameras[frame["name"]].heldout:
            state = "heldout"
        small = pictures.thumbnail(artifacts["ingest"] / frame["image"], THUMBNAIL_WIDTH)
        sheet.append({"uri": pictures.picture_uri(small, quality=68), "name": frame["capture_path"], "state": state})
    ledger = data.get("ledger", [])
    rejected = [row for row in ledger if row["status"] == "rejected"]
    posed = next((m.get("metrics") or {} for m in manifests if m["stage"] == "sfm"), {}).get("frames") or []
    reasons = {row["name"]: row.get("reason") for row in posed}
    unplaced = [
        {"path": f["capture_path"], "reason": reasons.get(f["name"])}
        for f in data["frames"]
        if cameras and f["name"] not in cameras
    ]
    return {
        "sheet": sheet,
        "frames": len(data["frames"]),
        "given": len(ledger),
        "rejected": rejected[:LEDGER_ROWS],
        "rejected_count": len(rejected),
        "unplaced": unplaced[:LEDGER_ROWS],
        "unplaced_count": len(unplaced),
        "groups": data.get("groups", []),
    }


def reconstruction_section(artifacts: Mapping[str, Path]) -> dict[str, Any] | None:
    """Maps of the cameras, level where the alignment is known."""
    cameras = _cameras(artifacts)
    if not cameras:
        return None
    points, colours = np.zeros((0, 3)), np.zeros((0, 3))
    if (artifacts["sfm"] / "points.npz").is_file():
        with np.load(artifacts["sfm"] / "points.npz") as data:
            points, colours = np.asarray(data["xyz"], np.float64), np.asarray(data["rgb"], np.float64)
    alignment = _read_json(artifacts, "align", "alignment.json")
    if alignment:
        T_world_sfm = Similarity.from_json(alignment["T_world_sfm"])
        cameras, points = [c.transformed(T_world_sfm) for c in cameras], T_world_sfm.apply(points)
    return {
        "maps": pictures.camera_maps(cameras, points, colours, level=bool(alignment)),
        "cameras": len(cameras),
        "heldout": sum(camera.heldout for camera in cameras),
        "points": len(points),
    }


def quality_section(artifacts: Mapping[str, Path]) -> dict[str, Any] | None:
    """Held-out photos against their renderings (best, middle, worst), and how training went."""
    scores = _read_json(artifacts, "splat", "heldout.json")
    if not scores:
        return None
    images = {camera.name: camera.image for camera in _cameras(artifacts)}
    ranked = sorted(scores.get("frames", []), key=lambda row: row["psnr"], reverse=True)
    rows = []
    for row in pictures.sample(ranked, COMPARED):
        rendering = artifacts["splat"] / "renders" / f"{row['name']}.png"
        if not images.get(row["name"]) or not rendering.is_file():
            continue
        photo = pictures.thumbnail(artifacts["sfm"] / images[row["name"]], COMPARED_WIDTH)
        drawn = pictures.thumbnail(rendering, COMPARED_WIDTH)
        pair = [pictures.picture_uri(p) for p in (photo, drawn, pictures.difference(photo, drawn))]
        rows.append({**row, "photo": pair[0], "rendering": pair[1], "difference": pair[2]})
    return {
        "rows": rows,
        "psnr": scores["psnr"],
        "ssim": scores["ssim"],
        "count": len(ranked),
        "curve": _curve(artifacts),
    }


def _curve(artifacts: Mapping[str, Path]) -> str | None:
    path = artifacts["splat"] / "history.json"
    history = json.loads(path.read_text()) if path.is_file() else []
    measured = [(row["step"], row["psnr"]) for row in history if row.get("psnr") is not None]
    if len(measured) < 2:
        return None
    steps, values = zip(*measured)
    return pictures.curve_svg(list(steps), list(values), "dB")


def shape_section(artifacts: Mapping[str, Path]) -> dict[str, Any] | None:
    """Turntable, mesh, collider, where picture and collider differ, spheres after a fall."""
    found: dict[str, Any] = {}
    for stage in ("mesh", "segment", "background", "collision"):
        if stage in artifacts:
            found[stage] = pictures.file_uri(artifacts[stage] / "preview.png", width=960)
    if "bundle" in artifacts:
        for name in ("splat.jpg", "collider.jpg", "difference.jpg", "drop.jpg", "turntable.webp"):
            found[name.partition(".")[0]] = pictures.file_uri(artifacts["bundle"] / "pictures" / name)
    shown = {name: uri for name, uri in found.items() if uri}
    return shown or None


def scale_section(artifacts: Mapping[str, Path]) -> dict[str, Any] | None:
    """Where metres come from, every candidate with its value, and the source of each other degree of freedom."""
    scale = _read_json(artifacts, "scale", "scale.json")
    sources = _read_json(artifacts, "align", "alignment.json").get("sources", {})
    if not scale and not sources:
        return None
    rows = []
    for name, source in sources.items():
        rest = ", ".join(
            f"{key.replace('_', ' ')} {value:.3g}" for key, value in source.items() if isinstance(value, float)
        )
        rows.append({"name": name, "from": str(source.get("from", "?")).replace("_", " "), "rest": rest})
    candidates = [candidate for candidate in scale.get("candidates", []) if isinstance(candidate, dict)]
    return {"scale": scale, "sources": rows, "candidates": [flat(candidate) for candidate in candidates]}


def flat(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The plain values of a mapping as (label, text); nested ones are left out."""
    rows = []
    for key, value in data.items():
        if isinstance(value, bool) or value is None or isinstance(value, str):
            text = {True: "yes", False: "no", None: "–"}.get(value, value) if not isinstance(value, str) else value
        elif isinstance(value, int | float):
            text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
        else:
            continue
        rows.append((key.replace("_", " "), str(text)))
    return rows


def stage_rows(manifests: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The table of stages, with each one's share of the longest time."""
    cached = {row["stage"]: row.get("cached") for row in summary.get("stages") or []}
    longest = max((m.get("seconds") or 0 for m in manifests), default=0) or 1
    return [
        {
            "stage": m["stage"],
            "backend": m.get("backend") or "–",
            "seconds": None if m.get("seconds") is None else duration(m["seconds"]),
            "share": 100 * (m.get("seconds") or 0) / longest,
            "memory": m.get("peak_memory_gb"),
            "cached": cached.get(m["stage"]),
            "metrics": flat(m.get("metrics") or {}),
            "notes": [*(m.get("notes") or []), *(m.get("log") or [])],
            "version": m.get("version"),
            "key": str(m.get("key") or "")[:12],
        }
        for m in manifests
    ]


def licences(artifacts: Mapping[str, Path]) -> list[dict[str, Any]]:
    return list(_read_json(artifacts, "bundle", "bundle/bundle.json").get("licences", []))
