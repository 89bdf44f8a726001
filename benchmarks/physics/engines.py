# SPDX-License-Identifier: Apache-2.0
"""One face for the engines that are compared: ours, and MuJoCo in its best variants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import mujoco
import numpy as np

from real2sim.sim.physics import Batch, Model


def rotation(quat: Any) -> Any:
    """Matrix [3, 3] of a quaternion wxyz."""
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, np.asarray(quat, dtype=np.float64))
    return matrix.reshape(3, 3)


class Engine(Protocol):
    name: str

    def step(self, n: int = 1) -> None: ...
    @property
    def qpos(self) -> Any: ...
    @property
    def qvel(self) -> Any: ...
    @property
    def ctrl(self) -> Any: ...
    def normal_force(self) -> float: ...
    def set_friction(self, mu: float) -> None: ...
    def energy(self) -> float: ...
    def mass(self, body: int) -> float: ...
    def body_id(self, name: str) -> int: ...
    def position(self, body: int) -> Any: ...
    def rotation(self, body: int) -> Any: ...
    def wrench(self, body: int) -> Any: ...
    def contact_force(self, body: int) -> Any: ...


class Ours:
    """The core, one world."""

    name = "real2sim"

    def __init__(self, mj: Any, **options: Any) -> None:
        self.batch = Batch(Model.from_mjmodel(mj), **options)

    def step(self, n: int = 1) -> None:
        self.batch.step(n)

    @property
    def qpos(self) -> Any:
        return self.batch.qpos[0]

    @property
    def qvel(self) -> Any:
        return self.batch.qvel[0]

    @property
    def ctrl(self) -> Any:
        return self.batch.ctrl[0]

    def set_friction(self, mu: float) -> None:
        self.batch.geom_friction[:, 0::3] = mu

    def normal_force(self) -> float:
        return float(sum(c.force[0] for c in self.batch.contacts()))

    def mass(self, body: int) -> float:
        return float(self.batch.model.mj.body_mass[body])

    def body_id(self, name: str) -> int:
        return self.batch.model.id("body", name)

    def position(self, body: int) -> Any:
        return self.batch.xpos[0].reshape(-1, 3)[body].copy()

    def rotation(self, body: int) -> Any:
        return rotation(self.batch.xquat[0].reshape(-1, 4)[body])

    def wrench(self, body: int) -> Any:
        return self.batch.xfrc_applied[0].reshape(-1, 6)[body]

    def contact_force(self, body: int) -> Any:
        bodies, total = self.batch.model.mj.geom_bodyid, np.zeros(3)
        body = int(np.arange(self.batch.model.mj.nbody)[body])
        for c in self.batch.contacts():
            sign = float(bodies[c.geom2] == body) - float(bodies[c.geom1] == body)
            total += sign * (c.frame.T @ c.force)
        return total

    def energy(self) -> float:
        self.batch.forward()
        return float(self.batch.energy[0].sum())


@dataclass(frozen=True)
class Variant:
    """MuJoCo's options for a comparison."""

    name: str
    integrator: int
    cone: int
    impratio: float = 1.0


VARIANTS = (
    Variant("mujoco default", 0, 0),
    Variant("mujoco implicitfast elliptic", 3, 1, 100.0),
    Variant("mujoco discrete elliptic", 4, 1, 100.0),
)


class MuJoCo:
    """MuJoCo itself."""

    def __init__(self, mj: Any, variant: Variant) -> None:
        self.name = variant.name
        self.model = mj
        mj.opt.integrator, mj.opt.cone, mj.opt.impratio = variant.integrator, variant.cone, variant.impratio
        self.data = mujoco.MjData(mj)

    def step(self, n: int = 1) -> None:
        mujoco.mj_step(self.model, self.data, n)

    @property
    def qpos(self) -> Any:
        return self.data.qpos

    @property
    def qvel(self) -> Any:
        return self.data.qvel

    @property
    def ctrl(self) -> Any:
        return self.data.ctrl

    def set_friction(self, mu: float) -> None:
        self.model.geom_friction[:, 0] = mu

    def normal_force(self) -> float:
        force, total = np.zeros(6), 0.0
        for i in range(self.data.ncon):
            mujoco.mj_contactForce(self.model, self.data, i, force)
            total += force[0]
        return float(total)

    def mass(self, body: int) -> float:
        return float(self.model.body_mass[body])

    def body_id(self, name: str) -> int:
        return int(self.model.body(name).id)

    def position(self, body: int) -> Any:
        return self.data.xpos[body].copy()

    def rotation(self, body: int) -> Any:
        return rotation(self.data.xquat[body])

    def wrench(self, body: int) -> Any:
        return self.data.xfrc_applied[body]

    def contact_force(self, body: int) -> Any:
        force, total = np.zeros(6), np.zeros(3)
        body = int(np.arange(self.model.nbody)[body])
        for i, c in enumerate(self.data.contact):
            mujoco.mj_contactForce(self.model, self.data, i, force)
            sign = float(self.model.geom_bodyid[c.geom2] == body) - float(self.model.geom_bodyid[c.geom1] == body)
            total += sign * (c.frame.reshape(3, 3).T @ force[:3])
        return total

    def energy(self) -> float:
        mujoco.mj_forward(self.model, self.data)
        mujoco.mj_energyPos(self.model, self.data)
        mujoco.mj_energyVel(self.model, self.data)
        return float(self.data.energy.sum())


def engines(xml_or_spec: Any, **options: Any) -> list[Engine]:
    """Ours and every MuJoCo variant, each on its own compilation of the model."""

    def compiled() -> Any:
        return mujoco.MjModel.from_xml_string(xml_or_spec) if isinstance(xml_or_spec, str) else xml_or_spec()

    return [Ours(compiled(), **options), *(MuJoCo(compiled(), v) for v in VARIANTS)]
