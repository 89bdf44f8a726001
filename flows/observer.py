# SPDX-License-Identifier: Apache-2.0
"""What a run tells whoever watches it. This one is silent; the command line and Prefect each have their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from real2sim.sim.gates import Gate
from real2sim.stages.contract import Progress

TELL_EVERY_S = 1.0


class Observer(Progress):
    """Hears of each stage as it starts, waits, reports (`update` and `log` of Progress) and ends, and of each gate."""

    def started(self, stage: str) -> None:
        """The stage's inputs are ready."""

    def waiting(self, stage: str, owner: str) -> None:
        """Another process computes this very stage; its result will be used."""

    def finished(self, stage: str, manifest: dict[str, Any], cached: bool) -> None:
        """The stage's artifact is in the store; `cached` where it was there already."""

    def failed(self, stage: str, error: BaseException) -> None:
        """The stage raised."""

    def gate(self, gate: Gate, allowed: bool) -> None:
        """A gate was measured by the stage that finished just before."""


class Recorder(Progress):
    """Passes a stage's reports on and keeps what it logs, for the manifest; tells now and then how far it is."""

    def __init__(self, observer: Observer, tell: Callable[[str], None] = lambda _: None) -> None:
        self._observer, self._tell, self._told = observer, tell, 0.0
        self.lines: list[str] = []

    def update(self, done: float, total: float, **fields: Any) -> None:
        self._observer.update(done, total, **fields)
        now = time.monotonic()
        if total > 0 and now - self._told >= TELL_EVERY_S:
            self._told = now
            self._tell(f"{done / total:.0%}" + (f" of {fields['step']}" if "step" in fields else ""))

    def log(self, message: str) -> None:
        self.lines.append(message)
        self._observer.log(message)
