# SPDX-License-Identifier: Apache-2.0
"""Every smooth quantity equals MuJoCo's, element by element, at random states."""

from __future__ import annotations

import numpy as np
import pytest

from real2sim.sim.physics import Batch, Model, UnsupportedFeature
from real2sim.sim.physics.compare import CONTACTS_AND_ROWS, largest_errors, random_state
from real2sim.sim.physics.zoo import model_files, table

mujoco = pytest.importorskip("mujoco")

MODELS = 45  # the smallest files; the command `python -m real2sim.sim.physics.zoo` takes all
TOLERANCE = 1e-9  # of max(1, largest entry): float64 rounding through a tree of some tens of bodies
ELEMENTS = {
    "free joint": "<body pos='0 0 1'><freejoint/><geom type='box' size='.1 .2 .3' pos='.1 0 0'/></body>",
    "ball joint, spring, damping": "<body><joint type='ball' stiffness='3' damping='.4' armature='.1'/><geom type='capsule' size='.05 .2' pos='0 .1 .2'/></body>",  # noqa: E501
    "slide with springref": "<body><joint type='slide' axis='1 1 0' stiffness='20' springref='.3' damping='2'/><geom type='sphere' size='.1'/></body>",  # noqa: E501
    "hinge chain": "<body><joint axis='0 1 0' pos='.1 0 0'/><geom type='cylinder' size='.05 .2'/><body pos='0 0 .4'><joint axis='1 0 0' armature='.2'/>"  # noqa: E501
    "<joint axis='0 0 1' damping='.3'/><geom type='ellipsoid' size='.1 .2 .1'/></body></body>",
    "gravcomp": "<body gravcomp='.7'><joint axis='0 1 0'/><geom type='box' size='.1 .1 .3' pos='.2 0 .1'/></body>",
}


def assert_equal(model: Model) -> None:
    wrong = {k: v for k, v in largest_errors(model).items() if not v <= TOLERANCE}
    assert not wrong


@pytest.mark.parametrize("name", ELEMENTS)
def test_element_equals_mujoco(name: str) -> None:
    assert_equal(Model.from_mjcf(f"<mujoco><worldbody>{ELEMENTS[name]}</worldbody></mujoco>"))


ARM = """
<mujoco><option density="1.2" viscosity="0.01" wind="1 0 0"/><worldbody><site name="anchor" pos="0 0 1"/><geom name="post" type="cylinder" size=".1 .3" pos=".3 0 .5"/>
<body name="a" pos="0 0 .5"><joint name="j1" axis="0 1 0" range="-2 2"/><geom type="capsule" fromto="0 0 0 .5 0 0" size=".05"/><site name="s1" pos=".25 0 .05"/>
<body name="b" pos=".5 0 0"><joint name="j2" axis="0 1 0"/><joint name="j3" type="slide" axis="1 0 0"/><geom name="knob" type="sphere" size=".08" pos=".2 0 0"/>
<site name="s2" pos=".3 .02 0"/><site name="side" pos=".2 0 .2"/><camera name="c" pos="0 0 .3" mode="targetbody" target="a"/></body></body>
<body name="f" pos="1 1 1"><freejoint/><geom type="box" size=".1 .2 .1"/><site name="sf" euler="20 30 40"/></body></worldbody>
<tendon><fixed name="t1" stiffness="5" damping=".2" springlength=".1 .2"><joint joint="j1" coef="1"/><joint joint="j3" coef="-2"/></fixed>
<spatial name="t2" stiffness="10"><site site="anchor"/><geom geom="post"/><site site="s1"/><pulley divisor="2"/><site site="s1"/><geom geom="knob" sidesite="side"/><site site="s2"/></spatial></tendon>
<actuator><motor joint="j1" gear="3" ctrlrange="-.5 .5"/><position joint="j2" kp="20" kv="2" forcerange="-4 4"/><velocity joint="j3" kv="3"/>
<general tendon="t2" gainprm="2" dyntype="filter" dynprm=".1"/><general joint="j2" dyntype="integrator" gaintype="affine" gainprm="1 2 3" biastype="affine" biasprm="1 -2 -3"/>
<motor site="sf" gear="1 2 3 .1 .2 .3"/><position site="sf" refsite="s2" gear="1 0 0 0 0 1" kp="4"/><position tendon="t1" kp="3"/></actuator>
<sensor><accelerometer site="sf"/><gyro site="sf"/><velocimeter site="s2"/><magnetometer site="sf"/><jointpos joint="j1"/><jointvel joint="j2"/>
<tendonpos tendon="t2"/><tendonvel tendon="t2"/><actuatorpos actuator="0"/><actuatorvel actuator="1"/><actuatorfrc actuator="1"/><jointactuatorfrc joint="j2"/>
<framepos objtype="site" objname="s2" reftype="body" refname="f"/><framequat objtype="geom" objname="knob" reftype="site" refname="sf"/><framexaxis objtype="body" objname="b"/>
<framelinvel objtype="site" objname="s2" reftype="site" refname="sf"/><frameangvel objtype="body" objname="b" reftype="body" refname="f"/><framelinacc objtype="site" objname="s2"/>
<frameangacc objtype="body" objname="b"/><subtreecom body="a"/><subtreelinvel body="a"/><subtreeangmom body="a"/><rangefinder site="sf"/><clock/><e_potential/><e_kinetic/></sensor></mujoco>
"""  # noqa: E501


def named(xml: str) -> str:
    """Actuators get names, so that sensors can refer to them."""
    for i, tag in enumerate(("<motor joint", "<position joint")):
        xml = xml.replace(tag, tag.replace(" ", f' name="{i}" ', 1), 1)
    return xml


def test_tendons_actuators_sensors_and_fluid_equal_mujoco() -> None:
    assert_equal(Model.from_mjcf(named(ARM)))


def test_force_and_torque_sensors_equal_mujoco() -> None:
    xml = """<mujoco><worldbody><body><joint axis="0 1 0"/><geom size=".1 .2" type="capsule" pos="0 0 .2"/><site name="a"/>
    <body pos="0 0 .5" euler="10 20 30"><joint axis="1 0 0"/><geom type="box" size=".1 .2 .1" pos=".1 0 .1"/><site name="b" pos="0 .1 0" euler="0 0 40"/></body></body></worldbody>
    <sensor><force site="a"/><torque site="a"/><force site="b"/><torque site="b"/></sensor></mujoco>"""  # noqa: E501
    assert_equal(Model.from_mjcf(xml))


def test_jacobian_and_inverse_dynamics_equal_mujoco() -> None:
    model = Model.from_mjcf(named(ARM))
    mj = model.mj
    batch = Batch(model)
    data = random_state(mj, np.random.default_rng(1))
    data.xfrc_applied[:] = data.qfrc_applied[:] = 0
    batch.qpos, batch.qvel = data.qpos, data.qvel
    mujoco.mj_forward(mj, data)
    jacp, jacr = np.zeros((3, mj.nv)), np.zeros((3, mj.nv))
    body = model.id("body", "b")
    mujoco.mj_jacBody(mj, data, jacp, jacr, body)
    ours_p, ours_r = batch.jac(body="b")
    assert np.abs(ours_p - jacp).max() < TOLERANCE and np.abs(ours_r - jacr).max() < TOLERANCE
    acc = np.random.default_rng(2).normal(size=mj.nv)
    data.qacc[:] = acc
    mj.opt.disableflags |= CONTACTS_AND_ROWS
    mujoco.mj_inverse(mj, data)
    assert np.abs(batch.inverse(acc)[0] - data.qfrc_inverse).max() < TOLERANCE * max(1, np.abs(data.qfrc_inverse).max())


def test_an_unsupported_element_is_named() -> None:
    xml = "<mujoco><worldbody><body name='b'><joint name='j'/><geom size='.1'/></body></worldbody><actuator><adhesion name='m' body='b' ctrlrange='0 1'/></actuator></mujoco>"  # noqa: E501
    with pytest.raises(UnsupportedFeature, match="'m'"):
        Model.from_mjcf(xml)


def test_at_least_nine_tenths_of_the_models_of_other_packages_load_and_equal_mujoco() -> None:
    files = [f for f in model_files(None) if f.package in ("gymnasium", "dm-control", "gymnasium-robotics")]
    files = sorted(files, key=lambda f: f.path.stat().st_size)[:MODELS]
    if len(files) < 40:
        pytest.skip(f"{len(files)} models of dm-control, gymnasium and gymnasium-robotics are installed; 40 are needed")
    rows = table(files)
    taken = [row for row in rows if row.loads]
    assert len(taken) >= max(40, 0.9 * len(rows)), [row for row in rows if not row.loads]
    wrong = {row.name: (row.worst, row.error) for row in taken if not row.error <= TOLERANCE}
    assert not wrong
