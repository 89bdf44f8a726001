# SPDX-License-Identifier: Apache-2.0
"""Opaque moving geoms inside a splat, in the right order per pixel: the splat is blended only up to the geom's depth.

With front-to-back blending C = sum_i T_i a_i c_i, an opaque surface at depth d sees the Gaussians of depth < d in front
of it, and the light that they let through, T(d) = 1 - sum_{z_i < d} T_i a_i, carries the surface's colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera
from real2sim.sim.raycast import Hits, directions, pixel_directions, sphere_window

Image = NDArray[np.float32]

LIGHT = np.array([0.25, 0.15, 0.95]) / np.linalg.norm([0.25, 0.15, 0.95])  # towards the light, world frame
AMBIENT, DIFFUSE, GLOSS, SHININESS = 0.55, 0.5, 0.25, 40.0
SHADOW_STRENGTH, SHADOW_REACH = 0.75, 5.0
SHADOW_DEPTH = 0.08  # of the depth: by so much a splat's mean depth may differ from the plane that a shadow falls on


def geom_colours(model: Any) -> NDArray[np.float64]:
    """RGB [ngeom, 3]: the material's colour where a geom has one, else its own."""
    colours = np.array(model.geom_rgba[:, :3], np.float64)
    with_material = model.geom_matid >= 0
    colours[with_material] = model.mat_rgba[model.geom_matid[with_material], :3]
    return colours


def shade(hits: Hits, camera: Camera, colours: NDArray[np.float64]) -> Image:
    """Shaded RGB [H, W, 3] of the geoms that were hit, zero elsewhere: light of the sky, Lambert, a Blinn highlight."""
    rgb = np.zeros((*hits.depth.shape, 3), np.float32)
    rows, columns = hit = np.nonzero(hits.geom >= 0)
    normal = hits.normal[hit]
    view = -directions(camera, columns + 0.5, rows + 0.5)
    view /= np.linalg.norm(view, axis=-1, keepdims=True)
    normal = np.where((normal * view).sum(-1, keepdims=True) < 0, -normal, normal)
    half = LIGHT + view
    half /= np.linalg.norm(half, axis=-1, keepdims=True)
    sky = AMBIENT * (0.8 + 0.2 * normal[:, 2])
    diffuse = DIFFUSE * np.clip(normal @ LIGHT, 0, None)
    gloss = GLOSS * np.clip((normal * half).sum(-1), 0, None) ** SHININESS
    rgb[hit] = np.clip(colours[hits.geom[hit]] * (sky + diffuse)[:, None] + gloss[:, None], 0, 1)
    return rgb


def over(front: dict[str, Image], geom_rgb: Image, geom_depth: NDArray[np.float64]) -> tuple[Image, Image, Image]:
    """Composite opaque surfaces behind the splat that was blended up to their depth.

    front: "rgb" [H, W, 3] (blended over black), "depth" [H, W] normalised by alpha [m], "alpha" [H, W];
    geom_rgb [H, W, 3]; geom_depth [H, W] [m], inf where there is none. Returns rgb, depth (normalised), alpha.
    """
    alpha = front["alpha"]
    through = np.where(np.isfinite(geom_depth), 1 - alpha, 0).astype(np.float32)
    rgb = front["rgb"] + through[..., None] * geom_rgb
    total = alpha + through
    behind = np.where(np.isfinite(geom_depth), geom_depth, 0)
    depth = (alpha * front["depth"] + through * behind) / np.maximum(total, 1e-12)
    return rgb.astype(np.float32), np.where(total > 0, depth, 0).astype(np.float32), total.astype(np.float32)


def contact_shadow(
    depth: NDArray[Any], camera: Camera, centres: NDArray[np.float64], radii: Sequence[float], floors: Sequence[float]
) -> NDArray[np.float64]:
    """How much skylight spheres leave at what a camera sees: a factor in (0, 1], [H, W].

    A sphere of radius r seen at distance d and elevation cosine n covers n (r/d)^2 of the cosine-weighted sky; the
    effect fades out at SHADOW_REACH radii. It falls on the horizontal plane below each sphere, where the picture shows
    something about as deep: depth [H, W], m. centres [S, 3], radii [S], floors [S]: the planes' heights; m, world.
    """
    light = np.ones(depth.shape)
    for centre, radius, floor in zip(centres, radii, floors):
        foot = np.array([centre[0], centre[1], floor])
        if centre[2] - floor > SHADOW_REACH * radius or camera.centre[2] <= floor:
            continue
        window = sphere_window(camera, foot, SHADOW_REACH * radius)
        rays = pixel_directions(camera, window=window)
        with np.errstate(divide="ignore"):
            t = (floor - camera.centre[2]) / np.minimum(rays[..., 2], -1e-9)
        offset = centre - (camera.centre + rays * t[..., None])
        distance = np.maximum(np.linalg.norm(offset, axis=-1), radius)
        covered = np.clip(offset[..., 2] / distance, 0, 1) * (radius / distance) ** 2
        fade = np.clip(1 - (distance / (SHADOW_REACH * radius)) ** 2, 0, 1)
        shown = np.clip(2 - np.abs(depth[window] - t) / (SHADOW_DEPTH * t), 0, 1)
        light[window] *= 1 - SHADOW_STRENGTH * covered * fade * shown
    return light
