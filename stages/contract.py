# SPDX-License-Identifier: Apache-2.0
"""What every stage is: `run(inputs, config, out, scratch, progress) -> Result`.

inputs    name -> directory of a finished artifact (read only), or the capture's path
config    the stage's frozen dataclass
out       an empty directory that becomes the artifact when run returns
scratch   a directory that survives a crash and is found again by the same key: checkpoints
progress  where the stage reports; never required for the result
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from real2sim.sim.gates import Gate


@dataclass
class Result:
    """What a stage says about its artifact. `metrics` is JSON; `backend` names what ran; `notes` are for people."""

    metrics: dict[str, Any] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    backend: str = ""
    notes: list[str] = field(default_factory=list)


def above_zero(config: Any, *names: str) -> None:
    """Raise ValueError where one of these options is zero or less; one that is None is left to its default."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ValueError(f"{name} must be above 0, received {value}.")


def in_range(config: Any, low: float, high: float, *names: str) -> None:
    """Raise ValueError where one of these options is not in [low, high]; one that is None is left to its default."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            upper = f"in {low:g} to {high:g}" if high < float("inf") else f"{low:g} or more"
            raise ValueError(f"{name} must be {upper}, received {value}.")


class Progress:
    """Where a stage reports how far it is. This one is silent; the command line shows bars."""

    def update(self, done: float, total: float, **fields: Any) -> None:
        """Report `done` of `total`, with short fields such as loss=0.03."""

    def log(self, message: str) -> None:
        """Say one line that a person should see, such as which backend was chosen and why."""
