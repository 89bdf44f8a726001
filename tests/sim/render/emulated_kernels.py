# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels compiled for the host by g++ over `cuda_emulation/emulate.hpp`: the very sources, without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from real2sim.sim.render.batch import BatchRenderer
from real2sim.sim.render.batch_cuda import CudaBackend, Tuning
from real2sim.sim.render.cuda_program import Argument, Source

HERE = Path(__file__).parent / "cuda_emulation"
SOURCES = Path(str(resources.files("real2sim.sim.render") / "cuda"))
COMPILER = shutil.which("g++")


class EmulatedProgram:
    def __init__(self, library: ctypes.CDLL, owner: EmulatedKernels) -> None:
        self._library, self._owner = library, owner

    def launch(self, kernel: str, blocks: int, threads: int, arguments: list[Argument]) -> None:
        values = [_argument(v) for v in arguments]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values])
        if self._library.launch(kernel.encode(), blocks, threads, pointers, int(self._owner.reversed)):
            raise ValueError(f"no kernel {kernel}")


def _argument(value: Argument) -> ctypes.c_void_p | ctypes.c_float | ctypes.c_int:
    if value is None or isinstance(value, Tensor):
        return ctypes.c_void_p(None if value is None else value.data_ptr())
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int(value)


class EmulatedKernels:
    """reversed: threads of a block run from the last to the first."""

    def __init__(self) -> None:
        self.reversed = False
        self._folder = Path(tempfile.mkdtemp())
        self._programs: dict[str, EmulatedProgram] = {}

    def program(self, source: Source, macros: dict[str, int]) -> EmulatedProgram:
        flags = [f"-D{name}={value}" for name, value in sorted(macros.items())]
        key = " ".join([source, *flags])
        if key not in self._programs:
            library = self._folder / f"{len(self._programs)}.so"
            command = [COMPILER or "g++", "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-ffp-contract=off", *flags]
            command += [f"-I{HERE}", f"-I{SOURCES}", f'-DSOURCE="{source}.cu"', f"-D{source.upper()}"]
            subprocess.run([*command, str(HERE / "kernels.cpp"), "-o", str(library)], check=True)
            self._programs[key] = EmulatedProgram(ctypes.CDLL(str(library)), self)
        return self._programs[key]


KERNELS = EmulatedKernels()


def emulated_renderer(template, body_ids, *, tuning: Tuning | None = None, **options) -> BatchRenderer:  # type: ignore[no-untyped-def]
    """A BatchRenderer whose backend is the CUDA one, run on the host."""
    renderer = BatchRenderer.__new__(BatchRenderer)
    renderer.device = torch.device("cpu")
    renderer.body_ids = body_ids
    renderer._constants = {}
    renderer.nbody = int(body_ids.max(initial=0)) + 1
    precision, mode = options.get("precision", "exact"), options.get("rasterize_mode", "classic")
    renderer.backend = CudaBackend(template, body_ids, renderer.device, KERNELS, precision, mode, tuning)
    return renderer
