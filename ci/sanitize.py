# SPDX-License-Identifier: Apache-2.0
"""The physics core under sanitizers, in one command: `python ci/sanitize.py address|thread`.

Builds real2sim.sim.physics._core with AddressSanitizer and UndefinedBehaviorSanitizer, or with ThreadSanitizer, below
build/, and runs random models, a pile and a stack on it in a process that has the sanitizer's library loaded first.
Needs gcc. Exit code 0: no finding.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"address": ("address;undefined", ("libasan.so", "libubsan.so")), "thread": ("thread", ("libtsan.so",))}
MODELS = 300  # random models that are stepped


def build(kind: str) -> Path:
    """The instrumented extension module."""
    flags, _ = KINDS[kind]
    where = ROOT / "build" / f"sanitize-{kind}"
    configure = ["cmake", "-S", str(ROOT), "-B", str(where), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    configure += [f"-DREAL2SIM_SANITIZE={flags}", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(where), "--target", "_core"], check=True)
    return next((where / "sim" / "physics").glob("_core*.so"))


def library(name: str) -> str:
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()


def exercise(module: str, threads: int) -> None:
    """Steps random models and a pile on the module at this path."""
    spec = importlib.util.spec_from_file_location("real2sim.sim.physics._core", module)
    assert spec is not None and spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    sys.modules[spec.name] = core
    from real2sim.sim.physics import Batch, Model
    from real2sim.sim.physics.fuzz import try_model

    box = '<body pos="{x} 0 {z}"><freejoint/><geom type="box" size=".1 .1 .1"/></body>'
    boxes = "".join(box.format(x=0.01 * (i % 3), z=0.1 + 0.2 * i) for i in range(6))
    pile = Model.from_mjcf(f'<mujoco><worldbody><geom type="plane" size="5 5 1"/>{boxes}</worldbody></mujoco>')
    for nworld in (1, 40):
        batch = Batch(pile, nworld=nworld, nthread=threads)
        batch.step(100)
        batch.contacts()
        batch.reset()
    for seed in range(MODELS):
        try_model(seed, threads)
    print(f"{MODELS} random models and a pile on {threads} threads: no finding")


def main() -> int:
    if len(sys.argv) == 4:
        exercise(sys.argv[2], int(sys.argv[3]))
        return 0
    if len(sys.argv) != 2 or sys.argv[1] not in KINDS:
        print(__doc__)
        return 2
    kind = sys.argv[1]
    module = build(kind)
    environment = os.environ | {
        "LD_PRELOAD": ":".join(library(name) for name in KINDS[kind][1]),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own allocations
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    threads = "4" if kind == "thread" else "1"
    return subprocess.run([sys.executable, __file__, kind, str(module), threads], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
