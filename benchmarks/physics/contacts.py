# SPDX-License-Identifier: Apache-2.0
"""Contacts: friction, rolling, impacts, grasping at the limit, standing, shelves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from benchmarks.physics.engines import Engine, engines

G = 9.81
Row = tuple[str, str, float, str, float | None, str, str]  # name, engine, value, unit, bar, direction, how


def each(
    model: Any,
    measure: Callable[[Engine], float],
    name: str,
    unit: str,
    bar: float | None,
    direction: str,
    how: str,
    **options: Any,
) -> Iterator[Row]:
    for engine in engines(model, **options):
        yield name, engine.name, measure(engine), unit, bar, direction, how


def slide(angle: float) -> Callable[[Engine], tuple[float, float]]:
    def measure(engine: Engine) -> tuple[float, float]:
        engine.step(300)
        a = np.deg2rad(angle)
        engine.qvel[:2] = 3 * np.cos(a), 3 * np.sin(a)
        before = np.array(engine.qvel[:2])
        engine.step(100)
        after = np.array(engine.qvel[:2])
        return float(np.linalg.norm(before - after) / 0.2 / (0.5 * G)), float(
            np.rad2deg(np.arctan2(after[1], after[0])) - angle
        )

    return measure


def friction_cone(quick: bool, robots: Path) -> Iterator[Row]:
    xml = '<mujoco><worldbody><geom type="plane" size="50 50 1" friction=".5"/><body pos="0 0 .0999"><freejoint/><geom type="box" size=".2 .2 .1" friction=".5"/></body></worldbody></mujoco>'  # noqa: E501
    for angle in (0.0, 22.5, 45.0, 67.5):
        how = "box of 32 kg slid at 3 m/s, mu 0.5, 0.2 s at 2 ms"
        for engine in engines(xml):
            deceleration, turn = slide(angle)(engine)
            yield (
                f"friction at {angle:g} deg: error of deceleration / mu g",
                engine.name,
                abs(deceleration - 1),
                "",
                0.01,
                "max",
                how,
            )
            yield f"friction at {angle:g} deg: slide turned", engine.name, abs(turn), "deg", 0.5, "max", how


def rolling(quick: bool, robots: Path) -> Iterator[Row]:
    t = np.deg2rad(20)
    geom = 'condim="6" friction="1 .005 .183"'
    xml = f'<mujoco><option gravity="{G * np.sin(t)} 0 {-G * np.cos(t)}"/><worldbody><geom type="plane" size="50 50 1" {geom}/><body pos="0 0 .5"><freejoint/><geom type="sphere" size=".5" mass="10" {geom}/></body></worldbody></mujoco>'  # noqa: E501
    for engine in engines(xml):
        settled, forces = 0.0, []
        for i in range(1000):
            engine.step()
            forces.append(engine.normal_force())
            if abs(forces[-1] - 10 * G * np.cos(t)) > 0.002:
                settled = (i + 1) * 0.002
        x = float(engine.qpos[0])
        engine.step(500)
        how = "10 kg ball, 20 deg incline, rolling friction 0.183, laid on the plane; 2 ms"
        yield (
            "ball on incline: normal force within 0.002 N of m g cos after",
            engine.name,
            settled,
            "s",
            0.26,
            "max",
            how,
        )
        yield "ball on incline: creep", engine.name, abs(float(engine.qpos[0]) - x) * 1e3, "mm/s", 1e-6, "max", how


def cradle(quick: bool, robots: Path) -> Iterator[Row]:
    for gap, share_bar in ((0.0, 0.9), (0.0005, 0.99)):
        balls = "".join(
            f'<body pos="{i * (0.1 + gap)} 0 0"><joint type="hinge" axis="0 1 0" pos="0 0 1"/><geom size=".05" mass="1" solref="-1e8 0" friction="0" condim="1"/></body>'  # noqa: E501
            for i in range(5)
        )
        xml = f'<mujoco><option timestep="0.001"/><worldbody>{balls}</worldbody></mujoco>'
        for engine in engines(xml):
            rest = engine.energy()
            engine.qpos[0] = np.deg2rad(30)
            start = engine.energy() - rest
            fastest, far, energies = 0.0, 0.0, []
            for i in range(3000 if quick else 20000):
                engine.step()
                if i < 700:  # the first swing and impact
                    fastest, far = max(fastest, abs(float(engine.qvel[0]))), max(far, abs(float(engine.qvel[4])))
                if i % 50 == 0:
                    energies.append(engine.energy() - rest)
            how = f"5 pendulums of 1 m, gap {gap * 1e3:g} mm, direct solref -1e8 0, 1 ms"
            yield (
                f"cradle, gap {gap * 1e3:g} mm: speed of the far ball / impact speed",
                engine.name,
                far / fastest,
                "",
                share_bar,
                "min",
                how,
            )
            yield (
                f"cradle, gap {gap * 1e3:g} mm: largest change of energy",
                engine.name,
                float(np.abs(np.array(energies) / start - 1).max()),
                "",
                0.003,
                "max",
                how,
            )


def pinch_model(mu: float) -> Callable[[], Any]:
    def build() -> Any:
        finger = '<body pos="{x} 0 .5"><joint name="{n}" type="slide" axis="{a} 0 0" damping="5"/><geom type="box" size=".01 .02 .02" friction="{mu}" condim="4" mass=".1"/></body>'  # noqa: E501
        xml = f"""<mujoco><option timestep="0.002"/><worldbody>{finger.format(x=-0.04, a=1, n="l", mu=mu)}{finger.format(x=0.04, a=-1, n="r", mu=mu)}
        <body pos="0 0 .5"><freejoint/><geom type="box" size=".03 .02 .02" mass=".064" friction="{mu}" condim="4"/></body></worldbody>
        <actuator><motor joint="l"/><motor joint="r"/></actuator></mujoco>"""  # noqa: E501
        return mujoco.MjModel.from_xml_string(xml)

    return build


def critical_friction(quick: bool, robots: Path) -> Iterator[Row]:
    force, weight = 3.481, 0.064 * G
    critical = weight / (2 * force)
    for factor in (0.90, 0.98, 1.002, 1.02, 1.10):
        for engine in engines(pinch_model(1.0)):
            engine.ctrl[:] = force
            engine.step(500)
            engine.set_friction(factor * critical)
            start = float(engine.qpos[4])
            engine.step(500 if quick else 2500)
            fell = (start - float(engine.qpos[4])) * 1e3
            how = "64 g cube pinched by two force-controlled fingers, 3.481 N each, " + ("1 s" if quick else "5 s")
            if factor < 1:
                yield f"pinch at {factor:g} mu_crit: fell", engine.name, fell, "mm", 1.0, "min", how
            else:
                yield f"pinch at {factor:g} mu_crit: slid", engine.name, fell, "mm", 0.1, "max", how


def stand(quick: bool, robots: Path) -> Iterator[Row]:
    for name, bar, commanded in (
        ("boston_dynamics_spot", 0.05, True), ("boston_dynamics_spot", 0.2, False), ("unitree_go2", 0.037, True),
    ):  # fmt: skip
        path = robots / name / "scene.xml"
        if not path.is_file():
            continue

        def build(path: Path = path) -> Any:
            mj = mujoco.MjModel.from_xml_path(str(path))
            mj.opt.timestep = 0.01
            return mj

        for engine in engines(build):
            mj = build()
            if commanded:
                engine.qpos[:], engine.ctrl[:] = mj.key_qpos[0], mj.key_ctrl[0]
            engine.step(100)
            start = np.array(engine.qpos[:3])
            engine.step(100)
            moved = float(np.linalg.norm(np.array(engine.qpos[:3]) - start)) * 1e3
            pose = "home" if commanded else "ctrl 0"
            yield (
                f"{name} {pose} at 10 ms: base moved in the second second",
                engine.name,
                moved,
                "mm",
                bar,
                "max",
                "home keyframe" if commanded else "zero pose and controls",
            )


def shelf(quick: bool, robots: Path) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    items = []
    for level in range(3):
        for x in range(9):
            for y in range(3):
                for k in range(3):
                    shape = ("box", "cylinder")[(x + y + level) % 2]
                    size = ".04 .04 .04" if shape == "box" else ".04 .04"
                    items.append(
                        f'<body pos="{0.1 * x + rng.uniform(-0.003, 0.003)} {0.1 * y} {0.5 * level + 0.06 + 0.0801 * k}"><freejoint/><geom type="{shape}" size="{size}" mass=".3"/></body>'  # noqa: E501
                    )
    boards = "".join(f'<geom type="box" size="1 .5 .01" pos=".4 .1 {0.5 * level + 0.0098}"/>' for level in range(3))
    for h in (0.002, 0.005, 0.01):
        xml = f'<mujoco><option timestep="{h}"/><size memory="200M"/><worldbody>{boards}{"".join(items)}</worldbody></mujoco>'
        for engine in engines(xml, rigid=True, tolerance=1e-7):
            start = np.array(engine.qpos).reshape(-1, 7)
            engine.step(int((1 if quick else 4) / h))
            end = np.array(engine.qpos).reshape(-1, 7)
            shift = np.linalg.norm((end - start)[:, :3].mean(axis=0))
            turn = 2 * np.arccos(np.clip(np.abs(np.sum(start[:, 3:] * end[:, 3:], axis=1)), 0, 1)).mean()
            how = f"{len(items)} boxes and cylinders on 3 boards, rigid contacts, {h * 1e3:g} ms, " + (
                "1 s" if quick else "4 s"
            )
            yield (
                f"shelf at {h * 1e3:g} ms: mean error",
                engine.name,
                float(np.hypot(shift, turn)),
                "",
                7.2e-4,
                "max",
                how,
            )
            yield (
                f"shelf at {h * 1e3:g} ms: rms velocity",
                engine.name,
                float(np.sqrt(np.mean(np.array(engine.qvel) ** 2))),
                "",
                1e-5,
                "max",
                how,
            )


ALL = (friction_cone, rolling, cradle, critical_friction, stand, shelf)
