# SPDX-License-Identifier: Apache-2.0
"""Gates: checks with a threshold, a value, its evidence and advice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Gate:
    """One check of a result, on evidence that the fit did not use.

    value is None where the measure does not apply or could not be taken; `passed` then says which:
    a gate that does not apply passes and its evidence starts with "not applicable".
    """

    name: str
    value: float | None
    threshold: float | None
    passed: bool
    evidence: str
    advice: str | None = None
    unit: str = ""

    @staticmethod
    def measure(
        name: str,
        value: float,
        threshold: float,
        *,
        bound: Literal["min", "max"],
        evidence: str,
        advice: str,
        unit: str = "",
    ) -> Gate:
        """Compare a value with its threshold; NaN fails. Advice is kept only where the gate fails."""
        passed = value >= threshold if bound == "min" else value <= threshold
        return Gate(name, float(value), float(threshold), bool(passed), evidence, None if passed else advice, unit)

    @staticmethod
    def not_applicable(name: str, why: str) -> Gate:
        return Gate(name, None, None, True, f"not applicable: {why}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Gate:
        return Gate(
            **{k: data[k] for k in ("name", "value", "threshold", "passed", "evidence")},
            advice=data.get("advice"),
            unit=data.get("unit", ""),
        )
