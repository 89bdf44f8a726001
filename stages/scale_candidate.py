# SPDX-License-Identifier: Apache-2.0
"""One way of knowing the scale, and the judgement over all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from real2sim.sim.gates import Gate

TRUST = ("poses", "aruco", "depth", "known_length")  # most trusted first
CONFLICT_SIGMAS = 3.0  # sources disagree when they differ by more than this many of their joint sigmas ...
CONFLICT_MIN = 0.03  # ... and by more than this ratio: below it the disagreement does no harm


@dataclass(frozen=True)
class Candidate:
    """A scale found from one source.

    metres_per_unit: [m per sfm unit], None where the source is present and could not be used (evidence says why);
    relative_uncertainty: one sigma; check: the same scale measured on evidence withheld from the fit.
    """

    source: str
    metres_per_unit: float | None
    relative_uncertainty: float | None
    evidence: str
    check: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def unusable(source: str, why: str) -> Candidate:
        return Candidate(source, None, None, why)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def choose(candidates: Sequence[Candidate], max_uncertainty: float) -> Candidate | None:
    """The most trusted source that is precise enough; where none is, the most precise; None where there is none."""
    usable = [c for c in candidates if c.metres_per_unit is not None and c.relative_uncertainty is not None]
    usable.sort(key=lambda c: TRUST.index(c.source))
    for candidate in usable:
        if (candidate.relative_uncertainty or 0.0) <= max_uncertainty:
            return candidate
    return min(usable, key=lambda c: c.relative_uncertainty or math.inf, default=None)


def conflicts(
    metres_per_unit: float, relative_uncertainty: float, candidates: Sequence[Candidate]
) -> list[tuple[str, float]]:
    """Sources, or their withheld evidence, that contradict a scale: (what, relative difference) each."""
    found = []
    for c in candidates:
        for name, value in ((c.source, c.metres_per_unit), (f"{c.source}, withheld evidence", c.check)):
            if value is None or c.relative_uncertainty is None:
                continue
            difference = abs(math.log(value / metres_per_unit)) if value > 0 else math.inf
            sigma = math.hypot(relative_uncertainty, c.relative_uncertainty)
            if difference > CONFLICT_MIN and difference > CONFLICT_SIGMAS * sigma:
                found.append((f"{name} says {value:.5g} m per unit ({value / metres_per_unit - 1:+.1%})", difference))
    return found


def scale_gate(chosen: Candidate | None, candidates: Sequence[Candidate], max_uncertainty: float) -> Gate:
    """Gate `scale`: a source is stated, it is precise enough, and nothing that was measured contradicts it."""
    if chosen is None or chosen.metres_per_unit is None or chosen.relative_uncertainty is None:
        tried = "; ".join(f"{c.source}: {c.evidence}" for c in candidates) or "no source of scale in the capture"
        advice = (
            "Put an ArUco marker of known size into the scene (capture.yaml: marker), give a known length "
            "(--known-length), depth images or metric poses; or pass --allow scale to go on without metres."
        )
        return Gate("scale", None, max_uncertainty, False, f"unresolved: {tried}", advice)
    against = conflicts(chosen.metres_per_unit, chosen.relative_uncertainty, candidates)
    stated = f"{chosen.source}: {chosen.metres_per_unit:.5g} m per unit ± {chosen.relative_uncertainty:.2%}"
    if against:
        evidence = f"{stated}, but " + "; ".join(what for what, _ in against)
        advice = (
            "Two measurements of the scale disagree: check the printed size of the marker, the depth unit, the lengths."
        )
        worst = math.expm1(max(difference for _, difference in against))
        return Gate("scale", worst, max_uncertainty, False, evidence, advice)
    advice = "Move closer to the marker or to the known length, show it in more photos, or give a longer known length."
    evidence = f"{stated} ({chosen.evidence})"
    return Gate.measure(
        "scale", chosen.relative_uncertainty, max_uncertainty, bound="max", evidence=evidence, advice=advice
    )
