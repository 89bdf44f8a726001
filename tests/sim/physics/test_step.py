# SPDX-License-Identifier: Apache-2.0
"""The step against closed forms, and its promises: determinism, independence of worlds, freezing of diverged worlds."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from real2sim.errors import UsageError
from real2sim.sim.physics import Batch, Model
from real2sim.sim.physics.fuzz import try_model

G = 9.81
FLOOR = '<geom name="floor" type="plane" size="50 50 1" friction="{mu}"/>'
BOX = '<body pos="0 0 {z}"><freejoint/><geom name="box" type="box" size=".2 .2 .1" friction="{mu}"/></body>'


def batch_of(
    body: str,
    *,
    h: float = 0.002,
    gravity: tuple[float, float, float] = (0, 0, -G),
    extra: str = "",
    nworld: int = 1,
    **options,
) -> Batch:
    g = " ".join(repr(x) for x in gravity)
    xml = f'<mujoco><option timestep="{h}" gravity="{g}"/><worldbody>{body}</worldbody>{extra}</mujoco>'
    return Batch(Model.from_mjcf(xml), nworld=nworld, **options)


def tilted(degrees: float) -> tuple[float, float, float]:
    t = np.deg2rad(degrees)
    return (float(G * np.sin(t)), 0.0, float(-G * np.cos(t)))


def box_on_floor(mu: float, *, z: float = 0.0999, **options) -> Batch:
    return batch_of(FLOOR.format(mu=mu) + BOX.format(mu=mu, z=z), **options)


def test_free_fall_is_the_sum_of_the_steps() -> None:
    batch = batch_of('<body pos="0 0 10"><freejoint/><geom size=".1"/></body>')
    batch.qvel[0, 0] = 2.0
    batch.step(500)
    h = batch.timestep
    assert batch.qpos[0, 2] == pytest.approx(10 - G * h * h * 500 * 501 / 2, abs=1e-10)  # symplectic Euler, exactly
    assert batch.qpos[0, 0] == pytest.approx(2.0, abs=1e-10)


def test_pendulum_keeps_its_period_and_energy() -> None:
    batch = batch_of(
        '<body><joint axis="0 1 0"/><geom type="sphere" size=".01" mass="1" pos="0 0 -1"/></body>', h=0.001
    )
    batch.qpos[0, 0] = 0.01
    batch.forward()
    start = batch.energy[0].sum()
    crossings, last = [], 0.01
    for i in range(10000):
        batch.step()
        if last > 0 >= batch.qpos[0, 0]:
            crossings.append((i + batch.qpos[0, 0] / (last - batch.qpos[0, 0])) * 0.001)
        last = float(batch.qpos[0, 0])
    inertia = 1 + 0.4 * 0.01**2
    assert np.diff(crossings).mean() == pytest.approx(2 * np.pi * np.sqrt(inertia / G), rel=1e-4)
    batch.forward()
    assert batch.energy[0].sum() == pytest.approx(start, abs=1e-5)


@pytest.mark.parametrize("angle", [0.0, 22.5, 45.0, 67.5])
def test_sliding_friction_is_the_same_in_every_direction(angle: float) -> None:
    batch = box_on_floor(0.5)
    batch.step(300)
    a = np.deg2rad(angle)
    batch.qvel[0, :2] = 3 * np.cos(a), 3 * np.sin(a)
    before = batch.qvel[0, :2].copy()
    batch.step(100)
    after = batch.qvel[0, :2]
    assert np.linalg.norm(before - after) / (100 * batch.timestep) == pytest.approx(0.5 * G, rel=0.01)
    assert np.rad2deg(np.arctan2(after[1], after[0])) == pytest.approx(angle, abs=0.5)


def test_sliding_distance_is_v_squared_over_two_mu_g() -> None:
    batch = box_on_floor(0.5)
    batch.step(300)
    start = float(batch.qpos[0, 0])
    batch.qvel[0, 0] = 2.0
    batch.step(400)
    assert batch.qpos[0, 0] - start == pytest.approx(4 / (2 * 0.5 * G), rel=0.01)  # a step of 2 ms is 0.5% of the slide


def test_a_box_sticks_below_the_friction_angle_and_slides_above_it() -> None:
    critical = np.rad2deg(np.arctan(0.5))
    for offset, sticks in ((-0.1, True), (0.1, False)):
        batch = box_on_floor(0.5, gravity=tilted(critical + offset))
        batch.step(500)
        x = float(batch.qpos[0, 0])
        batch.step(500)
        moved = float(batch.qpos[0, 0]) - x
        assert abs(moved) < 1e-9 if sticks else moved > 1e-3


def test_rolling_friction_above_its_threshold_stops_a_ball_on_an_incline() -> None:
    ball = '<geom type="plane" size="50 50 1" friction="1 .005 .183" condim="6"/><body pos="0 0 .5"><freejoint/><geom type="sphere" size=".5" mass="10" friction="1 .005 .183" condim="6"/></body>'  # noqa: E501
    batch = batch_of(ball, gravity=tilted(20))
    batch.step(2500)
    x = float(batch.qpos[0, 0])
    batch.step(500)
    assert batch.qpos[0, 0] - x == pytest.approx(0, abs=1e-9)
    assert batch.contacts()[0].force[0] == pytest.approx(10 * G * np.cos(np.deg2rad(20)), abs=0.002)


def test_a_resting_box_carries_its_weight_and_does_not_move() -> None:
    batch = box_on_floor(1.0)
    batch.step(1000)
    q = batch.qpos.copy()
    batch.step(1000)
    assert np.abs(batch.qpos - q).max() < 1e-9
    weight = batch.body_mass[0, 1] * G
    assert batch.net_force("floor", "box")[2] == pytest.approx(weight, rel=1e-6)


def test_an_elastic_impact_exchanges_velocities_and_keeps_momentum_and_energy() -> None:
    ball = '<body pos="{x} 0 0"><joint type="slide" axis="1 0 0"/><geom size=".1" mass="1" solref="-1e8 0" friction="0" condim="1"/></body>'  # noqa: E501
    batch = batch_of(ball.format(x=0) + ball.format(x=0.3), gravity=(0, 0, 0))
    batch.qvel[0] = 1.0, 0.0
    batch.step(500)
    assert batch.qvel[0] == pytest.approx([0.0, 1.0], abs=1e-9)


def test_a_chain_with_mass_ratio_1000_does_not_stretch() -> None:
    link = '<body name="l{i}" pos="0 0 {z}"><freejoint/><geom type="capsule" fromto="0 0 0 0 0 -.1" size=".01" mass="{m}" contype="0" conaffinity="0"/></body>'  # noqa: E501
    links = "".join(link.format(i=i, z=-0.1 * i, m=0.01 if i < 9 else 10) for i in range(10))
    joints = '<connect body1="l0" anchor="0 0 0"/>' + "".join(
        f'<connect body1="l{i + 1}" body2="l{i}" anchor="0 0 0"/>' for i in range(9)
    )
    batch = batch_of(links, extra=f"<equality>{joints}</equality>", rigid=True)
    batch.step(1000)
    assert -batch.qpos[0, -5] == pytest.approx(0.9, rel=1e-3)


def test_a_fast_top_precesses_at_the_gyroscopic_rate() -> None:
    batch = batch_of(
        '<body><joint type="ball"/><geom type="cylinder" size=".1 .01" mass="1" pos="0 0 .2"/></body>', h=0.0001
    )
    spin, tilt, length = 150.0, np.deg2rad(30), 0.2
    axial = 0.5 * 0.1**2
    transverse = 0.25 * 0.1**2 + 0.02**2 / 12 + length**2
    # m g l = rate (C (spin + rate cos) - A rate cos), spin relative to the precessing frame
    rate = min(np.roots([(axial - transverse) * np.cos(tilt), axial * spin, -length * G]).real, key=abs)
    batch.qpos[0] = np.cos(tilt / 2), 0, np.sin(tilt / 2), 0
    batch.qvel[0] = -rate * np.sin(tilt), 0, spin + rate * np.cos(tilt)
    batch.step(5000)
    axis = batch_axis(batch)
    assert np.arctan2(axis[1], axis[0]) == pytest.approx(
        rate * 0.5, rel=0.05
    )  # a symplectic step nutates by some per cent
    assert axis[2] == pytest.approx(np.cos(tilt), abs=0.05)


def batch_axis(batch: Batch) -> np.ndarray:
    batch.forward()
    return batch.xmat[0].reshape(-1, 3, 3)[1][:, 2]


PILE = "".join(f'<body pos="{0.1 * i} 0 {0.3 + 0.25 * i}"><freejoint/><geom type="{t}" size=".1 .08 .06" condim="{c}"/></body>'  # noqa: E501
               for i, (t, c) in enumerate([("box", 3), ("capsule", 4), ("sphere", 6), ("cylinder", 3), ("ellipsoid", 3)]))  # fmt: skip  # noqa: E501


def run_pile(nworld: int, nthread: int, steps: int = 400) -> np.ndarray:
    batch = batch_of(FLOOR.format(mu=1) + PILE, nworld=nworld, nthread=nthread)
    for w in range(nworld):
        batch.qpos[w, 0] = 0.01 * w
    batch.step(steps)
    return batch.qpos.copy()


def test_results_are_the_same_bits_for_every_thread_count() -> None:
    digests = {hashlib.sha256(run_pile(20, n).tobytes()).hexdigest() for n in (1, 2, 4)}
    assert len(digests) == 1


def test_a_world_does_not_depend_on_its_neighbours_or_their_number() -> None:
    many, three, one = run_pile(20, 1), run_pile(3, 1), run_pile(1, 1)
    assert np.array_equal(many[:3], three) and np.array_equal(many[:1], one)


def test_a_diverged_world_is_frozen_flagged_and_resettable() -> None:
    batch = box_on_floor(1.0, nworld=3)
    batch.qvel[1, 0] = 1e7
    batch.step(10)
    assert batch.status.tolist() == [0, 1, 0] and batch.time[:, 0] == pytest.approx([0.02, 0, 0.02])
    batch.reset(np.array([False, True, False]))
    batch.step(5)
    assert batch.status.tolist() == [0, 0, 0]


def test_parameters_differ_by_world_without_recompiling() -> None:
    batch = box_on_floor(0.0, nworld=4)
    batch.geom_friction[2, 0::3] = 0.5
    batch.gravity[3] = 0, 0, 1
    batch.step(200)
    batch.qvel[:3, 0] = 1.0
    batch.step(50)
    assert batch.qvel[0, 0] == pytest.approx(1.0, abs=1e-3) and batch.qvel[2, 0] == pytest.approx(
        1 - 0.5 * G * 0.1, rel=0.02
    )
    assert batch.qpos[3, 2] > 0.1


def test_bad_arguments_state_the_rule() -> None:
    batch = box_on_floor(1.0)
    with pytest.raises(UsageError, match="shape"):
        batch.qpos = np.zeros(3)
    with pytest.raises(UsageError, match="Nearest: 'box'"):
        batch.model.id("geom", "bax")
    with pytest.raises(UsageError, match="finite"):
        batch.qvel = np.full(6, np.nan)
    with pytest.raises(AttributeError, match="qpos"):
        _ = batch.qpoz


def test_rays_hit_what_mujoco_hits() -> None:
    mujoco = pytest.importorskip("mujoco")
    batch = batch_of(FLOOR.format(mu=1) + PILE)
    mj = batch.model.mj
    data = mujoco.MjData(mj)
    mujoco.mj_forward(mj, data)
    rng = np.random.default_rng(0)
    origins, directions = rng.normal(size=(200, 3)) + [0, 0, 1], rng.normal(size=(200, 3))
    dist, geom, _ = batch.ray(origins, directions)
    for o, d, t, g in zip(origins, directions, dist, geom):
        hit = np.zeros(1, dtype=np.int32)
        expected = mujoco.mj_ray(mj, data, o, d, None, 1, -1, hit)
        assert t == pytest.approx(expected, abs=1e-9) and g == hit[0]


def test_state_can_be_saved_and_restored() -> None:
    batch = batch_of(FLOOR.format(mu=1) + PILE)
    batch.step(50)
    saved = batch.save_state()
    batch.step(50)
    batch.restore_state(saved)
    assert np.array_equal(batch.qpos, saved["qpos"]) and batch.time[0, 0] == pytest.approx(0.1)


ARM7 = """<mujoco><compiler angle="radian"/><worldbody><body><joint axis="0 0 1" range="-3 3" limited="true"/><geom size=".05 .1" type="capsule"/>
<body pos="0 0 .3"><joint axis="0 1 0" range="-2 2" limited="true"/><geom size=".04 .1" type="capsule"/><body pos="0 0 .3"><joint axis="0 0 1"/>
<geom size=".04 .1" type="capsule"/><body pos=".1 0 .2"><joint axis="0 1 0" range="-2.5 2.5" limited="true"/><geom size=".04 .1" type="capsule"/>
<body pos="0 0 .3"><joint axis="0 0 1"/><geom size=".04 .1" type="capsule"/><body pos="0 0 .1"><joint axis="0 1 0"/><geom size=".03 .05" type="capsule"/>
<body pos=".05 0 .1"><joint axis="0 0 1"/><geom size=".03 .05" type="capsule"/><site name="tip" pos="0 0 .1"/></body></body></body></body></body></body></body>
</worldbody></mujoco>"""  # noqa: E501


def test_inverse_kinematics_reaches_reachable_poses_within_limits() -> None:
    model = Model.from_mjcf(ARM7)
    nworld = 64
    rng = np.random.default_rng(0)
    truth = Batch(model, nworld=nworld)
    truth.qpos = rng.uniform(-1.2, 1.2, size=(nworld, 7))
    truth.forward()
    batch = Batch(model, nworld=nworld)
    batch.qpos = np.clip(truth.qpos + rng.normal(scale=0.4, size=(nworld, 7)), -2, 2)
    position = truth.site_xpos
    quat = truth.xquat.reshape(nworld, -1, 4)[:, -1]
    done = batch.solve_ik({"tip": np.concatenate([position, quat], axis=1)}, iterations=60)
    batch.forward()
    error = np.linalg.norm(batch.site_xpos - position, axis=1)
    assert done.mean() >= 0.95 and np.all(error[done] < 1e-4)
    limited = model.mj.jnt_limited.astype(bool)
    low, high = model.mj.jnt_range[limited].T
    assert np.all(batch.qpos[:, limited] >= low) and np.all(batch.qpos[:, limited] <= high)


def rigid_stack(nbox: int, shift: float) -> Batch:
    rng = np.random.default_rng(0)
    box = '<body pos="{x} {y} {z}"><freejoint/><geom type="box" size=".1 .1 .1" mass="1"/></body>'
    boxes = "".join(
        box.format(x=rng.uniform(-shift, shift), y=rng.uniform(-shift, shift), z=0.1 + 0.2 * i) for i in range(nbox)
    )
    return batch_of(FLOOR.format(mu=1) + boxes, rigid=True, tolerance=1e-8)


def test_a_stack_of_twenty_rigid_boxes_stands_still_for_a_minute() -> None:
    batch = rigid_stack(20, 0.01)
    batch.step(1000)
    q = batch.qpos.copy()
    batch.step(30000)
    assert np.abs(batch.qpos - q).max() < 1e-6


CARD = '<body pos="{x} 0 {z}" euler="0 {lean} 0"><freejoint/><geom type="box" size=".00075 .035 .05" mass=".002" friction=".6"/></body>'  # noqa: E501


def card_house(lean: float) -> str:
    """Three pairs of leaning cards in two storeys, with a card as floor between them."""
    a, half, thin = np.deg2rad(lean), 0.05, 0.00075
    x, z = half * np.sin(a) + thin * np.cos(a), half * np.cos(a) + thin * np.sin(a)
    pitch = 4 * x + 0.002
    pairs = [(0.0, 0.0), (pitch, 0.0), (pitch / 2, 2 * z + 2 * thin)]
    cards = [(px - x, z + pz, lean) for px, pz in pairs] + [(px + x, z + pz, -lean) for px, pz in pairs]
    cards.append((pitch / 2, 2 * z + thin, 90.0))
    return "".join(CARD.format(x=cx, z=cz, lean=cl) for cx, cz, cl in cards)


def test_a_house_of_cards_stands() -> None:
    batch = batch_of(FLOOR.format(mu=0.6) + card_house(15), rigid=True, tolerance=1e-8)
    start = batch.qpos.copy()
    batch.step(1000)
    q = batch.qpos.copy()
    batch.step(2500)
    assert np.abs(q - start).max() < 1e-3 and np.abs(batch.qpos - q).max() < 5e-5


def test_rays_hit_the_surface_the_walls_and_the_base_of_a_height_field() -> None:
    mujoco = pytest.importorskip("mujoco")
    rng = np.random.default_rng(0)
    xml = '<mujoco><asset><hfield name="h" nrow="9" ncol="13" size="1.2 .8 .3 .1"/></asset><worldbody><geom type="hfield" hfield="h" pos=".1 .2 .3" euler="10 5 20"/></worldbody></mujoco>'  # noqa: E501
    spec = mujoco.MjSpec.from_string(xml)
    spec.hfields[0].userdata = rng.uniform(size=9 * 13).tolist()
    mj = spec.compile()
    data = mujoco.MjData(mj)
    mujoco.mj_forward(mj, data)
    batch = Batch(Model.from_mjmodel(mj))
    batch.forward()
    origins, directions = rng.normal(size=(600, 3)) * 0.6 + [0.1, 0.2, 0.8], rng.normal(size=(600, 3))
    directions[:200] = 0, 0, -1
    dist, _, _ = batch.ray(origins, directions)
    for o, d, t in zip(origins, directions, dist):
        assert t == pytest.approx(mujoco.mj_ray(mj, data, o, d, None, 1, -1, np.zeros(1, np.int32)), abs=1e-9)


FUZZED = 150  # models of the suite; `python -m real2sim.sim.physics.fuzz` runs any number


def test_random_models_and_wild_states_never_leave_a_state_that_is_not_finite() -> None:
    outcomes = [try_model(seed) for seed in range(FUZZED)]
    assert outcomes.count("finite") > FUZZED / 3
