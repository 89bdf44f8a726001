# SPDX-License-Identifier: Apache-2.0
"""Pictures of meshes without a GPU: a z-buffer in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.sim.cameras import Camera

Array = NDArray[np.float64]
Faces = NDArray[np.int64]

BACKGROUND = 0.93
CHUNK_PIXELS = 1_000_000
NEAR = 1e-3
LARGE_PX = 64  # triangles that span more are drawn one by one


def clip_near(local: Array, faces: Faces) -> tuple[Array, Faces, NDArray[np.int64]]:
    """Cut triangles at the plane z = NEAR (camera axes); returns vertices, faces and the face each came from."""
    behind = local[faces, 2] < NEAR
    count = behind.sum(1)
    whole = np.flatnonzero(count == 0)
    parts, origins, vertices = [faces[whole]], [whole], [local]
    total = len(local)
    for number in (1, 2):
        rows = np.flatnonzero(count == number)
        odd = np.argmax(behind[rows] == (number == 1), axis=1)  # the corner that is alone on its side
        i, j, k = (faces[rows, (odd + n) % 3] for n in range(3))
        cuts = []
        for other in (j, k):
            t = (NEAR - local[i, 2]) / (local[other, 2] - local[i, 2])
            cuts.append(local[i] + t[:, None] * (local[other] - local[i]))
        a, b = total + np.arange(len(rows)), total + len(rows) + np.arange(len(rows))
        vertices += cuts
        total += 2 * len(rows)
        if number == 1:
            parts += [np.stack([a, j, k], 1), np.stack([a, k, b], 1)]
            origins += [rows, rows]
        else:
            parts.append(np.stack([i, a, b], 1))
            origins.append(rows)
    return np.concatenate(vertices), np.concatenate(parts), np.concatenate(origins)


def z_buffer(vertices: Array, faces: Faces, camera: Camera) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Depth [H, W] (inf where nothing is) and index of the visible face [H, W] (-1) of a mesh, seen from both sides."""
    local = (vertices - camera.centre) @ camera.T_world_cam[:3, :3]
    local, faces, origin = clip_near(local, faces)
    local[:, 2] = np.maximum(local[:, 2], NEAR)
    uv = local[:, :2] / local[:, 2:] * np.diag(camera.K)[:2] + camera.K[:2, 2]
    corners, z = uv[faces], local[faces, 2]
    low = np.maximum(np.ceil(corners.min(1) - 0.5), 0).astype(int)
    high = np.minimum(np.floor(corners.max(1) - 0.5), [camera.width - 1, camera.height - 1]).astype(int)
    span = (high - low).max(1) + 1
    depth = np.full(camera.width * camera.height, np.inf, np.float32)
    face = np.full(len(depth), -1, np.int64)
    visible = (high >= low).all(1)
    level = np.where(visible, np.ceil(np.log2(np.maximum(span, 1))), -1).astype(int)
    for n in range(int(level.max(initial=-1)) + 1):
        rows = np.flatnonzero(level == n)
        side = 1 << n
        pieces = len(rows) if side > LARGE_PX else len(rows) * side * side // CHUNK_PIXELS
        for part in np.array_split(rows, max(1, pieces)):
            box = (high[part] - low[part] + 1).max(0, initial=1)
            _fill(part, corners, z, low, box, camera, depth, face)
    visible_face = np.where(face >= 0, origin[face], -1) if len(origin) else face
    return depth.reshape(camera.height, camera.width), visible_face.reshape(camera.height, camera.width)


def _fill(
    part: NDArray[np.int64], corners: Array, z: Array, low: NDArray[np.int64], box: NDArray[np.int64], camera: Camera,
    depth: NDArray[np.float32], face: NDArray[np.int64],
) -> None:  # fmt: skip
    """Draw triangles whose boxes span at most `box` pixels into depth and face (flat), by barycentric coordinates."""
    grid = np.stack(np.meshgrid(np.arange(box[0]), np.arange(box[1])), -1).reshape(-1, 2)
    pixel = low[part, None] + grid
    p = pixel + 0.5
    a, b, c = (corners[part, k][:, None] for k in range(3))
    cross = (b[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1]) - (b[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])
    with np.errstate(divide="ignore", invalid="ignore"):
        v = (
            (p[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1]) - (p[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])
        ) / cross
        w = (
            (b[..., 0] - a[..., 0]) * (p[..., 1] - a[..., 1]) - (b[..., 1] - a[..., 1]) * (p[..., 0] - a[..., 0])
        ) / cross
        u = 1 - v - w
        inverse = u / z[part, 0, None] + v / z[part, 1, None] + w / z[part, 2, None]
        d = (1 / inverse).astype(np.float32)
    inside = (u >= 0) & (v >= 0) & (w >= 0) & (pixel < [camera.width, camera.height]).all(-1)
    row, column = np.nonzero(inside)
    index = pixel[row, column, 1] * camera.width + pixel[row, column, 0]
    value, owner = d[row, column], part[row]
    order = np.lexsort((owner, value, index))
    first = np.r_[True, np.diff(index[order]) > 0] if len(order) else np.zeros(0, bool)
    best = order[first]
    closer = value[best] < depth[index[best]]
    depth[index[best][closer]] = value[best][closer]
    face[index[best][closer]] = owner[best][closer]


def shade(vertices: Array, faces: Faces, face_rgb: Array, camera: Camera) -> NDArray[np.uint8]:
    """A picture [H, W, 3] of a mesh with colours [F, 3] (0 to 1) lit from the camera."""
    _, hit = z_buffer(vertices, faces, camera)
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    normal = np.cross(b - a, c - a)
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    ray = (a + b + c) / 3 - camera.centre
    ray /= np.maximum(np.linalg.norm(ray, axis=1, keepdims=True), 1e-12)
    light = 0.35 + 0.65 * np.abs((normal * ray).sum(1))
    colours = np.r_[face_rgb * light[:, None], [[BACKGROUND] * 3]]
    return np.asarray(np.clip(colours[hit] * 255, 0, 255).round(), np.uint8)


def overview_cameras(cameras: Sequence[Camera], target: Array, count: int = 2, long_side: int = 640) -> list[Camera]:
    """A few of the capture's cameras that look at a target [3] from directions far apart, at most long_side pixels."""
    direction = np.array([c.centre - target for c in cameras])
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-12)
    chosen = [int(np.argmax(direction[:, 2]))]
    while len(chosen) < min(count, len(cameras)):
        chosen.append(int(np.argmin((direction @ direction[chosen].T).max(1))))
    picked = []
    for index in chosen:
        camera = cameras[index]
        zoom = min(1.0, long_side / max(camera.width, camera.height))
        picked.append(camera.resized(round(camera.width * zoom), round(camera.height * zoom)))
    return picked


def write_png(path: Path, pictures: Sequence[NDArray[np.uint8]]) -> None:
    """Pictures [H, W, 3] side by side in one PNG."""
    from PIL import Image

    height = max(p.shape[0] for p in pictures)
    padded = [np.pad(p, ((0, height - p.shape[0]), (0, 0), (0, 0)), constant_values=255) for p in pictures]
    Image.fromarray(np.hstack(padded)).save(path)
