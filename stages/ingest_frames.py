# SPDX-License-Identifier: Apache-2.0
"""From candidates to frames: numbered files, masks, depth maps, poses, one camera group per source × size × lens."""

from __future__ import annotations

import difflib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from real2sim.errors import CaptureError
from real2sim.stages.capture_layout import VIDEO_SUFFIXES, Layout, is_numbered_sequence
from real2sim.stages.capture_yaml import CaptureNotes, DepthNotes, KnownLength, Point
from real2sim.stages.depth_maps import read_depth_mm, read_mask, to_image
from real2sim.stages.exif import focal_prior
from real2sim.stages.image_names import match_names
from real2sim.stages.ingest_candidates import Candidate, Ledger
from real2sim.stages.known_poses import KnownPose, PoseFile
from real2sim.stages.photos import Rejected, encode_png

Matrix = list[list[float]]


@dataclass
class Frame:
    """One row of frames.json; files are relative to the artifact."""

    name: str
    image: str
    candidate: Candidate
    mask: str | None
    depth: str | None
    T_world_cam: Matrix | None
    K: Matrix | None
    distortion: list[float]
    group: str = ""

    def to_json(self) -> dict[str, Any]:
        c = self.candidate
        return {
            "name": self.name,
            "image": self.image,
            "capture_path": c.path,
            "source": c.source,
            "width": c.size[0],
            "height": c.size[1],
            "group": self.group,
            "mask": self.mask,
            "depth": self.depth,
            "sharpness": c.measures.sharpness,
            "exposure": c.measures.exposure,
            "T_world_cam": self.T_world_cam,
            "K": self.K,
            "distortion": self.distortion,
        }


@dataclass(frozen=True)
class Group:
    """One camera: frames of one source, size and lens. K and distortion only where they are given."""

    id: str
    source: str
    width: int
    height: int
    model: str
    focal_px: float
    focal_source: str
    K: Matrix | None
    distortion: list[float]


def drop_without_pose(candidates: list[Candidate], poses: PoseFile, ledger: Ledger) -> list[Candidate]:
    """Reject images that the file of poses does not cover; raises CaptureError where it covers none."""
    kept, known = [], poses.match([c.path for c in candidates])
    for c in candidates:
        if c.path not in known:
            ledger.rejected[c.path] = f"{poses.path.name} holds no pose for it"
        elif c.orientation != 1:
            ledger.rejected[c.path] = (
                f"{poses.path.name} holds a pose for it, and its EXIF orientation is {c.orientation}: if the pose is"
                " of the stored or of the upright photo is not said; store the photo upright"
            )
        else:
            kept.append(c)
    if candidates and not kept:
        names = ", ".join([*poses.poses][:3]) or f"{len(poses.video)} poses of a video"
        raise CaptureError(
            f"{poses.path}: holds no pose for any image. It names {names}; the capture holds {candidates[0].path}."
        )
    return kept


def check_sources(notes: CaptureNotes, candidates: list[Candidate], root: Path) -> None:
    """Raise CaptureError where capture.yaml describes a source that is not there."""
    known = list(dict.fromkeys(c.source for c in candidates))
    for name in notes.sources:
        if name not in known:
            meant = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise CaptureError(
                f"{root / 'capture.yaml'}: sources.{name}: no used image is of that source. Did you mean {meant!r}?"
                f" Sources: {', '.join(known)}."
            )


def write_frame(
    name: str,
    c: Candidate,
    layout: Layout,
    depth: DepthNotes,
    pose: KnownPose | None,
    out: Path,
    remarks: list[str],
) -> Frame:
    """Write one frame's files under `out`; a mask or a depth map that cannot be used is told in `remarks`."""
    image = f"images/{name}{c.staged.suffix}"
    shutil.move(c.staged, out / image)
    mask, depth_map = None, None
    try:
        mask = _write_mask(f"masks/{name}.png", c, layout, out)
    except Rejected as reason:  # what it should hide is not known
        file = layout.masks.get(c.path) or layout.keep_masks.get(c.path)
        raise CaptureError(f"{layout.root / (file or c.path)}: {reason}. Correct it or remove it.") from reason
    try:
        depth_map = _write_depth(f"depth/{name}.png", c, layout, depth, out)
    except Rejected as reason:
        remarks.append(f"depth of {c.path} is not used, because {reason}")
    K, distortion = None, []  # type: Matrix | None, list[float]
    if pose is not None:
        try:
            matrix = pose.intrinsics_at(*c.size)
        except ValueError as error:
            raise CaptureError(f"{c.path}: {error}. Poses and images must be of the same photos.") from error
        K = matrix.tolist() if matrix is not None else None
        distortion = list(pose.distortion)
    return Frame(name, image, c, mask, depth_map, pose.T_world_cam.tolist() if pose else None, K, distortion)


def group_frames(frames: list[Frame], notes: CaptureNotes, model: str, default_ratio: float) -> list[Group]:
    """Give each frame its group; one group per source × size × lens, and per intrinsics where they are given."""
    groups: dict[str, Group] = {}
    for f in frames:
        c = f.candidate
        lens = (c.lens.make, c.lens.model, c.lens.focal_mm, c.lens.focal35_mm)
        key = repr((c.source, c.size, lens, f.K, f.distortion))
        if key not in groups:
            groups[key] = _group(f"g{len(groups)}", f, notes, model, default_ratio)
        f.group = groups[key].id
    return list(groups.values())


def is_ordered(frames: list[Frame], notes: CaptureNotes) -> bool:
    """Whether neighbours in name order were taken one after the other: videos, numbered files, or as stated."""
    for source in {f.candidate.source for f in frames}:
        stated = notes.sources[source].ordered if source in notes.sources else None
        paths = [f.candidate.path for f in frames if f.candidate.source == source]
        video = Path(source).suffix.lower() in VIDEO_SUFFIXES
        if not (stated if stated is not None else video or is_numbered_sequence(paths)):
            return False
    return True


def known_lengths_by_frame(lengths: list[KnownLength], used: dict[str, str]) -> list[dict[str, Any]]:
    """Known lengths with the capture's image names replaced by frame names; raises CaptureError for unknown images."""

    def by_frame(point: Point) -> dict[str, list[float]]:
        out = {}
        for image, pixel in point.items():
            path = match_names([image], used).get(image)
            if path is None:
                meant = difflib.get_close_matches(image, list(used), n=1, cutoff=0.0)[0]
                raise CaptureError(
                    f"known length: no used image is named {image!r}, or several are. Did you mean {meant!r}?"
                )
            out[used[path]] = list(pixel)
        return out

    return [{"length_m": length.length_m, "points": [by_frame(p) for p in length.points]} for length in lengths]


def _group(name: str, f: Frame, notes: CaptureNotes, model: str, default_ratio: float) -> Group:
    c, (width, height) = f.candidate, f.candidate.size
    stated = notes.sources.get(c.source)
    focal, focal_source = focal_prior(c.lens, width, height, default_ratio)
    if stated is not None:
        model = stated.camera_model or model
        focal, focal_source = (stated.focal_px, "given") if stated.focal_px else (focal, focal_source)
    if f.K is not None:
        model = "OPENCV" if f.distortion else "PINHOLE"
        focal, focal_source = (f.K[0][0] + f.K[1][1]) / 2, "given"
    return Group(name, c.source, width, height, model, focal, focal_source, f.K, f.distortion)


def _write_mask(file: str, c: Candidate, layout: Layout, out: Path) -> str | None:
    """The given mask and the transparent pixels, together; white = ignore."""
    mask = None
    if c.path in layout.masks:
        path = layout.root / layout.masks[c.path]
        mask = to_image(read_mask(path), c.stored_size, c.orientation, path.name)
    if c.path in layout.keep_masks:
        path = layout.root / layout.keep_masks[c.path]
        ignored = 255 - to_image(read_mask(path), c.stored_size, c.orientation, path.name)
        mask = ignored if mask is None else np.maximum(mask, ignored)
    if c.transparent is not None:
        clear = read_mask(c.transparent)
        mask = clear if mask is None else np.maximum(mask, clear)
    if mask is None:
        return None
    (out / file).write_bytes(encode_png(mask))
    return file


def _write_depth(file: str, c: Candidate, layout: Layout, notes: DepthNotes, out: Path) -> str | None:
    """The depth map in mm: at the image's size, or as it is where it is not registered to colour."""
    if c.path not in layout.depths:
        return None
    path = layout.root / layout.depths[c.path]
    depth = read_depth_mm(path, notes.unit_m)
    if notes.registered is not False:
        depth = to_image(depth, c.stored_size, c.orientation, path.name)
    elif c.orientation != 1:
        raise Rejected("the depth map has a camera of its own and the photo is stored turned; store the photo upright")
    (out / file).write_bytes(encode_png(depth))
    return file
