# SPDX-License-Identifier: Apache-2.0
"""What the command line shows while it works: a line per stage, a bar for the one that runs, the gates as they come."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from real2sim.flows.observer import Observer
from real2sim.interrupt import keep_handling
from real2sim.sim.gates import Gate

if TYPE_CHECKING:
    from real2sim.flows.demo import Demo
    from real2sim.flows.status import Row
    from real2sim.flows.summary import Summary

NAME_WIDTH = 10
LOG_EVERY_S = 15.0  # where no terminal is there to draw a bar on, one line of progress in this time
HEADLINES = 4  # metrics shown on a stage's line

_STATE_COLOURS = {"fresh": "green", "running": "cyan", "stale": "yellow", "failed": "red", "missing": "dim"}
_OUTCOME_WORDS = {
    "good": "[bold green]Good[/]",
    "refused": "[bold red]Refused[/]",
    "misused": "[bold red]Not run[/]",
    "defect": "[bold red]Broken[/]",
    "try again": "[bold yellow]Stopped[/]",
}


class ConsoleObserver(Observer):
    """Draws a run on a console; on a pipe or in a log it writes plain lines instead of bars."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._stage = ""
        self._start = self._last_line = 0.0
        self._done = self._total = self._base = 0.0

    def started(self, stage: str) -> None:
        self._stage, self._start = stage, time.monotonic()
        self._last_line, self._done, self._total = self._start, 0.0, 0.0
        if self.console.is_terminal:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn(f"{stage:<{NAME_WIDTH}}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeRemainingColumn(compact=True),
                TextColumn("[dim]{task.fields[detail]}[/]"),
                console=self.console,
                transient=True,
            )
            self._task = self._progress.add_task(stage, total=None, detail="")
            self._progress.start()

    def update(self, done: float, total: float, **fields: Any) -> None:
        keep_handling()
        detail, now = "  ".join(f"{name} {_short(value)}" for name, value in fields.items()), time.monotonic()
        if done < self._done or total != self._total:  # another step of the stage, or training that goes on midway
            self._start, self._base = now, done
        self._done, self._total = done, total
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total, detail=detail)
        elif self._stage and now - self._last_line >= LOG_EVERY_S and total > 0:
            self._last_line = now
            made = done - self._base
            left = f"{(now - self._start) * (total - done) / made:.0f} s left" if made > 0 else ""
            self.console.print(f"  {self._stage:<{NAME_WIDTH}} {done / total:4.0%}  {left}  {detail}", style="dim")

    def log(self, message: str) -> None:
        keep_handling()
        self.console.print(f"    [dim]{escape(message)}[/]", highlight=False)

    def waiting(self, stage: str, owner: str) -> None:
        self.log(f"{owner} computes this now; waiting for its result")

    def finished(self, stage: str, manifest: dict[str, Any], cached: bool) -> None:
        self.close()
        facts = [manifest["backend"]] if manifest["backend"] else []
        numbers = [
            (k, v) for k, v in manifest["metrics"].items() if isinstance(v, int | float) and not isinstance(v, bool)
        ]
        facts += [f"{name} {_short(value)}" for name, value in numbers[:HEADLINES]]
        seconds = f"{manifest['seconds']:8.1f} s"
        state = f"[cyan]{'cached':>10}[/]" if cached else seconds
        line = f"[green]✓[/] {stage:<{NAME_WIDTH}} {state}   [dim]{escape('  '.join(facts))}[/]"
        self.console.print(line, highlight=False, no_wrap=True, overflow="ellipsis", crop=True)
        said = "\n".join(manifest["log"])
        for note in () if cached else manifest["notes"]:
            if note not in said:
                self.log(note)

    def failed(self, stage: str, error: BaseException) -> None:
        self.close()
        self.console.print(f"[red]✗[/] {stage}", highlight=False)

    def gate(self, gate: Gate, allowed: bool) -> None:
        self.console.print(gate_line(gate, allowed), highlight=False)

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def gate_line(gate: Gate, allowed: bool) -> str:
    """One gate as rich markup: green, red with advice, or yellow where its failure is allowed."""
    colour, mark = ("green", "●") if gate.passed else ("yellow", "▲") if allowed else ("red", "✗")
    line = f"    [{colour}]{mark} {gate.name:<13}[/] {measured(gate):<22} [dim]{escape(gate.evidence)}[/]"
    if not gate.passed:
        line += " [yellow](allowed)[/]" if allowed else f"\n      [red]{escape(gate.advice or '')}[/]"
    return line


def measured(gate: Gate) -> str:
    """A gate's value against its threshold, such as "0.92 ≥ 0.8"; a failed one shows the bound that it missed."""
    if gate.value is None or gate.threshold is None:
        return "–" if gate.value is None else f"{_short(gate.value)} {gate.unit}".strip()
    at_least = (gate.value >= gate.threshold) == gate.passed
    sign = ("≥" if at_least else "≤") if gate.passed else ("<" if at_least else ">")
    return f"{_short(gate.value)} {sign} {_short(gate.threshold)} {gate.unit}".strip()


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_outcome(console: Console, summary: Summary, run: Path) -> None:
    """The last lines of a run: what came out and where it is."""
    at = f" at {summary.stopped_at}" if summary.stopped_at else ""
    console.print(f"\n{_OUTCOME_WORDS[summary.outcome]}{at} after {summary.seconds:.1f} s", highlight=False)
    if summary.error:
        console.print(escape(summary.error), highlight=False)
    allowed = [name for name in summary.failed_gates if name in summary.allowed]
    if allowed:
        console.print(f"[yellow]Failed but allowed, and so recorded: {', '.join(allowed)}[/]")
    for name in (summary.bundle, summary.report):
        if name:
            console.print(f"  {escape(str(run / name))}", highlight=False, soft_wrap=True)


def print_status(console: Console, rows: list[Row], why: bool) -> None:
    """A table of stages and their states; `why` adds every reason."""
    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    table.add_column("state")
    if why:
        table.add_column("why")
    for row in rows:
        cells = [row.stage, f"[{_STATE_COLOURS[row.state]}]{row.state}[/]"]
        table.add_row(*cells, *([escape("\n".join(row.why))] if why else []))
    console.print(table)


def print_gates(console: Console, gates: list[Gate], allowed: list[str]) -> bool:
    """Gates one a line; returns whether each passed or is allowed."""
    for gate in gates:
        console.print(gate_line(gate, gate.name in allowed), highlight=False)
    return all(gate.passed or gate.name in allowed for gate in gates)


def print_demo(console: Console, result: Demo, run: Path) -> None:
    """The result against the truth, a bar a line, and the film's account."""
    if not result.bars:
        return
    table = Table("against the truth", "measured", "bar", "", box=None, pad_edge=False)
    for bar in result.bars:
        sign, colour = ("≥" if bar["at_least"] else "≤"), ("green" if bar["met"] else "red")
        value = "–" if bar["value"] is None else f"{bar['value']:.4g} {bar['unit']}"
        mark = f"[{colour}]{'met' if bar['met'] else 'missed'}[/]"
        table.add_row(bar["what"], value, f"{sign} {bar['bound']:.4g} {bar['unit']}", mark)
    console.print()
    console.print(table)
    if result.film is not None:
        console.print(f"  {escape(str(run / 'film' / result.film['video']))}", highlight=False, soft_wrap=True)
    console.print(f"{result.seconds:.1f} s in all", highlight=False)
