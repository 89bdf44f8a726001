# SPDX-License-Identifier: Apache-2.0
"""ingest: a capture → frames. Upright images without metadata, camera groups, and a ledger of every input image.

Writes images/, masks/, depth/ (mm), frames.json, measures.json (what only `scale` reads), contact.png.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from real2sim.errors import CaptureError
from real2sim.stages.contract import Progress, Result, above_zero

if TYPE_CHECKING:
    from real2sim.stages.capture_layout import Layout
    from real2sim.stages.capture_yaml import CaptureNotes, KnownLength
    from real2sim.stages.exports import Export
    from real2sim.stages.ingest_candidates import Candidate, Ledger
    from real2sim.stages.ingest_frames import Frame, Group
    from real2sim.stages.known_poses import PoseFile

VERSION = "3"
SHEET_LIMIT = 64


@dataclass(frozen=True)
class Config:
    """Options of ingest."""

    camera_model: Literal["SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV"] = "SIMPLE_RADIAL"
    """COLMAP camera model of a group whose intrinsics are not given."""
    default_focal_ratio: float = 1.2
    """Focal length over the long side, where nothing is known of the lens."""
    min_side_px: int = 64
    """Images with a shorter side below this are rejected [px]."""
    min_relative_sharpness: float = 0.1
    """Images below this share of both their source's and their neighbours' median sharpness are rejected; 0: none."""
    near_duplicate_levels: float = 2.0
    """Pairs whose thumbnails differ by less are listed as near duplicates [grey levels of 255]; they are kept."""
    video_fps: float = 3.0
    """Windows per second of video; the sharpest frame of each is used [1/s]."""
    video_max_frames: int = 300
    """Windows of a long video widen until about this many frames are left, per video."""
    marker_size_m: float | None = None
    """Side of the printed ArUco marker's black square [m]; overrides capture.yaml."""
    marker_dictionary: str = "DICT_4X4_50"
    """OpenCV's name of the marker's dictionary, with marker_size_m."""
    known_length: str | None = None
    """"METRES IMAGE x,y x,y [IMAGE x,y x,y …]", pixels of upright images; several separated by ";"."""
    poses_metric: bool | None = None
    """Whether the unit of given poses is the metre; none: as their file says."""
    gravity: tuple[float, float, float] | None = None
    """Direction of down in the frame of given poses; overrides capture.yaml."""

    def __post_init__(self) -> None:
        above_zero(self, "default_focal_ratio", "min_side_px", "video_fps", "video_max_frames", "marker_size_m")


def run(inputs: Mapping[str, Path], config: Config, out: Path, scratch: Path, progress: Progress) -> Result:
    """Frames of inputs["capture"], with the poses of inputs["poses"] or of a tool's own files in the capture.

    Raises CaptureError where nothing usable is found or a file contradicts the images.
    """
    from real2sim.stages.capture_layout import read_layout
    from real2sim.stages.capture_yaml import CaptureNotes, DepthNotes, read_capture_yaml
    from real2sim.stages.exports import read_export
    from real2sim.stages.ingest_candidates import Ledger, near_duplicates

    capture = inputs["capture"]
    layout = read_layout(capture)
    notes = read_capture_yaml(capture) if capture.is_dir() else CaptureNotes()
    export = read_export(layout, inputs.get("poses"))
    poses = export.poses if export is not None else None
    if export is not None and export.depth is not None and notes.depth == DepthNotes():
        notes = replace(notes, depth=export.depth)
    ledger, remarks = Ledger(rejected=dict(layout.unread)), []  # type: Ledger, list[str]
    candidates, videos = _collect(layout, config, scratch, ledger, progress)
    candidates = _judge(capture, candidates, config, poses, ledger)
    frames, groups = _write(layout, candidates, notes, poses, config, out, ledger, remarks)
    metric = _poses_metric(poses, config, remarks)
    remarks += _remarks_on(export)
    description = _description(frames, groups, notes, config, poses, metric, ledger)
    (out / "frames.json").write_text(json.dumps(description, indent=1))
    measures = _measures(notes, config, ledger)
    (out / "measures.json").write_text(json.dumps(measures, indent=1))
    _contact_sheet(capture, layout, out, frames, ledger)
    remarks += [f"{stray}: fits no image, so it is not used" for stray in layout.strays]
    for remark in remarks:
        progress.log(remark)
    near = near_duplicates(candidates, config.near_duplicate_levels)
    return Result(_metrics(description, candidates, near, videos), backend="pillow+opencv", notes=remarks)


def _collect(
    layout: Layout, config: Config, scratch: Path, ledger: Ledger, progress: Progress
) -> tuple[list[Candidate], list[dict[str, Any]]]:
    """Decode everything into scratch/staging, photos first."""
    from real2sim.stages.ingest_candidates import collect_photos, collect_video
    from real2sim.stages.photos import Rejected

    staging = scratch / "staging"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    parts = len(layout.videos) + bool(layout.photos)

    def report(part: int, fraction: float, what: str) -> None:
        progress.update(part + fraction, parts, step=what)

    candidates = collect_photos(layout, config.min_side_px, staging, ledger, lambda f: report(0, f, "photos"))
    videos = []
    for k, path in enumerate(layout.videos):
        folder, part = staging / f"video{k}", k + bool(layout.photos)
        folder.mkdir()
        try:
            frames, count = collect_video(
                *(layout.root, path, config.video_fps, config.video_max_frames, config.min_side_px, folder),
                lambda f, part=part, path=path: report(part, f, path),
            )
        except Rejected as reason:
            ledger.rejected[path] = str(reason)
            continue
        candidates += frames
        videos.append({"path": path, **asdict(count)})
    return candidates, videos


def _judge(
    capture: Path, candidates: list[Candidate], config: Config, poses: PoseFile | None, ledger: Ledger
) -> list[Candidate]:
    """The candidates to use; the others are in the ledger. Raises CaptureError where none is left."""
    from real2sim.stages.ingest_candidates import drop_blank, drop_blurred, drop_duplicates
    from real2sim.stages.ingest_frames import drop_without_pose

    candidates = drop_duplicates(drop_blank(candidates, ledger), ledger)
    candidates = drop_blurred(candidates, config.min_relative_sharpness, ledger)
    if poses is not None:
        candidates = drop_without_pose(candidates, poses, ledger)
    if not candidates:
        some = "; ".join(f"{path}: {reason}" for path, reason in list(ledger.rejected.items())[:5])
        raise CaptureError(f"{capture}: none of its {len(ledger.rejected)} images can be used. {some}.")
    return candidates


def _write(
    layout: Layout,
    candidates: list[Candidate],
    notes: CaptureNotes,
    poses: PoseFile | None,
    config: Config,
    out: Path,
    ledger: Ledger,
    remarks: list[str],
) -> tuple[list[Frame], list[Group]]:
    """Number the frames and write images, masks and depth maps."""
    from real2sim.stages.ingest_frames import check_sources, group_frames, write_frame

    check_sources(notes, candidates, layout.root)
    for kind, wanted in (("images", True), ("masks", True), ("depth", bool(layout.depths))):
        if wanted:
            (out / kind).mkdir()
    known = poses.match([c.path for c in candidates]) if poses is not None else {}
    frames = []
    for index, candidate in enumerate(candidates):
        pose = known.get(candidate.path)
        frame = write_frame(f"{index:05d}", candidate, layout, notes.depth, pose, out, remarks)
        ledger.used[candidate.path] = frame.name
        frames.append(frame)
    if not any((out / "masks").iterdir()):
        (out / "masks").rmdir()
    return frames, group_frames(frames, notes, config.camera_model, config.default_focal_ratio)


def _poses_metric(poses: PoseFile | None, config: Config, remarks: list[str]) -> bool:
    """Whether given poses are in metres; where nothing says so they are not taken for it."""
    if poses is None:
        return False
    if config.poses_metric is None and poses.metric is None:
        remarks.append(
            f"{poses.path.name} does not say whether its unit is the metre, so it gives no scale. If it is, add"
            ' "metric": true to it, or set ingest.poses_metric=true.'
        )
    return bool(poses.metric if config.poses_metric is None else config.poses_metric)


def _remarks_on(export: Export | None) -> list[str]:
    """What people should know of another tool's files."""
    if export is None or export.poses is None:
        return []
    tracked = export.poses.tracked
    use = "scale and the frame of reference; structure from motion finds its own" if tracked else "camera poses"
    return [f"{export.tool}: {len(export.poses.poses) or len(export.poses.video)} poses, used for {use}", *export.said]


def _description(
    frames: list[Frame],
    groups: list[Group],
    notes: CaptureNotes,
    config: Config,
    poses: PoseFile | None,
    metric: bool,
    ledger: Ledger,
) -> dict[str, Any]:
    """The content of frames.json."""
    from real2sim.stages.ingest_frames import is_ordered

    gravity = config.gravity if config.gravity is not None else notes.gravity
    if gravity is None and poses is not None:
        gravity = poses.gravity
    if gravity is not None and poses is None:
        raise CaptureError("gravity is a direction in the frame of given poses, and no poses are given. Leave it out.")
    has_depth = any(f.depth is not None for f in frames)
    return {
        "frames": [f.to_json() for f in frames],
        "groups": [asdict(g) for g in groups],
        "depth": {"unit_m": 0.001, "registered": notes.depth.registered, "K": notes.depth.K} if has_depth else None,
        "poses": {"metric": metric, "source": poses.path.name, "tracked": poses.tracked} if poses is not None else None,
        "gravity": list(gravity) if gravity is not None else None,
        "ordered": is_ordered(frames, notes),
        "ledger": ledger.rows(),
    }


def _measures(notes: CaptureNotes, config: Config, ledger: Ledger) -> dict[str, Any]:
    """The content of measures.json: apart from the frames, so that a corrected length runs no camera pose again."""
    from real2sim.stages.ingest_frames import known_lengths_by_frame

    marker = asdict(notes.marker) if notes.marker is not None else None
    if config.marker_size_m is not None:
        marker = {"dictionary": config.marker_dictionary, "size_m": config.marker_size_m}
    return {
        "marker": marker,
        "known_lengths": known_lengths_by_frame(_known_lengths(notes, config), ledger.used),
        "licence": notes.licence,
        "notes": notes.notes,
    }


def _known_lengths(notes: CaptureNotes, config: Config) -> list[KnownLength]:
    from real2sim.stages.capture_yaml import parse_known_length

    given = [text for text in (config.known_length or "").split(";") if text.strip()]
    return [*notes.known_lengths, *(parse_known_length(text) for text in given)]


def _contact_sheet(capture: Path, layout: Layout, out: Path, frames: list[Frame], ledger: Ledger) -> None:
    from real2sim.stages.contact_sheet import Thumbnail, choose, write_contact_sheet
    from real2sim.stages.photos import readable

    items = [Thumbnail(out / f.image, f.name, True) for f in frames]
    rejected = [path for path in ledger.rejected if path in layout.photos and readable(layout.root / path)]
    items += [Thumbnail(layout.root / path, Path(path).name, False) for path in rejected]
    write_contact_sheet(out / "contact.png", choose(items, SHEET_LIMIT))


def _metrics(
    description: dict[str, Any], candidates: list[Candidate], near: list[tuple[str, str]], videos: list[dict[str, Any]]
) -> dict[str, Any]:
    import numpy as np

    sharpness = np.array([c.measures.sharpness for c in candidates])
    exposure = np.array([c.measures.exposure for c in candidates])
    rejected = [row for row in description["ledger"] if row["status"] == "rejected"]
    return {
        "images": len(description["ledger"]),
        "frames": len(description["frames"]),
        "rejected": len(rejected),
        "rejections": {row["path"]: row["reason"] for row in rejected},
        "groups": description["groups"],
        "ordered": description["ordered"],
        "sharpness": {"median": float(np.median(sharpness)), "min": float(sharpness.min())},
        "exposure": {"median": float(np.median(exposure)), "min": float(exposure.min()), "max": float(exposure.max())},
        "near_duplicates": [list(pair) for pair in near],
        "videos": videos,
        "masks": sum(f["mask"] is not None for f in description["frames"]),
        "depth_maps": sum(f["depth"] is not None for f in description["frames"]),
        "poses": description["poses"],
    }
