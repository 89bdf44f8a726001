# SPDX-License-Identifier: Apache-2.0
"""The alignment judged on evidence that its fit never saw.

The ruler is independent: in the withheld blocks a plane is searched anew, from the cameras' up alone. Taking the
withheld points nearest to the claimed plane instead would agree with any claim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.gates import Gate
from real2sim.sim.transforms import Similarity
from real2sim.stages.plane import Plane, angle_deg, refine_plane, search_plane
from real2sim.stages.support import SOLID_POWER, Evidence, inside_polygon, merge_dense, solidity

Array = NDArray[np.float64]

MIN_CHECK_POINTS = 30
TIE = 0.6  # a plane at the claimed height is the one meant, unless another one holds far more of the withheld points


class Thresholds(Protocol):
    """What the check needs of the stage's config."""

    @property
    def max_level_deg(self) -> float: ...

    @property
    def max_support_m(self) -> float: ...


@dataclass(frozen=True)
class _World:
    """Withheld points near the claimed support, in the world frame."""

    evidence: Evidence
    radius: float


def _withheld_near(evidence: Evidence, T: Similarity, polygon: Array) -> _World:
    """Withheld points over the claimed outline, within a third of its size above and below it."""
    points = T.apply(evidence.points / T.scale)
    radius = float(np.percentile(np.linalg.norm(polygon, axis=1), 75))
    keep = evidence.withheld & inside_polygon(points[:, :2], 1.05 * polygon) & (np.abs(points[:, 2]) < 0.6 * radius)
    moved = Evidence(
        points, evidence.normals @ T.rotation.T, evidence.weights, evidence.withheld, evidence.dense, evidence.distance
    )
    return _World(moved.select(keep), radius)


def independent_plane(world: _World, up: Array, max_angle_deg: float) -> Plane | None:
    """The plane of the withheld points alone: the strongest, or one at the claimed height that is nearly as strong."""
    rest, found = world.evidence, []
    for index in range(3):
        reach = 0.5 * world.radius
        hit = search_plane(
            rest.points, rest.normals, rest.weights, rest.tolerance, reach, up, max_angle_deg, seed=100 + index
        )
        if hit is None:
            break
        found.append((hit[0], hit[1] * solidity(rest, hit[0]) ** SOLID_POWER))
        taken = np.abs(hit[0].height(rest.points)) < 1.5 * rest.tolerance
        rest = replace(rest, weights=np.where(taken, 0.0, rest.weights))
    if not found:
        return None
    best = max(weight for _, weight in found)
    near = [h for h in found if abs(h[0].offset) < 3 * world.evidence.tolerance and h[1] > TIE * best]
    return max(near or found, key=lambda h: h[1])[0]


def most_precise(merged: Evidence, plane: Plane) -> Evidence:
    """The sparse points or the depth cells, whichever scatter less about the plane: a ruler is read on its fine side.

    Kinds of fewer than MIN_CHECK_POINTS points near the plane do not compete.
    """
    near = np.abs(plane.height(merged.points)) < 1.5 * merged.tolerance
    kinds = [near & (merged.dense == kind) for kind in (False, True)]
    kinds = [kind for kind in kinds if kind.sum() >= MIN_CHECK_POINTS]
    if not kinds:
        return merged
    return merged.select(min(kinds, key=lambda kind: float(np.median(np.abs(plane.height(merged.points[kind]))))))


def check_gates(
    evidence: Evidence,
    T: Similarity,
    polygon: Array,
    up: Array,
    max_angle_deg: float,
    config: Thresholds,
    resolved: bool,
) -> tuple[list[Gate], Array, dict[str, Any]]:
    """Gates `level` and `support`, the withheld support points [M, 3] in the world frame, and the numbers behind them.

    evidence in the working unit and sfm axes; T, polygon [K, 2]: the claimed alignment; up: the cameras' up in the
    claimed world frame. Where the scale is unresolved, lengths count relative to the viewing distance.
    """
    world = _withheld_near(evidence, T, polygon)
    plane = independent_plane(world, up, max_angle_deg) if len(world.evidence.points) >= MIN_CHECK_POINTS else None
    unit = "m" if resolved else "x viewing distance"
    per_unit = 1.0 if resolved else 1.0 / evidence.distance
    if plane is None:
        why = f"only {len(world.evidence.points)} withheld points lie near the support"
        advice = "Photograph the support from more places, so that more of it is reconstructed."
        gates = [Gate("level", None, config.max_level_deg, False, why, advice, "deg")]
        return [*gates, Gate("support", None, config.max_support_m, False, why, advice, unit)], np.zeros((0, 3)), {}
    merged = most_precise(merge_dense(world.evidence, plane), plane)
    plane, sigma = refine_plane(merged.points, np.ones(len(merged.points)), plane, 1.5 * merged.tolerance)
    on_it = np.abs(plane.height(merged.points)) < np.clip(3 * sigma, 0.3 * merged.tolerance, 1.5 * merged.tolerance)
    points = merged.points[on_it]
    tilt = angle_deg(plane.normal, np.array([0.0, 0.0, 1.0]))
    p95 = float(np.percentile(np.abs(points[:, 2]), 95)) if len(points) else np.nan
    relative = "" if resolved else " (scale unresolved: lengths are relative to the viewing distance)"
    level = Gate.measure(
        "level", tilt, config.max_level_deg, bound="max", unit="deg",
        evidence=f"plane through {len(points)} withheld support points, found without the fit",
        advice="The support is not level: it is uneven, poorly reconstructed, or another plane was taken for it.",
    )  # fmt: skip
    support = Gate.measure(
        "support", p95 * per_unit, config.max_support_m, bound="max", unit=unit,
        evidence=f"95th percentile of abs(z) of {len(points)} withheld support points{relative}",
        advice="The support is not where the world says: add views of it, or put textured paper on a plain table.",
    )  # fmt: skip
    return (
        [level, support],
        points,
        {"check_points": len(points), "check_sigma_m": sigma, "check_offset_m": plane.offset},
    )
