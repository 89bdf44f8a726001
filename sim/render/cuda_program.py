# SPDX-License-Identifier: Apache-2.0
"""The renderer's CUDA C++ sources, compiled by NVRTC when first used and kept in cuda.core's cache on disk."""

from __future__ import annotations

from importlib import resources
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from real2sim.errors import BackendError

Source = Literal["project", "lists", "raster"]
Argument = Tensor | int | float | None


class Program(Protocol):
    """Kernels of one source, compiled with one set of macros."""

    def launch(self, kernel: str, blocks: int, threads: int, arguments: list[Argument]) -> None:
        """Run on torch's current stream: a tensor or None is a pointer, an int an int, a float a float."""


class Kernels(Protocol):
    """Where programs come from: NVRTC for a device."""

    def program(self, source: Source, macros: dict[str, int]) -> Program: ...


def source_text(source: Source) -> str:
    """One self-contained translation unit."""
    folder = resources.files("real2sim.sim.render") / "cuda"
    shared = (folder / "intrinsics.cuh").read_text("utf-8").replace("#pragma once\n", "")
    return (folder / f"{source}.cu").read_text("utf-8").replace('#include "intrinsics.cuh"\n', shared)


class CudaProgram:
    """A loaded cubin; launches go to torch's current stream of the device."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module, self._device = module, device
        self._kernels: dict[str, Any] = {}
        self._streams: dict[int, Any] = {}

    def launch(self, kernel: str, blocks: int, threads: int, arguments: list[Argument]) -> None:
        import numpy as np
        from cuda.core import LEGACY_DEFAULT_STREAM, LaunchConfig, Stream, launch

        if kernel not in self._kernels:
            self._kernels[kernel] = self._module.get_kernel(kernel)
        handle = torch.cuda.current_stream(self._device).cuda_stream
        if handle not in self._streams:
            self._streams[handle] = Stream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM
        values = [
            0
            if v is None
            else v.data_ptr()
            if isinstance(v, Tensor)
            else np.float32(v)
            if isinstance(v, float)
            else np.int32(v)
            for v in arguments
        ]
        launch(self._streams[handle], LaunchConfig(grid=blocks, block=threads), self._kernels[kernel], *values)


class CudaKernels:
    """Programs for one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._programs: dict[tuple[Source, tuple[tuple[str, int], ...]], CudaProgram] = {}

    def program(self, source: Source, macros: dict[str, int]) -> CudaProgram:
        key = (source, tuple(sorted(macros.items())))
        if key not in self._programs:
            self._programs[key] = CudaProgram(self._compile(source, macros), self._device)
        return self._programs[key]

    def _compile(self, source: Source, macros: dict[str, int]) -> Any:
        from cuda.core import Device, Program, ProgramOptions
        from cuda.core.utils import FileStreamProgramCache

        device = Device(self._device.index or 0)
        device.set_current()
        options = ProgramOptions(
            name=f"{source}.cu",
            std="c++17",
            arch=f"sm_{device.arch}",
            define_macro=[(name, str(value)) for name, value in sorted(macros.items())] or None,
        )
        program = Program(source_text(source), "c++", options)
        with FileStreamProgramCache() as cache:
            return program.compile("cubin", cache=cache)


_kernels: dict[int, CudaKernels] = {}


def kernels_for(device: torch.device) -> CudaKernels:
    """The kernels of a CUDA device; BackendError says what is missing."""
    try:
        import cuda.core  # noqa: F401
    except ImportError as error:
        raise BackendError(
            f"The batch renderer on CUDA compiles its kernels through cuda.core, which is not installed ({error}): "
            "pip install 'real2sim[gpu]'."
        ) from error
    if not torch.cuda.is_available():
        raise BackendError("The batch renderer was asked for a CUDA device and torch finds none. Use device='cpu'.")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _kernels:
        torch.zeros(1, device=f"cuda:{index}")  # torch's context is made before cuda.core joins it
        _kernels[index] = CudaKernels(torch.device("cuda", index))
    return _kernels[index]
