# SPDX-License-Identifier: Apache-2.0
"""Speed: steps per CPU second of the process, same model and controls for all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from benchmarks.physics.contacts import Row
from benchmarks.physics.engines import VARIANTS, MuJoCo, Ours
from benchmarks.physics.grasp import close, panda_with
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


PHASES = ("load", "positions", "velocities, forces", "collision", "rows", "solver", "integrate, store")


def best_rate(work: Callable[[int], object], steps: int, nworld: int, times: int) -> float:
    """World steps per CPU second of the process, best of several: work(steps) advances nworld worlds."""
    rates = []
    for _ in range(times):
        start = time.process_time()
        work(steps)
        rates.append(nworld * steps / (time.process_time() - start))
    return max(rates)


def mujoco_worlds(mj: Any, datas: list[Any]) -> Callable[[int], None]:
    """Steps MuJoCo's worlds one after the other."""

    def work(steps: int) -> None:
        for data in datas:
            mujoco.mj_step(mj, data, steps)

    return work


def go2_batch(robots: Path, nworld: int, **options: Any) -> Batch:
    """Go2 worlds under random joint targets, 0.2 s after the home pose."""
    mj = go2_servos(robots)
    batch = Batch(Model.from_mjmodel(mj), nworld=nworld, **options)
    batch.reset(key=0)
    batch.ctrl[:] = targets(mj, nworld)
    batch.step(50)
    return batch


def go2(quick: bool, robots: Path) -> Iterator[Row]:
    if not (robots / "unitree_go2").is_dir():
        return
    steps, times, name = (
        (20, 3, "go2, position servos: world steps per CPU s")
        if quick
        else (100, 5, "go2, position servos: world steps per CPU s")
    )
    peer = {}
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
        peer[cone] = best_rate(mujoco_worlds(mj, datas), 10 * steps, len(datas), times)
        yield (
            name,
            "mujoco elliptic" if cone else "mujoco pyramidal",
            peer[cone],
            "1/s",
            None,
            "min",
            "one world after the other",
        )
    for dtype, iterations, tolerance in (("float64", 50, 1e-6), ("float64", 20, 1e-5), ("float32", 20, 1e-5)):
        batch = go2_batch(robots, 1024, dtype=dtype, iterations=iterations, tolerance=tolerance)
        rate = best_rate(batch.step, steps, 1024, times)
        how = f"1,024 worlds, true cone, tolerance {tolerance:g} m/s, at most {iterations} sweeps"
        yield name, f"real2sim {dtype} {iterations} sweeps", rate, "1/s", None, "min", how
        if (dtype, iterations) == ("float64", 20):
            yield "go2: ratio to mujoco elliptic", "real2sim", rate / peer[1], "", 3.0, "min", how
            yield "go2: ratio to mujoco pyramidal", "real2sim", rate / peer[0], "", 1.0, "min", how


def panda_hold(quick: bool, robots: Path) -> Iterator[Row]:
    if not (robots / "franka_emika_panda").is_dir():
        return
    name, steps, nworld = "panda holds a cube: world steps per CPU s", 30 if quick else 200, 256
    build = panda_with("cube", robots, 0.002)
    peers = []
    for variant in VARIANTS:
        engine = MuJoCo(build(), variant)
        close(engine, robots, 0.002)
        peers.append(best_rate(engine.step, 50 * steps, 1, 3))
        yield name, variant.name, peers[-1], "1/s", None, "min", "one world"
    how = f"{nworld} worlds, 32 contacts each, tolerance 1e-05 m/s, at most 20 sweeps"
    one = Ours(build())
    close(one, robots, 0.002)
    batch = Batch(Model.from_mjmodel(build()), nworld=nworld, iterations=20, tolerance=1e-5)
    batch.qpos[:], batch.ctrl[:] = one.qpos, one.ctrl
    batch.step(20)
    rate = best_rate(batch.step, steps, nworld, 3)
    yield name, "real2sim", rate, "1/s", None, "min", how
    yield (
        "panda holds a cube: ratio to the better mujoco",
        "real2sim",
        rate / max(peers),
        "",
        2.0,
        "min",
        how,
    )


def humanoid_scene(n: int) -> Any:
    """n of Gymnasium's humanoids on one floor; None where gymnasium is not installed."""
    from importlib.util import find_spec

    found = find_spec("gymnasium")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "envs" / "mujoco" / "assets" / "humanoid.xml"
    spec = mujoco.MjSpec.from_file(str(path))
    for i in range(1, n):
        other = mujoco.MjSpec.from_file(str(path))
        for geom in list(other.worldbody.geoms):
            other.delete(geom)
        spec.attach(other, prefix=f"h{i}_", frame=spec.worldbody.add_frame(pos=[1.5 * (i % 8), 1.5 * (i // 8), 0]))
    spec.option.timestep, spec.option.integrator, spec.memory = 0.005, 3, 1 << 30
    return spec.compile()


def humanoids(quick: bool, robots: Path) -> Iterator[Row]:
    how = "5 ms, no control, from 0.5 s on"
    for n, bar in ((1, 1.0), (10, 1.5), (50, 2.0)):
        mj = humanoid_scene(n)
        if mj is None:
            return
        steps, name, peers = (200 if n == 1 else 40), f"{n} humanoids in one scene: steps per CPU s", []
        for cone in (0, 1):
            mj.opt.cone = cone
            data = mujoco.MjData(mj)
            mujoco.mj_step(mj, data, 100)
            peers.append(best_rate(mujoco_worlds(mj, [data]), steps, 1, 1))
            yield name, "mujoco elliptic" if cone else "mujoco pyramidal", peers[-1], "1/s", None, "min", how
        batch = Batch(Model.from_mjmodel(mj))
        batch.step(100)
        rate = best_rate(batch.step, steps, 1, 1)
        yield name, "real2sim", rate, "1/s", None, "min", how
        yield (
            f"{n} humanoids in one scene: ratio to the better mujoco",
            "real2sim",
            rate / max(peers),
            "",
            bar,
            "min",
            how,
        )


def threads(quick: bool, robots: Path) -> Iterator[Row]:
    if not (robots / "unitree_go2").is_dir():
        return
    most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    seconds: dict[int, float] = {}
    for nthread in sorted({1, 2, most}):
        batch = go2_batch(robots, 1024, nthread=nthread, iterations=20, tolerance=1e-5)
        taken = []
        for _ in range(5):
            start = time.perf_counter()
            batch.step(10 if quick else 40)
            taken.append(time.perf_counter() - start)
        seconds[nthread] = min(taken)
        bar = 1.6 if nthread == 2 else None
        how = f"1,024 go2 worlds, wall time, best of 5, on {most} processors"
        if nthread > 1:
            yield (
                f"go2, {nthread} threads: speed / one thread's",
                "real2sim",
                seconds[1] / seconds[nthread],
                "",
                bar,
                "min",
                how,
            )


def ik(quick: bool, robots: Path) -> Iterator[Row]:
    if not (robots / "franka_emika_panda").is_dir():
        return
    spec = mujoco.MjSpec.from_file(str(robots / "franka_emika_panda" / "panda_nohand.xml"))
    for body in spec.bodies:
        if body.name == "attachment":
            body.add_site(name="tip")
    if not any(site.name in ("tip", "attachment_site") for site in spec.sites):
        return
    model, nworld, rng = Model.from_mjmodel(spec.compile()), 2048, np.random.default_rng(0)
    site = next(s.name for s in spec.sites if s.name in ("tip", "attachment_site"))
    low, high = model.mj.jnt_range[:7].T
    truth = Batch(model, nworld=nworld)
    truth.qpos = rng.uniform(low + 0.1 * (high - low), high - 0.1 * (high - low), (nworld, 7))
    truth.forward()
    index = model.id("site", site)
    quat = np.zeros((nworld, 4))
    for w in range(nworld):
        mujoco.mju_mat2Quat(quat[w], truth.site_xmat[w].reshape(-1, 9)[index])
    goal = np.concatenate([truth.site_xpos.reshape(nworld, -1, 3)[:, index], quat], axis=1)
    batch = Batch(model, nworld=nworld)
    guess = np.clip(truth.qpos + rng.normal(scale=0.3, size=(nworld, 7)), low, high)
    done, rate = 0.0, 0.0
    for _ in range(5):
        batch.qpos = guess
        start = time.process_time()
        converged = batch.solve_ik({site: goal})
        rate = max(rate, nworld / (time.process_time() - start))
        done = float(converged.mean())
    how = "Panda, random reachable poses, guess 0.3 rad (one sigma, each joint) away; 0.1 mm and 1 mrad"
    yield "inverse kinematics: solves per CPU s", "real2sim", rate, "1/s", 120e3, "min", how
    yield "inverse kinematics: converged", "real2sim", done, "", 0.99, "min", how


MEMORY = """
import sys
from pathlib import Path
from benchmarks.physics.speed import go2_batch
batch = go2_batch(Path(sys.argv[1]), 4096)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 2**20)
"""


def memory(quick: bool, robots: Path) -> Iterator[Row]:
    if not (robots / "unitree_go2").is_dir() or not Path("/proc/self/status").exists():
        return
    told = subprocess.run([sys.executable, "-c", MEMORY, str(robots)], capture_output=True, text=True, check=True)
    yield (
        "4,096 go2 worlds: memory",
        "real2sim",
        float(told.stdout),
        "GiB",
        2.0,
        "max",
        "peak resident set of a process that steps them, Python and MuJoCo in it",
    )


def endurance(quick: bool, robots: Path) -> Iterator[Row]:
    """Go2 under random joint targets, half a radian about home, new ones every 20 ms."""
    if not (robots / "unitree_go2").is_dir():
        return
    total, nworld, each = (2e5 if quick else 1e7), 1024, 5
    batch = go2_batch(robots, nworld, iterations=20, tolerance=1e-5)
    home, rng = batch.model.mj.key_qpos[0][7:], np.random.default_rng(1)
    for _ in range(round(total / nworld / each)):
        batch.ctrl[:] = home + rng.uniform(-0.5, 0.5, batch.ctrl.shape)
        batch.step(each)
    how = f"{total:.0e} world steps of 4 ms, 1,024 worlds, random joint targets every 20 ms"
    yield "go2, random actions: worlds that diverged", "real2sim", float((batch.status & 1).sum()), "", 0.0, "max", how


def profile(robots: Path) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Share of each phase of the step, for the scenes of this file."""
    scenes: list[tuple[str, Batch]] = []
    if (robots / "unitree_go2").is_dir():
        scenes.append(("1,024 go2", go2_batch(robots, 1024, iterations=20, tolerance=1e-5)))
    for n in (1, 10, 50):
        mj = humanoid_scene(n)
        if mj is not None:
            scenes.append((f"{n} humanoids in one scene", Batch(Model.from_mjmodel(mj))))
    for name, batch in scenes:
        batch.step(60)
        batch.start_profile()
        batch.step(20)
        seconds = batch.phase_seconds()
        yield name, [(phase, s / sum(seconds)) for phase, s in zip(PHASES, seconds, strict=True)]


ALL = (go2, panda_hold, humanoids, threads, ik, memory, endurance)
