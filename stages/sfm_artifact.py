# SPDX-License-Identifier: Apache-2.0
"""Write a reconstruction as the sfm artifact: COLMAP model, undistorted images, cameras.json, points.npz, pictures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2  # noqa: F401  before pycolmap: the other order makes later PNG writing abort
import numpy as np
import pycolmap

from real2sim.sim.cameras import Camera, write_cameras
from real2sim.stages.contact_sheet import Thumbnail, choose, write_contact_sheet
from real2sim.stages.sfm_pycolmap import pose_of, registered_images
from real2sim.stages.sparse import SparsePoints
from real2sim.stages.undistort import Pinhole, pinhole_of, write_image, write_map

SHEET_LIMIT = 64

Rows = Sequence[dict[str, Any]]


def write_model(model: pycolmap.Reconstruction, out: Path) -> None:
    """sparse/0 in COLMAP's binary format."""
    folder = out / "sparse" / "0"
    folder.mkdir(parents=True)
    model.write_binary(folder)


def write_frames(
    model: pycolmap.Reconstruction,
    frames: Rows,
    depth: dict[str, Any] | None,
    heldout_every: int,
    ingest: Path,
    out: Path,
    report: Callable[[int, int], None],
) -> tuple[list[Camera], SparsePoints]:
    """images/, masks/, depth/ (or depth_raw/), depth.json, cameras.json, points.npz of the registered frames."""
    rows = {Path(f["image"]).name: f for f in frames}
    images = registered_images(model)
    pinholes = {i: pinhole_of(model.camera(i)) for i in sorted({image.camera_id for image in images})}
    cameras = []
    for k, image in enumerate(images):
        row = rows[image.name]
        files = _write_files(pinholes[image.camera_id], row, depth, ingest, out)
        cameras.append(_camera(pinholes[image.camera_id], image, row, files, heldout=k % heldout_every == 0))
        report(k + 1, len(images))
    _write_depth_notes(depth, [rows[image.name] for image in images], out)
    write_cameras(out / "cameras.json", cameras, "sfm")
    points = sparse_points(model, images, pinholes)
    np.savez(out / "points.npz", **points.__dict__)
    return cameras, points


def sparse_points(
    model: pycolmap.Reconstruction, images: Sequence[pycolmap.Image], pinholes: dict[int, Pinhole]
) -> SparsePoints:
    """Points in id order with their observations in undistorted pixels, camera by camera."""
    ids = sorted(model.point3D_ids())
    index = {point_id: p for p, point_id in enumerate(ids)}
    points = [model.point3D(i) for i in ids]
    obs_point, obs_camera, obs_xy = [], [], [np.zeros((0, 2))]
    for k, image in enumerate(images):
        observed = [p for p in image.points2D if p.has_point3D()]
        obs_point += [index[p.point3D_id] for p in observed]
        obs_camera += [k] * len(observed)
        obs_xy.append(pinholes[image.camera_id].points(np.array([p.xy for p in observed]).reshape(-1, 2)))
    return SparsePoints(
        xyz=np.array([p.xyz for p in points]).reshape(-1, 3),
        rgb=np.array([p.color for p in points], np.uint8).reshape(-1, 3),
        error=np.array([p.error for p in points], np.float64),
        track_length=np.array([p.track.length() for p in points], np.int64),
        obs_point=np.array(obs_point, np.int64),
        obs_camera=np.array(obs_camera, np.int64),
        obs_xy=np.concatenate(obs_xy),
    )


def write_sheet(frames: Rows, registered: set[str], ingest: Path, out: Path) -> None:
    """contact.png: frames with a pose in green, without in red."""
    items = [Thumbnail(ingest / f["image"], f["name"], f["name"] in registered) for f in frames]
    write_contact_sheet(out / "contact.png", choose(items, SHEET_LIMIT))


def _camera(
    pinhole: Pinhole, image: pycolmap.Image, row: dict[str, Any], files: dict[str, str], heldout: bool
) -> Camera:
    size = (pinhole.width, pinhole.height)
    return Camera(row["name"], *size, pinhole.K, pose_of(image), [], heldout=heldout, **files)


def _write_files(
    pinhole: Pinhole, row: dict[str, Any], depth: dict[str, Any] | None, ingest: Path, out: Path
) -> dict[str, str]:
    """Write one frame's files; {"image", "mask", "depth"} as paths relative to `out`, where there are such."""
    files = {"image": f"images/{row['name']}.png"}
    write_image(pinhole, ingest / row["image"], _make(out / files["image"]))
    if row["mask"]:
        files["mask"] = f"masks/{row['name']}.png"
        write_map(pinhole, ingest / row["mask"], _make(out / files["mask"]))
    if row["depth"] and depth is not None:
        if depth["registered"] is False:  # another camera's view: its pixels are not these pixels
            shutil.copyfile(ingest / row["depth"], _make(out / f"depth_raw/{row['name']}.png"))
        else:
            files["depth"] = f"depth/{row['name']}.png"
            write_map(pinhole, ingest / row["depth"], _make(out / files["depth"]))
    return files


def _write_depth_notes(depth: dict[str, Any] | None, rows: Rows, out: Path) -> None:
    """depth.json: unit, registration, K of the depth camera; raw maps by frame where they are not registered."""
    if depth is None:
        return
    raw = {r["name"]: f"depth_raw/{r['name']}.png" for r in rows if r["depth"] and depth["registered"] is False}
    (out / "depth.json").write_text(json.dumps({**depth, "raw": raw}, indent=1))


def _make(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    return path
