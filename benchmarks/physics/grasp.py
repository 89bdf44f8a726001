# SPDX-License-Identifier: Apache-2.0
"""A Panda holds things: shaken, at the critical friction, and the force balance while nothing moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from benchmarks.physics.contacts import G, Row
from benchmarks.physics.engines import Engine, engines

TIP = 0.1034  # [m] from the hand's frame to the middle between the fingertips
CLOSE_S, HOLD_S, SHAKE_S = 0.6, 0.4, 2.0  # [s] fingers close on the carried thing; it hangs; the arm shakes
BEAT_S, SWING, RATES = 0.01, 0.1, (1.0, 3.0)  # [s] between joint targets, how far they swing [rad], and how fast [Hz]
WARM, WARM_S = 1.2, 2.0  # [mu_crit], [s] held before the critical test, so that what the closing strained has relaxed
GRIP = 3.5  # times the hand's gains: fingers press the cube with 7 N in all
LOST_M = 0.04  # [m] moved in the hand: it was dropped
OBJECTS = {
    "cube": ("box", ".02 .02 .02", 0.064),
    "ball": ("sphere", ".025", 0.065),
    "bottle": ("cylinder", ".025 .06", 0.1),
}


def panda_with(thing: str, robots: Path, h: float, mu: float = 1.0) -> Callable[[], Any]:
    """Builds a Panda at home with a free body between its fingertips; the last body is the thing."""
    kind, size, mass = OBJECTS[thing]

    def build() -> Any:
        spec = mujoco.MjSpec.from_file(str(robots / "franka_emika_panda" / "panda.xml"))
        spec.option.timestep = h
        grip = spec.actuators[-1]
        grip.gainprm[0] *= GRIP
        grip.biasprm[1] *= GRIP
        grip.biasprm[2] *= GRIP
        plain = spec.compile()
        data = mujoco.MjData(plain)
        mujoco.mj_resetDataKeyframe(plain, data, 0)
        mujoco.mj_kinematics(plain, data)
        hand = data.body("hand")
        place = hand.xpos + TIP * hand.xmat.reshape(3, 3)[:, 2]
        for key in list(spec.keys):
            spec.delete(key)
        body = spec.worldbody.add_body(name="thing", pos=place)
        body.add_freejoint()
        body.add_geom(
            type=getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}"), size=[*map(float, size.split()), 0, 0][:3], mass=mass,
            condim=4, friction=[mu, 0.01, 0.0001], priority=1,
        )  # fmt: skip
        return spec.compile()

    return build


def at_home(engine: Engine, robots: Path) -> np.ndarray:
    """Sets the arm's home pose with open fingers; returns its joint targets."""
    mj = mujoco.MjModel.from_xml_path(str(robots / "franka_emika_panda" / "panda.xml"))
    home = mj.key_qpos[0].copy()
    engine.qpos[:9] = home
    engine.ctrl[:7], engine.ctrl[7] = home[:7], 255.0
    return home[:7]


def close(engine: Engine, robots: Path, h: float) -> np.ndarray:
    """Fingers close on the thing, which is carried until they hold it."""
    home = at_home(engine, robots)
    weight = engine.mass(-1) * G
    engine.ctrl[7] = 0.0
    engine.wrench(-1)[:3] = 0, 0, weight
    engine.step(round(CLOSE_S / h))
    engine.wrench(-1)[:3] = 0
    engine.step(round(HOLD_S / h))
    return home


def in_hand(engine: Engine) -> np.ndarray:
    hand = engine.body_id("hand")
    return engine.rotation(hand).T @ (engine.position(-1) - engine.position(hand))


def shaken(thing: str, robots: Path, h: float, seed: int) -> Iterator[tuple[str, bool]]:
    """Whether each engine still holds the thing after the arm was shaken."""
    for engine in engines(panda_with(thing, robots, h)):
        rng = np.random.default_rng(seed)
        home = close(engine, robots, h)
        start = in_hand(engine)
        rate, phase = rng.uniform(*RATES, 7), rng.uniform(0, 2 * np.pi, 7)
        for i in range(round(SHAKE_S / BEAT_S)):
            ramp = min(1.0, i * BEAT_S / 0.3)
            engine.ctrl[:7] = home + ramp * SWING * np.sin(2 * np.pi * rate * i * BEAT_S + phase)
            engine.step(round(BEAT_S / h))
        moved = float(np.linalg.norm(in_hand(engine) - start))
        yield engine.name, bool(moved < LOST_M and np.isfinite(moved))


def shaking(quick: bool, robots: Path) -> Iterator[Row]:
    if not (robots / "franka_emika_panda").is_dir():
        return
    trials = 3 if quick else 30
    for h in (0.002, 0.01):
        held: dict[str, int] = {}
        for thing in OBJECTS:
            for seed in range(trials):
                for name, kept in shaken(thing, robots, h, seed):
                    held[name] = held.get(name, 0) + kept
        how = f"cube, ball, bottle, {trials} trials each; each joint swings {SWING} rad at 1 to 3 Hz for {SHAKE_S} s"
        for name, count in held.items():
            yield f"shaken grasp at {h * 1e3:g} ms: held", name, count / (3 * trials), "", 1.0, "min", how


def holding(quick: bool, robots: Path) -> Iterator[Row]:
    if not (robots / "franka_emika_panda").is_dir():
        return
    for engine in engines(panda_with("cube", robots, 0.002), tolerance=1e-9, iterations=100):
        close(engine, robots, 0.002)
        weight, errors = engine.mass(-1) * G, []
        for _ in range(500 if quick else 1000):
            engine.step()
            errors.append(abs(engine.contact_force(-1)[2] - weight) * 1e3)
        how = "Panda holds a 64 g cube still at 2 ms; mean of abs(F_z - m g)"
        yield "hold: force error", engine.name, float(np.mean(errors)), "mN", 0.045, "max", how
        late = float(np.mean(errors[len(errors) // 2 :]))
        yield "hold: force error, last half", engine.name, late, "mN", 0.001, "max", how


def critical(quick: bool, robots: Path) -> Iterator[Row]:
    if not (robots / "franka_emika_panda").is_dir():
        return
    seconds = 2.0 if quick else 5.0
    for factor in (0.90, 0.98, 1.0, 1.002, 1.02, 1.10):
        for engine in engines(panda_with("cube", robots, 0.002)):
            close(engine, robots, 0.002)
            start = in_hand(engine)
            for f, t in ((WARM, WARM_S), (factor, 0.0)):  # an engine that lets go while warming up has fallen
                engine.set_friction(f * engine.mass(-1) * G / max(engine.normal_force(), 1e-9))
                engine.step(max(1, round(t / 0.002)))
            if engine.normal_force() > 0:
                start = in_hand(engine)
            engine.step(round(seconds / 0.002))
            slid = float(np.linalg.norm(in_hand(engine) - start)) * 1e3
            how = f"Panda holds a 64 g cube; then mu = {factor:g} m g / N for {seconds:g} s at 2 ms"
            if factor < 1:
                yield f"hold at {factor:g} mu_crit: fell", engine.name, slid, "mm", 1.0, "min", how
            else:
                yield (
                    f"hold at {factor:g} mu_crit: slid",
                    engine.name,
                    slid,
                    "mm",
                    None if factor == 1 else 0.1,
                    "max",
                    how,
                )


ALL = (shaking, holding, critical)
