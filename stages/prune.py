# SPDX-License-Identifier: Apache-2.0
"""prune: the few Gaussians that make the picture, chosen by what each adds to the training photos, and refitted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.sim.gates import Gate
from real2sim.sim.render.rasterize import contributions
from real2sim.sim.render.splat import Splat
from real2sim.stages.contract import Progress, Result, above_zero, in_range
from real2sim.stages.splat_backend import choose_backend
from real2sim.stages.splat_evaluate import Scores, evaluate, write_png
from real2sim.stages.splat_gaussians import from_splat, to_splat
from real2sim.stages.splat_memory import keep_freed_memory
from real2sim.stages.splat_train import Backend, Plan, Rates, Trainer
from real2sim.stages.splat_views import (
    Views,
    depth_anchors,
    load_views,
    normalisation,
    read_points,
    training_cameras,
    training_size,
)

VERSION = "1"
JUDGES = 8  # training photos that a PSNR loss is measured on while searching for the smallest splat
SEARCH_STEPS = 7  # halvings of the range of ratios: to within 1%


@dataclass(frozen=True)
class Config:
    """Options of the stage prune."""

    ratio: float = 0.3  # share of the Gaussians that is kept, above 0, at most 1
    max_psnr_loss_db: float | None = None  # instead: keep as few as lose no more than this before refitting [dB]
    refit_steps: int = 300  # optimiser steps that the kept Gaussians get to make up for the others; 0: none
    backend: Literal["auto", "cpu", "gsplat"] = "auto"  # rasteriser, as for the stage splat
    seed: int = 0
    heldout_psnr_db: float = 22.0  # threshold of the gate pruned [dB]

    def __post_init__(self) -> None:
        above_zero(self, "ratio")
        in_range(self, 0, 1, "ratio")
        in_range(self, 0, float("inf"), "max_psnr_loss_db", "refit_steps")


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Prune and refit the splat; PSNR and SSIM on the held-out frames before, after pruning and after refitting."""
    backend, why = choose_backend(config.backend)
    progress.log(f"prune: rasteriser {backend} ({why})")
    keep_freed_memory()
    sfm, full = inputs["sfm"], Splat.load(inputs["splat"] / "splat.ply")
    factor = float(json.loads((inputs["splat"] / "heldout.json").read_text())["data_factor"])
    train, heldout, cameras = training_cameras(sfm)
    seen, judged = [cameras[i] for i in train], [cameras[i] for i in heldout]
    photos = load_views(sfm, judged, factor=factor, levels=1, device="cpu")

    scores = contribution(full, [training_size(c, factor) for c in seen], progress)
    ratio = config.ratio
    if config.max_psnr_loss_db is not None:
        ratio = _smallest_ratio(full, scores, sfm, seen, factor, config.max_psnr_loss_db, backend)
    kept = full.select(strongest(scores, ratio))
    before, pruned = evaluate(full, judged, photos, backend), evaluate(kept, judged, photos, backend)
    refitted = _refit(kept, sfm, seen, train, factor, config, backend, progress) if config.refit_steps else kept
    after = evaluate(refitted, judged, photos, backend)
    refitted.save(out / "splat.ply")
    _write_sheets(out / "renders", photos, before, after)
    metrics = _metrics(full, refitted, before, pruned, after)
    return Result(metrics, [_gate(after, config.heldout_psnr_db)], backend, [_summary(metrics)])


def _gate(after: Scores, threshold_db: float) -> Gate:
    """The gate `pruned`: what `heldout` asks of the whole splat, asked of the one that is handed over."""
    if not after.frames:
        return Gate.not_applicable("pruned", "no frame was held out")
    return Gate.measure(
        "pruned", after.psnr, threshold_db, bound="min", unit="dB",
        evidence=f"{len(after.frames)} frames never trained on, rendered from the Gaussians that are kept",
        advice="Too few Gaussians are left to show the scene: raise prune.ratio or prune.refit_steps.",
    )  # fmt: skip


def contribution(splat: Splat, cameras: Sequence[Camera], progress: Progress) -> NDArray[np.float64]:
    """What each Gaussian adds to the pictures of cameras (the splat's frame): the sum of its blend weights, [N].

    The weight of a Gaussian in a pixel is alpha times the transmittance in front of it, so a hidden one, a transparent
    one and one that is never in view all count little (Fan et al. 2023, Niemeyer et al. 2024).
    """
    total = np.zeros(len(splat))
    for i, camera in enumerate(cameras):
        total += contributions(splat, camera)[0]
        progress.update(i + 1, len(cameras), views=i + 1)
    return total


def strongest(scores: NDArray[np.float64], ratio: float) -> NDArray[np.int64]:
    """Ascending indices of the given share of the entries, at least one, those with the highest scores."""
    count = max(1, round(ratio * len(scores)))
    return np.sort(np.argsort(-scores, kind="stable")[:count])


def _smallest_ratio(
    full: Splat,
    scores: NDArray[np.float64],
    sfm: Path,
    cameras: list[Camera],
    factor: float,
    loss_db: float,
    backend: Backend,
) -> float:
    """By bisection, the smallest share that loses at most loss_db on some training photos.

    Held-out frames take no part: they judge the result.
    """
    some = cameras[:: max(1, len(cameras) // JUDGES)][:JUDGES]
    photos = load_views(sfm, some, factor=factor, levels=1, device="cpu")
    target = evaluate(full, some, photos, backend).psnr - loss_db
    low, high = 0.0, 1.0
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        enough = evaluate(full.select(strongest(scores, middle)), some, photos, backend).psnr >= target
        low, high = (low, middle) if enough else (middle, high)
    return high


def _refit(
    splat: Splat, sfm: Path, cameras: list[Camera], indices: list[int], factor: float, config: Config,
    backend: Backend, progress: Progress,
) -> Splat:  # fmt: skip
    """The same Gaussians, fitted to the training photos again for a few steps."""
    points = read_points(sfm).seen_by(indices)
    T_train_sfm = normalisation(cameras, points)
    device = "cuda" if backend == "gsplat" else "cpu"
    moved = [c.transformed(T_train_sfm) for c in cameras]
    anchors = depth_anchors(points, moved, T_train_sfm)
    views = load_views(sfm, moved, factor=factor, levels=1, device=device, anchors=anchors)
    trainer = Trainer(views, from_splat(splat, T_train_sfm), refit_plan(len(splat), splat.sh_degree, config), backend)
    trainer.run(progress, lambda: None)
    return to_splat(trainer.parameters, T_train_sfm)


def refit_plan(count: int, sh_degree: int, config: Config) -> Plan:
    """How the kept Gaussians are refitted: at full size, none added, from lower rates than training starts with."""
    return Plan(
        steps=config.refit_steps, cap=count, sh_degree=sh_degree, sh_every=1e-9, refine_until=0.0, seed=config.seed,
        rates=Rates(means=1e-4, means_end=1e-5),
    )  # fmt: skip


def _write_sheets(folder: Path, photos: Views, before: Scores, after: Scores) -> None:
    """One picture for each held-out frame: photo, render before, render after, side by side."""
    folder.mkdir()
    names = [c.name for c in photos.cameras]
    for frame, old, new in zip(after.frames, before.renders, after.renders):
        photo = (photos.at(names.index(frame.name)).target.numpy() * 255).round().astype(np.uint8)
        write_png(folder / f"{frame.name}.png", np.concatenate([photo, old, new], 1))


def _metrics(full: Splat, kept: Splat, before: Scores, pruned: Scores, after: Scores) -> dict[str, Any]:
    metrics: dict[str, Any] = {"total": len(full), "kept": len(kept), "ratio": len(kept) / len(full)}
    for name, scores in (("before", before), ("pruned", pruned), ("after", after)):
        metrics[f"psnr_{name}"] = scores.psnr if scores.frames else None
        metrics[f"ssim_{name}"] = scores.ssim if scores.frames else None
    if before.frames:
        metrics["psnr_kept_percent"] = 100 * after.psnr / before.psnr
        metrics["ssim_kept_percent"] = 100 * after.ssim / before.ssim
    metrics["frames"] = [f.name for f in after.frames]
    return metrics


def _summary(metrics: dict[str, Any]) -> str:
    text = f"kept {metrics['kept']:,} of {metrics['total']:,} Gaussians ({metrics['ratio']:.0%})"
    if metrics["psnr_before"] is None:
        return text + "; no frame was held out to measure the loss on"
    return (
        f"{text}: held-out PSNR {metrics['psnr_before']:.2f} -> {metrics['psnr_pruned']:.2f} -> "
        f"{metrics['psnr_after']:.2f} dB (before, pruned, refitted), SSIM {metrics['ssim_before']:.3f} -> "
        f"{metrics['ssim_after']:.3f}"
    )
