# SPDX-License-Identifier: Apache-2.0
"""The graph as Prefect tasks, on a temporary server in this process."""

from __future__ import annotations

import pytest


def as_flow(scene, *settings: str):
    import fakes

    from real2sim.flows.prefect_scene import reconstruct_as_flow

    return reconstruct_as_flow(scene.request(*settings), fakes.GRAPH, scene.listener, report=scene._report)


def read(kind: str):
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        if kind == "artifacts":
            return client.read_artifacts()
        return client.read_task_runs() if kind == "tasks" else client.read_flow_runs()


def newest_states() -> dict[str, str]:
    """State name of the latest run of each task."""
    runs = sorted(read("tasks"), key=lambda run: run.start_time)
    return {run.name: run.state_name for run in runs}


def test_the_graph_runs_as_tasks_and_hits_are_shown_as_cached(server, scene):
    assert as_flow(scene).exit_code == 0
    assert scene.ran() == ["letters", "words", "shape", "page"]
    assert newest_states() == dict.fromkeys(["letters", "words", "shape", "page"], "Completed")
    assert {a.key for a in read("artifacts")} >= {"letters-metrics", "words-metrics", "shape-metrics", "page-metrics"}
    assert as_flow(scene).exit_code == 0
    assert scene.ran() == []
    assert newest_states() == dict.fromkeys(["letters", "words", "shape", "page"], "Cached")
    assert scene.go().stages == [{**row, "cached": True} for row in scene.go().stages]
    assert scene.ran() == []  # the plain runner finds what the flow made


def test_a_refused_run_is_a_failed_flow_run_that_says_why(server, scene):
    summary = as_flow(scene, "words.at_least=99")
    assert (summary.outcome, summary.exit_code) == ("refused", 1)
    newest = max(read("flows"), key=lambda run: run.start_time)
    assert (newest.name, newest.state_name, newest.state.type.value) == ("desk", "Refused", "FAILED")
    assert "Write more." in newest.state.message


def test_a_bad_capture_is_not_tried_again_and_a_shortage_is(server, scene, monkeypatch):
    from real2sim.flows import prefect_scene

    monkeypatch.setattr(prefect_scene, "BACKOFF_S", 0)
    assert as_flow(scene, "words.mode=capture").exit_code == 1
    assert scene.ran().count("words") == 1
    assert as_flow(scene, "words.mode=memory").exit_code == 75
    assert scene.ran().count("words") == 1 + prefect_scene.RETRIES


def test_a_wrong_option_is_an_error_of_ours(server, scene):
    from real2sim.errors import UsageError

    with pytest.raises(UsageError, match="Did you mean 'words'"):
        as_flow(scene, "wrods.scale=2")


def test_a_server_that_does_not_answer_is_said(scene):
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    from real2sim.errors import TransientError

    nowhere = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(updates=nowhere), pytest.raises(TransientError, match="without --prefect none is needed"):
        as_flow(scene)
    assert scene.ran() == []


def test_metrics_and_gates_become_a_table():
    from real2sim.flows.prefect_scene import markdown

    gate = {"name": "enough", "value": 0.5, "threshold": 1.0, "passed": False, "evidence": "a|b", "advice": "More."}
    manifest = {
        "stage": "words", "key": "k", "backend": "cpu", "seconds": 1.0, "peak_memory_gb": 0.5,
        "gates": [gate], "metrics": {"words": 7, "list": [1]},
    }  # fmt: skip
    text = markdown(manifest)
    assert "| enough | 0.5 | 1 | **failed** | a\\|b More. |" in text
    assert "| words | 7 |" in text
    assert "list" not in text
