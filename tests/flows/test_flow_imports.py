# SPDX-License-Identifier: Apache-2.0
"""A run that computes nothing starts at once: it imports no stage and nothing heavy."""

from __future__ import annotations

import subprocess
import sys

from real2sim.flows.graph import SCENE

HEAVY = ("numpy", "torch", "cv2", "scipy", "pycolmap", "mujoco", "warp", "coacd", "trimesh", "jinja2", "prefect")


def test_a_run_that_computes_nothing_loads_nothing_heavy(scene):
    code = (
        "import sys\n"
        "sys.argv = ['drive', *sys.argv[1:]]\n"
        f"sys.path.insert(0, {str(scene.drive.parent)!r})\n"
        "import drive\n"
        "code = drive.main()\n"
        f"print(code, *[m for m in {HEAVY!r} if m in sys.modules], 'fakes.words' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(scene.capture), str(scene.run)]
    first, second = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2))
    assert first.split() == ["0", "True"]
    assert second.split() == ["0", "False"]


def test_reading_the_keys_of_the_real_stages_imports_none_of_them(tmp_path):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from real2sim.flows.config import resolve\n"
        "from real2sim.flows.digest import JsonCache\n"
        "from real2sim.flows.graph import SCENE\n"
        "known = JsonCache(Path(sys.argv[1]))\n"
        "resolve(SCENE, None, [], known)\n"
        "known.save()\n"
        f"print(*[m for m in {HEAVY!r} if m in sys.modules])\n"
        "print(*[s.name for s in SCENE.stages if s.module in sys.modules])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "options.json")]
    first, second = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2))
    assert first.splitlines()[1].split() == [stage.name for stage in SCENE.stages]
    assert second == "\n\n"
