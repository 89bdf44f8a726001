# SPDX-License-Identifier: Apache-2.0
"""A quick look at a capture before any long work: sharpness, light, texture, overlap, parallax, what does not belong.

It matches a sample of the frames at a small size, in seconds to a minute, and says what to do in plain words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import cv2  # noqa: F401  before pycolmap: the other order makes later PNG writing abort
import numpy as np

from real2sim.stages import ingest
from real2sim.stages.contract import Progress
from real2sim.stages.sfm_attempts import components
from real2sim.stages.sfm_database import (
    FeatureOptions,
    PairStatistics,
    extract,
    match,
    quiet_log,
    read_descriptors,
    read_statistics,
    write_images,
)
from real2sim.stages.sfm_diagnosis import FEW_KEYPOINTS, rotating_pairs
from real2sim.stages.sfm_pairs import choose_pairs
from real2sim.stages.sfm_static import find_still

SAMPLE = 60  # frames that are matched, evenly spread
LOOK = FeatureOptions(max_features=1500, max_image_size=640, max_ratio=0.8, guided=False, min_matches=15)
SOFT = 0.3  # of the median sharpness
DRIFT = 2.0  # brightest over darkest, of the frames' mean grey
LINKED = 30  # matches with another frame that make a frame hang together with the rest
TURNING = 0.5  # of the matched pairs
Level = Literal["good", "look", "bad"]


@dataclass(frozen=True)
class Remark:
    """One thing about a capture: good, worth a look, or bad; what was seen, and what to do."""

    about: str
    level: Level
    seen: str
    advice: str = ""


@dataclass
class Preflight:
    """remarks: worst first; frames, sampled: counts; strip: thumbnails of all images, kept ones framed in green."""

    frames: int
    sampled: int
    remarks: list[Remark] = field(default_factory=list)
    strip: str = ""

    @property
    def hopeful(self) -> bool:
        return all(remark.level != "bad" for remark in self.remarks)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "hopeful": self.hopeful}


def look(capture: Path, config: ingest.Config, out: Path, progress: Progress) -> Preflight:
    """Look at a capture; files of the look go under `out`. Raises CaptureError where ingest does."""
    for name in ("ingest", "ingest.scratch", "look"):
        (out / name).mkdir(parents=True, exist_ok=True)
    result = ingest.run({"capture": capture}, config, out / "ingest", out / "ingest.scratch", progress)
    description = json.loads((out / "ingest" / "frames.json").read_text())
    frames = description["frames"]
    chosen = [frames[i] for i in np.unique(np.linspace(0, len(frames) - 1, min(SAMPLE, len(frames))).astype(int))]
    found = Preflight(len(frames), len(chosen), strip=str(out / "ingest" / "contact.png"))
    found.remarks += [_rejected(result.metrics), _sharp(frames), _light(frames)]
    with quiet_log(out / "look"):
        statistics, database = _match(chosen, description, out, progress)
        still = find_still(database, chosen, description["groups"])
    found.remarks += [
        _texture(statistics),
        _overlap(statistics, chosen),
        _places(statistics, chosen),
        _parallax(statistics),
    ]
    for s in still:
        seen = f"{s.share:.0%} of the picture stays at its pixels in {s.frames} frames while the rest moves"
        advice = "It moves with the camera, or is the room behind a turntable; it will be left out. Or mask it: masks/."
        found.remarks.append(Remark("moves with the camera", "look", seen, advice))
    order = {"bad": 0, "look": 1, "good": 2}
    found.remarks.sort(key=lambda remark: order[remark.level])
    return found


def _match(
    frames: Sequence[dict[str, Any]], description: dict[str, Any], out: Path, progress: Progress
) -> tuple[PairStatistics, Path]:
    database, groups, images = out / "look" / "look.db", description["groups"], out / "ingest" / "images"
    database.unlink(missing_ok=True)
    write_images(database, frames, groups)
    extract(database, images, frames, groups, None, LOOK, progress)
    names = [Path(f["image"]).name for f in frames]
    pairing = choose_pairs(names, description["ordered"], "auto", 30, 6, 5, lambda: read_descriptors(database))
    match(database, pairing.pairs, out / "look", LOOK, progress)
    return read_statistics(database), database


def _rejected(metrics: dict[str, Any]) -> Remark:
    rejected, images = metrics["rejected"], metrics["images"]
    if not rejected:
        return Remark("files", "good", f"all {images} images can be used")
    some = "; ".join(
        f"{Path(p).name}: {why.removeprefix('rejected, because ')}" for p, why in [*metrics["rejections"].items()][:3]
    )
    level: Level = "bad" if rejected > images / 2 else "look"
    return Remark(
        "files", level, f"{rejected} of {images} images cannot be used ({some})", "Take those again, or leave them out."
    )


def _sharp(frames: Sequence[dict[str, Any]]) -> Remark:
    sharpness = np.array([f["sharpness"] for f in frames])
    soft = [f["capture_path"] for f in frames if f["sharpness"] < SOFT * np.median(sharpness)]
    if not soft:
        return Remark("sharpness", "good", "no frame is much softer than the others")
    level: Level = "bad" if len(soft) > 0.4 * len(frames) else "look"
    seen = f"{len(soft)} of {len(frames)} frames are much softer than the others, such as {', '.join(soft[:3])}"
    return Remark(
        "sharpness", level, seen, "Hold still for each photo, or walk slower; more light shortens the exposure."
    )


def _light(frames: Sequence[dict[str, Any]]) -> Remark:
    grey = np.array([f["exposure"] for f in frames])
    ratio = float(grey.max() / max(grey.min(), 1e-3))
    if ratio < DRIFT:
        return Remark("light", "good", f"brightest over darkest frame is {ratio:.1f}")
    seen = f"the brightest frame is {ratio:.1f} times as bright as the darkest"
    return Remark(
        "light", "look", seen, "Lock the exposure (hold a finger on the picture), and keep lamps as they are."
    )


def _texture(statistics: PairStatistics) -> Remark:
    keypoints = float(np.median(list(statistics.keypoints.values())))
    if keypoints >= FEW_KEYPOINTS:
        return Remark("texture", "good", f"a median of {keypoints:.0f} features per frame")
    advice = "Put printed paper, a cloth or other textured things around, and light it well."
    return Remark("texture", "bad", f"a median of {keypoints:.0f} features per frame is little", advice)


def _overlap(statistics: PairStatistics, frames: Sequence[dict[str, Any]]) -> Remark:
    best = dict.fromkeys((Path(f["image"]).name for f in frames), 0)
    for (a, b), inliers in statistics.inliers.items():
        best[a], best[b] = max(best[a], inliers), max(best[b], inliers)
    loose = [f["capture_path"] for f in frames if best[Path(f["image"]).name] < LINKED]
    if not loose:
        return Remark("overlap", "good", f"each frame shares {min(best.values())} or more points with another")
    level: Level = "bad" if len(loose) > 0.2 * len(frames) else "look"
    seen = f"{len(loose)} of {len(frames)} frames share little with any other, such as {', '.join(loose[:3])}"
    return Remark("overlap", level, seen, "Neighbouring photos must overlap by two thirds: take some in between.")


def _places(statistics: PairStatistics, frames: Sequence[dict[str, Any]]) -> Remark:
    places = [p for p in components(statistics, [Path(f["image"]).name for f in frames]) if len(p) > 1]
    if len(places) < 2:
        return Remark("places", "good", "what hangs together is one place")
    sizes = ", ".join(str(len(place)) for place in places)
    advice = (
        "Only the largest group will be used. Take photos that lead from one place to the next, or split the capture."
    )
    return Remark("places", "bad", f"the frames fall into groups of {sizes} that share nothing", advice)


def _parallax(statistics: PairStatistics) -> Remark:
    pairs, turning = len(statistics.inliers), rotating_pairs(statistics)
    if turning <= TURNING * max(1, pairs):
        return Remark("parallax", "good", f"the camera moves between {pairs - turning} of {pairs} matched pairs")
    advice = "Turning on the spot shows no depth. Step sideways between photos: walk around the scene, do not pan."
    return Remark(
        "parallax", "bad", f"in {turning} of {pairs} matched pairs the camera only turned on the spot", advice
    )
