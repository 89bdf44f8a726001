# SPDX-License-Identifier: Apache-2.0
"""The trainer: Gaussians fitted to photos by gradient descent and MCMC, on any rasteriser, from any step on.

Kerbl et al. 2023 (the loss, the parametrisation), Kheradmand et al. 2024 (relocation, growth, noise, regularisers).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam

from real2sim.errors import Real2SimError
from real2sim.sim.render.rasterize import rasterize
from real2sim.stages.contract import Progress
from real2sim.stages.splat_gaussians import Parameters
from real2sim.stages.splat_loss import photometric_loss
from real2sim.stages.splat_mcmc import add_noise, grow, relocate
from real2sim.stages.splat_views import View, Views

Backend = Literal["cpu", "gsplat"]
RATE_NAMES = {"quats": "quats", "log_scales": "scales", "logit_opacities": "opacities", "sh0": "sh0", "shN": "shN"}
ADAM_EPS = 1e-15
RECORD_EVERY = 10  # steps between looks at the loss; reading it makes a GPU wait
SEEN = 0.5  # alpha from which a rendered depth says something
SMOOTHING = 0.05  # share of the newest loss in the running averages that are reported


@dataclass(frozen=True)
class Rates:
    """Learning rates of Adam; that of the means falls exponentially from `means` to `means_end` [viewing distances]."""

    means: float = 1.6e-3
    means_end: float = 1.6e-5
    quats: float = 2e-3
    scales: float = 3e-2
    opacities: float = 5e-2
    sh0: float = 1e-2
    shN: float = 1e-3


@dataclass(frozen=True)
class Plan:
    """All that a training run depends on besides the photos and the first Gaussians."""

    steps: int  # optimiser steps, one photo each
    cap: int  # most Gaussians
    sh_degree: int
    budget_s: float | None = None  # seconds; the schedule then follows whichever is further on, time or steps
    levels: tuple[tuple[float, int], ...] = ((1.0, 0),)  # until this share of the run, train on this level (0 full)
    sh_every: float = 0.15  # share of the run between raises of the harmonics' degree
    ssim_weight: float = 0.2
    depth_weight: float = 0.2  # of the mean relative depth error at sparse points in the loss
    opacity_weight: float = 0.01  # of the mean opacity in the loss
    scale_weight: float = 0.01  # of the mean scale [viewing distances] in the loss
    refinements: int = 60  # times in a run that the dead are relocated and new ones arrive
    refine_from: float = 0.04  # shares of the run between which Gaussians move and grow; 0, 0: never
    refine_until: float = 0.8
    growth: float = 0.05  # most new Gaussians at one time, as a share of those that are there
    noise: float = 80.0  # of the centres, per covariance, at the start; falls with the means' rate
    seed: int = 0
    rates: Rates = field(default_factory=Rates)


class Trainer:
    """A training run after any number of steps: parameters, moments, generators and counters (see `state`)."""

    def __init__(self, views: Views, parameters: Parameters, plan: Plan, backend: Backend):
        self.views, self.plan, self.backend = views, plan, backend
        self.device = "cuda" if backend == "gsplat" else "cpu"
        self.parameters = {k: v.to(self.device) for k, v in parameters.items()}
        self.moments = [{k: torch.zeros_like(v) for k, v in self.parameters.items()} for _ in range(2)]
        self.step = 0
        self.seconds = 0.0
        self.order: list[int] = []
        self.shuffle = torch.Generator().manual_seed(plan.seed)
        self.random = torch.Generator(self.device).manual_seed(plan.seed + 1)
        self.loss = self.squared_error = float("nan")
        self.history: list[dict[str, float]] = []

    @property
    def share_done(self) -> float:
        """How far the run is, 0 to 1: by steps, or by seconds where a budget is set and spent faster."""
        by_steps = self.step / self.plan.steps
        return min(1.0, by_steps if self.plan.budget_s is None else max(by_steps, self.seconds / self.plan.budget_s))

    @property
    def count(self) -> int:
        return len(self.parameters["means"])

    def run(self, progress: Progress, after_step: Callable[[], None]) -> None:
        """Train until the plan is done; after_step is called between steps, when the state is whole."""
        while self.share_done < 1:
            started = time.monotonic()
            self._train_step()
            self.seconds += time.monotonic() - started
            if self.step % RECORD_EVERY == 0:
                self._report(progress)
            after_step()

    def _train_step(self) -> None:
        share = self.share_done
        level = next((level for until, level in self.plan.levels if share < until), 0)
        view = self.views.at(self._next_view(), level)
        for values in self.parameters.values():
            values.requires_grad_(True)
        rgb, depth, alpha = self._render(view, min(self.plan.sh_degree, int(share / self.plan.sh_every)))
        loss = photometric_loss(rgb, view.target, view.keep, self.plan.ssim_weight)
        (loss + self._depth_loss(view, depth, alpha) + self._regularisers()).backward()
        self.step += 1
        if self.step % RECORD_EVERY == 0 or self.step == 1:
            self._record(loss, rgb, view)
        self._descend(share)
        self._refine(share)

    def _next_view(self) -> int:
        if not self.order:
            shown = self.views.shown()
            self.order = [shown[i] for i in torch.randperm(len(shown), generator=self.shuffle).tolist()]
        return self.order.pop()

    def _render(self, view: View, degree: int) -> tuple[Tensor, Tensor, Tensor]:
        """rgb [H, W, 3], depth [H, W], alpha [H, W]."""
        p = self.parameters
        width, height = view.size
        rgb, depth, alpha = rasterize(
            p["means"], torch.nn.functional.normalize(p["quats"], dim=-1), p["log_scales"].exp(),
            p["logit_opacities"].sigmoid(), torch.cat([p["sh0"], p["shN"][:, : (degree + 1) ** 2 - 1]], 1),
            view.viewmat[None], view.K[None], width, height, sh_degree=degree, backend=self.backend,
        )  # fmt: skip
        return rgb[0], depth[0], alpha[0]

    def _depth_loss(self, view: View, depth: Tensor, alpha: Tensor) -> Tensor | float:
        """Mean relative depth error where the photo saw sparse points; photos alone leave depth loose along the rays.

        Deng et al. 2022 (DS-NeRF), here with the depth that the rasteriser blends.
        """
        if view.anchors is None or not self.plan.depth_weight:
            return 0.0
        row, column, known = view.anchors
        seen = alpha.detach()[row, column] > SEEN
        if not bool(seen.any()):
            return 0.0
        return self.plan.depth_weight * ((depth[row, column] - known).abs() / known)[seen].mean()

    def _regularisers(self) -> Tensor:
        opacity = self.plan.opacity_weight * self.parameters["logit_opacities"].sigmoid().mean()
        return opacity + self.plan.scale_weight * self.parameters["log_scales"].exp().mean()

    def _means_rate(self, share: float) -> float:
        rates = self.plan.rates
        return rates.means * (rates.means_end / rates.means) ** share

    @torch.no_grad()
    def _descend(self, share: float) -> None:
        """One step of Adam (Kingma & Ba 2015), fused; takes the gradients off."""
        for name, values in self.parameters.items():
            if values.grad is None or values.numel() == 0:
                continue
            rate = self._means_rate(share) if name == "means" else getattr(self.plan.rates, RATE_NAMES[name])
            self._adam(values, values.grad, [m[name] for m in self.moments], rate)
            values.grad = None

    def _adam(self, values: Tensor, gradient: Tensor, moments: list[Tensor], rate: float) -> None:
        steps = [torch.tensor(float(self.step - 1), device=self.device)]
        adam([values], [gradient], [moments[0]], [moments[1]], [], steps, fused=True, amsgrad=False, beta1=0.9,
             beta2=0.999, lr=rate, weight_decay=0.0, eps=ADAM_EPS, maximize=False)  # fmt: skip

    def _refine(self, share: float) -> None:
        plan = self.plan
        if not plan.refine_from <= share < plan.refine_until:
            return
        for values in self.parameters.values():
            values.requires_grad_(False)
        if self.step % max(1, plan.steps // plan.refinements) == 0:
            relocate(self.parameters, self.moments, self.random)
            new = min(plan.cap - self.count, int(plan.growth * self.count))
            if new > 0:
                self.parameters, self.moments = grow(self.parameters, self.moments, new, self.random)
        add_noise(self.parameters, plan.noise * self._means_rate(share) / plan.rates.means, self.random)

    @torch.no_grad()
    def _record(self, loss: Tensor, rgb: Tensor, view: View) -> None:
        squared = (rgb - view.target) ** 2
        mse = float((squared if view.keep is None else squared[view.keep]).mean())
        value = float(loss)
        if value != value:
            raise Real2SimError(
                f"Training lost its footing at step {self.step}: the loss is not a number any more. Run again with "
                "another splat.seed; if it comes back, look for cameras that sfm has placed wrongly."
            )
        first = self.loss != self.loss
        self.loss = value if first else self.loss + SMOOTHING * (value - self.loss)
        self.squared_error = mse if first else self.squared_error + SMOOTHING * (mse - self.squared_error)

    def _report(self, progress: Progress) -> None:
        row = {
            "step": self.step,
            "loss": round(self.loss, 5),
            "psnr": round(-10 * float(torch.tensor(self.squared_error).log10()), 2),
            "gaussians": self.count,
        }
        if self.step % (5 * RECORD_EVERY) == 0:
            self.history.append(row)  # without seconds: equal runs give equal bytes
        shown = {k: v for k, v in row.items() if k != "step"}
        progress.update(self.share_done, 1.0, **shown)

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on, for a checkpoint."""
        return {
            "parameters": {k: v.detach() for k, v in self.parameters.items()},
            "moments": self.moments,
            "step": self.step, "seconds": self.seconds, "order": self.order,
            "shuffle": self.shuffle.get_state(), "random": self.random.get_state(),
            "loss": self.loss, "squared_error": self.squared_error, "history": self.history,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        self.parameters = {k: v.to(self.device) for k, v in state["parameters"].items()}
        self.moments = [{k: v.to(self.device) for k, v in m.items()} for m in state["moments"]]
        self.shuffle.set_state(state["shuffle"])
        self.random.set_state(state["random"])
        for name in ("step", "seconds", "order", "loss", "squared_error", "history"):
            setattr(self, name, state[name])
        if self.count > self.plan.cap:
            kept = self.parameters["logit_opacities"].topk(self.plan.cap).indices.sort().values
            self.parameters, *self.moments = (
                {k: v[kept].clone() for k, v in group.items()} for group in (self.parameters, *self.moments)
            )
