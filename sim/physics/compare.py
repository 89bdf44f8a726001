# SPDX-License-Identifier: Apache-2.0
"""The core's smooth quantities beside MuJoCo's, by MuJoCo's names, at random states without contacts and constraints."""

from __future__ import annotations

from typing import Any

import numpy as np

from real2sim.sim.physics.batch import Batch
from real2sim.sim.physics.model import Model

CONTACTS_AND_ROWS = 16 | 1  # disable flags: contacts, constraints
FIELDS = [
    "xpos",
    "xquat",
    "xmat",
    "xipos",
    "ximat",
    "geom_xpos",
    "geom_xmat",
    "site_xpos",
    "site_xmat",
    "cam_xpos",
    "cam_xmat",
    "subtree_com",
    "cdof",
    "cvel",
    "cdof_dot",
    "ten_length",
    "ten_velocity",
    "actuator_length",
    "actuator_velocity",
    "qfrc_bias",
    "qfrc_passive",
    "actuator_force",
    "qfrc_actuator",
    "qfrc_smooth",
    "act_dot",
    "qacc",
    "energy",
    "sensordata",
]


def random_state(mj: Any, rng: np.random.Generator) -> Any:
    """A MuJoCo state of random positions, velocities, controls and forces."""
    import mujoco

    data = mujoco.MjData(mj)
    mujoco.mj_integratePos(mj, data.qpos, rng.normal(size=mj.nv) * 0.5, 1.0)
    data.qvel[:] = rng.normal(size=mj.nv)
    data.ctrl[:] = rng.normal(size=mj.nu)
    data.act[:] = rng.normal(size=mj.na)
    data.qfrc_applied[:] = rng.normal(size=mj.nv)
    data.xfrc_applied[1:] = rng.normal(size=(mj.nbody - 1, 6))
    return data


def largest_errors(model: Model, nworld: int = 3, seed: int = 0) -> dict[str, float]:
    """Largest error of each field over worlds, relative to max(1, largest entry)."""
    import mujoco

    mj = model.mj
    mj.opt.disableflags |= CONTACTS_AND_ROWS
    rng = np.random.default_rng(seed)
    batch = Batch(model, nworld=nworld)
    datas = [random_state(mj, rng) for _ in range(nworld)]
    for w, data in enumerate(datas):
        for name in ("qpos", "qvel", "ctrl", "act", "qfrc_applied"):
            getattr(batch, name)[w] = getattr(data, name)
        batch.xfrc_applied[w] = data.xfrc_applied.ravel()
        mujoco.mj_forward(mj, data)
        mujoco.mj_energyPos(mj, data)
        mujoco.mj_energyVel(mj, data)
    batch.forward()
    inertia = batch.mass_matrix()
    errors: dict[str, float] = {}
    for w, data in enumerate(datas):
        full = np.zeros((mj.nv, mj.nv))
        mujoco.mj_fullM(mj, data, full)
        pairs = [(f, getattr(batch, f)[w], np.asarray(getattr(data, f)).ravel()) for f in FIELDS]
        pairs += [("M", inertia[w].ravel(), full.ravel()), ("cinert", batch.cinert[w][10:], data.cinert.ravel()[10:])]
        for name, ours, theirs in pairs:
            if theirs.size:
                error = np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max())
                errors[name] = max(errors.get(name, 0.0), float(error))
    return errors
