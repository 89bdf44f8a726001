# SPDX-License-Identifier: Apache-2.0
"""Peak resident memory of a stretch of work in this process, as the kernel counts it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_RESET_PEAK = "5"  # proc(5): writing 5 to clear_refs sets VmHWM back to the present size


class PeakMemory:
    """Context manager; afterwards `gb` is the largest resident size [1e9 bytes] while it was open.

    Where the kernel's peak cannot be set back, `gb` is the peak of the whole process so far: an upper bound.
    """

    gb: float = 0.0

    def __enter__(self) -> PeakMemory:
        try:
            Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
            self._reset = True
        except OSError:
            self._reset = False
        return self

    def __exit__(self, *_: object) -> None:
        self.gb = (_kernel_peak() if self._reset else _process_peak()) / 1e9


def _kernel_peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return _process_peak()


def _process_peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kilobytes
