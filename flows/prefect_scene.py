# SPDX-License-Identifier: Apache-2.0
"""The scene graph as a Prefect flow: one task per stage, for people who watch runs in Prefect's UI.

The store decides what runs, as without Prefect; Prefect's own caching is off. A stage that was in the store ends as
Completed(name="Cached"). Each stage's metrics and gates become a markdown artifact. Only this module imports Prefect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.settings import (
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)
from prefect.states import Completed, Failed
from prefect.tasks import Task as PrefectTask
from prefect.tasks import exponential_backoff

from real2sim.errors import TransientError
from real2sim.flows.graph import Graph, Produced, Task, produce
from real2sim.flows.observer import Observer
from real2sim.flows.reconstruct import Report, reconstruct
from real2sim.flows.rundir import Request
from real2sim.flows.store import Store
from real2sim.flows.summary import Summary, write_report

SETTINGS = {
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 180,  # Prefect's own 20 s are too few on a busy machine
    PREFECT_SERVER_ANALYTICS_ENABLED: False,  # an ephemeral server reports nothing about its user
}
RETRIES = 2
BACKOFF_S = 2


def reconstruct_as_flow(request: Request, graph: Graph, observer: Observer, report: Report = write_report) -> Summary:
    """Run a request as one flow run, named after RUN; on an ephemeral server where no server is configured.

    The same result and files as `reconstruct`. A refused or failed run is a Failed flow run whose message says why.
    """
    results: list[Summary] = []
    begun: list[bool] = []

    @flow(name="reconstruct", flow_run_name=request.run.name, validate_parameters=False, persist_result=False)
    def run(capture: str, run: str, options: Mapping[str, Any], allow: list[str]) -> State[Any]:
        begun.append(True)
        summary = reconstruct(request, graph, observer, _as_task, report)
        results.append(summary)
        if summary.exit_code == 0:
            return Completed(message=f"{len(summary.stages)} stages, bundle in {request.run / 'bundle'}")
        return Failed(name=summary.outcome.capitalize(), message=summary.error)

    options = {f"{s.stage}.{s.option}": str(s.value) for s in request.settings}
    try:
        with temporary_settings(updates=SETTINGS):
            state = run(str(request.capture), str(request.run), options, list(request.allow), return_state=True)
    except RuntimeError as error:
        if begun:
            raise
        raise TransientError(
            f"Prefect could not start the flow: {error}. Start or check its server; without --prefect none is needed."
        ) from error
    if not results:  # the request is wrong, or the run was interrupted: the flow holds what was raised
        state.result()
    return results[0]


def _as_task(work: Task, store: Store, observer: Observer) -> Produced:
    """Produce one stage in a Prefect task of its own."""
    produced: list[Produced] = []

    def run_stage(stage: str, config: Mapping[str, Any], inputs: Mapping[str, str]) -> State[Any]:
        made = produce(work, store, observer)
        produced.append(made)
        manifest = made.artifact.manifest
        create_markdown_artifact(markdown(manifest), key=f"{stage}-metrics", description=f"Stage {stage}")
        reference = {"stage": stage, "key": made.artifact.key, "digest": made.artifact.digest}
        return Completed(name="Cached" if made.cached else "Completed", data=reference)

    recipe = work.recipe
    run: Any = _prefect_task(run_stage, work.stage.name)
    run(recipe["stage"], recipe["config"], recipe["inputs"])
    return produced[-1]


def _prefect_task(function: Callable[..., Any], name: str) -> PrefectTask[..., Any]:
    wrap = task(
        name=name,
        task_run_name=name,
        tags=["gpu" if name in ("splat", "prune") else "cpu"],
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(BACKOFF_S),
        retry_jitter_factor=0.5,
        retry_condition_fn=_may_pass,
    )
    return wrap(function)


def _may_pass(_: PrefectTask[..., Any], __: TaskRun, state: State[Any]) -> bool:
    """Only what may succeed when tried again is retried; a bad capture is not."""
    try:
        state.result()
    except TransientError:
        return True
    except Exception:
        return False
    return False


def markdown(manifest: Mapping[str, Any]) -> str:
    """A stage's manifest for a reader of Prefect's UI: what ran, its gates, its metrics."""
    lines = [
        f"### {manifest['stage']}",
        f"{manifest['backend'] or 'one backend'}, {manifest['seconds']:.1f} s, {manifest['peak_memory_gb']:.2f} GB",
        f"`{manifest['key']}`",
    ]
    if manifest["gates"]:
        lines += ["", "| gate | value | threshold | | evidence |", "|---|---|---|---|---|"]
        lines += [
            f"| {g['name']} | {_cell(g['value'])} | {_cell(g['threshold'])}"
            f" | {'passed' if g['passed'] else '**failed**'} | {_cell(g['evidence'])} {_cell(g['advice'] or '')} |"
            for g in manifest["gates"]
        ]
    rows = [(k, v) for k, v in manifest["metrics"].items() if not isinstance(v, dict | list)]
    if rows:
        lines += ["", "| metric | value |", "|---|---|", *(f"| {_cell(k)} | {_cell(v)} |" for k, v in rows)]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "–" if value is None else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
