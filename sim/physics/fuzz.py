# SPDX-License-Identifier: Apache-2.0
"""Random MJCF models and states, some of them wild: `python -m real2sim.sim.physics.fuzz [--models N] [--seed S]`.

Every model must end as an error that states its reason or as worlds whose state is finite; a world that diverges is flagged
and frozen. A crash or a hang ends the command with the seed of the model that caused it on the last line.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Literal

import numpy as np

from real2sim.errors import UsageError
from real2sim.sim.physics.batch import Batch
from real2sim.sim.physics.model import Model

STEPS = 20
MOST_BODIES = 7
WILD = 1e3  # factor of states that no physical scene has
Outcome = Literal["finite", "diverged", "refused", "not compiled"]


def numbers(rng: np.random.Generator, n: int, scale: float = 1.0) -> str:
    return " ".join(f"{x:.6g}" for x in scale * rng.normal(size=n))


def random_geom(rng: np.random.Generator) -> str:
    kind = str(rng.choice(["sphere", "capsule", "cylinder", "box", "ellipsoid", "mesh"]))
    shape = 'mesh="hull"' if kind == "mesh" else f'size="{" ".join(f"{x:.4g}" for x in 10 ** rng.uniform(-3, 0, 3))}"'
    solref = rng.choice(["0.02 1", "0.001 0.5", "-1e8 0", "-1e4 -10", "0.5 2"])
    return (
        f'<geom type="{kind}" {shape} pos="{numbers(rng, 3, 0.1)}" euler="{numbers(rng, 3, 90)}" solref="{solref}"'
        f' condim="{rng.choice([1, 3, 4, 6])}" friction="{10 ** rng.uniform(-3, 1):.3g} 0.01 0.001"'
        f' margin="{rng.choice([0, 0, 0.01])}" mass="{10 ** rng.uniform(-3, 3):.3g}"/>'
    )


def random_joint(rng: np.random.Generator, name: str, top: bool) -> str:
    kind = str(rng.choice(["free", "ball", "hinge", "slide"] if top else ["ball", "hinge", "slide"]))
    if kind == "free":
        return "<freejoint/>"
    limits = 'limited="true" range="-0.5 0.7"' if kind != "ball" else 'limited="true" range="0 1"'
    return (
        f'<joint name="{name}" type="{kind}" axis="{numbers(rng, 3)}" {limits if rng.random() < 0.4 else ""}'
        f' damping="{rng.choice([0, 0.1, 100])}" stiffness="{rng.choice([0, 10, 1e5])}" armature="{rng.choice([0, 0.01])}"'
        f' frictionloss="{rng.choice([0, 0, 0.3])}"/>'
    )


def random_bodies(rng: np.random.Generator) -> tuple[str, list[str]]:
    """Bodies as MJCF, some nested, and the names of their one-dof joints."""
    text, joints = "", []
    for i in range(int(rng.integers(1, MOST_BODIES + 1))):
        joint = random_joint(rng, f"j{i}", True)
        inner = ""
        if rng.random() < 0.5:
            child = random_joint(rng, f"c{i}", False)
            inner = f'<body name="c{i}" pos="{numbers(rng, 3, 0.2)}">{child}{random_geom(rng)}</body>'
            joints += [f"c{i}"] if 'type="ball"' not in child else []
        text += f'<body name="b{i}" pos="{numbers(rng, 3, 0.3)}">{joint}{random_geom(rng)}{inner}</body>'
        joints += [f"j{i}"] if "hinge" in joint or "slide" in joint else []
    return text, joints


def random_mjcf(rng: np.random.Generator) -> str:
    """One MJCF text."""
    bodies, joints = random_bodies(rng)
    floor = str(rng.choice(['<geom type="plane" size="5 5 1"/>', '<geom type="hfield" hfield="field"/>', ""]))
    actuators = "".join(f'<position joint="{j}" kp="{10 ** rng.uniform(0, 5):.3g}" kv="1"/>' for j in joints[:3])
    equality = '<weld body1="b0" body2="b1"/>' if "b1" in bodies and rng.random() < 0.2 else ""
    tendon = (
        f'<fixed stiffness="5" limited="true" range="-1 1"><joint joint="{joints[0]}" coef="1"/></fixed>'
        if joints
        else ""
    )
    heights = " ".join(f"{x:.3f}" for x in rng.random(25))
    return (
        f'<mujoco><option timestep="{rng.choice([1e-3, 5e-3, 2e-2])}" density="{rng.choice([0, 1.2])}"/>'
        f'<asset><mesh name="hull" vertex="{numbers(rng, 30, 0.1)}"/>'
        f'<hfield name="field" nrow="5" ncol="5" size="2 2 .5 .1" elevation="{heights}"/></asset>'
        f"<worldbody>{floor}{bodies}</worldbody><actuator>{actuators}</actuator><tendon>{tendon}</tendon>"
        f"<equality>{equality}</equality></mujoco>"
    )


def try_model(seed: int, nthread: int = 1) -> Outcome:
    """Build the model of a seed, step three worlds of random, partly wild states, and say what became of it."""
    rng = np.random.default_rng(seed)
    text = random_mjcf(rng)
    try:
        model = Model.from_mjcf(text)
    except UsageError:
        return "refused"
    except ValueError:
        return "not compiled"
    dtype: Literal["float64", "float32"] = "float32" if seed % 5 == 0 else "float64"
    batch = Batch(model, nworld=3, nthread=nthread, dtype=dtype, rigid=seed % 3 == 0, max_velocity=1e5)
    scale = WILD if rng.random() < 0.2 else 1.0
    batch.qpos = batch.qpos + scale * rng.normal(size=batch.qpos.shape) * 0.3
    batch.qvel = scale * rng.normal(size=batch.qvel.shape)
    batch.ctrl = scale * rng.normal(size=batch.ctrl.shape)
    batch.step(STEPS)
    batch.forward()
    sound = np.isfinite(batch.qpos).all() and np.isfinite(batch.qvel).all()
    if not sound:
        raise AssertionError(f"seed {seed}: a state is not finite\n{text}")
    return "diverged" if np.any(batch.status & 1) else "finite"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m real2sim.sim.physics.fuzz", description="Random models in the core"
    )
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    told: Counter[Outcome] = Counter()
    for seed in range(args.seed, args.seed + args.models):
        print(f"\rmodel {seed}", end="", flush=True)
        told[try_model(seed, args.threads)] += 1
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in told.most_common()))


if __name__ == "__main__":
    main()
