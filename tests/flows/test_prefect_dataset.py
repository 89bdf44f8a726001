# SPDX-License-Identifier: Apache-2.0
"""A dataset as a Prefect flow: sub-flows a person can read, failures named, and the notes as the truth."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from test_dataset import place, ran, write  # noqa: F401  the fixture

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_scenes_are_sub_flows_with_their_names_and_reasons(server, place):  # noqa: F811
    from prefect.client.orchestration import get_client

    from real2sim.flows.prefect_dataset import run_dataset_flow

    write(place, captures=["captures/a", "captures/b"], workers=2)
    assert run_dataset_flow(place / "set.yaml") == 0
    assert ran(place) == ["a", "b"]
    with get_client(sync_client=True) as client:
        states = {run.name: (run.state_name, run.state.message) for run in client.read_flow_runs()}
        keys = {artifact.key for artifact in client.read_artifacts()}
    assert states["a"][0] == "Completed"
    assert states["b"][0] == "Refused" and "1 of 9 frames" in states["b"][1]
    assert keys >= {"dataset", "scene-a", "scene-b"}
    assert run_dataset_flow(place / "set.yaml") == 0
    assert ran(place) == []


def test_prefect_yaml_and_the_program_deploy_the_same():
    from real2sim.flows.deploy import ENTRYPOINTS, deployments

    told = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    ours = {d.name: d for d in deployments("cpu", "gpu", "/data/dataset.yaml")}
    assert [d["name"] for d in told] == list(ours)
    for d in told:
        mine = ours[d["name"]]
        assert d["entrypoint"] == ENTRYPOINTS[mine.flow] and d["work_pool"]["name"] == mine.pool
        assert d.get("parameters", {}) == mine.parameters
        assert [s["cron"] for s in d.get("schedules", [])] == ([mine.cron] if mine.cron else [])
        assert ("concurrency_limit" in d) == (mine.cron is not None)


def test_compose_names_only_what_it_has():
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"database", "server", "cpu-worker", "gpu-worker"}
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        for other, condition in service.get("depends_on", {}).items():
            assert condition["condition"] != "service_healthy" or "healthcheck" in services[other]
        for volume in service.get("volumes", []):
            name = volume.partition(":")[0]
            assert name.startswith("$") or name in compose["volumes"]
