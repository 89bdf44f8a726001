# SPDX-License-Identifier: Apache-2.0
"""What a run says at its end: summary.json, the exit code, and the report page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from real2sim import __version__
from real2sim.errors import BackendError, CaptureError, Real2SimError, TransientError, UsageError
from real2sim.flows.digest import sha256_json, write_atomic
from real2sim.flows.graph import Graph, Produced
from real2sim.flows.sources import source_digests
from real2sim.sim.gates import Gate

EXIT_CODES = {"good": 0, "refused": 1, "misused": 2, "defect": 70, "try again": 75}
"""By outcome. 70 and 75 are sysexits(3): a defect of the program, and a failure that may pass."""

Outcome = Literal["good", "refused", "misused", "defect", "try again"]


@dataclass
class Summary:
    """What came out of a run. Times in seconds, memory in 1e9 bytes."""

    outcome: Outcome
    run: str
    capture_digest: str
    frames: int | None = None
    registered: int | None = None
    psnr_heldout: float | None = None
    ssim_heldout: float | None = None
    gaussians: int | None = None
    seconds: float = 0.0  # this run
    seconds_computed: float = 0.0  # the stages' own time, also of those that were cached
    peak_memory_gb: float = 0.0
    gates: list[dict[str, Any]] = field(default_factory=list)
    failed_gates: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    stopped_at: str | None = None
    error: str | None = None
    bundle: str | None = None  # relative to the run folder
    report: str | None = None
    report_of: str | None = None  # digest of what the report tells, to know when it has to be written again

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, path: Path) -> None:
        write_atomic(path, json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def outcome_of(error: BaseException) -> Outcome:
    """How a run ends that an error stopped."""
    if isinstance(error, CaptureError):
        return "refused"
    if isinstance(error, UsageError | BackendError):
        return "misused"
    if isinstance(error, TransientError):
        return "try again"
    return "refused" if isinstance(error, Real2SimError) else "defect"


def gates_of(produced: Mapping[str, Produced]) -> list[Gate]:
    """Every gate measured so far, in run order."""
    return [Gate.from_json(row) for p in produced.values() for row in p.artifact.manifest["gates"]]


def fill(summary: Summary, graph: Graph, produced: Mapping[str, Produced], allow: tuple[str, ...]) -> None:
    """Read from the manifests what a summary says."""
    gates = gates_of(produced)
    summary.gates = [gate.to_json() for gate in gates]
    summary.failed_gates = [gate.name for gate in gates if not gate.passed]
    summary.allowed = sorted(set(allow))
    summary.stages = [_stage_row(p) for p in produced.values()]
    summary.seconds_computed = round(sum(row["seconds"] for row in summary.stages), 3)
    summary.peak_memory_gb = max((row["peak_memory_gb"] for row in summary.stages), default=0.0)
    for name, places in graph.headlines.items():
        for stage, metric in places:
            if stage in produced:
                setattr(summary, name, produced[stage].artifact.manifest["metrics"].get(metric))


def _stage_row(produced: Produced) -> dict[str, Any]:
    manifest = produced.artifact.manifest
    row = {
        name: manifest[name] for name in ("stage", "key", "version", "digest", "backend", "seconds", "peak_memory_gb")
    }
    return {**row, "cached": produced.cached}


def report_digest(summary: Summary, produced: Mapping[str, Produced]) -> str:
    """Digest of everything that the page tells: the artifacts, how they were judged, and the program that draws it."""
    told = {
        "artifacts": [
            (p.artifact.key, p.artifact.manifest["digest"], p.artifact.manifest["seconds"]) for p in produced.values()
        ],
        "end": [summary.outcome, summary.error, summary.stopped_at, summary.allowed],
        "program": [__version__, source_digests("real2sim.stages.report")],
    }
    return sha256_json(told)


def write_report(summary: Summary, produced: Mapping[str, Produced], path: Path, title: str) -> None:
    """Write the page for a reader; it tells of as many stages as there are."""
    from real2sim.stages import report

    report.write_report(
        path,
        manifests=[p.artifact.manifest for p in produced.values()],
        artifacts={name: p.artifact.path for name, p in produced.items()},
        gates=gates_of(produced),
        summary=summary.to_json(),
        title=title,
    )
