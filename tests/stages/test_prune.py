# SPDX-License-Identifier: Apache-2.0
"""Pruning: what adds least goes first, the loss is measured on held-out frames, and refitting wins it back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from splat_scene import HEIGHT, WIDTH, Recorder, orbit, read_png, true_splat, write_sfm

from real2sim.sim.render.splat import Splat
from real2sim.stages import prune, splat
from real2sim.stages.contract import Result

ALLOWED_LOSS_DB = 1.5
DUPLICATED = 400  # hidden and transparent Gaussians that are added to a splat and must go first


def run(sfm: Path, trained: Path, work: Path, config: prune.Config) -> Result:
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)
    (work / "scratch").mkdir()
    return prune.run({"sfm": sfm, "splat": trained}, config, work / "out", work / "scratch", Recorder())


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Pictures of this size are not worth a second thread, which only waits where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def sfm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sfm(tmp_path_factory.mktemp("scene") / "sfm")


@pytest.fixture(scope="module")
def trained(sfm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, scratch = tmp_path_factory.mktemp("splat"), tmp_path_factory.mktemp("scratch")
    splat.run(
        {"sfm": sfm},
        splat.Config(backend="cpu", steps=250, cap=1200, sh_degree=1),
        out,
        scratch,
        Recorder(),
    )
    return out


@pytest.fixture(scope="module")
def pruned(sfm: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    work = tmp_path_factory.mktemp("prune")
    return work, run(sfm, trained, work, prune.Config(backend="cpu", refit_steps=150))


def cluttered() -> Splat:
    """The true splat, then as many transparent Gaussians in view, and opaque ones inside the opaque ball."""
    truth = true_splat()
    transparent = truth.select(np.arange(DUPLICATED // 2))
    transparent.logit_opacities[:] = -5
    hidden = truth.select(np.arange(DUPLICATED // 2))
    hidden.means *= 0.1
    hidden.log_scales[:] = np.log(0.02)
    parts = (truth, transparent, hidden)
    return Splat(**{f: np.concatenate([getattr(p, f) for p in parts]) for f in Splat.__dataclass_fields__})


def test_transparent_and_hidden_gaussians_contribute_least():
    scores = prune.contribution(cluttered(), orbit(), Recorder())
    seen = scores[: len(true_splat())]
    clutter = scores[len(true_splat()) :]
    assert clutter.max() < np.median(seen)
    assert scores.sum() == pytest.approx(WIDTH * HEIGHT * len(orbit()), rel=0.05)  # weights of a pixel add up to alpha


def test_strongest_keeps_the_share_and_the_order():
    kept = prune.strongest(np.array([0.1, 5.0, 0.0, 3.0, 4.0]), 0.6)
    assert kept.tolist() == [1, 3, 4]
    assert len(prune.strongest(np.zeros(1000), 1e-9)) == 1


def test_default_ratio_is_kept(pruned, trained):
    work, result = pruned
    total = len(Splat.load(trained / "splat.ply"))
    kept = len(Splat.load(work / "out" / "splat.ply"))
    assert kept == round(0.3 * total) == result.metrics["kept"]
    assert result.metrics["ratio"] == pytest.approx(kept / total)


def test_the_gate_judges_what_is_handed_over(sfm, trained, tmp_path, pruned):
    good = pruned[1].gates[0]
    assert good.name == "pruned" and good.value == pruned[1].metrics["psnr_after"]
    gone = run(sfm, trained, tmp_path, prune.Config(backend="cpu", ratio=0.005, refit_steps=0)).gates[0]
    assert not gone.passed and gone.value < good.value - 3


def test_refitting_wins_back_what_pruning_lost(pruned):
    metrics = pruned[1].metrics
    assert metrics["psnr_pruned"] < metrics["psnr_after"]
    assert metrics["psnr_after"] > metrics["psnr_before"] - ALLOWED_LOSS_DB
    assert metrics["psnr_kept_percent"] == pytest.approx(100 * metrics["psnr_after"] / metrics["psnr_before"])


def test_sheets_show_photo_before_and_after(pruned, sfm):
    work, result = pruned
    assert result.metrics["frames"]
    for name in result.metrics["frames"]:
        sheet = read_png(work / "out" / "renders" / f"{name}.png")
        photo = read_png(sfm / "images" / f"{name}.png")
        assert sheet.shape == (HEIGHT, 3 * WIDTH, 3)
        assert np.array_equal(sheet[:, :WIDTH], photo)


def test_contribution_beats_a_random_choice(sfm, trained, tmp_path, pruned):
    full = Splat.load(trained / "splat.ply")
    rng = np.random.default_rng(0)
    chance = tmp_path / "chance"
    shutil.copytree(trained, chance)
    full.select(np.sort(rng.choice(len(full), round(0.3 * len(full)), replace=False))).save(chance / "splat.ply")
    random = run(sfm, chance, tmp_path / "work", prune.Config(backend="cpu", ratio=1.0, refit_steps=0)).metrics
    assert pruned[1].metrics["psnr_pruned"] > random["psnr_before"] + 1


def test_loss_limit_keeps_fewer_the_more_it_allows(sfm, trained, tmp_path):
    config = prune.Config(backend="cpu", refit_steps=0, max_psnr_loss_db=0.2)
    strict = run(sfm, trained, tmp_path / "strict", config).metrics
    loose = run(sfm, trained, tmp_path / "loose", replace(config, max_psnr_loss_db=4.0)).metrics
    assert loose["kept"] < strict["kept"] < strict["total"]
    assert strict["psnr_after"] > loose["psnr_after"]


def test_same_inputs_give_the_same_bytes(sfm, trained, tmp_path):
    config = prune.Config(backend="cpu", refit_steps=20)
    for name in ("a", "b"):
        run(sfm, trained, tmp_path / name, config)
    assert len({(tmp_path / n / "out" / "splat.ply").read_bytes() for n in ("a", "b")}) == 1
