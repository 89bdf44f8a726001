# SPDX-License-Identifier: Apache-2.0
"""The stages that judge a capture (ingest, sfm, scale), run on one capture, and how that ended."""

from __future__ import annotations

import importlib
import json
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from real2sim.errors import Real2SimError
from real2sim.flows.graph import plain
from real2sim.sim.gates import Gate
from real2sim.stages.contract import Progress

INPUTS = {"ingest": ("capture",), "sfm": ("ingest",), "scale": ("ingest", "sfm")}


@dataclass
class Ending:
    """How a capture ended. outcome: "good", "refused" or "defect"; by: the failed gates, or the stage that refused;
    said: the message for people; seconds: CPU time of this process."""

    outcome: str = "good"
    stopped_at: str | None = None
    by: list[str] = field(default_factory=list)
    said: str = ""
    seconds: float = 0.0
    gates: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return plain(asdict(self))


class _Log(Progress):
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def log(self, message: str) -> None:
        self.lines.append(message)


def run_first_stages(
    capture: Path,
    folder: Path,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    stages: Sequence[str] = ("ingest", "sfm", "scale"),
    poses: Path | None = None,
) -> Ending:
    """Run stages on a capture into `folder`, one artifact a stage; a failed gate ends it, as in a run.

    options: stage -> option -> value. Errors of real2sim are refusals; any other exception is a defect.
    """
    ending, start = Ending(), time.process_time()
    made: dict[str, Path] = {"capture": capture} | ({"poses": poses} if poses else {})
    for name in stages:
        stage = importlib.import_module(f"real2sim.stages.{name}")
        out, scratch = folder / name, folder / f"{name}.scratch"
        out.mkdir(parents=True)
        scratch.mkdir()
        wanted = (*INPUTS[name], *(("poses",) if name == "ingest" and poses else ()))
        try:
            config = stage.Config(**(options or {}).get(name, {}))
            result = stage.run({k: made[k] for k in wanted}, config, out, scratch, _Log(ending.log))
        except Real2SimError as error:
            ending.outcome, ending.by, ending.said = "refused", [name], str(error)
        except Exception as error:
            ending.outcome, ending.by, ending.said = "defect", [type(error).__name__], traceback.format_exc()
        else:
            made[name] = out
            _keep(ending, name, result.metrics, result.gates, result.notes)
        if ending.outcome != "good":
            ending.stopped_at = name
            break
    ending.seconds = time.process_time() - start
    return ending


def _keep(ending: Ending, name: str, metrics: dict[str, Any], gates: list[Gate], notes: list[str]) -> None:
    ending.metrics[name] = plain(metrics)
    ending.log += [note for note in notes if note not in ending.log]
    ending.gates += [plain(gate.to_json()) for gate in gates]
    failed = [gate for gate in gates if not gate.passed]
    if failed:
        ending.outcome, ending.by = "refused", [gate.name for gate in failed]
        ending.said = "\n".join(f"{g.name}: {g.evidence} {g.advice or ''}" for g in failed)


def write_rows(path: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON where a path is given."""
    if path is not None:
        path.write_text(json.dumps(list(rows), indent=1, ensure_ascii=False) + "\n")
