# SPDX-License-Identifier: Apache-2.0
"""The CPU rasteriser beside the same model in PyTorch over tiles (python -m benchmarks.rasterize_cpu --help).

Without --splat the scene is a made room: walls and balls of overlapping thin Gaussians whose sizes and opacities are
distributed as MCMC training leaves them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real2sim.sim.render.rasterize import default_threads, rasterize
from real2sim.sim.render.reference import ALPHA_MIN, Projection, blend_weights, pixel_centres, project
from real2sim.sim.render.splat import Splat
from real2sim.sim.transforms import matrix_to_quat, rotation_between

ROOM = np.array([5.0, 4.0, 2.6])  # m
TILE = 16  # px
SH_DEGREE = 3


def made_room(count: int, seed: int = 0) -> Splat:
    """`count` Gaussians on the walls of a room and on balls in it."""
    rng = np.random.default_rng(seed)
    means, normals = rng.uniform(0, ROOM, (count, 3)), np.zeros((count, 3))
    axis, side = rng.choice(3, count, p=[0.27, 0.33, 0.4]), rng.integers(0, 2, count)
    rows = np.arange(count)
    means[rows, axis] = side * ROOM[axis]
    normals[rows, axis] = 1 - 2.0 * side
    on_ball = rng.uniform(size=count) < 0.25
    directions = rng.normal(size=(count, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    centres = rng.uniform(0.2 * ROOM, 0.8 * ROOM, (12, 3))
    means[on_ball] = (centres[rng.integers(0, 12, count)] + 0.25 * directions)[on_ball]
    normals[on_ball] = directions[on_ball]
    means += normals * rng.exponential(0.01, (count, 1))
    spread = np.sqrt(150_000 / count)  # the same cover with fewer Gaussians
    log_scales = rng.normal([-3.7, -3.9, -4.9], [0.5, 0.5, 0.6], (count, 3)) + np.log(spread)
    quats = np.array([matrix_to_quat(rotation_between([0, 0, 1], n)) for n in normals])
    return Splat(
        means=means,
        quats=quats,
        log_scales=log_scales,
        logit_opacities=rng.normal(-1.4, 1.7, count),
        sh0=rng.normal(0, 1, (count, 1, 3)),
        shN=rng.normal(0, 0.05, (count, 15, 3)),
    )


def room_views(count: int, width: int, height: int, lower: Any, upper: Any) -> tuple[Tensor, Tensor]:
    """viewmats [C, 4, 4] from the middle of a box to random points of it, and Ks [C, 3, 3]."""
    rng = np.random.default_rng(1)
    viewmats = np.tile(np.eye(4), (count, 1, 1))
    for V in viewmats:
        eye = lower + (upper - lower) * rng.uniform(0.35, 0.65, 3)
        z = lower + (upper - lower) * rng.uniform(0.1, 0.9, 3) - eye
        z /= np.linalg.norm(z)
        x = np.cross(z, [0, 0, 1])
        x /= np.linalg.norm(x)
        V[:3, :3] = [x, np.cross(z, x), z]
        V[:3, 3] = -V[:3, :3] @ eye
    focal = 0.7 * width
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=torch.float32)
    return torch.tensor(viewmats, dtype=torch.float32), K.expand(count, 3, 3)


def torch_tiles(gaussians: list[Tensor], V: Tensor, K: Tensor, width: int, height: int) -> Tensor:
    """The peer: rgb [H, W, 3] by the reference's formulas in float32, each tile against the Gaussians of its box."""
    p = project(*gaussians, V, K, width, height, sh_degree=SH_DEGREE, near=0.01)
    covariance = torch.linalg.inv(p.conics.detach()).diagonal(dim1=-2, dim2=-1)
    reach = torch.sqrt(2 * torch.log(p.opacities.detach()[:, None] / ALPHA_MIN) * covariance)
    low, high = p.means2d.detach() - reach, p.means2d.detach() + reach
    image = []
    for y in range(0, height, TILE):
        strip = []
        for x in range(0, width, TILE):
            w, h = min(TILE, width - x), min(TILE, height - y)
            corner = torch.tensor([x, y], dtype=low.dtype)
            inside = ((high > corner) & (low < corner + torch.tensor([w, h]))).all(1)
            part = Projection(*(getattr(p, name)[inside] for name in Projection.__dataclass_fields__))
            pixels = pixel_centres(w, h, low.dtype) + corner
            strip.append((blend_weights(part, pixels) @ part.colours).reshape(h, w, 3))
        image.append(torch.cat(strip, 1))
    return torch.cat(image, 0)


def best_seconds(work: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


class Case:
    """One picture size and Gaussian count: times of ours and the peer, averaged over the views."""

    def __init__(self, splat: Splat, width: int, height: int, views: int) -> None:
        arrays = (splat.means, splat.quats, splat.scales, splat.opacities, splat.sh)
        self.leaves = [torch.tensor(v).requires_grad_(True) for v in arrays]
        low, high = np.percentile(splat.means, [1, 99], axis=0)
        self.viewmats, self.Ks = room_views(views, width, height, low, high)
        self.width, self.height = width, height
        self.target = torch.rand(height, width, 3, generator=torch.Generator().manual_seed(0))
        self.how = f"{len(splat)} Gaussians, {width}x{height}, SH degree {SH_DEGREE}, mean of {views} views"

    def ours(self, gradient: bool, threads: int) -> None:
        for V, K in zip(self.viewmats, self.Ks, strict=True):
            with torch.set_grad_enabled(gradient):
                rgb = rasterize(
                    *self.leaves, V[None], K[None], self.width, self.height, sh_degree=SH_DEGREE, threads=threads
                )[0]
            if gradient:
                rgb.backward(self.target[None])

    def peer(self, gradient: bool) -> None:
        with torch.set_grad_enabled(gradient):
            rgb = torch_tiles(self.leaves, self.viewmats[0], self.Ks[0], self.width, self.height)
        if gradient:
            rgb.backward(self.target)

    def ours_ms(self, gradient: bool, threads: int, repeats: int, clock: Callable[[], float]) -> float:
        self.ours(gradient, threads)
        return 1e3 * best_seconds(lambda: self.ours(gradient, threads), repeats, clock) / len(self.viewmats)

    def peer_ms(self, gradient: bool) -> float:
        return 1e3 * best_seconds(lambda: self.peer(gradient), 1, time.process_time)


def row(name: str, value: float, unit: str, bar: float | None, direction: str, peer: float | None, how: str) -> dict:
    met = None if bar is None else (value <= bar if direction == "lower" else value >= bar)
    ratio = None if peer is None else peer / value if direction == "lower" else value / peer
    return {
        "name": name, "value": value, "unit": unit, "bar": bar, "direction": direction,
        "peer": peer, "ratio": ratio, "met": met, "how": how,
    }  # fmt: skip


def measure(splat_of: Callable[[int], Splat], quick: bool) -> list[dict]:
    """All rows. One-thread times are CPU seconds, best of several; the speedup is of wall-clock times."""
    repeats, views = (2, 2) if quick else (7, 6)
    rows = []
    for label, count, width, height, bars in (
        ("320x240, 20k", 20_000, 320, 240, (12.0, 40.0)),
        ("640x480, 50k", 50_000, 640, 480, (None, None)),
    ):
        case = Case(splat_of(count), width, height, views)
        peers = (None, None) if quick and count > 20_000 else (case.peer_ms(False), case.peer_ms(True))
        for what, gradient, bar, peer in zip(("forward", "forward+backward"), (False, True), bars, peers, strict=True):
            value = case.ours_ms(gradient, 1, repeats, time.process_time)
            how = f"CPU time of one thread, best of {repeats}; {case.how}; peer: PyTorch float32 over tiles, one view"
            rows.append(row(f"{what}, {label}", value, "ms", bar, "lower", peer, how))
        if default_threads() >= 2:
            one, two = (case.ours_ms(True, n, 2 * repeats, time.perf_counter) for n in (1, 2))
            how = f"wall-clock forward+backward, one thread / two threads, best of {2 * repeats}; {case.how}"
            rows.append(row(f"two threads, {label}", one / two, "x", 1.6, "higher", 1.0, how))
    return rows


def print_table(rows: list[dict]) -> None:
    print(f"{'':36} {'ours':>10} {'peer':>10} {'ratio':>7} {'bar':>7}  met")
    for r in rows:
        peer, ratio, bar = (f"{r[k]:.1f}" if r[k] is not None else "" for k in ("peer", "ratio", "bar"))
        met = {True: "yes", False: "NO", None: ""}[r["met"]]
        print(f"{r['name']:36} {r['value']:8.2f} {r['unit']:2} {peer:>9} {ratio:>7} {bar:>7}  {met}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and views")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--splat", type=Path, help="a PLY of a room, of which each case takes a random part")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def splat_of(count: int) -> Splat:
        if options.splat is None:
            return made_room(count)
        whole = Splat.load(options.splat)
        part = whole.select(np.sort(np.random.default_rng(0).permutation(len(whole))[:count]))
        part.log_scales += np.float32(0.5 * np.log(len(whole) / len(part)))
        return part

    rows = measure(splat_of, options.quick)
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
