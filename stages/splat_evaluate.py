# SPDX-License-Identifier: Apache-2.0
"""How well a splat shows photos that it was not trained on, and the pictures that let a person see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.sim.gates import Gate
from real2sim.sim.render.rasterize import render
from real2sim.sim.render.splat import Splat
from real2sim.stages.splat_loss import psnr, ssim
from real2sim.stages.splat_views import Views


@dataclass(frozen=True)
class FrameScore:
    """Of one frame: raw PSNR [dB] and SSIM over the pixels that no mask excludes."""

    name: str
    psnr: float
    ssim: float


@dataclass(frozen=True)
class Scores:
    """Of several frames, with the renders [H, W, 3] uint8 that were judged."""

    frames: list[FrameScore]
    renders: list[NDArray[np.uint8]]

    @property
    def psnr(self) -> float:
        """Mean over the frames [dB]; NaN where there is none."""
        return float(np.mean([f.psnr for f in self.frames])) if self.frames else float("nan")

    @property
    def ssim(self) -> float:
        return float(np.mean([f.ssim for f in self.frames])) if self.frames else float("nan")

    def to_json(self) -> dict[str, Any]:
        scored = bool(self.frames)
        return {
            "frames": [asdict(f) for f in self.frames],
            "psnr": self.psnr if scored else None,
            "ssim": self.ssim if scored else None,
        }


def evaluate(splat: Splat, cameras: Sequence[Camera], views: Views, backend: Literal["cpu", "gsplat"]) -> Scores:
    """Render the splat from cameras (its own frame) and compare with the photos of views, one for each camera."""
    frames, renders = [], []
    for i, camera in enumerate(cameras):
        view = views.at(i)
        keep = None if view.keep is None else view.keep.cpu()
        if keep is not None and not keep.any():
            continue
        width, height = view.size
        rgb = np.clip(render(splat, camera.resized(width, height), backend=backend)["rgb"], 0, 1)
        shown, target = torch.from_numpy(np.ascontiguousarray(rgb, np.float32)), view.target.cpu()
        frames.append(FrameScore(camera.name, psnr(shown, target, keep), ssim(shown, target, keep)))
        renders.append(np.round(rgb * 255).astype(np.uint8))
    return Scores(frames, renders)


def write_png(path: Path, rgb: NDArray[np.uint8]) -> None:
    """Write an RGB picture [H, W, 3]."""
    cv2.imwrite(str(path), np.ascontiguousarray(rgb[..., ::-1]))


def heldout_gate(scores: Scores, threshold_db: float) -> Gate:
    """The gate `heldout`: mean raw PSNR over frames that training never saw."""
    if not scores.frames:
        return Gate(
            "heldout", None, threshold_db, False, "no frame was held out, so nothing can vouch for the splat",
            "Hold out frames (sfm.heldout_every), or bring more photos.", "dB",
        )  # fmt: skip
    worst = min(scores.frames, key=lambda f: f.psnr)
    names = ", ".join(f"{f.name} {f.psnr:.1f}" for f in scores.frames)
    advice = (
        f"The splat does not show held-out frames well; the worst is {worst.name} ({worst.psnr:.1f} dB): look at "
        "renders/ beside the photo. Blurred there: take sharper photos, closer together around that view. Ghosts or "
        "streaks: something moved, or poses are wrong; mask what moved. Brighter or darker as a whole: lock the "
        "camera's exposure. Sharp but coarse: raise splat.steps or splat.cap."
    )
    return Gate.measure(
        "heldout", scores.psnr, threshold_db, bound="min", unit="dB", advice=advice,
        evidence=f"{len(scores.frames)} frames never trained on, worst {worst.name} {worst.psnr:.1f} dB: {names} dB",
    )  # fmt: skip
