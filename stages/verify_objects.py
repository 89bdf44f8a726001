# SPDX-License-Identifier: Apache-2.0
"""Gates of a bundle's objects: masks, closed meshes, convex parts, and how they behave at rest, dropped and shaken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from real2sim.sim.bundle import Bundle
from real2sim.sim.gates import Gate
from real2sim.sim.rest import SECONDS, displacement
from real2sim.sim.scene import compile_model

if TYPE_CHECKING:
    from real2sim.stages.verify import Limits

NAMES = ("masks", "watertight", "convex", "settle", "fall", "shake")
ADVICE = (
    "Look at the object in the report. `--set segment.backend=none` keeps the scene in one piece; objects.yaml in the "
    "capture says what an object is made of."
)
GRAVITY = 9.81  # [m/s2]
FALL_SECONDS, SHAKES, SHAKE_SECONDS = 2.0, 2, 0.5
THROUGH_M = 0.02  # below the support is through it [m]


def object_gates(bundle: Bundle, limits: Limits) -> list[Gate]:
    """All gates of this module; each does not apply where the bundle has no movable object."""
    if not bundle.movable:
        return [Gate.not_applicable(name, "the bundle has no movable object") for name in NAMES]
    facts = {a["name"]: json.loads(bundle.path(a["asset"]).read_text(encoding="utf-8")) for a in bundle.movable}
    return [
        masks(facts, limits),
        watertight(facts),
        _least("convex", facts, "convex_iou", limits.convex_iou, "volume of convex parts against the mesh"),
        settle(bundle, limits),
        fall(bundle, limits),
        shake(bundle, limits),
    ]


def masks(facts: dict[str, dict[str, Any]], limits: Limits) -> Gate:
    """Gate `masks`: rendered from unseen cameras, an object covers the pixels that its masks say."""
    judged = {name: row for name, row in facts.items() if row.get("mask_iou") is not None}
    if not judged:
        return Gate.not_applicable("masks", "no held-out frame shows an object")
    return _least("masks", judged, "mask_iou", limits.mask_iou, "masks on held-out frames")


def _least(name: str, facts: dict[str, dict[str, Any]], key: str, threshold: float, what: str) -> Gate:
    values = {label: float(row[key]) for label, row in facts.items()}
    said = ", ".join(f"{label} {value:.3f}" for label, value in values.items())
    evidence = f"{what}, intersection over union: {said}"
    return Gate.measure(name, min(values.values()), threshold, bound="min", evidence=evidence, advice=ADVICE)


def watertight(facts: dict[str, dict[str, Any]]) -> Gate:
    """Gate `watertight`: every object's mesh is closed. The value is the share that is."""
    open_ones = [name for name, row in facts.items() if not row["watertight"]]
    evidence = f"{len(facts) - len(open_ones)} of {len(facts)} meshes are closed" + (
        f"; open: {', '.join(open_ones)}" if open_ones else ""
    )
    share = 1 - len(open_ones) / len(facts)
    return Gate.measure("watertight", share, 1.0, bound="min", evidence=evidence, advice=ADVICE)


def settle(bundle: Bundle, limits: Limits) -> Gate:
    """Gate `settle`: objects stay where the capture saw them. The value is the largest movement [m]."""
    model, data, joints = _start(bundle)
    before = {name: data.qpos[at].copy() for name, at in joints.items()}
    _step(model, data, SECONDS)
    moved = {name: displacement(before[name], data.qpos[at]) for name, at in joints.items()}
    said = ", ".join(f"{name} {m * 1000:.2f} mm {turn:.2f} deg" for name, (m, turn) in moved.items())
    worst = max(m for m, _ in moved.values())
    passed = worst <= limits.settle_m and max(turn for _, turn in moved.values()) <= limits.settle_deg
    evidence = (
        f"in {SECONDS:g} s under gravity (at most {limits.settle_m * 1000:g} mm, {limits.settle_deg:g} deg): {said}"
    )
    return Gate("settle", worst, limits.settle_m, passed, evidence, None if passed else ADVICE, "m")


def fall(bundle: Bundle, limits: Limits) -> Gate:
    """Gate `fall`: lifted and let go, objects land on the support and come to rest. The value is the fastest [m/s]."""
    model, data, joints = _start(bundle)
    for at in joints.values():
        data.qpos[at.start + 2] += limits.fall_m
    _step(model, data, FALL_SECONDS)
    return _at_rest("fall", bundle, data, joints, f"{FALL_SECONDS:g} s after a fall of {limits.fall_m * 100:g} cm")


def shake(bundle: Bundle, limits: Limits) -> Gate:
    """Gate `shake`: the support tilted to and fro, objects stay on it and come to rest. The value is the fastest [m/s]."""
    model, data, joints = _start(bundle)
    for turn in range(2 * SHAKES):
        tilt = np.radians(limits.shake_deg) * (1 if turn % 2 else -1)
        direction = turn // 2 * np.pi / SHAKES
        side = np.sin(tilt) * np.array([np.cos(direction), np.sin(direction)])
        model.opt.gravity[:] = -GRAVITY * np.array([*side, np.cos(tilt)])
        _step(model, data, SHAKE_SECONDS)
    model.opt.gravity[:] = [0, 0, -GRAVITY]
    _step(model, data, SECONDS)
    return _at_rest("shake", bundle, data, joints, f"after {SHAKES} tilts of {limits.shake_deg:g} deg to and fro")


SLOW = 0.05  # [m/s]: a round thing that was pushed may still roll a little


def _at_rest(name: str, bundle: Bundle, data: Any, joints: dict[str, slice], when: str) -> Gate:
    speeds = {label: float(np.linalg.norm(data.qvel[_dofs(data, at)])) for label, at in joints.items()}
    floor = float(bundle.support["height"]) if bundle.support else 0.0
    through = [label for label, at in joints.items() if data.qpos[at.start + 2] < floor - THROUGH_M]
    fastest = max(speeds.values())
    said = ", ".join(f"{label} {speed * 1000:.1f} mm/s" for label, speed in speeds.items())
    evidence = f"{when}: {said}" + (f"; fell off or through the support: {', '.join(through)}" if through else "")
    passed = fastest <= SLOW and not through
    return Gate(name, fastest, SLOW, passed, evidence, None if passed else ADVICE, "m/s")


def _dofs(data: Any, at: slice) -> slice:
    """The velocities [3] that belong to a free joint's place in qpos: all joints of a bundle are free joints."""
    start = at.start // 7 * 6
    return slice(start, start + 3)


def _start(bundle: Bundle) -> tuple[Any, Any, dict[str, slice]]:
    """Model, state at rest, and each object's place in qpos [7]."""
    import mujoco

    model = compile_model(bundle)
    data = mujoco.MjData(model)
    joints = {}
    for asset in bundle.movable:
        address = int(model.joint(asset["name"]).qposadr[0])
        joints[asset["name"]] = slice(address, address + 7)
    return model, data, joints


def _step(model: Any, data: Any, seconds: float) -> None:
    import mujoco

    mujoco.mj_step(model, data, round(seconds / model.opt.timestep))
