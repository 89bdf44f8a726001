# SPDX-License-Identifier: Apache-2.0
"""What a run will need: memory of its stages and space on the disk, from the frames, before the time is spent.

The coefficients are upper envelopes of measured peaks; each manifest holds what really happened (`peak_memory_gb`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real2sim.errors import TransientError

BASE = 0.75e9  # bytes of the process with the libraries of all stages
DECODED = 24  # bytes a pixel while one photo is decoded, turned, measured and coded
SIFT = 260  # bytes a pixel of one image at feature size: pyramids that begin at twice the size, in 32-bit floats
FEATURE = 900  # bytes a feature of all images: descriptor, matches, track
MESH = 60  # bytes a pixel of all rendered views
UNDISTORTED = 2.2  # bytes a pixel of a PNG of a photo
CODED = 0.7  # bytes a pixel of a JPEG of a photo
GAUSSIANS = 0.4e9  # bytes of splats, checkpoints, meshes and a bundle, with the store's and RUN's copy
KEPT_FREE = 0.5e9  # bytes that stay free
SHARE = 0.9  # of the memory that is free now


@dataclass(frozen=True)
class Need:
    """memory: bytes at the peak of each stage; disk: bytes that store and RUN grow by."""

    memory: dict[str, float]
    disk: float

    def describe(self) -> str:
        stages = ", ".join(f"{name} {bytes_ / 1e9:.1f}" for name, bytes_ in self.memory.items())
        return f"about to need at most (GB of memory): {stages}; {self.disk / 1e9:.1f} GB of disk"


def predict(frames: Sequence[Mapping[str, Any]], max_image_size: int, max_features: int, threads: int) -> Need:
    """What a run of these frames (rows of frames.json) needs under sfm's options."""
    pixels = [float(f["width"]) * f["height"] for f in frames]
    shrunk = [p * min(1.0, max_image_size / max(f["width"], f["height"])) ** 2 for p, f in zip(pixels, frames)]
    at_once = sum(sorted(shrunk)[-threads:])
    memory = {
        "ingest": BASE + DECODED * max(pixels),
        "sfm": BASE + SIFT * at_once + FEATURE * max_features * len(frames) + DECODED * max(pixels),
        "mesh": BASE + MESH * sum(min(p, 640.0 * 480) for p in pixels),
    }
    return Need(memory, GAUSSIANS + (CODED + UNDISTORTED) * sum(pixels))


def foresee(stage: str, artifact: Path, options: Mapping[str, Mapping[str, Any]], place: Path) -> list[str]:
    """Lines to say when a stage is done: after ingest, what the rest needs.

    Raises TransientError where the disk has too little room, before anything is lost to it.
    """
    if stage != "ingest":
        return []
    from real2sim.stages.sfm_database import threads
    from real2sim.stages.splat_memory import available_bytes

    frames = json.loads((artifact / "frames.json").read_text())["frames"]
    need = predict(frames, options["sfm"]["max_image_size"], options["sfm"]["max_features"], threads())
    free, memory = shutil.disk_usage(place).free, available_bytes("cpu")
    if need.disk + KEPT_FREE > free:
        raise TransientError(
            f"{place}: {free / 1e9:.1f} GB free, and this run will need about {need.disk / 1e9:.1f} GB. Free some space"
            " (`real2sim store gc` removes what no run refers to), or give another folder by --out and --store."
        )
    lines = [f"{need.describe()}; free: {memory / 1e9:.1f} GB of memory, {free / 1e9:.0f} GB of disk"]
    short = [name for name, bytes_ in need.memory.items() if bytes_ > SHARE * memory]
    if short:
        lines.append(
            f"memory may not suffice for {', '.join(short)}: close other programs, or set sfm.max_image_size and"
            " sfm.max_features lower"
        )
    return lines
