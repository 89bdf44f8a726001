# SPDX-License-Identifier: Apache-2.0
"""LiDAR rays a second on one core, beside Embree and MuJoCo's rays on the same scene and the same rays.

`python -m benchmarks.lidar [--quick] [--json FILE] [--device cpu|cuda]`; Embree needs `pip install embreex trimesh`.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from real2sim.sim import tessellate
from real2sim.sim.body_meshes import BodyMesh
from real2sim.sim.sensors import lidar_patterns as patterns
from real2sim.sim.sensors.lidar import Lidar
from real2sim.sim.trace import Tracer

BAR_CPU, BAR_GPU = 2e6, 500e6
GRID = 225  # vertices on a side: 100,352 triangles
RAYS = {
    "rotating 64 x 1800": lambda: patterns.rotating(np.linspace(-25, 15, 64), 1800),
    "raster 320 x 240": lambda: patterns.solid_state(320, 240, 90, 60, centre_deg=(0, -15)),
    "rosette 100k": lambda: patterns.Rosette(field_deg=70).directions(0, 100_000),
}


def terrain() -> BodyMesh:
    """Hills of 100,352 triangles over 20 x 20 m, as bumpy as a scanned floor."""
    x, y = np.meshgrid(*[np.linspace(-10, 10, GRID)] * 2)
    heights = 0.5 * np.sin(x) * np.cos(1.3 * y) + 0.1 * np.sin(5 * x + 3 * y) + 0.02 * np.sin(31 * x) * np.cos(27 * y)
    vertices, faces, _ = tessellate.height_field(heights, 10.0, 10.0)
    return BodyMesh(0, vertices, faces)


def best_seconds(work: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def embree(mesh: BodyMesh, origin: np.ndarray, rays: np.ndarray, repeats: int) -> tuple[float, np.ndarray] | None:
    """Rays a second of CPU time and the ranges by Embree through trimesh, or None where it is not installed."""
    try:
        from embreex import rtcore_scene
        from embreex.mesh_construction import TriangleMesh
    except ImportError:
        return None
    scene = rtcore_scene.EmbreeScene()
    TriangleMesh(scene, mesh.vertices, mesh.faces)
    start = np.tile(origin, (len(rays), 1)).astype(np.float32)
    directions = rays.astype(np.float32)
    seconds = best_seconds(lambda: scene.run(start, directions, query="DISTANCE"), repeats, time.process_time)
    return len(rays) / seconds, scene.run(start, directions, query="DISTANCE")


def mujoco_rays(mesh: BodyMesh, origin: np.ndarray, rays: np.ndarray) -> tuple[float, np.ndarray]:
    """Rays a second of CPU time and the ranges by mj_multiRay against the same triangles."""
    import mujoco

    spec = mujoco.MjSpec()
    spec.add_mesh(
        name="m",
        uservert=mesh.vertices.ravel(),
        userface=mesh.faces.ravel(),
        inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL,
    )
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="m", contype=0, conaffinity=0)
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    n = len(rays)
    geom, distance = np.empty(n, np.int32), np.empty(n)

    def cast() -> None:
        mujoco.mj_multiRay(model, data, origin, rays.ravel(), None, True, -1, geom, distance, None, n, 100.0)

    seconds = best_seconds(cast, 1, time.process_time)
    return n / seconds, np.where(geom >= 0, distance, np.inf)


def one_core(quick: bool) -> list[dict]:
    repeats = 2 if quick else 5
    mesh, origin = terrain(), np.array([0.3, 0.2, 1.6])
    lidar = Lidar(Tracer([mesh], threads=1), mount=[*origin, 1, 0, 0, 0], min_range=0.0)
    pose, rows = np.array([[[0, 0, 0, 1, 0, 0, 0.0]]]), []
    for name, make in RAYS.items():
        rays = make()
        seconds = best_seconds(functools.partial(lidar.scan, pose, rays), repeats, time.process_time)
        ranges = lidar.scan(pose, rays).ranges[0].numpy()
        few = rays[:: max(1, len(rays) // 2000)]
        mujoco_rate, expected = mujoco_rays(mesh, origin, few)
        other = embree(mesh, origin, rays, repeats)
        agree = np.isclose(lidar.scan(pose, few).ranges[0].numpy(), expected, atol=1e-3).mean()
        how = (
            f"scan() of one world, CPU seconds of one thread, best of {repeats}; {len(rays)} rays at {len(mesh.faces)} "
            f"triangles, {np.isfinite(ranges).mean():.0%} hit; {agree:.2%} of rays agree with MuJoCo within 1 mm; "
            f"peer: {'Embree (embreex) closest hit, single rays' if other else 'Embree is not installed'}; "
            f"MuJoCo mj_multiRay {mujoco_rate:,.0f} rays/s"
        )
        rows.append(row(f"LiDAR, {name}", len(rays) / seconds, BAR_CPU, other[0] if other else mujoco_rate, how))
    return rows


def many_worlds(device: str, quick: bool) -> list[dict]:
    """1,024 worlds of 20 moving bodies and 50,000 triangles each, one scan."""
    bodies, worlds = 20, 64 if quick or device == "cpu" else 1024
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(*[np.linspace(-10, 10, 123)] * 2)
    ground = BodyMesh(0, *tessellate.height_field(0.3 * np.sin(x) * np.cos(1.3 * y), 10.0, 10.0))
    things = [BodyMesh(k, *tessellate.ellipsoid(rng.uniform(0.2, 0.6, 3))) for k in range(1, bodies + 1)]
    triangles = sum(len(m.faces) for m in (ground, *things))
    poses = np.zeros((worlds, bodies + 1, 7))
    poses[..., 3:] = rng.normal(size=(worlds, bodies + 1, 4))
    poses[:, 1:, :3] = rng.uniform([-6, -6, 0], [6, 6, 1.5], (worlds, bodies, 3))
    poses[:, 0, 3:] = [1, 0, 0, 0]
    lidar = Lidar(Tracer([ground, *things], device, threads=1), mount=[0, 0, 1.5, 1, 0, 0, 0], min_range=0.0)
    on_device = torch.as_tensor(poses, device=device)
    rays = RAYS["rotating 64 x 1800"]()[: 64 * (90 if device == "cpu" else 1800)]

    def work() -> None:
        lidar.scan(on_device, rays)
        if device != "cpu":
            torch.cuda.synchronize()

    clock = time.process_time if device == "cpu" else time.perf_counter
    seconds = best_seconds(work, 2 if quick else 5, clock)
    how = f"scan() of {worlds} worlds, {bodies} moving bodies, {triangles} triangles and {len(rays)} rays each, on {device}"
    bar = BAR_CPU if device == "cpu" else BAR_GPU
    return [row("LiDAR, many worlds", worlds * len(rays) / seconds, bar, None, how)]


def row(name: str, value: float, bar: float, peer: float | None, how: str) -> dict:
    return {
        "name": name, "value": value, "unit": "rays/s", "bar": bar, "direction": "higher", "peer": peer,
        "ratio": None if peer is None else value / peer, "met": value >= bar, "how": how,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and worlds")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--device", default="cpu", help="where the many worlds are scanned")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = one_core(options.quick) + many_worlds(options.device, options.quick)
    print(f"{'':28} {'M rays/s':>9} {'peer':>8} {'ratio':>6} {'bar':>6}  met")
    for r in rows:
        peer, ratio = (f"{r['peer'] / 1e6:.2f}", f"{r['ratio']:.2f}") if r["peer"] else ("", "")
        met = "yes" if r["met"] else "NO"
        print(f"{r['name']:28} {r['value'] / 1e6:9.2f} {peer:>8} {ratio:>6} {r['bar'] / 1e6:6.1f}  {met}")
        print(f"    {r['how']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
