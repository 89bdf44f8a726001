# SPDX-License-Identifier: Apache-2.0
"""How much memory a training run will need, how much there is, and how many Gaussians that allows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from real2sim.errors import TransientError
from real2sim.stages.splat_views import MIN_POINTS

PYRAMID = 4 / 3  # bytes of a photo with its successive halves, over those of the photo
COPIES = 6  # of each parameter: itself, gradient, two moments, activated, its gradient
FLOATS_PER_GAUSSIAN = 11  # centre, rotation, scale, opacity; harmonics come on top
RASTER_BYTES_PER_GAUSSIAN = 1500  # projected values and tile lists
RASTER_BYTES_PER_PIXEL = 400  # picture, its gradient, the maps of the loss
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
BASE_BYTES = 400 << 20  # the process before it loads anything
SHARE_OF_AVAILABLE = 0.7  # the rest is for others, and for what an estimate forgets


@dataclass(frozen=True)
class Estimate:
    """Bytes that training needs: fixed (photos, picture buffers, libraries) and for each Gaussian."""

    fixed: int
    per_gaussian: int
    available: int

    @property
    def most_gaussians(self) -> int:
        return int((SHARE_OF_AVAILABLE * self.available - self.fixed) / self.per_gaussian)

    def describe(self, cap: int) -> str:
        """One line for people."""
        need = self.fixed + cap * self.per_gaussian
        return (
            f"memory: about {need / 1e9:.2f} GB for up to {cap:,} Gaussians ({self.fixed / 1e9:.2f} GB photos and "
            f"buffers + {self.per_gaussian / 1e3:.1f} kB each), {self.available / 1e9:.1f} GB available"
        )


def estimate(photo_pixels: list[int], masked: bool, sh_degree: int, available: int) -> Estimate:
    """Memory of a run on photos of these sizes [px]; available [bytes] is what the device has free."""
    bytes_per_pixel = 4 if masked else 3
    photos = int(PYRAMID * bytes_per_pixel * sum(photo_pixels))
    per_gaussian = 4 * COPIES * (FLOATS_PER_GAUSSIAN + 3 * (sh_degree + 1) ** 2) + RASTER_BYTES_PER_GAUSSIAN
    return Estimate(BASE_BYTES + photos + RASTER_BYTES_PER_PIXEL * max(photo_pixels), per_gaussian, available)


def cap_within(wanted: int, memory: Estimate) -> int:
    """The wanted number of Gaussians, or as many as memory allows; raises TransientError when that is next to none."""
    allowed = memory.most_gaussians
    if allowed < MIN_POINTS:
        raise TransientError(
            f"Training needs {memory.fixed / 1e9:.1f} GB for the photos alone and {memory.available / 1e9:.1f} GB is "
            "free. Close other programs, or set splat.data_factor higher."
        )
    return min(wanted, allowed)


def available_bytes(backend: str) -> int:
    """Free memory of the device that the backend trains on [bytes]."""
    if backend == "gsplat":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    free = _free_system_bytes()
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free = min(free, max(0, int(limit.read_text()) - int(used.read_text())))
    return free


def _free_system_bytes() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # no free count to be had: assume half


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks instead of returning them to the kernel and faulting them in again at the next step.

    Blocks of a picture's size are otherwise mapped anew each time, which doubles the time of the loss on a CPU. Where
    the C library is another, nothing happens.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 1 << 30)
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
