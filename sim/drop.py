# SPDX-License-Identifier: Apache-2.0
"""Drop coloured spheres into a bundle: a film of the splat and the spheres in depth order, and where each one ended."""

from __future__ import annotations

import colorsys
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import UsageError
from real2sim.sim.bundle import Bundle, read_bundle
from real2sim.sim.cameras import Camera
from real2sim.sim.composite import contact_shadow, geom_colours, over, shade
from real2sim.sim.film import find_ffmpeg, write_video
from real2sim.sim.raycast import COLLISION_GROUPS, cast, collision_boxes
from real2sim.sim.scene import Engine, Scene, compile_model
from real2sim.sim.support import clearance, polygon_area
from real2sim.sim.views import best_camera, fitted, orbit_view, view_centre

FPS = 24
SUBPIXELS = ((-0.25, -0.25), (0.25, -0.25), (-0.25, 0.25), (0.25, 0.25))  # smooth outlines
SWING_DEG, SWING_SECONDS = 14.0, 9.0  # how far the camera swings to each side, and how long there and back takes
ROLLING_FRICTION = 0.05  # of the radius: a sphere stops on a slope below 3 degrees
DENSITY = 700.0  # [kg/m^3], hard wood
RESTING_SPEED = 0.02  # [m/s]
RESTING_GAP = 0.005  # [m], between a sphere and the support that it lies on
AGREEMENT = 0.002  # [m] between the engines
FALLEN = 0.1  # [m] below the support: it is gone


class Reports(Protocol):
    """Where progress goes: bars on a terminal, or nowhere."""

    def update(self, done: float, total: float, **fields: Any) -> None: ...

    def log(self, message: str) -> None: ...


@dataclass(frozen=True)
class Ball:
    """One sphere: radius [m], start [3] world frame [m], rgb in 0..1."""

    radius: float
    start: NDArray[np.float64]
    rgb: tuple[float, float, float]


@dataclass(frozen=True)
class DropSummary:
    """What happened. on_support: at rest on the plane of the support; on_objects: at rest higher than that.

    engine: that of the film. engines_apart_m: how far the mean height of the spheres that came to rest on the support
    is from the other engine's [m], and whether that is within AGREEMENT.
    """

    spheres: int
    on_support: int
    on_objects: int
    fell_off: int
    moving: int
    fps: int
    frames: int
    seconds_simulated: float
    seconds_taken: float
    camera: str
    video: str
    engine: str
    engines_apart_m: float
    engines_agree: bool


def drop_video(
    bundle: str | Path,
    count: int,
    out: str | Path,
    *,
    seconds: float = 4.0,
    width: int = 640,
    height: int = 480,
    seed: int = 0,
    engine: Engine = "real2sim",
    progress: Reports | None = None,
) -> DropSummary:
    """Drop `count` spheres over the bundle's support and film it to `out` (mp4), with summary.json beside it.

    seconds: simulated time, shown at its own speed; width, height in px (even). Raises UsageError for values that make
    no film, BackendError without ffmpeg, BundleError for what is not a sound bundle.
    """
    if count < 1 or not 0 < seconds < np.inf or seed < 0 or min(width, height) < 16 or width % 2 or height % 2:
        raise UsageError(
            "A film needs at least one sphere, a positive time, a seed of 0 or more and even sizes of at least 16 px; "
            f"got {count} spheres, {seconds} s, seed {seed}, {width}x{height}."
        )
    find_ffmpeg()  # before the work, not after
    began, out, read = time.monotonic(), Path(out), read_bundle(bundle)
    balls = scatter(read, count, seed)
    model = compile_model(read, edit=lambda spec: add_balls(spec, balls))
    scene = Scene(read, model, engine)
    frames = max(2, round(seconds * FPS))
    view = fitted(best_camera(list(scene.cameras.values()), read.support), width, height)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_video(_film(scene, balls, view, frames, progress), out, width, height, FPS)
    apart = engines_apart(scene, balls)
    summary = DropSummary(
        **outcome(scene, balls), engine=engine, engines_apart_m=round(apart, 6), engines_agree=apart <= AGREEMENT,
        fps=FPS, frames=frames, seconds_simulated=round(float(scene.data.time), 3),
        seconds_taken=round(time.monotonic() - began, 2), camera=view.name, video=out.name,
    )  # fmt: skip
    (out.parent / "summary.json").write_text(json.dumps(asdict(summary), indent=1))
    return summary


def scatter(bundle: Bundle, count: int, seed: int) -> list[Ball]:
    """Spheres of varied radii and hues in a loose cloud above the scene, none touching another."""
    rng = np.random.default_rng(seed)
    polygon, floor, top = _drop_region(bundle)
    size = float(np.sqrt(abs(polygon_area(polygon))))
    smallest, largest = np.clip([0.015 * size, 0.035 * size], 0.005, 0.08)
    low, high = polygon.min(0), polygon.max(0)
    balls: list[Ball] = []
    for i in range(count):
        radius = float(rng.uniform(smallest, largest))
        for _ in range(1000):
            xy = rng.uniform(low, high)
            if clearance(xy, polygon) > min(2 * radius, 0.1 * size):
                break
        # Each starts a little higher than the last, so that they rain over the first second.
        start = np.array([*xy, max(top, floor) + radius + size * (0.1 + 0.9 * i / count)])
        while any(np.linalg.norm(start - b.start) < 1.05 * (radius + b.radius) for b in balls):
            start[2] += radius
        balls.append(Ball(radius, start, colorsys.hsv_to_rgb((i * 0.618034) % 1, 0.75, 0.95)))
    return balls


def _drop_region(bundle: Bundle) -> tuple[NDArray[np.float64], float, float]:
    """Where to drop: a polygon [P, 2], the height of the support, and that of the highest collider [m]."""
    model = compile_model(bundle)
    lows, highs = collision_boxes(model)
    if len(lows) == 0:
        raise UsageError(f"{bundle.root}: has no collision geometry, so nothing could stop a sphere.")
    low, high = lows.min(0), highs.max(0)
    if bundle.support is not None:
        return np.asarray(bundle.support["polygon"], np.float64), float(bundle.support["height"]), float(high[2])
    box = np.array([[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]]])
    return box, float(low[2]), float(high[2])


def add_balls(spec: Any, balls: list[Ball]) -> None:
    """Add free spheres to a mujoco.MjSpec; they roll to rest through rolling friction (condim 6)."""
    import mujoco

    for i, ball in enumerate(balls):
        body = spec.worldbody.add_body(name=f"ball_{i}", pos=ball.start)
        body.add_freejoint()
        body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[ball.radius, 0, 0], rgba=[*ball.rgb, 1], density=DENSITY, group=1,
            condim=6, friction=[0.6, 0.1 * ball.radius, ROLLING_FRICTION * ball.radius],
        )  # fmt: skip


def outcome(scene: Scene, balls: list[Ball]) -> dict[str, int]:
    """How many spheres there are, rest on the support, rest on something higher, fell off, still move."""
    resting, on_support, fallen = _resting(scene, balls), _on_support(scene, balls), _gap(scene, balls) < -FALLEN
    return {
        "spheres": len(balls),
        "on_support": int(on_support.sum()),
        "on_objects": int((resting & ~on_support).sum()),
        "fell_off": int(fallen.sum()),
        "moving": int((~resting & ~fallen).sum()),
    }


def engines_apart(scene: Scene, balls: list[Ball]) -> float:
    """Largest difference in height [m] of the spheres that rest on the support with both engines, as long simulated.

    Where spheres meet, their paths are chaotic; how high they lie in the end is not.
    """
    other = Scene(scene.bundle, scene.model, "mujoco" if scene.engine == "real2sim" else "real2sim")
    other.step(round(float(scene.data.time) / scene.model.opt.timestep))
    both = _on_support(scene, balls) & _on_support(other, balls)
    heights = [_centres(s, balls)[both, 2] for s in (scene, other)]
    return float(np.abs(heights[0] - heights[1]).max(initial=0.0))


def _gap(scene: Scene, balls: list[Ball]) -> NDArray[np.float64]:
    """Height of each sphere's lowest point over the support (without one: over the lowest collider) [m]."""
    support = scene.bundle.support
    floor = support["height"] if support else collision_boxes(scene.model)[0][:, 2].min()
    return _centres(scene, balls)[:, 2] - np.array([ball.radius for ball in balls]) - floor


def _resting(scene: Scene, balls: list[Ball]) -> NDArray[np.bool_]:
    speeds = np.linalg.norm(scene.data.qvel.reshape(-1, 6)[-len(balls) :, :3], axis=-1)
    return (speeds < RESTING_SPEED) & (_gap(scene, balls) >= -FALLEN)


def _on_support(scene: Scene, balls: list[Ball]) -> NDArray[np.bool_]:
    on = np.abs(_gap(scene, balls)) < RESTING_GAP
    return _resting(scene, balls) & on & (scene.bundle.support is not None)


def _centres(scene: Scene, balls: list[Ball]) -> NDArray[np.float64]:
    return scene.data.xpos[[scene.model.body(f"ball_{i}").id for i in range(len(balls))]]


def _floors(scene: Scene, balls: list[Ball]) -> list[float]:
    """Height of the collider below each sphere [m], -inf where there is none."""
    import mujoco

    colliders = np.zeros(6, np.uint8)
    colliders[list(COLLISION_GROUPS)] = 1
    floors = []
    for centre in _centres(scene, balls):
        fall = mujoco.mj_ray(scene.model, scene.data, centre, [0, 0, -1.0], colliders, True, -1, None)
        floors.append(float(centre[2] - fall) if fall >= 0 else -np.inf)
    return floors


def _film(
    scene: Scene, balls: list[Ball], view: Camera, frames: int, progress: Reports | None
) -> Iterator[NDArray[np.uint8]]:
    centre = view_centre(list(scene.cameras.values()), scene.bundle.support)
    for frame in range(frames):
        seconds = frame / FPS
        scene.step(
            max(0, round(seconds / scene.model.opt.timestep) - round(scene.data.time / scene.model.opt.timestep))
        )
        angle = SWING_DEG * np.sin(2 * np.pi * seconds / SWING_SECONDS)
        picture = picture_with_shadows(scene, balls, orbit_view(view, centre, angle))
        if progress is not None:
            progress.update(frame + 1, frames, seconds=round(seconds, 1))
        yield (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8)


def picture_with_shadows(scene: Scene, balls: list[Ball], view: Camera) -> NDArray[np.float32]:
    """RGB [H, W, 3]: splat and spheres in depth order, smooth outlines, and soft shadows where spheres come near.

    `cover` is the share of a pixel's samples that hit a sphere, and the pixel is
    cover * (splat up to the sphere, then the sphere) + (1 - cover) * (shadowed splat).
    """
    from real2sim.sim.render.rasterize import render

    colours, samples = (
        geom_colours(scene.model),
        [cast(scene.rays, scene.data, view, static=False, offset=o) for o in SUBPIXELS],
    )
    cover = np.mean([hits.geom >= 0 for hits in samples], 0)
    splat = scene.splat
    whole = render(splat, view)
    light = contact_shadow(
        whole["depth"], view, _centres(scene, balls), [ball.radius for ball in balls], _floors(scene, balls)
    )
    background = whole["rgb"] * light[..., None]
    if not cover.any():
        return background.astype(np.float32)
    hit_count = np.maximum(cover * len(SUBPIXELS), 1)
    rgb = sum(shade(hits, view, colours) for hits in samples) / hit_count[..., None]
    depth = sum(np.where(hits.geom >= 0, hits.depth, 0) for hits in samples) / hit_count
    depth = np.where(cover > 0, depth, np.inf)
    front = render(splat, view, depth_limit=depth)
    covered, _, _ = over(front, rgb.astype(np.float32), depth)
    return (cover[..., None] * covered + (1 - cover[..., None]) * background).astype(np.float32)
