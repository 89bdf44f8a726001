# SPDX-License-Identifier: Apache-2.0
"""Speed: steps per CPU second of the process, same model and controls for all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from benchmarks.physics.contacts import Row
from real2sim.sim.physics import Batch, Model

MUJOCO_WORLDS = 8  # worlds that MuJoCo steps one after the other; its speed does not depend on their number


def go2_servos(robots: Path) -> Any:
    """Go2 with position servos of 35 N m/rad at 4 ms."""
    spec = mujoco.MjSpec.from_file(str(robots / "unitree_go2" / "scene.xml"))
    for a in spec.actuators:
        a.biastype = mujoco.mjtBias.mjBIAS_AFFINE
        a.gainprm[0], a.biasprm[1], a.biasprm[2], a.ctrllimited = 35, -35, -0.5, 0
    spec.option.timestep = 0.004
    return spec.compile()


def targets(mj: Any, nworld: int) -> np.ndarray:
    return mj.key_qpos[0][7:] + 0.1 * np.random.default_rng(0).normal(size=(nworld, mj.nu))


def go2(quick: bool, robots: Path) -> Iterator[Row]:
    if not (robots / "unitree_go2").is_dir():
        return
    steps = 30 if quick else 100
    for cone in (0, 1):
        mj = go2_servos(robots)
        mj.opt.cone = cone
        datas = []
        for ctrl in targets(mj, MUJOCO_WORLDS):
            data = mujoco.MjData(mj)
            mujoco.mj_resetDataKeyframe(mj, data, 0)
            data.ctrl[:] = ctrl
            mujoco.mj_step(mj, data, 50)
            datas.append(data)
        start = time.process_time()
        for data in datas:
            mujoco.mj_step(mj, data, 10 * steps)
        yield (
            "go2, position servos: world steps per CPU s",
            "mujoco elliptic" if cone else "mujoco pyramidal",
            10 * steps * len(datas) / (time.process_time() - start),
            "1/s",
            None,
            "min",
            "one world after the other",
        )
    mj = go2_servos(robots)
    for dtype, iterations, tolerance in (("float64", 50, 1e-6), ("float64", 20, 1e-5), ("float32", 20, 1e-5)):
        batch = Batch(Model.from_mjmodel(mj), nworld=1024, dtype=dtype, iterations=iterations, tolerance=tolerance)  # type: ignore[arg-type]
        batch.reset(key=0)
        batch.ctrl[:] = targets(mj, 1024)
        batch.step(50)
        start = time.process_time()
        batch.step(steps)
        rate = 1024 * steps / (time.process_time() - start)
        yield (
            "go2, position servos: world steps per CPU s",
            f"real2sim {dtype} {iterations} sweeps",
            rate,
            "1/s",
            None,
            "min",
            f"1,024 worlds, true cone, tolerance {tolerance:g} m/s",
        )


def humanoids(quick: bool, robots: Path) -> Iterator[Row]:
    from importlib.util import find_spec

    found = find_spec("gymnasium")
    if found is None or found.origin is None:
        return
    path = Path(found.origin).parent / "envs" / "mujoco" / "assets" / "humanoid.xml"
    for n in (1, 10) if quick else (1, 10, 50):
        spec = mujoco.MjSpec.from_file(str(path))
        for i in range(1, n):
            other = mujoco.MjSpec.from_file(str(path))
            for geom in list(other.worldbody.geoms):
                other.delete(geom)
            spec.attach(other, prefix=f"h{i}_", frame=spec.worldbody.add_frame(pos=[1.5 * (i % 8), 1.5 * (i // 8), 0]))
        spec.option.timestep, spec.option.integrator, spec.memory = 0.005, 3, 1 << 30
        mj = spec.compile()
        steps = 200 if n == 1 else 60
        mj.opt.cone = 1
        data = mujoco.MjData(mj)
        mujoco.mj_step(mj, data, 100)
        start = time.process_time()
        mujoco.mj_step(mj, data, steps)
        yield (
            f"{n} humanoids in one scene: steps per CPU s",
            "mujoco elliptic",
            steps / (time.process_time() - start),
            "1/s",
            None,
            "min",
            "5 ms, no control, from 0.5 s on",
        )
        batch = Batch(Model.from_mjmodel(mj))
        batch.step(100)
        start = time.process_time()
        batch.step(steps)
        yield (
            f"{n} humanoids in one scene: steps per CPU s",
            "real2sim",
            steps / (time.process_time() - start),
            "1/s",
            None,
            "min",
            "5 ms, no control, from 0.5 s on",
        )


ALL = (go2, humanoids)
