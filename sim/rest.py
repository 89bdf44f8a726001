# SPDX-License-Identifier: Apache-2.0
"""Does an object rest where it is: bodies on a flat support, stepped under gravity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.mjcf import FreeBody, add_free_body

SECONDS = 2.0


def rests(bodies: Sequence[FreeBody], seconds: float = SECONDS) -> list[tuple[float, float]]:
    """How far each body moves [m] and turns [deg] on the plane z = 0; each alone with it and the others."""
    import mujoco

    spec = mujoco.MjSpec()
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[5, 5, 0.1], friction=[0.6, 0.005, 0.0001])
    for body in bodies:
        add_free_body(spec, body)
    model = spec.compile()
    data = mujoco.MjData(model)
    start = data.qpos.copy()
    mujoco.mj_step(model, data, round(seconds / model.opt.timestep))
    return [displacement(a, b) for a, b in zip(start.reshape(-1, 7), data.qpos.reshape(-1, 7))]


def displacement(before: NDArray[Any], after: NDArray[Any]) -> tuple[float, float]:
    """Distance [m] and angle [deg] between two poses [7] (position, quaternion wxyz)."""
    cosine = min(1.0, abs(float(before[3:] @ after[3:])))
    return float(np.linalg.norm(after[:3] - before[:3])), float(np.degrees(2 * np.arccos(cosine)))
