# SPDX-License-Identifier: Apache-2.0
"""What other tools write beside photos: poses land in OpenCV axes, depth maps and masks on their photos."""

from __future__ import annotations

import contextlib
import csv
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation
from test_ingest import picture, rejections, run, save_jpeg

from real2sim.errors import CaptureError
from real2sim.stages.export_colmap import read_colmap
from real2sim.stages.export_realitycapture import rotation

SIZE = (120, 80)
K = [[100.0, 0, 61.0], [0, 102.0, 39.0], [0, 0, 1]]
EXACT = 1e-6  # the text formats are written here with nine digits


def cameras(count: int = 3) -> list[np.ndarray]:
    """T_world_cam [4, 4], OpenCV axes, of no symmetry that could hide an error."""
    rng = np.random.default_rng(0)
    poses = []
    for _ in range(count):
        T = np.eye(4)
        T[:3, :3] = Rotation.random(random_state=rng).as_matrix()
        T[:3, 3] = rng.normal(size=3)
        poses.append(T)
    return poses


def opengl(T: np.ndarray) -> np.ndarray:
    """The same camera with y up and z backward."""
    return np.c_[T[:, 0], -T[:, 1], -T[:, 2], T[:, 3]]


def photos(folder: Path, names: list[str]) -> None:
    for k, name in enumerate(names):
        save_jpeg(folder / name, picture(k, *SIZE))


def found(description: dict[str, Any]) -> dict[str, np.ndarray]:
    return {f["capture_path"]: np.array(f["T_world_cam"]) for f in description["frames"]}


def colmap_text(folder: Path, names: list[str], poses: list[np.ndarray]) -> None:
    folder.mkdir(parents=True)
    (folder / "cameras.txt").write_text("# cameras\n1 OPENCV 120 80 100 102 61 39 0.01 0.02 0.001 0.002\n")
    lines = ["# images"]
    for k, (name, T) in enumerate(zip(names, poses), 1):
        R = T[:3, :3].T
        x, y, z, w = Rotation.from_matrix(R).as_quat()
        values = " ".join(f"{v:.12g}" for v in (w, x, y, z, *(-R @ T[:3, 3])))
        lines += [f"{k} {values} 1 {name}", "" if k == 1 else "3.5 4.5 -1"]
    (folder / "images.txt").write_text("\n".join(lines) + "\n")


def colmap_binary(folder: Path, names: list[str], poses: list[np.ndarray]) -> None:
    folder.mkdir(parents=True)
    (folder / "cameras.bin").write_bytes(
        struct.pack("<QiiQQ8d", 1, 1, 4, 120, 80, 100, 102, 61, 39, 0.01, 0.02, 0.001, 0.002)
    )
    data = struct.pack("<Q", len(names))
    for k, (name, T) in enumerate(zip(names, poses), 1):
        R = T[:3, :3].T
        x, y, z, w = Rotation.from_matrix(R).as_quat()
        data += struct.pack("<i7di", k, w, x, y, z, *(-R @ T[:3, 3]), 1) + name.encode() + b"\0"
        data += struct.pack("<Q", 2) + struct.pack("<ddq", 1.5, 2.5, -1) * 2
    (folder / "images.bin").write_bytes(data)


@pytest.mark.parametrize("write", [colmap_text, colmap_binary])
def test_a_colmap_model_gives_poses_and_intrinsics(tmp_path: Path, write: Any) -> None:
    names, poses = [f"стол {k}.jpg" for k in range(3)], cameras()
    photos(tmp_path / "capture" / "images", names)
    write(tmp_path / "capture" / "sparse" / "0", names, poses)
    result, description, _ = run(tmp_path / "capture", tmp_path / "run")
    for name, T in zip(names, poses):
        assert np.allclose(found(description)[f"images/{name}"], T, atol=EXACT)
    frame = description["frames"][0]
    assert np.allclose(frame["K"], K) and frame["distortion"] == [0.01, 0.02, 0.001, 0.002]
    assert description["groups"][0]["model"] == "OPENCV"
    assert description["poses"] == {"metric": False, "source": "0", "tracked": False}
    assert any("COLMAP: 3 poses" in note for note in result.notes)


def test_a_colmap_folder_is_also_taken_as_the_named_poses(tmp_path: Path) -> None:
    names, poses = ["a.jpg", "b.jpg", "c.jpg"], cameras()
    photos(tmp_path / "capture", names)
    colmap_binary(tmp_path / "model", names, poses)
    _, description, _ = run(tmp_path / "capture", tmp_path / "run", poses=tmp_path / "model")
    assert np.allclose(found(description)["c.jpg"], poses[2], atol=EXACT)


@pytest.mark.parametrize("angles,ahead,up", [
    ((0, 0, 0), (0, 0, -1), (0, 1, 0)),  # looks down, north up
    ((0, 90, 0), (0, 1, 0), (0, 0, 1)),  # looks north
    ((90, 90, 0), (1, 0, 0), (0, 0, 1)),  # looks east
])  # fmt: skip
def test_realitycapture_angles_are_headings_of_a_compass(angles: Any, ahead: Any, up: Any) -> None:
    R = rotation(*np.radians(angles))
    assert np.allclose(R @ [0, 0, -1], ahead) and np.allclose(R @ [0, 1, 0], up)


def test_realitycapture_csv_gives_poses_and_intrinsics_in_pixels(tmp_path: Path) -> None:
    names = ["a.jpg", "b.jpg", "c.jpg"]
    photos(tmp_path / "capture", names)
    with (tmp_path / "capture" / "cameras.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["#name", "x", "y", "alt", "heading", "pitch", "roll", "f", "px", "py", "k1", "k2", "k3", "k4", "t1", "t2"]
        )
        for k, name in enumerate(names):
            writer.writerow([name, k, 2, 3, 0, 90, 0, 30, 0.3, -0.3, 0.01 * k, 0, 0.1 * (k == 2), 0, 0, 0])
    _, description, _ = run(tmp_path / "capture", tmp_path / "run")
    frames = description["frames"]
    assert np.allclose(frames[1]["T_world_cam"], [[1, 0, 0, 1], [0, 0, 1, 2], [0, -1, 0, 3], [0, 0, 0, 1]])
    assert np.allclose(frames[1]["K"], [[100, 0, 61], [0, 100, 39], [0, 0, 1]])
    assert frames[1]["distortion"] == [0.01, 0, 0, 0]
    assert frames[2]["K"] is None  # a lens of higher order is left to structure from motion


def test_record3d_gives_tracked_metric_poses_and_gravity(tmp_path: Path) -> None:
    poses = cameras()
    photos(tmp_path / "capture" / "rgb", [f"{k}.jpg" for k in range(3)])
    rows = [[*Rotation.from_matrix(opengl(T)[:3, :3]).as_quat(), *T[:3, 3]] for T in poses]
    data = {"poses": rows, "K": np.array(K).T.ravel().tolist(), "w": 120, "h": 80, "fps": 60}
    (tmp_path / "capture" / "metadata.json").write_text(json.dumps(data))
    _, description, _ = run(tmp_path / "capture", tmp_path / "run")
    assert all(np.allclose(found(description)[f"rgb/{k}.jpg"], T, atol=EXACT) for k, T in enumerate(poses))
    assert description["poses"] == {"metric": True, "source": "metadata.json", "tracked": True}
    assert description["gravity"] == [0, -1, 0] and np.allclose(description["frames"][0]["K"], K)


def test_polycam_uses_its_corrected_images_once_with_their_depth(tmp_path: Path) -> None:
    poses, root = cameras(), tmp_path / "capture" / "keyframes"
    for kind in ("images", "corrected_images"):
        photos(root / kind, [f"10{k}.jpg" for k in range(3)])
    for kind in ("cameras", "corrected_cameras", "depth"):
        (root / kind).mkdir()
    for k, T in enumerate(poses):
        M = opengl(T)
        row = {f"t_{i}{j}": M[i, j] for i in range(3) for j in range(4)}
        row |= {"fx": 100, "fy": 102, "cx": 61, "cy": 39, "width": 120, "height": 80}
        for kind in ("cameras", "corrected_cameras"):
            (root / kind / f"10{k}.json").write_text(json.dumps(row))
        Image.fromarray(np.full((40, 60), 1500, np.uint16)).save(root / "depth" / f"10{k}.png")
    _, description, out = run(tmp_path / "capture", tmp_path / "run")
    assert {f["source"] for f in description["frames"]} == {"keyframes/corrected_images"}
    assert np.allclose(found(description)["keyframes/corrected_images/101.jpg"], poses[1], atol=EXACT)
    assert np.asarray(Image.open(out / description["frames"][0]["depth"])).max() == 1500
    assert sum("depth map" in reason for reason in rejections(description).values()) == 3


def test_seven_scenes_names_its_depth_and_its_camera(tmp_path: Path) -> None:
    poses, folder = cameras(), tmp_path / "capture"
    photos(folder, [f"frame-00000{k}.color.png" for k in range(3)])
    for k, T in enumerate(poses):
        values = np.full((80, 120), 65535, np.uint16)
        values[:40] = 2000
        Image.fromarray(values).save(folder / f"frame-00000{k}.depth.png")
        (folder / f"frame-00000{k}.pose.txt").write_text("\n".join(" ".join(f"{v:.9g}" for v in row) for row in T))
    _, description, out = run(folder, tmp_path / "run")
    assert len(description["frames"]) == 3 and np.allclose(
        description["frames"][2]["T_world_cam"], poses[2], atol=EXACT
    )
    assert description["depth"]["registered"] is False and description["depth"]["K"][0][0] == 585
    stored = np.asarray(Image.open(out / description["frames"][0]["depth"]))
    assert stored[0, 0] == 2000 and stored[-1, 0] == 0


def test_scannet_frames_whose_tracking_was_lost_are_left_out(tmp_path: Path) -> None:
    poses, folder = cameras(), tmp_path / "capture"
    photos(folder / "color", [f"{k}.jpg" for k in range(3)])
    for kind in ("pose", "intrinsic", "depth"):
        (folder / kind).mkdir()
    for k, T in enumerate(poses):
        rows = T if k != 1 else np.full((4, 4), -np.inf)
        (folder / "pose" / f"{k}.txt").write_text("\n".join(" ".join(map(str, row)) for row in rows))
        Image.fromarray(np.full((80, 120), 900, np.uint16)).save(folder / "depth" / f"{k}.png")
    intrinsic = np.eye(4)
    intrinsic[:3, :3] = K
    (folder / "intrinsic" / "intrinsic_color.txt").write_text("\n".join(" ".join(map(str, row)) for row in intrinsic))
    _, description, _ = run(folder, tmp_path / "run")
    assert sorted(found(description)) == ["color/0.jpg", "color/2.jpg"]
    assert list(rejections(description)) == ["color/1.jpg"]
    assert np.allclose(description["frames"][0]["K"], K) and description["poses"]["tracked"] is True
    assert all(f["depth"] for f in description["frames"])


def test_masks_and_depth_named_in_transforms_json_are_used_black_to_ignore(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    photos(folder / "images", [f"{k}.jpg" for k in range(3)])
    keep = np.full((80, 120), 255, np.uint8)
    keep[:, :30] = 0
    for kind, pixels in (("mask_png", keep), ("lidar", np.full((80, 120), 700, np.uint16))):
        (folder / kind).mkdir()
        Image.fromarray(pixels).save(folder / kind / "0.png")
    rows = [{"file_path": f"images/{k}.jpg", "transform_matrix": np.eye(4).tolist()} for k in range(3)]
    rows[0] |= {"mask_path": "mask_png/0.png", "depth_file_path": "./lidar/0.png"}
    rows[1] |= {"mask_path": "../../secret.png"}
    Image.fromarray(keep).save(tmp_path / "secret.png")
    (folder / "transforms.json").write_text(json.dumps({"frames": rows}))
    result, description, out = run(folder, tmp_path / "run")
    first, second = description["frames"][:2]
    mask = np.asarray(Image.open(out / first["mask"]))
    assert (mask[:, :30] == 255).all() and (mask[:, 30:] == 0).all()
    assert np.asarray(Image.open(out / first["depth"])).max() == 700
    assert second["mask"] is None and any("../../secret.png" in note for note in result.notes)
    assert len(description["frames"]) == 3


@pytest.mark.parametrize("break_it,words", [
    (lambda b: b[:-3], "not a readable COLMAP model"),
    (lambda b: b[:8] + b"\xff" * 8 + b[16:], "camera"),
    (lambda b: struct.pack("<Q", 2**62) + b[8:], "not a readable COLMAP model"),
])  # fmt: skip
def test_damaged_colmap_models_are_named(tmp_path: Path, break_it: Any, words: str) -> None:
    colmap_binary(tmp_path / "m", ["a.jpg"], cameras(1))
    for file in ("cameras.bin", "images.bin"):
        data = (tmp_path / "m" / file).read_bytes()
        (tmp_path / "m" / file).write_bytes(break_it(data))
        with pytest.raises(CaptureError, match=words):
            read_colmap(tmp_path / "m")
        (tmp_path / "m" / file).write_bytes(data)
        break


def test_fuzzed_colmap_models_end_in_poses_or_a_named_error(tmp_path: Path) -> None:
    colmap_binary(tmp_path / "m", ["a.jpg", "b.jpg"], cameras(2))
    rng = np.random.default_rng(0)
    for file in ("cameras.bin", "images.bin"):
        path = tmp_path / "m" / file
        good = path.read_bytes()
        for _ in range(300):
            data = bytearray(good[: rng.integers(0, len(good) + 1)])
            for at in rng.integers(0, max(1, len(data)), 3):
                data[at : at + 1] = bytes([rng.integers(256)])
            path.write_bytes(data)
            with contextlib.suppress(CaptureError):
                assert len(read_colmap(tmp_path / "m").poses) >= 1
        path.write_bytes(good)
