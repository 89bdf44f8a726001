# SPDX-License-Identifier: Apache-2.0
"""Deployments for a Prefect server: one scene, a dataset, a dataset every night.

`python -m real2sim.flows.deploy [--pool cpu] [--gpu-pool gpu] [--nightly CONFIG]` registers them; `prefect.yaml` says the
same for `prefect deploy --all`. Workers start them from the installed package, by module, so that a worker's own checkout
or image decides what runs.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

NIGHTLY_CRON = "0 2 * * *"
ENTRYPOINTS = {
    "scene": "real2sim.flows.prefect_dataset.scene_flow",
    "dataset": "real2sim.flows.prefect_dataset.dataset_flow",
}


@dataclass(frozen=True)
class Deployment:
    """One deployment: its flow by module, the work pool that runs it, and when."""

    name: str
    flow: str
    pool: str
    parameters: dict[str, Any]
    cron: str | None = None
    tags: tuple[str, ...] = ()


def deployments(cpu: str, gpu: str, nightly: str | None) -> list[Deployment]:
    """What is deployed. nightly: the YAML of a dataset on the workers' machines."""
    found = [
        Deployment("scene-cpu", "scene", cpu, {}, tags=("cpu",)),
        Deployment("scene-gpu", "scene", gpu, {}, tags=("gpu",)),
        Deployment("dataset", "dataset", cpu, {}, tags=("cpu",)),
    ]
    if nightly:
        found.append(Deployment("dataset-nightly", "dataset", cpu, {"config": nightly}, NIGHTLY_CRON, ("cpu",)))
    return found


def apply(plan: list[Deployment]) -> list[str]:
    """Register deployments with the server of PREFECT_API_URL; their ids."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.deployments.runner import EntrypointType, RunnerDeployment
    from prefect.schedules import Cron

    from real2sim.flows.prefect_dataset import dataset_flow, scene_flow

    flows: dict[str, Any] = {"scene": scene_flow, "dataset": dataset_flow}
    one_night = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
    ids = []
    for d in plan:
        deployment: Any = RunnerDeployment.from_flow(
            flows[d.flow],
            name=d.name,
            work_pool_name=d.pool,
            parameters=d.parameters,
            tags=list(d.tags),
            schedule=Cron(d.cron) if d.cron else None,
            concurrency_limit=one_night if d.cron else None,
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        ids.append(str(deployment.apply()))
    return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", default="cpu", help="work pool of deployments that need no GPU")
    parser.add_argument("--gpu-pool", default="gpu", help="work pool whose workers have a GPU")
    parser.add_argument("--nightly", help="YAML of a dataset that is built every night")
    asked = parser.parse_args()
    plan = deployments(asked.pool, asked.gpu_pool, asked.nightly)
    for d, number in zip(plan, apply(plan)):
        print(f"{d.name:16} {ENTRYPOINTS[d.flow]} on {d.pool}  {number}")


if __name__ == "__main__":
    main()
