# SPDX-License-Identifier: Apache-2.0
"""What MJCF files use, and what of it the core refuses: `python -m real2sim.sim.physics.check FILE...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from real2sim.sim.physics import support


def used(mj: Any) -> dict[str, int]:
    """How many elements of each kind a compiled model has."""
    counts = {
        "bodies": mj.nbody - 1, "joints": mj.njnt, "dofs": mj.nv, "geoms": mj.ngeom, "sites": mj.nsite, "meshes": mj.nmesh,
        "height fields": mj.nhfield, "actuators": mj.nactuator, "tendons": mj.ntendon, "equalities": mj.neq,
        "sensors": mj.nsensor, "contact pairs": mj.npair, "keyframes": mj.nkey, "flexes": mj.nflex, "plugins": mj.nplugin,
    }  # fmt: skip
    return {k: int(v) for k, v in counts.items() if v}


def report(path: str) -> tuple[str, bool]:
    """Text about one file, and whether the core takes it."""
    import mujoco

    try:
        mj = mujoco.MjModel.from_xml_path(path)
    except ValueError as error:
        return f"{path}: MuJoCo does not compile it: {str(error).splitlines()[0]}", False
    findings = support.unsupported(mj)
    lines = [f"{path}: {'refused' if findings else 'loads'}"]
    lines.append("  uses: " + ", ".join(f"{n} {kind}" for kind, n in used(mj).items()))
    lines.append("  replaced by the core's own: " + ", ".join(support.replaced(mj)))
    lines += [f"  refused: {f}" for f in findings]
    return "\n".join(lines), not findings


def main(paths: Sequence[str]) -> int:
    """Print a report for each file; 1 where any is refused."""
    results = [report(p) for p in paths]
    for text, _ in results:
        print(text)
    print(f"{sum(ok for _, ok in results)} of {len(results)} load")
    return 0 if all(ok for _, ok in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
