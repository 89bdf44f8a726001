# SPDX-License-Identifier: Apache-2.0
"""What tool a capture comes from, and what its files say: poses, depth maps, masks, gravity. Nothing is guessed.

A file of poses that the user names comes first; then transforms.json, a COLMAP model, RealityCapture's CSV, Record3D,
Polycam, 7-Scenes and ScanNet, the first that is there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from PIL import Image

from real2sim.errors import CaptureError
from real2sim.stages.capture_layout import DEPTH_SUFFIXES, PHOTO_SUFFIXES, Layout
from real2sim.stages.capture_yaml import DepthNotes
from real2sim.stages.export_colmap import find_model, read_colmap
from real2sim.stages.export_phone import POLYCAM, find_polycam, find_record3d, read_polycam, read_record3d
from real2sim.stages.export_realitycapture import is_realitycapture, read_realitycapture
from real2sim.stages.export_rgbd import (
    SEVEN_SCENES_DEPTH_K,
    is_scannet,
    is_seven_scenes,
    read_scannet,
    read_seven_scenes,
)
from real2sim.stages.image_names import match_names
from real2sim.stages.known_poses import PoseFile
from real2sim.stages.transforms_json import read_poses

TRANSFORMS = "transforms.json"


@dataclass
class Export:
    """What a tool wrote beside the photos. depth: how its depth maps are to be read; said: what people should know."""

    tool: str
    poses: PoseFile | None = None
    depths: dict[str, str] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)
    depth: DepthNotes | None = None
    said: list[str] = field(default_factory=list)


def read_export(layout: Layout, given: Path | None) -> Export | None:
    """The tool's files in a capture, with its photos, masks and depth maps put into `layout`; None where there are none.

    given: a file or folder of poses that the user names: JSON, CSV or a COLMAP model. Raises CaptureError.
    """
    export = _given(layout, given) if given is not None else _found(layout)
    if export is None:
        return None
    for photo, reason in export.aside.items():
        layout.photos.remove(photo)
        layout.unread[photo] = reason
    layout.depths |= export.depths
    if export.poses is not None:
        _attach(layout, export)
    return export


def _given(layout: Layout, path: Path) -> Export:
    if path.is_dir():
        model = find_model(path)
        if model is None:
            raise CaptureError(
                f"{path}: holds no COLMAP model (cameras and images, .bin or .txt). Give a file of poses."
            )
        return Export("COLMAP", read_colmap(model))
    if path.suffix.lower() == ".csv":
        if not is_realitycapture(path):
            raise CaptureError(f"{path}: not a CSV of camera parameters as RealityCapture writes it (#name,x,y,alt,…).")
        return Export("RealityCapture", read_realitycapture(path, _sizes(layout)))
    return Export(path.name, read_poses(path))


def _found(layout: Layout) -> Export | None:
    root = layout.root
    if (root / TRANSFORMS).is_file():
        return Export(TRANSFORMS, read_poses(root / TRANSFORMS))
    if (model := find_model(root)) is not None:
        return Export("COLMAP", read_colmap(model))
    for path in sorted(root.glob("*.csv")):
        if is_realitycapture(path):
            return Export("RealityCapture", read_realitycapture(path, _sizes(layout)))
    if (metadata := find_record3d(root)) is not None:
        return _record3d(layout, metadata)
    if (cameras := find_polycam(root)) is not None:
        return _polycam(layout, cameras)
    if is_seven_scenes(root, layout.photos):
        poses, depths, aside = read_seven_scenes(root, layout.photos)
        notes = DepthNotes(0.001, False, SEVEN_SCENES_DEPTH_K)
        return Export("7-Scenes", poses, depths, aside, notes)
    if is_scannet(root, layout.photos):
        return Export("ScanNet", read_scannet(root, layout.photos))
    return None


def _record3d(layout: Layout, metadata: Path) -> Export:
    said = []
    if any((layout.root / "depth").glob("*.exr")):
        said.append("depth/*.exr of Record3D is not read; export depth as 16-bit PNG to use it.")
    return Export("Record3D", read_record3d(metadata, layout.photos), said=said)


def _polycam(layout: Layout, cameras: Path) -> Export:
    """Its images once: the corrected ones where there are any; its depth maps (mm, registered) by stem."""
    poses = read_polycam(cameras, layout.photos)
    folder = f"{POLYCAM}/depth/"
    depth = {p for p in layout.photos if p.startswith(folder)}
    aside = dict.fromkeys(sorted(depth), "it is a depth map, not a photo")
    for photo in layout.photos:
        if photo.startswith(f"{POLYCAM}/") and photo not in depth and photo not in poses.poses:
            aside[photo] = f"the poses in {POLYCAM}/{cameras.name}/ are of other images"
    depths = {image: folder + name for image, name in _by_stem(poses, depth).items()}
    return Export("Polycam", poses, depths, aside, DepthNotes(0.001, True))


def _by_stem(poses: PoseFile, files: set[str]) -> dict[str, str]:
    names = {PurePosixPath(file).name for file in files}
    return match_names(list(poses.poses), sorted(names))


def _sizes(layout: Layout) -> dict[str, tuple[int, int]]:
    """(width, height) of each photo as it is stored, from its header."""
    sizes = {}
    for photo in layout.photos:
        try:
            with Image.open(layout.root / photo) as image:
                sizes[photo] = image.size
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            continue
    return sizes


def _attach(layout: Layout, export: Export) -> None:
    """Give photos the masks and depth maps that the file of poses names, where they are inside the capture."""
    assert export.poses is not None
    poses = export.poses
    names = match_names(layout.photos, poses.poses)
    base = poses.path.parent
    for photo, name in names.items():
        for files, target in ((poses.masks, layout.keep_masks), (poses.depths, layout.depths)):
            if name in files and photo not in target:
                file = _inside(layout, base, files[name])
                if file is None:
                    export.said.append(f"{files[name]}, which {poses.path.name} names, is not a file of the capture")
                else:
                    target[photo] = file
    used = {*layout.keep_masks.values(), *layout.depths.values()}
    for photo in [p for p in layout.photos if p in used]:
        layout.photos.remove(photo)
        layout.unread[photo] = f"{poses.path.name} names it as a mask or a depth map"


def _inside(layout: Layout, base: Path, name: str) -> str | None:
    """A file named by another file, relative to the capture; None where it leads out, is missing or is no picture."""
    path = Path(os.path.normpath(base / name))
    if path.suffix.lower() not in DEPTH_SUFFIXES | PHOTO_SUFFIXES:
        return None
    if not path.is_file() or not path.resolve().is_relative_to(layout.root.resolve()):
        return None
    try:
        return path.relative_to(layout.root).as_posix()
    except ValueError:
        return None
