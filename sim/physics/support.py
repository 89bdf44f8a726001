# SPDX-License-Identifier: Apache-2.0
"""What the core supports of MuJoCo's model, and what it refuses, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np


def _name(mj: Any, kind: str, index: int) -> str:
    import mujoco

    name = mujoco.mj_id2name(mj, getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}"), index)
    return f"{kind} {name!r}" if name else f"{kind} {index}"


def _ints(*members: Any) -> set[int]:
    return {int(x) for x in members}


def unsupported(mj: Any) -> list[str]:
    """Every physical element of the compiled model that the core lacks, with what to use instead."""
    return [*_bodies(mj), *_geoms(mj), *_actuators(mj), *_tendons(mj), *_equalities(mj), *_sensors(mj)]


def _bodies(mj: Any) -> list[str]:
    out = []
    if mj.nflex:
        out.append(f"{mj.nflex} flex (deformable): use rigid bodies")
    if mj.nplugin:
        out.append(f"{mj.nplugin} plugin: use elements of MJCF itself")
    for j in range(mj.njnt):
        if np.any(mj.jnt_stiffnesspoly[j]) or np.any(mj.dof_dampingpoly[mj.jnt_dofadr[j]]):
            out.append(f"{_name(mj, 'joint', j)}: polynomial stiffness or damping: use the linear coefficient")
        if mj.jnt_plasticadr[j] >= 0:
            out.append(f"{_name(mj, 'joint', j)}: plastic spring (springyield): use an elastic spring")
        a = int(mj.jnt_actuatorid[j])
        if a >= 0 and (mj.actuator_damping[a] or mj.actuator_armature[a] or np.any(mj.actuator_dampingpoly[a])):
            out.append(f"{_name(mj, 'actuator', a)}: damping or armature of an actuator: set them on the joint")
    for i in range(mj.npair):
        if mj.pair_adhesion[i]:
            out.append(f"contact pair {i}: adhesion")
    if int(mj.opt.enableflags) & 1:
        out.append("option flag override: set contact parameters on the geoms")
    return out


def _geoms(mj: Any) -> list[str]:
    import mujoco

    out = []
    colliding = np.flatnonzero((mj.geom_contype != 0) | (mj.geom_conaffinity != 0))
    paired = set(mj.pair_geom1.tolist()) | set(mj.pair_geom2.tolist())
    for g in sorted(set(colliding.tolist()) | paired):
        if mj.geom_type[g] == mujoco.mjtGeom.mjGEOM_SDF:
            out.append(f"{_name(mj, 'geom', g)}: type sdf: use a mesh or primitives")
        if np.any(mj.geom_surfacevel[g]):
            out.append(f"{_name(mj, 'geom', g)}: surfacevel: drive a joint instead")
        if mj.geom_adhesion[g]:
            out.append(f"{_name(mj, 'geom', g)}: adhesion: use a weld equality")
    medium = mj.opt.density != 0 or mj.opt.viscosity != 0
    for g in range(mj.ngeom):
        if medium and mj.geom_fluid[g, 0]:
            out.append(f"{_name(mj, 'geom', g)}: fluidshape ellipsoid: use the inertia-box model (no fluidshape)")
    return out


def _actuators(mj: Any) -> list[str]:
    import mujoco

    trn, dyn, gain, bias = mujoco.mjtTrn, mujoco.mjtDyn, mujoco.mjtGain, mujoco.mjtBias
    transmissions = _ints(trn.mjTRN_JOINT, trn.mjTRN_JOINTINPARENT, trn.mjTRN_TENDON, trn.mjTRN_SITE)
    dynamics = _ints(dyn.mjDYN_NONE, dyn.mjDYN_INTEGRATOR, dyn.mjDYN_FILTER, dyn.mjDYN_FILTEREXACT)
    gains, biases = _ints(gain.mjGAIN_FIXED, gain.mjGAIN_AFFINE), _ints(bias.mjBIAS_NONE, bias.mjBIAS_AFFINE)
    out = []
    for i in range(mj.nactuator):
        name = _name(mj, "actuator", i)
        if mj.actuator_trntype[i] not in transmissions:
            out.append(f"{name}: transmission {trn(mj.actuator_trntype[i]).name}: use joint, tendon or site")
        if mj.actuator_dyntype[i] not in dynamics:
            out.append(
                f"{name}: dynamics {dyn(mj.actuator_dyntype[i]).name}: use none, integrator, filter or filterexact"
            )
        if mj.actuator_gaintype[i] not in gains:
            out.append(f"{name}: gain {gain(mj.actuator_gaintype[i]).name}: use fixed or affine")
        if mj.actuator_biastype[i] not in biases:
            out.append(f"{name}: bias {bias(mj.actuator_biastype[i]).name}: use none or affine")
        if np.any(mj.actuator_gainprm[i, 3:]) and mj.actuator_gaintype[i] in gains:
            out.append(f"{name}: more than three gain parameters")
        if mj.actuator_actnum[i] > 1 or mj.actuator_ctrlnum[i] != 1:
            out.append(f"{name}: several activations or controls: use one of each")
        if mj.actuator_delay[i]:
            out.append(f"{name}: delay: delay the control yourself")
    return out


def _tendons(mj: Any) -> list[str]:
    out = []
    for t in range(mj.ntendon):
        name = _name(mj, "tendon", t)
        if np.any(mj.tendon_stiffnesspoly[t]) or np.any(mj.tendon_dampingpoly[t]):
            out.append(f"{name}: polynomial stiffness or damping: use the linear coefficient")
        if mj.tendon_plasticadr[t] >= 0:
            out.append(f"{name}: plastic spring (springyield): use an elastic spring")
        if mj.tendon_armature[t]:
            out.append(f"{name}: armature: set armature on the joints")
        a = int(mj.tendon_actuatorid[t])
        if a >= 0 and (mj.actuator_damping[a] or mj.actuator_armature[a]):
            out.append(f"{_name(mj, 'actuator', a)}: damping or armature of an actuator: set them on the tendon")
    return out


def _equalities(mj: Any) -> list[str]:
    import mujoco

    known = _ints(mujoco.mjtEq.mjEQ_CONNECT, mujoco.mjtEq.mjEQ_WELD, mujoco.mjtEq.mjEQ_JOINT, mujoco.mjtEq.mjEQ_TENDON)
    return [
        f"{_name(mj, 'equality', i)}: type {mujoco.mjtEq(mj.eq_type[i]).name}: use connect, weld, joint or tendon"
        for i in range(mj.neq)
        if mj.eq_type[i] not in known
    ]


def _sensors(mj: Any) -> list[str]:
    import mujoco

    s = mujoco.mjtSensor
    refused = {
        s.mjSENS_CAMPROJECTION: "project the point with the camera's matrix",
        s.mjSENS_INSIDESITE: "compare frame positions",
        s.mjSENS_GEOMDIST: "query contacts",
        s.mjSENS_GEOMNORMAL: "query contacts",
        s.mjSENS_GEOMFROMTO: "query contacts",
        s.mjSENS_TACTILE: "use touch or contact",
        s.mjSENS_PLUGIN: "use a sensor of MJCF itself",
        s.mjSENS_USER: "compute it from the state",
    }
    out = []
    spatial = bool(np.any(mj.wrap_type == int(mujoco.mjtWrap.mjWRAP_SITE))) if mj.nwrap else False
    for i in range(mj.nsensor):
        kind = s(int(mj.sensor_type[i]))
        if spatial and kind in (s.mjSENS_FORCE, s.mjSENS_TORQUE):
            out.append(
                f"{_name(mj, 'sensor', i)}: type {kind.name} beside spatial tendons: read the tendon's actuator force instead"
            )
        if kind in refused:
            out.append(f"{_name(mj, 'sensor', i)}: type {kind.name}: {refused[kind]}")
        elif kind == s.mjSENS_RANGEFINDER and (
            mj.sensor_objtype[i] != mujoco.mjtObj.mjOBJ_SITE or mj.sensor_dim[i] != 1
        ):
            out.append(
                f"{_name(mj, 'sensor', i)}: rangefinder of a camera or with several data fields: use a site and distance"
            )
        if mj.sensor_history[i, 0] or mj.sensor_delay[i]:
            out.append(f"{_name(mj, 'sensor', i)}: delay or history: delay the reading yourself")
    return out


def replaced(mj: Any) -> list[str]:
    """Solver options of the file that the core replaces by its own."""
    import mujoco

    o = mj.opt
    out = [f"integrator {mujoco.mjtIntegrator(o.integrator).name}", f"solver {mujoco.mjtSolver(o.solver).name}"]
    out += [f"cone {mujoco.mjtCone(o.cone).name}", f"impratio {o.impratio:g}", f"iterations {o.iterations}"]
    if o.noslip_iterations:
        out.append(f"noslip_iterations {o.noslip_iterations}")
    return out
