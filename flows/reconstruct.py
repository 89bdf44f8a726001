# SPDX-License-Identifier: Apache-2.0
"""Run one scene, without a server: every stage in order, the gates as they come, then RUN's files.

A failed gate that is not allowed stops the run after the stage that measured it, before time is spent on later ones.
A refused or failed run still writes summary.json and report.html, and sets an earlier run's bundle aside; an
interrupted run leaves RUN as it was, and the same command goes on where it stopped.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from real2sim.errors import UsageError
from real2sim.flows import rundir, summary
from real2sim.flows.config import Options, nearest, resolve
from real2sim.flows.digest import canonical_json, sha256_json, write_atomic
from real2sim.flows.graph import External, Graph, Produced, Stage, Task, gather, named_shortages, produce
from real2sim.flows.observer import Observer
from real2sim.flows.rundir import Request
from real2sim.flows.store import Artifact, Store
from real2sim.flows.summary import Summary
from real2sim.sim.gates import Gate

Perform = Callable[[Task, Store, Observer], Produced]
Report = Callable[[Summary, Mapping[str, Produced], Path, str], None]


@dataclass
class _State:
    """A run so far."""

    capture_digest: str
    made: dict[str, Artifact | External]
    produced: dict[str, Produced]


def reconstruct(
    request: Request,
    graph: Graph,
    observer: Observer,
    perform: Perform = produce,
    report: Report = summary.write_report,
) -> Summary:
    """Run a request. perform: how one stage is produced (Prefect wraps it); report: who writes the page.

    Raises UsageError before anything runs where the request is wrong; after that every end but an interruption is a
    Summary, written to RUN/summary.json.
    """
    start = time.perf_counter()
    check_allowed(request.allow, graph)
    store = Store(request.store)
    options = resolve(graph, request.config, request.settings, store.options)
    made = externals(request, store)
    with named_shortages(request.run, "the run was opened"):
        rundir.open_run(request)
    (request.run / "traceback.txt").unlink(missing_ok=True)  # of an earlier run
    with named_shortages(store.root, "the store was opened"):
        store.options.save()
        store.sweep()
        store.write_ref(request.name, "where", {"run": str(request.run)})
    for apart in (request.run, request.store):
        if apart.is_relative_to(request.capture):
            observer.log(f"{apart} lies in the capture: what is in it is not read as part of the capture")
    state = _State(made["capture"].digest, dict(made), {})
    result = Summary("good", request.run.name, state.capture_digest)
    try:
        for stage in graph.stages:
            if stop := _run_stage(stage, options[stage.name], state, request, store, observer, perform):
                result.outcome, result.stopped_at, result.error = "refused", stage.name, stop
                break
            made_now = state.produced[stage.name]
            if not made_now.cached:
                values = {name: o.values for name, o in options.items()}
                for line in graph.foresee(stage.name, made_now.artifact.path, values, store.root):
                    observer.log(line)
    except Exception as error:
        result.stopped_at = next(s.name for s in graph.stages if s.name not in state.produced)
        _note(result, error, request.run)
    finally:
        store.hashes.save()
    summary.fill(result, graph, state.produced, request.allow)
    result.seconds = round(time.perf_counter() - start, 3)
    _finish(result, state, request, graph, store, report)
    return result


def externals(request: Request, store: Store) -> dict[str, External]:
    """What the run brings from outside, with its content's digest."""
    if request.run.resolve() == request.capture.resolve():
        raise UsageError(f"--out {request.run}: this is the capture. Give another folder, so that it stays as it is.")
    apart = (request.run, request.store)
    found = {"capture": External.take(request.capture, store, apart)}
    if not found["capture"].files:
        raise UsageError(f"{request.capture}: the capture has no files. Give a folder of photos or a video.")
    if request.poses is not None:
        found["poses"] = External.take(request.poses, store)
    return found


def check_allowed(allow: tuple[str, ...], graph: Graph) -> None:
    """Raise UsageError where a gate's name in --allow is unknown."""
    for name in allow:
        if name not in graph.gates:
            raise UsageError(
                f"--allow {name}: there is no gate {name!r}. Did you mean {nearest(name, graph.gates)!r}?"
                f" Gates: {', '.join(graph.gates)}."
            )


def provenance(name: str, capture_digest: str, allow: tuple[str, ...], manifests: list[dict[str, Any]]) -> str:
    """JSON of what a bundle says of its making, without times: equal runs give equal text."""
    fields = ("stage", "key", "version", "backend", "config", "gates")
    return canonical_json(
        {
            "name": name,
            "capture_digest": capture_digest,
            "allowed": sorted(set(allow)),
            "stages": [{field: manifest[field] for field in fields} for manifest in manifests],
        }
    )


def _run_stage(
    stage: Stage, options: Options, state: _State, request: Request, store: Store, observer: Observer, perform: Perform
) -> str | None:
    """Produce a stage; returns why the run must stop here, or None."""
    if "provenance" in stage.inputs:
        path, manifests = request.run / "provenance.json", [p.artifact.manifest for p in state.produced.values()]
        write_atomic(path, provenance(request.run.name, state.capture_digest, request.allow, manifests))
        state.made["provenance"] = External.take(path, store)
    task = Task(stage, options, gather(stage, state.made))
    observer.started(stage.name)
    try:
        produced = perform(task, store, observer)
    except BaseException as error:
        observer.failed(stage.name, error)
        _remember(task, None, error, request, store)
        raise
    state.made[stage.name], state.produced[stage.name] = produced.artifact, produced
    observer.finished(stage.name, produced.artifact.manifest, produced.cached)
    _remember(task, produced.artifact, None, request, store)
    gates = [Gate.from_json(row) for row in produced.artifact.manifest["gates"]]
    for gate in gates:
        observer.gate(gate, gate.name in request.allow)
    failed = [gate for gate in gates if not gate.passed and gate.name not in request.allow]
    return _refusal(failed) if failed else None


def _refusal(failed: list[Gate]) -> str:
    return "\n".join(f"Gate {g.name} failed: {g.evidence}" + (f" {g.advice}" if g.advice else "") for g in failed)


def _remember(
    task: Task, artifact: Artifact | None, error: BaseException | None, request: Request, store: Store
) -> None:
    """Note in the store, for `status`, what this run last had of a stage and what went wrong since."""
    name = task.stage.name
    before = store.read_ref(request.name, name)
    if artifact is not None:
        files = {
            source: [asdict(f) for f in given.files]
            for source, given in task.inputs.items()
            if isinstance(given, External)
        }
        done = {"key": artifact.key, "recipe": task.recipe, "files": files}
        now = {"done": done, "failed": None}
    else:
        said = str(error) if isinstance(error, Exception) else "interrupted; the same command goes on from there"
        failed = {"key": sha256_json(task.recipe), "error": said or type(error).__name__}
        now = {"done": before.get("done"), "failed": failed}
    if canonical_json(now) != canonical_json(before):
        store.write_ref(request.name, name, now)


def _note(result: Summary, error: Exception, run: Path) -> None:
    """Say in the summary what went wrong; a defect's traceback is kept in a file."""
    result.outcome, result.error = summary.outcome_of(error), str(error) or type(error).__name__
    if result.outcome == "defect":
        write_atomic(run / "traceback.txt", "".join(traceback.format_exception(error)))
        result.error = (
            f"{result.error}\nThis is a defect of real2sim, not of the capture. The full traceback is in"
            f" {run / 'traceback.txt'}; finished stages are kept."
        )


def _finish(result: Summary, state: _State, request: Request, graph: Graph, store: Store, report: Report) -> None:
    """Write RUN's files: report, bundle (an earlier one is set aside unless this run is good), summary."""
    run = request.run
    with named_shortages(run, "the results were written"), rundir.finishing(run):
        try:
            with named_shortages(run, "the results were written"):
                _write_report(result, state, request, store, report)
                if result.outcome == "good":
                    made = state.produced[graph.result].artifact
                    rundir.place_bundle(made, graph, request, store, str(result.report_of))
                    result.bundle = "bundle"
        except Exception as error:
            _note(result, error, run)
        if result.bundle is None:
            rundir.set_bundle_aside(run)
        result.write(run / "summary.json")
        store.hashes.save()


def _write_report(result: Summary, state: _State, request: Request, store: Store, report: Report) -> None:
    """Write the page, unless the one that is there is the one that was written to tell the same."""
    page, result.report_of = request.run / "report.html", summary.report_digest(result, state.produced)
    note = {"of": result.report_of, "sha256": store.hashes.file(page)[1] if page.exists() else None}
    if store.read_ref(request.name, "report") != note:
        report(result, state.produced, page, request.run.name)
        store.write_ref(request.name, "report", {**note, "sha256": store.hashes.file(page)[1]})
    result.report = page.name
