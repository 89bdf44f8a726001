# SPDX-License-Identifier: Apache-2.0
"""`--budget 10min`: what a run leaves out to be done in a given time. Every choice is an option, so it is recorded."""

from __future__ import annotations

import re

from real2sim.errors import UsageError
from real2sim.flows.config import Setting

UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
LEAST_S = 30.0
TRAINING = 0.5  # of the whole; the rest is for the other stages
SMALL_S, TINY_S = 900.0, 240.0


def seconds_of(text: str) -> float:
    """Seconds of "90s", "10min", "1.5h"; raises UsageError."""
    match = re.fullmatch(r"\s*([\d.]+)\s*([a-z]*)\s*", text.lower())
    try:
        seconds = float(match[1]) * UNITS[match[2] or "s"] if match else 0.0
    except (ValueError, KeyError):
        seconds = 0.0
    if not LEAST_S <= seconds < float("inf"):
        raise UsageError(f"--budget {text}: expected a time of {LEAST_S:.0f} s or more, such as 90s, 10min or 1.5h.")
    return seconds


def settings_for(text: str) -> list[Setting]:
    """Options that bring a run to about this time; what the user sets comes over them."""
    seconds, origin = seconds_of(text), f"--budget {text}"
    chosen = {("splat", "budget_s"): TRAINING * seconds}
    if seconds < SMALL_S:
        chosen |= {("sfm", "max_image_size"): 1000, ("sfm", "max_features"): 4096, ("ingest", "video_max_frames"): 120}
    if seconds < TINY_S:
        chosen |= {("sfm", "max_image_size"): 640, ("sfm", "max_features"): 2048, ("ingest", "video_max_frames"): 60}
        chosen |= {("prune", "refit_steps"): 0}
    return [Setting(stage, option, value, origin) for (stage, option), value in chosen.items()]
