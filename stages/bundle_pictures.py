# SPDX-License-Identifier: Apache-2.0
"""Pictures of a bundle for its report: a turntable, the collider beside the splat, where the two differ, and a drop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.bundle import Bundle
from real2sim.sim.cameras import Camera
from real2sim.sim.composite import shade
from real2sim.sim.drop import add_balls, picture_with_shadows, scatter
from real2sim.sim.raycast import COLLISION_GROUPS, cast, collision_boxes
from real2sim.sim.render.splat import Splat
from real2sim.sim.scene import Scene, compile_model
from real2sim.sim.views import best_camera, fitted, orbit_view, view_centre
from real2sim.stages.contract import Progress
from real2sim.stages.verify import Limits, depth_error

WIDTH, HEIGHT = 480, 360
TURN_WIDTH, TURN_HEIGHT, TURN_FRAMES, TURN_MS = 400, 300, 36, 90
COVERED_DEG = 25.0  # a direction counts as seen where a capture camera stands within this angle
BALLS, SETTLED_SECONDS = 24, 2.5
WORST_SHOWN = 0.05  # relative depth error that is shown in full red


def write_pictures(bundle: Bundle, model: Any, splat: Splat, limits: Limits, out: Path, progress: Progress) -> None:
    """Write turntable.webp, splat.jpg, collider.jpg, difference.jpg and drop.jpg; the folder `out` exists."""
    captured = bundle.cameras()
    view = fitted(best_camera(captured, bundle.support), WIDTH, HEIGHT)
    save_jpeg(out / "splat.jpg", _splat_rgb(splat, view))
    save_jpeg(out / "collider.jpg", collider_picture(model, view))
    save_jpeg(out / "difference.jpg", difference_picture(bundle, model, splat, view, limits))
    if len(collision_boxes(model)[0]):
        save_jpeg(out / "drop.jpg", drop_picture(bundle, view))
    write_turntable(out / "turntable.webp", splat, captured, bundle.support, progress)


def save_jpeg(path: Path, rgb: NDArray[Any]) -> None:
    """Write RGB [H, W, 3] in 0..1."""
    from PIL import Image

    Image.fromarray((np.clip(rgb, 0, 1) * 255 + 0.5).astype(np.uint8)).save(path, quality=88)


def _splat_rgb(splat: Splat, view: Camera) -> NDArray[np.float32]:
    from real2sim.sim.render.rasterize import render

    return render(splat, view)["rgb"]


def _at_rest(model: Any) -> Any:
    import mujoco

    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return data


def collider_picture(model: Any, view: Camera) -> NDArray[np.float32]:
    """The collision geoms alone, each in its own colour, on light grey."""
    import colorsys

    hits = cast(model, _at_rest(model), view, static=True, groups=COLLISION_GROUPS)
    hues = [colorsys.hsv_to_rgb((0.58 + i * 0.618034) % 1, 0.12 if i == 0 else 0.5, 0.9) for i in range(model.ngeom)]
    rgb = shade(hits, view, np.asarray(hues))
    return np.where((hits.geom >= 0)[..., None], rgb, np.float32(0.94))


def difference_picture(bundle: Bundle, model: Any, splat: Splat, view: Camera, limits: Limits) -> NDArray[np.float32]:
    """Where splat and collider differ: the splat in grey, compared pixels from pale blue (0) to red (5% off)."""
    error, _, _ = depth_error(bundle, model, _at_rest(model), splat, view, limits, 1)
    grey = np.repeat(_splat_rgb(splat, view).mean(-1, keepdims=True), 3, -1)
    share = np.clip(np.nan_to_num(error) / WORST_SHOWN, 0, 1)[..., None]
    pale, red = np.array([0.62, 0.8, 0.95]), np.array([0.86, 0.1, 0.12])
    tint = (1 - share) * pale + share * red
    return np.where(np.isfinite(error)[..., None], 0.35 * grey + 0.65 * tint, 0.6 * grey).astype(np.float32)


def drop_picture(bundle: Bundle, view: Camera) -> NDArray[np.float32]:
    """Spheres that fell for a while, in the splat."""
    balls = scatter(bundle, BALLS, seed=1)
    model = compile_model(bundle, edit=lambda spec: add_balls(spec, balls))
    scene = Scene(bundle, model)
    scene.step(round(SETTLED_SECONDS / model.opt.timestep))
    return picture_with_shadows(scene, balls, view)


def write_turntable(
    path: Path, splat: Splat, captured: list[Camera], support: dict[str, Any] | None, progress: Progress
) -> None:
    """An animation around the scene: a full turn where the capture went all around, else to and fro where it went."""
    from PIL import Image

    view = fitted(best_camera(captured, support), TURN_WIDTH, TURN_HEIGHT)
    centre = view_centre(captured, support)
    pictures = []
    for i, angle in enumerate(turntable_angles(view, captured, centre)):
        rgb = _splat_rgb(splat, orbit_view(view, centre, angle))
        pictures.append(Image.fromarray((np.clip(rgb, 0, 1) * 255 + 0.5).astype(np.uint8)))
        progress.update(i + 1, TURN_FRAMES, picture="turntable")
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=TURN_MS, loop=0, quality=62, method=4)


def turntable_angles(view: Camera, captured: list[Camera], centre: NDArray[np.float64]) -> NDArray[np.float64]:
    """Angles [TURN_FRAMES] in degrees from the view: 360 around, or a smooth swing over the arc that was captured."""
    offsets = np.stack([camera.centre - centre for camera in captured])
    offsets /= np.linalg.norm(offsets, axis=-1, keepdims=True)

    def covered(angle: float) -> bool:
        towards = orbit_view(view, centre, angle).centre - centre
        return float((offsets @ towards).max() / np.linalg.norm(towards)) >= np.cos(np.radians(COVERED_DEG))

    seen = [covered(angle) for angle in range(360)]
    if all(seen):
        return np.arange(TURN_FRAMES) * 360 / TURN_FRAMES
    forth = next(a for a in range(360) if not seen[a])
    back = next(a for a in range(360) if not seen[-a])
    middle, half = (forth - back) / 2, max(0.0, (forth + back) / 2 - 1)
    return middle + half * np.sin(2 * np.pi * np.arange(TURN_FRAMES) / TURN_FRAMES)
