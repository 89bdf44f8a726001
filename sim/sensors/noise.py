# SPDX-License-Identifier: Apache-2.0
"""Random numbers by counter: number i of a world depends on the world's seed and i alone, on every device alike.

A world's noise therefore does not change with the worlds that it is computed beside, nor with their number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real2sim.errors import UsageError

MASK = 0xFFFFFFFF


def world_seeds(seeds: Any, nworld: int, device: str | torch.device) -> Tensor:
    """Seeds [nworld] int64 on a device, of whole numbers; UsageError for another shape or missing seeds."""
    if seeds is None:
        raise UsageError("A noisy sensor needs seeds, one a world, new for each reading; received none.")
    values = seeds.cpu().numpy() if isinstance(seeds, Tensor) else np.asarray(seeds)
    if values.shape != (nworld,) or values.dtype.kind not in "iu":
        raise UsageError(f"seeds are {nworld} whole numbers, received {values.dtype} of shape {values.shape}.")
    return torch.as_tensor(values.astype(np.int64), device=device)


def uniform(seeds: Tensor, count: int, stream: int = 0) -> Tensor:
    """Numbers [nworld, count] float32, uniform in (0, 1). stream: a whole number; another one is another sequence."""
    counter = _mix(torch.arange(count, dtype=torch.int64, device=seeds.device) + 1)
    key = _mix(_mix((seeds ^ (seeds >> 32)) & MASK) + stream * 0x9E3779B9 & MASK)
    bits = _mix(counter[None] ^ key[:, None])
    return ((bits >> 8).float() + 0.5) * 2.0**-24


def normal(seeds: Tensor, count: int, stream: int = 0) -> Tensor:
    """Numbers [nworld, count] float32 of the standard normal distribution (Box and Muller 1958)."""
    radius = torch.sqrt(-2 * torch.log(uniform(seeds, count, 2 * stream + 0x10001)))
    return radius * torch.cos(2 * math.pi * uniform(seeds, count, 2 * stream + 0x10002))


def _mix(x: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser (Appleby, public domain) on int64; products wrap, the low half is right."""
    x = x ^ (x >> 16)
    x = x * 0x85EBCA6B & MASK
    x = x ^ (x >> 13)
    x = x * 0xC2B2AE35 & MASK
    return x ^ (x >> 16)
