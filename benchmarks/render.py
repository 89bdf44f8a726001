# SPDX-License-Identifier: Apache-2.0
"""The batch renderer on CUDA beside gsplat 1.5.3, both fed the same Morton-ordered templates.

    python -m benchmarks.render --splats DIR --json FILE [--capture FILE] [--seconds 200]

Correctness first (float64 reference, gsplat as second witness, bits), then sizes (chunks, bins, registers), then the
table. A row that fails is a row that says so; the file is written after every row. Frames/s count whole calls of
`BatchRenderer.render`: body poses and cameras are on the device, images stay there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.render_scenes import (
    Case,
    Posed,
    body_poses,
    cameras_around,
    cut_bodies,
    intrinsics,
    load_capture,
    load_room,
    room_cameras,
    with_degree,
)
from real2sim.sim.render.batch import BatchCameras, BatchRenderer
from real2sim.sim.render.batch_cuda import CudaBackend, Tuning
from real2sim.sim.render.batch_reference import render_batch_reference
from real2sim.sim.render.splat import Splat

WIDTH, HEIGHT, WORLDS, REACH = 640, 480, 2048, 0.3


class Report:
    """Rows by name, written to a file after each; a budget after which rows are left out by name."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.end, self.rows = path, time.monotonic() + seconds, {}  # type: ignore[var-annotated]

    def row(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        start = time.monotonic()
        if start > self.end:
            result: dict[str, Any] = {"left_out": "the time was up"}
        else:
            try:
                torch.cuda.empty_cache()
                result = measure()
            except Exception as error:
                result = {"failed": repr(error)[:600], "trace": traceback.format_exc()[-1500:]}
        result["row_seconds"] = round(time.monotonic() - start, 2)
        self.rows[name] = result
        self.path.write_text(json.dumps(self.rows, indent=1))
        print(name, {k: v for k, v in result.items() if k != "trace"}, flush=True)
        return result


def timed(run: Callable[[], Any], repeats: int = 4) -> dict[str, float]:
    """Milliseconds of a call by CUDA events, after one call that is not counted: best and median."""
    run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        out = run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
        del out
    return {"best_ms": min(times), "median_ms": float(np.median(times))}


def psnr(a: Any, b: Any) -> float:
    return float(-10 * torch.log10(((a.double() - b.double()) ** 2).mean() + 1e-30))


def relative(a: Any, b: Any) -> Any:
    return (a - b).abs() / b.clamp(min=1e-6)


def moving_cameras(
    case: Case, nworld: int, width: int = WIDTH, height: int = HEIGHT, viewmats: Any = None
) -> BatchCameras:
    viewmats = room_cameras(case.template, nworld) if viewmats is None else viewmats
    Ks = np.broadcast_to(intrinsics(width, height), (nworld, 1, 3, 3))
    return BatchCameras(torch.as_tensor(viewmats[:, None]).cuda(), torch.as_tensor(Ks.copy()).cuda(), width, height)


def renderer_of(case: Case, precision: str, tuning: Tuning) -> BatchRenderer:
    renderer = BatchRenderer(case.template, case.body_ids, "cuda", precision=precision)  # type: ignore[arg-type]
    backend_of(renderer).tuning = tuning
    return renderer


def backend_of(renderer: BatchRenderer) -> CudaBackend:
    assert isinstance(renderer.backend, CudaBackend)
    return renderer.backend


def gsplat_images(
    posed: Posed,
    poses: Any,
    cameras: BatchCameras,
    first: int,
    count: int,
    *,
    sh_degree: int | None,
    mode: str = "RGB",
    packed: bool = False,
) -> Any:
    """gsplat's images [count, 1, H, W, C], with the moving Gaussians posed inside."""
    from gsplat import rasterization

    means, quats = posed.world(poses[first : first + count])
    colours = posed.colours if sh_degree is None else posed.sh
    return rasterization(
        *(means, quats, posed.scales.expand(count, -1, -1), posed.opacities.expand(count, -1)),
        colours.expand(count, *colours.shape),
        cameras.viewmats[first : first + count],
        cameras.Ks[first : first + count],
        *(cameras.width, cameras.height),
        sh_degree=sh_degree,
        packed=packed,
        render_mode=mode,
    )


def check(case: Case, report: Report, sh_degree: int | None, worlds: int = 64) -> None:
    """Against float64, against gsplat, fast against exact, and bit for bit against itself."""
    poses = torch.as_tensor(body_poses(case, worlds, REACH)).cuda()
    exact, fast = renderer_of(case, "exact", Tuning()), renderer_of(case, "fast", Tuning())
    outputs = ("rgb", "depth", "alpha", "segmentation")

    def reference() -> dict[str, Any]:
        narrow = moving_cameras(case, 6, 96, 64)
        Ks = narrow.Ks.clone()
        Ks[..., 0, 0] = Ks[..., 1, 1] = 120.0
        narrow = dataclasses.replace(narrow, Ks=Ks)
        out = exact.render(poses[:6], narrow, outputs, "float32")
        request = exact._request(poses[:6], narrow, outputs, "float32", (0.0, 0.0, 0.0), None)
        truth = render_batch_reference(case.template, case.body_ids, request)
        solid = truth["alpha"] > 0.5
        depth = ((out["depth"] - truth["depth"]).abs() / truth["depth"].clamp(min=1e-6))[solid]
        quick = fast.render(poses[:6], narrow, outputs, "float32")
        return {
            "exact_db": psnr(out["rgb"], truth["rgb"]), "fast_db": psnr(quick["rgb"], truth["rgb"]),
            "depth_relative_max": float(depth.max()), "depth_relative_p999": float(depth.quantile(0.999)),
            "segmentation_equal": float((out["segmentation"] == truth["segmentation"]).double().mean()),
        }  # fmt: skip

    def witness() -> dict[str, Any]:
        posed, cameras = Posed(case, "cuda"), moving_cameras(case, 8)
        out = exact.render(poses[:8], cameras, outputs, "float32")
        quick = fast.render(poses[:8], cameras, outputs, "float32")
        theirs, alphas, _ = gsplat_images(posed, poses, cameras, 0, 8, sh_degree=sh_degree, mode="RGB+ED")
        backend_of(fast).tuning = Tuning(half_exponents=False)
        quicker = fast.render(poses[:8], cameras, outputs, "float32")
        backend_of(fast).tuning = Tuning()
        solid = alphas[..., 0] > 0.5
        depth = relative(out["depth"], theirs[..., 3])[solid]
        return {
            "exact_against_gsplat_db": psnr(out["rgb"], theirs[..., :3]),
            "fast_against_gsplat_db": psnr(quick["rgb"], theirs[..., :3]),
            "fast_against_exact_db": psnr(quick["rgb"], out["rgb"]),
            "fast_with_float_exponents_against_exact_db": psnr(quicker["rgb"], out["rgb"]),
            "depth_relative_median": float(depth.median()),
            "depth_over_1e-4": float((depth > 1e-4).double().mean()), "mean_alpha": float(alphas.mean()),
            "each_view_db": [round(psnr(a, b), 1) for a, b in zip(out["rgb"][:, 0], theirs[:, 0, ..., :3], strict=True)],
            "fast_depth_relative_median": float(relative(quick["depth"], out["depth"])[solid].median()),
        }  # fmt: skip

    def bits() -> dict[str, Any]:
        cameras, result = moving_cameras(case, worlds), {}
        for name, renderer in (("exact", exact), ("fast", fast)):
            once = renderer.render(poses, cameras, outputs, "float32")
            again = renderer.render(poses, cameras, outputs, "float32")
            order = torch.randperm(worlds, device="cuda")
            other = dataclasses.replace(cameras, viewmats=cameras.viewmats[order], Ks=cameras.Ks[order])
            permuted = renderer.render(poses[order], other, outputs, "float32")
            backend_of(renderer).tuning = Tuning(views_at_once=5, sort_max=512, bin_capacity=64, view_group=7)
            small = renderer.render(poses, cameras, outputs, "float32")
            backend_of(renderer).tuning = Tuning(streams=2)
            streams = renderer.render(poses, cameras, outputs, "float32")
            backend_of(renderer).tuning = Tuning()
            same = lambda a, b: all(torch.equal(a[k], b[k]) for k in outputs)  # noqa: E731
            result[name] = {
                "repeats": same(once, again), "worlds_permuted": same({k: v[order] for k, v in once.items()}, permuted),
                "small_bins_and_chunks": same(once, small), "two_streams": same(once, streams),
            }  # fmt: skip
        return result

    def layer() -> dict[str, Any]:
        still = moving_cameras(case, 1)
        still = dataclasses.replace(still, viewmats=still.viewmats[0], Ks=still.Ks[0])
        layered = exact.render(poses[:8], still, outputs, "float32")
        used = backend_of(exact)._layer is not None
        every = dataclasses.replace(still, viewmats=still.viewmats.expand(8, 1, 4, 4), Ks=still.Ks.expand(8, 1, 3, 3))
        whole = exact.render(poses[:8], every, outputs, "float32")
        return {"used": used, "equal": {k: torch.equal(layered[k], whole[k]) for k in outputs}}

    report.row("reference", reference)
    report.row("gsplat as witness", witness)
    report.row("bits", bits)
    report.row("fixed layer against whole", layer)


def time_gsplat(report: Report, name: str, case: Case, sh_degree: int | None, worlds: int = 128) -> float:
    """Frames/s of gsplat's best batch size; its posing of the moving Gaussians is timed, as ours is."""

    def measure() -> dict[str, Any]:
        posed, cameras = Posed(case, "cuda"), moving_cameras(case, worlds)
        poses, result, refused = torch.as_tensor(body_poses(case, worlds, REACH)).cuda(), {}, ""
        for batch, packed in ((8, False), (32, False), (32, True)):

            def run(batch: int = batch, packed: bool = packed) -> None:
                for first in range(0, worlds, batch):
                    gsplat_images(posed, poses, cameras, first, batch, sh_degree=sh_degree, packed=packed)

            try:
                result[f"batch_{batch}{'_packed' if packed else ''}_fps"] = worlds / timed(run, 2)["best_ms"] * 1e3
            except (RuntimeError, AssertionError, ValueError) as error:
                refused = repr(error)[:200]
        return {"fps": max(result.values()), **result, "worlds": worlds, "output": "float32 rgb", "refused": refused}

    with torch.no_grad():
        return report.row(name, measure).get("fps", float("nan"))


def time_ours(
    report: Report,
    name: str,
    case: Case,
    precision: str,
    tuning: Tuning,
    peer_fps: float,
    *,
    outputs: tuple[str, ...] = ("rgb",),
    worlds: int = WORLDS,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    cameras: BatchCameras | None = None,
    reach: float = REACH,
    repeats: int = 4,
) -> float:
    """Frames/s of whole calls, u8 rgb."""

    def measure() -> dict[str, Any]:
        renderer = renderer_of(case, precision, tuning)
        backend, poses = backend_of(renderer), torch.as_tensor(body_poses(case, worlds, reach)).cuda()
        views = cameras or moving_cameras(case, worlds, *size)
        shares: list[float] = []
        blend = backend._blend

        def spy(frame: Any, bins: Any, chunk: Any, layer: Any, images: Any, keep: Any = None) -> None:
            if layer is not None:
                shares.append(float((bins.counts[: chunk[1] * frame.tiles] > 0).float().mean()))
            blend(frame, bins, chunk, layer, images, keep)

        backend._blend = spy  # type: ignore[method-assign]
        renderer.render(poses, views, outputs, "uint8")  # type: ignore[arg-type]
        backend._blend = blend  # type: ignore[method-assign]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = renderer.render(poses, views, outputs, "uint8")  # type: ignore[arg-type]
        image_bytes = sum(v.numel() * v.element_size() for v in out.values())
        workspace = torch.cuda.max_memory_allocated() - before - image_bytes + backend._template_bytes()
        del out
        times = timed(lambda: renderer.render(poses, views, outputs, "uint8"), repeats)  # type: ignore[arg-type]
        fps = worlds / times["best_ms"] * 1e3
        return {
            "fps": fps, "fps_median": worlds / times["median_ms"] * 1e3, "us_per_frame": 1e6 / fps,
            "over_gsplat": None if np.isnan(peer_fps) else fps / peer_fps,
            "worlds": worlds, "cameras": 1,
            "gaussians_static": len(case.body_ids) - case.moving, "gaussians_moving": case.moving,
            "bodies": len(case.centres) - 1, "sh_degree": case.template.sh_degree, "precision": precision,
            "cached_layer": backend._layer is not None, "cameras_moving": cameras is None, "outputs": outputs,
            "touched_tiles": float(np.mean(shares)) if shares else None, "size": [views.width, views.height],
            "timed": "BatchRenderer.render: poses, projection, lists, raster, u8 images on the device",
            "working_memory_MiB": workspace / 2**20, "room": dataclasses.asdict(backend._room(views.width, views.height)),
        }  # fmt: skip

    return report.row(name, measure).get("fps", float("nan"))


def sweep(
    report: Report, case: Case, precision: str, start: Tuning, axes: dict[str, list[Any]], worlds: int = 256
) -> Tuning:
    """One axis at a time from the best so far; the fastest of each stays."""
    poses, cameras = torch.as_tensor(body_poses(case, worlds, REACH)).cuda(), moving_cameras(case, worlds)
    renderer, best = renderer_of(case, precision, start), start

    def fps(tuning: Tuning) -> float:
        backend_of(renderer).tuning = tuning
        return worlds / timed(lambda: renderer.render(poses, cameras, ("rgb",), "uint8"), 3)["best_ms"] * 1e3

    record = report.row(f"sizes {precision}: start", lambda: {"fps": fps(start), **dataclasses.asdict(start)}).get(
        "fps", 0.0
    )
    for axis, values in axes.items():
        for value in values:
            change = {axis: value}
            if axis == "sort_max":
                change["bin_capacity"] = value
            tuning = dataclasses.replace(best, **change)
            if tuning == best:
                continue
            got = report.row(f"sizes {precision}: {axis}={value}", lambda t=tuning: {"fps": fps(t)}).get("fps", 0.0)  # type: ignore[misc]
            if got > record * 1.005:
                record, winner = got, tuning
                report.rows[f"sizes {precision}: best"] = {"fps": got, **dataclasses.asdict(winner)}
        best = Tuning(
            **{
                k: v
                for k, v in report.rows.get(f"sizes {precision}: best", dataclasses.asdict(best)).items()
                if k != "fps"
            }
        )
    return best


def kernels(
    case: Case, precision: str, tuning: Tuning, outputs: tuple[str, ...] = ("rgb",), worlds: int = 128
) -> dict[str, Any]:
    """Microseconds a frame of each kernel, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    renderer = renderer_of(case, precision, dataclasses.replace(tuning, streams=1))
    poses, cameras = torch.as_tensor(body_poses(case, worlds, REACH)).cuda(), moving_cameras(case, worlds)
    renderer.render(poses, cameras, outputs, "uint8")  # type: ignore[arg-type]
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        renderer.render(poses, cameras, outputs, "uint8")  # type: ignore[arg-type]
        torch.cuda.synchronize()
    return {e.key[:40]: round(e.device_time_total / worlds, 3) for e in trace.key_averages() if e.device_time_total > 0}


def one_world(case: Case, tuning: Tuning) -> dict[str, Any]:
    """A single world, called and replayed as a graph, with its camera moving."""
    renderer = renderer_of(case, "fast", tuning)
    poses, cameras = torch.as_tensor(body_poses(case, 1, REACH)).cuda(), moving_cameras(case, 1)
    called = timed(lambda: [renderer.render(poses, cameras) for _ in range(50)], 3)["best_ms"] / 50
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        plain = renderer.render(poses, cameras)["rgb"].clone()
        graph = torch.cuda.CUDAGraph()
        backend_of(renderer)._layer = None
        with torch.cuda.graph(graph, stream=stream):
            images = renderer.render(poses, cameras)
    graph.replay()
    torch.cuda.synchronize()
    equal = torch.equal(images["rgb"], plain)
    replayed = timed(lambda: [graph.replay() for _ in range(200)], 3)["best_ms"] / 200
    return {"fps": 1e3 / replayed, "fps_without_graph": 1e3 / called, "us": replayed * 1e3, "graph_equal": equal,
            "lacked_room": backend_of(renderer).lacked_room()}  # fmt: skip


def fixed_cameras(case: Case, tuning: Tuning) -> tuple[BatchCameras, float]:
    """Of many fixed cameras, the one in which the moving bodies touch most, but at most 20%, of the tiles."""
    renderer = renderer_of(case, "exact", tuning)
    poses = torch.as_tensor(body_poses(case, 4, 0.1)).cuda()
    best: tuple[BatchCameras | None, float] = (None, -1.0)
    nearest = None
    for V in room_cameras(case.template, 40, seed=9):
        cameras = BatchCameras(
            torch.as_tensor(V[None]).cuda(), torch.as_tensor(intrinsics(WIDTH, HEIGHT)[None]).cuda(), WIDTH, HEIGHT
        )
        body = renderer.render(poses, cameras, ("segmentation",))["segmentation"]
        tiles = (body > 0).float().reshape(-1, HEIGHT // 16, 16, WIDTH // 16, 16).amax((2, 4))
        share = float(tiles.mean()) * 1.15  # tiles that are touched but not won
        nearest = nearest or (cameras, share)
        if best[1] < share <= 0.18:
            best = (cameras, share)
    return (best[0], best[1]) if best[0] is not None else nearest  # type: ignore[return-value]


def table(report: Report, rooms: dict[str, Splat], capture: Splat | None, part: str) -> None:
    flat = {name: with_degree(splat, 0) for name, splat in rooms.items()}
    main, small = cut_bodies("300k", flat["300k"]), cut_bodies("150k", flat["150k"])
    if part != "table":
        check(main, report, None)
    if part == "check":
        return
    peer = time_gsplat(report, "gsplat 300k rgb", main, None)
    axes = {
        "half_exponents": [False],
        "unroll": [1, 4],
        "views_at_once": [8, 16, 64, 128],
        "sort_max": [512, 2048],
        "blocks_per_sm": [6, 10, 12],
        "view_group": [8, 32],
        "streams": [2],
    }
    fast = sweep(report, main, "fast", Tuning(), axes)
    exact = sweep(report, main, "exact", fast, {"blocks_per_sm": [6, 8, 10, 12], "unroll": [1, 2, 4]})
    best = time_ours(report, "300k fast", main, "fast", fast, peer)
    time_ours(report, "300k exact", main, "exact", exact, peer)
    time_ours(
        report, "300k fast + depth + segmentation", main, "fast", fast, peer, outputs=("rgb", "depth", "segmentation")
    )
    report.rows["300k fast + depth + segmentation"]["of_rgb_alone"] = (
        report.rows["300k fast + depth + segmentation"].get("fps", 0) / best
    )
    for name, args in {"fast": ("fast", fast), "exact": ("exact", exact)}.items():
        report.row(f"kernels 300k {name} [us a frame]", lambda a=args: kernels(main, *a))  # type: ignore[misc]
    report.row(
        "kernels 300k fast + depth + segmentation [us a frame]",
        lambda: kernels(main, "fast", fast, ("rgb", "depth", "segmentation")),
    )
    peer_small = time_gsplat(report, "gsplat 150k rgb", small, None)
    time_ours(report, "150k fast", small, "fast", fast, peer_small)
    report.row("150k one world", lambda: one_world(small, fast))
    around = np.median(flat["300k"].means, axis=0) + [1.2, 0.6, -0.6]
    still = cut_bodies("300k, bodies together", flat["300k"], around=around)
    found: list[Any] = []
    report.row(
        "fixed cameras: choice",
        lambda: (found.append(fixed_cameras(still, fast)), {"estimated_touched": found[0][1]})[1],
    )
    if found:
        for precision, tuning in (("fast", fast), ("exact", exact)):
            time_ours(
                report,
                f"300k fixed cameras {precision}",
                still,
                precision,
                tuning,
                peer,
                cameras=found[0][0],
                reach=0.1,
            )
    peer_sh3 = float("nan")
    for degree in (3, 1):
        case = cut_bodies(f"300k degree {degree}", with_degree(rooms["300k"], degree))
        peer_sh = time_gsplat(report, f"gsplat 300k degree {degree}", case, degree, worlds=64)
        peer_sh3 = peer_sh if degree == 3 else peer_sh3
        time_ours(report, f"300k degree {degree} fast", case, "fast", fast, peer_sh)
        if degree == 3:
            time_ours(report, "300k degree 3 exact", case, "exact", exact, peer_sh)
            report.row("kernels 300k degree 3 fast [us a frame]", lambda c=case: kernels(c, "fast", fast))  # type: ignore[misc]
    if capture is not None:
        real = cut_bodies("capture", capture)
        views = cameras_around(real.template, 512)
        cameras = moving_cameras(real, 512, viewmats=views)
        time_ours(report, "capture fast", real, "fast", fast, float("nan"), worlds=512, cameras=cameras)
        time_ours(report, "capture exact", real, "exact", exact, float("nan"), worlds=512, cameras=cameras)
    time_ours(
        report,
        "300k at 128x128 without level of detail",
        main,
        "fast",
        fast,
        float("nan"),
        size=(128, 128),
        worlds=256,
        repeats=2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splats", type=Path, required=True, help="folder of room_150k.npz and room_300k.npz")
    parser.add_argument("--capture", type=Path, help="a real capture's splat: PLY, or npz of its arrays")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--part", choices=["all", "check", "table"], default="all")
    parser.add_argument("--profile", action="store_true", help="only draw 64 worlds once, for a profiler")
    args = parser.parse_args()
    rooms = {name: load_room(args.splats / f"room_{name}.npz") for name in ("150k", "300k")}
    if args.profile:
        case = cut_bodies("300k", with_degree(rooms["300k"], 0))
        poses, cameras = torch.as_tensor(body_poses(case, 64, REACH)).cuda(), moving_cameras(case, 64)
        renderer_of(case, "fast", Tuning()).render(poses, cameras)
        torch.cuda.synchronize()
        return
    report = Report(args.json, args.seconds)
    report.row(
        "device",
        lambda: {
            "name": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "free": torch.cuda.mem_get_info()[0],
        },
    )
    table(report, rooms, load_capture(args.capture) if args.capture else None, args.part)


if __name__ == "__main__":
    main()
