# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run: written whole or not at all, read back only into the run that they belong to."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch

from real2sim.stages.splat_train import Trainer

FILE = "training.pt"


def fingerprint(trainer: Trainer) -> str:
    """What a checkpoint must agree on with the run that reads it: plan, rasteriser, photos and their sizes.

    Not the cap: it follows the free memory, and a run that ran out of memory goes on under a lower one.
    """
    cameras = [(c.name, c.width, c.height, c.T_world_cam.tobytes()) for c in trainer.views.cameras]
    return hashlib.sha256(repr((replace(trainer.plan, cap=0), trainer.backend, cameras)).encode()).hexdigest()


def save(trainer: Trainer, scratch: Path) -> None:
    """Write the run's state to scratch by one rename, so that a crash leaves the previous one."""
    partial = scratch / f"{FILE}.partial"
    with partial.open("wb") as file:
        torch.save({"fingerprint": fingerprint(trainer), "state": trainer.state()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, scratch / FILE)


def resume(trainer: Trainer, scratch: Path) -> str:
    """Restore the run from scratch where a checkpoint of this very run lies there; says in words what happened."""
    path = scratch / FILE
    if not path.exists():
        return "training from the start"
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        belongs = stored["fingerprint"] == fingerprint(trainer)
    except Exception as error:  # a torn file can make the unpickler raise anything
        return f"training from the start: the checkpoint {path} is damaged ({error})"
    if not belongs:
        return f"training from the start: the checkpoint {path} is of another configuration"
    trainer.restore(stored["state"])
    return f"training goes on from step {trainer.step} ({path})"


@contextmanager
def interrupts_deferred() -> Iterator[threading.Event]:
    """Ctrl-C sets the yielded event instead of breaking into a half-done step; only the main thread gets it."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(signum: int, frame: FrameType | None) -> None:
        asked.set()

    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, previous)


class Keeper:
    """Called between steps: writes a checkpoint every `every_s` seconds, and stops the run when Ctrl-C asks for it."""

    def __init__(self, trainer: Trainer, scratch: Path, every_s: float, asked: threading.Event):
        self._trainer, self._scratch, self._every_s, self._asked = trainer, scratch, every_s, asked
        self._saved = time.monotonic()

    def __call__(self) -> None:
        if self._asked.is_set():
            raise KeyboardInterrupt
        if time.monotonic() - self._saved >= self._every_s:
            save(self._trainer, self._scratch)
            self._saved = time.monotonic()
