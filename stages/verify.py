# SPDX-License-Identifier: Apache-2.0
"""Verify a bundle in the simulator: does the picture agree with the collider, does it load, do spheres come to rest.

Nothing is written. `gates` takes a draft whose index is not written yet; `check` takes a finished bundle and verifies
its files first.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import BundleError
from real2sim.sim.bundle import Bundle, body_pose, read_bundle, unlisted_files
from real2sim.sim.cameras import Camera
from real2sim.sim.gates import Gate
from real2sim.sim.median_depth import median_depth
from real2sim.sim.obj import read_vertices
from real2sim.sim.raycast import COLLISION_GROUPS, cast, collision_boxes, pixel_directions
from real2sim.sim.render.splat import Splat
from real2sim.sim.scene import Engine, compile_model
from real2sim.sim.support import footprint, free_spots, inside_polygon
from real2sim.sim.views import hemisphere
from real2sim.stages.contract import Progress
from real2sim.stages.verify_objects import NAMES as OBJECT_NAMES
from real2sim.stages.verify_objects import object_gates

ENGINES: tuple[Engine, ...] = ("real2sim", "mujoco")
NAMES = ("agreement", "loads", "drop", "rerender", *OBJECT_NAMES)


@dataclass(frozen=True)
class Limits:
    """Thresholds and sampling of the checks."""

    agreement_median: float = 0.01  # abs(splat depth - collider depth) / distance, median
    agreement_p90: float = 0.05  # the same, 90th percentile
    agreement_share: float = 0.01  # what stands on the support is measured apart from this share of the pixels on
    agreement_cameras: int = 64  # cameras besides the held-out ones
    agreement_width: int = 320  # [px] of the images that are compared
    agreement_stride: int = 4  # every n-th row and column is compared
    opaque: float = 0.9  # alpha above which the splat's depth is that of a surface
    step_seconds: float = 1.0  # [s] stepped by `loads`
    penetration_m: float = 0.0005  # [m] at start
    drop_radius: float = 0.02  # [m] of the spheres
    drop_height: float = 0.05  # [m] between the support and a sphere's lowest point at start
    drop_seconds: float = 3.0  # [s]
    drop_count: int = 12  # most spheres
    engines_apart_m: float = 0.002  # [m] between a resting sphere's places in the two engines
    drop_gap_m: float = 0.002  # [m] between a resting sphere and the support
    drop_speed: float = 0.001  # [m/s] of a resting sphere
    settle_m: float = 0.002  # [m] that an object may move in 2 s under gravity
    settle_deg: float = 1.0  # [deg] that it may turn
    mask_iou: float = 0.75  # of an object's rendered masks with the photos', mean over held-out frames
    convex_iou: float = 0.9  # of an object's convex parts with its mesh, by volume
    fall_m: float = 0.10  # [m] that objects are dropped from
    shake_deg: float = 10.0  # [deg] by which the support is tilted to and fro
    rerender_db: float = 0.1  # [dB] between held-out PSNR of the bundle and of the splat before it moved


def check(bundle: Path, progress: Progress, limits: Limits | None = None) -> list[Gate]:
    """Verify a finished bundle, read-only: its files and hashes, then every gate that a bundle alone can repeat.

    Returns all its gates in order, the repeated ones with their new values. Raises BundleError where it is not a
    bundle, and names the file where one was changed.
    """
    read = read_bundle(bundle, progress=progress.update)
    progress.log(f"{read.root}: all {len(read.data['files'])} files are as they were written.")
    if strangers := unlisted_files(read):
        named = ", ".join(strangers[:5]) + (" …" if len(strangers) > 5 else "")
        progress.log(f"{len(strangers)} more files lie in the folder that are no part of the bundle: {named}")
    limits = limits or recorded_limits(read)
    repeated = {gate.name: gate for gate in gates(read, read.splat(), progress, limits)}
    recorded = {gate.name: gate for gate in read.gates}
    return list({**recorded, **repeated}.values())


def recorded_limits(bundle: Bundle) -> Limits:
    """The thresholds that a bundle says it was made under; the defaults where it says nothing."""
    recorded = bundle.data.get("limits")
    if not isinstance(recorded, dict):
        return Limits()
    known = {field.name for field in fields(Limits)}
    values: dict[str, Any] = {k: v for k, v in recorded.items() if k in known and isinstance(v, int | float)}
    return Limits(**values)


def gates(bundle: Bundle, splat: Splat, progress: Progress, limits: Limits) -> list[Gate]:
    """All gates of this module on a bundle or its draft. splat: the bundle's own, world frame."""
    model, loads = loading(bundle, limits)
    if model is None:
        return [loads]
    return [
        agreement(bundle, model, splat, progress, limits),
        loads,
        drop(bundle, limits),
        rerender(bundle, splat, limits),
        *object_gates(bundle, limits),
    ]


def loading(bundle: Bundle, limits: Limits) -> tuple[Any | None, Gate]:
    """Gate `loads`: MuJoCo compiles the scene and steps it without a warning, and nothing overlaps at start.

    Returns the model too, None where it does not compile. The value is the deepest overlap at start [m].
    """
    import mujoco

    heard: list[str] = []
    advice = "Look at the collision parts that the evidence names; `--set collision` options change how they are made."
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(heard.append)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = compile_model(bundle)
            data = mujoco.MjData(model)
            mujoco.mj_forward(model, data)
            deepest = max([0.0, *(-float(d) for d in data.contact.dist)])
            mujoco.mj_step(model, data, round(limits.step_seconds / model.opt.timestep))
    except BundleError as error:
        return None, Gate("loads", None, limits.penetration_m, False, str(error), advice, "m")
    finally:
        mujoco.set_mju_user_warning(previous)
    heard += [str(w.message) for w in caught]
    heard += [f"{mujoco.mjtWarning(i).name} x{w.number}" for i, w in enumerate(data.warning) if w.number]
    evidence = (
        f"MuJoCo compiles {model.ngeom} geoms and steps {limits.step_seconds:g} s; "
        + (f"warnings: {'; '.join(heard)}" if heard else "no warnings")
        + f"; deepest overlap at start {deepest * 1000:.2f} mm"
    )
    passed = not heard and deepest <= limits.penetration_m and bool(np.isfinite(data.qpos).all())
    return model, Gate("loads", deepest, limits.penetration_m, passed, evidence, None if passed else advice, "m")


@dataclass
class Comparison:
    """Splat against collider over many cameras, per compared pixel.

    error: abs difference / distance, 1 where no collider is met; over: the surface lies over the support; standing: it
    stands on the support, silhouettes left out (there a splat's depth belongs to no surface).
    """

    error: NDArray[np.float64]
    over: NDArray[np.bool_]
    standing: NDArray[np.bool_]
    cameras: int


def agreement(bundle: Bundle, model: Any, splat: Splat, progress: Progress, limits: Limits) -> Gate:
    """Gate `agreement`: median depth of the splat against depth of the collision geoms, from where the capture looked.

    With a support the region of interest is what lies over it; what stands on it is measured apart as well, so that a
    missing object cannot hide behind a large table, and the surroundings are told but not judged.
    """
    found = compare_depths(bundle, model, splat, progress, limits)
    interest = found.over if bundle.support is not None else np.ones(len(found.error), bool)
    region = "over the support" if bundle.support is not None else "inside the collider's box"
    where = f"{found.cameras} cameras, {int(interest.sum())} pixels {region}"
    if not interest.any():
        return Gate(
            "agreement", None, limits.agreement_median, False, f"{where}: nothing to compare",
            "The splat is nowhere opaque there. Capture the support from more views.",
        )  # fmt: skip
    median, p90 = (float(v) for v in np.quantile(found.error[interest], [0.5, 0.9]))
    measures = [(median, limits.agreement_median), (p90, limits.agreement_p90)]
    said = (
        f"depth differs by {median:.2%} of the distance (median; at most {limits.agreement_median:.0%}), "
        f"{p90:.2%} (90th percentile; at most {limits.agreement_p90:.0%}); {where}"
    )
    if found.standing.mean() >= limits.agreement_share:
        median, p90 = (float(v) for v in np.quantile(found.error[found.standing], [0.5, 0.9]))
        measures.append((p90, limits.agreement_p90))
        said += f"; of what stands on it {median:.2%}, {p90:.2%} (at most {limits.agreement_p90:.0%})"
    if not interest.all():
        median, p90 = (float(v) for v in np.quantile(found.error[~interest], [0.5, 0.9]))
        said += f"; around it, not judged, {median:.2%}, {p90:.2%}"
    # The measure that is nearest to its limit speaks for all.
    value, limit = max(measures, key=lambda measure: measure[0] / measure[1])
    advice = (
        "Picture and collider differ: a sphere would float or sink. Capture the parts that the report shows in red "
        "from more sides, or use finer collision parts."
    )
    return Gate.measure("agreement", value, limit, bound="max", evidence=said, advice=advice)


def compare_depths(bundle: Bundle, model: Any, splat: Splat, progress: Progress, limits: Limits) -> Comparison:
    """Compare depths from new cameras near the capture's and from the held-out ones.

    A pixel counts where the splat is opaque and its surface lies in the region that the collider declares.
    """
    import mujoco

    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    captured = bundle.cameras()
    views = hemisphere(captured, bundle.support, limits.agreement_cameras, limits.agreement_width)
    for camera in captured:
        if camera.heldout:
            width = min(limits.agreement_width, camera.width)
            views.append(camera.resized(width, max(1, round(camera.height * width / camera.width))))
    rows = []
    for i, view in enumerate(views):
        error, points, smooth = depth_error(bundle, model, data, splat, view, limits, limits.agreement_stride)
        counts = np.isfinite(error)
        over, standing = over_support(bundle, points[counts])
        rows.append((error[counts], over, standing & smooth[counts]))
        progress.update(i + 1, len(views), check="agreement")
    error, over, standing = (np.concatenate(column) for column in zip(*rows))
    return Comparison(error, over, standing, len(views))


def depth_error(
    bundle: Bundle, model: Any, data: Any, splat: Splat, view: Camera, limits: Limits, stride: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Compare one view: error [H, W], the splat's surface [H, W, 3] in the world, and where that is no silhouette.

    error: abs(splat depth - collider depth) / distance; NaN where it does not count, 1 where no collider is met.
    stride: only every n-th row and column counts.
    """
    from scipy.ndimage import maximum_filter, minimum_filter

    depth, alpha = median_depth(splat, view)
    points = view.centre + pixel_directions(view) * depth[..., None]
    rows, columns = np.indices(depth.shape)
    counts = (alpha > limits.opaque) & (rows % stride == 0) & (columns % stride == 0)
    counts[counts] = in_region(bundle, model, points[counts])
    collider = cast(model, data, view, static=True, groups=COLLISION_GROUPS, where=counts).depth
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.abs(depth - collider) / depth
    error = np.where(counts, np.minimum(np.where(np.isfinite(collider), relative, 1), 1), np.nan)
    return error, points, maximum_filter(depth, 3) - minimum_filter(depth, 3) < SILHOUETTE * depth


# A surface a little below the support (its edge, a table leg) is not what the collider stands for.
BELOW_SUPPORT = 0.01  # [m]
STANDING = 0.01  # [m]: what is higher than this above the support stands on it
SILHOUETTE = 0.03  # of the depth: a jump between neighbouring pixels that is no surface
BOX_MARGIN = 0.02  # of the diagonal of the collider


def over_support(bundle: Bundle, points: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which points [..., 3] lie over the inside of the support's polygon, and which of these stand on the support."""
    if bundle.support is None:
        return np.zeros(points.shape[:-1], bool), np.zeros(points.shape[:-1], bool)
    height = points[..., 2] - bundle.support["height"]
    over = (height > -BELOW_SUPPORT) & inside_polygon(points[..., :2], bundle.support["polygon"])
    return over, over & (height > STANDING)


def in_region(bundle: Bundle, model: Any, points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points [..., 3] lie where the collider claims to stand for what is seen.

    That is the box around all collision geoms and, with a support, everything over the support.
    """
    claimed, _ = over_support(bundle, points)
    lows, highs = collision_boxes(model)
    if len(lows) == 0:
        return claimed
    low, high = lows.min(0), highs.max(0)
    margin = BOX_MARGIN * float(np.linalg.norm(high - low))
    return claimed | ((points > low - margin) & (points < high + margin)).all(-1)


def drop(bundle: Bundle, limits: Limits) -> Gate:
    """Gate `drop`: spheres dropped on free places of the support rest on its surface, in the physics core and in MuJoCo.

    The value is the worst gap of either engine; where the engines disagree, the evidence says by how much.
    """
    if bundle.support is None:
        return Gate.not_applicable("drop", "the scene has no support to drop anything on")
    radius = limits.drop_radius
    spots = free_spots(bundle.support["polygon"], obstacles(bundle, limits), radius, most=limits.drop_count)
    if len(spots) == 0:
        return Gate(
            "drop", None, limits.drop_gap_m, False,
            f"no free place for a sphere of {radius * 100:g} cm: collision parts cover the support, or it is smaller",
            "Use finer collision parts, or capture a support with some free space on it.", "m",
        )  # fmt: skip
    rest = np.append(np.zeros(2), float(bundle.support["height"]) + radius)
    places, speeds = zip(*(drop_spheres(bundle, spots, limits, engine) for engine in ENGINES), strict=True)
    gap, speed = np.abs(np.stack(places) - rest)[..., 2].max(0), np.max(speeds, 0)
    apart = float(np.linalg.norm(places[0] - places[1], axis=-1).max())
    resting = (gap <= limits.drop_gap_m) & (speed <= limits.drop_speed)
    agreed = "agree within" if apart <= limits.engines_apart_m else "DISAGREE by"
    evidence = (
        f"{resting.sum()} of {len(spots)} spheres of {radius * 100:g} cm rest within {limits.drop_gap_m * 1000:g} mm "
        f"of the support, slower than {limits.drop_speed * 1000:g} mm/s, after {limits.drop_seconds:g} s; "
        f"worst gap {gap.max() * 1000:.2f} mm, fastest {speed.max() * 1000:.2f} mm/s; "
        f"the physics core and MuJoCo {agreed} {apart * 1000:.2f} mm"
    )
    advice = (
        "Spheres fall through, float, or roll away: look at the collider in the report; the support may be tilted, too "
        "thin, or covered by stray collision parts."
    )
    passed = bool(resting.all())
    return Gate("drop", float(gap.max()), limits.drop_gap_m, passed, evidence, None if passed else advice, "m")


def drop_spheres(
    bundle: Bundle, spots: NDArray[np.float64], limits: Limits, engine: Engine
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Drop a sphere on each of the spots [S, 2]; centres [S, 3] in the end [m], world frame, and speeds [S] [m/s]."""
    import mujoco

    from real2sim.sim.physics import Batch, Model

    assert bundle.support is not None
    rest, radius = float(bundle.support["height"]) + limits.drop_radius, limits.drop_radius

    def add(spec: Any) -> None:
        for i, (x, y) in enumerate(spots):
            body = spec.worldbody.add_body(name=f"drop_{i}", pos=[x, y, rest + limits.drop_height])
            body.add_freejoint()
            # Rolling friction stops a sphere on a slope below 3 degrees: what is flat to the eye must hold it.
            body.add_geom(
                type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[radius, 0, 0], density=1000, condim=6,
                friction=[0.6, 0.1 * radius, 0.05 * radius], solref=[0.01, 1],
            )  # fmt: skip

    model = compile_model(bundle, edit=add)
    steps = round(limits.drop_seconds / model.opt.timestep)
    if engine == "mujoco":
        data = mujoco.MjData(model)
        mujoco.mj_step(model, data, steps)
        qpos, qvel = data.qpos, data.qvel
    else:
        batch = Batch(Model.from_mjmodel(model, source=str(bundle.scene)))
        batch.step(steps)
        qpos, qvel = batch.qpos[0], batch.qvel[0]
    return qpos.reshape(-1, 7)[-len(spots) :, :3], np.linalg.norm(qvel.reshape(-1, 6)[-len(spots) :, :3], axis=-1)


def obstacles(bundle: Bundle, limits: Limits) -> list[NDArray[np.float64]]:
    """Convex outlines [P, 2] of the collision parts that a sphere could meet between its start and the support."""
    assert bundle.support is not None
    above = bundle.support["height"] + 0.001
    below = bundle.support["height"] + limits.drop_height + 2 * limits.drop_radius
    parts = [read_vertices(bundle.path(file)) for file in bundle.background["collision"]]
    for asset in bundle.movable:
        parts += [body_pose(asset).apply(read_vertices(bundle.path(file))) for file in asset["collision"]]
    outlines = [footprint(part, above) for part in parts if part[:, 2].min() < below]
    return [outline for outline in outlines if outline is not None]


def heldout_psnr(splat: Splat, cameras: list[Camera], root: Path) -> dict[str, float]:
    """Raw PSNR [dB] of each held-out camera's rendering against its photo; masked pixels do not count.

    Image paths are relative to root.
    """
    from PIL import Image

    from real2sim.sim.render.rasterize import render

    scores: dict[str, float] = {}
    for camera in cameras:
        if not camera.heldout or camera.image is None:
            continue
        with Image.open(root / camera.image) as file:
            photo = np.asarray(file.convert("RGB"), np.float32) / 255
        error = (np.clip(render(splat, camera)["rgb"], 0, 1) - photo) ** 2
        if camera.mask is not None:
            with Image.open(root / camera.mask) as file:
                error = error[np.asarray(file.convert("L")) < 128]
        scores[camera.name] = float(-10 * np.log10(max(float(error.mean()), 1e-10))) if error.size else float("nan")
    return {name: score for name, score in scores.items() if np.isfinite(score)}


def rerender(bundle: Bundle, splat: Splat, limits: Limits) -> Gate:
    """Gate `rerender`: held-out frames from the bundle's own splat and cameras score what they scored before.

    Before: in the reconstruction's frame. A wrong rotation of the harmonics, a quaternion order or a scale shows here.
    """
    before = bundle.data["splat"].get("heldout_psnr", {})
    after = heldout_psnr(splat, bundle.cameras(), bundle.root)
    shared = [name for name in before if name in after]
    if not shared:
        return Gate.not_applicable("rerender", "no frame was held out")
    worst = max(abs(after[name] - before[name]) for name in shared)
    evidence = (
        f"{len(shared)} held-out frames: {np.mean([after[n] for n in shared]):.2f} dB from the bundle, "
        f"{np.mean([before[n] for n in shared]):.2f} dB before the splat moved to the world frame; "
        f"worst difference {worst:.3f} dB"
    )
    advice = (
        "The splat and its cameras do not lie in one frame. This is a defect, not of the capture: please report it."
    )
    return Gate.measure("rerender", worst, limits.rerender_db, bound="max", evidence=evidence, advice=advice, unit="dB")
