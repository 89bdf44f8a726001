# SPDX-License-Identifier: Apache-2.0
"""From a compiled MuJoCo model to the plain arrays of the core: copies of its numbers, and what the step needs besides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.physics import hulls

MAX_STATIC_PAIRS = 4096  # more candidate geom pairs than this are found by sweep and prune at every step

COPIED_SIZES = [
    "nq",
    "nv",
    "nu",
    "na",
    "nbody",
    "njnt",
    "ngeom",
    "nsite",
    "ncam",
    "nmocap",
    "ntree",
    "neq",
    "ntendon",
    "nwrap",
    "nactuator",
    "nsensor",
    "nsensordata",
    "npair",
    "nmesh",
    "nhfield",
    "nJten",
]
COPIED_INTS = [
    "body_parentid",
    "body_rootid",
    "body_weldid",
    "body_mocapid",
    "body_jntnum",
    "body_jntadr",
    "body_dofnum",
    "body_dofadr",
    "body_treeid",
    "jnt_type",
    "jnt_qposadr",
    "jnt_dofadr",
    "jnt_bodyid",
    "jnt_limited",
    "jnt_actfrclimited",
    "jnt_actgravcomp",
    "dof_bodyid",
    "dof_jntid",
    "dof_parentid",
    "dof_treeid",
    "tree_dofadr",
    "tree_dofnum",
    "geom_type",
    "geom_contype",
    "geom_conaffinity",
    "geom_condim",
    "geom_bodyid",
    "geom_dataid",
    "geom_priority",
    "geom_group",
    "site_bodyid",
    "site_type",
    "cam_bodyid",
    "cam_mode",
    "cam_targetbodyid",
    "pair_dim",
    "pair_geom1",
    "pair_geom2",
    "eq_type",
    "eq_obj1id",
    "eq_obj2id",
    "eq_objtype",
    "tendon_type",
    "tendon_adr",
    "tendon_num",
    "tendon_limited",
    "ten_J_rownnz",
    "ten_J_rowadr",
    "ten_J_colind",
    "tendon_actfrclimited",
    "wrap_type",
    "wrap_objid",
    "actuator_trntype",
    "actuator_dyntype",
    "actuator_gaintype",
    "actuator_biastype",
    "actuator_trnid",
    "actuator_ctrladr",
    "actuator_actadr",
    "actuator_actnum",
    "actuator_actlimited",
    "actuator_actearly",
    "actuator_forcelimited",
    "actuator_ctrllimited",
    "sensor_type",
    "sensor_datatype",
    "sensor_needstage",
    "sensor_objtype",
    "sensor_objid",
    "sensor_reftype",
    "sensor_refid",
    "sensor_intprm",
    "sensor_dim",
    "sensor_adr",
    "hfield_nrow",
    "hfield_ncol",
    "hfield_adr",
]
COPIED_REALS = [
    "qpos0",
    "qpos_spring",
    "body_pos",
    "body_quat",
    "body_iquat",
    "body_gravcomp",
    "body_invweight0",
    "jnt_solref",
    "jnt_solimp",
    "jnt_pos",
    "jnt_axis",
    "jnt_stiffness",
    "jnt_range",
    "jnt_actfrcrange",
    "jnt_margin",
    "dof_frictionloss",
    "dof_armature",
    "dof_solref",
    "dof_solimp",
    "geom_solmix",
    "geom_solref",
    "geom_solimp",
    "geom_size",
    "geom_rbound",
    "geom_aabb",
    "geom_pos",
    "geom_quat",
    "geom_margin",
    "geom_gap",
    "site_pos",
    "site_quat",
    "site_size",
    "cam_pos",
    "cam_quat",
    "cam_poscom0",
    "cam_pos0",
    "cam_mat0",
    "cam_fovy",
    "pair_solref",
    "pair_solimp",
    "pair_margin",
    "pair_gap",
    "pair_friction",
    "eq_solref",
    "eq_solimp",
    "eq_data",
    "tendon_solref_lim",
    "tendon_solimp_lim",
    "tendon_range",
    "tendon_actfrcrange",
    "tendon_margin",
    "tendon_stiffness",
    "tendon_damping",
    "tendon_frictionloss",
    "tendon_lengthspring",
    "tendon_length0",
    "wrap_prm",
    "actuator_dynprm",
    "actuator_actrange",
    "actuator_forcerange",
    "actuator_ctrlrange",
    "actuator_gear",
    "sensor_cutoff",
    "hfield_size",
    "hfield_data",
]


@dataclass
class CoreArrays:
    """sizes, int arrays and real arrays by field name; `params`: initial per-world parameters."""

    sizes: dict[str, int]
    ints: dict[str, NDArray[np.int32]]
    reals: dict[str, NDArray[np.float64]]
    params: dict[str, NDArray[np.float64]]


def core_arrays(mj: Any) -> CoreArrays:
    """Everything that the core reads of a model."""
    sizes = {k: int(getattr(mj, k)) for k in COPIED_SIZES}
    sizes |= {"disableflags": int(mj.opt.disableflags), "fluid": int(mj.opt.density != 0 or mj.opt.viscosity != 0)}
    ints: dict[str, Any] = {k: getattr(mj, k) for k in COPIED_INTS}
    reals: dict[str, Any] = {k: getattr(mj, k) for k in COPIED_REALS}
    reals["medium"] = np.array([mj.opt.density, mj.opt.viscosity, *mj.opt.wind])
    reals["magnetic"] = np.array(mj.opt.magnetic)
    reals["cam_prm"] = (
        np.column_stack([mj.cam_resolution, mj.cam_sensorsize, mj.cam_intrinsic]) if mj.ncam else np.zeros(0)
    )
    for part in (_tree(mj), _moments(mj), _groups(mj), _pairs(mj), hulls.mesh_arrays(mj)):
        sizes |= part.get("sizes", {})
        ints |= part.get("ints", {})
        reals |= part.get("reals", {})
    disabled = [bool(int(mj.opt.disableactuator) >> int(g) & 1) if 0 <= g <= 30 else False for g in mj.actuator_group]
    ints["actuator_disabled"] = np.array(disabled, dtype=np.int32)
    ints["geom_visible"] = np.array([not (mj.geom_rgba[g, 3] == 0 and mj.geom_matid[g] < 0) for g in range(mj.ngeom)])
    _align_same_frames(mj, ints, reals)
    params = {
        "gravity": np.array(mj.opt.gravity),
        "body_mass": mj.body_mass,
        "body_inertia": mj.body_inertia,
        "body_ipos": np.where((mj.body_sameframe == 1)[:, None], 0.0, mj.body_ipos),
        "geom_friction": mj.geom_friction,
        "dof_damping": mj.dof_damping,
        "actuator_gainprm": mj.actuator_gainprm[:, :3],
        "actuator_biasprm": mj.actuator_biasprm[:, :3],
    }
    return CoreArrays(
        sizes,
        {k: np.ascontiguousarray(np.asarray(v).reshape(-1), dtype=np.int32) for k, v in ints.items()},
        {k: np.ascontiguousarray(np.asarray(v).reshape(-1), dtype=np.float64) for k, v in reals.items()},
        {k: np.ascontiguousarray(np.asarray(v).reshape(-1), dtype=np.float64) for k, v in params.items()},
    )


def _align_same_frames(mj: Any, ints: dict[str, Any], reals: dict[str, Any]) -> None:
    """Frames that MuJoCo takes for equal (up to rounding in the file) are made equal, so that the numbers agree."""
    identity = np.array([1.0, 0.0, 0.0, 0.0])
    body, inertia, body_rot, inertia_rot = 1, 2, 3, 4  # mjtSameFrame
    iquat = np.where(np.isin(mj.body_sameframe, (body, body_rot))[:, None], identity, mj.body_iquat)
    reals["body_iquat"] = iquat
    for kind in ("geom", "site"):
        same, owner = getattr(mj, f"{kind}_sameframe"), getattr(mj, f"{kind}_bodyid")
        pos, quat = np.array(getattr(mj, f"{kind}_pos")), np.array(getattr(mj, f"{kind}_quat"))
        pos[same == body] = 0.0
        pos[same == inertia] = mj.body_ipos[owner[same == inertia]]
        quat[np.isin(same, (body, body_rot))] = identity
        chosen = np.isin(same, (inertia, inertia_rot))
        quat[chosen] = iquat[owner[chosen]]
        reals[f"{kind}_pos"], reals[f"{kind}_quat"] = pos, quat


def dof_chain(mj: Any, body: int) -> list[int]:
    """Dofs that move a body, in rising order."""
    last = _last_dof(mj)[body]
    chain = []
    while last >= 0:
        chain.append(int(last))
        last = mj.dof_parentid[last]
    return chain[::-1]


def _last_dof(mj: Any) -> NDArray[np.int32]:
    last = np.full(mj.nbody, -1, dtype=np.int32)
    for b in range(1, mj.nbody):
        own = mj.body_dofadr[b] + mj.body_dofnum[b] - 1
        last[b] = own if mj.body_dofnum[b] else last[mj.body_parentid[b]]
    return last


def _tree(mj: Any) -> dict[str, Any]:
    rows: list[list[int]] = []
    for i in range(mj.nv):
        parent = int(mj.dof_parentid[i])
        rows.append((rows[parent] if parent >= 0 else []) + [i])
    nnz = np.array([len(r) for r in rows], dtype=np.int32)
    adr = np.concatenate([[0], np.cumsum(nnz)])[: mj.nv]
    return {
        "sizes": {"nM": int(nnz.sum())},
        "ints": {"M_rowadr": adr, "M_rownnz": nnz, "M_colind": _flat(rows), "body_lastdof": _last_dof(mj)},
    }


def _flat(rows: Iterable[Iterable[int]]) -> NDArray[np.int32]:
    return np.array([x for r in rows for x in r], dtype=np.int32)


def moment_rows(mj: Any) -> list[list[int]]:
    """Dofs that each actuator pushes."""
    import mujoco

    trn = mujoco.mjtTrn
    rows = []
    for i in range(mj.nactuator):
        kind, target, ref = mj.actuator_trntype[i], int(mj.actuator_trnid[i, 0]), int(mj.actuator_trnid[i, 1])
        if kind in (int(trn.mjTRN_JOINT), int(trn.mjTRN_JOINTINPARENT)):
            width = {0: 6, 1: 3}.get(int(mj.jnt_type[target]), 1)
            rows.append([int(mj.jnt_dofadr[target]) + k for k in range(width)])
        elif kind == int(trn.mjTRN_TENDON):
            adr = int(mj.ten_J_rowadr[target])
            rows.append(mj.ten_J_colind[adr : adr + int(mj.ten_J_rownnz[target])].tolist())
        else:
            chain = set(dof_chain(mj, int(mj.site_bodyid[target])))
            if ref >= 0:
                chain ^= set(dof_chain(mj, int(mj.site_bodyid[ref])))
            rows.append(sorted(chain))
    return rows


def _moments(mj: Any) -> dict[str, Any]:
    rows = moment_rows(mj)
    nnz = np.array([len(r) for r in rows], dtype=np.int32)
    adr = np.concatenate([[0], np.cumsum(nnz)])[: len(rows)]
    return {
        "sizes": {"nmoment": int(nnz.sum())},
        "ints": {"moment_rownnz": nnz, "moment_rowadr": adr, "moment_colind": _flat(rows)},
    }


@dataclass(frozen=True)
class _Row:
    kind: int
    id: int
    sub: int
    trees: frozenset[int]


def _direct_rows(mj: Any) -> list[_Row]:
    """Rows solved directly: equalities (kind 0), implicit tendon (1) and servo (2) terms, with the trees that each couples."""  # noqa: E501
    import mujoco

    eq, obj = mujoco.mjtEq, mujoco.mjtObj
    tendon_trees = [
        frozenset(
            int(mj.dof_treeid[d]) for d in mj.ten_J_colind[mj.ten_J_rowadr[t] : mj.ten_J_rowadr[t] + mj.ten_J_rownnz[t]]
        )
        for t in range(mj.ntendon)
    ]

    def body_tree(i: int, column: Any) -> set[int]:
        body = int(column[i]) if mj.eq_objtype[i] != obj.mjOBJ_SITE else int(mj.site_bodyid[column[i]])
        tree = int(mj.body_treeid[body])
        return {tree} if tree >= 0 else set()

    rows = []
    for i in range(mj.neq):
        kind = mj.eq_type[i]
        trees: set[int] = set()
        if kind in (int(eq.mjEQ_CONNECT), int(eq.mjEQ_WELD)):
            trees = body_tree(i, mj.eq_obj1id) | body_tree(i, mj.eq_obj2id)
        else:
            for j in (int(mj.eq_obj1id[i]), int(mj.eq_obj2id[i])):
                if j >= 0:
                    trees |= {int(mj.dof_treeid[mj.jnt_dofadr[j]])} if kind == eq.mjEQ_JOINT else set(tendon_trees[j])
        width = {int(eq.mjEQ_CONNECT): 3, int(eq.mjEQ_WELD): 6}.get(int(kind), 1)
        rows += [_Row(0, i, k, frozenset(trees)) for k in range(width if trees else 0)]
    for t in range(mj.ntendon):
        if (mj.tendon_stiffness[t] or mj.tendon_damping[t]) and tendon_trees[t]:
            rows.append(_Row(1, t, 0, tendon_trees[t]))
    for i, dofs in enumerate(moment_rows(mj)):
        scalar_joint = (
            mj.actuator_trntype[i] in (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
            and len(dofs) == 1
        )
        servo = np.any(mj.actuator_biasprm[i, 1:3]) or (
            mj.actuator_gaintype[i] == mujoco.mjtGain.mjGAIN_AFFINE and np.any(mj.actuator_gainprm[i, 1:3])
        )
        if servo and dofs and not scalar_joint:
            rows.append(_Row(2, i, 0, frozenset(int(mj.dof_treeid[d]) for d in dofs)))
    return rows


def _groups(mj: Any) -> dict[str, Any]:
    """Trees coupled by direct rows form groups; each group is eliminated with one dense factorisation."""
    rows = _direct_rows(mj)
    parent = list(range(mj.ntree))

    def root(x: int) -> int:
        while parent[x] != x:
            x = parent[x]
        return x

    for r in rows:
        first, *others = sorted(r.trees)
        for t in others:
            parent[max(root(first), root(t))] = min(root(first), root(t))
    heads = sorted({root(next(iter(r.trees))) for r in rows})
    number = {h: i for i, h in enumerate(heads)}
    tree_group = np.array([number.get(root(t), -1) for t in range(mj.ntree)], dtype=np.int32)
    rows.sort(key=lambda r: number[root(next(iter(r.trees)))])  # stable: file order within a group
    members = [[int(d) for d in range(mj.nv) if tree_group[mj.dof_treeid[d]] == g] for g in range(len(heads))]
    slot = np.full(mj.nv, -1, dtype=np.int32)
    for dofs in members:
        slot[dofs] = np.arange(len(dofs))
    row_group = np.array([number[root(next(iter(r.trees)))] for r in rows], dtype=np.int32)
    dofnum = np.array([len(d) for d in members], dtype=np.int32)
    rownum = np.bincount(row_group, minlength=len(heads)).astype(np.int32) if len(heads) else np.zeros(0, np.int32)
    eq_rowadr = np.full(mj.neq, -1, dtype=np.int32)
    for i, r in enumerate(rows):
        if r.kind == 0 and r.sub == 0:
            eq_rowadr[r.id] = i
    starts = lambda n: np.concatenate([[0], np.cumsum(n)])[: len(n)].astype(np.int32)  # noqa: E731
    return {
        "sizes": {
            "ngroup": len(heads), "ngroupdof": int(dofnum.sum()), "neqrow": len(rows),
            "nE": int((dofnum * rownum).sum()), "nW": int((rownum * rownum).sum()),
        },
        "ints": {
            "tree_group": tree_group, "group_dofadr": starts(dofnum), "group_dofnum": dofnum, "group_dof": _flat(members),
            "dof_groupslot": slot, "group_rowadr": starts(rownum), "group_rownum": rownum, "group_Eadr": starts(dofnum * rownum),  # noqa: E501
            "group_Wadr": starts(rownum * rownum), "row_kind": _flat([r.kind] for r in rows), "row_id": _flat([r.id] for r in rows),  # noqa: E501
            "row_sub": _flat([r.sub] for r in rows), "eq_rowadr": eq_rowadr, "eq_group": row_group,
            "tendon_implicit": np.array([any(r.kind == 1 and r.id == t for r in rows) for t in range(mj.ntendon)], dtype=np.int32),  # noqa: E501
        },
    }  # fmt: skip


def candidate_pairs(mj: Any) -> NDArray[np.int64]:
    """Geom pairs that may collide: affinity bits, not of one rigid body, not parent and child, not excluded. [K, 2]."""
    first, second = np.triu_indices(mj.ngeom, 1)
    kinds, aff = mj.geom_contype, mj.geom_conaffinity
    keep = ((kinds[first] & aff[second]) | (kinds[second] & aff[first])) != 0
    first, second = first[keep], second[keep]
    b1, b2 = mj.geom_bodyid[first], mj.geom_bodyid[second]
    w1, w2 = mj.body_weldid[b1], mj.body_weldid[b2]
    keep = w1 != w2
    if not int(mj.opt.disableflags) & 1024:
        p1, p2 = mj.body_weldid[mj.body_parentid[w1]], mj.body_weldid[mj.body_parentid[w2]]
        keep &= ~((w1 != 0) & (w2 != 0) & ((w1 == p2) | (w2 == p1)))
    low, high = np.minimum(b1, b2).astype(np.int64), np.maximum(b1, b2).astype(np.int64)
    keep &= ~np.isin((low << 16) + high, np.asarray(mj.exclude_signature, dtype=np.int64))
    t1, t2 = mj.geom_type[first], mj.geom_type[second]
    keep &= ~((t1 <= 1) & (t2 <= 1))  # planes and height fields do not collide with each other
    explicit = {(min(a, b), max(a, b)) for a, b in zip(mj.pair_geom1.tolist(), mj.pair_geom2.tolist())}
    pairs = np.column_stack([first[keep], second[keep]])
    if explicit:
        pairs = np.array([p for p in pairs.tolist() if tuple(p) not in explicit], dtype=np.int64).reshape(-1, 2)
    return pairs


def _pairs(mj: Any) -> dict[str, Any]:
    pairs = candidate_pairs(mj) if not int(mj.opt.disableflags) & 16 else np.zeros((0, 2), dtype=np.int64)
    static = len(pairs) <= MAX_STATIC_PAIRS
    rows = [(int(a), int(b), -1) for a, b in pairs] if static else []
    rows += [(int(mj.pair_geom1[i]), int(mj.pair_geom2[i]), i) for i in range(mj.npair)]
    ordered = [(b, a, i) if mj.geom_type[a] > mj.geom_type[b] else (a, b, i) for a, b, i in rows]
    excluded: list[list[int]] = [[] for _ in range(mj.nbody)]
    for signature in mj.exclude_signature.tolist():
        excluded[signature >> 16].append(signature & 0xFFFF)
    counts = np.array([0] + [len(e) for e in excluded])
    return {
        "sizes": {"nstaticpair": len(ordered), "dynamic_pairs": int(not static)},
        "ints": {
            "static_geom1": _flat([p[0]] for p in ordered), "static_geom2": _flat([p[1]] for p in ordered),
            "static_pairid": _flat([p[2]] for p in ordered), "exclude_adr": np.cumsum(counts), "exclude_body": _flat(excluded),  # noqa: E501
        },
    }  # fmt: skip
