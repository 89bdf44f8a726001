# SPDX-License-Identifier: Apache-2.0
"""A scene of fake stages in a temporary folder, run in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fakes

from real2sim.flows.config import parse_setting
from real2sim.flows.observer import Observer
from real2sim.flows.reconstruct import reconstruct
from real2sim.flows.rundir import Request
from real2sim.flows.store import Store
from real2sim.flows.summary import Summary


class Listener(Observer):
    """Keeps what a run said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str) -> None:
        self.lines.append(message)

    def finished(self, stage: str, manifest: dict, cached: bool) -> None:
        self.lines.append(f"{stage} {'cached' if cached else 'made'}")

    def gate(self, gate, allowed: bool) -> None:
        self.lines.append(f"{gate.name} {'passed' if gate.passed else 'allowed' if allowed else 'failed'}")


@dataclass
class Scene:
    """A capture of two text files, its run folder and its store."""

    root: Path
    reports: list[dict] = field(default_factory=list)
    listener: Listener = field(default_factory=Listener)

    @property
    def capture(self) -> Path:
        return self.root / "capture"

    @property
    def run(self) -> Path:
        return self.root / "runs" / "desk"

    @property
    def store(self) -> Store:
        return Store(self.root / "runs" / ".real2sim")

    def request(self, *settings: str, **more) -> Request:
        return Request(self.capture, self.run, self.store.root, settings=tuple(map(parse_setting, settings)), **more)

    def go(self, *settings: str, **more) -> Summary:
        """Run the graph here."""
        return reconstruct(self.request(*settings, **more), fakes.GRAPH, self.listener, report=self._report)

    def ran(self) -> list[str]:
        """Which stages ran since this was last asked."""
        names = fakes.ran()
        Path(os.environ["FAKES_COUNT"]).unlink(missing_ok=True)
        return names

    @property
    def drive(self) -> Path:
        """The script that runs the graph in a process of its own."""
        return Path(fakes.__file__).with_name("drive.py")

    def start(self, *settings: str) -> subprocess.Popen[bytes]:
        """Run the graph in a process of its own."""
        return subprocess.Popen([sys.executable, str(self.drive), str(self.capture), str(self.run), *settings])

    def artifacts(self, stage: str) -> list[Path]:
        return sorted(self.store.root.glob(f"objects/{stage}/*/*"))

    def _report(self, summary, produced, path: Path, title: str) -> None:
        self.reports.append({"outcome": summary.outcome, "stages": list(produced), "title": title})
        path.write_text(f"<h1>{title}</h1>")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("FAKES_COUNT", str(tmp_path / "count"))
    (tmp_path / "capture" / "notes").mkdir(parents=True)
    (tmp_path / "capture" / "a.txt").write_text("the mug is red. ")
    (tmp_path / "capture" / "notes" / "b.txt").write_text("it has a handle")
    return Scene(tmp_path)


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    """A temporary Prefect server in this process."""
    pytest.importorskip("prefect")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DO_NOT_TRACK", "1")
        patch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        from prefect.testing.utilities import prefect_test_harness

        with prefect_test_harness(server_startup_timeout=120):
            yield
