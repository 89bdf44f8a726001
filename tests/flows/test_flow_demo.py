# SPDX-License-Identifier: Apache-2.0
"""The demonstration's parts that need no reconstruction: its bars, and that nothing is made twice."""

from __future__ import annotations

import pytest

from real2sim.errors import UsageError
from real2sim.flows import demo

GOOD = {
    "frames": 40,
    "registered": 40,
    "position_error_rel": 0.001,
    "scale_error": 0.004,
    "gravity_error_deg": 0.1,
    "support_error_m": 0.002,
    "psnr_heldout": 28.0,
}


def missed(**changes) -> list[str]:
    return [bar["figure"] for bar in demo.judge({**GOOD, **changes}) if not bar["met"]]


def test_good_figures_meet_every_bar():
    assert missed() == []


@pytest.mark.parametrize(
    ("change", "figure"),
    [
        ({"registered": 39}, "registered_rel"),
        ({"position_error_rel": 0.0021}, "position_error_rel"),
        ({"scale_error": 0.006}, "scale_error"),
        ({"gravity_error_deg": 0.3}, "gravity_error_deg"),
        ({"support_error_m": 0.0031}, "support_error_m"),
        ({"psnr_heldout": 26.9}, "psnr_heldout"),
        ({"psnr_heldout": None}, "psnr_heldout"),
        ({"scale_error": float("nan")}, "scale_error"),
    ],
)
def test_each_bar_is_missed_by_what_is_beyond_it(change, figure):
    assert missed(**change) == [figure]


def test_a_part_is_made_once_for_the_same_ingredients_and_again_for_others(tmp_path):
    made = []

    def make(folder):
        made.append(folder)
        folder.mkdir()
        (folder / "x").write_text(str(len(made)))

    for what in ({"a": 1}, {"a": 1}, {"a": 2}):
        demo._once(tmp_path / "part", what, make)
    assert len(made) == 2
    assert (tmp_path / "part" / "x").read_text() == "2"
    assert [p.name for p in tmp_path.iterdir()] == ["part"]


def test_a_part_that_was_cut_off_is_made_again(tmp_path):
    def cut_off(folder):
        folder.mkdir()
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo._once(tmp_path / "part", {}, cut_off)
    demo._once(tmp_path / "part", {}, lambda folder: folder.mkdir())
    assert not (tmp_path / "part" / "half").exists()


def test_a_folder_of_someone_else_is_left_alone(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "mine").touch()
    with pytest.raises(UsageError, match="did not make"):
        demo._once(tmp_path / "part", {}, lambda folder: None)
    assert (tmp_path / "part" / "mine").exists()
