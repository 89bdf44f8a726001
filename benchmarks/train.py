# SPDX-License-Identifier: Apache-2.0
"""Splat training beside gsplat's: same photos, poses, points, split, size and most Gaussians; PSNR on unseen photos.

`python -m benchmarks.train CAPTURE... [--steps 7000] [--cap N] [--json FILE] [--folder DIR]` runs the product's command
on each capture (rasteriser gsplat), then trains on its sfm artifact with gsplat's own `rasterization` and `MCMCStrategy`
in a loop that follows the settings of `examples/simple_trainer.py mcmc` of gsplat 1.5.3: as they are, and with its steps
scaled to the length of the run (its option steps_scaler). The better of the two is the peer. One evaluation judges all.
The quality needs a CUDA device; `--backend cpu` trains the product's part only, to try the command.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree

from benchmarks.first_stages import write_rows
from real2sim.flows.store import Store
from real2sim.sim.cameras import Camera
from real2sim.sim.transforms import Similarity
from real2sim.stages.splat_evaluate import evaluate
from real2sim.stages.splat_gaussians import SH_C0, Parameters, to_splat
from real2sim.stages.splat_loss import photometric_loss
from real2sim.stages.splat_views import Views, load_views, read_points, training_cameras

WITHIN_DB = 0.3
EXAMPLE_STEPS = 30_000  # that the example's settings are made for


@dataclass(frozen=True)
class Example:
    """Settings of gsplat 1.5.3, examples/simple_trainer.py, preset mcmc. scaler: its steps_scaler."""

    scaler: float = 1.0
    init_opacity: float = 0.5
    init_scale: float = 0.1
    ssim_weight: float = 0.2
    opacity_reg: float = 0.01
    scale_reg: float = 0.01
    sh_degree: int = 3
    sh_every: int = 1000
    means_rate: float = 1.6e-4  # times the scene's scale
    means_end: float = 0.01  # of that rate, at the end
    rates: tuple[tuple[str, float], ...] = (
        ("log_scales", 5e-3), ("quats", 1e-3), ("logit_opacities", 5e-2), ("sh0", 2.5e-3), ("shN", 2.5e-3 / 20),
    )  # fmt: skip
    refine_start: int = 500
    refine_stop: int = 25_000
    refine_every: int = 100


def normalised(cameras: Sequence[Camera]) -> Similarity:
    """The example's normalisation but for its rotation: focus of the views at the origin, median distance 1."""
    centres = np.array([c.centre for c in cameras])
    axes = np.array([c.T_world_cam[:3, 2] for c in cameras])
    nearest = centres + ((-centres * axes).sum(1))[:, None] * axes
    focus = np.median(nearest, 0)
    size = float(np.median(np.linalg.norm(centres - focus, axis=1)))
    return Similarity(1 / size, np.eye(3), -focus / size)


def first(xyz: np.ndarray, rgb: np.ndarray, s: Example) -> Parameters:
    """The example's Gaussians at the sparse points: round, a tenth of their spacing, random turns."""
    generator = torch.Generator().manual_seed(42)
    distance, _ = cKDTree(xyz).query(xyz, 4)
    scale = np.sqrt((distance[:, 1:] ** 2).mean(1)) * s.init_scale
    n = len(xyz)
    return {
        "means": torch.tensor(xyz, dtype=torch.float32),
        "log_scales": torch.tensor(np.log(np.maximum(scale, 1e-9)), dtype=torch.float32)[:, None].repeat(1, 3),
        "quats": torch.rand((n, 4), generator=generator),
        "logit_opacities": torch.full((n,), float(np.log(s.init_opacity / (1 - s.init_opacity)))),
        "sh0": torch.tensor((rgb / 255 - 0.5) / SH_C0, dtype=torch.float32)[:, None],
        "shN": torch.zeros((n, (s.sh_degree + 1) ** 2 - 1, 3)),
    }


def train_example(views: Views, start: Parameters, size: float, steps: int, cap: int, s: Example) -> Parameters:
    """The example's loop. views: training photos in the normalised frame, on the device; size: its scene scale."""
    from gsplat import MCMCStrategy, rasterization

    torch.manual_seed(42)
    names = {"log_scales": "scales", "logit_opacities": "opacities"}  # as the strategy knows them
    params = torch.nn.ParameterDict({names.get(k, k): torch.nn.Parameter(v.cuda()) for k, v in start.items()})
    rates = {"means": s.means_rate * size, **{names.get(k, k): v for k, v in s.rates}}
    optimisers = {k: torch.optim.Adam([{"params": params[k], "lr": r, "name": k}], eps=1e-15) for k, r in rates.items()}
    fading = torch.optim.lr_scheduler.ExponentialLR(optimisers["means"], gamma=s.means_end ** (1 / steps))
    strategy = MCMCStrategy(
        cap_max=cap,
        refine_start_iter=int(s.refine_start * s.scaler),
        refine_stop_iter=int(s.refine_stop * s.scaler),
        refine_every=max(1, int(s.refine_every * s.scaler)),
    )
    strategy.check_sanity(params, optimisers)
    state = strategy.initialize_state()
    order: list[int] = []
    for step in range(steps):
        order = order or torch.randperm(len(views)).tolist()
        view = views.at(order.pop())
        degree = min(step // max(1, int(s.sh_every * s.scaler)), s.sh_degree)
        width, height = view.size
        rgb, _, info = rasterization(
            params["means"], params["quats"], params["scales"].exp(), params["opacities"].sigmoid(),
            torch.cat([params["sh0"], params["shN"]], 1), view.viewmat[None], view.K[None], width, height,
            sh_degree=degree, packed=False, near_plane=0.01, far_plane=1e10, render_mode="RGB",
        )  # fmt: skip
        strategy.step_pre_backward(params, optimisers, state, step, info)
        loss = photometric_loss(rgb[0], view.target, view.keep, s.ssim_weight)
        loss = loss + s.opacity_reg * params["opacities"].sigmoid().mean() + s.scale_reg * params["scales"].exp().mean()
        loss.backward()
        for optimiser in optimisers.values():
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        rate = fading.get_last_lr()[0]
        fading.step()
        strategy.step_post_backward(params, optimisers, state, step, info, lr=rate)
    back = {v: k for k, v in names.items()}
    return {back.get(k, k): v.detach() for k, v in params.items()}


def peer(sfm: Path, factor: float, steps: int, cap: int, s: Example) -> dict[str, Any]:
    """Train the example on an sfm artifact and judge it: {"psnr", "ssim", "gaussians", "seconds"}."""
    train, heldout, cameras = training_cameras(sfm)
    T = normalised([cameras[i] for i in train])
    points = read_points(sfm)
    moved = [cameras[i].transformed(T) for i in train]
    views = load_views(sfm, moved, factor=factor, levels=1, device="cuda")
    centres = np.array([c.centre for c in moved])
    size = 1.1 * float(np.linalg.norm(centres - centres.mean(0), axis=1).max())
    begun = time.perf_counter()
    trained = train_example(views, first(T.apply(points.xyz), points.rgb, s), size, steps, cap, s)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    judged = [cameras[i] for i in heldout]
    photos = load_views(sfm, judged, factor=factor, levels=1, device="cpu")
    scores = evaluate(to_splat(trained, T), judged, photos, "gsplat")
    count = len(trained["means"])
    return {"psnr": scores.psnr, "ssim": scores.ssim, "gaussians": count, "seconds": round(seconds, 1)}


def product(capture: Path, run: Path, steps: int, cap: int | None, backend: str) -> dict[str, Any]:
    """The product's own command on a capture, and what its summary says."""
    options = [f"splat.backend={backend}", f"splat.steps={steps}", *([f"splat.cap={cap}"] if cap else [])]
    words = [sys.executable, "-m", "real2sim.cli", "reconstruct", str(capture), "--out", str(run)]
    begun = time.perf_counter()
    code = subprocess.run([*words, *(w for o in options for w in ("--set", o))], check=False).returncode
    summary = json.loads((run / "summary.json").read_text())
    return {"exit_code": code, "wall_s": round(time.perf_counter() - begun, 1), "summary": summary}


def artifact(run: Path, summary: dict[str, Any], stage: str) -> Path | None:
    """The folder of a stage's artifact in the store beside a run."""
    row = next((s for s in summary["stages"] if s["stage"] == stage), None)
    if row is None:
        return None
    found = Store(run.parent / ".real2sim").find(stage, row["key"], lambda why: None)
    return found.path if found else None


def compare(capture: Path, folder: Path, steps: int, cap: int | None, backend: str) -> dict[str, Any]:
    """One capture's row."""
    run = folder / capture.name
    ours = product(capture, run, steps, cap, backend)
    row: dict[str, Any] = {"capture": capture.name, "steps": steps, "product": ours}
    sfm, splat = (artifact(run, ours["summary"], name) for name in ("sfm", "splat"))
    if sfm is None or splat is None:
        return row
    metrics = json.loads((splat / "manifest.json").read_text())["metrics"]
    row["ours"] = metrics
    if backend == "gsplat":
        for name, scaler in (("example", 1.0), ("example, steps scaled", steps / EXAMPLE_STEPS)):
            row[name] = peer(sfm, metrics["data_factor"], steps, metrics["cap"], Example(scaler=scaler))
    return row


def figures(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The benchmark's figures of all captures."""
    told = []
    for row in rows:
        peers = [row[name] for name in ("example", "example, steps scaled") if name in row]
        if peers and row["ours"]["psnr"] is not None:
            best = max(peers, key=lambda p: p["psnr"])
            behind = best["psnr"] - row["ours"]["psnr"]
            told.append({
                "name": f"{row['capture']}.psnr", "value": round(row["ours"]["psnr"], 3), "unit": "dB",
                "bar": round(best["psnr"] - WITHIN_DB, 3), "direction": "up", "peer": round(best["psnr"], 3),
                "ratio": None, "met": behind <= WITHIN_DB,
                "how": f"held-out photos after {row['steps']} steps, at most {row['ours']['cap']} Gaussians; training"
                f" {row['ours']['training_seconds']} s, gsplat's example {best['seconds']} s; the whole command"
                f" {row['product']['wall_s']} s",
            })  # fmt: skip
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captures", type=Path, nargs="+")
    parser.add_argument("--steps", type=int, default=7000)
    parser.add_argument("--cap", type=int, help="most Gaussians; by default the product's own choice, for both")
    parser.add_argument("--backend", choices=("gsplat", "cpu"), default="gsplat")
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    parser.add_argument("--json", type=Path, help="write figures and rows here")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="train-") as scratch:
        for capture in asked.captures:
            rows.append(
                compare(capture.absolute(), asked.folder or Path(scratch), asked.steps, asked.cap, asked.backend)
            )
            write_rows(asked.json, [*figures(rows), {"rows": rows}])
    for line in figures(rows):
        met = "met" if line["met"] else "MISSED"
        print(f"{line['name']}: {line['value']} dB, peer {line['peer']} dB, {met}; {line['how']}")


if __name__ == "__main__":
    main()
