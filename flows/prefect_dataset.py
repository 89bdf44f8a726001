# SPDX-License-Identifier: Apache-2.0
"""Scenes and datasets as Prefect flows, for deployments: work pools, schedules, a UI.

`scene_flow` is one capture: unit of deployment, retry and cancellation. `dataset_flow` runs each scene of a dataset as a
sub-flow, a bounded number at once. The store and the scenes' own notes are the truth: what Prefect loses (a killed
server or worker), the next run of the same flow finds again. Flows are imported as modules, never by path.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import httpx
from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.futures import wait
from prefect.settings import temporary_settings
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from real2sim.flows.config import parse_setting
from real2sim.flows.dataset import Ended, bring_to_its_end, build, whole_exit_code
from real2sim.flows.dataset_plan import Dataset, Scene, read_dataset
from real2sim.flows.prefect_scene import SETTINGS
from real2sim.flows.rundir import Request
from real2sim.flows.summary import EXIT_CODES

SERVER_GRACE_S = 60.0  # that Prefect gets to take note of a dataset that is built
GPU_SLOTS = "real2sim-gpu"  # a global concurrency limit: prefect gcl create real2sim-gpu --limit 1


@flow(name="scene", flow_run_name="{run}", validate_parameters=False, persist_result=False)
def scene_flow(
    capture: str,
    run: str,
    options: dict[str, str] | None = None,
    allow: list[str] | None = None,
    timeout_s: float = 7200.0,
    retries: int = 1,
) -> State[Any]:
    """Reconstruct one capture in a process of its own; Failed names why there is no bundle.

    Paths are those of the worker's machine.
    """
    where = Path(run).absolute()
    settings = tuple(parse_setting(f"{name}={value}") for name, value in (options or {}).items())
    request = Request(Path(capture).absolute(), where, where.parent / ".real2sim", None, settings, tuple(allow or ()))
    scene = Scene(where.name, request)
    alone = Dataset(where.name, where.parent, (scene,), timeout_s=timeout_s, retries=retries)
    return _state(_told(bring_to_its_end(scene, alone), where))


@flow(name="dataset", flow_run_name="{config}", validate_parameters=False, persist_result=False)
def dataset_flow(config: str) -> State[Any]:
    """Build a dataset from its YAML, a sub-flow a scene; its table and reasons as artifacts."""
    dataset = read_dataset(Path(config))
    return _told_whole(dataset, _build(dataset))


def _told_whole(dataset: Dataset, rows: list[Ended]) -> State[Any]:
    table = [{k: str(v) for k, v in _row(row).items()} for row in rows]
    create_table_artifact(table=table, key="dataset", description=f"{dataset.name}: {len(rows)} scenes")
    code = whole_exit_code(dataset, rows)
    good = sum(row.good for row in rows)
    message = f"{good} of {len(rows)} scenes are bundles; the others are in {dataset.out / 'quarantine'}"
    if code == 0:
        return Completed(name="Completed" if good == len(rows) else "Partial", message=message)
    return Failed(message=message)


def run_dataset_flow(config: Path) -> int:
    """`dataset build --prefect`: the same end as without, on the configured or an ephemeral server."""
    dataset = read_dataset(config)
    built: list[Ended] = []

    @flow(name="dataset", flow_run_name=config.name, validate_parameters=False, persist_result=False)
    def whole(config: str) -> State[Any]:
        return _told_whole(dataset, _build(dataset, done))

    def done(rows: list[Ended]) -> None:
        built.extend(rows)
        watchdog.start()

    watchdog = threading.Timer(SERVER_GRACE_S, lambda: _leave(whole_exit_code(dataset, built)))
    watchdog.daemon = True
    try:
        with temporary_settings(updates=SETTINGS):
            whole(str(config), return_state=True)
    except httpx.HTTPError:
        _say_lost()
    finally:
        watchdog.cancel()
    return whole_exit_code(dataset, built) if built else EXIT_CODES["try again"]


def _leave(code: int) -> None:
    """End this process where Prefect waits for a server that is gone: all results are on the disk."""
    _say_lost()
    os._exit(code)


def _say_lost() -> None:
    print(
        "Prefect's server no longer answers, so its UI lacks the end. The dataset itself is complete.", file=sys.stderr
    )
    sys.stderr.flush()


def _build(dataset: Dataset, done: Callable[[list[Ended]], None] = lambda _: None) -> list[Ended]:
    """Every scene by Prefect's own threads; `build` keeps order, index and report. done: told the rows once they are."""

    runner: Any = ThreadPoolTaskRunner(max_workers=dataset.workers)

    @flow(name="scenes", flow_run_name=f"scenes of {dataset.name}", task_runner=runner, persist_result=False)
    def scenes() -> list[Ended]:
        lost = threading.Event()
        submitted = {s.name: _scene_task.with_options(name=s.name).submit(s, dataset, lost) for s in dataset.scenes}
        wait(list(submitted.values()))

        def perform(scene: Scene, _: Dataset) -> Ended:
            future = submitted[scene.name]
            if future.state.is_completed():
                return future.result()  # type: ignore[no-any-return]
            return bring_to_its_end(scene, dataset)  # Prefect lost it: the notes beside the run know better

        rows = build(dataset, perform=perform)
        done(rows)
        return rows

    return scenes()


@task(cache_policy=NO_CACHE, persist_result=False, task_run_name="{scene.name}")
def _scene_task(scene: Scene, dataset: Dataset, lost: threading.Event) -> Ended:
    """One scene, in a slot of the GPU limit where the dataset asks for one. lost: set where the server is gone."""
    if lost.is_set():
        return bring_to_its_end(scene, dataset)

    @flow(name="scene", flow_run_name=scene.name, validate_parameters=False, persist_result=False)
    def one(capture: str) -> State[Any]:
        ended.append(bring_to_its_end(scene, dataset))
        return _state(_told(ended[-1], scene.request.run))

    ended: list[Ended] = []
    slot: AbstractContextManager[Any] = concurrency(GPU_SLOTS, occupy=1) if dataset.gpu_slots else nullcontext()
    try:
        with slot:
            one(str(scene.request.capture), return_state=True)
    except httpx.HTTPError:  # the server is gone; the scene is not
        lost.set()
    return ended[-1] if ended else bring_to_its_end(scene, dataset)


def _state(ended: Ended) -> State[Any]:
    if ended.good:
        return Completed(name="Cached" if ended.reused else "Completed", message="a bundle")
    return Failed(name=ended.outcome.capitalize(), message=ended.reason)


def _told(ended: Ended, run: Path) -> Ended:
    """Put how a scene ended into the UI."""
    lines = [f"### {ended.name}: {ended.outcome}", "", ended.reason, "", f"`{run}`, {ended.seconds:.0f} s"]
    key = "scene-" + "".join(c if c.isalnum() and c.isascii() else "-" for c in ended.name.lower()).strip("-")
    create_markdown_artifact("\n".join(lines), key=key, description=f"{ended.name}: {ended.outcome}")
    return ended


def _row(ended: Ended) -> dict[str, Any]:
    return {"scene": ended.name, "outcome": ended.outcome, "seconds": ended.seconds, "reason": ended.reason[:300]}
