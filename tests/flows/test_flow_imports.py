# SPDX-License-Identifier: Apache-2.0
"""A rerun that computes nothing must start fast: reading every stage's options loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "cv2", "pycolmap", "mujoco", "warp", "coacd", "trimesh", "skimage", "prefect", "matplotlib", "jinja2")


def test_reading_the_options_of_every_stage_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from real2sim.flows.config import resolve\n"
        "from real2sim.flows.graph import SCENE\n"
        "seen = set()\n"
        "for stage in SCENE.stages:\n"
        "    stage.load()\n"
        f"    loaded = {set(HEAVY)!r} & sys.modules.keys() - seen\n"
        "    print(*[f'{stage.name}:{name}' for name in loaded])\n"
        "    seen |= loaded\n"
        "resolve(SCENE, None, [])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert found == []


def test_the_plain_runner_never_loads_prefect():
    code = "import sys, real2sim.flows.reconstruct, real2sim.flows.status; print('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
