# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a capture whose truth is known, reconstructed, measured against that truth, and filmed.

OUT is the run folder of the reconstruction, and also holds
  synthetic/   the capture and its truth      film/   spheres dropped into the bundle      truth.json   the comparison
Each part is made again only where what it depends on has changed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from real2sim.errors import UsageError
from real2sim.flows.digest import sha256_json, write_atomic
from real2sim.flows.graph import SCENE, plain
from real2sim.flows.observer import Observer
from real2sim.flows.reconstruct import reconstruct
from real2sim.flows.rundir import Request
from real2sim.flows.sources import source_digests
from real2sim.flows.summary import Summary

if TYPE_CHECKING:
    from real2sim.datasets.synthetic import SyntheticConfig

MADE = "made.json"
SPHERES = 50


@dataclass(frozen=True)
class Bar:
    """A bound on one figure of the summary. `at_least`: the figure must not be below it; else not above."""

    figure: str
    what: str
    bound: float
    unit: str = ""
    at_least: bool = False

    def met(self, value: float | None) -> bool:
        if value is None:
            return False
        return value >= self.bound if self.at_least else value <= self.bound


BARS = (
    Bar("registered_rel", "frames posed", 1.0, at_least=True),
    Bar("position_error_rel", "camera positions, RMSE over their diameter", 0.002),
    Bar("scale_error", "scale, relative error", 0.005),
    Bar("gravity_error_deg", "gravity, angle to the truth", 0.2, "°"),
    Bar("support_error_m", "support surface, 95th percentile", 0.003, "m"),
    Bar("psnr_heldout", "held-out views, PSNR", 27.0, "dB", at_least=True),
)


@dataclass
class Demo:
    """What came of it: the run's summary, the figures against the truth, each bar, and the film's account."""

    summary: Summary
    truth: dict[str, Any] = field(default_factory=dict)
    bars: list[dict[str, Any]] = field(default_factory=list)
    film: dict[str, Any] | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            **self.summary.to_json(),
            **self.truth,
            "seconds": self.seconds,
            "seconds_reconstruct": self.summary.seconds,
            "bars": self.bars,
            "film": self.film,
        }


def demo(config: SyntheticConfig, request: Request, observer: Observer) -> Demo:
    """Make the capture, run `request` on it, measure, film. request.capture must be in RUN/synthetic."""
    start, run = time.perf_counter(), request.run
    what = {"config": asdict(config), **_sources("synthetic")}
    _once(run / "synthetic", what, lambda draft: _capture(config, draft, observer))
    result = Demo(reconstruct(request, SCENE, observer))
    if result.summary.exit_code == 0:
        result.truth = _measure(run, observer)
        result.bars = judge({**result.summary.to_json(), **result.truth})
        what = {"bundle": _bundle_digest(run), "spheres": SPHERES, "width": config.width, "height": config.height}
        _once(run / "film", what, lambda draft: _film(config, run / "bundle", draft, observer))
        result.film = json.loads((run / "film" / "summary.json").read_text())
    result.seconds = round(time.perf_counter() - start, 3)
    text = json.dumps(result.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(run / "summary.json", text + "\n")
    return result


def judge(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each bar with its figure, and whether it is met."""
    frames, registered = figures["frames"], figures["registered"]
    known = {**figures, "registered_rel": registered / frames if frames else None}
    return [{**asdict(bar), "value": known[bar.figure], "met": bar.met(known[bar.figure])} for bar in BARS]


def _once(folder: Path, what: dict[str, Any], make: Callable[[Path], None]) -> None:
    """Make a folder, whole by one rename, unless it was made of the same before.

    Raises UsageError where the folder holds something that was not made here.
    """
    note, digest = folder / MADE, sha256_json(what)
    if note.exists() and json.loads(note.read_text()).get("of") == digest:
        return
    if folder.exists() and any(folder.iterdir()) and not note.exists():
        raise UsageError(f"{folder}: holds files that the demo did not make. Give another OUT, or delete the folder.")
    draft = folder.with_name(f".{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.parent.mkdir(parents=True, exist_ok=True)
    make(draft)
    write_atomic(draft / MADE, json.dumps({"of": digest, **what}, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def _sources(module: str) -> dict[str, Any]:
    return {"sources": source_digests(f"real2sim.datasets.{module}")}


def _capture(config: SyntheticConfig, out: Path, observer: Observer) -> None:
    from real2sim.datasets.synthetic import write_capture

    observer.started("synth")
    write_capture(config, out, observer)


def _bundle_digest(run: Path) -> str:
    return str(json.loads((run / "bundle" / "bundle.json").read_text())["digest"])


def _film(config: SyntheticConfig, bundle: Path, out: Path, observer: Observer) -> None:
    from real2sim.sim.drop import drop_video

    observer.started("film")
    drop_video(bundle, SPHERES, out / "drop.mp4", width=config.width, height=config.height, progress=observer)


def _measure(run: Path, observer: Observer) -> dict[str, Any]:
    """Figures against the truth, measured once for a bundle."""
    note = run / "truth.json"
    digest = sha256_json({"bundle": _bundle_digest(run), "synthetic": _made_of(run / "synthetic"), **_sources("truth")})
    if note.exists() and (known := json.loads(note.read_text()))["of"] == digest:
        return dict(known["figures"])
    from real2sim.datasets.truth import evaluate

    observer.started("truth")
    figures = plain(evaluate(run / "bundle", run / "synthetic" / "truth"))
    write_atomic(note, json.dumps({"of": digest, "figures": figures}, indent=1))
    return dict(figures)


def _made_of(folder: Path) -> str:
    return str(json.loads((folder / MADE).read_text())["of"])
