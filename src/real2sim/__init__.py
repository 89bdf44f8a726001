# SPDX-License-Identifier: Apache-2.0
"""Photos or a video of a real place become a simulation-ready bundle, and a simulator that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from real2sim.sim.scene import Scene


def load(bundle: str, **options: Any) -> Scene:
    """Load a bundle directory into the simulator; see `real2sim.sim.scene.load`."""
    from real2sim.sim.scene import load as load_scene

    return load_scene(bundle, **options)
