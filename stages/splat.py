# SPDX-License-Identifier: Apache-2.0
"""splat: posed photos become 3D Gaussians, judged on photos that were held out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from real2sim.errors import TransientError
from real2sim.sim.cameras import Camera
from real2sim.sim.transforms import Similarity
from real2sim.stages import splat_checkpoint
from real2sim.stages.contract import Progress, Result, above_zero, in_range
from real2sim.stages.splat_backend import choose_backend
from real2sim.stages.splat_evaluate import Scores, evaluate, heldout_gate, write_png
from real2sim.stages.splat_gaussians import first_gaussians, to_splat
from real2sim.stages.splat_memory import available_bytes, cap_within, estimate, keep_freed_memory
from real2sim.stages.splat_train import Backend, Plan, Rates, Trainer
from real2sim.stages.splat_views import (
    depth_anchors,
    load_views,
    normalisation,
    read_points,
    training_cameras,
    training_size,
)

VERSION = "1"
LONG_SIDE_PX = {"cpu": 1280, "gsplat": 1600}  # larger photos are reduced, where data_factor is not set
STEPS = {"cpu": 2400, "gsplat": 7000}
RATES = {  # measured: few steps on the CPU want large ones, on CUDA those of 3DGS lose less on views never seen
    "cpu": Rates(),
    "gsplat": Rates(means=1.6e-4, means_end=1.6e-6, quats=1e-3, scales=5e-3, sh0=2.5e-3, shN=1.25e-4),
}
PIXELS_PER_GAUSSIAN = 150  # of all photos together, on CUDA: more Gaussians than that learn the photos by heart
CAP_AFTER_OOM = "cap.json"
LESS_AFTER_OOM = 0.7
COARSEST_PX = 160  # long side of the smallest photos that coarse-to-fine trains on
FIRST_SHARE = 1.0  # of the cap, that training starts with
FIRST_OPACITY = 0.5


@dataclass(frozen=True)
class Config:
    """Options of the stage splat. None: chosen for the device and the photos, and said before training starts."""

    backend: Literal["auto", "cpu", "gsplat"] = "auto"  # rasteriser; auto: gsplat where a CUDA device runs it
    steps: int | None = None  # optimiser steps, one photo each; None: 2400 on the CPU, 7000 on CUDA
    budget_s: float | None = None  # [s] that training may take; it then varies with the speed of the machine
    cap: int | None = None  # most Gaussians; None: see default_cap; less in any case where memory is short
    sh_degree: int = 3  # of the view-dependent colour, 0 to 3
    data_factor: float | None = None  # photos are reduced by this; None: to a long side of LONG_SIDE_PX
    coarse_to_fine: bool = True  # start on reduced photos (on the CPU)
    seed: int = 0
    checkpoint_s: float = 60.0  # time between checkpoints [s]
    heldout_psnr_db: float = 22.0  # threshold of the gate heldout [dB]

    def __post_init__(self) -> None:
        above_zero(self, "steps", "budget_s", "cap", "data_factor")
        in_range(self, 0, 3, "sh_degree")
        in_range(self, 0, float("inf"), "checkpoint_s")


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Train a splat on the sfm artifact, write it in the sfm frame, and judge it on the held-out frames.

    Raises CaptureError when there is too little to train on, TransientError when memory runs out: the next run with the
    same scratch goes on from the last checkpoint with fewer Gaussians.
    """
    sfm = inputs["sfm"]
    backend, why = choose_backend(config.backend)
    progress.log(f"splat: rasteriser {backend} ({why})")
    train, heldout, cameras = training_cameras(sfm)
    factor = config.data_factor or max(1.0, max(max(c.width, c.height) for c in cameras) / LONG_SIDE_PX[backend])
    plan, needs = _plan(config, backend, [training_size(c, factor) for c in cameras], scratch)
    progress.log(f"splat: {needs}")
    keep_freed_memory()
    trainer, T_train_sfm = _trainer(sfm, [cameras[i] for i in train], train, plan, backend, factor)
    resumed = splat_checkpoint.resume(trainer, scratch)
    progress.log(f"splat: {resumed}; {len(train)} photos, {plan.steps} steps, {trainer.count:,} Gaussians")
    _train(trainer, config, scratch, progress)

    splat = to_splat(trainer.parameters, T_train_sfm)
    splat.save(out / "splat.ply")
    judged = [cameras[i] for i in heldout]
    scores = evaluate(splat, judged, load_views(sfm, judged, factor=factor, levels=1, device="cpu"), backend)
    _write(out, scores, factor, trainer)
    metrics = {
        "psnr": scores.psnr if scores.frames else None,
        "ssim": scores.ssim if scores.frames else None,
        "gaussians": len(splat),
        "steps": trainer.step,
        "cap": plan.cap,
        "sh_degree": plan.sh_degree,
        "data_factor": factor,
        "training_frames": len(train),
        "heldout_frames": len(scores.frames),
        "training_seconds": round(trainer.seconds, 1),
    }
    return Result(metrics, [heldout_gate(scores, config.heldout_psnr_db)], backend, [needs, resumed])


def _plan(config: Config, backend: Backend, cameras: list[Camera], scratch: Path) -> tuple[Plan, str]:
    """The plan of a run on these cameras (training sizes), and its memory estimate in words."""
    pixels = [c.width * c.height for c in cameras]
    memory = estimate(pixels, any(c.mask for c in cameras), config.sh_degree, available_bytes(backend))
    wanted = config.cap or default_cap(backend, pixels)
    earlier = scratch / CAP_AFTER_OOM
    if earlier.exists():
        wanted = min(wanted, int(json.loads(earlier.read_text())["cap"]))
    cap = cap_within(wanted, memory)
    coarse = config.coarse_to_fine and backend == "cpu"
    plan = Plan(
        steps=config.steps or STEPS[backend],
        cap=cap,
        sh_degree=config.sh_degree,
        budget_s=config.budget_s,
        levels=coarse_levels(max(max(c.width, c.height) for c in cameras)) if coarse else ((1.0, 0),),
        seed=config.seed,
        rates=RATES[backend],
    )
    return plan, memory.describe(cap)


def default_cap(backend: Backend, pixels: list[int]) -> int:
    """Most Gaussians by default, for photos of these sizes [px]: on the CPU what pays for itself in minutes."""
    if backend == "gsplat":
        return int(min(1_000_000, max(20_000, sum(pixels) / PIXELS_PER_GAUSSIAN)))
    return int(min(60_000, max(2_000, 0.13 * max(pixels))))


def coarse_levels(long_side: int) -> tuple[tuple[float, int], ...]:
    """Which level to train on until which share of the run: quarter and half size first, where they show anything."""
    if long_side < 2 * COARSEST_PX:
        return ((1.0, 0),)
    if long_side < 4 * COARSEST_PX:
        return ((0.4, 1), (1.0, 0))
    return ((0.25, 2), (0.6, 1), (1.0, 0))


def _trainer(
    sfm: Path, cameras: list[Camera], indices: list[int], plan: Plan, backend: Backend, factor: float
) -> tuple[Trainer, Similarity]:
    """A trainer at step 0 on the training cameras, and T_train_sfm."""
    points = read_points(sfm).seen_by(indices)
    T_train_sfm = normalisation(cameras, points)
    levels = 1 + max(level for _, level in plan.levels)
    moved = [c.transformed(T_train_sfm) for c in cameras]
    device = "cuda" if backend == "gsplat" else "cpu"
    anchors = depth_anchors(points, moved, T_train_sfm)
    views = load_views(sfm, moved, factor=factor, levels=levels, device=device, anchors=anchors)
    count = min(plan.cap, max(len(points.xyz), int(FIRST_SHARE * plan.cap)))
    first = first_gaussians(
        points, views, T_train_sfm, count=count, opacity=FIRST_OPACITY, sh_degree=plan.sh_degree, seed=plan.seed
    )
    return Trainer(views, first, plan, backend), T_train_sfm


def _train(trainer: Trainer, config: Config, scratch: Path, progress: Progress) -> None:
    """Run to the end with checkpoints; an interruption leaves one, lack of memory leaves a lower cap."""
    try:
        with splat_checkpoint.interrupts_deferred() as asked:
            keeper = splat_checkpoint.Keeper(trainer, scratch, config.checkpoint_s, asked)
            trainer.run(progress, keeper)
    except KeyboardInterrupt:
        splat_checkpoint.save(trainer, scratch)
        progress.log(f"splat: interrupted at step {trainer.step}; run again to go on from there")
        raise
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        cap = int(LESS_AFTER_OOM * trainer.count)
        (scratch / CAP_AFTER_OOM).write_text(json.dumps({"cap": cap}))
        raise TransientError(
            f"Memory ran out at step {trainer.step} with {trainer.count:,} Gaussians ({error}). Run again: training "
            f"goes on from the last checkpoint with at most {cap:,}. Close other programs that use the device, or set "
            "splat.data_factor higher, if it comes back."
        ) from error
    splat_checkpoint.save(trainer, scratch)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or of a rasteriser says that memory ran out."""
    text = str(error).lower()
    return isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or any(
        phrase in text for phrase in ("out of memory", "can't allocate memory", "bad_alloc")
    )


def _write(out: Path, scores: Scores, factor: float, trainer: Trainer) -> None:
    (out / "renders").mkdir()
    for frame, picture in zip(scores.frames, scores.renders):
        write_png(out / "renders" / f"{frame.name}.png", picture)
    (out / "heldout.json").write_text(json.dumps({**scores.to_json(), "data_factor": factor}, indent=1))
    (out / "history.json").write_text(json.dumps(trainer.history, indent=1))
