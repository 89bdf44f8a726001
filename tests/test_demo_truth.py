# SPDX-License-Identifier: Apache-2.0
"""The demonstration of the README, judged against the truth: reads the summary of the run that its command made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SUMMARY = Path(__file__).parents[1] / "runs" / "demo" / "summary.json"
TEN_MINUTES_S = 600


@pytest.fixture(scope="module")
def summary() -> dict:
    if not SUMMARY.exists():
        pytest.skip("runs/demo is not there: run the README's first command for this test")
    return json.loads(SUMMARY.read_text())


@pytest.mark.parametrize(
    ("figure", "most"),
    [("position_error_rel", 0.002), ("scale_error", 0.005), ("gravity_error_deg", 0.2), ("support_error_m", 0.003)],
)
def test_demo_agrees_with_the_truth(summary, figure, most):
    assert summary[figure] < most


def test_demo_poses_every_frame_and_renders_views_it_never_saw(summary):
    assert summary["frames"] == summary["registered"] == 40
    assert summary["psnr_heldout"] >= 27


def test_demo_passes_every_gate_in_time(summary):
    assert [gate["name"] for gate in summary["gates"] if not gate["passed"]] == []
    assert summary["outcome"] == "good" and (SUMMARY.parent / summary["bundle"] / "bundle.json").exists()
    assert summary["seconds"] < TEN_MINUTES_S
    assert {"ssim_heldout", "gaussians", "peak_memory_gb"} <= set(summary)
