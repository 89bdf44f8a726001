# SPDX-License-Identifier: Apache-2.0
"""Many worlds of one model, stepped together."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from real2sim.errors import UsageError
from real2sim.sim.physics import _core
from real2sim.sim.physics.model import Model

STATE = ("time", "qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat", "eq_active")
CONTACTS_PER_BODY = 24  # six neighbours of a packed box, four points each
MAX_CONTACTS = 1024  # contact slots of scenes with very many geom pairs
WRITABLE = {
    "time", "qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat", "eq_active", "gravity", "body_mass",  # noqa: E501
    "body_inertia", "body_ipos", "geom_friction", "dof_damping", "actuator_gainprm", "actuator_biasprm",
}  # fmt: skip


class Batch:
    """State of `nworld` worlds and the step that advances them.

    Every field is an array [nworld, n] without a copy: worlds are adjacent in memory (strides (1, n-stride)), writes are seen
    by the next step. Fields, with MuJoCo's names and meanings:

    inputs: time qpos qvel act ctrl qfrc_applied xfrc_applied mocap_pos mocap_quat eq_active
    parameters of each world: gravity body_mass body_inertia body_ipos geom_friction dof_damping actuator_gainprm actuator_biasprm
    written by step(): qacc xpos xquat sensordata actuator_force qfrc_constraint
    written by forward(): the above and xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat cam_xpos cam_xmat
        subtree_com cdof cdof_dot cinert cvel M qfrc_bias qfrc_passive qfrc_actuator qfrc_smooth actuator_length
        actuator_velocity actuator_moment ten_length ten_velocity ten_J act_dot energy
    """  # noqa: E501

    def __init__(
        self,
        model: Model,
        nworld: int = 1,
        nthread: int = 1,
        dtype: Literal["float64", "float32"] = "float64",
        *,
        timestep: float | None = None,
        iterations: int = 50,
        tolerance: float = 1e-6,
        rigid: bool = False,
        max_contacts: int | None = None,
        max_velocity: float = 1e6,
        isa: str = "best",
    ) -> None:
        """timestep [s]: default the model's. iterations, tolerance [m/s]: of the contact solver. rigid: contacts and limits
        without compliance. max_contacts: contact slots a block of worlds. max_velocity [m/s]: beyond, a world has diverged."""  # noqa: E501
        if nworld < 1 or nthread < 1:
            raise UsageError(f"nworld and nthread are at least 1; got {nworld} and {nthread}.")
        if dtype not in ("float64", "float32"):
            raise UsageError(f"dtype is 'float64' or 'float32'; got {dtype!r}.")
        self.model = model
        self.nworld, self.nthread, self.dtype = nworld, nthread, np.dtype(dtype)
        arrays = model.arrays()
        slots = (
            max_contacts
            if max_contacts is not None
            else default_contacts(arrays.sizes, int(np.sum(model.mj.jnt_type == 0)))
        )
        self._options = {
            "timestep": float(model.mj.opt.timestep if timestep is None else timestep), "tolerance": float(tolerance), "max_velocity": float(max_velocity),  # noqa: E501
            "iterations": float(iterations), "rigid": float(rigid), "max_contacts": float(slots), "nthread": float(nthread),
        }  # fmt: skip
        self._engine = _core.Engine(
            arrays.sizes, arrays.ints, arrays.reals, self._options, nworld, dtype == "float32", isa
        )
        self._fields: dict[str, NDArray[Any]] = {name: self._engine.field(name) for name in self._engine.field_names()}
        self.status: NDArray[np.int32] = self._engine.status()
        for name, value in arrays.params.items():
            self._fields[name][:] = value
        self.reset()

    def __getattr__(self, name: str) -> NDArray[Any]:
        fields = self.__dict__.get("_fields", {})
        if name in fields:
            return fields[name]
        near = difflib.get_close_matches(name, fields, n=1)
        raise AttributeError(f"Batch has no field {name!r}." + (f" Nearest: {near[0]!r}." if near else ""))

    def __setattr__(self, name: str, value: Any) -> None:
        fields = self.__dict__.get("_fields", {})
        if name not in fields:
            object.__setattr__(self, name, value)
            return
        if name not in WRITABLE:
            raise UsageError(f"{name} is an output of the step; write one of {', '.join(sorted(WRITABLE))}.")
        fields[name][:] = self._checked(name, value)

    def _checked(self, name: str, value: ArrayLike) -> NDArray[Any]:
        array = np.asarray(value, dtype=self.dtype)
        n = self._fields[name].shape[1]
        if array.shape not in ((n,), (self.nworld, n), (1, n)):
            raise UsageError(f"{name} has shape [{self.nworld}, {n}] or [{n}]; got {list(array.shape)}.")
        if not np.all(np.isfinite(array)):
            raise UsageError(
                f"{name} must be finite; it has {int(np.sum(~np.isfinite(array)))} NaN or infinite entries."
            )
        return array

    @property
    def timestep(self) -> float:
        """Step length [s]."""
        return float(self._options["timestep"])

    def step(self, n: int = 1) -> None:
        """Advance every world that has not diverged by n steps."""
        if n < 1:
            raise UsageError(f"step takes at least 1 step; got {n}.")
        if not np.all(np.isfinite(self.ctrl)):
            raise UsageError(
                "ctrl must be finite; it has NaN or infinite entries. Write finite controls before step()."
            )
        self._engine.step(n)

    def forward(self) -> None:
        """Compute every quantity of the present state without advancing it. qacc is continuous-time, as MuJoCo's."""
        self._engine.forward()

    def reset(
        self,
        mask: ArrayLike | None = None,
        *,
        qpos: ArrayLike | None = None,
        qvel: ArrayLike | None = None,
        key: str | int | None = None,
    ) -> None:
        """Set worlds (all, or those where mask [nworld] is true) to the model's initial state, a keyframe, or the given one."""  # noqa: E501
        chosen = np.ones(self.nworld, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if chosen.shape != (self.nworld,):
            raise UsageError(f"mask has shape [{self.nworld}]; got {list(chosen.shape)}.")
        mj = self.model.mj
        start: dict[str, Any] = {"qpos": mj.qpos0, "mocap_pos": mj.body_pos[mj.body_mocapid >= 0].ravel(), "mocap_quat": mj.body_quat[mj.body_mocapid >= 0].ravel(),  # noqa: E501
                                 "eq_active": mj.eq_active0.astype(float)}  # fmt: skip
        if key is not None:
            k = self.model.id("key", key) if isinstance(key, str) else key
            start |= {"time": mj.key_time[k], "qpos": mj.key_qpos[k], "qvel": mj.key_qvel[k], "act": mj.key_act[k], "ctrl": mj.key_ctrl[k],  # noqa: E501
                      "mocap_pos": mj.key_mpos[k].ravel(), "mocap_quat": mj.key_mquat[k].ravel()}  # fmt: skip
        for name, value in (("qpos", qpos), ("qvel", qvel)):
            if value is not None:
                array = self._checked(name, value)
                start[name] = array[chosen] if array.ndim == 2 and len(array) == self.nworld else array
        for name in (
            "time",
            "qpos",
            "qvel",
            "act",
            "ctrl",
            "qfrc_applied",
            "xfrc_applied",
            "mocap_pos",
            "mocap_quat",
            "eq_active",
            "qacc",
            "qfrc_constraint",
        ):
            self._fields[name][chosen] = start.get(name, 0.0)
        self.status[chosen] = 0
        for w in np.flatnonzero(chosen):
            self._engine.clear_warm_start(int(w))

    def contacts(self, world: int = 0) -> list[ContactPoint]:
        """Contacts of one world in the last step, gap included (their force is zero)."""
        out = []
        for geom1, geom2, _dim, dist, pos, frame, force, _friction in self._engine.contacts(self._world(world)):
            six = np.array(force)
            out.append(ContactPoint(geom1, geom2, dist, np.array(pos), np.array(frame).reshape(3, 3), six[:3], six[3:]))
        return out

    def net_force(self, geom1: str, geom2: str, world: int = 0) -> NDArray[np.float64]:
        """Force [N], world frame, that geom1 exerts on geom2."""
        a, b = self.model.id("geom", geom1), self.model.id("geom", geom2)
        total = np.zeros(3)
        for c in self.contacts(world):
            if {c.geom1, c.geom2} == {a, b}:
                total += (c.frame.T @ c.force) * (1.0 if c.geom1 == a else -1.0)
        return total

    def jac(
        self, *, body: str | None = None, site: str | None = None, world: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Jacobians [3, nv] of a body's or site's origin: linear and angular velocity per joint velocity."""
        if (body is None) == (site is None):
            raise UsageError("jac takes the name of one body or one site.")
        w, mj = self._world(world), self.model.mj
        self.forward()
        if body is not None:
            index = self.model.id("body", body)
            point = self.xpos[w].reshape(-1, 3)[index]
        else:
            i = self.model.id("site", str(site))
            index, point = int(mj.site_bodyid[i]), self.site_xpos[w].reshape(-1, 3)[i]
        jacp, jacr = np.zeros((3, mj.nv)), np.zeros((3, mj.nv))
        self._engine.jacobian(w, index, np.ascontiguousarray(point, dtype=np.float64), jacp, jacr)
        return jacp, jacr

    def inverse(self, qacc: ArrayLike) -> NDArray[np.float64]:
        """Generalized force [nworld, nv] that gives acceleration qacc [nworld, nv] at the present state, without contacts."""
        acc = np.array(np.broadcast_to(np.asarray(qacc, dtype=np.float64), (self.nworld, self.model.mj.nv)), order="C")
        out = np.zeros_like(acc)
        self._engine.inverse(acc, out)
        return out

    def ray(
        self, origins: ArrayLike, directions: ArrayLike, world: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]:
        """Nearest geom along each ray. origins, directions [N, 3], world frame. Returns distance in lengths of the direction
        (-1: nothing), geom id (-1) and the surface normal [N, 3]."""
        o, d = (np.ascontiguousarray(np.asarray(x, dtype=np.float64).reshape(-1, 3)) for x in (origins, directions))
        if o.shape != d.shape:
            raise UsageError(
                f"origins and directions have the same shape [N, 3]; got {list(o.shape)} and {list(d.shape)}."
            )
        dist, geom, normal = np.zeros(len(o)), np.zeros(len(o), dtype=np.int32), np.zeros((len(o), 3))
        self._engine.cast_rays(self._world(world), o, d, -1, dist, geom, normal)
        return dist, geom, normal

    def solve_ik(
        self,
        targets: dict[str, ArrayLike],
        *,
        iterations: int = 30,
        damping: float = 0.1,
        position_tolerance: float = 1e-4,
        rotation_tolerance: float = 1e-3,
        rotation_weight: float = 0.3,
        posture: ArrayLike | None = None,
        posture_gain: float = 0.0,
        max_step: float = 0.5,
    ) -> NDArray[np.bool_]:
        """Damped-least-squares inverse kinematics from the present qpos, within joint limits; qpos becomes the result.

        targets: up to 4 site names, each with poses [nworld, 7] or [7]: position [m], quaternion wxyz, world frame.
        tolerances [m], [rad]; rotation_weight [m/rad]: 0 leaves orientation free. posture [nq]: pulled towards in the null
        space by posture_gain an iteration. max_step [rad]: of a joint, an iteration. Returns which worlds converged [nworld].
        """
        if not 1 <= len(targets) <= 4:
            raise UsageError(f"solve_ik takes 1 to 4 site targets; got {len(targets)}.")
        sites = np.array([self.model.id("site", name) for name in targets], dtype=np.int32)
        poses = []
        for name, value in targets.items():
            pose = np.asarray(value, dtype=np.float64)
            if pose.shape not in ((7,), (self.nworld, 7)):
                raise UsageError(f"The target of {name} has shape [{self.nworld}, 7] or [7]; got {list(pose.shape)}.")
            poses.append(np.broadcast_to(pose, (self.nworld, 7)))
        goal = np.ascontiguousarray(np.stack(poses, axis=1))
        rest = np.array(self.model.mj.qpos0 if posture is None else posture, dtype=np.float64)
        options = np.array(
            [iterations, damping, position_tolerance, rotation_tolerance, rotation_weight, posture_gain, max_step]
        )
        converged = np.zeros(self.nworld, dtype=np.int32)
        self._engine.solve_ik(sites, goal, rest, options, converged)
        return converged.astype(bool)

    def save_state(self) -> dict[str, NDArray[Any]]:
        """Copy of the state of all worlds. Contact impulses for warm start are not in it."""
        return {name: self._fields[name].copy() for name in STATE} | {"status": self.status.copy()}

    def restore_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Back to a saved state; solver warm starts begin from zero."""
        for name in STATE:
            self._fields[name][:] = state[name]
        self.status[:] = state["status"]
        for w in range(self.nworld):
            self._engine.clear_warm_start(w)

    def start_profile(self) -> None:
        """Measure from now on how long each phase of step() takes (one thread)."""
        self._engine.set_profile(True)

    def phase_seconds(self) -> list[float]:
        """Seconds since start_profile(): load, positions, velocities and forces, collision, rows, solver, store."""
        return list(self._engine.phase_seconds())

    def _world(self, world: int) -> int:
        if not 0 <= world < self.nworld:
            raise UsageError(f"world is 0 to {self.nworld - 1}; got {world}.")
        return world

    def mass_matrix(self) -> NDArray[Any]:
        """Joint-space inertia [nworld, nv, nv] of the last forward()."""
        mj = self.model.mj
        full = np.zeros((self.nworld, mj.nv, mj.nv), dtype=self.dtype)
        arrays = self.model.arrays().ints
        for i in range(mj.nv):
            adr, n = arrays["M_rowadr"][i], arrays["M_rownnz"][i]
            cols = arrays["M_colind"][adr : adr + n]
            full[:, i, cols] = full[:, cols, i] = self.M[:, adr : adr + n]
        return full


@dataclass(frozen=True)
class ContactPoint:
    """One contact of one world. frame rows: normal (from geom1 to geom2), two tangents; force [N] and torque [N m] in it."""

    geom1: int
    geom2: int
    dist: float
    pos: NDArray[np.float64]
    frame: NDArray[np.float64]
    force: NDArray[np.float64]
    torque: NDArray[np.float64]


def default_contacts(sizes: dict[str, int], nfree: int) -> int:
    """Contact slots for a block of worlds: what a scene with nfree floating bodies can use, within bounds."""
    most = max(256, CONTACTS_PER_BODY * nfree)
    return int(np.clip(4 * sizes["nstaticpair"], 16, most)) if not sizes["dynamic_pairs"] else max(MAX_CONTACTS, most)
