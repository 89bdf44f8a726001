# SPDX-License-Identifier: Apache-2.0
"""CoACD (Wei et al. 2022) in a process of its own: it cannot be interrupted, so the process is ended when time is up.

The limit is CPU time: the same mesh ends the same way on a busy machine and on an idle one.

Run as `python -m real2sim.stages.collision_coacd IN.npz OUT.npz`.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import BackendError

Array = NDArray[np.float64]

STUCK = 60.0  # wall time over CPU time at which the process is taken for stuck


def decompose(
    vertices: Array, faces: NDArray[np.int64], threshold: float, max_parts: int, seconds: float, scratch: Path
) -> list[Array] | None:
    """Vertices [V, 3] of the convex parts of a closed mesh; None where the CPU time was not enough.

    threshold: concavity that is tolerated, relative to the mesh's size; seconds: CPU time, at least 1.
    """
    source, target = scratch / "coacd_in.npz", scratch / "coacd_out.npz"
    target.unlink(missing_ok=True)
    np.savez(source, vertices=vertices, faces=faces, threshold=threshold, max_parts=max_parts, seconds=seconds)
    command = [sys.executable, "-m", "real2sim.stages.collision_coacd", str(source), str(target)]
    threads = {"OMP_NUM_THREADS": str(min(2, os.cpu_count() or 1))}
    try:
        done = subprocess.run(
            command, timeout=STUCK * seconds, capture_output=True, text=True, check=False, env={**os.environ, **threads}
        )
    except subprocess.TimeoutExpired:
        return None
    if -done.returncode in (signal.SIGXCPU, signal.SIGKILL):
        return None
    if done.returncode != 0 or not target.exists():
        raise BackendError(
            f"CoACD ended with code {done.returncode}: {done.stderr.strip()[-400:] or 'no message'}. "
            "Install it with `pip install coacd`, or use collision.objects=hulls."
        )
    with np.load(target) as data:
        return [data[name] for name in data.files]


def main(source: str, target: str) -> None:
    with np.load(source) as data:
        limit = max(1, round(float(data["seconds"])))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        import coacd

        coacd.set_log_level("error")
        parts = coacd.run_coacd(
            coacd.Mesh(data["vertices"], data["faces"]),
            threshold=float(data["threshold"]),
            max_convex_hull=int(data["max_parts"]),
            preprocess_mode="auto",
            resolution=800,
            mcts_nodes=15,
            mcts_iterations=60,
            mcts_max_depth=2,
            seed=0,
        )
    np.savez(target, *[np.asarray(vertices, np.float64) for vertices, _ in parts])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
