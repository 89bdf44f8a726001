# SPDX-License-Identifier: Apache-2.0
"""The instances of a scene as the stage `segment` writes them, and as later stages read them.

segment/instances.json   {"instances": [{"id", "label", "score", "views", "box": [low, high], "note"}], "backend"}
segment/masks/<camera>.png   id maps, 8-bit: the instance that is visible in each pixel, 0 for none
segment/solids/<id>.ply      closed surface of a first solid (world frame, m)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real2sim.errors import Real2SimError
from real2sim.sim.cameras import Camera
from real2sim.stages.silhouettes import Ids, Silhouette, Surface, draw_instances

MOST = 200  # instances that an 8-bit id map can hold, with room


@dataclass(frozen=True)
class Instance:
    """One thing: its number in the id maps, its name, how sure its masks are (0 to 1), in how many photos it shows."""

    id: int
    label: str
    score: float
    views: int
    note: str = ""


@dataclass(frozen=True)
class Instances:
    """All instances; ids [H, W] per camera in the order of cameras; surfaces: first solids, world frame."""

    rows: list[Instance]
    cameras: list[Camera]
    ids: list[Ids]
    surfaces: dict[int, Surface]

    def silhouettes(self) -> list[Silhouette]:
        """What each photo says, with the depth of the first solids."""
        numbers = [row.id for row in self.rows]
        drawn = [draw_instances([self.surfaces[n] for n in numbers], camera) for camera in self.cameras]
        return [Silhouette(d.camera, ids, d.depth) for d, ids in zip(drawn, self.ids)]


def write_instances(out: Path, found: Instances, backend: str) -> None:
    """Write instances.json, masks and solids into an artifact."""
    import cv2
    import trimesh

    (out / "masks").mkdir()
    (out / "solids").mkdir()
    for camera, ids in zip(found.cameras, found.ids):
        cv2.imwrite(str(out / "masks" / f"{camera.name}.png"), ids)
    for row in found.rows:
        vertices, faces = found.surfaces[row.id]
        trimesh.Trimesh(vertices, faces, process=False).export(out / "solids" / f"{row.id}.ply")
    text = {"backend": backend, "instances": [asdict(row) for row in found.rows]}
    (out / "instances.json").write_text(json.dumps(text, indent=1))


def read_instances(segment: Path, cameras: list[Camera]) -> Instances:
    """Read the artifact of `segment`; cameras: those of the reconstruction, world frame. Real2SimError names the file."""
    import cv2
    import trimesh

    path = segment / "instances.json"
    try:
        rows = [Instance(**row) for row in json.loads(path.read_text())["instances"]]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Real2SimError(f"{path}: not a list of instances ({error}). Run the segment stage again.") from error
    ids, surfaces = [], {}
    for camera in cameras if rows else []:
        file = segment / "masks" / f"{camera.name}.png"
        picture = cv2.imread(str(file), cv2.IMREAD_UNCHANGED)
        if picture is None or picture.shape != (camera.height, camera.width):
            raise Real2SimError(
                f"{file}: not an id map of {camera.width}x{camera.height}. Run the segment stage again."
            )
        ids.append(np.asarray(picture, np.uint8))
    for row in rows:
        surface = trimesh.load_mesh(segment / "solids" / f"{row.id}.ply", process=False)
        surfaces[row.id] = np.asarray(surface.vertices, np.float64), np.asarray(surface.faces, np.int64)
    return Instances(rows, cameras, ids, surfaces)


def paint(photo: NDArray[np.uint8], ids: Ids) -> NDArray[np.uint8]:
    """A photo [H, W, 3] with each instance tinted in a colour of its own and outlined."""
    import colorsys

    import cv2

    picture = photo.copy()
    for number in np.unique(ids[ids > 0]):
        colour = 255 * np.array(colorsys.hsv_to_rgb(0.618034 * int(number) % 1, 0.8, 1.0))
        mask = ids == number
        picture[mask] = (0.55 * picture[mask] + 0.45 * colour).astype(np.uint8)
        outlines, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(picture, outlines, -1, colour.tolist(), 1)
    return picture
