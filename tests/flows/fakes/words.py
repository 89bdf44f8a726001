# SPDX-License-Identifier: Apache-2.0
"""Counts words, slowly where asked, from a checkpoint where there is one; can break in every way that a stage can."""

import os
import time
from dataclasses import dataclass
from typing import Literal

from fakes import count
from real2sim.errors import BackendError, CaptureError
from real2sim.sim.gates import Gate
from real2sim.stages.contract import Result

VERSION = "1"
TICK_S = 0.05


@dataclass(frozen=True)
class Config:
    at_least: int = 1
    scale: float = 1.0
    ticks: int = 0
    label: str | None = None
    weights: tuple[float, ...] = (1.0,)
    mode: Literal["fine", "capture", "backend", "defect", "memory", "disk", "manifest", "link", "nan"] = "fine"


def run(inputs, config, out, scratch, progress):
    count("words")
    _break(config.mode, out)
    checkpoint = scratch / "tick"
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for tick in range(first, config.ticks):
        time.sleep(TICK_S)
        (scratch / "draft").write_text(str(tick + 1))
        (scratch / "draft").replace(checkpoint)
        progress.update(tick + 1, config.ticks, loss=0.1)
    words = len((inputs["letters"] / "letters.txt").read_text().split())
    (out / "part").mkdir()
    (out / "part" / "words.txt").write_text(f"{words * config.scale}\n")
    gate = Gate.measure("enough", words, config.at_least, bound="min", evidence=f"{words} words", advice="Write more.")
    metrics = {"words": words, "resumed_at": first, "odd": float("nan") if config.mode == "nan" else 0.0}
    return Result(metrics=metrics, gates=[gate])


def _break(mode, out):
    if mode == "capture":
        raise CaptureError("The capture has no verbs. Write one.")
    if mode == "backend":
        raise BackendError("backend gpu: no device is here. Use backend=cpu.")
    if mode == "defect":
        raise ZeroDivisionError("one over nothing")
    if mode == "memory":
        raise MemoryError("asked for 10 GB")
    if mode == "disk":
        raise OSError(28, "No space left on device")
    if mode == "manifest":
        (out / "manifest.json").write_text("{}")
    if mode == "link":
        os.symlink("/etc/hostname", out / "host")
