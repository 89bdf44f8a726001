# SPDX-License-Identifier: Apache-2.0
"""Which rasteriser trains here, and why."""

from __future__ import annotations

from typing import Literal

from real2sim.errors import BackendError
from real2sim.sim.render.rasterize import available_backend
from real2sim.stages.splat_train import Backend


def choose_backend(wanted: Literal["auto", "cpu", "gsplat"]) -> tuple[Backend, str]:
    """The rasteriser that was asked for, or the fastest that runs here, and why; BackendError when it cannot run."""
    if wanted == "cpu":
        return "cpu", "asked for"
    backend, why = available_backend()
    if wanted == "gsplat" and backend != "gsplat":
        raise BackendError(why)
    return backend, why
