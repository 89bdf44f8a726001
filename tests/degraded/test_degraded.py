# SPDX-License-Identifier: Apache-2.0
"""A handful of the degraded captures; `python -m benchmarks.degraded` runs all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.degraded import judge, run_case, table
from benchmarks.degraded_cases import BASES, CASES
from benchmarks.first_stages import Ending
from real2sim.datasets.truth import PoseErrors
from real2sim.sim.transforms import Similarity

HANDFUL = (
    "gripper below",
    "no source of scale",
    "mask of another shape",
)
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bases")


@pytest.mark.parametrize("name", HANDFUL)
def test_a_degraded_capture_ends_right_or_in_the_named_refusal(name: str, bases: Path, tmp_path: Path) -> None:
    row = run_case(BY_NAME[name], bases, tmp_path)
    assert row["ends_as_wanted"], row
    assert row["case"] in table([row])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in HANDFUL])
def test_every_other_degraded_capture_too(name: str, bases: Path, tmp_path: Path) -> None:
    row = run_case(BY_NAME[name], bases, tmp_path)
    assert row["ends_as_wanted"], row


def test_there_are_enough_cases_of_known_kinds_with_names_of_their_own() -> None:
    assert len(CASES) >= 60 and len(BY_NAME) == len(CASES)
    assert {case.base for case in CASES} <= set(BASES)


def test_a_wrong_result_and_a_wrong_refusal_are_not_as_wanted() -> None:
    good, turned = (PoseErrors(14, Similarity.identity(), 0.001, angle) for angle in (0.1, 178.0))
    case = BY_NAME["good arc"]
    assert judge(case, Ending(), good, 0.001)
    assert not judge(case, Ending(), turned, 0.001)
    assert not judge(case, Ending(), good, 0.2)
    assert not judge(case, Ending("refused", by=["registered"]), good, None)
    assert not judge(case, Ending("defect", by=["KeyError"]), good, None)
    no_scale = BY_NAME["no source of scale"]
    assert judge(no_scale, Ending("refused", by=["scale"], said="scale: unresolved"), good, None)
    assert not judge(no_scale, Ending("refused", by=["registered"], said="scale"), good, None)
    assert not judge(no_scale, Ending(), good, None)
